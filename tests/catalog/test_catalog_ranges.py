"""Version ranges: what lies in them, and that nonsense is refused instead of never matching."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from infra.catalog.ranges import ANY, in_range, numbers


@pytest.mark.parametrize(
    ("version", "wanted", "inside"),
    [
        ("0.19.0", ">=0.19.0,<0.19.3", True),
        ("v0.19.2", ">=0.19.0,<0.19.3", True),
        ("0.19.3", ">=0.19.0,<0.19.3", False),
        ("0.18.9", ">=0.19.0,<0.19.3", False),
        ("v1.22.4-eksbuild.3", "<1.18.5", False),
        ("v1.9.0-eksbuild.1", "<1.18.5", True),
        ("580.159.03", ">=595", False),
        ("595.91.07", ">=595", True),
        ("595", ">=595.0.0", True),
        ("20261003", "==20261003", True),
        ("26.04", ">26.03", True),
        ("26.03", ">26.03", False),
        ("anything", ANY, True),
    ],
)
def test_numbers_are_compared_as_numbers(version: str, wanted: str, inside: bool) -> None:
    assert in_range(version, wanted) is inside


@pytest.mark.parametrize("wanted", ["", "1.2", "~=1.2", ">=1.2;<2", ">= ", ">=1.2,"])
def test_what_is_no_range_is_refused(wanted: str) -> None:
    with pytest.raises(ValueError, match="no range"):
        in_range("1.2", wanted)


def test_what_is_no_version_is_refused() -> None:
    with pytest.raises(ValueError, match="no version"):
        in_range("latest", ">=1")


@given(st.lists(st.integers(0, 999), min_size=1, max_size=4), st.lists(st.integers(0, 999), min_size=1, max_size=4))
def test_every_pair_is_below_equal_or_above(left: list[int], right: list[int]) -> None:
    one, other = (".".join(map(str, parts)) for parts in (left, right))
    assert [in_range(one, f"{sign}{other}") for sign in ("<", "==", ">")].count(True) == 1
    assert (numbers(one) == numbers(other)) == in_range(one, f"=={other}")
