"""`trainyard images`: matrix, rendering, checks, builds, images of the local cluster; one module a command."""

from __future__ import annotations

import typer

from infra.cli.images import build, diff, lint, listing, load, matrix, pin, remove, render

app = typer.Typer(
    name="images",
    help="Training images: what can be combined, their Dockerfiles, checks, builds.",
    no_args_is_help=True,
    rich_markup_mode="rich",
)
matrix.register(app)
render.register(app)
load.register(app)
listing.register(app)
remove.register(app)
lint.register(app)
diff.register(app)
build.register(app)
pin.register(app)
