"""Loads what the cursor says: step by step, in micro-batches, with torch's DataLoader and its options.

    loader = StepLoader(data, cursor, rank=rank, world_size=world_size, first_step=done, num_steps=total, micro_batch=8)
    for step in loader:
        optimizer.zero_grad()
        for micro in step:
            inputs, targets = micro.data
            with micro.sync(network):
                loss = cross_entropy(network(inputs), targets, reduction="sum") * micro.weight
                loss.backward()
        optimizer.step()
        done = step.number            # goes into the checkpoint

* The loader has no position to save. How far a run has come is the number of its completed steps; samples that loader
  workers have fetched ahead are not counted, and are fetched again by whoever continues.
* A rank's share of a step is cut into micro-batches of at most `micro_batch` samples; gradients are exchanged with the
  last one only (`sync`). Ranks may have different numbers of them.
* A rank without samples in a step gets one sample with weight 0, because DDP waits for every rank's backward pass.
* Random numbers in the data set's `__getitem__` come from seed, epoch and sample id, whoever loads the sample
  (`training.data.seeding`).
* Loader workers outlive a SIGTERM that is not from their own parent: a notice goes to the whole process group, and the
  steps until the last checkpoint still need data. They end with their parent.
"""

import contextlib
import logging
import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from multiprocessing import resource_tracker
from typing import Any, cast

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

from training.data.cursor import Cursor, Ids, loss_weight
from training.data.seeding import sample_seed, seeded
from training.launch import torch_private

logger = logging.getLogger(__name__)

# Epoch and id of a sample.
_Key = tuple[int, int]


@dataclass(frozen=True, kw_only=True)
class MicroBatch:
    """What one forward and backward pass computes.

    Attributes:
        data: the samples, collated.
        ids: their ids; none for a rank that takes part without a sample of its own.
        weight: factor for the sum of the samples' losses, so that DDP's mean is the mean over the global batch.
        is_last: whether it is the rank's last one of the step.
    """

    data: Any
    ids: Ids
    weight: float
    is_last: bool

    def sync(self, network: nn.Module) -> AbstractContextManager[None]:
        """For forward and backward: DDP exchanges gradients with the last micro-batch of a step only."""
        no_sync = getattr(network, "no_sync", None)
        if self.is_last or no_sync is None:
            return contextlib.nullcontext()
        return cast("AbstractContextManager[None]", no_sync())


@dataclass(frozen=True, kw_only=True)
class Step:
    """A rank's share of one optimizer step: iterate over its micro-batches, once.

    Attributes:
        number: how many steps are complete when it is.
        epoch: to which epoch it belongs, from 0.
        batch_size: samples of all ranks together.
        ids: ids of this rank's samples.
    """

    number: int
    epoch: int
    batch_size: int
    ids: Ids
    _micro_batches: Iterator[MicroBatch] = field(repr=False)

    def __iter__(self) -> Iterator[MicroBatch]:
        return self._micro_batches


