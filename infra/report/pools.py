"""The node pools among a stack's resources: what they are made of, as it will really be created."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from infra.catalog.instance_types import InstanceType, instance_types
from infra.report.preview import UNKNOWN, Resource

NODE_GROUP = "aws:eks/nodeGroup:NodeGroup"
LAUNCH_TEMPLATE = "aws:ec2/launchTemplate:LaunchTemplate"
POOL_LABEL = "trainyard.dev/pool"
_ZONE = re.compile(r"\b([a-z]{2,3}(?:-[a-z]+){1,2}-\d)[a-z]\b")
_ARN = re.compile(r"^arn:[\w-]+:[\w-]+:([a-z]{2,3}(?:-[a-z]+){1,2}-\d):")


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
    found = list(resources)
    templates = [one for one in found if one.type == LAUNCH_TEMPLATE]
    providers = [one for one in found if one.is_provider]
    made = [_pool(one, templates, providers) for one in found if one.type == NODE_GROUP]
    return tuple(sorted(made, key=lambda pool: (bool(pool.gpus), pool.name)))


def region_of(resource: Resource, providers: Iterable[Resource]) -> str | None:
    """The region that a resource is in: its own, its provider's, or the one in its ARN; None where none is known."""
    for value in (resource.inputs.get("region"), resource.outputs.get("region")):
        if isinstance(value, str) and value:
            return value
    for one in providers:
        if resource.provider.startswith(one.urn) and isinstance(one.inputs.get("region"), str):
            return str(one.inputs["region"])
    for name in ("arn", "id"):
        if found := _ARN.match(str(resource.outputs.get(name, ""))):
            return found[1]
    if found := _ZONE.search(str(resource.inputs.get("availabilityZone", ""))):
        return found[1]
    return None


def _pool(group: Resource, templates: list[Resource], providers: list[Resource]) -> Pool:
    template = _template_of(group, templates)
    of_template = (template.inputs.get("instanceType"),) if template else ()
    listed = group.inputs.get("instanceTypes")
    types = tuple(one for one in (*(listed if isinstance(listed, list) else ()), *of_template) if _is_word(one))
    scaling = group.inputs.get("scalingConfig")
    scaling = scaling if isinstance(scaling, Mapping) else {}
    labels = group.inputs.get("labels")
    named = labels.get(POOL_LABEL) if isinstance(labels, Mapping) else None
    capacity = group.inputs.get("capacityType", "ON_DEMAND")
    return Pool(
        name=_word(named) or _word(group.inputs.get("nodeGroupName")) or group.name,
        urn=group.urn,
        types=types,
        capacity=str(capacity).lower().replace("_", "-") if _is_word(capacity) else "unknown",
        minimum=_whole(scaling.get("minSize")),
        maximum=_whole(scaling.get("maxSize")),
        desired=_whole(scaling.get("desiredSize")),
        machine=instance_types().get(types[0]) if types else None,
        efa=_efa(template),
        ami_type=_word(group.inputs.get("amiType")),
        release=_word(group.inputs.get("releaseVersion")),
        kubernetes=_word(group.inputs.get("version")),
        region=region_of(group, providers),
    )


def _template_of(group: Resource, templates: list[Resource]) -> Resource | None:
    """By what the group names; before that is known, by the component that both belong to."""
    named = group.inputs.get("launchTemplate")
    named = named if isinstance(named, Mapping) else {}
    for one in templates:
        if _is_word(named.get("id")) and named["id"] in {one.id, one.outputs.get("id")}:
            return one
        if _is_word(named.get("name")) and named["name"] == one.inputs.get("name"):
            return one
    beside = [one for one in templates if one.parent and one.parent == group.parent]
    return beside[0] if named and len(beside) == 1 else None


def _efa(template: Resource | None) -> int | None:
    if template is None:
        return None
    interfaces = template.inputs.get("networkInterfaces")
    if interfaces is UNKNOWN:
        return None
    kinds = [one.get("interfaceType") for one in interfaces or () if isinstance(one, Mapping)]
    return sum(kind in {"efa", "efa-only"} for kind in kinds)


def _is_word(value: Any) -> bool:
    return isinstance(value, str) and bool(value)


def _word(value: Any) -> str:
    return value if isinstance(value, str) else ""


def _whole(value: Any) -> int | None:
    if isinstance(value, bool):
        return None
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, str) and value.isdigit():
        return int(value)
    return value if isinstance(value, int) else None
