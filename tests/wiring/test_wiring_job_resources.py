"""A job's numbers come from its pool, the controller can make pods of it, and wrong jobs are told what is wrong."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import yaml

from infra.clusters import CHECKOUT
from infra.settings.aws import AwsNodePool
from infra.wiring.errors import WiringError
from infra.wiring.job_resources import job_mistakes, job_resources, standard_job
from infra.wiring.topology import topology_layers, topology_levels
from training.controller.api import ElasticJob
from training.controller.pods import template_trouble, worker_pod

P5 = AwsNodePool(name="p5", types=("p5.48xlarge",), efa=True, zone="us-east-2a", capacity="odcr", max=8)
P5_SPOT = AwsNodePool(name="p5-spot", types=("p5.48xlarge",), efa=True, zone="us-east-2a", capacity="spot")
G6 = AwsNodePool(name="g6", types=("g6.xlarge", "g6.2xlarge"), capacity="spot", max=3)
ALL = (P5, P5_SPOT, G6)

Change = Callable[[dict[str, Any], dict[str, Any]], object]
"""What is done to a good job: to its pod's spec and to its container."""


def job_on(pool: AwsNodePool, **fields: Any) -> dict[str, Any]:
    given = {"workers_min": 1, "workers_max": 2, "rdzv_endpoint": "etcd.trainyard-system:2379", **fields}
    return standard_job(pool, name="train", image="training:1", namespace="training", **given)


def pod_spec(job: dict[str, Any]) -> dict[str, Any]:
    spec: dict[str, Any] = job["spec"]["replicaSpecs"]["Worker"]["template"]["spec"]
    return spec


def test_a_worker_on_p5_takes_the_whole_machine() -> None:
    worker = job_resources(P5)
    assert (worker.gpus, worker.efa, worker.hugepages_mib, worker.grace_seconds) == (8, 32, 5120, 300)
    assert worker.node_selector == {"trainyard.dev/pool": "p5"}
    assert [each["key"] for each in worker.tolerations] == ["nvidia.com/gpu"]


def test_a_worker_on_spot_is_done_before_the_machine_goes() -> None:
    worker = job_resources(P5_SPOT)
    assert worker.grace_seconds == 110
    assert [each["key"] for each in worker.tolerations] == ["nvidia.com/gpu", "trainyard.dev/spot"]


def always_there(*types: str, **fields: Any) -> AwsNodePool:
    return AwsNodePool(name="fixed", types=types, efa=True, zone="us-west-2b", min=4, max=4, **fields)


def test_a_job_on_machines_that_are_always_there_prefers_the_nearest_layer_of_their_type() -> None:
    assert job_resources(always_there("p5.48xlarge")).topology_annotations == {
        "kueue.x-k8s.io/podset-preferred-topology": "topology.k8s.aws/network-node-layer-3"
    }
    b300 = job_resources(always_there("p6-b300.48xlarge"))
    assert list(b300.topology_annotations.values()) == ["topology.k8s.aws/network-node-layer-4"]


def test_without_a_known_place_or_a_standing_machine_a_job_asks_for_no_topology() -> None:
    # Kueue would wait for machines, and the autoscaler for pods: each for the other.
    growing = AwsNodePool(name="p5", types=("p5.48xlarge",), efa=True, zone="us-west-2b", min=0, max=4)
    plain = AwsNodePool(name="g6", types=("g6.xlarge",), min=2, max=2)
    assert job_resources(growing).topology_annotations == job_resources(plain).topology_annotations == {}
    assert topology_layers(plain) == 0


def test_levels_of_a_topology_end_with_the_machine() -> None:
    assert topology_levels(3) == (
        "topology.k8s.aws/network-node-layer-1",
        "topology.k8s.aws/network-node-layer-2",
        "topology.k8s.aws/network-node-layer-3",
        "kubernetes.io/hostname",
    )


