"""Security groups: who may reach what."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator

from policies.registry import Topic
from policies.rule import Resource, Setting, Settings
from policies.values import Value

GROUP = "aws:ec2/securityGroup:SecurityGroup"
DEFAULT = "aws:ec2/defaultSecurityGroup:DefaultSecurityGroup"
RULE = "aws:ec2/securityGroupRule:SecurityGroupRule"
INGRESS = "aws:vpc/securityGroupIngressRule:SecurityGroupIngressRule"
topic = Topic("Network")


def _openings(resource: Resource) -> Iterator[tuple[Value, tuple[str, ...]]]:
    """Each description of an ingress, with the members in which its sources are."""
    if resource.type == INGRESS:
        yield resource.props, ("cidrIpv4", "cidrIpv6")
    elif resource.type == RULE:
        if resource.props.at("type").text() == "ingress":
            yield resource.props, ("cidrBlocks", "ipv6CidrBlocks")
    else:
        for one in resource.props.at("ingress").items():
            yield one, ("cidrBlocks", "ipv6CidrBlocks")


@topic.rule(
    "no-ingress-from-everywhere",
    "No security group lets the whole internet in.",
    severity="critical",
    types=(GROUP, DEFAULT, RULE, INGRESS),
    each=_openings,
    frameworks=(
        "CKV_AWS_24",
        "CKV_AWS_25",
        "CKV_AWS_260",
        "CKV_AWS_277",
        "CIS AWS Foundations 5.2",
        "CIS AWS Foundations 5.3",
    ),
    settings={
        "ports": Setting([], "Ports that may be open, as text: 443.", "array"),
        "shortestPrefix": Setting(
            8, "IPv4 networks with a shorter prefix count as everywhere; IPv6: four times as long."
        ),
    },
    why="Rendezvous, etcd, dashboards and file systems of a cluster trust their network. Scanners find an open port "
    "within minutes.",
    wrong="""
etcd:
  type: aws:vpc/securityGroupIngressRule:SecurityGroupIngressRule
  properties: {securityGroupId: sg-1, cidrIpv4: 0.0.0.0/0, ipProtocol: tcp, fromPort: 2379, toPort: 2379}
""",
    right="""
etcd:
  type: aws:vpc/securityGroupIngressRule:SecurityGroupIngressRule
  properties: {securityGroupId: sg-1, referencedSecurityGroupId: sg-2, ipProtocol: tcp, fromPort: 2379, toPort: 2379}
""",
    steps="Name the security group, or the network, that needs it.",
    references=("https://docs.aws.amazon.com/eks/latest/userguide/sec-group-reqs.html",),
)
def no_ingress_from_everywhere(opening: tuple[Value, tuple[str, ...]], settings: Settings) -> Iterator[str]:
    """By address; references to groups are never everywhere."""
    one, members = opening
    for key in members:
        for cidr in one.at(key).texts():
            if not _is_everywhere(cidr, int(settings["shortestPrefix"])):
                continue
            first, last = one.at("fromPort").number(), one.at("toPort").number()
            protocol = one.at("ipProtocol").text() or one.at("protocol").text()
            every = protocol in ("-1", "all")  # then the ports mean nothing
            if not every and first is not None and first == last and str(int(first)) in settings["ports"]:
                continue
            ports = (
                "all ports"
                if every or first is None or last is None or first < 0
                else f"ports {first:.0f} to {last:.0f}"
            )
            yield f"{one.path or 'it'} lets {cidr} in on {ports}"


def _is_everywhere(cidr: str, shortest: int) -> bool:
    try:
        network = ipaddress.ip_network(cidr, strict=False)
    except ValueError:
        return False
    return network.prefixlen < (shortest if network.version == 4 else 4 * shortest)


@topic.rule(
    "default-group-closed",
    "The VPC's default security group lets nothing in and nothing out.",
    severity="medium",
    level="advisory",
    types=(DEFAULT,),
    frameworks=("CKV2_AWS_12", "CIS AWS Foundations 5.4"),
    why="What is made without a security group gets this one. If it is open, a forgotten member of an interface opens "
    "a machine.",
    wrong="""
default:
  type: aws:ec2/defaultSecurityGroup:DefaultSecurityGroup
  properties: {ingress: [{protocol: "-1", self: true, fromPort: 0, toPort: 0}]}
""",
    right="""
default: {type: "aws:ec2/defaultSecurityGroup:DefaultSecurityGroup", properties: {ingress: [], egress: []}}
""",
    steps="Give the default group empty ingress and egress.",
    references=("https://docs.aws.amazon.com/vpc/latest/userguide/default-security-group.html",),
)
def default_group_closed(group: Resource, _: Settings) -> Iterator[str]:
    """Both ways."""
    for way in ("ingress", "egress"):
        if group.props.at(way).items():
            yield f"{way} is not empty"
