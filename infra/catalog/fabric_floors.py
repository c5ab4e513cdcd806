"""How fast an all-reduce must be at least on which machines: the floors of `trainyard verify`, each with its source."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Literal

from infra.catalog.tables import table


@dataclass(frozen=True)
class Floor:
    """The least bus bandwidth of one kind of run."""

    type: str
    """Instance type."""
    nodes: int
    bytes: int
    """Size of one message."""
    gb_s: float
    """GB/s (10^9 bytes), as nccl-tests count bus bandwidth."""
    seen: float | None
    """What somebody has measured, GB/s; None: only the floor is known."""
    basis: Literal["rule", "in use"]
    """`rule`: 60 % of what was seen; `in use`: the floor of a validator that others run."""
    source: str


@functools.cache
def fabric_floors() -> tuple[Floor, ...]:
    """All floors, in the order of the file."""
    return tuple(
        Floor(
            type=row["type"],
            nodes=row["nodes"],
            bytes=row["bytes"],
            gb_s=row["gb_s"],
            seen=row.get("seen"),
            basis=row["basis"],
            source=row["source"],
        )
        for row in table("fabric_floors")["floor"]
    )


def floors_of(type_name: str, nodes: int) -> tuple[Floor, ...]:
    """The floors of so many machines of a type, smallest message first; empty: none is known."""
    found = [floor for floor in fabric_floors() if (floor.type, floor.nodes) == (type_name, nodes)]
    return tuple(sorted(found, key=lambda floor: floor.bytes))
