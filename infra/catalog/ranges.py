"""Ranges of versions: `>=0.19.0,<0.19.3`. A version is its dotted numbers; what follows them does not count.

Add-ons of EKS (`v1.22.4-eksbuild.3`), drivers (`580.159.03`) and images (`v0.19.3`) are not versions in the sense of
Python packages, whose library refuses the first.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable

ANY = "*"
"""The range that has every version in it, and also what has no version."""

_COMPARISONS: dict[str, Callable[[tuple[int, ...], tuple[int, ...]], bool]] = {
    ">=": operator.ge,
    "<=": operator.le,
    "==": operator.eq,
    ">": operator.gt,
    "<": operator.lt,
}
_VERSION = re.compile(r"v?(\d+(?:\.\d+)*)")
_BOUND = re.compile(r"(>=|<=|==|>|<)\s*(v?\d+(?:\.\d+)*)")


def numbers(version: str) -> tuple[int, ...]:
    """`v1.18.5-eksbuild.1` -> (1, 18, 5). Zeros at the end do not count: 1.0 is 1.

    Raises:
        ValueError: it does not begin with a number.
    """
    found = _VERSION.match(version)
    if found is None:
        raise ValueError(f"{version!r} is no version: it has to begin with a number, as v1.2.3 does")
    parts = [int(part) for part in found[1].split(".")]
    while len(parts) > 1 and parts[-1] == 0:
        parts.pop()
    return tuple(parts)


def in_range(version: str, wanted: str) -> bool:
    """Whether a version lies within a range: comparisons with commas between them, all of which must hold.

    Raises:
        ValueError: the version or the range cannot be read.
    """
    if wanted == ANY:
        return True
    for part in wanted.split(","):
        bound = _BOUND.fullmatch(part.strip())
        if bound is None:
            raise ValueError(f"{wanted!r} is no range of versions: write comparisons as >=1.2,<1.3, or {ANY}")
        if not _COMPARISONS[bound[1]](numbers(version), numbers(bound[2])):
            return False
    return True
