"""`diagnose`: why a stack, or a job on it, is slow, stuck or dead."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from infra.cli import files, options
from infra.cli.console import Steps, print_json, stdout
from infra.cli.jobs import commands_for
from infra.cli.workspace import Workspace

if TYPE_CHECKING:
    from infra.diagnose.finding import Finding

_STYLES = {"error": "bold red", "warning": "yellow", "note": "cyan"}


def register(app: typer.Typer) -> None:
    """Add this module's command."""
    app.command()(diagnose)


def diagnose(
    job: Annotated[
        str | None, typer.Argument(metavar="[JOB]", help="Only this job; without it all jobs of the stack.")
    ] = None,
    bundle: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Also write all that was looked at, without secrets, as FILE (.tar.gz)."),
    ] = None,
    stack: options.Stack = "local",
    json: options.Json = False,
) -> None:
    """Say why training is slow, stuck or dead: from symptoms to their cause, each with evidence and the next command.

    Exit code 1 if an error was found. What each code means: docs/reference/findings.md.

    Example: [bold]trainyard diagnose digits[/bold]
    """
    from infra.diagnose.findings import findings  # noqa: PLC0415
    from infra.diagnose.snapshot import gather  # noqa: PLC0415

    workspace = Workspace.open(stack)
    workspace.require_outside_rehearsal(f"in the rehearsal: kubectl -n {workspace.settings.namespace} get pods,events")
    jobs = workspace.jobs()
    steps = Steps()
    snapshot = gather(jobs, stack, lambda name: commands_for(workspace, jobs, name), job, steps.say)
    found = findings(snapshot)
    if bundle is not None:
        from infra.diagnose.bundle import archive, contents  # noqa: PLC0415

        told = contents(snapshot, found, workspace.settings.model_dump(mode="json", by_alias=True))
        files.write(bundle, archive(told, snapshot), private=True)
        steps.say(f"{bundle}: {len(told)} files; look through them before you hand them on")
    if json:
        looked = [view.name for view in snapshot.jobs]
        print_json({"stack": stack, "jobs": looked, "findings": [finding.document() for finding in found]})
    else:
        _show(found, len(snapshot.jobs), len(snapshot.nodes))
    if any(finding.severity == "error" for finding in found):
        raise typer.Exit(1)


def _show(found: list[Finding], jobs: int, nodes: int) -> None:
    from rich.text import Text  # noqa: PLC0415

    if not found:
        stdout().print(f"Nothing is known to be wrong ({jobs} jobs, {nodes} machines looked at).", markup=False)
        return
    for finding in found:
        head = Text(f"{finding.severity} {finding.code}", style=_STYLES[finding.severity])
        stdout().print(Text.assemble(head, f"  {finding.object}: {finding.title}"))
        for line in finding.evidence:
            stdout().print(f"    {line}", markup=False, highlight=False)
        stdout().print(f"  what to do: {finding.remedy}", markup=False, highlight=False)
        if finding.command:
            stdout().print(f"  next: {finding.command}", markup=False, highlight=False)
