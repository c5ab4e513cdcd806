"""docs/explanation/silent-failures.md promises tests; here they are looked for."""

from __future__ import annotations

import ast
import re

import pytest

from infra.clusters import CHECKOUT

PAGE = CHECKOUT / "docs/explanation/silent-failures.md"
SYMPTOMS = 18
OUT_OF_REACH = "out of reach"

ROWS = [
    [cell.strip() for cell in line.strip("|").split(" | ")]
    for line in PAGE.read_text(encoding="utf-8").splitlines()
    if re.match(r"\| \d", line)
]


def test_every_reported_symptom_has_its_line() -> None:
    assert [int(row[0].strip("| ")) for row in ROWS] == list(range(1, SYMPTOMS + 1))


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[1][:40])
def test_each_line_names_threads_and_tests_that_are_there(row: list[str]) -> None:
    _, _, threads, remedy, tests = row
    assert re.fullmatch(r"[\w.-]+/[\w.-]+#\d+(, [\w.-]+/[\w.-]+#\d+)*", threads)
    named = re.findall(r"`(tests/[\w/]+\.py)::(test_\w+)`", tests)
    assert named or OUT_OF_REACH in remedy
    for path, function in named:
        tree = ast.parse((CHECKOUT / path).read_text(encoding="utf-8"))
        there = {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
        assert function in there, f"{path} has no {function}"
