"""Notices of a cloud to real launchers: nothing is lost, and nobody waits longer than there is time."""

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from local_agents import Etcd, etcd_server, wait_for
from notice_drill import Drill, drill

from training.launch import exit_codes

pytestmark = [pytest.mark.engines, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def etcd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Etcd]:
    with etcd_server(tmp_path_factory.mktemp("etcd")) as server:
        yield server


@pytest.fixture
def job(tmp_path: Path, etcd: Etcd) -> Iterator[Drill]:
    with drill(tmp_path, etcd) as made:
        yield made


def test_a_warning_saves_and_a_notice_to_one_node_costs_no_step(job: Drill) -> None:
    first, second = job.start(), job.start()
    before = job.wait_for_world(2)
    generation = job.job.events("step")[-1]["generation"]

    second.cloud.recommend("2030-05-04T03:02:01Z")
    saved = job.wait_for_event("saved")
    assert saved["pid"] == before[0], "one rank saves"
    step = job.job.wait_for_step(saved["step"] + 5)
    assert step["generation"] == generation, "and all go on in the same world"

    outcome = job.reclaim_one(second)
    assert (outcome.code, outcome.steps_lost) == (exit_codes.PREEMPTED, 0), job.job.tail()
    (left,) = job.wait_for_world(1).values()
    assert left in before.values()

    alone = job.generation()
    restarted = job.start(is_wanted=True)
    wait_for(lambda: [e for e in restarted.agent.events("notice") if "not joining" in e["message"]], "it to stay away")
    restarted.agent.process.send_signal(signal.SIGTERM)
    assert restarted.agent.wait() == exit_codes.of_signal(signal.SIGTERM)
    job.finish(first)
    assert job.steps_made_twice() == []
    assert len(job.job.events("saved")) == 1, "the others have the state"
    assert max(event["generation"] for event in job.job.events("step")) == alone, "nobody has noticed it"
    plans = [event["message"] for event in second.agent.events("notice") if "reclaimed in" in event["message"]]
    (plan,) = plans
    assert plan.endswith("leaving after this step")
    assert "step not measured" not in plan


def test_a_notice_to_all_nodes_saves_once_and_is_continued(job: Drill) -> None:
    nodes = [job.start(), job.start()]
    job.wait_for_world(2)
    outcome = job.reclaim_all(nodes)
    assert (outcome.code, outcome.steps_lost) == (exit_codes.PREEMPTED, 0), job.job.tail()
    saved, before = job.job.events("saved")[-1]["step"], job.generation()
    new = job.start()
    assert job.wait_for_event("restored")["step"] == saved
    job.wait_for_world(1, newer_than=before)
    job.finish(new)
    assert job.steps_made_twice() == []


def test_an_evaluation_is_left_at_a_notice_and_nothing_is_lost(job: Drill) -> None:
    """Ranks evaluate each for itself, so no collective tells them: those that stay begin the evaluation again."""
    first, second = job.start(), job.start()
    before = job.wait_for_world(2)
    evaluate = job.folder / "evaluate"
    evaluate.touch()
    wait_for(lambda: {event["rank"] for event in job.job.events("evaluating")} == set(before), "both to evaluate")
    outcome = job.reclaim_one(second)
    assert (outcome.code, outcome.steps_lost) == (exit_codes.PREEMPTED, 0), job.job.tail()
    assert job.job.events("saved")[-1]["step"] == job.last_step(), "nobody knows whether the other one lives"
    left = job.wait_for_event("world", lambda event: event["world_size"] == 1)
    assert left["pid"] in before.values()
    evaluate.unlink()
    job.finish(first)
    assert job.steps_made_twice() == []
