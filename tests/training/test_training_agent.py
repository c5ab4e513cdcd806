"""What a failure of workers costs, without workers: the agent's judgement alone."""

import random
import signal
import subprocess
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from torch.distributed.elastic.agent.server.api import RunResult, WorkerState

from training.launch import agent as module
from training.launch import exit_codes
from training.launch.agent import Agent
from training.launch.budget import NUM_FAILURES_WITHOUT_PROGRESS, Failures
from training.metrics.recovery import Recorder

BUDGET = 20


class Handler:
    """Answers what has become of the world; each answer once, the last for ever. Every failure is of a new world."""

    concerned = "10.0.0.2"
    has_failed = False
    generation = 1

    def __init__(self, *changes: str) -> None:
        self.changes = list(changes)
        self.failures = Failures()

    def count_failure(self, step: int | None, *, is_free: bool, lived_long: bool) -> Failures:
        self.failures.count(self.failures.generation + 1, step, is_free=is_free, lived_long=lived_long)
        return self.failures

    def change(self) -> str:
        return self.changes.pop(0) if len(self.changes) > 1 else self.changes[0]


@pytest.fixture
def agent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(module, "emit", lambda *_, **__: None)
    agent = cast(Any, Agent.__new__(Agent))
    agent._handler = Handler("")
    agent._worker_group = SimpleNamespace(group_world_size=1)
    agent._progress_file = tmp_path / "progress"
    agent._remaining_restarts = BUDGET
    agent._max_restarts = BUDGET
    agent.is_stuck = False
    agent._is_killed = False
    agent._longest_pause = 300.0
    agent._rules = exit_codes.Rules()
    agent._started = time.monotonic()
    agent.recorder = Recorder("node", emit=lambda *_, **__: None)
    return agent


def fail(agent: Any, *codes: int, step: int | None = None) -> int | None:
    """One failure of workers with these codes; returns how many restarts are left after it, None if none follows."""
    if step is not None:
        agent._progress_file.write_text(f"{step} {step} 0.0")
    failures = {rank: SimpleNamespace(exitcode=code, pid=rank, timestamp=0) for rank, code in enumerate(codes)}
    agent._judge(RunResult(state=WorkerState.FAILED, failures=cast(Any, failures)))
    if agent._remaining_restarts == 0:
        return None
    agent._remaining_restarts -= 1  # as torch does
    return cast(int, agent._remaining_restarts)


def test_three_failures_without_a_step_are_enough(agent: Any) -> None:
    assert [fail(agent, 1) for _ in range(NUM_FAILURES_WITHOUT_PROGRESS)] == [BUDGET - 1, BUDGET - 2, None]
    assert agent.is_stuck


def test_a_script_that_does_not_report_makes_progress_when_it_lives_long(agent: Any) -> None:
    for number in range(6):
        agent._started -= 61
        assert fail(agent, 1) == BUDGET - 2 * number - 1
        agent._started = time.monotonic()
        assert fail(agent, 1) == BUDGET - 2 * number - 2


@pytest.mark.parametrize(
    ("steps", "is_stuck"),
    [
        ((9, 10, 11, 12, 13), False),  # 10 is more than 9, as a number
        ((20, 20, 20, 20), True),
        ((20, 15, 18, 20), True),  # made again from a checkpoint, never beyond
        ((20, 15, 21, 15, 22), False),
    ],
)
def test_progress_is_a_step_beyond_the_best(agent: Any, steps: tuple[int, ...], is_stuck: bool) -> None:
    assert [fail(agent, 1, step=step) is None for step in steps] == [False] * (len(steps) - 1) + [is_stuck]


def test_the_budget_is_that_of_the_job(agent: Any) -> None:
    for step in range(BUDGET - 1):  # failures on other nodes
        agent._handler.count_failure(step, is_free=False, lived_long=False)
    assert agent.restarts_left == 1
    assert fail(agent, 1, step=100) == agent.restarts_left == 0
    assert fail(agent, 1, step=101) is None
    assert not agent.is_stuck


def test_a_world_fails_once_whoever_sees_it() -> None:
    failures = Failures()
    assert [failures.count(1, step, is_free=False, lived_long=False) for step in (5, 6)] == [True, False]
    assert (failures.total, failures.best_step) == (1, 5)


def test_a_stop_at_a_checkpoint_is_free_as_long_as_there_are_steps(agent: Any) -> None:
    assert [fail(agent, 75, step=step) for step in (1, 2, 3, 4)] == [BUDGET] * 4
    assert [fail(agent, 75, step=4) for _ in range(3)] == [BUDGET, BUDGET, None]


@pytest.mark.parametrize("codes", [(78,), (-15, 78), (75, 64), (1, 75, 78)])
def test_a_final_code_of_any_worker_ends_it(agent: Any, codes: tuple[int, ...]) -> None:
    assert fail(agent, *codes, step=1) is None


