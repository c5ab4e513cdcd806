"""Random faults on a real job, chosen by a seed, and what must hold nevertheless.

Real launchers and workers, a real etcd. What is checked: while enough nodes are well there is never a long time
without a step; two worlds never train at once; no step is left out; no launcher ends unless it was told to or killed;
and in the end the job finishes. `tests/training/test_training_chaos.py` runs a short form, `benchmarks/chaos.py` a long
one.
"""

import heapq
import itertools
import os
import random
import signal
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from local_agents import PATIENCE, ROOT, Agent, Etcd, Job
from namespaces import CENTRE, INTERFACE, Network
from step_records import StepRecords, check

from training.launch import exit_codes

LONGEST_FAULT = 12.0
LONGEST_PAUSE = 4.0
FAULTS = ("kill worker", "kill launcher", "kill node", "freeze", "SIGTERM", "restart etcd", "join", "partition")
TICK = 0.05


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What shall happen.

    Attributes:
        seed: of all choices; when things happen depends on the computer as well.
        num_faults: how many.
        least: nodes of a world, at least.
        most: nodes of a world, at most.
        launchers: at most so many at once; what is beyond `most` is a spare.
        program: the script, of `programs/`.
        hang: seconds without a step that count as a hang.
        missed: heartbeats, of one second each, after which a node is taken for dead; some faults are shorter than that
            and some longer.
    """

    seed: int
    num_faults: int
    least: int = 2
    most: int = 3
    launchers: int = 4
    program: str = "careful_ddp.py"
    hang: float = 60.0
    missed: int = 5


@dataclass
class Report:
    """What has happened.

    Attributes:
        faults: how often each.
        problems: what was wrong, in sentences; empty if all is well.
        longest_pause: seconds without a step, at most, while enough nodes were well.
        log: everything that was done, with seconds since the beginning.
    """

    plan: Plan
    faults: dict[str, int] = field(default_factory=lambda: dict.fromkeys(FAULTS, 0))
    problems: list[str] = field(default_factory=list)
    num_steps: int = 0
    num_worlds: int = 0
    longest_pause: float = 0.0
    seconds: float = 0.0
    log: list[str] = field(default_factory=list)

    def as_json(self) -> dict[str, Any]:
        """Plain data."""
        return asdict(self)


class Chaos:
    """One job and what happens to it.

    Args:
        folder: for logs and records.
        plan: what shall happen.
        network: where each launcher gets a node of its own; None: all share this computer's, and nothing is cut.
        say: gets a line about each thing that is done.
    """

    def __init__(
        self, folder: Path, plan: Plan, network: Network | None = None, say: Callable[[str], None] = lambda _: None
    ) -> None:
        self.plan, self.report = plan, Report(plan)
        self._network, self._say = network, say
        self._random = random.Random(plan.seed)  # noqa: S311 - no secret
        self._etcd = Etcd(folder, host=network.centre) if network else Etcd(folder)
        self._enough = folder / "enough"
        self._records = StepRecords(folder / "records")
        script = [
            str(ROOT / "tests" / "training" / "programs" / plan.program),
            *(f"--records={self._records.path}", f"--checkpoint={folder / 'checkpoint'}", f"--enough={self._enough}"),
        ]
        self.job = Job(folder, self._etcd, script, nnodes=f"{plan.least}:{plan.most}")
        self._begin = time.monotonic()
        self._numbers = itertools.count(1)
        self._later: list[tuple[float, int, Callable[[], None]]] = []
        self._unwell: set[str] = set()  # launchers that are frozen or cut off
        self._leaving: set[str] = set()  # were told to go, or killed
        self._cut = 0  # nodes that etcd knows and their peers cannot reach
        self._is_etcd_there = False
        self._last_life = time.monotonic()
        self._num_seen = 0

    def run(self) -> Report:
        """Let it all happen; returns what came of it."""
        try:
            self._etcd.start()
            self._is_etcd_there = True
            for _ in range(self.plan.most):
                self._join()
            if self._await(self._has_stepped_since(0), PATIENCE):
                self._go_through_faults()
            else:
                self._problem("the job did not begin to train")
            self._finish()
        finally:
            self.job.stop()
            self._etcd.stop()
        steps = self._records.read()
        self.report.problems += check(steps)
        self.report.num_steps = max((step.step for step in steps), default=0)
        self.report.num_worlds = len({step.world for step in steps})
        self.report.seconds = round(time.monotonic() - self._begin, 1)
        return self.report

    def _go_through_faults(self) -> None:
        for _ in range(self.plan.num_faults):
            before = len(self._records.read())
            self._one_fault()
            # Sometimes the next comes before the job has recovered from this one.
            if self._random.random() < 0.75 and not self._await(self._has_stepped_since(before), 10 * self.plan.hang):
                return
            until = time.monotonic() + self._random.uniform(0, LONGEST_PAUSE)
            if not self._await(lambda until=until: time.monotonic() >= until, 10 * self.plan.hang):  # type: ignore[misc]
                return

    def _has_stepped_since(self, count: int) -> Callable[[], bool]:
        return lambda: len(self._records.read()) > count

    def _finish(self) -> None:
        self._log("enough")
        while self._later:
            heapq.heappop(self._later)[2]()
        self._enough.touch()
        launchers = self._alive()
        if not self._await(lambda: not any(agent.is_alive for agent in launchers), 2 * self.plan.hang):
            self._problem(f"{', '.join(agent.name for agent in self._alive())} did not end when there was enough")

    def _await(self, condition: Callable[[], bool], seconds: float) -> bool:
        """Look after everything until the condition holds; False if it does not in time, or the job hangs."""
        deadline = time.monotonic() + seconds
        while not condition():
            while self._later and self._later[0][0] <= time.monotonic():
                heapq.heappop(self._later)[2]()
            if not self._is_well() or time.monotonic() > deadline:
                return False
            time.sleep(TICK)
        return True

    def _is_well(self) -> bool:
        """Whether training goes on as it should; takes note of launchers that have ended."""
        now, num_steps = time.monotonic(), len(self._records.read())
        for agent in self.job.agents:
            if not agent.is_alive and agent.name not in self._leaving:
                self._leaving.add(agent.name)
                if not (self._enough.exists() and agent.process.returncode == exit_codes.FINISHED):
                    self._problem(f"{agent.name} ended with {agent.process.returncode}")
        is_job = num_steps > 0 and self._is_etcd_there and not self._cut and len(self._healthy()) >= self.plan.least
        if num_steps > self._num_seen or not is_job or self._enough.exists():
            self._num_seen, self._last_life = num_steps, now
        self.report.longest_pause = max(self.report.longest_pause, round(now - self._last_life, 2))
        if now - self._last_life > self.plan.hang:
            self._problem(f"no step for {self.plan.hang:g} s")
            return False
        return True

    def _alive(self) -> list[Agent]:
        return [agent for agent in self.job.agents if agent.is_alive and agent.name not in self._leaving]

    def _healthy(self) -> list[Agent]:
        return [agent for agent in self._alive() if agent.name not in self._unwell]

    def _one_fault(self) -> None:
        candidates = {fault: victims for fault in FAULTS if (victims := self._candidates(fault))}
        if not candidates:  # of the few that are left nobody has a worker yet
            self._log("nothing can happen now")
            return
        rare = [1 / (1 + self.report.faults[fault]) ** 2 for fault in candidates]
        (fault,) = self._random.choices(list(candidates), rare)
        self.report.faults[fault] += 1
        self._let_happen(fault, self._random.choice(candidates[fault]))

    def _candidates(self, fault: str) -> list[Agent]:
        """Whom it can happen to; for what happens to nobody, all if it can happen at all."""
        healthy = self._healthy()
        if fault == "join":
            return healthy if len(self._alive()) < self.plan.launchers else []
        if fault == "restart etcd":
            return healthy if self._is_etcd_there else []
        members = [agent for agent in healthy if _workers(agent)]
        if fault == "kill worker":
            return members
        if fault == "partition" and self._network is None:
            return []
        # Enough members of the world stay: after the loss of all of them newcomers wait for a minute, since they cannot
        # know whether that world lives on somewhere (`training.launch.fencing`).
        return members if len(members) > self.plan.least else []

    def _let_happen(self, fault: str, victim: Agent) -> None:
        if fault == "join":
            self._join()
        elif fault == "restart etcd":
            self._restart_etcd()
        elif fault == "kill worker":
            workers = _workers(victim)
            self._log(f"{fault}: {victim.name} {workers}")
            for pid in workers:
                _kill(pid)
        elif fault == "freeze":
            self._last(victim, fault, lambda: victim.signal_tree(signal.SIGSTOP), lambda: _thaw(victim))
        elif fault == "partition":
            self._partition(victim)
        else:
            self._log(f"{fault}: {victim.name}")
            self._leaving.add(victim.name)
            if fault == "SIGTERM":
                victim.process.send_signal(signal.SIGTERM)
            elif fault == "kill launcher":
                victim.process.kill()
            else:
                victim.signal_tree(signal.SIGKILL)

    def _join(self) -> None:
        name = f"n{next(self._numbers)}"
        self._log(f"join: {name}")
        liveness = f"--rdzv-conf=keep_alive_interval=1,keep_alive_max_attempt={self.plan.missed}"
        if self._network:
            inside = self._network.add(name)
            self.job.start(name, liveness, inside=inside, environment={"GLOO_SOCKET_IFNAME": INTERFACE})
        else:
            self.job.start(name, liveness)

    def _restart_etcd(self) -> None:
        seconds = self._random.uniform(0, LONGEST_FAULT)
        self._log(f"restart etcd: away for {seconds:.1f} s")
        self._etcd.stop()
        self._is_etcd_there = False

        def start() -> None:
            self._etcd.start()
            self._is_etcd_there = True
            self._last_life = time.monotonic()  # on a busy computer its start may take a minute
            self._log("etcd is back")

        self._do_later(seconds, start)

    def _partition(self, victim: Agent) -> None:
        assert self._network is not None
        network = self._network
        kind = self._random.choice(("etcd", "peers", "all"))
        others = [agent.name for agent in self._alive() if agent is not victim]
        others = {"etcd": [CENTRE], "peers": others, "all": [CENTRE, *others]}[kind]
        is_known = kind == "peers"
        self._cut += is_known

        def heal() -> None:
            for other in others:
                network.heal(victim.name, other)
            self._cut -= is_known

        def cut() -> None:
            for other in others:
                network.cut(victim.name, other)

        self._last(victim, f"partition from {kind}", cut, heal)

    def _last(self, victim: Agent, fault: str, begin: Callable[[], None], end: Callable[[], None]) -> None:
        """A fault that lasts for a while."""
        seconds = self._random.uniform(0.5, LONGEST_FAULT)
        self._log(f"{fault}: {victim.name} for {seconds:.1f} s")
        self._unwell.add(victim.name)
        begin()

        def finish() -> None:
            end()
            self._unwell.discard(victim.name)
            self._log(f"{fault}: {victim.name} is over")

        self._do_later(seconds, finish)

    def _do_later(self, seconds: float, action: Callable[[], None]) -> None:
        heapq.heappush(self._later, (time.monotonic() + seconds, next(self._numbers), action))

    def _log(self, text: str) -> None:
        steps = self._records.read()
        line = (
            f"{time.monotonic() - self._begin:7.1f} s  {time.time():.3f}  step {steps[-1].step if steps else 0}: {text}"
        )
        self.report.log.append(line)
        self._say(line)

    def _problem(self, text: str) -> None:
        self.report.problems.append(text)
        self._log(f"PROBLEM: {text}")


def _workers(agent: Agent) -> list[int]:
    return [pid for pid in agent.children() if _leads_session(pid)][1:]  # the first is the template


def _leads_session(pid: int) -> bool:
    try:
        return os.getsid(pid) == pid
    except ProcessLookupError:
        return False


def _kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return


def _thaw(agent: Agent) -> None:
    if agent.is_alive:
        agent.signal_tree(signal.SIGCONT)
