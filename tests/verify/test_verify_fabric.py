"""Fabric, performance, evidence and drift: the transport before any figure, unknown is no pass, and who is named."""

from __future__ import annotations

import json
import stat
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from infra.catalog.fabric_floors import fabric_floors, floors_of
from infra.catalog.instance_types import instance_type
from infra.clusters import CHECKOUT
from infra.settings import Settings, read_stack_file
from infra.verify import evidence, fabric
from infra.verify.drift import compare
from infra.verify.expected import expected
from infra.verify.measure import SIZES, STAND_IN, Group, Measurement, check_job, groups
from infra.verify.result import Result, passed
from infra.verify.snapshot import Snapshot
from infra.wiring.job_resources import job_mistakes

GIB = 2**30


def settings_of(stack: str) -> Settings:
    return read_stack_file(CHECKOUT / f"Pulumi.{stack}.yaml", stack)


@pytest.fixture(scope="module")
def p5() -> Group:
    settings = settings_of("prod")
    found = groups(settings, expected(settings, "prod"))
    return next(group for group in found if group.machines[0].types == ("p5.48xlarge",) and group.efa)


@pytest.fixture(scope="module")
def local() -> Group:
    settings = settings_of("local")
    (found,) = groups(settings, expected(settings, "local"))
    return found


def report(group: Group, nodes: int, **other: Any) -> dict[str, Any]:
    """Of a healthy pool."""
    ranks = group.ranks(nodes)
    hosts = [f"node-{rank * nodes // ranks}" for rank in range(ranks)]
    figures = dict.fromkeys(fabric.sizes_of(group, nodes, SIZES), 450000000000.0)
    return {
        "backend": "nccl",
        "world_size": ranks,
        "hosts": hosts,
        "machines": {host: {"kernel": "6.12", "driver": group.machines[0].driver} for host in hosts},
        "pairs": [],
        "all_reduces": [
            {"size": size, "seconds": 1, "algorithm_bandwidth": 1, "bus_bandwidth": bus}
            for size, bus in figures.items()
        ],
        "transport": {"kind": "efa", "detail": "efa, 32 devices", "warnings": []},
        "slow_ranks": [],
        "slow_pairs": [],
        **other,
    }


def told(group: Group, nodes: int, **other: Any) -> Measurement:
    return Measurement("check-1", nodes, report(group, nodes, **other), (), "")


def test_a_healthy_pool_passes_with_all_its_machines(p5: Group) -> None:
    made = told(p5, 2)
    transport = fabric.fabric(p5, made)
    assert (transport.verdict, transport.coverage) == ("passed", "2/2")
    assert transport.message == "nccl over efa (efa, 32 devices)"
    figures = fabric.performance(p5, made, transport)
    assert figures.verdict == "passed", figures
    assert figures.coverage == "4/4"


SOCKETS = {"kind": "sockets", "detail": "eth0", "warnings": ["NCCL goes over TCP"]}
COPIES = {"kind": "efa", "detail": "efa", "warnings": ["the network copies through host memory"]}


@pytest.mark.parametrize(
    ("other", "code", "says"),
    [
        ({"transport": SOCKETS}, "transport", "NCCL went over sockets, and the machines have EFA"),
        ({"transport": None}, "transport", "a network that its output does not name"),
        ({"transport": COPIES}, "transport", "copies through host memory"),
        ({"backend": "gloo"}, "transport", "torch finds no GPU"),
        ({"world_size": 15}, "ranks-missing", "15 ranks took part, 2 machines have 16 GPUs"),
        ({"hosts": ["node-0"] * 16}, "machines-missing", "1 machines took part"),
        ({"slow_ranks": [9]}, "slow-rank", "rank 9 on node node-1 is slow"),
        ({"slow_pairs": [[0, 9]]}, "slow-link", "ranks 0 (node node-0) and 9 (node node-1)"),
        ({"machines": {"node-1": {"driver": "550.1"}}}, "node-driver", "node node-1 has driver 550.1"),
    ],
)
def test_what_is_wrong_is_named_and_no_figure_is_read(p5: Group, other: dict[str, Any], code: str, says: str) -> None:
    made = told(p5, 2, **other)
    transport = fabric.fabric(p5, made)
    assert transport.verdict == "failed"
    (finding,) = transport.findings
    assert finding.code == code
    assert says in finding.title
    assert fabric.performance(p5, made, transport).verdict == "skipped"


