"""How long training stands still after a fault: stock torchrun and Trainyard, side by side in the same run.

    make bench-recovery                                                         # all, about 40 minutes on two cores
    PYTHONPATH=.:tests/training .venv/bin/python benchmarks/recovery.py --only plain,hooks --repeats 3
    PYTHONPATH=.:tests/training .venv/bin/python benchmarks/recovery.py --only torchrun/worker,plain/worker --resume
    PYTHONPATH=.:tests/training .venv/bin/python benchmarks/recovery.py --agents 3 --resume --write-docs

Real launchers on loopback with one worker each, gloo, a small DDP model, a step about every 55 ms. A cell's seconds are
those from the fault to the first complete step of the new world, by what the workers themselves write; when a node
joins, those between the last step of the old world and the first of the new one; when the meeting place is restarted
(etcd; of torchrun with its own store: the launcher that holds it is killed), the longest pause beyond the usual one.
More than 60 s count as never, and so does a job that ends; then a new job is started.

A job lives through many faults: a lost node is replaced, which measures a join, and all faults come in turn. Torchrun's
jobs, which sleep most of their time, run beside each other (--lanes); ours one at a time. Results are written after
every single measurement, and `--resume` goes on with those that lack. Prints a table and writes JSON.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import platform
import signal
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any, ClassVar, Final

from local_agents import ROOT, Agent, Etcd, Job, free_port
from rich.console import Console
from step_records import Step, StepRecords

from infra.cli.console import table

DOCS: Final = ROOT / "docs" / "benchmarks.md"
BEGIN, END = "<!-- recovery: written by `make bench-recovery` -->", "<!-- end of recovery -->"
HANG: Final = 60.0  # seconds without a step that count as never
START: Final = 180.0  # seconds until a new job trains, or something is wrong with this computer
# Of a script that does not report its steps, three workers that die within a minute each are a script that cannot work,
# and the job is given up; so another job begins before.
KILLS_OF_ONE: Final = 2
SETTLED: Final = 1.5  # seconds that a world trains before the next fault
ETCD_AWAY: Final = 3.0
WATCHED_AFTER_ETCD: Final = 5.0
# The first is what no launcher can tell: from the fault until one knew of it.
UNNOTICED: Final = "unnoticed"
PHASES: Final = (UNNOTICED, "detect", "leave", "pause", "rendezvous", "process", "group", "model", "first_step")

FAULTS: Final = {
    "worker": "worker SIGKILL",
    "sigterm": "launcher SIGTERM",
    "node": "launcher + worker SIGKILL",
    "frozen": "node frozen",
    "join": "node joins: pause of the others",
    "store": "meeting place restarted: pause",
}
# Median goals in seconds; the worst may be three times as long.
GOALS: Final = {
    "hooks": {"worker": 0.5, "sigterm": 1.0, "node": 2.0, "frozen": 6.0, "join": 1.0},
    "plain": {"worker": 1.5, "sigterm": 2.0, "node": 4.0},
}


@dataclass(frozen=True, kw_only=True)
class Runner:
    """One way to run the same training.

    Attributes:
        title: heading of its column.
        module: the launcher.
        program: the script.
        options: of the launcher.
        conf: settings of the rendezvous.
        environment: of the launcher.
        frozen: what is set besides, to notice a frozen node: settings of the rendezvous, options of the script.
        expected: seconds of a start and of each fault, for the estimate only.
    """

    title: str
    module: str
    program: str
    options: tuple[str, ...] = ()
    conf: Mapping[str, str] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    frozen: tuple[Mapping[str, str], tuple[str, ...]]
    expected: Mapping[str, float]

    @property
    def is_stock(self) -> bool:
        """Whether this is torch's own launcher, whose meeting place is one of the nodes."""
        return self.module != "training"


