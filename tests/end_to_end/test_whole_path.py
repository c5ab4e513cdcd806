"""The whole path on the real engines: the stack comes up, trains through faults, and goes without a trace.

One stack for all tests here, in the order of the file; pods are local processes, which is what the local target is.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml

from infra.clusters import CHECKOUT
from infra.local import ports
from infra.local.processes import MARK

pytestmark = [pytest.mark.engines, pytest.mark.timeout(1200), pytest.mark.xdist_group("whole-path")]

TRAINYARD = Path(sys.executable).with_name("trainyard")
EXAMPLE = CHECKOUT / "training/examples/digits.yaml"
NUM_TRAINING_IMAGES = 1500
GLOBAL_BATCH = 64
EPOCHS = 5
LONG_PACE = 0.4  # seconds a step: 48 for the job, in which a busy computer starts three commands, the drill among them
VERY_LONG_PACE = 3.0  # for a job whose end nobody waits for
RESOURCES = 29


class Stack:
    """A stack in a state folder of its own, driven by the command as a user would."""

    def __init__(self, folder: Path) -> None:
        self.state = folder / "state"
        self.folder = folder
        self.temporary = folder / "tmp"
        self.temporary.mkdir()
        self.environment = {**os.environ, "TRAINYARD_STATE_DIR": str(self.state), "TMPDIR": str(self.temporary)}

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [TRAINYARD, *arguments],
            env=self.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(self, *arguments: str, code: int = 0) -> tuple[str, str]:
        process = self.start(*arguments)
        out, err = process.communicate(timeout=900)
        assert process.returncode == code, (
            f"trainyard {' '.join(arguments)} ended with {process.returncode}:\n{out}{err}"
        )
        assert "Traceback" not in err
        return out, err

    def json(self, *arguments: str) -> Any:
        return json.loads(self.run(*arguments, "--json")[0])

    def shell(self, command: str) -> str:
        """Run a line in a shell after `eval "$(trainyard env)"`, as the README says."""
        # Plain pulumi: its provider leaves a temporary file behind, which is not the command's to clean up.
        environment = {**self.environment, "TMPDIR": tempfile.gettempdir()}
        script = f'set -e; eval "$({TRAINYARD} env)"; cd {CHECKOUT}; {command}'
        done = subprocess.run(
            ["bash", "-c", script], env=environment, capture_output=True, text=True, timeout=900, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def kubectl(self, *arguments: str) -> str:
        return self.shell("kubectl " + " ".join(arguments))

    def job_file(self, name: str, **changes: Any) -> Path:
        """The example job under another name, with checkpoints and a ledger of its own.

        `pace` and `epochs` are the program's; `container`, `pod` and `worker` change parts of the manifest, and all
        others its spec.
        """
        job = yaml.safe_load(EXAMPLE.read_text())
        job["metadata"]["name"] = name
        worker = job["spec"]["replicaSpecs"]["Worker"]
        container = worker["template"]["spec"]["containers"][0]
        replaced = {
            "--checkpoints": f"/checkpoints/{name}",
            "--ledger": f"/checkpoints/{name}.ledger",
            "--epochs": str(changes.pop("epochs", EPOCHS)),
            "--step-seconds": str(changes.pop("pace", 0.12)),
        }
        kept = [argument for argument in container["args"] if argument.split("=")[0] not in replaced]
        container["args"] = kept + [f"{option}={value}" for option, value in replaced.items()]
        container.update(changes.pop("container", {}))
        worker["template"]["spec"].update(changes.pop("pod", {}))
        worker.update(changes.pop("worker", {}))
        job["spec"]["replicaSpecs"]["Worker"] = {key: value for key, value in worker.items() if value is not None}
        job["spec"].update(changes)
        path = self.folder / f"{name}.yaml"
        path.write_text(yaml.safe_dump(job))
        return path

    def state_of(self, name: str) -> dict[str, Any]:
        jobs = {job["job"]: job for job in self.json("jobs")["jobs"]}
        return dict(jobs[name])

    def waiting_of(self, name: str, cause: str = "") -> dict[str, Any] | None:
        """What a job waits for, as `describe` says it: the first reason, or that of one kind."""
        found = self.json("describe", name)["waiting"]
        return next((dict(reason) for reason in found if cause in ("", reason["cause"])), None)

    def steps_of(self, name: str) -> dict[int, list[int]]:
        """The images of each step by the job's ledger: of a step that was made again, the last line counts."""
        (ledger,) = self.state.glob(f"volumes/*/{name}.ledger")
        return {line["step"]: line["ids"] for line in map(json.loads, ledger.read_text().splitlines())}

    def world_of(self, name: str) -> int:
        """How many workers made the job's latest step, by its logs; 0 where none was made."""
        out, _ = self.start("logs", name, "--json").communicate(timeout=900)  # fails before a worker has written
        lines = [line["text"] for line in json.loads(out)["lines"]] if out else []
        steps = [json.loads(line) for line in lines if line.startswith('{"trainyard": "step"')]
        return int(steps[-1]["world_size"]) if steps else 0

    def assert_each_image_was_used_once_in_each_epoch(self, name: str, epochs: int = EPOCHS) -> None:
        steps = self.steps_of(name)
        assert sorted(steps) == list(range(1, max(steps) + 1)), "a step is missing"
        used = [image for step in sorted(steps) for image in steps[step]]
        assert len(used) == epochs * NUM_TRAINING_IMAGES
        for epoch in range(epochs):
            seen = used[epoch * NUM_TRAINING_IMAGES : (epoch + 1) * NUM_TRAINING_IMAGES]
            assert sorted(seen) == list(range(NUM_TRAINING_IMAGES)), f"epoch {epoch}"

    def processes(self) -> list[str]:
        found = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                if process.environ().get(MARK, "").startswith(f"{self.state}:"):
                    found.append(" ".join(process.cmdline()))
        return found


