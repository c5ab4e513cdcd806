"""`trainyard monitor`: Prometheus beside the local stack."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated

import typer

from infra.cli import options
from infra.cli.console import Steps, counted, print_json
from infra.cli.workspace import Workspace
from infra.errors import UsageError

if TYPE_CHECKING:
    from infra.monitoring.local import LocalPrometheus

_LOOK_SECONDS = 2.0


def register(app: typer.Typer) -> None:
    """Add this module's command."""
    app.command()(monitor)


def monitor(
    port: Annotated[
        int, typer.Option(help="Port of 127.0.0.1 on which Prometheus answers; 0: one that is free.", min=0, max=65535)
    ] = 9090,
    stack: options.Stack = "local",
    json: options.Json = False,
) -> None:
    """Run Prometheus beside the local stack until Ctrl-C, and tell of each alert.

    It gathers the metrics of the controller, etcd, launchers and workers, also of those that come later. What to ask
    for, and what alerts mean: docs/how-to/monitoring.md. With --json the document tells the address, once it answers.

    Example: [bold]trainyard monitor --port 9091[/bold]
    """
    workspace = Workspace.open(stack)
    if not workspace.is_local:
        raise UsageError(
            f"stack {stack} is on a cluster, with a Prometheus of its own (aws.monitoring.enabled). Look at it:"
            " kubectl -n trainyard-monitoring port-forward svc/kube-prometheus-stack-prometheus 9090:9090"
        )
    from infra.local import engines, ports  # noqa: PLC0415
    from infra.monitoring.local import LocalPrometheus  # noqa: PLC0415

    steps = Steps()
    jobs = workspace.jobs()
    pods = jobs.pods("*", {})
    if port == 0:
        (port,) = ports.choose(f"prometheus of {workspace.state_directory}", 1)
    elif not ports.is_free(port):
        raise UsageError(f"port {port} of 127.0.0.1 is taken. Choose another one with --port, or --port 0")
    with steps.step("prometheus"):
        program = engines.ensure(["prometheus"])["prometheus"].path
    with LocalPrometheus(program, workspace.state_directory / "monitoring", port) as prometheus:
        found = prometheus.find(pods)
        steps.say(f"{prometheus.url} gathers from {counted(found, 'endpoint')}; Ctrl-C ends it")
        if json:
            print_json({"url": prometheus.url, "endpoints": found})
        try:
            firing: dict[str, str] = {}
            while True:
                time.sleep(_LOOK_SECONDS)
                prometheus.find(jobs.pods("*", {}))
                firing = _tell(prometheus, firing, steps)
        except KeyboardInterrupt:
            steps.say("ended")


def _tell(prometheus: LocalPrometheus, known: dict[str, str], steps: Steps) -> dict[str, str]:
    """Says what has begun and what is over since the last look."""
    now = prometheus.alerts()
    for key in now.keys() - known.keys():
        steps.say(f"alert: {now[key]}")
    for key in known.keys() - now.keys():
        steps.say(f"over: {known[key]}")
    return now
