"""`workflow run|compile|history|rollback`: prepare, train, evaluate, publish; and the models that came of it."""

from __future__ import annotations

import os
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from infra.cli import options
from infra.cli.console import Steps, confirm, print_json, row, show, stdout, table
from infra.cli.workspace import Workspace
from infra.errors import TrainyardError, UsageError

if TYPE_CHECKING:
    from infra.workflow.models import Models
    from infra.workflow.steps import Run

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode="rich",
    help="Prepare, train, evaluate and publish as one definition; see docs/how-to/workflow.md.",
)

File = Annotated[Path, typer.Argument(help="The workflow's file.")]
Place = Annotated[str, typer.Argument(metavar="PLACE", help="A workflow's file, or where it publishes: folder or URL.")]
Volume = Annotated[
    Path | None,
    typer.Option("--volume", help="Where this computer has the stack's shared volume; absent: the local stack's."),
]


@app.command()
def run(
    file: File,
    name: Annotated[
        str | None,
        typer.Option("--run", help="Name of the run; one that was interrupted goes on where it was. Absent: the time."),
    ] = None,
    stack: options.Stack = "local",
    volume: Volume = None,
    json: options.Json = False,
) -> None:
    """Run a workflow from this computer; its training is an ElasticJob of the stack.

    Each step is done once: the same command with --run goes on after the last step that was done.

    Example: [bold]trainyard workflow run training/examples/digits_workflow.yaml[/bold]
    """
    from infra.workflow import definition, kfp_environment, steps  # noqa: PLC0415

    made = definition.read(file)
    kfp_environment.python()
    chosen = name or f"{datetime.now(UTC):%Y%m%d-%H%M%S}"
    made.job_name(chosen)
    workspace = _workspace(stack)
    access = workspace.access()
    this = steps.Run(made, chosen, _volume(workspace, volume))
    this.begin()
    variables = {
        steps.VOLUME_VARIABLE: str(this.volume),
        steps.KUBECONFIG_VARIABLE: str(access.path),
        steps.CONTEXT_VARIABLE: access.context or "",
        steps.NAMESPACE_VARIABLE: workspace.settings.namespace,
    }
    progress = Steps()
    progress.say(f"run {chosen}; to go on with it later: trainyard workflow run {file} --run {chosen} -s {stack}")
    done = kfp_environment.run_pipeline(made, chosen, this.folder / "kfp", variables, progress.say)
    result = _result(this)
    failure = this.failure()
    if not done and failure is None:
        failure = ("run", f"it was interrupted; {this.folder / 'kfp'} has what was said")
    if failure is not None:
        result |= {"state": "Failed", "failed": failure[0], "reason": failure[1]}
    if json:
        print_json(result)
    elif failure is None:
        stdout().print(f"{made.name}: {result['version']} is the current model ({result['address']})", markup=False)
    if failure is not None:
        if json:
            raise typer.Exit(1)
        raise TrainyardError(f"workflow {made.name}, run {chosen}, failed at {failure[0]}: {failure[1]}")


@app.command("compile")
def compile_file(
    file: File,
    image: Annotated[
        str,
        typer.Option("--image", help="Image of the steps' pods: the training image with requirements/workflow.txt."),
    ],
    output: Annotated[Path, typer.Option("-o", "--output", help="YAML file to write.")],
    objects: Annotated[
        bool, typer.Option("--objects", help="As objects of Kubernetes, for kubectl apply; else to be uploaded.")
    ] = False,
    stack: options.Stack = "local",
    json: options.Json = False,
) -> None:
    """Write a workflow as a pipeline for Kubeflow Pipelines in the stack's cluster; no cluster is asked.

    Example: [bold]trainyard workflow compile digits_workflow.yaml --image REGISTRY/workflow:TAG -o digits.yaml[/bold]
    """
    from infra.wiring.storage import CHECKPOINT_CLAIM  # noqa: PLC0415
    from infra.workflow import definition, kfp_environment, steps  # noqa: PLC0415

    made = definition.read(file)
    namespace = Workspace.open(stack).settings.namespace
    kfp_environment.compile_pipeline(
        made,
        output,
        image=image,
        claim=CHECKPOINT_CLAIM,
        volume=steps.WORKERS_VOLUME,
        namespace=namespace if objects else None,
    )
    if json:
        print_json({"workflow": made.name, "output": str(output), "steps": list(steps.STEPS), "namespace": namespace})
    else:
        stdout().print(f"{output}: {' -> '.join(steps.STEPS)}, for namespace {namespace}", markup=False)


