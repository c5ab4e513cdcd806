"""`trainyard engines`: which engines serve, building them, and moving built ones between computers."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from infra.cli import console
from infra.cli.options import Json

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from infra.local.engines import BuildProgress
    from infra.local.engines.doctor import DoctorRow

app = typer.Typer(help="The programs of the local cluster: Pulumi, Kubernetes, etcd, the process runtime.")

PLAIN_LINE_SECONDS = 30  # in a log, one line per engine and half minute


@app.command("list")
def list_engines(as_json: Json = False) -> None:
    """Show each engine: where from, which version, and what to install to skip its build.

    Example: trainyard engines list
    """
    from infra.local.engines.cache import engines_directory  # noqa: PLC0415
    from infra.local.engines.doctor import doctor_rows  # noqa: PLC0415

    rows = doctor_rows()
    if as_json:
        console.print_json({"engines": [row.document() for row in rows]})
        return
    table = console.table("engine", "from", "version", "")
    for row in rows:
        console.row(table, row.name, row.origin, row.version, _note(row))
    console.show(table)
    console.stdout().print(f"The cache is {engines_directory()}. Ways round a build: docs/how-to/engines.md")


@app.command()
def build(
    names: Annotated[list[str] | None, typer.Argument(help="Which engines; all that are missing without any.")] = None,
    as_json: Json = False,
) -> None:
    """Build what is neither on PATH nor in the cache; an interrupted build goes on where it was.

    Example: trainyard engines build
    """
    from infra.local import engines  # noqa: PLC0415

    wanted = known_names(names)
    begin = time.monotonic()
    with build_progress() as progress:
        found = engines.ensure(wanted, progress)
    if as_json:
        document = [
            {"name": e.name, "version": e.version, "from": e.origin, "path": str(e.path)} for e in found.values()
        ]
        console.print_json({"engines": document, "seconds": round(time.monotonic() - begin, 1)})
        return
    console.stderr().print(f"ready: {', '.join(found)} ({time.monotonic() - begin:.1f} s).")


@app.command()
def pack(
    file: Annotated[Path, typer.Argument(help="The archive to write: .tar.gz, or .tar.zst where zstd is installed.")],
    as_json: Json = False,
) -> None:
    """Put the built engines of this checkout into one file, with a checksum for each.

    Example: trainyard engines pack engines.tar.gz
    """
    from infra.local.engines.archive import pack as write_archive  # noqa: PLC0415

    packed = write_archive(file)
    size = file.stat().st_size
    if as_json:
        console.print_json({"file": str(file), "bytes": size, "engines": packed})
        return
    console.stderr().print(f"{file}: {', '.join(packed)} ({size / 1e6:.0f} MB)")


@app.command()
def unpack(
    file: Annotated[Path, typer.Argument(help="An archive that `trainyard engines pack` wrote.")],
    as_json: Json = False,
) -> None:
    """Take built engines from an archive into the cache; checksums are verified first.

    Example: trainyard engines unpack engines.tar.gz
    """
    from infra.local.engines.archive import unpack as read_archive  # noqa: PLC0415

    unpacked = read_archive(file)
    if as_json:
        console.print_json({"engines": unpacked.taken, "left_out": unpacked.left_out})
        return
    console.stderr().print(f"taken: {', '.join(unpacked.taken)}")
    for name, why in unpacked.left_out.items():
        console.stderr().print(f"left out: {name}: {why}")


@app.command()
def key(as_json: Json = False) -> None:
    """Print the key under which a CI system should cache the packed engines.

    It changes with the locks and the platform, not with this project's own sources, which build in seconds.

    Example: trainyard engines key
    """
    from infra.local.engines.archive import ci_key  # noqa: PLC0415

    if as_json:
        console.print_json({"key": ci_key()})
        return
    typer.echo(ci_key())


@app.command()
def prune(as_json: Json = False) -> None:
    """Remove built engines that this checkout does not use (older locks, sources, Go versions) and that do not run.

    Example: trainyard engines prune
    """
    from infra.local.engines import cache  # noqa: PLC0415

    removed = cache.prune()
    if as_json:
        document = [{"name": build.name, "folder": str(build.folder), "bytes": size} for build, size in removed]
        console.print_json({"removed": document})
        return
    for build, size in removed:
        console.stderr().print(f"removed {build.folder} ({size / 1e6:.0f} MB)")
    if not removed:
        console.stderr().print("nothing to remove")


def _note(row: DoctorRow) -> str:
    if row.origin == "missing":
        cost = (
            f"builds in about {_duration(row.build_seconds)} on two cores" if row.build_seconds else "built with pulumi"
        )
        return f"{cost}; to skip that, {row.remedy}" if row.remedy else cost
    return "" if row.origin == "cache" else str(row.path)


def known_names(names: list[str] | None) -> list[str]:
    """The names as asked for, or all.

    Raises:
        typer.BadParameter: for a name that is no engine, with the nearest that is.
    """
    import difflib  # noqa: PLC0415

    from infra.local.engines import EVERY_ENGINE  # noqa: PLC0415

    for name in names or []:
        if name not in EVERY_ENGINE:
            near = difflib.get_close_matches(name, EVERY_ENGINE, n=1)
            hint = f" (did you mean {near[0]}?)" if near else ""
            raise typer.BadParameter(f"{name} is no engine{hint}; engines: {', '.join(EVERY_ENGINE)}")
    return list(names or EVERY_ENGINE)


@contextlib.contextmanager
def build_progress() -> Iterator[BuildProgress]:
    """Draws builds on stderr: a live table on a terminal, a line now and then elsewhere."""
    shown_on = console.stderr()
    if not shown_on.is_terminal:
        yield PlainProgress(shown_on)
        return
    from rich.live import Live  # noqa: PLC0415

    progress = TableProgress(shown_on)
    with Live(get_renderable=progress.table, console=shown_on, refresh_per_second=4):
        yield progress


class PlainProgress:
    """Lines for a log: when a build begins, every half minute, and when it ends."""

    def __init__(self, shown_on: Console) -> None:
        self._console = shown_on
        self._began: dict[str, float] = {}
        self._told: dict[str, float] = {}

    def note(self, text: str) -> None:
        """See `BuildProgress.note`."""
        self._console.print(text)

    def started(self, name: str, seconds: int) -> None:
        """See `BuildProgress.started`."""
        self._began[name] = self._told[name] = time.monotonic()
        self._console.print(f"building {name} (about {_duration(seconds)} on two cores when nothing is cached)")

    def log(self, name: str, line: str) -> None:
        """See `BuildProgress.log`."""
        now = time.monotonic()
        if now - self._told[name] >= PLAIN_LINE_SECONDS:
            self._told[name] = now
            self._console.print(f"building {name}: {_duration(now - self._began[name])}, {line}", markup=False)

    def finished(self, name: str, seconds: float) -> None:
        """See `BuildProgress.finished`."""
        self._console.print(f"built {name} in {_duration(seconds)}")


class TableProgress:
    """One row per engine, with its elapsed time and the package that was compiled last."""

    def __init__(self, shown_on: Console) -> None:
        self._console = shown_on
        self._rows: dict[str, _Row] = {}

    def note(self, text: str) -> None:
        """See `BuildProgress.note`."""
        self._console.print(text)

    def started(self, name: str, seconds: int) -> None:
        """See `BuildProgress.started`."""
        self._rows[name] = _Row(time.monotonic(), seconds)

    def log(self, name: str, line: str) -> None:
        """See `BuildProgress.log`."""
        self._rows[name].line = line
        self._rows[name].lines += 1

    def finished(self, name: str, seconds: float) -> None:
        """See `BuildProgress.finished`."""
        self._rows[name].took = seconds

    def table(self) -> Table:
        """The present state."""
        from rich.table import Table  # noqa: PLC0415
        from rich.text import Text  # noqa: PLC0415

        table = Table.grid(padding=(0, 2))
        for name, row in list(self._rows.items()):
            done = row.took is not None
            elapsed = row.took if row.took is not None else time.monotonic() - row.began
            detail = (
                "" if done else f"of about {_duration(row.expected)} if nothing is cached · {row.line or 'loading'}"
            )
            table.add_row(
                "[green]✓[/green]" if done else "…",
                name,
                _duration(elapsed),
                Text("" if done else detail, style="dim", overflow="ellipsis", no_wrap=True),
            )
        return table


class _Row:
    def __init__(self, began: float, expected: int) -> None:
        self.began = began
        self.expected = expected
        self.took: float | None = None
        self.line = ""
        self.lines = 0


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest:02} s" if minutes else f"{rest} s"
