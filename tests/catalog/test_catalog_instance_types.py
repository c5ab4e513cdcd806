"""The catalogue of instance types: complete, sourced, and the same as EC2's own description wherever there is one."""

from __future__ import annotations

import pytest
from ec2_descriptions import described_by_ec2

from infra.catalog.account import differences_of
from infra.catalog.instance_types import (
    InstanceType,
    UnknownInstanceTypeError,
    differences,
    gpus,
    instance_type,
    instance_types,
    left_out,
    nearest_names,
)
from infra.catalog.tables import table

ALL = list(instance_types().values())
GPU_TYPES = [machine for machine in ALL if machine.has_gpu]
GPU_FAMILIES = {
    *("p4d", "p4de", "p5", "p5e", "p5en", "p6-b200", "p6-b300", "p6e-gb200"),
    *("g4dn", "g5", "g6", "gr6", "g6e", "g7", "g7e"),
}


def test_every_value_is_ec2s_own_or_a_listed_difference() -> None:
    found = {
        (difference.type, difference.field)
        for machine in ALL
        if machine.name in described_by_ec2()
        for difference in differences_of(machine, described_by_ec2()[machine.name])
    }
    missing = {(machine.name, "*") for machine in ALL if machine.name not in described_by_ec2()}
    assert found | missing == set(differences())


def test_a_wrong_value_would_be_found() -> None:
    described = described_by_ec2()["p5.48xlarge"]
    found = differences_of(instance_type("p6-b300.48xlarge"), described)
    assert {difference.field for difference in found} >= {"efa", "cards", "gpu", "memory_mib"}


def test_no_size_of_a_gpu_family_is_left_out() -> None:
    assert {machine.family for machine in GPU_TYPES} == GPU_FAMILIES
    whole_gpus = {
        name
        for name, described in described_by_ec2().items()
        if name.partition(".")[0] in GPU_FAMILIES and described["GpuInfo"]["Gpus"][0]["Count"]
    }
    assert whole_gpus <= set(instance_types())


def test_a_family_with_nvidia_gpus_is_there_or_left_out_with_a_reason() -> None:
    nvidia = {
        name
        for name, described in described_by_ec2().items()
        if any(gpu["Manufacturer"] == "NVIDIA" for gpu in described.get("GpuInfo", {}).get("Gpus", ()))
    }
    assert {name for name in nvidia if name not in instance_types() and not left_out(name)} == set()
    assert [name for name in instance_types() if left_out(name)] == []
    with pytest.raises(UnknownInstanceTypeError, match=r"no 'trn2\.48xlarge' on purpose: Trainium runs Neuron"):
        instance_type("trn2.48xlarge")


@pytest.mark.parametrize("machine", ALL, ids=lambda machine: machine.name)
def test_efa_fits_on_the_cards_that_have_it(machine: InstanceType) -> None:
    able = [card for card in machine.cards if card.efa]
    assert machine.efa <= len(able)
    assert bool(machine.efa) == bool(able)
    assert machine.efa + 1 <= sum(card.interfaces for card in machine.cards)  # beside the primary interface
    # Card 0 carries the primary interface as well.
    if machine.cards[0].efa and machine.efa == len(able):
        assert machine.cards[0].interfaces >= 2


@pytest.mark.parametrize("machine", ALL, ids=lambda machine: machine.name)
def test_every_row_is_whole_and_has_a_source(machine: InstanceType) -> None:
    assert machine.source
    assert machine.capacities
    assert set(machine.capacities) <= {"on-demand", "spot", "odcr", "capacity-block"}
    assert set(machine.unconfirmed) <= set(InstanceType.__dataclass_fields__)
    assert machine.vcpus > 0
    assert machine.memory_mib > 0
    assert machine.has_gpu == (machine.gpu in gpus())
    assert machine.has_gpu == (machine.gpu_memory_mib > 0)
    assert machine.topology_layers in {0, 3, 4}


def test_every_kind_of_gpu_has_a_source_and_is_in_a_machine() -> None:
    used = {machine.gpu for machine in GPU_TYPES}
    assert set(gpus()) == used
    assert all(gpu.source for gpu in gpus().values())


def test_differences_are_given_reasons_and_name_types_of_the_catalogue() -> None:
    for (name, field), reason in differences().items():
        assert name in instance_types()
        assert field == "*" or field in InstanceType.__dataclass_fields__
        assert reason


def test_what_is_known_to_be_odd_about_the_big_machines() -> None:
    b300 = instance_type("p6-b300.48xlarge")
    assert (b300.efa, len(b300.cards)) == (16, 17)
    assert [card.efa for card in b300.cards] == [False] + [True] * 16

    gb200 = instance_type("p6e-gb200.36xlarge")
    assert gb200.architecture == "arm64"
    assert [card.interfaces for card in gb200.cards] == [2, 1] * 8 + [2]
    assert {"efa", "cards"} <= set(gb200.unconfirmed)

    assert instance_type("p5.48xlarge").device_index_max == 1
    assert instance_type("g7.48xlarge").minimum_driver == "595"
    assert instance_type("g5.xlarge").efa == 0


@pytest.mark.parametrize(
    ("name", "pods"), [("p5.48xlarge", 100), ("p4d.24xlarge", 737), ("m7i.large", 29), ("g5.48xlarge", 345)]
)
def test_pods_by_addresses_are_those_of_eks(name: str, pods: int) -> None:
    # Four lines of eni-max-pods.txt of the EKS image.
    assert instance_type(name).max_pods == pods


def test_an_unknown_type_is_told_with_the_nearest_names() -> None:
    with pytest.raises(UnknownInstanceTypeError, match=r"p5\.96xlarge.*p5\.48xlarge"):
        instance_type("p5.96xlarge")
    assert nearest_names("P5.48xlarge")[0] == "p5.48xlarge"
    with pytest.raises(UnknownInstanceTypeError, match=r"no instance type 'zz'\. `trainyard gpus` shows all"):
        instance_type("zz")


def test_system_pools_have_machines_of_both_architectures() -> None:
    plain = [machine for machine in ALL if not machine.has_gpu]
    assert {machine.family for machine in plain} == {"m7i", "m6i", "c7i", "m7g"}
    assert {machine.architecture for machine in plain} == {"x86_64", "arm64"}
    assert all(machine.accelerator_label is None for machine in plain)


def test_tables_have_no_key_that_nothing_reads() -> None:
    known = {
        *("architecture", "vcpus", "memory_gib", "gpu", "gpus", "gpu_memory_mib", "efa", "cards", "device_index_max"),
        *("ipv4_per_interface", "nvme_gb", "topology_layers", "capacities", "unconfirmed", "source"),
    }
    assert {key for row in table("instance_types")["type"].values() for key in row} <= known
