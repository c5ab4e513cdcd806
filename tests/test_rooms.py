"""Which room may import which: workers need neither Pulumi nor infra, and the command never waits for torch."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
FORBIDDEN = {
    "training": ("infra", "pulumi", "pulumi_kubernetes", "pulumi_aws", "boto3", "botocore"),
    "training/controller": ("torch",),
    "infra": ("torch",),
    "infra/wiring": ("pulumi", "pulumi_kubernetes"),
}


def imports_of(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name.split(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            yield node.module.split(".")[0]


@pytest.mark.parametrize("room", FORBIDDEN)
def test_a_room_imports_nothing_that_it_must_not(room: str) -> None:
    files = sorted((ROOT / room).rglob("*.py"))
    assert files, f"{room} is empty"
    found = {(str(file.relative_to(ROOT)), name) for file in files for name in imports_of(file)}
    guilty = sorted(f"{file}: {name}" for file, name in found if name in FORBIDDEN[room])
    assert guilty == []


def test_what_the_stack_takes_from_training_comes_without_torch() -> None:
    for module in ("crd", "rbac", "api"):
        assert "torch" not in set(imports_of(ROOT / "training/controller" / f"{module}.py"))
