"""`up`, `preview`, `down`, `status`, `env`: the stack and its cluster."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from datetime import timedelta
from typing import TYPE_CHECKING, Annotated, Any

import typer

from infra.cli import options
from infra.cli.console import Steps, print_json, stderr, stdout, table
from infra.cli.workspace import Workspace
from infra.clusters import CHECKOUT
from infra.errors import TrainyardError
from infra.wiring.scheduling import CAPACITY_LABEL, GPU_RESOURCE

if TYPE_CHECKING:
    from infra.engine import Summary
    from infra.local.cluster import ClusterStatus

EXAMPLE = CHECKOUT / "training" / "examples" / "digits.yaml"
EXAMPLE_JOB = "digits"
EXAMPLE_TIMEOUT = timedelta(minutes=10)
STAND_IN = "Pods of the local cluster are processes of this computer; GPUs are numbers, not devices."


def register(app: typer.Typer) -> None:
    """Add this module's commands."""
    app.command()(up)
    app.command()(preview)
    app.command()(down)
    app.command()(status)
    app.command("env")(show_environment)


def up(
    stack: options.Stack = "local",
    with_example: Annotated[
        bool,
        typer.Option("--with-example", help="Then train the example job to its end, and reclaim a node meanwhile."),
    ] = False,
    no_wait: options.NoWait = False,
    json: options.Json = False,
) -> None:
    """Bring the stack up: engines, cluster, and everything in it. Safe to repeat: what is there stays.

    Example: [bold]trainyard up -s local --with-example[/bold]
    """
    workspace = Workspace.open(stack)
    steps = Steps(quiet=json)
    result: dict[str, Any] = {"stack": stack, "target": workspace.settings.target}
    with workspace.changing(steps, wait=not no_wait):
        workspace.build_engines(steps)
        if workspace.is_local:
            workspace.local_cluster(steps).up(workspace.images(), workspace.local_nodes())
        summary = _run(workspace, "up", steps, f"stack {stack}")
    result |= {"changes": summary.changes, "kubeconfig": str(workspace.access().path)}
    if with_example:
        result["example"] = _example(workspace, steps)
    result["steps"] = [
        {"step": step.name, "seconds": round(step.seconds, 2), "note": step.note} for step in steps.finished
    ]
    if json:
        print_json(result)
        return
    stdout().print(steps.closing_table())
    if workspace.is_local:
        stdout().print(STAND_IN)
    stdout().print(f'To look around: eval "$(trainyard env -s {stack})"; kubectl get elasticjobs,pods,nodes -A')


def preview(stack: options.Stack = "local", json: options.Json = False) -> None:
    """Say what `up` would change, without changing it.

    Example: [bold]trainyard preview -s local --json[/bold]
    """
    workspace = Workspace.open(stack)
    workspace.access()
    steps = Steps(quiet=json)
    summary = _run(workspace, "preview", steps, f"preview of {stack}")
    if json:
        print_json({"stack": stack, "changes": summary.changes, "steps": summary.steps})
        return
    shown = table("operation", "resource", "name", "because of")
    for step in summary.steps:
        *_, kind, name = step["urn"].split("::")
        shown.add_row(step["op"], kind.split("$")[-1], name, ", ".join(step["diffs"]))
    if summary.steps:
        stdout().print(shown)
    stdout().print(summary.sentence())


def down(
    stack: options.Stack = "local",
    state: Annotated[bool, typer.Option("--state", help="Delete the state folder as well (logs, keys).")] = False,
    yes: options.Yes = False,
    no_wait: options.NoWait = False,
    json: options.Json = False,
) -> None:
    """Remove the stack with everything in it: jobs, volumes with their checkpoints, nodes, control plane.

    Example: [bold]trainyard down -s local --yes[/bold]
    """
    workspace = Workspace.open(stack)
    _confirm(f"Remove stack {stack} with its jobs and checkpoints?", yes=yes)
    steps = Steps(quiet=json)
    result: dict[str, Any] = {"stack": stack}
    with workspace.changing(steps, wait=not no_wait):
        result["changes"] = _remove(workspace, steps)
    if state and workspace.state_directory.exists():
        with steps.step("state folder"):
            shutil.rmtree(workspace.state_directory)
    if json:
        print_json(result)


def status(stack: options.Stack = "local", json: options.Json = False) -> None:
    """Show what runs: control plane, nodes, jobs. Exit code 1 if a part that should run does not.

    Example: [bold]trainyard status[/bold]
    """
    workspace = Workspace.open(stack)
    if not workspace.is_local:
        raise TrainyardError(
            f"status looks at clusters on this computer; stack {stack} has target {workspace.settings.target}"
        )
    cluster = workspace.local_cluster().status()
    if json:
        print_json({"stack": stack, "healthy": cluster.healthy, **_status_document(cluster)})
    else:
        _show_status(cluster)
    if not cluster.healthy:
        raise typer.Exit(1)


def show_environment(stack: options.Stack = "local", json: options.Json = False) -> None:
    """Print the variables with which plain `pulumi` and `kubectl` see this stack.

    Example: [bold]eval "$(trainyard env)"; pulumi preview -s local; kubectl get nodes[/bold]
    """
    from infra.local.engines import locate  # noqa: PLC0415

    workspace = Workspace.open(stack)
    variables = workspace.pulumi_environment() | {"KUBECONFIG": str(workspace.access().path)}
    if (kubectl := locate("kubectl")) and kubectl.origin != "PATH":
        variables["PATH"] = f"{kubectl.path.parent}{os.pathsep}{variables['PATH']}"
    if json:
        print_json(variables)
        return
    for name, value in variables.items():
        sys.stdout.write(f"export {name}={shlex.quote(value)}\n")


