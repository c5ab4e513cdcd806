"""`up`, `preview`, `down`, `status`, `env`: the stack and its cluster."""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import sys
from collections.abc import Mapping
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, Annotated, Any

import typer

from infra.cli import example, options, policies, rehearse, report
from infra.cli.console import Steps, confirm, print_json, row, show, stderr, stdout, table
from infra.cli.workspace import ENGINES_OF_PULUMI, MUTATING, PREVIEWING, RehearsedWorkspace, Workspace
from infra.errors import TrainyardError, UsageError
from infra.wiring.scheduling import CAPACITY_LABEL, GPU_RESOURCE

if TYPE_CHECKING:
    from rich.text import Text

    from infra.engine import Operation, Summary
    from infra.local.cluster import ClusterStatus
    from infra.parts import Part

DESTROYED_WITHIN = timedelta(seconds=90)  # about 10 s with two cores
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
    rehearsed: options.Rehearse = False,
    only: Annotated[
        str | None,
        typer.Option("--only", metavar="PART", help="Only a part of an AWS stack: registry, to push images to."),
    ] = None,
    no_policies: policies.NoPolicies = False,
    policy_pack: policies.Packs = None,
    no_wait: options.NoWait = False,
    json: options.Json = False,
) -> None:
    """Bring the stack up: engines, cluster, and everything in it. Safe to repeat: what is there stays.

    Example: [bold]trainyard up -s local --with-example[/bold], [bold]trainyard up -s dev --rehearse[/bold]
    """
    if rehearsed:
        opened = policies.with_policies(RehearsedWorkspace.open(stack), none=no_policies, others=policy_pack)
        rehearse.up(opened, with_example=with_example, only=_part(only), wait=not no_wait, json=json)
        return
    workspace = policies.with_policies(Workspace.open(stack), none=no_policies, others=policy_pack)
    part = _part(only)
    if part:
        _require_parts(workspace, with_example=with_example)
    workspace.require_outside_rehearsal()
    workspace.require_credentials()
    if not part:
        workspace.require_images()
    steps = Steps()
    result: dict[str, Any] = {"stack": stack, "target": workspace.settings.target}
    with workspace.changing(steps, wait=not no_wait):
        workspace.build_engines(steps)
        if workspace.is_local:
            workspace.local_cluster(steps).up(workspace.images(), workspace.local_nodes())
        summary = _run(workspace, "up", steps, f"{part} of {stack}" if part else f"stack {stack}", only=part)
    result |= {"changes": summary.changes, "policies": policies.documents(summary.policies)}
    if part:
        result["only"] = part
        _close(steps, result, json=json, then=f"trainyard images build -s {stack} --push")
        return
    result |= workspace.way_in()
    if with_example:
        result["example"] = _example(workspace, steps)
    _close(steps, result, json=json)
    if json:
        return
    if workspace.is_local:
        stdout().print(STAND_IN)
    for name, value in workspace.way_in().items():
        stdout().print(f"{name.replace('_', ' ')}: {value}", markup=False)
    stdout().print(f'To look around: eval "$(trainyard env -s {stack})"; kubectl get elasticjobs,pods,nodes -A')


