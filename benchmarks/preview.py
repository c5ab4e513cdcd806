"""How long `make preview` takes: all stacks by rehearsal, with policies and cost, and where the time goes.

    PYTHONPATH=. .venv/bin/python benchmarks/preview.py --rounds 3 --json results.json

The aim is 20 s on two cores once the engines are there. On a computer that does other things as well the wall clock
says little: so the processor time of all parts is measured besides; half of it is the least that two cores could do.
Prints a table and writes JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import statistics
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import psutil
from rich.console import Console

from ci.preview import Wanted, preview
from ci.stacks import ROOT, stacks
from infra.cli.console import table

LIMIT_SECONDS = 20.0
_LOOK_SECONDS = 0.2
PROGRAMS = {  # by a part of the command line, the first that fits
    "pulumi.policy": "policy packs",
    "pulumi-language-python": "Pulumi programs (Python)",
    "infra.rehearsal.double": "AWS's stand-in for the engine",
    "pulumi-resource-kubernetes": "Kubernetes provider",
    "pulumi stack init": "engine, making stacks",
    "pulumi preview": "engine",
    "preview -s": "trainyard: start, report",
    "kube-apiserver": "API server",
    "etcd": "etcd",
    "moto.server": "moto",
}


class Watch(threading.Thread):
    """Looks at the processor time of our programs, wherever they were started, while they are there.

    Args:
        folder: named in the command line or the environment of each.
    """

    def __init__(self, folder: Path) -> None:
        super().__init__(daemon=True)
        self._folder = str(folder)
        self.ended = threading.Event()
        self._seen: dict[int, tuple[str, float]] = {}

    def run(self) -> None:
        """Look until told that it has ended."""
        while not self.ended.wait(_LOOK_SECONDS):
            for process in psutil.process_iter(["cmdline"]):
                command = " ".join(process.info["cmdline"] or ())
                program = next((name for part, name in PROGRAMS.items() if part in command), None)
                try:
                    if program and self._is_ours(process, command):
                        times = process.cpu_times()
                        self._seen[process.pid] = program, times.user + times.system
                except psutil.Error:
                    continue

    def _is_ours(self, process: psutil.Process, command: str) -> bool:
        return any(self._folder in text for text in (command, process.cwd(), str(process.environ())))

    @property
    def seconds(self) -> dict[str, float]:
        """By program, the greatest first; what a program did in its last moments is not in it."""
        found = dict.fromkeys(PROGRAMS.values(), 0.0)
        for program, seconds in self._seen.values():
            found[program] += seconds
        return dict(sorted(found.items(), key=lambda one: -one[1]))


def once(folder: Path) -> dict[str, Any]:
    """One round; all that it starts has its temporary files below the folder."""
    tempfile.tempdir = os.environ["TMPDIR"] = str(folder)
    timings: dict[str, float] = {}
    chosen = [one for one in stacks(ROOT) if one["target"] != "kubeconfig"]
    watch, before, begin = Watch(folder), _processor(), time.monotonic()
    watch.start()
    results = preview(Wanted(chosen, folder / "out", "rehearsal", 4), timings)
    seconds = time.monotonic() - begin
    watch.ended.set()
    watch.join()
    for one in results:
        if not (one.document or {}).get("complete"):
            raise SystemExit(f"the preview of {one.stack} is not complete, so that its time says nothing: {one.log}")
    return {
        "seconds": seconds,
        "parts": timings,
        "stacks": {one.stack: one.seconds for one in results},
        "resources": {one.stack: sum((one.document or {})["changes"].values()) for one in results},
        "processor_seconds": _processor() - before,
        "programs": watch.seconds,
        "load_before": os.getloadavg()[0],
    }


def _processor() -> float:
    """Seconds of processor time of this process and of what it has waited for."""
    used = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(each.ru_utime + each.ru_stime for each in used)


def measure(rounds: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="ty-") as folder:
        once(Path(folder))  # makes the byte code
        found = [once(Path(folder)) for _ in range(rounds)]
    median = statistics.median(one["seconds"] for one in found)
    return {
        "processors": os.cpu_count(),
        "python": platform.python_version(),
        "when": time.strftime("%Y-%m-%d"),
        "rounds": found,
        "median": median,
        "best": min(one["seconds"] for one in found),
        "median_processor_seconds": statistics.median(one["processor_seconds"] for one in found),
        "limit": LIMIT_SECONDS,
        "within_limit": median <= LIMIT_SECONDS,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3, help="rounds that count (default 3)")
    parser.add_argument("--json", type=Path, help="also write the results to this file")
    options = parser.parse_args()
    results = measure(options.rounds)
    show(results)
    if options.json:
        options.json.write_text(json.dumps(results, indent=2) + "\n")


def show(results: dict[str, Any]) -> None:
    console = Console()
    shown = table("part", "median", "all rounds")
    rounds = results["rounds"]
    parts = {f"{name}": [one["parts"][name] for one in rounds] for name in rounds[0]["parts"]}
    parts |= {f"  {name}": [one["stacks"][name] for one in rounds] for name in rounds[0]["stacks"]}
    parts["all"] = [one["seconds"] for one in rounds]
    parts["processor, all parts"] = [one["processor_seconds"] for one in rounds]
    parts["load before"] = [one["load_before"] for one in rounds]
    for name, values in parts.items():
        shown.add_row(name, f"{statistics.median(values):.1f}", ", ".join(f"{one:.1f}" for one in values))
    console.print(shown)
    programs = table("program", "processor seconds, median", "all rounds")
    for name in rounds[0]["programs"]:
        values = [one["programs"][name] for one in rounds]
        programs.add_row(name, f"{statistics.median(values):.1f}", ", ".join(f"{one:.1f}" for one in values))
    console.print(programs)
    verdict = "within" if results["within_limit"] else "over"
    console.print(f"{results['median']:.1f} s: {verdict} the limit of {results['limit']:.0f} s", highlight=False)


if __name__ == "__main__":
    main()
