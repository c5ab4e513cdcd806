"""Notices of a cloud, many times: how many steps are lost, and how long it takes from the notice to the node's end.

    make bench-notices                                                     # 20 times each, about six minutes
    PYTHONPATH=.:tests/training .venv/bin/python benchmarks/notices.py --times 3

Real launchers on loopback, each with a stand-in of Amazon's metadata service, which is asked every 5 seconds: so a node
goes 0 to 5 s after its notice, and the time that it takes. Prints a table and writes JSON.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from local_agents import etcd_server
from notice_drill import Drill, Outcome, drill
from results import measured, write_section
from rich.console import Console

from infra.cli.console import table
from training.launch import exit_codes


def one_after_the_other(job: Drill, times: int) -> list[Outcome]:
    """A node comes, is wanted back and goes, while another stays."""
    stays = job.start()
    outcomes = []
    for _ in range(times):
        goes = job.start()
        job.wait_for_world(2)
        outcomes.append(job.reclaim_one(goes))
        say(outcomes[-1])
        job.wait_for_world(1)
    job.finish(stays)
    return outcomes


def all_together(job: Drill, times: int) -> list[Outcome]:
    """Both nodes are wanted back; two others go on from what was saved."""
    outcomes = []
    for _ in range(times):
        before = job.generation()
        nodes = [job.start(), job.start()]
        job.wait_for_world(2, newer_than=before)
        outcomes.append(job.reclaim_all(nodes))
        say(outcomes[-1])
    before = job.generation()
    last = job.start()
    job.wait_for_world(1, newer_than=before)
    job.finish(last)
    assert job.steps_made_twice() == []
    return outcomes


def say(outcome: Outcome) -> None:
    """Progress."""
    sys.stderr.write(f"{time.strftime('%H:%M:%S')} {outcome}\n")


def main(argv: Sequence[str] | None = None) -> int:
    """Run; 1 if a step was lost or a launcher did not end with 75."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--times", type=int, default=20, help="notices of each kind")
    parser.add_argument("--only", choices=("one", "all"), help="notices to one node of two, or to both")
    parser.add_argument("--json", type=Path, default=Path("build/notices.json"), metavar="FILE")
    parser.add_argument("--write-docs", action="store_true", help="write the results to docs/benchmarks.md")
    args = parser.parse_args(argv)
    outcomes: list[Outcome] = []
    with tempfile.TemporaryDirectory() as folder:
        for kind, run in (("one", one_after_the_other), ("all", all_together)):
            if args.only not in {None, kind}:
                continue
            place = Path(folder) / kind
            place.mkdir()
            with etcd_server(place) as etcd, drill(place, etcd) as job:
                outcomes += run(job, args.times)
    args.json.parent.mkdir(parents=True, exist_ok=True)
    args.json.write_text(json.dumps([asdict(outcome) for outcome in outcomes], indent=2))
    columns = ("notice", "times", "steps lost", "ended with 75", "median s", "longest s")
    shown = table(*columns)
    lines = [f"{measured()}.", "", f"| {' | '.join(columns)} |", "| --- " * len(columns) + "|"]
    for kind, title in (("one", "to one node of two"), ("all", "to both nodes")):
        of_kind = [outcome for outcome in outcomes if outcome.kind == kind]
        if not of_kind:
            continue
        seconds = [outcome.seconds for outcome in of_kind]
        saved = sum(outcome.code == exit_codes.PREEMPTED for outcome in of_kind)
        row = (
            title,
            str(len(of_kind)),
            str(sum(outcome.steps_lost for outcome in of_kind)),
            f"{saved} of {len(of_kind)}",
            f"{statistics.median(seconds):.1f}",
            f"{max(seconds):.1f}",
        )
        shown.add_row(*row)
        lines.append(f"| {' | '.join(row)} |")
    Console().print(shown)
    if args.write_docs:
        write_section("notices", "\n".join(lines))
    return int(any(outcome.steps_lost or outcome.code != exit_codes.PREEMPTED for outcome in outcomes))


if __name__ == "__main__":
    sys.exit(main())