def preview(
    stack: options.Stack = "local",
    rehearsed: options.Rehearse = False,
    source: report.From = None,
    markdown: report.Markdown = None,
    sarif: report.Sarif = None,
    fail_on: report.FailOn = None,
    utilisation: report.Utilisation = None,
    no_policies: policies.NoPolicies = False,
    policy_pack: policies.Packs = None,
    no_wait: options.NoWait = False,
    json: options.Json = False,
) -> None:
    """Say what `up` would change, cost and break, without changing anything.

    Ends with code 1 where mandatory policies are broken, a version must not move so, a combination is known to fail, or
    the preview is not complete: see --fail-on.

    Example: [bold]trainyard preview -s prod --rehearse --report preview.md[/bold],
    [bold]pulumi preview --json | trainyard preview --from -[/bold]
    """
    wanted = report.Wanted.of(markdown=markdown, sarif=sarif, json=json, fail_on=fail_on, utilisation=utilisation)
    if source is not None:
        report.deliver(report.read(source, rehearsal=rehearsed, stack=stack), wanted)
        return
    from infra.report.preview import from_events  # noqa: PLC0415

    events: list[Mapping[str, Any]] = []
    note, failed = "", None
    try:
        if rehearsed:
            opened = policies.with_policies(RehearsedWorkspace.open(stack), none=no_policies, others=policy_pack)
            note = rehearse.preview(replace(opened, on_event=events.append), wait=not no_wait)
        else:
            workspace = policies.with_policies(Workspace.open(stack), none=no_policies, others=policy_pack)
            _preview(replace(workspace, on_event=events.append))
    except TrainyardError as error:
        if not events:  # the engine was not reached
            raise
        failed = error
        note = rehearse.label()["note"] if rehearsed else ""
    found = from_events(events, rehearsal=rehearsed, stack=stack)
    report.deliver(found, wanted, note=note, failed=failed)


def _preview(workspace: Workspace) -> None:
    workspace.require_outside_rehearsal()
    workspace.require_credentials()
    workspace.require_images()
    if workspace.settings.target != "aws":
        workspace.access()
    steps = Steps()
    workspace.build_engines(steps)
    _run(workspace, "preview", steps, f"preview of {workspace.stack}")


def down(
    stack: options.Stack = "local",
    state: Annotated[bool, typer.Option("--state", help="Delete the state folder as well (logs, keys).")] = False,
    rehearsed: options.Rehearse = False,
    yes: options.Yes = False,
    no_wait: options.NoWait = False,
    json: options.Json = False,
) -> None:
    """Remove the stack with everything in it: jobs, volumes with their checkpoints, nodes, control plane.

    Example: [bold]trainyard down -s local --yes[/bold], [bold]trainyard down -s dev --rehearse[/bold]
    """
    if rehearsed:  # nothing to ask: nothing of it is worth anything
        rehearse.down(stack, wait=not no_wait, json=json)
        return
    workspace = Workspace.open_to_remove(stack)
    workspace.require_outside_rehearsal()
    workspace.require_unprotected()
    confirm(f"Remove stack {stack} with its jobs and checkpoints?", yes=yes)
    steps = Steps()
    result: dict[str, Any] = {"stack": stack}
    with workspace.changing(steps, wait=not no_wait):
        result["changes"] = _remove(workspace, steps)
        if state:
            with steps.step("state folder"):
                _delete_state(workspace)
    if json:
        print_json(result)


def status(stack: options.Stack = "local", rehearsed: options.Rehearse = False, json: options.Json = False) -> None:
    """Show what runs: control plane, nodes, jobs. Exit code 1 if a part that should run does not.

    Example: [bold]trainyard status[/bold], [bold]trainyard status -s dev --rehearse[/bold]
    """
    if rehearsed:
        rehearse.status(stack, json=json)
        return
    workspace = Workspace.open(stack)
    if not workspace.is_local:
        raise TrainyardError(
            f"status looks at clusters on this computer; stack {stack} has target {workspace.settings.target}"
        )
    if not workspace.state_directory.exists():  # to look at nothing must not make anything
        stderr().print(f"Nothing runs. Start it: trainyard up -s {stack}", markup=False)
        if json:
            print_json({"stack": stack, "healthy": False, "processes": [], "nodes": []})
        raise typer.Exit(1)
    cluster = workspace.local_cluster().status()
    if json:
        print_json({"stack": stack, "healthy": cluster.healthy, **_status_document(cluster)})
    else:
        _show_status(cluster, stack)
    if not cluster.healthy:
        raise typer.Exit(1)


