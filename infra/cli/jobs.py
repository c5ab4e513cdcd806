"""`submit`, `jobs`, `scale`, `suspend`, `resume`, `cancel`: the ElasticJobs of a stack."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from infra.cli import options
from infra.cli.console import Steps, confirm, counted, print_json, row, show, stdout, table
from infra.cli.workspace import Workspace

if TYPE_CHECKING:
    from infra.jobs import Jobs
    from infra.waiting import Commands, Waiting

Job = Annotated[str, typer.Argument(metavar="JOB", help="Name of the job, as `trainyard jobs` lists it.")]
Wait = Annotated[bool, typer.Option("--wait", help="Wait until it is so.")]
Timeout = Annotated[int, typer.Option(min=1, help="With --wait: give up after so many seconds.")]


def register(app: typer.Typer) -> None:
    """Add this module's commands."""
    app.command()(submit)
    app.command("jobs")(list_jobs)
    for command in (scale, suspend, resume, cancel):
        app.command()(command)


def submit(
    file: Annotated[Path, typer.Argument(help="YAML file with one or more ElasticJobs.")],
    stack: options.Stack = "local",
    wait: Annotated[bool, typer.Option("--wait", help="Wait until each job has succeeded or failed.")] = False,
    timeout: Timeout = 3600,
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
            result |= wait_for_end(workspace, jobs, name, timedelta(seconds=timeout), steps)
        results.append(result)
    if json:
        print_json({"jobs": results, "warnings": warnings})
    else:
        for result in results:
            stdout().print(f"{result['job']}: {result['state']} {result.get('message', '')}".rstrip(), markup=False)
    if any(result["state"] == "Failed" for result in results):
        raise typer.Exit(1)


def wait_for_end(workspace: Workspace, jobs: Jobs, name: str, timeout: timedelta, steps: Steps) -> dict[str, Any]:
    """Wait until a job has ended, and say meanwhile what it waits for; its end in plain data."""
    with steps.step(f"job {name}"):
        end = jobs.wait(name, timeout, _telling(workspace, jobs, name, steps))
        steps.note(f"{end.type}: {end.message}")
    return {"state": end.type, "reason": end.reason, "message": end.message}


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


def scale(
    job: Job,
    workers: Annotated[int, typer.Argument(min=1, help="How many workers the job shall have.")],
    stack: options.Stack = "local",
    wait: Wait = False,
    timeout: Timeout = 600,
    json: options.Json = False,
) -> None:
    """Change the number of workers of a job, within its minReplicas and maxReplicas; training goes on.

    Example: [bold]trainyard scale digits 2 --wait[/bold]
    """
    workspace, jobs, steps = _open(stack, f"scale elasticjob {job} --replicas={workers}")
    jobs.scale(job, workers)
    if wait:
        with steps.step(f"job {job} to {counted(workers, 'worker')}"):
            jobs.wait_size(job, workers, timedelta(seconds=timeout), _telling(workspace, jobs, job, steps))
    _done(job, "scaled", json=json, workers=workers)


def suspend(
    job: Job,
    stack: options.Stack = "local",
    wait: Wait = False,
    timeout: Timeout = 600,
    json: options.Json = False,
) -> None:
    """Stop a job and give its machines back: its workers save and end, and `trainyard resume` goes on from there.

    Example: [bold]trainyard suspend digits --wait[/bold]
    """
    _, jobs, steps = _open(stack, f'patch elasticjob {job} --type=merge -p \'{{"spec":{{"suspend":true}}}}\'')
    jobs.suspend(job)
    if wait:
        with steps.step(f"workers of {job} saved and gone"):
            jobs.wait_stopped(job, timedelta(seconds=timeout), steps.note)
    _done(job, "suspended", json=json)


def resume(
    job: Job,
    stack: options.Stack = "local",
    wait: Wait = False,
    timeout: Timeout = 600,
    json: options.Json = False,
) -> None:
    """Let a suspended job train again, from its last checkpoint.

    Example: [bold]trainyard resume digits[/bold]
    """
    patch = f'patch elasticjob {job} --type=merge -p \'{{"spec":{{"suspend":false}}}}\''
    workspace, jobs, steps = _open(stack, patch)
    jobs.resume(job)
    if wait:
        with steps.step(f"job {job} runs"):
            jobs.wait_running(job, timedelta(seconds=timeout), _telling(workspace, jobs, job, steps))
    _done(job, "resumed", json=json)


def cancel(
    job: Job,
    yes: options.Yes = False,
    stack: options.Stack = "local",
    wait: Annotated[bool, typer.Option("--wait", help="Wait until its workers are gone.")] = False,
    timeout: Timeout = 600,
    json: options.Json = False,
) -> None:
    """End a job and remove it with its workers and their logs; they save first, and its checkpoints stay.

    Example: [bold]trainyard cancel digits --yes[/bold]
    """
    _, jobs, steps = _open(stack, f"delete elasticjob {job}")
    jobs.existing(job)
    confirm(f"End job {job} and remove it with its logs?", yes=yes)
    jobs.delete(job)
    if wait:
        with steps.step(f"workers of {job} saved and gone"):
            jobs.wait_gone(job, timedelta(seconds=timeout))
    _done(job, "cancelled", json=json)


def _open(stack: str, in_rehearsal: str) -> tuple[Workspace, Jobs, Steps]:
    workspace = Workspace.open(stack)
    workspace.require_outside_rehearsal(f"in the rehearsal: kubectl -n {workspace.settings.namespace} {in_rehearsal}")
    return workspace, workspace.jobs(), Steps()


def _done(job: str, what: str, *, json: bool, **more: Any) -> None:
    if json:
        print_json({"job": job, "state": what, **more})
    else:
        stdout().print(f"{job}: {what}", markup=False)


def commands_for(workspace: Workspace, jobs: Jobs, job: str) -> Commands:
    """How the next commands are spelled for a job of this stack."""
    from infra.waiting import Commands  # noqa: PLC0415

    return Commands(job=job, stack=workspace.stack, namespace=jobs.namespace, local=workspace.is_local)


def explained(workspace: Workspace, jobs: Jobs, name: str) -> list[Waiting]:
    """What a job waits for.

    Raises:
        JobError: there is no such job, or the API server does not answer.
    """
    from infra.waiting import explain  # noqa: PLC0415

    pods = [pod.to_dict() for pod in jobs.workers(name)]
    events = [event.to_dict() for event in jobs.events(name)]
    return explain(dict(jobs.existing(name)), pods, events, commands_for(workspace, jobs, name))


def _telling(workspace: Workspace, jobs: Jobs, name: str, steps: Steps) -> Callable[[str], None]:
    """Shows each new state of a job, with what it waits for and the next command."""
    from infra.jobs import JobError  # noqa: PLC0415

    def tell(sentence: str) -> None:
        try:
            reasons = explained(workspace, jobs, name)
        except JobError:  # also while the API server is away, which the sentence says
            reasons = []
        steps.note("; ".join(waiting.sentence() for waiting in reasons) or sentence)

    return tell
