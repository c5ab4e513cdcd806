"""`trainyard recommend`: what a job should ask for, from what it was seen to use."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from infra.cli import options
from infra.cli.console import print_json, row, show, stdout, table
from infra.cli.jobs import Job
from infra.cli.workspace import Workspace
from infra.errors import TrainyardError

if TYPE_CHECKING:
    from infra.advice import Advice
    from infra.history import JobHistory
    from infra.jobs import Jobs

Kept = Annotated[
    list[Path] | None,
    typer.Option("--log", metavar="FILE", help="A log that was kept, beside those of the workers that are there."),
]


def register(app: typer.Typer) -> None:
    """Add this module's command."""
    app.command()(recommend)


def recommend(job: Job, log: Kept = None, stack: options.Stack = "local", json: options.Json = False) -> None:
    """Recommend CPU, memory, shared memory and loader workers for a job: with evidence, and with the lines to change.

    Where there is too little evidence for a figure it says what is lacking. Nothing is changed.

    Example: [bold]trainyard recommend digits[/bold]
    """
    from infra.advice import advise  # noqa: PLC0415

    workspace = Workspace.open(stack)
    workspace.require_outside_rehearsal("train: its workers are played, and use nothing")
    jobs = workspace.jobs()
    found = jobs.existing(job)
    history = read_history(jobs, job, log)
    advice = advise(history, dict(found))
    if json:
        print_json(
            {
                "job": job,
                "namespace": jobs.namespace,
                "findings": [finding.as_json() for finding in advice.findings],
                "missing": list(history.gaps),
            }
        )
        return
    _show(advice, history, job, stack)


def read_history(jobs: Jobs, job: str, kept: list[Path] | None) -> JobHistory:
    """What a job has told: in the logs of its workers, and in those that somebody has kept.

    Raises:
        JobError: there is no such job and no kept log, or the API server does not answer.
        TrainyardError: a kept log cannot be read, or tells nothing.
    """
    from infra.history import Reader, events_of, progress_in  # noqa: PLC0415

    reader = Reader(job)
    for path in kept or []:
        try:
            with path.open(encoding="utf-8", errors="replace") as lines:
                number = 0
                for event in progress_in(path.name, lines):
                    reader.add(event)
                    number += 1
        except OSError as error:
            raise TrainyardError(f"--log {path} cannot be read: {error.strerror}") from None
        if not number:
            raise TrainyardError(
                f"--log {path} has no progress line of a worker. Keep one with: trainyard logs {job} --follow > {path}"
            )
    if not kept or jobs.get(job) is not None:
        for event in events_of(jobs, job):
            reader.add(event)
    return reader.history()


def _show(advice: Advice, history: JobHistory, job: str, stack: str) -> None:
    shown = table("resource", "", "message", "because of")
    words: dict[str, Any] = {"change": "change", "keep": "right", "unknown": "not known"}
    for finding in advice.findings:
        row(shown, finding.resource, words[finding.state], finding.summary, "; ".join(finding.evidence))
    show(shown)
    console = stdout()
    for gap in history.gaps:
        console.print(f"Missing: {gap}", markup=False)
    if not advice.changes:
        return
    for change in advice.changes:
        console.print(change.path, markup=False)
        if change.before is not None:
            console.print(f"  - {change.before}", markup=False, style="red")
        for line in change.after.splitlines():
            console.print(f"  + {line}", markup=False, style="green")
    console.print(
        f"A worker's program changes while its job is suspended: trainyard suspend {job} --wait -s {stack}, submit the"
        f" changed file, trainyard resume {job} -s {stack}",
        markup=False,
    )
