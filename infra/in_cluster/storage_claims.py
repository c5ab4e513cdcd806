"""Volumes: StorageClasses, volumes of file systems that the stack owns, and the claim for checkpoints."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import pulumi
from pulumi_kubernetes.core.v1 import (
    CSIPersistentVolumeSourceArgs,
    PersistentVolume,
    PersistentVolumeClaim,
    PersistentVolumeClaimSpecArgs,
    PersistentVolumeSpecArgs,
    VolumeResourceRequirementsArgs,
)
from pulumi_kubernetes.meta.v1 import ObjectMetaArgs
from pulumi_kubernetes.storage.v1 import StorageClass

from infra.wiring.storage import CHECKPOINT_CLAIM, ClassPlan, StaticVolume, Volume

LOCAL_PROVISIONER = "local.trainyard.dev/folder"
"""Served by infra/local/cloud: a volume is a folder of the state folder."""
_DEFAULT_CLASS = "storageclass.kubernetes.io/is-default-class"
# The parameter that takes what a plan `needs`.
_PARAMETERS = {"kms-key": "kmsKeyId", "efs": "fileSystemId"}


@dataclass(frozen=True)
class Lustre:
    """A Lustre file system as AWS names it."""

    id: pulumi.Input[str]
    dns_name: pulumi.Input[str]
    mount_name: pulumi.Input[str]


class LustreVolume(pulumi.ComponentResource):
    """A volume for a file system that is there: made, protected and removed by the stack, never by Kubernetes."""

    name: str
    """Name of the PersistentVolume, as claims are planned with it."""
    volume: pulumi.Output[str]
    """The same, as an output."""

    def __init__(self, name: str, *, plan: StaticVolume, file_system: Lustre, opts: pulumi.ResourceOptions) -> None:
        super().__init__("trainyard:in_cluster:LustreVolume", name, None, opts)
        self.name = plan.name
        made = PersistentVolume(
            plan.name,
            metadata=ObjectMetaArgs(name=plan.name),
            spec=PersistentVolumeSpecArgs(
                capacity={"storage": plan.size},
                access_modes=list(plan.access_modes),
                persistent_volume_reclaim_policy=plan.reclaim,
                storage_class_name="",
                mount_options=list(plan.mount_options),
                csi=CSIPersistentVolumeSourceArgs(
                    driver=plan.driver,
                    fs_type=plan.fs_type,
                    volume_handle=file_system.id,
                    volume_attributes={"dnsname": file_system.dns_name, "mountname": file_system.mount_name},
                ),
            ),
            opts=pulumi.ResourceOptions(parent=self),
        )
        self.volume = made.metadata.apply(lambda m: str(m.name))
        self.register_outputs({"volume": self.volume})


class StorageClasses(pulumi.ComponentResource):
    """The kinds of storage that a stack offers. Who has a volume of one comes after them (`depends_on`).

    Claims name classes as text, not as outputs: a class that is made anew would else take the claims of its name, and
    what is on their volumes, with it.
    """

    volume_names: Mapping[str, pulumi.Output[str]]
    """Volumes that the stack makes itself. Claims name these as outputs: one that is made anew cannot go before the
    claim that holds it has gone."""


class LocalStorageClasses(StorageClasses):
    """The kinds of storage that a cloud offers (block and shared), on one computer all folders; elsewhere none."""

    def __init__(self, name: str, *, names: Sequence[str], opts: pulumi.ResourceOptions) -> None:
        super().__init__("trainyard:in_cluster:LocalStorageClasses", name, None, opts)
        local = (ClassPlan(each, LOCAL_PROVISIONER, {}, "Delete", "Immediate") for each in names)
        self.volume_names = {}
        _make_classes(local, {}, parent=self)
        self.register_outputs({})


class CloudStorageClasses(StorageClasses):
    """The kinds of storage of an AWS stack.

    EKS makes no class a default one any more (since 1.30), so there is none to take that from.
    """

    def __init__(
        self,
        name: str,
        *,
        plans: Iterable[ClassPlan],
        known: Mapping[str, pulumi.Input[str]],
        volumes: Sequence[LustreVolume] = (),
        opts: pulumi.ResourceOptions,
    ) -> None:
        """Makes one class for each plan.

        Args:
            name: of the component.
            plans: the classes.
            known: what plans need that only the cloud knows: `kms-key`, `efs`.
            volumes: those of the stack's own file systems.
            opts: of the component.
        """
        super().__init__("trainyard:in_cluster:CloudStorageClasses", name, None, opts)
        self.volume_names = {each.name: each.volume for each in volumes}
        _make_classes(plans, known, parent=self)
        self.register_outputs({})


class CheckpointClaim(pulumi.ComponentResource):
    """The shared volume into which jobs write checkpoints; it outlives the jobs."""

    claim: pulumi.Output[str]
    """Name of the PersistentVolumeClaim."""

    def __init__(
        self,
        name: str,
        *,
        namespace: pulumi.Input[str],
        volume: Volume,
        classes: StorageClasses,
        opts: pulumi.ResourceOptions,
    ) -> None:
        super().__init__("trainyard:in_cluster:CheckpointClaim", name, None, opts)
        claim = PersistentVolumeClaim(
            CHECKPOINT_CLAIM,
            metadata=ObjectMetaArgs(name=CHECKPOINT_CLAIM, namespace=namespace),
            spec=claim_spec(volume, classes),
            opts=pulumi.ResourceOptions(parent=self, depends_on=[classes]),
        )
        self.claim = claim.metadata.apply(lambda m: str(m.name))
        self.register_outputs({"claim": self.claim})


def claim_spec(volume: Volume, classes: StorageClasses) -> PersistentVolumeClaimSpecArgs:
    """What a claim asks for."""
    return PersistentVolumeClaimSpecArgs(
        access_modes=[volume.access_mode],
        resources=VolumeResourceRequirementsArgs(requests={"storage": volume.size}),
        storage_class_name=volume.storage_class,
        volume_name=classes.volume_names[volume.volume_name] if volume.volume_name else None,
    )


def _make_classes(
    plans: Iterable[ClassPlan], known: Mapping[str, pulumi.Input[str]], parent: pulumi.ComponentResource
) -> None:
    for plan in plans:
        parameters = {**plan.parameters, **{_PARAMETERS[need]: known[need] for need in plan.needs}}
        StorageClass(
            plan.name,
            metadata=ObjectMetaArgs(name=plan.name, annotations={_DEFAULT_CLASS: "true"} if plan.default else None),
            provisioner=plan.provisioner,
            parameters=parameters or None,
            reclaim_policy=plan.reclaim,
            volume_binding_mode=plan.binding,
            allow_volume_expansion=True if plan.expansion else None,
            opts=pulumi.ResourceOptions(parent=parent),
        )
