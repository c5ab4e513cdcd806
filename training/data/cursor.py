"""The global sample cursor: which samples step k consumes does not depend on how many workers there are.

The order of an epoch is a permutation of seed and epoch. A step takes the next `global_batch` samples of it, and each
rank its slice of those, whatever the world size. So the state to save is one number, the step, and any world resumes
without a sample repeated or left out. `DistributedSampler` cannot do this: it pads by repetition, and its position is
per rank.

The gradient is that of one worker with the whole batch: DDP averages gradients over ranks, so each rank multiplies its
summed loss by `world / len(batch)` (`loss_weight`). Slices may differ by one sample, and a rank may have none. This
holds for losses that are sums over samples; BatchNorm, which looks at the other samples of the slice, is another
matter.
"""

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Ids = NDArray[np.int64]

# Goes into the checkpoint: an order that is made differently must not continue an older run.
SHUFFLE = "splitmix64-1"


@dataclass(frozen=True, kw_only=True)
class SampleCursor:
    """Which samples each step of a training run consumes.

    Attributes:
        num_samples: size of the data set.
        global_batch: samples per step over all ranks; the last step of an epoch takes what is left.
        seed: seed of the shuffling.
    """

    num_samples: int
    global_batch: int
    seed: int = 0

    def __post_init__(self) -> None:
        if self.num_samples < 1:
            raise ValueError("the data set is empty")
        if self.global_batch < 1:
            raise ValueError(f"the global batch must be at least 1, not {self.global_batch}")

    @property
    def steps_per_epoch(self) -> int:
        """Number of steps that an epoch takes; the last may be smaller."""
        return -(-self.num_samples // self.global_batch)

    def epoch_of(self, step: int) -> int:
        """The epoch, from 0, to which a step belongs."""
        return step // self.steps_per_epoch

    def batch(self, step: int) -> Ids:
        """Ids of all samples of a step, shape [<= global_batch]."""
        epoch, position = divmod(step, self.steps_per_epoch)
        order = _last_order(self.num_samples, self.seed, epoch)
        return order[position * self.global_batch : (position + 1) * self.global_batch].copy()

    def num_samples_before(self, step: int) -> int:
        """Samples consumed by all steps before this one, over all epochs."""
        epoch, position = divmod(step, self.steps_per_epoch)
        return epoch * self.num_samples + position * self.global_batch

    def fingerprint(self) -> dict[str, int | str]:
        """What must be the same for a run to be continued; goes into the checkpoint."""
        return {
            "num_samples": self.num_samples,
            "global_batch": self.global_batch,
            "seed": self.seed,
            "shuffle": SHUFFLE,
        }

    def check(self, saved: Mapping[str, Any]) -> None:
        """Refuse to continue a run that counted its samples differently.

        Raises:
            ValueError: names each value that differs.
        """
        differences = [
            f"{name} was {saved.get(name)!r} and is now {value!r}"
            for name, value in self.fingerprint().items()
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


@functools.lru_cache(maxsize=2)
def _last_order(num_samples: int, seed: int, epoch: int) -> Ids:
    """The order of an epoch, made once for all its steps."""
    return epoch_order(num_samples, seed, epoch)


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