class StepLoader:
    """Loads a rank's share of every step.

    Args:
        dataset: gives a sample by its id; `training.data.shards.ShardedDataset` for shards.
        cursor: which samples a step consumes.
        rank: number of this worker.
        world_size: number of workers.
        first_step: steps that are complete already.
        num_steps: steps that are complete at the end.
        micro_batch: most samples of one forward pass; None: a rank's whole share.
        num_workers: processes that load; 0: the training process itself.
        collate_fn: makes a batch of samples; None: torch's.
        pin_memory: load into page-locked memory, for faster copies to a GPU.
        persistent_workers: keep the processes for a second iteration over the loader.
        prefetch_factor: micro-batches that each process loads ahead; None: torch's default of 2.
        worker_init_fn: called in each process with its number.
        timeout: seconds to wait for a micro-batch; 0: for ever.
        multiprocessing_context: how processes start: fork, spawn or forkserver; None: the system's default.

    Raises:
        ValueError: numbers that contradict each other, by name.
    """

    def __init__(
        self,
        dataset: Dataset[Any],
        cursor: Cursor,
        *,
        rank: int = 0,
        world_size: int = 1,
        first_step: int = 0,
        num_steps: int,
        micro_batch: int | None = None,
        num_workers: int = 0,
        collate_fn: Callable[[list[Any]], Any] | None = None,
        pin_memory: bool = False,
        persistent_workers: bool = False,
        prefetch_factor: int | None = None,
        worker_init_fn: Callable[[int], None] | None = None,
        timeout: float = 0,
        multiprocessing_context: str | None = None,
    ) -> None:
        if not 0 <= rank < world_size:
            raise ValueError(f"rank {rank} does not exist in a world of {world_size}")
        if micro_batch is not None and micro_batch < 1:
            raise ValueError(f"a micro-batch needs at least 1 sample, not {micro_batch}")
        size = len(cast("Sequence[Any]", dataset))
        if size != cursor.num_samples:
            raise ValueError(f"the data set has {size} samples, the cursor counts {cursor.num_samples}")
        if first_step < num_steps and (batch_size := len(cursor.batch(first_step))) < world_size and rank == 0:
            logger.warning(
                "the global batch of %d is smaller than the world of %d: %d workers compute nothing; the result is the "
                "same as with fewer workers",
                batch_size,
                world_size,
                world_size - batch_size,
            )
        self.first_step = first_step
        self.num_steps = num_steps
        self._cursor = cursor
        self._rank = rank
        self._world_size = world_size
        self._micro_batch = micro_batch
        self._start_method = multiprocessing_context or multiprocessing.get_start_method()
        self._loader: DataLoader[Any] = DataLoader(
            _Seeded(dataset, cursor.seed),
            batch_sampler=_Schedule(self),
            num_workers=num_workers,
            collate_fn=collate_fn,
            pin_memory=pin_memory,
            persistent_workers=persistent_workers,
            prefetch_factor=prefetch_factor,
            worker_init_fn=_WorkerStart(worker_init_fn) if num_workers else None,
            timeout=timeout,
            multiprocessing_context=multiprocessing_context,
            # Its own generator: the seed that it draws for its workers must not move the training's random numbers.
            generator=torch.Generator().manual_seed(0),
        )

    def __len__(self) -> int:
        return max(0, self.num_steps - self.first_step)

    def __iter__(self) -> Iterator[Step]:
        if self._loader.num_workers and self._start_method != "fork":
            resource_tracker.ensure_running()  # when it starts it lets SIGTERM through again
        with _sigterm_blocked():  # new processes inherit it: a notice may come before they can say so themselves
            loaded = iter(self._loader)
        for done in range(self.first_step, self.num_steps):
            mine = self._cursor.share(done, self._rank, self._world_size)
            batch_size = len(self._cursor.batch(done))
            micro_batches = self._micro_batches(mine, loss_weight(batch_size, self._world_size), loaded)
            epoch = self._cursor.epoch_of(done)
            yield Step(number=done + 1, epoch=epoch, batch_size=batch_size, ids=mine, _micro_batches=micro_batches)
            for _ in micro_batches:  # left by a step that was broken off
                pass

    def processes(self) -> list[int]:
        """Ids of the processes that load; none before the first iteration."""
        return torch_private.loading_processes(self._loader)

    def _micro_batches(self, mine: Ids, weight: float, loaded: Iterator[Any]) -> Iterator[MicroBatch]:
        if not len(mine):
            yield MicroBatch(data=next(loaded), ids=mine, weight=0.0, is_last=True)
            return
        size = self._micro_batch or len(mine)
        for start in range(0, len(mine), size):
            ids = mine[start : start + size]
            yield MicroBatch(data=next(loaded), ids=ids, weight=weight, is_last=start + size >= len(mine))

    def schedule(self) -> Iterator[list[_Key]]:
        """Epoch and id of the samples of every micro-batch, in order."""
        for done in range(self.first_step, self.num_steps):
            epoch = self._cursor.epoch_of(done)
            mine = self._cursor.share(done, self._rank, self._world_size)
            if not len(mine):
                mine = self._cursor.batch(done)[:1]  # of weight 0
            size = self._micro_batch or len(mine)
            for start in range(0, len(mine), size):
                yield [(epoch, int(sample)) for sample in mine[start : start + size]]


class _Schedule:
    """The order in the shape that DataLoader asks for; each iteration begins at the loader's first step."""

    def __init__(self, loader: StepLoader) -> None:
        self._loader = loader

    def __iter__(self) -> Iterator[list[Any]]:
        return self._loader.schedule()


class _Seeded(Dataset[Any]):
    """Gives every sample random numbers of its own."""

    def __init__(self, dataset: Dataset[Any], seed: int) -> None:
        self._dataset = dataset
        self._seed = seed

    def __getitem__(self, key: _Key) -> Any:
        epoch, sample = key
        with seeded(sample_seed(self._seed, epoch, sample)):
            return self._dataset[sample]


@contextlib.contextmanager
def _sigterm_blocked() -> Iterator[None]:
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@dataclass(frozen=True)
class _WorkerStart:
    """First thing in a loader worker; a class, because spawned workers get it as a pickle."""

    then: Callable[[int], None] | None

    def __call__(self, worker: int) -> None:
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})  # a fork server has inherited nothing
        threading.Thread(target=_end_with_parent, name="sigterm", daemon=True).start()
        if self.then:
            self.then(worker)


def _end_with_parent() -> None:
    """Obey a SIGTERM from the process whose worker we are, which ends us so at its own end; ignore all others."""
    while True:
        info = signal.sigwaitinfo({signal.SIGTERM})
        if info.si_pid == os.getppid():
            os._exit(0)
