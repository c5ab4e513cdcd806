"""How long `pulumi preview` takes for the production cluster on AWS, beside an empty program in the same run.

    .venv/bin/python benchmarks/aws_preview.py --rounds 3 --json results.json

On the real engine, in a rehearsal of its own (stand-ins for AWS and the cluster on this computer, no account). Both
programs run in turn, so that a busy computer slows both. The preview of the cluster should take less than twice the
time of the empty program plus 3 s. Prints a table and writes JSON.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import platform
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import yaml
from rich.console import Console

from infra.cli.console import Steps, table
from infra.cli.workspace import RehearsedWorkspace
from infra.clusters import CHECKOUT, STATE_VARIABLE
from infra.engine import Engine
from infra.rehearsal.tools import write_project

STACK = "prod"
LIMIT_TIMES, LIMIT_PLUS_SECONDS = 2, 3
SETTLING_SECONDS = 15  # a control plane has much to do at first, which is not the previews' doing


def empty_program(beside: Engine, folder: Path) -> Engine:
    """The same engine with a program that declares nothing, in the same Python."""
    folder.mkdir()
    project = yaml.safe_load((beside.project / "Pulumi.yaml").read_text())
    (folder / "Pulumi.yaml").write_text(yaml.safe_dump({**project, "name": "empty", "main": "."}))
    (folder / "Pulumi.empty.yaml").write_text("config: {}\n")
    (folder / "__main__.py").write_text('"""Declares nothing."""\n')
    return dataclasses.replace(beside, project=folder, stack="empty")


def seconds(engine: Engine) -> tuple[float, int]:
    """Wall seconds of one preview, and how many resources it shows."""
    begin = time.monotonic()
    summary = engine.run("preview")
    return time.monotonic() - begin, sum(summary.changes.values())


def measure(rounds: int, folder: Path) -> dict[str, Any]:
    os.environ[STATE_VARIABLE] = str(folder / "state")
    workspace, steps = RehearsedWorkspace.open(STACK), Steps()
    times: dict[str, list[float]] = {"empty": [], STACK: []}
    resources = {}
    with workspace.changing(steps, wait=True):
        workspace.build_engines(steps)
        rehearsal = workspace.rehearsal(steps)
        try:
            rehearsal.up(workspace.region)
            time.sleep(SETTLING_SECONDS)
            write_project(workspace.state, STACK, CHECKOUT)
            engine = workspace.engine()
            engines = {"empty": empty_program(engine, folder / "empty"), STACK: engine}
            for number in range(rounds + 1):
                for name, each in engines.items():
                    took, resources[name] = seconds(each)
                    if number:  # the first round makes the stacks, and Python's byte code
                        times[name].append(took)
        finally:
            rehearsal.down()
    medians = {name: statistics.median(each) for name, each in times.items()}
    limit = LIMIT_TIMES * medians["empty"] + LIMIT_PLUS_SECONDS
    return {
        "processors": os.cpu_count(),
        "python": platform.python_version(),
        "when": time.strftime("%Y-%m-%d"),
        "rounds": rounds,
        "seconds": times,
        "median": medians,
        "resources": resources,
        "ratio": medians[STACK] / medians["empty"],
        "limit": limit,
        "within_limit": medians[STACK] < limit,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3, help="previews of each program that count (default 3)")
    parser.add_argument("--json", type=Path, help="also write the results to this file")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="ty-") as folder:
        results = measure(options.rounds, Path(folder))
    show(results)
    if options.json:
        options.json.write_text(json.dumps(results, indent=2) + "\n")


def show(results: dict[str, Any]) -> None:
    console = Console()
    times = table("program", "resources", "median", "all rounds")
    for name, median in results["median"].items():
        rounds = ", ".join(f"{each:.1f}" for each in results["seconds"][name])
        times.add_row(name, str(results["resources"][name]), f"{median:.1f} s", rounds)
    console.print(times)
    verdict = "within" if results["within_limit"] else "over"
    console.print(f"ratio {results['ratio']:.2f}; {verdict} the limit of {results['limit']:.1f} s", highlight=False)


if __name__ == "__main__":
    main()
