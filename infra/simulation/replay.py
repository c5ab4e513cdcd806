"""One job on one course of machines: when it trains, with how many, what it loses and when it is done.

Pure: no clock, no chance; the same input gives the same outcome. The model, and what it leaves out:

* All workers make each step together (DDP), with the same global batch: a step takes `(1 - scaling) + scaling *
  stepWorkers / workers` of the time that was measured with `stepWorkers`, divided by the speed of the slowest machine.
* A trace tells when the job loses machines. Of machines that are lost, the job's share is its share of those that were
  there, reckoned exactly over the course of the trace; machines that train are lost before those that start.
* With a notice as long as the rest of the step, the step is finished and nothing is made again. Otherwise the step in
  flight is. Workers that live go on from their memory; if none does, the job goes back to its last checkpoint, unless
  the notice was long enough to save one more.
* A machine that is there in the trace is asked for at once and paid for from then on. Machines on demand are always
  there.
* A trace that ends before the job does begins again.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from heapq import heappop, heappush

from infra.simulation.trace import Trace

_EXACT = 1e-9  # of a step: what rounding may cost

WAITING, START, NOTICE, DEATH, JOIN, REPEATED, CHECKPOINT, BETWEEN = (
    "waiting for machines",
    "start",
    "recovery notice",
    "recovery death",
    "recovery join",
    "repeated",
    "checkpoint",
    "between steps",
)
"""What time is lost by; in words of `python -m training.metrics.goodput` where it has them."""


@dataclass(frozen=True, kw_only=True)
class Course:
    """All that one run depends on; times in seconds."""

    steps: int
    step_seconds: float
    between_seconds: float
    """Of each step, what is not useful and not divided."""
    step_workers: int
    scaling: float
    min_workers: int
    max_workers: int
    on_demand: int
    """Machines on demand, of `max_workers`; the rest are spot machines."""
    traces: tuple[Trace, ...]
    speeds: tuple[float, ...]
    """Of each trace's machines; those on demand have speed 1."""
    notice: float
    node_starts: tuple[float, ...]
    """Used in turn by the machines that start."""
    checkpoint_every: int
    checkpoint_stall: float
    checkpoint_save: float
    recovery_notice: float
    recovery_death: float
    recovery_join: float
    recovery_start: float
    most_seconds: float


@dataclass(frozen=True)
class Outcome:
    """How it went; `seconds == useful + sum(losses)`."""

    is_done: bool
    seconds: float
    useful: float
    losses: Mapping[str, float]
    steps: int
    reclaimed: int
    """Machines that the job lost."""
    recoveries: int
    rollbacks: int
    """How often it went back to a checkpoint."""
    spot_hours: tuple[float, ...]
    """Machine-hours of each trace's machines that were paid for."""
    on_demand_hours: float
    mean_workers: float
    """Over the time in which it trained or recovered."""
    timeline: tuple[tuple[float, int, int], ...]
    """Seconds, workers that train from then on, steps made by then."""

    @property
    def goodput(self) -> float:
        """Share of the time that was useful steps."""
        return self.useful / self.seconds if self.seconds else 0.0


def simulate(course: Course) -> Outcome:
    """Replay the traces until the job is done, or `most_seconds` are over."""
    return _Run(course).outcome()


@dataclass
class _Machines:
    """Spot machines of one trace that the job has."""

    available: int = 0
    ready: int = 0
    starting: int = 0
    share: float = 0.0
    """Losses that are the job's by its share, less those that it was dealt."""

    @property
    def held(self) -> int:
        return self.ready + self.starting


def _changes(trace: Trace) -> Iterator[tuple[float, int, int]]:
    """Losses and gains of a trace, again and again; what it has at its end and not at its beginning is lost there."""
    last = 0
    for turn in itertools.count():
        begin, is_quiet = turn * trace.seconds, True
        for at, lost, gained in _one_turn(trace, last):
            is_quiet = False
            yield begin + at, lost, gained
        if is_quiet:
            return
        last = trace.counts()[-1][1]


def _one_turn(trace: Trace, last: int) -> Iterator[tuple[float, int, int]]:
    """The changes of a trace that follows on so many machines."""
    changes = list(trace.changes)
    first = changes.pop(0) if changes and changes[0].at == 0 else None
    count = first.gained - first.lost if first else 0
    if count != last:
        yield 0.0, max(0, last - count), max(0, count - last)
    for change in changes:
        yield change.at, change.lost, change.gained


