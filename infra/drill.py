"""Faults on purpose, and what they cost: how long until the next optimizer step, and how many steps were lost.

The figures come from the workers' own progress lines (each carries the time, the generation of the rendezvous and the
world size), read through the pods' logs.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from datetime import timedelta
from typing import Any

from infra.errors import TrainyardError
from infra.jobs import Follower, Progress

_SETTLED = 3
"""Steps in one world after which training counts as under way."""
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
    """From the fault (for a reclaim: when the node's pods are told to stop) to the first step of the new world."""
    steps_lost: int
    """Optimizer steps that were done again."""
    world_before: int
    world_after: int
    generation_before: int
    generation_after: int

    def as_json(self) -> dict[str, Any]:
        """Plain data for `--json`."""
        return asdict(self)


class Observer:
    """Watches one job's training through a fault."""

    def __init__(self, job: str, follower: Follower, say: Callable[[str], None] = lambda _: None) -> None:
        self._job, self._follower, self._say = job, follower, say
        self._steps: list[Progress] = []
        self._resumes: list[Progress] = []
        self.finished: Progress | None = None

    def until_training(self, world_size: int = 1) -> Progress:
        """Wait until steps are made in a world of at least this size; the latest step.

        Raises:
            DrillError: no steps in time, or the job has ended already.
        """
        self._read(TRAINING_STARTS, lambda: self._settled(world_size))
        if not self._settled(world_size):
            raise DrillError(
                f"job {self._job} made no steps with {world_size} or more workers within {TRAINING_STARTS}"
                if self.finished is None
                else f"job {self._job} has finished: there is nothing left to disturb. Submit it again first."
            )
        return self._steps[-1]

    def through(self, fault: str, victim: str, inject: Callable[[], float]) -> Result:
        """Inject a fault and watch until training goes on.

        Args:
            fault: its name.
            victim: what it hits.
            inject: does it, and returns the wall-clock time (Unix seconds) at which it hit.

        Raises:
            DrillError: training did not go on.
        """
        hit = inject()
        self._read(timedelta(seconds=0.5), lambda: False)
        before = self._last_before(hit)

        def next_step() -> Progress | None:
            return next((s for s in self._steps if s.fields["generation"] > before.fields["generation"]), None)

        self._read(TRAINING_GOES_ON, lambda: next_step() is not None or self.finished is not None)
        after = next_step()
        if after is None:
            raise DrillError(
                f"job {self._job} ended before the fault could disturb it"
                if self.finished
                else f"job {self._job} made no step within {TRAINING_GOES_ON} after the fault. Look at its workers:"
                f" kubectl get pods -l elastic.pytorch.org/job-name={self._job}"
            )
        done = max(s.fields["step"] for s in self._steps if s.fields["generation"] <= before.fields["generation"])
        return Result(
            fault=fault,
            job=self._job,
            victim=victim,
            seconds_to_next_step=round(after.time - hit, 2),
            steps_lost=max(0, done - after.fields["step"] + 1),
            world_before=before.fields["world_size"],
            world_after=after.fields["world_size"],
            generation_before=before.fields["generation"],
            generation_after=after.fields["generation"],
        )

    def until_finished(self, timeout: timedelta) -> Progress | None:
        """Read on until the job says that it has finished; None if it did not in time."""
        self._read(timeout, lambda: self.finished is not None)
        return self.finished

    def _settled(self, world_size: int) -> bool:
        latest = self._steps[-_SETTLED:]
        same = {step.fields["generation"] for step in latest}
        return len(latest) == _SETTLED and len(same) == 1 and latest[-1].fields["world_size"] >= world_size

    def _last_before(self, hit: float) -> Progress:
        return max((step for step in self._steps if step.time <= hit), key=lambda step: step.time)

    def _read(self, timeout: timedelta, enough: Callable[[], bool]) -> None:
        if enough():
            return
        for event in self._follower.events(timeout):
            if event.event == "step":
                self._steps.append(event)
            elif event.event == "finished":
                self.finished = event
            elif event.event in ("rendezvous", "resume"):
                self._say(f"{event.pod}: {event.event} {event.fields}")
            if enough():
                return


def now() -> float:
    """The wall clock that the workers' progress lines use, Unix seconds."""
    return time.time()
