"""`trainyard images list`: the images that were loaded for the local cluster."""

from __future__ import annotations

import typer

from infra.cli import console
from infra.cli.options import Json


def register(app: typer.Typer) -> None:
    """Add this module's command."""
    app.command("list")(list_images)


def list_images(as_json: Json = False) -> None:
    """List the images that were loaded for the local cluster.

    Example: [bold]trainyard images list[/bold]
    """
    from infra.local.images import ImageStore  # noqa: PLC0415

    store = ImageStore()
    images = store.images()
    if as_json:
        console.print_json({"images": [image.document() for image in images], "folder": str(store.folder)})
        return
    if not images:
        console.stdout().print("No image is loaded. Load one: trainyard images load ARCHIVE")
        return
    table = console.table("name", "digest", "MB", "created")
    for image in images:
        console.row(table, image.name, image.digest[:19], f"{image.size / 1e6:.0f}", image.created[:10])
    console.show(table)
    console.stdout().print(f"They are in {store.folder}.", markup=False)
