"""File systems and the bucket: FSx for Lustre, EFS, S3."""

from __future__ import annotations

from dataclasses import dataclass

import pulumi
from pulumi_aws.ec2 import SecurityGroup
from pulumi_aws.efs import FileSystem, FileSystemLifecyclePolicyArgs, MountTarget
from pulumi_aws.fsx import LustreFileSystem
from pulumi_aws.s3 import (
    Bucket,
    BucketLifecycleConfiguration,
    BucketLifecycleConfigurationRuleAbortIncompleteMultipartUploadArgs,
    BucketLifecycleConfigurationRuleArgs,
    BucketLifecycleConfigurationRuleExpirationArgs,
    BucketLifecycleConfigurationRuleFilterArgs,
    BucketLifecycleConfigurationRuleNoncurrentVersionExpirationArgs,
    BucketLifecycleConfigurationRuleTransitionArgs,
    BucketOwnershipControls,
    BucketOwnershipControlsRuleArgs,
    BucketPolicy,
    BucketPublicAccessBlock,
    BucketServerSideEncryptionConfiguration,
    BucketServerSideEncryptionConfigurationRuleApplyServerSideEncryptionByDefaultArgs,
    BucketServerSideEncryptionConfigurationRuleArgs,
    BucketVersioning,
    BucketVersioningVersioningConfigurationArgs,
)
from pulumi_aws.vpc import SecurityGroupEgressRule, SecurityGroupIngressRule

from infra.aws.account import Account, Statement, document
from infra.aws.encryption import USE
from infra.aws.network import Network
from infra.settings.aws import AwsLustre, AwsStorage

CHECKPOINTS, DATASETS = "checkpoints/", "datasets/"
"""Prefixes of the bucket: what jobs write and may delete, and what they only read."""

_NFS = ((2049, 2049),)
# Lustre's own port, and those that the servers answer from (FSx user guide, "File system access control with VPC").
_LUSTRE = ((988, 988), (1018, 1023))
_DEPLOYMENTS = {"scratch-2": "SCRATCH_2", "persistent-2": "PERSISTENT_2"}


@dataclass(frozen=True)
class Lustre:
    """What a volume of the Lustre file system must say."""

    id: pulumi.Output[str]
    dns_name: pulumi.Output[str]
    mount_name: pulumi.Output[str]