def test_cpu_and_memory_are_those_of_the_smallest_type_less_what_the_agents_need() -> None:
    small, both = (job_resources(G6.model_copy(update={"types": types})) for types in (("g6.xlarge",), G6.types))
    assert (small.cpu_millis, small.memory_mib) == (both.cpu_millis, both.memory_mib) == (2900, 11264)
    assert both.shm_mib == both.memory_mib // 4


def test_a_machine_of_few_cpus_reserves_fewer_hugepages_than_nccl_would_like() -> None:
    small = AwsNodePool(name="h100", types=("p5.4xlarge",), efa=True, zone="us-east-2a")
    assert job_resources(small).hugepages_mib == 3522


def test_the_standard_job_is_one_of_which_the_controller_makes_pods() -> None:
    pool = always_there("p5.48xlarge")
    job = ElasticJob.model_validate(
        {**job_on(pool), "metadata": {"name": "train", "namespace": "training", "uid": "u"}}
    )
    assert template_trouble(job) is None
    pod = worker_pod(job, 0, 1, "1:2")
    container = pod["spec"]["containers"][0]
    assert container["args"][:4] == [
        "--rdzv_backend=etcd",
        "--rdzv_endpoint=etcd.trainyard-system:2379",
        "--rdzv_id=train-u-1",
        "--nnodes=1:2",
    ]
    assert container["args"][4] == "--nproc_per_node=8"
    assert pod["metadata"]["annotations"] == job_resources(pool).topology_annotations


def test_devices_and_hugepages_are_limits_and_requests_alike() -> None:
    resources = pod_spec(job_on(P5))["containers"][0]["resources"]
    devices = {"nvidia.com/gpu": "8", "vpc.amazonaws.com/efa": "32", "hugepages-2Mi": "5120Mi"}
    assert resources["limits"].items() >= devices.items()
    assert resources["requests"] == {**resources["limits"], "cpu": "190400m"}


def test_workers_have_no_capability_that_their_namespace_refuses() -> None:
    capabilities = [pod_spec(job_on(pool))["containers"][0]["securityContext"]["capabilities"] for pool in (P5, G6)]
    assert capabilities == [{"drop": ["ALL"]}, {"drop": ["ALL"]}]


def test_workers_may_write_to_a_file_system_that_belonged_to_root_and_walk_through_it_once() -> None:
    context = pod_spec(job_on(P5))["securityContext"]
    assert context["fsGroup"] == context["runAsGroup"] != 0
    assert context["fsGroupChangePolicy"] == "OnRootMismatch"


def test_a_job_in_a_queue_says_so_on_its_pods() -> None:
    metadata = job_on(P5, queue="shared")["spec"]["replicaSpecs"]["Worker"]["template"]["metadata"]
    assert metadata["labels"] == {"kueue.x-k8s.io/queue-name": "shared"}


@pytest.mark.parametrize(("fewest", "most"), [(0, 1), (3, 2), (1, 4)])
def test_a_job_that_its_pool_can_never_hold_is_refused(fewest: int, most: int) -> None:
    with pytest.raises(WiringError, match=f"asks for {fewest} to {most} workers.*pool 'g6' has 1 to 3"):
        job_on(G6, workers_min=fewest, workers_max=most)


@pytest.mark.parametrize("pool", ALL, ids=lambda pool: pool.name)
def test_nothing_is_wrong_with_a_standard_job(pool: AwsNodePool) -> None:
    assert job_mistakes(job_on(pool), ALL) == []


def drop(resource: str) -> Change:
    return lambda _, container: [container["resources"][kind].pop(resource) for kind in ("limits", "requests")]


