"""What is known of moves from one version of a component to another: records with a verdict, steps and a source."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from datetime import date
from typing import Literal

from infra.catalog.ranges import in_range, numbers
from infra.catalog.tables import table

Recorded = Literal["safe", "manual", "blocked"]


@dataclass(frozen=True)
class MoveRecord:
    """One record."""

    component: str
    """`kueue`; add-ons, charts and images have the names of `versions.toml`."""
    from_range: str
    to_range: str
    back: bool
    """It is about the way back to an older version; otherwise about the way to a newer one."""
    verdict: Recorded
    reason: str
    steps: tuple[str, ...]
    """What a person has to do, where the verdict is `manual`."""
    source: str
    checked: date
    unconfirmed: bool


@dataclass(frozen=True)
class Numbering:
    """How a component is numbered, and what follows from that."""

    component: str
    minor_steps: int | None
    """How many minors may be moved at once; None: as many as one likes."""
    skip_verdict: Recorded
    skip_reason: str
    backwards: Recorded | None
    """The verdict of every way back without a record; None: it is unknown."""
    backwards_reason: str
    follows: str
    """A component whose minor it has."""
    follows_reason: str
    source: str
    checked: date


@functools.cache
def move_records() -> tuple[MoveRecord, ...]:
    """All records, in the order of the file: the first that fits is taken."""
    return tuple(
        MoveRecord(
            component=row["component"],
            from_range=row["from"],
            to_range=row["to"],
            back=row.get("back", False),
            verdict=row["verdict"],
            reason=row["reason"],
            steps=tuple(row.get("steps", ())),
            source=row["source"],
            checked=row["checked"],
            unconfirmed=row.get("unconfirmed", False),
        )
        for row in table("version_moves")["move"]
    )


@functools.cache
def numberings() -> dict[str, Numbering]:
    """Components that are numbered in a way of their own, by name."""
    return {
        name: Numbering(
            component=name,
            minor_steps=row.get("minor_steps"),
            skip_verdict=row.get("skip_verdict", "blocked"),
            skip_reason=row.get("skip_reason", ""),
            backwards=row.get("backwards"),
            backwards_reason=row.get("backwards_reason", ""),
            follows=row.get("follows", ""),
            follows_reason=row.get("follows_reason", ""),
            source=row["source"],
            checked=row["checked"],
        )
        for name, row in table("version_moves")["component"].items()
    }


def move_record(component: str, old: str, new: str) -> MoveRecord | None:
    """The record of a move; None where there is none.

    Raises:
        ValueError: a version does not begin with a number.
    """
    back = numbers(new) < numbers(old)
    for record in move_records():
        if (record.component, record.back) != (component, back):
            continue
        if in_range(old, record.from_range) and in_range(new, record.to_range):
            return record
    return None
