"""The pure scheduler: Kubernetes' rules for kinds of nodes, and the proof that jobs land where they are meant to."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from infra.clusters import CHECKOUT
from infra.rehearsal.nodes import Group, node_manifest
from infra.settings import read_stack_file
from infra.settings.aws import Aws, AwsNetwork, AwsNodePool, AwsReservation
from infra.wiring.errors import WiringError
from infra.wiring.job_resources import job_mistakes, standard_job
from infra.wiring.naming import cluster_name, node_group_name
from infra.wiring.placing import Fit, NodeKind, amount, fits, node_kinds, pod_of, with_agents
from infra.wiring.pools import node_labels, pool_plans, system_plan
from infra.wiring.scheduling import GPU_TAINT, SPOT_TAINT, Taint, node_agent_tolerations

ZONE = "us-east-2a"
POOLS = (
    AwsNodePool(
        name="block",
        types=("p5.48xlarge",),
        efa=True,
        zone=ZONE,
        capacity="capacity-block",
        reservation=AwsReservation(id="cr-0123456789abcdef0"),
    ),
    AwsNodePool(name="overflow", types=("p5.48xlarge",), efa=True, zone=ZONE, capacity="spot"),
    AwsNodePool(name="cheap", types=("g6.xlarge", "g6.2xlarge"), capacity="spot"),
    AwsNodePool(name="plain", types=("g5.12xlarge",)),
)
CLUSTER = Aws(region="us-east-2", network=AwsNetwork(zones=(ZONE, "us-east-2b")), node_pools=POOLS)
NODES = node_kinds(CLUSTER, "trainyard-test")
GPU_POOLS = tuple(pool.name for pool in POOLS)


def fit(spec: dict[str, Any]) -> Fit:
    return fits(pod_of(spec), NODES)


def node(*taints: Taint, labels: dict[str, str] | None = None, **offered: int) -> NodeKind:
    return NodeKind("n", labels or {}, taints, {"pods": 110, "cpu": 4000, "memory": 8192, **offered})


def container(**resources: dict[str, str]) -> dict[str, Any]:
    return {"name": "c", "resources": resources}


# --- the proof ---


@pytest.mark.parametrize("pool", POOLS, ids=lambda pool: pool.name)
def test_a_standard_job_of_a_pool_lands_there_and_nowhere_else_beside_the_node_s_agents(pool: AwsNodePool) -> None:
    agent = pod_of(
        {
            "tolerations": node_agent_tolerations(POOLS),
            "containers": [container(requests={"cpu": "900m", "memory": "2Gi"})],
        }
    )
    job = standard_job(
        pool, name="j", image="i", namespace="n", rdzv_endpoint="etcd:2379", workers_min=1, workers_max=1
    )
    spec = job["spec"]["replicaSpecs"]["Worker"]["template"]["spec"]
    placed = fits(pod_of(spec), with_agents(NODES, [agent]))
    assert placed.pools == (pool.name,)
    assert set(placed.reasons) == {"system", *GPU_POOLS} - {pool.name}


def test_a_pod_that_says_nothing_lands_on_the_system_pool_only_because_of_the_taints() -> None:
    placed = fit({"containers": [container(requests={"cpu": "100m", "memory": "128Mi"})]})
    assert placed.pools == ("system",)
    assert placed.reasons == dict.fromkeys(
        GPU_POOLS, "it does not tolerate the taint nvidia.com/gpu=present:NoSchedule"
    )


def test_a_node_agent_lands_everywhere() -> None:
    assert fit({"tolerations": node_agent_tolerations(POOLS)}).pools == ("system", *GPU_POOLS)


def test_what_tolerates_gpus_stays_away_from_spot() -> None:
    placed = fit({"tolerations": [GPU_TAINT.toleration()], "nodeSelector": {"nvidia.com/gpu.present": "true"}})
    assert placed.pools == ("block", "plain")
    assert placed.reasons["cheap"] == "it does not tolerate the taint trainyard.dev/spot=true:NoSchedule"
    assert "nvidia.com/gpu.present=true, the nodes have no such label" in placed.reasons["system"]


def test_a_second_worker_of_the_same_machine_finds_no_room() -> None:
    job = {"tolerations": node_agent_tolerations(POOLS), "containers": [container(limits={"nvidia.com/gpu": "8"})]}
    assert fit(job).pools == ("block", "overflow")
    used = fits(pod_of(job), with_agents(NODES, [pod_of(job)]))
    assert used.pools == ()
    assert used.reasons["block"] == "it asks for nvidia.com/gpu 8 and a node offers nvidia.com/gpu 0"
    assert used.reasons["plain"] == "it asks for nvidia.com/gpu 8 and a node offers nvidia.com/gpu 4"


def test_a_pool_counts_if_one_of_its_types_is_large_enough() -> None:
    tolerations = node_agent_tolerations(POOLS)
    large = {"tolerations": tolerations, "containers": [container(requests={"cpu": "7"})]}
    assert "cheap" in fit({**large, "nodeSelector": {"trainyard.dev/pool": "cheap"}}).pools


def test_nodes_of_a_pool_are_of_every_type_in_every_zone_that_it_may_use() -> None:
    kinds = [
        (each.labels["node.kubernetes.io/instance-type"], each.labels["topology.kubernetes.io/zone"]) for each in NODES
    ]
    assert [kind for kind in kinds if kind[0].startswith("g6")] == [
        ("g6.xlarge", ZONE),
        ("g6.xlarge", "us-east-2b"),
        ("g6.2xlarge", ZONE),
        ("g6.2xlarge", "us-east-2b"),
    ]
    assert {zone for type_name, zone in kinds if type_name == "p5.48xlarge"} == {ZONE}


@pytest.mark.parametrize("stack", ["dev", "prod"])
def test_in_the_example_stacks_each_pool_s_job_and_each_plain_pod_lands_where_it_is_meant_to(stack: str) -> None:
    settings = read_stack_file(CHECKOUT / f"Pulumi.{stack}.yaml", stack)
    aws = settings.aws
    assert aws is not None
    nodes = node_kinds(aws, cluster_name(settings, stack))
    assert fits(pod_of({"containers": [container(requests={"cpu": "1"})]}), nodes).pools == ("system",)
    for pool in aws.node_pools:
        job = standard_job(
            pool,
            name="j",
            image="i",
            namespace=settings.namespace,
            rdzv_endpoint="etcd.trainyard-system:2379",
            workers_min=1,
            workers_max=pool.max,
        )
        assert fits(pod_of(job["spec"]["replicaSpecs"]["Worker"]["template"]["spec"]), nodes).pools == (pool.name,)
        assert job_mistakes(job, aws.node_pools) == []


def test_nodes_of_a_rehearsal_bear_the_labels_by_which_the_pure_scheduler_judges() -> None:
    for plan in (system_plan(CLUSTER), *pool_plans(CLUSTER, "trainyard-test")):
        group: Group = {
            "name": node_group_name("trainyard-test", plan.name),
            "instanceType": plan.instance_types[0],
            "capacityType": plan.capacity_type,
            "labels": plan.labels,
            "taints": [taint.as_eks() for taint in plan.taints],
            "zones": [ZONE],
            "efa": plan.efa,
        }
        node = node_manifest(group, 0, CLUSTER.region)
        assert node["metadata"]["labels"].items() >= node_labels(plan, ZONE, cluster="trainyard-test").items()
        assert node["spec"]["taints"] == [taint.as_kubernetes() for taint in plan.taints]


# --- Kubernetes' rules ---


@pytest.mark.parametrize(
    ("resource", "quantity", "expected"),
    [
        ("cpu", "100m", 100),
        ("cpu", "0.5", 500),
        ("cpu", 2, 2000),
        ("cpu", "1e1", 10000),
        ("cpu", "0.0001", 1),  # never less than is asked for
        ("memory", "128Mi", 128),
        ("memory", "1Gi", 1024),
        ("memory", "1.5Gi", 1536),
        ("memory", "1G", 954),
        ("memory", "134217728", 128),
        ("memory", "1Ki", 1),
        ("hugepages-2Mi", "5120Mi", 5120),
        ("ephemeral-storage", "2Ti", 2 * 1024 * 1024),
        ("nvidia.com/gpu", "8", 8),
        ("example.com/thing", "1k", 1000),
    ],
)
def test_quantities_are_read_exactly_and_rounded_up(resource: str, quantity: str | float, expected: int) -> None:
    assert amount(resource, quantity) == expected


@given(st.integers(0, 10**9))
def test_the_same_quantity_in_another_unit_is_the_same_amount(mib: int) -> None:
    assert amount("memory", f"{mib}Mi") == amount("memory", f"{mib * 1024}Ki") == amount("memory", mib * 1024**2) == mib


@pytest.mark.parametrize("quantity", ["", "1 Gi", "Gi", "1GiB", "1,5", "--1", "1e"])
def test_what_is_no_quantity_is_refused(quantity: str) -> None:
    with pytest.raises(WiringError, match="is no quantity of memory"):
        amount("memory", quantity)


@pytest.mark.parametrize(
    ("toleration", "tolerated"),
    [
        ({"key": "nvidia.com/gpu", "operator": "Exists"}, True),
        ({"key": "nvidia.com/gpu", "operator": "Equal", "value": "present", "effect": "NoSchedule"}, True),
        ({"key": "nvidia.com/gpu", "value": "present"}, True),  # Equal is the default
        ({"operator": "Exists"}, True),
        ({"key": "nvidia.com/gpu", "operator": "Equal", "value": "true"}, False),
        ({"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoExecute"}, False),
        ({"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NO_SCHEDULE"}, False),  # EKS's spelling
        ({"key": "nvidia", "operator": "Exists"}, False),
    ],
)
def test_tolerations_answer_taints_as_in_kubernetes(toleration: dict[str, str], tolerated: bool) -> None:
    placed = fits(pod_of({"tolerations": [toleration]}), [node(GPU_TAINT)])
    assert bool(placed.pools) is tolerated


def test_every_taint_has_to_be_tolerated_but_preferences() -> None:
    one = pod_of({"tolerations": [GPU_TAINT.toleration()]})
    assert fits(one, [node(GPU_TAINT, Taint("x", "y", "PreferNoSchedule"))]).pools == ("n",)
    assert fits(one, [node(GPU_TAINT, SPOT_TAINT)]).pools == ()


def affinity(*terms: list[dict[str, Any]]) -> dict[str, Any]:
    required = {"nodeSelectorTerms": [{"matchExpressions": term} for term in terms]}
    return {"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}}}


@pytest.mark.parametrize(
    ("expression", "met"),
    [
        ({"key": "kind", "operator": "In", "values": ["a", "b"]}, True),
        ({"key": "kind", "operator": "NotIn", "values": ["a"]}, False),
        ({"key": "absent", "operator": "NotIn", "values": ["a"]}, True),
        ({"key": "absent", "operator": "In", "values": ["a"]}, False),
        ({"key": "kind", "operator": "Exists"}, True),
        ({"key": "absent", "operator": "Exists"}, False),
        ({"key": "kind", "operator": "DoesNotExist"}, False),
        ({"key": "size", "operator": "Gt", "values": ["7"]}, True),
        ({"key": "size", "operator": "Lt", "values": ["8"]}, False),
        ({"key": "kind", "operator": "Gt", "values": ["7"]}, False),
    ],
)
def test_required_node_affinity_is_kept(expression: dict[str, Any], met: bool) -> None:
    nodes = [node(labels={"kind": "a", "size": "8"})]
    assert bool(fits(pod_of(affinity([expression])), nodes).pools) is met


def test_terms_of_affinity_are_alternatives_and_their_expressions_are_not() -> None:
    here, there = ({"key": "kind", "operator": "In", "values": [value]} for value in "ab")
    nodes = [node(labels={"kind": "a"})]
    assert fits(pod_of(affinity([there], [here])), nodes).pools == ("n",)
    placed = fits(pod_of(affinity([here, there])), nodes)
    assert placed.reasons == {"n": "its node affinity wants kind In [a] and kind In [b]"}


@pytest.mark.parametrize(
    ("term", "message"),
    [
        ({"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["x"]}]}, "names single nodes"),
        ({"matchExpressions": [{"key": "k", "operator": "Like", "values": ["x"]}]}, "none of Kubernetes'"),
        ({"matchExpressions": [{"key": "k", "operator": "Gt", "values": ["x"]}]}, "none of Kubernetes'"),
    ],
)
def test_affinity_that_cannot_be_judged_is_an_error_and_no_yes(term: dict[str, Any], message: str) -> None:
    spec = affinity()
    spec["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"] = [term]
    with pytest.raises(WiringError, match=message):
        fits(pod_of(spec), [node(labels={"k": "1"})])


def test_a_pod_asks_for_its_containers_and_sidecars_or_for_its_greatest_init_container() -> None:
    spec = {
        "initContainers": [
            {"restartPolicy": "Always", **container(requests={"cpu": "200m"})},
            container(requests={"cpu": "1", "memory": "1Gi"}),
        ],
        "containers": [container(requests={"cpu": "300m"}), container(limits={"cpu": "400m", "memory": "64Mi"})],
        "overhead": {"cpu": "50m"},
    }
    # 200m + 1 CPU of the init container are more than 200m + 300m + 400m; a limit alone is a request.
    assert pod_of(spec).requests == {"pods": 1, "cpu": 1250, "memory": 1024}


def test_a_resource_that_no_node_has_is_missed_by_name() -> None:
    placed = fits(pod_of({"containers": [container(limits={"vpc.amazonaws.com/efa": "1"})]}), [node()])
    assert placed.reasons == {"n": "it asks for vpc.amazonaws.com/efa 1 and a node offers vpc.amazonaws.com/efa 0"}
