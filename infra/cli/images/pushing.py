"""Where a built image is pushed to: the registry in its name, or the stack's own; and the stack's lock."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from infra.clusters import CHECKOUT

if TYPE_CHECKING:
    from collections.abc import Callable

    from images.builders import Built, Tool
    from images.builders.ecr import Ecr
    from images.matrix import Row
    from infra.cli.workspace import Workspace

_SHORT = 12  # digits of an image's id in a tag of a stack's registry, where each tag is given once


class Destination(Protocol):
    """Somewhere to push to."""

    def push(self, tool: Tool, row: Row, built: Built, told: Callable[[str], None]) -> str:
        """Push an image; returns its reference there, by digest.

        Raises:
            BuildError: the registry cannot be reached, or does not take it.
        """


class OfItsName:
    """The registry that an image's name begins with."""

    def push(self, tool: Tool, row: Row, built: Built, told: Callable[[str], None]) -> str:  # noqa: ARG002
        """See `Destination.push`."""
        return f"{built.tag}@{tool.push(built.tag, built.tag, told)}"


@dataclass(frozen=True)
class OfStack:
    """The repositories that a stack on AWS has made. Their tags cannot be overwritten, so each says what is in it."""

    ecr: Ecr
    repositories: dict[str, tuple[str, str]]
    """Name and address of the repository, by row."""

    @classmethod
    def of(cls, workspace: Workspace, rows: list[Row]) -> OfStack:
        """Look for the repositories, before anything is built for them.

        Raises:
            TrainyardError: no credentials, or a repository is missing.
        """
        from images.builders.ecr import Ecr  # noqa: PLC0415 - boto3 costs a third of a second
        from infra.wiring.images import repository_for  # noqa: PLC0415
        from infra.wiring.naming import cluster_name  # noqa: PLC0415

        aws = workspace.settings.aws
        assert aws is not None  # noqa: S101 - for the type checker: only stacks on AWS come here
        workspace.require_outside_rehearsal()
        workspace.require_credentials()
        ecr = Ecr.of(aws.region)
        cluster = cluster_name(workspace.settings, workspace.stack)
        names = {row.name: f"{cluster}/{repository_for(row, aws)}" for row in rows}
        remedy = f"The stack makes it: trainyard up -s {workspace.stack} --only registry"
        return cls(ecr, {row: (name, ecr.repository(name, remedy)) for row, name in names.items()})

    def push(self, tool: Tool, row: Row, built: Built, told: Callable[[str], None]) -> str:
        """See `Destination.push`. An image that is there already is not pushed again."""
        name, address = self.repositories[row.name]
        tag = f"{built.tag.rpartition(':')[2]}-{built.image_id.removeprefix('sha256:')[:_SHORT]}"
        digest = self.ecr.digest(name, tag)
        if digest is None:
            self.ecr.login(tool)
            digest = tool.push(built.tag, f"{address}:{tag}", told)
        return f"{address}:{tag}@{digest}"


def destination(workspace: Workspace | None, rows: list[Row]) -> Destination:
    """Where the images of these rows go to.

    Raises:
        TrainyardError: it is not there, or not for us.
    """
    return OfStack.of(workspace, rows) if workspace and workspace.settings.aws else OfItsName()


def record(workspace: Workspace, row: Row, reference: str) -> str:
    """Put an image into the stack's lock; returns the name of that file."""
    from infra.settings import image_lock  # noqa: PLC0415

    return image_lock.record(CHECKOUT, workspace.stack, row.name, reference).name
