"""What machines are told at boot is what their operating systems read, and the same at each run."""

from __future__ import annotations

import tomllib
from email import message_from_string
from email.message import Message
from typing import Any, cast

import yaml

from infra.catalog.instance_types import instance_type, instance_types
from infra.wiring.allocatable import allocatable
from infra.wiring.user_data import user_data

P5 = instance_type("p5.48xlarge")


def node_config(text: str | None) -> dict[str, Any]:
    """What nodeadm finds in the user data."""
    whole = message_from_string(text or "")
    assert (whole["MIME-Version"], whole.get_content_type()) == ("1.0", "multipart/mixed")
    (part,) = cast("list[Message]", whole.get_payload())
    assert part.get_content_type() == "application/node.eks.aws"
    config: dict[str, Any] = yaml.safe_load(str(part.get_payload()))
    assert (config["apiVersion"], config["kind"]) == ("node.eks.aws/v1alpha1", "NodeConfig")
    return cast("dict[str, Any]", config["spec"])


def test_al2023_gets_a_mime_multipart_with_a_node_config_that_joins_the_nvme_disks() -> None:
    assert node_config(user_data(P5, operating_system="al2023", efa=False)) == {
        "instance": {"localStorage": {"strategy": "RAID0"}}
    }


def test_containers_on_machines_with_efa_may_pin_all_memory_that_a_machine_can_have() -> None:
    spec = node_config(user_data(P5, operating_system="al2023", efa=True))
    assert spec["instance"] == {"localStorage": {"strategy": "RAID0"}}
    limits = {each["type"]: each for each in spec["containerd"]["baseRuntimeSpec"]["process"]["rlimits"]}
    largest = max(each.memory_mib for each in instance_types().values()) * 1024**2
    assert limits["RLIMIT_MEMLOCK"]["soft"] == limits["RLIMIT_MEMLOCK"]["hard"] > largest
    # What Go's JSON makes of a number must come out as the same number.
    assert int(float(limits["RLIMIT_MEMLOCK"]["hard"])) == limits["RLIMIT_MEMLOCK"]["hard"]
    assert limits["RLIMIT_NOFILE"] == {"type": "RLIMIT_NOFILE", "soft": 65536, "hard": 1048576}


def test_the_cluster_is_not_named_because_eks_adds_that_itself() -> None:
    assert "cluster" not in (user_data(P5, operating_system="al2023", efa=True) or "").lower()


def test_bottlerocket_reserves_the_hugepages_and_mounts_the_nvme_disks() -> None:
    settings = tomllib.loads(user_data(P5, operating_system="bottlerocket", efa=True) or "")["settings"]
    pages = int(settings["kernel"]["sysctl"]["vm.nr_hugepages"])
    assert 2 * pages == allocatable(P5, efa=True)["hugepages-2Mi"]
    command = settings["bootstrap-commands"]["local-storage"]
    assert [each[:3] for each in command["commands"]] == [
        ["apiclient", "ephemeral-storage", "init"],
        ["apiclient", "ephemeral-storage", "bind"],
    ]
    assert (command["essential"], command["mode"]) == (True, "always")


def test_bottlerocket_without_efa_keeps_its_memory() -> None:
    assert "hugepages" not in (user_data(P5, operating_system="bottlerocket", efa=False) or "")


def test_a_machine_with_nothing_to_be_told_gets_no_user_data() -> None:
    small = instance_type("m7i.large")
    assert user_data(small, operating_system="al2023", efa=False) is None
    assert user_data(small, operating_system="bottlerocket", efa=False) is None


def test_each_run_says_the_same_so_that_no_machine_is_replaced_for_nothing() -> None:
    assert len({user_data(P5, operating_system="al2023", efa=True) for _ in range(20)}) == 1
