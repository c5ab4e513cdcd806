"""What is told to Prometheus of a stack: how long it keeps what, from when on it warns, what machines cost."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal
from typing import TYPE_CHECKING

from infra.catalog.prices import price
from infra.monitoring.rules import Limits, MachinePrice
from infra.wiring.storage import BLOCK_CLASS

if TYPE_CHECKING:
    from infra.catalog.prices import Price
    from infra.settings.aws import Aws


@dataclass(frozen=True)
class MonitoringPlan:
    """Monitoring of a cluster."""

    retention_days: int
    storage_gib: int
    storage_class: str
    alertmanager_secret: str | None
    limits: Limits
    prices: tuple[MachinePrice, ...]


def monitoring_plan(aws: Aws) -> MonitoringPlan | None:
    """The plan of a stack; None: it wants none."""
    wanted = aws.monitoring
    if not wanted.enabled:
        return None
    return MonitoringPlan(
        retention_days=wanted.retention_days,
        storage_gib=wanted.storage_gib,
        storage_class=BLOCK_CLASS,
        alertmanager_secret=wanted.alertmanager_secret,
        limits=Limits(no_progress_minutes=wanted.no_progress_minutes, checkpoint_minutes=wanted.checkpoint_minutes),
        prices=tuple(_prices(aws)),
    )


def _prices(aws: Aws) -> Iterator[MachinePrice]:
    """Of each pool's types, as far as the price table knows them; spot at the middle of its range.

    Where the price of a kind of capacity is not known, the one on demand stands for it.
    """
    for pool in aws.node_pools:
        for name in pool.types:
            known = price(name, aws.region)
            usd = _usd(known, pool.capacity) if known is not None else None
            if usd is not None:
                yield MachinePrice(pool.name, name, usd)


def _usd(known: Price, capacity: str) -> Decimal | None:
    if capacity == "spot" and known.spot_low is not None and known.spot_high is not None:
        return (known.spot_low + known.spot_high) / 2
    if capacity == "capacity-block" and known.capacity_block is not None:
        return known.capacity_block
    return known.usd_per_hour
