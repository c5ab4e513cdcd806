"""podman and buildah: two commands over one store, which take the same options for building and pushing."""

from __future__ import annotations

import contextlib
import json
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from images.builders.built import Built, Order, Told, build_arguments, untold
from images.builders.failures import Work
from images.builders.files import complete, require_context
from images.builders.mounts import secrets_of
from images.builders.running import ask, run
from images.errors import BuildError


class Buildah:
    """buildah, which needs no engine and, with chroot isolation, no right to make containers."""

    name = "buildah"

    def build(self, order: Order, told: Told = untold) -> Built:
        """See `Tool.build`."""
        require_context(order.context)
        begin = time.monotonic()
        work = Work(self.name, f"the build of {order.row}", order.architecture, order.base or "", bool(order.extra_ca))
        with secrets_of(order) as secrets:
            # Newer ones take it from there too, and refuse a time that is given twice.
            alone = {"SOURCE_DATE_EPOCH": None}
            run(build_command(self.name, order, secrets), work, log=order.log, told=told, environment=alone)
        image_id, digest, architecture, size = self.inspect(order.tag)
        seconds = time.monotonic() - begin
        return Built(order.row, order.tag, image_id, digest, self.name, architecture, size, seconds)

    def inspect(self, tag: str) -> tuple[str, str | None, str, int]:
        """See `Tool.inspect`."""
        answer = self._ask(["inspect", "--type", "image", tag], tag)
        with understood(self.name, tag):
            said = json.loads(answer)
            # The manifest of the store lists layers as they are there: not compressed.
            size = sum(one["size"] for one in json.loads(said["Manifest"])["layers"])
            digest = said["FromImageDigest"] or None
            return f"sha256:{said['FromImageID']}", digest, said["OCIv1"]["architecture"], size

    def save(self, tag: str, archive: Path, told: Told = untold) -> None:
        """See `Tool.save`."""
        with complete(archive) as file:
            run(self._save_command(tag, file), Work(self.name, f"the export of {tag}"), told=told)

    def push(self, tag: str, destination: str, told: Told = untold) -> str:
        """See `Tool.push`."""
        with tempfile.TemporaryDirectory(prefix="trainyard-push-") as folder:
            digest = Path(folder) / "digest"
            command = [self.name, "push", "--digestfile", str(digest), tag, f"docker://{destination}"]
            run(command, Work(self.name, f"the push of {destination}", pushing=True), told=told)
            return digest.read_text(encoding="ascii").strip()

    def login(self, registry: str, user: str, password: str) -> None:
        """See `Tool.login`."""
        give_login(self.name, registry, user, password)

    def _save_command(self, tag: str, file: Path) -> list[str]:
        return [self.name, "push", "--quiet", tag, f"oci-archive:{file}"]

    def _ask(self, arguments: Sequence[str], tag: str) -> str:
        answer = ask([self.name, *arguments])
        if answer.code != 0:
            raise no_image(self.name, tag, answer.err)
        return answer.out


class Podman(Buildah):
    """podman, whose words for looking at an image and for exporting it are docker's."""

    name = "podman"

    def inspect(self, tag: str) -> tuple[str, str | None, str, int]:
        """See `Tool.inspect`."""
        answer = self._ask(["image", "inspect", tag], tag)
        with understood(self.name, tag):
            (said,) = json.loads(answer)
            image_id = said["Id"] if said["Id"].startswith("sha256:") else f"sha256:{said['Id']}"
            return image_id, said.get("Digest") or None, said["Architecture"], said["Size"]

    def _save_command(self, tag: str, file: Path) -> list[str]:
        return [self.name, "save", "--quiet", "--format", "oci-archive", "--output", str(file), tag]


def build_command(tool: str, order: Order, secrets: dict[str, Path]) -> list[str]:
    """The command line of a build; secrets by id, each a file."""
    return [
        tool,
        "build",
        "--format=oci",
        "--layers",
        *(["--no-cache"] if order.no_cache else []),
        f"--timestamp={order.timestamp}",
        f"--platform=linux/{order.architecture}",
        *([f"--target={order.target}"] if order.target else []),
        *(f"--build-arg={name}={value}" for name, value in build_arguments(order).items()),
        *(f"--secret=id={name},src={file}" for name, file in secrets.items()),
        f"--tag={order.tag}",
        f"--file={order.context / 'Dockerfile'}",
        str(order.context),
    ]


def give_login(tool: str, registry: str, user: str, password: str) -> None:
    """Give a tool a login, its password by stdin: a list of processes shows every argument.

    Raises:
        BuildError: the registry does not accept it, or the tool cannot keep it.
    """
    answer = ask([tool, "login", "--username", user, "--password-stdin", registry], stdin=password)
    if answer.code != 0:
        said = answer.err.strip() or "it said nothing"
        raise BuildError(f"`{tool} login {registry}` does not accept the login as {user}: {said}")


@contextlib.contextmanager
def understood(tool: str, tag: str) -> Iterator[None]:
    """Reads what a tool answers about an image.

    Raises:
        BuildError: it is not what that tool is known to answer.
    """
    try:
        yield
    except (ValueError, LookupError, TypeError, AttributeError):
        raise BuildError(
            f"{tool} answers about {tag} what nobody here understands. Look at `{tool} version`, and whether the"
            f" {tool} on PATH is a wrapper that says more than {tool} itself"
        ) from None


def no_image(tool: str, tag: str, why: str) -> BuildError:
    """There is no image of that name."""
    return BuildError(
        f"{tool} has no image {tag} ({why.strip() or 'it said nothing'}); `{tool} images` lists those that it has"
    )
