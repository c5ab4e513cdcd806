"""Options of `render` and `build` that add to a row, so that they are spelled and explained once."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from images.render import Options

Requirements = Annotated[
    Path | None,
    typer.Option(
        "--requirements",
        metavar="FILE",
        help="Locked requirements (uv pip compile --generate-hashes), installed beside the row's own.",
    ),
]
Source = Annotated[
    Path | None, typer.Option("--source", metavar="FOLDER", help="Your code; it is at /workspace in the image.")
]
Apt = Annotated[
    list[str] | None,
    typer.Option("--apt", metavar="PACKAGE", help="A package of the distribution; may be given several times."),
]
Compile = Annotated[
    bool,
    typer.Option("--compile", help="Some of the requirements are compiled with nvcc: adds a builder that has it."),
]
Base = Annotated[
    str | None,
    typer.Option("--base-image", metavar="REFERENCE", help="Take this base image: a mirror of yours, or a local one."),
]


def spelled(options: Options) -> str:
    """These options as they are typed, each with a space before it."""
    given = [
        *(["--base-image", options.base] if options.base else []),
        *(["--requirements", str(options.requirements)] if options.requirements else []),
        *(["--source", str(options.source)] if options.source else []),
        *(word for package in options.apt for word in ("--apt", package)),
        *(["--compile"] if options.compile else []),
    ]
    return "".join(f" {shlex.quote(word)}" for word in given)
