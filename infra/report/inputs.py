"""Reads inputs of resources: whatever is unknown, absent or of another shape is None or empty, never a mistake."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from infra.report.preview import Resource


def number(value: Any) -> int | None:
    """A whole number, which the engine writes as `2.0`."""
    if isinstance(value, bool):
        return None
    if isinstance(value, int | float) and math.isfinite(value) and value == int(value):
        return int(value)
    return int(value) if isinstance(value, str) and re.fullmatch(r"[0-9]{1,18}", value) else None


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
    """The AWS region of resources: their own, else their provider's, else that of a zone; None where none tells it.

    Args:
        resources: whose region is asked for.
        providers: where their providers are looked for; absent: among them.
    """
    found = list(resources)
    among = found if providers is None else list(providers)
    regions = {
        one.urn: text(one.inputs.get("region")) for one in among if one.type == "pulumi:providers:aws" and one.inputs
    }
    for one in found:
        if one.type.startswith("aws:") and (own := text(one.inputs.get("region"))):
            return own
    for one in found:
        if one.type.startswith("aws:") and (given := regions.get(one.provider.rpartition("::")[0])):
            return given
    if providers is None:
        if given := next(filter(None, regions.values()), None):
            return given
        zones = (text(one.inputs.get("availabilityZone")) for one in found if one.type.startswith("aws:"))
        return next((zone.rstrip("abcdefghij") for zone in zones if zone), None)
    return None


@dataclass(frozen=True)
class Template:
    """What a launch template says of the machines of a pool."""

    instance_type: str
    disks: Sequence[Mapping[str, Any]]
    """`ebs` of the block devices."""
    interfaces: Sequence[Mapping[str, Any]]
    image: str
    """Id of an image of the user's own."""
    placed: bool
    """Its machines are in a placement group."""
    reserved: bool
    """Its machines come from a capacity reservation."""

    @property
    def efa(self) -> int:
        """How many EFA interfaces a machine has."""
        return sum(text(one.get("interfaceType")).startswith("efa") for one in self.interfaces)


def template_of(group: Resource, resources: Iterable[Resource]) -> Template | None:
    """The launch template of a node group; None where it has none, or the one that it has cannot be told.

    Before `up` the template's id is not known: then it is the one template beside the group in the same component.
    """
    named = mapping(group.inputs.get("launchTemplate"))
    if not named:
        return None
    templates = [one for one in resources if one.type == "aws:ec2/launchTemplate:LaunchTemplate"]
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
        interfaces=mappings(inputs.get("networkInterfaces")),
        image=text(inputs.get("imageId")),
        placed=any(mapping(inputs.get("placement")).get(name) is not None for name in ("groupName", "groupId")),
        reserved=bool(mapping(inputs.get("capacityReservationSpecification")).get("capacityReservationTarget")),
    )
