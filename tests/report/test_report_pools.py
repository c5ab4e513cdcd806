"""Node pools are read from resources as they will be created; what is not known is said to be so."""

from __future__ import annotations

from typing import Any

import pytest
from report_previews import NODE_GROUP, UNKNOWN_TEXT, lines, step, summary

from infra.report.inputs import LAUNCH_TEMPLATE
from infra.report.markdown import markdown
from infra.report.model import build
from infra.report.pools import Pool, pools
from infra.report.preview import from_events, from_text

GROUP = {
    "nodeGroupName": "cluster-gpu",
    "instanceTypes": ["p5.48xlarge"],
    "capacityType": "SPOT",
    "scalingConfig": {"minSize": 0, "maxSize": 2.0, "desiredSize": "1"},
    "launchTemplate": {"name": "cluster-gpu"},
    "labels": {"trainyard.dev/pool": "gpu"},
}
EFA = {"name": "cluster-gpu", "networkInterfaces": [{"interfaceType": "efa"}, {"interfaceType": "efa-only"}, {}]}


def found(group: dict[str, Any], template: dict[str, Any] | None = None) -> Pool:
    events = [step("create", NODE_GROUP, "nodes", new=group)]
    if template is not None:
        events.append(step("create", LAUNCH_TEMPLATE, "template", new=template))
    (pool,) = pools(from_events([*events, summary()]).after)
    return pool


def test_a_pool_is_what_its_node_group_and_launch_template_say() -> None:
    pool = found(GROUP, EFA)
    assert (pool.name, pool.capacity, pool.minimum, pool.maximum, pool.desired) == ("gpu", "spot", 0, 2, 1)
    assert (pool.gpus, pool.gpus_at_max, pool.efa) == (8, 16, 2)
    assert pool.machine is not None
    assert pool.machine.gpu == "H100"


@pytest.mark.parametrize("value", [UNKNOWN_TEXT, None, [], {}, 3, True, "", [UNKNOWN_TEXT], {"minSize": UNKNOWN_TEXT}])
@pytest.mark.parametrize("key", list(GROUP))
def test_a_member_that_is_unknown_or_of_another_type_is_no_mistake(key: str, value: Any) -> None:
    report = build(from_text(lines([step("create", NODE_GROUP, "nodes", new={**GROUP, key: value}), summary()])))
    assert len(report.pools) == 1
    markdown([report])


def test_what_is_not_known_is_said() -> None:
    pool = found({"instanceTypes": ["x99.huge"], "scalingConfig": {"maxSize": UNKNOWN_TEXT}})
    assert (pool.machine, pool.gpus, pool.maximum, pool.gpus_at_max, pool.efa) == (None, None, None, None, None)
    assert (pool.name, pool.capacity) == ("nodes", "on-demand")
    assert found({**GROUP, "capacityType": UNKNOWN_TEXT}).capacity == "unknown"
    report = build(from_events([step("create", NODE_GROUP, "nodes", new={"instanceTypes": ["x99.huge"]}), summary()]))
    (row,) = [line for line in markdown([report]).splitlines() if line.startswith("| **new** `nodes`")]
    assert "0 |" not in row
    assert "unknown" in row


def test_a_type_may_be_in_the_launch_template() -> None:
    group = {name: value for name, value in GROUP.items() if name != "instanceTypes"}
    assert found(group, {**EFA, "instanceType": "g6.xlarge"}).types == ("g6.xlarge",)


def test_pools_that_come_and_go_are_marked() -> None:
    events = [
        step("create", NODE_GROUP, "new", new={**GROUP, "labels": {"trainyard.dev/pool": "new"}}),
        step("delete", NODE_GROUP, "old", old={**GROUP, "labels": {"trainyard.dev/pool": "old"}}),
        summary(),
    ]
    text = markdown([build(from_events(events))])
    assert "| **new** `new` |" in text
    assert "| **removed** `old` |" in text
