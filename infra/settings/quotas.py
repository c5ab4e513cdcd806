"""Which quotas of the AWS account a stack needs, and how much of each.

A new account has none for GPU machines, and a raise takes days. A node group without quota does not fail: its machines
never come. Names and codes are those of the Service Quotas console (EC2 user guide, on-demand and spot quotas); EC2
counts vCPUs, and all machines of the account in the region, not only this stack's. Elastic IPs, of which each NAT
gateway takes one, are counted likewise, and an account begins with five.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from infra.catalog.instance_types import instance_type
from infra.settings.aws import Aws, AwsNodePool
from infra.settings.sections import Settings
from infra.wiring.network import subnets_of


@dataclass(frozen=True)
class Quota:
    """One quota of EC2."""

    name: str
    code: str
    """Its code in Service Quotas: `aws service-quotas get-service-quota --service-code ec2 --quota-code CODE`."""
    needed: int
    """What this stack can use at most."""
    unit: str
    """`vCPUs`, `machines` for capacity blocks, `addresses`."""
    region: str
    unconfirmed: bool = False
    """No document of AWS that we read ties this quota to this family of machines: look it up in the console."""


@dataclass(frozen=True)
class _Kind:
    """A quota without numbers."""

    name: str
    code: str
    unconfirmed: bool = False


_STANDARD = _Kind("Running On-Demand Standard (A, C, D, H, I, M, R, T, Z) instances", "L-1216C47A")
_G = _Kind("Running On-Demand G and VT instances", "L-DB2E81BA")
_G_SPOT = _Kind("All G and VT Spot Instance Requests", "L-3819A6DF")
_P = _Kind("Running On-Demand P instances", "L-417A185B")
_P_SPOT = _Kind("All P4, P3 and P2 Spot Instance Requests", "L-7212CCBC")
_P5_SPOT = _Kind("All P5 Spot Instance Requests", "L-C4BD4855")
# AWS's list names no spot quota for P6; lists that others publish disagree between the two of P.
_P6_SPOT = _Kind(_P5_SPOT.name, _P5_SPOT.code, unconfirmed=True)

_ADDRESSES = _Kind("EC2-VPC Elastic IPs", "L-0263D0A3")

# Capacity blocks have quotas of their own, by family, in machines. The codes were seen in one published list only.
_BLOCKS = {
    "p4d": "L-2C8F52B3",
    "p4de": "L-CFF3E941",
    "p5": "L-DA6814F2",
    "p5e": "L-C45F30BC",
    "p5en": "L-4F9BB70B",
    "p6": "L-8B23CEF3",
}


def quotas_needed(settings: Settings) -> tuple[Quota, ...]:
    """The EC2 quotas of a stack at its greatest extent, in the order of the settings; none without `target: aws`.

    Raises:
        UnknownInstanceTypeError: the catalogue does not have a type (checked settings have none such).
    """
    if settings.aws is None:
        return ()
    needed: dict[tuple[_Kind, str], int] = {}
    for kind, unit, amount in _of_stack(settings.aws):
        needed[kind, unit] = needed.get((kind, unit), 0) + amount
    return tuple(
        Quota(kind.name, kind.code, amount, unit, settings.aws.region, kind.unconfirmed)
        for (kind, unit), amount in needed.items()
    )


def _of_stack(aws: Aws) -> Iterator[tuple[_Kind, str, int]]:
    yield _STANDARD, "vCPUs", aws.system_pool.max * max(instance_type(name).vcpus for name in aws.system_pool.types)
    for pool in aws.node_pools:
        yield from _of_pool(pool)
    if gateways := len(subnets_of(aws.network).nat_zones):
        yield _ADDRESSES, "addresses", gateways


def _of_pool(pool: AwsNodePool) -> Iterator[tuple[_Kind, str, int]]:
    """Each quota that machines of a pool may fall under: its types may be of several families."""
    if pool.capacity == "capacity-block":
        yield _block(instance_type(pool.types[0]).family), "machines", pool.max
        return
    largest: dict[_Kind, int] = {}
    for machine in map(instance_type, pool.types):
        kind = _kind(machine.family, spot=pool.capacity == "spot")
        largest[kind] = max(largest.get(kind, 0), machine.vcpus)
    for kind, vcpus in largest.items():
        yield kind, "vCPUs", pool.max * vcpus


def _block(family: str) -> _Kind:
    family = "p6" if family.startswith("p6") else family
    return _Kind(f"Capacity Blocks, {family} instances", _BLOCKS[family], unconfirmed=True)


def _kind(family: str, *, spot: bool) -> _Kind:
    """The quota of a family with GPUs. Reserved machines (ODCR) count as on-demand ones."""
    if family.startswith("g"):
        return _G_SPOT if spot else _G
    if not spot:
        return _P
    return _P6_SPOT if family.startswith("p6") else _P5_SPOT if family.startswith("p5") else _P_SPOT
