"""What a replay says: closed forms where there are some, and what must hold for any trace."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from infra.simulation.replay import (
    CHECKPOINT,
    DEATH,
    JOIN,
    NOTICE,
    REPEATED,
    START,
    WAITING,
    Course,
    Outcome,
    simulate,
)
from infra.simulation.trace import Trace, of_counts

FREE = {
    "checkpoint_stall": 0.0,
    "recovery_notice": 0.0,
    "recovery_death": 0.0,
    "recovery_join": 0.0,
    "recovery_start": 0.0,
    "node_starts": (0.0,),
}
"""Nothing but steps takes time."""


def course(trace: Trace | None = None, **changes: Any) -> Course:
    """100 steps of 10 s with four workers, of which two are needed; a checkpoint every 10 steps."""
    traces = () if trace is None else (trace,)
    usual: dict[str, Any] = {
        "steps": 100,
        "step_seconds": 10.0,
        "between_seconds": 0.0,
        "step_workers": 4,
        "scaling": 1.0,
        "min_workers": 2,
        "max_workers": 4,
        "on_demand": 0 if traces else 4,
        "traces": traces,
        "speeds": (1.0,) * len(traces),
        "notice": 120.0,
        "node_starts": (30.0,),
        "checkpoint_every": 10,
        "checkpoint_stall": 1.0,
        "checkpoint_save": 5.0,
        "recovery_notice": 2.0,
        "recovery_death": 3.0,
        "recovery_join": 4.0,
        "recovery_start": 20.0,
        "most_seconds": 100_000.0,
    }
    return Course(**{**usual, **changes})


def counts(*told: tuple[float, int], seconds: float = 1_000_000) -> Trace:
    return of_counts(told, seconds)


def run(trace: Trace | None = None, **changes: Any) -> Outcome:
    return simulate(course(trace, **changes))


def test_on_demand_is_steps_and_checkpoints_and_the_start() -> None:
    outcome = run()
    assert outcome.seconds == 30 + 20 + 100 * 10 + 9 * 1  # the last step needs no checkpoint
    assert outcome.losses == {WAITING: 30, START: 20, CHECKPOINT: 9}
    assert outcome.on_demand_hours == 4 * outcome.seconds / 3600
    assert (outcome.is_done, outcome.reclaimed, outcome.recoveries) == (True, 0, 0)


def test_a_notice_costs_its_pause_and_no_step() -> None:
    outcome = run(counts((0, 4), (85, 3)))  # 35 s after the first step began: in the fourth
    assert outcome.losses == {WAITING: 30, START: 20, CHECKPOINT: 9, NOTICE: 2}
    assert outcome.seconds == pytest.approx(50 + 4 * 10 + 2 + 96 * (10 * 4 / 3) + 9)
    assert (outcome.reclaimed, outcome.recoveries, outcome.rollbacks) == (1, 1, 0)


def test_without_a_notice_the_step_in_flight_is_made_again() -> None:
    outcome = run(counts((0, 4), (85, 3)), notice=0.0)
    assert outcome.losses == {WAITING: 30, START: 20, CHECKPOINT: 9, REPEATED: 5, DEATH: 3}


def test_a_notice_shorter_than_the_rest_of_the_step_does_not_save_it() -> None:
    assert run(counts((0, 4), (85, 3)), notice=4.0).losses[REPEATED] == 5
    assert REPEATED not in run(counts((0, 4), (85, 3)), notice=5.0).losses


def test_when_all_are_lost_the_job_goes_back_to_its_checkpoint() -> None:
    trace = counts((0, 4), (50 + 121 + 15, 0), (1000, 4))  # twelve steps with a checkpoint, and half a step
    outcome = run(trace, notice=0.0)
    assert outcome.rollbacks == 1
    assert outcome.losses[REPEATED] == 3 * 10 + 5
    assert outcome.losses[WAITING] == 30 + (1000 - 186) + 30
    assert outcome.losses[START] == 40
    assert outcome.useful == pytest.approx(1000)


def test_a_notice_long_enough_for_a_last_checkpoint_saves_what_all_have_made() -> None:
    trace = counts((0, 4), (186, 0), (1000, 4))
    assert run(trace, notice=120.0).rollbacks == 0
    assert run(trace, notice=120.0, checkpoint_save=121.0).rollbacks == 1


def test_fewer_than_the_fewest_wait_with_the_model_in_memory() -> None:
    outcome = run(counts((0, 4), (86, 1), (500, 4)), notice=0.0)
    assert outcome.rollbacks == 0
    assert outcome.losses[WAITING] == 30 + (500 - 86) + 30
    assert outcome.losses[JOIN] == 4


def test_newcomers_cost_their_pause_and_make_steps_shorter() -> None:
    outcome = run(counts((0, 2), (45, 4)))
    assert outcome.losses[JOIN] == 4
    assert outcome.seconds < run(counts((0, 2))).seconds


def test_of_lost_machines_the_job_has_its_share() -> None:
    """Four of eight machines are the job's: of each loss of two, one."""
    outcome = run(counts((0, 8), (100, 6), (200, 8), (300, 6), (400, 8), (500, 6)))
    assert outcome.reclaimed == 3


