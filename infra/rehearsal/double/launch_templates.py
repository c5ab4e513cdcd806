"""Launch templates and placement groups.

A template of a rehearsed stack is always one of an EKS managed node group, so it is held against EKS's rules as well
(https://docs.aws.amazon.com/eks/latest/userguide/launch-templates.html): EKS tells of these only when the node group is
made, which is long after the preview.
"""

from __future__ import annotations

import base64
import binascii
import secrets
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from infra.catalog.instance_types import UnknownInstanceTypeError, instance_type
from infra.rehearsal.double.aws import Aws, AwsRefusedError
from infra.rehearsal.double.ec2_resource import GONE, Ec2Kind, retag
from infra.rehearsal.double.kind import Call, Failure, Kind, Made, only
from infra.rehearsal.double.tags import tag_list
from infra.rehearsal.double.values import UNKNOWN, is_known

USER_DATA_BYTES = 16384
"""Before it is encoded, https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/user-data.html."""

# Where Pulumi's name of a member isn't the camelCase of EC2's.
_RENAMED = {
    "vpcSecurityGroupIds": "SecurityGroupIds",
    "securityGroupNames": "SecurityGroups",
    "securityGroups": "Groups",
}
_NAMES = {
    "LaunchTemplateName": "name", "VersionDescription": "description", "SecurityGroupIds": "vpcSecurityGroupIds",
    "Groups": "securityGroups",
}  # fmt: skip
# Yes and no that Pulumi's provider takes as text, since they may also be left open.
_BOOLEANS = frozenset({
    "associateCarrierIpAddress", "associatePublicIpAddress", "deleteOnTermination", "ebsOptimized", "encrypted",
    "primaryIpv6",
})  # fmt: skip
_INTERFACE_TYPES = ("interface", "efa", "efa-only")


class LaunchTemplate(Ec2Kind):
    """What a machine is started with; a change makes a new version of it, in place."""

    token = "aws:ec2/launchTemplate:LaunchTemplate"  # noqa: S105
    resource_type = "launch-template"
    describe = ("DescribeLaunchTemplates", "LaunchTemplateIds", "LaunchTemplates")
    replace_on = frozenset({"name"})
    computed = frozenset({"arn", "defaultVersion", "latestVersion"})
    recomputed = frozenset({"defaultVersion", "latestVersion"})

    def requests(self, inputs: Mapping[str, Any]) -> list[Call]:  # noqa: D102
        request = only(
            LaunchTemplateName=inputs.get("name"),
            VersionDescription=inputs.get("description"),
            LaunchTemplateData=template_data(inputs),
            TagSpecifications=self.tag_specifications(inputs),
        )
        return [Call("ec2", "CreateLaunchTemplate", request, _NAMES)]

    def rules(self, inputs: Mapping[str, Any], aws: Aws) -> Iterable[Failure]:  # noqa: ARG002, D102
        yield from _eks_rules(inputs)
        yield from _network_rules(inputs)
        yield from _reservation_rules(inputs)
        yield from _user_data_rules(inputs.get("userData"))
        follows, given = inputs.get("updateDefaultVersion"), inputs.get("defaultVersion")
        if follows is True and is_known(given):
            yield Failure("defaultVersion", "the default version is either given or follows the latest, not both")

    def create(self, aws: Aws, name: str, inputs: Mapping[str, Any]) -> Made:  # noqa: ARG002, D102
        made = aws.run(self.requests(inputs)[0])["LaunchTemplate"]
        return Made(made["LaunchTemplateId"], self.seen(aws, made))

    def seen(self, aws: Aws, item: Mapping[str, Any]) -> dict[str, Any]:  # noqa: D102
        return {
            "arn": self.arn(aws, item["LaunchTemplateId"]),
            "name": item["LaunchTemplateName"],
            "latestVersion": item["LatestVersionNumber"],
            "defaultVersion": item["DefaultVersionNumber"],
        }

    def update(self, aws: Aws, id: str, old: Mapping[str, Any], new: Mapping[str, Any]) -> Mapping[str, Any]:  # noqa: A002
        """A new version where the template differs; the default version follows where the program says so."""
        before = (template_data(old), old.get("description"))
        if before != (template_data(new), new.get("description")):
            version = aws.call(
                "ec2",
                "CreateLaunchTemplateVersion",
                LaunchTemplateId=id,
                VersionDescription=new.get("description"),
                LaunchTemplateData=template_data(new),
            )["LaunchTemplateVersion"]["VersionNumber"]
        else:
            version = old["latestVersion"]
        default = version if new.get("updateDefaultVersion") else new.get("defaultVersion")
        if default is not None:
            aws.call("ec2", "ModifyLaunchTemplate", LaunchTemplateId=id, DefaultVersion=str(default))
        retag(aws, id, old, new)
        found = self.find(aws, id)
        if found is None:
            raise AwsRefusedError(
                f"the launch template {id} is gone. Take that over into the state: pulumi refresh, then up again"
            )
        return self.seen(aws, found)

    def delete(self, aws: Aws, id: str, state: Mapping[str, Any]) -> None:  # noqa: A002, ARG002, D102
        aws.call("ec2", "DeleteLaunchTemplate", absent=GONE, LaunchTemplateId=id)