class Storage(pulumi.ComponentResource):
    """What outlives pods and machines. With `protect` it outlives the stack as well."""

    lustre: Lustre | None
    efs_id: pulumi.Output[str] | None
    bucket: pulumi.Output[str]
    ready: list[pulumi.Resource]
    """Without these a file system cannot be mounted."""

    def __init__(
        self,
        name: str,
        *,
        cluster: str,
        storage: AwsStorage,
        network: Network,
        node_group_id: pulumi.Input[str],
        key_arn: pulumi.Input[str],
        account: Account,
        protect: bool,
        opts: pulumi.ResourceOptions,
    ) -> None:
        """Make file systems and bucket.

        Args:
            name: logical name.
            cluster: name of the cluster; names are made of it.
            storage: the settings.
            network: where the file systems stand.
            node_group_id: the security group of the machines that mount them.
            key_arn: key of everything here.
            account: its number makes the bucket's name unlike those of others.
            protect: delete nothing, also when the stack is destroyed.
            opts: the component's options.
        """
        super().__init__("trainyard:aws:Storage", name, None, opts)
        self._cluster, self._network, self._nodes, self._key = cluster, network, node_group_id, key_arn
        self._child = pulumi.ResourceOptions(parent=self)
        self._kept = pulumi.ResourceOptions(
            parent=self, protect=protect, retain_on_delete=protect, delete_before_replace=True
        )
        self.ready = []
        self.lustre = self._lustre(storage.lustre, protect=protect) if storage.lustre else None
        self.efs_id = self._efs() if storage.efs else None
        self.bucket = self._bucket(storage, account, protect=protect)
        self.register_outputs({"bucket": self.bucket, "efs": self.efs_id, "lustre": self.lustre and self.lustre.id})

    def _lustre(self, lustre: AwsLustre, *, protect: bool) -> Lustre:
        persistent = lustre.deployment == "persistent-2"
        group, own_rules = self._group("lustre", _LUSTRE, both_ways=True)
        system = LustreFileSystem(
            "lustre",
            deployment_type=_DEPLOYMENTS[lustre.deployment],
            storage_type="SSD",
            storage_capacity=lustre.capacity_gib,
            per_unit_storage_throughput=lustre.throughput if persistent else None,
            file_system_type_version="2.15",
            data_compression_type="LZ4",
            # Scratch file systems take no key of ours (FSx has its own for them), and no backups.
            kms_key_id=self._key if persistent else None,
            automatic_backup_retention_days=(7 if protect else 0) if persistent else None,
            # Not by `protect`: whether tags are copied is decided once, another answer makes a new file system.
            copy_tags_to_backups=True if persistent else None,
            subnet_ids=self._network.private[lustre.zone],
            security_group_ids=[group],
            tags={"Name": f"{self._cluster}-lustre"},
            # FSx refuses a file system whose group does not let its servers reach each other. Not after the rules for
            # the machines: these wait for the cluster, which takes as long as the file system.
            opts=pulumi.ResourceOptions.merge(self._kept, pulumi.ResourceOptions(depends_on=own_rules)),
        )
        self.ready.append(system)
        return Lustre(system.id, system.dns_name, system.mount_name)

    def _efs(self) -> pulumi.Output[str]:
        system = FileSystem(
            "efs",
            creation_token=f"{self._cluster}-efs",
            encrypted=True,
            kms_key_id=self._key,
            performance_mode="generalPurpose",
            throughput_mode="elastic",
            lifecycle_policies=[
                FileSystemLifecyclePolicyArgs(transition_to_ia="AFTER_30_DAYS"),
                FileSystemLifecyclePolicyArgs(transition_to_primary_storage_class="AFTER_1_ACCESS"),
            ],
            tags={"Name": f"{self._cluster}-efs"},
            opts=self._kept,
        )
        group, _ = self._group("efs", _NFS, both_ways=False)
        for zone, subnet in self._network.private.items():
            target = MountTarget(
                f"efs-{zone}", file_system_id=system.id, subnet_id=subnet, security_groups=[group], opts=self._child
            )
            self.ready.append(target)
        return system.id

    def _group(
        self, name: str, ports: tuple[tuple[int, int], ...], *, both_ways: bool
    ) -> tuple[pulumi.Output[str], list[pulumi.Resource]]:
        """The security group of a file system, which only the cluster's machines reach; its rules about itself.

        Args:
            name: of the file system.
            ports: first and last port of each range.
            both_ways: whether its servers also speak to each other and open connections to the machines, as Lustre's.
        """
        group = SecurityGroup(
            name,
            name=f"{self._cluster}-{name}",
            description=f"File system {name} of cluster {self._cluster}",
            vpc_id=self._network.vpc_id,
            tags={"Name": f"{self._cluster}-{name}"},
            opts=pulumi.ResourceOptions(parent=self, delete_before_replace=True),
        )
        own_rules: list[pulumi.Resource] = []
        for first, last in ports:
            self._open(f"{name}-from-nodes-{first}", "in", group.id, self._nodes, (first, last))
            if both_ways:
                own_rules += [
                    self._open(f"{name}-from-itself-{first}", "in", group.id, group.id, (first, last)),
                    self._open(f"{name}-to-itself-{first}", "out", group.id, group.id, (first, last)),
                ]
                self._open(f"{name}-to-nodes-{first}", "out", group.id, self._nodes, (first, last))
                self._open(f"nodes-from-{name}-{first}", "in", self._nodes, group.id, (first, last))
        return group.id, own_rules

    def _open(
        self, name: str, way: str, group: pulumi.Input[str], other: pulumi.Input[str], ports: tuple[int, int]
    ) -> pulumi.Resource:
        kind = SecurityGroupIngressRule if way == "in" else SecurityGroupEgressRule
        rule = kind(
            name,
            security_group_id=group,
            referenced_security_group_id=other,
            ip_protocol="tcp",
            from_port=ports[0],
            to_port=ports[1],
            opts=self._child,
        )
        self.ready.append(rule)
        return rule

    def _bucket(self, storage: AwsStorage, account: Account, *, protect: bool) -> pulumi.Output[str]:
        bucket = Bucket(
            "bucket",
            bucket=pulumi.Output.concat(self._cluster, "-", account.id),  # unique in the world
            force_destroy=not protect,  # else what jobs have written is in the way of `down`
            opts=self._kept,
        )
        closed = BucketPublicAccessBlock(
            "bucket-not-public",
            bucket=bucket.id,
            block_public_acls=True,
            block_public_policy=True,
            ignore_public_acls=True,
            restrict_public_buckets=True,
            opts=self._child,
        )
        BucketOwnershipControls(
            "bucket-ownership",
            bucket=bucket.id,
            rule=BucketOwnershipControlsRuleArgs(object_ownership="BucketOwnerEnforced"),
            opts=self._child,
        )
        versioning = BucketVersioning(
            "bucket-versioning",
            bucket=bucket.id,
            versioning_configuration=BucketVersioningVersioningConfigurationArgs(status="Enabled"),
            opts=self._child,
        )
        by_key = BucketServerSideEncryptionConfigurationRuleApplyServerSideEncryptionByDefaultArgs(
            sse_algorithm="aws:kms", kms_master_key_id=self._key
        )
        BucketServerSideEncryptionConfiguration(
            "bucket-encryption",
            bucket=bucket.id,
            rules=[
                BucketServerSideEncryptionConfigurationRuleArgs(
                    apply_server_side_encryption_by_default=by_key,
                    bucket_key_enabled=True,  # one call to KMS for many objects
                )
            ],
            opts=self._child,
        )
        BucketLifecycleConfiguration(
            "bucket-lifecycle",
            bucket=bucket.id,
            rules=_lifecycle(storage),
            opts=pulumi.ResourceOptions(parent=self, depends_on=[versioning]),
        )
        only_tls: Statement = {
            "Sid": "OnlyByTls",
            "Effect": "Deny",
            "Principal": "*",
            "Action": "s3:*",  # of a refusal: nothing is left out
            "Resource": [bucket.arn, pulumi.Output.concat(bucket.arn, "/*")],
            "Condition": {"Bool": {"aws:SecureTransport": "false"}},
        }
        BucketPolicy(
            "bucket-policy",
            bucket=bucket.id,
            policy=document([only_tls]),
            # Two changes of who has access, at the same time, are refused by S3.
            opts=pulumi.ResourceOptions(parent=self, depends_on=[closed]),
        )
        return bucket.id


