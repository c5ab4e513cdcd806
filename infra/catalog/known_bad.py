"""Combinations of versions and surroundings that are known to fail, most of them silently."""

from __future__ import annotations

import functools
from collections.abc import Collection
from dataclasses import dataclass

from infra.catalog.instance_types import InstanceType
from infra.catalog.ranges import in_range
from infra.catalog.tables import table


@dataclass(frozen=True)
class KnownBad:
    """One combination that fails."""

    id: str
    component: str
    """What has the version: `nvidia-device-plugin`. Add-ons, charts and images have the names of `versions.toml`."""
    range: str
    """The versions that fail: `>=0.19.0,<0.19.3`; `*` where it is the combination, not the version."""
    condition: str
    """Where it fails: a key of `conditions()`; empty: everywhere."""
    effect: str
    """What a user sees."""
    reason: str
    link: str


@functools.cache
def conditions() -> dict[str, str]:
    """The surroundings that rules speak of, and what each means."""
    return dict(table("known_bad")["condition"])


@functools.cache
def known_bad() -> tuple[KnownBad, ...]:
    """All known combinations."""
    return tuple(
        KnownBad(
            id=row["id"],
            component=row["component"],
            range=row["range"],
            condition=row.get("condition", ""),
            effect=row["effect"],
            reason=row["reason"],
            link=row["link"],
        )
        for row in table("known_bad")["bad"]
    )


def bad_versions(component: str, version: str, conditions: Collection[str]) -> list[KnownBad]:
    """What is known against a component in this version under these conditions; empty where nothing is.

    Args:
        component: its name in the table.
        version: `v0.19.1`; of something without a version, any number.
        conditions: keys of `conditions()` that hold.

    Raises:
        ValueError: the version does not begin with a number.
    """
    return [
        bad
        for bad in known_bad()
        if bad.component == component
        and (not bad.condition or bad.condition in conditions)
        and in_range(version, bad.range)
    ]


def conditions_of(machine: InstanceType, *, efa: bool) -> frozenset[str]:
    """The conditions that a pool of these machines brings about by itself.

    Args:
        machine: its type.
        efa: whether the pool has EFA.
    """
    if not efa:
        return frozenset({"no-efa"})
    holds = {"efa", "efa-only"}
    if machine.efa > 1:
        holds.add("several-efa")
    if machine.has_gpu and machine.architecture == "arm64":
        holds.add("grace-efa")
    return frozenset(holds | ({machine.family} & conditions().keys()))
