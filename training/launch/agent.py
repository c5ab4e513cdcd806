"""The agent: torch's own, with another idea of when workers restart, how long they get, and when a job is over."""

import contextlib
import logging
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from datetime import timedelta
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any, Final

from torch.distributed import DistStoreError
from torch.distributed.elastic.agent.server.api import RunResult, Worker, WorkerGroup, WorkerState
from torch.distributed.elastic.multiprocessing import SignalException
from torch.distributed.elastic.multiprocessing.errors import ProcessFailure
from torch.distributed.elastic.rendezvous import RendezvousClosedError

from training.launch import exit_codes, torch_private
from training.launch.environment import GENERATION, PROGRESS_FILE, RUN
from training.launch.etcd_client import EtcdError
from training.launch.membership import BROKEN, EtcdRendezvousHandler
from training.launch.notices.budget import Budget
from training.launch.notices.watch import Watch
from training.launch.rendezvous import FINISHED
from training.launch.torch_private import AgentBase
from training.launch.workers import ForkedHandler
from training.metrics.progress import emit, read_report
from training.metrics.recovery import Recorder
from training.metrics.resources import Sampler

logger = logging.getLogger(__name__)

# Workers that are stopped because a peer has died cannot finish a collective with it, so they need no time for a last
# checkpoint of all; those that are stopped for another reason get --shutdown-timeout.
GRACE_WITHOUT_PEER: Final = 3
# How long after a failure we wait to hear that it was only the echo of a loss elsewhere.
PEER_LOSS_KNOWN: Final = timedelta(seconds=1)
CHANGE_POLL: Final = timedelta(milliseconds=50)
# The same while workers wait for the next world; an etcd member serves thousands of such reads a second.
URGENT_POLL: Final = timedelta(milliseconds=10)
# Signals that come from outside: of people, of the kernel when memory is short, of whoever ends a pod.
KILLED: Final = frozenset({signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP})
# A pause is this part of what it may be, at least.
PAUSE_JITTER: Final = 0.75
# Changes of which workers hear in time to complete their step.
SOFT: Final = frozenset({"joined", "left"})
# What the record of a recovery calls them.
CAUSES: Final = {
    "joined": "node_joined",
    "left": "node_left",
    "lost": "node_lost",
    "evicted": "evicted",
    "isolated": "isolated",
}
# How often a node that has finished looks whether the others have.
FINISH_POLL: Final = timedelta(seconds=1)
# A script that does not report its steps is taken to make progress when it lives so long.
LIFE_WITH_PROGRESS: Final = timedelta(seconds=60)


