"""Readiness and deployment: a right cluster passes, and for each check there is a wrong one that it names."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace
from typing import Any

import pytest

from infra.clusters import CHECKOUT
from infra.rehearsal.nodes import Group, node_manifest
from infra.settings import Settings, read_stack_file
from infra.verify import checks
from infra.verify.expected import Expected, expected
from infra.verify.result import Result, passed
from infra.verify.snapshot import Snapshot
from infra.wiring.naming import cluster_name, node_group_name
from infra.wiring.pools import PoolPlan, pool_plans, system_plan

REGION = "us-east-2"


def settings_of(stack: str) -> Settings:
    return read_stack_file(CHECKOUT / f"Pulumi.{stack}.yaml", stack)


def group_of(plan: PoolPlan, cluster: str, zones: list[str]) -> Group:
    return {
        "name": node_group_name(cluster, plan.name),
        "instanceType": plan.instance_types[0],
        "capacityType": plan.capacity_type,
        "labels": plan.labels,
        "taints": [taint.as_eks() for taint in plan.taints],
        "zones": [plan.zone] if plan.zone else zones,
        "efa": plan.efa,
        "diskGib": plan.disk_gib,
    }


def aws_nodes(settings: Settings, stack: str, at_least: int = 2) -> list[dict[str, Any]]:
    """The nodes that AWS would give to what the program asks for, ready; of pools that may be empty some as well."""
    assert settings.aws
    cluster = cluster_name(settings, stack)
    zones = settings.aws.network.own_zones
    found = []
    for plan in (system_plan(settings.aws), *pool_plans(settings.aws, cluster)):
        group, size = group_of(plan, cluster, zones), max(plan.min, min(at_least, plan.max))
        found += [ready(node_manifest(group, number, settings.aws.region)) for number in range(size)]
    return found


def ready(node: dict[str, Any]) -> dict[str, Any]:
    node["status"]["conditions"] = [{"type": "Ready", "status": "True"}]
    return node


def running(wanted: Expected, nodes: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Every workload as it should be."""
    found = {}
    for workload in wanted.workloads:
        of = workload.replicas
        if of is None:
            of = sum(node["metadata"]["labels"]["trainyard.dev/pool"] in workload.pools for node in nodes)
        ready_as = "numberReady" if workload.kind == "DaemonSet" else "readyReplicas"
        images = sorted(workload.images) or ["of-a-chart"]
        found[workload.key] = {
            "spec": {"template": {"spec": {"containers": [{"image": image} for image in images]}}},
            "status": {ready_as: of, "desiredNumberScheduled": of},
        }
    return found


def snapshot_of(stack: str, wanted: Expected, nodes: list[dict[str, Any]]) -> Snapshot:
    return Snapshot(
        version=f"v{wanted.kubernetes}.3",
        nodes=tuple(nodes),
        workloads=running(wanted, nodes),
        definitions={
            name: {"status": {"conditions": [{"type": "Established", "status": "True"}]}} for name in wanted.definitions
        },
        priorities=frozenset(wanted.priorities),
        claims={wanted.claim: {"status": {"phase": "Bound"}}},
        addons={name: {"status": "ACTIVE", "addonVersion": version} for name, version in wanted.addons.items()},
    )


@pytest.fixture(scope="module")
def prod() -> tuple[Expected, Snapshot]:
    settings = settings_of("prod")
    wanted = expected(settings, "prod")
    return wanted, snapshot_of("prod", wanted, aws_nodes(settings, "prod"))


def judged(wanted: Expected, seen: Snapshot) -> list[Result]:
    return checks.readiness(wanted, seen, "prod") + checks.deployment(wanted, seen, "prod")


def failed(results: list[Result]) -> list[Result]:
    return [result for result in results if result.verdict != "passed"]


def gpu_node(nodes: list[dict[str, Any]]) -> dict[str, Any]:
    return next(node for node in nodes if int(node["status"]["allocatable"].get("vpc.amazonaws.com/efa", 0)))


def test_what_is_expected_of_prod_is_in_its_file_and_in_the_catalogue(prod: tuple[Expected, Snapshot]) -> None:
    wanted, _ = prod
    machines = {each.pool: each for each in wanted.machines}
    p5 = next(each for each in machines.values() if each.types == ("p5.48xlarge",))
    assert p5.devices == {"p5.48xlarge": {"nvidia.com/gpu": 8, "vpc.amazonaws.com/efa": 32}}
    assert p5.efa
    assert p5.hugepages_mib == 5120
    assert p5.driver
    assert machines["system"].devices[machines["system"].types[0]] == {"nvidia.com/gpu": 0, "vpc.amazonaws.com/efa": 0}
    assert {"DaemonSet trainyard-node-agents/efa-device-plugin", "StatefulSet trainyard-system/etcd"} <= {
        workload.key for workload in wanted.workloads
    }
    assert wanted.addons["vpc-cni"].startswith("v1.")


