"""The state after the last step in the memory of this node, where the death of its workers leaves it.

    replica = Replica(writer=Writer(run=..., generation=...), optimizer=optimizer)
    for step in ...:
        ...
        replica.put(step, state)            # copied beside the next forward and backward pass
    replica.close()                         # at the end: the memory is free again

In the process that comes after a SIGKILL, `newest` finds what was put last. In data-parallel training every node holds
the same state, so each node's memory is the replica of all others, and nothing is sent: while one node's memory lives,
a crash costs the step that was under way. `elastic.run(..., replica=replica)` finds and spreads the newest one after a
loss of all workers; a script without hooks calls `restore`. A job of one node has no peer: when its machine goes, the
newest checkpoint is what is left.

**Where.** Files below `/dev/shm`, or the folder that `TRAINYARD_MEMORY` names: memory that belongs to no process. One
process of a node writes (local rank 0): the folder has numbered places, and a writer takes the first that no living
process holds. `newest` looks at all of them.

**Torn.** Two slots are written in turn. The head of a slot is cleared before and written after its contents, so of a
process that dies at any moment the slot before is whole. The head has a checksum, the contents have none: what was
stored before the head is there when the head is, for memory outlives a process as a whole or not at all.

**How much.** Twice the state. It is reserved before it is written, so a full memory is an error in words and not a
signal; then training goes on without.

**Freed.** By `close`, by the launcher at its end, and, after a crash of both, by the next writer on the node.
"""

import contextlib
import io
import json
import logging
import math
import mmap
import os
import pickle
import struct
import time
import zlib
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import torch
import torch.distributed as dist
from torch import Tensor
from torch.optim import Optimizer

from training.checkpoint import contents, memory
from training.checkpoint.folder import (
    Checkpoint,
    CheckpointError,
    CheckpointFolder,
    StaleWriterError,
    Writer,
    verify,
)
from training.checkpoint.saver import unchanging
from training.launch.environment import MEMORY

logger = logging.getLogger(__name__)

# Broadcast in portions of so many bytes.
PORTION: Final = 32 * 2**20

# Mark, number of the put, step, generation, bytes of index and values, bytes of all, checksum of index and values.
_HEAD: Final = struct.Struct("<8sQqqQQI")
_CHECK: Final = struct.Struct("<I")
_MARK: Final = b"TYSTATE1"
_BODY: Final = mmap.PAGESIZE
_ALIGN: Final = 64


@dataclass(frozen=True, kw_only=True)
class Copy:
    """A whole state in memory.

    Attributes:
        step: number of completed steps.
        generation: of the world that made it.
        path: of the slot.
        head: of the slot, which changes when another state is put there.
    """

    step: int
    generation: int
    path: Path
    head: bytes

    def load(self, device: str | torch.device = "cpu") -> dict[str, Any]:
        """The state.

        Raises:
            CheckpointError: it is not there any more, or no state.
        """
        try:
            return _load(self.body(), device)
        except (OSError, ValueError, KeyError, RuntimeError, pickle.UnpicklingError) as error:
            raise CheckpointError(f"the replica {self.path} cannot be read: {error}") from error

    def body(self) -> Tensor:
        """Its bytes, as they may be sent to others.

        Raises:
            CheckpointError: it is not there any more.
        """
        _, _, _, _, lead, size, check = _HEAD.unpack(self.head)
        try:
            with self.path.open("rb") as stream:
                stream.seek(_BODY)
                data = bytearray(stream.read(size - _BODY))
        except OSError as error:
            raise CheckpointError(f"the replica {self.path} cannot be read: {error.strerror}") from error
        if len(data) != size - _BODY or zlib.crc32(data[:lead]) != check or _head(self.path) != self.head:
            raise CheckpointError(f"the replica {self.path} has changed while it was read")
        return torch.frombuffer(data, dtype=torch.uint8)


