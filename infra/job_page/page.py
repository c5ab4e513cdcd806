"""The page: what is shown and in which order. The template holds the words, `charts` the plots."""

from __future__ import annotations

import base64
import hashlib
import itertools
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import jinja2
from markupsafe import Markup

from infra.history.model import JobHistory
from infra.job_page.charts import Bar, Line, Mark, bars, lines
from infra.job_page.money import Rate, rank_seconds, spent
from infra.report.escape import plain

_HERE: Final = Path(__file__).parent
_PARTS: Final = ("data", "forward", "backward", "sync", "optimizer", "checkpoint", "evaluation")


@dataclass(frozen=True)
class Facts:
    """What the API server knows of the job, beside what it has told itself."""

    stack: str
    namespace: str
    state: str
    message: str
    is_live: bool
    made: float
    """When the page is made; Unix seconds."""
    ended: float | None = None
    """When the job ended; Unix seconds."""
    rate: Rate | str = "it was not asked for"
    """What a rank costs in an hour, or why that is not known."""


def page(history: JobHistory, facts: Facts) -> str:
    """The whole page."""
    style = (_HERE / "page.css").read_text(encoding="utf-8")
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_HERE), autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True
    )
    environment.filters |= {"plain": plain, "clock": _clock, "span": span}
    return environment.get_template("page.html.j2").render(
        history=history,
        facts=facts,
        style=Markup(style),  # noqa: S704 - a file of this package
        digest=digest,
        tiles=_tiles(history, facts),
        plots=[(title, Markup(svg), note) for title, svg, note in _plots(history, facts) if svg],  # noqa: S704 - escaped
        absent=[(title, note) for title, svg, note in _plots(history, facts) if not svg],
    )


def _tiles(history: JobHistory, facts: Facts) -> list[tuple[str, str]]:
    latest, goodput = history.latest, history.goodput()
    until = _until(history, facts)
    found = [("state", facts.state)]
    if latest is not None:
        found.append(("step", str(latest.step)))
        if history.finished is None and latest.loss is not None:
            found.append(("loss", f"{latest.loss:.4g}"))
    if history.finished is not None:
        found += [(name, f"{value:.4g}") for name, value in history.finished.figures.items()]
    if history.began is not None:
        found.append(("wall time", span(until - history.began)))
    if goodput is not None:
        found.append(("goodput", f"{goodput.share:.1%}"))
    found.append(("recoveries", str(len(history.disturbances))))
    found.append(("steps made again", str(sum(record.steps_lost or 0 for record in history.disturbances))))
    if history.worlds:
        found.append(("rank hours", f"{rank_seconds(history, until) / 3600:.2f}"))
    if isinstance(facts.rate, Rate) and history.worlds:
        cost = spent(history, facts.rate, until)
        shown = f"{cost.low:.2f}" if cost.low == cost.high else f"{cost.low:.2f} to {cost.high:.2f}"
        found.append(("cost so far", f"{shown} USD"))
    return found


