"""The state after the last step in a node's memory: what a SIGKILL leaves, what counts, and when memory is freed."""

import errno
import logging
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from training.checkpoint import memory as places
from training.checkpoint import replica as module
from training.checkpoint.folder import CheckpointError, CheckpointFolder, StaleWriterError, Writer
from training.checkpoint.memory import LEFT_BEHIND, free
from training.checkpoint.replica import Replica, restore

ROOT = Path(__file__).parents[2]
RUN = "job.1"


@pytest.fixture(autouse=True)
def memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    root = tmp_path / "memory"
    root.mkdir()
    monkeypatch.setenv("TRAINYARD_MEMORY", str(root))
    yield root
    for place in list(places._held):
        places.release(place, remove=True)


def writer(generation: int = 1, run: str = RUN) -> Writer:
    return Writer(run=run, generation=generation)


def state(step: int) -> dict[str, Any]:
    return {
        "model": {"weight": torch.full((40, 50), float(step)), "half": torch.full((3,), step, dtype=torch.bfloat16)},
        "nothing": torch.empty(0, 4),
        "number": torch.tensor(step),
        "step": step,
    }


def check(found: dict[str, Any], step: int) -> None:
    assert found["step"] == step
    assert found["nothing"].shape == (0, 4)
    assert found["number"].item() == step
    assert found["model"]["half"].dtype == torch.bfloat16
    assert bool((found["model"]["weight"] == step).all())
    assert bool((found["model"]["half"] == step).all())


def newest_step(generation: int = 1) -> int | None:
    copy = Replica(writer=writer(generation)).newest()
    return None if copy is None else copy.step


def test_what_was_put_last_is_found() -> None:
    replica = Replica(writer=writer(3))
    assert replica.newest() is None
    for step in (1, 2, 3):
        replica.put(step, state(step))
    replica.settle()
    copy = Replica(writer=writer(4)).newest()
    assert copy is not None
    assert (copy.step, copy.generation) == (3, 3)
    check(copy.load(), 3)
    assert replica.bytes >= 2 * 40 * 50 * 4
    replica.close()


def test_parameters_are_copied_before_the_optimizer_moves_them() -> None:
    torch.manual_seed(0)
    model = nn.Linear(30, 30)
    optimizer = torch.optim.Adam(model.parameters())
    replica = Replica(writer=writer(), optimizer=optimizer)
    for step in range(1, 6):
        model(torch.randn(4, 30)).sum().backward()
        optimizer.step()
        expected = {name: value.clone() for name, value in model.state_dict().items()}
        replica.put(step, {"model": model.state_dict(), "optimizer": optimizer.state_dict()})
        model(torch.randn(4, 30)).sum().backward()
        optimizer.step()  # waits for the copy
        copy = replica.newest()
        assert copy is not None
        assert copy.step == step
        found = copy.load()
        assert all(torch.equal(found["model"][name], value) for name, value in expected.items())
        nn.Linear(30, 30).load_state_dict(found["model"])
    replica.close()


# Puts as fast as it can, and says which step is complete.
PUTS = """
import torch
from training.checkpoint.folder import Writer
from training.checkpoint.replica import Replica
replica = Replica(writer=Writer(run="job.1", generation=1))
for step in range(1, 100_000):
    print(step, flush=True)
    weight = torch.full((40, 50), float(step))
    model = {"weight": weight, "half": torch.full((3,), step, dtype=torch.bfloat16)}
    replica.put(step, {"model": model, "nothing": torch.empty(0, 4), "number": torch.tensor(step), "step": step})
"""


@pytest.mark.parametrize("number_of_steps", [1, 4, 20])
def test_a_sigkill_costs_at_most_one_step(number_of_steps: int) -> None:
    command = [sys.executable, "-c", PUTS]
    with subprocess.Popen(command, stdout=subprocess.PIPE, cwd=ROOT) as child:
        assert child.stdout is not None
        for _ in range(number_of_steps):
            child.stdout.readline()
        child.kill()
        complete = number_of_steps + len(child.stdout.readlines())

    successor = Replica(writer=writer(2))
    copy = successor.newest()
    step = copy.step if copy else 0
    assert complete - 1 <= step <= complete
    if copy:
        check(copy.load(), step)
    successor.put(step + 1, state(step + 1))
    successor.settle()
    assert newest_step() == step + 1
    assert [path.name for path in successor.folder.iterdir()] == ["0"]  # it has taken the place of the dead
    successor.close()


def slots() -> list[Path]:
    """Those that hold a state, the newest first."""
    return [copy.path for copy in sorted(module._copies(Replica(writer=writer()).folder), key=lambda c: -c.step)]