class Replica:
    """Keeps the last state in this node's memory.

    Args:
        writer: who we are.
        optimizer: whose parameters and state change only in its `step`; None: everything is copied at once.
        root: the folder below which it lies; None: see the module.
        name: tells several replicas of one run apart.
    """

    def __init__(
        self, *, writer: Writer, optimizer: Optimizer | None = None, root: Path | None = None, name: str = ""
    ) -> None:
        self._writer = writer
        self._optimizer = optimizer
        self._base = memory.base() if root is None else root
        self.folder = self._base / memory.folder_of(writer.run, name)
        self._place: _Place | None = None
        self._is_off = False
        self._thread: ThreadPoolExecutor | None = None
        self._copying: Future[None] | None = None
        # Bytes of memory that it takes, and how long the training has waited for it since it began, in seconds.
        self.bytes = 0
        self.stalled = 0.0
        self._hook = optimizer.register_step_pre_hook(lambda *_: self.settle()) if optimizer else None

    def newest(self) -> Copy | None:
        """The newest whole state of this run on this node: of the newest generation, the one of most steps."""
        return max(_copies(self.folder), key=lambda copy: (copy.generation, copy.step), default=None)

    def begin(self, generation: int) -> None:
        """Write for a new world from now on."""
        self.settle()
        self._writer = replace(self._writer, generation=generation)

    def put(self, step: int, state: Mapping[str, Any]) -> None:
        """Take over the state after a step; it may be changed when this returns, by the optimizer after `settle`.

        What cannot be done, because memory is full, is told once, and training goes on without a replica.

        Args:
            step: number of completed steps.
            state: tensors, numbers, texts and containers of them.

        Raises:
            StaleWriterError: a newer world writes here.
            CheckpointError: the state holds something that could not be loaded.
        """
        self.settle()
        if self._is_off:
            return
        start = time.monotonic()
        try:
            values, tensors = contents.split(state)
            data = contents.dump_values(values)
        except contents.ContentError as error:
            raise CheckpointError(f"the state after step {step} has no replica, because {error}") from error
        try:
            place = self._place or self._take_place()
            slot, rooms = place.slot_for(data, tensors, self._writer)
        except OSError as error:
            self._is_off = True
            self.close()
            logger.warning(
                "no replica in memory from here on: %s cannot hold twice the state (%s); give it more (in a pod: the "
                "size of /dev/shm), or set %s",
                self._base,
                error.strerror or error,
                MEMORY,
            )
            return
        self.bytes = place.size
        later = unchanging(self._optimizer, tensors)
        for name, tensor in tensors.items():
            if name not in later:
                rooms[name].copy_(tensor)
        generation = self._writer.generation
        if later and self._thread:
            self._copying = self._thread.submit(_finish, slot, rooms, later, step, generation)
        else:
            slot.complete(step, generation)
        self.stalled += time.monotonic() - start

    def settle(self) -> None:
        """Wait until the last state is whole in memory: from then on everything may be changed."""
        copying, self._copying = self._copying, None
        if copying is not None:
            start = time.monotonic()
            copying.result()
            self.stalled += time.monotonic() - start

    def close(self) -> None:
        """Free the memory: nobody will need the state any more."""
        self.settle()
        if self._thread:
            self._thread.shutdown()
        if self._hook:
            self._hook.remove()
            self._hook = None
        place, self._place, self._thread = self._place, None, None
        if place:
            place.free()
        self.bytes = 0

    def _take_place(self) -> "_Place":
        memory.sweep(self._base, but=self.folder)
        newest = self.newest()
        if newest and newest.generation > self._writer.generation:
            raise StaleWriterError(
                f"generation {self._writer.generation} of run '{self._writer.run}' may not write to {self.folder}: "
                f"generation {newest.generation} has put step {newest.step} there"
            )
        self._place = _Place(memory.take(self.folder))
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="replica")
        return self._place


