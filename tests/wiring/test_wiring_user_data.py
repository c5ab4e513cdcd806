"""What machines are told at boot is what their operating systems read, and the same at each run."""

from __future__ import annotations

import tomllib
from email import message_from_string
from email.message import Message

import yaml

from infra.catalog.instance_types import instance_type
from infra.wiring.allocatable import allocatable
from infra.wiring.user_data import user_data

P5 = instance_type("p5.48xlarge")


def test_al2023_gets_a_mime_multipart_with_a_node_config_that_joins_the_nvme_disks() -> None:
    text = user_data(P5, operating_system="al2023", efa=True)
    assert text is not None
    whole = message_from_string(text)
    assert (whole["MIME-Version"], whole.get_content_type()) == ("1.0", "multipart/mixed")
    (part,) = whole.get_payload()
    assert isinstance(part, Message)
    assert part.get_content_type() == "application/node.eks.aws"
    assert yaml.safe_load(str(part.get_payload())) == {
        "apiVersion": "node.eks.aws/v1alpha1",
        "kind": "NodeConfig",
        "spec": {"instance": {"localStorage": {"strategy": "RAID0"}}},
    }


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