def _run(workspace: Workspace, operation: Any, steps: Steps, name: str) -> Summary:
    with steps.step(name):
        summary = workspace.engine().run(operation, steps.note)
        steps.note(summary.sentence())
    return summary


def _example(workspace: Workspace, steps: Steps) -> dict[str, Any]:
    """Train the example job to its end and take a spot node away meanwhile; one that has succeeded is left alone."""
    from infra.cli.drill import reclaim_spot_node  # noqa: PLC0415

    jobs = workspace.jobs()
    name = EXAMPLE_JOB
    ended = [c for c in jobs.conditions(name) if c.type == "Succeeded"] if jobs.get(name) else []
    if ended:
        steps.say(
            f"job {name} has succeeded before, and its checkpoints are kept: it would end at once."
            " To see it train again: make down, then make up"
        )
        return {"job": name, "state": "Succeeded", "message": ended[-1].message}
    jobs.submit(EXAMPLE)
    outcome = reclaim_spot_node(workspace, name, steps, replace=True)
    with steps.step(f"job {name} to its end"):
        end = jobs.wait(name, EXAMPLE_TIMEOUT, steps.note)
        steps.note(f"{end.type}, test accuracy {outcome.get('accuracy')}")
    if end.type != "Succeeded":
        raise TrainyardError(
            f"job {name} ended as {end.type}: {end.message}."
            f' Look: eval "$(trainyard env)"; kubectl -n {jobs.namespace} describe elasticjob {name}'
        )
    return {"job": name, "state": end.type, "drill": outcome}


def _remove(workspace: Workspace, steps: Steps) -> dict[str, int]:
    if not workspace.is_local:
        return _run(workspace, "destroy", steps, f"stack {workspace.stack}").changes
    cluster = workspace.local_cluster(steps)
    changes: dict[str, int] = {}
    if cluster.status().healthy:
        changes = _run(workspace, "destroy", steps, f"stack {workspace.stack}").changes
    elif workspace.engine_has_state():
        # A cluster that does not answer whole cannot end its pods in order. All that the stack made goes with it below.
        with steps.step(f"record of stack {workspace.stack}"):
            workspace.engine().forget()
    with steps.step("nodes and control plane"):
        cluster.down()
        cluster.erase()
        for left in workspace.state_directory.glob("pulumi/run-*"):  # of engine runs that were killed
            shutil.rmtree(left)
    return changes


def _confirm(question: str, *, yes: bool) -> None:
    if yes:
        return
    if not sys.stdin.isatty():
        raise TrainyardError(f"{question} There is no terminal to ask: add --yes.")
    if not typer.confirm(question, err=True):
        raise typer.Exit(1)


def _status_document(cluster: ClusterStatus) -> dict[str, Any]:
    """`status` as plain data; memory in MiB, of a node with all its pods."""
    processes: list[dict[str, Any]] = [
        {
            "name": part.name,
            "pid": part.pid,
            "port": part.port,
            "healthy": part.healthy,
            "since": part.since,
            "memory_mib": _mib(part.resident_bytes),
        }
        for part in cluster.components
    ]
    nodes = [
        {
            "name": node.machine.name,
            "pool": node.machine.spec.pool,
            "capacity": node.machine.spec.labels.get(CAPACITY_LABEL, ""),
            "gpus": int(node.machine.spec.resources.get(GPU_RESOURCE, 0)),
            "address": node.machine.address,
            "pid": node.pid,
            "ready": node.ready,
            "since": node.since,
            "memory_mib": _mib(node.resident_bytes),
        }
        for node in cluster.nodes
    ]
    return {"kubeconfig": str(cluster.kubeconfig), "processes": processes, "nodes": nodes, "note": STAND_IN}


def _show_status(cluster: ClusterStatus) -> None:
    document = _status_document(cluster)
    parts = table("process", "state", "pid", "port", "memory", "since")
    for part in document["processes"]:
        parts.add_row(part["name"], _mark(good=part["healthy"]), *_cells(part, "pid", "port", "memory_mib", "since"))
    stdout().print(parts)
    if document["nodes"]:
        nodes = table("node", "state", "pool", "capacity", "GPUs", "pid", "memory", "since")
        for node in document["nodes"]:
            cells = _cells(node, "pool", "capacity", "gpus", "pid", "memory_mib", "since")
            nodes.add_row(node["name"], _mark(good=node["ready"]), *cells)
        stdout().print(nodes)
        stdout().print(STAND_IN)
    if not any(part["pid"] for part in document["processes"]):
        stderr().print("Nothing runs. Start it: trainyard up")


def _mark(*, good: bool) -> str:
    return "[green]ready[/green]" if good else "[red]down[/red]"


def _cells(row: dict[str, Any], *names: str) -> list[str]:
    def cell(name: str) -> str:
        value = row[name]
        if name == "memory_mib":
            return f"{value} MiB" if value else ""
        if name == "since":
            return value.astimezone().strftime("%H:%M:%S") if value else ""
        return "" if value is None else str(value)

    return [cell(name) for name in names]


def _mib(size: int) -> int:
    return round(size / 2**20)
