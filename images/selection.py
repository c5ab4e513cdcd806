"""Finds the row that fits a wish and a machine, or says what stands against it and what would work."""

from __future__ import annotations

from dataclasses import dataclass

from images.errors import MatrixError
from images.matrix import Architecture, Kind, Matrix, Row, Variant


@dataclass(frozen=True)
class Wish:
    """What somebody wants: the first three are choices, the rest is the machine."""

    torch: str | None
    variant: Variant | None
    kind: Kind
    architecture: Architecture | None
    driver: str | None
    compute_capability: str | None


def select(matrix: Matrix, wish: Wish) -> Row:
    """See `Matrix.select`."""
    raise MatrixError(f"{matrix} {wish}")
