"""Files that commands write where the user says: as a whole or not at all, and devices and pipes as what they are."""

from __future__ import annotations

import contextlib
import errno
import os
import tempfile
from pathlib import Path

from infra.errors import TrainyardError, UsageError


def write(file: Path, content: str | bytes, *, private: bool = False) -> None:
    """Write a file; one that was there stays until the new one is complete.

    Args:
        file: where. What is no ordinary file, as `/dev/stdout` or a pipe, is written into, never replaced.
        content: what; text in UTF-8.
        private: only its owner may read it; else who may is up to the umask.

    Raises:
        UsageError: it cannot be written there.
        TrainyardError: the disk is full, or fails.
    """
    data = content if isinstance(content, bytes) else content.encode("utf-8", errors="replace")
    try:
        if file.is_symlink() or (file.exists() and not file.is_file()):
            with file.open("wb") as opened:
                opened.write(data)
        else:
            _replace(file, data, private=private)
    except OSError as error:
        if error.errno in {errno.ENOSPC, errno.EDQUOT, errno.EIO}:
            raise TrainyardError(f"{file} cannot be written: {error.strerror}") from None
        raise UsageError(f"{file} cannot be written: {error.strerror}. Name another file") from None


def _replace(file: Path, data: bytes, *, private: bool) -> None:
    descriptor, name = tempfile.mkstemp(dir=file.absolute().parent, prefix=f".{file.name[:60]}-")
    try:
        with os.fdopen(descriptor, "wb") as opened:
            opened.write(data)
        if not private:  # which it is as made
            mask = os.umask(0)
            os.umask(mask)
            Path(name).chmod(0o666 & ~mask)
        Path(name).replace(file)
    except BaseException:
        with contextlib.suppress(OSError):
            Path(name).unlink()
        raise