def ask(resource: str, quantity: str) -> Change:
    return lambda _, container: [
        container["resources"][kind].update({resource: quantity}) for kind in ("limits", "requests")
    ]


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (drop("vpc.amazonaws.com/efa"), "on pool p5 it does not ask for EFA, and would train over TCP"),
        (ask("vpc.amazonaws.com/efa", "1"), "asks for all GPUs and for 1 of 32 EFA interfaces"),
        (ask("vpc.amazonaws.com/efa", "33"), "asks for 33 vpc.amazonaws.com/efa, a machine has 32: it waits for ever"),
        (drop("hugepages-2Mi"), "asks for EFA and not for hugepages: hugepages-2Mi: 5120Mi"),
        (ask("nvidia.com/gpu", "16"), "a worker asks for 16 GPUs, a machine of p5 has 8: it waits for ever"),
        (drop("nvidia.com/gpu"), "asks for no GPU"),
        (
            lambda _, c: c["resources"]["requests"].update({"nvidia.com/gpu": "4"}),
            "request and limit of nvidia.com/gpu",
        ),
        (lambda s, _: s["tolerations"].clear(), "does not tolerate nvidia.com/gpu=present:NoSchedule of pool p5"),
        (
            lambda _, c: c["securityContext"]["capabilities"].update(add=["IPC_LOCK"]),
            "container elasticjob-worker adds IPC_LOCK: the jobs' namespace refuses it",
        ),
        (lambda s, _: s["nodeSelector"].update({"trainyard.dev/pool": "p6"}), "matches no GPU pool: the stack has p5,"),
        (
            lambda s, _: s["volumes"].append({"name": "ib", "hostPath": {"path": "/dev/infiniband"}}),
            "volume ib mounts /dev/infiniband of the machine: it hides the EFA devices",
        ),
        (
            lambda s, _: s["volumes"].append({"name": "host", "hostPath": {"path": "/dev/shm/"}}),  # noqa: S108
            "volume host mounts /dev/shm of the machine",
        ),
        (lambda s, _: s["volumes"].pop(), "elasticjob-worker: /dev/shm has 64 MiB"),
        (lambda _, c: c["env"].append({"name": "FI_PROVIDER", "value": "efa"}), "FI_PROVIDER has no use"),
    ],
)
def test_what_fails_in_silence_on_a_cluster_is_said_before(change: Change, sentence: str) -> None:
    job = copy.deepcopy(job_on(P5))
    change(pod_spec(job), pod_spec(job)["containers"][0])
    found = job_mistakes(job, ALL)
    assert len(found) == 1, found
    assert sentence in found[0]


def test_a_job_that_needs_longer_than_the_spot_notice_is_told_so() -> None:
    job = job_on(G6)
    pod_spec(job)["terminationGracePeriodSeconds"] = 300
    (found,) = job_mistakes(job, ALL)
    assert "on pool g6 its terminationGracePeriodSeconds is 300: the machine is gone 120 s after the notice" in found


def test_a_job_with_more_workers_than_machines_is_told_so() -> None:
    job = job_on(G6)
    job["spec"]["maxReplicas"] = 5
    assert job_mistakes(job, ALL) == ["it asks for 5 workers; its pools have 3 machines at most"]


def test_efa_on_a_pool_without_it_waits_for_ever() -> None:
    job = job_on(G6)
    ask("vpc.amazonaws.com/efa", "1")(pod_spec(job), pod_spec(job)["containers"][0])
    assert job_mistakes(job, ALL) == [
        "on pool g6 it asks for 1 vpc.amazonaws.com/efa, the pool has no EFA: it waits for ever"
    ]


def test_the_example_of_the_checkout_is_fit_for_g_types_and_would_crawl_on_p5() -> None:
    job = yaml.safe_load((CHECKOUT / "training/examples/digits.yaml").read_text())
    shm = "container elasticjob-worker: /dev/shm has 64 MiB; mount an emptyDir with medium Memory there"
    assert job_mistakes(job, [G6]) == [shm]
    assert any("would train over TCP" in mistake for mistake in job_mistakes(job, [P5]))


def test_a_job_may_stay_away_from_spot_without_being_wrong() -> None:
    job = job_on(P5)
    pod_spec(job)["nodeSelector"] = {"nvidia.com/gpu.present": "true", "trainyard.dev/efa": "true"}
    assert job_mistakes(job, ALL) == []
