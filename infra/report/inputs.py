"""Reads inputs of resources: whatever is unknown, absent or of another shape is None or empty, never a mistake."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from infra.report.preview import UNKNOWN, Resource

NODE_GROUP = "aws:eks/nodeGroup:NodeGroup"
LAUNCH_TEMPLATE = "aws:ec2/launchTemplate:LaunchTemplate"
POOL_LABEL = "trainyard.dev/pool"
_MOST = 10**18
_ZONE = re.compile(r"([a-z]{2,3}(?:-[a-z]+){1,2}-\d)[a-z]?\b")
_ARN = re.compile(r"arn:[\w-]+:[\w-]+:([a-z]{2,3}(?:-[a-z]+){1,2}-\d):")


def number(value: Any) -> int | None:
    """A whole number, which the engine writes as `2.0`; None also of one that nothing can have so many of."""
    if isinstance(value, str):
        value = int(value) if re.fullmatch(r"[0-9]{1,18}", value) else None
    if not isinstance(value, int | float) or isinstance(value, bool) or not -_MOST < value < _MOST:  # NaN is neither
        return None
    return int(value) if value == int(value) else None


def text(value: Any) -> str:
    """Text; empty where it is none."""
    return value if isinstance(value, str) else ""


def strings(value: Any) -> tuple[str, ...]:
    """The texts of a list."""
    return tuple(one for one in value if isinstance(one, str)) if isinstance(value, list | tuple) else ()


def mapping(value: Any) -> Mapping[str, Any]:
    """A mapping; empty where it is none."""
    return value if isinstance(value, Mapping) else {}


def mappings(value: Any) -> list[Mapping[str, Any]]:
    """The mappings of a list."""
    return [one for one in value if isinstance(one, Mapping)] if isinstance(value, list | tuple) else []


def region_of(resources: Iterable[Resource], providers: Iterable[Resource] | None = None) -> str | None:
    """The AWS region of resources: their own, their provider's, that of an ARN or of a zone; None where none tells it.

    Args:
        resources: whose region is asked for.
        providers: where their providers are looked for; absent: among them, and any provider of AWS is taken.
    """
    found = [one for one in resources if one.type.startswith("aws:") or providers is None]
    among = found if providers is None else providers
    regions = {one.urn: text(one.inputs.get("region")) for one in among if one.type == "pulumi:providers:aws"}
    own = [one for one in found if one.type.startswith("aws:")]
    return next(filter(None, _regions(own, regions, of_any=providers is None)), None)


def _regions(own: Sequence[Resource], of_providers: Mapping[str, str], *, of_any: bool) -> Iterator[str]:
    """What may tell the region, the best first."""
    for one in own:
        yield text(one.inputs.get("region")) or text(one.outputs.get("region"))
    for one in own:
        yield of_providers.get(one.provider.rpartition("::")[0], "")
    if of_any:
        yield from of_providers.values()
    for one in own:
        told = _ARN.match(text(one.outputs.get("arn"))) or _ZONE.match(text(one.inputs.get("availabilityZone")))
        yield told[1] if told else ""


def pool_name(group: Resource) -> str:
    """The name that people know a node group by: its pool's, where the program labels the nodes with it."""
    label = text(mapping(group.inputs.get("labels")).get(POOL_LABEL))
    return label or text(group.inputs.get("nodeGroupName")) or group.name


def pool_names(resources: Iterable[Resource]) -> dict[str, str]:
    """The names of all node groups by URN; several of one name are told apart, so that none hides another."""
    groups = [one for one in resources if one.type == NODE_GROUP]
    named = {one.urn: pool_name(one) for one in groups}
    for longer in (lambda one: f"{pool_name(one)} ({one.name})", lambda one: one.urn):
        often = Counter(named.values())
        named = {one.urn: longer(one) if often[named[one.urn]] > 1 else named[one.urn] for one in groups}
    return named


@dataclass(frozen=True)
class Template:
    """What a launch template says of the machines of a pool."""

    instance_type: str
    disks: Sequence[Mapping[str, Any]]
    """`ebs` of the block devices."""
    efa: int | None
    """EFA interfaces of a machine; None: not known before `up`."""
    image: str
    """Id of an image of the user's own."""
    placed: bool
    """Its machines are in a placement group."""
    reserved: bool
    """Its machines come from a capacity reservation."""


def template_of(group: Resource, resources: Iterable[Resource]) -> Template | None:
    """The launch template of a node group; None where it has none, or the one that it has cannot be told.

    Before `up` the template's id is not known: then it is the one template beside the group in the same component.
    """
    named = mapping(group.inputs.get("launchTemplate"))
    if not named:
        return None
    templates = [one for one in resources if one.type == LAUNCH_TEMPLATE]
    wanted_id, wanted_name = text(named.get("id")), text(named.get("name"))
    found = [
        one
        for one in templates
        if (wanted_id and wanted_id in (one.id, text(one.outputs.get("id"))))
        or (wanted_name and wanted_name == text(one.inputs.get("name")))
    ]
    found = found or [one for one in templates if one.parent and one.parent == group.parent]
    if len(found) != 1:
        return None
    inputs = found[0].inputs
    return Template(
        instance_type=text(inputs.get("instanceType")),
        disks=[mapping(one.get("ebs")) for one in mappings(inputs.get("blockDeviceMappings")) if "ebs" in one],
        efa=_efa(inputs.get("networkInterfaces")),
        image=text(inputs.get("imageId")),
        placed=any(mapping(inputs.get("placement")).get(name) is not None for name in ("groupName", "groupId")),
        reserved=bool(mapping(inputs.get("capacityReservationSpecification")).get("capacityReservationTarget")),
    )


def types_of(group: Resource, template: Template | None) -> tuple[str, ...]:
    """The instance types of a node group in the order of preference; empty: not known."""
    if "instanceTypes" in group.inputs:
        return tuple(filter(None, strings(group.inputs["instanceTypes"])))
    if template:
        return (template.instance_type,) if template.instance_type else ()
    return ("t3.medium",) if "launchTemplate" not in group.inputs else ()  # EKS's own choice


def _efa(interfaces: Any) -> int | None:
    if interfaces is UNKNOWN:
        return None
    return sum(text(one.get("interfaceType")).startswith("efa") for one in mappings(interfaces))
