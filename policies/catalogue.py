"""The only door from the rules to the rest of the project: facts of `infra.catalog`, which imports no Pulumi.

The functions answer with plain values, and with None for what the catalogue does not have: what is unknown to it is
said by the rules, not guessed.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable
from decimal import Decimal

from infra.catalog import instance_types, known_bad, prices, versions
from infra.catalog.instance_types import InstanceType
from infra.catalog.known_bad import KnownBad

__all__ = ["InstanceType"]


def machine(name: str) -> InstanceType | None:
    """An instance type."""
    return instance_types.instance_types().get(name)


def kubernetes_versions() -> tuple[str, ...]:
    """Supported minors, oldest first."""
    return versions.versions().kubernetes


def ami_driver(ami_type: str) -> str | None:
    """NVIDIA driver of a family of machine images; None in images without one or not in the lock."""
    for system in ("al2023", "bottlerocket"):
        for architecture in ("x86_64", "arm64"):
            try:
                ami = versions.versions().ami(versions.versions().default_kubernetes, system, architecture, gpu=True)
            except versions.NotInLockError:
                continue
            if ami.ami_type == ami_type:
                return ami.driver
    return None


def driver_floor(cuda: str) -> str | None:
    """Oldest NVIDIA driver for a CUDA minor."""
    try:
        return versions.versions().driver_floor(cuda)
    except versions.NotInLockError:
        return None


def usd_per_hour(type_name: str, region: str, capacity: str) -> Decimal | None:
    """Price of a machine's hour at most; `capacity` as EKS spells it. None where no figure is known.

    Spot costs less than on demand, and so does a capacity block, whose own price is taken where there is one.
    """
    found = prices.price(type_name, region)
    if found is None:
        return None
    block = found.capacity_block if capacity == "CAPACITY_BLOCK" else None
    return found.usd_per_hour if block is None else block


def known_failures(component: str, version: str, conditions: Iterable[str]) -> list[KnownBad]:
    """What is known against a version of a component in these surroundings; nothing where it is no version."""
    try:
        return known_bad.bad_versions(component, version, set(conditions))
    except ValueError:
        return []


@functools.cache
def locked_images() -> frozenset[str]:
    """Images of the version lock, with their tags and digests, without registry: AWS has copies in every region."""
    lock = versions.versions()
    found = set()
    for name in lock.images:
        for minor in lock.kubernetes:
            try:
                found.add(lock.image(name, kubernetes=minor).partition("/")[2])
            except versions.NotInLockError:
                continue
    return frozenset(found)


def surroundings(type_of: InstanceType) -> frozenset[str]:
    """The conditions of known failures that a group of these machines with EFA brings about."""
    return known_bad.conditions_of(type_of, efa=True)
