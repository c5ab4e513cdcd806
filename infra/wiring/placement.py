"""Cluster placement groups: which pools have one.

A group brings the machines of an on-demand pool close together. Forced on a reservation it breaks it: launches fail
with InsufficientInstanceCapacity or fill only a part, because the reserved machines stand elsewhere.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from infra.wiring.naming import node_group_name

if TYPE_CHECKING:
    from infra.settings.aws import AwsNodePool

RESERVED = ("odcr", "capacity-block")
"""Capacities that are paid for already, and whose machines have their place."""


@dataclass(frozen=True)
class Placement:
    """Whether the machines of a pool stand in a cluster placement group."""

    kind: Literal["none", "make", "existing"]
    name: str | None = None
    """Name of the group that the stack makes, or that exists."""


NOWHERE = Placement("none")


def placement_of(pool: AwsNodePool, cluster: str) -> Placement:
    """The placement group of a pool.

    `auto` makes one where it helps and does no harm: on-demand machines with EFA in one zone. Spot has none, since a
    group narrows a pool that is scarce anyway to one corner of one zone. Reservations never have one, whatever the
    setting says.

    Raises:
        WiringError: cluster and pool have too long names for one of their own.
    """
    if pool.placement == "none" or pool.capacity in RESERVED:
        return NOWHERE
    if pool.placement == "existing":
        return Placement("existing", pool.placement_group)
    if pool.capacity == "on-demand" and pool.efa and pool.zone:
        return Placement("make", node_group_name(cluster, pool.name))
    return NOWHERE
