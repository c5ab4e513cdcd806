"""The check of what jobs under faults have recorded: a single lost step is found, and what may happen is not blamed."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from step_records import Step, StepRecords, check


def world(name: int, first: int, last: int, *pids: int, at: float) -> list[Step]:
    """The steps of a world, one each second from `at` on; its first rank saves each."""
    return [
        Step(
            step=step,
            applied=step,
            saved=rank == 0,
            rank=rank,
            world=name,
            world_size=len(pids),
            pid=pid,
            started=0.0,
            begun=at + step - first,
            done=at + step - first + 0.9,
        )
        for step in range(first, last + 1)
        for rank, pid in enumerate(pids)
    ]


OLD = world(1, 1, 10, 100, 200, at=0.0)


def test_a_job_that_made_every_step_is_fine(tmp_path: Path) -> None:
    records = StepRecords(tmp_path / "records")
    assert check(records.read()) == []
    for steps in (OLD, world(2, 11, 20, 300, 200, at=20.0)):
        with records.path.open("a") as stream:
            stream.writelines(json.dumps(vars(step)) + "\n" for step in steps)
        assert check(records.read()) == []


def test_a_step_that_was_complete_and_that_nobody_could_record_is_no_loss() -> None:
    """The world ended with it, or who had completed it was killed. The model says that it was made."""
    assert check(OLD + world(2, 12, 20, 300, 200, at=20.0)) == []


def test_a_step_that_died_with_all_who_had_it_may_be_made_again() -> None:
    unsaved = [step for step in OLD if not (step.step == 10 and step.saved)]
    assert check(unsaved + world(2, 10, 20, 300, 400, at=20.0)) == []


def test_one_step_that_was_counted_and_not_made_is_found() -> None:
    doctored = [replace(step, applied=step.applied - 1) for step in world(2, 12, 20, 300, 200, at=20.0)]
    assert check(OLD + doctored) == ["world 2 calls step 12 what is the model's step 11"]


@pytest.mark.parametrize(
    ("later", "told"),
    [
        (world(2, 10, 20, 300, 400, at=20.0), "world 2 begins with step 10, and step 10 was in a checkpoint"),
        (
            world(2, 10, 20, 300, 200, at=20.0),
            "world 2 begins with step 10, and a process in it had step 10 in memory",
        ),
    ],
)
def test_one_step_that_was_made_again_without_need_is_found(later: list[Step], told: str) -> None:
    assert told in check(OLD + later)


def test_a_process_number_that_was_given_out_again_is_another_process() -> None:
    unsaved = [step for step in OLD if step.step < 10 or not step.saved]
    again = [replace(step, started=15.0) for step in world(2, 10, 20, 300, 200, at=20.0)]
    assert check(unsaved + again) == []


def test_a_gap_within_a_world_and_two_worlds_at_once_are_found() -> None:
    gap = [step for step in OLD if step.step != 5]
    assert check(gap) == ["world 1 left steps out: 1 to 10 in 9 steps"]
    twice = check(OLD + world(2, 8, 12, 300, 400, at=6.0))
    assert any("began step 8" in told and "after a newer world's first" in told for told in twice)
