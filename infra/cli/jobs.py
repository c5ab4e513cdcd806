"""`submit`, `jobs`: ElasticJobs of a stack. Logs, scale and the rest so far by kubectl, see `trainyard env`."""

from __future__ import annotations

import shlex
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any

import typer

from infra.cli import options
from infra.cli.console import Steps, print_json, row, show, stdout, table
from infra.cli.workspace import Workspace


def register(app: typer.Typer) -> None:
    """Add this module's commands."""
    app.command()(submit)
    app.command("jobs")(list_jobs)


def submit(
    file: Annotated[Path, typer.Argument(help="YAML file with one or more ElasticJobs.")],
    stack: options.Stack = "local",
    wait: Annotated[bool, typer.Option("--wait", help="Wait until each job has succeeded or failed.")] = False,
    timeout: Annotated[int, typer.Option(help="With --wait: give up after so many seconds.")] = 3600,
    json: options.Json = False,
) -> None:
    """Submit ElasticJobs; the same file a second time changes nothing.

    Example: [bold]trainyard submit training/examples/digits.yaml --wait[/bold]
    """
    workspace = Workspace.open(stack)
    workspace.require_outside_rehearsal(f"submit to the rehearsal: kubectl apply -f {shlex.quote(str(file))}")
    jobs = workspace.jobs()
    steps = Steps()
    results: list[dict[str, Any]] = []
    warnings: list[str] = []

    def look(manifests: list[dict[str, Any]]) -> None:
        warnings.extend(_unpinned(workspace, manifests))
        for warning in warnings:
            steps.say(f"Warning: {warning}")

    for name in jobs.submit(file, look):
        result: dict[str, Any] = {"job": name, "namespace": jobs.namespace, "state": "Submitted"}
        if wait:
            with steps.step(f"job {name}"):
                end = jobs.wait(name, timedelta(seconds=timeout), steps.note)
                steps.note(f"{end.type}: {end.message}")
            result |= {"state": end.type, "reason": end.reason, "message": end.message}
        results.append(result)
    if json:
        print_json({"jobs": results, "warnings": warnings})
    else:
        for result in results:
            stdout().print(f"{result['job']}: {result['state']} {result.get('message', '')}".rstrip(), markup=False)
    if any(result["state"] == "Failed" for result in results):
        raise typer.Exit(1)


def _unpinned(workspace: Workspace, manifests: list[dict[str, Any]]) -> list[str]:
    """A sentence for each image that may be another one tomorrow; images of the local cluster are commands, not pulled.

    Workers that come later, after a reclaim or a failure, pull again: with a tag that has moved they'd run another
    program than those that are there.
    """
    if workspace.is_local:
        return []
    from infra.wiring.images import unpinned_images  # noqa: PLC0415

    built = workspace.image_lock().images
    return [sentence for job in manifests for sentence in unpinned_images(job, built)]


def list_jobs(stack: options.Stack = "local", json: options.Json = False) -> None:
    """List the ElasticJobs of the stack with their state.

    Example: [bold]trainyard jobs --json[/bold]
    """
    workspace = Workspace.open(stack)
    workspace.require_outside_rehearsal(
        f"look into the rehearsal: kubectl get elasticjobs -n {workspace.settings.namespace}"
    )
    jobs = workspace.jobs()
    rows = jobs.summaries()
    if json:
        print_json({"namespace": jobs.namespace, "jobs": rows})
        return
    shown = table("job", "state", "workers", "generation", "message")
    for job in rows:
        workers = f"{job['ready']}/{job['desired']}"
        row(shown, job["job"], job["state"], workers, job["generation"], job["message"])
    if rows:
        show(shown)
    else:
        stdout().print(f"no jobs in namespace {jobs.namespace}")
