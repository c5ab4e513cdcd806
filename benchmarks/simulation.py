"""How near the simulator is to a real run: one job lives through a trace that is compressed in time.

    PYTHONPATH=.:tests/training .venv/bin/python benchmarks/simulation.py                  # make bench-simulation
    PYTHONPATH=.:tests/training .venv/bin/python benchmarks/simulation.py --seconds 100 --only notice

Every eighth machine of a published trace (at most three at a time) is a real launcher with a worker on this computer. A
machine that comes is started; one that is lost is told (SIGTERM), or killed without a word. The trace's ten hours pass
in some minutes. Before that, a run of its own measures what a step, a join, a loss and a start take; the simulator gets
these figures and the trace, nothing of the run that it is compared with. Steps sleep for the time that a GPU would
compute, so that three workers on two cores do not wait for each other. Goal: goodput within 5 % of what was measured.
"""

from __future__ import annotations

import argparse
import csv
import itertools
import json
import os
import platform
import shutil
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final

from local_agents import Agent, Etcd, Job, etcd_server, wait_for
from rich.console import Console

from infra.cli.console import table
from infra.simulation.replay import Course, Outcome, simulate
from infra.simulation.trace import Change, Trace
from training.metrics.goodput import Goodput, account

ROOT: Final = Path(__file__).parents[1]
TRACE: Final = ROOT / "benchmarks/traces/bamboo/g4dn-trace.csv"
DOCS: Final = ROOT / "docs/benchmarks.md"
BEGIN, END = "<!-- simulation: written by `make bench-simulation` -->", "<!-- end of simulation -->"
GOAL: Final = 0.05
EVERY, FIRST = 8, 1  # machines whose number leaves this rest
SAVE_EVERY: Final = 100
SETTLED: Final = 15  # steps of a world that a measurement takes
KINDS: Final = {"notice": "with a notice", "death": "without a word"}

SCRIPT: Final = f"""
import time, torch
from pathlib import Path
from torch import nn
from torch.utils.data import TensorDataset
from training.loop import Loop

torch.manual_seed(1)
inputs = torch.randn(4096, 6)
model = nn.Linear(6, 1)
loop = Loop(Path("checkpoints"), save_every={SAVE_EVERY}, log_every=1)
loop.setup(model, torch.optim.SGD(model.parameters(), lr=0.01), TensorDataset(inputs, inputs.sum(1, keepdim=True)),
           global_batch=24, micro_batch=24, steps=10_000_000)

def train(network):
    for samples, wanted in loop.batches():
        loss = ((network(samples) - wanted) ** 2).mean()
        time.sleep(0.015 * len(samples))
        loop.backward(loss)
        loop.step()

loop.run(train)
"""


@dataclass(frozen=True)
class Machine:
    """When one machine of the trace comes, and when it is lost; seconds of the run."""

    name: str
    comes: float
    goes: float | None


@dataclass(frozen=True)
class Figures:
    """What a run of its own has measured, in seconds."""

    step: float
    """Useful time of a step with one worker."""
    scaling: float
    between: float
    lost: float
    """From the last step before a machine was lost to the first in the world after it, less that step."""
    join: float
    node_start: float
    start: float
    stall: float


@dataclass(frozen=True)
class Compared:
    """A real run beside the simulation of it."""

    kind: str
    seconds: float
    measured: float
    simulated: float
    steps: int
    simulated_steps: int
    losses: Mapping[str, float]
    simulated_losses: Mapping[str, float]
    machines_lost: int
    figures: Figures

    @property
    def error(self) -> float:
        """Of the simulated goodput, as a share of the measured one."""
        return self.simulated / self.measured - 1


def machines_of(path: Path, seconds: float) -> list[Machine]:
    """Every eighth machine of the trace, compressed into so many seconds."""
    rows = [(int(ms), what, name) for ms, what, name in csv.reader(path.read_text().splitlines())]
    first = min(ms for ms, _, name in rows if _is_ours(name))
    scale = seconds / (rows[-1][0] - first)
    comes = {name: (ms - first) * scale for ms, what, name in rows if what == "add"}
    goes = {name: (ms - first) * scale for ms, what, name in rows if what == "remove"}
    return [Machine(name, at, goes.get(name)) for name, at in comes.items() if _is_ours(name)]


def _is_ours(name: str) -> bool:
    return int(name.removeprefix("node")) % EVERY == FIRST


def trace_of(machines: Sequence[Machine], seconds: float) -> Trace:
    """The same machines as the simulator sees them."""
    moments: dict[float, list[int]] = {}
    for machine in machines:
        moments.setdefault(machine.comes, [0, 0])[1] += 1
        if machine.goes is not None:
            moments.setdefault(machine.goes, [0, 0])[0] += 1
    return Trace(tuple(Change(at, *moments[at]) for at in sorted(moments)), seconds)


