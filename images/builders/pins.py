"""Digests of the base images in the matrix: what the registries say now, written into its file beside all the rest."""

from __future__ import annotations

import datetime
import re
import tomllib
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from images.builders.registry import Reference, UnreachableError
from images.errors import BuildError

_TABLE = re.compile(r"^\s*\[+\s*(?P<name>[^\]]+?)\s*\]+")
_KEY = re.compile(r"^\s*(?P<key>[A-Za-z_]+)\s*=")


@dataclass(frozen=True)
class Pin:
    """One base image of the matrix."""

    name: str
    reference: str
    written: str | None
    """Digest in the matrix."""
    found: str | None
    """Digest in its registry now; None: it could not be asked."""

    @property
    def state(self) -> str:
        """`current`, `new` (the matrix had none), `moved` (the tag has another image now) or `unknown`."""
        if self.found is None:
            return "unknown"
        return "current" if self.found == self.written else "moved" if self.written else "new"


def look(text: str, ask: Callable[[str], str]) -> tuple[list[Pin], list[str]]:
    """Ask for every base image of a matrix.

    Args:
        text: the matrix's file.
        ask: gives the digest of a reference.

    Returns:
        All base images, and what could not be asked and why, a sentence each.
    """
    pins, problems, silent = [], [], set()
    for name, entry in tomllib.loads(text)["base"].items():
        reference, found = entry["reference"], None
        registry = Reference.parse(reference).registry
        if registry not in silent:
            try:
                found = ask(reference)
            except UnreachableError as error:
                silent.add(registry)  # or each image of it costs another time-out
                problems.append(str(error))
            except BuildError as error:
                problems.append(str(error))
        pins.append(Pin(name, reference, entry.get("digest"), found))
    return pins, problems


def written(text: str, pins: Iterable[Pin], today: datetime.date) -> str:
    """The matrix's file with the digests that were found; comments and everything else stay as they are."""
    known = {pin.name: pin for pin in pins if pin.found}
    lines: list[str] = []
    pin: Pin | None = None
    for line in text.splitlines(keepends=True):
        if table := _TABLE.match(line):
            pin = known.get(_base_of(table["name"]) or "")
        key = _KEY.match(line)
        if pin is None or pin.state == "current" or key is None or key["key"] not in ("reference", *_REPLACED):
            lines.append(line)
        elif key["key"] == "reference":
            lines += [line, f'digest = "{pin.found}"\n']
        elif key["key"] == "checked":
            lines.append(f"checked = {today.isoformat()}\n")
    return "".join(lines)


_REPLACED = ("digest", "unpinned", "checked")


def _base_of(table: str) -> str | None:
    """Name of the base image whose table begins; None: another table."""
    room, _, name = table.partition(".")
    return name.strip().strip("\"'") if room.strip() == "base" else None
