"""Hooks: a training script that keeps its process, its data and its model when the world around it changes.

    from training.launch import elastic

    state = elastic.State(model=model, optimizer=optimizer, samples=0)

    def train(world: elastic.World, state: elastic.State) -> None:      # called once for every world
        network = DistributedDataParallel(state.model)
        while state.step < num_steps:
            ...                                                         # forward, backward, optimizer.step()
            state.samples += global_batch
            totals = state.commit(torch.tensor([loss]))                 # the step is complete; the sum over ranks

    elastic.run(train, state, restore=load_checkpoint, save=save_checkpoint)

When a worker or a node is lost, when a node joins and when one is told to leave, the processes of the others live on:
the old process group is taken down, a new one formed, the rank with most complete steps sends its state to those that
have fewer, and `train` is called again. While one rank lives that has a step in memory, that step is not made again.

**What a step is.** `commit` completes it. All ranks agree there whether somebody leaves or joins, by flags that ride on
the reduction of the caller's tensor, so all stop after the same step. A step that was interrupted before is undone on
every rank: parameters have not changed yet, and what a forward pass changes (buffers such as batch-norm statistics,
the random numbers of torch, CUDA, numpy and Python), plain values of the state, and gradients are put back to the last
commit. So between `optimizer.step()` and `commit` there must be nothing that waits for other ranks; a rank that is
interrupted there has a half-made state, ends, and gets the state of another.

**Leaving.** At a notice or SIGTERM to a node its workers end after the step with PREEMPTED (75): others have the state.
When all ranks go, or those who go have no others left, `save` is called by one rank, and then all end with 75. When a
node may be taken soon (a rebalance recommendation), `save` is called by one rank after the step, and all go on.
`state.check()` is for long stretches without a commit, such as an evaluation: it reduces nothing, and ends them.

**What goes over the wire** to a rank that needs the state is tensors and a description of them that is read as data
(`torch.load` with `weights_only`), never code.

**Without our launcher.** Alone it is a world of 1. Under torchrun it works with restarts: every change ends the
process, and `restore` brings the state back.

What could only be tried on a GPU is listed in docs/how-to/elastic-script.md.
"""

import contextlib
import copy
import gc
import io
import json
import logging
import os
import queue
import random
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NoReturn

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.rendezvous import rendezvous

from training.launch import exit_codes, meeting, notices, torch_private
from training.launch.environment import CONTROL, GENERATION, RUN
from training.launch.lease import StepLease
from training.launch.peers import is_lost_peer
from training.launch.torch_private import HashStore, PrefixStore, Store, TCPStore
from training.metrics.progress import report_step

if TYPE_CHECKING:
    from training.checkpoint.replica import Copy, Replica

logger = logging.getLogger(__name__)

# How often a rank that waits for the others of a new world looks.
MEETING_POLL: Final = timedelta(milliseconds=2)
# Connecting to the store of a world is tried for so long at a time; between tries we hear whether the world is gone.
CONNECT_ATTEMPT: Final = timedelta(seconds=2)
# A peer that is silent for so long is taken for lost, where no launcher says so before.
COLLECTIVE_TIMEOUT: Final = timedelta(minutes=10)
# How long an error waits for word of the launcher that the world is gone, before it counts as the script's own.
WORD_OF_LAUNCHER: Final = timedelta(milliseconds=500)
# Tensors are sent in portions: few enough for speed, small enough for a full GPU.
PORTION: Final = 32 * 2**20

_PLAIN = (bool, int, float, str, type(None))


@dataclass(frozen=True, kw_only=True)
class World:
    """Who works together until the next change.

    Attributes:
        rank: our number, from 0.
        size: how many ranks there are.
        local_rank: our number on this node; also in later worlds.
        generation: number of this world, counted through the whole job.
        device: where this rank computes.
    """

    rank: int
    size: int
    local_rank: int
    generation: int
    device: torch.device


class StateLostError(RuntimeError):
    """A rank was interrupted between the optimizer's step and `commit`: what it has is no step's state."""


class _WorldChangedError(BaseException):
    """This world is over, and nobody is to blame. Not an Exception, so that `except Exception` lets it through."""


