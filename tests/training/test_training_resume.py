"""The script of docs/how-to/data-and-checkpoints.md, as it stands there: the model is the same for every world size."""

import os
import re
import subprocess
import sys
from pathlib import Path

import torch

from training.checkpoint.folder import CheckpointFolder

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "how-to" / "data-and-checkpoints.md"
PATIENCE = 240.0
NUM_STEPS = 17  # more than two epochs of seven steps; the last of each is smaller


def run(script: Path, checkpoints: Path, num_steps: int, num_workers: int) -> None:
    launcher = ["-m", "training", "--standalone", "--nproc-per-node", str(num_workers)]
    done = subprocess.run(
        [sys.executable, *launcher, str(script), str(checkpoints), str(num_steps)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"


def weights(checkpoints: Path) -> torch.Tensor:
    newest = CheckpointFolder(checkpoints).newest()
    assert newest is not None
    assert newest.step == NUM_STEPS
    return torch.cat([value.flatten() for value in newest.load()["model"].values()])


def test_one_worker_then_two_then_three_end_with_the_model_of_one(tmp_path: Path) -> None:
    """Real DDP, loader processes, accumulation; ranks with unlike numbers of micro-batches."""
    script = tmp_path / "train.py"
    script.write_text(re.search(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)[1])  # type: ignore[index]

    run(script, tmp_path / "alone", NUM_STEPS, 1)
    for num_steps, num_workers in ((6, 1), (11, 3), (NUM_STEPS, 2)):
        run(script, tmp_path / "changing", num_steps, num_workers)

    assert torch.max(torch.abs(weights(tmp_path / "changing") - weights(tmp_path / "alone"))).item() < 1e-9
