"""Real builds, without a registry: a store of buildah's own, a base image from Debian's packages, containers of images.

All of it wants root, buildah and debootstrap (`apt-get install buildah debootstrap`), a Debian mirror and the package
index. Where the network inspects TLS, SSL_CERT_FILE names its authorities, as for every other program.
"""

from __future__ import annotations

import contextlib
import datetime
import io
import json
import os
import shlex
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from images.builders import debootstrap
from images.builders.built import Built, Order, this_architecture
from images.builders.containers import Buildah
from images.builders.trust import bundle
from images.matrix import Row
from images.render import render
from infra.local.engines.cache import cache_directory

MINUTES = 600.0  # seconds; only a limit
_STORAGE = '[storage]\ndriver = "{driver}"\ngraphroot = "{folder}/layers"\nrunroot = "{folder}/run"\n'
# Process 1 of its own: what happens in a cluster. `chroot` replaces the shell, `env` replaces chroot, and so on.
_CONTAINER = """\
mount -t proc proc "$1/proc" && mount --rbind /dev "$1/dev" &&
exec chroot --userspec="$2" --groups= "$1" /usr/bin/env --ignore-environment --chdir="$3" {environment} {command}
"""


def buildah(*arguments: str, code: int = 0) -> str:
    ran = subprocess.run(["buildah", *arguments], capture_output=True, text=True, check=False, timeout=MINUTES)
    assert ran.returncode == code, ran.stderr
    return ran.stdout.strip()


