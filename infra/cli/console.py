"""What the command shows: results on stdout (one JSON document with `--json`), everything else on stderr."""

from __future__ import annotations

import contextlib
import json
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import typer

from infra.errors import UsageError

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress
    from rich.table import Table


_WIDTH_OF_LOGS = 200
_PROSE = ("", "message", "found", "remedy", "because of")
"""Columns of sentences, which may be wrapped; names may not."""
_LEAST_PROSE = 20  # characters of a line of a sentence, where the terminal is too narrow for everything


def stderr() -> Console:
    """The console for progress and messages; colours only on a terminal, none with NO_COLOR."""
    from rich.console import Console  # noqa: PLC0415 - rich costs 50 ms that `--json` and completion need not pay

    return Console(stderr=True, highlight=False, soft_wrap=True)


def stdout() -> Console:
    """The console for results."""
    from rich.console import Console  # noqa: PLC0415

    # A log or a pipe has no width: tables there are as wide as they need.
    return Console(highlight=False, soft_wrap=True, width=None if sys.stdout.isatty() else _WIDTH_OF_LOGS)


def table(*columns: str, title: str | None = None) -> Table:
    """An empty table in the one style of the command."""
    from rich import box  # noqa: PLC0415
    from rich.table import Table  # noqa: PLC0415

    made = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    for column in columns:
        prose = column in _PROSE
        made.add_column(column, justify="right" if column == "seconds" else "left", overflow="fold", no_wrap=not prose)
    return made


def row(shown: Table, *cells: object) -> None:
    """Add a row of data. Data is never markup: a message with `[brackets]` is shown as it is."""
    from rich.cells import cell_len  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    made = [cell if isinstance(cell, Text) else Text("" if cell is None else str(cell)) for cell in cells]
    for column, cell in zip(shown.columns, made, strict=True):
        longest = max(map(cell_len, [*cell.plain.splitlines(), str(column.header)]))
        least = longest if column.no_wrap else min(longest, _LEAST_PROSE)
        column.min_width = max(column.min_width or 0, least)
    shown.add_row(*made)


def show(shown: Table) -> None:
    """Print a table as a result. Names are never cut: where the terminal is too narrow, the table is wider than it."""
    console = stdout()
    least = sum(column.min_width or 0 for column in shown.columns)
    between = 3 * len(shown.columns) - 1  # a space on each side of a column and between two, and the edges
    console.width = max(console.width, least + between)
    console.print(shown)


def confirm(question: str, *, yes: bool) -> None:
    """Ask before something is lost.

    Args:
        question: ends with a question mark.
        yes: it was answered with `--yes`.

    Raises:
        UsageError: there is nobody to ask.
        typer.Exit: the answer is no.
    """
    if yes:
        return
    if sys.stdin is None or not sys.stdin.isatty():  # None: closed by who started this
        raise UsageError(f"{question} There is no terminal to ask: add --yes.")
    if not typer.confirm(question, err=True):
        raise typer.Exit(1)


def counted(number: int, noun: str) -> str:
    """`1 node`, `2 nodes`."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def escape(text: str) -> str:
    """Text that came from elsewhere, safe to print with the console's markup."""
    from rich.markup import escape as escaped  # noqa: PLC0415

    return escaped(text)


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
    """Shows long work on stderr while it goes on, and keeps what each step took for the closing table.

    On a terminal a running step shows a spinner and its time; elsewhere each step is a line when it begins, lines for
    what it says on the way, and a line when it ends, so that a log of CI is readable.
    """

    def __init__(self) -> None:
        self.finished: list[Step] = []
        self._console = stderr()
        self._note = ""
        self._depth = 0
        self._running = ""
        self._status: Progress | None = None
        self._task: Any = None

    @contextlib.contextmanager
    def step(self, name: str, *, spinner: bool = True) -> Iterator[None]:
        """Show and time a piece of work; a step inside a step is part of the outer one.

        Args:
            name: what it is.
            spinner: False where the work draws on the terminal itself.
        """
        if self._depth:
            yield
            return
        self._depth, self._note = 1, ""
        begin = time.monotonic()
        try:
            with self._shown(name, spinner=spinner):
                yield
        except BaseException as error:
            self._line("[red]✗[/red]", name, f"{time.monotonic() - begin:.1f} s")
            if not isinstance(error, Exception):
                self.say("Interrupted. What was done is kept; the same command goes on from here.")
            raise
        finally:
            self._depth = 0
        seconds = time.monotonic() - begin
        self.finished.append(Step(name, seconds, self._note))
        self._line("[green]✓[/green]", name, f"{seconds:.1f} s{' · ' + self._note if self._note else ''}")

    def note(self, text: str) -> None:
        """Say in a few words where the running step stands, or what came of it."""
        if text == self._note:
            return
        self._note = text
        if self._status is not None:
            self._status.update(self._task, description=f"{escape(self._running)} [dim]{escape(text)}[/dim]")
        elif not self._console.is_terminal:
            self._line(" ", "", text)

    def say(self, text: str) -> None:
        """Print a line of its own."""
        self._console.print(text, markup=False)

    def closing_table(self) -> Table:
        """What ran and how long each step took."""
        made = table("step", "seconds", "")
        for step in self.finished:
            row(made, step.name, f"{step.seconds:.1f}", step.note)
        made.add_section()
        row(made, "total", f"{sum(step.seconds for step in self.finished):.1f}", "")
        return made

    @contextlib.contextmanager
    def _shown(self, name: str, *, spinner: bool) -> Iterator[None]:
        self._running = name
        if not spinner or not self._console.is_terminal:
            self._line("…", name, "")
            yield
            return
        from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn  # noqa: PLC0415

        columns = SpinnerColumn(), TimeElapsedColumn(), TextColumn("{task.description}")
        with Progress(*columns, console=self._console, transient=True) as status:
            self._task = status.add_task(escape(name), total=None)
            self._status = status
            try:
                yield
            finally:
                self._status = None

    def _line(self, mark: str, name: str, aside: str) -> None:
        self._console.print(f"{mark} {escape(name)} [dim]{escape(aside)}[/dim]".rstrip())
