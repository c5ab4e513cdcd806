"""The history of one job as plain data. Times are Unix seconds by the workers' clocks, durations are seconds.

Only what was told is in it. Where lines are gone with the worker that wrote them, `gaps` says which.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise

from training.metrics.goodput import Goodput, account


@dataclass(frozen=True, kw_only=True)
class Step:
    """A line of rank 0 after an optimizer step; it may stand for several (`log_every`)."""

    time: float
    step: int
    loss: float | None = None
    world_size: int | None = None
    generation: int = 0
    samples: int | None = None
    """Of all steps so far."""
    samples_per_second: float | None = None
    seconds: Mapping[str, float] = field(default_factory=dict)
    """Of each part (`training.metrics.timing`) since the line before; empty where the script does not tell."""


@dataclass(frozen=True, kw_only=True)
class World:
    """From when on so many workers were one world."""

    time: float
    generation: int
    size: int


@dataclass(frozen=True, kw_only=True)
class Resume:
    """Rank 0 begins to train in a world."""

    time: float
    step: int
    """The last step that it has."""
    generation: int = 0
    checkpoint: str = ""
    """From which; empty where it began from nothing, or the state was in memory."""
    loader_workers: int | None = None
    """Processes that load data for each rank."""


@dataclass(frozen=True, kw_only=True)
class Recovery:
    """How a world came about, as the launcher saw it that was busy longest (`training.metrics.recovery`)."""

    began: float
    total: float
    cause: str
    outcome: str
    generation: int | None = None
    world_size: int | None = None
    node: str = ""
    detail: str = ""
    step: int | None = None
    steps_lost: int | None = None
    seconds: Mapping[str, float] = field(default_factory=dict)
    """By phase."""

    @property
    def is_disturbance(self) -> bool:
        """Whether it was a change or a fault of a job under way, and not the beginning."""
        return self.cause != "start"


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """A checkpoint that is safe on disk."""

    time: float
    step: int
    seconds: float
    path: str = ""
    at_notice: bool = False


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """What an evaluation has found."""

    time: float
    step: int
    figures: Mapping[str, float]


@dataclass(frozen=True, kw_only=True)
class Notice:
    """Something that may end a process."""

    time: float
    pod: str
    message: str


@dataclass(frozen=True, kw_only=True)
class Resources:
    """What the processes of one worker pod use (`training.metrics.resources`)."""

    time: float
    pod: str
    cpu_seconds: float
    """Processor time of all processes so far."""
    memory_bytes: int
    """That the kernel cannot take back, now: private memory and files in memory."""
    memory_peak_bytes: int
    """The most of all samples so far."""
    shm_peak_bytes: int
    shm_size_bytes: int
    workers: int
    """Ranks of the pod."""
    throttled_seconds: float | None = None
    """How long its processes were held back by the limit of processors so far; None where the kernel does not tell."""
    oom_kills: int | None = None
    """Processes that the kernel has ended because the pod's memory was at its limit; None where it does not tell."""


@dataclass(frozen=True, kw_only=True)
class JobHistory:
    """One job. Each tuple is in the order of its times."""

    job: str
    steps: tuple[Step, ...] = ()
    """All lines; a step that was made again has several."""
    worlds: tuple[World, ...] = ()
    resumes: tuple[Resume, ...] = ()
    recoveries: tuple[Recovery, ...] = ()
    """One for each world, however many launchers told of it."""
    checkpoints: tuple[Checkpoint, ...] = ()
    evaluations: tuple[Evaluation, ...] = ()
    notices: tuple[Notice, ...] = ()
    resources: tuple[Resources, ...] = ()
    finished: Evaluation | None = None
    """Where the job has told that it is done: its last step and figures."""
    last_told: float | None = None
    """The time of the last line of any kind."""
    strangers: int = 0
    """Lines that begin like progress lines and are none: of the script, or cut off."""

    @property
    def began(self) -> float | None:
        """The first time that is known."""
        times = [part[0].time for part in (self.steps, self.worlds, self.resumes, self.notices) if part]
        times += [recovery.began for recovery in self.recoveries[:1]]
        return min(times, default=None)

    @functools.cached_property
    def curve(self) -> tuple[Step, ...]:
        """For each step number the line that counts, which is the last one, by number."""
        return tuple(step for _, step in sorted({step.step: step for step in self.steps}.items()))

    @property
    def latest(self) -> Step | None:
        """The newest line of a step."""
        return self.steps[-1] if self.steps else None

    @property
    def disturbances(self) -> tuple[Recovery, ...]:
        """Recoveries without the beginning."""
        return tuple(recovery for recovery in self.recoveries if recovery.is_disturbance)

    @property
    def is_split(self) -> bool:
        """Whether the script tells where a step's time goes."""
        return any(step.seconds for step in self.steps)

    def goodput(self) -> Goodput | None:
        """Which share of the wall time was useful steps; None where no step tells its parts."""
        if not self.is_split:
            return None
        told: list[dict[str, object]] = [
            {"trainyard": "step", "time": step.time, "step": step.step, "seconds": step.seconds}
            for step in self.steps
            if step.seconds
        ]
        told += [
            {
                "trainyard": "recovery",
                "time": recovery.began + recovery.total,
                "outcome": recovery.outcome,
                "generation": recovery.generation,
                "cause": recovery.cause,
                "total": recovery.total,
                "began": recovery.began,
            }
            for recovery in self.recoveries
        ]
        return account(told)

    @functools.cached_property
    def gaps(self) -> tuple[str, ...]:
        """What is missing, a sentence each: lines go with the worker that wrote them."""
        if not self.steps:
            return ()
        found = []
        first = self.steps[0]
        differences = Counter(
            later.step - earlier.step for earlier, later in pairwise(self.curve) if later.step > earlier.step
        )
        stride = differences.most_common(1)[0][0] if differences else first.step
        begins = [resume.step for resume in self.resumes if resume.time <= first.time]
        if first.step - min(begins, default=0) > stride:
            found.append(
                f"what came before step {first.step} is not known: the log that told of it is gone with its worker"
            )
        for earlier, later in pairwise(self.curve):
            if later.step - earlier.step > stride:
                found.append(
                    f"steps {earlier.step + 1} to {later.step - 1} are not known: the log that told of them is gone"
                    " with its worker"
                )
        return tuple(found)