def test_a_dead_rank_is_named_with_its_machine(p5: Group) -> None:
    made = Measurement("check-1", 2, None, ((9, "node-1"),), "no sign of rank 9 on node-1 for 60 s")
    result = fabric.fabric(p5, made)
    (finding,) = result.findings
    assert (result.verdict, result.coverage, finding.object) == ("failed", "0/2", "node/node-1")


def test_a_job_that_did_not_come_up_says_which_worker(p5: Group) -> None:
    made = Measurement("check-1", 2, None, (), "did not end", ("check-1-worker-1 on node ip-1: Pending",))
    (finding,) = fabric.fabric(p5, made).findings
    assert finding.evidence == ("check-1-worker-1 on node ip-1: Pending",)


def test_a_figure_below_its_floor_fails_at_its_size(p5: Group) -> None:
    made = told(p5, 2)
    assert made.report
    for figure in made.report["all_reduces"]:
        figure["bus_bandwidth"] = 20e9 if figure["size"] == GIB else 450e9
    result = fabric.performance(p5, made, fabric.fabric(p5, made))
    (finding,) = result.findings
    assert (result.verdict, result.coverage) == ("failed", "3/4")
    assert finding.title == "bus bandwidth of 1 GiB is 20 GB/s, 2 x p5.48xlarge reach 262"
    assert "aws-hpc-tutorials" in finding.evidence[0]


def test_no_floor_is_no_pass(p5: Group) -> None:
    made = told(p5, 3)
    transport = fabric.fabric(p5, made)
    result = fabric.performance(p5, made, transport)
    assert (transport.verdict, result.verdict) == ("passed", "unknown")
    assert result.message.startswith("no floor known for 3 x p5.48xlarge")
    assert not passed([transport, result])


def test_locally_it_says_that_it_is_a_stand_in(local: Group) -> None:
    made = told(local, 3, backend="gloo", transport=None)
    transport = fabric.fabric(local, made)
    assert (transport.verdict, transport.message, transport.coverage) == ("passed", STAND_IN, "3/3")
    result = fabric.performance(local, made, transport)
    assert result.verdict == "unknown"
    assert STAND_IN in result.message


def test_one_process_has_nobody_and_no_machine_is_no_pass(p5: Group, local: Group) -> None:
    assert fabric.not_measured(p5, 2) is None
    nothing = fabric.not_measured(p5, 0)
    assert nothing
    assert nothing.verdict == "skipped"
    alone = fabric.not_measured(local, 1)
    assert alone
    assert alone.verdict == "skipped"
    machines = replace(local.machines[0], least=1, most=1)
    never = fabric.not_measured(replace(local, machines=(machines,)), 1)
    assert never
    assert never.verdict == "not run"


def test_floors_are_of_types_of_the_catalogue_with_a_source() -> None:
    assert fabric_floors()
    for floor in fabric_floors():
        assert instance_type(floor.type).gpus
        assert floor.source
        assert floor.seen is None or 0 < floor.gb_s <= floor.seen
        assert floor.basis == "in use" or floor.gb_s == pytest.approx(0.6 * (floor.seen or 0), rel=0.01)
    assert [floor.bytes for floor in floors_of("p5.48xlarge", 2)] == [2**26, 2**28, 2**30, 2**34]
    assert floors_of("p5.48xlarge", 3) == ()


def test_the_job_is_a_training_job_of_its_pool(p5: Group) -> None:
    settings = settings_of("prod")
    assert settings.aws
    job = check_job(p5, nodes=2, image="i", namespace="training", rdzv_endpoint="e:1", queue="q")
    assert job_mistakes(job, settings.aws.node_pools) == []
    spec = job["spec"]
    assert (spec["minReplicas"], spec["maxReplicas"], spec["backoffLimit"]) == (2, 2, 0)
    assert spec["ttlSecondsAfterFinished"]
    (container,) = spec["replicaSpecs"]["Worker"]["template"]["spec"]["containers"]
    assert container["resources"]["limits"]["vpc.amazonaws.com/efa"] == "32"
    assert "training.diagnose.fabric" in container["args"]


