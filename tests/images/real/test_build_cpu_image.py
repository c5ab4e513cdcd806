"""The CPU row in full: it trains, it stops with a checkpoint where it is told to, and it can be built again.

`make test-images` builds the archive first and says where it is.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from real_builds import (
    MINUTES,
    authorities,
    base_image,
    buildah,
    built,
    container,
    environment_of_root,
    lines,
    process_1,
    store,
)

from images.builders.containers import Buildah
from images.matrix import matrix
from infra.local.engines import ensure
from training.launch import exit_codes

pytestmark = [pytest.mark.images, pytest.mark.timeout(3600), pytest.mark.xdist_group("cpu-image")]

IMAGE = "localhost/training:first"
DIGITS = ("--nproc-per-node", "2", "-m", "training.examples.digits", "--checkpoints", "/workspace/checkpoints")
ADDRESS = {"PET_LOCAL_ADDR": "127.0.0.1"}
"""As the controller sets it; the name of this computer is nothing that a container without DNS could look up."""
ALIKE = ["/usr/bin/tini", "-s", "--", "/opt/trainyard/venv/bin/python", "-m", "training"]


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    environment_of_root()
    with store() as made:
        yield made


@pytest.fixture(scope="module")
def image(folder: Path) -> str:
    archive = Path(os.environ.get("TRAINYARD_TRAINING_ARCHIVE", ""))
    assert archive.is_file(), "TRAINYARD_TRAINING_ARCHIVE names no archive of a built image; make test-images builds it"
    buildah("tag", buildah("pull", "--quiet", f"oci-archive:{archive}").splitlines()[-1], IMAGE)
    return IMAGE


@pytest.fixture
def rendezvous(tmp_path: Path) -> Iterator[tuple[str, ...]]:
    """etcd, where launchers meet in a cluster: with torch's own rendezvous a launcher's code says less."""
    ports = []
    for _ in range(2):
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            ports.append(probe.getsockname()[1])
    client, peer = (f"http://127.0.0.1:{port}" for port in ports)
    program = ensure(["etcd"])["etcd"].path
    command: list[str | Path] = [
        *(program, f"--data-dir={tmp_path / 'etcd'}", "--unsafe-no-fsync", "--log-level=error"),
        *(f"--listen-client-urls={client}", f"--advertise-client-urls={client}", f"--listen-peer-urls={peer}"),
        *(f"--initial-advertise-peer-urls={peer}", f"--initial-cluster=default={peer}"),
    ]
    process = subprocess.Popen(command)
    try:
        yield ("--rdzv-backend", "etcd", "--rdzv-endpoint", client.removeprefix("http://"))
    finally:
        process.kill()
        process.wait()


def events(output: str, kind: str) -> list[dict[str, Any]]:
    """The progress lines of a kind."""
    found = [json.loads(line) for line in output.splitlines() if line.startswith('{"trainyard"')]
    return [event for event in found if event["trainyard"] == kind]


def test_its_entrypoint_its_user_and_its_packages_are_what_the_matrix_says(image: str) -> None:
    """Read from its root file system: container-structure-test would unpack 5 GB anew for each question."""
    packages = {"torch": True, "numpy": True, "triton": False, "pip": False}
    with container(image) as made:
        assert made.configuration["Entrypoint"] == ALIKE
        assert made.configuration["User"] == "65532:65532"
        assert made.configuration["WorkingDir"] == "/workspace"
        assert made.configuration["Labels"]["dev.trainyard.torch"] == "2.15.0"
        folder = made.root / "opt/trainyard/venv/lib/python3.11/site-packages"
        assert {name: (folder / name).is_dir() for name in packages} == packages


def test_two_workers_train_in_it_by_buildah_run(image: str) -> None:
    name = buildah("from", image)
    variables = [f"--env={key}={value}" for key, value in ADDRESS.items()]
    ran = subprocess.run(
        ["buildah", "run", *variables, name, "--", *ALIKE, *DIGITS],
        capture_output=True,
        text=True,
        check=False,
        timeout=MINUTES,
    )
    buildah("rm", name)
    assert ran.returncode == exit_codes.FINISHED, ran.stdout + ran.stderr
    assert {event["world_size"] for event in events(ran.stdout, "step")} == {2}
    (finished,) = events(ran.stdout, "finished")
    assert finished["accuracy"] > 0.9


def test_sigterm_to_process_1_leads_to_a_checkpoint_and_the_documented_code(
    image: str, rendezvous: tuple[str, ...]
) -> None:
    with container(image) as made:
        process = made.start(
            *rendezvous, "--rdzv-id", "first", *DIGITS, "--epochs", "1000", "--checkpoint-every", "100000", **ADDRESS
        )
        before = lines(process, until='"step": 3,')
        first = process_1(process)
        assert first.name() == "tini"
        assert first.uids().real == 65532
        first.send_signal(signal.SIGTERM)
        output, _ = process.communicate(timeout=MINUTES)
        assert process.returncode == exit_codes.PREEMPTED, before + output
        step = events(before + output, "step")[-1]["step"]
        (saved,) = events(output, "checkpoint")
        assert saved["step"] == step
        again = made.start(*rendezvous, "--rdzv-id", "again", *DIGITS, "--epochs", "1", **ADDRESS)
        resumed, _ = again.communicate(timeout=MINUTES)
        assert again.returncode == exit_codes.FINISHED, resumed
        assert saved["path"] in resumed or events(resumed, "finished")[0]["step"] >= step


def test_a_second_build_from_the_same_inputs_gives_the_same_image(image: str, folder: Path) -> None:
    first, *_ = Buildah().inspect(image)
    buildah("rmi", "--force", image)  # 5 GB, which the second build needs
    second = built(
        matrix().row("cpu"),
        folder,
        tag="localhost/training:second",
        extra_ca=authorities(folder)[0],
        base=base_image(folder),
    )
    assert second.image_id == first
