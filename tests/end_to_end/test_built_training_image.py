"""The real images on the local stack: training and its controller run in what was built, without any registry.

`make test-images` builds the archives and says where they are.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from stack_of_its_own import Stack, eventually, local_stack

from infra.clusters import CHECKOUT

pytestmark = [pytest.mark.images, pytest.mark.timeout(3600), pytest.mark.xdist_group("built-image")]

EXAMPLE = CHECKOUT / "training/examples/digits.yaml"
CONTROLLER = "trainyard/controller:local"
IN_SYSTEM = ("-n", "trainyard-system")


def archive(variable: str) -> Path:
    """An archive that was built before."""
    path = Path(os.environ.get(variable, ""))
    assert path.is_file(), f"{variable} names no archive of a built image; make test-images builds it"
    return path


@pytest.fixture(scope="module")
def stack() -> Iterator[Stack]:
    """The stack, whose controller runs in the built image from its first start."""
    with local_stack() as made:
        made.json("images", "load", archive("TRAINYARD_CONTROLLER_ARCHIVE"), "--name", CONTROLLER)
        made.json("up")
        yield made


def digits(image: str) -> dict[str, Any]:
    """The example with two workers in an image."""
    job: dict[str, Any] = yaml.safe_load(EXAMPLE.read_text())
    job["spec"]["minReplicas"] = job["spec"]["maxReplicas"] = 2
    worker = job["spec"]["replicaSpecs"]["Worker"]
    worker["replicas"] = 2
    worker["template"]["spec"]["containers"][0]["image"] = image
    return job


def test_the_controller_runs_in_its_image(stack: Stack) -> None:
    pods = json.loads(stack.kubectl("get", "pods", *IN_SYSTEM, "-o", "json"))["items"]
    (controller,) = [pod for pod in pods if pod["metadata"]["name"].startswith("elastic-controller")]
    (loaded,) = stack.json("images", "list")["images"]
    assert controller["status"]["containerStatuses"][0]["imageID"].endswith(loaded["digest"])
    script = "import sys, training; print(sys.executable, training.__file__)"
    name = controller["metadata"]["name"]
    printed = stack.kubectl("exec", *IN_SYSTEM, name, "--", "python", "-c", script)
    assert "/opt/trainyard/" in printed
    assert str(CHECKOUT) not in printed


def test_the_digits_train_to_their_end_in_the_built_image(stack: Stack) -> None:
    loaded = stack.json("images", "load", archive("TRAINYARD_TRAINING_ARCHIVE"), "--name", "trainyard/training:built")
    stack.submit(digits(loaded["pinned"]))
    script = "import sys, torch; print(sys.executable, torch.__file__)"
    where = ("exec", "-n", "training", "digits-worker-0", "--", "/opt/trainyard/venv/bin/python", "-c", script)
    running = ("get", "pods", "-n", "training", "--field-selector", "status.phase=Running", "-o", "name")
    eventually("a worker runs", lambda: "digits-worker-0" in stack.kubectl(*running), seconds=600)
    assert all(path.startswith("/opt/trainyard/venv/") for path in stack.kubectl(*where).split())
    assert stack.submit(digits(loaded["pinned"]), "--wait")["state"] == "Succeeded"
    lines = [line for n in (0, 1) for line in stack.logs(f"digits-worker-{n}").splitlines() if line.startswith("{")]
    events = [json.loads(line) for line in lines]
    assert {event["world_size"] for event in events if event["trainyard"] == "step"} == {2}
    (finished,) = [event for event in events if event["trainyard"] == "finished"]
    assert finished["accuracy"] > 0.9