def show_environment(
    stack: options.Stack = "local", rehearsed: options.Rehearse = False, json: options.Json = False
) -> None:
    """Print the variables with which plain `pulumi` and `kubectl` see this stack.

    In a rehearsal they are for boto3 and other AWS tools as well, and its project is another folder:
    pulumi -C "$TRAINYARD_REHEARSAL/project" preview -s dev.

    Example: [bold]eval "$(trainyard env)"; pulumi preview -s local; kubectl get nodes[/bold]
    """
    from infra.local.engines import locate  # noqa: PLC0415

    variables: dict[str, str | None]
    if rehearsed:
        variables = rehearse.environment(stack)
    else:
        workspace = Workspace.open(stack)
        workspace.require_outside_rehearsal()
        variables = {**workspace.pulumi_environment(), "KUBECONFIG": str(workspace.kubeconfig())}
    if (kubectl := locate("kubectl")) and kubectl.origin != "PATH":
        path = variables.get("PATH") or os.environ.get("PATH", os.defpath)
        variables["PATH"] = f"{kubectl.path.parent}{os.pathsep}{path}"
    if json:
        print_json(variables)
        return
    for name, value in variables.items():
        sys.stdout.write(f"unset {name}\n" if value is None else f"export {name}={shlex.quote(value)}\n")


def _part(text: str | None) -> Part | None:
    """The part of a stack that `--only` names."""
    from infra.parts import PARTS  # noqa: PLC0415

    for part in PARTS:
        if text == part:
            return part
    if text is None:
        return None
    raise UsageError(f"--only is {text!r}: parts that can be brought up alone are {', '.join(PARTS)}")


def _require_parts(workspace: Workspace, *, with_example: bool) -> None:
    if workspace.settings.target != "aws":
        raise UsageError(
            f"--only is for AWS stacks, which have a registry; stack {workspace.stack} has target"
            f" {workspace.settings.target}"
        )
    if with_example:
        raise UsageError("--with-example trains a job in the cluster, and --only makes none: leave one of them out")


def _close(steps: Steps, result: dict[str, Any], *, json: bool, then: str = "") -> None:
    """The end of `up`: what was done, and what comes next."""
    result["steps"] = [
        {"step": step.name, "seconds": round(step.seconds, 2), "note": step.note} for step in steps.finished
    ]
    if json:
        print_json(result)
        return
    show(steps.closing_table())
    if then:
        stdout().print(f"Next: {then}", markup=False)


def _run(
    workspace: Workspace,
    operation: Operation,
    steps: Steps,
    name: str,
    within: timedelta | None = None,
    only: Part | None = None,
) -> Summary:
    looks = operation == "preview"
    if operation == "up" and not only:
        policies.check_first(workspace, workspace.engine(PREVIEWING), steps)
    with steps.step(name):
        summary = workspace.engine(PREVIEWING if looks else MUTATING).run(operation, steps.note, within, only=only)
        steps.note(summary.sentence(done=not looks))
    return summary


def _example(workspace: Workspace, steps: Steps) -> dict[str, Any]:
    """Train the example job to its end and take a spot node away meanwhile; one that has succeeded is left alone."""
    from infra.cli.drill import reclaim_spot_node  # noqa: PLC0415

    jobs, name = workspace.jobs(), example.NAME
    ended = {c.type: c for c in jobs.conditions(name)} if jobs.get(name) else {}
    if "Succeeded" in ended:
        steps.say(
            f"Job {name} has succeeded before and is left alone. To see it train again: `make down`, then `make up`;"
            " or `trainyard drill spot`, which trains a copy."
        )
        return {"job": name, "state": "Succeeded", "message": ended["Succeeded"].message}
    if "Failed" in ended:
        steps.say(f"Job {name} had failed ({ended['Failed'].message}); it is submitted again.")
        jobs.delete(name)
        jobs.wait_gone(name, example.TIMEOUT)
    example.submit(jobs)
    result: dict[str, Any] = {"job": name}
    if workspace.is_local and any(pool.capacity == "spot" and pool.nodes for pool in workspace.settings.node_pools):
        result["drill"] = reclaim_spot_node(workspace, name, steps, replace=True)
    else:
        steps.say("No node is reclaimed: that needs a spot pool on the local target.")
    with steps.step(f"job {name} to its end"):
        end = jobs.wait(name, example.TIMEOUT, steps.note)
        steps.note(end.type)
    if end.type != "Succeeded":
        raise TrainyardError(
            f'job {name} ended as {end.type}: {end.message}. Look: eval "$(trainyard env -s {workspace.stack})";'
            f" kubectl -n {jobs.namespace} describe elasticjob {name}"
        )
    return result | {"state": end.type, "message": end.message}