def test_a_machine_that_is_lost_while_it_starts_never_joins() -> None:
    outcome = run(counts((0, 2), (100, 3), (110, 2)))
    assert outcome.recoveries == 1  # of which was lost, nobody can tell: one that trains
    assert outcome.reclaimed == 1
    paid = outcome.spot_hours[0] * 3600
    assert paid == pytest.approx(2 * outcome.seconds + 10)


def test_a_trace_that_is_shorter_than_the_job_begins_again() -> None:
    outcome = run(counts((0, 4), (300, 2), seconds=600))
    assert outcome.is_done
    assert outcome.reclaimed == 2 * math.ceil((outcome.seconds - 300) / 600)


def test_what_is_between_steps_is_lost_and_never_divided() -> None:
    outcome = run(counts((0, 2)), between_seconds=1.0)
    assert outcome.useful == 100 * 20
    assert outcome.losses["between steps"] == 100


def test_the_slowest_machine_sets_the_pace_of_several_kinds() -> None:
    both = course(None, traces=(counts((0, 2)), counts((0, 2))), speeds=(1.0, 0.5), on_demand=0)
    assert simulate(both).useful == 100 * 20
    assert simulate(both).mean_workers == 4
    assert simulate(dataclasses.replace(both, speeds=(2.0, 2.0))).useful == 100 * 5


def test_a_job_that_gets_no_machines_is_given_up() -> None:
    outcome = run(counts((0, 1)), most_seconds=5000.0)
    assert (outcome.is_done, outcome.seconds, outcome.goodput, outcome.losses) == (False, 5000, 0, {WAITING: 5000})
    assert outcome.spot_hours[0] == pytest.approx(5000 / 3600)


@st.composite
def traces(draw: st.DrawFn, most: int = 6) -> Trace:
    gaps = draw(st.lists(st.integers(1, 400), min_size=1, max_size=12))
    numbers = draw(st.lists(st.integers(0, most), min_size=len(gaps), max_size=len(gaps)))
    at, told = 0, []
    for gap, number in zip(gaps, numbers, strict=True):
        told.append((float(at), number))
        at += gap
    return of_counts(told, float(at))


SECONDS = st.floats(0, 60, allow_nan=False)


