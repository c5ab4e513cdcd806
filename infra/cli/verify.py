"""`verify` and `drift`: is the stack what its settings say, and is it still?"""

from __future__ import annotations

import dataclasses
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from infra.cli import options
from infra.cli.console import Steps, print_json, row, show, stdout, table
from infra.cli.workspace import RehearsedWorkspace, Workspace
from infra.clusters import CHECKOUT
from infra.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from infra.diagnose.finding import Finding
    from infra.jobs import Jobs
    from infra.verify.expected import Expected
    from infra.verify.measure import Group, Measurement
    from infra.verify.result import Phase, Result
    from infra.verify.snapshot import Snapshot

_MARKS = {"passed": "green", "failed": "red", "unknown": "yellow", "skipped": "yellow", "not run": "dim"}
_REHEARSED = "rehearsal: machines are simulated and run nothing; what was asked of AWS and of the cluster was checked"


def register(app: typer.Typer) -> None:
    """Add this module's commands."""
    app.command()(verify)
    app.command()(drift)


def verify(
    stack: options.Stack = "local",
    phase: Annotated[
        list[str] | None,
        typer.Option("--phase", help="readiness, deployment, fabric or performance; several times; absent: all."),
    ] = None,
    pool: Annotated[
        list[str] | None, typer.Option("--pool", help="Fabric and performance of this pool only; several times.")
    ] = None,
    nodes: Annotated[
        int | None, typer.Option("--nodes", min=1, help="Machines of the all-reduce; absent: all that are there.")
    ] = None,
    image: Annotated[str | None, typer.Option("--image", help="Training image; absent: the stack's own.")] = None,
    timeout: Annotated[int, typer.Option(min=10, help="Give a measurement up after so many seconds.")] = 900,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="Folder of the evidence; absent: build/verify.")
    ] = None,
    rehearse: options.Rehearse = False,
    json: options.Json = False,
) -> None:
    """Is the stack what its settings say? Machines, labels, taints, devices, parts, then an all-reduce over each pool.

    Every expected number comes from the stack's file and the catalogue. Only what was asked for and passed is a pass:
    exit code 1 where a check fails, has nothing to look at, or no floor to hold a figure to. What was seen is written
    to a file, with which `trainyard drift` compares later. On the local stack the performance is looked at only if
    `--phase performance` asks for it.

    Example: [bold]trainyard verify -s prod --phase readiness --phase deployment[/bold]
    """
    from infra.verify import checks, evidence, snapshot  # noqa: PLC0415
    from infra.verify.expected import expected  # noqa: PLC0415
    from infra.verify.result import PHASES, Result, passed  # noqa: PLC0415

    workspace = RehearsedWorkspace.open(stack) if rehearse else Workspace.open(stack)
    asked = _asked(phase, PHASES, local=workspace.is_local)
    if not rehearse:
        workspace.require_outside_rehearsal()
    jobs, steps = workspace.jobs(), Steps()
    wanted = expected(workspace.settings, stack)
    if rehearse:  # the stand-in for AWS keeps no add-ons that could be asked for
        wanted = dataclasses.replace(wanted, addons={})
    with steps.step("looking at the cluster"):
        seen = snapshot.read(jobs, wanted, _eks(workspace, wanted) if "deployment" in asked else None)
    results: list[Result] = []
    if "readiness" in asked:
        results += checks.readiness(wanted, seen, stack)
    if "deployment" in asked:
        results += checks.deployment(wanted, seen, stack)
        if rehearse:
            results.append(Result("deployment", "add-ons", "not run", "a rehearsal's stand-in for AWS tells of none"))
    made: list[Measurement] = []
    if {"fabric", "performance"} & set(asked):
        measured = _rehearsed(asked) if rehearse else None
        if measured is None:
            chosen = Wish(tuple(pool or ()), nodes, image, timedelta(seconds=timeout))
            measured, made = _measured(workspace, jobs, wanted, seen, chosen, steps)
        # The figures need the transport, so a run for them says of both what it knows.
        results += [result for result in measured if result.phase in asked or result.phase == "fabric"]
    results += [
        Result(each, "all of it", "not run", _why(each, phase, workspace)) for each in PHASES if each not in asked
    ]
    standing = _stand_in(workspace, rehearse=rehearse)
    record = evidence.Evidence(
        stack=stack,
        time=evidence.now(),
        wanted=wanted,
        seen=seen,
        results=results,
        measurements=made,
        hashes=evidence.hashes_of(CHECKOUT, stack),
        commit=evidence.commit_of(CHECKOUT),
        stand_in=standing,
    )
    paths = record.write(output or CHECKOUT / evidence.FOLDER)
    if json:
        print_json({**record.document(), "evidence": [str(path) for path in paths]})
    else:
        _show(results, standing)
        stdout().print(f"evidence: {paths[0]} and {paths[1].name}", markup=False)
    if not passed(results):
        raise typer.Exit(1)


