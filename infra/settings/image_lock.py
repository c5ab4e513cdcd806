"""The image lock `images.<stack>.toml`: which images, by digest, were built for a stack and pushed.

`trainyard images build -s STACK --push` writes it beside the stack file, and it is committed like that. Settings take
the controller's image from it, job templates the training images.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import tempfile
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from infra.errors import TrainyardError
from infra.wiring.references import is_pinned, is_reference

CONTROLLER = "controller"
"""The row of the matrix whose image the stack's own pods run."""

_ROW = r"^[a-z0-9]+([._-][a-z0-9]+)*$"
_HEAD = """\
# Images of stack {stack} by digest, by row of the matrix (`trainyard images matrix`). Written by
#   trainyard images build -s {stack} --push
# Commit it: settings and job templates take their images from here.

[images]
"""
_MODE = 0o644


class ImageLockError(TrainyardError):
    """The image lock cannot be read or written; the message says what is wrong and how to mend it."""

    exit_code = 2


def _pinned(reference: str) -> str:
    if not is_pinned(reference):
        raise ValueError("names no digest: it must end with @sha256:… (64 digits)")
    if not is_reference(reference):
        raise ValueError("is no reference of an image, as in registry.example/training:1@sha256:…")
    return reference


Reference = Annotated[str, AfterValidator(_pinned)]
RowName = Annotated[str, Field(pattern=_ROW)]


class ImageLock(BaseModel):
    """References by row of the matrix."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    images: dict[RowName, Reference] = {}

    @property
    def controller(self) -> str | None:
        """The controller's image; None: it was not built yet."""
        return self.images.get(CONTROLLER)


def path_of(folder: Path, stack: str) -> Path:
    """Where the lock of a stack is.

    Args:
        folder: that of the stack file.
        stack: name of the stack.
    """
    return folder / f"images.{stack}.toml"


def build_command(stack: str) -> str:
    """The command that writes the lock."""
    return f"trainyard images build -s {stack} --push"


def read(folder: Path, stack: str) -> ImageLock:
    """The lock of a stack; an empty one where nothing was built.

    Raises:
        ImageLockError: there is a file, and it is none of ours; all that is wrong with it is in the message.
    """
    path = path_of(folder, stack)
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return ImageLock()
    except UnicodeDecodeError:
        raise _damaged(path, "is not UTF-8 text") from None
    except OSError as error:
        raise ImageLockError(f"{path} cannot be read: {error.strerror}") from None
    try:
        return ImageLock.model_validate(tomllib.loads(text))
    except tomllib.TOMLDecodeError as error:
        raise _damaged(path, f"is no TOML: {error}") from None
    except ValidationError as error:
        raise _damaged(path, "; ".join(_said(error))) from None


def record(folder: Path, stack: str, row: str, reference: str) -> Path:
    """Put an image into the lock of a stack, in place of an earlier one of that row.

    Args:
        folder: that of the stack file.
        stack: name of the stack.
        row: name of the row of which it was built.
        reference: of the image in its registry, with its digest.

    Returns:
        The file.

    Raises:
        ImageLockError: the reference has no digest, the file is damaged, or it cannot be written.
    """
    path = path_of(folder, stack)
    try:
        ImageLock.model_validate({"images": {row: reference}})
    except ValidationError as error:
        raise ImageLockError(f"{path} does not take this: {'; '.join(_said(error))}. Nothing was written") from None
    try:
        with _one_at_a_time(folder):
            images = {**read(folder, stack).images, row: reference}
            _replace(
                path, _HEAD.format(stack=stack) + "".join(f'"{name}" = "{images[name]}"\n' for name in sorted(images))
            )
    except OSError as error:
        raise ImageLockError(
            f"{path} cannot be written: {error.strerror}. The image {reference} was pushed and is not in the lock; run"
            f" `{build_command(stack)}` again once it can"
        ) from None
    return path


@contextlib.contextmanager
def _one_at_a_time(folder: Path) -> Iterator[None]:
    """Two builds that end together both find their image in the lock."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _replace(path: Path, text: str) -> None:
    """Whoever reads meanwhile, and whoever is interrupted, has the old file or the new one."""
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fchmod(descriptor, _MODE)
            os.fsync(descriptor)
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def _damaged(path: Path, what: str) -> ImageLockError:
    return ImageLockError(f"{path.name} {what}")


def _said(error: ValidationError) -> list[str]:
    """What pydantic finds wrong, a sentence each."""
    sentences = []
    for problem in error.errors(include_url=False):
        place = [str(part) for part in problem["loc"] if part != "[key]"]
        reason = problem["msg"].removeprefix("Value error, ")
        if problem["type"] == "extra_forbidden":
            reason = "is no key of an image lock"
        elif problem["type"] == "string_pattern_mismatch":
            reason = "is no name of a row"
        elif not isinstance(problem.get("input"), str):
            reason = "must be text" if len(place) > 1 else "must be a table"
        sentences.append(f"{'.'.join(place)} {reason}")
    return sentences
