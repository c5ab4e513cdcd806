"""How many steps are made again after a death, by 20 deaths of each kind: all workers, a node, and a node that is told.

    PYTHONPATH=.:tests/training .venv/bin/python benchmarks/work_lost.py             # make bench-work-lost
    PYTHONPATH=.:tests/training .venv/bin/python benchmarks/work_lost.py --repeats 3 --json lost.json

Real launchers and a real etcd on this computer; each launcher has a memory of its own, as each machine has. No
checkpoint is ever written, so whatever is found again was in memory. Goals: 0 steps on a notice, at most 1 on a
SIGKILL.
"""

import argparse
import json
import os
import signal
import sys
import tempfile
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Final

from local_agents import Agent, Etcd, Job, etcd_server
from results import measured, write_section
from rich.console import Console
from rich.table import Table
from test_training_replica_jobs import HOOKS, PLAIN, start, steps_lost, world

# As many deaths in a row as one likes.
OPTIONS: Final = ("--max-restarts=1000", "--restart-pause=0")
GOALS: Final = {"all workers SIGKILL": 1, "node SIGKILL": 1, "node told to go": 0}


def all_workers(job: Job, agents: list[Agent], generation: int) -> tuple[list[Agent], int, int]:
    """Kill all workers of both nodes at once; returns the agents, the next generation and the steps lost."""
    for event in world(job, 2, newer_than=generation):
        os.kill(event["pid"], signal.SIGKILL)
    now = max(event["generation"] for event in job.events("world"))
    after = world(job, 2, newer_than=now)
    return agents, now, steps_lost(job, after)


def node(job: Job, agents: list[Agent], generation: int) -> tuple[list[Agent], int, int]:
    """Kill a launcher and its worker; then another node comes."""
    world(job, 2, newer_than=generation)
    agents[0].signal_tree(signal.SIGKILL)
    return _without(job, agents)


def notice(job: Job, agents: list[Agent], generation: int) -> tuple[list[Agent], int, int]:
    """Tell a node to go; then another node comes."""
    world(job, 2, newer_than=generation)
    agents[0].process.send_signal(signal.SIGTERM)
    return _without(job, agents)


def _without(job: Job, agents: list[Agent]) -> tuple[list[Agent], int, int]:
    now = max(event["generation"] for event in job.events("world"))
    after = world(job, 1, newer_than=now)
    agents[0].wait()
    return (
        [*agents[1:], start(job, f"node-{len(job.agents)}", *OPTIONS)],
        after[0]["generation"],
        steps_lost(job, after),
    )


Accident = Callable[[Job, list[Agent], int], tuple[list[Agent], int, int]]
ACCIDENTS: Final[dict[str, tuple[str, Accident]]] = {
    "all workers SIGKILL": (HOOKS, all_workers),
    "node SIGKILL": (PLAIN, node),
    "node told to go": (HOOKS, notice),
}


def measure(name: str, etcd: Etcd, folder: Path, repeats: int) -> list[int]:
    """Steps lost by each of so many accidents."""
    script, accident = ACCIDENTS[name]
    (folder / "train.py").write_text(textwrap.dedent(script))
    job = Job(folder, etcd, ["train.py"], nnodes="1:2", run=folder.name)
    lost: list[int] = []
    try:
        agents = [start(job, f"node-{number}", *OPTIONS) for number in range(2)]
        generation = -1
        for _ in range(repeats):
            agents, generation, steps = accident(job, agents, generation)
            lost.append(steps)
            print(f"{name}: {steps} steps lost", file=sys.stderr, flush=True)
    finally:
        job.stop()
    return lost


def write_docs(results: dict[str, list[int]]) -> None:
    lines = [f"{measured()}.", "", "| accident | times | steps lost: worst | in all | goal |", "| --- " * 5 + "|"]
    for kind, lost in results.items():
        goal = GOALS[kind]
        verdict = "reached" if max(lost) <= goal else "missed"
        lines.append(f"| {kind} | {len(lost)} | {max(lost)} | {sum(lost)} | at most {goal}: {verdict} |")
    write_section("work lost", "\n".join(lines))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--repeats", type=int, default=20, help="accidents of each kind")
    parser.add_argument("--json", type=Path, help="write the results there")
    parser.add_argument("--write-docs", action="store_true", help="write the results to docs/benchmarks.md")
    args = parser.parse_args()
    results: dict[str, list[int]] = {}
    with tempfile.TemporaryDirectory(prefix="work-lost-") as name:
        root = Path(name)
        (root / "etcd").mkdir()
        with etcd_server(root / "etcd") as etcd:
            for number, kind in enumerate(ACCIDENTS):
                (root / f"job-{number}").mkdir()
                results[kind] = measure(kind, etcd, root / f"job-{number}", args.repeats)
    table = Table("accident", "times", "steps lost: worst", "all", "goal")
    for kind, lost in results.items():
        goal = GOALS[kind]
        verdict = f"{goal}: " + ("reached" if max(lost) <= goal else "missed")
        table.add_row(kind, str(len(lost)), str(max(lost)), " ".join(map(str, lost)), verdict)
    Console().print(table)
    if args.json:
        args.json.write_text(json.dumps(results, indent=1) + "\n")
    if args.write_docs:
        write_docs(results)
    return int(any(max(lost) > GOALS[kind] for kind, lost in results.items()))


if __name__ == "__main__":
    sys.exit(main())
