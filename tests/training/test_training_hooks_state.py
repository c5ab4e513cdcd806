"""What a script with hooks keeps, undoes and sends, without launcher; two ranks are two processes at one file."""

import multiprocessing
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import nn

from training.launch import elastic, notices
from training.launch.elastic import State, StateLostError, World
from training.launch.environment import CONTROL, GENERATION, RUN

NUM_STEPS = 3


def make_state(seed: int = 0) -> State:
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.5)
    return State(model=model, optimizer=optimizer, schedule=schedule, consumed=0, history=[])


def step(state: Any) -> None:
    """A step with all that a step touches."""
    loss = state.model(torch.randn(8, 4)).square().sum()
    state.optimizer.zero_grad()
    loss.backward()
    state.optimizer.step()
    state.schedule.step()
    state.consumed += 8
    state.history.append(random.random())  # noqa: S311 - no secret
    state.commit()


def content(state: State) -> dict[str, Any]:
    flat: dict[str, Any] = {}

    def add(name: str, value: Any) -> None:
        if isinstance(value, dict):
            for key, item in value.items():
                add(f"{name}.{key}", item)
        elif isinstance(value, list | tuple):
            for index, item in enumerate(value):
                add(f"{name}.{index}", item)
        else:
            flat[name] = value.tolist() if isinstance(value, torch.Tensor) else value

    add("state", state.state_dict())
    return flat