def restore(
    folder: CheckpointFolder, replica: Replica | None, device: str | torch.device = "cpu"
) -> tuple[int, dict[str, Any]] | None:
    """The newest state that there is: in the memory of any rank's node, or in the folder.

    All ranks call it, once the process group is formed (alone: without one). Of two replicas the one of the newer
    generation counts, whatever their steps; of a replica and a checkpoint the one of more steps.

    Args:
        folder: the checkpoints, which all ranks can read.
        replica: of this node; None on ranks that have none.
        device: where the tensors go.

    Returns:
        The number of completed steps and the state; None: there is neither replica nor checkpoint.

    Raises:
        CheckpointError: what was chosen cannot be read.
    """
    copy = replica.newest() if replica else None
    if not dist.is_initialized():
        checkpoint = folder.newest()
        if copy and copy.step > (checkpoint.step if checkpoint else -1):
            return copy.step, copy.load(device)
        return (checkpoint.step, checkpoint.load(device)) if checkpoint else None
    rank, size = dist.get_rank(), dist.get_world_size()
    wire = "cuda" if dist.get_backend() == "nccl" else "cpu"
    checkpoint = folder.newest() if rank == 0 else None
    mine = [copy.generation, copy.step] if copy else [-1, -1]
    row = torch.tensor([*mine, checkpoint.step if checkpoint else -1], device=wire)
    rows = [torch.empty_like(row) for _ in range(size)]
    dist.all_gather(rows, row)
    table = [[int(number) for number in each.tolist()] for each in rows]
    source = max(range(size), key=lambda index: (*table[index][:2], -index))
    step, of_checkpoint = table[source][1], table[0][2]
    if step > of_checkpoint:
        return step, _load(_spread(copy.body() if copy and rank == source else None, source, wire), device)
    if of_checkpoint < 0:
        return None
    return of_checkpoint, (checkpoint or _of_step(folder, of_checkpoint)).load(device)


