"""A build context: the files that one image is built from, and how they come into a folder."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from images.errors import BuildError
from images.matrix import Row
from infra.errors import UsageError

MARK = ".trainyard-images"
"""In every folder that was written here: only those are replaced."""
_SAID = "Written by `trainyard images render`, which replaces this folder as a whole.\n"


@dataclass(frozen=True)
class Context:
    """Everything that `docker build FOLDER` needs."""

    row: Row
    files: Mapping[str, bytes]
    """Contents by path within the folder."""
    left_out: tuple[str, ...] = ()
    """Files of the user's source that stay out of the image."""

    @property
    def dockerfile(self) -> str:
        """The Dockerfile's text."""
        return self.files["Dockerfile"].decode()

    def write(self, folder: Path, *, force: bool = False) -> None:
        """Write all files; see `write`."""
        write(folder, self.files, force=force)


def write(folder: Path, files: Mapping[str, bytes], *, force: bool = False) -> None:
    """Put files into a new folder, which takes the place of the old one when it is complete.

    Modes and times are the same wherever and whenever it happens, since builders take them into the image.

    Args:
        folder: where to.
        files: contents by path within it.
        force: also replace a folder that was not written here.

    Raises:
        UsageError: there is something else.
        BuildError: it cannot be written.
    """
    folder = Path(os.path.abspath(folder))  # noqa: PTH100 - a link stays the user's own
    new: Path | None = None
    try:
        if not force:
            _refuse_others(folder)
        folder.parent.mkdir(parents=True, exist_ok=True)
        new = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
        _fill(new, {**files, MARK: _SAID.encode()})
        _replace(folder, new)
    except OSError as error:
        raise BuildError(f"{folder} cannot be written: {error.strerror or error}.") from None
    finally:
        if new is not None:
            shutil.rmtree(new, ignore_errors=True)


def _refuse_others(folder: Path) -> None:
    if folder.is_symlink() or (folder.exists() and not folder.is_dir()):
        raise UsageError(f"{folder} is no folder: name one that does not exist yet.")
    if folder.is_dir() and any(folder.iterdir()) and not (folder / MARK).is_file():
        raise UsageError(
            f"{folder} was not written by `trainyard images render`, so it is not replaced: name another folder, or add"
            " --force if everything in it may go."
        )


def _fill(folder: Path, files: Mapping[str, bytes]) -> None:
    for name, content in files.items():
        parts = PurePosixPath(name)
        if parts.is_absolute() or ".." in parts.parts or "\0" in name:
            raise ValueError(f"{name!r} leaves the folder")
        path = folder / parts
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        path.chmod(0o644)
        os.utime(path, (0, 0))
    for path in sorted((folder, *folder.rglob("*")), reverse=True):
        if path.is_dir():
            path.chmod(0o755)
            os.utime(path, (0, 0))


def _replace(folder: Path, new: Path) -> None:
    """Two renames: who reads meanwhile finds the old one, none, or the new one, never a mixture."""
    if folder.is_symlink() or folder.is_file():
        folder.unlink()
    if folder.exists():
        old = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
        folder.replace(old / "old")
        new.replace(folder)
        shutil.rmtree(old)
    else:
        new.replace(folder)
