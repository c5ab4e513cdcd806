"""What every builder can do, and what it answers."""

from __future__ import annotations

import datetime
import platform
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

EPOCH = 0
"""Of everything in an image, unless SOURCE_DATE_EPOCH says otherwise: a constant, so that layers keep their digests."""

_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}

Told = Callable[[str], None]
"""Is told in a few words how far the work is."""


def untold(_: str) -> None:
    """For who does not want to know."""


def this_architecture() -> str:
    """Of this computer, as containers name it: `amd64`."""
    return _ARCHITECTURES.get(platform.machine(), platform.machine())


@dataclass(frozen=True)
class Built:
    """One image in the store of the tool."""

    row: str
    """Of the matrix."""
    tag: str
    image_id: str
    """`sha256:…` of its configuration; the same id is the same image. (docker with the store of containerd gives that
    of the manifest.)"""
    digest: str | None
    """Of its manifest in the store; that in a registry is another, since layers are compressed on the way."""
    tool: str
    architecture: str
    size: int
    """Bytes of all layers, unpacked."""
    seconds: float


@dataclass(frozen=True, kw_only=True)
class Order:
    """What to build."""

    row: str
    context: Path
    """A folder with a Dockerfile and all that it copies."""
    tag: str
    architecture: str
    log: Path
    """Gets the whole output."""
    base: str | None = None
    """Replaces the row's base image."""
    extra_ca: Path | None = None
    """PEM file of authorities that the build trusts as well; nothing of it is in the image."""
    index: str | None = None
    """Package index to take instead of the public one; nothing of its address is in the image."""
    no_cache: bool = False
    arguments: Mapping[str, str] | None = None
    """Further build arguments."""
    timestamp: int = EPOCH
    """Of everything in the image, seconds since 1970."""
    target: str | None = None
    """Stage with which to end; None: the last."""


def build_arguments(order: Order) -> dict[str, str]:
    """The build arguments of an order, by name."""
    created = datetime.datetime.fromtimestamp(order.timestamp, datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    given = {"SOURCE_DATE_EPOCH": str(order.timestamp), "CREATED": created, **(order.arguments or {})}
    return given | ({"BASE_IMAGE": order.base} if order.base else {})


class Tool(Protocol):
    """docker, podman or buildah."""

    name: str

    def build(self, order: Order, told: Told = untold) -> Built:
        """Build a context. The tag is there when all of it is done, and not before.

        Raises:
            BuildError: with the reason, and where the log is.
        """

    def inspect(self, tag: str) -> tuple[str, str | None, str, int]:
        """Id, digest of the manifest, architecture and size of an image in the store.

        Raises:
            BuildError: there is no such image.
        """

    def save(self, tag: str, archive: Path, told: Told = untold) -> None:
        """Write an image as OCI archive; the file is complete or absent.

        Raises:
            BuildError: no such image, or the file cannot be written.
        """

    def push(self, tag: str, destination: str, told: Told = untold) -> str:
        """Copy an image to a registry; returns the digest by which it is known there.

        Raises:
            BuildError: the registry cannot be reached, or does not let us.
        """

    def login(self, registry: str, user: str, password: str) -> None:
        """Keep a login for a registry in the tool's own file.

        Raises:
            BuildError: the registry does not accept it.
        """
