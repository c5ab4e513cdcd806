"""The cost of a stack as a plot: the same input gives the same SVG, byte for byte."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from infra.report.cost import NOTHING, Cost, Part, Usd
from infra.report.escape import plain

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MOST = 24
"""Bars; the smallest parts beyond them are one."""
_BEFORE, _AFTER, _TEXT, _FAINT = "#9aa5b1", "#1f6feb", "#24292f", "#6e7781"
_SETTINGS: Any = {  # matplotlib types every key
    "svg.hashsalt": "trainyard",  # ids inside the SVG
    "svg.fonttype": "none",  # text stays text: small, searchable, in the reader's own font
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans"],  # comes with matplotlib, so that widths are the same everywhere
    "text.parse_math": False,  # a dollar sign in a name is one
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
}


@dataclass(frozen=True)
class _Row:
    """One part: USD for a month; a side that is absent is nothing, one that is not known is None."""

    name: str
    before: Usd | None
    after: Usd | None
    marks: Mapping[str, str] = field(default_factory=dict)
    """What stands behind the figure of a side."""

    @property
    def size(self) -> Decimal:
        return max((side.high for side in (self.before, self.after) if side), default=Decimal(0))

    @property
    def known(self) -> bool:
        return self.before is not None and self.after is not None


def svg(after: Cost, *, stack: str, before: Cost | None = None, against: str = "") -> str:
    """A bar for each part: USD for a month at the declared utilisation, the dearest on top.

    Args:
        after: the cost.
        stack: name of the stack, for the title.
        before: another cost of it, whose bars stand beside.
        against: what that one is, for the legend.
    """
    import matplotlib as mpl  # noqa: PLC0415 - half a second
    from matplotlib.figure import Figure  # noqa: PLC0415

    rows = _rows(after, before)
    height = 1.6 + max(1, len(rows)) * (0.5 if before else 0.32)
    with mpl.rc_context(_SETTINGS):
        figure = Figure(figsize=(8, height), layout="constrained")
        axes = figure.add_subplot()
        _draw(axes, rows, both=before is not None)
        share = f"{(after.utilisation * 100).normalize():f}"
        figure.suptitle(
            f"Stack {plain(stack)}, USD per month at {share} % utilisation: {plain(after.month.shown(), 60)}",
            fontsize=10,
            color=_TEXT,
        )
        axes.set_xlabel("USD per month of 730 hours; the pale end is the range of prices", color=_FAINT)
        if before is not None:
            axes.legend([f"at {plain(against or 'before')}", "as it is"], loc="lower right", frameon=False)
        written = io.StringIO()
        figure.savefig(written, format="svg", metadata={"Date": None, "Creator": None})
    return written.getvalue()


def _rows(after: Cost, before: Cost | None) -> list[_Row]:
    """The parts, dearest first; more than `MOST` are gathered, and what is not known is kept."""
    old = {(part.kind, part.name): part for part in before.parts} if before else {}
    new = {(part.kind, part.name): part for part in after.parts}
    rows = [_row(key[1], old.get(key), new.get(key)) for key in dict.fromkeys([*new, *old])]
    rows.sort(key=lambda row: (row.known, -row.size, row.name))
    if len(rows) <= MOST:
        return rows
    kept, rest = rows[: MOST - 1], rows[MOST - 1 :]
    before_rest = sum((row.before for row in rest if row.before), NOTHING)
    after_rest = sum((row.after for row in rest if row.after), NOTHING)
    return [*kept, _Row(f"{len(rest)} more parts", before_rest, after_rest)]


def _row(name: str, before: Part | None, after: Part | None) -> _Row:
    marks = {side: part.mark for side, part in (("before", before), ("after", after)) if part}
    return _Row(name, _month(before), _month(after), marks)


def _month(part: Part | None) -> Usd | None:
    return NOTHING if part is None else part.month


def _draw(axes: Axes, rows: Sequence[_Row], *, both: bool) -> None:
    """The bars, from top to bottom: solid to the low end of a range, pale to the high one."""
    places = list(range(len(rows)))
    sides = [("before", _BEFORE, -0.2), ("after", _AFTER, 0.2)] if both else [("after", _AFTER, 0.0)]
    thickness = 0.36 if both else 0.62
    for name, colour, shift in sides:
        amounts = [getattr(row, name) or NOTHING for row in rows]
        at = [place + shift for place in places]
        low = [float(one.low) for one in amounts]
        axes.barh(at, low, thickness, color=colour)
    for name, colour, shift in sides:
        for place, row in enumerate(rows):
            amount: Usd | None = getattr(row, name)
            spread = NOTHING if amount is None else amount
            axes.barh(
                place + shift,
                float(spread.high - spread.low),
                thickness,
                left=float(spread.low),
                color=colour,
                alpha=0.4,
            )
            shown = "unknown" if amount is None else amount.shown() + row.marks.get(name, "")
            axes.annotate(
                shown,
                (float(spread.high), place + shift),
                xytext=(3, 0),
                textcoords="offset points",
                va="center",
                fontsize=7 if both else 8,
                color=_FAINT,
            )
    axes.set_yticks(places, [plain(row.name, 40) for row in rows])
    axes.set_ylim(len(rows) - 0.4, -0.6)
    axes.set_xlim(0, float(max((row.size for row in rows), default=Decimal(0)) or 1) * 1.25)
    axes.tick_params(colors=_TEXT)
