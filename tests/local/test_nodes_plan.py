"""Which machines stay, come and go; and what their kubelets are told."""

from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from lightkube.resources.core_v1 import Node

from infra.local.control_plane.pki import Pair
from infra.local.nodes import is_ready, kubelet
from infra.local.nodes.spec import Machine, NodeSpec, ordinal_of, plan
from infra.wiring.scheduling import GPU_TAINT, SPOT_TAINT

FOLDER = Path("/state/nodes/gpu-spot-1")
SHORT = Path("/state/n/1")


def spec(pool: str, ordinal: int, **changes: Any) -> NodeSpec:
    return NodeSpec(f"{pool}-{ordinal}", pool, **changes)


def machine(pool: str, ordinal: int, number: int = 1, **changes: Any) -> Machine:
    return Machine(spec(pool, ordinal, **changes), number, 77)


def names(items: tuple[NodeSpec, ...] | tuple[Machine, ...]) -> list[str]:
    return [item.name for item in items]


def test_from_nothing_all_get_their_names() -> None:
    steps = plan([spec("gpu", 1), spec("gpu", 2), spec("system", 1)], [], {})
    assert names(steps.add) == ["gpu-1", "gpu-2", "system-1"]
    assert not steps.keep
    assert not steps.remove


def test_what_is_there_stays() -> None:
    steps = plan([spec("gpu", 1), spec("gpu", 2)], [machine("gpu", 1), machine("gpu", 2, 2)], {"gpu": 2})
    assert names(steps.keep) == ["gpu-1", "gpu-2"]
    assert not steps.add
    assert not steps.remove


def test_a_node_that_took_anothers_place_stays() -> None:
    steps = plan([spec("gpu", 1), spec("gpu", 2)], [machine("gpu", 2), machine("gpu", 3, 2)], {"gpu": 3})
    assert names(steps.keep) == ["gpu-2", "gpu-3"]
    assert not steps.add


def test_a_name_never_comes_back() -> None:
    steps = plan([spec("gpu", 1), spec("gpu", 2)], [machine("gpu", 2)], {"gpu": 2})
    assert names(steps.add) == ["gpu-3"]


def test_a_smaller_pool_loses_its_youngest() -> None:
    steps = plan([spec("gpu", 1)], [machine("gpu", 1), machine("gpu", 2, 2)], {"gpu": 2})
    assert names(steps.keep) == ["gpu-1"]
    assert names(steps.remove) == ["gpu-2"]


def test_a_changed_node_is_another_node() -> None:
    steps = plan([spec("gpu", 1, taints=(GPU_TAINT,))], [machine("gpu", 1)], {"gpu": 1})
    assert names(steps.remove) == ["gpu-1"]
    assert names(steps.add) == ["gpu-2"]


def test_a_pool_that_is_gone_takes_its_nodes_with_it() -> None:
    assert names(plan([], [machine("gpu", 1), machine("system", 1, 2)], {}).remove) == ["gpu-1", "system-1"]


@given(
    wanted=st.dictionaries(st.sampled_from(["a", "b", "a-1"]), st.integers(0, 4)),
    there=st.sets(st.tuples(st.sampled_from(["a", "b", "a-1"]), st.integers(1, 9)), max_size=8),
)
def test_any_start_leads_to_the_wanted_counts_without_reusing_names(
    wanted: dict[str, int], there: set[tuple[str, int]]
) -> None:
    machines = [machine(pool, ordinal, number) for number, (pool, ordinal) in enumerate(sorted(there), 1)]
    last = {pool: max(ordinal for other, ordinal in there if other == pool) for pool, _ in there}
    steps = plan([spec(pool, n + 1) for pool, count in wanted.items() for n in range(count)], machines, last)
    after = [item.pool for item in steps.add] + [item.spec.pool for item in steps.keep]
    assert {pool: after.count(pool) for pool in wanted} == wanted
    assert not set(names(steps.add)) & {item.name for item in machines}
    assert len(set(names(steps.add))) == len(steps.add)
    assert sorted(names(steps.keep) + names(steps.remove)) == sorted(item.name for item in machines)


@pytest.mark.parametrize("name", ["gpu", "gpu-", "gpu-0", "gpu-01", "gpu-x", "other-1", "Gpu-1", ""])
def test_names_that_are_no_node_of_the_pool_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match="isn't gpu-<number>"):
        ordinal_of(name, "gpu")


