"""Files and folders that a build reads and writes."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator
from pathlib import Path

from images.builders.failures import of_file
from images.errors import BuildError


def require_context(context: Path) -> None:
    """Is there something to build?

    Raises:
        BuildError: no folder, or no Dockerfile in it.
    """
    if not context.is_dir():
        raise BuildError(f"there is no folder {context} to build; `trainyard images render ROW -o FOLDER` writes one")
    if not (context / "Dockerfile").is_file():
        raise BuildError(f"{context} has no Dockerfile; `trainyard images render ROW -o FOLDER` writes one")


@contextlib.contextmanager
def complete(file: Path) -> Iterator[Path]:
    """A path to write to that becomes `file` when all of it is there, and nothing when not.

    Raises:
        BuildError: it cannot be written there.
    """
    file = file.absolute()
    try:
        with tempfile.TemporaryDirectory(dir=file.parent, prefix=f".{file.name}.") as folder:
            new = Path(folder) / file.name
            yield new
            new.replace(file)
    except OSError as error:
        raise BuildError(of_file(error, file)) from None
