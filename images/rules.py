"""Which parts go together: rules over a row on one architecture and, where it is known, the machine that runs it.

Each rule has a sentence for what holds, the reason, and the source. `images.matrix.load` holds declared rows against
them, `images.selection` what somebody wants.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from images.matrix import Architecture, Row


@dataclass(frozen=True)
class Subject:
    """What the rules are asked about."""

    row: Row
    architecture: Architecture
    driver: str | None = None
    """NVIDIA driver of the machine; None: not known."""
    compute_capability: str | None = None
    """Of the machine's GPUs; None: not known."""


@dataclass(frozen=True)
class Rule:
    """One rule."""

    id: str
    sentence: str
    """What holds of everything that works."""
    reason: str
    source: str
    check: Callable[[Subject], str | None]
    """What is wrong, without the reason; None: nothing."""


def broken(subject: Subject) -> list[str]:
    """A sentence for every rule that does not hold: what is wrong, and why that matters."""
    return [f"{found}: {rule.reason} ({rule.id})." for rule in RULES if (found := rule.check(subject)) is not None]


RULES: tuple[Rule, ...] = ()