def test_evidence_is_for_its_owner_and_can_be_read_again(tmp_path: Path) -> None:
    settings = settings_of("local")
    node = {
        "metadata": {"name": "gpu-1", "labels": {"trainyard.dev/pool": "gpu"}},
        "status": {"nodeInfo": {"kernelVersion": "6.12"}},
    }
    made = Measurement("check-1", 1, {"machines": {"gpu-1": {"kernel": "6.12", "driver": "580.1"}}}, (), "")
    record = evidence.Evidence(
        stack="local",
        time=evidence.now(),
        wanted=expected(settings, "local"),
        seen=Snapshot("v1.36.3", (node,)),
        results=[Result("fabric", "a | b", "failed", "<script>")],
        measurements=[made],
        hashes=evidence.hashes_of(CHECKOUT, "local"),
        commit="0" * 40,
        stand_in=STAND_IN,
    )
    path, page = record.write(tmp_path / "out")
    assert stat.S_IMODE(path.stat().st_mode) == stat.S_IMODE(page.stat().st_mode) == 0o600
    assert evidence.latest(tmp_path / "out", "local") == path
    document = evidence.read(path, "local")
    assert document["nodes"]["gpu-1"]["driver"] == "580.1"
    assert {"Pulumi.local.yaml", "infra/catalog/fabric_floors.toml"} <= document["hashes"].keys()
    text = page.read_text()
    assert "# Stack local: not passed" in text
    assert f"**{STAND_IN}**" in text
    assert "a \\| b" in text
    assert "<script>" not in text
    with pytest.raises(evidence.EvidenceError, match="of stack local, not of prod"):
        evidence.read(path, "prod")
    with pytest.raises(evidence.EvidenceError, match="run trainyard verify -s prod first"):
        evidence.latest(tmp_path / "out", "prod")
    path.write_text(json.dumps({"schema": 99}))
    with pytest.raises(evidence.EvidenceError, match="no evidence"):
        evidence.read(path, "local")


def node(pool: str = "gpu", **other: Any) -> dict[str, Any]:
    labels, allocatable = {"trainyard.dev/pool": pool}, {"nvidia.com/gpu": "8"}
    plain = {"kernel": "6.12", "kubelet": "v1.36.2", "runtime": "containerd://2.1", "driver": "580.1"}
    return {"pool": pool, **plain, "labels": labels, "taints": ["a=b:NoSchedule"], "allocatable": allocatable, **other}


SAME = ("v1.36.3", "v1.36.3")


@pytest.mark.parametrize(
    ("other", "field"),
    [
        ({"kernel": "6.14"}, "kernel"),
        ({"kubelet": "v1.36.4"}, "kubelet"),
        ({"runtime": "containerd://2.2"}, "runtime"),
        ({"driver": "595.1"}, "driver"),
        ({"labels": {"trainyard.dev/pool": "gpu", "x": "y"}}, "labels.x"),
        ({"allocatable": {"nvidia.com/gpu": "7"}}, "allocatable.nvidia.com/gpu"),
        ({"taints": []}, "taints"),
    ],
)
def test_what_changed_is_told_by_machine_and_field(other: dict[str, Any], field: str) -> None:
    found = compare({"a": node(), "b": node()}, {"b": node(**other), "a": node()}, SAME, frozenset())
    (change,) = found.changed
    assert (change.object, change.field) == ("node/b", field)


def test_the_same_in_another_order_is_no_drift() -> None:
    unseen = node(driver=None)
    assert compare({"a": node(), "b": node()}, {"b": unseen, "a": node()}, SAME, frozenset()).changed == ()
    (change,) = compare({}, {}, ("v1.36.3", "v1.37.0"), frozenset()).changed
    assert change.object == "apiserver"


def test_machines_that_come_and_go_are_drift_only_where_nothing_scales() -> None:
    found = compare({"a": node()}, {"b": node()}, SAME, frozenset())
    assert (found.changed, found.new, found.gone) == ((), ("b",), ("a",))
    fixed = compare({"a": node()}, {"b": node()}, SAME, frozenset({"gpu"}))
    assert {(change.object, change.after) for change in fixed.changed} == {("node/b", "there"), ("node/a", "(absent)")}
    other_image = compare({"a": node()}, {"a": node(), "b": node(kernel="6.14")}, SAME, frozenset())
    assert [(change.object, change.field) for change in other_image.changed] == [("node/b", "kernel")]