def eventually(what: str, condition: Callable[[], Any], seconds: float = 240) -> Any:
    end = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < end, f"not within {seconds} s: {what}"
        time.sleep(0.5)
    return found


@pytest.fixture(scope="module")
def stack() -> Iterator[Stack]:
    folder = Path(tempfile.mkdtemp(prefix="ty-", dir="/tmp"))
    made = Stack(folder)
    try:
        yield made
    finally:
        made.run("down", "--yes", "--state")
        shutil.rmtree(folder)


def test_up_brings_the_whole_stack_up(stack: Stack) -> None:
    result = stack.json("up")
    assert result["changes"] == {"create": RESOURCES}
    assert [step["step"] for step in result["steps"]] == ["engines", "control plane", "4 nodes", "stack local"]
    eventually("all is well", lambda: stack.json("status")["healthy"])


def test_a_second_up_changes_nothing_and_so_does_plain_pulumi(stack: Stack) -> None:
    assert stack.json("up")["changes"] == {"same": RESOURCES}
    assert stack.json("preview")["changes"] == {"same": RESOURCES}
    assert f"{RESOURCES} unchanged" in stack.shell("pulumi preview -s local --non-interactive --expect-no-changes")
    assert f"{RESOURCES} unchanged" in stack.shell("pulumi refresh -s local --yes --skip-preview --non-interactive")
    assert f"{RESOURCES} unchanged" in stack.shell("pulumi up -s local --yes --skip-preview --non-interactive")


def test_kubectl_shows_what_a_real_cluster_would(stack: Stack) -> None:
    nodes = json.loads(stack.kubectl("get", "nodes", "-o", "json"))["items"]
    pools = sorted(node["metadata"]["labels"]["trainyard.dev/pool"] for node in nodes)
    assert pools == ["gpu-on-demand", "gpu-spot", "gpu-spot", "system"]
    spot = next(n for n in nodes if n["metadata"]["labels"]["trainyard.dev/pool"] == "gpu-spot")
    assert spot["status"]["allocatable"]["nvidia.com/gpu"] == "1"
    assert {t["key"] for t in spot["spec"]["taints"]} == {"nvidia.com/gpu", "trainyard.dev/spot"}
    assert "elasticjobs" in stack.kubectl("api-resources", "--api-group=elastic.pytorch.org")
    running = ("get", "pods", "-n", "trainyard-system", "--no-headers")
    # A probe of a busy computer may be late with its answer for a moment.
    eventually("two pods are ready", lambda: stack.kubectl(*running).count("1/1") == 2)
    assert "healthy" in stack.kubectl("exec", "-n", "trainyard-system", "etcd-0", "--", "sh", "-c", "'echo healthy'")


def test_a_wrong_job_is_refused_with_the_reason(stack: Stack) -> None:
    _, err = stack.run("submit", str(stack.job_file("upside-down", minReplicas=3, maxReplicas=2)), code=1)
    assert "the API server refuses ElasticJob upside-down" in err
    assert "minReplicas must not exceed maxReplicas" in err


