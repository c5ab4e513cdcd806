"""`trainyard cost`: what a stack costs, and what a change of it would."""

from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from infra.cli import options
from infra.cli.console import counted, print_json, row, show, stderr, stdout, table
from infra.cli.files import write

if TYPE_CHECKING:
    from infra.report.cost import Cost, Delta, Part, Total, Usd

FROM = "the stack's program, run without an engine and without AWS"
"""Where the figures come from, for people."""


def register(app: typer.Typer) -> None:
    """Add this module's command."""
    app.command()(cost)


def cost(
    stack: options.Stack = "local",
    against: Annotated[
        str | None,
        typer.Option(
            "--against", metavar="REVISION", help="Compare with the stack at a revision of git: main, HEAD~1."
        ),
    ] = None,
    utilisation: Annotated[
        str,
        typer.Option("--utilisation", help="Share of the time, 0 to 1, in which pools run all machines they may have."),
    ] = "0.5",
    svg: Annotated[Path | None, typer.Option("--svg", metavar="FILE", help="Write a plot of it.")] = None,
    json: options.Json = False,
) -> None:
    """Say what a stack costs: each hour with the fewest and the most machines, and a month; without an account.

    The figures come from the resources that the program asks for and from the price table, whose dates are shown.
    What a stack that is up has beside that, only a preview sees.

    Example: [bold]trainyard cost -s prod[/bold], [bold]trainyard cost -s prod --against main --svg cost.svg[/bold]
    """
    from infra.cli.workspace import Workspace  # noqa: PLC0415
    from infra.report import cost as reckoning  # noqa: PLC0415
    from infra.report.program import at_revision, resources_of  # noqa: PLC0415

    share = _share(utilisation)
    workspace = Workspace.open(stack)
    target = workspace.settings.target
    if target != "aws":
        _nothing(stack, target, json=json)
        return
    after = reckoning.cost(resources_of(stack), utilisation=share)
    difference = None
    if against is not None:
        with at_revision(against, stack) as folder:
            before = reckoning.cost(resources_of(stack, folder), utilisation=share)
        difference = reckoning.delta(before, after)
    if svg is not None:
        from infra.report import plot  # noqa: PLC0415

        other = difference.before if difference else None
        write(svg, plot.svg(after, stack=stack, before=other, against=against or ""))
    if json:
        print_json(_document(stack, after, difference, against))
        return
    _show(after)
    if difference is not None and against is not None:
        _show_difference(difference, against)
    _legend(stack, after, difference)
    if svg is not None:
        stderr().print(f"Written: {svg}", markup=False)


def _share(text: str) -> Decimal:
    from infra.errors import UsageError  # noqa: PLC0415

    try:
        share = Decimal(text)
    except InvalidOperation:
        share = Decimal("nan")
    if share.is_nan() or not 0 <= share <= 1:
        raise UsageError(f"--utilisation is a share of the time, from 0 to 1, and not {text!r}: 0.5 is half of it")
    return share


def _nothing(stack: str, target: str, *, json: bool) -> None:
    """Stacks that have nothing of AWS."""
    why = (
        f"Stack {stack} runs on this computer and costs nothing."
        if target == "local"
        else f"Stack {stack} runs in a cluster that is there already: what that costs is not in the stack."
    )
    if json:
        print_json({"stack": stack, "target": target, "cost": None, "note": why})
    else:
        stdout().print(why, markup=False)


def _show(found: Cost) -> None:
    from infra.report.cost import Pool  # noqa: PLC0415
    from infra.report.escape import plain  # noqa: PLC0415

    shown = table("part", "what", "USD/h min", "USD/h max", "USD/GPU-h", "USD/month", "prices of")
    for part in found.parts:
        per_gpu = _usd(part.per_gpu_hour, part.mark) if isinstance(part, Pool) and part.gpus else ""
        low, high, month = (_usd(amount, part.mark) for amount in (part.at_min, part.at_max, part.month))
        row(shown, plain(part.name), plain(part.reckoned), low, high, per_gpu, month, part.as_of or "")
    show(shown)
    for name, total in (
        ("Each hour, fewest machines", found.at_min),
        ("Each hour, most machines", found.at_max),
        ("Each GPU and hour, most machines", found.per_gpu_hour),
        (f"A month at {_percent(found)} utilisation", found.month),
    ):
        if total is not None:
            stdout().print(f"{name}: {_total(total)}", markup=False)
    stdout().print(_carbon(found.region), markup=False)