def test_a_record_comes_back_as_it_was() -> None:
    before = machine("gpu", 3, 7, labels={"a": "b"}, taints=(GPU_TAINT,), resources={"nvidia.com/gpu": "4"})
    assert Machine.from_record(before.as_record()) == before
    assert (before.address, before.pod_network) == ("127.77.7.1", "127.77.7.0/24")


def configured(**changes: Any) -> dict[str, Any]:
    pair = Pair(FOLDER / "serving.crt", FOLDER / "serving.key")
    return kubelet.configuration(machine("gpu-spot", 1, **changes), FOLDER, SHORT, Path("/state/ca.crt"), pair)


def test_a_kubelet_asks_the_api_server_who_may_do_what() -> None:
    settings = configured()
    assert settings["authentication"]["anonymous"] == {"enabled": False}
    assert settings["authentication"]["x509"] == {"clientCAFile": "/state/ca.crt"}
    assert settings["authorization"] == {"mode": "Webhook"}
    assert settings["readOnlyPort"] == 0
    assert settings["address"] == "127.77.1.1"


def test_everything_that_a_kubelet_writes_is_in_its_folder() -> None:
    settings = configured()
    arguments = kubelet.command(machine("gpu-spot", 1), FOLDER, SHORT, Path("/bin/kubelet"), FOLDER / "kubeconfig")
    for place in (settings["podLogsDir"], settings["volumePluginDir"], *[a.partition("=")[2] for a in arguments[3:5]]):
        assert place.startswith((str(FOLDER), str(SHORT)))


def test_taints_and_labels_reach_the_node_before_any_pod_does() -> None:
    labels = {"trainyard.dev/pool": "gpu-spot", "node.kubernetes.io/instance-type": "g5", "example.k8s.io/x": "y"}
    spot = machine("gpu-spot", 1, labels=labels, taints=(GPU_TAINT, SPOT_TAINT))
    assert [taint["key"] for taint in configured(taints=(GPU_TAINT, SPOT_TAINT))["registerWithTaints"]] == [
        "nvidia.com/gpu",
        "trainyard.dev/spot",
    ]
    arguments = kubelet.command(spot, FOLDER, SHORT, Path("kubelet"), FOLDER)
    # The kubelet would refuse to start with the others; the local cloud sets them.
    assert "--node-labels=trainyard.dev/pool=gpu-spot" in arguments
    assert "--cloud-provider=external" in arguments


@pytest.mark.parametrize(
    ("wanted", "kept"),
    [
        ({}, {}),
        ({"cpu": "1"}, {"cpu": "3000m"}),
        ({"cpu": "1500m", "memory": "1Gi"}, {"cpu": "2500m", "memory": str(7 << 30)}),
        ({"cpu": "96", "memory": "1Ti"}, {}),
    ],
)
def test_a_node_offers_no_more_than_asked_and_no_more_than_there_is(
    wanted: dict[str, str], kept: dict[str, str]
) -> None:
    assert kubelet.reserved(wanted, cpus=4, memory_bytes=8 << 30) == kept


def test_an_unreachable_resolver_costs_a_second_not_a_minute() -> None:
    host = "# comment\nnameserver 10.0.0.1\nsearch example.org\noptions ndots:2 timeout:30\n"
    assert kubelet.resolver(host) == "nameserver 10.0.0.1\nsearch example.org\noptions timeout:1 attempts:1\n"
    assert kubelet.resolver("") == "options timeout:1 attempts:1\n"


def node(ready: str = "True", taint: str | None = None, heard: str = "2026-11-30T10:00:00Z") -> Node:
    conditions = [
        {"type": "MemoryPressure", "status": "False"},
        {"type": "Ready", "status": ready, "lastHeartbeatTime": heard},
    ]
    taints = [{"key": taint, "effect": "NoSchedule"}] if taint else []
    found = {"metadata": {"name": "n"}, "spec": {"taints": taints}, "status": {"conditions": conditions}}
    return cast(Node, Node.from_dict(found))


def test_ready_means_heard_of_ready_and_initialised() -> None:
    assert is_ready(node())
    assert is_ready(node(taint="nvidia.com/gpu"))
    assert is_ready(node(), since=datetime(2026, 11, 30, 9, 59, tzinfo=UTC))
    assert not is_ready(node(), since=datetime(2026, 11, 30, 10, 1, tzinfo=UTC))
    assert not is_ready(node("Unknown"))
    assert not is_ready(node(taint="node.cloudprovider.kubernetes.io/uninitialized"))
    assert not is_ready(cast(Node, Node.from_dict({"metadata": {"name": "n"}})))
