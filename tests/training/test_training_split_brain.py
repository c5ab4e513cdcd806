"""Never two worlds at once: real launchers whose etcd is away, which are frozen, or whose clocks are wrong."""

import contextlib
import itertools
import os
import signal
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from local_agents import Agent, Etcd, Job, etcd_server, patient_client, wait_for

from training.launch import exit_codes
from training.launch.etcd_client import parse_endpoints
from training.launch.membership import decode

pytestmark = [pytest.mark.engines, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def etcd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Etcd]:
    with etcd_server(tmp_path_factory.mktemp("etcd")) as server:
        yield server


# A step is a reduction over all, and counts only before the lease runs out. Its moment is taken before the lease is
# looked at: who is frozen between the two finds the lease run out, who is frozen later has a moment from before.
STEPS = """
    import os, time, torch, torch.distributed as dist
    from training.launch.lease import StepLease
    from training.metrics.progress import emit
    lease, generation = StepLease.from_environment(), int(os.environ["TRAINYARD_GENERATION"])
    dist.init_process_group("gloo")
    while True:
        enough = torch.tensor([float(os.path.exists("enough"))])
        dist.all_reduce(enough)
        moment = time.time()
        if lease.remaining() > 0:
            emit("counts", generation=generation, world_size=dist.get_world_size(), rank=dist.get_rank(), at=moment)
        if enough:
            break
        time.sleep(0.1)
"""


@pytest.fixture
def job(tmp_path: Path, etcd: Etcd) -> Iterator[Job]:
    script = tmp_path / "steps.py"
    script.write_text(textwrap.dedent(STEPS))
    job = Job(tmp_path, etcd, [str(script)], run=tmp_path.name)
    try:
        yield job
    finally:
        for agent in job.agents:
            thaw(agent)
        job.stop()


def family(agent: Agent) -> list[int]:
    return [agent.process.pid, *agent.children()]


def freeze(agent: Agent) -> None:
    for pid in family(agent):
        os.kill(pid, signal.SIGSTOP)


def thaw(agent: Agent) -> None:
    """The workers first: they must find out for themselves that their world is gone."""
    for pid in reversed(family(agent)):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)


def steps(job: Job, **fields: Any) -> list[dict[str, Any]]:
    return [event for event in job.events("counts") if fields.items() <= event.items()]


def wait_for_steps(job: Job, world_size: int, newer_than: int = 0) -> int:
    """Wait until a newer world of this size has made a few steps; returns its generation."""

    def found() -> int:
        generations = [step["generation"] for step in steps(job, world_size=world_size)]
        return next((g for g in generations if g > newer_than and generations.count(g) >= 3 * world_size), 0)

    generation: int = wait_for(found, f"steps of {world_size} nodes after generation {newer_than}: {job.tail()}")
    return generation


def check_that_no_two_worlds_stepped_at_once(job: Job) -> None:
    worlds: dict[int, list[float]] = {}
    for step in steps(job):
        worlds.setdefault(step["generation"], []).append(step["at"])
    spans = [(min(times), max(times), generation) for generation, times in sorted(worlds.items())]
    for (_, last, older), (first, _, newer) in itertools.pairwise(spans):
        assert last < first, f"generation {older} made a step after {newer} had begun"


def finish(job: Job) -> None:
    (job.folder / "enough").touch()
    for agent in job.agents:
        assert agent.wait() == exit_codes.FINISHED, job.tail()
    check_that_no_two_worlds_stepped_at_once(job)


# Members replace a silent node after 5 s. A slow machine may replace one that only is slow: then there are more
# generations than the story needs, and what is checked is true of all of them.
QUICK = "--rdzv-conf=keep_alive_interval=1,keep_alive_max_attempt=5"


def test_a_frozen_node_is_replaced_and_when_it_thaws_it_makes_no_step_of_its_old_world(job: Job) -> None:
    stays, frozen = job.start("stays", QUICK), job.start("frozen", QUICK)
    generation = wait_for_steps(job, world_size=2)

    freeze(frozen)
    alone = wait_for_steps(job, world_size=1, newer_than=generation)
    log = stays.log.read_text()
    assert "has sent no heartbeat for" in log
    assert "its launcher's port is closed" not in log

    thaw(frozen)
    wait_for_steps(job, world_size=2, newer_than=alone)
    finish(job)


