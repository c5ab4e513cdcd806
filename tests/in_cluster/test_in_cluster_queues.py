"""Kueue: every worker has a quota for all that it asks for, and dedicated pools are lent and taken back."""

from __future__ import annotations

from typing import Any

import pulumi
import pytest
import yaml
from component_recorder import Recorded, record

from infra.catalog.versions import Chart, versions
from infra.in_cluster.pods import OwnPods
from infra.in_cluster.queues import Queues
from infra.in_cluster.scheduling import Priorities
from infra.settings.aws import Aws
from infra.wiring.job_resources import job_resources
from infra.wiring.placing import amount
from infra.wiring.queue_plan import QueuePlan, queue_plan

P5 = {"types": ["p5.48xlarge"], "efa": True, "zone": "us-east-2b"}
POOLS: list[dict[str, Any]] = [
    {"name": "always", "capacity": "on-demand", "min": 4, "max": 4, **P5},
    {"name": "spot", "capacity": "spot", "max": 8, **P5},
    {"name": "small", "types": ["g5.xlarge"], "capacity": "spot", "max": 3},
]
PODS = OwnPods("trainyard-system", "training", "ClusterFirst", {"trainyard.dev/pool": "system"})


def aws(queues: dict[str, Any] | None = None, pools: list[dict[str, Any]] = POOLS) -> Aws:
    values = {"region": "us-east-2", "network": {"zones": ["us-east-2a", "us-east-2b"]}, "nodePools": pools}
    return Aws.model_validate(values | {"queues": queues or {}}, by_alias=True, by_name=False)


def plan(queues: dict[str, Any] | None = None) -> QueuePlan:
    made = queue_plan(aws(queues))
    assert made is not None
    return made


def queues(settings: dict[str, Any], chart: Chart | None = None) -> Recorded:
    def make(opts: pulumi.ResourceOptions) -> None:
        lock = chart or versions().chart("kueue")
        Queues("queues", plan=plan(settings), chart=lock, pods=PODS, opts=opts)

    return record(make)


@pytest.fixture(scope="module")
def made() -> Recorded:
    return queues({"dedicated": {"foundation": ["always"]}})


def test_a_worker_of_a_pool_asks_for_nothing_without_a_quota() -> None:
    """Kueue never admits what asks for something uncovered, and hardly says so."""
    settings = aws()
    flavors = {flavor.name: flavor for flavor in plan().flavors}
    for pool in settings.node_pools:
        asked = job_resources(pool).requests()
        quota = flavors[pool.name].quota
        assert set(asked) <= set(quota)
        for resource, quantity in asked.items():
            assert amount(resource, quantity) * pool.max <= amount(resource, quota[resource]), (
                f"{pool.name}: {resource}"
            )


def test_nothing_lands_on_spot_machines_that_did_not_ask_for_it(made: Recorded) -> None:
    spot = made.one("ResourceFlavor", "spot")["spec"]
    assert {taint["key"] for taint in spot["nodeTaints"]} == {"nvidia.com/gpu", "trainyard.dev/spot"}
    assert "tolerations" not in spot, "a flavour's tolerations are given to each workload, also to those that break"


def test_pools_that_nobody_has_for_himself_are_shared(made: Recorded) -> None:
    shared, foundation = made.one("ClusterQueue", "shared")["spec"], made.one("ClusterQueue", "foundation")["spec"]
    gpus = {
        flavor["name"]: {each["name"]: each["nominalQuota"] for each in flavor["resources"]}["nvidia.com/gpu"]
        for flavor in shared["resourceGroups"][0]["flavors"]
    }
    assert gpus == {"spot": "64", "small": "3", "always": "0"}, "what belongs to others can be borrowed, from nothing"
    assert [flavor["name"] for flavor in foundation["resourceGroups"][0]["flavors"]] == ["always"]


def test_what_was_lent_is_taken_back(made: Recorded) -> None:
    specs = [queue["spec"] for queue in made.all("ClusterQueue")]
    assert {spec["cohortName"] for spec in specs} == {"trainyard"}
    assert {spec["preemption"]["reclaimWithinCohort"] for spec in specs} == {"Any"}


