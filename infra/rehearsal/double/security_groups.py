"""Security groups and their rules."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, ClassVar

from infra.rehearsal.double.aws import Aws
from infra.rehearsal.double.ec2 import default_security_group
from infra.rehearsal.double.ec2_resource import GONE, Ec2Kind, retag
from infra.rehearsal.double.kind import Call, Failure, Kind, Made, only, whole_or_gone
from infra.rehearsal.double.tags import tag_list
from infra.rehearsal.double.values import UNKNOWN, is_known

_DESCRIPTION = re.compile(r"[a-zA-Z0-9. _\-:/()#,@\[\]+=&;{}!$*]*")
_SOURCES = ("cidrIpv4", "cidrIpv6", "prefixListId", "referencedSecurityGroupId")


class SecurityGroup(Ec2Kind):
    """A group without rules of its own: those are `SecurityGroupIngressRule` and `SecurityGroupEgressRule`."""

    token = "aws:ec2/securityGroup:SecurityGroup"  # noqa: S105
    resource_type = "security-group"
    describe = ("DescribeSecurityGroups", "GroupIds", "SecurityGroups")
    replace_on = frozenset({"name", "description", "vpcId"})
    computed = frozenset({"arn"})

    def requests(self, inputs: Mapping[str, Any]) -> list[Call]:  # noqa: D102
        request = only(
            GroupName=inputs.get("name"),
            Description=inputs.get("description", "Managed by Pulumi"),
            VpcId=inputs.get("vpcId"),
            TagSpecifications=self.tag_specifications(inputs),
        )
        return [Call("ec2", "CreateSecurityGroup", request, {"GroupName": "name"})]

    def rules(self, inputs: Mapping[str, Any], aws: Aws) -> Iterable[Failure]:  # noqa: ARG002
        """Names and descriptions as CreateSecurityGroup's documentation has them."""
        for key in ("name", "description"):
            text = inputs.get(key)
            if isinstance(text, str) and (len(text) > 255 or not _DESCRIPTION.fullmatch(text)):
                yield Failure(
                    key, f"at most 255 of a-z, A-Z, 0-9, spaces and ._-:/()#,@[]+=&;{{}}!$* are allowed: {text}"
                )
        if str(inputs.get("name")).startswith("sg-"):
            yield Failure("name", "a name must not begin with sg-")

    def known(self, inputs: Mapping[str, Any], aws: Aws) -> Mapping[str, Any]:  # noqa: D102
        return {"description": inputs.get("description", "Managed by Pulumi"), "ownerId": aws.account}

    def create(self, aws: Aws, name: str, inputs: Mapping[str, Any]) -> Made:  # noqa: ARG002
        """Without the rule that AWS adds, all traffic out: the provider takes it away, so that a program states it."""
        made = aws.run(self.requests(inputs)[0])["GroupId"]
        with whole_or_gone(self, aws, made, inputs):
            revoke_all(aws, made)
        return Made(made, {"arn": self.arn(aws, made)})

    def seen(self, aws: Aws, item: Mapping[str, Any]) -> dict[str, Any]:  # noqa: D102
        return {
            "arn": self.arn(aws, item["GroupId"]),
            "name": item["GroupName"],
            "description": item["Description"],
            "vpcId": item["VpcId"],
            "ownerId": aws.account,
        }

    def update(self, aws: Aws, id: str, old: Mapping[str, Any], new: Mapping[str, Any]) -> Mapping[str, Any]:  # noqa: A002, D102
        retag(aws, id, old, new)
        return {}

    def delete(self, aws: Aws, id: str, state: Mapping[str, Any]) -> None:  # noqa: A002, ARG002, D102
        aws.call("ec2", "DeleteSecurityGroup", absent=GONE, GroupId=id)


