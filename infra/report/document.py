"""The report as one JSON document, for programs. Its keys are described in docs/reference/report.md."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from infra.report import cost, known_bad, versions
from infra.report.changes import ABSENT, Change, said
from infra.report.model import PoolRow, Report
from infra.report.pools import Pool
from infra.report.preview import UNKNOWN, PolicyResult

SCHEMA = "trainyard-preview/1"
"""Raised when a key goes or changes its meaning; keys may be added without."""


def document(report: Report) -> dict[str, Any]:
    """A report about one stack as plain data."""
    preview = report.preview
    return {
        "schema": SCHEMA,
        "stack": report.stack,
        "project": preview.project,
        "rehearsal": preview.rehearsal,
        "note": report.note,
        "complete": preview.complete,
        "why_incomplete": preview.why_incomplete,
        "changes": preview.counts(),
        "failures": [{"kind": one.kind, "sentence": one.sentence} for one in report.failures],
        "warnings": [*report.warnings, *filter(None, [report.old_prices])],
        "steps": [_step(one) for one in report.changes],
        "node_pools": [_pool_row(row) for row in report.pools],
        "cost": _cost(report),
        "versions": [versions.document(one) for one in report.moves],
        "known_bad": [known_bad.document(one) for one in report.known_bad],
        "topology": report.topology,
        "policies": [_policy(one) for one in report.policies],
        "policy_packs": list(preview.policy_packs),
        "rules_run": preview.rules_run,
        "diagnostics": [dataclasses.asdict(one) for one in preview.diagnostics],
        "seconds": preview.duration_seconds,
    }


def _step(change: Change) -> dict[str, Any]:
    return {
        "op": change.op,
        "type": change.type,
        "name": change.name,
        "urn": change.urn,
        "component": change.component,
        "protected": change.protected,
        "loses": change.loses,
        "interrupts": change.interrupts,
        "diffs": [one.path for one in change.fields],
        "properties": [
            {
                "path": one.path,
                "old": _value(one.old),
                "new": _value(one.new),
                "forces_replacement": one.forces,
            }
            for one in change.fields
        ],
    }


def _value(value: Any) -> Any:
    """A value as JSON; what is not there is null, what is unknown is said in words."""
    if value is ABSENT:
        return None
    if value is UNKNOWN:
        return said(UNKNOWN)
    if isinstance(value, Mapping):
        return {str(key): _value(inside) for key, inside in value.items()}
    if isinstance(value, list | tuple):
        return [_value(inside) for inside in value]
    return value


def _pool_row(row: PoolRow) -> dict[str, Any]:
    return {
        "name": row.pool.name,
        "before": _pool(row.before) if row.before else None,
        "after": _pool(row.after) if row.after else None,
    }


def _pool(pool: Pool) -> dict[str, Any]:
    return {
        "types": list(pool.types),
        "capacity": pool.capacity,
        "min": pool.minimum,
        "max": pool.maximum,
        "desired": pool.desired,
        "gpu": pool.machine.gpu if pool.machine else None,
        "gpus": pool.gpus,
        "gpus_at_max": pool.gpus_at_max,
        "efa": pool.efa,
        "ami_type": pool.ami_type,
        "release": pool.release,
        "kubernetes": pool.kubernetes,
        "region": pool.region,
    }


def _cost(report: Report) -> dict[str, Any] | None:
    money = report.cost
    return None if money is None else {"before": cost.document(money.before), "after": cost.document(money.after)}


_OUTCOMES = {"violation": "violation", "unknown": "undecided", "remediated": "corrected"}


def _policy(result: PolicyResult) -> dict[str, Any]:
    title, _, found = result.message.partition("\n")
    return {
        "rule": result.rule,
        "outcome": _OUTCOMES[result.kind],
        "level": result.level,
        "severity": result.severity,
        "blocks": result.blocks,
        "urn": result.urn,
        "title": title if found else "",
        "message": result.finding,
        "remediation": result.remediation,
        "pack": result.pack,
        "version": result.version,
    }
