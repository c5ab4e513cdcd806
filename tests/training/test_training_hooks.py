"""Scripts with hooks on real launchers and a real etcd: who survives keeps process and model, and no step is lost."""

import json
import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest
from local_agents import ROOT, Agent, Etcd, Job, etcd_server, wait_for

from training.launch import exit_codes

pytestmark = [pytest.mark.engines, pytest.mark.timeout(900)]

# A model whose arithmetic is exact: whole numbers, and a step that divides by a power of two. So it is the same to the
# last bit for every number of workers, and after every accident. It stops when the test says so, wherever it is then.
SCRIPT = """
    import json, os, sys, time
    from pathlib import Path
    import torch
    from torch.nn.parallel import DistributedDataParallel
    from training.launch import elastic
    from training.metrics.progress import emit

    BATCH, WIDTH = 24, 8
    class Exact(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = torch.nn.Parameter(torch.zeros(WIDTH, dtype=torch.float64))
            self.register_buffer("num_forward", torch.zeros(1, dtype=torch.int64))
        def forward(self, samples):
            self.num_forward += 1
            return (self.weight * samples).sum()

    def samples(ids):
        return torch.stack([(torch.arange(WIDTH) * (number % 97) % 13).double() for number in ids])

    def train(world, state):
        network = DistributedDataParallel(model, broadcast_buffers=False)
        emit("world", rank=world.rank, world_size=world.size, generation=world.generation, pid=os.getpid())
        while not state.is_over:
            ids = range(state.consumed, state.consumed + BATCH)
            loss = network(samples(ids[world.rank :: world.size])) * world.size
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            state.consumed += BATCH
            totals = state.commit(torch.tensor([float(Path("stop").exists())], dtype=torch.float64))
            state.is_over = totals[0].item() > 0
            if world.rank == 0:
                emit("step", step=state.step, world_size=world.size, generation=world.generation)
            time.sleep(0.05)
        emit("result", rank=world.rank, step=state.step, consumed=state.consumed, num_forward=model.num_forward.item(),
             weight=model.weight.tolist())

    def save(state):
        torch.save(state.state_dict(), "checkpoint.new")
        os.replace("checkpoint.new", "checkpoint")
        emit("saved", step=state.step, pid=os.getpid())

    def restore(state):
        if os.path.exists("checkpoint"):
            state.load_state_dict(torch.load("checkpoint", weights_only=True))
            emit("restored", step=state.step)

    model = Exact()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.125)
    state = elastic.State(model=model, optimizer=optimizer, consumed=0, is_over=False)
    elastic.run(train, state, restore=restore, save=save)
"""
BATCH, WIDTH = 24, 8


@pytest.fixture(scope="module")
def etcd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Etcd]:
    with etcd_server(tmp_path_factory.mktemp("etcd")) as server:
        yield server


@pytest.fixture
def job(tmp_path: Path, etcd: Etcd) -> Iterator[Job]:
    (tmp_path / "train.py").write_text(textwrap.dedent(SCRIPT))
    job = Job(tmp_path, etcd, ["train.py"], nnodes="1:4", run=tmp_path.name)
    yield job
    job.stop()


def wait_for_world(job: Job, size: int) -> dict[int, int]:
    """Wait until the newest world has this size and has made a step; returns its workers' process ids by rank."""

    def found() -> dict[int, int] | None:
        worlds = job.events("world")
        newest = max((event["generation"] for event in worlds), default=-1)
        ranks = {event["rank"]: event["pid"] for event in worlds if event["generation"] == newest}
        steps = [event for event in job.events("step") if event["generation"] == newest]
        return ranks if len(ranks) == size and len(steps) > 1 and steps[0]["world_size"] == size else None

    return dict(wait_for(found, f"a world of {size}: {job.tail()}"))


def workers(agent: Agent) -> set[int]:
    return {pid for pid in agent.children() if os.getsid(pid) == pid and is_worker(pid)}


def is_worker(pid: int) -> bool:
    return Path(f"/proc/{pid}/comm").read_text().startswith("rank-")


def check_result(job: Job) -> None:
    """The model is to the last bit what an undisturbed run makes of as many steps, and no step was made twice."""
    results = job.events("result")
    last = results[-1]["step"]
    assert {(event["step"], event["consumed"], str(event["weight"])) for event in results} == {
        (last, last * BATCH, str(exact_weight(last)))
    }, job.tail()
    steps = [event["step"] for event in job.events("step")]
    assert steps == sorted(set(steps)), "a step was made twice"


