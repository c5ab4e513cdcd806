"""A simulation as a plot: the same results give the same SVG, byte for byte."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from infra.report.escape import plain
from infra.simulation.policies import Result
from infra.simulation.replay import BETWEEN, CHECKPOINT, DEATH, JOIN, NOTICE, REPEATED, START, WAITING

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_TEXT, _FAINT = "#24292f", "#6e7781"
_LINES = ("#1f6feb", "#cf222e", "#1a7f37", "#8250df", "#bf8700")
_CAUSES = {
    "useful": "#1f6feb",
    WAITING: "#d0d7de",
    REPEATED: "#cf222e",
    NOTICE: "#bf8700",
    DEATH: "#8250df",
    JOIN: "#2da44e",
    START: "#6e7781",
    CHECKPOINT: "#54aeff",
    BETWEEN: "#afb8c1",
}
_SETTINGS: Any = {  # matplotlib types every key
    "svg.hashsalt": "trainyard",
    "svg.fonttype": "none",
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans"],
    "text.parse_math": False,
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
}


def svg(results: Sequence[Result], *, steps: int) -> str:
    """Workers and progress over time, and where the time of each policy went.

    Args:
        results: of the policies.
        steps: of the job.
    """
    import matplotlib as mpl  # noqa: PLC0415 - half a second
    from matplotlib.figure import Figure  # noqa: PLC0415

    with mpl.rc_context(_SETTINGS):
        figure = Figure(figsize=(9, 5.2 + 0.4 * len(results)), layout="constrained")
        progress, workers, spent = figure.subplots(3, 1, height_ratios=(2, 2, 0.6 + 0.4 * len(results)))
        for result, colour in zip(results, _LINES, strict=False):
            hours = [at / 3600 for at, _, _ in result.outcome.timeline]
            label = plain(result.policy, 50)
            done = [100 * made / steps for _, _, made in result.outcome.timeline]
            progress.plot(hours, done, color=colour, linewidth=1.3, label=label)
            working = [number for _, number, _ in result.outcome.timeline]
            workers.step(hours, working, where="post", color=colour, linewidth=0.9)
        progress.set_ylabel("% of steps", color=_FAINT)
        progress.legend(frameon=False, fontsize=8, loc="lower right")
        workers.set_ylabel("workers", color=_FAINT)
        workers.set_xlabel("hours", color=_FAINT)
        workers.sharex(progress)
        _spent(spent, results)
        written = io.StringIO()
        figure.savefig(written, format="svg", metadata={"Date": None, "Creator": None})
    return written.getvalue()


def _spent(axes: Axes, results: Sequence[Result]) -> None:
    """A bar for each policy, from useful time to what was lost least."""
    ends = [0.0 for _ in results]
    for cause, colour in _CAUSES.items():
        widths = [
            (one.outcome.useful if cause == "useful" else one.outcome.losses.get(cause, 0.0)) / 3600 for one in results
        ]
        if any(widths):
            axes.barh(range(len(results)), widths, 0.62, left=ends, color=colour, label=cause)
            ends = [end + width for end, width in zip(ends, widths, strict=True)]
    for place, (result, end) in enumerate(zip(results, ends, strict=True)):
        least = ">= " if result.cost.without else ""
        cost = "cost unknown" if result.cost.all_unknown else f"{least}{result.cost.usd.shown(0)} USD"
        told = f"{result.outcome.goodput:.1%}, {cost}" + ("" if result.outcome.is_done else ", NOT DONE")
        axes.annotate(
            plain(told, 90),
            (end, place),
            xytext=(3, 0),
            textcoords="offset points",
            va="center",
            fontsize=8,
            color=_TEXT,
        )
    axes.set_yticks(range(len(results)), [plain(one.policy, 50) for one in results])
    axes.set_ylim(len(results) - 0.4, -0.6)
    axes.set_xlim(0, max(ends) * 1.45 or 1)
    axes.set_xlabel("hours, and where they went", color=_FAINT)
    axes.legend(frameon=False, fontsize=8, ncols=4, loc="upper center", bbox_to_anchor=(0.5, -0.3))