def test_a_job_in_the_old_spelling_is_accepted_and_its_unknown_image_named(stack: Stack) -> None:
    path = stack.folder / "imagenet.yaml"
    path.write_text(
        """\
apiVersion: elastic.pytorch.org/v1alpha1
kind: ElasticJob
metadata:
  name: imagenet
  namespace: training
spec:
  rdzvEndpoint: "etcd.trainyard-system:2379"
  minReplicas: 1
  maxReplicas: 2
  cleanPodPolicy: None
  replicaSpecs:
    Worker:
      replicas: 1
      restartPolicy: ExitCode
      template:
        apiVersion: v1
        kind: Pod
        spec:
          containers:
            - name: elasticjob-worker
              image: example.com/somebody/imagenet:1
              imagePullPolicy: Always
              args: ["--nproc_per_node=1", "/workspace/train.py", "--epochs=1"]
"""
    )
    stack.run("submit", str(path))
    select = "involvedObject.name=imagenet-worker-0"
    told = eventually(
        "the pull error",
        lambda: "image table" in stack.kubectl("get", "events", "-n", "training", "--field-selector", select),
    )
    assert told
    why = eventually("the reason", lambda: stack.waiting_of("imagenet"))
    assert (why["cause"], why["next"]) == ("image", "trainyard images list")
    assert "example.com/somebody/imagenet:1" in why["message"]
    stack.run("cancel", "imagenet", "--yes")


def test_more_gpus_than_any_node_has_is_said_at_once(stack: Stack) -> None:
    greedy = stack.job_file("greedy", container={"resources": {"limits": {"nvidia.com/gpu": 8}}})
    stack.run("submit", str(greedy))
    message = eventually(
        "the reason",
        lambda: (job := stack.state_of("greedy"))["state"] == "WaitingForCapacity" and job["message"],
    )
    assert "8" in message
    assert "nvidia.com/gpu" in message
    assert "lower the request" in eventually("what helps", lambda: stack.waiting_of("greedy", "capacity"))["next"]
    stack.run("cancel", "greedy", "--yes")


def test_what_a_job_waits_for_is_named_with_the_next_command(stack: Stack) -> None:
    volumes = [{"name": "checkpoints", "persistentVolumeClaim": {"claimName": "nowhere"}}]
    stack.run("submit", str(stack.job_file("homeless", pod={"volumes": volumes})))
    why = eventually("the claim", lambda: stack.waiting_of("homeless", "volume"))
    assert "nowhere" in why["message"]
    assert why["next"].startswith("kubectl -n training get persistentvolumeclaims")
    _, err = stack.run("logs", "homeless", code=1)
    assert "no worker of job homeless has written anything" in err
    stack.run("cancel", "homeless", "--yes", "--wait")

    stack.kubectl("create", "quota", "tight", "-n", "training", "--hard=pods=0")
    stack.run("submit", str(stack.job_file("quota")))
    why = eventually("the quota", lambda: stack.waiting_of("quota", "quota"))
    assert "exceeded quota: tight" in why["message"]
    stack.run("cancel", "quota", "--yes")
    stack.kubectl("delete", "quota", "tight", "-n", "training")


def test_a_script_of_one_s_own_runs_on_the_machines_of_the_stack(stack: Stack) -> None:
    script = stack.folder / "who.py"
    script.write_text("import os, sys\nprint('rank', os.environ['RANK'], sys.argv[1:])\n")
    out, _ = stack.run("run", str(script), "--workers", "2", "--", "--epochs", "3")
    said = {line.partition(" | ")[2] for line in out.splitlines()}
    assert {"rank 0 ['--epochs', '3']", "rank 1 ['--epochs', '3']"} <= said
    assert out.splitlines()[-1].startswith("who: Succeeded")
    stack.run("cancel", "who", "--yes", "--wait")
    maps = ("get", "configmaps", "-n", "training", "-o", "name")
    eventually("the script goes with its job", lambda: "who-script" not in stack.kubectl(*maps))


def test_a_killed_worker_costs_steps_but_no_sample(stack: Stack) -> None:
    stack.run("submit", str(stack.job_file("crash", pace=LONG_PACE)))
    eventually("three workers", lambda: stack.state_of("crash")["ready"] == 3)
    outcome = stack.json("drill", "worker", "--job", "crash")
    assert outcome["fault"] == "worker"
    assert outcome["world_after"] == 3
    assert outcome["accuracy"] > 0.9
    assert (
        stack.json("submit", str(stack.job_file("crash", pace=LONG_PACE)), "--wait")["jobs"][0]["state"] == "Succeeded"
    )
    stack.assert_each_image_was_used_once_in_each_epoch("crash")


