"""EKS managed node groups, held against their launch template and the catalogue of instance types."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from infra.rehearsal.double.aws import Aws, AwsRefusedError
from infra.rehearsal.double.ec2_resource import GONE
from infra.rehearsal.double.eks_common import (
    ABSENT,
    CLUSTERS,
    NODE_GROUPS,
    require_cluster,
    retag,
    role_rules,
    zones_of,
)
from infra.rehearsal.double.kind import Call, Failure, Kind, Made, only, whole_or_gone
from infra.rehearsal.double.launch_templates import interface_mistakes
from infra.rehearsal.double.validation import model
from infra.rehearsal.double.values import UNKNOWN, has_unknown, is_known

if TYPE_CHECKING:
    from infra.rehearsal.nodes import Group

TAINTS_MAX = 50  # https://docs.aws.amazon.com/eks/latest/userguide/node-taints-managed-node-groups.html


class NodeGroup(Kind):
    """A managed node group; its machines appear as simulated nodes in the rehearsal's cluster."""

    token = "aws:eks/nodeGroup:NodeGroup"  # noqa: S105
    replace_on = frozenset({
        "amiType", "capacityType", "clusterName", "diskSize", "instanceTypes", "launchTemplate.id",
        "launchTemplate.name", "nodeGroupName", "nodeRoleArn", "remoteAccess", "subnetIds",
    })  # fmt: skip
    computed = frozenset({"arn", "releaseVersion", "resources", "status", "version"})
    for_provider = frozenset({"forceUpdateVersion"})

    def requests(self, inputs: Mapping[str, Any]) -> list[Call]:  # noqa: D102
        request = only(
            clusterName=inputs.get("clusterName"),
            nodegroupName=inputs.get("nodeGroupName"),
            nodeRole=inputs.get("nodeRoleArn"),
            subnets=inputs.get("subnetIds"),
            diskSize=inputs.get("diskSize"),
            instanceTypes=inputs.get("instanceTypes"),
            launchTemplate=inputs.get("launchTemplate"),
            amiType=inputs.get("amiType"),
            capacityType=inputs.get("capacityType"),
            version=inputs.get("version"),
            releaseVersion=inputs.get("releaseVersion"),
            remoteAccess=inputs.get("remoteAccess"),
            tags=inputs.get("tags") or None,  # AWS takes no empty ones
            **_adjustable(inputs),
        )
        names = {"nodegroupName": "nodeGroupName", "nodeRole": "nodeRoleArn", "subnets": "subnetIds"}
        return [Call("eks", "CreateNodegroup", request, names)]

    def rules(self, inputs: Mapping[str, Any], aws: Aws) -> Iterable[Failure]:  # noqa: D102
        template = template_of(aws, inputs)
        yield from _size_rules(inputs)
        yield from _taint_rules(inputs)
        yield from _type_rules(inputs, template)
        yield from _template_rules(inputs, template)
        yield from _fabric_rules(aws, inputs, template)
        yield from role_rules(aws, "nodeRoleArn", inputs.get("nodeRoleArn"))

    def known(self, inputs: Mapping[str, Any], aws: Aws) -> Mapping[str, Any]:  # noqa: ARG002, D102
        return {"capacityType": inputs.get("capacityType", "ON_DEMAND")}

    def create(self, aws: Aws, name: str, inputs: Mapping[str, Any]) -> Made:  # noqa: ARG002, D102
        cluster, group = inputs["clusterName"], inputs["nodeGroupName"]
        require_cluster(aws, cluster)
        request = dict(self.requests(inputs)[0].params)
        made = aws.call("eks", "CreateNodegroup", **request)["nodegroup"]
        # moto's creation takes neither of these, its update does.
        later = {key: request[key] for key in ("updateConfig", "nodeRepairConfig") if key in request}
        with whole_or_gone(self, aws, f"{cluster}:{group}", inputs):
            aws.call("eks", "UpdateNodegroupConfig", clusterName=cluster, nodegroupName=group, **later)
            _set_nodes(aws, inputs)
        suffix = made["nodegroupArn"].rpartition("/")[2]
        version = inputs.get("version") or (aws.book.get(CLUSTERS, cluster) or {}).get("version")
        outputs = {
            "arn": made["nodegroupArn"],
            "capacityType": inputs.get("capacityType", "ON_DEMAND"),
            "resources": [{"autoscalingGroups": [{"name": f"eks-{group}-{suffix}"}]}],
            "status": "ACTIVE",
            "version": version,
            "releaseVersion": inputs.get("releaseVersion"),
        }
        aws.book.put(NODE_GROUPS, f"{cluster}:{group}", {**inputs, **outputs})
        return Made(f"{cluster}:{group}", outputs)

    def read(self, aws: Aws, id: str, state: Mapping[str, Any]) -> Mapping[str, Any] | None:  # noqa: A002, ARG002, D102
        cluster, _, group = id.partition(":")
        answer = aws.call("eks", "DescribeNodegroup", absent=ABSENT, clusterName=cluster, nodegroupName=group)
        record = aws.book.get(NODE_GROUPS, id)
        if not answer or record is None:
            return None
        found = answer["nodegroup"]
        if _as_set(record.get("taints")) == _as_set(found.get("taints")):
            found["taints"] = record.get("taints")  # to EKS they are a set: the program's order is as good as any
        seen = {
            "scalingConfig": found["scalingConfig"],
            "labels": found.get("labels") or {},
            "taints": found.get("taints") or [],
            "tags": found.get("tags") or {},
        }
        return {**record, **{key: value for key, value in seen.items() if value or key in record}}

    def update(self, aws: Aws, id: str, old: Mapping[str, Any], new: Mapping[str, Any]) -> Mapping[str, Any]:  # noqa: A002
        """Sizes, labels and taints of machines that run; another version of the template replaces the machines."""
        cluster, group = new["clusterName"], new["nodeGroupName"]
        place = {"clusterName": cluster, "nodegroupName": group}
        changes = _group_changes(old, new)
        if changes:
            aws.call("eks", "UpdateNodegroupConfig", **place, **changes)
        if any(old.get(key) != new.get(key) for key in ("launchTemplate", "releaseVersion", "version")):
            # moto has no such operation; the request must be right all the same.
            versions = {key: new.get(key) for key in ("launchTemplate", "releaseVersion", "version")}
            aws.checked("eks", "UpdateNodegroupVersion", **place, **versions, force=new.get("forceUpdateVersion"))
        retag(aws, old["arn"], old, new)
        _set_nodes(aws, new)
        record = aws.book.get(NODE_GROUPS, id) or {}
        gone = {key for key in ("labels", "taints", "tags") if key not in new}
        aws.book.put(NODE_GROUPS, id, {**{k: v for k, v in record.items() if k not in gone}, **new})
        return {}

    def delete(self, aws: Aws, id: str, state: Mapping[str, Any]) -> None:  # noqa: A002, ARG002, D102
        cluster, _, group = id.partition(":")
        aws.call("eks", "DeleteNodegroup", absent=ABSENT, clusterName=cluster, nodegroupName=group)
        aws.book.drop(NODE_GROUPS, id)
        if aws.nodes:  # last: where the cluster does not answer, the group is gone all the same
            aws.nodes.remove_nodes(aws.connection, group)