def drift(
    stack: options.Stack = "local",
    baseline: Annotated[
        Path | None, typer.Option("--baseline", help="Evidence to compare with; absent: the newest of build/verify.")
    ] = None,
    rehearse: options.Rehearse = False,
    json: options.Json = False,
) -> None:
    """What has changed on the machines since `trainyard verify` recorded them, that a refresh of Pulumi cannot see.

    Kernel, driver, kubelet, runtime, labels, taints and what they offer, by machine; and what differs from the stack's
    file. Exit code 1 where anything does. A machine that came or went in a pool that scales is told, and is no drift.

    Example: [bold]trainyard drift -s prod --json[/bold]
    """
    from infra.verify import checks, evidence, snapshot  # noqa: PLC0415
    from infra.verify.drift import compare  # noqa: PLC0415
    from infra.verify.expected import expected  # noqa: PLC0415

    workspace = RehearsedWorkspace.open(stack) if rehearse else Workspace.open(stack)
    if not rehearse:
        workspace.require_outside_rehearsal()
    path = baseline or evidence.latest(CHECKOUT / evidence.FOLDER, stack)
    record = evidence.read(path, stack)
    wanted = expected(workspace.settings, stack)
    seen = snapshot.read_nodes(workspace.jobs())
    nodes = {snapshot.name_of(node): snapshot.record_of(node) for node in seen.nodes}
    fixed = frozenset(machines.pool for machines in wanted.machines if machines.least == machines.most)
    found = compare(record["nodes"], nodes, (str(record["versions"]["kubernetes"]), seen.version), fixed)
    judged = [finding for result in checks.readiness(wanted, seen, stack) for finding in result.findings]
    findings = [*(change.finding() for change in found.changed), *judged]
    if json:
        from dataclasses import asdict  # noqa: PLC0415

        document: dict[str, Any] = {"stack": stack, "baseline": str(path), "recorded": record["time"], **asdict(found)}
        print_json({**document, "findings": [asdict(finding) for finding in judged], "drift": bool(findings)})
    else:
        for what, names in (("new", found.new), ("gone", found.gone)):
            if names:
                stdout().print(f"{what} since {record['time']}: {', '.join(names)}", markup=False)
        for finding in findings:
            show_finding(finding)
        if not findings:
            stdout().print(f"no drift since {record['time']}: {len(nodes)} machines, {path}", markup=False)
    if findings:
        raise typer.Exit(1)


class Wish:
    """What a measurement shall be."""

    def __init__(self, pools: tuple[str, ...], nodes: int | None, image: str | None, timeout: timedelta) -> None:
        self.pools, self.nodes, self.image, self.timeout = pools, nodes, image, timeout


def chosen_groups(workspace: Workspace, wanted: Expected, pools: Sequence[str]) -> list[Group]:
    """The groups of machines over which something is measured.

    Raises:
        UsageError: there is no such pool, or the settings name no machines.
    """
    from infra.verify.measure import groups  # noqa: PLC0415

    settings = workspace.settings
    known = [pool.name for pool in (settings.aws.node_pools if settings.aws else settings.node_pools)]
    if strange := [name for name in pools if name not in known]:
        raise UsageError(f"stack {workspace.stack} has no pool {strange[0]!r}; its pools: {', '.join(known) or 'none'}")
    if pools and settings.aws is None:
        settings = settings.model_copy(
            update={"node_pools": tuple(pool for pool in settings.node_pools if pool.name in pools)}
        )
    return [
        group for group in groups(settings, wanted) if not pools or {pool.name for pool in group.pools} & set(pools)
    ]


