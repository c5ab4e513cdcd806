"""The screen of `top`: from its state to lines of rich text; the same for a terminal and for a log."""

from __future__ import annotations

import math
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final

from rich import box
from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from infra.report.escape import plain
from infra.top.braille import curve

if TYPE_CHECKING:
    from infra.top.state import JobState, Screen

_PLOT_HEIGHT: Final = 6
_LEAST_PLOT: Final = 20  # signs
_STATES: Final = {"Running": "green", "Succeeded": "green", "Failed": "red", "Suspended": "yellow", "Pending": "yellow"}
_QUIET: Final = timedelta(minutes=1)
"""Without a step for longer than that, and than ten steps took: it is said."""


def draw(screen: Screen, *, width: int, height: int | None) -> RenderableType:
    """Everything, the most important on top.

    Args:
        screen: what is so.
        width: of the terminal, in signs.
        height: of the terminal, in lines: what does not fit at the bottom is left out; None: no end.
    """
    parts: list[RenderableType] = [_head(screen)]
    used = 1
    shown = screen.live or screen.jobs[-1:]
    if not shown:
        parts.append(Text(f"no jobs in namespace {screen.namespace}: trainyard submit FILE", style="dim"))
        used += 1
    for job in shown:
        panel_height = _height(job)
        if height is not None and used + panel_height > height - 1 and used > 1:
            parts.append(Text(f"… {len(shown) - shown.index(job)} more jobs: trainyard top JOB", style="dim"))
            used += 1
            break
        parts.append(_job(job, screen, width))
        used += panel_height
    if screen.events:
        room = 6 if height is None else min(8, height - used - 2)
        if room > 0:
            parts.append(_events(screen, room))
    return Group(*parts)


def _head(screen: Screen) -> Text:
    line = Text(f"trainyard · {plain(screen.namespace)} · ", no_wrap=True, overflow="ellipsis")
    line.append(f"{datetime.fromtimestamp(screen.time, UTC):%H:%M:%S} UTC")
    live, ended = len(screen.live), len(screen.jobs) - len(screen.live)
    line.append(f" · {live} live, {ended} ended")
    if screen.nodes:
        gpus, used = sum(node.gpus for node in screen.nodes), sum(node.used for node in screen.nodes)
        line.append(f" · GPUs {used} of {gpus} in use on {len(screen.nodes)} nodes")
        if down := [node.name for node in screen.nodes if not node.ready]:
            line.append(f" · not ready: {', '.join(map(plain, down))}", style="red")
    elif screen.nodes is None:
        line.append(" · GPUs not known: nodes may not be listed", style="dim")
    if screen.away_since is not None:
        seconds = max(0, round(screen.time - screen.away_since))
        line.append(f" · the API server does not answer, for {seconds} s: what is shown is older", style="bold red")
    return line


def _height(job: JobState) -> int:
    return 2 + max(_PLOT_HEIGHT + 1, 7 + min(8, len(job.workers)))


def _job(job: JobState, screen: Screen, width: int) -> Panel:
    style = _STATES.get(job.state, "")
    facts = Table.grid(padding=(0, 1))
    facts.add_column(style="dim", no_wrap=True)
    facts.add_column(overflow="ellipsis", no_wrap=True)
    for name, text in _facts(job, screen):
        facts.add_row(name, text)
    for worker in job.workers[:8]:
        colour = "green" if worker.ready else "yellow"
        name = plain(worker.name.removeprefix(f"{job.name}-"))
        facts.add_row(name, Text(f"{worker.state} · {plain(worker.node) or 'no node'}", style=colour))
    if len(job.workers) > 8:
        facts.add_row("", f"and {len(job.workers) - 8} more")
    inside: RenderableType = facts
    plot_width = min(60, width - 60)
    if plot_width >= _LEAST_PLOT and job.history.curve:
        both = Table.grid(padding=(0, 2), expand=True)
        both.add_column(ratio=1)
        both.add_column(width=plot_width + 12)
        both.add_row(facts, _plot(job, plot_width))
        inside = both
    title = Text.assemble((plain(job.name), "bold"), " ", (job.state, style))
    return Panel(inside, title=title, title_align="left", box=box.ROUNDED, border_style=style or "none")


