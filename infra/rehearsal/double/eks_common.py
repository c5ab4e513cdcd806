"""What the parts of EKS share: kinds of records in the book, rules about roles, tags."""

from __future__ import annotations

import datetime
import re
from collections.abc import Iterator, Mapping
from typing import Any

from infra.rehearsal.double import tags
from infra.rehearsal.double.aws import Aws, AwsRefusedError
from infra.rehearsal.double.ec2_resource import GONE
from infra.rehearsal.double.kind import Failure
from infra.rehearsal.double.values import has_unknown

ABSENT = frozenset({"ResourceNotFoundException"})
CLUSTERS, NODE_GROUPS, ADDONS = "eks-cluster", "eks-nodegroup", "eks-addon"
ACCESS_ENTRIES, ACCESS_POLICIES, POD_IDENTITIES = "eks-access-entry", "eks-access-policy", "eks-pod-identity"


def require_cluster(aws: Aws, name: str) -> None:
    """The cluster is there.

    Raises:
        AwsRefusedError: there is none of this name.
    """
    if aws.call("eks", "DescribeCluster", absent=ABSENT, name=name) is None:
        raise AwsRefusedError(
            f"AWS refused this with ResourceNotFoundException: there is no cluster {name}", "ResourceNotFoundException"
        )


def role_rules(aws: Aws, key: str, arn: Any, *, for_pods: bool = False) -> Iterator[Failure]:
    """A role of this account exists, and EKS Pod Identity may assume it where pods are to have it."""
    if not isinstance(arn, str) or not (match := re.fullmatch(r"arn:[\w-]+:iam::(\d{12}):role/(?:.+/)?([^/]+)", arn)):
        return
    if match[1] != aws.account:
        return
    found = aws.call("iam", "GetRole", absent={"NoSuchEntity"}, RoleName=match[2])
    if found is None:
        yield Failure(key, f"there is no role {match[2]} in account {aws.account}")
    elif for_pods and "pods.eks.amazonaws.com" not in str(found["Role"].get("AssumeRolePolicyDocument")):
        yield Failure(key, f"the role {match[2]} does not trust pods.eks.amazonaws.com")


def zones_of(aws: Aws, subnets: Any) -> list[str] | None:
    """The zones of subnets; None where one is not known yet or not there."""
    if subnets is None or has_unknown(subnets) or not subnets:
        return None
    answer = aws.call("ec2", "DescribeSubnets", absent=GONE, SubnetIds=list(subnets))
    return [subnet["AvailabilityZone"] for subnet in answer["Subnets"]] if answer else None


def retag(aws: Aws, arn: str, old: Mapping[str, Any], new: Mapping[str, Any]) -> None:
    """Bring the tags of an EKS resource from those of the state to those of the inputs."""
    tags.retag(
        old, new,
        put=lambda changed: aws.call("eks", "TagResource", resourceArn=arn, tags=changed),
        remove=lambda gone: aws.call("eks", "UntagResource", resourceArn=arn, tagKeys=gone),
    )  # fmt: skip


def authentication_mode(inputs: Mapping[str, Any]) -> str:
    """How the cluster knows people; CONFIG_MAP is EKS's default for what is made through the API."""
    return (inputs.get("accessConfig") or {}).get("authenticationMode") or "CONFIG_MAP"


def now() -> str:
    """The time as AWS writes it."""
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
