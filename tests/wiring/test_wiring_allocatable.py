"""What a machine offers, held against what was seen on real ones; and what the autoscaler is told of it."""

from __future__ import annotations

import pytest

from infra.catalog.instance_types import instance_type, instance_types
from infra.settings.aws import AwsNodePool
from infra.wiring.allocatable import allocatable, as_quantities, capacity, ephemeral_mib
from infra.wiring.autoscaling import autoscaler_tags

# `kubectl get node -o json | jq .status.allocatable` of an EKS node, as published with AWS's EFA examples.
SEEN_P4D = {"cpu": 95690, "hugepages-2Mi": 21122, "nvidia.com/gpu": 8, "vpc.amazonaws.com/efa": 4, "pods": 250}
SEEN_P4D_MEMORY_MIB = 1146004920 // 1024


def test_p4d_offers_what_was_seen_on_one_and_no_more_memory() -> None:
    offered = allocatable(instance_type("p4d.24xlarge"), efa=True)
    assert {name: offered[name] for name in SEEN_P4D} == SEEN_P4D
    assert 0.9 * SEEN_P4D_MEMORY_MIB < offered["memory"] <= SEEN_P4D_MEMORY_MIB


def test_hugepages_follow_the_cpus_as_seen_on_p5() -> None:
    assert allocatable(instance_type("p5.48xlarge"), efa=True)["hugepages-2Mi"] == 42242


def test_a_machine_without_efa_offers_neither_efa_nor_hugepages_and_keeps_its_memory() -> None:
    plain, fast = (allocatable(instance_type("p4d.24xlarge"), efa=efa) for efa in (False, True))
    assert {"vpc.amazonaws.com/efa", "hugepages-2Mi"} & set(plain) == set()
    assert plain["memory"] - fast["memory"] == fast["hugepages-2Mi"]


@pytest.mark.parametrize(
    ("name", "cpu"), [("m7i.large", 1930), ("m7i.xlarge", 3920), ("m7i.2xlarge", 7910), ("p5.48xlarge", 191450)]
)
def test_cpu_is_kept_back_by_the_steps_of_eks(name: str, cpu: int) -> None:
    assert allocatable(instance_type(name), efa=False)["cpu"] == cpu


def test_small_machines_take_as_many_pods_as_they_have_addresses_for() -> None:
    assert allocatable(instance_type("m7i.large"), efa=False)["pods"] == 29
    assert allocatable(instance_type("m7i.4xlarge"), efa=False)["pods"] == 110


def test_efa_on_the_first_card_of_p5_takes_the_place_of_pod_addresses() -> None:
    p5 = instance_type("p5.48xlarge")
    assert (allocatable(p5, efa=False)["pods"], allocatable(p5, efa=True)["pods"]) == (100, 51)


def test_every_machine_offers_something_and_less_than_it_has() -> None:
    for machine in instance_types().values():
        offered, whole = (each(machine, efa=machine.efa > 0) for each in (allocatable, capacity))
        assert all(0 < amount <= whole[name] for name, amount in offered.items()), machine.name
        assert whole["memory"] < machine.memory_mib


def test_amounts_are_written_as_kubernetes_reads_them() -> None:
    amounts = {"cpu": 191450, "memory": 2048, "hugepages-2Mi": 5120, "nvidia.com/gpu": 8, "pods": 110}
    assert as_quantities(amounts) == {
        "cpu": "191450m",
        "memory": "2048Mi",
        "hugepages-2Mi": "5120Mi",
        "nvidia.com/gpu": "8",
        "pods": "110",
    }


def test_the_autoscaler_is_told_what_no_api_tells_it_and_nothing_twice() -> None:
    pool = AwsNodePool(name="p5", types=("p5.48xlarge",), efa=True, zone="us-east-2a")
    prefix = "k8s.io/cluster-autoscaler/node-template/resources/"
    assert autoscaler_tags(pool) == {
        f"{prefix}ephemeral-storage": f"{30_400 * 10**9 // 2**20 * 88 // 100 - 1024}Mi",
        f"{prefix}vpc.amazonaws.com/efa": "32",
        f"{prefix}hugepages-2Mi": "42242Mi",
    }


def test_a_pool_without_efa_is_told_of_the_smallest_disk_among_its_types() -> None:
    # A pod that asks for ephemeral storage adds no machine to an empty pool of which the autoscaler knows no disk.
    small, large = (ephemeral_mib(instance_type(name), disk_gib=200) for name in ("g4dn.xlarge", "g6.xlarge"))
    assert small < large
    pool = AwsNodePool(name="g", types=("g6.xlarge", "g4dn.xlarge"))
    assert autoscaler_tags(pool) == {
        "k8s.io/cluster-autoscaler/node-template/resources/ephemeral-storage": f"{small}Mi"
    }


def test_pods_write_to_the_nvme_disks_and_only_without_them_to_the_root_disk() -> None:
    p5, plain = instance_type("p5.48xlarge"), instance_type("m7i.large")
    assert ephemeral_mib(p5, disk_gib=50) == ephemeral_mib(p5, disk_gib=500) > 24 * 1024**2
    assert ephemeral_mib(plain, disk_gib=50) == 50 * 1024 * 88 // 100 - 1024
