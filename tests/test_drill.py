"""What a fault costs, from the workers' lines: by their times and generations, in whatever order they arrive."""

from __future__ import annotations

import itertools
import random
import time
from collections.abc import Iterator
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest

from infra import drill
from infra.drill import DrillError, Observer, Result
from infra.jobs import Progress

START = 100.0
"""When the observer begins to look; what is earlier is the past of the job."""


class Script:
    """Hands over lines at once; at its end the time is taken to have passed."""

    def __init__(self, *lines: Progress) -> None:
        self._lines = list(lines)

    def tell(self, *lines: Progress) -> None:
        self._lines += lines

    def events(self, timeout: timedelta) -> Iterator[Progress]:  # noqa: ARG002 - time passes at once here
        while self._lines:
            yield self._lines.pop(0)


def line(event: str, at: float, generation: int, world: int = 3, pod: str = "w-0", **fields: Any) -> Progress:
    return Progress(pod, event, at, {"generation": generation, "world_size": world, **fields})


def steps(first: int, count: int, at: float, generation: int, world: int = 3, every: float = 1.0) -> list[Progress]:
    return [line("step", at + every * n, generation, world, step=first + n) for n in range(count)]


def finished(at: float) -> Progress:
    return Progress("w-0", "finished", at, {"step": 99, "accuracy": 0.97})


def strike(lines: list[Progress], hit: float, before: list[Progress] | None = None) -> Result:
    """The figures of a fault at `hit`, of a job that had trained before; `lines` are what the workers say after."""
    script = Script(*(before or steps(1, 5, START, generation=1)))
    observer = Observer("digits", script, since=START)
    observer.until_training()

    def inject() -> float:
        script.tell(*lines)
        return hit

    return observer.through("spot", "gpu-spot-1", inject)


@pytest.fixture(autouse=True)
def _no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    """A script that is at its end says nothing more, however long one waits: each look at the clock takes a minute."""
    minutes = itertools.count()
    monkeypatch.setattr(drill, "time", SimpleNamespace(monotonic=lambda: 60.0 * next(minutes), time=time.time))


def test_a_fault_costs_the_time_to_the_next_step_of_the_new_world_and_the_steps_done_again() -> None:
    result = strike([*steps(6, 2, 105, 1), *steps(5, 3, 109, 2, world=2)], hit=104.5)
    assert result == Result(
        fault="spot",
        job="digits",
        victim="gpu-spot-1",
        seconds_to_next_step=4.5,
        longest_pause=3.0,
        steps_lost=3,
        world_before=3,
        world_after=2,
        generation_before=1,
        generation_after=2,
    )


def test_a_job_that_saved_in_time_loses_no_step() -> None:
    assert strike(steps(6, 3, 106, 2), hit=104.5).steps_lost == 0


# Lines of the workers after the fault at 104.5, and: seconds to the next step, steps lost, generations, worlds.
HISTORIES = {
    "the old world goes on for a while after a notice": (
        [*steps(6, 4, 105, 1), *steps(10, 2, 110, 2, world=2)],
        (5.5, 0, 1, 2, 3, 2),
    ),
    "a replacement joins at once, and the world grows again": (
        [*steps(6, 2, 106, 2, world=2), *steps(8, 2, 109, 3, world=3)],
        (1.5, 0, 1, 2, 3, 2),
    ),
    "a world that met makes no step, the one after it does": (
        [line("rendezvous", 106, 2, 2), *steps(6, 2, 108, 3, world=3)],
        (3.5, 0, 1, 3, 3, 3),
    ),
    "the world had changed before the fault, and its lines come late": (
        [*steps(6, 2, 103.0, 2, world=2, every=0.5), *steps(8, 2, 107, 3, world=1)],
        (2.5, 0, 2, 3, 2, 1),
    ),
    "the world had met again before the fault, without a step": (
        [line("rendezvous", 104.4, 2, 2), line("step", 104.9, 2, 2, step=6), *steps(7, 2, 108, 3, world=3)],
        (3.5, 0, 2, 3, 2, 3),
    ),
    "a resume says as much as a rendezvous": (
        [line("resume", 104.2, 2, 2, step=5), line("step", 104.9, 2, 2, step=6), *steps(7, 2, 109, 3, world=3)],
        (4.5, 0, 2, 3, 2, 3),
    ),
    "steps of an even earlier fault are not lost once more": (
        [line("step", 104.2, 2, 2, step=3), line("step", 104.4, 2, 2, step=4), *steps(5, 2, 107, 3, world=3)],
        (2.5, 0, 2, 3, 2, 3),
    ),
    "a script of one's own writes lines of its own kind": (
        [Progress("w-0", "step", 105, {"loss": 1}), line("step", 105, 2, step="six"), *steps(6, 2, 107, 2)],
        (2.5, 0, 1, 2, 3, 3),
    ),
}


