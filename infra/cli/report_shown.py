"""A report about a change on a terminal, or in a log: tables as everywhere in the command, colours where they show."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection

from infra.cli.console import counted, row, show, stderr, stdout, table
from infra.report.changes import Change, said
from infra.report.escape import plain
from infra.report.model import PoolRow, Report
from infra.report.pools import Pool
from infra.report.preview import name_of

_STYLES = {"replace": "bold red", "delete": "bold red", "update": "yellow", "create": "green"}
_VALUE = 80
_REASONS = 4


def show_report(report: Report, on: Collection[str], *, errors: bool = True) -> None:
    """Print a report: results to stdout, warnings to stderr.

    Args:
        report: it.
        on: what a change is refused for.
        errors: with what went wrong; without where that is told by itself.
    """
    _show_changes(report)
    _show_pools(report)
    _show_cost(report)
    _show_moves(report)
    _show_policies(report)
    for diagnostic in report.preview.diagnostics:
        if diagnostic.severity == "error" and not errors:
            continue
        stderr().print(f"{diagnostic.severity}: {_lines(diagnostic.message)}", markup=False)
    for sentence in (*report.warnings, report.old_prices, report.note):
        if sentence:
            stderr().print(plain(sentence, None), markup=False)
    stdout().print(summary(report), markup=False)
    for failure in report.failures:
        word = "refused" if failure.kind in on else "not refused because of --fail-on"
        stdout().print(f"{word}: {plain(failure.sentence, None)}", markup=False)


def summary(report: Report) -> str:
    """`2 to replace, 1 to create, 140 stay as they are`."""
    counts = report.preview.counts()
    told = [f"{counts[op]} to {op}" for op in ("replace", "delete", "update", "create", "import") if counts.get(op)]
    stays = sum(counts.get(op, 0) for op in ("same", "read", "refresh"))
    if not told:
        return f"no changes ({counted(stays, 'resource')})" if report.preview.complete else "no change is known"
    return ", ".join([*told, *([f"{stays} {'stays' if stays == 1 else 'stay'}"] if stays else [])])


def _show_changes(report: Report) -> None:
    from rich.text import Text  # noqa: PLC0415

    shown = table("operation", "resource", "name", "because of")
    for change in report.changes:
        style = _STYLES.get(change.op, "")
        row(shown, Text(change.op, style), plain(change.type), Text(plain(change.name), style), _because(change))
    if report.changes:
        show(shown)


def _because(change: Change) -> str:
    wanted = change.reasons if change.op == "replace" and change.reasons else change.fields
    told = [f"{plain(one.path)}: {_value(one.old)} -> {_value(one.new)}" for one in wanted[:_REASONS]]
    if len(wanted) > _REASONS:
        told.append(f"and {len(wanted) - _REASONS} more")
    notes = [note for note in ("protected" if change.protected else "", change.loses or change.interrupts) if note]
    return "; ".join([*(f"! {note}" for note in notes), *told])


def _value(value: object) -> str:
    return plain(said(value, _VALUE), None)


def _show_pools(report: Report) -> None:
    if not report.pools:
        return
    shown = table("pool", "type", "capacity", "min-max", "GPUs", "GPUs at max", "EFA")
    for pools in report.pools:
        row(
            shown,
            plain(pools.pool.name),
            _both(pools, lambda pool: plain(", ".join(pool.types)) or "unknown"),
            _both(pools, lambda pool: plain(pool.capacity)),
            _both(pools, lambda pool: f"{_number(pool.minimum)}-{_number(pool.maximum)}"),
            _both(pools, lambda pool: f"{_number(pool.gpus)} {(pool.machine and pool.machine.gpu) or ''}".strip()),
            _both(pools, lambda pool: _number(pool.gpus_at_max)),
            _both(pools, lambda pool: _number(pool.efa)),
        )
    show(shown)


def _show_cost(report: Report) -> None:
    money = report.cost
    if money is None:
        return
    before, after = money.before, money.after
    shown = table("USD", "before", "after")
    row(shown, "per hour, fewest machines", plain(before.at_min.shown()), plain(after.at_min.shown()))
    row(shown, "per hour, most machines", plain(before.at_max.shown()), plain(after.at_max.shown()))
    share = f"per month, {after.utilisation:%} of the time with the most".replace(".000000", "")
    row(shown, share, plain(before.month.shown()), plain(after.month.shown()))
    each = [plain(one.shown()) if one else "-" for one in (before.per_gpu_hour, after.per_gpu_hour)]
    row(shown, "per GPU and hour, everything included", *each)
    show(shown)


def _show_moves(report: Report) -> None:
    if report.moves:
        shown = table("version of", "from", "to", "verdict", "message")
        for one in report.moves:
            told = "; ".join((one.reason, *one.steps))
            row(shown, plain(one.component), plain(one.old), plain(one.new), one.verdict, plain(told, 1000))
        show(shown)
    for bad in report.known_bad:
        told = f"known to fail: {bad.component} {bad.version}: {bad.effect}; {bad.reason} ({bad.link})"
        stdout().print(plain(told, 1000), markup=False)


def _both(pools: PoolRow, what: Callable[[Pool], str]) -> str:
    old = what(pools.before) if pools.before else None
    new = what(pools.after) if pools.after else None
    if old == new or new is None:
        return old or ""
    return f"{old} -> {new}" if old is not None else new


def _show_policies(report: Report) -> None:
    if not report.policies:
        return
    shown = table("severity", "level", "rule", "resource", "message")
    for one in (one for one in report.policies if one.kind != "unknown"):
        level = "corrected" if one.kind == "remediated" else plain(one.level)
        name = plain(name_of(one.urn) if one.urn else "the stack")
        row(shown, plain(one.severity), level, plain(one.rule), name, plain(one.finding, 300))
    # What is not known yet is often the same of many resources.
    undecided = sorted((one for one in report.policies if one.kind == "unknown"), key=lambda one: one.rule)
    for rule, several in itertools.groupby(undecided, lambda one: one.rule):
        those = list(several)
        where = plain(name_of(those[0].urn or "the stack")) if len(those) == 1 else f"{len(those)} resources"
        row(shown, plain(those[0].severity), "undecided", plain(rule), where, plain(those[0].finding, 300))
    show(shown)


def _number(value: int | None) -> str:
    return "unknown" if value is None else str(value)


def _lines(text: str) -> str:
    return "\n".join(plain(line, 400) for line in text.splitlines())
