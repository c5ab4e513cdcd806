"""The few system calls by which a checkpoint comes to be: nothing else in this room changes a disk.

They are all here and go through `os`, so that a test can end the process, or fill the disk, at each one.
"""

import contextlib
import hashlib
import os
import stat
from pathlib import Path


class NewFile:
    """A file that did not exist before, written from front to back; its digest is made on the way.

    Raises:
        OSError: it exists, or the disk refuses.
    """

    def __init__(self, path: Path) -> None:
        self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
        self._digest = hashlib.sha256()
        self.size = 0
        # Kept, because `torch.save` hides what its file says behind an error of its own.
        self.refusal: OSError | None = None

    def write(self, data: bytes | memoryview) -> int:
        """Write all of it."""
        rest = memoryview(data).cast("B")
        length = len(rest)
        self._digest.update(rest)
        try:
            while rest:
                rest = rest[os.write(self._descriptor, rest) :]
        except OSError as error:
            self.refusal = error
            raise
        self.size += length
        return length

    def flush(self) -> None:
        """For `torch.save`, which asks for it; nothing is held back here."""

    def sync(self) -> str:
        """Let the disk have it for good; returns the SHA-256 of the contents."""
        os.fsync(self._descriptor)
        return self._digest.hexdigest()

    def __enter__(self) -> "NewFile":
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._descriptor)


def write_synced(path: Path, data: bytes | memoryview) -> str:
    """Write a new file and wait until the disk has it; returns its SHA-256."""
    with NewFile(path) as file:
        file.write(data)
        return file.sync()


def make_folder(path: Path) -> None:
    """Make a folder that did not exist before."""
    path.mkdir()


def rename(old: Path, new: Path) -> None:
    """Give a file or folder another name, in one moment for all who look. An empty folder or a file gives way."""
    old.rename(new)


def sync_folder(path: Path) -> None:
    """Wait until the disk has the names in a folder."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def remove(path: Path) -> None:
    """Delete a file, or a folder with all its files; what cannot be deleted stays, for the next who tidies up."""
    with contextlib.suppress(OSError):
        if not stat.S_ISDIR(path.lstat().st_mode):
            path.unlink()
            return
        for inside in path.iterdir():
            remove(inside)
        path.rmdir()
