"""The global sample cursor: which samples step k consumes does not depend on how many workers there are.

The order of an epoch is a permutation of seed and epoch. A step takes the next `global_batch` samples of it, and each
rank its slice of those, whatever the world size. So the state to save is one number, the step, and any world resumes
without a sample repeated or left out. `DistributedSampler` cannot do this: it pads by repetition, and its position is
per rank.

The gradient is that of one worker with the whole batch: DDP averages gradients over ranks, so each rank multiplies its
summed loss by `world / len(batch)` (`loss_weight`). Slices may differ by one sample, and a rank may have none. This
holds for losses that are sums over samples (for sums over tokens, with the number of tokens of the whole batch in place
of its samples); BatchNorm, which looks at the other samples of the slice, is another matter.

Data that can only be read from front to back, shard by shard, has the same cursor: with `shards`, the order is one in
which every shard is read forwards (`training.data.shards`).
"""

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

Ids = NDArray[np.int64]

# Goes into the checkpoint: an order that is made differently must not continue an older run.
SHUFFLE = "splitmix64-1"
INTERLEAVE = "interleave-1"
RANDPERM = "torch.randperm"


class Cursor(Protocol):
    """What a loader must know about the order of the data."""

    @property
    def num_samples(self) -> int:
        """Size of the data set."""

    @property
    def seed(self) -> int:
        """Seed of the run: of the order, and of what happens to a sample at random."""

    def epoch_of(self, step: int) -> int:
        """The epoch, from 0, to which a step belongs."""

    def batch(self, step: int) -> Ids:
        """Ids of all samples of a step."""

    def share(self, step: int, rank: int, world_size: int) -> Ids:
        """Those of them that a rank computes."""


