"""`trainyard images load`: the image of an archive becomes one that pods of the local cluster can name."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from infra.cli import console
from infra.cli.options import Json

if TYPE_CHECKING:
    from infra.local.images import ImageStore

_TOLD = 10  # times that a long load says how far it is


def register(app: typer.Typer) -> None:
    """Add this module's command."""
    app.command()(load)


def load(
    archive: Annotated[
        str,
        typer.Argument(metavar="ARCHIVE|TAG", help="An OCI archive, or an image that docker, podman or buildah has."),
    ],
    name: Annotated[
        str | None,
        typer.Option("--name", help="What pods call it; else the tag, or as the archive says: trainyard/training:cpu."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Unpack an image for the local cluster, which runs its pods in it; a cluster that is up knows it at once.

    Example: [bold]trainyard images load training.tar --name trainyard/training:cpu[/bold]
    """
    from infra.local.images import ImageStore  # noqa: PLC0415
    from infra.local.images.clusters import refresh, users  # noqa: PLC0415
    from infra.local.images.names import CHECKOUT_IMAGES  # noqa: PLC0415

    store, steps = ImageStore(), console.Steps()
    begin = time.monotonic()

    def progress(done: int, size: int) -> None:
        steps.note(f"{done * _TOLD // max(size, 1) * (100 // _TOLD)} % of {size / 1e6:.0f} MB")

    with steps.step(f"load {archive}"):
        with _archive(archive, store, steps) as (path, tag):
            image = store.load(
                path,
                name,
                tag=tag,
                reserved=CHECKOUT_IMAGES,
                in_use=lambda image: users(store, image),
                progress=progress,
                note=steps.note,
            )
        clusters = refresh(store, steps.note)
        steps.note(f"{image.name}, {image.size / 1e6:.0f} MB")
    if as_json:
        seconds = round(time.monotonic() - begin, 1)
        console.print_json(image.document() | {"clusters": [str(one) for one in clusters], "seconds": seconds})
        return
    for note in image.notes:
        steps.say(note)
    console.stdout().print(f"{image.name} ({image.pinned}) can be used in pods of the local cluster.", markup=False)


@contextlib.contextmanager
def _archive(source: str, store: ImageStore, steps: console.Steps) -> Iterator[tuple[Path, str | None]]:
    """The archive of that name, else one of the image of that tag, for as long as it is needed; and the tag."""
    from infra.errors import UsageError  # noqa: PLC0415

    path = Path(source).expanduser()
    if path.is_file():
        yield path, None
        return
    if path.exists() or source.startswith((".", "/", "~")) or path.suffix in (".tar", ".oci"):
        what = "a folder" if path.is_dir() else "not there"
        raise UsageError(
            f"{source} is no image archive: it is {what}. Name a file, or an image: trainyard/training:cpu"
        )
    from images.builders import find_tool  # noqa: PLC0415

    with store.scratch() as folder:
        find_tool().save(source, folder / "image.tar", steps.note)
        yield folder / "image.tar", source
