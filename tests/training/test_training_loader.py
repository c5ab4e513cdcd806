"""Loading what the cursor says: every sample once, the same numbers, for every world size and every loader option."""

import logging
import os
import signal
from collections import Counter
from collections.abc import Iterator
from itertools import islice
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from local_agents import wait_for
from torch import nn
from torch.utils.data import Dataset

from training.data.cursor import SampleCursor
from training.data.loader import MicroBatch, StepLoader
from training.data.seeding import seed_step
from training.data.shards import ShardedDataset, count_shards
from training.data.stock import StockCursor

SIZES = (13, 0, 40, 7, 22, 18)


class Numbers(Dataset[Any]):
    """Sample i is the number i, and noise."""

    def __init__(self, size: int) -> None:
        self._size = size

    def __len__(self) -> int:
        return self._size

    def __getitem__(self, index: int) -> tuple[int, float, float]:
        return index, torch.rand(()).item(), float(np.random.random())


def consumed(loader: StepLoader) -> list[int]:
    """What a rank's forward passes have seen, samples of weight 0 left out."""
    return [int(i) for step in loader for micro in step if micro.weight for i in micro.data[0]]


@given(
    num_samples=st.integers(1, 60),
    global_batch=st.integers(1, 12),
    micro_batch=st.integers(1, 5),
    worlds=st.lists(st.integers(1, 6), min_size=1, max_size=5),
    seed=st.integers(0, 2**40),
)
@settings(max_examples=40, deadline=None)
def test_two_epochs_over_changing_worlds_consume_every_sample_twice(
    num_samples: int, global_batch: int, micro_batch: int, worlds: list[int], seed: int
) -> None:
    cursor = SampleCursor(num_samples=num_samples, global_batch=global_batch, seed=seed)
    num_steps = 2 * cursor.steps_per_epoch
    seen: Counter[int] = Counter()
    ends = [num_steps * (i + 1) // len(worlds) for i in range(len(worlds))]
    for world_size, first, last in zip(worlds, [0, *ends], ends, strict=False):
        for rank in range(world_size):
            loader = StepLoader(
                Numbers(num_samples),
                cursor,
                rank=rank,
                world_size=world_size,
                first_step=first,
                num_steps=last,
                micro_batch=micro_batch,
            )
            seen.update(consumed(loader))

    assert seen == Counter(dict.fromkeys(range(num_samples), 2))


def test_what_loader_workers_fetched_ahead_is_not_counted() -> None:
    """The run ends in the middle, with micro-batches of later steps in the workers' hands, and goes on elsewhere."""
    cursor = SampleCursor(num_samples=40, global_batch=6, seed=5)
    seen: list[int] = []
    done = 0
    for step in StepLoader(Numbers(40), cursor, num_steps=20, micro_batch=2, num_workers=2, prefetch_factor=4):
        if step.number == 4:
            next(iter(step))  # the step was begun and never completed
            break
        seen += [int(i) for micro in step for i in micro.data[0]]
        done = step.number
    for rank in range(3):
        seen += consumed(
            StepLoader(Numbers(40), cursor, rank=rank, world_size=3, first_step=done, num_steps=cursor.steps_per_epoch)
        )

    assert sorted(seen) == list(range(40))


def test_a_sample_s_random_numbers_are_its_own() -> None:
    """Whoever loads it, in whichever process, and without moving the training's own random numbers."""
    cursor = SampleCursor(num_samples=24, global_batch=8, seed=2)

    def noise(**options: Any) -> dict[tuple[int, int], tuple[float, float]]:
        world_size = options.pop("world_size", 1)
        return {
            (step.epoch, int(i)): (float(a), float(b))
            for rank in range(world_size)
            for step in StepLoader(Numbers(24), cursor, rank=rank, world_size=world_size, num_steps=6, **options)
            for micro in step
            for i, a, b in zip(*micro.data, strict=True)
        }

    torch.manual_seed(3)
    untouched = torch.rand(4)
    torch.manual_seed(3)
    alone = noise()
    with_workers = noise(num_workers=2, micro_batch=3)
    among_three = noise(world_size=3)
    torch.testing.assert_close(torch.rand(4), untouched)

    assert alone == with_workers == among_three
    assert len(set(alone.values())) == 48  # also in the second epoch others than in the first


def test_a_step_s_random_numbers_are_those_of_seed_step_and_rank() -> None:
    def draw(seed: int, step: int, rank: int) -> tuple[float, float]:
        seed_step(seed, step, rank)
        return torch.rand(()).item(), float(np.random.random())

    assert draw(1, 2, 0) == draw(1, 2, 0)
    assert len({draw(1, 2, 0), draw(1, 2, 1), draw(1, 3, 0), draw(2, 2, 0)}) == 4


class Regression(Dataset[Any]):
    def __init__(self, size: int) -> None:
        generator = torch.Generator().manual_seed(1)
        self._inputs = torch.randn(size, 6, dtype=torch.float64, generator=generator)
        self._targets = torch.randn(size, 1, dtype=torch.float64, generator=generator)

    def __len__(self) -> int:
        return len(self._inputs)

    def __getitem__(self, index: int) -> Any:
        return self._inputs[index], self._targets[index]


def train(world_size: int, cursor: SampleCursor, num_steps: int, micro_batch: int | None = None) -> torch.Tensor:
    """Some steps of a linear model in float64; gradients averaged over ranks, as DDP does."""
    data = Regression(cursor.num_samples)
    weights = torch.zeros(6, 1, dtype=torch.float64)
    loaders = [
        StepLoader(data, cursor, rank=rank, world_size=world_size, num_steps=num_steps, micro_batch=micro_batch)
        for rank in range(world_size)
    ]
    for steps in zip(*loaders, strict=True):
        gradients = []
        for step in steps:
            copy = weights.clone().requires_grad_()
            passes = 0
            for micro in step:
                inputs, targets = micro.data
                torch.autograd.backward(((inputs @ copy - targets) ** 2).sum() * micro.weight)
                passes += 1
            assert passes  # DDP waits for every rank
            assert copy.grad is not None
            gradients.append(copy.grad)
        weights -= 0.02 * torch.stack(gradients).mean(0)
    return weights


@given(
    world_size=st.integers(2, 7),
    num_samples=st.integers(1, 40),
    global_batch=st.integers(1, 14),
    micro_batch=st.one_of(st.none(), st.integers(1, 4)),
    drop_last=st.booleans(),
)
@settings(max_examples=25, deadline=None)
def test_parameters_are_those_of_one_worker(
    world_size: int, num_samples: int, global_batch: int, micro_batch: int | None, drop_last: bool
) -> None:
    """float64, 1e-12: uneven shares, ranks without samples, small last batches, accumulation."""
    drop_last = drop_last and global_batch <= num_samples
    cursor = SampleCursor(num_samples=num_samples, global_batch=global_batch, seed=3, drop_last=drop_last)

    expected = train(1, cursor, 12)
    actual = train(world_size, cursor, 12, micro_batch)

    assert torch.max(torch.abs(actual - expected)).item() < 1e-12


def test_gradients_are_exchanged_with_the_last_micro_batch_only() -> None:
    class Network(nn.Linear):
        def __init__(self) -> None:
            super().__init__(1, 1)
            self.log: list[str] = []

        def no_sync(self) -> Any:
            self.log.append("no_sync")
            return torch.enable_grad()

    network = Network()
    cursor = SampleCursor(num_samples=10, global_batch=10)
    for step in StepLoader(Numbers(10), cursor, num_steps=1, micro_batch=4):
        for micro in step:
            with micro.sync(network):
                network.log.append(f"pass of {len(micro.ids)}")

    assert network.log == ["no_sync", "pass of 4", "no_sync", "pass of 4", "pass of 2"]
    with MicroBatch(data=None, ids=np.arange(1), weight=1.0, is_last=False).sync(nn.Linear(1, 1)):
        pass  # a network without DDP


def test_a_step_that_is_broken_off_does_not_shift_the_next() -> None:
    cursor = SampleCursor(num_samples=12, global_batch=6, shuffle=False)
    loader = StepLoader(Numbers(12), cursor, num_steps=2, micro_batch=2)
    firsts = [next(iter(step)).data[0].tolist() for step in loader]
    assert firsts == [[0, 1], [6, 7]]


@pytest.mark.parametrize("context", ["fork", "spawn"])
def test_loader_workers_outlive_a_notice_and_end_with_their_parent(context: str) -> None:
    """A launcher sends SIGTERM to the group; here a process that is not their parent does."""
    cursor = SampleCursor(num_samples=64, global_batch=4, shuffle=False)
    loader = StepLoader(
        Numbers(64),
        cursor,
        num_steps=16,
        num_workers=2,
        persistent_workers=True,
        worker_init_fn=_note_start,
        multiprocessing_context=context,
    )
    steps = iter(loader)
    assert [int(i) for micro in next(steps) for i in micro.data[0]] == [0, 1, 2, 3]
    workers = loader.processes()
    assert len(workers) == 2

    notice = os.fork()
    if notice == 0:
        for worker in workers:
            os.kill(worker, signal.SIGTERM)
        os._exit(0)
    os.waitpid(notice, 0)
    rest = [int(i) for step in steps for micro in step for i in micro.data[0]]
    assert rest == list(range(4, 64))

    os.kill(workers[0], signal.SIGTERM)  # we are their parent
    wait_for(lambda: _has_ended(workers[0]), "the worker to end")


def _note_start(worker: int) -> None:
    os.environ["STARTED"] = str(worker)


def _has_ended(process: int) -> bool:
    try:
        return os.waitpid(process, os.WNOHANG)[0] == process
    except ChildProcessError:
        return True


def test_options_of_the_loader_are_torch_s() -> None:
    cursor = SampleCursor(num_samples=10, global_batch=5)
    with pytest.raises(ValueError, match="prefetch_factor"):
        StepLoader(Numbers(10), cursor, num_steps=2, prefetch_factor=2)
    with pytest.raises(ValueError, match="persistent_workers"):
        StepLoader(Numbers(10), cursor, num_steps=2, persistent_workers=True)
    loader = StepLoader(Numbers(10), cursor, num_steps=2, num_workers=1, persistent_workers=True)
    assert len(loader) == 2
    assert sorted(consumed(loader)) == sorted(consumed(loader)) == list(range(10))


def lines_of_shards(opened: list[tuple[int, int]]) -> Any:
    def open_shard(shard: int, first: int) -> Iterator[int]:
        opened.append((shard, first))
        return islice(iter(range(shard * 1000, shard * 1000 + SIZES[shard])), first, None)

    return open_shard


@given(global_batch=st.integers(1, 17), num_streams=st.integers(1, 8), world_size=st.integers(1, 5))
@settings(max_examples=30, deadline=None)
def test_shards_are_read_forwards_and_every_sample_once(global_batch: int, num_streams: int, world_size: int) -> None:
    cursor = SampleCursor(
        num_samples=sum(SIZES), global_batch=global_batch, seed=1, shards=SIZES, num_streams=num_streams
    )
    num_steps = 2 * cursor.steps_per_epoch
    seen: Counter[int] = Counter()
    for rank in range(world_size):
        opened: list[tuple[int, int]] = []
        data = ShardedDataset(SIZES, lines_of_shards(opened))
        loader = StepLoader(data, cursor, rank=rank, world_size=world_size, num_steps=num_steps)
        seen.update(int(i) for step in loader for micro in step if micro.weight for i in micro.data)
        assert max(Counter(shard for shard, _ in opened).values()) <= 2  # once an epoch: nothing is read again

    assert seen == Counter({shard * 1000 + i: 2 for shard, size in enumerate(SIZES) for i in range(size)})


def test_a_batch_mixes_the_samples_of_several_shards() -> None:
    sizes = (100,) * 6
    cursor = SampleCursor(num_samples=600, global_batch=12, shards=sizes, num_streams=4)
    assert {len({i // 100 for i in cursor.batch(step)}) for step in range(8)} == {4}
    assert cursor.batch(0).tolist() != cursor.batch(cursor.steps_per_epoch).tolist()
    straight = SampleCursor(num_samples=600, global_batch=3, shards=sizes, num_streams=1, shuffle=False)
    assert straight.batch(0).tolist() == [0, 1, 2]


def test_shards_are_counted_and_mistakes_in_their_sizes_told() -> None:
    assert count_shards(len(SIZES), lines_of_shards([])) == SIZES
    too_many = ShardedDataset((13, 2), lines_of_shards([]))
    with pytest.raises(ValueError, match=r"shard 1 ends before its sample 0, but its size is given as 2"):
        too_many[13]
    with pytest.raises(IndexError):
        too_many[15]
    with pytest.raises(ValueError, match="the data set is empty"):
        ShardedDataset((0, 0), lines_of_shards([]))
    with pytest.raises(ValueError, match="shards of 15 samples in all do not make up 14"):
        SampleCursor(num_samples=14, global_batch=2, shards=(13, 2))
    with pytest.raises(ValueError, match=r"at least one shard must be read at a time"):
        SampleCursor(num_samples=15, global_batch=2, shards=(13, 2), num_streams=0)


def test_shards_go_far_ahead_by_opening_and_a_little_by_reading() -> None:
    opened: list[tuple[int, int]] = []
    data = ShardedDataset(SIZES, lines_of_shards(opened), read_ahead=3, num_open=1, transform=str)
    assert [data[13], data[16], data[30], data[20]] == ["2000", "2003", "2017", "2007"]
    assert opened == [(2, 0), (2, 17), (2, 7)]


def test_another_cutting_into_shards_does_not_continue_a_run() -> None:
    one = SampleCursor(num_samples=10, global_batch=2, shards=(5, 5))
    other = SampleCursor(num_samples=10, global_batch=2, shards=(4, 6))
    with pytest.raises(ValueError, match=r"shuffle was .* and is now"):
        other.check(one.fingerprint())


@pytest.mark.parametrize("drop_last", [False, True])
def test_stock_sampler_is_torch_s_own(drop_last: bool) -> None:
    """Its order, and its limits: repeated samples at the end, one world size for the whole run."""
    cursor = StockCursor(num_samples=10, global_batch=4, world_size=4, seed=3, drop_last=drop_last)
    seen = [
        i
        for rank in range(4)
        for i in consumed(StepLoader(Numbers(10), cursor, rank=rank, world_size=4, num_steps=cursor.steps_per_epoch))
    ]
    assert len(seen) == (8 if drop_last else 12)
    assert len(set(seen)) == (8 if drop_last else 10)
    assert cursor.batch(0).tolist() != cursor.batch(cursor.steps_per_epoch).tolist()

    with pytest.raises(ValueError, match="that of 4 workers and there are 3 now; SampleCursor continues with any"):
        cursor.share(0, 0, 3)
    other = StockCursor(num_samples=10, global_batch=4, world_size=2, seed=3, drop_last=drop_last)
    with pytest.raises(ValueError, match="world_size was 4 and is now 2"):
        other.check(cursor.fingerprint())
    with pytest.raises(ValueError, match="a multiple of the 3 workers, not 4; SampleCursor takes any"):
        StockCursor(num_samples=10, global_batch=4, world_size=3)
    with pytest.raises(ValueError, match="leave none for 4 workers"):
        StockCursor(num_samples=3, global_batch=4, world_size=4, drop_last=True)
    with pytest.raises(ValueError, match="empty"):
        StockCursor(num_samples=0, global_batch=4, world_size=4)


def test_bad_input_is_told(caplog: pytest.LogCaptureFixture) -> None:
    cursor = SampleCursor(num_samples=10, global_batch=3)
    with pytest.raises(ValueError, match="the data set has 9 samples, the cursor counts 10"):
        StepLoader(Numbers(9), cursor, num_steps=1)
    with pytest.raises(ValueError, match="rank 2 does not exist in a world of 2"):
        StepLoader(Numbers(10), cursor, rank=2, world_size=2, num_steps=1)
    with pytest.raises(ValueError, match="at least 1 sample"):
        StepLoader(Numbers(10), cursor, num_steps=1, micro_batch=0)
    with pytest.raises(ValueError, match="with drop_last leaves no step"):
        SampleCursor(num_samples=2, global_batch=3, drop_last=True)
    with caplog.at_level(logging.WARNING):
        StepLoader(Numbers(10), cursor, rank=0, world_size=5, num_steps=1)
    assert "the global batch of 3 is smaller than the world of 5: 2 workers compute nothing" in caplog.text