class State:
    """What must survive: objects with `state_dict` and `load_state_dict`, and plain values, all as attributes.

    Plain values are numbers, texts, truth values, None, and lists and dictionaries of them. `step` is there: the number
    of complete steps.

    Args:
        values: the attributes, by name.
    """

    step: int

    def __init__(self, **values: Any) -> None:
        self.__dict__.update(_session=None, _saved=None, _is_torn=False, _lineage="")
        self.step = 0
        for name, value in values.items():
            setattr(self, name, value)
        for thing in self._objects().values():
            if isinstance(thing, torch.optim.Optimizer):
                thing.register_step_pre_hook(self._on_optimizer_step)

    def commit(self, values: Tensor | None = None) -> Tensor:
        """Complete a step. All ranks must call it equally often.

        Args:
            values: numbers to add up over all ranks, such as a loss; any shape, any device.

        Returns:
            Their sums.

        Raises:
            SystemExit: this node was told to go: PREEMPTED (75) once the state is safe.
        """
        self.step += 1
        self._remember()
        session: _Session | None = self.__dict__["_session"]
        if session is None:
            return torch.zeros(0) if values is None else values.clone()
        return session.complete_step(self, values)

    def check(self) -> None:
        """For loops without commits, such as an evaluation: goes out of them when this node or this world is to end.

        Reduces nothing, so each rank may call it as often as it likes. The state is that of the last commit; the next
        world makes again what came after.

        Raises:
            SystemExit: this node was told to go: PREEMPTED (75) once the state is safe.
        """
        session: _Session | None = self.__dict__["_session"]
        if session is not None:
            session.check(self)

    def state_dict(self) -> dict[str, Any]:
        """Everything, for a checkpoint."""
        objects = {name: thing.state_dict() for name, thing in self._objects().items()}
        return {"step": self.step, "objects": objects, "values": copy.deepcopy(self._values())}

    def load_state_dict(self, saved: dict[str, Any]) -> None:
        """The reverse of `state_dict`.

        Raises:
            KeyError: the saved state lacks one of our objects.
        """
        for name, thing in self._objects().items():
            thing.load_state_dict(saved["objects"][name])
        for name, value in saved["values"].items():
            setattr(self, name, value)
        self.step = int(saved["step"])

    def _objects(self) -> dict[str, Any]:
        return {name: value for name, value in self._attributes() if hasattr(value, "load_state_dict")}

    def _values(self) -> dict[str, Any]:
        values = {name: value for name, value in self._attributes() if not hasattr(value, "load_state_dict")}
        for name, value in values.items():
            _check_plain(name, value)
        return {name: value for name, value in values.items() if name != "step"}

    def _attributes(self) -> Iterator[tuple[str, Any]]:
        return ((name, value) for name, value in self.__dict__.items() if not name.startswith("_"))

    def _on_optimizer_step(self, *_: Any) -> None:
        self.__dict__["_is_torn"] = True

    def _remember(self) -> None:
        """Note what a forward pass changes, as it is now."""
        self.__dict__["_is_torn"] = False
        self.__dict__["_saved"] = _Snapshot(self.step, self._objects(), self._values(), self.__dict__["_saved"])

    def _put_back(self) -> None:
        """Undo an interrupted step.

        Raises:
            StateLostError: the optimizer has made its step already, but `commit` was not reached.
        """
        if self.__dict__["_is_torn"]:
            raise StateLostError(
                "interrupted between the optimizer's step and commit: call commit right after the optimizer's step, "
                "with nothing in between that waits for other ranks"
            )
        saved: _Snapshot | None = self.__dict__["_saved"]
        if saved is not None:
            self.__dict__.update(saved.put_back(self._objects()))
            self.step = saved.step


def _check_plain(name: str, value: Any) -> None:
    if isinstance(value, dict):
        for key, item in value.items():
            if not isinstance(key, str | int):
                raise TypeError(f"state.{name}: the key {key!r} is neither a text nor a whole number")
            _check_plain(name, item)
    elif isinstance(value, list | tuple):
        for item in value:
            _check_plain(name, item)
    elif not isinstance(value, _PLAIN):
        raise TypeError(
            f"state.{name}: {type(value).__name__} has no state_dict and is no plain value (number, text, list, "
            "dictionary); keep it outside the state"
        )


