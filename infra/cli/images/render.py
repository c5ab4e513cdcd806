"""`trainyard images render`: the Dockerfile of an image, or everything that its build needs, in a folder."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from infra.cli import console
from infra.cli.images import additions
from infra.cli.options import Json

if TYPE_CHECKING:
    from images.context import Context
    from images.render import Options


def register(app: typer.Typer) -> None:
    """Add this module's command."""
    app.command()(render)


def render(
    rows: Annotated[
        list[str] | None,
        typer.Argument(metavar="[ROW]…", help="Images: names or short names, see `trainyard images matrix`."),
    ] = None,
    every: Annotated[bool, typer.Option("--all", help="All rows of the matrix.")] = False,
    output: Annotated[
        Path | None,
        typer.Option(
            "-o",
            "--output",
            help="Write what `docker build FOLDER/ROW` needs for each image, and docker-bake.json for all.",
            metavar="FOLDER",
        ),
    ] = None,
    requirements: additions.Requirements = None,
    source: additions.Source = None,
    apt: additions.Apt = None,
    compile_: additions.Compile = False,
    base: additions.Base = None,
    force: Annotated[bool, typer.Option("--force", help="Replace the folder whatever is in it.")] = False,
    as_json: Json = False,
) -> None:
    """Print the Dockerfile of an image; with -o write what builds need: `docker build FOLDER/ROW` is enough.

    Example: [bold]trainyard images render efa[/bold],
    [bold]trainyard images render cuda controller -o build --requirements requirements.txt --source src[/bold]
    """
    from images.bake import bake  # noqa: PLC0415
    from images.context import write  # noqa: PLC0415
    from images.matrix import matrix  # noqa: PLC0415
    from images.render import Options, render  # noqa: PLC0415

    wanted = _wanted(rows or [], every=every, output=output)
    known = matrix()
    options = Options(requirements=requirements, source=source, apt=tuple(apt or ()), compile=compile_, base=base)
    contexts = {row.name: render(row, options) for row in map(known.row, wanted or _names())}
    _warn(contexts, options)
    if output is not None:
        files = {f"{name}/{path}": data for name, one in contexts.items() for path, data in one.files.items()}
        files["docker-bake.json"] = (json.dumps(bake(contexts), indent=2) + "\n").encode()
        write(output, files, force=force)
    if as_json:
        documents = [_document(one, output) for one in contexts.values()]
        console.print_json(documents if output is not None or len(documents) != 1 else documents[0])
    elif output is None:
        sys.stdout.write(next(iter(contexts.values())).dockerfile)
    else:
        said = console.stderr()
        said.print(
            f"Written: {console.counted(len(contexts), 'image')} and docker-bake.json in {output}.", markup=False
        )
        # One line however long: it is there to be copied.
        said.print(f"Next: docker buildx bake, in {output}; or:", markup=False)
        names = " ".join(contexts) if rows else next(iter(contexts))
        said.print(
            f"  trainyard images build {names}{additions.spelled(options)}",
            markup=False,
            soft_wrap=True,
        )


def _names() -> list[str]:
    from images.matrix import matrix  # noqa: PLC0415

    return [row.name for row in matrix().rows]


def _wanted(rows: list[str], *, every: bool, output: Path | None) -> list[str]:
    """Names of rows; none for all of them."""
    from infra.errors import UsageError  # noqa: PLC0415

    if every and rows:
        raise UsageError("--all is all rows: leave it out, or the names.")
    if not every and not rows:
        raise UsageError("no image was named: `trainyard images matrix` shows them, --all takes them all.")
    if output is None and (every or len(rows) > 1):
        raise UsageError("one Dockerfile at a time is printed: name one image, or a folder with -o.")
    return rows


def _warn(contexts: dict[str, Context], options: Options) -> None:
    said = console.stderr()
    left_out = dict.fromkeys(name for context in contexts.values() for name in context.left_out)
    if left_out:
        said.print(
            f"Left out, since names that begin with a dot are never copied: {', '.join(left_out)}.",
            markup=False,
        )
    if options.base is not None:
        if "@sha256:" not in options.base and not options.base.startswith("localhost/"):
            said.print(f"{options.base} has no digest: tomorrow it can be another image.", markup=False)
        return
    unpinned = dict.fromkeys(sentence for context in contexts.values() for sentence in context.row.unpinned)
    if unpinned:
        said.print(
            f"Not pinned: {'; '.join(unpinned)}. `trainyard images pin` writes digests into the matrix.",
            markup=False,
        )


def _document(context: Context, output: Path | None) -> dict[str, Any]:
    return {
        "row": context.row.name,
        "folder": None if output is None else str(output / context.row.name),
        "facts": json.loads(context.files["image.json"]),
        "unpinned": list(context.row.unpinned),
        "left_out": list(context.left_out),
        "files": {name: len(data) for name, data in context.files.items()},
        "dockerfile": context.dockerfile,
    }