@settings(max_examples=80, deadline=None)
@given(
    traces(),
    traces(),
    st.integers(0, 4),
    st.integers(1, 4),
    st.floats(0.5, 90),
    st.floats(0, 1),
    st.sampled_from([0.0, 3.0, 120.0]),
    st.integers(1, 30),
    SECONDS,
    SECONDS,
    SECONDS,
    SECONDS,
)
def test_all_time_is_accounted_for(
    first: Trace,
    second: Trace,
    on_demand: int,
    fewest: int,
    step: float,
    scaling: float,
    notice: float,
    every: int,
    stall: float,
    recovery: float,
    join: float,
    node_start: float,
) -> None:
    taken = course(
        None,
        traces=(first, second),
        speeds=(1.0, 0.7),
        on_demand=on_demand,
        min_workers=fewest,
        step_seconds=step,
        scaling=scaling,
        between_seconds=stall / 8,
        notice=notice,
        checkpoint_every=every,
        checkpoint_stall=stall,
        recovery_death=recovery,
        recovery_notice=recovery / 2,
        recovery_join=join,
        node_starts=(node_start, node_start / 2),
    )
    outcome = simulate(taken)
    assert simulate(taken) == outcome
    assert 0 <= outcome.goodput <= 1
    assert outcome.useful >= -1e-6
    assert all(seconds > 0 for seconds in outcome.losses.values())
    assert outcome.seconds == pytest.approx(outcome.useful + sum(outcome.losses.values()))
    assert outcome.is_done == (outcome.steps == 100)
    assert outcome.mean_workers <= 4
    paid = sum(outcome.spot_hours) + outcome.on_demand_hours
    assert paid <= 4 * outcome.seconds / 3600 + 1e-6
    moments = [at for at, _, _ in outcome.timeline]
    assert moments == sorted(moments)
    assert {workers for _, workers, _ in outcome.timeline} <= {0, *range(fewest, 5)}


@settings(max_examples=60, deadline=None)
@given(traces(), traces())
def test_where_changes_cost_nothing_more_machines_are_never_slower(less: Trace, more: Trace) -> None:
    seconds = max(less.seconds, more.seconds)
    moments = sorted({at for trace in (less, more) for at, _ in trace.counts()} | {0.0})

    def number(trace: Trace, at: float) -> int:
        return next((count for when, count in reversed(trace.counts()) if when <= at), 0)

    low = of_counts([(at, number(less, at)) for at in moments], seconds)
    high = of_counts([(at, max(number(less, at), number(more, at))) for at in moments], seconds)
    # Each step is a second, with any number of workers: what counts is when there are enough.
    slow, fast = (run(one, **FREE, scaling=0.0, step_seconds=1.0, notice=120.0) for one in (low, high))
    assert fast.seconds <= slow.seconds + 1e-6


@given(st.integers(2, 6), st.integers(1, 4), st.floats(0, 1))
def test_more_machines_all_the_time_are_never_slower(number: int, more: int, scaling: float) -> None:
    few, many = (run(counts((0, one)), scaling=scaling) for one in (number, number + more))
    assert many.seconds <= few.seconds + 1e-6


@settings(deadline=None)
@given(traces(), st.floats(0, 30), st.floats(0, 30))
def test_slower_recovery_is_never_better_goodput(trace: Trace, quick: float, slower: float) -> None:
    """Of a course that is the same: deaths happen at the same moments, within the same time."""
    bounded = {"steps": 10**9, "most_seconds": 3000.0, "notice": 0.0, "step_seconds": 0.001, "checkpoint_every": 1}
    one = run(trace, **{**FREE, **bounded, "recovery_death": quick})
    other = run(trace, **{**FREE, **bounded, "recovery_death": quick + slower})
    assert other.useful <= one.useful + 0.5


@given(st.integers(1, 5000), st.floats(0.01, 100), st.integers(1, 700), st.floats(0, 20), st.integers(2, 64))
def test_on_demand_has_a_closed_form(steps: int, step: float, every: int, stall: float, workers: int) -> None:
    outcome = run(
        steps=steps,
        step_seconds=step,
        step_workers=workers,
        max_workers=workers,
        on_demand=workers,
        checkpoint_every=every,
        checkpoint_stall=stall,
        most_seconds=10**9,
    )
    assert outcome.seconds == pytest.approx(30 + 20 + steps * step + (steps - 1) // every * stall)
    assert outcome.on_demand_hours == pytest.approx(workers * outcome.seconds / 3600)