def _remove(workspace: Workspace, steps: Steps) -> dict[str, int]:
    if not workspace.is_local:
        workspace.build_engines(steps)
        return _run(workspace, "destroy", steps, f"stack {workspace.stack}").changes
    from infra.local.engines import locate  # noqa: PLC0415

    cluster = workspace.local_cluster(steps)
    changes: dict[str, int] = {}
    if cluster.status().healthy and all(map(locate, ENGINES_OF_PULUMI)):
        changes = _destroy_in_time(workspace, steps)
    # Whatever of the stack is left goes with the cluster.
    with steps.step("nodes and control plane"):
        cluster.down()
        cluster.erase()
        workspace.forget()
    return changes


def _destroy_in_time(workspace: Workspace, steps: Steps) -> dict[str, int]:
    """Let the engine remove the stack in order, as long as that is a matter of seconds.

    It waits for every pod to end, which takes an overloaded cluster forever; but the cluster is deleted next anyway.
    """
    try:
        return _run(workspace, "destroy", steps, f"stack {workspace.stack}", DESTROYED_WITHIN).changes
    except (TrainyardError, OSError) as error:
        steps.say(f"The stack could not be removed piece by piece; it goes with its cluster. {error}")
        return {}


def _delete_state(workspace: Workspace) -> None:
    """Delete what this project keeps in the state folder, and the folder unless somebody else put something there."""
    directory = workspace.state.directory
    for name in ("pulumi", "logs"):
        if (directory / name).exists():
            shutil.rmtree(directory / name)
    for name in ("kubeconfig", "lock.holder", "lock"):
        (directory / name).unlink(missing_ok=True)
    with contextlib.suppress(OSError):
        directory.rmdir()


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


def _show_status(cluster: ClusterStatus, stack: str) -> None:
    document = _status_document(cluster)
    parts = table("process", "state", "pid", "port", "memory", "since")
    for part in document["processes"]:
        row(parts, part["name"], _mark(good=part["healthy"]), *_cells(part, "pid", "port", "memory_mib", "since"))
    show(parts)
    if document["nodes"]:
        nodes = table("node", "state", "pool", "capacity", "GPUs", "pid", "memory", "since")
        for node in document["nodes"]:
            cells = _cells(node, "pool", "capacity", "gpus", "pid", "memory_mib", "since")
            row(nodes, node["name"], _mark(good=node["ready"]), *cells)
        show(nodes)
        stdout().print(STAND_IN)
    if not any(part["pid"] for part in document["processes"]):
        stderr().print(f"Nothing runs. Start it: trainyard up -s {stack}", markup=False)


def _mark(*, good: bool) -> Text:
    from rich.text import Text  # noqa: PLC0415

    return Text("ready", "green") if good else Text("down", "red")


def _cells(part: dict[str, Any], *names: str) -> list[str]:
    def cell(name: str) -> str:
        value = part[name]
        if name == "memory_mib":
            return f"{value} MiB" if value else ""
        if name == "since":
            return value.astimezone().strftime("%H:%M:%S") if value else ""
        return "" if value is None else str(value)

    return [cell(name) for name in names]


def _mib(size: int) -> int:
    return round(size / 2**20)
