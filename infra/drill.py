"""Faults on purpose, and what they cost: how long until the next optimizer step, and how many steps were lost.

The figures come from the workers' own progress lines (each carries the time, the generation of the rendezvous and the
world size), read through the pods' logs. These come from several workers: the past of the job first, and then in any
order. So everything here goes by the lines' times and generations, never by when they arrived.

Where the time went says the launchers' own record of the recovery (docs/explanation/recovery.md).
"""

from __future__ import annotations

import bisect
import itertools
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from datetime import timedelta
from typing import Any, Protocol

from infra.errors import TrainyardError
from infra.jobs import Progress

_SETTLED = 3
"""Steps in one world after which training counts as under way."""
_STRAGGLERS = timedelta(seconds=0.5)
"""How much later than another's a worker's line may arrive: the logs are read from different nodes."""
RECORDS_COME = timedelta(seconds=3)
"""How long after the next step the launchers' records are waited for; an older image writes none."""
NO_MORE_EFFECT = timedelta(seconds=5)
"""How long after everything is there again a fault that ends no world is watched for an effect."""
_LOOK = timedelta(seconds=0.5)
"""Between two looks whether what was hit is there again."""
_RECORD = {"host", "cause", "further", "generation", "members", "world_size", "kept", "forked", "seconds", "total"}
"""What a launcher's record has; a user's own script may write lines of its own kind."""
LAST_WORKERS_JOIN = timedelta(seconds=60)
TRAINING_STARTS = timedelta(minutes=3)
TRAINING_GOES_ON = timedelta(minutes=3)


class DrillError(TrainyardError):
    """The drill could not be carried out, or training did not go on after it."""


@dataclass(frozen=True)
class Result:
    """What one fault cost."""

    fault: str
    job: str
    victim: str
    """The worker or node that was hit."""
    seconds_to_next_step: float
    """From the fault (for a reclaim: when the node's pods are told to stop) to the first step of the new world; to the
    next step where the world went on."""
    longest_pause: float
    """Seconds: the longest time without a step, from the last one before the fault until the drill looked away."""
    steps_lost: int
    """Optimizer steps that were done again."""
    world_before: int
    world_after: int
    generation_before: int
    generation_after: int
    recovery: dict[str, Any] | None = None
    """What the launcher that was longest busy with it wrote: phases and their seconds, see `training.metrics.recovery`.
    None where the world went on, or the job's image writes no records."""

    def as_json(self) -> dict[str, Any]:
        """Plain data for `--json`."""
        return asdict(self)


class Events(Protocol):
    """Where progress lines come from: `infra.jobs.Follower`."""

    def events(self, timeout: timedelta) -> Iterator[Progress]:
        """Progress lines as they arrive; ends when the timeout has passed."""