def test_a_torn_slot_leaves_the_one_before() -> None:
    replica = Replica(writer=writer())
    replica.put(1, state(1))
    replica.put(2, state(2))
    replica.settle()
    newest = slots()[0]
    with newest.open("r+b") as stream:
        head = stream.read(64)
        stream.seek(0)
        stream.write(bytes([*head[:20], head[20] ^ 1, *head[21:]]))
    assert newest_step() == 1
    newest.write_bytes(b"")
    assert newest_step() == 1
    slots()[0].unlink()
    assert newest_step() is None
    replica.close()


def test_contents_that_were_replaced_while_they_were_read_are_refused() -> None:
    replica = Replica(writer=writer())
    replica.put(1, state(1))
    replica.settle()
    copy = replica.newest()
    assert copy is not None
    replica.put(2, state(2))
    replica.put(3, state(3))
    replica.settle()
    with pytest.raises(CheckpointError, match=r"the replica .*/0/[ab] has changed while it was read"):
        copy.load()
    replica.close()
    with pytest.raises(CheckpointError, match=r"cannot be read: No such file"):
        copy.load()


def test_an_older_generation_never_beats_a_newer_one(memory: Path) -> None:
    old = Replica(writer=writer(1))
    old.put(100, state(100))
    new = Replica(writer=writer(2))
    new.put(90, state(90))
    new.settle()
    assert newest_step() == 90
    frozen = Replica(writer=writer(1))
    with pytest.raises(StaleWriterError, match=r"generation 1 of run 'job\.1' may not write .* 2 has put step 90"):
        frozen.put(101, state(101))
    assert Replica(writer=writer(9, run="another")).newest() is None
    new.begin(3)
    new.put(91, state(91))
    new.settle()
    copy = new.newest()
    assert copy is not None
    assert (copy.generation, copy.step) == (3, 91)
    old.close()
    new.close()
    assert list(memory.iterdir()) == []


def test_a_full_memory_is_told_and_training_goes_on(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, memory: Path
) -> None:
    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    replica = Replica(writer=writer())
    with caplog.at_level(logging.WARNING), monkeypatch.context() as patch:
        patch.setattr(os, "posix_fallocate", full)
        replica.put(1, state(1))
    assert "cannot hold twice the state (No space left on device); give it more (in a pod: the size of" in caplog.text
    replica.put(2, state(2))
    assert replica.newest() is None
    assert (replica.bytes, list(memory.iterdir())) == (0, [])


def test_a_state_that_grows_has_room() -> None:
    replica = Replica(writer=writer())
    for step in (1, 2, 3):
        replica.put(step, {"list": [torch.full((step * 1000,), step)], "step": step})
    replica.settle()
    copy = replica.newest()
    assert copy is not None
    assert torch.equal(copy.load()["list"][0], torch.full((3000,), 3))
    replica.close()


def test_what_could_not_be_loaded_is_told() -> None:
    with pytest.raises(CheckpointError, match="the state after step 1 has no replica, because it could not be loaded"):
        Replica(writer=writer()).put(1, {"object": object()})


def test_memory_is_freed_when_nobody_needs_it(memory: Path) -> None:
    held, other, left = (Replica(writer=writer(run=run)) for run in ("held", "other", "left"))
    for replica in (held, other, left):
        replica.put(1, state(1))
        replica.settle()
    assert len(list(memory.iterdir())) == 3
    free("other")  # its writer lives
    assert other.newest() is not None
    for replica in (other, left):  # their writers die
        assert replica._place is not None
        places.release(replica._place._path, remove=False)
    free("other")
    assert other.newest() is None

    Replica(writer=writer()).put(1, state(1))
    assert left.newest() is not None  # its launcher may be about to start a successor
    long_ago = time.time() - 2 * LEFT_BEHIND.total_seconds()
    for folder in (held.folder, left.folder):
        for path in (*folder.rglob("*"), folder):
            os.utime(path, (long_ago, long_ago))
    Replica(writer=writer(run="next")).put(1, state(1))
    assert left.newest() is None
    assert held.newest() is not None


def test_of_a_replica_and_a_checkpoint_the_one_of_more_steps_is_restored(tmp_path: Path) -> None:
    folder = CheckpointFolder(tmp_path / "checkpoints")
    replica = Replica(writer=writer())
    assert restore(folder, replica) is None
    folder.save(10, state(10))
    for found in (restore(folder, replica), restore(folder, None)):
        assert found is not None
        assert found[0] == 10
        check(found[1], 10)
    replica.put(12, state(12))
    replica.settle()
    found = restore(folder, replica)
    assert found is not None
    assert found[0] == 12
    check(found[1], 12)
    folder.save(20, state(20))
    found = restore(folder, replica)
    assert found is not None
    assert found[0] == 20
    replica.close()
