"""`describe`, `logs`: one job from near."""

from __future__ import annotations

import collections
import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from infra.cli import options
from infra.cli.console import Steps, print_json, row, show, stdout, table
from infra.cli.jobs import Job, explained
from infra.cli.workspace import Workspace
from infra.errors import TrainyardError

if TYPE_CHECKING:
    from lightkube.resources.core_v1 import Event, Pod

    from infra.jobs import Jobs
    from infra.logs import Line

_EVENTS_SHOWN = 15
_COLOURS = ("cyan", "magenta", "green", "yellow", "blue", "bright_cyan", "bright_magenta", "bright_green")


def register(app: typer.Typer) -> None:
    """Add this module's commands."""
    app.command()(describe)
    app.command()(logs)


def describe(job: Job, stack: options.Stack = "local", json: options.Json = False) -> None:
    """Show a job with its workers, its latest events, and what it waits for with the next command.

    Example: [bold]trainyard describe digits[/bold]
    """
    workspace = _open(stack, f"describe elasticjob {job}")
    jobs = workspace.jobs()
    found = jobs.existing(job)
    summary = next(row for row in jobs.summaries() if row["job"] == job)
    status: Any = found.status or {}
    spec: Any = found.get("spec") or {}
    document = {
        **summary,
        "namespace": jobs.namespace,
        "phase": status.get("phase", "Pending"),
        "min": spec.get("minReplicas"),
        "max": spec.get("maxReplicas"),
        "restarts": status.get("restarts", 0),
        "disruptions": status.get("disruptions", 0),
        "waiting": [waiting.as_json() for waiting in explained(workspace, jobs, job)],
        "workers": [_worker(pod) for pod in jobs.workers(job)],
        "events": [_event(event) for event in jobs.events(job)],
    }
    if json:
        print_json(document)
        return
    _show(document)


def _worker(pod: Pod) -> dict[str, Any]:
    from infra.jobs import name_of  # noqa: PLC0415

    status = pod.status
    containers = (status.containerStatuses or []) if status else []
    ending = pod.metadata is not None and pod.metadata.deletionTimestamp is not None
    return {
        "pod": name_of(pod),
        "state": "Terminating" if ending else (status.phase if status else None) or "Pending",
        "ready": bool(containers) and all(container.ready for container in containers),
        "node": pod.spec.nodeName if pod.spec else None,
        "restarts": sum(container.restartCount for container in containers),
    }


def _event(event: Event) -> dict[str, Any]:
    from infra.jobs import last_seen  # noqa: PLC0415

    return {
        "time": last_seen(event).isoformat(),
        "type": event.type,
        "object": event.involvedObject.name,
        "reason": event.reason,
        "message": " ".join((event.message or "").split()),
        "count": event.count or 1,
    }


def _show(document: dict[str, Any]) -> None:
    shown = table("", "")
    sizes = f"{document['ready']} ready, {document['desired']} wanted"
    if document["min"] is not None or document["max"] is not None:
        sizes += f", {document['min']} to {document['max']} allowed"
    row(shown, "job", document["job"])
    row(shown, "state", document["phase"])
    row(shown, "message", document["message"])
    row(shown, "workers", sizes)
    row(shown, "generation", document["generation"])
    row(shown, "restarts", document["restarts"])
    row(shown, "disruptions", document["disruptions"])
    for waiting in document["waiting"]:
        row(shown, f"waits ({waiting['cause']})", waiting["message"])
        row(shown, "next", waiting["next"])
    show(shown)
    if document["workers"]:
        workers = table("worker", "state", "ready", "node", "restarts")
        for worker in document["workers"]:
            ready = "yes" if worker["ready"] else "no"
            row(workers, worker["pod"], worker["state"], ready, worker["node"], worker["restarts"])
        show(workers)
    if document["events"]:
        events = table("time", "object", "reason", "message")
        for event in document["events"][-_EVENTS_SHOWN:]:
            row(events, event["time"][11:19], event["object"], event["reason"], event["message"])
        show(events)


def logs(
    job: Job,
    follow: Annotated[
        bool, typer.Option("-f", "--follow", help="Go on until the job has ended; from before its workers start.")
    ] = False,
    tail: Annotated[int | None, typer.Option(min=1, help="Only so many lines, the newest; not with --follow.")] = None,
    stack: options.Stack = "local",
    json: options.Json = False,
) -> None:
    """Print the logs of all workers of a job, merged by time, each line with its worker and rank.

    Example: [bold]trainyard logs digits --follow[/bold]
    """
    if follow and tail is not None:
        raise typer.BadParameter("--tail cannot be combined with --follow", param_hint="--tail")
    workspace = _open(stack, f"logs -l elastic.pytorch.org/job-name={job} --prefix --max-log-requests=1000")
    jobs = workspace.jobs()
    jobs.existing(job)
    if follow:
        follow_logs(workspace, jobs, job, json=json)
        return
    from infra.logs import merged  # noqa: PLC0415

    lines = collections.deque(merged(jobs.logs(job)), maxlen=tail)
    if not lines:
        reasons = "; ".join(waiting.sentence() for waiting in explained(workspace, jobs, job))
        raise TrainyardError(
            f"no worker of job {job} has written anything"
            + (f": {reasons}" if reasons else f". Wait for it: trainyard logs {job} --follow -s {stack}")
        )
    if json:
        print_json({"job": job, "namespace": jobs.namespace, "lines": [line.as_json() for line in lines]})
        return
    printer = _Printer(job)
    for line in lines:
        printer.print(line)


def follow_logs(workspace: Workspace, jobs: Jobs, job: str, *, json: bool) -> None:
    """Print a job's log lines until it has ended; on stderr, what it waits for before there are any.

    With `json` they come as one document at the end.
    """
    from infra.jobs import JobError  # noqa: PLC0415
    from infra.logs import Following  # noqa: PLC0415

    steps = Steps()
    said = ""

    def tell() -> None:
        nonlocal said
        try:
            sentence = "; ".join(waiting.sentence() for waiting in explained(workspace, jobs, job))
        except JobError as error:  # gone, or the API server is away: the lines end, or go on
            sentence = str(error)
        if sentence and sentence != said:
            steps.say(f"waiting: {sentence}")
            said = sentence

    lines: list[dict[str, Any]] = []
    printer = _Printer(job)
    for line in Following(jobs, job, tell).lines():
        if json:
            lines.append(line.as_json())
        else:
            printer.print(line)
    if json:
        print_json({"job": job, "namespace": jobs.namespace, "lines": lines})


class _Printer:
    """Prints lines behind their prefixes, which are as wide as the widest so far; each worker has a colour."""

    def __init__(self, job: str) -> None:
        self._job = job
        self._width = 0
        self._console = stdout()
        self._colours: dict[str, str] = {}

    def print(self, line: Line) -> None:
        """Print one line."""
        from rich.text import Text  # noqa: PLC0415

        prefix = line.prefix(self._job)
        self._width = max(self._width, len(prefix))
        if not self._console.is_terminal:
            sys.stdout.write(f"{prefix:{self._width}} | {line.log.text}\n")
            sys.stdout.flush()
            return
        colour = self._colours.setdefault(line.log.pod, _COLOURS[len(self._colours) % len(_COLOURS)])
        self._console.print(Text.assemble((f"{prefix:{self._width}} | ", colour), line.log.text))


def _open(stack: str, in_rehearsal: str) -> Workspace:
    workspace = Workspace.open(stack)
    workspace.require_outside_rehearsal(f"in the rehearsal: kubectl -n {workspace.settings.namespace} {in_rehearsal}")
    return workspace