class _Run:
    """One replay. `now` is until when the job's time is accounted for; it may be ahead of the trace by one step."""

    def __init__(self, course: Course) -> None:
        self.course = course
        self.machines = [_Machines() for _ in course.traces]
        self.on_demand_ready = 0
        self.boots: list[tuple[float, int, int]] = []  # when, which trace (-1: on demand), a number of its own
        self.numbers = itertools.count()
        self.starts = itertools.cycle(course.node_starts)
        self.lost_before_start = [0 for _ in course.traces]

        self.now = self.resumes = 0.0
        self.step = self.saved = 0
        self.workers = 0  # of the world that trains or recovers; 0: there is none
        self.holders = 0  # machines with the model in their memory
        self.pause = WAITING
        self.pace = 0.0  # seconds of a step in this world, with what is between two
        self.elapsed = 0.0  # of the step in flight
        self.stall = 0.0  # of a checkpoint, that is still to come
        self.newest = 0  # the step up to which all have been made once

        self.useful = self.worker_seconds = self.world_seconds = 0.0
        self.losses: dict[str, float] = {}
        self.reclaimed = self.worlds = self.rollbacks = 0
        self.paid_until = self.on_demand_seconds = 0.0
        self.spot_seconds = [0.0 for _ in course.traces]
        self.timeline: list[tuple[float, int, int]] = [(0.0, 0, 0)]

    def outcome(self) -> Outcome:
        """Go through all changes, in the order of time."""
        course = self.course
        sources = [_changes(trace) for trace in course.traces]
        ahead = [next(source, None) for source in sources]
        for _ in range(course.on_demand):
            self._boot(-1, 0.0)
        while self.step < course.steps:
            moments = [change[0] for change in ahead if change] + [boot[0] for boot in self.boots[:1]]
            at = min([*moments, course.most_seconds])
            self._run_until(at)
            if self.step >= course.steps or at >= course.most_seconds:
                break
            self._pay(at)
            lost = joined = 0
            for index, change in enumerate(ahead):
                if change and change[0] <= at:
                    lost += self._change(index, change[1], change[2])
                    ahead[index] = next(sources[index], None)
            self._ask(at)
            while self.boots and self.boots[0][0] <= at:
                joined += self._booted(heappop(self.boots)[1])
            if lost or joined:
                self._regroup(lost)
        self._spend(REPEATED, self.elapsed, ahead=False)  # of a job that was given up
        self._pay(self.now)
        self._note()
        return Outcome(
            is_done=self.step >= course.steps,
            seconds=self.now,
            useful=self.useful,
            losses=dict(sorted(self.losses.items(), key=lambda loss: (-loss[1], loss[0]))),
            steps=self.step,
            reclaimed=self.reclaimed,
            recoveries=max(0, self.worlds - 1),
            rollbacks=self.rollbacks,
            spot_hours=tuple(seconds / 3600 for seconds in self.spot_seconds),
            on_demand_hours=self.on_demand_seconds / 3600,
            mean_workers=self.worker_seconds / self.world_seconds if self.world_seconds else 0.0,
            timeline=tuple(self.timeline),
        )

    # --- machines -----------------------------------------------------------------------------------------------------

    def _pay(self, until: float) -> None:
        """Machines are paid for from the request to their end, whether they train or not."""
        passed = max(0.0, until - self.paid_until)
        for index, one in enumerate(self.machines):
            self.spot_seconds[index] += one.held * passed
        self.on_demand_seconds += self.course.on_demand * passed
        self.paid_until = max(self.paid_until, until)

    def _change(self, index: int, lost: int, gained: int) -> int:
        """What a change of a trace does to the job; returns how many machines with a worker it loses."""
        one = self.machines[index]
        mine = 0
        # Of machines that come and go in the same moment, those that came are not the job's.
        taken = min(lost, one.available)
        if taken:
            one.share += taken * one.held / one.available
            unheld = one.available - one.held
            mine = min(max(math.floor(one.share + _EXACT), taken - unheld, 0), taken, one.held)
            one.share -= mine
        one.available += gained - lost
        self.reclaimed += mine
        trained = min(mine, one.ready)
        one.ready -= trained
        one.starting -= mine - trained
        self.lost_before_start[index] += mine - trained
        return trained

    def _ask(self, at: float) -> None:
        """Ask for all machines that the job may have, those of the first trace first."""
        wanted = self.course.max_workers - self.course.on_demand - sum(one.held for one in self.machines)
        for index, one in enumerate(self.machines):
            more = min(wanted, one.available - one.held)
            for _ in range(more):
                self._boot(index, at)
            one.starting += more
            wanted -= more

    def _boot(self, index: int, at: float) -> None:
        heappush(self.boots, (at + next(self.starts), index, next(self.numbers)))

    def _booted(self, index: int) -> int:
        """A machine is there; returns 0 if it was lost before."""
        if index < 0:
            self.on_demand_ready += 1
            return 1
        if self.lost_before_start[index]:
            self.lost_before_start[index] -= 1
            return 0
        self.machines[index].starting -= 1
        self.machines[index].ready += 1
        return 1

    # --- the job ------------------------------------------------------------------------------------------------------

    def _run_until(self, at: float) -> None:
        """Wait, recover and train until then, or until the job is done."""
        if self.now >= at:
            return
        if not self.workers:
            self._spend(WAITING, at - self.now)
            return
        if self.now < self.resumes:
            self._spend(self.pause, min(at, self.resumes) - self.now)
        while self.now < at and self.step < self.course.steps:
            if self.stall:
                used = min(self.stall, at - self.now)
                self.stall -= used
                self._spend(CHECKPOINT, used)
            else:
                self._make_steps(at)

    def _make_steps(self, at: float) -> None:
        """Steps up to the next checkpoint, or whole rounds of steps and checkpoint at once, or until then."""
        course, room = self.course, at - self.now
        left = course.steps - self.step
        to_checkpoint = course.checkpoint_every - self.step % course.checkpoint_every
        whole = course.checkpoint_every * self.pace
        if not self.elapsed and to_checkpoint == course.checkpoint_every:
            rounds = min(int(room // (whole + course.checkpoint_stall)), (left - 1) // course.checkpoint_every)
            if rounds:
                self._complete(rounds * course.checkpoint_every)
                self._advance(rounds * whole)
                self.stall = 0.0
                self._spend(CHECKPOINT, rounds * course.checkpoint_stall)
                return
        number = min(left, to_checkpoint)
        needed = number * self.pace - self.elapsed
        if needed <= room:
            self._advance(needed)
            self._complete(number)
            return
        number = min(math.floor((self.elapsed + room) / self.pace + _EXACT), number - 1)
        rest = max(0.0, self.elapsed + room - number * self.pace)
        self._advance(at - self.now)
        self._complete(number)
        self.elapsed = rest

    def _complete(self, number: int) -> None:
        """So many steps are made."""
        if not number:
            return
        course = self.course
        self.elapsed = 0.0
        again = min(number, max(0, self.newest - self.step))
        self._spend(REPEATED, again * self.pace, ahead=False)
        self.useful += (number - again) * (self.pace - course.between_seconds)
        self._spend(BETWEEN, (number - again) * course.between_seconds, ahead=False)
        self.step += number
        self.newest = max(self.newest, self.step)
        after = self.step % course.checkpoint_every
        if after < number:  # a checkpoint lies between; the last step needs none
            self.saved = self.step - after
            self.stall = course.checkpoint_stall if not after and self.step < course.steps else 0.0

    def _regroup(self, lost: int) -> None:
        """A new world, after machines with a worker were lost, or others joined."""
        course = self.course
        if self.workers and self.now >= self.resumes:
            self._end_step(course.notice if lost else math.inf)
        holders = max(0, self.holders - lost)
        if self.holders and not holders and course.notice < course.checkpoint_save:
            self._roll_back()
        if self.step >= course.steps:
            return
        had_world = self.workers > 0
        self.workers = self.on_demand_ready + sum(one.ready for one in self.machines)
        if self.workers < course.min_workers:
            self.workers, self.holders = 0, holders
        else:
            if not holders:
                self.pause, pause = START, course.recovery_start
            elif not lost or not had_world:
                self.pause, pause = JOIN, course.recovery_join
            elif course.notice:
                self.pause, pause = NOTICE, course.recovery_notice
            else:
                self.pause, pause = DEATH, course.recovery_death
            self.resumes = self.now + pause
            self.holders = self.workers
            self.pace = self._step_seconds()
            self.worlds += 1
        self._note()

    def _end_step(self, patience: float) -> None:
        """Finish the step in flight, if that takes no longer than so many seconds; else it is to be made again."""
        self.stall = 0.0  # the checkpoint itself is made
        if not self.elapsed:
            return
        rest = self.pace - self.elapsed
        if 0 < rest <= patience:
            self._advance(rest)
            self._complete(1)
            self.stall = 0.0
        else:
            self._spend(REPEATED, self.elapsed, ahead=False)
            self.elapsed = 0.0

    def _roll_back(self) -> None:
        """Go back to the last checkpoint; steps that are made again are no use."""
        self.rollbacks += self.step != self.saved
        self.step = self.saved

    def _step_seconds(self) -> float:
        """Of the machines that there are now; all wait for the slowest."""
        course = self.course
        share = (1 - course.scaling) + course.scaling * course.step_workers / self.workers
        speeds = [speed for one, speed in zip(self.machines, course.speeds, strict=True) if one.ready]
        slowest = min([*speeds, *([1.0] if self.on_demand_ready else [])])
        return course.step_seconds * share / slowest + course.between_seconds

    def _advance(self, seconds: float) -> None:
        self.now += seconds
        self.worker_seconds += seconds * self.workers
        self.world_seconds += seconds * bool(self.workers)

    def _spend(self, cause: str, seconds: float, *, ahead: bool = True) -> None:
        """Put down time as lost; `ahead`: it passes, else it has passed already."""
        if seconds > 0:
            self.losses[cause] = self.losses.get(cause, 0.0) + seconds
            if ahead:
                self._advance(seconds)

    def _note(self) -> None:
        self.timeline.append((self.now, self.workers, self.step))