class _Snapshot:
    """All of a state that changes outside the optimizer's step, as it was at a commit.

    Buffers are copied into the memory of the snapshot before, so that a commit allocates nothing.
    """

    def __init__(self, step: int, objects: dict[str, Any], values: dict[str, Any], before: "_Snapshot | None") -> None:
        self.step = step
        self._values = copy.deepcopy(values)
        self.buffers: dict[str, list[Tensor]] = {}
        self._groups: dict[str, list[dict[str, Any]]] = {}
        self._others: dict[str, Any] = {}
        with torch.no_grad():
            for name, thing in objects.items():
                if isinstance(thing, nn.Module):
                    buffers = list(thing.buffers())
                    copies = before.buffers.get(name, []) if before else []
                    if [b.shape for b in copies] == [b.shape for b in buffers]:
                        for target, source in zip(copies, buffers, strict=True):
                            target.copy_(source)
                    else:
                        copies = [buffer.detach().clone() for buffer in buffers]
                    self.buffers[name] = copies
                elif isinstance(thing, torch.optim.Optimizer):
                    self._groups[name] = [
                        {key: copy.deepcopy(value) for key, value in group.items() if key != "params"}
                        for group in thing.param_groups
                    ]
                else:
                    self._others[name] = copy.deepcopy(thing.state_dict())
        self._random = _random_state()

    def put_back(self, objects: dict[str, Any]) -> dict[str, Any]:
        """Set all objects back; returns the plain values."""
        with torch.no_grad():
            for name, thing in objects.items():
                if isinstance(thing, nn.Module):
                    for target, source in zip(thing.buffers(), self.buffers[name], strict=True):
                        target.copy_(source)
                    thing.zero_grad(set_to_none=True)
                elif isinstance(thing, torch.optim.Optimizer):
                    for group, saved in zip(thing.param_groups, self._groups[name], strict=True):
                        group.update(copy.deepcopy(saved))
                else:
                    thing.load_state_dict(copy.deepcopy(self._others[name]))
        _set_random_state(self._random)
        return copy.deepcopy(self._values)


def _random_state() -> dict[str, Any]:
    state: dict[str, Any] = {"python": random.getstate(), "torch": torch.get_rng_state()}
    if "numpy.random" in sys.modules:
        state["numpy"] = sys.modules["numpy.random"].get_state()
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        state["cuda"] = torch.cuda.get_rng_state()
    return state


def _set_random_state(state: dict[str, Any]) -> None:
    random.setstate(state["python"])
    torch.set_rng_state(state["torch"])
    if "numpy" in state:
        sys.modules["numpy.random"].set_state(state["numpy"])
    if "cuda" in state:
        torch.cuda.set_rng_state(state["cuda"])


def run(
    train: Callable[[World, State], None],
    state: State,
    *,
    restore: Callable[[State], None] | None = None,
    save: Callable[[State], None] | None = None,
    replica: "Replica | None" = None,
    backend: str | None = None,
    timeout: timedelta = COLLECTIVE_TIMEOUT,
) -> None:
    """Call `train` for every world until it returns in one.

    The process group is ours: `train` finds it formed, in a world of 1 too, and it is taken down when `train` has
    returned on all ranks. From then on a lost worker is not replaced: so write the result at the end of `train`.

    Args:
        train: the training loop; starts from what `state` holds, and calls `state.commit` after each step.
        state: what is kept in memory and sent to ranks that come.
        restore: brings the state from a checkpoint, if there is one. Called on rank 0 alone, and only when no rank has
            a step in memory, or only ranks without which the others have trained since: then what is newer counts. So
            it must not wait for other ranks. Given on all ranks or on none.
        save: writes the state to a checkpoint and returns when it is safe. Called on one rank, when all go or when a
            node may be taken soon; so it must not wait for other ranks.
        replica: keeps the state after each step in the memory of every node, so that the death of all workers costs
            no more than a step; used by local rank 0. Freed when training is finished.
        backend: of torch.distributed; None: NCCL for GPUs with gloo for tensors of the CPU, else gloo.
        timeout: after so long a silent rank counts as lost, if no launcher knows better.

    Raises:
        RuntimeError: there is a process group already.
        StateLostError: see there; the launcher starts this worker again.
        SystemExit: this node was told to go.
    """
    if dist.is_initialized():
        raise RuntimeError("elastic.run forms the process group itself: take init_process_group out of the script")
    notices.listen()
    state._remember()  # noqa: SLF001  (of this module)
    session = _Session(_Channel.inherited(), save, replica, backend, timeout)
    state.__dict__["_session"] = session
    try:
        session.run(train, state, restore)
    finally:
        state.__dict__["_session"] = None


