"""Logs of many ranks as one: which line was written when, by whom.

A line's time is what it says: that of a progress line, of torch (`W1130 23:11:28.546000`), of Python's logging, or ISO
8601, as `kubectl logs --timestamps` puts it before each line. Times without a zone are taken for UTC, which is what
containers have. A line without a time has that of the line before it in its file.
"""

import heapq
import json
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

# torch's marks of a rank before each line, also several: [rank0]:, [default1]:
_RANK: Final = re.compile(r"^(?:\[[A-Za-z_]+\d+\]:\s?)+")
_ISO: Final = re.compile(r"(\d{4}-\d\d-\d\d)[T _](\d\d:\d\d:\d\d)(?:[.,](\d{1,9}))?(Z|[+-]\d\d:?\d\d)?")
_TORCH: Final = re.compile(r"^[IWEFC](\d\d)(\d\d) (\d\d:\d\d:\d\d)\.(\d{1,6})")
_BEFORE_TIME: Final = 64
"""Characters: farther inside a line a time belongs to what it tells."""


class LogError(Exception):
    """A log cannot be read; the message is for the user."""


@dataclass(frozen=True)
class Line:
    """One line of a log.

    Attributes:
        file: as the user named it, or below a folder that was named.
        number: from 1.
        text: without the end of the line.
        time: seconds since the epoch; None before the first time in its file.
    """

    file: str
    number: int
    text: str
    time: float | None

    @property
    def place(self) -> str:
        """`file:number`."""
        return f"{self.file}:{self.number}"

    @property
    def rank(self) -> str:
        """The rank by torch's mark, as `rank0`; empty without one."""
        found = _RANK.match(self.text)
        return found[0].strip().strip("[]:").rpartition("[")[2] if found else ""

    @property
    def body(self) -> str:
        """The text without marks of ranks."""
        return _RANK.sub("", self.text)

    @property
    def event(self) -> dict[str, Any]:
        """Of a progress line (`training.metrics.progress`) what it says; empty for others."""
        start = self.text.find('{"trainyard"')
        if start < 0:
            return {}
        try:
            document = json.loads(self.text[start:])
        except ValueError:
            return {}
        return document if isinstance(document, dict) else {}


def read(paths: Iterable[Path]) -> list[Line]:
    """All lines of files, and of all files below folders, in the order of files and lines.

    Raises:
        LogError: a file is missing or cannot be read, or there is none.
    """
    lines: list[Line] = []
    for path in paths:
        files = sorted(file for file in path.rglob("*") if file.is_file()) if path.is_dir() else [path]
        if not files:
            raise LogError(f"{path}: there is no file in this folder")
        for file in files:
            lines += _lines(file)
    return lines


def _lines(file: Path) -> Iterator[Line]:
    try:
        text = file.read_bytes().decode(errors="replace")
        year = datetime.fromtimestamp(file.stat().st_mtime, UTC).year
    except OSError as error:
        raise LogError(f"{file}: {error.strerror or error}") from error
    time: float | None = None
    for number, line in enumerate(text.split("\n"), 1):
        if line.strip():
            time = time_of(line, year) or time
            yield Line(str(file), number, line.rstrip("\r"), time)


def time_of(text: str, year: int) -> float | None:
    """When a line was written, in seconds since the epoch; None if it does not say.

    Args:
        text: the line.
        year: of its file; torch writes none.
    """
    body = _RANK.sub("", text)
    if found := re.search(r'^.{0,200}?\{"trainyard": "\w+", "time": (\d+(?:\.\d+)?)', body):
        return float(found[1])
    if found := _TORCH.match(body):
        month, day, clock, fraction = found.groups()
        return _moment(f"{year:04}-{month}-{day}", clock, fraction, "")
    if (found := _ISO.search(body)) and found.start() < _BEFORE_TIME:
        return _moment(found[1], found[2], found[3] or "0", found[4] or "")
    return None


def _moment(day: str, clock: str, fraction: str, zone: str) -> float | None:
    try:
        moment = datetime.fromisoformat(f"{day}T{clock}{zone}")
    except ValueError:  # what looks like a time and is none
        return None
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() + float(f"0.{fraction}")


def merged(lines: Sequence[Line]) -> list[Line]:
    """Lines of all files by time; lines of one file keep their order, and what has no time comes first."""
    by_file: dict[str, list[Line]] = {}
    for line in lines:
        by_file.setdefault(line.file, []).append(line)
    streams = [list(_rising(of_file)) for of_file in by_file.values()]
    return [line for _, _, line in heapq.merge(*streams, key=lambda entry: entry[:2])]


def _rising(lines: list[Line]) -> Iterator[tuple[float, str, Line]]:
    """Clocks are set back now and then; a line never comes before one that its file has before it."""
    latest = float("-inf")
    for line in lines:
        latest = max(latest, line.time if line.time is not None else latest)
        yield latest, line.file, line