def run_measurement(
    workspace: Workspace, jobs: Jobs, group: Group, nodes: int, wish: Wish, steps: Steps, **more: Any
) -> Measurement:
    """One job over one group of machines, made like a training job, and removed again."""
    from infra.cli.template import ETCD, built_image, queue_of  # noqa: PLC0415
    from infra.verify.fabric import sizes_of  # noqa: PLC0415
    from infra.verify.measure import SIZES, check_job, measure  # noqa: PLC0415
    from infra.wiring.script_job import LOCAL_IMAGE  # noqa: PLC0415

    aws, image, queue = workspace.settings.aws, wish.image or LOCAL_IMAGE, None
    if aws is not None:
        pool = next(each for each in aws.node_pools if each.name == group.name)
        image, queue = wish.image or built_image(workspace, pool), queue_of(aws, pool)
    sizes = more.pop("sizes", None) or sizes_of(group, nodes, SIZES)
    job = check_job(
        group,
        nodes=nodes,
        image=image,
        namespace=jobs.namespace,
        rdzv_endpoint=ETCD,
        queue=queue,
        sizes=sizes,
        timeout=wish.timeout,
        **more,
    )
    with steps.step(f"all-reduce over {nodes} machines of {group.name}"):
        return measure(jobs, job, wish.timeout, lambda name, sentence: steps.note(f"{name}: {sentence}"))


def _measured(
    workspace: Workspace, jobs: Jobs, wanted: Expected, seen: Snapshot, wish: Wish, steps: Steps
) -> tuple[list[Result], list[Measurement]]:
    from infra.verify import fabric  # noqa: PLC0415
    from infra.verify.result import Result  # noqa: PLC0415
    from infra.verify.snapshot import by_pool  # noqa: PLC0415

    there, results, measurements = by_pool(seen.nodes), list[Result](), list[Measurement]()
    for group in chosen_groups(workspace, wanted, wish.pools):
        nodes = wish.nodes or max(group.least, sum(len(there.get(pool.name, ())) for pool in group.pools))
        if (none := fabric.not_measured(group, nodes)) is not None:
            results += [none, Result("performance", f"bandwidth of {group.name}", none.verdict, none.message)]
            continue
        made = run_measurement(workspace, jobs, group, nodes, wish, steps)
        transport = fabric.fabric(group, made)
        results += [transport, fabric.performance(group, made, transport)]
        measurements.append(made)
    if not results:
        why = "the settings name no machines that could exchange messages"
        results = [Result("fabric", "all-reduce", "not run", why), Result("performance", "bandwidth", "not run", why)]
    return results, measurements


def _rehearsed(asked: Sequence[Phase]) -> list[Result]:
    from infra.verify.result import Result  # noqa: PLC0415

    why = "simulated machines run no job: ask for the other phases alone"
    return [Result(each, "all of it", "skipped", why) for each in asked if each in ("fabric", "performance")]


def _asked(given: list[str] | None, phases: tuple[Phase, ...], *, local: bool) -> tuple[Phase, ...]:
    if not given:
        # Figures of processes on one computer say nothing, and there is no floor for them.
        return tuple(phase for phase in phases if not (local and phase == "performance"))
    if strange := [each for each in given if each not in phases]:
        raise UsageError(f"there is no phase {strange[0]!r}: {', '.join(phases)}")
    return tuple(phase for phase in phases if phase in given)


def _why(phase: Phase, given: list[str] | None, workspace: Workspace) -> str:
    if not given and phase == "performance" and workspace.is_local:
        return "figures of processes on one computer say nothing: --phase performance shows them"
    return "not asked for"


def _stand_in(workspace: Workspace, *, rehearse: bool) -> str:
    from infra.verify.measure import STAND_IN  # noqa: PLC0415

    return _REHEARSED if rehearse else STAND_IN if workspace.is_local else ""


def _eks(workspace: Workspace, wanted: Expected) -> Any:
    """A client of EKS; None where there is nothing to ask it."""
    if not wanted.addons:
        return None
    import boto3  # noqa: PLC0415

    workspace.require_credentials()
    return boto3.session.Session(region_name=wanted.region).client("eks")


def _show(results: Sequence[Result], standing: str) -> None:
    from rich.text import Text  # noqa: PLC0415

    shown = table("phase", "check", "verdict", "coverage", "message")
    for result in results:
        verdict = Text(result.verdict, style=_MARKS[result.verdict])
        row(shown, result.phase, result.check, verdict, result.coverage, result.message)
    show(shown)
    for result in results:
        for finding in result.findings:
            show_finding(finding)
    if standing:
        stdout().print(standing, markup=False)


def show_finding(finding: Finding) -> None:
    """What is wrong, what says so, and what to do, as lines."""
    stdout().print(f"- {finding.title}", markup=False)
    for each in (*(one for one in finding.evidence if one), f"What to do: {finding.remedy}"):
        stdout().print(f"    {each}", markup=False)
    if finding.command:
        stdout().print(f"    {finding.command}", markup=False)
