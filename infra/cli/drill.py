"""`drill`: one fault on the local stack, on purpose, and what it cost."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any

import typer

from infra.cli import example, options
from infra.cli.console import Steps, counted, print_json, row, show, table
from infra.cli.workspace import Workspace
from infra.errors import TrainyardError, UsageError
from infra.wiring.scheduling import CAPACITY_LABEL

if TYPE_CHECKING:
    from lightkube.resources.core_v1 import Pod
    from rich.table import Table

    from infra.drill import Observer

app = typer.Typer(help="Disturb training on purpose and measure how it goes on (local stack).", no_args_is_help=True)

SPOT_NOTICE_SECONDS = 120.0
"""What AWS gives (EC2 user guide, spot interruption notices); here the longest that draining may take."""

Job = Annotated[
    str | None,
    typer.Option("--job", help="The ElasticJob to disturb; without it the one that runs, else a copy of the example."),
]
Wait = Annotated[bool, typer.Option("--wait/--no-wait", help="Watch the job to its end for the final accuracy.")]


@app.command()
def spot(
    job: Job = None,
    notice: Annotated[
        float, typer.Option(help="Seconds between the notice and the machine's end.")
    ] = SPOT_NOTICE_SECONDS,
    replace: Annotated[
        bool,
        typer.Option("--replace/--no-replace", help="Start another node afterwards, as an auto-scaling group does."),
    ] = True,
    wait: Wait = True,
    stack: options.Stack = "local",
    json: options.Json = False,
) -> None:
    """Reclaim a spot node of the running job: notice and taint first, then its pods end, then it is gone.

    Example: [bold]trainyard drill spot --json[/bold]
    """
    steps = Steps()
    workspace = _local(stack, steps)
    name = _job_to_disturb(workspace, job, steps)
    _show(reclaim_spot_node(workspace, name, steps, replace=replace, notice=notice, wait=wait), json=json)


@app.command()
def worker(job: Job = None, wait: Wait = True, stack: options.Stack = "local", json: options.Json = False) -> None:
    """Kill one training process of the running job (SIGKILL), as a crash or the kernel's OOM killer does.

    Example: [bold]trainyard drill worker --no-wait[/bold]
    """
    steps = Steps()
    workspace = _local(stack, steps)
    name = _job_to_disturb(workspace, job, steps)

    from infra.drill import now  # noqa: PLC0415
    from infra.jobs import name_of  # noqa: PLC0415
    from infra.local.pod_processes import training_process  # noqa: PLC0415

    def choose() -> str:
        return name_of(_running(workspace, name)[-1])

    def strike(victim: str) -> float:
        process = training_process(victim, workspace.state.directory)
        hit = now()
        process.send_signal(signal.SIGKILL)
        return hit

    _show(_observe(workspace, name, "worker", choose, strike, steps, wait=wait), json=json)


@app.command()
def node(job: Job = None, wait: Wait = True, stack: options.Stack = "local", json: options.Json = False) -> None:
    """End a node of the running job without a word, as a power failure does; the cluster has to notice.

    Example: [bold]trainyard drill node[/bold]
    """
    steps = Steps()
    workspace = _local(stack, steps)
    name = _job_to_disturb(workspace, job, steps)
    cluster = workspace.local_cluster()
    dead: list[str] = []
    from infra.drill import now  # noqa: PLC0415

    def choose() -> str:
        return _node(_running(workspace, name)[-1])

    def strike(victim: str) -> float:
        dead.append(victim)
        hit = now()
        cluster.kill(victim)
        return hit

    try:
        outcome = _observe(workspace, name, "node", choose, strike, steps, wait=wait)
    finally:
        for victim in dead:
            with steps.step(f"a node in place of {victim}"):
                cluster.replace(victim)
    _show(outcome, json=json)


@app.command()
def freeze(job: Job = None, wait: Wait = True, stack: options.Stack = "local", json: options.Json = False) -> None:
    """Freeze a worker pod of the running job (SIGSTOP), as a machine that hangs: open connections, no answer.

    Only its silence tells the others, so this takes as long as the heartbeat window. The pod thaws when training goes
    on without it; its launcher then finds itself evicted and joins again.

    Example: [bold]trainyard drill freeze --no-wait[/bold]
    """
    steps = Steps()
    workspace = _local(stack, steps)
    name = _job_to_disturb(workspace, job, steps)

    from infra.drill import now  # noqa: PLC0415
    from infra.jobs import name_of  # noqa: PLC0415
    from infra.local.pod_processes import frozen  # noqa: PLC0415

    def choose() -> str:
        return name_of(_running(workspace, name)[-1])

    with contextlib.ExitStack() as until_measured:

        def strike(victim: str) -> float:
            hit = now()
            until_measured.enter_context(frozen(victim, workspace.state.directory))
            return hit

        outcome = _observe(workspace, name, "freeze", choose, strike, steps, wait=wait, afterwards=until_measured.close)
    _show(outcome, json=json)


@app.command()
def etcd(job: Job = None, wait: Wait = True, stack: options.Stack = "local", json: options.Json = False) -> None:
    """Kill the etcd in which the jobs' workers meet (SIGKILL, all members); Kubernetes starts it again.

    Training should go on meanwhile, so what counts here is the longest pause between two steps.

    Example: [bold]trainyard drill etcd --json[/bold]
    """
    steps = Steps()
    workspace = _local(stack, steps)
    name = _job_to_disturb(workspace, job, steps)
    jobs = workspace.jobs()

    from infra.drill import now  # noqa: PLC0415
    from infra.jobs import name_of  # noqa: PLC0415
    from infra.local.pod_processes import kill  # noqa: PLC0415
    from infra.wiring.etcd_layout import SERVICE  # noqa: PLC0415
    from infra.wiring.naming import SYSTEM_NAMESPACE  # noqa: PLC0415

    restarts_before: dict[str, int] = {}

    def members() -> dict[str, tuple[int, bool]]:
        """Restarts of each member so far, and whether it is ready."""
        pods = jobs.pods(SYSTEM_NAMESPACE, {"app.kubernetes.io/name": SERVICE})
        statuses = {name_of(pod): (pod.status.containerStatuses or []) if pod.status else [] for pod in pods}
        return {pod: (sum(s.restartCount for s in all_), all(s.ready for s in all_)) for pod, all_ in statuses.items()}

    def choose() -> str:
        restarts_before.update({pod: restarts for pod, (restarts, _) in members().items()})
        if not restarts_before:
            raise TrainyardError(f"the stack has no etcd in namespace {SYSTEM_NAMESPACE}. See: trainyard status")
        return ", ".join(sorted(restarts_before))

    def strike(_: str) -> float:
        hit = now()
        for member in restarts_before:
            kill(member, workspace.state.directory)
        return hit

    def restored() -> bool:
        there = members()
        return all(there.get(pod, (0, False)) >= (before + 1, True) for pod, before in restarts_before.items())

    _show(_observe(workspace, name, "etcd", choose, strike, steps, wait=wait, restored=restored), json=json)


def reclaim_spot_node(
    workspace: Workspace,
    job: str,
    steps: Steps,
    *,
    replace: bool,
    notice: float = SPOT_NOTICE_SECONDS,
    wait: bool = True,
) -> dict[str, Any]:
    """Reclaim a spot node on which the job has a worker, and measure what that cost."""
    cluster = workspace.local_cluster()

    def choose() -> str:
        spot_nodes = {m.name for m in cluster.machines() if m.spec.labels.get(CAPACITY_LABEL) == "spot"}
        there = [_node(pod) for pod in _running(workspace, job) if _node(pod) in spot_nodes]
        if not there:
            raise TrainyardError(
                f"no worker of job {job} runs on a spot node (spot nodes: {', '.join(sorted(spot_nodes)) or 'none'})."
                " Give it a toleration for the taint trainyard.dev/spot, or add a spot pool to the stack."
            )
        return there[-1]

    def strike(victim: str) -> float:
        reclaimed = cluster.reclaim(victim, notice)
        if replace:
            cluster.replace(victim)
        return reclaimed.noticed.timestamp()

    return _observe(workspace, job, "spot", choose, strike, steps, wait=wait)


def _job_to_disturb(workspace: Workspace, asked: str | None, steps: Steps) -> str:
    """The job that was asked for; else the one that runs; else a copy of the example, submitted now."""
    jobs = workspace.jobs()
    states = {job["job"]: job["state"] for job in jobs.summaries()}
    if asked is not None and asked not in states:
        raise TrainyardError(f"there is no job {asked} (there: {', '.join(states) or 'none'}). Submit it first.")
    if asked is not None and states[asked] in ("Succeeded", "Failed"):
        raise TrainyardError(f"job {asked} has ended ({states[asked]}): there is nothing to disturb. Submit another.")
    living = [name for name, state in states.items() if state not in ("Succeeded", "Failed")]
    if asked is None and len(living) > 1:
        raise TrainyardError(f"several jobs run: {', '.join(living)}. Say which with --job.")
    if asked is None and not living:
        name = example.submit_another(jobs)
        steps.say(f"No job runs: submitted a copy of the example as {name}.")
        return name
    return asked or living[0]


def _observe(
    workspace: Workspace,
    job: str,
    fault: str,
    choose: Callable[[], str],
    strike: Callable[[str], float],
    steps: Steps,
    *,
    wait: bool,
    restored: Callable[[], bool] | None = None,
    afterwards: Callable[[], None] = lambda: None,
) -> dict[str, Any]:
    """Wait until the job trains, strike, and measure.

    Args:
        workspace: the stack.
        job: the job.
        fault: name of the fault.
        choose: names what is to be hit, when training is under way.
        strike: hits it; returns when that was (Unix seconds).
        steps: shows what goes on.
        wait: whether to watch the job to its end.
        restored: for a fault that should end no world: whether what was hit is there again.
        afterwards: undoes the fault when it is measured.
    """
    from infra.drill import Observer  # noqa: PLC0415

    with workspace.jobs().follow(job) as follower:
        observer = Observer(job, follower)
        with steps.step(f"job {job} training"):
            wanted = next(found["desired"] for found in workspace.jobs().summaries() if found["job"] == job)
            latest = observer.until_training(wanted)
            steps.note(f"{latest.fields['world_size']} workers")
        with steps.step(f"drill {fault}"):
            victim = choose()
            if restored is None:
                result = observer.through(fault, victim, lambda: strike(victim))
                after = f"next step after {result.seconds_to_next_step:.1f} s"
            else:
                result = observer.across(fault, victim, lambda: strike(victim), restored)
                after = f"longest pause {result.longest_pause:.1f} s"
            afterwards()
            steps.note(
                f"{victim}: {after}, {counted(result.steps_lost, 'step')} lost,"
                f" {result.world_before} -> {result.world_after} workers"
            )
        outcome = result.as_json() | {"stand_in": "local stack: pods are processes of this computer"}
        if wait:
            with steps.step(f"job {job} to its last step"):
                outcome |= _end(observer, job)
                steps.note(f"test accuracy {outcome['accuracy']}")
    return outcome


def _end(observer: Observer, job: str) -> dict[str, Any]:
    finished = observer.until_finished(example.TIMEOUT)
    if finished is None:
        raise TrainyardError(f"job {job} did not finish within {example.TIMEOUT}. Look: trainyard jobs")
    return {"accuracy": finished.fields.get("accuracy"), "loss": finished.fields.get("loss")}


def _local(stack: str, steps: Steps) -> Workspace:
    workspace = Workspace.open(stack)
    if not workspace.is_local:
        raise UsageError(f"drills disturb clusters on this computer only; stack {stack} is elsewhere")
    workspace.build_engines(steps)  # a node that is replaced needs them
    return workspace


def _running(workspace: Workspace, job: str) -> list[Pod]:
    from infra.jobs import name_of  # noqa: PLC0415

    pods = workspace.jobs().workers(job)
    running = sorted((pod for pod in pods if pod.status and pod.status.phase == "Running"), key=name_of)
    if not running:
        raise TrainyardError(f"job {job} has no running workers to disturb. See: trainyard jobs")
    return running


def _node(pod: Pod) -> str:
    return str(pod.spec.nodeName) if pod.spec else ""


def _show(outcome: dict[str, Any], *, json: bool) -> None:
    if json:
        print_json(outcome)
        return
    shown = table("", "")
    for name, value in outcome.items():
        if name != "recovery":
            row(shown, name.replace("_", " "), value)
    show(shown)
    if recovery := outcome["recovery"]:
        show(_phases(recovery))


def _phases(recovery: dict[str, Any]) -> Table:
    """Where the time went, by the launcher that was longest busy."""
    causes = [recovery["cause"], *(further["cause"] for further in recovery["further"])]
    title = f"{', then '.join(causes)}, as {recovery['host']} saw it ({recovery['world_size']} workers"
    made = table("phase", "seconds", title=f"{title}, {recovery['kept']} kept and {recovery['forked']} forked here)")
    for phase, seconds in recovery["seconds"].items():
        row(made, phase.replace("_", " "), f"{seconds:.3f}")
    made.add_section()
    row(made, "total", f"{recovery['total']:.3f}")
    return made
