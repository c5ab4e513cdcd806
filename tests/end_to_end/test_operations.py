"""The day after `up`: the commands that look at a stack and at its jobs, on one local stack.

Each test leaves the stack as it found it: up, with a healthy job that trains.
"""

from __future__ import annotations

import json
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from stack_of_its_own import TRAINYARD, Stack, eventually, local_stack

from infra.clusters import CHECKOUT

pytestmark = [pytest.mark.engines, pytest.mark.timeout(900), pytest.mark.xdist_group("operations")]

HEALTHY = "healthy"
"""A job that trains all the time."""


@pytest.fixture(scope="module")
def stack() -> Iterator[Stack]:
    """The stack with one job that trains for longer than all tests take."""
    with local_stack() as made:
        made.json("up")
        job = yaml.safe_load((CHECKOUT / "training/examples/digits.yaml").read_text())
        job["metadata"] = {"name": HEALTHY}
        worker = job["spec"]["replicaSpecs"]["Worker"]
        worker["replicas"] = 1
        (container,) = worker["template"]["spec"]["containers"]
        changed = {"--epochs": "10000", "--checkpoints": f"/checkpoints/{HEALTHY}", "--step-seconds": "0.2"}
        kept = [argument for argument in container["args"] if argument.split("=")[0] not in changed]
        container["args"] = kept + [f"{option}={value}" for option, value in changed.items()]
        made.submit(job)
        eventually("it trains", lambda: '"trainyard": "step"' in made.logs(f"{HEALTHY}-worker-0"))
        yield made


def test_the_healthy_job_is_listed_as_running(stack: Stack) -> None:
    """Without which the tests below would say nothing."""
    jobs = {job["job"]: job for job in stack.json("jobs")["jobs"]}
    assert jobs[HEALTHY]["state"] == "Running"


def test_a_workflow_trains_on_the_stack_and_publishes_what_is_good_enough(stack: Stack) -> None:
    """Interrupted after the training, it goes on with the evaluation; a job that fails, fails its step."""
    file = CHECKOUT / "training/examples/digits_workflow.yaml"
    done = stack.json("workflow", "run", file, "--run", "one")
    assert (done["state"], done["job"], list(done["steps"])) == (
        "Succeeded",
        "digits-one",
        ["prepare", "train", "evaluate", "publish"],
    )
    assert done["metrics"]["accuracy"] >= 0.93
    for step in ("evaluate", "publish"):
        (Path(done["folder"]) / "steps" / f"{step}.json").unlink()
    again, said = stack.run("workflow", "run", file, "--run", "one", "--json")
    assert "train: done before" in said
    assert json.loads(again)["state"] == "Succeeded"
    assert json.loads(again)["version"] == stack.json("workflow", "history", file)["current"]

    job = yaml.safe_load((file.parent / "digits_workflow_job.yaml").read_text())
    job["spec"]["replicaSpecs"]["Worker"]["template"]["spec"]["containers"][0]["args"] += ["--epochs=none"]
    (stack.folder / "digits_workflow_job.yaml").write_text(yaml.safe_dump(job))
    (stack.folder / file.name).write_text(file.read_text())
    out, _ = stack.run("workflow", "run", stack.folder / file.name, "--run", "two", "--json", code=1)
    failed = json.loads(out)
    assert (failed["state"], failed["failed"], list(failed["steps"])) == ("Failed", "train", ["prepare"])
    assert failed["reason"].startswith("job digits-two has failed (")
    for name in ("digits-one", "digits-two"):
        stack.run("cancel", name, "--yes", "--wait")


def test_top_report_and_recommend_tell_of_the_healthy_job(stack: Stack) -> None:
    found = next(job for job in stack.json("top")["jobs"] if job["job"] == HEALTHY)
    assert found["step"] >= 1
    assert HEALTHY in stack.run("top", HEALTHY, "--once")[0]
    page = stack.folder / "healthy.html"
    assert stack.json("report", HEALTHY, "-o", page)["file"] == str(page)
    assert "<h2>Loss</h2>\n<svg" in page.read_text()
    findings = {each["resource"]: each for each in stack.json("recommend", HEALTHY)["findings"]}
    assert set(findings) == {"memory", "cpu", "shm", "loader workers"}
    assert findings["loader workers"]["state"] == "unknown"  # its script does not tell where a step's time goes


def test_the_stack_is_verified_and_one_changed_machine_is_named_as_drift(stack: Stack, tmp_path: Path) -> None:
    phases = ("--phase", "readiness", "--phase", "deployment", "-o", str(tmp_path))
    record = stack.json("verify", *phases)
    assert record["passed"], record["results"]
    assert "stand-in" in record["stand_in"]
    assert {"gpu-spot-1", "gpu-spot-2", "gpu-on-demand-1", "system-1"} == record["nodes"].keys()
    assert {one["phase"] for one in record["results"] if one["verdict"] == "not run"} == {"fabric", "performance"}
    baseline = ("--baseline", record["evidence"][0])
    assert stack.json("drift", *baseline)["drift"] is False

    stack.kubectl("taint", "node", "gpu-spot-2", "somebodys=own:NoSchedule")
    try:
        bad = json.loads(stack.run("verify", *phases[:2], "-o", str(tmp_path), "--json", code=1)[0])
        assert [finding["object"] for one in bad["results"] for finding in one["findings"]] == ["node/gpu-spot-2"]
        told = json.loads(stack.run("drift", *baseline, "--json", code=1)[0])
        assert [(one["object"], one["field"]) for one in told["changed"]] == [("node/gpu-spot-2", "taints")]
    finally:
        stack.kubectl("taint", "node", "gpu-spot-2", "somebodys-")


def checks_left(stack: Stack) -> list[str]:
    found = stack.kubectl("get", "elasticjobs,pods", "-n", "training", "-o", "name").split()
    return [name for name in found if "/check-" in name]


def test_a_check_measures_and_leaves_nothing(stack: Stack) -> None:
    """Two machines: the healthy job has the third."""
    told = stack.json("check", "--nodes", "2", "--sizes", "8,1024")
    assert told["passed"], told
    assert (told["result"]["covered"], told["result"]["of"]) == (2, 2)
    assert "stand-in" in told["stand_in"]
    assert [one["size"] for one in told["report"]["all_reduces"]] == [8, 1024]
    assert set(told["report"]["hosts"]) <= {"gpu-spot-1", "gpu-spot-2", "gpu-on-demand-1"}
    assert checks_left(stack) == []


def test_a_check_that_is_interrupted_leaves_nothing(stack: Stack) -> None:
    command = [str(TRAINYARD), "check", "--nodes", "2", "--sizes", "8"]
    with subprocess.Popen(command, env=stack.environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as one:
        eventually("its job is there", lambda: checks_left(stack) or one.poll() is not None)
        one.send_signal(signal.SIGTERM)
    eventually("nothing is left", lambda: not checks_left(stack))
