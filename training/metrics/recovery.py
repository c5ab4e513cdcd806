"""What a recovery was, and where its time went: one record for each, written by every launcher that took part.

A recovery begins with a fault, or another reason to form a new world, and ends with the first optimizer step in that
world. In between there are phases; each ends at a mark, and its seconds are those since the mark before:

| phase      | ends when                                                                                        |
| ---------- | ------------------------------------------------------------------------------------------------ |
| detect     | the launcher knows of the fault                                                                  |
| leave      | the workers have ended, or (with hooks) have let go of the old process group                     |
| pause      | the workers may start again: only after failures without a new step (`--restart-pause`)          |
| rendezvous | the new world is complete                                                                        |
| process    | the worker processes are there: forked anew, or told of the new world                            |
| group      | the new process group stands                                                                     |
| model      | the model is in place: loaded from a checkpoint, or received from a rank that has it             |
| first_step | the first optimizer step in the new world is complete                                            |

A phase that did not happen, or of which nobody told, has no seconds; its time is then part of the next one that has.

The record goes to three places: a progress line `{"trainyard": "recovery", ...}` (`training.metrics.progress`), the
file `recoveries.jsonl` in the folder that `TRAINYARD_RECORDS` names, and the metrics (`training.metrics.scrape`).

This module imports neither torch nor anything else that is slow.
"""

from __future__ import annotations

import dataclasses
import errno
import logging
import os
import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from training.launch.environment import RECORDS
from training.metrics import progress

logger = logging.getLogger(__name__)

# In the folder of `TRAINYARD_RECORDS`; without it there is no such file.
FILE: Final = "recoveries.jsonl"
EVENT: Final = "recovery"

# In this order.
PHASES: Final = ("detect", "leave", "pause", "rendezvous", "process", "group", "model", "first_step")
# Beside the phases: what was spent on a world that a further fault ended before its first step.
INTERRUPTED: Final = "interrupted"

CAUSES: Final = (
    "start",  # the job's first world, as this node sees it
    "worker_failed",  # a worker of this node exited with an error
    "worker_killed",  # a worker of this node was ended by a signal
    "node_left",  # another node told that it goes
    "node_lost",  # another node is gone, or has been silent for too long
    "node_joined",
    "regroup",  # another node had a failure of its own and asks all to meet again
    "evicted",  # the others took this node for dead
    "isolated",  # this node could not reach etcd and left before the others would take it for dead
)

RESUMED: Final = "resumed"


@dataclass(frozen=True, kw_only=True)
class Fault:
    """Why a world ended."""

    cause: str
    """One of `CAUSES`."""
    node: str = ""
    """The node that was hit or that came, where it is known."""
    detail: str = ""
    """For people: an exit code, a signal, a step."""

    def __post_init__(self) -> None:
        if self.cause not in CAUSES:
            raise ValueError(f"cause '{self.cause}': known are {', '.join(CAUSES)}")


@dataclass(frozen=True, kw_only=True)
class Recovery:
    """One recovery, as one launcher saw it. Durations are in seconds."""

    host: str
    """The node whose launcher writes this."""
    began: float
    """When it began, by this node's clock (Unix time)."""
    cause: str
    """Why: see the table of causes."""
    node: str
    """The node that was hit, left or came, by its address; empty where it is not known, or is `host` itself."""
    detail: str
    """For people: an exit code, a signal."""
    further: tuple[Fault, ...] = ()
    """Faults that came before it was over, each with cause, node and detail; they belong to the same record."""
    outcome: str = RESUMED
    """`resumed`; or, where no step followed: the job has `finished` or `failed`, or this node has `left` it."""
    generation: int | None = None
    """Number of the new world, counted through the whole job; null if there was none."""
    members: tuple[str, ...] = ()
    """The nodes of the new world, by their addresses."""
    world_size: int | None = None
    """Workers in the new world."""
    kept: int | None = None
    """Workers of this node that lived on, with model and optimizer in memory."""
    forked: int | None = None
    """Workers of this node that were started anew."""
    step: int | None = None
    """The first step that was completed in the new world; null where the script does not report its steps."""
    steps_lost: int | None = None
    """Steps that were complete before, and are done again."""
    seconds: Mapping[str, float] = field(default_factory=dict)
    """Each phase that happened, in order; `interrupted` is what a further fault made vain."""
    total: float = 0.0
    """From the beginning to the end of the last phase: the sum of `seconds`."""

    @property
    def is_resumed(self) -> bool:
        """Whether training went on."""
        return self.outcome == RESUMED

    def as_json(self) -> dict[str, Any]:
        """Plain data."""
        return dataclasses.asdict(self)