@dataclass(frozen=True, kw_only=True)
class SampleCursor:
    """Which samples each step of a training run consumes.

    Attributes:
        num_samples: size of the data set.
        global_batch: samples per step over all ranks; the last step of an epoch takes what is left.
        seed: seed of the shuffling.
        shuffle: another order in each epoch; else the order of the ids (of the shards, where there are any). `torch`:
            the order of torch's DistributedSampler with the same seed, so that each step has the samples that it would
            have had, but for those that it repeats at the end of an epoch. Slower to make.
        drop_last: leave out the last step of an epoch where it would be smaller; other samples each epoch.
        shards: numbers of samples of the shards, where the data is read shard by shard; they sum to num_samples.
        num_streams: how many shards are read alternately, so that a batch holds samples of several.
    """

    num_samples: int
    global_batch: int
    seed: int = 0
    shuffle: bool | Literal["torch"] = True
    drop_last: bool = False
    shards: tuple[int, ...] = ()
    num_streams: int = 8

    def __post_init__(self) -> None:
        if self.num_samples < 1:
            raise ValueError("the data set is empty")
        if self.global_batch < 1:
            raise ValueError(f"the global batch must be at least 1, not {self.global_batch}")
        if self.drop_last and self.global_batch > self.num_samples:
            raise ValueError(
                f"a global batch of {self.global_batch} with drop_last leaves no step of {self.num_samples} samples"
            )
        if self.shards and (min(self.shards) < 0 or sum(self.shards) != self.num_samples):
            raise ValueError(f"shards of {sum(self.shards)} samples in all do not make up {self.num_samples}")
        if self.shards and self.shuffle == "torch":
            raise ValueError("shards are read from front to back, which DistributedSampler's order is not")
        if self.num_streams < 1:
            raise ValueError(f"at least one shard must be read at a time, not {self.num_streams}")

    @property
    def steps_per_epoch(self) -> int:
        """Number of steps that an epoch takes; the last may be smaller."""
        if self.drop_last:
            return self.num_samples // self.global_batch
        return -(-self.num_samples // self.global_batch)

    @property
    def samples_per_epoch(self) -> int:
        """Number of samples that an epoch consumes: all, unless the last ones are dropped."""
        return min(self.num_samples, self.steps_per_epoch * self.global_batch)

    def epoch_of(self, step: int) -> int:
        """The epoch, from 0, to which a step belongs."""
        return step // self.steps_per_epoch

    def batch(self, step: int) -> Ids:
        """Ids of all samples of a step, shape [<= global_batch]."""
        epoch, position = divmod(step, self.steps_per_epoch)
        order = _last_order(self, epoch)
        return order[position * self.global_batch : (position + 1) * self.global_batch].copy()

    def share(self, step: int, rank: int, world_size: int) -> Ids:
        """Those samples of a step that a rank computes; may be none."""
        return rank_slice(self.batch(step), rank, world_size)

    def order(self, epoch: int) -> Ids:
        """Ids of all samples in the order of an epoch, shape [num_samples]."""
        if self.shards:
            shards = epoch_order(len(self.shards), self.seed, epoch) if self.shuffle else np.arange(len(self.shards))
            return interleaved(self.shards, shards, self.num_streams)
        if not self.shuffle:
            return np.arange(self.num_samples, dtype=np.int64)
        if self.shuffle == "torch":
            return _randperm(self.num_samples, self.seed + epoch)
        return epoch_order(self.num_samples, self.seed, epoch)

    def num_samples_before(self, step: int) -> int:
        """Samples consumed by all steps before this one, over all epochs."""
        epoch, position = divmod(step, self.steps_per_epoch)
        return epoch * self.samples_per_epoch + position * self.global_batch

    def fingerprint(self) -> dict[str, int | str]:
        """What must be the same for a run to be continued; goes into the checkpoint."""
        order = RANDPERM if self.shuffle == "torch" else SHUFFLE if self.shuffle else "none"
        if self.shards:
            order += f" {INTERLEAVE} {self.num_streams} of {len(self.shards)} ({hash64(*self.shards):016x})"
        return {
            "num_samples": self.num_samples,
            "global_batch": self.global_batch,
            "seed": self.seed,
            "shuffle": order,
            "drop_last": self.drop_last,
        }

    def check(self, saved: Mapping[str, Any]) -> None:
        """Refuse to continue a run that counted its samples differently.

        Raises:
            ValueError: names each value that differs.
        """
        compare_fingerprints(saved, self.fingerprint())


def compare_fingerprints(saved: Mapping[str, Any], ours: Mapping[str, Any]) -> None:
    """Refuse to continue a run that counted its samples differently.

    Raises:
        ValueError: names each value that differs.
    """
    differences = [
        f"{name} was {saved.get(name)!r} and is now {value!r}"
        for name, value in ours.items()
        if saved.get(name) != value
    ]
    if differences:
        raise ValueError(
            f"the checkpoint belongs to another run of the data: {'; '.join(differences)}; use the old values, or "
            "another checkpoint folder"
        )


def rank_slice(batch: Ids, rank: int, world_size: int) -> Ids:
    """The part of a batch that a rank computes; sizes differ by at most one, the parts make up the batch in order."""
    size = len(batch)
    return batch[size * rank // world_size : size * (rank + 1) // world_size]


def loss_weight(batch_size: int, world_size: int) -> float:
    """Factor for a rank's summed loss, so that DDP's mean over ranks is the mean over the global batch."""
    return world_size / batch_size


def epoch_order(num_samples: int, seed: int, epoch: int) -> Ids:
    """Permutation of all sample ids, shape [num_samples].

    Sorts the ids by a hash, so that it is the same with every version of every library.
    """
    start = np.uint64(hash64(seed, epoch))
    ids = np.arange(num_samples, dtype=np.uint64)
    with np.errstate(over="ignore"):
        keys = _splitmix64(start + ids * _GOLDEN)
    return np.argsort(keys, kind="stable").astype(np.int64)


def _randperm(num_samples: int, seed: int) -> Ids:
    """The permutation that DistributedSampler makes of a seed."""
    import torch  # noqa: PLC0415  (who counts samples otherwise needs none)

    return torch.randperm(num_samples, generator=torch.Generator().manual_seed(seed)).numpy()


def interleaved(sizes: Sequence[int], shards: Ids, num_streams: int) -> Ids:
    """Ids in an order that takes one sample of each of some shards in turn, and every shard from front to back.

    Args:
        sizes: number of samples of each shard; ids count through the shards in this order.
        shards: in which order the shards are begun.
        num_streams: how many are read at a time; one that ends is followed by the next.

    Returns:
        All ids, shape [sum(sizes)].
    """
    starts = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
    waiting = [int(shard) for shard in shards if sizes[shard]]
    active = waiting[:num_streams]
    position = len(active)
    done = dict.fromkeys(waiting, 0)
    parts: list[Ids] = []
    while active:
        rounds = min(sizes[shard] - done[shard] for shard in active)
        firsts = np.array([starts[shard] + done[shard] for shard in active], dtype=np.int64)
        parts.append((np.arange(rounds, dtype=np.int64)[:, None] + firsts[None, :]).ravel())
        following: list[int] = []
        for shard in active:
            done[shard] += rounds
            if done[shard] < sizes[shard]:
                following.append(shard)
            elif position < len(waiting):
                following.append(waiting[position])
                position += 1
        active = following
    return np.concatenate(parts)


@functools.lru_cache(maxsize=2)
def _last_order(cursor: SampleCursor, epoch: int) -> Ids:
    """The order of an epoch, made once for all its steps."""
    return cursor.order(epoch)


def hash64(*numbers: int) -> int:
    """A 64-bit number from some integers: a seed for what one epoch, step or sample does at random."""
    state = np.uint64(0)
    with np.errstate(over="ignore"):
        for number in numbers:
            state = _splitmix64(state + np.uint64(number % 2**64) + _GOLDEN)
    return int(state)


_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


def _splitmix64(value: Any) -> Any:
    """The finalizer of SplitMix64 (Steele, Lea, Flood 2014), on one number or many."""
    value = (value ^ (value >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    value = (value ^ (value >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return value ^ (value >> np.uint64(31))