_LIVENESS: Final = ({"keep_alive_interval": "1", "keep_alive_max_attempt": "5"}, ())
_TIMEOUT: Final[tuple[Mapping[str, str], tuple[str, ...]]] = ({}, ("--timeout=10",))
RUNNERS: Final = {
    "torchrun": Runner(
        title="torchrun, defaults",
        module="torch.distributed.run",
        program="plain_ddp.py",
        options=("--max-restarts=1000",),
        frozen=_TIMEOUT,
        expected={"start": 14, "worker": 55, "sigterm": 47, "node": 47, "frozen": 58, "join": 13, "store": 15},
    ),
    "torchrun-tuned": Runner(
        title="torchrun, tuned: store not shared, last call 1 s",
        module="torch.distributed.run",
        program="plain_ddp.py",
        options=("--max-restarts=1000",),
        conf={"last_call_timeout": "1"},
        environment={"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"},
        frozen=_TIMEOUT,
        expected={"start": 14, "worker": 8, "sigterm": 19, "node": 19, "frozen": 25, "join": 13, "store": 15},
    ),
    "plain": Runner(
        title="Trainyard, same script",
        module="training",
        program="plain_ddp.py",
        frozen=_LIVENESS,
        expected={"start": 9, "worker": 1, "sigterm": 1, "node": 2, "frozen": 6, "join": 8, "store": 9},
    ),
    "hooks": Runner(
        title="Trainyard, with hooks",
        module="training",
        program="elastic_ddp.py",
        frozen=_LIVENESS,
        expected={"start": 9, "worker": 1, "sigterm": 1, "node": 2, "frozen": 6, "join": 8, "store": 9},
    ),
}


class NeverError(Exception):
    """There was no further step; says in one word what became of the job."""


class Results:
    """All measurements, written down after each.

    Args:
        path: the JSON file.
        resume: whether to go on with what it holds.
        num_agents: how many nodes the jobs have.
    """

    def __init__(self, path: Path, *, resume: bool, num_agents: int) -> None:
        self._path, self._agents = path, str(num_agents)
        self._lock = threading.Lock()
        self._claimed: dict[tuple[str, str], int] = {}
        self.document: dict[str, Any] = json.loads(path.read_text()) if resume and path.exists() else {"agents": {}}

    @property
    def cells(self) -> dict[str, dict[str, list[dict[str, Any]]]]:
        """Samples by runner and fault."""
        return self.document["agents"].setdefault(self._agents, {})  # type: ignore[no-any-return]

    def claim(self, runner: str, faults: Iterable[str], repeats: int) -> str | None:
        """The fault of which fewest measurements are there or under way; None if all have enough."""
        with self._lock:
            counts = {
                fault: len(self.cells.get(runner, {}).get(fault, [])) + self._claimed.get((runner, fault), 0)
                for fault in faults
            }
            lacking = {fault: count for fault, count in counts.items() if count < repeats}
            if not lacking:
                return None
            fault = min(lacking, key=lambda name: lacking[name])
            self._claimed[runner, fault] = self._claimed.get((runner, fault), 0) + 1
            return fault

    def release(self, runner: str, fault: str) -> None:
        """Give a claim back."""
        with self._lock:
            self._claimed[runner, fault] = max(0, self._claimed.get((runner, fault), 0) - 1)

    def add(self, runner: str, fault: str, sample: dict[str, Any]) -> None:
        """Keep one measurement."""
        with self._lock:
            self.cells.setdefault(runner, {}).setdefault(fault, []).append(
                {**sample, "load": round(os.getloadavg()[0], 1)}
            )
            self._path.parent.mkdir(parents=True, exist_ok=True)
            new = self._path.with_suffix(".new")
            new.write_text(json.dumps(self.document, indent=1) + "\n")
            new.replace(self._path)


