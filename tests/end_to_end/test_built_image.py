"""A loaded image on the local stack: its ElasticJob runs in it, sees nothing of the computer, and it comes and goes.

The image is of this computer's own shell, which takes no build; `test_built_training_image.py` has the real ones.
"""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import io
import json
import re
import shutil
import subprocess
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from stack_of_its_own import Stack, eventually, local_stack

from infra.cli.workspace import Workspace
from infra.clusters import CHECKOUT
from infra.local.images.archive import this_architecture
from infra.local.images.names import CHECKOUT_IMAGES
from infra.settings import Settings

pytestmark = [pytest.mark.engines, pytest.mark.timeout(600), pytest.mark.xdist_group("built-image")]

EXAMPLE = CHECKOUT / "training/examples/digits.yaml"
PROGRAMS = ("sh", "cat", "ls", "id", "sleep", "env")
SECRET = "a file of the computer"


@pytest.fixture(scope="module")
def stack() -> Iterator[Stack]:
    with local_stack() as made:
        made.json("up")
        yield made


def shell_image(path: Path, made: str = "of the image") -> Path:
    """An archive with the computer's own shell and a few programs, under the name trainyard/shell:1.

    Args:
        path: Where it is written.
        made: What is in its /etc/made.
    """
    files: dict[str, bytes] = {
        "etc/passwd": b"root:x:0:0::/:/tools/sh\ntrainer:x:65532:65532::/workspace:/tools/sh\n",
        "etc/group": b"root:x:0:\ntrainer:x:65532:\n",
        "etc/made": f"{made}\n".encode(),
    }
    for name in PROGRAMS:
        program = shutil.which(name)
        assert program
        files[f"tools/{name}"] = Path(program).read_bytes()
        libraries = subprocess.run(["ldd", program], capture_output=True, text=True, check=True).stdout
        for library in re.findall(r"/\S+", libraries):
            files[library.removeprefix("/")] = Path(library).read_bytes()
    layer = _tar(
        {"tmp/": (b"", 0o1777)}
        | {name: (content, 0o644 if name.startswith("etc/") else 0o755) for name, content in files.items()}
    )
    blobs: dict[str, bytes] = {}

    def blob(data: bytes) -> dict[str, Any]:
        digest = hashlib.sha256(data).hexdigest()
        blobs[f"blobs/sha256/{digest}"] = data
        return {"digest": f"sha256:{digest}", "size": len(data)}

    settings = {
        "Entrypoint": ["sh", "-c"],
        "Env": ["PATH=/tools", "OF_THE_IMAGE=yes"],
        "User": "65532",
        "WorkingDir": "/workspace",
    }
    config = {
        "architecture": this_architecture(),
        "os": "linux",
        "config": settings,
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{hashlib.sha256(layer).hexdigest()}"]},
    }
    manifest = {"config": blob(json.dumps(config).encode()), "layers": [blob(gzip.compress(layer))]}
    named = blob(json.dumps(manifest).encode()) | {
        "annotations": {"org.opencontainers.image.ref.name": "trainyard/shell:1"}
    }
    index = json.dumps({"schemaVersion": 2, "manifests": [named]}).encode()
    path.write_bytes(_tar({name: (data, 0o644) for name, data in {"index.json": index, **blobs}.items()}))
    return path


