"""What CI's two roles may do on AWS: each action by its name, for what the resource types of a stack need.

The tests hold both lists against every call that the rehearsal makes for the example stacks. What AWS's provider asks
beyond that (it reads more of a bucket than the rehearsal does) is from its documentation: unconfirmed until a first
`up` with these roles, which names what is missing in AWS's own words.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from infra.wiring.errors import WiringError

Statement = Mapping[str, Any]

MOST_IN_A_ROLE = 10_240
"""Characters of all inline policies of a role, white space not counted; IAM's quota, which cannot be raised."""
_LOOK_EC2 = (
    "DescribeAccountAttributes DescribeAddresses DescribeAddressesAttribute DescribeAvailabilityZones DescribeFlowLogs"
    " DescribeInternetGateways DescribeLaunchTemplateVersions DescribeLaunchTemplates DescribeNatGateways"
    " DescribeNetworkAcls DescribeNetworkInterfaces DescribePlacementGroups DescribePrefixLists DescribeRegions"
    " DescribeRouteTables DescribeSecurityGroupRules DescribeSecurityGroups DescribeSubnets DescribeTags"
    " DescribeVpcAttribute DescribeVpcEndpoints DescribeVpcs"
)
_LOOK = {  # these AWS does not limit to resources, or they are asked before a name is known
    "ec2": _LOOK_EC2,
    "eks": "DescribeAddonVersions",
    "kms": "ListAliases",
    "logs": "DescribeLogGroups",
    "elasticfilesystem": (
        "DescribeBackupPolicy DescribeFileSystemPolicy DescribeFileSystems DescribeLifecycleConfiguration"
        " DescribeMountTargetSecurityGroups DescribeMountTargets ListTagsForResource"
    ),
    "fsx": "DescribeFileSystems ListTagsForResource",
    "ecr": "GetAuthorizationToken",
    "iam": "GetPolicy ListPolicies",
}
_LOOK_OWN = {
    "eks": (
        "DescribeAccessEntry DescribeAddon DescribeCluster DescribeNodegroup DescribePodIdentityAssociation"
        " DescribeUpdate ListAssociatedAccessPolicies ListTagsForResource"
    ),
    "iam": "GetRole GetRolePolicy ListAttachedRolePolicies ListInstanceProfilesForRole ListRolePolicies",
    "kms": "DescribeKey GetKeyPolicy GetKeyRotationStatus ListResourceTags",
    "logs": "ListTagsForResource",
    "s3": (
        "GetAccelerateConfiguration GetBucketAcl GetBucketCORS GetBucketLogging GetBucketObjectLockConfiguration"
        " GetBucketOwnershipControls GetBucketPolicy GetBucketPublicAccessBlock GetBucketRequestPayment"
        " GetBucketTagging GetBucketVersioning GetBucketWebsite GetEncryptionConfiguration GetLifecycleConfiguration"
        " GetReplicationConfiguration ListBucket"
    ),
    "ecr": "DescribeRepositories GetLifecyclePolicy GetRepositoryPolicy ListTagsForResource",
    "budgets": "ListTagsForResource ViewBudget",
}
_CHANGE_EC2_NEW = (
    "AllocateAddress CreateFlowLogs CreateInternetGateway CreateLaunchTemplate CreateNatGateway CreatePlacementGroup"
    " CreateRouteTable CreateSecurityGroup CreateSubnet CreateVpc CreateVpcEndpoint RunInstances"
)
_CHANGE_EC2_OWN = (
    "AssociateRouteTable AttachInternetGateway AuthorizeSecurityGroupEgress AuthorizeSecurityGroupIngress"
    " CreateLaunchTemplateVersion CreateRoute DeleteFlowLogs DeleteInternetGateway DeleteLaunchTemplate"
    " DeleteLaunchTemplateVersions DeleteNatGateway DeletePlacementGroup DeleteRoute DeleteRouteTable"
    " DeleteSecurityGroup DeleteSubnet DeleteTags DeleteVpc DeleteVpcEndpoints DetachInternetGateway"
    " DisassociateAddress DisassociateRouteTable ModifyLaunchTemplate ModifySecurityGroupRules ModifySubnetAttribute"
    " ModifyVpcAttribute ModifyVpcEndpoint ReleaseAddress ReplaceRoute ReplaceRouteTableAssociation"
    " RevokeSecurityGroupEgress RevokeSecurityGroupIngress"
)
_CHANGE = {
    "eks": (
        "AssociateAccessPolicy CreateAccessEntry CreateAddon CreateCluster CreateNodegroup"
        " CreatePodIdentityAssociation DeleteAccessEntry DeleteAddon DeleteCluster DeleteNodegroup"
        " DeletePodIdentityAssociation DisassociateAccessPolicy TagResource UntagResource UpdateAccessEntry UpdateAddon"
        " UpdateClusterConfig UpdateClusterVersion UpdateNodegroupConfig UpdateNodegroupVersion"
        " UpdatePodIdentityAssociation"
    ),
    "logs": (
        "AssociateKmsKey CreateLogGroup DeleteLogGroup DeleteRetentionPolicy DisassociateKmsKey PutRetentionPolicy"
        " TagResource UntagResource"
    ),
    "s3": (
        "CreateBucket DeleteBucket DeleteBucketPolicy DeleteObject DeleteObjectVersion ListBucketVersions"
        " PutBucketOwnershipControls PutBucketPolicy PutBucketPublicAccessBlock PutBucketTagging PutBucketVersioning"
        " PutEncryptionConfiguration PutLifecycleConfiguration"
    ),
    "ecr": (
        "BatchCheckLayerAvailability BatchDeleteImage BatchGetImage CompleteLayerUpload CreateRepository"
        " DeleteLifecyclePolicy DeleteRepository GetDownloadUrlForLayer InitiateLayerUpload ListImages PutImage"
        " PutImageScanningConfiguration PutImageTagMutability PutLifecyclePolicy TagResource UntagResource"
        " UploadLayerPart"
    ),
    "budgets": "ModifyBudget TagResource UntagResource",
}
_CHANGE_ROLES = (
    "CreateRole DeleteRole DeleteRolePermissionsBoundary DeleteRolePolicy PutRolePermissionsBoundary PutRolePolicy"
    " TagRole UntagRole UpdateAssumeRolePolicy UpdateRole"
)
_CHANGE_TAGGED = {
    "elasticfilesystem": (
        "CreateMountTarget DeleteFileSystem DeleteMountTarget ModifyMountTargetSecurityGroups"
        " PutLifecycleConfiguration TagResource UntagResource UpdateFileSystem UpdateFileSystemProtection"
    ),
    "fsx": "DeleteFileSystem TagResource UntagResource UpdateFileSystem",
    "kms": (
        "CancelKeyDeletion CreateAlias CreateGrant DeleteAlias DisableKey DisableKeyRotation EnableKey"
        " EnableKeyRotation PutKeyPolicy ScheduleKeyDeletion TagResource UntagResource UpdateAlias"
        " UpdateKeyDescription"
        " Decrypt GenerateDataKey GenerateDataKeyWithoutPlaintext"
    ),
}
_CHANGE_NEW = {
    "elasticfilesystem": "CreateFileSystem",
    "fsx": "CreateFileSystem TagResource",
    "kms": "CreateKey TagResource",
}
ROLE_POLICIES = (
    "AmazonEBSCSIDriverPolicyV2",
    "AmazonEC2ContainerRegistryPullOnly",
    "AmazonEKSClusterPolicy",
    "AmazonEKSWorkerNodePolicy",
    "AmazonEKS_CNI_Policy",
    "service-role/AmazonEBSCSIDriverPolicy",
    "service-role/AmazonEFSCSIDriverPolicy",
)
"""What AWS keeps and stacks attach to their roles; no other policy can be attached by a deployment."""
PASSED_TO = ("eks.amazonaws.com", "ec2.amazonaws.com", "pods.eks.amazonaws.com", "vpc-flow-logs.amazonaws.com")
LINKED = (
    "eks.amazonaws.com",
    "eks-nodegroup.amazonaws.com",
    "autoscaling.amazonaws.com",
    "spot.amazonaws.com",
    "elasticfilesystem.amazonaws.com",
    "fsx.amazonaws.com",
    "s3.data-source.lustre.fsx.amazonaws.com",
)
"""Services that make a role of their own in a new account, on first use."""


