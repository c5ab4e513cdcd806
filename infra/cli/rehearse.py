"""What `--rehearse` makes of `up`, `preview`, `down`, `status` and `env`: AWS stacks without an account."""

from __future__ import annotations

import contextlib
import json as json_module
import os
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import typer

from infra.cli.console import Steps, counted, print_json, row, show, stderr, stdout, table
from infra.cli.policies import check_first, documents
from infra.cli.workspace import MUTATING, PREVIEWING, RehearsedWorkspace
from infra.errors import TrainyardError, UsageError

if TYPE_CHECKING:
    import threading
    from contextlib import AbstractContextManager

    from infra.engine import Operation, Summary
    from infra.parts import Part
    from infra.rehearsal.connection import Connection
    from infra.rehearsal.environment import Rehearsal


NOT_BUILT_YET = "; the controller's image is not built yet, and a name that nobody can pull stands for it"
"""What a report says of a stack whose image lock is empty. Pods are played, so nothing is pulled in a rehearsal."""


class LeftoversError(TrainyardError):
    """Something was left when the stack was removed: on AWS it would go on to cost money."""


def up(workspace: RehearsedWorkspace, *, with_example: bool, only: Part | None = None, wait: bool, json: bool) -> None:
    """Bring the rehearsal up and the stack, or a part of it, in it; it stays until `down --rehearse`."""
    if with_example:
        raise UsageError("--with-example trains a job, and the nodes of a rehearsal are played: no program runs there")
    from infra.rehearsal.tools import keep_applied, keep_attempted  # noqa: PLC0415

    stack, steps = workspace.stack, Steps()
    with workspace.changing(steps, wait=wait):
        workspace.build_engines(steps)
        connection = workspace.rehearsal(steps).up(workspace.region)
        workspace.write_project()
        if not only:
            with _explaining(workspace):
                check_first(workspace, workspace.engine(PREVIEWING), steps)
        keep_attempted(workspace.state, stack)
        what = f"{only} of {stack}" if only else f"stack {stack}"
        summary = _run(workspace, "up", steps, f"{what}, rehearsed", only)
        keep_applied(workspace.state, stack)
    result = {
        "stack": stack,
        "target": workspace.settings.target,
        **_about(workspace, connection),
        "changes": summary.changes,
        "policies": documents(summary.policies),
        "steps": [{"step": s.name, "seconds": round(s.seconds, 2), "note": s.note} for s in steps.finished],
    }
    if json:
        print_json(result)
        return
    show(steps.closing_table())
    _print_about(result)
    stdout().print(f'To look around: eval "$(trainyard env -s {stack} --rehearse)"; kubectl get nodes,pods -A')
    stdout().print(f"It runs until: trainyard down -s {stack} --rehearse", markup=False)


def label() -> dict[str, Any]:
    """What every report of a rehearsal carries, also where it ended early."""
    from infra.rehearsal.environment import LABEL  # noqa: PLC0415

    return {"rehearsal": True, "note": LABEL}


def preview(workspace: RehearsedWorkspace, *, wait: bool) -> str:
    """Look at what `up --rehearse` would change; stand-ins that did not run before are ended again.

    Returns:
        What every report of the rehearsal has to say. What the engine said went to `workspace.on_event`.
    """
    stack, steps = workspace.stack, Steps()
    was_there = workspace.state_directory.exists()
    with workspace.changing(steps, wait=wait):
        workspace.build_engines(steps)
        rehearsal = workspace.rehearsal(steps)
        try:
            connection = rehearsal.up(workspace.region)
            workspace.write_project()
            _run(workspace, "preview", steps, f"preview of {stack}, rehearsed")
            return str(_about(workspace, connection)["note"])
        finally:
            if not was_there:
                rehearsal.down()


