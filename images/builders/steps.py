"""How far a build is, read from what the tools print."""

from __future__ import annotations

import re
import time

from images.builders.built import Told

_CONTAINERS = re.compile(r"^(?:\[(?P<stage>\d+/\d+)\] )?STEP (?P<step>\d+/\d+): (?P<what>.*)$")
_BUILDKIT = re.compile(r"^#\d+ \[(?:(?P<stage>[^\]]+?) +)?(?P<step>\d+/\d+)\] (?P<what>.*)$")
_WRITES = re.compile(r"^(?:\[\d+/\d+\] )?COMMIT (?P<name>\S+)$|^#\d+ exporting to (?:docker )?image\b")
_MOUNTS = re.compile(r"--mount=\S+\s+")
_WIDTH = 90  # characters of an instruction; the rest is in the log


class Reader:
    """Reads a build's output and tells each new step, with the seconds since the beginning."""

    def __init__(self, told: Told) -> None:
        self.now = ""
        """The step that runs, or ran last; empty before the first."""
        self._told = told
        self._began = time.monotonic()

    def read(self, line: str) -> None:
        """Take one line of output."""
        found = step(line)
        if found is None or found == self.now:
            return
        self.now = found
        self._told(f"{time.monotonic() - self._began:.0f} s · {found}")


def step(line: str) -> str | None:
    """The step that a line says begins, as `stage 1/2, step 3/7: RUN …`; None: it says something else.

    The last one, which no tool counts, can take minutes: all of the image is written.
    """
    match = _CONTAINERS.match(line) or _BUILDKIT.match(line)
    if match is None:
        written = _WRITES.match(line)
        return f"writing the image {written['name'] or ''}".rstrip() if written else None
    stage = f"stage {match['stage']}, " if match["stage"] else ""
    what = " ".join(_MOUNTS.sub("", match["what"]).split())
    return f"{stage}step {match['step']}: {what if len(what) <= _WIDTH else what[: _WIDTH - 1] + '…'}"