def job_in(folder: Path, etcd: Etcd) -> Job:
    folder.mkdir()
    (folder / "train.py").write_text(SCRIPT)
    return Job(folder, etcd, ["train.py"], nnodes="1:8", run=folder.name, preload="numpy,torch")


def start(job: Job, name: str) -> Agent:
    return job.start(name, "--max-restarts=1000", "--restart-pause=0", "--shutdown-timeout=30")


def take(agent: Agent, kind: str) -> None:
    """A machine is lost: it is told, or it is gone."""
    if kind == "notice":
        agent.process.send_signal(signal.SIGTERM)
    else:
        agent.signal_tree(signal.SIGKILL)


def steps_of(job: Job) -> list[dict[str, Any]]:
    """All steps of all worlds, by time."""
    return [event for event in job.events("step") if "seconds" in event]


def calibrate(folder: Path, etcd: Etcd, kind: str, rounds: int) -> Figures:
    """Measure what the simulator is to be told, by machines that come and go one by one."""
    job = job_in(folder, etcd)
    try:
        joins, losses, latencies, starts = [], [], [], []
        for turn in range(rounds):
            agents: list[Agent] = []
            for place in range(3):
                asked, known = time.time(), len(steps_of(job))
                agents.append(start(job, f"node-{turn}-{place}"))
                first = _settled(job, place + 1, known)
                if place:
                    before = [event for event in steps_of(job) if event["time"] < first["time"]][-1]
                    joins.append(_gap(before, first))
                    latencies.append(before["time"] - asked)
                else:
                    starts.append(first["time"] - asked - _useful(first))
            for place in range(2, 0, -1):
                known = len(steps_of(job))
                at = time.time()
                take(agents[place], kind)
                first = _settled(job, place, known, after=at)
                before = [event for event in steps_of(job) if event["time"] < first["time"]][-1]
                # A death ends a step in its middle, which is made again: the simulator has that half apart.
                losses.append(_gap(before, first) - (kind == "death") * _useful(before) / 2)
                agents[place].wait()
            agents[0].signal_tree(signal.SIGKILL)
            agents[0].wait()
        steps = steps_of(job)
        useful = {
            world: statistics.median(_useful(step) for step in steps if step["world_size"] == world)
            for world in (1, 2, 3)
        }
        # useful(world) = serial + parallel / world, by least squares.
        mean_x, mean_y = statistics.mean(1 / world for world in useful), statistics.mean(useful.values())
        parallel = sum((1 / world - mean_x) * (one - mean_y) for world, one in useful.items())
        parallel /= sum((1 / world - mean_x) ** 2 for world in useful)
        serial = max(0.0, mean_y - parallel * mean_x)
        gaps = [
            _gap(before, after) - before["seconds"].get("checkpoint", 0.0)
            for before, after in itertools.pairwise(steps)
            if before["generation"] == after["generation"]
        ]
        node_start = statistics.median(latencies)
        return Figures(
            step=serial + parallel,
            scaling=parallel / (serial + parallel),
            between=statistics.mean(gap for gap in gaps if gap < 0.1),
            lost=statistics.median(losses),
            join=statistics.median(joins),
            node_start=node_start,
            start=max(0.0, statistics.median(starts) - node_start),
            stall=statistics.mean(
                [one["seconds"]["checkpoint"] for one in steps if "checkpoint" in one["seconds"]] or [0]
            ),
        )
    finally:
        job.stop()


def _settled(job: Job, world: int, known: int, after: float = 0.0) -> dict[str, Any]:
    """Wait until a world of this size has made some steps; returns its first one."""

    def found() -> dict[str, Any] | None:
        new = [one for one in steps_of(job)[known:] if one["world_size"] == world and one["time"] > after]
        if not new:
            return None
        newest = [one for one in new if one["generation"] == new[-1]["generation"]]
        return newest[0] if len(newest) >= SETTLED else None

    first: dict[str, Any] = wait_for(found, f"{SETTLED} steps of {world} workers: {job.tail()}")
    return first


def _useful(step: Mapping[str, Any]) -> float:
    return sum(float(step["seconds"].get(part, 0.0)) for part in ("forward", "backward", "sync", "optimizer"))


def _gap(before: Mapping[str, Any], after: Mapping[str, Any]) -> float:
    """Between two steps, less the useful time of the second."""
    return float(after["time"] - before["time"]) - _useful(after)


def live(folder: Path, etcd: Etcd, kind: str, machines: Sequence[Machine], seconds: float) -> tuple[Goodput, float]:
    """Let a job live through the trace; returns its account, and the seconds from the first machine to the end."""
    job = job_in(folder, etcd)
    moments = [(machine.comes, "comes", machine.name) for machine in machines]
    moments += [(machine.goes, "goes", machine.name) for machine in machines if machine.goes is not None]
    try:
        agents: dict[str, Agent] = {}
        begin, wall = time.monotonic(), time.time()
        for at, what, name in sorted(moments):
            time.sleep(max(0.0, begin + at - time.monotonic()))
            say(f"{kind}: {at:6.1f} s  {name} {what}")
            if what == "comes":
                agents[name] = start(job, name)
            else:
                take(agents[name], kind)
        time.sleep(max(0.0, begin + seconds - time.monotonic()))
        for agent in job.agents:
            agent.signal_tree(signal.SIGKILL)
        told = [event for agent in job.agents for event in agent.events()]
        within = [event for event in told if event["time"] <= wall + seconds]
        return account(within), seconds
    finally:
        job.stop()


