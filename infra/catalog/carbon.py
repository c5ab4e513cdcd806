"""How much carbon dioxide electricity costs in each region: yearly means of the grid, with source. An offline table."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from types import MappingProxyType

from infra.catalog.tables import table


@dataclass(frozen=True)
class Grid:
    """The electricity of a region."""

    region: str
    grams_per_kwh: Decimal
    """CO2 equivalent, location-based mean of a year."""
    published: int
    """Year in which the source was published; what it measures is older."""
    source: str
    """With link."""


@functools.cache
def grids() -> Mapping[str, Grid]:
    """All of the table, by region, those with the least carbon dioxide first."""
    rows = dict(table("carbon")["grams_per_kwh"])
    source = table("carbon")["source"][rows.pop("from")]
    found = [
        Grid(region, Decimal(grams), source["published"], f"{source['text']} ({source['link']})")
        for region, grams in rows.items()
    ]
    found.sort(key=lambda one: (one.grams_per_kwh, one.region))
    return MappingProxyType({one.region: one for one in found})


def grid(region: str | None) -> Grid | None:
    """The electricity of a region; None where the table has none."""
    return grids().get(region) if region else None
