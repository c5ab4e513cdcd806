"""The account and partition in which a stack is made, for the ARNs that policies name.

Nothing is hard-wired to the commercial partition: in China and GovCloud ARNs begin differently (`arn:aws-cn:…`) and
some services have another principal (`ec2.amazonaws.com.cn`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pulumi
from pulumi_aws import Provider, ProviderDefaultTagsArgs, get_caller_identity, get_partition

if TYPE_CHECKING:
    from infra.settings.aws import Aws

STACK_TAG = "trainyard.dev/stack"
"""On everything that the stack makes; the budget counts by it."""

Statement = Mapping[str, Any]
"""One statement of an IAM policy; values may be outputs."""


@dataclass(frozen=True)
class Account:
    """Where the stack is made."""

    provider: Provider
    """Through which everything in it is made."""
    tags: Mapping[str, str]
    """Of everything that the provider makes; what AWS makes by a template needs them said again."""
    region: str
    id: str
    """Twelve digits."""
    partition: str
    """`aws`, `aws-cn` or `aws-us-gov`."""
    dns_suffix: str
    """`amazonaws.com`, in China `amazonaws.com.cn`."""
    reverse_dns_prefix: str
    """How names of endpoint services begin: `com.amazonaws`, in China `cn.com.amazonaws`."""

    @classmethod
    def of(cls, stack: str, aws: Aws) -> Account:
        """Ask AWS whose credentials these are: the only thing that the program asks, and it waits for the answer."""
        tags = {STACK_TAG: stack, **aws.tags}
        provider = Provider("aws", region=aws.region, default_tags=ProviderDefaultTagsArgs(tags=tags))
        options = pulumi.InvokeOptions(provider=provider)
        partition = get_partition(opts=options)
        return cls(
            provider=provider,
            tags=tags,
            region=aws.region,
            id=get_caller_identity(opts=options).account_id,
            partition=partition.partition,
            dns_suffix=partition.dns_suffix,
            reverse_dns_prefix=partition.reverse_dns_prefix,
        )

    def arn(self, service: str, resource: str) -> str:
        """The ARN of something in this account and region: `arn("eks", "nodegroup/x/*")`."""
        return f"arn:{self.partition}:{service}:{self.region}:{self.id}:{resource}"

    def aws_policy(self, name: str) -> str:
        """The ARN of an IAM policy that AWS keeps: `AmazonEKSClusterPolicy`."""
        return f"arn:{self.partition}:iam::aws:policy/{name}"

    def access_policy(self, name: str) -> str:
        """The ARN of an EKS access policy: `AmazonEKSClusterAdminPolicy`."""
        return f"arn:{self.partition}:eks::aws:cluster-access-policy/{name}"

    def service(self, name: str) -> str:
        """The host name of a service in this region, as `kms:ViaService` has it: `ec2.us-east-2.amazonaws.com`."""
        return f"{name}.{self.region}.{self.dns_suffix}"


def document(statements: Sequence[Statement]) -> pulumi.Output[str]:
    """A policy document as AWS takes it: JSON text."""
    return pulumi.Output.json_dumps({"Version": "2012-10-17", "Statement": list(statements)})


def trust(
    service: pulumi.Input[str],
    *,
    actions: Sequence[str] = ("sts:AssumeRole",),
    condition: Mapping[str, Any] | None = None,
) -> pulumi.Output[str]:
    """Who may take on a role: a service of AWS."""
    statement = {"Effect": "Allow", "Principal": {"Service": service}, "Action": list(actions)}
    return document([statement | ({"Condition": condition} if condition else {})])