def test_a_cluster_as_asked_for_passes(prod: tuple[Expected, Snapshot]) -> None:
    results = judged(*prod)
    assert failed(results) == []
    assert passed(results)
    (devices,) = [result for result in results if result.check == "devices of gpu-spot"]
    assert devices.coverage == f"{devices.of}/{devices.of}"
    assert devices.of


Change = Callable[[dict[str, Any]], None]


def without_efa(node: dict[str, Any]) -> None:
    node["status"]["allocatable"].pop("vpc.amazonaws.com/efa")


def with_seven_gpus(node: dict[str, Any]) -> None:
    node["status"]["allocatable"]["nvidia.com/gpu"] = "7"


def without_hugepages(node: dict[str, Any]) -> None:
    node["status"]["allocatable"]["hugepages-2Mi"] = "0"


def not_ready(node: dict[str, Any]) -> None:
    node["status"]["conditions"] = [{"type": "Ready", "status": "Unknown", "message": "no word from the kubelet"}]


def cordoned(node: dict[str, Any]) -> None:
    node["spec"]["unschedulable"] = True


def untainted(node: dict[str, Any]) -> None:
    node["spec"]["taints"] = []


def tainted(node: dict[str, Any]) -> None:
    node["spec"]["taints"].append({"key": "somebodys", "value": "own", "effect": "NoSchedule"})


def mislabelled(node: dict[str, Any]) -> None:
    node["metadata"]["labels"]["trainyard.dev/capacity"] = "on-demand-perhaps"


def of_another_type(node: dict[str, Any]) -> None:
    node["metadata"]["labels"]["node.kubernetes.io/instance-type"] = "p4d.24xlarge"


def of_no_pool(node: dict[str, Any]) -> None:
    del node["metadata"]["labels"]["trainyard.dev/pool"]


def with_an_old_kubelet(node: dict[str, Any]) -> None:
    node["status"]["nodeInfo"]["kubeletVersion"] = "v1.34.9-eks-1"


@pytest.mark.parametrize(
    ("change", "code", "says"),
    [
        (without_efa, "node-devices", "offers 0 vpc.amazonaws.com/efa, and its pool's machines have 32"),
        (with_seven_gpus, "node-devices", "offers 7 nvidia.com/gpu, and its pool's machines have 8"),
        (without_hugepages, "node-devices", "offers 0 MiB of hugepages-2Mi, and a worker takes 5120"),
        (not_ready, "node-not-ready", "is not ready"),
        (cordoned, "node-cordoned", "is cordoned"),
        (untainted, "node-taint-missing", "lacks a taint"),
        (tainted, "node-taint-strange", "no setting asks for"),
        (mislabelled, "node-labels", "has not the labels"),
        (of_another_type, "node-labels", "has not the labels"),
        (of_no_pool, "node-of-no-pool", "belongs to no pool"),
        (with_an_old_kubelet, "node-kubelet", "has kubelet v1.34.9-eks-1"),
    ],
)
def test_the_one_wrong_machine_is_named(prod: tuple[Expected, Snapshot], change: Change, code: str, says: str) -> None:
    wanted, seen = prod
    nodes = [dict(deepcopy(each)) for each in seen.nodes]
    node = gpu_node(nodes)
    change(node)
    results = checks.readiness(wanted, replace(seen, nodes=tuple(nodes)), "prod")
    assert not passed(results)
    findings = [finding for result in results for finding in result.findings if finding.code == code]
    name = node["metadata"]["name"]
    assert [finding.object for finding in findings] == [f"node/{name}"]
    assert name in findings[0].title
    assert says in findings[0].title
    assert all(name in finding.title for result in results for finding in result.findings if finding.code != code)


def test_coverage_counts_only_what_is_right(prod: tuple[Expected, Snapshot]) -> None:
    wanted, seen = prod
    nodes = [dict(deepcopy(each)) for each in seen.nodes]
    pool = gpu_node(nodes)["metadata"]["labels"]["trainyard.dev/pool"]
    all_of = sum(node["metadata"]["labels"]["trainyard.dev/pool"] == pool for node in nodes)
    without_efa(gpu_node(nodes))
    results = checks.readiness(wanted, replace(seen, nodes=tuple(nodes)), "prod")
    (devices,) = [result for result in results if result.check == f"devices of {pool}"]
    assert (devices.verdict, devices.coverage) == ("failed", f"{all_of - 1}/{all_of}")