class Measured(Job):
    """A job that faults happen to."""

    running: ClassVar[set[Measured]] = set()

    def __init__(self, folder: Path, runner: Runner, num_agents: int, *, frozen: bool) -> None:
        folder.mkdir(parents=True)
        self.etcd = Etcd(folder)
        self.runner, self.num_agents = runner, num_agents
        self.launcher = runner.module
        self._port = free_port()
        conf, arguments = runner.frozen if frozen else ({}, ())
        self._conf = {**runner.conf, **conf}
        script = [
            str(ROOT / "tests" / "training" / "programs" / runner.program),
            *(f"--records={folder / 'records'}", f"--checkpoint={folder / 'checkpoint'}"),
            *(f"--enough={folder / 'enough'}", *arguments),
        ]
        super().__init__(folder, self.etcd, script, nnodes=f"1:{num_agents}")
        self.records = StepRecords(folder / "records")
        self.num_killed = 0  # workers
        self._number = 0

    def meeting_place(self) -> list[str]:
        """Etcd, or for torchrun the store in the first launcher."""
        if not self.runner.is_stock:
            return [*super().meeting_place(), *self._conf_option(self._conf)]
        is_host = str(len(self.agents) == 0).lower()
        endpoint = f"--rdzv-endpoint=127.0.0.1:{self._port}"
        return ["--rdzv-backend=c10d", endpoint, *self._conf_option({**self._conf, "is_host": is_host})]

    @staticmethod
    def _conf_option(conf: Mapping[str, str]) -> list[str]:
        return [f"--rdzv-conf={','.join(f'{key}={value}' for key, value in conf.items())}"] if conf else []

    def begin(self) -> None:
        """Start everything and wait until it trains."""
        Measured.running.add(self)
        if not self.runner.is_stock:
            self.etcd.start()
        for _ in range(self.num_agents):
            self.add_agent()
        self.settle(START)

    def add_agent(self) -> Agent:
        """Start one launcher more."""
        self._number += 1
        return self.start(f"agent{self._number}", *self.runner.options, environment=self.runner.environment)

    def settle(self, patience: float = HANG) -> None:
        """Wait until a world of all nodes has trained for a while.

        Raises:
            NeverError: it has not in time, or all launchers have ended.
        """
        deadline = time.monotonic() + patience
        while time.monotonic() < deadline:
            steps = self.records.read()
            if steps and steps[-1].world_size == self.num_agents:
                mine = [step for step in steps if step.world == steps[-1].world]
                if mine[-1].done - mine[0].done > SETTLED and time.time() - mine[-1].done < 1:
                    return
            if not any(agent.is_alive for agent in self.agents):
                raise NeverError("ended")
            time.sleep(0.05)
        raise NeverError("hang")

    def alive(self) -> list[Agent]:
        """The launchers that run, the oldest first."""
        return [agent for agent in self.agents if agent.is_alive]

    def next_world(self, since: float, worlds: set[float], *, world_size: int | None = None) -> Step:
        """The first complete step of a new world.

        Raises:
            NeverError: there was none within the time that counts as never, or all launchers have ended.
        """
        while True:
            for step in self.records.read():
                if step.world not in worlds and step.done > since and world_size in {None, step.world_size}:
                    return step
            if time.time() > since + HANG:
                raise NeverError("hang")
            if not any(agent.is_alive for agent in self.agents):
                raise NeverError("ended")
            time.sleep(0.02)

    def worker_of(self, agent: Agent) -> int:
        """The process that trains below this launcher."""
        below = set(agent.children())
        return next(step.pid for step in reversed(self.records.all) if step.pid in below)

    def lose(self, agent: Agent) -> None:
        """Switch a node off and wait until the others go on; not measured.

        Raises:
            NeverError: training did not go on.
        """
        worlds = {step.world for step in self.records.read()}
        agent.signal_tree(signal.SIGKILL)
        agent.process.wait()
        self.next_world(time.time(), worlds)

    def breakdown(self, since: float) -> dict[str, float]:
        """Seconds by phase, of the launcher that took longest; not of one that has just come."""
        events = [event for event in self.events("recovery") if event["time"] > since and event["cause"] != "start"]
        records = [event for event in events if event["seconds"]]
        return dict(max(records, key=lambda event: event["total"])["seconds"]) if records else {}

    def end(self) -> None:
        """End everything."""
        self.stop()
        self.etcd.stop()
        Measured.running.discard(self)


def end_all(number: int, _: FrameType | None) -> None:
    """The benchmark is told to go: nothing that it has started stays behind."""
    for job in list(Measured.running):
        job.end()
    os._exit(128 + number)


def inject(job: Measured, fault: str, turn: int) -> dict[str, Any]:
    """Let one fault happen; returns the sample.

    Raises:
        NeverError: training did not go on.
    """
    alive = job.alive()
    # Torchrun's store is in the first launcher, and all end with it: that is another line of the table.
    victim = alive[-1] if job.runner.is_stock else alive[turn % len(alive)]
    worker = job.worker_of(victim)
    worlds = {step.world for step in job.records.read()}
    since = time.time()
    if fault == "store":
        return _restart_store(job)
    if fault == "worker":
        job.num_killed += 1
        os.kill(worker, signal.SIGKILL)
    elif fault == "sigterm":
        victim.process.send_signal(signal.SIGTERM)
    elif fault == "node":
        victim.signal_tree(signal.SIGKILL)
    elif fault == "frozen":
        victim.signal_tree(signal.SIGSTOP)
    try:
        first = job.next_world(since, worlds)
    finally:
        if fault == "sigterm":
            _await_end(victim)
        if fault in {"sigterm", "frozen"}:
            victim.signal_tree(signal.SIGKILL)
            victim.process.wait()
    return _sample(job, since, first.done - since)


