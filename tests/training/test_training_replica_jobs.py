"""What the death of all workers, or of a node, costs with a replica: one step at most. Real launchers, real etcd.

No checkpoint is ever written here, so whatever is found again was in memory. Each launcher has a memory of its own, as
each machine has.
"""

import os
import signal
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from local_agents import Agent, Etcd, Job, etcd_server, wait_for

from training.launch import exit_codes

pytestmark = [pytest.mark.engines, pytest.mark.timeout(900)]

# Whole numbers, so that the model is the same to the last bit in every world: step k adds k.
HOOKS = """
    import os, time
    from pathlib import Path
    import torch
    from training.checkpoint.folder import Writer
    from training.checkpoint.replica import Replica
    from training.launch import elastic
    from training.metrics.progress import emit

    model = torch.nn.Linear(500, 100, bias=False)
    torch.nn.init.zeros_(model.weight)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    state = elastic.State(model=model, optimizer=optimizer, is_over=False)

    def train(world, state):
        emit("world", rank=world.rank, size=world.size, generation=world.generation, from_step=state.step,
             pid=os.getpid())
        while not state.is_over:
            time.sleep(0.02)
            optimizer.zero_grad()
            model.weight.grad = torch.full_like(model.weight, -(state.step + 1.0))
            optimizer.step()
            totals = state.commit(torch.tensor([float(Path("stop").exists())]))
            state.is_over = totals.item() > 0
            if world.rank == 0:
                emit("step", step=state.step, generation=world.generation)
        weight = model.weight.detach()
        assert weight.min() == weight.max() == state.step * (state.step + 1) / 2, (state.step, weight)
        emit("result", step=state.step)

    replica = Replica(writer=Writer(run=os.environ["TRAINYARD_RUN"]), optimizer=optimizer)
    elastic.run(train, state, replica=replica)
"""
PLAIN = """
    import os, time
    from pathlib import Path
    import torch
    import torch.distributed as dist
    from training.checkpoint import replica
    from training.checkpoint.folder import CheckpointFolder, Writer
    from training.metrics.progress import emit, report_step

    dist.init_process_group("gloo")
    rank, size = dist.get_rank(), dist.get_world_size()
    generation = int(os.environ["TRAINYARD_GENERATION"])
    memory = replica.Replica(writer=Writer(run=os.environ["TRAINYARD_RUN"], generation=generation))
    found = replica.restore(CheckpointFolder(Path("checkpoints")), memory)
    step, weight = (found[0], found[1]["weight"]) if found else (0, torch.zeros(100, 500))
    emit("world", rank=rank, size=size, generation=generation, from_step=step, pid=os.getpid())
    is_over = False
    while not is_over:
        time.sleep(0.02)
        step += 1
        weight += step
        total = torch.tensor([float(Path("stop").exists())])
        dist.all_reduce(total)
        is_over = total.item() > 0
        memory.put(step, {"weight": weight})
        report_step(step)
        if rank == 0:
            emit("step", step=step, generation=generation)
    assert weight.min() == weight.max() == step * (step + 1) / 2, (step, weight)
    emit("result", step=step)
    memory.close()
"""
# Waits at a step to be killed, so the test does not have to be quick.
LOOP = """
    import time
    from pathlib import Path
    import torch
    from torch.utils.data import TensorDataset
    from training.loop import Loop

    model = torch.nn.Linear(3, 1)
    loop = Loop(replica=True, log_every=1)
    data = TensorDataset(torch.ones(64, 3))
    loop.setup(model, torch.optim.Adam(model.parameters()), data, global_batch=8, steps=30)

    def train(network):
        for (samples,) in loop.batches():
            loop.backward(network(samples).square().mean())
            loop.step()
            while loop.state.step == 20 and not Path("killed").exists():
                time.sleep(0.05)

    loop.run(train)
"""


@pytest.fixture(scope="module")
def etcd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Etcd]:
    with etcd_server(tmp_path_factory.mktemp("etcd")) as server:
        yield server


@pytest.fixture
def job(tmp_path: Path, etcd: Etcd, request: pytest.FixtureRequest) -> Iterator[Job]:
    (tmp_path / "train.py").write_text(textwrap.dedent(request.param))
    job = Job(tmp_path, etcd, ["train.py"], nnodes="1:3", run=tmp_path.name)
    yield job
    job.stop()


