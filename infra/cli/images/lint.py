"""`trainyard images lint`: what is wrong with the images' Dockerfiles, or with one of yours."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from infra.cli import console
from infra.cli.options import Json

if TYPE_CHECKING:
    from images.lint import Finding


def register(app: typer.Typer) -> None:
    """Add this module's command."""
    app.command()(lint)


def lint(
    rows: Annotated[
        list[str] | None,
        typer.Argument(metavar="[ROW]…", help="Images: names or short names. None: those of the newest torch."),
    ] = None,
    file: Annotated[
        Path | None,
        typer.Option("--file", help="Look at this Dockerfile instead; with a ROW also at that row's facts."),
    ] = None,
    every: Annotated[bool, typer.Option("--all", help="All rows of the matrix.")] = False,
    as_json: Json = False,
    as_sarif: Annotated[bool, typer.Option("--sarif", help="Write SARIF 2.1.0 to stdout, for code hosts.")] = False,
) -> None:
    """Check Dockerfiles: our rules, hadolint, and shellcheck of every RUN. Exit code 1 where there are errors.

    The rules are in docs/reference/image-rules.md.

    Example: [bold]trainyard images lint --all[/bold], [bold]trainyard images lint --file Dockerfile[/bold]
    """
    found = _found(rows or [], file, every=every, formats=(as_json, as_sarif))
    if as_json:
        console.print_json({name: [dataclasses.asdict(one) for one in findings] for name, findings in found.items()})
    elif as_sarif:
        console.print_json(_sarif(found))
    else:
        _show(found)
    if any(one.severity == "error" for findings in found.values() for one in findings):
        raise typer.Exit(1)


def _found(rows: list[str], file: Path | None, *, every: bool, formats: tuple[bool, bool]) -> dict[str, list[Finding]]:
    from images.lint import lint_all, lint_text  # noqa: PLC0415
    from images.lint.document import read  # noqa: PLC0415
    from images.matrix import matrix  # noqa: PLC0415
    from infra.errors import UsageError  # noqa: PLC0415

    if all(formats):
        raise UsageError("--json and --sarif were given: stdout has room for one document.")
    if every and (rows or file):
        raise UsageError("--all is all rows: leave it out, or the rows and the file.")
    if file is not None:
        if len(rows) > 1:
            raise UsageError("one file is held against one row at most: name one.")
        row = matrix().row(rows[0]) if rows else None
        return {str(file): lint_text(read(file), name=str(file), row=row)}
    from images.render import render  # noqa: PLC0415

    known = matrix()
    wanted = [known.row(name) for name in rows] or [row for row in known.rows if every or row.aliases]
    return lint_all({row.name: render(row) for row in wanted})


def _sarif(found: dict[str, list[Finding]]) -> dict[str, Any]:
    from images.lint.sarif import sarif  # noqa: PLC0415

    return sarif(found)


def _show(found: dict[str, list[Finding]]) -> None:
    errors = warnings = 0
    table = console.table("where", "severity", "rule", "found", "remedy")
    for name, findings in found.items():
        for one in findings:
            errors += one.severity == "error"
            warnings += one.severity == "warning"
            place = name if one.file in {"Dockerfile", name} else f"{name}/{one.file}"
            console.row(table, f"{place}:{one.line}", one.severity, one.rule, one.message, one.remedy)
    if errors or warnings:
        console.show(table)
    checked = console.counted(len(found), "Dockerfile")
    console.stderr().print(
        f"{checked}: {console.counted(errors, 'error')}, {console.counted(warnings, 'warning')}.", markup=False
    )
