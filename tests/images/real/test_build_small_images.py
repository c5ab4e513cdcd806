"""The controller's image and a training image without torch, really built, twice, looked into, and run.

The training image is a stand-in: the same stages, files and user, but torch and all that only torch needs are left out,
which are 4.5 GB. `make test-images` builds it in full.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import tarfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest
from real_builds import (
    MINUTES,
    authorities,
    base_image,
    buildah,
    built,
    container,
    environment_of_root,
    layers_with,
    lines,
    process_1,
    store,
    structure_test,
)

from images.builders.built import Built, Order, this_architecture
from images.builders.containers import Buildah
from images.errors import BuildError
from images.matrix import Row, matrix
from images.requirements import read

pytestmark = pytest.mark.builds

STILL_NEEDED = {"cloudpickle", "joblib", "narwhals", "numpy", "scikit-learn", "scipy", "threadpoolctl"}
"""What the training group has besides torch."""
AUTHORITIES = "/etc/ssl/certs/ca-certificates.crt"
BUILD_IN_ORDER = """\
import signal, sys
from pathlib import Path
from images.builders.built import Order
from images.builders.containers import Buildah
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
context, tag, architecture, log, base = sys.argv[1:]
Buildah().build(
    Order(row="endless", context=Path(context), tag=tag, architecture=architecture, log=Path(log), base=base)
)
"""
KUBECONFIG = {
    "apiVersion": "v1",
    "kind": "Config",
    "current-context": "nobody",
    "contexts": [{"name": "nobody", "context": {"cluster": "nobody", "user": "nobody"}}],
    "clusters": [{"name": "nobody", "cluster": {"server": "http://127.0.0.1:9"}}],
    "users": [{"name": "nobody", "user": {}}],
}


@dataclass(frozen=True)
class Twice:
    """An image that was built twice from the same inputs."""

    first: Built
    second: Built


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    environment_of_root()
    with store() as made:
        yield made


@pytest.fixture(scope="module")
def base(folder: Path) -> str:
    return base_image(folder)


@pytest.fixture(scope="module")
def authority(folder: Path) -> tuple[Path, str]:
    return authorities(folder)


@pytest.fixture(scope="module")
def controller(folder: Path, base: str, authority: tuple[Path, str]) -> Twice:
    return twice(matrix().row("controller"), folder, base, authority[0])


@pytest.fixture(scope="module")
def stand_in(folder: Path, base: str, authority: tuple[Path, str]) -> Twice:
    return twice(small(matrix().row("cpu")), folder, base, authority[0])


@pytest.fixture(params=["controller", "stand_in"])
def image(request: pytest.FixtureRequest) -> Twice:
    made: Twice = request.getfixturevalue(request.param)
    return made


def twice(row: Row, folder: Path, base: str, extra_ca: Path) -> Twice:
    tag = f"localhost/{row.kind}"
    first = built(row, folder, tag=f"{tag}:1", extra_ca=extra_ca, base=base)
    return Twice(first, built(row, folder, tag=f"{tag}:2", extra_ca=extra_ca, base=base))


def small(row: Row) -> Row:
    """A row without torch."""
    if row.torch is None:
        return row
    assert row.lock_path is not None
    return row.model_copy(
        update={"leave_out": tuple(one.name for one in read(row.lock_path) if one.name not in STILL_NEEDED)}
    )


def test_the_same_inputs_give_the_same_image(image: Twice) -> None:
    assert image.first.image_id == image.second.image_id
    assert image.first.digest == image.second.digest
    assert image.first.architecture == this_architecture()


def test_user_entrypoint_and_facts_are_what_the_matrix_says(image: Twice, folder: Path) -> None:
    module = "training.controller" if image.first.row == "controller" else "training"
    structure_test(
        image.first.tag,
        folder,
        {
            "metadataTest": {
                "user": "65532:65532",
                "workdir": "/workspace",
                "entrypoint": ["/usr/bin/tini", "-s", "--", "/opt/trainyard/venv/bin/python", "-m", module],
                "labels": [{"key": "dev.trainyard.row", "value": image.first.row}],
            },
            "fileContentTests": [
                {
                    "name": "row",
                    "path": "/etc/trainyard/image.json",
                    "expectedContents": [f'"row": "{image.first.row}"'],
                }
            ],
        },
    )


def test_what_runs_is_in_it_and_what_builds_is_not(image: Twice) -> None:
    module = "training/controller" if image.first.row == "controller" else "training"
    project, packages = f"opt/trainyard/project/{module}", "opt/trainyard/venv/lib/python3.11/site-packages"
    there = (f"{project}/__main__.py", f"{project}/__pycache__/__main__.cpython-311.pyc", "etc/trainyard/sbom.cdx.json")
    left_out = ("opt/uv", "build", "etc/pip.conf", "etc/uv/uv.toml", "var/lib/apt/lists/lock", f"{packages}/torch")
    with container(image.first.tag) as made:
        assert [name for name in there if not (made.root / name).is_file()] == []
        assert [name for name in left_out if (made.root / name).exists()] == []
        written = [path for path in (made.root / "opt").rglob("*") if path.lstat().st_uid != 0]
        assert written == [], "what runs belongs to root, and its user cannot change it"


def test_no_layer_has_the_authority_that_the_build_was_given(
    image: Twice, folder: Path, authority: tuple[Path, str]
) -> None:
    archive = folder / "layers.tar"
    buildah("push", "--quiet", image.first.tag, f"docker-archive:{archive}")
    assert layers_with(archive, b"65532"), "the archive can be looked into"
    assert layers_with(archive, authority[1].encode()) == []
    archive.unlink()


def test_they_run_as_a_user_without_rights(controller: Twice, stand_in: Twice) -> None:
    for image, module in ((controller, "training.controller.main"), (stand_in, "sklearn.datasets")):
        name = buildah("from", image.first.tag)
        python = f"import {module}, os; print(os.getuid(), os.access('/opt/trainyard', os.W_OK), os.getcwd())"
        assert buildah("run", name, "--", "python", "-c", python).splitlines()[-1] == "65532 False /workspace"
        buildah("rm", name)


def test_sigterm_to_process_1_ends_the_controller_in_order(controller: Twice) -> None:
    with container(controller.first.tag) as made:
        (made.root / "workspace" / "kubeconfig").write_text(json.dumps(KUBECONFIG))
        process = made.start("--lease-namespace", "here", "--metrics-port", "0", KUBECONFIG="/workspace/kubeconfig")
        first_lines = lines(process, until='"started"')
        first = process_1(process)
        assert first.name() == "tini"
        assert first.uids().real == 65532
        first.send_signal(signal.SIGTERM)
        rest, _ = process.communicate(timeout=MINUTES)
        assert process.returncode == 0, first_lines + rest


def test_what_a_step_sees_of_authorities_and_indexes_stays_out_of_the_image(
    folder: Path, base: str, authority: tuple[Path, str]
) -> None:
    """In a stage of its own: buildah takes away afterwards what the base image had at those places."""
    context = folder / "secrets"
    context.mkdir()
    mounts = " ".join(
        f"--mount=type=secret,id={name},target={path}"
        for name, path in (("ca", AUTHORITIES), ("pip", "/etc/pip.conf"), ("uv", "/etc/uv/uv.toml"))
    )
    look = f"cat {AUTHORITIES} /etc/pip.conf /etc/uv/uv.toml | grep -c -e {authority[1]} -e word-of-a-test >/seen"
    stages = f"FROM $BASE_IMAGE AS look\nRUN {mounts} {look}\nFROM $BASE_IMAGE\nCOPY --from=look /seen /\n"
    (context / "Dockerfile").write_text(f"ARG BASE_IMAGE\n{stages}")
    order = Order(
        row="secrets",
        context=context,
        tag="localhost/secrets:1",
        architecture=this_architecture(),
        log=folder / "secrets.log",
        base=base,
        extra_ca=authority[0],
        index="https://somebody:word-of-a-test@packages.example/simple",
    )
    Buildah().build(order)
    archive = folder / "secrets.tar"
    Buildah().save(order.tag, archive)
    with container(order.tag) as made:
        assert (made.root / "seen").read_text() == "3\n"
        assert authority[1] not in (made.root / AUTHORITIES.lstrip("/")).read_text()
    for needle in (authority[1], "word-of-a-test"):
        assert [name for name in layers_with(archive, needle.encode()) if "Dockerfile" not in name] == []
    archive.unlink()


def test_a_full_disk_is_a_sentence_and_leaves_no_image(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    context = folder / "big"
    context.mkdir()
    (context / "Dockerfile").write_text("FROM scratch\nCOPY big /big\n")
    with (context / "big").open("wb") as file:
        file.truncate(64 * 2**20)
    little = folder / "little"
    little.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=32m", "none", little], check=True)
    try:
        monkeypatch.setenv("CONTAINERS_STORAGE_CONF", str(little / "storage.conf"))
        monkeypatch.setenv("TMPDIR", str(little))
        (little / "storage.conf").write_text(
            f'[storage]\ndriver = "vfs"\ngraphroot = "{little}/layers"\nrunroot = "{little}/run"\n'
        )
        order = Order(
            row="big", context=context, tag="localhost/big:1", architecture=this_architecture(), log=folder / "log"
        )
        with pytest.raises(BuildError, match=r"the build of big failed.*the disk is full.*buildah rmi --prune"):
            Buildah().build(order)
        with pytest.raises(BuildError, match=r"buildah has no image localhost/big:1"):
            Buildah().inspect("localhost/big:1")
    finally:
        subprocess.run(["umount", "--lazy", little], check=True)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_build_ends_its_steps_and_leaves_no_tag(folder: Path, base: str, number: signal.Signals) -> None:
    context = folder / f"endless-{number}"
    context.mkdir()
    (context / "Dockerfile").write_text("ARG BASE_IMAGE\nFROM $BASE_IMAGE\nRUN echo begun && exec sleep 86399\n")
    log = folder / f"endless-{number}.log"
    order = [str(context), "localhost/endless:1", this_architecture(), str(log), base]
    process = subprocess.Popen([sys.executable, "-c", BUILD_IN_ORDER, *order], stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + MINUTES
    while not (log.exists() and "\nbegun" in log.read_text()):
        assert process.poll() is None, process.communicate()[1]
        assert time.monotonic() < deadline
        time.sleep(0.1)
    below = psutil.Process(process.pid).children(recursive=True)
    assert below
    process.send_signal(number)
    process.communicate(timeout=MINUTES)
    assert process.returncode != 0
    while [one for one in below if one.is_running() and one.status() != psutil.STATUS_ZOMBIE]:
        assert time.monotonic() < deadline
        time.sleep(0.1)
    with pytest.raises(BuildError, match=r"buildah has no image localhost/endless:1"):
        Buildah().inspect("localhost/endless:1")


def test_the_command_builds_and_writes_an_archive(folder: Path, base: str, authority: tuple[Path, str]) -> None:
    archive = folder / "controller.tar"
    ran = subprocess.run(
        [
            sys.executable, "-c", "from infra.cli import main; main()", "images", "build", "controller",
            "--tool", "buildah", "--base-image", base, "--extra-ca", authority[0], "--archive", archive, "--json",
        ],
        capture_output=True, text=True, check=False, timeout=MINUTES,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    (said,) = json.loads(ran.stdout)["images"]
    assert said["row"] == "controller"
    assert said["tool"] == "buildah"
    assert said["archive"] == str(archive)
    assert "step" in ran.stderr
    with tarfile.open(archive) as made:
        names = made.getnames()
    assert {"index.json", "oci-layout"} <= set(names)
    assert f"blobs/sha256/{said['image_id'].removeprefix('sha256:')}" in names
    archive.unlink()
