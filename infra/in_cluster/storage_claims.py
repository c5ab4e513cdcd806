"""Volumes: the classes of the local cluster, and the claim for checkpoints."""

from __future__ import annotations

import pulumi
from pulumi_kubernetes.core.v1 import (
    PersistentVolumeClaim,
    PersistentVolumeClaimSpecArgs,
    VolumeResourceRequirementsArgs,
)
from pulumi_kubernetes.meta.v1 import ObjectMetaArgs
from pulumi_kubernetes.storage.v1 import StorageClass

CHECKPOINT_CLAIM = "checkpoints"
LOCAL_PROVISIONER = "local.trainyard.dev/folder"
"""Served by infra/local/cloud: a volume is a folder of the state folder."""


class LocalStorageClasses(pulumi.ComponentResource):
    """The two kinds of storage that a cloud offers (block and shared), on one computer both folders."""

    block: pulumi.Output[str]
    shared: pulumi.Output[str]

    def __init__(self, name: str, *, opts: pulumi.ResourceOptions) -> None:
        super().__init__("trainyard:in_cluster:LocalStorageClasses", name, None, opts)
        child = pulumi.ResourceOptions(parent=self)
        self.block = _storage_class("trainyard-block", child)
        self.shared = _storage_class("trainyard-shared", child)
        self.register_outputs({"block": self.block, "shared": self.shared})


class CheckpointClaim(pulumi.ComponentResource):
    """The shared volume into which jobs write checkpoints; it outlives the jobs."""

    claim: pulumi.Output[str]
    """Name of the PersistentVolumeClaim."""

    def __init__(
        self,
        name: str,
        *,
        namespace: pulumi.Input[str],
        size: str,
        storage_class: pulumi.Input[str] | None,
        opts: pulumi.ResourceOptions,
    ) -> None:
        super().__init__("trainyard:in_cluster:CheckpointClaim", name, None, opts)
        claim = PersistentVolumeClaim(
            CHECKPOINT_CLAIM,
            metadata=ObjectMetaArgs(name=CHECKPOINT_CLAIM, namespace=namespace),
            spec=PersistentVolumeClaimSpecArgs(
                access_modes=["ReadWriteMany"],
                resources=VolumeResourceRequirementsArgs(requests={"storage": size}),
                storage_class_name=storage_class,
            ),
            opts=pulumi.ResourceOptions(parent=self),
        )
        self.claim = claim.metadata.apply(lambda m: str(m.name))
        self.register_outputs({"claim": self.claim})


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