def course_of(figures: Figures, trace: Trace, kind: str, seconds: float) -> Course:
    """What the simulator is told."""
    return Course(
        steps=10**9,
        step_seconds=figures.step,
        between_seconds=figures.between,
        step_workers=1,
        scaling=figures.scaling,
        min_workers=1,
        max_workers=max(trace.most, 1),
        on_demand=0,
        traces=(trace,),
        speeds=(1.0,),
        notice=30.0 if kind == "notice" else 0.0,
        node_starts=(figures.node_start,),
        checkpoint_every=SAVE_EVERY,
        checkpoint_stall=figures.stall,
        checkpoint_save=1.0,
        recovery_notice=figures.lost,
        recovery_death=figures.lost,
        recovery_join=figures.join,
        recovery_start=figures.start,
        most_seconds=seconds,
    )


def compare(folder: Path, etcd: Etcd, kind: str, seconds: float, rounds: int) -> Compared:
    machines = machines_of(TRACE, seconds)
    figures = calibrate(folder / f"calibration-{kind}", etcd, kind, rounds)
    say(f"{kind}: {figures}")
    outcome: Outcome = simulate(course_of(figures, trace_of(machines, seconds), kind, seconds))
    found, wall = live(folder / f"run-{kind}", etcd, kind, machines, seconds)
    measured = replace(found, wall=wall)
    return Compared(
        kind=kind,
        seconds=wall,
        measured=measured.share,
        simulated=outcome.goodput,
        steps=measured.steps,
        simulated_steps=outcome.steps,
        losses={name: round(value, 2) for name, value in measured.losses.items()},
        simulated_losses={name: round(value, 2) for name, value in outcome.losses.items()},
        machines_lost=outcome.reclaimed,
        figures=figures,
    )


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def write_docs(results: Sequence[Compared]) -> None:
    """Put the table between the markers in docs/benchmarks.md, in place of the old one."""
    load = os.getloadavg()[1]
    lines = [
        f"Measured on {time.strftime('%Y-%m-%d')}, {os.cpu_count()} cores, Python {platform.python_version()};",
        f"every eighth machine of Bamboo's g4dn trace, ten hours in {results[0].seconds:.0f} s; load {load:.0f}.",
        f"Goal: goodput within {GOAL:.0%}.",
        "",
        "| machines go | lost | goodput measured | simulated | differs by | steps measured | simulated |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    lines += [
        f"| {KINDS[one.kind]} | {one.machines_lost} | {one.measured:.1%} | {one.simulated:.1%} | {one.error:+.1%}:"
        f" {'reached' if abs(one.error) <= GOAL else 'missed'} | {one.steps} | {one.simulated_steps} |"
        for one in results
    ]
    text = DOCS.read_text()
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    DOCS.write_text(f"{before}{BEGIN}\n" + "\n".join(lines) + f"\n{END}{after}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=150, help="how long the trace takes; %(default)s")
    parser.add_argument("--rounds", type=int, default=3, help="of the measurement before; %(default)s")
    parser.add_argument("--only", choices=tuple(KINDS), help="one way in which machines go")
    parser.add_argument("--json", type=Path, default=ROOT / "build" / "simulation.json", help="results; %(default)s")
    parser.add_argument("--write-docs", action="store_true", help="write the table into docs/benchmarks.md")
    options = parser.parse_args()
    root = Path(tempfile.mkdtemp(prefix="simulation-"))
    try:
        (root / "etcd").mkdir()
        with etcd_server(root / "etcd") as etcd:
            kinds = [options.only] if options.only else list(KINDS)
            results = [compare(root, etcd, kind, options.seconds, options.rounds) for kind in kinds]
    finally:
        shutil.rmtree(root)
    shown = table("machines go", "lost", "measured", "simulated", "differs by", "steps", "simulated steps")
    for one in results:
        shown.add_row(
            KINDS[one.kind],
            str(one.machines_lost),
            f"{one.measured:.1%}",
            f"{one.simulated:.1%}",
            f"{one.error:+.1%}",
            str(one.steps),
            str(one.simulated_steps),
        )
    Console(width=None if sys.stdout.isatty() else 140).print(shown)
    options.json.parent.mkdir(exist_ok=True)
    options.json.write_text(json.dumps([asdict(one) for one in results], indent=1) + "\n")
    if options.write_docs:
        write_docs(results)
    return int(any(abs(one.error) > GOAL for one in results))


if __name__ == "__main__":
    sys.exit(main())