def test_a_reclaimed_spot_node_costs_no_step_at_all(stack: Stack) -> None:
    stack.run("submit", str(stack.job_file("reclaim", pace=LONG_PACE)))
    eventually("three workers", lambda: stack.state_of("reclaim")["ready"] == 3)
    before = set(stack.kubectl("get", "nodes", "-o", "name").split())
    outcome = stack.json("drill", "spot", "--job", "reclaim")
    assert outcome["steps_lost"] == 0
    assert outcome["world_before"] == 3
    assert outcome["accuracy"] > 0.9
    after = set(stack.kubectl("get", "nodes", "-o", "name").split())
    assert before - after == {f"node/{outcome['victim']}"}
    assert len(after) == len(before), "no node came in its place"
    assert (
        stack.json("submit", str(stack.job_file("reclaim", pace=LONG_PACE)), "--wait")["jobs"][0]["state"]
        == "Succeeded"
    )
    stack.assert_each_image_was_used_once_in_each_epoch("reclaim")


def test_a_restarted_etcd_and_a_frozen_worker_are_survived(stack: Stack) -> None:
    stack.run("submit", str(stack.job_file("faults", pace=VERY_LONG_PACE)))
    eventually("three workers", lambda: stack.state_of("faults")["ready"] == 3)
    outcome = stack.json("drill", "etcd", "--job", "faults", "--no-wait")
    assert outcome["victim"] == "etcd-0"
    assert outcome["longest_pause"] > 0
    outcome = stack.json("drill", "freeze", "--job", "faults", "--no-wait")
    victim, frozen_out = outcome["victim"], outcome["generation_after"]
    assert frozen_out > outcome["generation_before"]

    def is_back() -> bool:
        """Whether the thawed worker is in a newer world than the one that was formed without it."""
        lines = stack.kubectl("logs", "-n", "training", victim).splitlines()
        told = [json.loads(line) for line in lines if line.startswith('{"trainyard": "rendezvous"')]
        return bool(told) and told[-1]["generation"] > frozen_out

    eventually("the thawed worker in a new world", is_back)
    stack.kubectl("delete", "elasticjob", "-n", "training", "faults")


ONE_WORKER_A_NODE = {
    "podAntiAffinity": {
        "requiredDuringSchedulingIgnoredDuringExecution": [
            {
                "labelSelector": {"matchLabels": {"elastic.pytorch.org/job-name": "story"}},
                "topologyKey": "kubernetes.io/hostname",
            }
        ]
    }
}
"""So that four workers fit the four nodes, of which three have a GPU."""