class Recorder:
    """Puts one launcher's records together.

    Marks may come late, twice, in another order or not at all: they are sorted by what they mean; the latest of each
    counts, since several workers tell of the same phase (of detection the first: a fault is known when it is known);
    and a mark for which no recovery is under way is ignored, since workers report to a launcher that may have more
    urgent things to do. All moments are of one monotonic clock.

    Args:
        host: name of this node.
        folder: where `recoveries.jsonl` is; None for no such file.
        clock: monotonic seconds (CLOCK_MONOTONIC, which workers of the same node share).
        wall: Unix seconds.
        emit: writes the progress line.

    Attributes:
        observers: called with each record, when it is written.
        last_world: generation and world size of the newest world, None before the first.
    """

    def __init__(
        self,
        host: str | None = None,
        folder: Path | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
        emit: Callable[..., None] = progress.emit,
    ) -> None:
        self._host = host or socket.gethostname()
        self._folder = folder
        self._clock, self._wall, self._emit = clock, wall, emit
        self._lock = threading.Lock()
        self._faults: list[Fault] = []
        self._start = self._attempt = 0.0
        self._marks: dict[str, float] = {}
        self._world: dict[str, Any] = {}
        self.observers: list[Callable[[Recovery], None]] = []
        self.last_world: tuple[int, int] | None = None

    @classmethod
    def from_environment(cls) -> Recorder:
        """A recorder for this node, with the folder of `TRAINYARD_RECORDS`."""
        folder = os.environ.get(RECORDS)
        return cls(folder=Path(folder) if folder else None)

    @property
    def is_open(self) -> bool:
        """Whether a recovery is under way."""
        return bool(self._faults)

    def begin(self, cause: str, node: str = "", detail: str = "", *, at: float | None = None) -> None:
        """A recovery begins, or a further fault hits one that is under way.

        The same fault may be told several times; that changes nothing. A further fault before the new world is complete
        is dealt with by the same rendezvous; after that, the time so far was in vain (`interrupted`) and phases are
        counted anew.

        Args:
            cause: one of `CAUSES`.
            node: the node concerned, if known.
            detail: for people.
            at: when it happened, on the recorder's clock, if that is known better than "now".

        Raises:
            ValueError: there is no such cause.
        """
        fault = Fault(cause=cause, node=node, detail=detail)
        with self._lock:
            moment = self._clock() if at is None else min(at, self._clock())
            if not self._faults:
                self._faults = [fault]
                self._start = self._attempt = moment
                self._marks, self._world = {}, {}
                return
            if any((known.cause, known.node) == (cause, node) for known in self._faults) and not self._has_world():
                return
            self._faults.append(fault)
            if self._has_world():
                self._attempt = max(moment, self._attempt)
                self._marks, self._world = {}, {}

    def correct(self, cause: str, node: str = "", detail: str = "") -> None:
        """What was told last turns out to be something else: a worker that failed because its peer was gone.

        Args:
            cause: one of `CAUSES`.
            node: the node concerned, if known.
            detail: for people.

        Raises:
            ValueError: there is no such cause.
        """
        fault = Fault(cause=cause, node=node, detail=detail)
        with self._lock:
            if self._faults:
                self._faults[-1] = fault

    def mark(self, phase: str, *, at: float | None = None) -> None:
        """A phase has ended, now or at another moment of the recorder's clock.

        Raises:
            ValueError: there is no such phase.
        """
        if phase not in PHASES:
            raise ValueError(f"phase '{phase}': known are {', '.join(PHASES)}")
        with self._lock:
            moment = self._clock() if at is None else at
            if not self._faults or moment < self._attempt:  # nothing is under way, or it is of a world that is gone
                return
            known = self._marks.get(phase, moment)
            self._marks[phase] = min(moment, known) if phase == "detect" else max(moment, known)

    def world(
        self, *, generation: int, members: Sequence[str], world_size: int, kept: int = 0, forked: int = 0
    ) -> None:
        """What the new world is.

        Args:
            generation: its number.
            members: the names of its nodes.
            world_size: workers of all nodes.
            kept: workers of this node that lived on.
            forked: workers of this node that were started anew.
        """
        with self._lock:
            self._world = {
                "generation": generation,
                "members": tuple(members),
                "world_size": world_size,
                "kept": kept,
                "forked": forked,
            }
            self.last_world = (generation, world_size)

    def finish(self, step: int | None = None, steps_lost: int | None = None) -> Recovery | None:
        """The recovery is over; writes the record.

        Returns:
            The record; None if no recovery was under way, or none whose new world is complete: a step that is told
            before is one of the old world.

        Args:
            step: the step that was just completed; unless `first_step` is marked already, that ends now. None if the
                script does not report its steps.
            steps_lost: steps to be done again.
        """
        with self._lock:
            if not self._faults or not self._has_world():
                return None
            if step is not None:
                self._marks.setdefault("first_step", self._clock())
            record = self._close(RESUMED, step, steps_lost)
        self._publish(record)
        return record

    def abandon(self, outcome: str) -> Recovery | None:
        """No further step will come of it (the job is over, or this node leaves it); writes what is known.

        Args:
            outcome: how it ended instead: `finished`, `failed` or `left`.
        """
        with self._lock:
            if not self._faults:
                return None
            record = self._close(outcome, None, None)
        self._publish(record)
        return record

    def _has_world(self) -> bool:
        return "rendezvous" in self._marks or bool(self._world)

    def _close(self, outcome: str, step: int | None, steps_lost: int | None) -> Recovery:
        first, *further = self._faults
        seconds: dict[str, float] = {}
        if self._attempt > self._start:
            seconds[INTERRUPTED] = round(self._attempt - self._start, 3)
        end = self._attempt
        for phase in PHASES:
            if phase in self._marks:
                begin, end = end, max(end, self._marks[phase])
                seconds[phase] = round(end - begin, 3)
        record = Recovery(
            host=self._host,
            began=round(self._wall() - (self._clock() - self._start), 3),
            cause=first.cause,
            node=first.node,
            detail=first.detail,
            further=tuple(further),
            outcome=outcome,
            step=step,
            steps_lost=steps_lost,
            seconds=seconds,
            total=round(sum(seconds.values(), 0.0), 3),
            **self._world,
        )
        self._faults = []
        return record

    def _publish(self, record: Recovery) -> None:
        self._emit(EVENT, **record.as_json())
        if self._folder is not None:
            append(self._folder / FILE, progress.line(EVENT, **record.as_json()))
        for observer in self.observers:
            observer(record)


def append(path: Path, line: bytes) -> None:
    """Add a line to a file that several launchers may write; whole or, when the disk is full, not at all.

    A record that cannot be kept is a warning: training is worth more than its records.
    """
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            written = os.write(descriptor, line)  # one write: appended lines of several processes do not mix
            end = os.lseek(descriptor, 0, os.SEEK_CUR)
            if written < len(line):
                if os.fstat(descriptor).st_size == end:  # nobody has written behind it
                    os.ftruncate(descriptor, end - written)
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        finally:
            os.close(descriptor)
    except OSError as error:
        logger.warning("the record of this recovery is not in %s: %s", path, error.strerror)
