"""Inputs of resources that nobody would write: each is read as unknown, none is a mistake of the report."""

from __future__ import annotations

import json
from typing import Any

import pytest
from report_previews import NODE_GROUP, UNKNOWN_TEXT, lines, step, summary

from infra.report.document import document
from infra.report.inputs import LAUNCH_TEMPLATE, number, region_of
from infra.report.markdown import markdown
from infra.report.model import Report, build
from infra.report.pools import pools
from infra.report.preview import Resource, from_digest, from_events, from_text

NO_NUMBERS: list[Any] = [float("inf"), float("nan"), 1e308, "", None, [], {}, "-1"]


@pytest.mark.parametrize(
    ("value", "read"),
    [(2, 2), (2.0, 2), ("2", 2), (0, 0), (1.5, None), (True, None), ("²", None), ("9" * 5000, None), (10**400, None)]
    + [(one, None) for one in NO_NUMBERS],
)
def test_numbers_are_whole_and_such_as_there_can_be(value: Any, read: int | None) -> None:
    assert number(value) == read


@pytest.mark.parametrize("value", [float("inf"), float("nan"), 10**400, "9" * 5000, "²", -1])
def test_sizes_that_no_pool_can_have_are_told_as_unknown_or_as_they_are(value: Any) -> None:
    group = {"instanceTypes": ["p5.48xlarge"], "scalingConfig": {"minSize": value, "maxSize": value}}
    report = build(from_text(lines([step("create", NODE_GROUP, "nodes", new=group), summary()])))
    markdown([report])
    json.dumps(document(report))


@pytest.mark.parametrize("value", [float("inf"), float("nan"), 10**400, -1, "many", None, [], True])
def test_counts_and_times_of_a_foreign_file_are_no_mistake(value: Any) -> None:
    counted = {"config": {}, "steps": [], "changeSummary": {"same": value, "create": value}, "duration": value}
    markdown([build(from_digest(json.dumps(counted)))])
    end = summary(create=value)
    end["summaryEvent"]["durationSeconds"] = value
    markdown([build(from_events([end]))])


def test_the_document_is_json_whatever_the_values_are() -> None:
    new = {"a": float("nan"), "b": [float("inf")], "c": {"d": 1e308}}
    report = build(from_text(lines([step("update", old={"a": 1, "b": [[1]], "c": {}}, new=new), summary()])))
    json.dumps(document(report), allow_nan=False)


@pytest.mark.parametrize("kind", [{}, [], None, 3, UNKNOWN_TEXT])
def test_an_interface_of_a_strange_kind_is_no_efa(kind: Any) -> None:
    group = {"launchTemplate": {"name": "a"}, "instanceTypes": ["p5.48xlarge"]}
    template = {"name": "a", "networkInterfaces": [{"interfaceType": kind}, {"interfaceType": "efa"}]}
    events = [step("create", NODE_GROUP, "nodes", new=group), step("create", LAUNCH_TEMPLATE, "template", new=template)]
    (pool,) = pools(from_events([*events, summary()]).after)
    assert pool.efa == 1


def of_two_pools_with_one_label() -> Report:
    small = {"instanceTypes": ["g6.xlarge"], "labels": {"trainyard.dev/pool": "gpu"}}
    events = [
        step("create", NODE_GROUP, "cheap", new={**small, "scalingConfig": {"minSize": 0, "maxSize": 1}}),
        step("create", NODE_GROUP, "dear", new={**small, "scalingConfig": {"minSize": 0, "maxSize": 99}}),
        summary(),
    ]
    return build(from_events(events))


def test_no_pool_hides_another_by_taking_its_name() -> None:
    report = of_two_pools_with_one_label()
    assert [(row.pool.name, row.pool.maximum) for row in report.pools] == [("gpu (cheap)", 1), ("gpu (dear)", 99)]
    assert report.cost is not None
    assert {part.name for part in report.cost.after.pools} == {row.pool.name for row in report.pools}
    assert {"gpu (cheap)", "gpu (dear)"} <= {change.name for change in report.cost.changes}


def test_the_region_is_that_of_the_resource_before_that_of_its_provider_its_arn_or_its_zone() -> None:
    def one(kind: str = "aws:x:Y", provider: str = "", **inputs: str) -> Resource:
        outputs = {"arn": inputs.pop("arn", "")}
        return Resource(urn=kind, type=kind, name="a", inputs=inputs, outputs=outputs, provider=provider)

    aws = one("pulumi:providers:aws", region="eu-west-1")
    other = one("pulumi:providers:awsx", region="eu-west-9")
    arn = "arn:aws:eks:ap-south-1:1:nodegroup/a"
    assert region_of([one(region="us-east-2", provider=f"{aws.urn}::id")], [aws]) == "us-east-2"
    assert region_of([one(provider=f"{aws.urn}::id", arn=arn)], [aws, other]) == "eu-west-1"
    assert region_of([one(arn=arn)], [aws]) == "ap-south-1"
    assert region_of([one(arn=arn)], []) == "ap-south-1"
    assert region_of([one(availabilityZone="us-east-1-dfw-2a")]) == "us-east-1"
    assert region_of([one(availabilityZone="us-east-1a")]) == "us-east-1"
    assert region_of([one(), aws]) == "eu-west-1"
    assert region_of([one()]) is None
