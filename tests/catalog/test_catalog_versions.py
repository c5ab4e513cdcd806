"""The version lock: complete for every minor it supports, sourced, pinned, and outside everything known to be bad."""

from __future__ import annotations

import re
from datetime import date

import pytest

from infra.catalog.instance_types import InstanceType, instance_types
from infra.catalog.known_bad import bad_versions, conditions_of
from infra.catalog.ranges import in_range
from infra.catalog.tables import table
from infra.catalog.versions import NotInLockError, versions
from infra.local.engines.catalogue import KUBERNETES_VERSION

LOCK = versions()
GPU_TYPES = [machine for machine in instance_types().values() if machine.has_gpu]


@pytest.mark.parametrize("kubernetes", LOCK.kubernetes)
def test_every_minor_has_its_images_addons_and_autoscaler(kubernetes: str) -> None:
    for system in ("al2023", "bottlerocket"):
        for architecture in ("x86_64", "arm64"):
            plain = LOCK.ami(kubernetes, system, architecture, gpu=False)
            gpu = LOCK.ami(kubernetes, system, architecture, gpu=True)
            assert plain.driver is None
            assert gpu.driver
            assert gpu.ami_type.endswith("NVIDIA")
            assert plain.release_version == gpu.release_version
            if system == "al2023":
                assert gpu.release_version.startswith(f"{kubernetes}.")
    for name in LOCK.addons:
        assert re.fullmatch(r"v\d+\.\d+\.\d+-eksbuild\.\d+", LOCK.addon(name, kubernetes)), name
    assert LOCK.addon("kube-proxy", kubernetes).startswith(f"v{kubernetes}.")
    assert f":v{kubernetes}." in LOCK.image("cluster-autoscaler", kubernetes=kubernetes)


def test_the_addons_that_a_cluster_needs_are_there() -> None:
    assert {
        *("vpc-cni", "coredns", "kube-proxy", "eks-pod-identity-agent", "aws-ebs-csi-driver", "aws-efs-csi-driver"),
        *("aws-fsx-csi-driver", "eks-node-monitoring-agent", "metrics-server"),
    } == set(LOCK.addons)
    assert {"kueue", "kube-prometheus-stack"} == set(LOCK.charts)


def test_the_default_minor_is_the_newest_supported_one() -> None:
    assert list(LOCK.kubernetes) == sorted(LOCK.kubernetes, key=lambda minor: int(minor.partition(".")[2]))
    assert LOCK.default_kubernetes == LOCK.kubernetes[-1]


def test_the_rehearsals_control_plane_is_of_the_default_minor() -> None:
    assert KUBERNETES_VERSION.startswith(f"{LOCK.default_kubernetes}.")


def test_every_row_has_a_source_and_a_date() -> None:
    lock = table("versions")
    rows = [lock["kubernetes"], lock["eks_registry"], lock["driver_floor"], *lock["ami"]]
    rows += [row for kind in ("addon", "chart", "image") for row in lock[kind].values()]
    for row in rows:
        assert row["source"], row
        assert isinstance(row["checked"], date), row


def test_unconfirmed_versions_name_minors_of_the_lock() -> None:
    for name, row in table("versions")["addon"].items():
        assert set(row.get("unconfirmed", ())) <= set(LOCK.kubernetes), name


@pytest.mark.parametrize("name", LOCK.images)
def test_images_are_pinned_to_a_version(name: str) -> None:
    for kubernetes in LOCK.kubernetes:
        assert re.search(r":v?\d+\.\d+\.\d+[^:@]*(@sha256:[0-9a-f]{64})?$", LOCK.image(name, kubernetes=kubernetes))


def test_eks_own_images_come_from_the_clusters_region() -> None:
    there = "602401143452.dkr.ecr.us-west-2.amazonaws.com/eks/aws-efa-k8s-device-plugin"
    assert LOCK.image("efa-device-plugin").startswith(there)
    assert LOCK.image("efa-device-plugin", region="us-east-2").startswith(
        "602401143452.dkr.ecr.us-east-2.amazonaws.com/"
    )
    assert LOCK.image("efa-device-plugin", region="eu-south-2").startswith("455263428931.dkr.ecr.eu-south-2.")
    assert LOCK.image("efa-device-plugin", region="cn-north-1").startswith(
        "918309763551.dkr.ecr.cn-north-1.amazonaws.com.cn/"
    )
    assert LOCK.image("etcd", region="us-east-2") == LOCK.image("etcd")