def _restart_store(job: Measured) -> dict[str, Any]:
    since = time.time()
    if job.runner.is_stock:
        worlds = {step.world for step in job.records.read()}
        job.alive()[0].signal_tree(signal.SIGKILL)
        return _sample(job, since, job.next_world(since, worlds).done - since)
    job.etcd.stop()
    time.sleep(ETCD_AWAY)
    job.etcd.start()
    time.sleep(WATCHED_AFTER_ETCD)
    steps = job.records.read()
    pid = steps[-1].pid
    # With hooks a process lives on: what it did before the present world had settled is another fault's.
    done = [step.done for step in steps if step.pid == pid and step.done > since - SETTLED / 2]
    if time.time() - done[-1] > HANG:
        raise NeverError("hang")
    gaps = [after - before for before, after in itertools.pairwise(done)]
    gaps.append(max(0.0, time.time() - done[-1] - gaps[-1]))
    return {"seconds": round(max(gaps) - statistics.median(gaps), 3)}


def join(job: Measured) -> dict[str, Any]:
    """Let a node join; returns the sample."""
    steps = job.records.read()
    worlds = {step.world for step in steps}
    since = time.time()
    job.add_agent()
    first = job.next_world(since, worlds, world_size=len(job.alive()))
    before = max(step.done for step in job.records.all if step.done < first.done and step.world < first.world)
    return _sample(job, since, first.done - before)


def _sample(job: Measured, since: float, seconds: float) -> dict[str, Any]:
    time.sleep(0.3)  # the launchers write their records after the step
    sample: dict[str, Any] = {"seconds": round(seconds, 3)}
    if breakdown := job.breakdown(since):
        sample["phases"] = breakdown
    return sample


def _await_end(agent: Agent) -> None:
    deadline = time.monotonic() + HANG
    while agent.is_alive and time.monotonic() < deadline:
        time.sleep(0.05)


@dataclass(frozen=True, kw_only=True)
class Lane:
    """One after the other: the faults of one runner that go with the same settings."""

    runner: str
    faults: tuple[str, ...]
    frozen: bool
    repeats: int
    num_agents: int

    def run(self, results: Results, say: Callable[[str], None]) -> None:
        """Measure until all cells have enough."""
        runner = RUNNERS[self.runner]
        with tempfile.TemporaryDirectory(prefix="ty-") as folder:
            job: Measured | None = None
            number = failures = 0
            try:
                while (fault := results.claim(self.runner, self.faults, self.repeats)) is not None:
                    try:
                        if job is not None and fault == "worker" and job.num_killed == KILLS_OF_ONE:
                            job.end()
                            job = None
                        if job is None:
                            number += 1
                            job = Measured(Path(folder) / str(number), runner, self.num_agents, frozen=self.frozen)
                            job.begin()
                        self._measure(job, fault, results, say)
                        failures = 0
                    except NeverError as error:
                        failures += 1
                        say(f"{self.runner}: {error} before the fault; a new job\n{job.tail() if job else ''}")
                        if failures >= 3:
                            sys.exit(f"{self.runner}: three jobs in a row did not train")
                        if job is not None:
                            job.end()
                        job = None
                    finally:
                        results.release(self.runner, fault)
                    if job is not None and len(job.alive()) == 0:
                        job.end()
                        job = None
            finally:
                if job is not None:
                    job.end()

    def _measure(self, job: Measured, fault: str, results: Results, say: Callable[[str], None]) -> None:
        """One fault, and the job made whole again.

        Raises:
            NeverError: it did not become whole.
        """
        turn = len(results.cells.get(self.runner, {}).get(fault, []))
        if fault == "join":  # a node leaves first, which is no measurement here
            job.lose(job.alive()[-1])
        else:
            try:
                sample = inject(job, fault, turn)
            except NeverError as error:
                sample = {"seconds": None, "outcome": str(error)}
            results.add(self.runner, fault, sample)
            say(f"{self.runner}: {FAULTS[fault]}: {sample['seconds']} {sample.get('outcome', '')}")
            if sample["seconds"] is None:
                job.stop()
                return
        while len(job.alive()) < self.num_agents:
            try:
                sample = join(job)
            except NeverError as error:
                sample = {"seconds": None, "outcome": str(error)}
            if "join" in self.faults:
                results.add(self.runner, "join", sample)
                say(f"{self.runner}: {FAULTS['join']}: {sample['seconds']} {sample.get('outcome', '')}")
            if sample["seconds"] is None:
                job.stop()
                return
        job.settle()


