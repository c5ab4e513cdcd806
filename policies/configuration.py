"""Levels and settings of the rules by environment: `policies/config/<stack>.json`, for `--policy-pack-config`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).resolve().parent / "config"


def configuration_file(stack: str, folder: Path = FOLDER) -> Path | None:
    """The file of a stack; None: the rules' own levels and settings hold."""
    path = folder / f"{stack}.json"
    return path if path.is_file() else None


def configuration(stack: str, folder: Path = FOLDER) -> dict[str, dict[str, Any]]:
    """What the file of a stack says, by rule; a level alone is written in full."""
    path = configuration_file(stack, folder)
    if path is None:
        return {}
    document: Mapping[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return {
        name: dict(value) if isinstance(value, Mapping) else {"enforcementLevel": value}
        for name, value in document.items()
    }


def environments(folder: Path = FOLDER) -> tuple[str, ...]:
    """The stacks that have a file."""
    return tuple(sorted(path.stem for path in folder.glob("*.json")))


def mandatory(stack: str, folder: Path = FOLDER) -> frozenset[str]:
    """The rules that stop a change of a stack."""
    from policies.rules import all_rules  # noqa: PLC0415 - the rules read the catalogue, and who wants a path needs none

    levels = configuration(stack, folder)
    return frozenset(
        name
        for name, rule in all_rules().items()
        if levels.get(name, {}).get("enforcementLevel", rule.level) == "mandatory"
    )
