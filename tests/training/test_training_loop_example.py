"""A stock DDP script and the same with the loop: few lines differ, the loss does not; a killed worker is survived."""

import difflib
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from local_agents import PATIENCE, ROOT, Job, etcd_server

from training.launch import exit_codes

EXAMPLES = ROOT / "training" / "examples"
PAGE = ROOT / "docs" / "how-to" / "loop.md"
STOCK, CONVERTED = "training.examples.stock_ddp", "training.examples.loop_ddp"
# Accidents need time; when all has happened, the rest is made without pauses.
PACED = """
import os, runpy, time
from training.loop import Loop
step = Loop.step
def slow(loop):
    if not os.path.exists("hurry"):
        time.sleep(0.1)
    return step(loop)
Loop.step = slow
runpy.run_module("training.examples.loop_ddp", run_name="__main__", alter_sys=True)
"""


def changes() -> list[str]:
    """Lines of the function that are taken out (-) or put in (+)."""
    stock, converted = (
        (EXAMPLES / f"{name.rpartition('.')[2]}.py").read_text().partition("def main()")[2].splitlines()
        for name in (STOCK, CONVERTED)
    )
    lines = difflib.unified_diff(stock, converted, n=0, lineterm="")
    return [line for line in lines if re.match(r"[+-](?![+-])\s*\S", line)]


def test_about_ten_lines_are_changed_and_the_page_shows_them() -> None:
    added = [line for line in changes() if line.startswith("+")]
    assert len(added) <= 10, added
    shown = {line.replace(" ", "") for line in PAGE.read_text().splitlines()}
    assert [line for line in changes() if line.replace(" ", "") not in shown] == []


def loss_of(output: str) -> float:
    (found,) = re.findall(r"^loss over all images: ([\d.]+)$", output, re.MULTILINE)
    return float(found)


def run(folder: Path, module: str, num_workers: int) -> float:
    folder.mkdir()
    done = subprocess.run(
        [sys.executable, "-m", "training", "--standalone", f"--nproc-per-node={num_workers}", "-m", module],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=2 * PATIENCE,
        check=False,
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return loss_of(done.stdout)


def test_the_converted_script_has_the_loss_that_it_had(tmp_path: Path) -> None:
    """In 32 bits; sums are rounded differently for other numbers of workers."""
    before = run(tmp_path / "stock", STOCK, 2)
    assert before < 0.2
    assert run(tmp_path / "two", CONVERTED, 2) == pytest.approx(before, rel=1e-3)
    assert run(tmp_path / "three", CONVERTED, 3) == pytest.approx(before, rel=1e-3)


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Job]:
    (tmp_path / "paced.py").write_text(PACED)
    with etcd_server(tmp_path) as etcd:
        job = Job(tmp_path, etcd, ["paced.py"], nnodes="1:2", run=tmp_path.name, preload="numpy,sklearn.datasets")
        yield job
        job.stop()


@pytest.mark.engines
@pytest.mark.timeout(900)
def test_the_converted_script_survives_a_killed_worker(job: Job) -> None:
    first, second = job.start("first"), job.start("second")
    world = job.wait_for_step(10, world_size=2)["generation"]
    os.kill(second.worker(), signal.SIGKILL)
    job.wait_for_step(10, newer_than=world, world_size=2)
    (job.folder / "hurry").touch()
    assert [first.wait(), second.wait()] == [exit_codes.FINISHED] * 2, job.tail()
    output = first.log.read_text() + second.log.read_text()
    assert loss_of(output) == pytest.approx(loss_of(run_alone(job.folder / "alone")), rel=1e-3)


def run_alone(folder: Path) -> str:
    folder.mkdir()
    return subprocess.run(
        [sys.executable, "-m", CONVERTED],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=2 * PATIENCE,
        check=True,
    ).stdout
