"""The image table of a local cluster: the checkout's own images, and the loaded ones.

The process runtime reads it again when it changes, so a loaded image can be used at once.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from infra.local.images.store import ImageStore, StoredImage
from infra.local.state import State

CHECKOUT = "checkout"
"""The table's key for the checkout's own images as they are without loaded ones; the process runtime ignores it."""
STORE = "store"
"""The table's key for the folder of the store that its loaded images are in."""


def write_table(state: State, store: ImageStore, checkout: Mapping[str, Mapping[str, Any]] | None = None) -> None:
    """Write a cluster's image table. A loaded image takes the place of one of the checkout's that has its name.

    Args:
        state: The cluster's folder.
        store: The loaded images.
        checkout: The checkout's own images; those that the table knows, where none are given.
    """
    path = state.path("images.json")
    if checkout is None:
        known = state.read_json(path)
        checkout = known.get(CHECKOUT, {}) if isinstance(known, dict) else {}
    state.write_json(
        path, {"images": {**checkout, **entries(store.images())}, CHECKOUT: checkout, STORE: str(store.folder)}
    )


def entries(images: Iterable[StoredImage]) -> dict[str, dict[str, Any]]:
    """The table's entries of loaded images."""
    return {image.name: _entry(image) for image in images}


def _entry(image: StoredImage) -> dict[str, Any]:
    config = image.config
    environment = dict(variable.partition("=")[::2] for variable in config.get("Env") or ())
    return {
        "rootfs": str(image.rootfs),
        "digest": image.digest,
        "entrypoint": list(config.get("Entrypoint") or ()),
        "cmd": list(config.get("Cmd") or ()),
        "environment": environment,
        "workingDir": config.get("WorkingDir") or "",
        "user": config.get("User") or "",
        "stopSignal": config.get("StopSignal") or "",
        "size": image.size,
    }
