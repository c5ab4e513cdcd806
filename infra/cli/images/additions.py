"""Options of `render` and `build` that add to a row, so that they are spelled and explained once."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

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