def training_rights(
    bucket: pulumi.Input[str], account: Account, key_arn: pulumi.Input[str]
) -> dict[str, list[Statement]]:
    """What jobs may do with the bucket: read data sets, read and write checkpoints, nothing beside these prefixes."""
    arn = pulumi.Output.format("arn:{0}:s3:::{1}", account.partition, bucket)
    return {
        "bucket": [
            {
                "Sid": "ListOwnPrefixes",
                "Effect": "Allow",
                "Action": ["s3:ListBucket"],
                "Resource": arn,
                "Condition": {"StringLike": {"s3:prefix": [f"{CHECKPOINTS}*", f"{DATASETS}*"]}},
            },
            {
                "Sid": "ReadDataSets",
                "Effect": "Allow",
                "Action": ["s3:GetObject"],
                "Resource": pulumi.Output.concat(arn, "/", DATASETS, "*"),
            },
            {
                "Sid": "Checkpoints",
                "Effect": "Allow",
                "Action": ["s3:GetObject", "s3:PutObject", "s3:DeleteObject", "s3:AbortMultipartUpload"],
                "Resource": pulumi.Output.concat(arn, "/", CHECKPOINTS, "*"),
            },
        ],
        "key": [
            {
                "Effect": "Allow",
                "Action": list(USE),
                "Resource": key_arn,
                "Condition": {"StringEquals": {"kms:ViaService": account.service("s3")}},
            }
        ],
    }


def _lifecycle(storage: AwsStorage) -> list[BucketLifecycleConfigurationRuleArgs]:
    everything = BucketLifecycleConfigurationRuleFilterArgs(prefix="")
    rules = [
        BucketLifecycleConfigurationRuleArgs(
            id="unfinished-uploads",
            status="Enabled",
            filter=everything,
            abort_incomplete_multipart_upload=BucketLifecycleConfigurationRuleAbortIncompleteMultipartUploadArgs(
                days_after_initiation=7
            ),
        ),
        BucketLifecycleConfigurationRuleArgs(
            id="archive",
            status="Enabled",
            filter=everything,
            transitions=[
                BucketLifecycleConfigurationRuleTransitionArgs(
                    days=storage.archive_after_days, storage_class="INTELLIGENT_TIERING"
                )
            ],
        ),
        BucketLifecycleConfigurationRuleArgs(
            id="overwritten-and-deleted",
            status="Enabled",
            filter=everything,
            noncurrent_version_expiration=BucketLifecycleConfigurationRuleNoncurrentVersionExpirationArgs(
                noncurrent_days=30
            ),
        ),
    ]
    if storage.expire_after_days is not None:
        rules.append(
            BucketLifecycleConfigurationRuleArgs(
                id="expire-checkpoints",
                status="Enabled",
                filter=BucketLifecycleConfigurationRuleFilterArgs(prefix=CHECKPOINTS),
                expiration=BucketLifecycleConfigurationRuleExpirationArgs(days=storage.expire_after_days),
            )
        )
    return rules
