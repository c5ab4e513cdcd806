"""Random faults on a real job for a long time, and what must hold nevertheless (tests/training/accidents.py).

    make bench-chaos                                                                   # 200 faults, about 25 minutes
    PYTHONPATH=.:tests/training .venv/bin/python benchmarks/chaos.py --seed 7 --faults 20 --json chaos.json

Workers, launchers and whole nodes are killed, frozen, told to go and cut off, nodes join, etcd is restarted; one after
the other, and often before the job has recovered from the one before. Where network namespaces are not allowed
partitions are left out, and it says so. With the same seed the same faults are chosen. Prints a table and writes JSON;
the exit code is 1 if anything was wrong, and then the logs are kept.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import random
import shutil
import signal
import sys
import tempfile
from pathlib import Path

import namespaces
from accidents import FAULTS, Chaos, Plan, Report
from rich.console import Console

from infra.cli.console import table


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, help="of the choices; without it, one is chosen and printed")
    parser.add_argument("--faults", type=int, default=200, help="how many; %(default)s")
    parser.add_argument("--least", type=int, default=2, help="nodes of a world, at least; %(default)s")
    parser.add_argument("--most", type=int, default=3, help="nodes of a world, at most; %(default)s")
    parser.add_argument("--program", default="elastic_ddp.py", help="script in tests/training/programs; %(default)s")
    parser.add_argument("--hang", type=float, default=60.0, help="seconds without a step that are wrong; %(default)s")
    parser.add_argument("--json", type=Path, help="also write the results to this file")
    options = parser.parse_args()
    seed = options.seed if options.seed is not None else random.randrange(10**6)  # noqa: S311 - no secret
    plan = Plan(
        seed=seed,
        num_faults=options.faults,
        least=options.least,
        most=options.most,
        launchers=options.most + 1,
        program=options.program,
        hang=options.hang,
    )
    say(f"seed {seed}")
    if reason := namespaces.why_not():
        say(f"LEFT OUT: partitions; {reason}")
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that nothing stays behind
    folder = Path(tempfile.mkdtemp(prefix="ty-"))
    with contextlib.nullcontext() if reason else namespaces.network() as network:
        report = Chaos(folder, plan, network, say).run()
    show(report)
    if options.json:
        options.json.write_text(json.dumps(report.as_json(), indent=1) + "\n")
    if report.problems:
        say(f"logs: {folder}")
        return 1
    shutil.rmtree(folder)
    return 0


def say(text: str) -> None:
    sys.stderr.write(f"{text}\n")


def show(report: Report) -> None:
    console = Console()
    found = table("fault", "times")
    for fault in FAULTS:
        found.add_row(fault, str(report.faults[fault]))
    console.print(found)
    console.print(
        f"seed {report.plan.seed}: {report.num_steps} steps in {report.num_worlds} worlds, {report.seconds:.0f} s; "
        f"longest time without a step: {report.longest_pause:.1f} s"
    )
    for problem in report.problems:
        console.print(f"PROBLEM: {problem}")


if __name__ == "__main__":
    sys.exit(main())