class Observer:
    """Watches one job's training through faults.

    Args:
        job: its name.
        follower: its progress lines.
        since: training is under way when steps are made after this time (Unix seconds; default: now).
    """

    def __init__(self, job: str, follower: Events, since: float | None = None) -> None:
        self._job, self._follower = job, follower
        self._since = now() if since is None else since
        self._steps: list[Progress] = []
        """By time."""
        self._worlds: list[Progress] = []
        """All lines that name a world: steps, resumes, rendezvous."""
        self._records: list[Progress] = []
        self.finished: Progress | None = None

    def until_training(self, world_size: int = 1) -> Progress:
        """Wait until several steps are made in one world; the latest step.

        Args:
            world_size: a world of this size is waited for a little longer: a worker may still be on its way.

        Raises:
            DrillError: no steps in time, or the job has ended already.
        """
        self._read(TRAINING_STARTS, lambda: self._settled() is not None or self.finished is not None)
        if self.finished is not None:
            raise DrillError(f"job {self._job} has finished: there is nothing left to disturb. Submit it again first.")
        latest = self._settled()
        if latest is None:
            raise DrillError(
                f"job {self._job} made no {_SETTLED} steps in one world within {TRAINING_STARTS}. {self._look_at_it()}"
            )
        if latest.fields["world_size"] < world_size:
            self._read(LAST_WORKERS_JOIN, lambda: bool(self._in_world_of(world_size) or self.finished))
        return self._settled() or latest

    def through(self, fault: str, victim: str, inject: Callable[[], float]) -> Result:
        """Inject a fault and watch until training goes on in another world.

        Args:
            fault: its name.
            victim: what it hits.
            inject: does it, and returns the wall-clock time (Unix seconds) at which it hit.

        Raises:
            DrillError: training did not go on.
        """
        hit = inject()
        end = time.monotonic() + TRAINING_GOES_ON.total_seconds()
        while (left := end - time.monotonic()) > 0:
            self._read(timedelta(seconds=left), lambda: bool(self._next_step(hit) or self.finished))
            # A line that arrives later may be of an earlier time, and make the fault hit another world.
            self._read(_STRAGGLERS, lambda: False)
            if self._next_step(hit) or self.finished:
                break
        after = self._next_step(hit)
        if after is not None:
            self._read(RECORDS_COME, lambda: self._all_records(after.fields["generation"]))
        return self._result(fault, victim, hit, after)

    def across(self, fault: str, victim: str, inject: Callable[[], float], restored: Callable[[], bool]) -> Result:
        """Inject a fault that should end no world, and watch until some time after all is there again.

        Args:
            fault: its name.
            victim: what it hits.
            inject: does it, and returns the wall-clock time (Unix seconds) at which it hit.
            restored: whether what was hit is there again.

        Raises:
            DrillError: it did not come back, or training did not go on.
        """
        hit = inject()
        end = time.monotonic() + TRAINING_GOES_ON.total_seconds()
        while not (there := restored()) and not self.finished and time.monotonic() < end:
            self._read(_LOOK, lambda: False)
        if not there and not self.finished:
            raise DrillError(f"{victim} is not back within {TRAINING_GOES_ON}. See: kubectl get pods -A")
        looked = now()
        self._read(NO_MORE_EFFECT, lambda: self.finished is not None)
        self._read(TRAINING_GOES_ON, lambda: bool(self._step_since(max(hit, looked)) or self.finished))
        if self._world_at(hit) and not self._step_since(max(hit, looked)) and not self.finished:
            raise DrillError(
                f"job {self._job} made no step within {TRAINING_GOES_ON} after {victim} was back. {self._look_at_it()}"
            )
        after = self._next_step(hit)
        if after is not None:
            self._read(RECORDS_COME, lambda: self._all_records(after.fields["generation"]))
        return self._result(fault, victim, hit, after or self._step_since(hit))

    def _result(self, fault: str, victim: str, hit: float, after: Progress | None) -> Result:
        before = self._world_at(hit)
        if before is None or after is None:
            raise self._no_figures(hit, before)
        old = [step for step in self._steps if step.fields["generation"] <= before.fields["generation"]]
        done = old[-1].fields["step"] if old else 0
        went_on = after.fields["generation"] <= before.fields["generation"]
        return Result(
            fault=fault,
            job=self._job,
            victim=victim,
            seconds_to_next_step=round(after.time - hit, 2),
            longest_pause=self._longest_pause(hit),
            steps_lost=0 if went_on else max(0, done - after.fields["step"] + 1),
            world_before=before.fields["world_size"],
            world_after=after.fields["world_size"],
            generation_before=before.fields["generation"],
            generation_after=after.fields["generation"],
            recovery=None if went_on else self._record(after.fields["generation"]),
        )

    def _longest_pause(self, hit: float) -> float:
        """Of the times between two steps, the longest that had not ended when the fault hit."""
        times = [step.time for step in self._steps]
        first = max(0, bisect.bisect_right(times, hit) - 1)
        return round(max((later - one for one, later in itertools.pairwise(times[first:])), default=0.0), 2)

    def _records_of(self, generation: int) -> list[Progress]:
        """The launchers' records of how they came into this world."""
        return [record for record in self._records if record.fields["generation"] == generation]

    def _all_records(self, generation: int) -> bool:
        """Whether every node of this world has written its record."""
        records = self._records_of(generation)
        members = max((len(record.fields["members"]) for record in records), default=0)
        return 0 < members <= len({record.pod for record in records})

    def _record(self, generation: int) -> dict[str, Any] | None:
        """The record of the launcher that was longest busy; one that had only just started knows of no recovery."""
        records = self._records_of(generation)
        known = [record for record in records if record.fields["cause"] != "start"] or records
        slowest = max(known, key=lambda record: record.fields["total"], default=None)
        return None if slowest is None else slowest.fields

    def until_finished(self, timeout: timedelta) -> Progress | None:
        """Read on until the job says that it has finished; None if it did not in time."""
        self._read(timeout, lambda: self.finished is not None)
        return self.finished

    def _in_world_of(self, world_size: int) -> bool:
        latest = self._settled()
        return latest is not None and latest.fields["world_size"] >= world_size

    def _settled(self) -> Progress | None:
        """The latest step, where the last few were made in one world and the job still makes them."""
        latest = self._steps[-_SETTLED:]
        same = len({step.fields["generation"] for step in latest}) == 1
        return latest[-1] if len(latest) == _SETTLED and same and latest[-1].time >= self._since else None

    def _world_at(self, hit: float) -> Progress | None:
        """The newest world that had met when the fault hit, whether it had made a step or not."""
        earlier = [line for line in self._worlds if line.time <= hit]
        return max(earlier, key=lambda line: (line.fields["generation"], line.time), default=None)

    def _next_step(self, hit: float) -> Progress | None:
        """The first step after the fault that was made in a newer world than the one that it hit."""
        if (world := self._world_at(hit)) is None:
            return None
        newer = (step for step in self._steps if step.fields["generation"] > world.fields["generation"])
        return next((step for step in newer if step.time > hit), None)

    def _step_since(self, moment: float) -> Progress | None:
        """The first step after a moment, in whatever world."""
        return next((step for step in self._steps if step.time > moment), None)

    def _no_figures(self, hit: float, before: Progress | None) -> DrillError:
        if self.finished is not None:
            late = self.finished.time <= hit
            when = "had finished before the fault" if late else "finished before the fault took effect"
            return DrillError(f"job {self._job} {when}: there is nothing to measure. Give it more steps.")
        if before is None:
            return DrillError(f"job {self._job} had not begun to train when the fault hit. Wait for its first steps.")
        return DrillError(
            f"job {self._job} made no step in another world within {TRAINING_GOES_ON} after the fault."
            f" {self._look_at_it()}"
        )

    def _look_at_it(self) -> str:
        return f"Look at its workers: kubectl get pods -l elastic.pytorch.org/job-name={self._job}"

    def _read(self, timeout: timedelta, enough: Callable[[], bool]) -> None:
        if enough():
            return
        for event in self._follower.events(timeout):
            if event.event == "finished":
                self.finished = event
            elif event.event == "recovery":
                if event.fields.keys() >= _RECORD:
                    self._records.append(event)
            elif event.event in ("step", "resume", "rendezvous") and _names(event, "generation", "world_size"):
                self._worlds.append(event)
                if event.event == "step" and _names(event, "step"):
                    bisect.insort(self._steps, event, key=lambda step: step.time)
            if enough():
                return


def _names(event: Progress, *fields: str) -> bool:
    """Whether a line has these numbers: a user's own script may write lines of its own kind."""
    return all(isinstance(event.fields.get(field), int) for field in fields)


def now() -> float:
    """The wall clock that the workers' progress lines use, Unix seconds."""
    return time.time()