def start(job: Job, name: str, *options: str) -> Agent:
    memory = job.folder / f"memory-{name}"
    memory.mkdir(exist_ok=True)
    return job.start(name, *options, environment={"TRAINYARD_MEMORY": str(memory)})


def world(job: Job, size: int, *, newer_than: int) -> list[dict[str, Any]]:
    """Wait for a newer world of this size that has made five steps; returns what its ranks said at its beginning."""

    def found() -> list[dict[str, Any]] | None:
        newest = max((event["generation"] for event in job.events("world")), default=-1)
        ranks = [event for event in job.events("world") if event["generation"] == newest and event["size"] == size]
        steps = [event for event in job.events("step") if event["generation"] == newest]
        return ranks if newest > newer_than and len(ranks) == size and len(steps) >= 5 else None

    result: list[dict[str, Any]] = wait_for(found, f"a world of {size}: {job.tail()}")
    return result


def steps_lost(job: Job, ranks: list[dict[str, Any]]) -> int:
    """Steps that were told complete before this world, and that it had to make again."""
    assert len({event["from_step"] for event in ranks}) == 1
    made = max(int(event["step"]) for event in job.events("step") if event["generation"] < ranks[0]["generation"])
    return max(0, made - int(ranks[0]["from_step"]))


def finish(job: Job, agents: list[Agent]) -> None:
    (job.folder / "stop").touch()
    assert [agent.wait() for agent in agents] == [exit_codes.FINISHED] * len(agents), job.tail()
    assert len({event["step"] for event in job.events("result")}) == 1
    left = [path for agent in agents for path in (job.folder / f"memory-{agent.name}").iterdir()]
    assert left == [], "memory is free again"


@pytest.mark.parametrize("job", [HOOKS], indirect=True, ids=["hooks"])
def test_the_death_of_all_workers_costs_at_most_a_step(job: Job) -> None:
    """First of the only one, then of all of two nodes at once."""
    first = start(job, "first")
    for _ in range(2):
        (before,) = world(job, 1, newer_than=-1)
        os.kill(before["pid"], signal.SIGKILL)
        after = world(job, 1, newer_than=before["generation"])
        assert steps_lost(job, after) <= 1
        assert after[0]["from_step"] > 0

    second = start(job, "second")
    before_all = world(job, 2, newer_than=after[0]["generation"])
    for event in before_all:
        os.kill(event["pid"], signal.SIGKILL)
    after = world(job, 2, newer_than=before_all[0]["generation"])
    assert steps_lost(job, after) <= 1
    finish(job, [first, second])


@pytest.mark.parametrize("job", [LOOP], indirect=True, ids=["loop"])
def test_the_loop_has_it_by_an_argument(job: Job) -> None:
    only = start(job, "only")
    job.wait_for_step(20)
    os.kill(only.worker(), signal.SIGKILL)
    (job.folder / "killed").touch()
    assert only.wait() == exit_codes.FINISHED, job.tail()
    first, second = job.events("resume")
    assert (first["step"], first["checkpoint"], second["checkpoint"]) == (0, "", ""), "no checkpoint was written"
    assert 19 <= second["step"] <= 20, "of the step that was told complete at most one is made again"
    assert list((job.folder / "memory-only").iterdir()) == [], "memory is free again"


@pytest.mark.parametrize("job", [PLAIN], indirect=True, ids=["no hooks"])
def test_the_death_of_a_node_costs_at_most_a_step(job: Job) -> None:
    """The script has no hooks: every loss ends all workers. A new node has no memory, and gets what others have."""
    first = start(job, "first")
    world(job, 1, newer_than=-1)
    second = start(job, "second")
    before = world(job, 2, newer_than=-1)
    second.signal_tree(signal.SIGKILL)
    after = world(job, 1, newer_than=before[0]["generation"])
    assert steps_lost(job, after) <= 1
    assert after[0]["from_step"] > 0

    third = start(job, "third")
    joined = world(job, 2, newer_than=after[0]["generation"])
    assert steps_lost(job, joined) <= 1
    finish(job, [first, third])
