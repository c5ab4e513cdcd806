"""Resources as reports see them: of a recorded run of the program, and small ones made by hand."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from recorded_program import Recorded

from infra.report.preview import Resource

REGION = "us-east-2"
PROVIDER = "urn:pulumi:dev::trainyard::pulumi:providers:aws::aws"


def resources_of(recorded: Recorded) -> tuple[Resource, ...]:
    """What a run of the program asked for, as a preview has it after the change."""
    return tuple(
        Resource(
            urn=each.urn,
            type=each.type,
            name=each.name,
            inputs=each.inputs,
            id="" if each.type.startswith("trainyard:") else f"{each.name}-id",
            parent=each.parent or None,
            provider=each.provider,
            protect=each.protect,
            custom=not each.type.startswith("trainyard:"),
        )
        for each in recorded.resources
    )


def resource(kind: str, name: str, inputs: Mapping[str, Any] | None = None, *, parent: str | None = None) -> Resource:
    """A resource: `resource("aws:kms/key:Key", "key")`."""
    return Resource(
        urn=f"urn:pulumi:dev::trainyard::{kind}::{name}",
        type=kind,
        name=name,
        inputs=inputs or {},
        id=f"{name}-id",
        parent=parent,
        provider=f"{PROVIDER}::aws-id" if kind.startswith("aws:") else "",
        custom=not kind.startswith("trainyard:"),
    )


def provider(region: object = REGION) -> Resource:
    """The AWS provider of a stack."""
    return Resource(urn=PROVIDER, type="pulumi:providers:aws", name="aws", inputs={"region": region}, id="aws-id")


def pool(
    name: str = "gpu",
    *types: str,
    low: object = 0.0,
    high: object = 4.0,
    capacity: str = "ON_DEMAND",
    gib: float | None = 100.0,
    **more: Any,
) -> tuple[Resource, ...]:
    """A node group with its launch template, as the program makes them."""
    component = f"urn:pulumi:dev::trainyard::trainyard:aws:NodePool::{name}"
    disks = [] if gib is None else [{"deviceName": "/dev/xvda", "ebs": {"volumeType": "gp3", "volumeSize": gib}}]
    return (
        resource("aws:ec2/launchTemplate:LaunchTemplate", name, {"blockDeviceMappings": disks}, parent=component),
        resource(
            "aws:eks/nodeGroup:NodeGroup",
            f"{name}-nodes",
            {
                "nodeGroupName": name,
                "instanceTypes": list(types or ("g6.xlarge",)),
                "capacityType": capacity,
                "scalingConfig": {"minSize": low, "maxSize": high, "desiredSize": low},
                "launchTemplate": {"id": f"{name}-id", "version": "1"},
                **more,
            },
            parent=component,
        ),
    )
