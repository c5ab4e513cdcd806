"""`drill`: one fault on the local stack, on purpose, and what it cost."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from infra.cli import options
from infra.cli.console import Steps, print_json, stdout, table
from infra.cli.workspace import Workspace
from infra.errors import TrainyardError

app = typer.Typer(help="Disturb training on purpose and measure how it goes on (local stack).", no_args_is_help=True)

Job = Annotated[str, typer.Option("--job", help="The ElasticJob to disturb.")]


def reclaim_spot_node(workspace: Workspace, job: str, steps: Steps, *, replace: bool) -> dict[str, Any]:
    raise NotImplementedError
