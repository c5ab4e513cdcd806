"""The logs of all workers of a job as one: in the order of their times, each line with its worker and its ranks.

Times are those at which the nodes' runtimes wrote the lines, so the order between nodes is as good as their clocks.
Ranks change with every world; they are known from the launchers' own lines (`ranks`, see training.metrics.progress).
"""

from __future__ import annotations

import heapq
import itertools
import json
import queue
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from infra.jobs import ApiServerAwayError, Jobs, LogLine, Logs, ended

SETTLES = timedelta(seconds=1)
"""How long a line is held back while following: an earlier one of another worker may still be on its way."""
AWAY = timedelta(minutes=3)
"""How long the API server may be away, as it is while it restarts, before following ends."""
_LOOK = timedelta(seconds=1)
"""Between two looks whether the job has ended."""
_NO_RANKS: tuple[int, ...] = ()


@dataclass(frozen=True)
class Line:
    """One line, with the ranks that its worker's processes had."""

    log: LogLine
    ranks: tuple[int, ...]
    """In the world of that time; empty before the first."""

    def prefix(self, job: str) -> str:
        """`worker-0 rank 3`; a node of several processes has `ranks 8-15`."""
        shown = f"{self.log.pod.removeprefix(f'{job}-')}"
        if not self.ranks:
            return shown
        first, last = self.ranks[0], self.ranks[-1]
        return f"{shown} rank {first}" if first == last else f"{shown} ranks {first}-{last}"

    def as_json(self) -> dict[str, Any]:
        """Plain data for `--json`."""
        return {"time": self.log.time, "pod": self.log.pod, "ranks": list(self.ranks), "text": self.log.text}


class _Ranks:
    """Puts ranks to lines, which have to come in the order of each worker's log."""

    def __init__(self) -> None:
        self._of: dict[str, tuple[int, ...]] = {}

    def of(self, line: LogLine) -> Line:
        if told := _told_ranks(line.text):
            self._of[line.pod] = told
        return Line(line, self._of.get(line.pod, _NO_RANKS))


def _told_ranks(text: str) -> tuple[int, ...]:
    if not text.startswith('{"trainyard": "ranks"'):
        return _NO_RANKS
    try:
        return tuple(int(rank) for rank in json.loads(text)["ranks"])
    except (ValueError, KeyError, TypeError):  # a script's own line that looks like it
        return _NO_RANKS


def merged(logs: list[list[LogLine]]) -> Iterator[Line]:
    """The logs of several workers, in the order of their times."""
    ranks = _Ranks()
    for _, line in heapq.merge(*(_monotonic(log) for log in logs), key=lambda pair: pair[0]):
        yield ranks.of(line)


def _monotonic(log: list[LogLine]) -> Iterator[tuple[str, LogLine]]:
    """Each line behind the one before it, also where a clock was set back or a line has no time."""
    moments = itertools.accumulate((line.moment for line in log), max)
    return zip(moments, log, strict=True)


class Following:
    """A job's logs as they are written, until the job has ended."""

    def __init__(self, jobs: Jobs, name: str, on_silence: Callable[[], None]) -> None:
        """Nothing is read before `lines`.

        Args:
            jobs: where the job is.
            name: the job.
            on_silence: called about once a second as long as no worker has written anything.
        """
        self._jobs, self._name, self._on_silence = jobs, name, on_silence
        self._arrived: queue.SimpleQueue[LogLine] = queue.SimpleQueue()
        self._answered = time.monotonic()

    def lines(self) -> Iterator[Line]:
        """Lines in the order of their times, as far as they arrive within `SETTLES`.

        Raises:
            JobError: the API server refuses to say whether the job goes on, or is away for long.
        """
        logs = Logs(self._jobs, self._name, self._arrived.put)
        ranks, numbers, newest = _Ranks(), itertools.count(), dict[str, str]()
        held: list[tuple[str, int, float, LogLine]] = []
        over, looked = False, time.monotonic()
        try:
            while not over:
                if time.monotonic() - looked >= _LOOK.total_seconds():
                    over, looked = self._is_over(logs), time.monotonic()
                    if not newest and not over:
                        self._on_silence()
                for line in self._arrivals():
                    moment = newest[line.pod] = max(newest.get(line.pod, ""), line.moment)
                    heapq.heappush(held, (moment, next(numbers), time.monotonic(), line))
                settled = time.monotonic() - SETTLES.total_seconds()
                while held and (over or held[0][2] <= settled):
                    yield ranks.of(heapq.heappop(held)[3])
        finally:
            logs.stop()

    def _arrivals(self) -> Iterator[LogLine]:
        """What has arrived; waits a little for the first."""
        try:
            yield self._arrived.get(timeout=SETTLES.total_seconds() / 4)
            while True:
                yield self._arrived.get_nowait()
        except queue.Empty:
            return

    def _is_over(self, logs: Logs) -> bool:
        """Whether the job has ended, or is gone, and all that its workers wrote has arrived."""
        try:
            job = self._jobs.get(self._name)
            self._answered = time.monotonic()
            if job is not None and ended(job) is None:
                return False
            return all(logs.has_read_to_the_end(pod) for pod in self._jobs.workers(self._name))
        except ApiServerAwayError:
            if time.monotonic() - self._answered > AWAY.total_seconds():
                raise
            return False
