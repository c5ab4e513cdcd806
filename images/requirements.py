"""Locked requirements of an image: which lines of a lock it takes, and what of the user's own can be added to them."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

_HEAD = re.compile(r"^(?P<name>[A-Za-z0-9][A-Za-z0-9._-]*)(\[[^\]]*\])?\s*==\s*(?P<version>[^\s;\\]+)")
_HASH = re.compile(r"--hash=sha256:[0-9a-f]{64}\b")
BUILD_TOOLS = frozenset(
    {"cmake", "cython", "hatchling", "meson", "meson-python", "ninja", "packaging", "psutil", "pybind11"}
    | {"scikit-build-core", "setuptools", "setuptools-scm", "wheel"}
)
"""What packages need while they are compiled: installed before them, since nothing is fetched then."""
OF_TORCH = re.compile(r"^(torch|triton|pytorch-triton|nvidia-.+|cuda-(bindings|toolkit|pathfinder))$")
"""Packages that decide which CUDA and NCCL run."""


@dataclass(frozen=True)
class Requirement:
    """One package of a lock with its hashes."""

    name: str
    """As PyPI compares names: lower case, hyphens."""
    version: str
    text: str
    """Its lines, as they stand in the file."""
    line: int
    """Where they begin."""


def parse(text: str, file: str) -> tuple[list[Requirement], list[str]]:
    """Read a lock.

    Args:
        text: what `uv pip compile --generate-hashes` writes.
        file: its name, for messages.

    Returns:
        The requirements in their order, and a sentence for everything that is no locked requirement.
    """
    found: list[Requirement] = []
    mistakes: list[str] = []
    for number, block in _blocks(text):
        head = _HEAD.match(block)
        first = block.splitlines()[0].strip()
        if block.startswith("-"):
            mistakes.append(
                f"{file}, line {number}: {first!r} is an option. Indexes are given to the build (see "
                "`trainyard images build --help`), so that no address stays in an image; other files are put together"
                " by `uv pip compile`."
            )
        elif head is None:
            mistakes.append(f"{file}, line {number}: {first!r} is not locked as NAME==VERSION.")
        elif not _HASH.search(block):
            mistakes.append(f"{file}, line {number}: {head['name']} has no hash.")
        else:
            found.append(_requirement(head, block, number))
    return found, mistakes


def named(text: str) -> list[Requirement]:
    """Whatever a text locks as NAME==VERSION, also without a hash: for who looks at the versions only."""
    return [_requirement(head, block, number) for number, block in _blocks(text) if (head := _HEAD.match(block))]


def _requirement(head: re.Match[str], block: str, number: int) -> Requirement:
    return Requirement(normalized(head["name"]), head["version"], block, number)


def normalized(name: str) -> str:
    """A package's name as PyPI compares it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def _blocks(text: str) -> Iterable[tuple[int, str]]:
    """Requirements with their continued lines, and the line on which each begins; without comments."""
    lines: list[str] = []
    begin = 0
    for number, line in enumerate(text.splitlines(), start=1):
        bare = re.sub(r"(^|\s+)#.*$", "", line).rstrip()
        if not lines and not bare.strip():
            continue
        if not lines:
            begin = number
        lines.append(bare if lines else bare.lstrip())
        if not bare.endswith("\\"):
            yield begin, "\n".join(lines).rstrip("\\ \n")
            lines = []
    if lines:
        yield begin, "\n".join(lines).rstrip("\\ \n")


def without(lock: Iterable[Requirement], names: Iterable[str]) -> list[Requirement]:
    """A lock without some packages."""
    left_out = {normalized(name) for name in names}
    return [one for one in lock if one.name not in left_out]


def added(
    wanted: Iterable[Requirement], lock: Iterable[Requirement], file: str, *, bundled: bool
) -> tuple[list[Requirement], list[str]]:
    """What of the user's requirements is installed beside a row's lock.

    Args:
        wanted: the user's requirements.
        lock: the row's own.
        file: the name of the user's file, for messages.
        bundled: torch comes with the base image: its packages are not in the lock, and yet cannot be replaced.

    Returns:
        The packages that the lock lacks, and a sentence for each that would change what the lock has.
    """
    versions: dict[str, set[str]] = {}
    for one in lock:
        versions.setdefault(one.name, set()).add(one.version)
    mistakes = [
        f"{file}: {one.name}=={one.version}, but this image has {', '.join(sorted(versions[one.name]))}. Lock yours "
        "together with the image's: uv pip compile --generate-hashes -c requirements.txt (from the rendered folder)."
        for one in wanted
        if one.name in versions and one.version not in versions[one.name]
    ]
    if bundled:
        mistakes += [
            f"{file}: {one.name} comes with the base image and cannot be replaced; leave it out."
            for one in wanted
            if OF_TORCH.match(one.name)
        ]
    return [one for one in wanted if one.name not in versions], mistakes


def text(requirements: Iterable[Requirement]) -> str:
    """The lines of a requirements file."""
    return "".join(f"{one.text}\n" for one in requirements)


def read(path: Path) -> list[Requirement]:
    """A lock of the project itself."""
    found, mistakes = parse(path.read_text(encoding="utf-8"), path.name)
    if mistakes:
        raise ValueError("; ".join(mistakes))
    return found