@pytest.mark.parametrize("order", ["as written", "backwards", "shuffled"])
@pytest.mark.parametrize("history", HISTORIES)
def test_the_figures_are_those_of_this_fault_in_whatever_order_its_lines_arrive(history: str, order: str) -> None:
    lines, expected = HISTORIES[history]
    told = list(lines)
    if order == "backwards":
        told.reverse()
    if order == "shuffled":
        random.Random(history).shuffle(told)  # noqa: S311 - no secret
    result = strike(told, hit=104.5)
    assert (
        result.seconds_to_next_step,
        result.steps_lost,
        result.generation_before,
        result.generation_after,
        result.world_before,
        result.world_after,
    ) == expected


def test_two_faults_after_each_other_have_their_own_figures() -> None:
    script = Script(*steps(1, 5, START, generation=1))
    observer = Observer("digits", script, since=START)
    observer.until_training()

    def first() -> float:
        script.tell(*steps(4, 5, 107, 2, world=2))
        return 104.5

    def second() -> float:
        script.tell(line("step", 112, 2, 2, step=9), *steps(8, 3, 119, 3, world=3))
        return 112.5

    one, two = observer.through("worker", "w-2", first), observer.through("spot", "gpu-spot-1", second)
    assert (one.seconds_to_next_step, one.steps_lost, one.world_before, one.world_after) == (2.5, 2, 3, 2)
    assert (two.seconds_to_next_step, two.steps_lost, two.world_before, two.world_after) == (6.5, 2, 2, 3)
    assert (two.generation_before, two.generation_after) == (2, 3)


def test_a_second_observer_of_a_job_is_not_misled_by_its_past() -> None:
    past = [*steps(1, 5, 50, 1), *steps(4, 5, 60, 2, world=2), *steps(9, 9, 70, 3)]
    random.Random(1).shuffle(past)  # noqa: S311 - no secret
    result = strike(steps(20, 2, 107, 4, world=2), hit=104.5, before=[*past, *steps(18, 5, START, 3, every=0.5)])
    assert (result.generation_before, result.generation_after, result.seconds_to_next_step) == (3, 4, 2.5)
    assert result.steps_lost == 3


def test_training_is_under_way_when_steps_are_made_now_and_in_one_world() -> None:
    now = steps(12, 3, START + 5, generation=2)
    observer = Observer("digits", Script(*steps(1, 9, 10, 1), *steps(9, 3, 90, 2), *now), since=START)
    assert observer.until_training() == now[0], "the first step after the look began; the others were in its world"


@pytest.mark.parametrize(
    "lines",
    [[], steps(1, 9, 10, 1), [*steps(1, 2, START, 1), *steps(3, 2, START + 2, 2)], [line("rendezvous", START, 1)] * 5],
    ids=["nothing", "only the past", "two worlds", "no steps"],
)
def test_training_that_does_not_begin_is_told(lines: list[Progress]) -> None:
    with pytest.raises(DrillError, match="made no 3 steps in one world within 0:03:00"):
        Observer("digits", Script(*lines), since=START).until_training()