class _Channel:
    """Our end of the line to the launcher: JSON, one message a line. A thread listens."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._sending, self._breaking = threading.Lock(), threading.Lock()
        self._worlds: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
        self._breaker: Callable[[], bool] | None = None
        self.halt = ""  # "soft": stop after the step; "hard": this world is broken
        self.leave = self.save = False
        self.step_seconds: float | None = None
        threading.Thread(target=self._listen, name="trainyard-control", daemon=True).start()
        self.send(kind="hello", pid=os.getpid())

    @classmethod
    def inherited(cls) -> "_Channel | None":
        """The line that the launcher has given us; None without such a launcher."""
        number = os.environ.pop(CONTROL, "")  # not for our own children
        if not number:
            return None
        os.set_inheritable(int(number), False)
        return cls(socket.socket(fileno=int(number)))

    def send(self, **message: object) -> None:
        """Tell the launcher; when it is gone the kernel ends us anyway."""
        with self._sending, contextlib.suppress(OSError):
            self._connection.sendall(json.dumps(message).encode() + b"\n")

    def next_world(self, poll: Callable[[], None]) -> dict[str, Any]:
        """Wait for the next world; `poll` is called meanwhile."""
        while True:
            with contextlib.suppress(queue.Empty):
                return self._worlds.get(timeout=0.05)
            poll()

    def on_break(self, breaker: Callable[[], bool] | None) -> None:
        """Set what interrupts a collective that waits for a peer that is gone; it says whether it could.

        The one before is not called any more when this returns: what it interrupts may be taken down.
        """
        with self._breaking:
            self._breaker = breaker

    def _listen(self) -> None:
        buffer = b""
        while True:
            try:
                chunk = self._connection.recv(65536)
            except OSError:
                return
            if not chunk:
                return
            buffer += chunk
            *lines, buffer = buffer.split(b"\n")
            for text in lines:
                self._hear(json.loads(text))

    def _hear(self, message: dict[str, Any]) -> None:
        match message["kind"]:
            case "world":
                self.halt = ""
                self._worlds.put(message)
            case "save":
                self.save = True
            case "leave":
                self.leave = True
                self.send(kind="pace", step=self.step_seconds, save=notices.save_seconds())
            case "halt":
                if self.halt != "hard":
                    self.halt = "hard" if message["hard"] else "soft"
                if self.halt == "hard":
                    with self._breaking:
                        was_broken = self._breaker is None or self._breaker()
                    self.send(kind="halting", interrupted=was_broken)


class _Group:
    """The process group of one world."""

    def __init__(self, store: Store, world: World, backend: str, timeout: timedelta) -> None:
        before = _sockets()
        dist.init_process_group(backend, store=store, rank=world.rank, world_size=world.size, timeout=timeout)
        self._sockets = _sockets() - before
        self._backend = backend

    def interrupt(self) -> bool:
        """End what waits in a collective, from another thread."""
        if "nccl" in self._backend:
            torch_private.abort_default_group()
        self.disconnect()
        return True

    def disconnect(self) -> None:
        """Shut gloo's connections, which it has no call for: we and our peers get an error at once.

        Closing them would not do: a data loader's process that was forked from us holds them open.
        """
        _shut(self._sockets)

    def close(self, *, broken: bool) -> None:
        """Take the group down."""
        if broken:
            self.disconnect()
            if "nccl" in self._backend:
                torch_private.abort_process_groups()
        if dist.is_initialized():
            dist.destroy_process_group()


def _sockets() -> set[tuple[int, str]]:
    """Our sockets: descriptor and identity."""
    found = set()
    for entry in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):
            if (target := str(entry.readlink())).startswith("socket:"):
                found.add((int(entry.name), target))
    return found


def _shut(sockets: set[tuple[int, str]], *, port: int | None = None) -> None:
    """Shut those of these sockets that are connections (to a port); who waits at either end gets an error at once."""
    for number, identity in sockets:
        with contextlib.suppress(OSError):
            duplicate = socket.socket(fileno=os.dup(number))
            with duplicate:
                if str(Path(f"/proc/self/fd/{duplicate.fileno()}").readlink()) == identity:
                    peer = duplicate.getpeername()  # fails for a socket that listens; gloo would not survive its end
                    if port is None or (isinstance(peer, tuple) and peer[1] == port):
                        duplicate.shutdown(socket.SHUT_RDWR)


class _Session:
    """One call of `run`: goes from world to world."""

    def __init__(
        self,
        channel: _Channel | None,
        save: Callable[[State], None] | None,
        replica: "Replica | None",
        backend: str | None,
        timeout: timedelta,
    ) -> None:
        self._channel = channel
        self._save = save
        self._timeout = timeout
        self._device = _device()
        self._backend = backend or ("gloo" if self._device.type == "cpu" else f"cpu:gloo,{self._device.type}:nccl")
        self._world = self._world_of_environment()
        # All ranks of a node have the same state: one keeps it.
        self._replica = replica if self._world.local_rank == 0 else None
        self._group: _Group | None = None
        self._store: Store | None = None
        self._in_memory: Copy | None = None
        self._is_first_step = True
        self._last_commit = 0.0
        self._lease = StepLease.from_environment()

    def run(self, train: Callable[[World, State], None], state: State, restore: Callable[[State], None] | None) -> None:
        """See the function."""
        while True:
            error: BaseException | None = None
            try:
                self._form(state, restore)
                train(self._world, state)
                self._part()
            except _WorldChangedError as change:
                error = change
            except Exception as failure:
                if not self._is_end_of_world(failure):
                    raise
                logger.warning("the world of generation %d is broken: %s", self._world.generation, failure)
                error = failure
            self._close_group(error)
            if error is None:
                if self._replica:
                    self._replica.close()
                return
            traceback.clear_frames(error.__traceback__)  # DDP's hooks on our parameters live as long as it does
            del error
            gc.collect()
            state._put_back()  # noqa: SLF001
            self._next_world(state)

    def complete_step(self, state: State, values: Tensor | None) -> Tensor:
        """Agree with the others on what comes after this step; see `State.commit`."""
        is_leaving = self._is_leaving()
        halt = self._channel.halt if self._channel else ""
        is_saving = self._channel is not None and self._channel.save
        sums, (num_leaving, num_halting, num_saving) = self._reduce(values, [is_leaving, bool(halt), is_saving])
        while self._lease and self._lease.remaining() <= 0:  # others may have given us up, and work on without us
            self._check_halt()
            time.sleep(MEETING_POLL.total_seconds())
        report_step(state.step)
        if self._replica:
            self._replica.put(state.step, state.state_dict())
        now = time.monotonic()
        if self._is_first_step:
            self._is_first_step = False
            self._mark("first_step", step=state.step)
        elif self._channel:
            self._channel.step_seconds = now - self._last_commit
        if num_leaving and (num_leaving == self._world.size or self._channel is None):
            self._leave(state, saves=self._world.rank == 0)
        if num_leaving and is_leaving:
            raise SystemExit(exit_codes.PREEMPTED)  # the others have the state
        if num_saving:
            self._save_and_go_on(state)
        if num_leaving or num_halting:
            raise _WorldChangedError
        self._last_commit = time.monotonic()
        return sums

    def check(self, state: State) -> None:
        """See `State.check`."""
        if self._is_leaving():
            self._leave_between_commits(state)
        self._check_halt()

    def _leave_between_commits(self, state: State) -> NoReturn:
        """Leave where not all ranks may ever come: nobody is waited for but the one that saves.

        Others may have the state, or may be gone: so the first that leaves saves it.
        """
        state._put_back()  # noqa: SLF001
        saves = self._save is None or self._store is None or meeting.is_first_to_leave(self._store)
        self._leave(state, saves=saves)

    def _reduce(self, values: Tensor | None, flags: list[bool]) -> tuple[Tensor, list[int]]:
        """The sums of the caller's values, and on how many ranks each flag is set."""
        if values is None:
            values = torch.zeros(0, device=self._device)
        if self._world.size == 1:
            return values.clone(), [int(flag) for flag in flags]
        sums = torch.cat([values.detach().flatten(), values.new_tensor(flags)])
        dist.all_reduce(sums)
        counts = [round(count) for count in sums[-len(flags) :].tolist()]
        return sums[: -len(flags)].reshape(values.shape), counts

    def _is_leaving(self) -> bool:
        return notices.preemption_requested() or (self._channel is not None and self._channel.leave)

    def _check_halt(self) -> None:
        if self._channel and self._channel.halt:
            raise _WorldChangedError

    def _mark(self, phase: str, **fields: object) -> None:
        if self._channel:
            self._channel.send(kind="mark", phase=phase, time=time.monotonic(), **fields)

    def _is_end_of_world(self, error: BaseException) -> bool:
        """Whether an exception came because our peers are gone, and there is a launcher that gives us new ones."""
        if self._channel is None or self._world.size == 1 or isinstance(error, StateLostError):
            return False
        if is_lost_peer(error):
            return True
        deadline = time.monotonic() + WORD_OF_LAUNCHER.total_seconds()
        while isinstance(error, RuntimeError) and time.monotonic() < deadline:
            if self._channel.halt == "hard":
                return True
            time.sleep(MEETING_POLL.total_seconds())
        return False

    def _form(self, state: State, restore: Callable[[State], None] | None) -> None:
        """Meet the others, form the process group, and see that all have the same state."""
        summaries = self._meet(state)
        self._mark("group")
        has_state = [summary for summary in summaries if summary["lineage"]]
        if not has_state:
            if restore and self._world.rank == 0:
                restore(state)
            source = self._newest_in_memory(state, summaries)
            is_same = self._world.size == 1
        else:
            source = summaries.index(max(has_state, key=_standing))
            same = (summaries[source]["step"], summaries[source]["lineage"])
            is_same = all((summary["step"], summary["lineage"]) == same for summary in summaries)
            if restore and self._is_left_behind(max(has_state, key=_last_world)):
                source = self._newest_anywhere(state, source, summaries, restore)
                is_same = self._world.size == 1
        if not is_same:
            _send_state(state, source, self._world)
        state.__dict__["_lineage"] = f"{os.environ.get(RUN, '')}/{self._world.generation}"
        state._remember()  # noqa: SLF001
        self._is_first_step = True
        self._mark("model", step=state.step)

    def _is_left_behind(self, summary: dict[str, Any]) -> bool:
        """Whether there was a world after the last one that this rank was in."""
        run, _, generation = summary["lineage"].rpartition("/")
        return run != os.environ.get(RUN, "") or int(generation) < self._world.generation - 1

    def _newest_anywhere(
        self,
        state: State,
        source: int,
        summaries: list[dict[str, Any]],
        restore: Callable[[State], None],
    ) -> int:
        """All who were in the last world are gone, and we who live may have missed steps. Who has the state now.

        A node that was cut off comes back with what it had; what the others did without it is in the checkpoint.
        """
        assert self._store is not None  # noqa: S101  (`_meet` comes before)
        if self._world.rank == 0:
            before = copy.deepcopy(state.state_dict())
            restore(state)
            self._store.set("restored", str(state.step))
        held = [summary["replica"][1] for summary in summaries if summary["replica"]]
        if max([int(self._store.get("restored")), *held]) > summaries[source]["step"]:
            return self._newest_in_memory(state, summaries)
        if self._world.rank == 0:
            state.load_state_dict(before)
        return source

    def _newest_in_memory(self, state: State, summaries: list[dict[str, Any]]) -> int:
        """No process has a step. Does the memory of a node have more than the checkpoint? Who has the state now.

        Of replicas the newest generation counts: what an older world did later was done once more.
        """
        held = {rank: summary["replica"] for rank, summary in enumerate(summaries) if summary["replica"]}
        if not held:
            return 0
        assert self._store is not None  # noqa: S101  (`_meet` comes before)
        if self._world.rank == 0:
            self._store.set("restored", str(state.step))
        source = max(held, key=lambda rank: (held[rank], -rank))
        if held[source][1] <= int(self._store.get("restored")):
            return 0
        if self._world.rank == source:
            assert self._in_memory is not None  # noqa: S101  (so we have told)
            state.load_state_dict(self._in_memory.load())
        return source

    def _meet(self, state: State) -> list[dict[str, Any]]:
        """Wait until all ranks are there, then form the group; returns what each rank has."""
        mine: dict[str, Any] = {"step": state.step, "lineage": state.__dict__["_lineage"], "replica": None}
        if self._replica:
            self._replica.begin(self._world.generation)
            self._in_memory = None if mine["lineage"] else self._replica.newest()
            mine["replica"] = self._in_memory and [self._in_memory.generation, self._in_memory.step]
        world = self._world
        self._store = store = HashStore() if world.size == 1 else self._connect()
        meeting.come(store, world.rank, json.dumps(mine))
        try:
            said = meeting.meet(store, world.size, is_wanted=self._is_wanted, timeout=self._timeout)
        except meeting.CalledOffError:
            if self._channel is not None:
                raise _WorldChangedError from None
            if self._is_leaving():
                self._leave(state, saves=world.local_rank == 0)
            raise dist.DistStoreError("a rank of this world has left before it had begun") from None
        summaries = [json.loads(text) for text in said]
        if self._channel:
            self._channel.on_break(lambda: False)  # what waits for connections cannot be interrupted
        self._group = _Group(PrefixStore("group", store), world, self._backend, self._timeout)
        if self._channel:
            self._channel.on_break(self._group.interrupt)
        self._check_hard_halt()
        return summaries

    def _connect(self) -> Store:
        """The store of this world, served by the launcher (or, under another launcher, by rank 0)."""
        world = self._world
        if self._channel is None:
            store, _, _ = next(iter(rendezvous("env://", world.rank, world.size, timeout=self._timeout)))
            return PrefixStore(_prefix(), store)
        deadline = time.monotonic() + self._timeout.total_seconds()
        address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
        while True:
            try:
                store = TCPStore(address, port, is_master=False, timeout=CONNECT_ATTEMPT)
            except dist.DistError:
                if not self._is_wanted():
                    raise _WorldChangedError from None
                if time.monotonic() >= deadline:
                    raise
            else:
                store.set_timeout(self._timeout)
                if self._channel:
                    self._channel.on_break(self._disconnect_from_store)
                    self._check_hard_halt()
                return PrefixStore(_prefix(), store)

    def _is_wanted(self) -> bool:
        """Whether a world that has not begun is still to begin."""
        return not self._is_leaving() and not (self._channel and self._channel.halt)

    def _is_broken(self) -> bool:
        return self._channel is not None and self._channel.halt == "hard"

    def _disconnect_from_store(self) -> bool:
        """End a call to the store, which does not return while the node that serves it stands still."""
        _shut(_sockets(), port=int(os.environ["MASTER_PORT"]))
        return True

    def _check_hard_halt(self) -> None:
        if self._is_broken():
            raise _WorldChangedError

    def _part(self) -> None:
        """`train` has returned. Wait for the others: whoever is lost now finds the state with us."""
        if self._store is not None:
            if self._channel:
                self._channel.on_break(self._disconnect_from_store)  # nobody waits in a collective any more
            meeting.finish(self._store, self._world.rank, self._world.size, self._check_hard_halt, self._timeout)
        if self._channel:
            self._channel.send(kind="done")

    def _close_group(self, error: BaseException | None) -> None:
        if self._channel:
            self._channel.on_break(None)
        if self._group is not None:
            self._group.close(broken=error is not None)
        self._group = self._store = None

    def _next_world(self, state: State) -> None:
        """Tell the launcher that we are free, and wait for the next world."""
        assert self._channel is not None  # noqa: S101
        self._channel.send(kind="waiting", generation=self._world.generation, step=state.step)

        def leave_if_told() -> None:
            if self._is_leaving():
                # Nobody is known to have the state. One worker of a node is enough.
                self._leave(state, saves=self._world.local_rank == 0)

        told = self._channel.next_world(leave_if_told)
        os.environ.update(told["environment"])
        self._world = self._world_of_environment()

    def _leave(self, state: State, *, saves: bool) -> NoReturn:
        """All go: save, or wait until another rank has, and end: 75 says that the checkpoint is there.

        Without a way to save the exit code does not say that the state is safe.
        """
        if self._save is None:
            raise SystemExit(exit_codes.of_signal(15))
        if (
            not saves
            and self._store is not None
            and not meeting.is_saved_by_another(self._store, is_broken=self._is_broken)
        ):
            logger.warning("the rank that saves gives no sign of life: saving in its place")
            saves = self._world.local_rank == 0
        if saves and state.__dict__["_lineage"]:
            with contextlib.nullcontext() if self._store is None else meeting.saving(self._store):
                self._save_now(state)
        raise SystemExit(exit_codes.PREEMPTED)

    def _save_and_go_on(self, state: State) -> None:
        if self._channel:
            self._channel.save = False
        if self._save is None:
            logger.warning("a checkpoint was asked for, and elastic.run has no `save`")
        elif self._world.rank == 0:
            self._save_now(state)

    def _save_now(self, state: State) -> None:
        assert self._save is not None  # noqa: S101
        start = time.monotonic()
        self._save(state)
        notices.note_save(time.monotonic() - start)

    def _world_of_environment(self) -> World:
        return World(
            rank=int(os.environ.get("RANK", "0")),
            size=int(os.environ.get("WORLD_SIZE", "1")),
            local_rank=int(os.environ.get("LOCAL_RANK", "0")),
            generation=int(os.environ.get(GENERATION, "0")),
            device=self._device,
        )