def exact_weight(num_steps: int) -> list[float]:
    weight = [0.0] * WIDTH
    for number in range(num_steps * BATCH):
        for i in range(WIDTH):
            weight[i] -= i * (number % 97) % 13 * 0.125
    return weight


def finish(job: Job, agents: list[Agent]) -> None:
    (job.folder / "stop").touch()
    assert [agent.wait() for agent in agents] == [exit_codes.FINISHED] * len(agents), job.tail()


def test_whoever_survives_keeps_its_process_and_no_step_is_lost(job: Job) -> None:
    """A worker is killed beside its sibling, a node joins, one is told to go, one is killed: one after the other."""
    first, second = job.start("first", "--nproc-per-node=2"), job.start("second")
    before = set(wait_for_world(job, 3).values())

    victim = min(workers(first))
    os.kill(victim, signal.SIGKILL)
    wait_for(lambda: set(wait_for_world(job, 3).values()) != before, "the worker's successor")
    after = set(wait_for_world(job, 3).values())
    assert before - after == {victim}

    joiner = job.start("joiner")
    joined = set(wait_for_world(job, 4).values())
    assert after < joined

    second_worker = workers(second)
    second.process.send_signal(signal.SIGTERM)
    assert second.wait() == exit_codes.PREEMPTED, job.tail()
    left = set(wait_for_world(job, 3).values())
    assert left == joined - second_worker
    assert not job.events("saved"), "the others have the state"

    lost = workers(joiner)
    joiner.process.kill()
    assert set(wait_for_world(job, 2).values()) == left - lost == workers(first)

    finish(job, [first])
    check_result(job)
    assert not job.events("restored")
    records = [record for record in first.events("recovery") if record["cause"] != "start" and record["step"]]
    # On a slow machine the second node comes when the first has begun alone.
    records = records[[record["cause"] for record in records].index("worker_killed") :]
    assert [records[0][name] for name in ("cause", "kept", "forked")] == ["worker_killed", 1, 1]
    assert len(records) >= 4
    assert {(record["kept"], record["forked"]) for record in records[1:]} == {(2, 0)}
    assert {record["steps_lost"] for record in records} == {0}
    assert "Traceback" not in job.tail()


def test_all_told_to_go_save_once_and_are_continued(job: Job) -> None:
    old = [job.start("a"), job.start("b")]
    wait_for_world(job, 2)
    for agent in old:
        agent.process.send_signal(signal.SIGTERM)
    assert [agent.wait() for agent in old] == [exit_codes.PREEMPTED] * 2, job.tail()
    saved = job.events("saved")[-1]["step"]
    assert saved >= job.events("step")[-1]["step"]

    new = job.start("c")
    wait_for_world(job, 1)
    assert [event["step"] for event in job.events("restored")] == [saved]
    finish(job, [new])
    check_result(job)


def test_a_frozen_node_is_left_behind_and_comes_back_with_nothing_lost(job: Job) -> None:
    """Nothing ends a collective with a frozen peer by itself: the launcher has the worker's connections shut."""
    options = ("--rdzv-conf=keep_alive_interval=1,keep_alive_max_attempt=3",)
    first, second = job.start("first", *options), job.start("second", *options)
    before = wait_for_world(job, 2)
    (frozen,) = workers(second)
    second.process.send_signal(signal.SIGSTOP)
    os.kill(frozen, signal.SIGSTOP)

    assert set(wait_for_world(job, 1).values()) == workers(first) < set(before.values())

    os.kill(frozen, signal.SIGCONT)
    second.process.send_signal(signal.SIGCONT)
    assert set(wait_for_world(job, 2).values()) >= workers(first)
    assert workers(first) < set(before.values())
    finish(job, [first, second])
    check_result(job)


ON_TORCHS_AGENT = [
    ("-m", module, "--standalone", "--nproc-per-node=2") for module in ("torch.distributed.run", "training")
]


@pytest.mark.parametrize("launcher", [(), *ON_TORCHS_AGENT], ids=["alone", "torchrun", "standalone"])
def test_the_same_script_runs_without_our_agent(tmp_path: Path, launcher: tuple[str, ...]) -> None:
    (tmp_path / "train.py").write_text(textwrap.dedent(SCRIPT))
    (tmp_path / "stop").touch()
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, *launcher, "train.py"]
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=600, check=False
    )
    assert done.returncode == 0, done.stderr
    results = [json.loads(line) for line in done.stdout.splitlines() if line.startswith('{"trainyard": "result"')]
    assert [result["weight"] for result in results] == [exact_weight(1)] * (2 if launcher else 1)