def _facts(job: JobState, screen: Screen) -> list[tuple[str, RenderableType]]:
    history = job.history
    rows: list[tuple[str, RenderableType]] = [
        ("workers", f"{job.ready} of {job.desired} ready, {job.gpus} GPUs"),
    ]
    latest = history.latest
    if latest is None:
        rows.append(("step", Text(plain(job.message) or "none yet", style="dim")))
    else:
        size = "" if latest.world_size is None else f", world of {latest.world_size}"
        text = Text(f"{latest.step}{size}")
        if job.is_live and (quiet := _quiet(job, screen.time)):
            text.append(f" · no step for {quiet:.0f} s", style="red")
        rows.append(("step", text))
        if latest.loss is not None:
            rows.append(("loss", f"{latest.loss:.4g}"))
        speed = _speed(job)
        if speed:
            rows.append(("speed", speed))
    goodput = history.goodput()
    if goodput is not None and goodput.wall:
        rows.append(("goodput", f"{goodput.share:.0%} of {_span(goodput.wall)}"))
    if disturbances := history.disturbances:
        last = disturbances[-1]
        rows.append(("recoveries", f"{len(disturbances)}, the last took {last.total:.1f} s ({last.cause})"))
    if history.checkpoints:
        newest = history.checkpoints[-1]
        rows.append(("checkpoint", f"step {newest.step}, {_span(max(0.0, screen.time - newest.time))} ago"))
    return rows


def _quiet(job: JobState, now: float) -> float:
    """Seconds without a step, where that is strange; else 0."""
    steps = job.history.steps[-11:]
    usual = (steps[-1].time - steps[0].time) if len(steps) > 1 else 0.0
    silent = now - steps[-1].time
    return silent if silent > max(_QUIET.total_seconds(), usual) else 0.0


def _speed(job: JobState) -> str:
    latest = job.history.steps[-1]
    if latest.samples_per_second:
        return f"{latest.samples_per_second:.0f} samples/s"
    recent = [step for step in job.history.steps[-20:] if step.generation == latest.generation]
    if len(recent) < 2 or recent[-1].time <= recent[0].time:
        return ""
    return f"{(recent[-1].step - recent[0].step) / (recent[-1].time - recent[0].time):.1f} steps/s"


def _plot(job: JobState, width: int) -> RenderableType:
    points = [(float(step.step), step.loss) for step in job.history.curve if step.loss is not None]
    known = [loss for _, loss in points if math.isfinite(loss)]
    if not known:
        return Text("the loss is no number" if points else "no loss told", style="red" if points else "dim")
    lines = curve(points, width, _PLOT_HEIGHT)
    shown = Text()
    for index, line in enumerate(lines):
        label = f"{max(known):.4g}" if index == 0 else f"{min(known):.4g}" if index == len(lines) - 1 else ""
        shown.append(f"{label:>9} ", style="dim")
        shown.append(line, style="cyan")
        shown.append("\n")
    first, last = f"{points[0][0]:.0f}", f"step {points[-1][0]:.0f}"
    shown.append(" " * 10 + first + last.rjust(max(0, width - len(first))), style="dim")
    return shown


def _events(screen: Screen, room: int) -> Table:
    shown = Table.grid(padding=(0, 1))
    for _ in range(3):
        shown.add_column(no_wrap=True)
    shown.add_column(no_wrap=True, overflow="ellipsis")
    for event in screen.events[-room:]:
        shown.add_row(
            Text(f"{datetime.fromtimestamp(event.time, UTC):%H:%M:%S}", style="dim"),
            Text(plain(event.object)),
            Text(plain(event.reason), style="yellow" if event.is_warning else ""),
            Text(plain(event.message)),
        )
    return shown


def _span(seconds: float) -> str:
    """`42 s`, `7 min`, `3.5 h`."""
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"
