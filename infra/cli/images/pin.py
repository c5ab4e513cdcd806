"""`trainyard images pin`: digests of the base images, from their registries into the matrix."""

from __future__ import annotations

import datetime
from importlib import resources
from pathlib import Path
from typing import Annotated

import typer

from infra.cli import options
from infra.cli.console import counted, print_json, row, show, stderr, table


def register(app: typer.Typer) -> None:
    """Add this module's command."""
    app.command()(pin)


def pin(
    check: Annotated[
        bool, typer.Option("--check", help="Only compare; exit code 1 if a digest is missing or its tag has moved.")
    ] = False,
    json: options.Json = False,
) -> None:
    """Write the digests that the registries have now for all base images into images/matrix.toml.

    Needs a way to the registries, but no docker and no login. Comments in the file stay.

    Example: [bold]trainyard images pin --check[/bold]
    """
    from images.builders import pins, registry  # noqa: PLC0415
    from images.builders.files import complete  # noqa: PLC0415
    from images.errors import BuildError  # noqa: PLC0415

    file = Path(str(resources.files("images").joinpath("matrix.toml")))
    text = file.read_text(encoding="utf-8")
    found, problems = pins.look(text, registry.digest)
    changed = [one for one in found if one.state in ("new", "moved")]
    if changed and not check:
        with complete(file) as new:
            new.write_text(pins.written(text, found, datetime.datetime.now(datetime.UTC).date()), encoding="utf-8")
    if json:
        document = [{"base": one.name, **one.__dict__, "state": one.state} for one in found]
        print_json({"written": bool(changed) and not check, "bases": document, "problems": problems})
    else:
        shown = table("base", "reference", "state", "digest")
        for one in found:
            row(shown, one.name, one.reference, one.state, one.found or one.written)
        show(shown)
        if changed and not check:
            stderr().print(
                f"{file.name}: {counted(len(changed), 'digest')} written; `trainyard images render` uses them"
            )
    if problems:
        raise BuildError("\n".join(["not all digests could be read:", *(f"  {problem}" for problem in problems)]))
    if check and changed:
        raise typer.Exit(1)