@dataclass(frozen=True)
class Scope:
    """What the stacks are called, and where they are."""

    partition: str
    account: str
    clusters: tuple[str, ...]
    """Names of the clusters: what belongs to a stack begins with one (`infra.wiring.naming.cluster_name`)."""
    stacks: tuple[str, ...]
    """Values of the tag that all of a stack carries."""
    bucket: str
    """Where the engine's records are."""
    key: str
    """ARN of the KMS key of the secrets in the records."""
    stack_tag: str

    def arn(self, service: str, resource: str, *, regions: bool = True) -> str:
        """An ARN in the account, in all regions."""
        return f"arn:{self.partition}:{service}:{'*' if regions else ''}:{self.account}:{resource}"


def looking(scope: Scope) -> list[Statement]:
    """What a preview and a look for drift read: descriptions of what stacks are made of, none of the data in them."""
    return [
        _allow("Look", _actions(_LOOK), "*"),
        _allow("LookAtOwn", _actions(_LOOK_OWN), _own(scope)),
    ]


def records(scope: Scope, *, write: bool) -> list[Statement]:
    """The engine's records: reading needs the key as well, as the program gets its secrets decrypted.

    Who only looks may write and remove locks, as a refresh takes one even where it only previews.
    """
    bucket = f"arn:{scope.partition}:s3:::{scope.bucket}"
    written = f"{bucket}/.pulumi/*" if write else f"{bucket}/.pulumi/locks/*"
    return [
        _allow("Records", ["s3:GetBucketLocation", "s3:ListBucket"], [bucket]),
        _allow("ReadRecords", ["s3:GetObject"], [f"{bucket}/.pulumi/*"]),
        _allow("WriteRecords" if write else "Locks", ["s3:DeleteObject", "s3:PutObject"], [written]),
        _allow("SecretsInRecords", ["kms:Decrypt", "kms:DescribeKey"], [scope.key]),
    ]