class Agent(AgentBase):
    """Supervises the workers of one node.

    * Workers that end with PREEMPTED (75) are restarted free of charge, those with a final code (`exit_codes.Rules`)
      never, and after three failures without a new step in between the agent gives up (`is_stuck`), whatever is left
      of --max-restarts, which is the budget of the whole job (`training.launch.budget`).
    * Workers that fail because another node is gone have not failed themselves: that costs nothing.
    * At a signal the workers hear of it first, then the other nodes, then the workers' end is awaited. A notice
      (`training.launch.notices`) that wants the node is such a signal, and says how much time there is; one that only
      warns has workers with hooks save and go on.
    * Workers that use the hooks (`training.launch.elastic`) are not ended when the world changes: they are told to let
      go of it, wait, and are told the next one. One that does not let go in time is ended and started anew.
    * A node whose workers have finished stays a member until all have; so if a peer fails at the very end there is a
      world to finish with, and nobody waits in a barrier for a node that is gone.
    """

    def __init__(
        self,
        handler: EtcdRendezvousHandler,
        *args: Any,
        progress_file: Path,
        rules: exit_codes.Rules,
        longest_pause: float,
        watch: Watch,
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, **kwargs)
        self._watch = watch
        self._resources = Sampler()
        self._end_by = 0.0  # when workers that were told to leave must have ended
        self._handler = handler
        self._progress_file = progress_file
        self._rules = rules
        self._longest_pause = longest_pause  # seconds
        self._finished: RunResult | None = None
        self._started = 0.0
        self._has_told_end = False
        self._kept: dict[int, ForkedHandler] = {}
        self._waiting_since: float | None = None
        self.recorder = Recorder.from_environment()
        self._step_before: int | None = None
        self._is_killed = False  # whether our worker has been killed from outside
        self._is_silent = False  # whether the script lives without ever reporting a step
        self.left = False
        self.is_stuck = False  # whether trying again is pointless
        # torch sleeps that long between two looks; we wait for news instead.
        spec = self._worker_group.spec
        self._interval, spec.monitor_interval = spec.monitor_interval, 0
        self._max_restarts = spec.max_restarts

    def run(self, role: str = "default") -> Any:
        """See torch's agent; None for a spare whose job is over. A recovery that comes to nothing has a record, too."""
        outcome = "failed"
        try:
            result: RunResult | None = super().run(role)
            outcome = "failed" if result is not None and result.is_failed() else "finished"
        except SignalException:
            outcome = "left"
            raise
        except RendezvousClosedError:
            outcome = "finished" if self._handler.outcome() == FINISHED else "failed"
            raise
        finally:
            self.recorder.abandon(outcome)
            self._resources.end(self._worker_group.spec.local_world_size)
        return result

    def _start_workers(self, worker_group: WorkerGroup) -> dict[int, Any]:
        self._finished = None
        self._handler.expects_joiners = True
        os.environ[PROGRESS_FILE] = str(self._progress_file)
        self._started = time.monotonic()
        self._waiting_since = None
        self._is_killed = False
        self._has_told_end, self._next_look = False, 0.0
        kept = self._living(self._kept)
        if kept:
            self._continue_workers(worker_group, kept)
        else:
            if self._kept:  # they have died in the meantime: what follows their output has to end, too
                super()._shutdown(timeout=GRACE_WITHOUT_PEER)
            self._fork_workers(worker_group)
        self._kept = {}
        context: Any = self._pcontext
        self.recorder.mark("process")
        self.recorder.world(
            generation=self._handler.generation,
            members=self._handler.members,
            world_size=worker_group.workers[0].world_size,
            kept=len(kept),
            forked=len(context.subprocess_handlers) - len(kept),
        )
        pids: dict[int, Any] = context.pids()
        return pids

    def _fork_workers(self, worker_group: WorkerGroup) -> None:
        """Start all workers anew."""
        super()._start_workers(worker_group)
        context: Any = self._pcontext
        close = context.close

        def close_soon(death_sig: signal.Signals | None = None, timeout: int | None = None) -> None:
            """Like `close`; torch calls it for the siblings of a failed worker, with half a minute of grace."""
            is_saved = exit_codes.PREEMPTED in self.worker_exit_codes()
            grace = self._shutdown_timeout if is_saved else GRACE_WITHOUT_PEER
            if timeout is None and (kept := self._hooked()):
                self._end_workers_but(kept, grace)
            else:
                close(death_sig, grace if timeout is None else timeout)

        context.close = close_soon

    def _continue_workers(self, worker_group: WorkerGroup, kept: Mapping[int, ForkedHandler]) -> None:
        """Tell the workers that live on what their new world is, and start those that are missing."""
        context: Any = self._pcontext
        for worker in worker_group.workers:
            environment = context.envs[worker.local_rank]
            environment.update(self._world_environment(worker_group, worker))
            if handler := kept.get(worker.local_rank):
                more = {name: os.environ[name] for name in (GENERATION, RUN) if name in os.environ}
                handler.control.world({**environment, **more})
            else:
                # What an earlier one has written about its end.
                Path(context.error_files[worker.local_rank]).unlink(missing_ok=True)
                context.subprocess_handlers[worker.local_rank] = torch_private.start_subprocess(
                    context, worker.local_rank
                )
        context._running_local_ranks = set(range(context.nprocs))  # noqa: SLF001  (see torch_private)
        context._failures = {}  # noqa: SLF001

    def _world_environment(self, worker_group: WorkerGroup, worker: Worker) -> dict[str, str]:
        """What of a worker's environment changes from world to world, as torch sets it."""
        spec = worker_group.spec
        return {
            "RANK": str(worker.global_rank),
            "GROUP_RANK": str(worker_group.group_rank),
            "ROLE_RANK": str(worker.role_rank),
            "WORLD_SIZE": str(worker.world_size),
            "GROUP_WORLD_SIZE": str(worker_group.group_world_size),
            "ROLE_WORLD_SIZE": str(worker.role_world_size),
            "MASTER_ADDR": str(worker_group.master_addr),
            "MASTER_PORT": str(worker_group.master_port),
            "TORCHELASTIC_RESTART_COUNT": str(spec.max_restarts - self._remaining_restarts),
        }

    def _rendezvous(self, worker_group: WorkerGroup) -> None:
        if not self.recorder.is_open:
            self.recorder.begin("start")
        self._pause()
        while True:
            try:
                super()._rendezvous(worker_group)
            except DistStoreError as error:  # a node left before the ranks were given out
                self._handler.check_that_others_left(error)
            else:
                self.recorder.mark("rendezvous")
                ranks = [worker.global_rank for worker in worker_group.workers]
                emit("ranks", generation=self._handler.generation, ranks=ranks)
                return

    def _pause(self) -> None:
        """Before a world that brought no new step is followed by another, give what the script lacks time to come back.

        A worker that was killed from outside lacks nothing. The node stays a member of the old world meanwhile; who has
        paused long enough goes, and the others with it.
        """
        if not self._handler.has_failed or self._is_killed:
            return
        failures = self._handler.failures
        # All jobs of a cluster may have missed the same storage; they must not come back to it at the same moment.
        seconds = failures.pause(self._longest_pause) * random.uniform(PAUSE_JITTER, 1)  # noqa: S311  (no secret)
        until = self._started + seconds
        if (left := until - time.monotonic()) <= 0:
            return
        emit(
            "notice",
            message="failed without a new step: pausing before the workers start again",
            seconds=round(left, 1),
            failures=failures.without_progress,
            generation=self._handler.generation,
        )
        while (left := until - time.monotonic()) > 0 and self._handler.change() not in BROKEN:
            time.sleep(min(left, CHANGE_POLL.total_seconds()))
        self.recorder.mark("pause")

    def _monitor_workers(self, worker_group: WorkerGroup) -> RunResult:
        self._listen(self._interval if self._waiting_since is None else URGENT_POLL.total_seconds())
        self._resources.look(worker_group.spec.local_world_size)
        if self._watch.saves():
            for handler in self._hooked().values():
                handler.control.save()
        if self._finished is not None:
            # After training, a node that is lost is no loss: nothing would be gained by another world.
            is_over = self._everybody_has_finished() or (self._has_trained() and self._handler.change() in BROKEN)
            return self._finished if is_over else RunResult(state=WorkerState.HEALTHY)
        result: RunResult = super()._monitor_workers(worker_group)
        if result.state == WorkerState.SUCCEEDED:
            self._finished = result
            self._handler.expects_joiners = False
            return RunResult(state=WorkerState.HEALTHY)
        if result.state == WorkerState.FAILED:
            self._judge(result)
        else:
            self._look_for_first_step()
        if result.state == WorkerState.HEALTHY and self._waiting_since is not None:
            return self._follow(worker_group, self._waiting_since)
        return result

    def _follow(self, worker_group: WorkerGroup, since: float) -> RunResult:
        """Workers have let go of their world by themselves: find out why, and form the next one."""
        change = self._handler.change(URGENT_POLL)
        if not change and time.monotonic() - since < PEER_LOSS_KNOWN.total_seconds():
            return RunResult(state=WorkerState.HEALTHY)
        if not change and self._handler.has_failed:
            change = "regroup"  # another node's worker has failed, and it pauses before it asks for a new world
        self._handler.last_change = change
        if not change:
            emit("notice", message="the workers' world is broken, and no reason is known", last_step=self.progress())
            self._count_failure(self.progress(), is_free=False)
            if self._remaining_restarts <= 0:
                context: Any = self._pcontext
                failures = {
                    worker.global_rank: ProcessFailure(
                        local_rank=worker.local_rank,
                        pid=context.subprocess_handlers[worker.local_rank].proc.pid,
                        exitcode=exit_codes.FAILED,
                        error_file=context.error_files[worker.local_rank],
                    )
                    for worker in worker_group.workers
                }
                return RunResult(state=WorkerState.FAILED, failures=failures)
            self._remaining_restarts -= 1  # as torch does
        self._begin(CAUSES.get(change, "regroup"), node=self._handler.concerned, at=since)
        self._restart_workers(worker_group)
        return RunResult(state=WorkerState.HEALTHY)

    def _begin(self, cause: str, *, node: str = "", detail: str = "", at: float | None = None) -> None:
        """Open the record of a recovery."""
        if not self.recorder.is_open:
            self._step_before = self.progress()
        self.recorder.begin(cause, node, detail, at=at)
        self.recorder.mark("detect")

    def _listen(self, patience: float) -> None:
        """Wait until a worker says something or ends, at most `patience` seconds; take note of it."""
        handlers = [handler for handler in self._handlers().values() if isinstance(handler, ForkedHandler)]
        sources: list[Any] = [handler.control for handler in handlers if handler.control.is_open]
        # Nobody reads any more what the template says of workers that have ended, nor that it has.
        sources += {each.template for each in handlers if each.template.alive and each.proc.returncode is None}
        if not sources:
            time.sleep(patience)
            return
        wait(sources, patience)
        for handler in handlers:
            for message in handler.control.read():
                self._hear(message)

    def _hear(self, message: Mapping[str, Any]) -> None:
        if message["kind"] == "waiting" and self._waiting_since is None:
            self._waiting_since = time.monotonic()
        if message["kind"] == "mark":
            self.recorder.mark(message["phase"], at=message["time"])
            if message["phase"] == "first_step":
                self._note_first_step(message["step"])

    def _note_first_step(self, step: int) -> None:
        """A step is complete in the new world; the first such word ends the record of the recovery."""
        before = self._step_before
        self.recorder.finish(step, None if before is None else max(0, before + 1 - step))

    def _look_for_first_step(self) -> None:
        """For workers without hooks: have they reported a step since they were started?"""
        if self.recorder.is_open and not self._hooked():
            report = read_report(self._progress_file)
            if report is not None and report.first_at > self._started:
                self.recorder.mark("first_step", at=report.first_at)
                self._note_first_step(report.first_step)
            elif report is None:
                self._is_silent = (
                    self._is_silent or time.monotonic() - self._started > LIFE_WITH_PROGRESS.total_seconds()
                )
                if self._is_silent:
                    self.recorder.finish()

    def _handlers(self) -> dict[int, Any]:
        return dict(getattr(self._pcontext, "subprocess_handlers", {}))

    def _hooked(self) -> dict[int, ForkedHandler]:
        """Living workers that can be kept, by local rank."""
        handlers = {rank: handler for rank, handler in self._handlers().items() if isinstance(handler, ForkedHandler)}
        for handler in handlers.values():
            for message in handler.control.read():
                self._hear(message)
        return self._living(
            {
                rank: handler
                for rank, handler in handlers.items()
                if handler.control.uses_hooks and not handler.control.is_done
            }
        )

    @staticmethod
    def _living(handlers: Mapping[int, ForkedHandler]) -> dict[int, ForkedHandler]:
        return {
            rank: handler
            for rank, handler in handlers.items()
            if handler.control.is_open and handler.proc.poll() is None
        }

    def _restart_workers(self, worker_group: WorkerGroup) -> None:
        if not self.recorder.is_open:
            change, handler = self._handler.last_change, self._handler
            self._begin(CAUSES.get(change, "regroup"), node=handler.concerned, at=handler.silent_since)
        is_failed = worker_group.state == WorkerState.FAILED
        self._kept = self._halt_workers(is_broken=is_failed or self._handler.last_change not in SOFT)
        if not is_failed and self._has_trained():
            self.recorder.abandon("finished")
            return  # nobody needs these workers in a new world
        super()._restart_workers(worker_group)

    def _has_trained(self) -> bool:
        """Whether all workers have said that training is finished on all ranks; what they do now is their own."""
        handlers = self._handlers().values()
        return bool(handlers) and all(isinstance(each, ForkedHandler) and each.control.is_done for each in handlers)

    def _judge(self, result: RunResult) -> None:
        """Decide what this failure costs."""
        failures = sorted(result.failures.values(), key=lambda failure: failure.timestamp)
        code = self._rules.decisive(failure.exitcode for failure in failures)
        step = self.progress()
        self._begin("worker_killed" if code < 0 else "worker_failed", detail=f"exit code {code}")
        self._is_killed = -code in KILLED
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
        self._count_failure(step, is_free=code == exit_codes.PREEMPTED)

    def _count_failure(self, step: int | None, *, is_free: bool) -> None:
        """Take note of a failure, for the whole job; sets what is left of the budget."""
        lived = timedelta(seconds=time.monotonic() - self._started)
        failures = self._handler.count_failure(step, is_free=is_free, lived_long=lived >= LIFE_WITH_PROGRESS)
        # torch takes one for the restart that follows, and restarts only if there is one to take.
        self._remaining_restarts = max(0, self._max_restarts - failures.total + 1)
        self.is_stuck = failures.is_stuck
        if self.is_stuck:
            logger.error(
                "the workers have failed %d times without a new step: giving up; see the first error above",
                failures.without_progress,
            )
            self._remaining_restarts = 0

    def _is_echo(self, code: int) -> bool:
        """Whether a worker has failed because a node is gone, of which we may hear a moment later than the worker."""
        killed = code < 0 and code != -signal.SIGABRT  # an abort may be NCCL's; other signals are our own trouble
        if killed or self._worker_group.group_world_size == 1:
            return False
        deadline = time.monotonic() + PEER_LOSS_KNOWN.total_seconds()
        while True:
            change = self._handler.change()
            is_late = time.monotonic() >= deadline
            if change in BROKEN or (is_late and self._handler.has_failed):
                self.recorder.correct(CAUSES.get(change, "regroup"), self._handler.concerned)
                return True
            if is_late:
                return False
            time.sleep(CHANGE_POLL.total_seconds())

    @property
    def restarts_left(self) -> int:
        """How many more failures of the job the budget allows, as far as this node has heard."""
        return max(0, self._max_restarts - self._handler.failures.total)

    def progress(self) -> int | None:
        """The last step that the workers have reported, in this life or before; None if they do not report."""
        report = read_report(self._progress_file)
        return None if report is None else report.step

    def _stop_workers(self, worker_group: WorkerGroup) -> None:  # noqa: ARG002  (torch's signature)
        change = self._handler.last_change
        grace = self._shutdown_timeout if change in SOFT else GRACE_WITHOUT_PEER
        if self._kept:
            self._end_workers_but(self._kept, grace)
        else:
            super()._shutdown(timeout=grace)
        self.recorder.mark("leave")

    def _halt_workers(self, *, is_broken: bool) -> dict[int, ForkedHandler]:
        """Let the workers that use the hooks go out of their world; returns those that have.

        One that does not is ended: it may be busy with a collective that waits for a frozen peer, and that nothing
        interrupts.
        """
        hooked = self._hooked()
        start = time.monotonic()
        for handler in hooked.values():
            if not handler.control.is_waiting:
                handler.control.halt(hard=is_broken)
        while pending := {
            rank: handler
            for rank, handler in self._living(hooked).items()
            if not handler.control.is_waiting and not handler.control.is_done
        }:
            self._listen(CHANGE_POLL.total_seconds())
            if not is_broken and self._handler.change() in BROKEN - SOFT:
                is_broken, start = True, time.monotonic()
                for handler in pending.values():
                    handler.control.halt(hard=True)
            for rank, handler in pending.items():
                is_stuck = is_broken and not handler.control.is_interrupted
                grace = GRACE_WITHOUT_PEER if is_stuck else self._shutdown_timeout
                if time.monotonic() - start > grace:
                    logger.warning("worker %d does not let go of its world: started anew", handler.proc.pid)
                    handler.close(signal.SIGKILL)
                    # One that hangs in a driver is not ended by the kernel either; it is left behind.
                    with contextlib.suppress(subprocess.TimeoutExpired):
                        handler.proc.wait(GRACE_WITHOUT_PEER)
                    del hooked[rank]
        return {rank: handler for rank, handler in self._living(hooked).items() if handler.control.is_waiting}

    def _end_workers_but(self, kept: Mapping[int, ForkedHandler], grace: int) -> None:
        """End all workers but some. Their output is followed as before, so the context stays."""
        context: Any = self._pcontext
        handlers = context.subprocess_handlers
        context.subprocess_handlers = {rank: handler for rank, handler in handlers.items() if rank not in kept}
        try:
            context._close(signal.SIGTERM, grace)  # noqa: SLF001  (see torch_private)
        finally:
            context.subprocess_handlers = handlers

    def _shutdown(self, death_sig: signal.Signals = signal.SIGTERM, timeout: int | None = None) -> None:
        if isinstance(sys.exc_info()[1], SignalException) and not self.left:
            self.left = True
            emit("notice", message=f"{death_sig.name}: leaving the job", generation=self._handler.generation)
            left = self._watch.seconds_left()
            self._end_by = time.monotonic() + (self._shutdown_timeout if left is None else left)
            self._heed_more_signals()
            hooked = self._hooked()
            for handler in hooked.values():
                handler.control.leave()
            for pid in set(self._worker_pids()) - {handler.proc.pid for handler in hooked.values()}:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(pid, death_sig)
            has_left = self._handler.leave_unless_last()
            self._await_end(hooked)
            timeout = max(1, round(self._end_by - time.monotonic()))
            super()._shutdown(death_sig, timeout)
            if not has_left:
                self._handler.leave()
            return
        super()._shutdown(death_sig, timeout)

    def _heed_more_signals(self) -> None:
        """From now on a signal, as of a kubelet after the cloud's notice, shortens the time of the workers, no more."""

        def hurry(*_: object) -> None:
            self._end_by = min(self._end_by, time.monotonic() + self._shutdown_timeout)

        for name in os.environ.get("TORCHELASTIC_SIGNALS_TO_HANDLE", "").split(","):
            if name:
                signal.signal(signal.Signals[name.strip()], hurry)

    def _await_end(self, workers: Mapping[int, ForkedHandler]) -> None:
        """Wait for workers that were told to leave; those that hang in a collective are freed in time to save."""
        begin, total = time.monotonic(), self._end_by - time.monotonic()
        is_told = is_broken = False
        while (living := self._living(workers)) and time.monotonic() < self._end_by:
            self._listen(CHANGE_POLL.total_seconds())
            budget = self._budget(total, workers)
            if not is_told and all(handler.control.pace is not None for handler in living.values()):
                is_told = True
                emit("notice", message=budget.text())
            if not is_broken and time.monotonic() > begin + budget.patience:
                is_broken = True
                for handler in living.values():
                    handler.control.halt(hard=True)

    @staticmethod
    def _budget(left: float, workers: Mapping[int, ForkedHandler]) -> Budget:
        """Of the slowest worker."""
        paces = [handler.control.pace for handler in workers.values() if handler.control.pace is not None]
        steps, saves = [step for step, _ in paces if step is not None], [save for _, save in paces if save is not None]
        return Budget(left=left, step=max(steps, default=None), save=max(saves, default=None))

    def worker_exit_codes(self) -> list[int | None]:
        """Exit codes of the workers that were last started; None for one that still runs."""
        return [handler.proc.poll() for handler in self._handlers().values()]

    def _worker_pids(self) -> list[int]:
        return [handler.proc.pid for handler in self._handlers().values() if handler.proc.poll() is None]

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
