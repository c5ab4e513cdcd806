"""Small plots as SVG inside the page. Colours come from the page's style, so that they are right in light and in dark.

No script and no style attributes: the page forbids both for itself, and is shown where others forbid them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from infra.report.escape import in_html

WIDTH: Final = 720
HEIGHT: Final = 200
COLOURS: Final = 7
_LEFT, _RIGHT, _TOP, _BOTTOM = 64, 12, 16, 34
MOST: Final = 1e30
"""Larger values are left out like those that are no numbers."""
MOST_POINTS: Final = 1200
"""Of a line: more cannot be seen. Of each stretch the lowest and the highest stay."""


@dataclass(frozen=True)
class Line:
    """One line of a plot."""

    name: str
    points: Sequence[tuple[float, float]]
    steps: bool = False
    """A value holds until the next."""


@dataclass(frozen=True)
class Mark:
    """A moment that is told across the plot."""

    x: float
    text: str


@dataclass(frozen=True)
class Bar:
    """A part of a whole, or one of many amounts."""

    name: str
    value: float
    text: str


def lines(
    title: str,
    series: Sequence[Line],
    *,
    x: str,
    marks: Sequence[Mark] = (),
    show_x: Callable[[float], str] = lambda value: f"{value:g}",
    from_zero: bool = False,
) -> str:
    """Lines over one axis; values that are not finite leave a hole.

    Args:
        title: for who does not see it.
        series: in the order of their colours.
        x: what the lower axis is.
        marks: moments, drawn across.
        show_x: a value of the lower axis, for people.
        from_zero: whether the left axis begins with zero.
    """
    every = [point for line in series for point in line.points if _can_be_drawn(point)]
    if not every:
        return ""
    left, right = min(at for at, _ in every), max(at for at, _ in every)
    low, high = min(value for _, value in every), max(value for _, value in every)
    low = min(0.0, low) if from_zero else low
    if high - low <= 1e-9 * max(abs(low), abs(high), 1e-9):
        low, high = low - max(abs(low), 1e-6) / 2, high + max(abs(high), 1e-6) / 2
    if right <= left:
        right = left + 1.0

    def across(value: float) -> float:
        return _LEFT + (value - left) / (right - left) * (WIDTH - _LEFT - _RIGHT)

    def down(value: float) -> float:
        return HEIGHT - _BOTTOM - (value - low) / (high - low) * (HEIGHT - _TOP - _BOTTOM)

    made = [_open(title, HEIGHT)]
    for tick in ticks(low, high, 4):
        made.append(
            f'<line class="grid" x1="{_LEFT}" x2="{WIDTH - _RIGHT}" y1="{down(tick):.1f}" y2="{down(tick):.1f}"/>'
        )
        made.append(f'<text class="label end" x="{_LEFT - 6}" y="{down(tick) + 4:.1f}">{tick:g}</text>')
    made += [
        f'<text class="label middle" x="{across(tick):.1f}" y="{HEIGHT - 18}">{_text(show_x(tick))}</text>'
        for tick in ticks(left, right, 6)
    ]
    made.append(f'<text class="label middle" x="{(WIDTH + _LEFT) / 2:.0f}" y="{HEIGHT - 3}">{_text(x)}</text>')
    made += [
        f'<line class="mark" x1="{across(mark.x):.1f}" x2="{across(mark.x):.1f}" y1="{_TOP}"'
        f' y2="{HEIGHT - _BOTTOM}"><title>{_text(mark.text)}</title></line>'
        for mark in marks
        if left <= mark.x <= right
    ]
    for number, line in enumerate(series):
        if len(series) > 1:
            place = _LEFT + number * (WIDTH - _LEFT) / len(series)
            colour = f"s{number % COLOURS}"
            made.append(f'<text class="label {colour}" x="{place:.0f}" y="{_TOP - 4}">{_text(line.name)}</text>')
        for piece in _pieces(line):
            placed = " ".join(f"{across(at):.1f},{down(value):.1f}" for at, value in piece)
            shown = f"<title>{_text(line.name)}</title>"
            made.append(f'<polyline class="line s{number % COLOURS}" points="{placed}">{shown}</polyline>')
    made.append("</svg>")
    return "".join(made)


def bars(title: str, rows: Sequence[Bar]) -> str:
    """Amounts, one below the other, with their figures."""
    if not rows:
        return ""
    most = max(row.value for row in rows) or 1.0
    height = 24 * len(rows) + 6
    made = [_open(title, height)]
    for number, row in enumerate(rows):
        top = 24 * number + 4
        width = max(1.0, row.value / most * (WIDTH - 380))
        made.append(f'<text class="label end" x="180" y="{top + 13}">{_text(row.name)}</text>')
        made.append(f'<rect class="bar s{number % COLOURS}" x="188" y="{top}" width="{width:.1f}" height="17"/>')
        made.append(f'<text class="label" x="{196 + width:.1f}" y="{top + 13}">{_text(row.text)}</text>')
    made.append("</svg>")
    return "".join(made)


def ticks(low: float, high: float, about: int) -> list[float]:
    """Round values within a range: multiples of 1, 2 or 5 times a power of ten."""
    rough = (high - low) / max(1, about)
    if not (rough > 0 and math.isfinite(rough)):
        return [low]
    power = 10.0 ** math.floor(math.log10(rough))
    unit = next((power * factor for factor in (1, 2, 5, 10) if power * factor >= rough), power * 10)
    first, last = math.ceil(low / unit - 1e-9), math.floor(high / unit + 1e-9)
    return [float(f"{number * unit:.12g}") for number in range(first, last + 1)]


def _can_be_drawn(point: tuple[float, float]) -> bool:
    return all(abs(value) <= MOST for value in point)  # also False of what is no number


def _pieces(line: Line) -> list[list[tuple[float, float]]]:
    """The stretches between values that are not finite, thinned, and with corners where a value holds."""
    found: list[list[tuple[float, float]]] = [[]]
    for point in _thinned(line.points):
        if not _can_be_drawn(point):
            found.append([])
            continue
        piece = found[-1]
        if line.steps and piece:
            piece.append((point[0], piece[-1][1]))
        piece.append(point)
    # One point alone is a dot: a line of no length has round ends.
    return [piece if len(piece) > 1 else piece * 2 for piece in found if piece]


def _thinned(points: Sequence[tuple[float, float]]) -> Sequence[tuple[float, float]]:
    if len(points) <= MOST_POINTS:
        return points
    size = math.ceil(2 * len(points) / MOST_POINTS)
    kept: list[tuple[float, float]] = []
    for begin in range(0, len(points), size):
        stretch = points[begin : begin + size]
        if not all(map(_can_be_drawn, stretch)):
            kept += stretch
            continue
        ends = {min(stretch, key=lambda point: point[1]), max(stretch, key=lambda point: point[1])}
        kept += sorted(ends)
    return kept


def _open(title: str, height: int) -> str:
    view = f"0 0 {WIDTH} {height}"
    return f'<svg role="img" viewBox="{view}" xmlns="http://www.w3.org/2000/svg"><title>{_text(title)}</title>'


def _text(text: str) -> str:
    return in_html(text, None)
