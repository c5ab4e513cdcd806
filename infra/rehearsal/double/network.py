"""What file systems ask of subnets and security groups, looked at where the rehearsal has them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from infra.rehearsal.double.aws import Aws
from infra.rehearsal.double.kind import Failure

_NO_SUBNET = ("InvalidSubnetID.NotFound",)
_NO_GROUP = ("InvalidGroup.NotFound", "InvalidGroupId.Malformed")


def vpc_of_subnet(aws: Aws, subnet: str) -> str | None:
    """The VPC of a subnet; None: the rehearsal does not have the subnet, which the account brought along."""
    found = aws.call("ec2", "DescribeSubnets", absent=_NO_SUBNET, SubnetIds=[subnet])
    return found["Subnets"][0]["VpcId"] if found and found["Subnets"] else None


def network_mistakes(
    aws: Aws, subnets: Any, subnets_path: str, groups: Any, groups_path: str, *, port: int | None = None, what: str = ""
) -> Iterator[Failure]:
    """What is wrong with subnets and security groups that exist already.

    Args:
        aws: where they are.
        subnets: ids; unknown ones and ones that the rehearsal does not have pass.
        subnets_path: the property that holds them.
        groups: ids of security groups, likewise; each must be in the subnets' VPC.
        groups_path: the property that holds them.
        port: TCP port that the groups together must let in; None: any will do.
        what: whose port that is.
    """
    vpcs = {vpc for subnet in _known(subnets) if (vpc := vpc_of_subnet(aws, subnet)) is not None}
    if len(vpcs) > 1:
        yield Failure(subnets_path, f"the subnets are in different VPCs: {', '.join(sorted(vpcs))}")
        return
    found = [group for one in _known(groups) if (group := _group(aws, one)) is not None]
    for group in found:
        if vpcs and group["VpcId"] not in vpcs:
            yield Failure(
                groups_path, f"security group {group['GroupId']} is in {group['VpcId']}, the subnet in {min(vpcs)}"
            )
    # With one group unknown, or not in the rehearsal, that one may be the one which lets the port in.
    if port is not None and found and len(found) == len(groups) and not any(_lets_in(group, port) for group in found):
        yield Failure(
            groups_path,
            f"none of the security groups lets {what} in (TCP {port}); where a rule of the program does, the file"
            " system must come after that rule: dependsOn",
        )


def _known(values: Any) -> list[str]:
    return [value for value in values if isinstance(value, str)] if isinstance(values, list) else []


def _group(aws: Aws, identifier: str) -> Mapping[str, Any] | None:
    found = aws.call("ec2", "DescribeSecurityGroups", absent=_NO_GROUP, GroupIds=[identifier])
    return found["SecurityGroups"][0] if found and found["SecurityGroups"] else None


def _lets_in(group: Mapping[str, Any], port: int) -> bool:
    return any(
        rule["IpProtocol"] == "-1"
        or (rule["IpProtocol"] in {"tcp", "6"} and rule.get("FromPort", 0) <= port <= rule.get("ToPort", 65535))
        for rule in group["IpPermissions"]
    )
