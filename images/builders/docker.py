"""docker with buildx: what BuildKit can do, on the engine that the user's context names."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path

from images.builders.built import Built, Order, Told, build_arguments, untold
from images.builders.containers import give_login, no_image, understood
from images.builders.failures import Work
from images.builders.files import complete, require_context
from images.builders.mounts import secrets_of
from images.builders.running import ask, run
from images.errors import BuildError

_DIGEST = re.compile(r"digest: (sha256:[0-9a-f]{64})")
_DRIVER = re.compile(r"^Driver:\s*(\S+)", re.MULTILINE)


class Docker:
    """docker."""

    name = "docker"

    def build(self, order: Order, told: Told = untold) -> Built:
        """See `Tool.build`."""
        require_context(order.context)
        begin = time.monotonic()
        work = Work(self.name, f"the build of {order.row}", order.architecture, order.base or "", bool(order.extra_ca))
        rewrites = self._rewrites_times()
        if not rewrites:
            told(
                "no two builds will have the same id: the builder that is part of docker keeps the times of files, and"
                " one that `docker buildx create --use` makes would set them"
            )
        with secrets_of(order) as secrets:
            command = build_command(order, secrets, rewrites=rewrites)
            run(command, work, log=order.log, told=told)
        image_id, digest, architecture, size = self.inspect(order.tag)
        seconds = time.monotonic() - begin
        return Built(order.row, order.tag, image_id, digest, self.name, architecture, size, seconds)

    def inspect(self, tag: str) -> tuple[str, str | None, str, int]:
        """See `Tool.inspect`."""
        answer = ask([self.name, "image", "inspect", tag])
        if answer.code != 0:
            raise no_image(self.name, tag, answer.err)
        with understood(self.name, tag):
            (said,) = json.loads(answer.out)
            digests = [name.rpartition("@")[2] for name in said.get("RepoDigests") or []]
            return said["Id"], digests[0] if digests else None, said["Architecture"], said["Size"]

    def save(self, tag: str, archive: Path, told: Told = untold) -> None:
        """See `Tool.save`. The archive of docker 25 and later is an OCI archive as well."""
        with complete(archive) as file:
            command = [self.name, "image", "save", "--output", str(file), tag]
            run(command, Work(self.name, f"the export of {tag}"), told=told)

    def push(self, tag: str, destination: str, told: Told = untold) -> str:
        """See `Tool.push`."""
        if destination != tag:
            answer = ask([self.name, "image", "tag", tag, destination])
            if answer.code != 0:
                raise no_image(self.name, tag, answer.err)
        found: list[str] = []

        def read(line: str) -> None:
            found.extend(_DIGEST.findall(line))

        work = Work(self.name, f"the push of {destination}", pushing=True)
        run([self.name, "image", "push", destination], work, told=told, each=read)
        if not found:
            raise BuildError(f"docker did not say by which digest {destination} is known now; look in the registry")
        return found[-1]

    def login(self, registry: str, user: str, password: str) -> None:
        """See `Tool.login`."""
        give_login(self.name, registry, user, password)

    def _rewrites_times(self) -> bool:
        """Whether the builder in use can give all files of an image one time.

        That of the engine itself (driver `docker`) cannot: with containerd's store it refuses to, with the older one it
        takes no notice (https://github.com/moby/buildkit/issues/4230 and 4986).
        """
        found = _DRIVER.search(ask([self.name, "buildx", "inspect"]).out)
        return found is not None and found[1] != "docker"


def build_command(order: Order, secrets: dict[str, Path], *, rewrites: bool) -> list[str]:
    """The command line of a build.

    Args:
        order: what to build.
        secrets: files by their ids.
        rewrites: whether the builder can give all files one time, without which no two builds are alike.
    """
    return [
        "docker",
        "buildx",
        "build",
        "--progress=plain",
        *(["--no-cache"] if order.no_cache else []),
        f"--output=type=docker,name={order.tag}{',rewrite-timestamp=true' if rewrites else ''}",
        # They name the time of the build; a push from the bake file has them.
        "--provenance=false",
        "--sbom=false",
        f"--platform=linux/{order.architecture}",
        *([f"--target={order.target}"] if order.target else []),
        *(f"--build-arg={name}={value}" for name, value in build_arguments(order).items()),
        *(f"--secret=id={name},src={file}" for name, file in secrets.items()),
        f"--file={order.context / 'Dockerfile'}",
        str(order.context),
    ]