def _standing(summary: dict[str, Any]) -> tuple[int, int]:
    """Who gives its state to the others: most steps, and of as many those of the newest world.

    A node that was frozen in a commit has a step that the others made once more without it.
    """
    return summary["step"], _last_world(summary)


def _last_world(summary: dict[str, Any]) -> int:
    return int(summary["lineage"].rpartition("/")[2])


def _prefix() -> str:
    """Of the keys of this world; the same on all ranks, also where only some of them have a line to the launcher."""
    if generation := os.environ.get(GENERATION):
        return f"trainyard/{generation}"
    # One node of torchrun keeps its store when it restarts. Several nodes count their restarts each for itself.
    is_alone = os.environ.get("GROUP_WORLD_SIZE", "1") == "1"
    return f"trainyard/restart-{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}" if is_alone else "trainyard"


def _device() -> torch.device:
    if not torch.cuda.is_available():
        return torch.device("cpu")
    device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
    torch.cuda.set_device(device)
    return device


def _send_state(state: State, source: int, world: World) -> None:
    """Give all ranks the state of one. Tensors travel as they are, the rest as a description that is read as data."""
    tensors: list[Tensor] = []
    if world.rank == source:
        saved = {**state.state_dict(), "tensors": []}
        structure = _take_tensors_out(saved, tensors)
        structure["tensors"] = [(str(t.dtype).removeprefix("torch."), list(t.shape), t.device.type) for t in tensors]
        buffer = io.BytesIO()
        torch.save(structure, buffer)
        data = torch.frombuffer(bytearray(buffer.getvalue()), dtype=torch.uint8)
        size = torch.tensor([len(data)])
    else:
        size = torch.zeros(1, dtype=torch.int64)
    (size,) = _broadcast([size], source, world)
    if world.rank != source:
        data = torch.empty(int(size.item()), dtype=torch.uint8)
    (data,) = _broadcast([data], source, world)
    if world.rank == source:
        _broadcast(tensors, source, world)
        return
    structure = torch.load(io.BytesIO(data.numpy().tobytes()), weights_only=True)
    for name, shape, device in structure["tensors"]:
        place = world.device if device == world.device.type else torch.device("cpu")
        tensors.append(torch.empty(shape, dtype=getattr(torch, name), device=place))
    tensors = _broadcast(tensors, source, world)
    state.load_state_dict(_put_tensors_in(structure, tensors))


