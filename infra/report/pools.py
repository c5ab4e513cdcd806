"""The node pools among a stack's resources: what they are made of, as it will really be created."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from infra.catalog.instance_types import InstanceType, instance_types
from infra.report.inputs import (
    LAUNCH_TEMPLATE,
    NODE_GROUP,
    mapping,
    number,
    pool_names,
    region_of,
    template_of,
    text,
    types_of,
)
from infra.report.preview import Resource


@dataclass(frozen=True)
class Pool:
    """One managed node group. What is None is known only after `up`, or not in the catalogue."""

    name: str
    urn: str
    types: tuple[str, ...]
    """Instance types in the order of preference; empty: unknown."""
    capacity: str
    """`on-demand`, `spot`, `capacity-block`, `unknown`."""
    minimum: int | None
    maximum: int | None
    desired: int | None
    machine: InstanceType | None
    """The first type, as the catalogue knows it: the autoscaler reckons with it."""
    efa: int | None
    """EFA interfaces of a machine, by the launch template; None where it is not to be seen."""
    ami_type: str
    release: str
    kubernetes: str
    region: str | None

    @property
    def gpus(self) -> int | None:
        """GPUs of one machine."""
        return self.machine.gpus if self.machine else None

    @property
    def gpus_at_max(self) -> int | None:
        """GPUs of the whole pool."""
        return None if self.gpus is None or self.maximum is None else self.gpus * self.maximum


def pools(resources: Iterable[Resource]) -> tuple[Pool, ...]:
    """The pools among resources, in the order of their names; machines without GPUs first."""
    needed = [one for one in resources if one.is_provider or one.type in {NODE_GROUP, LAUNCH_TEMPLATE}]
    names = pool_names(needed)
    made = [_pool(one, names[one.urn], needed) for one in needed if one.type == NODE_GROUP]
    return tuple(sorted(made, key=lambda pool: (bool(pool.gpus), pool.name)))


def _pool(group: Resource, name: str, around: list[Resource]) -> Pool:
    template = template_of(group, around)
    types = types_of(group, template)
    scaling = mapping(group.inputs.get("scalingConfig"))
    return Pool(
        name=name,
        urn=group.urn,
        types=types,
        capacity=text(group.inputs.get("capacityType", "ON_DEMAND")).lower().replace("_", "-") or "unknown",
        minimum=number(scaling.get("minSize")),
        maximum=number(scaling.get("maxSize")),
        desired=number(scaling.get("desiredSize")),
        machine=instance_types().get(types[0]) if types else None,
        efa=template.efa if template else None,
        ami_type=text(group.inputs.get("amiType")),
        release=text(group.inputs.get("releaseVersion")),
        kubernetes=text(group.inputs.get("version")),
        region=region_of([group], around),
    )