class PlacementGroup(Kind):
    """Machines close together. moto has none, so they are in the book."""

    token = "aws:ec2/placementGroup:PlacementGroup"  # noqa: S105
    replace_on = frozenset({"name", "strategy", "partitionCount"})
    computed = frozenset({"placementGroupId"})
    BOOK = "placement-group"

    def requests(self, inputs: Mapping[str, Any]) -> list[Call]:  # noqa: D102
        tags = tag_list(inputs.get("tags"))
        request = only(
            GroupName=inputs.get("name"),
            Strategy=inputs.get("strategy"),
            PartitionCount=inputs.get("partitionCount"),
            TagSpecifications=None if tags is None else [{"ResourceType": "placement-group", "Tags": tags}],
        )
        return [Call("ec2", "CreatePlacementGroup", request, {"GroupName": "name"})]

    def rules(self, inputs: Mapping[str, Any], aws: Aws) -> Iterable[Failure]:  # noqa: ARG002, D102
        if inputs.get("name") is None:
            yield Failure("name", "the group needs a name")
        if inputs.get("strategy") is None:
            yield Failure("strategy", "cluster, partition or spread is needed")
        if inputs.get("partitionCount") is not None and inputs.get("strategy") not in {"partition", UNKNOWN}:
            yield Failure("partitionCount", "only groups with the strategy partition have partitions")

    def known(self, inputs: Mapping[str, Any], aws: Aws) -> Mapping[str, Any]:  # noqa: D102
        name = inputs.get("name")
        return {"arn": name if name is UNKNOWN else aws.arn("ec2", f"placement-group/{name}")}

    def create(self, aws: Aws, name: str, inputs: Mapping[str, Any]) -> Made:  # noqa: ARG002, D102
        if aws.book.get(self.BOOK, inputs["name"]):
            raise AwsRefusedError(
                f"AWS refused ec2:CreatePlacementGroup with InvalidPlacementGroup.Duplicate: there is a placement group"
                f" {inputs['name']} already. Give it another name, or delete that one",
                "InvalidPlacementGroup.Duplicate",
            )
        group = {**inputs, "placementGroupId": f"pg-{secrets.token_hex(9)[:17]}"}
        aws.book.put(self.BOOK, inputs["name"], group)
        return Made(inputs["name"], group)

    def read(self, aws: Aws, id: str, state: Mapping[str, Any]) -> Mapping[str, Any] | None:  # noqa: A002, ARG002, D102
        return aws.book.get(self.BOOK, id)

    def update(self, aws: Aws, id: str, old: Mapping[str, Any], new: Mapping[str, Any]) -> Mapping[str, Any]:  # noqa: A002, D102
        aws.book.put(self.BOOK, id, {**new, "placementGroupId": old["placementGroupId"]})
        return {}

    def delete(self, aws: Aws, id: str, state: Mapping[str, Any]) -> None:  # noqa: A002, ARG002, D102
        aws.book.drop(self.BOOK, id)


