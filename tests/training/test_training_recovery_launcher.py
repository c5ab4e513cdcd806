"""What real launchers tell of a recovery: in the log, in the file, to Prometheus. A plain script, and real etcd."""

import json
import os
import signal
from collections.abc import Iterator
from http.client import HTTPException
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest
from local_agents import Agent, Etcd, Job, etcd_server, free_port, wait_for
from prometheus_client.parser import text_string_to_metric_families

from training.metrics.recovery import PHASES

pytestmark = [pytest.mark.engines, pytest.mark.timeout(600)]

# It tells its launcher of its steps, and knows of nothing else.
SCRIPT = """
import os, pathlib, time, torch, torch.distributed as dist
from training.metrics.progress import emit, report_step
dist.init_process_group("gloo")
enough, step = torch.zeros(1), 0
while not enough:
    enough = torch.tensor([float(os.path.exists("enough"))])
    dist.all_reduce(enough)
    step += 1
    report_step(step)
    if dist.get_rank() == 0:
        emit("step", step=step, generation=int(os.environ["TRAINYARD_GENERATION"]), world_size=dist.get_world_size())
    time.sleep(0.05)
dist.barrier()
dist.destroy_process_group()
"""


# The same with hooks: it lives on when the world changes.
HOOKED_SCRIPT = """
import os, time, torch
from training.launch import elastic
from training.metrics.progress import emit
state = elastic.State(model=torch.nn.Linear(4, 4))
def train(world, state):
    enough = torch.zeros(1)
    while not enough:
        enough = state.commit(torch.tensor([float(os.path.exists("enough"))]))
        if world.rank == 0:
            emit("step", step=state.step, generation=world.generation, world_size=world.size)
        time.sleep(0.05)
elastic.run(train, state)
"""


@pytest.fixture(scope="module")
def etcd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Etcd]:
    with etcd_server(tmp_path_factory.mktemp("etcd")) as server:
        yield server


@pytest.fixture
def source() -> str:
    return SCRIPT


@pytest.fixture
def job(tmp_path: Path, etcd: Etcd, source: str) -> Iterator[Job]:
    script = tmp_path / "script.py"
    script.write_text(source)
    made = Job(tmp_path, etcd, [str(script)], run=tmp_path.name)
    yield made
    made.stop()


def recoveries(agent: Agent, cause: str) -> list[dict[str, Any]]:
    return [event for event in agent.events("recovery") if event["cause"] == cause]


def scraped(port: int) -> dict[tuple[str, str], float]:
    """All samples by name and label; nothing while nobody answers."""
    try:
        with urlopen(f"http://127.0.0.1:{port}/metrics", timeout=60) as answer:
            text = answer.read().decode()
    except (OSError, HTTPException):
        return {}
    families = text_string_to_metric_families(text)
    return {(s.name, ",".join(s.labels.values())): s.value for family in families for s in family.samples}


def test_a_killed_worker_is_one_record_of_each_launcher(job: Job, tmp_path: Path) -> None:
    port = free_port()
    records = {"TRAINYARD_RECORDS": str(tmp_path / "records")}
    first = job.start("first", environment={**records, "TRAINYARD_METRICS_PORT": str(port)})
    second = job.start("second", environment=records)
    old = job.wait_for_step(5, world_size=2)["generation"]
    os.kill(second.worker(), signal.SIGKILL)
    new = job.wait_for_step(1, newer_than=old, world_size=2)

    (killed,) = wait_for(lambda: recoveries(second, "worker_killed"), f"the record of it: {job.tail()}")
    assert killed["outcome"] == "resumed"
    assert killed["generation"] > old
    assert len(killed["members"]) == killed["world_size"] == 2
    assert (killed["kept"], killed["forked"]) == (0, 1)
    assert killed["step"] == 1
    assert killed["steps_lost"] >= 4
    assert set(killed["seconds"]) <= {*PHASES, "interrupted"}
    assert {"rendezvous", "process", "first_step"} <= set(killed["seconds"])
    assert killed["total"] == pytest.approx(sum(killed["seconds"].values()), abs=0.01)
    assert killed["began"] + killed["total"] <= killed["time"] + 0.01
    told = wait_for(
        lambda: [e for e in first.events("recovery") if (e["generation"] or 0) > old], "the other launcher's"
    )
    # On a slow machine it may not hear in time that its own worker's failure was the echo of the other's.
    assert told[0]["cause"] in {"regroup", "worker_failed"}
    assert told[0]["node"] == ("127.0.0.1" if told[0]["cause"] == "regroup" else "")

    # The launcher's own thread for metrics has not kept it from forking workers.
    metrics = wait_for(
        lambda: (m := scraped(port)).get(("trainyard_generation", ""), 0) >= new["generation"] and m, "it"
    )
    assert metrics["trainyard_recoveries_total", "start"] == 1
    assert sum(value for (name, _), value in metrics.items() if name == "trainyard_recoveries_total") >= 2
    assert metrics["trainyard_world_size", ""] == 2
    assert metrics["trainyard_step", ""] >= 1
    assert metrics["trainyard_restarts_left", ""] > 0
    assert "fresh interpreters" not in job.tail()

    (tmp_path / "enough").touch()
    assert (first.wait(), second.wait()) == (0, 0), job.tail()
    kept = [json.loads(line) for line in (tmp_path / "records" / "recoveries.jsonl").read_text().splitlines()]
    lines = [event for agent in (first, second) for event in agent.events("recovery")]
    assert sorted(map(str, (line["began"] for line in kept))) == sorted(map(str, (line["began"] for line in lines)))


@pytest.mark.parametrize("source", [HOOKED_SCRIPT], ids=["hooks"])
def test_a_worker_that_lives_on_tells_of_its_group_and_its_model(job: Job, tmp_path: Path) -> None:
    first, second = job.start("first"), job.start("second")
    old = job.wait_for_step(5, world_size=2)["generation"]
    os.kill(second.worker(), signal.SIGKILL)
    job.wait_for_step(1, newer_than=old, world_size=2)

    def told(agent: Agent) -> Any:
        return wait_for(lambda: [e for e in agent.events("recovery") if (e["generation"] or 0) > old], job.tail())[-1]

    survivor, victim = told(first), told(second)
    assert (survivor["kept"], survivor["forked"], survivor["steps_lost"]) == (1, 0, 0)
    assert (victim["kept"], victim["forked"]) == (0, 1)
    for record in (survivor, victim):
        assert record["outcome"] == "resumed"
        assert {"rendezvous", "process", "group", "model", "first_step"} <= set(record["seconds"])
        assert record["step"] == survivor["step"]
    (tmp_path / "enough").touch()
    assert (first.wait(), second.wait()) == (0, 0), job.tail()
