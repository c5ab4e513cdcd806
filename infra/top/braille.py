"""A curve in Braille signs: each holds two by four dots, so that a small corner of a terminal shows a loss."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

_BLANK: Final = 0x2800
# The bit of a dot by its row and column in a sign (Unicode, "Braille Patterns").
_DOTS: Final = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))


def curve(points: Sequence[tuple[float, float]], width: int, height: int) -> list[str]:
    """Lines of text, from the top; what is not finite is left out, and of many points in a column all are to be seen.

    Args:
        points: x and y, by x.
        width: in signs.
        height: in lines.
    """
    finite = [(x, y) for x, y in points if math.isfinite(x) and math.isfinite(y)]
    signs = [[_BLANK] * width for _ in range(height)]
    if finite and width > 0 and height > 0:
        columns, rows = 2 * width, 4 * height
        left, right = finite[0][0], finite[-1][0]
        low, high = min(y for _, y in finite), max(y for _, y in finite)
        before: tuple[int, int] | None = None
        for x, y in finite:
            column = _place(x, left, right, columns)
            row = rows - 1 - _place(y, low, high, rows)
            for at, dot in _between(before, (column, row)):
                signs[dot // 4][at // 2] |= _DOTS[dot % 4][at % 2]
            before = (column, row)
    return ["".join(map(chr, line)) for line in signs]


def _place(value: float, low: float, high: float, places: int) -> int:
    # Halved first: the difference of two large numbers may be none.
    share = (value / 2 - low / 2) / (high / 2 - low / 2) if high / 2 > low / 2 else 0.5
    return min(places - 1, max(0, int(share * places)))


def _between(start: tuple[int, int] | None, end: tuple[int, int]) -> list[tuple[int, int]]:
    """The dots of a line; the start is drawn already."""
    if start is None:
        return [end]
    steps = max(abs(end[0] - start[0]), abs(end[1] - start[1]), 1)
    return [
        (
            round(start[0] + (end[0] - start[0]) * step / steps),
            round(start[1] + (end[1] - start[1]) * step / steps),
        )
        for step in range(1, steps + 1)
    ]