class _Place:
    """A numbered folder with two slots, held by one living process."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._slots = [_Slot(path / "a"), _Slot(path / "b")]
        self._number = max(slot.number for slot in self._slots)

    @property
    def size(self) -> int:
        """Bytes of memory."""
        return sum(slot.size for slot in self._slots)

    def slot_for(
        self, values: bytes, tensors: Mapping[str, Tensor], writer: Writer
    ) -> tuple["_Slot", dict[str, Tensor]]:
        """The slot of the older state, made ready for a new one.

        Raises:
            OSError: memory refuses.
        """
        self._number += 1
        slot = min(self._slots, key=lambda slot: slot.number)
        return slot, slot.clear(self._number, values, tensors, writer)

    def free(self) -> None:
        """Give the memory back."""
        for slot in self._slots:
            slot.close()
        memory.release(self._path, remove=True)


class _Slot:
    """A file in memory that holds one state, whole or not."""

    def __init__(self, path: Path) -> None:
        self._path = path
        head = _head(path)
        self.number: int = _HEAD.unpack(head)[1] if head else 0
        self._pages: mmap.mmap | None = None
        self._next: tuple[int, int, int, int] = (0, 0, 0, 0)

    @property
    def size(self) -> int:
        """Bytes of memory."""
        return len(self._pages) if self._pages else 0

    def clear(self, number: int, values: bytes, tensors: Mapping[str, Tensor], writer: Writer) -> dict[str, Tensor]:
        """Begin a new state: index and values are written, the room of each tensor is returned."""
        index: dict[str, Any] = {"run": writer.run, "values": len(values), "tensors": {}}
        offset = 0
        for name, tensor in tensors.items():
            offset += -offset % _ALIGN
            index["tensors"][name] = [str(tensor.dtype).removeprefix("torch."), list(tensor.shape), offset]
            offset += tensor.numel() * tensor.element_size()
        text = json.dumps(index).encode()
        lead = _CHECK.pack(len(text)) + text + values
        begin = len(lead) + -len(lead) % _ALIGN
        size = _BODY + begin + max(offset, 1)
        pages = self._reserve(size)
        pages[: _HEAD.size + _CHECK.size] = bytes(_HEAD.size + _CHECK.size)
        pages[_BODY : _BODY + len(lead)] = lead
        self.number = number
        self._next = (number, len(lead), size, zlib.crc32(lead))
        rooms = {}
        for name, tensor in tensors.items():
            start, length = _BODY + begin + index["tensors"][name][2], tensor.numel() * tensor.element_size()
            # An empty tensor needs no room, and torch makes none.
            room = (
                torch.frombuffer(pages, dtype=torch.uint8, count=length, offset=start)
                if length
                else torch.empty(0, dtype=torch.uint8)
            )
            rooms[name] = room.view(tensor.dtype).reshape(tensor.shape)
        return rooms

    def complete(self, step: int, generation: int) -> None:
        """From now on the state counts."""
        assert self._pages is not None  # noqa: S101  (`clear` comes before)
        number, lead, size, check = self._next
        head = _HEAD.pack(_MARK, number, step, generation, lead, size, check)
        self._pages[: _HEAD.size + _CHECK.size] = head + _CHECK.pack(zlib.crc32(head))

    def close(self) -> None:
        """Let go of the memory as far as this process holds it."""
        pages, self._pages = self._pages, None
        if pages is not None:
            with contextlib.suppress(BufferError):  # a tensor of the last put is still about: its end is ours
                pages.close()

    def _reserve(self, size: int) -> mmap.mmap:
        if self._pages is not None and len(self._pages) >= size:
            return self._pages
        self.close()
        descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            os.posix_fallocate(descriptor, 0, size)
            self._pages = mmap.mmap(descriptor, size)
        finally:
            os.close(descriptor)
        return self._pages


def _finish(slot: _Slot, rooms: Mapping[str, Tensor], later: Mapping[str, Tensor], step: int, generation: int) -> None:
    for name, tensor in later.items():
        rooms[name].copy_(tensor)
    slot.complete(step, generation)


def _head(path: Path) -> bytes | None:
    """The head of a slot that is whole."""
    try:
        with path.open("rb") as stream:
            data = stream.read(_HEAD.size + _CHECK.size)
    except OSError:
        return None
    if len(data) < _HEAD.size + _CHECK.size or not data.startswith(_MARK):
        return None
    head, (check,) = data[: _HEAD.size], _CHECK.unpack(data[_HEAD.size :])
    return head if check == zlib.crc32(head) else None


def _copies(folder: Path) -> Iterator[Copy]:
    for path in folder.glob("*/[ab]"):
        if (head := _head(path)) is not None:
            _, _, step, generation, _, size, _ = _HEAD.unpack(head)
            if path.stat().st_size >= size:
                yield Copy(step=step, generation=generation, path=path, head=head)


def _load(body: Tensor, device: str | torch.device) -> dict[str, Any]:
    """Take a state out of the bytes of a slot."""
    data = body.numpy()
    (length,) = _CHECK.unpack(data[: _CHECK.size].tobytes())
    begin = _CHECK.size + length
    index = json.loads(data[_CHECK.size : begin].tobytes())
    end = begin + int(index["values"])
    values = torch.load(io.BytesIO(data[begin:end].tobytes()), map_location="cpu", weights_only=True)
    start = end + -end % _ALIGN
    tensors = {}
    for name, (dtype, shape, offset) in index["tensors"].items():
        kind = getattr(torch, dtype)
        length = math.prod(shape) * kind.itemsize
        part = body[start + offset : start + offset + length].clone()
        tensors[name] = part.view(kind).reshape(shape).to(device)
    state: dict[str, Any] = contents.join(values, tensors)
    return state


def _spread(body: Tensor | None, source: int, wire: str) -> Tensor:
    """Give the bytes of one rank to all."""
    size = torch.tensor([0 if body is None else len(body)], device=wire)
    dist.broadcast(size, source)
    whole = torch.empty(int(size.item()), dtype=torch.uint8) if body is None else body
    for part in torch.split(whole, PORTION):
        sent = part.to(wire)
        dist.broadcast(sent, source)
        if body is None:
            part.copy_(sent)
    return whole


def _of_step(folder: CheckpointFolder, step: int) -> Checkpoint:
    for path in folder.published():
        if path.name == f"step-{step:09d}":
            return verify(path)
    raise CheckpointError(
        f"{folder.root} has no checkpoint of step {step}, which rank 0 sees: all ranks must see the same folder"
    )
