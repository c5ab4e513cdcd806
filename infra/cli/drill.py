"""`drill`: one fault on the local stack, on purpose, and what it cost."""

from __future__ import annotations

import signal
from collections.abc import Callable
from datetime import timedelta
from typing import TYPE_CHECKING, Annotated, Any

import typer

from infra.cli import options
from infra.cli.console import Steps, print_json, stdout, table
from infra.cli.workspace import Workspace
from infra.errors import TrainyardError

if TYPE_CHECKING:
    import psutil
    from lightkube.resources.core_v1 import Pod

    from infra.drill import Observer

app = typer.Typer(help="Disturb training on purpose and measure how it goes on (local stack).", no_args_is_help=True)

JOB_ENDS = timedelta(minutes=10)
SPOT_NOTICE_SECONDS = 120.0
"""What AWS gives (EC2 user guide, spot interruption notices); here the longest that draining may take."""

Job = Annotated[str, typer.Option("--job", help="The ElasticJob to disturb.")]
Wait = Annotated[bool, typer.Option("--wait/--no-wait", help="Watch the job to its end for the final accuracy.")]


@app.command()
def spot(
    job: Job = "digits",
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
    steps = Steps(quiet=json)
    workspace = _local(stack, steps)
    _show(reclaim_spot_node(workspace, job, steps, replace=replace, notice=notice, wait=wait), json=json)


@app.command()
def worker(job: Job = "digits", wait: Wait = True, stack: options.Stack = "local", json: options.Json = False) -> None:
    """Kill one training process of the running job (SIGKILL), as a crash or the kernel's OOM killer does.

    Example: [bold]trainyard drill worker --no-wait[/bold]
    """
    steps = Steps(quiet=json)
    workspace = _local(stack, steps)
    jobs = workspace.jobs()
    pods = _running(jobs.workers(job), job)
    victim = _name(pods[-1])

    def inject() -> float:
        from infra.drill import now  # noqa: PLC0415

        process = training_process(victim)
        at = now()
        process.send_signal(signal.SIGKILL)
        return at

    _show(_observe(workspace, job, "worker", victim, inject, steps, wait=wait), json=json)


@app.command()
def node(job: Job = "digits", wait: Wait = True, stack: options.Stack = "local", json: options.Json = False) -> None:
    """End a node of the running job without a word, as a power failure does; the cluster has to notice.

    Example: [bold]trainyard drill node[/bold]
    """
    steps = Steps(quiet=json)
    workspace = _local(stack, steps)
    cluster = workspace.local_cluster()
    pods = _running(workspace.jobs().workers(job), job)
    victim = _node(pods[-1])

    def inject() -> float:
        from infra.drill import now  # noqa: PLC0415

        at = now()
        cluster.kill(victim)
        return at

    outcome = _observe(workspace, job, "node", victim, inject, steps, wait=wait)
    with steps.step(f"a node in place of {victim}"):
        cluster.replace(victim)
    _show(outcome, json=json)


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
    victim = ""

    def inject() -> float:
        reclaimed = cluster.reclaim(victim, notice)
        if replace:
            cluster.replace(victim)
        return reclaimed.noticed.timestamp()

    def choose() -> str:
        nonlocal victim
        spot_nodes = {m.name for m in cluster.machines() if m.spec.labels.get("trainyard.dev/capacity") == "spot"}
        there = [_node(pod) for pod in _running(workspace.jobs().workers(job), job) if _node(pod) in spot_nodes]
        if not there:
            raise TrainyardError(
                f"no worker of job {job} runs on a spot node (spot nodes: {', '.join(sorted(spot_nodes)) or 'none'})."
                " Give it a toleration for the taint trainyard.dev/spot, or add a spot pool to the stack."
            )
        victim = there[-1]
        return victim

    return _observe(workspace, job, "spot", choose, inject, steps, wait=wait)


def training_process(pod: str) -> psutil.Process:
    """The training process in a worker pod of this computer.

    Raises:
        TrainyardError: there is none.
    """
    import psutil  # noqa: PLC0415

    for process in psutil.process_iter():
        try:
            # The launcher names forked workers `rank-N`; those that it spawns have their rank in the environment.
            environment = process.environ()
            trains = process.name().startswith("rank-") or "LOCAL_RANK" in environment
        except psutil.Error:
            continue
        if trains and environment.get("HOSTNAME") == pod:
            return process
    raise TrainyardError(f"pod {pod} has no training process on this computer: it may just be starting. Try again.")


def _observe(
    workspace: Workspace,
    job: str,
    fault: str,
    victim: str | Callable[[], str],
    inject: Callable[[], float],
    steps: Steps,
    *,
    wait: bool,
) -> dict[str, Any]:
    from infra.drill import Observer  # noqa: PLC0415

    jobs = workspace.jobs()
    if jobs.get(job) is None:
        raise TrainyardError(f"there is no job {job}. Submit one: trainyard submit training/examples/digits.yaml")
    with jobs.follow(job) as follower:
        observer = Observer(job, follower)
        with steps.step(f"job {job} training"):
            latest = observer.until_training()
            steps.note(f"{latest.fields['world_size']} workers")
        with steps.step(f"drill {fault}"):
            hit = victim() if callable(victim) else victim
            result = observer.through(fault, hit, inject)
            steps.note(
                f"{hit}: next step after {result.seconds_to_next_step:.1f} s, {result.steps_lost} steps lost,"
                f" {result.world_before} -> {result.world_after} workers"
            )
        outcome = result.as_json() | {"stand_in": "local stack: pods are processes of this computer"}
        if wait:
            with steps.step(f"job {job} to its last step"):
                outcome |= _end(observer)
                steps.note(f"test accuracy {outcome.get('accuracy')}")
    return outcome


def _end(observer: Observer) -> dict[str, Any]:
    finished = observer.until_finished(JOB_ENDS)
    if finished is None:
        raise TrainyardError(
            f"the job did not finish within {JOB_ENDS}. Look: trainyard jobs; kubectl describe elasticjob"
        )
    return {"accuracy": finished.fields.get("accuracy"), "loss": finished.fields.get("loss")}


def _local(stack: str, steps: Steps) -> Workspace:
    workspace = Workspace.open(stack)
    if not workspace.is_local:
        raise TrainyardError(f"drills disturb clusters on this computer only; stack {stack} is elsewhere")
    workspace.build_engines(steps)  # a node that is replaced needs them
    return workspace


def _running(pods: list[Pod], job: str) -> list[Pod]:
    running = sorted((pod for pod in pods if pod.status and pod.status.phase == "Running"), key=_name)
    if not running:
        raise TrainyardError(f"job {job} has no running workers to disturb. See: trainyard jobs")
    return running


def _name(pod: Pod) -> str:
    return str(pod.metadata.name) if pod.metadata else ""


def _node(pod: Pod) -> str:
    return str(pod.spec.nodeName) if pod.spec else ""


def _show(outcome: dict[str, Any], *, json: bool) -> None:
    if json:
        print_json(outcome)
        return
    shown = table("", "")
    for name, value in outcome.items():
        shown.add_row(name.replace("_", " "), str(value))
    stdout().print(shown)
