"""Policy results as SARIF: what code scanning needs of it is there."""

from __future__ import annotations

import json

from report_previews import SUBNET, broken_rule, said, step, summary, urn

from infra.report.model import build
from infra.report.preview import from_events
from infra.report.sarif import sarif

EVENTS = [
    step("create", new={}),
    broken_rule("must", message="What it asks for.\nwhat is wrong"),
    broken_rule("must", message="What it asks for.\nwhat is wrong elsewhere", resourceUrn=urn(SUBNET, "two")),
    broken_rule("should", "advisory", severity="low"),
    broken_rule("later", "advisory", "cannot be judged before up: x is unknown"),
]


def test_a_log_has_what_code_scanning_reads() -> None:
    log = sarif([build(from_events([*EVENTS, summary()]))])
    assert log["version"] == "2.1.0"
    (run,) = log["runs"]
    rules = run["tool"]["driver"]["rules"]
    assert [rule["id"] for rule in rules] == ["later", "must", "should"]
    assert run["automationDetails"]["id"] == "trainyard/trainyard/dev/"
    for result in run["results"]:
        assert rules[result["ruleIndex"]]["id"] == result["ruleId"]
        assert result["message"]["text"]
        (place,) = result["locations"]
        assert place["physicalLocation"]["artifactLocation"]["uri"] == "Pulumi.dev.yaml"
        assert place["physicalLocation"]["region"]["startLine"] >= 1
        assert place["logicalLocations"][0]["fullyQualifiedName"].startswith("urn:pulumi:")
    told = [(one["ruleId"], one["level"], one["kind"]) for one in run["results"]]
    assert told == [
        ("must", "error", "fail"),
        ("must", "error", "fail"),
        ("should", "warning", "fail"),
        ("later", "none", "open"),
    ]


def test_a_result_keeps_its_fingerprint_and_another_has_another() -> None:
    runs = [sarif([build(from_events([*EVENTS, summary()]))])["runs"][0] for _ in range(2)]
    prints = [[one["partialFingerprints"]["trainyardResult/v1"] for one in run["results"]] for run in runs]
    assert prints[0] == prints[1]
    assert len(set(prints[0])) == len(prints[0])


def test_a_stack_without_findings_clears_those_of_before() -> None:
    (run,) = sarif([build(from_events([step("create", new={}), summary()]))])["runs"]
    assert run["results"] == []
    assert run["invocations"] == [{"executionSuccessful": True}]


def test_an_engine_that_failed_is_no_clean_run() -> None:
    (run,) = sarif([build(from_events([said("boom"), summary("failed")]))])["runs"]
    assert run["invocations"][0]["executionSuccessful"] is False
    assert "the engine failed" in run["invocations"][0]["toolExecutionNotifications"][0]["message"]["text"]


def test_each_stack_is_a_run_of_its_own() -> None:
    log = sarif([build(from_events([summary()], stack=name)) for name in ("dev", "prod")])
    assert [run["automationDetails"]["id"] for run in log["runs"]] == ["trainyard//dev/", "trainyard//prod/"]
    json.dumps(log)