def test_a_joiner_after_etcd_was_away_for_longer_than_the_window_finds_the_old_world_alive(
    job: Job, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Stock torchrun trains in two worlds for ever after this: {2, 2} and {1}."""
    with etcd_server(tmp_path_factory.mktemp("own-etcd")) as own:
        job._etcd = own
        for name in "ab":
            job.start(name, QUICK)
        generation = wait_for_steps(job, world_size=2)
        own.signal(signal.SIGSTOP)
        time.sleep(8)  # the window is 5
        own.signal(signal.SIGCONT)
        joiner = job.start("joiner", QUICK)
        wait_for_steps(job, world_size=3, newer_than=generation)
        assert {event["world_size"] for event in joiner.events("counts")} == {3}, "the joiner made a world of its own"
        finish(job)


# Python's clocks, half a minute behind; imported by the interpreter before anything else.
BEHIND = """
    import datetime, time
    real_time, real = time.time, datetime.datetime
    time.time = lambda: real_time() - 30

    class Behind(real):
        @classmethod
        def now(cls, tz=None):
            return real.now(tz) - datetime.timedelta(seconds=30)

    datetime.datetime = Behind
"""

PRESENT = """
    import os, time
    print("WORLD", os.environ["TRAINYARD_GENERATION"], os.environ["WORLD_SIZE"], int(time.time()), flush=True)
    while not os.path.exists("enough"):
        time.sleep(0.1)
"""


def test_a_clock_that_is_half_a_minute_wrong_harms_nobody_and_another_job_is_refused(
    tmp_path: Path, etcd: Etcd
) -> None:
    """With torch's own state a node whose clock is 30 s behind is dead from the start: its window is 15 s."""
    (tmp_path / "behind").mkdir()
    (tmp_path / "behind" / "sitecustomize.py").write_text(textwrap.dedent(BEHIND))
    for name in ("present.py", "other.py"):
        (tmp_path / name).write_text(textwrap.dedent(PRESENT))
    job = Job(tmp_path, etcd, [str(tmp_path / "present.py")], nnodes="2:3", run=tmp_path.name)
    client = patient_client(parse_endpoints(etcd.endpoint)[0])
    key = f"/trainyard/rendezvous/{tmp_path.name}/state".encode()

    def heartbeats() -> list[float]:
        held = client.get(key)
        return sorted(beat.timestamp() for beat in decode(held.value).last_heartbeats.values()) if held else []

    try:
        right = job.start("right")
        path = f"{tmp_path / 'behind'}:{Path(__file__).parents[2]}"
        wrong = job.start("wrong", environment={"PYTHONPATH": path})
        wait_for(lambda: all("WORLD 1 2" in agent.log.read_text() for agent in (right, wrong)), "the world of two")
        before = heartbeats()
        assert before[1] - before[0] > 20, "the clocks do not differ"

        job._script = [str(tmp_path / "other.py")]
        other = job.start("other")
        assert other.wait() == exit_codes.FAILED
        told = (
            f"the run id '{tmp_path.name}' belongs to another job, 'present.py on 2:3 nodes' (nodes in it: 2); this "
            "one is 'other.py on 2:3 nodes': give it another --rdzv-id"
        )
        assert told in other.log.read_text()
        wait_for(lambda: all(now > then for now, then in zip(heartbeats(), before, strict=True)), "a heartbeat of each")

        (tmp_path / "enough").touch()
        assert [right.wait(), wrong.wait()] == [exit_codes.FINISHED] * 2, job.tail()
        assert {event["generation"] for event in job.events("rendezvous")} == {1}
    finally:
        job.stop()


def test_fewer_nodes_than_asked_for_are_told_when_the_time_to_join_is_over(tmp_path: Path, etcd: Etcd) -> None:
    (tmp_path / "present.py").write_text(textwrap.dedent(PRESENT))
    job = Job(tmp_path, etcd, [str(tmp_path / "present.py")], nnodes=":3", run=tmp_path.name)
    try:
        alone = job.start("alone", "--rdzv-conf=join_timeout=2")
        assert alone.wait() == exit_codes.FAILED
        log = alone.log.read_text()
        assert f"fewer than 2 nodes have come to the job '{tmp_path.name}' within 2 s; start more" in log
        assert "Traceback" not in log
    finally:
        job.stop()
