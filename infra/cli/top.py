"""`trainyard top`: the live jobs of a stack on one screen."""

from __future__ import annotations

import contextlib
import math
import os
import sys
import time
from collections.abc import Iterator
from datetime import timedelta
from typing import TYPE_CHECKING, Annotated, Any

import typer

from infra.cli import options
from infra.cli.console import print_json, stdout
from infra.cli.workspace import Workspace

if TYPE_CHECKING:
    from infra.top.state import JobState, Screen, Watcher


def register(app: typer.Typer) -> None:
    """Add this module's command."""
    app.command()(top)


def top(
    job: Annotated[str | None, typer.Argument(metavar="[JOB]", help="Only this job, also when it has ended.")] = None,
    once: Annotated[bool, typer.Option("--once", help="Show it once; so it is where there is no terminal.")] = False,
    interval: Annotated[float, typer.Option(min=0.2, help="Seconds between two looks.")] = 2.0,
    stack: options.Stack = "local",
    json: options.Json = False,
) -> None:
    """Show the live jobs of a stack on one screen: workers, steps, loss curves, GPUs, events. `q` ends it.

    Example: [bold]trainyard top[/bold], [bold]trainyard top digits --once[/bold]
    """
    from infra.top.draw import draw  # noqa: PLC0415
    from infra.top.state import Watcher  # noqa: PLC0415

    workspace = Workspace.open(stack)
    workspace.require_outside_rehearsal("look into the rehearsal: trainyard status --rehearse")
    with Watcher(workspace.jobs(), job) as watcher:
        if json:
            print_json(_document(watcher.once()))
            return
        console = stdout()
        if once or not console.is_terminal:
            console.soft_wrap = False
            console.print(draw(watcher.once(), width=console.width, height=None))
            return
        _live(watcher, timedelta(seconds=interval))


def _live(watcher: Watcher, interval: timedelta) -> None:
    """Draw again and again, also when the terminal's size changes, until `q`, Ctrl-C or Ctrl-D."""
    from rich.console import Console  # noqa: PLC0415
    from rich.live import Live  # noqa: PLC0415

    from infra.top.draw import draw  # noqa: PLC0415

    console = Console(highlight=False)
    with (
        contextlib.suppress(KeyboardInterrupt),
        _keys() as pressed,
        Live(console=console, screen=True, auto_refresh=False) as live,
    ):
        while True:
            screen = watcher.look()
            end = time.monotonic() + interval.total_seconds()
            size = None
            while (left := end - time.monotonic()) > 0:
                if size != console.size:
                    size = console.size
                    live.update(draw(screen, width=size.width, height=size.height), refresh=True)
                if pressed(min(left, 0.1)) in ("q", "Q", "\x03", "\x04"):
                    return


@contextlib.contextmanager
def _keys() -> Iterator[Any]:
    """A function that waits so many seconds for a key, and returns it, or nothing; without waiting for Enter."""
    if sys.stdin is None or not sys.stdin.isatty():

        def nothing(seconds: float) -> str:
            time.sleep(seconds)
            return ""

        yield nothing
        return
    import termios  # noqa: PLC0415
    import tty  # noqa: PLC0415
    from multiprocessing.connection import wait  # noqa: PLC0415

    descriptor = sys.stdin.fileno()
    before = termios.tcgetattr(descriptor)

    def pressed(seconds: float) -> str:
        if not wait([descriptor], seconds):
            return ""
        # Nothing to read although it is ready: the terminal is gone.
        return os.read(descriptor, 1).decode(errors="replace") or "\x04"

    try:
        tty.setcbreak(descriptor)
        yield pressed
    finally:
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)


def _document(screen: Screen) -> dict[str, Any]:
    return {
        "namespace": screen.namespace,
        "jobs": [_job(job) for job in screen.jobs],
        "nodes": None
        if screen.nodes is None
        else [{"node": node.name, "gpus": node.gpus, "used": node.used, "ready": node.ready} for node in screen.nodes],
        "events": [
            {
                "time": event.time,
                "job": event.job,
                "object": event.object,
                "reason": event.reason,
                "message": event.message,
            }
            for event in screen.events
        ],
    }


def _job(job: JobState) -> dict[str, Any]:
    history = job.history
    latest, goodput = history.latest, history.goodput()
    return {
        "job": job.name,
        "state": job.state,
        "ready": job.ready,
        "desired": job.desired,
        "generation": job.generation,
        "gpus": job.gpus,
        "step": latest.step if latest else None,
        "loss": latest.loss if latest and latest.loss is not None and math.isfinite(latest.loss) else None,
        "world_size": latest.world_size if latest else None,
        "samples_per_second": latest.samples_per_second if latest else None,
        "goodput": round(goodput.share, 4) if goodput else None,
        "recoveries": len(history.disturbances),
        "checkpoint": history.checkpoints[-1].step if history.checkpoints else None,
        "workers": [
            {"pod": worker.name, "state": worker.state, "ready": worker.ready, "node": worker.node, "gpus": worker.gpus}
            for worker in job.workers
        ],
        "missing": list(history.gaps),
    }
