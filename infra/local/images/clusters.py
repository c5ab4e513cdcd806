"""The local clusters that run now: they are told of images that come and go in their store, and what they use."""

import contextlib
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil

from infra.local.images.store import ImageStore, StoredImage
from infra.local.images.table import STORE, write_table
from infra.local.processes import MARK
from infra.local.state import State

_ENDED = 2  # a container's state, as in the runtime's records (CONTAINER_EXITED of CRI)


def running(store: ImageStore) -> list[State]:
    """The state folders of this user's clusters of which some process runs and that take images from a store."""
    folders = set()
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            if process.uids().real != os.geteuid():
                continue
            folder = process.environ().get(MARK, "").rpartition(":")[0]
            if folder and Path(folder).stat().st_uid == os.geteuid():
                folders.add(Path(folder))
    return [
        State(folder) for folder in sorted(folders) if _read(folder / "images.json").get(STORE) == str(store.folder)
    ]


def refresh(store: ImageStore, note: Callable[[str], None]) -> list[Path]:
    """Tell all running clusters of a store which images there are.

    Returns:
        Their state folders.
    """
    told = []
    for state in running(store):
        with state.lock(note=note):
            if state.path("images.json").exists():  # it may have been erased meanwhile
                write_table(state, store)
                told.append(state.directory)
    return told


def users(store: ImageStore, image: StoredImage) -> list[str]:
    """The pods of running clusters that have a container of this image which has not ended, each with its cluster."""
    found = set()
    for state in running(store):
        for path in state.path("nodes").glob("*/runtime/containers/*/record.json"):
            record = _read(path)
            if record.get("Image") == image.digest and record.get("State") != _ENDED:
                labels = (record.get("Config") or {}).get("labels") or {}
                pod = labels.get("io.kubernetes.pod.name", "a pod")
                space = labels.get("io.kubernetes.pod.namespace")
                found.add(f"{f'{space}/' if space else ''}{pod} ({state.directory.name})")
    return sorted(found)


def _read(path: Path) -> dict[str, Any]:
    try:
        record: Any = json.loads(path.read_bytes())
    except (OSError, ValueError):  # it went away, or is being made
        return {}
    return record if isinstance(record, dict) else {}