def test_machines_that_never_came_are_missed_and_too_many_as_well() -> None:
    settings = settings_of("local")
    wanted = expected(settings, "local")
    few = checks.readiness(wanted, Snapshot("v1.36.3", ()), "local")
    assert {finding.code for result in few for finding in result.findings} == {"pool-too-small"}
    assert not passed(few)
    labels = {"trainyard.dev/pool": "system", "trainyard.dev/capacity": "on-demand"}
    node = ready({"metadata": {"name": "a", "labels": labels}, "spec": {}, "status": {"allocatable": {}}})
    two = Snapshot("v1.36.3", (node, {**node, "metadata": {**node["metadata"], "name": "b"}}))
    many = checks.readiness(wanted, two, "local")
    assert "pool-too-large" in {finding.code for result in many for finding in result.findings}


def test_another_kubernetes_is_none_that_the_settings_ask_for(prod: tuple[Expected, Snapshot]) -> None:
    wanted, seen = prod
    (result, *_) = checks.readiness(wanted, replace(seen, version="v1.33.1"), "prod")
    assert (result.check, result.verdict) == ("kubernetes", "failed")


ETCD = "StatefulSet trainyard-system/etcd"
PLUGIN = "DaemonSet trainyard-node-agents/efa-device-plugin"


@pytest.mark.parametrize(
    ("key", "status", "image", "code"),
    [
        (ETCD, {"readyReplicas": 2}, None, "workload-not-ready"),
        (ETCD, {}, "etcd:latest", "workload-image"),
        (PLUGIN, {"desiredNumberScheduled": 0, "numberReady": 0}, None, "agent-misses-machines"),
        (PLUGIN, None, None, "workload-missing"),
    ],
)
def test_a_part_that_is_not_as_asked_for(
    prod: tuple[Expected, Snapshot], key: str, status: dict[str, int] | None, image: str | None, code: str
) -> None:
    wanted, seen = prod
    workloads = {each: dict(deepcopy(found)) for each, found in seen.workloads.items()}
    if status is None:
        del workloads[key]
    else:
        workloads[key]["status"] |= status
    if image:
        workloads[key]["spec"]["template"]["spec"]["containers"][0]["image"] = image
    results = checks.deployment(wanted, replace(seen, workloads=workloads), "prod")
    (bad,) = failed(results)
    assert bad.check == key
    assert code in {finding.code for finding in bad.findings}


@pytest.mark.parametrize(
    ("missing", "check"),
    [
        ({"definitions": {}}, "definitions"),
        ({"priorities": frozenset({"trainyard-control"})}, "priorities"),
        ({"claims": {}}, "checkpoint volume"),
        ({"addons": {}}, "add-ons"),
    ],
)
def test_what_is_not_there_is_no_pass(prod: tuple[Expected, Snapshot], missing: dict[str, Any], check: str) -> None:
    wanted, seen = prod
    (bad,) = failed(checks.deployment(wanted, replace(seen, **missing), "prod"))
    assert (bad.check, bad.verdict) == (check, "failed")


def test_an_add_on_that_is_degraded_says_why(prod: tuple[Expected, Snapshot]) -> None:
    wanted, seen = prod
    issue = {"code": "InsufficientNumberOfReplicas", "message": "no machine takes it"}
    addons = {**seen.addons, "coredns": {"status": "DEGRADED", "addonVersion": "v0", "health": {"issues": [issue]}}}
    (bad,) = failed(checks.deployment(wanted, replace(seen, addons=addons), "prod"))
    (finding,) = bad.findings
    assert "add-on coredns is DEGRADED, has version v0" in finding.title
    assert finding.evidence == ("InsufficientNumberOfReplicas: no machine takes it",)


def test_nothing_to_look_at_is_no_pass() -> None:
    assert not passed([])
    assert not passed([Result("readiness", "a", "not run", "")])
    assert not passed([Result("readiness", "a", "passed", ""), Result("fabric", "b", "skipped", "")])
    assert not passed([Result("readiness", "a", "passed", ""), Result("performance", "b", "unknown", "")])
    assert passed([Result("readiness", "a", "passed", ""), Result("performance", "b", "not run", "")])
    assert Result.judged("fabric", "a", "", 0, 0, ()).verdict == "skipped"
    assert Result.judged("fabric", "a", "", 1, 2, ()).verdict == "failed"
