"""torch's own `DistributedSampler` behind the same surface, for who must reproduce a run that used it.

Its limits, which the global cursor does not have:

* Every rank gets equally many samples: at the end of an epoch some samples are repeated (or, with `drop_last`, left
  out), other ones for each world size.
* The order of a rank depends on the world size, so a run continues only with the number of workers that it had.
* The global batch must be a multiple of the number of workers.
"""

import functools
from collections.abc import Mapping, Sized
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
from torch.utils.data import Dataset
from torch.utils.data.distributed import DistributedSampler

from training.data.cursor import Ids, compare_fingerprints


@dataclass(frozen=True, kw_only=True)
class StockCursor:
    """Which samples each rank consumes when `DistributedSampler` decides.

    Attributes:
        num_samples: size of the data set.
        global_batch: samples per step over all ranks.
        world_size: number of ranks, for the whole run.
        seed: seed of the shuffling.
        shuffle: another order in each epoch.
        drop_last: leave out samples at the end of an epoch rather than repeat some.
    """

    num_samples: int
    global_batch: int
    world_size: int
    seed: int = 0
    shuffle: bool = True
    drop_last: bool = False

    def __post_init__(self) -> None:
        if self.num_samples < 1:
            raise ValueError("the data set is empty")
        if self.global_batch < 1 or self.global_batch % self.world_size:
            raise ValueError(
                f"DistributedSampler needs a global batch that is a multiple of the {self.world_size} workers, not "
                f"{self.global_batch}; SampleCursor takes any"
            )
        if self.drop_last and self.num_samples < self.world_size:
            raise ValueError(f"{self.num_samples} samples with drop_last leave none for {self.world_size} workers")

    @property
    def steps_per_epoch(self) -> int:
        """Number of steps that an epoch takes; the last may be smaller."""
        return -(-len(self._order(0, 0)) // (self.global_batch // self.world_size))

    def epoch_of(self, step: int) -> int:
        """The epoch, from 0, to which a step belongs."""
        return step // self.steps_per_epoch

    def batch(self, step: int) -> Ids:
        """Ids of all samples of a step; some may be there twice."""
        return np.concatenate([self.share(step, rank, self.world_size) for rank in range(self.world_size)])

    def share(self, step: int, rank: int, world_size: int) -> Ids:
        """Ids of a rank's samples of a step.

        Raises:
            ValueError: the world has another size than the run began with.
        """
        if world_size != self.world_size:
            raise ValueError(
                f"DistributedSampler's order is that of {self.world_size} workers and there are {world_size} now; "
                "SampleCursor continues with any number"
            )
        epoch, position = divmod(step, self.steps_per_epoch)
        size = self.global_batch // self.world_size
        return self._order(epoch, rank)[position * size : (position + 1) * size].copy()

    def fingerprint(self) -> dict[str, int | str]:
        """What must be the same for a run to be continued; goes into the checkpoint."""
        return {
            "num_samples": self.num_samples,
            "global_batch": self.global_batch,
            "seed": self.seed,
            "shuffle": "DistributedSampler" if self.shuffle else "none",
            "drop_last": self.drop_last,
            "world_size": self.world_size,
        }

    def check(self, saved: Mapping[str, Any]) -> None:
        """Refuse to continue a run of other data or of another world size.

        Raises:
            ValueError: names each value that differs.
        """
        compare_fingerprints(saved, self.fingerprint())

    def _order(self, epoch: int, rank: int) -> Ids:
        return _last_orders(self, epoch, rank)


@functools.lru_cache(maxsize=64)
def _last_orders(cursor: StockCursor, epoch: int, rank: int) -> Ids:
    sampler: DistributedSampler[Any] = DistributedSampler(
        cast("Dataset[Any]", _OfLength(cursor.num_samples)),
        num_replicas=cursor.world_size,
        rank=rank,
        shuffle=cursor.shuffle,
        seed=cursor.seed,
        drop_last=cursor.drop_last,
    )
    sampler.set_epoch(epoch)
    return np.fromiter(sampler, dtype=np.int64)


@dataclass(frozen=True)
class _OfLength(Sized):
    """All that the sampler asks of a data set."""

    length: int

    def __len__(self) -> int:
        return self.length