def test_a_chart_from_oci_is_named_whole_and_others_by_their_repository() -> None:
    assert LOCK.chart("kueue").reference == "oci://registry.k8s.io/kueue/charts/kueue"
    stack = LOCK.chart("kube-prometheus-stack")
    assert (stack.reference, stack.is_oci) == ("kube-prometheus-stack", False)
    assert stack.repository.startswith("https://")


def test_what_the_lock_does_not_have_is_told_with_what_it_has() -> None:
    with pytest.raises(NotInLockError, match=r"vpc-cni for Kubernetes 1\.29; it has 1\.34"):
        LOCK.addon("vpc-cni", "1.29")
    with pytest.raises(NotInLockError, match="no add-on vpc-cnj"):
        LOCK.addon("vpc-cnj", "1.36")
    with pytest.raises(NotInLockError, match="no image of the operating system 'windows'"):
        LOCK.ami("1.36", "windows", "x86_64", gpu=False)
    with pytest.raises(NotInLockError, match=r"no driver for CUDA 14\.0"):
        LOCK.driver_floor("14")
    with pytest.raises(NotInLockError, match="no image postgres"):
        LOCK.image("postgres")
    with pytest.raises(NotInLockError, match="no chart argo"):
        LOCK.chart("argo")


def test_the_images_drivers_are_new_enough_for_every_cuda_of_the_lock() -> None:
    assert LOCK.driver_floor("13") == LOCK.driver_floor("13.0") == "580.65.06"
    assert LOCK.driver_floor("12.8").startswith("525.")
    for cuda in table("versions")["driver_floor"]["cuda"]:
        for system in ("al2023", "bottlerocket"):
            driver = LOCK.ami(LOCK.default_kubernetes, system, "x86_64", gpu=True).driver
            assert in_range(str(driver), f">={LOCK.driver_floor(cuda)}")


def test_only_g7_needs_a_newer_driver_than_the_lock_has() -> None:
    too_new = {
        machine.family
        for machine in GPU_TYPES
        for system in ("al2023", "bottlerocket")
        if not in_range(
            str(LOCK.ami(LOCK.default_kubernetes, system, machine.architecture, gpu=True).driver),
            f">={machine.minimum_driver}",
        )
    }
    assert too_new == {"g7"}


@pytest.mark.parametrize("kubernetes", LOCK.kubernetes)
@pytest.mark.parametrize("machine", GPU_TYPES, ids=lambda machine: machine.name)
def test_nothing_is_known_against_the_lock_on_any_machine(machine: InstanceType, kubernetes: str) -> None:
    for efa in {False, bool(machine.efa)}:
        # What a pool of ours brings about, and what our own installation does.
        holds = conditions_of(machine, efa=efa) | {"amazon-linux", "ebs-addon", "kernel-6-12", "efa-device-plugin"}
        locked = [("kubernetes", kubernetes)]
        locked += [(name, LOCK.addon(name, kubernetes)) for name in LOCK.addons]
        locked += [(name, LOCK.chart(name).version) for name in LOCK.charts]
        # The EFA plugin is made only for machines with EFA.
        locked += [
            (name, LOCK.image(name, kubernetes=kubernetes).partition("@")[0].rpartition(":")[2])
            for name in LOCK.images
            if efa or name != "efa-device-plugin"
        ]
        for system in ("al2023", "bottlerocket"):
            image = LOCK.ami(kubernetes, system, machine.architecture, gpu=True)
            locked.append(("nvidia-driver", str(image.driver)))
            if system == "al2023":
                locked.append(("al2023-release", image.release_version.rpartition("-")[2]))
        bad = [found.id for name, version in locked for found in bad_versions(name, version, holds)]
        assert bad == []