def test_a_worker_that_is_on_its_way_is_waited_for() -> None:
    two, three = steps(1, 5, START, generation=1, world=2), steps(6, 5, START + 6, generation=2, world=3)
    assert Observer("digits", Script(*two, *three), since=START).until_training(3).fields["world_size"] == 3
    assert Observer("digits", Script(*two), since=START).until_training(3).fields["world_size"] == 2


def test_a_job_that_has_finished_cannot_be_disturbed() -> None:
    observer = Observer("digits", Script(*steps(1, 9, 10, 1), finished(20), *steps(1, 9, START, 1)), since=START)
    with pytest.raises(DrillError, match="job digits has finished: there is nothing left to disturb"):
        observer.until_training()


@pytest.mark.parametrize(
    ("lines", "sentence"),
    [
        ([finished(104.0)], "had finished before the fault"),
        ([*steps(6, 3, 105, 1), finished(108)], "finished before the fault took effect"),
        (steps(6, 3, 105, 1), "made no step in another world"),
        ([], "made no step in another world"),
    ],
)
def test_a_fault_without_effect_is_told(lines: list[Progress], sentence: str) -> None:
    with pytest.raises(DrillError, match=sentence):
        strike(lines, hit=104.5)


def test_a_job_that_finished_after_the_fault_has_figures() -> None:
    script = Script(*steps(1, 5, START, generation=1))
    observer = Observer("digits", script, since=START)
    observer.until_training()

    def inject() -> float:
        script.tell(finished(110), *steps(6, 3, 107, 2))  # the end arrives first
        return 104.5

    assert observer.through("spot", "gpu-spot-1", inject).seconds_to_next_step == 2.5
    assert observer.until_finished(timedelta(0)) == finished(110)


def test_a_fault_before_the_first_step_is_told() -> None:
    observer = Observer("digits", Script(*steps(1, 3, START, 1)), since=START)
    with pytest.raises(DrillError, match="had not begun to train when the fault hit"):
        observer.through("spot", "gpu-spot-1", lambda: START - 1)


def test_a_job_that_does_not_finish_in_time_has_no_result() -> None:
    assert Observer("digits", Script(*steps(1, 3, START, 1))).until_finished(timedelta(0)) is None


def record(pod: str, generation: int, cause: str = "node_left", total: float = 0.5, **fields: Any) -> Progress:
    """What a launcher writes, which may be more than the drill knows of."""
    about = {"host": pod, "cause": cause, "further": [], "seconds": {"rendezvous": total}, "total": total}
    world = {"world_size": 2, "members": ["w-0", "w-1"], "kept": 1, "forked": 0, "news": True}
    return line("recovery", 109.5, generation, pod=pod, **{**about, **world, **fields})


def test_the_record_of_the_recovery_is_that_of_the_launcher_that_was_longest_busy() -> None:
    told = [record("w-0", 2, total=0.4), record("w-1", 2, total=0.9), record("w-0", 3, total=7.0)]
    result = strike([*told, *steps(6, 3, 106, 2, world=2)], hit=104.5)
    assert result.recovery is not None
    assert (result.recovery["host"], result.recovery["total"]) == ("w-1", 0.9)
    assert result.as_json()["recovery"]["seconds"] == {"rendezvous": 0.9}


def test_a_record_of_a_node_that_has_just_started_is_no_recovery_unless_there_is_no_other() -> None:
    started, recovered = record("w-1", 2, "start", total=6.0), record("w-0", 2, total=0.4)
    result = strike([started, recovered, *steps(6, 3, 106, 2)], hit=104.5)
    assert result.recovery is not None
    assert result.recovery["cause"] == "node_left"
    result = strike([started, *steps(6, 3, 106, 2)], hit=104.5)
    assert result.recovery is not None
    assert result.recovery["cause"] == "start"


class Later(Script):
    """Says nothing more for a while where there is a gap in what it was told."""

    def events(self, timeout: timedelta) -> Iterator[Progress]:
        for said in super().events(timeout):
            if said == GAP:
                return
            yield said


