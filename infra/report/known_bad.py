"""Combinations that are known to fail, looked for among the resources of a stack."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from infra.catalog.instance_types import InstanceType, instance_types
from infra.catalog.known_bad import KnownBad, bad_versions, conditions_of
from infra.catalog.ranges import in_range
from infra.report.components import NO_VERSION, Component, components, kubernetes_of
from infra.report.inputs import NODE_GROUP, mapping, pool_name, template_of, text, types_of
from infra.report.preview import Resource

_KERNEL_6_12 = ">=1.31,<1.36"
"""Kubernetes minors whose AL2023 image has kernel 6.12."""


@dataclass(frozen=True)
class Finding:
    """A combination that fails, in this stack."""

    id: str
    component: str
    version: str
    """Empty for what has none."""
    where: tuple[str, ...]
    """Pools, workloads or add-ons."""
    effect: str
    reason: str
    link: str


@dataclass(frozen=True)
class _Machines:
    """The machines of one pool."""

    pool: str
    labels: Mapping[str, Any]
    conditions: frozenset[str]
    driver: str
    placed: bool
    """They are in a placement group."""


def findings(resources: Iterable[Resource]) -> tuple[Finding, ...]:
    """What of the stack is known to fail; empty where nothing is."""
    everything = list(resources)
    found = components(everything)
    kubernetes = kubernetes_of(found)
    pools = [_machines(one, everything, kubernetes) for one in everything if one.type == NODE_GROUP]
    stack = _of_stack(found)
    hits: dict[tuple[str, str], tuple[KnownBad, str, list[str]]] = {}

    def look(component: str, version: str, conditions: frozenset[str], where: str) -> None:
        try:
            bad = bad_versions(component, version, conditions | stack)
        except ValueError:  # a version that is no number: nothing is known of it
            return
        for one in bad:
            hits.setdefault((one.id, version), (one, version, []))[2].append(where)

    surroundings: dict[object, set[frozenset[str]]] = {}  # by what decides on which machines a component is
    for one in found:
        place = one.where if one.name.endswith("-release") else one.labels
        if place not in surroundings:
            surroundings[place] = {pool.conditions for pool in pools if _runs_on(one, pool)} or {frozenset()}
        for conditions in surroundings[place]:
            look(one.name, _day_of(one), conditions, one.where)
    for pool in pools:
        if pool.driver:
            look("nvidia-driver", pool.driver, pool.conditions, pool.pool)
        if pool.placed:
            look("placement-group", NO_VERSION, pool.conditions, pool.pool)
    return tuple(
        Finding(
            id=bad.id,
            component=bad.component,
            version="" if version == NO_VERSION else version,
            where=tuple(dict.fromkeys(where)),
            effect=bad.effect,
            reason=bad.reason,
            link=bad.link,
        )
        for bad, version, where in hits.values()
    )


def document(finding: Finding) -> dict[str, Any]:
    """A finding as plain data."""
    return {**vars(finding), "where": list(finding.where)}


def _of_stack(found: Iterable[Component]) -> frozenset[str]:
    """Conditions that hold for all of the stack."""
    names = {one.name for one in found}
    holds = set()
    if "aws-ebs-csi-driver" in {one.name for one in found if one.where == "add-on"}:
        holds.add("ebs-addon")
    if "efa-device-plugin" in names:
        holds.add("efa-device-plugin")
    if "aws-dranet" in names:
        holds.add("dra")
    return frozenset(holds)


def _machines(group: Resource, resources: list[Resource], kubernetes: str) -> _Machines:
    template = template_of(group, resources)
    labels = mapping(group.inputs.get("labels"))
    types = [instance_types()[name] for name in types_of(group, template) if name in instance_types()]
    efa = bool(template and template.efa)
    holds = frozenset[str]().union(*(_conditions(one, efa=efa) for one in types))
    if group.inputs.get("capacityType") == "CAPACITY_BLOCK" or (template and template.reserved):
        holds |= {"reserved-capacity"}
    kind = text(group.inputs.get("amiType"))
    if kind.startswith(("AL2023", "AL2_")):
        holds |= {"amazon-linux"}
    minor = text(group.inputs.get("version")) or kubernetes
    if kind.startswith("AL2023") and minor[:1].isdigit() and in_range(minor, _KERNEL_6_12):
        holds |= {"kernel-6-12"}
    return _Machines(
        pool=pool_name(group),
        labels=labels,
        conditions=holds,
        driver=_driver(group),
        placed=bool(template and template.placed),
    )


def _conditions(machine: InstanceType, *, efa: bool) -> frozenset[str]:
    return conditions_of(machine, efa=efa and bool(machine.efa))


def _driver(group: Resource) -> str:
    """NVIDIA's driver in the image of a pool, where the version lock has that very release."""
    from infra.catalog.tables import table  # noqa: PLC0415

    release, kind = text(group.inputs.get("releaseVersion")), text(group.inputs.get("amiType"))
    for row in table("versions")["ami"]:
        if kind in row["gpu_types"].values() and release in row["release_versions"].values():
            return str(row["driver"])
    return ""


def _runs_on(one: Component, pool: _Machines) -> bool:
    """Whether a component is on the machines of a pool: an image of theirs, or a pod that their labels let in."""
    if one.name.endswith("-release"):
        return one.where == pool.pool
    return all(pool.labels.get(key) == value for key, value in one.labels)


def _day_of(one: Component) -> str:
    """The version as rules write it: of EKS's image the day of the release."""
    if one.name == "al2023-release":
        return one.version.rsplit("-", 1)[-1]
    return one.version
