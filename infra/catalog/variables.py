"""Variables of NCCL, libfabric and torch that have no use any more, or do harm, in images and in jobs."""

from __future__ import annotations

import functools
from dataclasses import dataclass

from infra.catalog.tables import table


@dataclass(frozen=True)
class BadVariable:
    """One variable that nobody should set."""

    name: str
    """A trailing `*` stands for any end."""
    fabric: str | None
    """`efa`: only where that is the fabric; None: everywhere."""
    harmful: bool
    """It breaks or slows training; otherwise it is only without effect."""
    reason: str
    source: str

    def matches(self, name: str) -> bool:
        """Whether a variable is this one."""
        return name.startswith(self.name[:-1]) if self.name.endswith("*") else name == self.name


@functools.cache
def bad_variables() -> tuple[BadVariable, ...]:
    """All of them."""
    return tuple(
        BadVariable(
            name=row["name"],
            fabric=row.get("fabric"),
            harmful=row.get("harmful", False),
            reason=row["reason"],
            source=row["source"],
        )
        for row in table("variables")["variable"]
    )


def bad_variable(name: str, *, efa: bool) -> BadVariable | None:
    """What is known against a variable; None where nothing is.

    Args:
        name: `NCCL_PROTO`.
        efa: whether it is set where EFA is the fabric.
    """
    known = (one for one in bad_variables() if one.matches(name))
    return next((one for one in known if efa or one.fabric is None), None)
