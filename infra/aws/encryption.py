"""The key that encrypts what the stack keeps: secrets, disks, file systems, buckets, images and logs."""

from __future__ import annotations

import pulumi
from pulumi_aws.kms import Alias, Key

from infra.aws.account import Account, Statement, document
from infra.aws.names import control_plane_log_group, flow_log_group

# Everything that one does to a key, none of what one does with it (AWS's console gives key administrators the same).
_ADMINISTRATION = (
    "kms:CreateAlias", "kms:DeleteAlias", "kms:UpdateAlias",
    "kms:CreateGrant", "kms:ListGrants", "kms:RevokeGrant", "kms:RetireGrant",
    "kms:DescribeKey", "kms:EnableKey", "kms:DisableKey", "kms:UpdateKeyDescription",
    "kms:GetKeyPolicy", "kms:PutKeyPolicy", "kms:ListKeyPolicies",
    "kms:EnableKeyRotation", "kms:DisableKeyRotation", "kms:GetKeyRotationStatus", "kms:ListKeyRotations",
    "kms:RotateKeyOnDemand",
    "kms:TagResource", "kms:UntagResource", "kms:ListResourceTags",
    "kms:ScheduleKeyDeletion", "kms:CancelKeyDeletion",
)  # fmt: skip
USE = (
    "kms:Encrypt", "kms:Decrypt", "kms:ReEncryptFrom", "kms:ReEncryptTo",
    "kms:GenerateDataKey", "kms:GenerateDataKeyWithoutPlaintext", "kms:DescribeKey",
)  # fmt: skip
"""What whoever encrypts and decrypts with a key needs."""

# Services that encrypt for whoever may use them, as with the keys that AWS itself keeps for them (`aws/ebs`, …). So the
# service-linked role of EC2 Auto Scaling can start machines with encrypted disks, without being named: in a new account
# it does not exist yet, and a key policy that names a missing role is refused.
_ON_BEHALF = ("ec2", "elasticfilesystem", "fsx", "ecr", "s3")


class Encryption(pulumi.ComponentResource):
    """One customer-managed key with yearly rotation, or the one that the settings name."""

    key_arn: pulumi.Output[str]

    def __init__(
        self,
        name: str,
        *,
        cluster: str,
        existing: str | None,
        account: Account,
        protect: bool,
        opts: pulumi.ResourceOptions,
    ) -> None:
        super().__init__("trainyard:aws:Encryption", name, None, opts)
        if existing:
            self.key_arn = pulumi.Output.from_input(existing)
        else:
            kept = pulumi.ResourceOptions(parent=self, protect=protect, retain_on_delete=protect)
            key = Key(
                "key",
                description=f"Secrets, disks, file systems, images and logs of cluster {cluster}",
                enable_key_rotation=True,
                deletion_window_in_days=30 if protect else 7,  # AWS's greatest and least
                policy=document(_statements(account, cluster)),
                opts=kept,
            )
            Alias(
                "key-alias",
                name=f"alias/{cluster}",
                target_key_id=key.key_id,
                opts=pulumi.ResourceOptions(parent=self),
            )
            self.key_arn = key.arn
        self.register_outputs({"keyArn": self.key_arn})


def _statements(account: Account, cluster: str) -> list[Statement]:
    root = pulumi.Output.format("arn:{0}:iam::{1}:root", account.partition, account.id)
    on_behalf = {"kms:CallerAccount": account.id, "kms:ViaService": [account.service(each) for each in _ON_BEHALF]}
    return [
        {
            "Sid": "RightsByIam",  # the account's IAM policies decide who administers and who uses the key
            "Effect": "Allow",
            "Principal": {"AWS": root},
            "Action": [*_ADMINISTRATION, *(action for action in USE if action not in _ADMINISTRATION)],
            "Resource": "*",  # in a key policy: this key
        },
        {
            "Sid": "ServicesOnBehalfOfThisAccount",
            "Effect": "Allow",
            "Principal": {"AWS": "*"},
            "Action": list(USE),
            "Resource": "*",
            "Condition": {"StringEquals": on_behalf},
        },
        {
            "Sid": "GrantsForAwsResourcesOnly",
            "Effect": "Allow",
            "Principal": {"AWS": "*"},
            "Action": ["kms:CreateGrant"],
            "Resource": "*",
            "Condition": {"StringEquals": on_behalf, "Bool": {"kms:GrantIsForAWSResource": "true"}},
        },
        {
            "Sid": "LogGroupsOfTheCluster",
            "Effect": "Allow",
            "Principal": {"Service": account.service("logs")},
            "Action": list(USE),
            "Resource": "*",
            "Condition": {
                "ArnEquals": {
                    "kms:EncryptionContext:aws:logs:arn": [
                        account.arn("logs", f"log-group:{group}")
                        for group in (control_plane_log_group(cluster), flow_log_group(cluster))
                    ]
                }
            },
        },
    ]
