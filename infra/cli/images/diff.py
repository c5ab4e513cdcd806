"""`trainyard images diff`: what a version bump changes in the images."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from infra.cli import console
from infra.cli.options import Json

if TYPE_CHECKING:
    from collections.abc import Sequence

    from images.diff import Change, Difference, State


def register(app: typer.Typer) -> None:
    """Add this module's command."""
    app.command()(diff)


def diff(
    row: Annotated[str | None, typer.Argument(metavar="[ROW]", help="An image. None: all.")] = None,
    to: Annotated[str | None, typer.Option("--to", help="Compare with this row of the same matrix.")] = None,
    against: Annotated[
        str | None, typer.Option("--against", help="Compare with a revision of git; the default is HEAD.")
    ] = None,
    folder: Annotated[
        Path | None, typer.Option("--folder", help="Compare with what `images render` wrote there before.")
    ] = None,
    exit_code: Annotated[bool, typer.Option("--exit-code", help="Exit with 1 where something differs.")] = False,
    as_json: Json = False,
) -> None:
    """Show what a change of the matrix, a template or a lock changes: versions, packages, GPUs, the Dockerfile.

    Example: [bold]trainyard images diff --against main[/bold],
    [bold]trainyard images diff cuda --to torch2.14-cuda13.0[/bold]
    """
    differences, gone, come = _compared(row, to, against, folder)
    if as_json:
        console.print_json(
            {
                "rows_removed": gone,
                "rows_added": come,
                "differences": [dataclasses.asdict(one) for one in differences],
            }
        )
    else:
        _show(differences, gone, come, than=str(to or folder or against or "HEAD"))
    if exit_code and (differences or gone or come):
        raise typer.Exit(1)


def _compared(
    row: str | None, to: str | None, against: str | None, folder: Path | None
) -> tuple[list[Difference], list[str], list[str]]:
    from images.diff import at_revision, compare, in_folder, state_of  # noqa: PLC0415
    from images.matrix import matrix  # noqa: PLC0415
    from images.render import render  # noqa: PLC0415
    from infra.errors import UsageError  # noqa: PLC0415

    if sum(value is not None for value in (to, against, folder)) > 1:
        raise UsageError("--to, --against and --folder are three ways to say what is compared: give one.")
    known = matrix()
    if to is not None:
        if row is None:
            raise UsageError(f"--to {to} needs the row with which it is compared: trainyard images diff ROW --to {to}")
        old, new = (state_of(render(known.row(name))) for name in (row, to))
        return [one for one in [compare(old, new)] if one], [], []
    before = in_folder(folder) if folder is not None else at_revision(against or "HEAD")
    where = str(folder) if folder is not None else against or "HEAD"
    if row is None:
        wanted = {one.name: one for one in known.rows}
        # A folder may hold a few rows only; what it lacks says nothing.
        come = [] if folder is not None else [name for name in wanted if name not in before]
        gone = [name for name in before if name not in wanted]
    else:
        found = known.row(row)
        wanted, gone, come = {found.name: found}, [], []
        if found.name not in before:
            raise UsageError(f"{where} has no row {found.name}. It has: {', '.join(before)}.")
    differences = [
        difference
        for name, one in wanted.items()
        if name in before
        and (difference := compare(_named(before[name], f"{name} ({where})"), state_of(render(one), name)))
    ]
    return differences, gone, come


def _named(state: State, name: str) -> State:
    return dataclasses.replace(state, name=name)


def _show(differences: Sequence[Difference], gone: list[str], come: list[str], *, than: str) -> None:
    said = console.stdout()
    for title, names in (("Rows that are gone", gone), ("New rows", come)):
        if names:
            said.print(f"{title}: {', '.join(names)}", markup=False)
    for one in differences:
        said.print(f"\n{one.old} -> {one.new}", markup=False, style="bold")
        if one.facts:
            _table("fact", one.facts)
        if one.packages:
            _table("package", one.packages)
        for sentence in one.meaning:
            said.print(f"- {sentence}", markup=False)
        if one.dockerfile:
            said.print()
        for line in one.dockerfile:
            said.print(line, markup=False, style=_STYLES.get(line[:1]) if line[:3] not in {"+++", "---"} else "bold")
    if not (differences or gone or come):
        console.stderr().print(f"Nothing differs from {than}.", markup=False)


_STYLES = {"+": "green", "-": "red", "@": "cyan"}


def _table(noun: str, changes: Sequence[Change]) -> None:
    table = console.table(noun, "before", "now")
    for change in changes:
        console.row(table, change.name, change.old or "-", change.new or "-")
    console.show(table)
