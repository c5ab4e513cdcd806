"""Traces of spot availability: how many machines there were, and when some were lost or came.

Four formats are read, each known by its first line:

| line | is | as in |
| --- | --- | --- |
| `480000,add,node1` | milliseconds, `add` or `remove`, a machine | github.com/uclasystem/bamboo, `traces/*.csv` |
| `2021-12-10, 13:07:45, 80` | day, time, number of machines | the same, `traces/gcloud/*.txt` |
| `21529,4`, `0.030,9` | seconds, or hours if with fractions; number of machines | the same, `doc/data/*.csv` |
| `{"metadata": {"gap_seconds": 600}, "data": [4, 3]}` | number each so many seconds | skypilot-org/spot-traces |

Files of numbers tell net changes only: a loss and its replacement between two lines cannot be seen, so losses are a
lower bound there.
"""

from __future__ import annotations

import csv
import itertools
import json
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from infra.errors import UsageError

_MOST_MISTAKES = 5  # of one file; the rest are counted
_MS = 1000.0
_HOUR = 3600.0


class TraceError(UsageError):
    """A file is no trace; the message names file, line and what should stand there."""


@dataclass(frozen=True)
class Change:
    """What happened at one moment."""

    at: float
    """Seconds since the beginning of the trace."""
    lost: int
    """Machines that were taken away."""
    gained: int
    """Machines that came."""


@dataclass(frozen=True)
class Trace:
    """Machines of one kind that could be had, as a step function of time from 0 on."""

    changes: tuple[Change, ...]
    """By time; never two at one moment, none without an effect."""
    seconds: float
    """How long it was watched."""

    @property
    def most(self) -> int:
        """The largest number of machines at one time."""
        return max((count for _, count in self.counts()), default=0)

    @property
    def lost(self) -> int:
        """Machines that were taken away, in all."""
        return sum(change.lost for change in self.changes)

    @property
    def mean(self) -> float:
        """Mean number of machines over the time that was watched."""
        total, since, count = 0.0, 0.0, 0
        for at, after in self.counts():
            total, since, count = total + count * (at - since), at, after
        return (total + count * (self.seconds - since)) / self.seconds

    def counts(self) -> list[tuple[float, int]]:
        """Moments, and how many machines there were from then on."""
        found, count = [], 0
        for change in self.changes:
            count += change.gained - change.lost
            found.append((change.at, count))
        return found


def of_counts(counts: Iterable[tuple[float, int]], seconds: float) -> Trace:
    """A trace from moments and how many machines there were from then on.

    Args:
        counts: by time, in seconds; several at one moment are losses and gains of that moment.
        seconds: how long it was watched.
    """
    moments: dict[float, list[int]] = {}
    before = 0
    for at, count in counts:
        if count != before:
            change = moments.setdefault(at, [0, 0])
            change[0] += max(0, before - count)
            change[1] += max(0, count - before)
        before = count
    return Trace(tuple(Change(at, lost, gained) for at, (lost, gained) in moments.items()), seconds)


def read(path: Path) -> Trace:
    """Read a trace, whichever of the formats it has.

    Raises:
        TraceError: it cannot be read, or some of its lines do not say what lines of its format say.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise TraceError(f"{path} cannot be read: {getattr(error, 'strerror', None) or error}") from None
    if text.lstrip().startswith("{"):
        return _samples(path, text)
    rows = [(number, [cell.strip() for cell in cells]) for number, cells in enumerate(csv.reader(text.splitlines()), 1)]
    rows = [(number, cells) for number, cells in rows if any(cells)]
    if not rows:
        raise TraceError(f"{path} is empty: {_EXPECTED}")
    first = rows[0][1]
    if len(first) == 3 and first[1] in {"add", "remove"}:
        return _machines(path, rows)
    if len(first) == 3:
        return _clocked(path, rows)
    if len(first) == 2:
        return _numbered(path, rows)
    raise TraceError(f"{path}:{rows[0][0]}: {_EXPECTED}")


_EXPECTED = (
    "a trace has lines `milliseconds,add|remove,machine`, `2021-12-10, 13:07:45, 80` or `seconds,number`, or is JSON "
    'with {"metadata": {"gap_seconds": 600}, "data": [...]}'
)
_Row = tuple[int, list[str]]


def _parsed(
    path: Path, rows: Sequence[_Row], parse: Callable[[list[str]], tuple[float, Any]], line: str
) -> list[tuple[int, float, Any]]:
    """Every line's number, moment and content; all mistakes at once."""
    found: list[tuple[int, float, Any]] = []
    wrong: list[int] = []
    for number, cells in rows:
        try:
            at, content = parse(cells)
        except ValueError:
            wrong.append(number)
            continue
        if 0 <= at < math.inf:
            found.append((number, at, content))
        else:
            wrong.append(number)
    if wrong:
        more = f" and {len(wrong) - _MOST_MISTAKES} more" if len(wrong) > _MOST_MISTAKES else ""
        named = ", ".join(map(str, wrong[:_MOST_MISTAKES]))
        are = "line {} is" if len(wrong) == 1 else "lines {} are"
        raise TraceError(f"{path}: {are.format(named + more)} not `{line}`")
    return found


