"""`trainyard report`: one job as an HTML page."""

from __future__ import annotations

import time
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from infra.cli import options
from infra.cli.console import print_json, stdout
from infra.cli.files import write
from infra.cli.jobs import Job
from infra.cli.recommend import Kept, read_history
from infra.cli.workspace import Workspace

if TYPE_CHECKING:
    from infra.history import JobHistory
    from infra.job_page import Facts
    from infra.jobs import Jobs


def register(app: typer.Typer) -> None:
    """Add this module's command."""
    app.command()(report)


def report(
    job: Job,
    output: Annotated[Path | None, typer.Option("--output", "-o", metavar="FILE", help="Where; else JOB.html.")] = None,
    log: Kept = None,
    stack: options.Stack = "local",
    json: options.Json = False,
) -> None:
    """Write one HTML page of a job: loss, world size, recoveries, goodput, step time, cost so far.

    The page needs nothing beside itself, and is in light or dark as the reader's browser is. Of a job that goes on it
    shows what there is by now. Lines go with the worker that wrote them: what is missing is said on the page.

    Example: [bold]trainyard report digits -o digits.html[/bold]
    """
    from infra.job_page.page import as_json, page  # noqa: PLC0415

    workspace = Workspace.open(stack)
    workspace.require_outside_rehearsal("train: its workers are played, and tell nothing")
    jobs = workspace.jobs()
    history = read_history(jobs, job, log)
    facts = _facts(workspace, jobs, history)
    path = output or Path(f"{job}.html")
    write(path, page(history, facts))
    if json:
        print_json({"job": job, "file": str(path), **as_json(history, facts)})
        return
    for gap in history.gaps:
        stdout().print(f"Missing: {gap}", markup=False)
    stdout().print(f"{path}", markup=False)


def _facts(workspace: Workspace, jobs: Jobs, history: JobHistory) -> Facts:
    from infra.catalog.prices import price_table  # noqa: PLC0415
    from infra.job_page import Facts  # noqa: PLC0415
    from infra.job_page.money import rate  # noqa: PLC0415
    from infra.jobs import JobError, ended  # noqa: PLC0415

    now = time.time()
    found = jobs.get(history.job)
    if found is None:  # only kept logs tell of it
        return Facts(workspace.stack, jobs.namespace, "removed", "", is_live=False, made=now)
    status: Any = found.status or {}
    conditions = jobs.conditions_of(found)
    end = next(
        (c for c in status.get("conditions") or [] if c["type"] in ("Succeeded", "Failed") and c["status"] == "True"),
        None,
    )
    when = end and end.get("lastTransitionTime")
    ranks = max((line.workers for line in history.resources), default=1)
    try:
        cost = rate(
            [node.to_dict() for node in jobs.nodes()],
            [pod.to_dict() for pod in jobs.workers(history.job)],
            ranks,
            price_table(),
        )
    except JobError as error:
        cost = f"the machines cannot be seen: {error}"
    return Facts(
        stack=workspace.stack,
        namespace=jobs.namespace,
        state=str(status.get("phase") or (conditions[-1].type if conditions else "Submitted")),
        message=conditions[-1].message if conditions else "",
        is_live=ended(found) is None,
        made=now,
        ended=datetime.fromisoformat(when).timestamp() if when else None,
        rate=cost,
    )
