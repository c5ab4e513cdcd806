"""Volumes: the classes of the local cluster, and the claim for checkpoints."""

from __future__ import annotations

from collections.abc import Sequence

import pulumi
from pulumi_kubernetes.core.v1 import (
    PersistentVolumeClaim,
    PersistentVolumeClaimSpecArgs,
    VolumeResourceRequirementsArgs,
)
from pulumi_kubernetes.meta.v1 import ObjectMetaArgs
from pulumi_kubernetes.storage.v1 import StorageClass

from infra.wiring.storage import Volume

CHECKPOINT_CLAIM = "checkpoints"
LOCAL_PROVISIONER = "local.trainyard.dev/folder"
"""Served by infra/local/cloud: a volume is a folder of the state folder."""


class LocalStorageClasses(pulumi.ComponentResource):
    """The kinds of storage that a cloud offers (block and shared), on one computer all folders; elsewhere none."""

    def __init__(self, name: str, *, names: Sequence[str], opts: pulumi.ResourceOptions) -> None:
        super().__init__("trainyard:in_cluster:LocalStorageClasses", name, None, opts)
        child = pulumi.ResourceOptions(parent=self)
        self._made = {each: _storage_class(each, child) for each in names}
        self.register_outputs({"classes": list(self._made.values())})

    def named(self, name: str | None) -> pulumi.Input[str] | None:
        """A class by its name; one that is made here as an output, so that whoever uses it comes after it."""
        return self._made.get(name, name) if name else None


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
        classes: LocalStorageClasses,
        opts: pulumi.ResourceOptions,
    ) -> None:
        super().__init__("trainyard:in_cluster:CheckpointClaim", name, None, opts)
        claim = PersistentVolumeClaim(
            CHECKPOINT_CLAIM,
            metadata=ObjectMetaArgs(name=CHECKPOINT_CLAIM, namespace=namespace),
            spec=claim_spec(volume, classes),
            opts=pulumi.ResourceOptions(parent=self),
        )
        self.claim = claim.metadata.apply(lambda m: str(m.name))
        self.register_outputs({"claim": self.claim})


def claim_spec(volume: Volume, classes: LocalStorageClasses) -> PersistentVolumeClaimSpecArgs:
    """What a claim asks for."""
    return PersistentVolumeClaimSpecArgs(
        access_modes=[volume.access_mode],
        resources=VolumeResourceRequirementsArgs(requests={"storage": volume.size}),
        storage_class_name=classes.named(volume.storage_class),
    )


def _storage_class(name: str, opts: pulumi.ResourceOptions) -> pulumi.Output[str]:
    made = StorageClass(
        name,
        metadata=ObjectMetaArgs(name=name),
        provisioner=LOCAL_PROVISIONER,
        reclaim_policy="Delete",
        volume_binding_mode="Immediate",
        opts=opts,
    )
    return made.metadata.apply(lambda m: str(m.name))