def _machines(path: Path, rows: Sequence[_Row]) -> Trace:
    """Machines with names, that come and go."""

    def parse(cells: list[str]) -> tuple[float, tuple[bool, str]]:
        moment, what, name = cells
        if what not in {"add", "remove"} or not name:
            raise ValueError(what)
        return int(moment) / _MS, (what == "add", name)

    told = _parsed(path, rows, parse, "milliseconds,add|remove,machine")
    alive: set[str] = set()
    at: dict[float, list[int]] = {}
    previous = 0.0
    for number, moment, (is_added, name) in told:
        if moment < previous:
            raise TraceError(f"{path}:{number}: goes back in time")
        if is_added == (name in alive):
            raise TraceError(f"{path}:{number}: {name} {'is there already' if is_added else 'was not there'}")
        previous = moment
        (alive.add if is_added else alive.remove)(name)
        change = at.setdefault(moment, [0, 0])
        change[is_added] += 1
    begin = told[0][1]
    changes = [Change(moment - begin, lost, gained) for moment, (lost, gained) in at.items()]
    return _finished(path, changes, previous - begin)


def _clocked(path: Path, rows: Sequence[_Row]) -> Trace:
    """Numbers with day and time; some collectors write each three times, a minute apart: the first one counts."""

    def parse(cells: list[str]) -> tuple[float, int]:
        day, clock, count = cells
        # No zone is told; only differences are used.
        moment = datetime.strptime(f"{day} {clock}", "%Y-%m-%d %H:%M:%S")  # noqa: DTZ007
        return (moment - datetime(1970, 1, 1)).total_seconds(), _count(count)  # noqa: DTZ001

    told = _parsed(path, rows, parse, "2021-12-10, 13:07:45, 80")
    begin = told[0][1]
    changed = [row for before, row in zip([None, *told], told, strict=False) if before is None or before[2] != row[2]]
    return _counted(
        path, [(number, at - begin, count) for number, at, count in changed], max(r[1] for r in told) - begin
    )


def _numbered(path: Path, rows: Sequence[_Row]) -> Trace:
    """Numbers with seconds or hours since the beginning."""
    unit = _HOUR if any("." in cells[0] for _, cells in rows) else 1.0

    def parse(cells: list[str]) -> tuple[float, int]:
        moment, count = cells
        return float(moment) * unit, _count(count)

    told = _parsed(path, rows, parse, "seconds,number")
    return _counted(path, told, told[-1][1])


def _samples(path: Path, text: str) -> Trace:
    """Numbers each so many seconds, as JSON."""
    try:
        document = json.loads(text)
        gap, data = float(document["metadata"]["gap_seconds"]), [_count(str(one)) for one in document["data"]]
    except (ValueError, TypeError, KeyError):
        raise TraceError(f"{path}: {_EXPECTED}") from None
    return _counted(path, [(number, number * gap, count) for number, count in enumerate(data)], gap * len(data))


def _count(text: str) -> int:
    count = int(text)
    if count < 0:
        raise ValueError(text)
    return count


def _counted(path: Path, told: Sequence[tuple[int, float, int]], seconds: float) -> Trace:
    for (_, before, _), (number, at, _) in itertools.pairwise(told):
        if at < before:
            raise TraceError(f"{path}:{number}: goes back in time")
    return _finished(path, of_counts(((at, count) for _, at, count in told), seconds).changes, seconds)


def _finished(path: Path, changes: Sequence[Change], seconds: float) -> Trace:
    if not seconds:
        raise TraceError(f"{path}: all of it is of one moment, so that nothing can be replayed")
    return Trace(tuple(changes), seconds)


def read_starts(path: Path) -> tuple[float, ...]:
    """Seconds from a request to a machine that has booted: a table with a heading, one machine a line, parts summed.

    As github.com/cake-lab/CM-DARE writes them (`Provisioning,Staging,Booting`).

    Raises:
        TraceError: it cannot be read, or a line has something else than seconds.
    """
    try:
        lines = path.read_text(encoding="utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise TraceError(f"{path} cannot be read: {getattr(error, 'strerror', None) or error}") from None
    rows = [(number, cells) for number, cells in enumerate(csv.reader(lines), 1) if number > 1 and any(cells)]
    if not rows:
        raise TraceError(f"{path}: a heading, and then a line of seconds for each machine, is expected")
    return tuple(
        at for _, at, _ in _parsed(path, rows, lambda cells: (sum(map(float, cells)), None), "seconds,seconds")
    )