GAP = Progress("", "", 0, {})


def test_records_that_come_after_the_next_step_are_waited_for_until_all_nodes_have_told() -> None:
    script = Later(*steps(1, 5, START, generation=1))
    observer = Observer("digits", script, since=START)
    observer.until_training()

    def inject() -> float:
        one, other = record("w-0", 2, total=0.4), record("w-1", 2, total=0.6)
        script.tell(*steps(6, 1, 106, 2), one, GAP, other, finished(120))
        return 104.5

    result = observer.through("spot", "gpu-spot-1", inject)
    assert result.recovery is not None
    assert result.recovery["host"] == "w-1"
    assert observer.finished is None, "it did not read on when all nodes of the world had told"


@pytest.mark.parametrize("told", [[], [line("recovery", 105, 2, seconds=3)]], ids=["nothing", "a script's own kind"])
def test_a_job_whose_image_writes_no_records_has_figures_all_the_same(told: list[Progress]) -> None:
    result = strike([*told, *steps(6, 3, 106, 2)], hit=104.5)
    assert (result.recovery, result.seconds_to_next_step) == (None, 1.5)


class Returning:
    """Is there again at the n-th look."""

    def __init__(self, looks: int) -> None:
        self._looks = looks

    def __call__(self) -> bool:
        self._looks -= 1
        return self._looks <= 0


def strike_store(lines: list[Progress], looks: int = 2) -> Result:
    """The figures when etcd is hit at 104.5 and is there again at 112; `lines` are what the workers say after."""
    script = Script(*steps(1, 5, START, generation=1))
    observer = Observer("digits", script, since=START)
    observer.until_training()

    def inject() -> float:
        script.tell(*lines)
        return 104.5

    return observer.across("etcd", "etcd-0", inject, Returning(looks))


@pytest.fixture
def _etcd_is_back_at_112(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(drill, "now", lambda: 112.0)


@pytest.mark.usefixtures("_etcd_is_back_at_112")
def test_a_fault_that_ends_no_world_costs_the_longest_pause() -> None:
    result = strike_store([*steps(6, 3, 105, 1), *steps(9, 5, 110, 1)])
    assert (result.seconds_to_next_step, result.longest_pause, result.steps_lost) == (0.5, 3.0, 0)
    assert (result.generation_before, result.generation_after, result.world_after) == (1, 1, 3)
    assert result.recovery is None


@pytest.mark.usefixtures("_etcd_is_back_at_112")
def test_a_fault_that_should_have_ended_no_world_and_did_has_the_figures_of_a_recovery() -> None:
    lines = [*steps(6, 3, 105, 1), record("w-0", 2, "isolated"), record("w-1", 2, "isolated"), *steps(8, 5, 113, 2)]
    result = strike_store(lines)
    assert (result.seconds_to_next_step, result.longest_pause, result.steps_lost) == (8.5, 6.0, 1)
    assert result.recovery is not None
    assert result.recovery["cause"] == "isolated"


@pytest.mark.usefixtures("_etcd_is_back_at_112")
def test_training_that_stands_still_after_the_store_is_back_is_told() -> None:
    with pytest.raises(DrillError, match="made no step within 0:03:00 after etcd-0 was back"):
        strike_store(steps(6, 3, 105, 1))


def test_a_store_that_does_not_come_back_is_told() -> None:
    with pytest.raises(DrillError, match="etcd-0 is not back within 0:03:00"):
        strike_store(steps(6, 3, 105, 1), looks=10_000)


@pytest.mark.usefixtures("_etcd_is_back_at_112")
def test_a_job_that_finishes_while_the_store_is_away_has_figures() -> None:
    result = strike_store([*steps(6, 3, 105, 1), finished(108)])
    assert (result.seconds_to_next_step, result.longest_pause) == (0.5, 1.0)


def test_a_result_is_plain_data() -> None:
    assert strike(steps(6, 3, 106, 2), hit=104.5).as_json()["seconds_to_next_step"] == 1.5
