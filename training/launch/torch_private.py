"""Every private name of torch that the launcher uses, in one place, each with the reason.

torch.distributed.elastic lets out-of-tree code register a rendezvous and subclass the agent, but the operations of the
dynamic rendezvous (join, exit, keep-alive) and its state are private. They are used, not copied: what a node may do
next is decided by torch's code, ours stores the state, waits, and detects.
What checkpoints and data loading need of torch's inside is here too.
`tests/training/test_training_torch_private.py` checks each name and its shape, so that a torch release that changes one
fails there and not in a job. Those tests run on the newest and on the oldest torch of `images/matrix.toml`; what the
oldest lacks is here as well (`AgentBase`, `newer_fields`), so that the rest of the launcher knows one torch.
"""

import dataclasses
import inspect
import signal
from typing import Any, Final

from torch._C._distributed_c10d import (
    HashStore,
    PrefixStore,
    Store,
    TCPStore,
)  # torch.distributed does not declare that it exports them
from torch.distributed import distributed_c10d
from torch.distributed.elastic.agent.server.api import WorkerSpec
from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent
from torch.distributed.elastic.multiprocessing import api as multiprocessing_api
from torch.distributed.elastic.rendezvous.dynamic_rendezvous import (
    DynamicRendezvousHandler,  # public, but the methods overridden and the attributes read are not: see below
    _Action,  # what an operation asks for next
    _DistributedRendezvousOpExecutor,  # carries operations out; ours waits better and completes rounds sooner
    _NodeDesc,  # a node's identity; ours is unique even when a container restarts with the same address and pid
    _remove_participant_epilogue,  # what must happen when a participant is dropped
    _RendezvousContext,  # what an operation sees
    _RendezvousState,  # the state that all nodes share
    _RendezvousStateHolder,  # interface between the operations and the place where the state is kept
)
from torch.utils.data import DataLoader

# Attributes of DynamicRendezvousHandler that our subclass reads or replaces.
HANDLER_ATTRIBUTES = (
    "_heartbeat_lock",
    "_op_executor",
    "_settings",
    "_state_holder",
    "_store",
    "_this_node",
)
# Methods of DynamicRendezvousHandler that our subclass calls or overrides.
HANDLER_METHODS = ("_get_deadline", "_get_store", "_keep_alive", "_record", "_stop_heartbeats")
# Attributes and methods of the agent that our subclass reads or overrides.
AGENT_ATTRIBUTES = ("_remaining_restarts", "_worker_group", "_pcontext", "_shutdown_timeout")
AGENT_METHODS = ("_exit_barrier", "_monitor_workers", "_rendezvous", "_shutdown", "_start_workers", "_stop_workers")
# What the agent reads of its context of processes, and the method that it replaces.
CONTEXT_ATTRIBUTES = (
    "args",
    "entrypoint",
    "envs",
    "error_files",
    "nprocs",
    "stderrs",
    "stdouts",
    "subprocess_handlers",
    "_failures",
    "_numa_options",
    "_running_local_ranks",
)
CONTEXT_METHODS = ("_close", "close", "pids")
# What our executor reads, calls or overrides.
EXECUTOR_ATTRIBUTES = ("_node", "_settings", "_state")
EXECUTOR_METHODS = ("_keep_alive", "_mark_rendezvous_complete", "_record")
# What our handle on a worker reads or overrides.
SUBPROCESS_ATTRIBUTES = ("_stderr", "_stdout", "proc")
SUBPROCESS_METHODS = ("_popen", "close")

__all__ = [
    "DISABLE_SHARED_STORE",
    "Action",
    "AgentBase",
    "Handler",
    "HashStore",
    "NodeDesc",
    "OpExecutor",
    "PrefixStore",
    "RendezvousContext",
    "RendezvousState",
    "RendezvousStateHolder",
    "Store",
    "TCPStore",
    "abort_default_group",
    "abort_process_groups",
    "loading_processes",
    "newer_fields",
    "remove_participant_epilogue",
    "replace_subprocess_factory",
    "start_subprocess",
    "storage_info",
]

