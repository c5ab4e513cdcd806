"""Which tool builds: docker, podman or buildah, the first that can."""

from __future__ import annotations

import shutil
from collections.abc import Callable

from images.builders.built import Tool
from images.builders.containers import Buildah, Podman
from images.builders.docker import Docker
from images.builders.running import ask
from images.errors import BuildError

NAMES = ("docker", "podman", "buildah")
"""In the order in which they are taken."""

_MAKE: dict[str, Callable[[], Tool]] = {"docker": Docker, "podman": Podman, "buildah": Buildah}
_INSTALL = (
    "Any one of them does: docker with buildx (https://docs.docker.com/engine/install/), podman or buildah"
    " (`apt-get install buildah`, `dnf install buildah`; on a Mac podman, with `podman machine init --now`)"
)


def find_tool(name: str | None = None) -> Tool:
    """The tool of that name, else the first of docker, podman and buildah that can build here.

    Raises:
        BuildError: it cannot, or none can; the message says why for each.
    """
    if name is not None and name not in NAMES:
        raise BuildError(f"{name} is no tool that builds images here; there are {', '.join(NAMES)}")
    reasons = {}
    for one in [name] if name else NAMES:
        why_not = _LACKS[one]()
        if why_not is None:
            return _MAKE[one]()
        reasons[one] = why_not
    if name:
        raise BuildError(f"{name} cannot build here: {reasons[name]}. {_INSTALL}")
    each = "; ".join(f"{one}: {why}" for one, why in reasons.items())
    raise BuildError(f"nothing here builds images ({each}). {_INSTALL}")


def _docker() -> str | None:
    if shutil.which("docker") is None:
        return "not on PATH"
    engine = ask(["docker", "version", "--format", "{{.Server.Version}}"])
    if engine.code != 0 or not engine.out.strip():
        return "no engine answers the client (is it started, and may you use it?)"
    if ask(["docker", "buildx", "version"]).code != 0:
        return "it has no buildx (the package docker-buildx-plugin)"
    return None


def _podman() -> str | None:
    if shutil.which("podman") is None:
        return "not on PATH"
    answer = ask(["podman", "info", "--format", "{{.Host.Arch}}"])
    return None if answer.code == 0 else f"it does not answer ({_last(answer.err)})"


def _buildah() -> str | None:
    if shutil.which("buildah") is None:
        return "not on PATH"
    answer = ask(["buildah", "images", "--quiet"])
    return None if answer.code == 0 else f"its store cannot be used ({_last(answer.err)})"


def _last(text: str) -> str:
    lines = [line for line in text.splitlines() if line.strip()]
    return lines[-1].strip() if lines else "it said nothing"


_LACKS: dict[str, Callable[[], str | None]] = {"docker": _docker, "podman": _podman, "buildah": _buildah}
