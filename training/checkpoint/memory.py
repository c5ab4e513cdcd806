"""Places in memory that belong to no process: who holds one, and when it is free again. Needs no torch."""

import contextlib
import fcntl
import hashlib
import os
import re
import shutil
import time
from datetime import timedelta
from pathlib import Path
from typing import Final

from training.launch.environment import MEMORY

_SHARED_MEMORY: Final = Path("/dev/shm")  # noqa: S108  (a folder of our own in it, which nobody else may enter)
# What nobody has held or written for so long, and belongs to another run, is left over from a crash.
LEFT_BEHIND: Final = timedelta(minutes=10)
# Writers of one run on one machine.
MOST_PLACES: Final = 64
# The places that this process holds, by the file that says so.
_held: dict[Path, int] = {}


def base() -> Path:
    """The folder below which replicas lie."""
    return Path(os.environ.get(MEMORY) or _SHARED_MEMORY)


def folder_of(run: str, name: str = "") -> str:
    """Name of the folder of a run."""
    digest = hashlib.sha256(run.encode()).hexdigest()[:16]
    return f"{_prefix()}{digest}" + (f"-{re.sub(r'[^A-Za-z0-9_.]', '_', name)}" if name else "")


def take(folder: Path) -> Path:
    """Take the first place in a folder that no living process holds, until `release` or our end.

    Raises:
        OSError: there is none, or memory refuses.
    """
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    for number in range(MOST_PLACES):
        path = folder / str(number)
        path.mkdir(mode=0o700, exist_ok=True)
        if _hold(path):
            return path
    raise OSError(f"{MOST_PLACES} processes hold all places")


def release(place: Path, *, remove: bool) -> None:
    """Let go of a place, with or without what is in it."""
    if remove:
        shutil.rmtree(place, ignore_errors=True)
    os.close(_held.pop(place))
    with contextlib.suppress(OSError):  # others have places there
        place.parent.rmdir()


def free(run: str, root: Path | None = None) -> None:
    """Free what workers of a run have left in this node's memory: for who has started them, when none will follow."""
    above = base() if root is None else root
    for folder in above.glob(f"{folder_of(run)}*"):
        _remove_if_free(folder)


def sweep(above: Path, *, but: Path) -> None:
    """Free what crashes have left behind, of other runs than one; what anybody holds or has lately written stays."""
    oldest = time.time() - LEFT_BEHIND.total_seconds()
    for folder in above.glob(f"{_prefix()}*"):
        with contextlib.suppress(OSError):
            if folder != but and max(path.stat().st_mtime for path in (folder, *folder.rglob("*"))) < oldest:
                _remove_if_free(folder)


def _prefix() -> str:
    return f"trainyard-{os.getuid()}-"


def _hold(place: Path) -> bool:
    """Take a lock that ends with this process, and that its children do not inherit.

    Such locks do not keep a process from itself, and end when it closes the file once: so our own are remembered.
    """
    if place in _held:
        return False
    descriptor = os.open(place / "held", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        return False
    _held[place] = descriptor
    return True


def _remove_if_free(folder: Path) -> None:
    taken: list[Path] = []
    try:
        for place in folder.iterdir():
            if not _hold(place):
                return
            taken.append(place)
        shutil.rmtree(folder, ignore_errors=True)
    except OSError:  # its owner was quicker
        return
    finally:
        for place in taken:
            os.close(_held.pop(place))
