"""Saving beside the training: what is saved is what was there, and the training does not wait for the disk."""

import os
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from training.checkpoint.folder import CheckpointError, CheckpointFolder, StaleWriterError, Writer
from training.checkpoint.saver import AsyncSaver
from training.checkpoint.state import MismatchError, Part, gather, restore
from training.data.cursor import SampleCursor
from training.data.stock import StockCursor

CURSOR = SampleCursor(num_samples=100, global_batch=10, seed=1)


class Training:
    """A model with buffers, an optimizer with momentum, a schedule."""

    def __init__(self, *, width: int = 8, dtype: torch.dtype = torch.float64) -> None:
        torch.manual_seed(1)
        self.model = nn.Sequential(nn.Linear(4, width), nn.BatchNorm1d(width), nn.Linear(width, 1)).to(dtype)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.1)
        self.scheduler = torch.optim.lr_scheduler.StepLR(self.optimizer, step_size=3)
        self.parts: dict[str, Part] = {
            "model": self.model,
            "optimizer": self.optimizer,
            "scheduler": self.scheduler,
            "scaler": torch.amp.GradScaler("cpu"),
        }

    def forward(self) -> None:
        self.optimizer.zero_grad()
        torch.autograd.backward(self.model(torch.randn(6, 4, dtype=torch.float64)).square().sum())

    def step(self) -> None:
        self.optimizer.step()
        self.scheduler.step()

    def state(self, step: int) -> dict[str, Any]:
        return gather(self.parts, step=step, cursor=CURSOR, generation=2)

    def weights(self) -> torch.Tensor:
        return torch.cat([value.flatten().double() for value in self.model.state_dict().values()])


class Held(CheckpointFolder):
    """A folder whose disk is as slow as the test wants."""

    def __init__(self, root: Path) -> None:
        super().__init__(root, writer=Writer(run="r", generation=1))
        self.may_write = threading.Event()

    def publish(self, snapshot: Any) -> Path:
        assert self.may_write.wait(60)
        return super().publish(snapshot)


def test_what_is_saved_is_what_was_there_while_training_goes_on(tmp_path: Path) -> None:
    folder = Held(tmp_path)
    training = Training()
    saved: list[int] = []
    with AsyncSaver(folder, optimizer=training.optimizer, on_saved=lambda step, *_: saved.append(step)) as saver:
        for _ in range(3):
            training.forward()
            training.step()
        expected = training.weights().clone()
        saver.save(3, training.state(3))
        for _ in range(5):  # the disk has nothing yet
            training.forward()
            training.step()
        assert CheckpointFolder(tmp_path).newest() is None
        assert not saved
        folder.may_write.set()
        saver.wait()
        assert saved == [3]
    assert not torch.equal(training.weights(), expected)

    newest = CheckpointFolder(tmp_path).newest()
    assert newest is not None
    fresh = Training()
    assert restore(fresh.parts, newest.load(), cursor=CURSOR) == 3
    assert torch.equal(fresh.weights(), expected)


def test_a_run_that_is_continued_is_the_undisturbed_one(tmp_path: Path) -> None:
    """Momentum, schedule and random numbers included: the same floats, bit by bit."""

    def run(training: Training, num_steps: int) -> Training:
        for _ in range(num_steps):
            training.forward()
            training.step()
        return training

    undisturbed = run(Training(), 9)
    first = run(Training(), 4)
    CheckpointFolder(tmp_path).save(4, first.state(4))
    run(first, 2)  # lost with the crash
    newest = CheckpointFolder(tmp_path).newest()
    assert newest is not None
    second = Training()
    restore(second.parts, newest.load(), cursor=CURSOR)

    assert torch.equal(run(second, 5).weights(), undisturbed.weights())
    assert second.scheduler.last_epoch == 9


def test_random_numbers_of_all_generators_go_on(tmp_path: Path) -> None:
    def draw() -> tuple[float, float]:
        return torch.rand(()).item(), float(np.random.random())

    training = Training()
    CheckpointFolder(tmp_path).save(1, training.state(1))
    expected = draw()
    newest = CheckpointFolder(tmp_path).newest()
    assert newest is not None
    state = newest.load()
    restore(training.parts, state, cursor=CURSOR)
    assert draw() == expected
    restore(training.parts, state, cursor=CURSOR, world_size=2)  # whose would they be?
    assert draw() != expected


