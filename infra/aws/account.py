"""The account and partition in which a stack is made, for the ARNs that policies name.

Nothing is hard-wired to the commercial partition: in China and GovCloud ARNs begin differently (`arn:aws-cn:…`) and
some services have another principal (`ec2.amazonaws.com.cn`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pulumi
from pulumi_aws import Provider, get_caller_identity_output, get_partition_output

Statement = Mapping[str, Any]
"""One statement of an IAM policy; values may be outputs."""


@dataclass(frozen=True)
class Account:
    """Where the stack is made."""

    region: str
    id: pulumi.Output[str]
    """Twelve digits."""
    partition: pulumi.Output[str]
    """`aws`, `aws-cn` or `aws-us-gov`."""
    dns_suffix: pulumi.Output[str]
    """`amazonaws.com`, in China `amazonaws.com.cn`."""
    reverse_dns_prefix: pulumi.Output[str]
    """How names of endpoint services begin: `com.amazonaws`, in China `cn.com.amazonaws`."""

    @classmethod
    def of(cls, provider: Provider, region: str) -> Account:
        """Ask AWS whose credentials these are: the only thing that the program asks."""
        options = pulumi.InvokeOutputOptions(provider=provider)
        partition = get_partition_output(opts=options)
        return cls(
            region=region,
            id=get_caller_identity_output(opts=options).apply(lambda caller: caller.account_id),
            partition=partition.apply(lambda found: found.partition),
            dns_suffix=partition.apply(lambda found: found.dns_suffix),
            reverse_dns_prefix=partition.apply(lambda found: found.reverse_dns_prefix),
        )

    def arn(self, service: str, resource: pulumi.Input[str]) -> pulumi.Output[str]:
        """The ARN of something in this account and region: `arn("eks", "nodegroup/x/*")`."""
        return pulumi.Output.format(f"arn:{{0}}:{service}:{self.region}:{{1}}:{{2}}", self.partition, self.id, resource)

    def aws_policy(self, name: str) -> pulumi.Output[str]:
        """The ARN of an IAM policy that AWS keeps: `AmazonEKSClusterPolicy`."""
        return pulumi.Output.format("arn:{0}:iam::aws:policy/{1}", self.partition, name)

    def access_policy(self, name: str) -> pulumi.Output[str]:
        """The ARN of an EKS access policy: `AmazonEKSClusterAdminPolicy`."""
        return pulumi.Output.format("arn:{0}:eks::aws:cluster-access-policy/{1}", self.partition, name)

    def service(self, name: str) -> pulumi.Output[str]:
        """The host name of a service in this region, as `kms:ViaService` has it: `ec2.us-east-2.amazonaws.com`."""
        return pulumi.Output.format(f"{name}.{self.region}.{{0}}", self.dns_suffix)


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
