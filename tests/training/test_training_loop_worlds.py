"""World 1 -> 3 -> 2 -> 4 on real launchers, with kills, notices and a lost node in between: the model is that of one.

Compared with a run of one process that nothing disturbs: every step's loss, every parameter, every sample.
"""

import json
import os
import signal
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from local_agents import PATIENCE, ROOT, Agent, Etcd, Job, etcd_server, wait_for

from training.launch import exit_codes

pytestmark = [pytest.mark.engines, pytest.mark.timeout(1800)]

PROGRAM = Path(__file__).parent / "programs" / "loop_through_worlds.py"
NUM_SAMPLES, GLOBAL_BATCH = 96, 18


@pytest.fixture(scope="module")
def etcd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Etcd]:
    with etcd_server(tmp_path_factory.mktemp("etcd")) as server:
        yield server


def undisturbed(folder: Path, kind: str, num_steps: int) -> list[dict[str, Any]]:
    """The steps of one process alone."""
    folder.mkdir()
    base = {key: value for key, value in os.environ.items() if not key.startswith(("PET_", "TRAINYARD_"))}
    done = subprocess.run(
        [sys.executable, str(PROGRAM), kind, str(folder), str(num_steps)],
        env={**base, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=5 * PATIENCE,
        check=False,
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    events = [json.loads(line) for line in done.stdout.splitlines() if line.startswith('{"trainyard"')]
    return [event for event in events if event["trainyard"] == "step"]


def consumed(folder: Path) -> dict[int, Counter[int]]:
    """Samples of each step, of the newest world that made it."""
    attempts: dict[int, dict[int, Counter[int]]] = defaultdict(lambda: defaultdict(Counter))
    for path in folder.glob("ledger-*"):
        for line in path.read_text().splitlines():
            entry = json.loads(line)
            attempts[entry["step"]][entry["generation"]].update(entry["ids"])
    return {step: by_generation[max(by_generation)] for step, by_generation in sorted(attempts.items())}


@pytest.mark.parametrize("kind", ["map", "shards"])
def test_the_model_is_that_of_one_undisturbed_worker(tmp_path: Path, etcd: Etcd, kind: str) -> None:
    job = Job(tmp_path, etcd, [str(PROGRAM), kind, str(tmp_path)], nnodes="1:4", run=tmp_path.name)
    try:
        num_steps = go_through_worlds(job)
    finally:
        job.stop()
    alone = undisturbed(tmp_path / "alone", kind, num_steps)

    # A step that was begun anew has several lines; the newest world's counts.
    losses = {event["step"]: event["loss"] for event in sorted(job.events("step"), key=lambda e: e["generation"])}
    assert sorted(losses) == list(range(1, num_steps + 1))
    assert [losses[event["step"]] for event in alone] == pytest.approx([event["loss"] for event in alone], abs=1e-9)
    results = [json.loads((folder / "result.json").read_text()) for folder in (tmp_path, tmp_path / "alone")]
    assert is_close(*results)
    assert consumed(tmp_path) == consumed(tmp_path / "alone")
    whole_epochs = list(consumed(tmp_path).values())[: num_steps // 6 * 6]
    assert sum(whole_epochs, Counter()) == dict.fromkeys(range(NUM_SAMPLES), num_steps // 6)


def is_close(ours: Any, theirs: Any) -> bool:
    if isinstance(ours, list):
        return len(ours) == len(theirs) and all(map(is_close, ours, theirs))
    return bool(abs(ours - theirs) < 1e-9)


def start(job: Job, name: str) -> Agent:
    """A node whose pod has annotations, as the kubelet keeps them in a file."""
    file = job.folder / f"annotations-{name}"
    file.touch()
    return job.start(name, "--notices=kubernetes", environment={"TRAINYARD_POD_ANNOTATIONS": str(file)})


def annotate(job: Job, name: str, key: str, value: str) -> None:
    new = job.folder / "annotations.new"
    new.write_text(f'{key}="{value}"\n')
    new.replace(job.folder / f"annotations-{name}")


def go_through_worlds(job: Job) -> int:
    """All that happens to the job; returns how many steps it has made in the end."""
    world = 0

    def next_world(size: int) -> None:
        nonlocal world
        begun = job.wait_for_step(1, newer_than=world, world_size=size)
        world = job.wait_for_step(begun["step"] + 3, newer_than=world, world_size=size)["generation"]

    a = start(job, "a")
    next_world(1)
    b, c = start(job, "b"), start(job, "c")
    next_world(3)
    annotate(job, "b", "trainyard.dev/rebalance", "2030-05-04T03:02:01Z")
    saved = wait_for(
        lambda: [event for event in job.events("checkpoint") if event.get("at_notice")], "a save at the warning"
    )
    after = job.wait_for_step(saved[0]["step"] + 3, newer_than=world - 1)
    assert after["generation"] == world, "a warning saves, and all go on"
    os.kill(b.worker(), signal.SIGKILL)
    next_world(3)
    c.process.send_signal(signal.SIGTERM)
    assert c.wait() == exit_codes.PREEMPTED, job.tail()
    next_world(2)
    d, e = start(job, "d"), start(job, "e")
    next_world(4)
    d.signal_tree(signal.SIGKILL)
    next_world(3)
    reclaim_at = datetime.now(UTC) + timedelta(minutes=2)
    annotate(job, "a", "trainyard.dev/reclaim-at", reclaim_at.isoformat())  # it has been there from the beginning
    assert a.wait() == exit_codes.PREEMPTED, job.tail()
    next_world(2)
    (job.folder / "hurry").touch()
    (job.folder / "over").touch()
    assert [b.wait(), e.wait()] == [exit_codes.FINISHED] * 2, job.tail()
    (finished,) = job.events("finished")
    wait_for((job.folder / "result.json").exists, "the result")
    return int(finished["step"])