def template_of(aws: Aws, inputs: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """EC2's data of a node group's launch template; None where there is none, or it is not known yet.

    Raises:
        AwsRefusedError: there is no such version of the template.
    """
    reference = inputs.get("launchTemplate")
    if reference is None or has_unknown(reference) or reference.get("version") is None:
        return None
    if (reference.get("id") is None) == (reference.get("name") is None):
        return None  # names no template: a rule of its own says so
    answer = aws.call(
        "ec2",
        "DescribeLaunchTemplateVersions",
        absent=GONE,
        LaunchTemplateId=reference.get("id"),
        LaunchTemplateName=reference.get("name"),
        Versions=[reference["version"]],
    )
    data: Mapping[str, Any] | None = answer["LaunchTemplateVersions"][0]["LaunchTemplateData"] if answer else None
    return data


def _size_rules(inputs: Mapping[str, Any]) -> Iterator[Failure]:
    sizes = inputs.get("scalingConfig")
    if sizes is None:
        yield Failure("scalingConfig", "minSize, maxSize and desiredSize are needed")
        return
    least, most, now = (sizes.get(key) for key in ("minSize", "maxSize", "desiredSize"))
    if isinstance(least, int) and isinstance(most, int) and least > most:
        yield Failure("scalingConfig.minSize", f"minSize {least} is above maxSize {most}")
    elif isinstance(least, int) and isinstance(most, int) and isinstance(now, int) and not least <= now <= most:
        yield Failure(
            "scalingConfig.desiredSize",
            f"desiredSize {now} is not between {least} and {most}. Where the autoscaler chose it, set it before the"
            " limits: aws eks update-nodegroup-config --scaling-config minSize=…,desiredSize=…, then pulumi refresh",
        )
    update = inputs.get("updateConfig") or {}
    if all(is_known(update.get(limit)) for limit in ("maxUnavailable", "maxUnavailablePercentage")):
        yield Failure("updateConfig", "either maxUnavailable or maxUnavailablePercentage, not both")


def _taint_rules(inputs: Mapping[str, Any]) -> Iterator[Failure]:
    taints = inputs.get("taints") or []
    if taints is UNKNOWN:
        return
    if len(taints) > TAINTS_MAX:
        yield Failure("taints", f"{len(taints)} taints; EKS takes {TAINTS_MAX}")
    seen = [(taint.get("key"), taint.get("effect")) for taint in taints]
    for index, place in enumerate(seen):
        if place in seen[:index] and UNKNOWN not in place:
            yield Failure(f"taints[{index}]", f"{place[0]} has the effect {place[1]} already")


def _type_rules(inputs: Mapping[str, Any], template: Mapping[str, Any] | None) -> Iterator[Failure]:
    types, capacity = inputs.get("instanceTypes"), inputs.get("capacityType")
    given = isinstance(types, list) and bool(types)
    sold = model("ec2").shape_for("InstanceType").enum
    for index, name in enumerate(types or []):
        if isinstance(name, str) and name not in sold:
            yield Failure(f"instanceTypes[{index}]", f"EC2 has no instance type {name}")
    if capacity == "CAPACITY_BLOCK":
        if given:
            yield Failure("instanceTypes", "a capacity block's instance type stands in the launch template")
        if inputs.get("launchTemplate") is None:
            yield Failure("launchTemplate", "a capacity block needs a launch template with its reservation")
    if template is None:
        return
    if given and template.get("InstanceType"):
        yield Failure("instanceTypes", f"the launch template has an instance type already: {template['InstanceType']}")
    if not types and not template.get("InstanceType") and capacity not in {"CAPACITY_BLOCK", UNKNOWN}:
        yield Failure(
            "instanceTypes", "neither the node group nor its launch template has an instance type: EKS takes t3.medium"
        )


def _template_rules(inputs: Mapping[str, Any], template: Mapping[str, Any] | None) -> Iterator[Failure]:
    if inputs.get("launchTemplate") is None:
        return
    for key in ("diskSize", "remoteAccess"):
        if is_known(inputs.get(key)):
            yield Failure(key, "with a launch template this stands in the template")
    reference = inputs["launchTemplate"]
    if reference is not UNKNOWN and (reference.get("id") is None) == (reference.get("name") is None):
        yield Failure("launchTemplate", "the template is named by exactly one of id and name")
    if template is None:
        return
    if template.get("ImageId"):
        for key in ("amiType", "releaseVersion", "version"):
            if is_known(inputs.get(key)):
                yield Failure(key, "the launch template names an image of its own, which decides this")
    market = (template.get("InstanceMarketOptions") or {}).get("MarketType")
    if inputs.get("capacityType") == "CAPACITY_BLOCK":
        if market != "capacity-block":
            yield Failure("capacityType", "the launch template of a capacity block has the market type capacity-block")
    elif market == "capacity-block" and inputs.get("capacityType") is not UNKNOWN:
        yield Failure("capacityType", "a launch template with market type capacity-block needs CAPACITY_BLOCK here")
    if inputs.get("capacityType") == "SPOT" and template.get("CapacityReservationSpecification"):
        yield Failure("capacityType", "spot machines use no capacity reservation")


def _fabric_rules(aws: Aws, inputs: Mapping[str, Any], template: Mapping[str, Any] | None) -> Iterator[Failure]:
    """Interfaces fit the machines, and machines with EFA stand in one zone: EFA is not routed."""
    interfaces = (template or {}).get("NetworkInterfaces") or []
    if not interfaces:
        return
    plain = [
        {key[0].lower() + key[1:]: interface.get(key) for key in ("NetworkCardIndex", "DeviceIndex", "InterfaceType")}
        for interface in interfaces
    ]
    for name in inputs.get("instanceTypes") or []:
        if isinstance(name, str):
            for index, reason in interface_mistakes(name, plain):
                yield Failure("instanceTypes", f"interface {index} of the launch template: {reason}")
    subnets = inputs.get("subnetIds")
    if not _has_efa(template) or subnets is None or subnets is UNKNOWN:
        return
    zones = sorted(set(zones_of(aws, subnets) or []))
    if len(zones) > 1 or (len(subnets) > 1 and not zones):
        where = f" ({', '.join(zones)})" if zones else ""
        yield Failure("subnetIds", f"machines with EFA stand in one zone, and these are {len(subnets)} subnets{where}")


def _set_nodes(aws: Aws, inputs: Mapping[str, Any]) -> None:
    """Let the rehearsal's cluster have the machines that EKS would start for this group."""
    if aws.nodes is None:
        return
    template = template_of(aws, inputs) or {}
    types = inputs.get("instanceTypes") or [template.get("InstanceType") or "t3.medium"]
    zones = zones_of(aws, inputs["subnetIds"])
    if not zones:
        raise AwsRefusedError(f"AWS would refuse this: there are no subnets {', '.join(inputs['subnetIds'])}")
    group: Group = {
        "name": inputs["nodeGroupName"],
        "instanceType": types[0],
        "capacityType": inputs.get("capacityType", "ON_DEMAND"),
        "labels": inputs.get("labels") or {},
        "taints": inputs.get("taints") or [],
        "zones": zones,
        "efa": _has_efa(template),
    }
    disks = [mapping.get("Ebs", {}).get("VolumeSize") for mapping in template.get("BlockDeviceMappings", [])]
    if disk := inputs.get("diskSize") or max((size for size in disks if size), default=None):
        group["diskGib"] = disk
    aws.nodes.set_nodes(aws.connection, group, inputs["scalingConfig"]["desiredSize"])


def _group_changes(old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, Any]:
    """`UpdateNodegroupConfig`'s members for what differs: labels and taints are added and removed one by one."""
    changes: dict[str, Any] = {}
    before, after = old.get("labels") or {}, new.get("labels") or {}
    if before != after:
        changes["labels"] = only(
            addOrUpdateLabels={key: value for key, value in after.items() if before.get(key) != value} or None,
            removeLabels=[key for key in before if key not in after] or None,
        )
    had, has = old.get("taints") or [], new.get("taints") or []
    if had != has:
        places = [(taint["key"], taint["effect"]) for taint in has]
        changes["taints"] = only(
            addOrUpdateTaints=[taint for taint in has if taint not in had] or None,
            removeTaints=[taint for taint in had if (taint["key"], taint["effect"]) not in places] or None,
        )
    for key in ("scalingConfig", "updateConfig", "nodeRepairConfig"):
        if old.get(key) != new.get(key) and new.get(key) is not None:
            changes[key] = _adjustable(new)[key]
    return changes


def _adjustable(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """What a node group may change while it runs, in EKS's names."""
    return only(
        scalingConfig=inputs.get("scalingConfig"),
        labels=inputs.get("labels") or None,
        taints=inputs.get("taints"),
        updateConfig=inputs.get("updateConfig"),
        nodeRepairConfig=inputs.get("nodeRepairConfig"),
    )


def _as_set(taints: Any) -> set[tuple[Any, ...]]:
    return {(taint["key"], taint.get("value"), taint["effect"]) for taint in taints or []}


def _has_efa(template: Mapping[str, Any] | None) -> bool:
    interfaces = (template or {}).get("NetworkInterfaces") or []
    return any(interface.get("InterfaceType") in {"efa", "efa-only"} for interface in interfaces)


KINDS: tuple[Kind, ...] = (NodeGroup(),)