Action = _Action
NodeDesc = _NodeDesc
OpExecutor = _DistributedRendezvousOpExecutor
RendezvousContext = _RendezvousContext
RendezvousState = _RendezvousState
RendezvousStateHolder = _RendezvousStateHolder
Handler = DynamicRendezvousHandler
remove_participant_epilogue = _remove_participant_epilogue

# Fields of WorkerSpec that the oldest torch does not have, by the names of their options.
NEWER_SPEC_FIELDS: Final = ("duplicate_stdout_filters", "duplicate_stderr_filters", "virtual_local_rank")

# Environment variable, read whenever a round is complete.
DISABLE_SHARED_STORE = "TORCH_DISABLE_SHARE_RDZV_TCP_STORE"
# The factory by which SubprocessContext starts a worker; replaced by ours to fork workers (see `workers`).
SUBPROCESS_FACTORY = "get_subprocess_handler"


def abort_default_group() -> None:
    """End what waits in a collective of the default group, from another thread; NCCL knows that, gloo does not."""
    distributed_c10d._get_default_group().abort()  # noqa: SLF001


def abort_process_groups() -> None:
    """Take down all groups without waiting for peers, which may be gone."""
    distributed_c10d._abort_process_group()  # noqa: SLF001


def start_subprocess(context: Any, local_rank: int) -> Any:
    """Start one worker of a context as the context does, in place of one that has ended; returns its handle."""
    start = getattr(multiprocessing_api, SUBPROCESS_FACTORY)
    return start(
        entrypoint=context.entrypoint,
        args=context.args[local_rank],
        env=context.envs[local_rank],
        stdout=context.stdouts[local_rank],
        stderr=context.stderrs[local_rank],
        local_rank_id=local_rank,
        numa_options=context._numa_options,  # noqa: SLF001
    )


def replace_subprocess_factory(factory: object) -> None:
    """Let torch's agent start worker processes through `factory` (same arguments as torch's own)."""
    setattr(multiprocessing_api, SUBPROCESS_FACTORY, factory)


# Whether torch's agent gives workers a time of the caller's choice to end; without, it is half a minute (torch 2.9).
HAS_SHUTDOWN_TIMEOUT: Final = "shutdown_timeout" in inspect.signature(LocalElasticAgent.__init__).parameters


class AgentBase(LocalElasticAgent):
    """torch's agent, with a time limit for the end of workers in every release of torch."""

    _pcontext: Any

    def __init__(self, *args: Any, shutdown_timeout: int, **kwargs: Any) -> None:
        if HAS_SHUTDOWN_TIMEOUT:
            kwargs["shutdown_timeout"] = shutdown_timeout
        super().__init__(*args, **kwargs)
        self._shutdown_timeout = shutdown_timeout

    def _shutdown(self, death_sig: signal.Signals = signal.SIGTERM, timeout: int | None = None) -> None:
        """End the workers; `timeout` in seconds, --shutdown-timeout where none is given."""
        timeout = self._shutdown_timeout if timeout is None else timeout
        if HAS_SHUTDOWN_TIMEOUT:
            super()._shutdown(death_sig, timeout)
            return
        if self._pcontext:
            self._pcontext.close(death_sig, timeout)
        super()._shutdown(death_sig)


def newer_fields(options: object) -> dict[str, Any]:
    """Of what only newer releases of torch can do for workers, the part that this one can, as WorkerSpec takes it."""
    known = {field.name for field in dataclasses.fields(WorkerSpec)}
    return {name: getattr(options, name) for name in NEWER_SPEC_FIELDS if name in known}


def storage_info(file_name: str, offset: int, length: int) -> Any:
    """Where a piece of a distributed checkpoint lies; `offset` and `length` in bytes. Read by torch."""
    from torch.distributed.checkpoint.filesystem import _StorageInfo  # noqa: PLC0415  (launchers do not wait for it)

    return _StorageInfo(file_name, offset, length)


def loading_processes(loader: DataLoader[Any]) -> list[int]:
    """Ids of the processes that load for a loader with persistent workers; none before its first iteration."""
    iterator = getattr(loader, "_iterator", None)
    return [process.pid for process in getattr(iterator, "_workers", [])]
