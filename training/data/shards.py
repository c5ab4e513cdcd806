"""Shards that can only be read from front to back, as a data set with ids.

A shard is a file of samples: a tar archive, a file of JSON lines, a part of a corpus. How many samples each holds must
be known (`count_shards` counts them once; keep the numbers beside the data). Then ids count through the shards, and the
global cursor works as for any data set:

    sizes = (1000, 980, 1000)
    data = ShardedDataset(sizes, open_shard, transform=parse)
    cursor = SampleCursor(num_samples=len(data), global_batch=64, shards=sizes)

With `shards` the cursor's order reads every shard forwards, so a shard stays open and is read on from where it is.
Samples of other ranks in between are read and dropped, unless `open_shard` can begin further on: it is told where.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from itertools import accumulate, islice
from typing import Any

import numpy as np
from torch.utils.data import Dataset

# Opens a shard at a sample: (shard, first) -> the samples from that one on.
OpenShard = Callable[[int, int], Iterable[Any]]


class ShardedDataset(Dataset[Any]):
    """Samples of shards by their id.

    Args:
        sizes: number of samples of each shard.
        open_shard: opens a shard at a sample; formats that cannot seek use `itertools.islice(samples, first, None)`.
        transform: applied to a sample that is used; random numbers belong here, not into the reading of the shard.
        num_open: how many shards stay open in each process; at least the cursor's `num_streams`.
        read_ahead: samples that are read and dropped rather than the shard opened anew further on.

    Raises:
        ValueError: there are no samples.
    """

    def __init__(
        self,
        sizes: Iterable[int],
        open_shard: OpenShard,
        *,
        transform: Callable[[Any], Any] | None = None,
        num_open: int = 16,
        read_ahead: int = 1000,
    ) -> None:
        self.sizes = tuple(sizes)
        self._ends = np.array(list(accumulate(self.sizes)), dtype=np.int64)
        if not self.sizes or self._ends[-1] == 0:
            raise ValueError("the data set is empty: its shards hold no samples")
        self._open_shard = open_shard
        self._transform = transform
        self._num_open = num_open
        self._read_ahead = read_ahead
        self._open: OrderedDict[int, tuple[int, Iterator[Any]]] = OrderedDict()

    def __len__(self) -> int:
        return int(self._ends[-1])

    def __getitem__(self, index: int) -> Any:
        """Read a sample.

        Raises:
            IndexError: there is no such sample.
            ValueError: the shard holds fewer samples than its size says.
        """
        if not 0 <= index < len(self):
            raise IndexError(index)
        shard = int(np.searchsorted(self._ends, index, side="right"))
        within = int(index - (self._ends[shard] - self.sizes[shard]))
        position, samples = self._open.pop(shard, (None, iter(())))
        if position is None or not 0 <= within - position <= self._read_ahead:
            position, samples = within, iter(self._open_shard(shard, within))
        try:
            sample = next(islice(samples, within - position, None))
        except StopIteration:
            raise ValueError(
                f"shard {shard} ends before its sample {within}, but its size is given as {self.sizes[shard]}; count "
                "the shards again"
            ) from None
        if within + 1 < self.sizes[shard]:
            self._open[shard] = (within + 1, samples)
            while len(self._open) > self._num_open:
                self._open.popitem(last=False)
        return self._transform(sample) if self._transform else sample

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_open": OrderedDict()}  # for loader workers that are spawned: open files stay here


def count_shards(num_shards: int, open_shard: OpenShard) -> tuple[int, ...]:
    """Number of samples of each shard, by reading all of them."""
    return tuple(sum(1 for _ in open_shard(shard, 0)) for shard in range(num_shards))
