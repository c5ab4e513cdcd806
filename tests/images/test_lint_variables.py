"""The one list of variables that nobody should set, which images and jobs are held against."""

from __future__ import annotations

import pytest

from images.lint import lint_text
from infra.catalog.variables import bad_variable, bad_variables


def test_every_variable_has_a_reason_a_source_and_its_own_name() -> None:
    names = [one.name for one in bad_variables()]
    assert len(names) == len(set(names)) > 20
    for one in bad_variables():
        assert one.fabric in {None, "efa"}
        assert len(one.reason) > 15, one.name
        assert one.source.startswith("https://"), one.name


@pytest.mark.parametrize(
    ("name", "efa", "known"),
    [
        ("NCCL_PROTO", True, "NCCL_PROTO"),
        ("NCCL_PROTO", False, None),
        ("RDMAV_FORK_SAFE", False, "RDMAV_*"),
        ("NCCL_ASYNC_ERROR_HANDLING", False, "NCCL_ASYNC_ERROR_HANDLING"),
        ("TORCH_NCCL_ASYNC_ERROR_HANDLING", True, None),
        ("NCCL_DEBUG", True, None),
    ],
)
def test_a_variable_is_bad_where_its_fabric_is(name: str, efa: bool, known: str | None) -> None:
    found = bad_variable(name, efa=efa)
    assert (found.name if found else None) == known


def test_what_is_harmful_is_an_error_and_what_has_no_effect_a_warning() -> None:
    base = f"FROM debian:bookworm-slim@sha256:{'0' * 64}\nUSER 65532\n"
    found = lint_text(f"{base}ENV FI_PROVIDER=efa NCCL_PROTO=simple\n")
    assert {(one.message.split(":")[0], one.severity) for one in found} == {
        ("FI_PROVIDER", "warning"),
        ("NCCL_PROTO", "error"),
    }
