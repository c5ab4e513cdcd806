"""Which samples a step consumes: exact for every world size, and the gradient with them."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from training.data.cursor import SampleCursor, epoch_order, hash64, loss_weight, rank_slice

sizes = st.integers(1, 300)
batches = st.integers(1, 50)
worlds = st.integers(1, 9)


@given(num_samples=sizes, global_batch=batches, seed=st.integers(0, 2**40), epoch=st.integers(0, 5))
@settings(max_examples=60, deadline=None)
def test_each_epoch_consumes_every_sample_exactly_once(
    num_samples: int, global_batch: int, seed: int, epoch: int
) -> None:
    cursor = SampleCursor(num_samples=num_samples, global_batch=global_batch, seed=seed)
    steps = range(epoch * cursor.steps_per_epoch, (epoch + 1) * cursor.steps_per_epoch)

    consumed = np.concatenate([cursor.batch(step) for step in steps])

    assert sorted(consumed) == list(range(num_samples))
    assert {cursor.epoch_of(step) for step in steps} == {epoch}


@given(num_samples=sizes, global_batch=batches, world_sizes=st.lists(worlds, min_size=1, max_size=8))
@settings(max_examples=60, deadline=None)
def test_the_world_may_change_at_every_step_without_a_sample_lost_or_repeated(
    num_samples: int, global_batch: int, world_sizes: list[int]
) -> None:
    cursor = SampleCursor(num_samples=num_samples, global_batch=global_batch)
    consumed: list[int] = []
    for step in range(cursor.steps_per_epoch):
        world_size = world_sizes[step % len(world_sizes)]
        assert cursor.num_samples_before(step) == len(consumed)
        for rank in range(world_size):
            consumed.extend(rank_slice(cursor.batch(step), rank, world_size).tolist())

    assert consumed == epoch_order(num_samples, 0, 0).tolist()


@given(size=st.integers(0, 100), world_size=worlds)
def test_slices_differ_by_at_most_one_sample(size: int, world_size: int) -> None:
    lengths = [len(rank_slice(np.arange(size), rank, world_size)) for rank in range(world_size)]

    assert sum(lengths) == size
    assert max(lengths) - min(lengths) <= 1


@pytest.mark.parametrize("world_size", [1, 2, 3, 4, 5])
@pytest.mark.parametrize("global_batch", [18, 7, 3])
def test_parameters_are_those_of_one_worker_for_every_world_size(world_size: int, global_batch: int) -> None:
    """float64, 1e-12; a batch of 3 leaves ranks of a world of 5 without samples."""
    expected = train(world_size=1, global_batch=global_batch)
    actual = train(world_size=world_size, global_batch=global_batch)

    assert torch.max(torch.abs(actual - expected)).item() < 1e-12


def train(*, world_size: int, global_batch: int) -> torch.Tensor:
    """Twenty steps of a linear model; gradients averaged over ranks, as DDP does."""
    generator = torch.Generator().manual_seed(1)
    inputs = torch.randn(50, 6, dtype=torch.float64, generator=generator)
    targets = torch.randn(50, 1, dtype=torch.float64, generator=generator)
    weights = torch.zeros(6, 1, dtype=torch.float64)
    cursor = SampleCursor(num_samples=50, global_batch=global_batch, seed=3)
    for step in range(20):
        batch = cursor.batch(step)
        gradients = []
        for rank in range(world_size):
            mine = rank_slice(batch, rank, world_size)
            copy = weights.clone().requires_grad_()
            loss = ((inputs[mine] @ copy - targets[mine]) ** 2).sum() * loss_weight(len(batch), world_size)
            torch.autograd.backward(loss)
            assert copy.grad is not None
            gradients.append(copy.grad)
        weights -= 0.05 * torch.stack(gradients).mean(0)
    return weights


def test_the_order_is_fixed_for_ever() -> None:
    """Checkpoints of one release are continued by the next."""
    assert epoch_order(10, 7, 0).tolist() == ORDER_7_0
    assert epoch_order(10, 7, 1).tolist() != ORDER_7_0


ORDER_7_0 = [4, 8, 2, 7, 5, 1, 0, 6, 9, 3]


def test_orders_of_epochs_and_seeds_are_unlike_each_other() -> None:
    orders = [epoch_order(1000, seed, epoch) for seed in range(4) for epoch in range(4)]
    matches = [int((a == b).sum()) for i, a in enumerate(orders) for b in orders[:i]]

    assert max(matches) < 10  # about 1 of 1000 positions agree by chance


def test_who_changes_a_batch_does_not_change_the_next_look_at_it() -> None:
    cursor = SampleCursor(num_samples=100, global_batch=10, seed=1)
    before = cursor.batch(3).copy()
    cursor.batch(3)[:] = 0
    assert cursor.batch(3).tolist() == before.tolist()


def test_hash64_depends_on_each_number_and_their_order() -> None:
    assert len({hash64(1, 2), hash64(2, 1), hash64(1), hash64(1, 2, 0), hash64(-1)}) == 5


def test_a_run_with_other_data_is_not_continued() -> None:
    cursor = SampleCursor(num_samples=100, global_batch=10, seed=1)
    cursor.check(cursor.fingerprint())

    other = SampleCursor(num_samples=101, global_batch=10, seed=2)
    with pytest.raises(ValueError, match=r"num_samples was 100 and is now 101; seed was 1 and is now 2"):
        other.check(cursor.fingerprint())


@pytest.mark.parametrize(("num_samples", "global_batch", "message"), [(0, 4, "empty"), (4, 0, "at least 1")])
def test_nonsense_is_refused(num_samples: int, global_batch: int, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        SampleCursor(num_samples=num_samples, global_batch=global_batch)