def down(stack: str, *, wait: bool, json: bool) -> None:
    """Remove the stack through the engine, look for what is left, and end the rehearsal in any case.

    Its record is worth nothing without its stand-ins, so nothing is kept for a second try.

    Raises:
        LeftoversError: something of the stack was left.
        EngineRunError: the stack could not be removed.
    """
    workspace, steps = RehearsedWorkspace.open_to_remove(stack), Steps()
    result: dict[str, Any] = {"stack": stack, "rehearsal": True, "changes": {}}
    if workspace.state_directory.exists():
        with workspace.changing(steps, wait=wait):
            removed = False
            try:
                result["changes"] = _destroy(workspace, workspace.rehearsal(steps), steps)
                removed = True
            finally:
                workspace.rehearsal(steps).down()
                if not removed:  # engine and steps say that the run may be repeated; here that is not so
                    steps.say(
                        "The rehearsal has ended all the same, and its record with it: there is nothing to go on from."
                        f" Begin anew: trainyard up -s {stack} --rehearse"
                    )
    from infra.rehearsal.environment import LABEL  # noqa: PLC0415

    result["note"] = LABEL
    if json:
        print_json(result)
    else:
        stdout().print(LABEL, markup=False)


def status(stack: str, *, json: bool) -> None:
    """What of the rehearsal runs, its nodes, and what was recorded; exit code 1 if a part does not run."""
    workspace = RehearsedWorkspace.open(stack)
    if not workspace.state_directory.exists():
        stderr().print(f"Nothing is rehearsed. Begin: trainyard up -s {stack} --rehearse", markup=False)
        if json:
            print_json({"stack": stack, "rehearsal": True, "healthy": False, "processes": [], "nodes": [], "pods": []})
        raise typer.Exit(1)
    from infra.rehearsal.inspection import nodes_of, unscheduled  # noqa: PLC0415

    rehearsal = workspace.rehearsal()
    parts = rehearsal.components()
    healthy = all(part.healthy for part in parts)
    document: dict[str, Any] = {
        "stack": stack,
        "rehearsal": True,
        "healthy": healthy,
        "processes": [
            {
                "name": part.name,
                "pid": part.pid,
                "port": part.port,
                "healthy": part.healthy,
                "since": part.since,
                "memory_mib": round(part.resident_bytes / 2**20),
            }
            for part in parts
        ],
    }
    if healthy:
        connection = rehearsal.connection()
        nodes, waiting = nodes_of(connection.kubeconfig), unscheduled(connection.kubeconfig)
        document |= {**_about(workspace, connection), "nodes": nodes, "unscheduled_pods": waiting}
    if json:
        print_json(document)
    else:
        _show_status(document)
    if not healthy:
        raise typer.Exit(1)


def environment(stack: str) -> dict[str, str | None]:
    """Variables with which `pulumi`, `kubectl` and AWS tools see the rehearsal; None for the user's that must go.

    Plain `pulumi` needs the rehearsal's own project besides: `pulumi -C "$TRAINYARD_REHEARSAL/project" preview`.
    """
    workspace = RehearsedWorkspace.open(stack)
    workspace.access()
    # A profile, a session token or a passphrase file of the user's would win over what is set here.
    theirs = {name: None for name in os.environ if name.startswith(("AWS_", "PULUMI_"))}
    return {**theirs, **workspace.pulumi_environment()}


def _run(
    workspace: RehearsedWorkspace, operation: Operation, steps: Steps, name: str, only: Part | None = None
) -> Summary:
    from infra.rehearsal.inspection import claims_must_be_free, pods_must_fit  # noqa: PLC0415

    looks, kubeconfig = operation == "preview", workspace.access().path
    with steps.step(name):
        engine = workspace.engine(PREVIEWING if looks else MUTATING)
        if looks:
            watched: AbstractContextManager[threading.Event | None] = contextlib.nullcontext()
        elif operation == "destroy":
            watched = claims_must_be_free(kubeconfig)
        else:
            watched = pods_must_fit(kubeconfig, workspace.settings.namespace)
        with _explaining(workspace), watched as hopeless:
            summary = engine.run(operation, steps.note, stop=hopeless, only=only)
        steps.note(summary.sentence(done=not looks))
    return summary


@contextlib.contextmanager
def _explaining(workspace: RehearsedWorkspace) -> Iterator[None]:
    """Say of a run that fails where an earlier one was killed that this is why, and how to go on.

    Raises:
        UnfinishedError: it failed so.
    """
    from infra.engine import EngineRunError  # noqa: PLC0415
    from infra.rehearsal.environment import UnfinishedError  # noqa: PLC0415

    unfinished = workspace.rehearsal().unfinished()
    try:
        yield
    except EngineRunError as error:
        if not unfinished:
            raise
        again = f"trainyard down -s {workspace.stack} --rehearse, then up"
        raise UnfinishedError(
            f"{error}\nAn earlier run was killed while it made {', '.join(unfinished)}: that may be there, and the"
            f" engine does not know it. Begin the rehearsal anew ({again}); on AWS one would look, and import or"
            " delete it."
        ) from error


