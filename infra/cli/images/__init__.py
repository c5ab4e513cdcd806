"""`trainyard images`: the matrix, rendering, checks, builds, and the images of the local cluster; one module a command."""

from __future__ import annotations

import typer

app = typer.Typer(
    name="images",
    help="Training images: what can be combined, their Dockerfiles, checks, builds.",
    no_args_is_help=True,
    rich_markup_mode="rich",
)
