"""What a job's machines have cost so far: its share of each machine's GPUs, for as long as its worlds held them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from itertools import pairwise
from typing import Any, Final

from infra.catalog.prices import PriceTable
from infra.history.model import JobHistory

GPU: Final = "nvidia.com/gpu"
_TYPE, _REGION = "node.kubernetes.io/instance-type", "topology.kubernetes.io/region"
_CAPACITY: Final = "eks.amazonaws.com/capacityType"
_HOUR: Final = Decimal(3600)


@dataclass(frozen=True)
class Rate:
    """USD for one hour of one rank; a range where prices are one."""

    low: Decimal
    high: Decimal
    reckoned: str
    """How it was found, for people."""


@dataclass(frozen=True)
class Spent:
    """USD so far."""

    low: Decimal
    high: Decimal
    curve: tuple[tuple[float, float], ...]
    """Unix seconds, and the middle of the range until then."""


def rate(
    nodes: Sequence[Mapping[str, Any]], pods: Sequence[Mapping[str, Any]], ranks: int, prices: PriceTable
) -> Rate | str:
    """What a rank costs in an hour; or a sentence why that is not known.

    Args:
        nodes: of the cluster, as the API server has them.
        pods: the job's workers.
        ranks: of each worker.
        prices: of machines.
    """
    by_name = {node["metadata"]["name"]: node for node in nodes}
    machines = [by_name[name] for pod in pods if (name := (pod.get("spec") or {}).get("nodeName")) in by_name]
    if not machines:
        return "no worker is on a machine any more, so what these were is not known"
    kinds = {
        (labels.get(_TYPE), labels.get(_REGION), labels.get(_CAPACITY, "ON_DEMAND"))
        for labels in ((machine["metadata"].get("labels") or {}) for machine in machines)
    }
    lows, highs, names = list[Decimal](), list[Decimal](), list[str]()
    for kind, region, capacity in sorted(kinds, key=str):
        if kind == "local":
            return "it runs on this computer, which costs nothing more for it"
        price = prices.machine(str(kind), region)
        spot = capacity == "SPOT"
        low = high = None
        if price is not None:
            low, high = (price.spot_low, price.spot_high) if spot else (price.usd_per_hour, price.usd_per_hour)
        if price is None or low is None or high is None:
            return f"the price table has no {'spot' if spot else 'on-demand'} price of {kind} in {region}"
        lows.append(low)
        highs.append(high)
        names.append(f"{kind} {'spot' if spot else 'on demand'} in {region} as of {price.as_of}")
    shares = [_share(pod, by_name) for pod in pods if (pod.get("spec") or {}).get("nodeName") in by_name]
    share = max(shares) / max(1, ranks)
    return Rate(min(lows) * share, max(highs) * share, "; ".join(names))


def spent(history: JobHistory, found: Rate, until: float) -> Spent:
    """What the job's worlds have cost, from the first one on.

    Args:
        history: whose worlds are counted.
        found: what a rank costs.
        until: the end, Unix seconds.
    """
    ends = [world.time for world in history.worlds[1:]] + [until]
    hours = (
        [
            Decimal(world.size) * Decimal(str(round(max(0.0, end - world.time), 3))) / _HOUR
            for world, end in zip(history.worlds, ends, strict=True)
        ]
        if history.worlds
        else []
    )
    middle = (found.low + found.high) / 2
    total, curve = Decimal(0), [(history.worlds[0].time, 0.0)] if history.worlds else []
    for part, end in zip(hours, ends, strict=False):
        total += part
        curve.append((end, float(total * middle)))
    return Spent(total * found.low, total * found.high, tuple(curve))


def rank_seconds(history: JobHistory, until: float) -> float:
    """Seconds of all ranks together: what was held, whatever it costs."""
    times = [world.time for world in history.worlds] + [until]
    return sum(
        world.size * max(0.0, later - now) for world, (now, later) in zip(history.worlds, pairwise(times), strict=True)
    )


def _share(pod: Mapping[str, Any], by_name: Mapping[str, Mapping[str, Any]]) -> Decimal:
    """Of a machine's GPUs, the part that a worker holds; all of it where it asks for none: nobody else fits well."""
    node = by_name[pod["spec"]["nodeName"]]
    there = int(((node.get("status") or {}).get("allocatable") or {}).get(GPU, 0))
    limits = [(each.get("resources") or {}).get("limits") or {} for each in pod["spec"].get("containers") or []]
    held = sum(int(limit.get(GPU, 0)) for limit in limits)
    return Decimal(held) / there if there and held else Decimal(1)
