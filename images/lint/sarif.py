"""Findings as SARIF 2.1.0, which code hosts show beside the lines."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from images.lint.rule import Finding
from images.lint.rules import RULES

SCHEMA = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"


def sarif(findings: Mapping[str, Sequence[Finding]]) -> dict[str, Any]:
    """One run with all findings.

    Args:
        findings: by name of the row or file; rows become folders of the address, as `render` writes them.
    """
    used = {one.rule for found in findings.values() for one in found}
    return {
        "$schema": SCHEMA,
        "version": "2.1.0",
        "runs": [
            {
                "tool": {"driver": {"name": "trainyard images lint", "rules": _rules(used)}},
                "results": [_result(name, one) for name, found in findings.items() for one in found],
            }
        ],
    }


def _rules(used: set[str]) -> list[dict[str, Any]]:
    own = {rule.id: rule for rule in RULES}
    found: list[dict[str, Any]] = []
    for name in sorted(used):
        if rule := own.get(name):
            found.append(
                {
                    "id": name,
                    "shortDescription": {"text": rule.title},
                    "fullDescription": {"text": rule.reason},
                    "help": {"text": rule.remedy},
                    "defaultConfiguration": {"level": rule.severity},
                }
            )
        else:
            tool = "shellcheck" if name.startswith("SC") else "hadolint"
            found.append({"id": name, "shortDescription": {"text": f"{name} of {tool}"}})
    return found


def _result(name: str, one: Finding) -> dict[str, Any]:
    address = name if one.file == name else f"{name}/{one.file}"
    return {
        "ruleId": one.rule,
        "level": one.severity,
        "message": {"text": f"{one.message}. {one.remedy}"},
        "locations": [
            {
                "physicalLocation": {
                    "artifactLocation": {"uri": address.lstrip("/") if "://" not in address else address},
                    "region": {"startLine": max(one.line, 1)},
                }
            }
        ],
    }
