"""The loop over several real ranks computes what one computes: steps, metrics, evaluations, with uneven ends."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
PROGRAM = Path(__file__).parent / "programs" / "loop_over_ranks.py"
PATIENCE = 240.0


def results(folder: Path, num_ranks: int) -> tuple[dict[str, Any], list[float]]:
    """The program's result, and the losses of its steps."""
    done = subprocess.run(
        [sys.executable, "-m", "training", "--standalone", "--nproc-per-node", str(num_ranks), str(PROGRAM)],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    found = re.search(r"^RESULT (.*)$", done.stdout, re.MULTILINE)
    assert found
    events = [json.loads(line) for line in done.stdout.splitlines() if line.startswith('{"trainyard"')]
    return json.loads(found[1]), [event["loss"] for event in events if event["trainyard"] == "step"]


def test_three_ranks_compute_what_one_computes(tmp_path: Path) -> None:
    """The last step of an epoch has 7 samples, the second evaluation 2: for three ranks no even share of either."""
    alone, losses_alone = results(tmp_path, 1)
    together, losses = results(tmp_path, 3)
    assert losses == pytest.approx(losses_alone, abs=1e-12)
    assert len(losses) == 8
    assert together["tokens"] == alone["tokens"]
    assert together["weights"] == pytest.approx(alone["weights"], abs=1e-12)
    assert together["evaluation"] == pytest.approx(alone["evaluation"], abs=1e-9)
    assert together["figures"] == pytest.approx(alone["figures"], abs=1e-6)