@pytest.mark.parametrize(
    ("environment", "prefix"),
    [
        ({}, "trainyard/restart-0"),
        ({"GROUP_WORLD_SIZE": "1", "TORCHELASTIC_RESTART_COUNT": "2"}, "trainyard/restart-2"),
        ({"GROUP_WORLD_SIZE": "2", "TORCHELASTIC_RESTART_COUNT": "2"}, "trainyard"),  # each node has another count
        ({"GROUP_WORLD_SIZE": "2", "TORCHELASTIC_RESTART_COUNT": "2", "TRAINYARD_GENERATION": "7"}, "trainyard/7"),
    ],
)
def test_all_ranks_of_a_world_meet_under_one_name(
    monkeypatch: pytest.MonkeyPatch, environment: dict[str, str], prefix: str
) -> None:
    for name in ("GROUP_WORLD_SIZE", "TORCHELASTIC_RESTART_COUNT", "TRAINYARD_GENERATION"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert elastic._prefix() == prefix


def test_most_steps_count_and_of_as_many_those_of_the_newest_world() -> None:
    have = [{"step": step, "lineage": f"job/a.1/{world}"} for step, world in ((7, 10), (8, 9), (8, 10), (8, 2))]
    assert have.index(max(have, key=elastic._standing)) == 2


def test_an_interrupted_step_leaves_no_trace() -> None:
    state: Any = make_state()
    for _ in range(NUM_STEPS):
        step(state)
    before = content(state)

    state.model(torch.randn(8, 4)).square().sum().backward()  # here a peer is lost
    state.consumed += 8
    state.history.append("half")
    np.random.random()
    state._put_back()

    assert content(state) == before
    assert all(parameter.grad is None for parameter in state.model.parameters())


def test_after_an_interrupted_step_the_next_one_is_as_it_would_have_been() -> None:
    outcomes = []
    for interruptions in (0, 2):
        random.seed(0)
        state: Any = make_state()
        step(state)
        for _ in range(interruptions):
            state.model(torch.randn(8, 4)).sum().backward()
            random.random()  # noqa: S311
            state._put_back()
        step(state)
        outcomes.append(content(state))

    assert outcomes[0] == outcomes[1]


def test_a_rank_that_is_interrupted_after_the_optimizers_step_has_no_state() -> None:
    state: Any = make_state()
    step(state)
    state.model(torch.randn(8, 4)).sum().backward()
    state.optimizer.step()

    with pytest.raises(StateLostError, match="call commit right after the optimizer's step"):
        state._put_back()


@pytest.mark.parametrize("value", [object(), {"a": {1, 2}}, [torch.zeros(1)]])
def test_what_cannot_be_sent_is_refused_by_name(value: Any) -> None:
    with pytest.raises(TypeError, match=r"state\.extra: .* is no plain value"):
        State(extra=value).commit()


def test_a_script_alone_is_a_world_of_one(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", CONTROL):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(notices, "listen", lambda: None)
    state: Any = make_state()
    worlds = []

    def train(world: World, state: Any) -> None:
        worlds.append((world.rank, world.size))
        assert dist.get_world_size() == 1
        while state.step < NUM_STEPS:
            step(state)
        assert state.commit(torch.tensor([2.0, 3.0])).tolist() == [2.0, 3.0]

    elastic.run(train, state, restore=lambda state: setattr(state, "consumed", 100))

    assert (worlds, state.step, state.consumed) == ([(0, 1)], NUM_STEPS + 1, 100 + 8 * NUM_STEPS)
    assert not dist.is_initialized()


@pytest.mark.parametrize(("has_save", "code"), [(True, 75), (False, 143)])
def test_an_evaluation_is_left_with_what_the_last_commit_made(
    monkeypatch: pytest.MonkeyPatch, has_save: bool, code: int
) -> None:
    for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", CONTROL):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(notices, "listen", lambda: None)
    monkeypatch.setattr(notices, "_requested", False)
    state: Any = make_state()
    saved: list[dict[str, Any]] = []

    def train(_: World, state: Any) -> None:
        step(state)
        state.check()  # nobody wants this node
        state.consumed = -1  # what an evaluation changes is no step's
        monkeypatch.setattr(notices, "_requested", True)
        state.check()
        pytest.fail("the evaluation goes on")

    with pytest.raises(SystemExit) as end:
        elastic.run(train, state, save=(lambda state: saved.append(state.state_dict())) if has_save else None)
    dist.destroy_process_group()  # a worker's process ends here
    assert end.value.code == code
    assert [(one["step"], one["values"]["consumed"]) for one in saved] == ([(1, 8)] if has_save else [])
    state.check()  # outside of `run` it does nothing


def received(rank: int, folder: str, source: int, results: Any) -> None:
    """One of two ranks; tells what it has after the exchange."""
    torch.set_num_threads(1)
    elastic.PORTION = 64  # type: ignore[misc]  # many portions
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
    state: Any = make_state(seed=rank)
    for _ in range(NUM_STEPS if rank == source else 1):
        step(state)
    world = World(rank=rank, size=2, local_rank=rank, generation=1, device=torch.device("cpu"))
    elastic._send_state(state, source, world)
    results.put((rank, content(state)))
    step(state)  # what was received can be trained
    dist.destroy_process_group()


@pytest.mark.parametrize("source", [0, 1])
def test_the_state_of_one_rank_goes_to_the_other(tmp_path: Path, source: int) -> None:
    context = multiprocessing.get_context("spawn")
    results: Any = context.Queue()
    ranks = [context.Process(target=received, args=(rank, str(tmp_path), source, results)) for rank in range(2)]
    for process in ranks:
        process.start()
    contents = dict(results.get(timeout=300) for _ in ranks)
    for process in ranks:
        process.join(300)
        assert process.exitcode == 0

    assert contents[0] == contents[1]
    assert contents[0]["state.step"] == NUM_STEPS


@pytest.mark.parametrize(
    ("last_world", "in_checkpoint", "steps"),
    [
        ("job/4", 9, 9),  # cut off in world 4; what 5 did without us is in the checkpoint
        ("job/4", 3, NUM_STEPS),  # the checkpoint is older than what we have in memory
        ("job/5", 9, NUM_STEPS),  # we were in the last world: nobody has more than we
        ("before/5", 9, 9),  # another life of the job
    ],
)
def test_who_comes_back_when_all_others_are_gone_goes_on_from_what_is_newest(
    monkeypatch: pytest.MonkeyPatch, last_world: str, in_checkpoint: int, steps: int
) -> None:
    for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", CONTROL):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv(RUN, "job")
    monkeypatch.setenv(GENERATION, "6")
    monkeypatch.setattr(notices, "listen", lambda: None)
    state: Any = make_state()
    for _ in range(NUM_STEPS):
        step(state)
    state.__dict__["_lineage"] = last_world
    before = content(state)
    found = []

    def restore(state: Any) -> None:
        state.consumed = -1
        state.step = in_checkpoint

    elastic.run(lambda _, state: found.append((state.step, content(state))), state, restore=restore)
    assert found[0][0] == steps
    assert (found[0][1] == before) is (steps == NUM_STEPS)
