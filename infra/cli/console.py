"""What the command shows: results on stdout (one JSON document with `--json`), everything else on stderr."""

from __future__ import annotations

import contextlib
import json
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table


def stderr() -> Console:
    """The console for progress and messages; colours only on a terminal, none with NO_COLOR."""
    from rich.console import Console  # noqa: PLC0415 - rich costs 50 ms that `--json` and completion need not pay

    return Console(stderr=True, highlight=False, soft_wrap=True)


def stdout() -> Console:
    """The console for results."""
    from rich.console import Console  # noqa: PLC0415

    return Console(highlight=False, soft_wrap=not sys.stdout.isatty())


def table(*columns: str, title: str | None = None) -> Table:
    """An empty table in the one style of the command."""
    from rich import box  # noqa: PLC0415
    from rich.table import Table  # noqa: PLC0415

    made = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    for column in columns:
        made.add_column(column, justify="right" if column == "seconds" else "left", overflow="fold")
    return made


def print_json(document: Any) -> None:
    """Write the one JSON document of a `--json` run."""
    sys.stdout.write(json.dumps(document, indent=2, sort_keys=False, default=str) + "\n")


@dataclass(frozen=True)
class Step:
    """One finished piece of work."""

    name: str
    seconds: float
    note: str
    """What came of it, in a few words; empty where there is nothing to say."""


class Steps:
    """Shows long work while it goes on and keeps what each step took, for the closing table.

    On a terminal a running step shows a spinner and its seconds; elsewhere each step is a line when it begins and a
    line when it ends, so that a log of CI is readable.
    """

    def __init__(self, *, quiet: bool = False) -> None:
        self.finished: list[Step] = []
        self._console = stderr()
        self._quiet = quiet
        self._note = ""
        self._depth = 0

    @contextlib.contextmanager
    def step(self, name: str, *, spinner: bool = True) -> Iterator[None]:
        """Show and time a piece of work; a step inside a step is part of the outer one.

        Args:
            name: what it is.
            spinner: False where the work draws on the terminal itself.
        """
        self._depth += 1
        begin = time.monotonic()
        self._note = ""
        try:
            if self._depth > 1:
                yield
            else:
                with self._shown(name, spinner=spinner):
                    yield
        except BaseException:
            if self._depth == 1:
                self._line(f"[red]✗[/red] {name} ({time.monotonic() - begin:.1f} s)")
            raise
        finally:
            self._depth -= 1
        if self._depth == 0:
            seconds = time.monotonic() - begin
            self.finished.append(Step(name, seconds, self._note))
            self._line(f"[green]✓[/green] {name} [dim]{seconds:.1f} s{' · ' + self._note if self._note else ''}[/dim]")

    def note(self, text: str) -> None:
        """Say in a few words what came of the running step, or where it stands."""
        self._note = text
        if self._status is not None:
            self._status.update(f"{self._running} [dim]{text}[/dim]")

    def say(self, text: str) -> None:
        """Print a line of its own."""
        self._line(text)

    def closing_table(self) -> Table:
        """What ran and how long each step took."""
        made = table("step", "seconds", "")
        for step in self.finished:
            made.add_row(step.name, f"{step.seconds:.1f}", step.note)
        made.add_section()
        made.add_row("total", f"{sum(step.seconds for step in self.finished):.1f}", "")
        return made

    _status: Any = None
    _running = ""

    @contextlib.contextmanager
    def _shown(self, name: str, *, spinner: bool) -> Iterator[None]:
        self._running = name
        if self._quiet or not spinner or not self._console.is_terminal:
            self._line(f"… {name}")
            yield
            return
        with self._console.status(name) as status:
            self._status = status
            try:
                yield
            finally:
                self._status = None

    def _line(self, text: str) -> None:
        if not self._quiet:
            self._console.print(text)
