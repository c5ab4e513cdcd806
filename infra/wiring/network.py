"""A stack's VPC: which subnet each zone gets, which zones have a NAT gateway, which endpoints there are."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from infra.wiring.errors import WiringError

if TYPE_CHECKING:
    from infra.settings.aws import AwsNetwork

_ZONES = "abcdefg"  # the last letters of zones of one region; each has its part of the VPC, used or not
_PARTS = 8  # one for each of them, the last one for all public subnets
LARGEST_VPC = 16
"""Prefix length: the most addresses that AWS gives to a VPC."""
SMALLEST_VPC = 22
"""Prefix length: with it private subnets have 128 addresses, public ones 16, the least that EKS takes."""
_SMALLEST_SUBNET = 28
_ADDRESSES_OF_AWS = 5  # of each subnet: network, router, DNS, one reserved, broadcast

_ENDPOINTS = ("ecr.api", "ecr.dkr", "sts", "ec2", "eks", "eks-auth", "logs", "autoscaling")
# What pods of the stack would otherwise call over the internet: the EFS and FSx drivers.
_ENDPOINTS_WITHOUT_NAT = ("elasticfilesystem", "fsx", "kms")


@dataclass(frozen=True)
class Subnet:
    """One subnet of the VPC that the stack makes."""

    zone: str
    public: bool
    cidr: str


@dataclass(frozen=True)
class NetworkPlan:
    """What the VPC consists of."""

    private: tuple[Subnet, ...]
    """One for each zone: machines and file systems."""
    public: tuple[Subnet, ...]
    """One for each zone, small: NAT gateways and load balancers. None where nothing has a way to the internet."""
    nat_zones: tuple[str, ...]
    """Zones with a NAT gateway, in their public subnet."""
    endpoints: tuple[str, ...]
    """AWS services with an interface endpoint, by the last part of its name: `ecr.api`."""

    def nat_zone_for(self, zone: str) -> str | None:
        """The zone of the NAT gateway through which a private subnet reaches the internet; None: through none."""
        if not self.nat_zones:
            return None
        return zone if zone in self.nat_zones else self.nat_zones[0]


def subnets_of(network: AwsNetwork) -> NetworkPlan:
    """The plan of the stack's own VPC.

    A zone's addresses follow from its letter alone: adding, removing or reordering zones moves no subnet (AWS would
    have to replace it, with all that stands in it). An eighth of the VPC goes to each private subnet, the last eighth
    is shared by the public ones.

    Raises:
        WiringError: the VPC is too small, or two zones would get the same addresses.
    """
    if network.vpc_id is not None:
        return NetworkPlan((), (), (), ())
    vpc = _vpc(network.cidr)
    letters = _letters(network.zones)
    zones = sorted(network.zones)
    parts = list(_parts(vpc))
    small = list(parts[-1].subnets(new_prefix=min(vpc.prefixlen + 8, _SMALLEST_SUBNET)))
    private = tuple(Subnet(zone, public=False, cidr=str(parts[letters[zone]])) for zone in zones)
    public = tuple(Subnet(zone, public=True, cidr=str(small[letters[zone]])) for zone in zones)
    with_nat = {"none": (), "single": tuple(zones[:1]), "one-per-zone": tuple(zones)}[network.nat_gateways]
    return NetworkPlan(private, public if with_nat else (), with_nat, endpoints_of(network))


def addresses_per_zone(cidr: str) -> int:
    """How many addresses the private subnet of one zone has for machines and pods.

    Raises:
        WiringError: the VPC is too small or too large.
    """
    return next(_parts(_vpc(cidr))).num_addresses - _ADDRESSES_OF_AWS


def _parts(vpc: ipaddress.IPv4Network) -> Iterator[ipaddress.IPv4Network]:
    return vpc.subnets(prefixlen_diff=_PARTS.bit_length() - 1)


def endpoints_of(network: AwsNetwork) -> tuple[str, ...]:
    """Services that get an interface endpoint (S3 has its free gateway endpoint in any case)."""
    if not network.endpoints:
        return ()
    return _ENDPOINTS + (_ENDPOINTS_WITHOUT_NAT if network.nat_gateways == "none" else ())


def _vpc(cidr: str) -> ipaddress.IPv4Network:
    try:
        vpc = ipaddress.IPv4Network(cidr)
    except ValueError as error:
        raise WiringError(f"aws.network.cidr is no IPv4 network: {error}. Give one like 10.0.0.0/16.") from None
    if not LARGEST_VPC <= vpc.prefixlen <= SMALLEST_VPC:
        raise WiringError(
            f"aws.network.cidr is {cidr}: a VPC has at most a /{LARGEST_VPC}, and below a /{SMALLEST_VPC} its subnets"
            " are too small for EKS. Give one like 10.0.0.0/16."
        )
    return vpc


def _letters(zones: tuple[str, ...]) -> dict[str, int]:
    """The place of each zone in the VPC."""
    taken: dict[int, str] = {}
    for zone in zones:
        place = _ZONES.find(zone[-1:])
        if place < 0:
            raise WiringError(
                f"aws.network.zones: {zone!r} does not end with a letter from {_ZONES[0]} to {_ZONES[-1]}, as"
                " availability zones do (us-east-2a): its subnets have no place in the VPC."
            )
        if place in taken:
            raise WiringError(
                f"aws.network.zones: {taken[place]} and {zone} end with the same letter, and would get the same"
                " addresses. Name availability zones of one region, each once; local zones are not among them."
            )
        taken[place] = zone
    return {zone: place for place, zone in taken.items()}
