"""The day after `up`: the commands that look at a stack and at its jobs, on one local stack.

Each test leaves the stack as it found it: up, with a healthy job that trains.
"""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

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


# --- diagnose -------------------------------------------------------------------------------------------------------

SPOT = [
    {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"},
    {"key": "trainyard.dev/spot", "operator": "Exists", "effect": "NoSchedule"},
]
TELL = """tell() {
  printf '{"trainyard": "step", "time": %s.0, "step": %s, "world_size": 1%s}\\n' "$(date +%s)" "$1" "$2"
}
"""
TWELVE_STEPS = "for n in 1 2 3 4 5 6 7 8 9 10 11 12; do tell $n; sleep 1; done; "


def mostly(part: str) -> str:
    """A program whose steps take their time for one thing."""
    return (
        f"""n=0; while true; do n=$((n+1)); tell $n ', "seconds": {{"{part}": 9.0, "compute": 1.0}}'; sleep 1; done"""
    )


SYSTEM = ("-n", "trainyard-system")


def broken(name: str, *, pod: dict[str, Any] | None = None, script: str = "", **container: Any) -> dict[str, Any]:
    """A job of one worker that is as it should be but for what is given. Without a GPU, so that it finds room."""
    made: dict[str, Any] = {
        "name": "elasticjob-worker",
        "image": "trainyard/training:local",
        "args": ["-m", "training.examples.digits", "--epochs=1"],
        "resources": {"requests": {"cpu": "10m"}},
    }
    if script:
        made["command"] = ["sh", "-c", TELL + script]
    spec = {"tolerations": SPOT, "terminationGracePeriodSeconds": 1, "containers": [made | container], **(pod or {})}
    worker = {"replicas": 1, "restartPolicy": "ExitCode", "template": {"spec": spec}}
    return {
        "apiVersion": "elastic.pytorch.org/v1alpha1",
        "kind": "ElasticJob",
        "metadata": {"name": name},
        "spec": {
            "rdzvEndpoint": "etcd.trainyard-system:2379",
            "minReplicas": 1,
            "maxReplicas": 1,
            "replicaSpecs": {"Worker": worker},
        },
    }


def asleep(name: str) -> dict[str, Any]:
    job = broken(name)
    job["spec"]["suspend"] = True
    return job


CLAIM = [{"name": "data", "persistentVolumeClaim": {"claimName": "never-made"}}]
UNIT = {"limits": {"example.com/licence": 1}, "requests": {"example.com/licence": 1}}
BROKEN = {
    "image": broken("wrong-image", image="trainyard/never-built:1"),
    "capacity": broken("many-gpus", resources={"limits": {"nvidia.com/gpu": 64}}),
    "volume": broken("no-claim", pod={"volumes": CLAIM}),
    "quota": broken("over-quota", resources=UNIT),
    "untolerated-taint": broken(
        "kept-away", pod={"tolerations": [], "nodeSelector": {"trainyard.dev/pool": "gpu-spot"}}
    ),
    "no-such-machine": broken("no-pool", pod={"nodeSelector": {"trainyard.dev/pool": "gpu-h900"}}),
    "user-error": broken("bad-script", args=["-m", "training.examples.digits", "--epochs=none"]),
    "suspended": asleep("asleep"),
    "configuration": broken(
        "no-secret", env=[{"name": "KEY", "valueFrom": {"secretKeyRef": {"name": "never-made", "key": "key"}}}]
    ),
    "host-memory": broken("out-of-memory", resources={"limits": {"memory": "50Mi"}}),
    "gpu-fault": broken(
        "broken-gpu", script="echo 'NVRM: Xid (PCI:0000:65:00): 79, GPU has fallen off the bus.'; exit 1"
    ),
    "sync-timeout": broken(
        "dead-rank", script="echo '[Rank 0] Watchdog caught collective operation timeout: ALLREDUCE'; exit 1"
    ),
    "hang": broken("stands-still", script=TWELVE_STEPS + "sleep 900"),
    "slow-saves": broken("slow-saves", script=mostly("checkpoint")),
    "data-bound": broken("slow-data", script=mostly("data")),
}
"""By the code that `diagnose` has to find."""


def diagnosed(stack: Stack, *arguments: str | Path) -> list[dict[str, Any]]:
    """What diagnose finds; it ends with 1 where an error is among it."""
    done = subprocess.run(
        [TRAINYARD, "diagnose", *arguments, "--json"],
        env=stack.environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert "Traceback" not in done.stderr
    found: list[dict[str, Any]] = json.loads(done.stdout)["findings"]
    assert done.returncode == int(any(finding["severity"] == "error" for finding in found))
    return found


def test_nothing_is_found_where_all_is_well_and_the_bundle_is_private(stack: Stack) -> None:
    bundle = stack.folder / "bundle.tar.gz"
    eventually("nothing is wrong", lambda: diagnosed(stack, HEALTHY, "--bundle", bundle) == [])
    assert bundle.stat().st_mode & 0o777 == 0o600
    with tarfile.open(bundle) as packed:
        assert f"trainyard-local/jobs/{HEALTHY}/logs/{HEALTHY}-worker-0.log" in packed.getnames()


def test_what_is_wrong_with_a_job_is_named(stack: Stack) -> None:
    """All at once: some take a minute to show."""
    quota = {
        "apiVersion": "v1",
        "kind": "ResourceQuota",
        "metadata": {"name": "licences", "namespace": "training"},
        "spec": {"hard": {"requests.example.com/licence": "0"}},
    }
    stack.kubectl("apply", "-f", "-", stdin=json.dumps(quota))
    wanted = {(code, f"job/{job['metadata']['name']}") for code, job in BROKEN.items()}
    names = [job["metadata"]["name"] for job in BROKEN.values()]
    try:
        together = stack.folder / "broken.yaml"
        together.write_text(yaml.safe_dump_all(BROKEN.values()))
        stack.run("submit", together)
        found: set[tuple[str, str]] = set()
        seen: list[dict[str, Any]] = []

        def all_named() -> bool:
            seen[:] = diagnosed(stack)
            found.update((finding["code"], finding["object"]) for finding in seen)
            return wanted <= found

        with contextlib.suppress(AssertionError):
            eventually("each is named", all_named)
        assert wanted - found == set(), seen
        assert [finding for finding in seen if not finding["evidence"] or not finding["remedy"]] == []
        assert [finding for finding in seen if finding["object"] == f"job/{HEALTHY}"] == []
    finally:
        stack.kubectl("-n", "training", "delete", "elasticjobs", *names, "--ignore-not-found", "--wait=false")
        stack.kubectl("-n", "training", "delete", "resourcequota", "licences", "--ignore-not-found")


@pytest.mark.parametrize(
    ("code", "workload"),
    [("etcd-down", "statefulset/etcd"), ("controller-down", "deployment/elastic-controller")],
)
def test_a_part_of_the_stack_that_is_away_is_named(stack: Stack, code: str, workload: str) -> None:
    stack.kubectl(*SYSTEM, "scale", workload, "--replicas=0")
    try:
        eventually(code, lambda: code in [finding["code"] for finding in diagnosed(stack, HEALTHY)])
    finally:
        stack.kubectl(*SYSTEM, "scale", workload, "--replicas=1")
    eventually("it is back", lambda: code not in [finding["code"] for finding in diagnosed(stack, HEALTHY)])


def test_a_machine_that_will_be_taken_away_is_named(stack: Stack) -> None:
    at = {worker["node"] for worker in stack.json("describe", HEALTHY)["workers"]}
    nodes = json.loads(stack.kubectl("get", "nodes", "-l", "trainyard.dev/pool=gpu-spot", "-o", "json"))["items"]
    node = next(name for name in (node["metadata"]["name"] for node in nodes) if name not in at)
    notice = "aws-node-termination-handler/spot-itn"
    stack.kubectl("taint", "nodes", node, f"{notice}=now:NoSchedule")
    try:
        assert ("notice", f"node/{node}") in [(one["code"], one["object"]) for one in diagnosed(stack, HEALTHY)]
    finally:
        stack.kubectl("taint", "nodes", node, f"{notice}-")