class DefaultSecurityGroup(Ec2Kind):
    """The group that a VPC has from the beginning, taken over and emptied of rules; AWS lets nobody delete it."""

    token = "aws:ec2/defaultSecurityGroup:DefaultSecurityGroup"  # noqa: S105
    resource_type = "security-group"
    describe = ("DescribeSecurityGroups", "GroupIds", "SecurityGroups")
    replace_on = frozenset({"vpcId"})
    computed = frozenset({"arn", "description", "name"})

    def requests(self, inputs: Mapping[str, Any]) -> list[Call]:  # noqa: D102
        within = [{"Name": "vpc-id", "Values": [inputs.get("vpcId")]}]
        found = Call("ec2", "DescribeSecurityGroups", {"Filters": within})
        tags = tag_list(inputs.get("tags"))
        return [found] if tags is None else [found, Call("ec2", "CreateTags", {"Resources": [UNKNOWN], "Tags": tags})]

    def rules(self, inputs: Mapping[str, Any], aws: Aws) -> Iterable[Failure]:  # noqa: ARG002
        """No rules: the rehearsal empties the group, which is what a program wants of it."""
        for key in ("ingress", "egress"):
            if is_known(inputs.get(key)) and inputs[key]:
                yield Failure(key, "the rehearsal only empties the default group; give rules to a group of your own")

    def create(self, aws: Aws, name: str, inputs: Mapping[str, Any]) -> Made:  # noqa: ARG002, D102
        found = default_security_group(aws, inputs["vpcId"])
        revoke_all(aws, found["GroupId"])
        retag(aws, found["GroupId"], {}, inputs)
        return Made(found["GroupId"], self.seen(aws, found))

    def seen(self, aws: Aws, item: Mapping[str, Any]) -> dict[str, Any]:  # noqa: D102
        return {
            "arn": self.arn(aws, item["GroupId"]),
            "name": item["GroupName"],
            "description": item["Description"],
            "vpcId": item["VpcId"],
            "ownerId": aws.account,
        }

    def update(self, aws: Aws, id: str, old: Mapping[str, Any], new: Mapping[str, Any]) -> Mapping[str, Any]:  # noqa: A002, D102
        retag(aws, id, old, new)
        return {}

    def delete(self, aws: Aws, id: str, state: Mapping[str, Any]) -> None:  # noqa: A002
        """Nothing: it goes with its VPC."""


