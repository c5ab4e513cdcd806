"""The benchmark of the controller in small: it measures what it says, and its jobs come and go as they should."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.engines

CHECKOUT = Path(__file__).parents[2]


def test_the_benchmark_measures_every_goal(tmp_path: Path) -> None:
    results = tmp_path / "results.json"
    sizes = {"workers": 50, "repeats": 1, "notices": 5, "jobs": 5, "size": 4, "idle": 1}
    done = subprocess.run(
        [
            sys.executable,
            "benchmarks/controller.py",
            f"--json={results}",
            *(f"--{name}={value}" for name, value in sizes.items()),
        ],
        cwd=CHECKOUT,
        env=os.environ | {"PYTHONPATH": os.pathsep.join([".", "tests/controller"])},
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    document = json.loads(results.read_text())
    (large,) = document["large"]
    assert 0 < large["created"] <= large["running"]
    assert large["deleted"] > 0
    # A call whose answer was lost is made again, so there may be more of them than pods.
    assert large["calls"]["create pods"] >= 50
    assert document["reclaims"]["calls"]["create pods"] >= document["reclaims"]["number"] >= 1
    assert document["many"]["calls"]["create pods"] >= 20
    assert "kubelets simulated by kwok" in done.stdout
    for goal in (
        "created, by the bare API server's time",
        "from a notice to the replacement, p99",
        "peak memory (MiB)",
    ):
        assert goal in done.stdout
