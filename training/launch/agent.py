"""The agent: torch's own, with another idea of when workers restart, how long they get, and when a job is over."""

import contextlib
import logging
import os
import signal
import sys
import time
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

from torch.distributed import DistStoreError
from torch.distributed.elastic.agent.server.api import RunResult, WorkerGroup, WorkerState
from torch.distributed.elastic.multiprocessing import SignalException

from training.launch import exit_codes
from training.launch.etcd_client import EtcdError
from training.launch.membership import BROKEN, EtcdRendezvousHandler
from training.launch.torch_private import AgentBase
from training.metrics.progress import PROGRESS_FILE, emit, read_report

logger = logging.getLogger(__name__)

# Workers that are stopped because a peer has died cannot finish a collective with it, so they need no time for a last
# checkpoint of all; those that are stopped for another reason get --shutdown-timeout.
GRACE_WITHOUT_PEER: Final = 3
# So many failures in a row without a new step, and the script is not being unlucky.
NUM_FAILURES_WITHOUT_PROGRESS: Final = 3
# How long after a failure we wait to hear that it was only the echo of a loss elsewhere.
PEER_LOSS_KNOWN: Final = timedelta(seconds=1)
CHANGE_POLL: Final = timedelta(milliseconds=50)
# How often a node that has finished looks whether the others have.
FINISH_POLL: Final = timedelta(seconds=1)
# A script that does not report its steps is taken to make progress when it lives so long.
LIFE_WITH_PROGRESS: Final = timedelta(seconds=60)