def changing(scope: Scope) -> list[Statement]:
    """What `up` and `down` look at and change: what carries a stack's tag or a cluster's name.

    Beyond that they make new things in EC2, which a condition on tags would refuse where one call makes several.
    """
    asked = {f"aws:RequestTag/{scope.stack_tag}": list(scope.stacks)}
    tagged = {f"aws:ResourceTag/{scope.stack_tag}": list(scope.stacks)}
    roles = [scope.arn("iam", f"role/{one}-*", regions=False) for one in scope.clusters]
    aliases = [scope.arn("kms", f"alias/{one}") for one in scope.clusters]
    attachable = [f"arn:{scope.partition}:iam::aws:policy/{one}" for one in ROLE_POLICIES]
    return [
        _allow("Look", _actions(_LOOK), "*"),
        _allow("ChangeOwn", _actions(_LOOK_OWN) + _actions(_CHANGE), _own(scope)),  # together: IAM counts characters
        # A new machine of AWS has its tags from its template; what it is made in has been made by the stack.
        _allow("MakeInEc2", _actions({"ec2": _CHANGE_EC2_NEW}), "*"),
        _allow("TagNewInEc2", ["ec2:CreateTags"], "*", {"StringEquals": asked, **_while_made("ec2")}),
        _allow("TagOwnInEc2", ["ec2:CreateTags"], "*", {"StringEquals": tagged}),
        _allow("ChangeOwnInEc2", _actions({"ec2": _CHANGE_EC2_OWN}), "*", {"StringEquals": tagged}),
        _allow("MakeTagged", _actions(_CHANGE_NEW), "*", {"StringEquals": asked}),
        _allow(
            "TagNewInEfs",
            ["elasticfilesystem:TagResource"],
            "*",
            {"StringEquals": asked, **_while_made("elasticfilesystem")},
        ),
        _allow("ChangeTagged", _actions(_CHANGE_TAGGED), "*", {"StringEquals": tagged}),
        _allow("Aliases", ["kms:CreateAlias", "kms:DeleteAlias", "kms:UpdateAlias"], aliases),
        _allow("Roles", _actions({"iam": _CHANGE_ROLES}), roles),
        _allow(
            "RolesGetOnlyThese",
            ["iam:AttachRolePolicy", "iam:DetachRolePolicy"],
            roles,
            {"ArnEquals": {"iam:PolicyARN": attachable}},
        ),
        _allow("PassRoles", ["iam:PassRole"], roles, {"StringEquals": {"iam:PassedToService": list(PASSED_TO)}}),
        _allow(
            "RolesOfServices",
            ["iam:CreateServiceLinkedRole"],
            "*",
            {"StringEquals": {"iam:AWSServiceName": list(LINKED)}},
        ),
    ]


