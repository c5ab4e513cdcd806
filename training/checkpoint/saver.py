"""Saving beside the training: a copy is made at once, the disk is waited for by another thread.

    saver = AsyncSaver(folder, optimizer=optimizer, on_saved=report)
    for step in ...:
        ...
        if step % 100 == 0:
            saver.save(step, state)
    saver.wait()                         # before the end, and before leaving on a notice

The copy of parameters and optimizer state is made by the other thread too, while the next forward and backward pass
run: until the next `optimizer.step` they do not change, and that call waits for the copy. What may change sooner
(buffers of BatchNorm, averages, numbers) is copied before `save` returns. Who changes parameters in another way, such
as `load_state_dict`, calls `settle` first.

One checkpoint is written at a time; a save during the write before waits for it. An error of the other thread is raised
by the next `save` or `wait`: a checkpoint counts when `on_saved` has been called, not before.
"""

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from training.checkpoint.folder import CheckpointFolder, Snapshot
from training.launch import notices

# Called with step, folder and seconds since `save` was called, when a checkpoint is safe on disk.
OnSaved = Callable[[int, Path, float], None]


class AsyncSaver:
    """Saves checkpoints in the background.

    Args:
        folder: where they go.
        optimizer: whose parameters and state change only in its `step`; None: everything is copied at once.
        on_saved: called by the other thread for each checkpoint that is safe on disk.
    """

    def __init__(
        self, folder: CheckpointFolder, *, optimizer: Optimizer | None = None, on_saved: OnSaved | None = None
    ) -> None:
        self._folder = folder
        self._optimizer = optimizer
        self._on_saved = on_saved
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="checkpoint")
        # The save that nobody has waited for yet.
        self.writing: Future[None] | None = None
        self._copied = threading.Event()
        self._copied.set()
        self._buffers: dict[str, Tensor] = {}
        # How long the training has waited for checkpoints since it began, in seconds.
        self.stalled = 0.0
        self._hook = optimizer.register_step_pre_hook(lambda *_: self.settle()) if optimizer else None

    def save(self, step: int, state: Mapping[str, Any], *, metrics: Mapping[str, float] | None = None) -> None:
        """Begin to save; the state may be changed when this returns, the optimizer's part of it by the optimizer.

        Raises:
            StaleWriterError: a newer world has claimed the folder; told by the save before.
            CheckpointError: the save before failed, or the state holds something that cannot be saved.
        """
        self.wait()
        start = time.monotonic()
        values, tensors = self._folder.separate(step, state)
        later = unchanging(self._optimizer, tensors)
        self._buffers = {name: self._buffer(name, tensor) for name, tensor in tensors.items()}
        for name, tensor in tensors.items():
            if name not in later:
                self._buffers[name].copy_(tensor)
        self._copied.clear()
        snapshot = Snapshot(step=step, values=values, tensors=self._buffers, metrics=dict(metrics or {}))
        self.writing = self._thread.submit(self._write, snapshot, later, start)
        self.stalled += time.monotonic() - start

    def settle(self) -> None:
        """Wait until the copy is made: from then on everything may be changed."""
        start = time.monotonic()
        self._copied.wait()
        self.stalled += time.monotonic() - start

    def wait(self) -> None:
        """Wait until the last checkpoint is safe on disk.

        Raises:
            StaleWriterError: a newer world has claimed the folder.
            CheckpointError: it could not be written.
        """
        start = time.monotonic()
        writing, self.writing = self.writing, None
        try:
            if writing:
                writing.result()
        finally:
            self.stalled += time.monotonic() - start

    def close(self) -> None:
        """Wait, and end the other thread; raises what `wait` does."""
        try:
            self.wait()
        finally:
            self._thread.shutdown()
            if self._hook:
                self._hook.remove()

    def __enter__(self) -> "AsyncSaver":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _write(self, snapshot: Snapshot, later: Mapping[str, Tensor], start: float) -> None:
        try:
            for name, tensor in later.items():
                snapshot.tensors[name].copy_(tensor)
        finally:
            self._copied.set()
        path = self._folder.publish(snapshot)
        seconds = time.monotonic() - start
        notices.note_save(seconds)
        if self._on_saved:
            self._on_saved(snapshot.step, path, seconds)

    def _buffer(self, name: str, tensor: Tensor) -> Tensor:
        old = self._buffers.get(name)
        if old is not None and old.shape == tensor.shape and old.dtype == tensor.dtype:
            return old
        return torch.empty(tensor.shape, dtype=tensor.dtype, device="cpu", pin_memory=tensor.device.type == "cuda")


def unchanging(optimizer: Optimizer | None, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Those tensors that only the optimizer's step changes, so that another thread may copy them until then.

    None of a GPU: its memory is read in the order of its own stream, and that copy is made at once.
    """
    theirs = set(_addresses(optimizer)) if optimizer else set()
    return {
        name: tensor
        for name, tensor in tensors.items()
        if tensor.device.type == "cpu" and tensor.untyped_storage().data_ptr() in theirs
    }


def _addresses(optimizer: Optimizer) -> Iterator[int]:
    """Where in memory the tensors are that only the optimizer changes."""
    for group in optimizer.param_groups:
        yield from (parameter.untyped_storage().data_ptr() for parameter in group["params"])
    for state in optimizer.state.values():
        yield from (value.untyped_storage().data_ptr() for value in state.values() if isinstance(value, Tensor))