def test_flavours_list_the_resources_of_their_group_in_its_order(made: Recorded) -> None:
    """Kueue refuses a queue otherwise."""
    for queue in made.all("ClusterQueue"):
        (group,) = queue["spec"]["resourceGroups"]
        for flavor in group["flavors"]:
            assert [resource["name"] for resource in flavor["resources"]] == group["coveredResources"]


def test_jobs_find_a_queue_in_their_namespace_and_nobody_else_is_managed(made: Recorded) -> None:
    local = {queue["metadata"]["name"]: queue for queue in made.all("LocalQueue")}
    assert {queue["metadata"]["namespace"] for queue in local.values()} == {"training"}
    assert {name: queue["spec"]["clusterQueue"] for name, queue in local.items()} == {
        "shared": "shared",
        "foundation": "foundation",
    }
    values = made.one("Release")["values"]
    configuration = yaml.safe_load(values["managerConfig"]["controllerManagerConfigYaml"])
    assert configuration["managedJobsNamespaceSelector"] == {"matchLabels": {"kubernetes.io/metadata.name": "training"}}
    assert "pod" in configuration["integrations"]["frameworks"]


def test_custom_resources_come_after_the_chart_that_brings_their_definitions(made: Recorded) -> None:
    custom = [each for each in made if each.type.startswith("kubernetes:kueue.x-k8s.io/v1beta2:")]
    assert {each.type.split(":")[-1] for each in custom} == {
        "Topology",
        "ResourceFlavor",
        "ClusterQueue",
        "LocalQueue",
        "WorkloadPriorityClass",
    }
    release = "kubernetes:helm.sh/v3:Release kueue"
    assert not [each.name for each in custom if release not in each.after]


def test_kueue_s_namespace_is_the_stack_s_and_admits_no_privileged_pod(made: Recorded) -> None:
    namespace, release = made.one("Namespace")["metadata"], made.one("Release")
    assert namespace["labels"]["pod-security.kubernetes.io/enforce"] == "restricted"
    assert (release["namespace"], release.get("createNamespace")) == (namespace["name"], None)
    assert f"kubernetes:core/v1:Namespace {namespace['name']}" in made.after("Release", "kueue")


def test_kueue_comes_from_the_lock(made: Recorded) -> None:
    release, chart = made.one("Release"), versions().chart("kueue")
    assert (release["chart"], release["version"]) == (chart.reference, chart.version)
    assert "repositoryOpts" not in release
    other = queues({}, Chart("kueue", "https://charts.example", "1.0.0")).one("Release")
    assert (other["chart"], other["repositoryOpts"]["repo"]) == ("kueue", "https://charts.example")


def test_queues_and_pods_have_the_same_priorities(made: Recorded) -> None:
    classes = record(lambda opts: Priorities("priorities", opts=opts)).all("PriorityClass")
    values = {each["metadata"]["name"]: each["value"] for each in classes}
    for queued in made.all("WorkloadPriorityClass"):
        assert queued["value"] == values[queued["metadata"]["name"]]


def test_a_job_asks_for_a_topology_exactly_where_its_flavour_has_one(made: Recorded) -> None:
    """Kueue admits it nowhere else; and a pool of no machines has none, else it would never grow."""
    flavors = {flavor["metadata"]["name"]: flavor["spec"] for flavor in made.all("ResourceFlavor")}
    for pool in aws().node_pools:
        assert bool(job_resources(pool).topology_annotations) == ("topologyName" in flavors[pool.name]), pool.name
    topology = made.one("Topology")
    assert flavors["always"]["topologyName"] == topology["metadata"]["name"]
    assert [level["nodeLabel"] for level in topology["spec"]["levels"]][-1] == "kubernetes.io/hostname"


@pytest.mark.parametrize("settings", [aws({"enabled": False}), aws(pools=[])])
def test_who_wants_no_queues_or_has_no_pool_gets_none(settings: Aws) -> None:
    assert queue_plan(settings) is None