def _plots(history: JobHistory, facts: Facts) -> list[tuple[str, str, str]]:
    """Title, plot and a sentence; without a plot the sentence says why there is none."""
    began = history.began or 0.0
    until = _until(history, facts)

    def since(time: float) -> float:
        return time - began

    marks = [
        Mark(since(record.began), f"{record.cause}: {record.total:.1f} s, {record.steps_lost or 0} steps made again")
        for record in history.disturbances
    ]
    loss = [(float(step.step), step.loss) for step in history.curve if step.loss is not None]
    sizes = [(since(world.time), float(world.size)) for world in history.worlds]
    if sizes:
        sizes.append((since(until), sizes[-1][1]))
    made = [
        (
            "Loss",
            lines("loss over steps", [Line("loss", loss)], x="step"),
            "Of each step the line that counts: those made again are drawn once." if loss else "No step tells a loss.",
        ),
        (
            "World size",
            lines(
                "ranks over time",
                [Line("ranks", sizes, steps=True)],
                x="since the beginning",
                marks=marks,
                show_x=span,
                from_zero=True,
            ),
            "Dashed: a recovery begins." if marks else "No worker has told of a world." if not sizes else "",
        ),
        (
            "Progress",
            lines(
                "steps over time",
                [Line("step", [(since(step.time), float(step.step)) for step in history.steps])],
                x="since the beginning",
                marks=marks,
                show_x=span,
            ),
            "Where it falls, steps are made again. Dashed: a recovery begins."
            if history.steps
            else "No step was told.",
        ),
    ]
    goodput = history.goodput()
    split = "no step tells where its time goes; scripts with training.loop do (docs/how-to/loop.md)"
    if goodput is None:
        made += [("Goodput", "", f"Not known: {split}."), ("Step time", "", f"Not known: {split}.")]
    else:
        shares = [("useful", goodput.useful), *goodput.losses.items()]
        made.append(
            (
                "Goodput",
                bars(
                    "where the wall time went",
                    [
                        Bar(plain(name, 40), seconds, f"{span(seconds)}, {seconds / goodput.wall:.1%}")
                        for name, seconds in shares
                        if goodput.wall
                    ],
                ),
                f"{goodput.share:.1%} of {span(goodput.wall)} were useful steps.",
            )
        )
        made.append(
            ("Step time", _split(history), "Seconds of a step, by part; a GPU's part is what the program waited.")
        )
    made.append(_recoveries(history))
    if isinstance(facts.rate, Rate):
        cost = [(since(time), amount) for time, amount in spent(history, facts.rate, until).curve]
        plot = lines("cost over time", [Line("USD", cost)], x="since the beginning", show_x=span, from_zero=True)
        made.append(("Cost so far", plot, f"The job's share of its machines: {facts.rate.reckoned}."))
    else:
        made.append(("Cost so far", "", f"Not known: {plain(facts.rate, 300)}."))
    return made


def _split(history: JobHistory) -> str:
    told = [step for step in history.curve if step.seconds]
    number = [max(1, later.step - now.step) for now, later in itertools.pairwise(told)]
    counts = [number[0] if number else 1, *number]
    series = [
        Line(part, [(float(step.step), step.seconds.get(part, 0.0) / n) for step, n in zip(told, counts, strict=True)])
        for part in _PARTS
    ]
    used = [line for line in series if any(value for _, value in line.points)]
    return lines("seconds of a step over steps", used, x="step", from_zero=True)


def _recoveries(history: JobHistory) -> tuple[str, str, str]:
    rows = [
        Bar(
            f"{_clock(record.began)[11:]} {plain(record.cause, 20)}",
            record.total,
            f"{record.total:.2f} s"
            + (f", world of {record.world_size}" if record.world_size else f", {record.outcome}"),
        )
        for record in history.disturbances[-20:]
    ]
    left_out = len(history.disturbances) - len(rows)
    note = "From a fault or a change of the world to the next step."
    if left_out:
        note += f" {left_out} earlier ones are left out."
    return "Recoveries", bars("seconds of each recovery", rows), note if rows else "There was none."


def _until(history: JobHistory, facts: Facts) -> float:
    """The end of what is shown: of the job, or now."""
    last = history.last_told or facts.made
    if facts.is_live:
        return max(facts.made, last)
    return max(facts.ended or last, history.began or 0.0)


def _clock(time: float) -> str:
    return f"{datetime.fromtimestamp(time, UTC):%Y-%m-%d %H:%M:%S}"


def span(seconds: float) -> str:
    """`4.2 s`, `42 s`, `7.5 min`, `3.5 h`."""
    if seconds < 10:
        return f"{seconds:.1f} s" if seconds % 1 else f"{seconds:.0f} s"
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.1f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"


def as_json(history: JobHistory, facts: Facts) -> dict[str, Any]:
    """The figures of the page's head, as plain data."""
    return dict(_tiles(history, facts)) | {"missing": list(history.gaps)}