def template_data(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """EC2's `LaunchTemplateData` of the inputs of a template."""
    data = {
        _RENAMED.get(key, _pascal(key)): _data(key, value) for key in _INPUTS if (value := inputs.get(key)) is not None
    }
    specifications = inputs.get("tagSpecifications")
    if specifications is not None:
        data["TagSpecifications"] = [
            only(ResourceType=each.get("resourceType"), Tags=tag_list(each.get("tags"))) for each in specifications
        ]
    return data


def interface_mistakes(type_name: str, interfaces: Sequence[Mapping[str, Any]]) -> Iterator[tuple[int, str]]:
    """What EC2 has against these interfaces on a machine of this type, each with the index of the interface.

    Args:
        type_name: instance type; one that the catalogue does not have is not looked at.
        interfaces: with `networkCardIndex`, `deviceIndex` and `interfaceType`.
    """
    try:
        machine = instance_type(type_name)
    except UnknownInstanceTypeError:
        return
    on_card: Counter[int] = Counter()
    efa = 0
    for index, interface in enumerate(interfaces):
        card, place = interface.get("networkCardIndex") or 0, interface.get("deviceIndex") or 0
        kind = interface.get("interfaceType") or "interface"
        if UNKNOWN in {card, place, kind}:
            continue
        if not 0 <= card < len(machine.cards):
            yield (
                index,
                f"{type_name} has {len(machine.cards)} network cards (0 to {len(machine.cards) - 1}), no {card}",
            )
            continue
        on_card[card] += 1
        if on_card[card] == machine.cards[card].interfaces + 1:
            most = machine.cards[card].interfaces
            yield index, f"{type_name} takes {most} interfaces on network card {card}, and this is one more"
        if machine.device_index_max is not None and place > machine.device_index_max:
            yield index, f"{type_name} takes device indices up to {machine.device_index_max}, not {place}"
        if kind in {"efa", "efa-only"}:
            efa += 1
            if not machine.cards[card].efa:
                yield index, f"network card {card} of {type_name} has no EFA"
            if efa == machine.efa + 1:
                yield index, f"{type_name} takes {machine.efa} EFA interfaces, and this is one more"


def _eks_rules(inputs: Mapping[str, Any]) -> Iterator[Failure]:
    for key in ("iamInstanceProfile", "instanceInitiatedShutdownBehavior"):
        if is_known(inputs.get(key)):
            yield Failure(key, "EKS takes no template that sets this: it belongs to the node group")
    if (inputs.get("hibernationOptions") or {}).get("configured") is True:
        yield Failure("hibernationOptions.configured", "EKS takes no template with hibernation")
    if (inputs.get("instanceMarketOptions") or {}).get("marketType") == "spot":
        yield Failure(
            "instanceMarketOptions.marketType",
            "EKS takes no template with spot options: spot is the node group's capacityType",
        )
    for index, interface in enumerate(inputs.get("networkInterfaces") or []):
        if is_known(interface.get("subnetId")):
            yield Failure(
                f"networkInterfaces[{index}].subnetId", "EKS takes no template with subnets: they are the node group's"
            )


def _network_rules(inputs: Mapping[str, Any]) -> Iterator[Failure]:
    interfaces = inputs.get("networkInterfaces") or []
    if interfaces is UNKNOWN or not interfaces:
        return
    for key in ("vpcSecurityGroupIds", "securityGroupNames"):
        if is_known(inputs.get(key)) and inputs[key]:
            yield Failure(key, "with networkInterfaces, security groups stand on the interfaces, none at the top")
    places = [(i.get("networkCardIndex") or 0, i.get("deviceIndex") or 0) for i in interfaces]
    if (0, 0) not in places and not any(UNKNOWN in place for place in places):
        yield Failure("networkInterfaces", "there is no primary interface: network card 0, device index 0")
    for index, (interface, place) in enumerate(zip(interfaces, places, strict=True)):
        where = f"networkInterfaces[{index}]"
        kind = interface.get("interfaceType") or "interface"
        if kind is not UNKNOWN and kind not in _INTERFACE_TYPES:
            yield Failure(f"{where}.interfaceType", f"{kind!r} is not one of {', '.join(_INTERFACE_TYPES)}")
        if kind == "efa-only" and place == (0, 0):
            yield Failure(
                f"{where}.interfaceType", "the primary interface carries the IP address and can't be efa-only"
            )
        if UNKNOWN not in place and place in places[:index]:
            yield Failure(where, f"card {place[0]} has another interface with device index {place[1]}")
        if _yes(interface.get("associatePublicIpAddress")) and len(interfaces) > 1:
            yield Failure(
                f"{where}.associatePublicIpAddress", "a machine with several interfaces gets no public address this way"
            )
    type_name = inputs.get("instanceType")
    if isinstance(type_name, str):
        for index, reason in interface_mistakes(type_name, interfaces):
            yield Failure(f"networkInterfaces[{index}]", reason)


def _reservation_rules(inputs: Mapping[str, Any]) -> Iterator[Failure]:
    specification = inputs.get("capacityReservationSpecification") or {}
    target = specification.get("capacityReservationTarget") or {}
    reserved = target.get("capacityReservationId") or target.get("capacityReservationResourceGroupArn")
    placement = inputs.get("placement") or {}
    if is_known(reserved) and any(is_known(placement.get(key)) for key in ("groupName", "groupId")):
        yield Failure(
            "placement.groupName",
            "machines of a reservation don't fit into a placement group that the reservation was not made in:"
            " EC2 would find no capacity (eksctl issue 7949). Leave one of both out",
        )
    if (inputs.get("instanceMarketOptions") or {}).get("marketType") == "capacity-block":
        if not reserved:
            yield Failure("capacityReservationSpecification", "a capacity block needs the id of its reservation")
        if inputs.get("instanceType") is None:
            yield Failure("instanceType", "the template of a capacity block names the instance type")


def _user_data_rules(user_data: Any) -> Iterator[Failure]:
    if not isinstance(user_data, str):
        return
    try:
        size = len(base64.b64decode(user_data, validate=True))
    except binascii.Error:
        yield Failure("userData", "user data must be encoded as base64")
        return
    if size > USER_DATA_BYTES:
        yield Failure("userData", f"user data has {size} bytes; EC2 takes {USER_DATA_BYTES}")


def _data(key: str, value: Any) -> Any:
    if isinstance(value, Mapping):
        return {_RENAMED.get(k, _pascal(k)): _data(k, v) for k, v in value.items() if v is not None}
    if isinstance(value, list | tuple):
        return [_data(key, item) for item in value]
    if key in _BOOLEANS and value in {"true", "false"}:
        return value == "true"
    return value


def _pascal(key: str) -> str:
    return key[:1].upper() + key[1:]


def _yes(value: Any) -> bool:
    return value is True or value == "true"


# Inputs of a template that are members of its data; what the program gives beside these is refused as unknown.
_INPUTS = frozenset({
    "blockDeviceMappings", "capacityReservationSpecification", "cpuOptions", "creditSpecification", "disableApiStop",
    "disableApiTermination", "ebsOptimized", "enclaveOptions", "hibernationOptions", "iamInstanceProfile", "imageId",
    "instanceInitiatedShutdownBehavior", "instanceMarketOptions", "instanceRequirements", "instanceType", "kernelId",
    "keyName", "licenseSpecifications", "maintenanceOptions", "metadataOptions", "monitoring", "networkInterfaces",
    "networkPerformanceOptions", "placement", "privateDnsNameOptions", "securityGroupNames", "userData",
    "vpcSecurityGroupIds",
})  # fmt: skip

KINDS: tuple[Kind, ...] = (LaunchTemplate(), PlacementGroup())