def _tar(files: dict[str, tuple[bytes, int]]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for name, (content, mode) in files.items():
            member = tarfile.TarInfo(name)
            member.size, member.mode = len(content), mode
            if name.endswith("/"):
                member.type = tarfile.DIRTYPE
            tar.addfile(member, io.BytesIO(content))
    return buffer.getvalue()


def shell_job(name: str, image: str, script: str) -> dict[str, Any]:
    """The example job, whose worker runs a script of an image that has no Python at all."""
    job: dict[str, Any] = yaml.safe_load(EXAMPLE.read_text())
    job["metadata"]["name"] = name
    worker = job["spec"]["replicaSpecs"]["Worker"]
    job["spec"]["maxReplicas"] = worker["replicas"] = 1
    container = worker["template"]["spec"]["containers"][0]
    del container["env"], container["args"]
    # The controller's options for torchrun follow; to the shell they are arguments of the script.
    container |= {"image": image, "command": ["sh", "-c", script, "worker"]}
    return job


@pytest.fixture(scope="module")
def loaded(stack: Stack) -> Any:
    """The small image, loaded while the cluster is up."""
    return stack.json("images", "load", shell_image(stack.folder / "shell.tar"))


def test_a_loaded_image_is_known_to_the_running_cluster_at_once(stack: Stack, loaded: Any) -> None:
    assert loaded["name"] == "trainyard/shell:1"
    assert loaded["clusters"] == [stack.environment["TRAINYARD_STATE_DIR"]]
    table = json.loads(Path(stack.environment["TRAINYARD_STATE_DIR"], "images.json").read_bytes())["images"]
    assert table.keys() == {loaded["name"], *CHECKOUT_IMAGES}


def test_an_elastic_job_by_digest_runs_in_the_image_and_sees_nothing_of_the_computer(stack: Stack, loaded: Any) -> None:
    secret = stack.folder / "secret"
    secret.write_text(SECRET)
    for folder in (secret.parent, secret):
        folder.chmod(folder.stat().st_mode | 0o055)
    script = (
        f"cat /etc/made; id; env; ls / /usr; cat {secret} {CHECKOUT}/README.md; echo kept >/checkpoints/shell; "
        'echo "$*"; ls /var/run/secrets/kubernetes.io/serviceaccount; echo changed >/tmp/mine; cat /tmp/mine'
    )
    job = shell_job("shell", loaded["pinned"], script)
    assert stack.submit(job, "--wait")["state"] == "Succeeded"
    printed = stack.logs("shell-worker-0")
    assert "of the image\n" in printed
    assert "uid=65532(trainer) gid=65532(trainer)" in printed
    assert "OF_THE_IMAGE=yes" in printed
    assert "--rdzv_backend=etcd" in printed
    assert "PET_NNODES=1:1" in printed
    assert SECRET not in printed
    assert "/usr" in printed.partition("cannot access")[2]
    assert [path.read_text() for path in Path(stack.environment["TRAINYARD_STATE_DIR"]).glob("volumes/*/shell")] == [
        "kept\n"
    ]
    assert printed.endswith("changed\n")
    assert list(Path(loaded["rootfs"], "tmp").iterdir()) == []


def test_an_image_in_use_goes_neither_by_removal_nor_by_another_one_of_its_name(stack: Stack, loaded: Any) -> None:
    job = shell_job("holding", loaded["name"], "while :; do sleep 1; done")
    stack.submit(job)
    pod = ("get", "pod", "-n", "training", "holding-worker-0", "-o", "jsonpath={.status.phase}")
    eventually(
        "the pod runs", lambda: "holding-worker-0" in stack.kubectl("get", "pods", "-n", "training", "-o", "name")
    )
    eventually("the pod runs", lambda: stack.kubectl(*pod) == "Running")
    _, err = stack.run("images", "remove", loaded["name"], code=1)
    assert "trainyard/shell:1 is in use by training/holding-worker-0" in err
    another = stack.json("images", "load", shell_image(stack.folder / "another.tar", "of another image"))
    listed = {image["name"]: image["digest"] for image in stack.json("images", "list")["images"]}
    assert listed == {loaded["name"]: another["digest"], loaded["pinned"]: loaded["digest"]}
    cat = ("exec", "-n", "training", "holding-worker-0", "--", "cat", "/etc/made")
    assert stack.kubectl(*cat) == "of the image\n"
    stack.kubectl("delete", "elasticjob", "-n", "training", "holding", "--wait=true")
    eventually("the pod is gone", lambda: "holding" not in stack.kubectl("get", "pods", "-n", "training", "-o", "name"))
    eventually("its container, too", lambda: not _users(stack))
    stack.run("images", "remove", loaded["name"])
    assert stack.json("images", "list")["images"] == []
    assert not Path(loaded["rootfs"]).exists()
    stack.submit(shell_job("orphan", loaded["name"], "true"))
    select = "involvedObject.name=orphan-worker-0"
    eventually(
        "the pull error",
        lambda: (
            "trainyard images load ARCHIVE adds one"
            in stack.kubectl("get", "events", "-n", "training", "--field-selector", select)
        ),
    )
    stack.kubectl("delete", "elasticjob", "-n", "training", "orphan")


def _users(stack: Stack) -> bool:
    """Whether a container of the small image has not ended yet."""
    records = Path(stack.environment["TRAINYARD_STATE_DIR"]).glob("nodes/*/runtime/containers/*/record.json")
    found = []
    for path in records:
        with contextlib.suppress(OSError):
            found.append(json.loads(path.read_text()))
    return any(record["State"] != 2 and "holding" in json.dumps(record) for record in found)


def test_the_checkouts_own_image_names_are_the_ones_that_are_kept_for_it() -> None:
    assert Workspace("local", Settings(target="local")).images().keys() == CHECKOUT_IMAGES
