"""Policy results as SARIF 2.1.0, which code scanning of GitHub and GitLab reads."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

from infra.report.escape import plain
from infra.report.model import Report
from infra.report.preview import PolicyResult, name_of

SCHEMA = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"
_LEVELS = {"mandatory": "error", "remediate": "warning", "advisory": "warning"}
_SECURITY = {"critical": "9.5", "high": "8.0", "medium": "5.5", "low": "2.0"}
"""Severities as GitHub's code scanning counts them, of ten."""
_MOST_RESULTS = 5000  # what GitHub shows of a run; it takes 25,000


def sarif(reports: Sequence[Report]) -> dict[str, Any]:
    """One log with one run a stack: each replaces what was uploaded of the same stack before."""
    return {"$schema": SCHEMA, "version": "2.1.0", "runs": [_run(report) for report in reports]}


def _run(report: Report) -> dict[str, Any]:
    results = report.policies[:_MOST_RESULTS]  # what matters most is first
    rules = {one.rule: one for one in reversed(results)}
    names = sorted(rules)
    driver: dict[str, Any] = {
        "name": "trainyard policies",
        "informationUri": "https://www.pulumi.com/docs/insights/policy/",
        "rules": [_rule(rules[name]) for name in names],
    }
    if versions := sorted({one.version for one in results if one.version}):
        driver["version"] = ", ".join(versions)
    run: dict[str, Any] = {
        "tool": {"driver": driver},
        "automationDetails": {"id": f"trainyard/{plain(report.preview.project)}/{plain(report.stack)}/"},
        "columnKind": "unicodeCodePoints",
        "results": [_result(one, names.index(one.rule), report.stack) for one in results],
        "invocations": [{"executionSuccessful": report.preview.complete}],
        "properties": {"rehearsal": report.preview.rehearsal},
    }
    if not report.preview.complete:
        run["invocations"][0]["toolExecutionNotifications"] = [
            {"level": "error", "message": {"text": plain(report.preview.why_incomplete, 1000)}}
        ]
    return run


def _rule(result: PolicyResult) -> dict[str, Any]:
    title = result.message.partition("\n")[0] or result.rule
    about: dict[str, Any] = {
        "id": plain(result.rule),
        "name": plain(result.rule),
        "shortDescription": {"text": plain(title, 300)},
        "defaultConfiguration": {"level": _LEVELS.get(result.level, "note")},
        "help": {"text": plain(result.remediation, 2000) or f"trainyard explain {plain(result.rule)}"},
        "properties": {"tags": ["policy"]},
    }
    if result.url.startswith(("https://", "http://")):
        about["helpUri"] = result.url
    if score := _SECURITY.get(result.severity):
        about["properties"]["security-severity"] = score
    return about


def _result(result: PolicyResult, index: int, stack: str) -> dict[str, Any]:
    urn = result.urn or ""
    identity = hashlib.sha256(f"{result.rule}\n{urn}\n{result.finding}".encode("utf-8", "surrogatepass")).hexdigest()
    found: dict[str, Any] = {
        "ruleId": plain(result.rule),
        "ruleIndex": index,
        "level": "note" if result.kind != "violation" else _LEVELS.get(result.level, "note"),
        "kind": "fail" if result.kind == "violation" else "open" if result.kind == "unknown" else "informational",
        "message": {"text": plain(f"{name_of(urn)}: {result.finding}" if urn else result.finding, 1000) or "broken"},
        "locations": [_location(urn, stack)],
        "partialFingerprints": {"trainyardResult/v1": identity},
    }
    if found["kind"] != "fail":
        found["level"] = "none"  # what SARIF wants of a result that is no failure
    return found


def _location(urn: str, stack: str) -> dict[str, Any]:
    """The stack's file, as code scanning wants a file, and the resource."""
    file = "".join(sign if sign.isalnum() or sign in "._-" else "_" for sign in stack)[:200]
    place: dict[str, Any] = {
        "physicalLocation": {
            "artifactLocation": {"uri": _uri(f"Pulumi.{file}.yaml"), "uriBaseId": "%SRCROOT%"},
            "region": {"startLine": 1},
        }
    }
    if urn:
        place["logicalLocations"] = [
            {"name": plain(name_of(urn)), "fullyQualifiedName": plain(urn, 1000), "kind": "resource"}
        ]
    return place


def _uri(path: str) -> str:
    from urllib.parse import quote  # noqa: PLC0415 - only where a document is written

    return quote(path, errors="replace")