def lanes(options: argparse.Namespace, results: Results) -> list[Lane]:
    """What is to be measured, by settings."""
    found = []
    for name in RUNNERS:
        wanted = [fault for fault in FAULTS if selected(options.only, name, fault)]
        for frozen in (False, True):
            faults = tuple(fault for fault in wanted if (fault == "frozen") == frozen)
            if any(len(results.cells.get(name, {}).get(fault, [])) < options.repeats for fault in faults):
                found.append(
                    Lane(
                        runner=name,
                        faults=faults,
                        frozen=frozen,
                        repeats=options.repeats,
                        num_agents=options.agents,
                    )
                )
    return found


def selected(only: str, runner: str, fault: str) -> bool:
    """Whether `--only` names this cell, its runner or its fault; without it all are."""
    return not only or bool({runner, fault, f"{runner}/{fault}"} & set(only.split(",")))


def estimate(planned: Sequence[Lane], results: Results, num_lanes: int) -> float:
    """Seconds that it will take: starts, faults, joins, and the moments between them."""
    total = 0.0
    for lane in planned:
        runner = RUNNERS[lane.runner]
        seconds = runner.expected["start"]
        for fault in lane.faults:
            lacking = lane.repeats - len(results.cells.get(lane.runner, {}).get(fault, []))
            if fault == "join" and len(lane.faults) > 1:
                continue  # on the way
            one = runner.expected[fault] + SETTLED
            if fault in {"sigterm", "node", "frozen"}:
                one += runner.expected["join"]
            if runner.is_stock and fault in {"store", "worker"} and "tuned" not in lane.runner:
                one += runner.expected["start"]
            seconds += max(0, lacking) * one
        total += seconds / num_lanes if runner.is_stock else seconds
    return total


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, default=ROOT / "build" / "recovery.json", help="results; %(default)s")
    parser.add_argument("--repeats", type=int, default=10, help="measurements of each cell; %(default)s")
    parser.add_argument("--agents", type=int, default=2, choices=(2, 3, 4), help="nodes of a job; %(default)s")
    parser.add_argument(
        "--only",
        default="",
        help=f"runners ({', '.join(RUNNERS)}), faults ({', '.join(FAULTS)}), or RUNNER/FAULT; with commas",
    )
    parser.add_argument("--lanes", type=int, default=4, help="jobs of torchrun beside each other; %(default)s")
    parser.add_argument("--resume", action="store_true", help="go on with the results in the file")
    parser.add_argument("--estimate", action="store_true", help="say how long it will take, and measure nothing")
    parser.add_argument("--write-docs", action="store_true", help="write the table into docs/benchmarks.md")
    options = parser.parse_args()
    known = {*RUNNERS, *FAULTS, *(f"{runner}/{fault}" for runner in RUNNERS for fault in FAULTS)}
    if unknown := set(filter(None, options.only.split(","))) - known:
        parser.error(f"--only: there is no {', '.join(sorted(unknown))}")
    results = Results(options.json, resume=options.resume, num_agents=options.agents)
    results.document |= {"when": time.strftime("%Y-%m-%d"), "processors": os.cpu_count()}
    results.document |= {"python": platform.python_version(), "repeats": options.repeats}
    begin = time.monotonic()

    def say(text: str) -> None:
        sys.stderr.write(f"{time.monotonic() - begin:6.0f} s  {text}\n")

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, end_all)
    planned = lanes(options, results)
    say(f"this takes about {estimate(planned, results, options.lanes) / 60:.0f} minutes on two quiet cores")
    if not options.estimate:
        stock = [lane for lane in planned if RUNNERS[lane.runner].is_stock]
        with ThreadPoolExecutor(options.lanes) as pool:  # several of a kind take from the same list of what lacks
            several = [lane for _ in range(options.lanes) for lane in stock]
            for done in [pool.submit(lane.run, results, say) for lane in several]:
                done.result()
        for lane in planned:
            if lane not in stock:
                lane.run(results, say)
    show(results)
    if options.write_docs:
        write_docs(results.document)


