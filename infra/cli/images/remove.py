"""`trainyard images remove`: the local cluster forgets a loaded image."""

from __future__ import annotations

from typing import Annotated

import typer

from infra.cli import console
from infra.cli.options import Json


def register(app: typer.Typer) -> None:
    """Add this module's command."""
    app.command()(remove)


def remove(
    name: Annotated[str, typer.Argument(help="A name of `trainyard images list`.")],
    force: Annotated[bool, typer.Option("--force", help="Also while pods run in it: they lose their files.")] = False,
    as_json: Json = False,
) -> None:
    """Forget a loaded image; its files go with its last name.

    Example: [bold]trainyard images remove trainyard/training:cpu[/bold]
    """
    from infra.errors import TrainyardError  # noqa: PLC0415
    from infra.local.images import ImageStore  # noqa: PLC0415
    from infra.local.images.clusters import refresh, users  # noqa: PLC0415

    store, said = ImageStore(), console.stderr()
    image = store.find(name)
    if not force and (pods := users(store, image)):
        raise TrainyardError(
            f"{image.name} is in use by {', '.join(pods)}. Delete the pods first, or take their files from under them:"
            f" trainyard images remove {image.name} --force"
        )

    def note(text: str) -> None:
        said.print(text, markup=False)

    store.remove(image.name, in_use=lambda image: users(store, image), note=note)
    clusters = refresh(store, note)
    if as_json:
        console.print_json({"removed": image.name, "clusters": [str(one) for one in clusters]})
    else:
        console.stdout().print(f"{image.name} is no longer loaded.", markup=False)
