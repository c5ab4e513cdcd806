"""Policies of `up` and `preview`: which packs the engine is given, and their results as plain data."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from infra.cli.console import Steps
from infra.clusters import CHECKOUT
from infra.errors import UsageError

if TYPE_CHECKING:
    from infra.cli.workspace import Workspace
    from infra.engine import Engine
    from infra.policy_results import PolicyResult

    Opened = TypeVar("Opened", bound=Workspace)

NoPolicies = Annotated[bool, typer.Option("--no-policies", help="Without the policies of this project.")]
Packs = Annotated[
    list[Path] | None,
    typer.Option("--policy-pack", metavar="FOLDER", help="A pack of policies besides this project's; repeatable."),
]
OWN = CHECKOUT / "policies"


def with_policies(workspace: Opened, *, none: bool, others: Sequence[Path] | None) -> Opened:
    """The workspace with the packs that its changes must keep.

    Args:
        workspace: it.
        none: without the project's own pack.
        others: folders of further packs.

    Raises:
        UsageError: a folder holds no pack.
    """
    import dataclasses  # noqa: PLC0415 - with what follows, only where something is changed

    from infra.policy_results import PolicyPack  # noqa: PLC0415
    from policies.configuration import configuration_file, mandatory  # noqa: PLC0415

    for folder in others or ():
        if not (folder / "PulumiPolicy.yaml").is_file():
            raise UsageError(f"--policy-pack {folder}: there is no PulumiPolicy.yaml in this folder")
    own = []
    if not none:
        config = configuration_file(workspace.stack)
        if config is None and workspace.is_local:
            config = configuration_file("local")
        own.append(PolicyPack(OWN, config, mandatory(config.stem if config else "")))
    return dataclasses.replace(workspace, packs=(*own, *(PolicyPack(one.resolve()) for one in others or ())))


def check_first(workspace: Workspace, engine: Engine, steps: Steps) -> None:
    """Before something that costs money is made: let the policies look at the preview.

    While resources are made the engine asks the rules about one after the other, and about the whole at the end: too
    late. Of a cluster on this computer nothing costs anything, and it is up in seconds.

    Raises:
        PolicyError: mandatory rules are broken.
        EngineRunError: the preview failed.
    """
    if workspace.packs and not workspace.is_local:
        from infra.policy_results import counted  # noqa: PLC0415

        with steps.step("policies"):
            steps.note(counted(engine.run("preview", steps.note).policies))


def documents(results: Sequence[PolicyResult]) -> list[dict[str, Any]]:
    """The results as plain data."""
    from infra.policy_results import in_order  # noqa: PLC0415

    return [one.as_document() for one in in_order(results)]