@contextlib.contextmanager
def store() -> Iterator[Path]:
    """Leads buildah to a store of its own, removed at the end with all that is in it."""
    folder = Path(tempfile.mkdtemp(prefix="ty", dir="/tmp"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CONTAINERS_STORAGE_CONF", str(folder / "storage.conf"))
        patch.setenv("TMPDIR", str(folder))  # cache mounts and layers on their way as well
        patch.setenv("BUILDAH_ISOLATION", "chroot")  # works in a container too
        try:
            for driver in ("overlay", "vfs"):  # overlay does not work on top of itself
                (folder / "storage.conf").write_text(_STORAGE.format(driver=driver, folder=folder))
                if subprocess.run(["buildah", "from", "scratch"], capture_output=True, check=False).returncode == 0:
                    break
                shutil.rmtree(folder / "layers", ignore_errors=True)
            yield folder
        finally:
            for arguments in (["umount", "--all"], ["rm", "--all"], ["rmi", "--all", "--force"]):
                subprocess.run(["buildah", *arguments], capture_output=True, check=False, timeout=MINUTES)
            for mounted in sorted(psutil.disk_partitions(all=True), reverse=True):
                if mounted.mountpoint.startswith(f"{folder}/"):
                    subprocess.run(["umount", "--lazy", mounted.mountpoint], capture_output=True, check=False)
            shutil.rmtree(folder, ignore_errors=True)


def base_image(folder: Path) -> str:
    """The base image in the store; kept as an archive from one run of the tests to the next."""
    kept = cache_directory() / "images" / "test-base.tar"
    if kept.exists():
        pulled = buildah("pull", "--quiet", f"oci-archive:{kept}")
        buildah("tag", pulled.splitlines()[-1], debootstrap.REFERENCE)
        return debootstrap.REFERENCE
    debootstrap.make()
    kept.parent.mkdir(parents=True, exist_ok=True)
    Buildah().save(debootstrap.REFERENCE, folder / "base.tar")
    shutil.move(folder / "base.tar", kept)
    return debootstrap.REFERENCE


def authorities(folder: Path) -> tuple[Path, str]:
    """A file for --extra-ca: those of this computer and one that nobody else has; and a piece of that to look for."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "authority of a test")])
    now = datetime.datetime.now(datetime.UTC)
    until = now + datetime.timedelta(days=1)
    made = x509.CertificateBuilder(name, name, key.public_key(), 1, now, until).sign(key, hashes.SHA256())
    pem = made.public_bytes(serialization.Encoding.PEM).decode()
    own = folder / "own.pem"
    own.write_text(pem)
    file = folder / "authorities.pem"
    file.write_text(bundle(own))
    return file, pem.splitlines()[2]


def built(row: Row, folder: Path, *, tag: str, extra_ca: Path | None, base: str, no_cache: bool = True) -> Built:
    """Render a row and build it."""
    context = folder / f"context-{row.name}"
    render(row).write(context)
    order = Order(
        row=row.name,
        context=context,
        tag=tag,
        architecture=this_architecture(),
        log=folder / f"{row.name}.log",
        base=base,
        extra_ca=extra_ca,
        no_cache=no_cache,
    )
    return Buildah().build(order, lambda said: print(said, file=sys.stderr))


def layers_with(archive: Path, needle: bytes) -> list[str]:
    """Files of an archive, and of the layers in it, that contain something."""
    found = []
    with tarfile.open(archive) as outer:
        for blob in outer:
            content = outer.extractfile(blob) if blob.isfile() else None
            if content is None:
                continue
            data = content.read()
            if needle in data:
                found.append(blob.name)
            with contextlib.suppress(tarfile.ReadError):
                found += _members_with(data, blob.name, needle)
    return found


def _members_with(data: bytes, name: str, needle: bytes) -> list[str]:
    found = []
    with tarfile.open(fileobj=io.BytesIO(data)) as layer:
        for member in layer:
            content = layer.extractfile(member) if member.isfile() else None
            if content is not None and needle in content.read():
                found.append(f"{name}:{member.name}")
    return found


def structure_test(image: str, folder: Path, checks: dict[str, Any]) -> None:
    """Look at an image's files and metadata by Google's container-structure-test, on an archive: it runs nothing.

    It unpacks the whole image anew for each question.
    """
    archive, configuration = folder / "image.tar", folder / "checks.yaml"
    buildah("push", "--quiet", image, f"docker-archive:{archive}")
    configuration.write_text(json.dumps({"schemaVersion": "2.0.0", **checks}))
    program = Path(sys.executable).with_name("container-structure-test")
    command: list[str | Path] = [
        program,
        "test",
        "--driver",
        "tar",
        "--image",
        archive,
        "--config",
        configuration,
        "--no-color",
    ]
    ran = subprocess.run(command, capture_output=True, text=True, check=False, timeout=MINUTES)
    archive.unlink()
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "Failures:    0" in ran.stdout


class Container:
    """A root file system of an image, in which its entrypoint is process 1."""

    def __init__(self, image: str) -> None:
        self.configuration = json.loads(buildah("inspect", "--type", "image", image))["OCIv1"]["config"]
        self._name = buildah("from", image)
        self.root = Path(buildah("mount", self._name))
        (self.root / "etc" / "hosts").write_text("127.0.0.1 localhost\n")  # which runtimes write too
        self._started: list[subprocess.Popen[str]] = []

    def start(self, *arguments: str, **environment: str) -> subprocess.Popen[str]:
        """Run the entrypoint as the image says: its user, its folder, its variables."""
        variables = [*self.configuration["Env"], *(f"{name}={value}" for name, value in environment.items())]
        script = _CONTAINER.format(
            environment=shlex.join(variables), command=shlex.join([*self.configuration["Entrypoint"], *arguments])
        )
        given = [str(self.root), self.configuration["User"], self.configuration["WorkingDir"]]
        command = ["unshare", "--mount", "--pid", "--fork", "sh", "-c", script, "sh", *given]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        self._started.append(process)
        return process

    def close(self) -> None:
        for process in self._started:
            for first in psutil.Process(process.pid).children() if process.poll() is None else ():
                first.kill()  # and with it its namespace; unshare's own way ends where its child changes its user
            process.communicate()
        buildah("umount", self._name)
        buildah("rm", self._name)


@contextlib.contextmanager
def container(image: str) -> Iterator[Container]:
    made = Container(image)
    try:
        yield made
    finally:
        made.close()


def process_1(process: subprocess.Popen[str]) -> psutil.Process:
    """The first process of the container, as this computer sees it."""
    (first,) = psutil.Process(process.pid).children()
    return first


def lines(process: subprocess.Popen[str], *, until: str) -> str:
    """What a process says up to a line that has these words."""
    assert process.stdout is not None
    said = ""
    for line in process.stdout:
        said += line
        if until in line:
            return said
    raise AssertionError(f"it ended with {process.wait(MINUTES)} and said:\n{said}")


def environment_of_root() -> None:
    """Say what is missing, instead of failing in the middle."""
    missing = [name for name in ("buildah", "debootstrap", "unshare") if shutil.which(name) is None]
    assert not missing, f"real builds need {', '.join(missing)}: apt-get install buildah debootstrap"
    assert os.geteuid() == 0, "real builds need root, for debootstrap and for containers"
