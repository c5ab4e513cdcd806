"""How long the whole path takes on this computer, and how much memory it holds.

    .venv/bin/python benchmarks/local_stack.py --json results.json

In a state folder of its own: `up` from nothing but built engines, with the example job through a reclaimed spot node;
`up` again; memory of each process; `down`. Prints a table and writes JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from rich.console import Console

from infra.cli.console import table

TRAINYARD = Path(sys.executable).with_name("trainyard")


def run(environment: dict[str, str], *arguments: str) -> tuple[float, dict[str, Any]]:
    """Wall seconds and JSON document of one command."""
    begin = time.monotonic()
    done = subprocess.run(
        [str(TRAINYARD), *arguments, "--json"], env=environment, capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        sys.exit(f"trainyard {' '.join(arguments)} failed:\n{done.stderr}")
    return time.monotonic() - begin, json.loads(done.stdout)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="also write the results to this file")
    options = parser.parse_args()
    results: dict[str, Any] = {
        "processors": os.cpu_count(),
        "python": platform.python_version(),
        "when": time.strftime("%Y-%m-%d"),
    }
    with tempfile.TemporaryDirectory(prefix="ty-") as folder:
        environment = {**os.environ, "TRAINYARD_STATE_DIR": f"{folder}/state"}
        try:
            results["first_up"], first = run(environment, "up", "--with-example")
            results["first_up_steps"] = first["steps"]
            results["drill"] = first["example"]["drill"]
            results["second_up"], _ = run(environment, "up", "--with-example")
            _, status = run(environment, "status")
            results["memory_mib"] = {part["name"]: part["memory_mib"] for part in status["processes"]}
        finally:
            results["down"], _ = run(environment, "down", "--yes")
    show(results)
    if options.json:
        options.json.write_text(json.dumps(results, indent=2) + "\n")


def show(results: dict[str, Any]) -> None:
    console = Console()
    times = table("step", "seconds")
    for step in results["first_up_steps"]:
        times.add_row(f"first up: {step['step']}", f"{step['seconds']:.1f}")
    for name in ("first_up", "second_up", "down"):
        times.add_row(f"{name.replace('_', ' ')}, wall", f"{results[name]:.1f}")
    console.print(times)
    memory = table("process", "MiB")
    for name, mib in results["memory_mib"].items():
        memory.add_row(name, f"{mib}")
    memory.add_row("total", f"{sum(results['memory_mib'].values())}")
    console.print(memory)
    console.print(f"drill: {results['drill']}")


if __name__ == "__main__":
    main()
