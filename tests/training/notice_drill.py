"""Notices to real launchers on this computer, each of which believes to be on a spot machine of its own.

Used by the tests, and by `benchmarks/notices.py` for many times.
"""

import textwrap
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

from local_agents import Agent, Etcd, Job, wait_for
from metadata_servers import AwsServer

from training.launch import exit_codes

# Each step is the same for every number of workers, and a step that is made twice shows.
SCRIPT: Final = """
    import os, time
    from pathlib import Path
    import torch
    from training.launch import elastic
    from training.metrics.progress import emit

    BATCH = 24

    def train(world, state):
        emit("world", rank=world.rank, world_size=world.size, generation=world.generation, pid=os.getpid())
        while not state.is_over:
            while Path("evaluate").exists():       # each rank for itself
                emit("evaluating", rank=world.rank, step=state.step)
                state.check()
                time.sleep(0.1)
            with torch.no_grad():
                model.weight += 1
            state.consumed += BATCH
            share = float(len(range(BATCH)[world.rank :: world.size]))
            sums = state.commit(torch.tensor([share, float(Path("stop").exists())], dtype=torch.float64))
            assert sums[0].item() == BATCH
            state.is_over = sums[1].item() > 0
            if world.rank == 0:
                emit("step", step=state.step, world_size=world.size, generation=world.generation)
            time.sleep(0.05)
        weight = model.weight.flatten().tolist()
        emit("result", rank=world.rank, step=state.step, consumed=state.consumed, weight=weight)

    def save(state):
        time.sleep(0.2)
        new = f"checkpoint.{os.getpid()}"
        torch.save(state.state_dict(), new)
        os.replace(new, "checkpoint")
        emit("saved", step=state.step, pid=os.getpid())

    def restore(state):
        if os.path.exists("checkpoint"):
            state.load_state_dict(torch.load("checkpoint", weights_only=True))
            emit("restored", step=state.step)

    model = torch.nn.Linear(2, 1, bias=False, dtype=torch.float64)
    torch.nn.init.zeros_(model.weight)
    state = elastic.State(model=model, consumed=0, is_over=False)
    elastic.run(train, state, restore=restore, save=save)
"""
BATCH: Final = 24
NOTICE: Final = timedelta(seconds=120)


@dataclass(frozen=True)
class Node:
    """A launcher and what its cloud says."""

    agent: Agent
    cloud: AwsServer

    def interrupt(self) -> None:
        """The cloud wants it back."""
        self.cloud.interrupt("terminate", (datetime.now(UTC) + NOTICE).isoformat())


@dataclass
class Drill:
    """One job whose nodes come and go by notices."""

    folder: Path
    etcd: Etcd
    nodes: list[Node] = field(default_factory=list)

    def __post_init__(self) -> None:
        (self.folder / "train.py").write_text(textwrap.dedent(SCRIPT))
        self.job = Job(self.folder, self.etcd, ["train.py"], nnodes="1:4", run=self.folder.name)

    def start(self, *options: str, is_wanted: bool = False) -> Node:
        """One more node, with a cloud of its own, which may want it back already."""
        cloud = AwsServer()
        cloud.__enter__()
        if is_wanted:
            cloud.interrupt("terminate", (datetime.now(UTC) + NOTICE).isoformat())
        environment = {"TRAINYARD_NOTICES": "aws", "TRAINYARD_METADATA_ENDPOINT": cloud.endpoint}
        node = Node(self.job.start(f"n{len(self.nodes)}", *options, environment=environment), cloud)
        self.nodes.append(node)
        return node

    def stop(self) -> None:
        self.job.stop()
        for node in self.nodes:
            node.cloud.__exit__()

    def generation(self) -> int:
        """Of the newest world."""
        return max((int(event["generation"]) for event in self.job.events("world")), default=-1)

    def wait_for_world(self, size: int, *, newer_than: int = -1) -> dict[int, int]:
        """Wait until the newest world has this size and has made two steps; its workers' process ids by rank."""

        def found() -> dict[int, int] | None:
            worlds, newest = self.job.events("world"), self.generation()
            ranks = {event["rank"]: event["pid"] for event in worlds if event["generation"] == newest}
            steps = [event for event in self.job.events("step") if event["generation"] == newest]
            if newest <= newer_than:
                return None
            return ranks if len(ranks) == size and len(steps) > 1 and steps[0]["world_size"] == size else None

        return dict(wait_for(found, f"a world of {size}: {self.job.tail()}"))

    def wait_for_event(self, kind: str, condition: Callable[[dict[str, Any]], bool] = lambda _: True) -> dict[str, Any]:
        """Wait for the first event of any node that fulfils the condition."""

        def found() -> dict[str, Any] | None:
            return next((event for event in self.job.events(kind) if condition(event)), None)

        event: dict[str, Any] = wait_for(found, f"{kind}: {self.job.tail()}")
        return event

    def last_step(self) -> int:
        """The last step that anybody has told of."""
        return max((int(event["step"]) for event in self.job.events("step")), default=0)

    def steps_made_twice(self) -> list[int]:
        """What has been lost and made again."""
        steps = [int(event["step"]) for event in self.job.events("step")]
        return sorted({step for step in steps if steps.count(step) > 1})

    def finish(self, *nodes: Node) -> None:
        """Let training end, and look at the result of those that are left."""
        (self.folder / "stop").touch()
        codes = [node.agent.wait() for node in nodes]
        assert codes == [exit_codes.FINISHED] * len(nodes), self.job.tail()
        results = self.job.events("result")
        assert results
        for result in results:
            step = result["step"]
            assert (result["consumed"], result["weight"]) == (step * BATCH, [float(step)] * 2), self.job.tail()

    def reclaim_one(self, victim: Node) -> "Outcome":
        """A notice to one node while others stay: they lose nothing and wait for nobody."""
        begin = time.time()
        victim.interrupt()
        code = victim.agent.wait()
        return Outcome("one", code, time.time() - begin, len(self.steps_made_twice()))

    def reclaim_all(self, nodes: list[Node]) -> "Outcome":
        """A notice to all nodes: one saves, and all go; what was made after that is lost."""
        begin = time.time()
        for node in nodes:
            node.interrupt()
        codes = {node.agent.wait() for node in nodes}
        saved = max((int(event["step"]) for event in self.job.events("saved")), default=0)
        code = codes.pop() if len(codes) == 1 else exit_codes.FAILED
        return Outcome("all", code, time.time() - begin, max(0, self.last_step() - saved))


@dataclass(frozen=True)
class Outcome:
    """What a notice has cost.

    Attributes:
        kind: "one" or "all".
        code: exit code of the launchers that went.
        seconds: from the notice to their end; the cloud is asked every 5 s.
        steps_lost: steps that are not in the state that is left.
    """

    kind: str
    code: int
    seconds: float
    steps_lost: int


@contextmanager
def drill(folder: Path, etcd: Etcd) -> Iterator[Drill]:
    """A job that is ended with everything that belongs to it."""
    made = Drill(folder, etcd)
    try:
        yield made
    finally:
        made.stop()
