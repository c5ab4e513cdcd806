"""Fabric and performance: what a measurement says, held against settings and catalogue. Pure.

The transport is judged first, and no figure is read where it is not right: a job on TCP has figures too.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from infra.catalog.fabric_floors import Floor, floors_of
from infra.diagnose.finding import Finding
from infra.verify.measure import STAND_IN, Group, Measurement
from infra.verify.result import Result

_NETWORK = "look at what NCCL chose, and why: python -m training diagnose nccl FILE"


def sizes_of(group: Group, nodes: int, usual: Sequence[int]) -> tuple[int, ...]:
    """Bytes of the all-reduces: the usual ones, and those that have a floor."""
    floors = {floor.bytes for machines in group.machines for kind in machines.types for floor in floors_of(kind, nodes)}
    return tuple(sorted({*usual, *floors}))


def not_measured(group: Group, nodes: int) -> Result | None:
    """Why nothing can be measured over so many machines; None: something can."""
    check = f"all-reduce over {group.name}"
    if group.ranks(group.most) < 2:
        return Result("fabric", check, "not run", "by its settings it is one process: nobody to exchange messages with")
    if not nodes:
        return Result("fabric", check, "skipped", "no machine is there; with --nodes the autoscaler adds some", 0, 0)
    if group.ranks(nodes) < 2:
        return Result("fabric", check, "skipped", "one process has nobody to exchange messages with: --nodes 2", 0, 1)
    return None


def fabric(group: Group, made: Measurement) -> Result:
    """Did all machines take part, by the transport that they were bought for, and is none slow or dead?"""
    check, findings = f"all-reduce over {group.name}", list(_findings(group, made))
    report = made.report or {}
    bad = {finding.object.removeprefix("node/") for finding in findings}
    seen = set(report.get("hosts") or ()) - bad
    good = _transport_text(group, report) if report else ""
    covered = len(seen)
    return Result.judged("fabric", check, good, min(covered, made.nodes), made.nodes, findings)


def performance(group: Group, made: Measurement, transport: Result) -> Result:
    """Are all-reduces as fast as they are known to be on such machines?"""
    check = f"bandwidth of {group.name}"
    if transport.verdict != "passed" or made.report is None:
        return Result("performance", check, "skipped", "no figure is read, since the fabric is not right")
    figures = {int(one["size"]): float(one["bus_bandwidth"]) / 1e9 for one in made.report["all_reduces"]}
    best = ", ".join(f"{figures[size]:.3g} GB/s at {_size(size)}" for size in sorted(figures))
    kinds = {kind for machines in group.machines for kind in machines.types}
    if group.local:
        return Result("performance", check, "unknown", f"no floor known ({STAND_IN}); {best}")
    floors = {kind: floors_of(kind, made.nodes) for kind in sorted(kinds)}
    if without := [kind for kind, known in floors.items() if not known]:
        named = ", ".join(without)
        return Result("performance", check, "unknown", f"no floor known for {made.nodes} x {named}; {best}")
    lowest: dict[int, Floor] = {}
    for known in floors.values():
        for floor in known:
            if floor.bytes not in lowest or floor.gb_s < lowest[floor.bytes].gb_s:
                lowest[floor.bytes] = floor
    findings = [
        _below(group, floor, figures.get(size))
        for size, floor in sorted(lowest.items())
        if figures.get(size, 0.0) < floor.gb_s
    ]
    held = ", ".join(
        f"{figures[size]:.4g} of at least {floor.gb_s:g} GB/s at {_size(size)}"
        for size, floor in sorted(lowest.items())
        if size in figures
    )
    return Result.judged("performance", check, held, len(lowest) - len(findings), len(lowest), findings)


def _below(group: Group, floor: Floor, figure: float | None) -> Finding:
    has = "was not measured" if figure is None else f"is {figure:.4g} GB/s"
    return Finding(
        code="slow-fabric",
        title=f"bus bandwidth of {_size(floor.bytes)} {has}, {floor.nodes} x {floor.type} reach {floor.gb_s:g}",
        evidence=(f"seen elsewhere: {floor.seen or 'not told'} GB/s; {floor.source}",),
        remedy="compare halves of the pool (--nodes) to find the slow machine; look at EFA interfaces and GPUDirect",
        command=f"trainyard check --pool {group.name}",
        severity="error",
        object=f"pool/{group.name}",
    )


def _findings(group: Group, made: Measurement) -> Iterator[Finding]:
    def found(code: str, title: str, evidence: Sequence[str], remedy: str, of: str) -> Finding:
        return Finding(code, title, tuple(evidence), remedy, None, "error", of)

    pool = f"pool/{group.name}"
    for rank, host in made.dead:
        what = f"rank {rank} on node {host} gives no sign of life"
        yield found(
            "dead-rank", what, (made.trouble,), "look at that machine, drain it, have it replaced", f"node/{host}"
        )
    report = made.report
    if report is None:
        if not made.dead:
            said = made.waiting or (made.trouble,)
            yield found(
                "no-measurement", f"the job {made.job} gave no figures: {made.trouble}", said, "see below", pool
            )
        return
    hosts: list[str] = list(report["hosts"])
    if (ranks := group.ranks(made.nodes)) != int(report["world_size"]):
        what = f"{report['world_size']} ranks took part, {made.nodes} machines have {ranks} GPUs"
        yield found("ranks-missing", what, hosts, "compare the devices of each node: --phase readiness", pool)
    if len(set(hosts)) < made.nodes:
        what = f"{len(set(hosts))} machines took part, there were {made.nodes} workers"
        yield found("machines-missing", what, sorted(set(hosts)), "two workers shared a machine", pool)
    yield from _transport(group, made, report, pool)
    for rank in report["slow_ranks"]:
        what = f"rank {rank} on node {hosts[rank]} is slow with every partner"
        yield found(
            "slow-rank", what, _times(report, rank), "drain it, and look at its GPU and links", f"node/{hosts[rank]}"
        )
    for first, second in report["slow_pairs"]:
        what = f"ranks {first} (node {hosts[first]}) and {second} (node {hosts[second]}) are slow together"
        yield found(
            "slow-link", what, (), "look at the link between them: interfaces, placement", f"node/{hosts[first]}"
        )
    for machines in group.machines:
        for host, seen in (report.get("machines") or {}).items():
            if machines.driver and seen.get("driver") != machines.driver:
                what = (
                    f"node {host} has driver {seen.get('driver') or 'of no version'}, its image has {machines.driver}"
                )
                yield found("node-driver", what, (), "update its node group", f"node/{host}")


def _transport(group: Group, made: Measurement, report: Mapping[str, Any], pool: str) -> Iterator[Finding]:
    """Locally gloo is what there is. Elsewhere NCCL must be at work, and name the network that was bought."""
    if group.local:
        return
    transport = report.get("transport") or {}
    kind, code = transport.get("kind"), "transport"
    if report["backend"] != "nccl":
        what = f"messages went by {report['backend']}: torch finds no GPU in the workers"
        yield Finding(code, what, (), "see what does not fit: python -m training diagnose image", None, "error", pool)
    elif made.nodes > 1 and group.efa and kind != "efa":
        what = f"NCCL went over {kind or 'a network that its output does not name'}, and the machines have EFA"
        told = (str(transport.get("detail")), *map(str, transport.get("warnings") or ()))
        yield Finding(code, what, told, _NETWORK, None, "error", pool)
    elif made.nodes > 1 and kind is None:
        what = "NCCL's output does not say which network it uses"
        yield Finding(code, what, (), "take NCCL_DEBUG away from the image's variables", None, "error", pool)
    elif group.efa:
        for warning in transport.get("warnings") or ():
            yield Finding(code, str(warning), (), _NETWORK, None, "error", pool)


def _transport_text(group: Group, report: Mapping[str, Any]) -> str:
    if group.local:
        return STAND_IN
    transport = report.get("transport") or {}
    kind = transport.get("kind") or "within one machine"
    detail = f" ({transport['detail']})" if transport.get("detail") else ""
    return f"{report['backend']} over {kind}{detail}"


def _times(report: Mapping[str, Any], rank: int) -> list[str]:
    return [
        f"with rank {sum(pair['ranks']) - rank}: {pair['seconds'] * 1e3:.3g} ms"
        for pair in report["pairs"]
        if rank in pair["ranks"]
    ]


def _size(size: int) -> str:
    for unit, factor in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if size >= factor:
            return f"{size / factor:g} {unit}"
    return f"{size} B"