def _destroy(workspace: RehearsedWorkspace, rehearsal: Rehearsal, steps: Steps) -> dict[str, int]:
    from infra.rehearsal.inspection import volumes_left  # noqa: PLC0415
    from infra.rehearsal.leftovers import book_entries, leftovers  # noqa: PLC0415
    from infra.rehearsal.tools import switch_off_protection  # noqa: PLC0415

    if not rehearsal.has_record():
        return {}
    if not rehearsal.has_memory():
        steps.say("moto had ended before, and what the stack had made there with it: there is nothing to remove.")
        return {}
    workspace.build_engines(steps)
    connection = workspace.rehearsal(steps).up(rehearsal.connection().region)
    # AWS itself refuses to delete a protected cluster. The way round is that of a real stack, with the rehearsal's own
    # copy of the settings that are up: switch protection off, apply that, then remove.
    if switch_off_protection(workspace.state, workspace.stack):
        _run(workspace, "up", steps, "trainyard:aws.protect: false, as before a real removal")
    summary = _run(workspace, "destroy", steps, f"stack {workspace.stack}, rehearsed")
    with steps.step("looking for what is left"):
        left = leftovers(connection) + book_entries(workspace.state.directory) + volumes_left(connection.kubeconfig)
        steps.note(counted(len(left), "thing") if left else "nothing")
    if left:
        raise LeftoversError(
            f"stack {workspace.stack} was removed, and this was left; on AWS it would go on to cost money:\n"
            + "\n".join(f"  {one}" for one in left)
            + "\nThe program must own it (a resource of the stack), or whoever makes it must remove it."
        )
    return summary.changes


def _about(workspace: RehearsedWorkspace, connection: Connection) -> dict[str, Any]:
    """What every report of a rehearsal carries: the label, where the stand-ins are, what was only recorded."""
    from infra.rehearsal.environment import LABEL  # noqa: PLC0415
    from infra.rehearsal.releases import RECORD  # noqa: PLC0415

    try:
        releases = json_module.loads(workspace.state.path(RECORD).read_text())
    except FileNotFoundError:
        releases = {}
    recorded = {name: f"{one['chart']} {one['version']}" for name, one in releases.items()}
    built = workspace.settings.images.built
    bundles = f"{counted(len(recorded), 'Helm release')} {'was' if len(recorded) == 1 else 'were'}"
    return {
        "rehearsal": True,
        "note": LABEL + (f"; {bundles} recorded, not rendered" if recorded else "") + ("" if built else NOT_BUILT_YET),
        "aws_endpoint_url": connection.aws_endpoint_url,
        "region": connection.region,
        "account": connection.account,
        "kubeconfig": str(connection.kubeconfig),
        "helm_releases": recorded,
        "images_not_built": [] if built else ["controller"],
    }


def _print_about(result: Mapping[str, Any]) -> None:
    stdout().print(result["note"], markup=False)
    for name, release in result["helm_releases"].items():
        stdout().print(f"recorded, not rendered: Helm release {name}: {release}", markup=False)
    stdout().print(f"AWS_ENDPOINT_URL: {result['aws_endpoint_url']}", markup=False)
    stdout().print(f"kubeconfig: {result['kubeconfig']}", markup=False)


def _show_status(document: Mapping[str, Any]) -> None:
    parts = table("process", "state", "pid", "port", "memory")
    for part in document["processes"]:
        state = "ready" if part["healthy"] else "down"
        row(parts, part["name"], state, part["pid"], part["port"], f"{part['memory_mib']} MiB")
    show(parts)
    if "nodes" not in document:
        again = f"trainyard up -s {document['stack']} --rehearse"
        stderr().print(f"Not all of it runs. Repair it: {again}", markup=False)
        return
    nodes = table("node", "state", "pool", "type", "zone", "GPUs", "EFA", "pods")
    for node in document["nodes"]:
        row(nodes, *(node[name] for name in ("name", "state", "pool", "type", "zone", "gpus", "efa", "pods")))
    show(nodes)
    for pod in document["unscheduled_pods"]:
        stdout().print(f"waits for a node: {pod['pod']}: {pod['reason']}", markup=False)
    _print_about(document)