class Agent(AgentBase):
    """Supervises the workers of one node.

    * Workers that end with PREEMPTED (75) are restarted free of charge, those with a final code (`exit_codes.Rules`)
      never, and after three failures without a new step in between the agent gives up, whatever is left of
      --max-restarts.
    * Workers that fail because another node is gone have not failed themselves: that costs nothing.
    * At a signal the workers hear of it first, then the other nodes, then the workers' end is awaited.
    * A node whose workers have finished stays a member until all have; so if a peer fails at the very end there is a
      world to finish with, and nobody waits in a barrier for a node that is gone.
    """

    def __init__(
        self,
        handler: EtcdRendezvousHandler,
        *args: Any,
        progress_file: Path,
        rules: exit_codes.Rules,
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, **kwargs)
        self._handler = handler
        self._progress_file = progress_file
        self._rules = rules
        self._finished: RunResult | None = None
        self._failures_without_progress = 0
        self._best_step = -1
        self._started = 0.0
        self._has_told_end = False
        self._next_look = 0.0
        self.left = False

    def _start_workers(self, worker_group: WorkerGroup) -> dict[int, Any]:
        self._finished = None
        self._handler.expects_joiners = True
        os.environ[PROGRESS_FILE] = str(self._progress_file)
        self._started = time.monotonic()
        self._has_told_end, self._next_look = False, 0.0
        pids: dict[int, Any] = super()._start_workers(worker_group)
        context: Any = self._pcontext
        close = context.close

        def close_soon(death_sig: signal.Signals | None = None, timeout: int | None = None) -> None:
            """Like `close`; torch calls it for the siblings of a failed worker, with half a minute of grace."""
            is_saved = exit_codes.PREEMPTED in self.worker_exit_codes()
            grace = self._shutdown_timeout if is_saved else GRACE_WITHOUT_PEER
            close(death_sig, grace if timeout is None else timeout)

        context.close = close_soon
        return pids

    def _rendezvous(self, worker_group: WorkerGroup) -> None:
        while True:
            try:
                super()._rendezvous(worker_group)
            except DistStoreError as error:  # a node left before the ranks were given out
                self._handler.check_that_others_left(error)
            else:
                return

    def _monitor_workers(self, worker_group: WorkerGroup) -> RunResult:
        _reap_adopted_children(self._worker_pids())
        if self._finished is not None:
            return self._finished if self._everybody_has_finished() else RunResult(state=WorkerState.HEALTHY)
        result: RunResult = super()._monitor_workers(worker_group)
        if result.state == WorkerState.SUCCEEDED:
            self._finished = result
            self._handler.expects_joiners = False
            return RunResult(state=WorkerState.HEALTHY)
        if result.state == WorkerState.FAILED:
            self._judge(result)
        return result

    def _judge(self, result: RunResult) -> None:
        """Decide what this failure costs."""
        lived = timedelta(seconds=time.monotonic() - self._started)
        failures = sorted(result.failures.values(), key=lambda failure: failure.timestamp)
        code = self._rules.decisive(failure.exitcode for failure in failures)
        step = self._progress()
        if code != exit_codes.PREEMPTED:
            pid = next(failure.pid for failure in failures if failure.exitcode == code)
            told = "" if step is None else str(step)
            emit("notice", message="worker failed", exit_code=code, pid=pid, last_step=told)
        if self._rules.is_final(code):
            self._remaining_restarts = 0
            return
        if code != exit_codes.PREEMPTED and self._is_echo(code):
            self._remaining_restarts += 1
            return
        if code == exit_codes.PREEMPTED:
            self._remaining_restarts += 1
        stuck = lived < LIFE_WITH_PROGRESS if step is None else step <= self._best_step
        self._failures_without_progress = self._failures_without_progress + 1 if stuck else 0
        self._best_step = max(self._best_step, -1 if step is None else step)
        if self._failures_without_progress >= NUM_FAILURES_WITHOUT_PROGRESS:
            logger.error(
                "the workers have failed %d times without a new step: giving up; see the first error above",
                self._failures_without_progress,
            )
            self._remaining_restarts = 0

    def _is_echo(self, code: int) -> bool:
        """Whether a worker has failed because a node is gone, of which we may hear a moment later than the worker."""
        killed = code < 0 and code != -signal.SIGABRT  # an abort may be NCCL's; other signals are our own trouble
        if killed or self._worker_group.group_world_size == 1:
            return False
        deadline = time.monotonic() + PEER_LOSS_KNOWN.total_seconds()
        while True:
            if self._handler.change() in BROKEN:
                return True
            if time.monotonic() >= deadline:
                return False
            time.sleep(CHANGE_POLL.total_seconds())

    def _progress(self) -> int | None:
        """The last step that the workers have reported, in this life or before; None if they do not report."""
        report = read_report(self._progress_file)
        return None if report is None else report.step

    def _stop_workers(self, worker_group: WorkerGroup) -> None:  # noqa: ARG002  (torch's signature)
        change = self._handler.last_change
        grace = self._shutdown_timeout if change in {"joined", "left"} else GRACE_WITHOUT_PEER
        super()._shutdown(timeout=grace)

    def _shutdown(self, death_sig: signal.Signals = signal.SIGTERM, timeout: int | None = None) -> None:
        if isinstance(sys.exc_info()[1], SignalException) and not self.left:
            self.left = True
            emit("notice", message=f"{death_sig.name}: leaving the job", generation=self._handler.generation)
            for pid in self._worker_pids():
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(pid, death_sig)
            self._handler.leave()
        super()._shutdown(death_sig, timeout)

    def worker_exit_codes(self) -> list[int | None]:
        """Exit codes of the workers that were last started; None for one that still runs."""
        handlers = getattr(self._pcontext, "subprocess_handlers", {})
        return [handler.proc.poll() for handler in handlers.values()]

    def _worker_pids(self) -> list[int]:
        handlers = getattr(self._pcontext, "subprocess_handlers", {})
        return [handler.proc.pid for handler in handlers.values() if handler.proc.poll() is None]

    def _exit_barrier(self) -> None:
        """Nothing left to wait for: see `_everybody_has_finished`."""

    def _everybody_has_finished(self) -> bool:
        group: Any = self._worker_group
        if time.monotonic() < self._next_look:
            return False
        self._next_look = time.monotonic() + FINISH_POLL.total_seconds()
        try:
            if not self._has_told_end:
                group.store.set(_finished_key(group.group_rank), b"1")
                self._has_told_end = True
            return bool(group.store.check([_finished_key(rank) for rank in range(group.group_world_size)]))
        except (EtcdError, DistStoreError) as error:
            logger.warning("cannot see whether the other nodes have finished: %s", error)
            return False


def _finished_key(group_rank: int) -> str:
    return f"trainyard/finished/{group_rank}"


def _reap_adopted_children(own: list[int]) -> None:
    """As process 1 of a container we inherit every orphan; collect those that have ended."""
    if os.getpid() != 1:
        return
    while True:
        try:
            ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            if ended is None or ended.si_pid in own:
                return
            os.waitpid(ended.si_pid, 0)
        except ChildProcessError:
            return