def test_buffers_are_copied_at_once_and_parameters_before_the_optimizer_moves_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The forward pass right after `save` changes BatchNorm's averages while the other thread has copied nothing."""
    folder = Held(tmp_path)
    folder.may_write.set()
    training = Training()
    training.forward()
    training.step()
    expected = training.weights().clone()
    may_copy = threading.Event()
    write = AsyncSaver._write

    def late(self: AsyncSaver, *args: Any) -> None:
        assert may_copy.wait(60)
        write(self, *args)

    monkeypatch.setattr(AsyncSaver, "_write", late)
    with AsyncSaver(folder, optimizer=training.optimizer) as saver:
        saver.save(1, training.state(1))
        training.forward()
        assert not torch.equal(training.weights(), expected)
        threading.Timer(0.2, may_copy.set).start()
        training.step()  # waits for the copy
        assert may_copy.is_set()
        assert saver.stalled > 0

    newest = CheckpointFolder(tmp_path).newest()
    assert newest is not None
    fresh = Training()
    restore(fresh.parts, newest.load(), cursor=CURSOR)
    assert torch.equal(fresh.weights(), expected)


def test_an_error_of_the_other_thread_is_raised_by_the_next_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    saver = AsyncSaver(CheckpointFolder(tmp_path))
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        saver.save(1, {"weight": torch.ones(3)})
        with pytest.raises(CheckpointError, match="step-000000001 cannot be written: No space left on device"):
            saver.save(2, {"weight": torch.ones(3)})
    saver.save(3, {"weight": torch.ones(3)})
    saver.close()
    newest = CheckpointFolder(tmp_path).newest()
    assert newest is not None
    assert newest.step == 3


def test_a_world_that_was_replaced_is_told_so(tmp_path: Path) -> None:
    old = CheckpointFolder(tmp_path, writer=Writer(run="r", generation=1))
    old.claim()
    CheckpointFolder(tmp_path, writer=Writer(run="r", generation=2)).claim()
    saver = AsyncSaver(old)
    saver.save(1, {"weight": torch.ones(3)})
    with pytest.raises(StaleWriterError):
        saver.close()


def test_what_cannot_be_saved_is_told_at_once(tmp_path: Path) -> None:
    with AsyncSaver(CheckpointFolder(tmp_path)) as saver, pytest.raises(CheckpointError, match="could not be loaded"):
        saver.save(1, {"path": tmp_path})


@pytest.mark.parametrize(
    ("other", "message"),
    [
        (
            {"width": 9},
            r"of another model: 0\.bias has shape \[9\] in it and \[8\] here; 0\.weight has shape .*; and 2 more",
        ),
        ({"dtype": torch.float32}, r"of another model: 0\.bias is torch\.float32 in it and torch\.float64 here"),
    ],
)
def test_a_checkpoint_of_another_model_changes_nothing(other: dict[str, Any], message: str) -> None:
    training = Training()
    before = training.weights().clone()
    saved = Training(**other).state(5)
    with pytest.raises(MismatchError, match=message):
        restore(training.parts, saved, cursor=CURSOR)
    assert torch.equal(training.weights(), before)


def test_a_checkpoint_of_another_training_is_told() -> None:
    training = Training()
    state = training.state(5)
    deeper = nn.Sequential(training.model, nn.Linear(1, 1))
    with pytest.raises(MismatchError, match=r"of another model: 0\.0\.bias is missing in it; .*; and 13 more"):
        restore({"model": deeper}, state, cursor=CURSOR)
    one_group = torch.optim.AdamW(list(training.model.parameters())[:2])
    with pytest.raises(MismatchError, match=r"another optimizer: its groups have \[6\] parameters and \[2\] here"):
        restore({"optimizer": one_group}, state, cursor=CURSOR)
    with pytest.raises(MismatchError, match="the checkpoint has no average: it holds step, generation"):
        restore({"average": training.model}, state, cursor=CURSOR)
    with pytest.raises(MismatchError, match="num_samples was 100 and is now 90"):
        restore({}, state, cursor=SampleCursor(num_samples=90, global_batch=10, seed=1))
    with pytest.raises(ValueError, match="no part can be called step"):
        gather({"step": training.model}, step=1, cursor=CURSOR)


def test_torch_s_sampler_ties_a_checkpoint_to_its_world() -> None:
    model = nn.Linear(1, 1)
    saved = gather({"model": model}, step=1, cursor=StockCursor(num_samples=12, global_batch=4, world_size=4))
    with pytest.raises(MismatchError, match="world_size was 4 and is now 2"):
        restore({"model": model}, saved, cursor=StockCursor(num_samples=12, global_batch=4, world_size=2), world_size=2)
