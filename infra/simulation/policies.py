"""Which machines a job could be given, what each way takes and costs, side by side."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

from infra.catalog.prices import price
from infra.errors import UsageError
from infra.report.cost import NOTHING, Total, Usd, figures
from infra.simulation.parameters import Parameters, Pool
from infra.simulation.replay import Course, Outcome, simulate
from infra.simulation.trace import Trace, TraceError, read, read_starts


@dataclass(frozen=True)
class SpotPool:
    """Spot machines of one kind, with their availability and price."""

    name: str
    trace: Trace
    speed: float
    usd_per_hour: Usd | None
    """None: not known."""


@dataclass(frozen=True)
class Market:
    """What can be had, and for how much."""

    pools: tuple[SpotPool, ...]
    on_demand: Usd | None
    """USD for one hour of one machine; None: not known."""
    node_starts: tuple[float, ...]


@dataclass(frozen=True)
class Result:
    """How a job went with one policy, and what it cost."""

    policy: str
    on_demand: int
    """Machines on demand."""
    outcome: Outcome
    cost: Total
    """USD for machines; disks, network and the control plane are `trainyard cost`'s."""


def market(parameters: Parameters) -> Market:
    """Read the traces and look up the prices.

    Raises:
        UsageError: with every file that cannot be used.
    """
    wrong: list[str] = []
    pools: list[SpotPool] = []
    for pool in parameters.pools:
        try:
            trace = read(Path(pool.trace))
        except TraceError as error:
            wrong.append(str(error))
        else:
            pools.append(SpotPool(_name(pool), trace, pool.speed, _spot(pool, parameters.region)))
    starts: tuple[float, ...] = (parameters.node_start_seconds,)
    if parameters.node_starts is not None:
        try:
            starts = read_starts(Path(parameters.node_starts))
        except TraceError as error:
            wrong.append(str(error))
    if not parameters.pools:
        wrong.append("no trace is named: --trace FILE, or `pools` in the parameters")
    if wrong:
        raise UsageError("\n".join(wrong))
    return Market(tuple(pools), _on_demand(parameters), starts)


def compare(parameters: Parameters, found: Market) -> list[Result]:
    """All policies that the parameters allow: on demand, spot, spot with a floor on demand, and several pools."""
    floor = parameters.on_demand_floor or parameters.min_workers
    everything, first = found.pools, found.pools[:1]
    planned: list[tuple[str, int, Sequence[SpotPool]]] = [
        ("on demand", parameters.max_workers, ()),
        (f"spot, {first[0].name}", 0, first),
        (f"spot, {first[0].name}, + {floor} on demand", floor, first),
    ]
    if len(everything) > 1:
        planned += [
            (f"spot, {len(everything)} pools", 0, everything),
            (f"spot, {len(everything)} pools, + {floor} on demand", floor, everything),
        ]
    return [_result(parameters, found, *one) for one in planned]


def course(parameters: Parameters, on_demand: int, pools: Sequence[SpotPool], node_starts: tuple[float, ...]) -> Course:
    """What one replay depends on."""
    recovery, checkpoints = parameters.recovery, parameters.checkpoints
    return Course(
        steps=parameters.steps,
        step_seconds=parameters.step_seconds,
        between_seconds=parameters.between_seconds,
        step_workers=parameters.step_workers or parameters.max_workers,
        scaling=parameters.scaling,
        min_workers=parameters.min_workers,
        max_workers=parameters.max_workers,
        on_demand=on_demand,
        traces=tuple(pool.trace for pool in pools),
        speeds=tuple(pool.speed for pool in pools),
        notice=parameters.notice_seconds,
        node_starts=node_starts,
        checkpoint_every=checkpoints.every_steps,
        checkpoint_stall=checkpoints.stall_seconds,
        checkpoint_save=checkpoints.save_seconds,
        recovery_notice=recovery.notice,
        recovery_death=recovery.death,
        recovery_join=recovery.join,
        recovery_start=recovery.start,
        most_seconds=parameters.most_days * 86_400,
    )


def document(parameters: Parameters, found: Market, results: Sequence[Result]) -> dict[str, Any]:
    """All of it as plain data; times in seconds, money as text, null where it is not known."""
    return {
        "parameters": parameters.model_dump(mode="json", by_alias=True),
        "traces": [
            {
                "name": pool.name,
                "seconds": pool.trace.seconds,
                "most": pool.trace.most,
                "mean": round(pool.trace.mean, 3),
                "lost": pool.trace.lost,
                "usd_per_hour": None if pool.usd_per_hour is None else figures(pool.usd_per_hour),
            }
            for pool in found.pools
        ],
        "on_demand_usd_per_hour": None if found.on_demand is None else figures(found.on_demand),
        "policies": [_one(result) for result in results],
    }


def _one(result: Result) -> dict[str, Any]:
    outcome = result.outcome
    return {
        "policy": result.policy,
        "on_demand": result.on_demand,
        "done": outcome.is_done,
        "seconds": round(outcome.seconds, 3),
        "useful_seconds": round(outcome.useful, 3),
        "goodput": round(outcome.goodput, 6),
        "losses": {cause: round(seconds, 3) for cause, seconds in outcome.losses.items()},
        "steps": outcome.steps,
        "machines_lost": outcome.reclaimed,
        "recoveries": outcome.recoveries,
        "rollbacks": outcome.rollbacks,
        "mean_workers": round(outcome.mean_workers, 3),
        "spot_hours": [round(hours, 4) for hours in outcome.spot_hours],
        "on_demand_hours": round(outcome.on_demand_hours, 4),
        "usd": None if result.cost.all_unknown else figures(result.cost.usd),
        "usd_without": list(result.cost.without),
    }


def _result(parameters: Parameters, found: Market, policy: str, on_demand: int, pools: Sequence[SpotPool]) -> Result:
    outcome = simulate(course(parameters, on_demand, pools, found.node_starts))
    paid = [(f"spot, {pool.name}", pool.usd_per_hour, h) for pool, h in zip(pools, outcome.spot_hours, strict=True)]
    paid.append(("on demand", found.on_demand, outcome.on_demand_hours))
    usd, without, known = NOTHING, [], 0
    for name, each, hours in paid:
        if not hours:
            continue
        if each is None:
            without.append(name)
        else:
            usd, known = usd + each * Decimal(repr(hours)), known + 1
    return Result(policy, on_demand, outcome, Total(usd, tuple(without), all_unknown=bool(without) and not known))


def _name(pool: Pool) -> str:
    return pool.name or pool.type or Path(pool.trace).stem[:40]


def _spot(pool: Pool, region: str) -> Usd | None:
    if pool.spot_usd_per_hour is not None:
        return Usd.exactly(pool.spot_usd_per_hour)
    known = price(pool.type, region) if pool.type else None
    if known is None or known.spot_low is None or known.spot_high is None:
        return None
    return Usd(known.spot_low, known.spot_high)


def _on_demand(parameters: Parameters) -> Usd | None:
    if parameters.on_demand_usd_per_hour is not None:
        return Usd.exactly(parameters.on_demand_usd_per_hour)
    name = parameters.on_demand_type or (parameters.pools[0].type if parameters.pools else None)
    known = price(name, parameters.region) if name else None
    return None if known is None or known.usd_per_hour is None else Usd.exactly(known.usd_per_hour)