def test_which_codes_are_final_can_be_changed(agent: Any) -> None:
    agent._rules = exit_codes.Rules.parse(restart="78", final="3,SIGSEGV")
    assert fail(agent, 78, step=1) == BUDGET - 1
    assert fail(agent, -signal.SIGSEGV, step=2) is None
    agent._remaining_restarts = BUDGET
    assert fail(agent, 3, step=3) is None


@pytest.mark.parametrize("change", ["left", "lost", "regroup", "evicted", "closed"])
@pytest.mark.parametrize("code", [1, -signal.SIGABRT])
def test_the_echo_of_a_loss_elsewhere_is_free(agent: Any, change: str, code: int) -> None:
    agent._worker_group.group_world_size = 2
    for _ in range(5):
        agent._handler = Handler("", "joined", "", change)
        assert fail(agent, code) == BUDGET


def test_a_worker_that_not_even_the_kernel_can_end_is_left_behind(agent: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def wait(timeout: float) -> None:
        raise subprocess.TimeoutExpired("worker", timeout)

    told: list[Any] = []
    control = SimpleNamespace(
        is_open=True, is_waiting=False, is_done=False, is_interrupted=False, halt=lambda **how: told.append(how)
    )
    process = SimpleNamespace(pid=1, poll=lambda: None, wait=wait)
    worker = SimpleNamespace(control=control, proc=process, close=lambda number: told.append(number.name))
    monkeypatch.setattr(module, "GRACE_WITHOUT_PEER", 0)
    agent._hooked, agent._listen = lambda: {0: worker}, lambda _: None
    assert agent._halt_workers(is_broken=True) == {}
    assert told == [{"hard": True}, "SIGKILL"]


def test_a_killed_worker_and_one_that_is_alone_are_not_waited_for(agent: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agent._handler, "change", None)  # is not asked
    fail(agent, 1)
    agent._worker_group.group_world_size = 2
    assert fail(agent, -signal.SIGKILL) == BUDGET - 2


def test_a_failure_with_all_nodes_there_is_our_own(agent: Any) -> None:
    agent._worker_group.group_world_size = 2
    assert [fail(agent, 1) for _ in range(NUM_FAILURES_WITHOUT_PROGRESS)] == [BUDGET - 1, BUDGET - 2, None]


def failed_world(*changes: str, without_progress: int = 1) -> Handler:
    """A world whose failure has been counted, and what becomes of it while a node pauses."""
    handler = Handler(*changes)
    handler.failures.without_progress = without_progress
    handler.has_failed = True
    return handler


def pauses(agent: Any, monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The seconds of each pause that the agent announces, and makes."""
    told: list[float] = []
    monkeypatch.setattr(module, "emit", lambda *_, seconds=None, **__: told.append(seconds) if seconds else None)
    agent.recorder.begin("worker_failed")
    agent._pause()
    return told


def test_pauses_grow_until_the_last_try_and_there_is_none_after_a_new_step() -> None:
    assert [Failures(without_progress=count).pause(20) for count in range(5)] == [0, 4, 20, 0, 0]
    assert Failures(without_progress=2).pause(0) == 0


@pytest.mark.parametrize("change", ["regroup", "left", "lost", "closed", "isolated"])
def test_the_first_node_whose_pause_ends_ends_the_pauses_of_all(
    agent: Any, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    agent._handler = failed_world("", "joined", "", change)
    (seconds,) = pauses(agent, monkeypatch)
    assert 0.7 * 60 < seconds <= 60
    assert "pause" in agent.recorder.abandon("left").seconds


def test_a_pause_ends_by_itself_and_counts_from_the_start_of_the_workers(
    agent: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent._handler = failed_world("", without_progress=2)
    agent._longest_pause = 1000.0
    agent._started -= 749.5  # three quarters of it, at least, are paused
    monkeypatch.setattr(random, "uniform", lambda least, _: least)
    assert len(pauses(agent, monkeypatch)) == 1
    agent._started -= 1
    assert pauses(agent, monkeypatch) == []


def test_a_worker_that_was_killed_from_outside_lacks_nothing(agent: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in (signal.SIGKILL, signal.SIGTERM):
        fail(agent, -number, step=1)
        agent._handler = failed_world("")
        assert pauses(agent, monkeypatch) == []
    fail(agent, -signal.SIGSEGV, step=2)
    agent._handler = failed_world("left")
    assert len(pauses(agent, monkeypatch)) == 1


def test_a_failure_that_another_node_has_counted_is_an_echo_though_it_pauses(agent: Any) -> None:
    agent._worker_group.group_world_size = 2
    agent._handler = failed_world("")
    before = agent._remaining_restarts
    assert fail(agent, 1) == before
    assert agent._handler.failures.total == 0
