"""`trainyard simulate`: what a job would take and cost on spot machines."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from infra.cli import options
from infra.cli.console import counted, print_json, row, show, stderr, table
from infra.cli.files import write

if TYPE_CHECKING:
    from infra.simulation.parameters import Parameters
    from infra.simulation.policies import Market, Result


def register(app: typer.Typer) -> None:
    """Add this module's command."""
    app.command()(simulate)


def simulate(
    traces: Annotated[
        list[str] | None,
        typer.Option("--trace", metavar="FILE", help="Spot availability; several: machines of several kinds."),
    ] = None,
    types: Annotated[
        list[str] | None,
        typer.Option("--type", metavar="TYPE", help="Instance type of each trace, for its prices; in their order."),
    ] = None,
    region: Annotated[str | None, typer.Option("--region", help="Whose prices.")] = None,
    job: Annotated[Path | None, typer.Option("--job", metavar="FILE", help="The job's parameters, YAML.")] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="One parameter: steps=10000, recovery.join=2."),
    ] = None,
    svg: Annotated[Path | None, typer.Option("--svg", metavar="FILE", help="Write a plot of it.")] = None,
    json: options.Json = False,
) -> None:
    """Replay spot availability against a job: time, cost and goodput on demand, on spot, and on both.

    Nothing is started and no account is asked. What the parameters are: docs/how-to/simulate.md.

    Example: [bold]trainyard simulate --trace p3.csv --type g6e.xlarge --set steps=100000 --set stepSeconds=0.8
    --set maxWorkers=16[/bold]
    """
    from infra.errors import UsageError  # noqa: PLC0415
    from infra.simulation import policies  # noqa: PLC0415
    from infra.simulation.parameters import load  # noqa: PLC0415

    if types and len(types) > len(traces or ()):
        raise UsageError(f"--type names {counted(len(types), 'type')} for {counted(len(traces or ()), 'trace')}")
    named = [*(types or ()), *[None] * (len(traces or ()) - len(types or ()))]
    pools = [{"trace": trace, "type": name} for trace, name in zip(traces or (), named, strict=True)]
    parameters = load(job, settings or (), pools=pools or None, region=region)
    found = policies.market(parameters)
    results = policies.compare(parameters, found)
    if svg is not None:
        from infra.simulation import plot  # noqa: PLC0415

        write(svg, plot.svg(results, steps=parameters.steps))
    if json:
        print_json(policies.document(parameters, found, results))
    else:
        _show(results)
        _legend(parameters, found, results)
        if svg is not None:
            stderr().print(f"Written: {svg}", markup=False)
    if not any(result.outcome.is_done for result in results):
        stderr().print(f"With no policy the job is done within {parameters.most_days:g} days.", markup=False)
        raise typer.Exit(1)


def _show(results: list[Result]) -> None:
    from infra.report.escape import plain  # noqa: PLC0415

    shown = table("policy", "time", "USD", "goodput", "workers", "lost", "made again", "where the rest went")
    for result in results:
        outcome = result.outcome
        causes = ", ".join(
            f"{cause} {seconds / outcome.seconds:.1%}"
            for cause, seconds in list(outcome.losses.items())[:3]
            if seconds / outcome.seconds >= 0.0005
        )
        row(
            shown,
            plain(result.policy, 60),
            _time(outcome.seconds) if outcome.is_done else f"NOT DONE in {_time(outcome.seconds)}",
            plain(result.cost.shown(), 60),
            f"{outcome.goodput:.1%}",
            f"{outcome.mean_workers:.1f}",
            outcome.reclaimed,
            _time(outcome.losses.get("repeated", 0.0)),
            causes,
        )
    show(shown)


def _legend(parameters: Parameters, found: Market, results: list[Result]) -> None:
    from infra.report.escape import plain  # noqa: PLC0415

    said = stderr()
    longest = max(result.outcome.seconds for result in results)
    for pool in found.pools:
        again = f", used {longest / pool.trace.seconds:.1f} times in a row" if longest > pool.trace.seconds else ""
        said.print(
            f"{plain(pool.name)}: {_time(pool.trace.seconds)} with {pool.trace.mean:.1f} of {pool.trace.most} machines,"
            f" {pool.trace.lost} lost{again}.",
            markup=False,
        )
    if found.on_demand is None or any(pool.usd_per_hour is None for pool in found.pools):
        said.print(
            f"Prices are known of types that the catalogue has in {plain(parameters.region)} (trainyard gpus): --type;"
            " or onDemandUsdPerHour, and spotUsdPerHour of each pool.",
            markup=False,
        )


def _time(seconds: float) -> str:
    """`1 d 02:03:04`, as people read it."""
    whole = timedelta(seconds=round(seconds))
    return f"{whole.days} d {timedelta(seconds=whole.seconds)}" if whole.days else str(whole)
