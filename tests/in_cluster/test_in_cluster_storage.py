"""Volumes: what a plan needs from the cloud reaches its class; a file system of the stack is never Kubernetes' own."""

from __future__ import annotations

import pulumi
from component_recorder import record

from infra.in_cluster.storage_claims import CheckpointClaim, CloudStorageClasses, Lustre, LustreVolume
from infra.wiring.storage import NO_CLASS, ClassPlan, StaticVolume, Volume

GP3 = ClassPlan(
    name="block",
    provisioner="ebs.csi.aws.com",
    parameters={"type": "gp3"},
    reclaim="Delete",
    binding="WaitForFirstConsumer",
    default=True,
    expansion=True,
    needs=("kms-key",),
)
EFS = ClassPlan("shared", "efs.csi.aws.com", {"provisioningMode": "efs-ap"}, "Retain", "Immediate", needs=("efs",))
LUSTRE = StaticVolume(
    "lustre", "1200Gi", "fsx.csi.aws.com", ("ReadWriteMany", "ReadWriteOnce"), "lustre", "Retain", ("flock",)
)


def test_classes_know_what_only_the_cloud_knows() -> None:
    known = {"kms-key": "arn:aws:kms:key", "efs": "fs-0123"}
    made = record(lambda opts: CloudStorageClasses("classes", plans=[GP3, EFS], known=known, opts=opts))
    block, shared = made.one("StorageClass", "block"), made.one("StorageClass", "shared")
    assert block["parameters"] == {"type": "gp3", "kmsKeyId": "arn:aws:kms:key"}
    assert shared["parameters"] == {"provisioningMode": "efs-ap", "fileSystemId": "fs-0123"}
    assert (block["volumeBindingMode"], block["allowVolumeExpansion"]) == ("WaitForFirstConsumer", True)
    assert block["metadata"]["annotations"] == {"storageclass.kubernetes.io/is-default-class": "true"}
    assert "annotations" not in shared["metadata"]


def test_a_lustre_file_system_is_one_volume_that_the_claim_names() -> None:
    def make(opts: pulumi.ResourceOptions) -> None:
        system = Lustre("fs-1", "fs-1.fsx.example", "abcdef")
        volumes = [LustreVolume("lustre", plan=LUSTRE, file_system=system, opts=opts)]
        classes = CloudStorageClasses("classes", plans=[], known={}, volumes=volumes, opts=opts)
        volume = Volume("1200Gi", "ReadWriteMany", NO_CLASS, volume_name="lustre")
        CheckpointClaim("checkpoints", namespace="training", volume=volume, classes=classes, opts=opts)

    made = record(make)
    volume, claim = made.one("PersistentVolume")["spec"], made.one("PersistentVolumeClaim")["spec"]
    assert volume["csi"]["volumeHandle"] == "fs-1"
    assert (volume["csi"]["fsType"], volume["accessModes"]) == ("lustre", ["ReadWriteMany", "ReadWriteOnce"])
    assert volume["csi"]["volumeAttributes"] == {"dnsname": "fs-1.fsx.example", "mountname": "abcdef"}
    assert (volume["persistentVolumeReclaimPolicy"], volume["mountOptions"]) == ("Retain", ["flock"])
    assert claim["volumeName"] == "lustre"
    assert any(each.endswith("PersistentVolume lustre") for each in made.after("PersistentVolumeClaim", "checkpoints"))
    # The empty class, and not none: with none the default class would make a volume of its own.
    assert claim["storageClassName"] == volume["storageClassName"] == ""