def reaching_too_far(clusters: Sequence[str], *, roles: str, bucket: str) -> list[str]:
    """Why the deploy role, whose rights go by beginnings of names, would have CI's own roles or records in its hands.

    Args:
        clusters: names of the clusters.
        roles: how the names of CI's own roles begin.
        bucket: where the engine's records are.
    """
    wrong = [
        f"cluster {one!r}: its deployments could change CI's own roles, {roles}-…; name the cluster otherwise"
        for one in clusters
        if f"{roles}-".startswith(f"{one}-")
    ]
    return wrong + [
        f"stateBucket {bucket!r} begins as the buckets of cluster {one!r} do: its deployments could remove the records"
        for one in clusters
        if bucket.startswith(f"{one}-")
    ]


def must_fit(role: str, policies: Mapping[str, Sequence[Statement]]) -> None:
    """Refuse more than IAM keeps inside of a role.

    Raises:
        WiringError: it is more.
    """
    size = sum(len("".join(json.dumps(_document(each)).split())) for each in policies.values())
    if size > MOST_IN_A_ROLE:
        raise WiringError(
            f"the rights of the role {role!r} have {size:,} characters, and IAM keeps {MOST_IN_A_ROLE:,}: too many"
            " stacks, or too long names of clusters, for one account. Give an account to each environment"
        )


def _document(statements: Sequence[Statement]) -> Mapping[str, Any]:
    return {"Version": "2012-10-17", "Statement": list(statements)}


def _while_made(service: str) -> Mapping[str, Any]:
    """Only in a call that makes something: who may tag anything else could make what others have made its own."""
    return {"Null": {f"{service}:CreateAction": "false"}}


def _own(scope: Scope) -> list[str]:
    found = []
    for one in scope.clusters:
        found += [
            scope.arn("eks", f"*/{one}"),
            scope.arn("eks", f"*/{one}/*"),
            scope.arn("iam", f"role/{one}-*", regions=False),
            scope.arn("logs", f"log-group:/aws/*/{one}*"),
            f"arn:{scope.partition}:s3:::{one}-*",
            scope.arn("ecr", f"repository/{one}/*"),
            scope.arn("budgets", f"budget/{one}", regions=False),
        ]
    return [*found, scope.arn("kms", "key/*")]  # keys have no names; their policies and tags decide about use


def _actions(services: Mapping[str, str]) -> list[str]:
    return [f"{service}:{action}" for service, actions in services.items() for action in actions.split()]


def _allow(
    name: str, actions: Sequence[str], resources: str | Sequence[str], condition: Mapping[str, Any] | None = None
) -> Statement:
    statement: dict[str, Any] = {
        "Sid": name,
        "Effect": "Allow",
        "Action": sorted(actions),
        "Resource": resources if isinstance(resources, str) else list(resources),
    }
    return statement | ({"Condition": condition} if condition else {})