class _Rule(Ec2Kind):
    """One rule of a security group, in one direction."""

    resource_type = "security-group-rule"
    describe = ("DescribeSecurityGroupRules", "SecurityGroupRuleIds", "SecurityGroupRules")
    replace_on = frozenset({"securityGroupId"})
    computed = frozenset({"arn", "securityGroupRuleId"})
    direction: ClassVar[str]

    def requests(self, inputs: Mapping[str, Any]) -> list[Call]:
        about = only(Description=inputs.get("description"))
        permission = only(
            IpProtocol=inputs.get("ipProtocol"),
            FromPort=inputs.get("fromPort"),
            ToPort=inputs.get("toPort"),
            IpRanges=_ranges(inputs, "cidrIpv4", "CidrIp", about),
            Ipv6Ranges=_ranges(inputs, "cidrIpv6", "CidrIpv6", about),
            PrefixListIds=_ranges(inputs, "prefixListId", "PrefixListId", about),
            UserIdGroupPairs=_ranges(inputs, "referencedSecurityGroupId", "GroupId", about),
        )
        request = only(
            GroupId=inputs.get("securityGroupId"),
            IpPermissions=[permission],
            TagSpecifications=self.tag_specifications(inputs),
        )
        return [Call("ec2", f"AuthorizeSecurityGroup{self.direction}", request)]

    def rules(self, inputs: Mapping[str, Any], aws: Aws) -> Iterable[Failure]:  # noqa: ARG002
        sources = [key for key in _SOURCES if inputs.get(key) is not None]
        if len(sources) != 1:
            given = " and ".join(sources) if sources else "none"
            yield Failure(
                sources[-1] if sources else "", f"a rule has exactly one of {', '.join(_SOURCES)}; given: {given}"
            )
        if inputs.get("securityGroupId") is None:
            yield Failure("securityGroupId", "the group that the rule belongs to is missing")
        protocol: Any = inputs.get("ipProtocol")
        ports: list[Any] = [inputs.get("fromPort"), inputs.get("toPort")]
        if protocol is None:
            yield Failure("ipProtocol", "tcp, udp, icmp or -1 (all) is needed")
        elif protocol == "-1" and any(port not in {None, -1} for port in ports):
            yield Failure("fromPort", "a rule for all protocols (-1) has no ports")
        elif protocol in {"tcp", "udp"} and None in ports:
            yield Failure("fromPort", f"a rule for {protocol} needs fromPort and toPort")
        elif protocol in {"tcp", "udp"} and all(isinstance(port, int) for port in ports):
            first, last = ports
            if not 0 <= first <= last <= 65535:
                yield Failure("fromPort", f"{first} to {last} is no range of ports")

    def create(self, aws: Aws, name: str, inputs: Mapping[str, Any]) -> Made:  # noqa: ARG002
        made = aws.run(self.requests(inputs)[0])["SecurityGroupRules"][0]["SecurityGroupRuleId"]
        return Made(made, {"arn": self.arn(aws, made), "securityGroupRuleId": made})

    def seen(self, aws: Aws, item: Mapping[str, Any]) -> dict[str, Any]:
        every = item["IpProtocol"] == "-1"
        return {
            "arn": self.arn(aws, item["SecurityGroupRuleId"]),
            "securityGroupRuleId": item["SecurityGroupRuleId"],
            "securityGroupId": item["GroupId"],
            "ipProtocol": item["IpProtocol"],
            "fromPort": None if every else item.get("FromPort"),
            "toPort": None if every else item.get("ToPort"),
            "cidrIpv4": item.get("CidrIpv4"),
            "cidrIpv6": item.get("CidrIpv6"),
            "referencedSecurityGroupId": item.get("ReferencedGroupInfo", {}).get("GroupId"),
        }

    def update(self, aws: Aws, id: str, old: Mapping[str, Any], new: Mapping[str, Any]) -> Mapping[str, Any]:  # noqa: A002
        if any(old.get(key) != new.get(key) for key in (*_SOURCES, "ipProtocol", "fromPort", "toPort", "description")):
            rule = only(
                IpProtocol=new.get("ipProtocol"),
                FromPort=new.get("fromPort", -1),
                ToPort=new.get("toPort", -1),
                CidrIpv4=new.get("cidrIpv4"),
                CidrIpv6=new.get("cidrIpv6"),
                PrefixListId=new.get("prefixListId"),
                ReferencedGroupId=new.get("referencedSecurityGroupId"),
                Description=new.get("description"),
            )
            changed = [{"SecurityGroupRuleId": id, "SecurityGroupRule": rule}]
            aws.call("ec2", "ModifySecurityGroupRules", GroupId=new["securityGroupId"], SecurityGroupRules=changed)
        retag(aws, id, old, new)
        return {}

    def delete(self, aws: Aws, id: str, state: Mapping[str, Any]) -> None:  # noqa: A002
        aws.call(
            "ec2",
            f"RevokeSecurityGroup{self.direction}",
            absent={*GONE, "InvalidPermission.NotFound"},
            GroupId=state["securityGroupId"],
            SecurityGroupRuleIds=[id],
        )


class SecurityGroupIngressRule(_Rule):
    """Traffic that may come in."""

    token = "aws:vpc/securityGroupIngressRule:SecurityGroupIngressRule"  # noqa: S105
    direction = "Ingress"


class SecurityGroupEgressRule(_Rule):
    """Traffic that may go out."""

    token = "aws:vpc/securityGroupEgressRule:SecurityGroupEgressRule"  # noqa: S105
    direction = "Egress"


def revoke_all(aws: Aws, group: str) -> None:
    """Take all rules of a security group away."""
    filters = [{"Name": "group-id", "Values": [group]}]
    for rule in aws.call("ec2", "DescribeSecurityGroupRules", Filters=filters)["SecurityGroupRules"]:
        direction = "Egress" if rule["IsEgress"] else "Ingress"
        ids = [rule["SecurityGroupRuleId"]]
        aws.call("ec2", f"RevokeSecurityGroup{direction}", GroupId=group, SecurityGroupRuleIds=ids)


def _ranges(inputs: Mapping[str, Any], key: str, member: str, about: Mapping[str, Any]) -> Any:
    value = inputs.get(key)
    return None if value is None else UNKNOWN if value is UNKNOWN else [{member: value, **about}]


KINDS: tuple[Kind, ...] = (
    SecurityGroup(), DefaultSecurityGroup(), SecurityGroupIngressRule(), SecurityGroupEgressRule(),
)  # fmt: skip
