"""`check`: before a job, do its machines reach each other, and is one of them slow or dead?"""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Annotated, Any

import typer

from infra.cli import options
from infra.cli.console import Steps, print_json, row, show, stdout, table
from infra.cli.workspace import Workspace
from infra.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from infra.verify.measure import Group


def register(app: typer.Typer) -> None:
    """Add this module's command."""
    app.command()(check)


def check(
    stack: options.Stack = "local",
    pool: Annotated[
        str | None, typer.Option("--pool", help="The pool; absent: every one with GPUs, on AWS the only one.")
    ] = None,
    nodes: Annotated[
        int | None, typer.Option("--nodes", min=1, help="How many machines; absent: all that the pool has now.")
    ] = None,
    sizes: Annotated[
        str, typer.Option("--sizes", metavar="BYTES,…", help="Of the all-reduces; absent: 8 bytes to 64 MiB.")
    ] = "",
    patience: Annotated[int, typer.Option(min=1, help="After so many seconds a silent rank is dead.")] = 60,
    timeout: Annotated[int, typer.Option(min=10, help="Give up after so many seconds.")] = 900,
    image: Annotated[str | None, typer.Option("--image", help="Training image; absent: the stack's own.")] = None,
    json: options.Json = False,
) -> None:
    """All-reduces over a pool's machines, by a job made like yours: who is slow, who is dead, how fast are they?

    The job asks for the same devices as a training job, so it waits as long as others have them; it is removed in the
    end, also on Ctrl-C. Exit code 1 where a machine is missing, slow or dead, or the transport is not the pool's.

    Example: [bold]trainyard check --pool gpu-p5 --nodes 2 -s prod[/bold]
    """
    from infra.cli.verify import Wish, chosen_groups, run_measurement, show_finding  # noqa: PLC0415
    from infra.verify import fabric, snapshot  # noqa: PLC0415
    from infra.verify.expected import expected  # noqa: PLC0415
    from infra.verify.measure import STAND_IN  # noqa: PLC0415

    workspace = Workspace.open(stack)
    workspace.require_outside_rehearsal("look at the rehearsal's machines: trainyard verify --rehearse")
    numbers = _sizes(sizes)
    wanted = expected(workspace.settings, stack)
    group = _group(workspace, chosen_groups(workspace, wanted, [pool] if pool else []))
    jobs, steps = workspace.jobs(), Steps()
    there = snapshot.by_pool(snapshot.read_nodes(jobs).nodes)
    workers = nodes or max(group.least, sum(len(there.get(each.name, ())) for each in group.pools))
    if (none := fabric.not_measured(group, workers)) is not None:
        raise UsageError(f"nothing can be measured over {group.name}: {none.message}")
    wish = Wish((), workers, image, timedelta(seconds=timeout))
    made = run_measurement(
        workspace, jobs, group, workers, wish, steps, sizes=numbers, patience=timedelta(seconds=patience)
    )
    result = fabric.fabric(group, made)
    standing = STAND_IN if group.local else ""
    if json:
        print_json(
            {
                "stack": stack,
                "pool": group.name,
                "job": made.job,
                "passed": result.verdict == "passed",
                "stand_in": standing,
                "result": result.as_json(),
                "report": made.report,
            }
        )
    else:
        if made.report is not None:
            _show_report(made.report)
        for finding in result.findings:
            show_finding(finding)
        stdout().print(f"{group.name}: {result.verdict}, {result.coverage} machines. {result.message}", markup=False)
    if result.verdict != "passed":
        raise typer.Exit(1)


def _group(workspace: Workspace, found: list[Group]) -> Group:
    if len(found) == 1:
        return found[0]
    if not found:
        raise UsageError(
            f"the settings of stack {workspace.stack} (target {workspace.settings.target}) name no machines over which"
            " a job could be made"
        )
    names = "|".join(pool.name for group in found for pool in group.pools)
    raise UsageError(f"which pool of stack {workspace.stack}: --pool {names}")


def _sizes(text: str) -> tuple[int, ...]:
    parts = [part.strip() for part in text.split(",") if part.strip()]
    if not all(part.isdecimal() and int(part) and int(part) % 4 == 0 for part in parts):
        raise UsageError(f"--sizes is {text!r}: must be bytes, multiples of 4, with commas between: 8,1048576")
    return tuple(sorted({int(part) for part in parts}))


def _show_report(report: Mapping[str, Any]) -> None:
    shown = table("bytes", "ms", "GB/s", "bus GB/s")
    for one in report["all_reduces"]:
        algorithm, bus = one["algorithm_bandwidth"] / 1e9, one["bus_bandwidth"] / 1e9
        row(shown, one["size"], f"{one['seconds'] * 1e3:.3f}", f"{algorithm:.3f}", f"{bus:.3f}")
    show(shown)
