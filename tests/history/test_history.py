"""A job's history from what its workers have printed."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from infra.history import JobHistory, Reader, history, progress_in
from infra.jobs import Progress, parse_progress


def told(event: str, time: float, pod: str = "digits-worker-0", **fields: Any) -> Progress:
    return Progress(pod, event, time, fields)


def step(number: int, time: float, **fields: Any) -> Progress:
    return told("step", time, **{"step": number, "loss": 1 / number, "world_size": 2, "generation": 1, **fields})


def recovery(generation: int, total: float, pod: str, cause: str = "node_lost", **fields: Any) -> Progress:
    known = {"began": 10.0, "outcome": "resumed", "seconds": {"detect": total}, "world_size": 2}
    return told("recovery", 20.0, pod, generation=generation, total=total, cause=cause, **known, **fields)


def test_steps_that_were_made_again_count_once_and_the_last_time() -> None:
    found = history("digits", [step(1, 1.0), step(2, 2.0), step(3, 3.0), step(2, 9.0, loss=0.25), step(3, 10.0)])
    assert [line.step for line in found.steps] == [1, 2, 3, 2, 3]
    assert [(line.step, line.time) for line in found.curve] == [(1, 1.0), (2, 9.0), (3, 10.0)]
    assert found.curve[1].loss == 0.25
    assert found.latest is not None
    assert found.latest.time == 10.0


def test_of_one_recovery_the_longest_record_counts_and_never_a_newcomer_s_start() -> None:
    records = [recovery(4, 2.0, "a"), recovery(4, 3.5, "b"), recovery(4, 30.0, "c", cause="start")]
    (found,) = history("digits", records).recoveries
    assert (found.cause, found.total) == ("node_lost", 3.5)


def test_worlds_follow_one_another_and_a_late_line_is_no_way_back() -> None:
    lines = [
        told("rendezvous", 1.0, generation=1, world_size=1, seconds=0.1),
        step(1, 2.0, world_size=1),
        told("rendezvous", 3.0, generation=2, world_size=3, seconds=0.1),
        step(2, 3.1, world_size=1, generation=1),
        step(3, 4.0, world_size=3, generation=2),
    ]
    assert [(world.time, world.size) for world in history("digits", lines).worlds] == [(1.0, 1), (3.0, 3)]


def test_the_order_in_which_lines_arrive_changes_nothing_nor_does_their_number() -> None:
    lines = [step(number, float(number)) for number in range(1, 20)]
    lines += [recovery(2, 1.0, "a"), told("checkpoint", 7.5, step=7, path="/c/7", seconds=0.2)]
    expected = history("digits", lines)
    again = [*lines[::-1], *lines[::2]]
    assert history("digits", again) == expected


def test_lines_that_are_gone_with_their_worker_are_named() -> None:
    lost = history("digits", [step(number, float(number)) for number in (40, 41, 42, 60, 61)])
    assert [gap.partition(" are")[0].partition(" is")[0] for gap in lost.gaps] == [
        "what came before step 40",
        "steps 43 to 59",
    ]


@pytest.mark.parametrize(
    "lines",
    [
        [],
        [step(number, float(number)) for number in (10, 20, 30)],
        [
            told("resume", 0.0, step=200, generation=2, world_size=2, checkpoint="/c/200"),
            step(210, 1.0),
            step(220, 2.0),
        ],
    ],
    ids=["nothing", "every tenth step", "from a checkpoint"],
)
def test_what_was_never_told_is_no_gap(lines: list[Progress]) -> None:
    assert history("digits", lines).gaps == ()


def test_goodput_is_known_where_steps_tell_their_parts() -> None:
    plain = [step(1, 1.0), step(2, 2.0)]
    assert history("digits", plain).goodput() is None
    split = [
        told("rendezvous", 0.0, generation=1, world_size=2, seconds=0.0),
        *(step(n, float(n), seconds={"forward": 0.5, "data": 0.25, "backward": 0.25}) for n in range(1, 5)),
    ]
    found = history("digits", split).goodput()
    assert found is not None
    assert (found.steps, found.useful, found.losses["data"]) == (4, 3.0, 1.0)


@pytest.mark.parametrize(
    "line",
    [
        told("step", 1.0, loss=1.0),
        told("step", 1.0, step="7"),
        told("step", 1.0, step=-1),
        told("step", math.nan, step=1),
        told("step", math.inf, step=1),
        told("recovery", 1.0, cause="x"),
    ],
    ids=str,
)
def test_a_script_s_own_line_is_passed_over_and_counted(line: Progress) -> None:
    found = history("digits", [line, step(5, 5.0)])
    assert (len(found.steps), found.strangers) == (1, 1)


def test_a_loss_that_is_no_number_is_kept() -> None:
    (event,) = progress_in("a", ['{"trainyard": "step", "time": 1.0, "step": 3, "loss": NaN}'])
    (line,) = history("digits", [event]).steps
    assert line.loss is not None
    assert math.isnan(line.loss)


def test_a_log_that_somebody_has_kept_is_read_with_the_names_before_its_lines() -> None:
    line = json.dumps({"trainyard": "notice", "time": 1.0, "message": "worker failed"})
    kept = [f"worker-1 rank 1 | {line}", f"2026-11-30T00:00:01Z {line}", "loss 0.5", '{"trainyard": "st']
    assert [(event.pod, event.event) for event in progress_in("node-0.log", kept)] == [
        ("worker-1", "notice"),
        ("node-0.log", "notice"),
    ]


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)
_NAMES = ["step", "resume", "rendezvous", "recovery", "checkpoint", "evaluation", "finished", "notice", "resources"]
_FIELDS = ["step", "loss", "generation", "world_size", "seconds", "total", "began", "message", "time", "figures"]


@given(
    st.lists(
        st.tuples(st.sampled_from(_NAMES), st.floats(), st.dictionaries(st.sampled_from(_FIELDS), _JSON, max_size=6)),
        max_size=8,
    )
)
def test_whatever_a_script_prints_makes_a_history(lines: list[tuple[str, float, dict[str, Any]]]) -> None:
    reader = Reader("digits")
    for name, time, fields in lines:
        text = json.dumps({"trainyard": name, "time": time, **{k: v for k, v in fields.items() if k != "time"}})
        if event := parse_progress("a", text):
            reader.add(event)
    found = reader.history()
    assert isinstance(found, JobHistory)
    assert isinstance(found.gaps, tuple)
    found.goodput()
