"""Which volumes a stack has, and of which StorageClasses: decided for each target in one place."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from infra.wiring.naming import UNPRIVILEGED

if TYPE_CHECKING:
    from infra.settings import Settings
    from infra.settings.aws import Aws

BLOCK_CLASS = "trainyard-block"
SHARED_CLASS = "trainyard-shared"

CHECKPOINT_CLAIM = "checkpoints"
"""The claim of the shared volume that jobs mount."""

NO_CLASS = ""
"""Class of a claim that takes a volume which is there already; None would be the cluster's default class."""
LUSTRE_VOLUME = "trainyard-lustre"

Reclaim = Literal["Delete", "Retain"]


@dataclass(frozen=True)
class Volume:
    """What a PersistentVolumeClaim asks for."""

    size: str
    access_mode: str
    storage_class: str | None
    """None: the cluster's default. `NO_CLASS`: no class, the claim takes the volume that is named."""
    volume_name: str | None = None
    """The PersistentVolume that the claim takes; None: the class makes one."""


@dataclass(frozen=True)
class ClassPlan:
    """A StorageClass that the stack makes."""

    name: str
    provisioner: str
    parameters: Mapping[str, str]
    reclaim: Reclaim
    binding: Literal["WaitForFirstConsumer", "Immediate"]
    default: bool = False
    expansion: bool = False
    needs: tuple[Literal["kms-key", "efs"], ...] = ()
    """What only the cloud knows, and the component adds to `parameters`: `kmsKeyId`, `fileSystemId`."""


@dataclass(frozen=True)
class StaticVolume:
    """A PersistentVolume for a file system that the stack owns; the file system itself is known only when it is there.

    `volumeHandle` is its id, `volumeAttributes` its `dnsname` and `mountname`.
    """

    name: str
    size: str
    driver: str
    access_modes: tuple[str, ...]
    """The first is how the driver mounts it."""
    fs_type: str
    reclaim: Reclaim
    mount_options: tuple[str, ...]


@dataclass(frozen=True)
class Storage:
    """The volumes of a stack."""

    own_classes: tuple[str, ...]
    """StorageClasses of the local cluster, which has none but these."""
    etcd: Volume
    checkpoints: Volume
    classes: tuple[ClassPlan, ...] = ()
    """StorageClasses that an AWS stack makes."""
    static_volumes: tuple[StaticVolume, ...] = ()
    """PersistentVolumes that an AWS stack makes."""


def storage_of(settings: Settings) -> Storage:
    """The volumes of a stack."""
    if settings.target == "aws" and settings.aws is not None:
        return _on_aws(settings, settings.aws)
    local = settings.target == "local"
    return Storage(
        own_classes=(BLOCK_CLASS, SHARED_CLASS) if local else (),
        etcd=Volume(
            size=settings.etcd.storage,
            access_mode="ReadWriteOnce",
            storage_class=BLOCK_CLASS if local else settings.etcd.storage_class,
        ),
        checkpoints=Volume(
            size=settings.checkpoints.size,
            access_mode=settings.checkpoints.access_mode,
            storage_class=SHARED_CLASS if local else settings.checkpoints.storage_class,
        ),
    )


def _on_aws(settings: Settings, aws: Aws) -> Storage:
    lustre = _lustre(aws)
    shared = (_efs(),) if aws.storage.efs else ()
    checkpoints = Volume(settings.checkpoints.size, "ReadWriteMany", SHARED_CLASS)
    if aws.storage.checkpoints == "lustre" and lustre is not None:
        checkpoints = Volume(lustre.size, lustre.access_modes[0], NO_CLASS, volume_name=lustre.name)
    return Storage(
        own_classes=(),
        etcd=Volume(settings.etcd.storage, "ReadWriteOnce", BLOCK_CLASS),
        checkpoints=checkpoints,
        classes=(_gp3(), *shared),
        static_volumes=(lustre,) if lustre else (),
    )


def _gp3() -> ClassPlan:
    """Block storage, the cluster's default.

    A disk stands in one zone: it is made where its pod was placed. It goes with its claim, also in production: on such
    disks is what Trainyard's own parts can make again.
    """
    return ClassPlan(
        name=BLOCK_CLASS,
        provisioner="ebs.csi.aws.com",
        parameters={"type": "gp3", "encrypted": "true", "csi.storage.k8s.io/fstype": "ext4"},
        reclaim="Delete",
        binding="WaitForFirstConsumer",
        default=True,
        expansion=True,
        needs=("kms-key",),
    )


def _efs() -> ClassPlan:
    """Shared folders, each volume an access point of the stack's one EFS: jobs see them as their own, not root's.

    With a claim goes its access point; the files stay in the file system (the driver's default), which production
    protects. The policy is the same everywhere, since a class cannot be changed.
    """
    return ClassPlan(
        name=SHARED_CLASS,
        provisioner="efs.csi.aws.com",
        parameters={
            "provisioningMode": "efs-ap",
            "directoryPerms": "770",
            "uid": str(UNPRIVILEGED),
            "gid": str(UNPRIVILEGED),
            "basePath": "/volumes",
        },
        reclaim="Delete",
        binding="Immediate",
        needs=("efs",),
    )


def _lustre(aws: Aws) -> StaticVolume | None:
    """The stack's own FSx for Lustre. Its life is that of the stack: Kubernetes never deletes it.

    A new file system belongs to root, and jobs run as an ordinary user: their `fsGroup` lets them write. The driver's
    policy is the usual one (`ReadWriteOnceWithFSType`), with which the kubelet heeds it only on volumes that have a
    type and ReadWriteOnce among their modes. It keeps nobody out: they are mounted by the first mode.
    """
    if aws.storage.lustre is None:
        return None
    return StaticVolume(
        name=LUSTRE_VOLUME,
        size=f"{aws.storage.lustre.capacity_gib}Gi",
        driver="fsx.csi.aws.com",
        access_modes=("ReadWriteMany", "ReadWriteOnce"),
        fs_type="lustre",
        reclaim="Retain",
        mount_options=("flock",),
    )
