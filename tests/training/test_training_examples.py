"""The examples learn something from real data, in a few steps."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from training.examples.characters import Windows, load_text

ROOT = Path(__file__).parents[2]
PATIENCE = 240.0


def finished(folder: Path, module: str, *options: str) -> dict[str, Any]:
    """The last word of an example."""
    done = subprocess.run(
        [sys.executable, "-m", f"training.examples.{module}", f"--checkpoints={folder}", *options],
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    events = [json.loads(line) for line in done.stdout.splitlines() if line.startswith('{"trainyard"')]
    return next(event for event in events if event["trainyard"] == "finished")


@pytest.mark.timeout(600)
def test_a_transformer_writes_better_than_by_chance(tmp_path: Path) -> None:
    """By chance a character costs ln(90) = 4.5."""
    assert finished(tmp_path, "characters", "--steps=40")["loss"] < 3.6


@pytest.mark.timeout(600)
def test_a_residual_network_knows_digits(tmp_path: Path) -> None:
    assert finished(tmp_path, "images", "--epochs=3")["accuracy"] > 0.3


def test_the_text_is_prose_that_a_package_ships() -> None:
    text, alphabet = load_text()
    assert len(text) > 20_000
    assert {"e", " ", "\n"} <= set(alphabet)
    first, following = Windows(text, 10)[0]
    assert first[1:].tolist() == following[:-1].tolist()
    words = "".join(alphabet[number] for number in text.tolist())
    assert "data" in words