@pytest.mark.timeout(2400)
def test_a_job_is_scaled_suspended_and_disturbed_and_every_image_counts_once(
    stack: Stack, request: pytest.FixtureRequest
) -> None:
    """One job, from one worker to four, to two, to none, and to as many as there are nodes; its controller dies twice.

    How long it trains is decided at the end: so nothing here depends on how fast the computer is.
    """
    job: dict[str, Any] = {
        "minReplicas": 1,
        "maxReplicas": 4,
        "pod": {"affinity": ONE_WORKER_A_NODE},
        "container": {"resources": {}},
        "pace": 0.2,
    }
    without_end = 100_000

    def trains_with(workers: int) -> None:
        eventually(f"it trains with {workers}", lambda: stack.world_of("story") == workers, seconds=600)

    def kill_the_controller() -> None:
        controllers = ("-n", "trainyard-system", "-l", "app.kubernetes.io/name=elastic-controller")
        stack.kubectl("delete", "pods", *controllers, "--grace-period=0", "--force", "--wait=false")

    stack.run("submit", str(stack.job_file("story", **job, epochs=without_end, worker={"replicas": 1})))
    log = stack.start("logs", "story", "--follow")
    request.addfinalizer(log.kill)
    trains_with(1)
    stack.run("scale", "story", "4", "--wait", "--timeout=600")
    trains_with(4)

    kill_the_controller()
    stack.run("scale", "story", "2", "--wait", "--timeout=600")
    trains_with(2)

    stack.run("suspend", "story", "--wait")
    (reason,) = stack.json("describe", "story")["waiting"]
    assert (reason["cause"], reason["next"]) == ("suspended", "trainyard resume story")
    made = len(stack.steps_of("story"))
    stack.run("resume", "story", "--wait")
    trains_with(2)
    assert len(stack.steps_of("story")) > made

    # What `scale` has changed is not the file's any more, so the file leaves it out.
    as_many_as_fit = {"scaling": {"mode": "Capacity"}}
    stack.run(
        "submit", str(stack.job_file("story", **job, epochs=without_end, **as_many_as_fit, worker={"replicas": None}))
    )
    trains_with(4)
    assert "spec.scaling.mode is Capacity" in stack.run("scale", "story", "3", code=1)[1]
    drill = stack.start("drill", "spot", "--job", "story", "--no-wait", "--json")
    kill_the_controller()
    out, err = drill.communicate(timeout=900)
    assert drill.returncode == 0, out + err
    assert json.loads(out)["victim"] not in stack.kubectl("get", "nodes", "-o", "name")
    trains_with(4)

    stack.run("suspend", "story", "--wait")
    steps_of_an_epoch = -(-NUM_TRAINING_IMAGES // GLOBAL_BATCH)
    epochs = max(stack.steps_of("story")) // steps_of_an_epoch + 1
    job |= {"pace": 0.0, "epochs": epochs}
    path = str(stack.job_file("story", **job, **as_many_as_fit, worker={"replicas": None}))
    stack.run("submit", path)
    stack.run("resume", "story")
    assert stack.json("submit", path, "--wait")["jobs"][0]["state"] == "Succeeded"
    stack.assert_each_image_was_used_once_in_each_epoch("story", epochs)

    told, err = log.communicate(timeout=900)
    assert log.returncode == 0, err
    assert {line.partition(" | ")[0].partition(" ")[2].strip() for line in told.splitlines()} >= {
        "rank 0",
        "rank 1",
        "rank 2",
        "rank 3",
    }
    assert '{"trainyard": "finished"' in told
    assert stack.run("logs", "story", "--tail", "1")[0].count("\n") == 1
    stack.run("cancel", "story", "--yes", "--wait")
    assert "story" not in {row["job"] for row in stack.json("jobs")["jobs"]}


def test_the_control_plane_is_restarted_in_the_middle_of_a_job_without_loss(stack: Stack) -> None:
    stack.run("submit", str(stack.job_file("restart")))
    eventually("three workers", lambda: stack.state_of("restart")["ready"] == 3)
    uids = ("get", "pods", "-n", "training", "-l", "job-name=restart", "-o", "jsonpath='{.items[*].metadata.uid}'")
    pods = sorted(stack.kubectl(*uids).split())
    for part in stack.json("status")["processes"]:
        os.kill(part["pid"], signal.SIGKILL)
    assert stack.json("up")["changes"] == {"same": RESOURCES}
    assert stack.json("submit", str(stack.job_file("restart")), "--wait")["jobs"][0]["state"] == "Succeeded"
    assert sorted(stack.kubectl(*uids).split()) == pods
    stack.assert_each_image_was_used_once_in_each_epoch("restart")


def test_two_ups_at_once_take_turns(stack: Stack) -> None:
    both = [stack.start("up", "--json") for _ in range(2)]
    answers = [process.communicate(timeout=900) for process in both]
    assert [process.returncode for process in both] == [0, 0], answers
    assert all(json.loads(out)["changes"] == {"same": RESOURCES} for out, _ in answers)


def test_plain_pulumi_destroy_leaves_nothing(stack: Stack) -> None:
    stack.shell("pulumi destroy -s local --yes --skip-preview --non-interactive")
    assert json.loads(stack.shell("pulumi stack export -s local"))["deployment"].get("resources", []) == []
    assert "training" not in stack.kubectl(
        "get", "namespaces,persistentvolumes,priorityclasses,clusterroles", "-o", "name"
    )
    assert list(stack.state.glob("volumes/*")) == []


@pytest.mark.parametrize("seconds", [2.5, 5.0])
def test_a_killed_up_is_finished_by_the_next(stack: Stack, seconds: float) -> None:
    process = stack.start("up")
    time.sleep(seconds)
    process.kill()
    process.wait()
    changes = stack.json("up")["changes"]
    assert "delete" not in changes
    assert "replace" not in changes
    assert stack.json("preview")["changes"] == {"same": RESOURCES}


def test_down_leaves_no_process_no_port_and_no_file_outside_the_state_folder(stack: Stack) -> None:
    status = stack.json("status")
    stack.run("down", "--yes")
    assert stack.processes() == []
    assert all(ports.becomes_free(part["port"], seconds=60) for part in status["processes"] if part["port"])
    assert sorted(path.name for path in stack.state.iterdir()) == ["lock", "logs", "pulumi"]
    assert list(stack.temporary.iterdir()) == []
    assert stack.run("jobs", code=1)[1].rstrip().endswith("Start it: trainyard up -s local")
    stack.run("down", "--yes")