def summary(samples: Sequence[Mapping[str, Any]]) -> str:
    """Median and worst of a cell, and how often training never went on."""
    if not samples:
        return ""
    seconds = sorted(sample["seconds"] for sample in samples if sample["seconds"] is not None)
    never = len(samples) - len(seconds)
    text = f"{statistics.median(seconds):.2f} / {seconds[-1]:.2f}" if seconds else ""
    if never:
        text += f"{', ' if text else ''}never: {never} of {len(samples)}"
    return text


def phases(samples: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Median seconds of each phase, over the samples that tell it; a script that does not report its steps has none."""
    told = [
        {**sample["phases"], UNNOTICED: max(0.0, sample["seconds"] - sum(sample["phases"].values()))}
        for sample in samples
        if sample.get("phases")
    ]
    return {
        phase: statistics.median(seconds[phase] for seconds in told if phase in seconds)
        for phase in PHASES
        if any(phase in seconds for seconds in told)
    }


def verdict(runner: str, fault: str, samples: Sequence[Mapping[str, Any]]) -> str:
    """The goal, and whether it is reached."""
    goal = GOALS.get(runner, {}).get(fault)
    if goal is None or not samples:
        return ""
    seconds = [sample["seconds"] for sample in samples]
    if None in seconds:
        return f"{goal:g}: missed"
    reached = statistics.median(seconds) <= goal and max(seconds) <= 3 * goal
    return f"{goal:g}: {'reached' if reached else 'missed'}"


def show(results: Results) -> None:
    console = Console(width=None if sys.stdout.isatty() else 140)
    runners = [runner for runner in RUNNERS if results.cells.get(runner)]
    found = table("fault", *(RUNNERS[runner].title for runner in runners))
    for fault, title in FAULTS.items():
        found.add_row(title, *(summary(results.cells[runner].get(fault, [])) for runner in runners))
    console.print("seconds, median / worst")
    console.print(found)
    for runner in runners:
        if RUNNERS[runner].is_stock:
            continue
        parts = table(RUNNERS[runner].title, "goal", *PHASES)
        for fault, title in FAULTS.items():
            samples = results.cells[runner].get(fault, [])
            medians = phases(samples)
            told = (f"{medians[phase]:.3f}" if phase in medians else "" for phase in PHASES)
            parts.add_row(title, verdict(runner, fault, samples), *told)
        console.print(parts)


def write_docs(document: Mapping[str, Any]) -> None:
    """Put the tables between the markers in docs/benchmarks.md, in place of the old ones."""
    where = f"Measured on {document['when']}, {document['processors']} cores, Python {document['python']}"
    lines = [
        f"{where}; seconds, median / worst of {document['repeats']} or more. Goals are for the median;",
        f'the worst may be three times as long. More than {HANG:g} s, or a job that ends, is "never".',
    ]
    for num_agents, cells in sorted(document["agents"].items()):
        runners = [runner for runner in RUNNERS if cells.get(runner)]
        lines += ["", f"### {num_agents} nodes", ""]
        lines += [_row("fault", *(RUNNERS[runner].title for runner in runners)), _row(*["---"] * (len(runners) + 1))]
        for fault, title in FAULTS.items():
            lines.append(_row(title, *(_cell(runner, fault, cells[runner].get(fault, [])) for runner in runners)))
        for runner in runners:
            medians = {fault: found for fault in FAULTS if (found := phases(cells[runner].get(fault, [])))}
            told = [phase for phase in PHASES if any(phase in found for found in medians.values())]
            if told:
                lines += ["", f"Where the time goes, {RUNNERS[runner].title} (medians):", ""]
                lines += [_row("fault", *told), _row(*["---"] * (len(told) + 1))]
            for fault, found in medians.items():
                lines.append(_row(FAULTS[fault], *(f"{found[one]:.2f}" if one in found else "" for one in told)))
    text = DOCS.read_text()
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    DOCS.write_text(f"{before}{BEGIN}\n" + "\n".join(lines) + f"\n{END}{after}")


def _cell(runner: str, fault: str, samples: Sequence[Mapping[str, Any]]) -> str:
    told, goal = summary(samples), verdict(runner, fault, samples)
    return f"{told} (goal {goal})" if goal else told


def _row(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    main()