@app.command()
def history(place: Place, stack: options.Stack = "local", volume: Volume = None, json: options.Json = False) -> None:
    """List which model was the current one since when, and why; the last one is.

    Example: [bold]trainyard workflow history s3://bucket/models/digits[/bold]
    """
    models = _models(place, stack, volume)
    decisions = models.decisions()
    versions = {name: models.version(name) for name in {each.version for each in decisions}}
    if json:
        rows = [{**asdict(each), "metrics": dict(versions[each.version].metrics)} for each in decisions]
        current = decisions[-1].version if decisions else None
        address = models.address(current) if current else None
        print_json({"place": models.place, "current": current, "address": address, "decisions": rows})
        return
    if not decisions:
        stdout().print(f"{models.place} has no published model", markup=False)
        return
    shown = table("", "version", "since", "metrics", "because of")
    for each in decisions:
        metrics = " ".join(f"{name}={value:g}" for name, value in versions[each.version].metrics.items())
        row(shown, each.number, each.version, each.time, metrics, each.reason)
    show(shown)


@app.command()
def rollback(
    place: Place,
    version: Annotated[
        str | None, typer.Argument(help="One that was current before; absent: the one before the current one.")
    ] = None,
    yes: options.Yes = False,
    stack: options.Stack = "local",
    volume: Volume = None,
    json: options.Json = False,
) -> None:
    """Make an earlier model the current one again; its files are compared with their digests before.

    Example: [bold]trainyard workflow rollback training/examples/digits_workflow.yaml --yes[/bold]
    """
    models = _models(place, stack, volume)
    confirm(f"Make {version or 'the version before'} the current model of {models.place}?", yes=yes)
    decision = models.rollback(version)
    if json:
        print_json({**asdict(decision), "address": models.address(decision.version)})
    else:
        stdout().print(f"{decision.version} is the current model ({models.address(decision.version)})", markup=False)


def _workspace(stack: str) -> Workspace:
    workspace = Workspace.open(stack)
    workspace.require_outside_rehearsal("compile the workflow: trainyard workflow compile")
    return workspace


def _volume(workspace: Workspace, given: Path | None) -> Path:
    if given is not None:
        if not (given.is_dir() and os.access(given, os.W_OK)):
            raise UsageError(f"--volume {given} is no folder that can be written")
        return given.absolute()
    from infra.wiring.storage import CHECKPOINT_CLAIM  # noqa: PLC0415
    from infra.workflow.volumes import folder_of  # noqa: PLC0415

    return folder_of(workspace.jobs(), CHECKPOINT_CLAIM)


def _models(place: str, stack: str, volume: Path | None) -> Models:
    """The models of a place, or of that to which a workflow publishes."""
    from infra.workflow import definition  # noqa: PLC0415
    from infra.workflow.models import Models  # noqa: PLC0415

    if "://" not in place and Path(place).suffix in {".yaml", ".yml"}:
        place = definition.read(Path(place)).publish.to
        if "$(VOLUME)" in place:
            place = definition.replaced(place, {"VOLUME": str(_volume(_workspace(stack), volume))})
    return Models(place)


def _result(this: Run) -> dict[str, Any]:
    """What came of a run, in plain data."""
    from infra.workflow.steps import STEPS  # noqa: PLC0415

    done = {step: found for step in STEPS if (found := this.result(step)) is not None}
    published, evaluated = done.get("publish", {}), done.get("evaluate", {})
    return {
        "workflow": this.definition.name,
        "run": this.name,
        "folder": str(this.folder),
        "state": "Succeeded" if "publish" in done else "Unfinished",
        "steps": {step: found["seconds"] for step, found in done.items()},
        "job": done.get("train", {}).get("job"),
        "metrics": evaluated.get("metrics"),
        "version": published.get("version"),
        "address": published.get("address"),
    }