_TENSOR: Final = "trainyard.tensor"


def _take_tensors_out(value: Any, tensors: list[Tensor]) -> Any:
    """A copy in which each tensor is replaced by its place in a list, to which it is added."""
    if isinstance(value, Tensor):
        tensors.append(value.detach())
        return {_TENSOR: len(tensors) - 1}
    if isinstance(value, dict):
        return {key: _take_tensors_out(item, tensors) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(_take_tensors_out(item, tensors) for item in value)
    return value


def _put_tensors_in(value: Any, tensors: list[Tensor]) -> Any:
    if isinstance(value, dict):
        if _TENSOR in value:
            return tensors[value[_TENSOR]]
        return {key: _put_tensors_in(item, tensors) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(_put_tensors_in(item, tensors) for item in value)
    return value


def _broadcast(tensors: list[Tensor], source: int, world: World) -> list[Tensor]:
    """Send tensors from one rank to all, many small ones at once; all ranks give the same shapes, types and devices.

    They travel as bytes: gloo does not know all types.
    """
    received: list[Tensor] = []
    for portion in _portions(tensors):
        flat = [tensor.contiguous().flatten().view(torch.uint8) for tensor in portion]
        data = flat[0] if len(flat) == 1 else torch.cat(flat)
        dist.broadcast(data, source)
        if world.rank != source:
            parts = torch.split(data, [len(part) for part in flat])
            # The parts are cut where no alignment is promised, which `view` needs: so one copy each.
            received += [
                part.clone().view(tensor.dtype).reshape(tensor.shape)
                for part, tensor in zip(parts, portion, strict=True)
            ]
    return tensors if world.rank == source else received


def _portions(tensors: list[Tensor]) -> Iterator[list[Tensor]]:
    """Neighbours of one device, up to a size in bytes."""
    portion: list[Tensor] = []
    size = 0
    for tensor in tensors:
        if portion and (tensor.device != portion[0].device or size + tensor.nbytes > PORTION):
            yield portion
            portion, size = [], 0
        portion.append(tensor)
        size += tensor.nbytes
    if portion:
        yield portion