def _carbon(region: str | None) -> str:
    """What electricity is made with there, and where with less."""
    from infra.catalog.carbon import grid, grids  # noqa: PLC0415
    from infra.report.escape import plain  # noqa: PLC0415

    least = ", ".join(f"{one.region} {one.grams_per_kwh:.0f}" for one in list(grids().values())[:3])
    found = grid(region)
    here = f"{found.grams_per_kwh:.0f} g of CO2e a kWh, published {found.published}" if found else "unknown"
    return f"Electricity in {plain(region or 'no region')}: {here} (least: {least})"


def _show_difference(difference: Delta, against: str) -> None:
    from infra.report.escape import plain  # noqa: PLC0415

    if not difference.changes:
        stdout().print(f"Against {against}: nothing costs more or less.", markup=False)
        return
    shown = table("part", f"USD/month at {plain(against)}", "now", "difference")
    for change in difference.changes:
        before, after = _side(change.before), _side(change.after)
        row(shown, plain(change.name), before, after, _signed(change.month, change.mark))
    show(shown)
    for name, total in (
        ("Each hour, fewest machines", difference.at_min),
        ("Each hour, most machines", difference.at_max),
        ("A month", difference.month),
    ):
        sign = f", without {', '.join(map(plain, total.without))}" if total.without else ""
        told = "unknown" if total.all_unknown else f"{_signed(total.usd)} USD{sign}"
        stdout().print(f"{name}, against {plain(against)}: {told}", markup=False)


def _legend(stack: str, found: Cost, difference: Delta | None) -> None:
    """What the figures are worth: on stderr, beside the result."""
    from infra.report.cost import UNCONFIRMED  # noqa: PLC0415
    from infra.report.escape import plain  # noqa: PLC0415

    said = stderr()
    for part in found.parts:
        if part.note:
            said.print(f"{plain(part.name)}: {plain(part.note, 200)}.", markup=False)
    if found.not_counted:
        listed = "; ".join(f"{plain(one.what)} ({plain(one.reason)})" for one in found.not_counted)
        said.print(f"Not counted: {listed}.", markup=False)
    marks = [part.mark for part in found.parts] + [change.mark for change in (difference.changes if difference else ())]
    if any(marks):
        said.print(f"{UNCONFIRMED} behind a figure: no price list of AWS was seen for it.", markup=False)
    dates = f" of {found.dates[0]} to {found.dates[-1]}" if found.dates else ""
    said.print(
        f"Resources: {FROM}. Prices: the table{dates}, {found.region or 'no region'}, without tax.", markup=False
    )
    if warning := found.stale(datetime.now(UTC).date()):
        said.print(f"Old: {warning}", markup=False)
    said.print(f"A picture of it: trainyard diagram -s {stack}", markup=False)


def _document(stack: str, after: Cost, difference: Delta | None, against: str | None) -> dict[str, Any]:
    from infra.catalog.carbon import grid  # noqa: PLC0415
    from infra.report.cost import document, figures  # noqa: PLC0415

    told: dict[str, Any] = {"stack": stack, "target": "aws", "resources_from": "program", "cost": document(after)}
    electricity = grid(after.region)
    told["carbon"] = electricity and {
        "grams_per_kwh": f"{electricity.grams_per_kwh:f}",
        "published": electricity.published,
        "source": electricity.source,
    }
    told["stale"] = after.stale(datetime.now(UTC).date())
    if difference is not None:
        months = difference.month
        told["against"] = {
            "revision": against,
            "cost": document(difference.before),
            "usd_per_month_difference": None
            if months.all_unknown
            else {**figures(months.usd), "without": list(months.without)},
            "changes": [
                {
                    "name": change.name,
                    "usd_per_month_difference": None if change.month is None else figures(change.month),
                }
                for change in difference.changes
            ],
        }
    return told


def _usd(amount: Usd | None, mark: str) -> str:
    if amount is None:
        return "unknown"
    return ("<0.01" if amount.high > 0 and amount.shown() == "0.00" else amount.shown()) + mark


def _side(part: Part | None) -> str:
    return "-" if part is None else _usd(part.month, part.mark)


def _signed(amount: Usd | None, mark: str = "") -> str:
    return "unknown" if amount is None else amount.signed() + mark


def _total(total: Total) -> str:
    from infra.report.escape import plain  # noqa: PLC0415

    if total.all_unknown:
        return f"unknown ({counted(len(total.without), 'part')} without a price)"
    if total.without:
        return f">= {total.usd.low:,.2f} USD, without {', '.join(map(plain, total.without))}"
    return f"{total.usd.shown()} USD"


def _percent(found: Cost) -> str:
    return f"{(found.utilisation * 100).normalize():f} %"
