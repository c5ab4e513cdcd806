"""Launch templates and machines: instance metadata, disks, addresses, user data."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from policies.groups import NODE_GROUP, TEMPLATE, decoded
from policies.registry import Topic
from policies.rule import RawProps, Resource, Setting, Settings
from policies.values import Value
from policies.wording import secrets_in

INSTANCE = "aws:ec2/instance:Instance"
VOLUME = "aws:ebs/volume:Volume"
LAUNCH_CONFIGURATION = "aws:ec2/launchConfiguration:LaunchConfiguration"
SPOT_REQUEST = "aws:ec2/spotInstanceRequest:SpotInstanceRequest"
_STARTS = (TEMPLATE, INSTANCE, LAUNCH_CONFIGURATION, SPOT_REQUEST)
"""What machines are started from."""
SUBNET = "aws:ec2/subnet:Subnet"
topic = Topic("Machines")


@topic.rule(
    "imdsv2-required",
    "Instance metadata answers only to IMDSv2.",
    severity="high",
    types=_STARTS,
    frameworks=("CKV_AWS_79", "CIS AWS Foundations 5.6"),
    why="With IMDSv1 one forwarded request of a program on the machine is enough to read the machine's credentials.",
    wrong="""
workers: {type: "aws:ec2/launchTemplate:LaunchTemplate", properties: {metadataOptions: {httpTokens: optional}}}
""",
    right="""
workers: {type: "aws:ec2/launchTemplate:LaunchTemplate", properties: {metadataOptions: {httpTokens: required}}}
""",
    steps="Set metadataOptions.httpTokens to required.",
    references=("https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/configuring-instance-metadata-service.html",),
    mend=lambda props: _set(props, ("metadataOptions", "httpTokens"), "required"),
)
def imdsv2_required(resource: Resource, _: Settings) -> Iterator[str]:
    """Tokens are required, or there is no metadata service at all."""
    options = resource.props.at("metadataOptions")
    if options.at("httpTokens").text() != "required" and options.at("httpEndpoint").text() != "disabled":
        yield "metadataOptions.httpTokens is not required"


@topic.rule(
    "imds-hop-limit",
    "Instance metadata does not travel further than the machine, unless its pods are listed as needing it.",
    severity="medium",
    types=_STARTS,
    frameworks=("CKV_AWS_341",),
    settings={
        "maximum": Setting(1, "Hops that an answer may travel. Pods that read notices of reclaims need 2."),
    },
    why="Each hop is a network to cross: with 1 the answer ends at the machine, with 2 it reaches every pod, which "
    "then has the machine's role. Pod Identity needs no metadata; reading spot notices does.",
    wrong="""
workers: {type: "aws:ec2/launchTemplate:LaunchTemplate", properties: {metadataOptions: {httpPutResponseHopLimit: 3}}}
""",
    right="""
workers: {type: "aws:ec2/launchTemplate:LaunchTemplate", properties: {metadataOptions: {httpPutResponseHopLimit: 1}}}
""",
    steps="Lower metadataOptions.httpPutResponseHopLimit, or raise `maximum` where pods read spot notices from it.",
    references=("https://docs.aws.amazon.com/eks/latest/best-practices/identity-and-access-management.html",),
)
def imds_hop_limit(resource: Resource, settings: Settings) -> Iterator[str]:
    """EC2's default is 1 for templates."""
    options = resource.props.at("metadataOptions")
    if options.at("httpEndpoint").text() == "disabled":
        return
    limit = options.at("httpPutResponseHopLimit")
    hops = limit.number()
    if limit.is_set and (hops is None or hops > settings["maximum"]):
        yield f"metadataOptions.httpPutResponseHopLimit is {_shown(limit)}; at most {settings['maximum']} is allowed"


def _disks(resource: Resource) -> Iterator[Value]:
    """What describes the disks: of a volume itself, of a template's or instance's mappings."""
    if resource.type == VOLUME:
        yield resource.props
        return
    yield from _attached_disks(resource)


def _disks_or_none(resource: Resource) -> Iterator[Value]:
    """The disks; where none is described, a description that is empty: the machine has one all the same."""
    found = list(_disks(resource))
    yield from found or [Value(None)]


def _attached_disks(resource: Resource) -> Iterator[Value]:
    for mapping in resource.props.at("blockDeviceMappings").items():
        if mapping.at("ebs").is_set:
            yield mapping.at("ebs")
    for key in ("rootBlockDevice", "ebsBlockDevices"):
        if resource.props.at(key).is_set:
            yield from resource.props.at(key).items()


@topic.rule(
    "disk-encrypted",
    "Disks are encrypted.",
    severity="high",
    types=(*_STARTS, VOLUME),
    each=_disks_or_none,
    frameworks=("CKV_AWS_3", "CKV_AWS_8", "CKV_AWS_189", "CIS AWS Foundations 2.2.1"),
    settings={"key": Setting(False, "Whether a KMS key of yours must be named.", "boolean")},
    presence=("kmsKeyId",),
    why="A snapshot of a disk goes further than the disk: data sets, checkpoints and pulled images with it.",
    wrong="""
workers:
  type: aws:ec2/launchTemplate:LaunchTemplate
  properties:
    blockDeviceMappings: [{deviceName: /dev/xvda, ebs: {volumeSize: 200, volumeType: gp3}}]
""",
    right="""
workers:
  type: aws:ec2/launchTemplate:LaunchTemplate
  properties:
    blockDeviceMappings: [{deviceName: /dev/xvda, ebs: {encrypted: "true", volumeSize: 200, volumeType: gp3}}]
""",
    steps="Set encrypted: true, and kmsKeyId where a key of yours is asked for.",
    references=("https://docs.aws.amazon.com/ebs/latest/userguide/ebs-encryption.html",),
    mend=lambda props: _for_disks(props, lambda disk: _set(disk, ("encrypted",), True)),
)
def disk_encrypted(disk: Value, settings: Settings) -> Iterator[str]:
    """The flag, and a key where that is asked for."""
    if disk.raw is None:
        yield "blockDeviceMappings describes no disk: the root disk is as the machine image says, mostly plain"
    elif disk.at("encrypted").flag() is not True:
        yield f"{_place(disk)}encrypted is not true"
    elif settings["key"] and not disk.at("kmsKeyId").is_set:
        yield f"{_place(disk)}kmsKeyId is not set"


@topic.rule(
    "disk-type-current",
    "Disks are gp3 (or io2), not the older types that cost more and do less.",
    severity="low",
    level="advisory",
    types=(*_STARTS, VOLUME),
    each=_disks,
    settings={"types": Setting(["gp3", "io2", "st1", "sc1"], "Volume types that are allowed.", "array")},
    why="gp3 costs a fifth less than gp2 and its throughput does not depend on its size: images of 20 GB unpack at "
    "the speed of the disk.",
    wrong="""
workers:
  type: aws:ec2/launchTemplate:LaunchTemplate
  properties: {blockDeviceMappings: [{deviceName: /dev/xvda, ebs: {volumeType: gp2, volumeSize: 200}}]}
""",
    right="""
workers:
  type: aws:ec2/launchTemplate:LaunchTemplate
  properties: {blockDeviceMappings: [{deviceName: /dev/xvda, ebs: {volumeType: gp3, volumeSize: 200}}]}
""",
    steps="Set the volume type to gp3.",
    references=("https://docs.aws.amazon.com/ebs/latest/userguide/general-purpose.html",),
    mend=lambda props: _for_disks(props, lambda disk: _modernise(disk)),  # noqa: PLW0108 - declared below
)
def disk_type_current(disk: Value, settings: Settings) -> Iterator[str]:
    """Volumes call it `type`, templates `volumeType`."""
    kind = disk.at("volumeType").text() or disk.at("type").text()
    if kind not in settings["types"]:
        yield f"{_place(disk)}volumeType is {kind or 'not set'}; allowed: {', '.join(settings['types'])}"


@topic.rule(
    "no-public-address",
    "Machines have no public address, and subnets give none.",
    severity="high",
    types=(*_STARTS, SUBNET),
    frameworks=("CKV_AWS_88", "CKV_AWS_130"),
    why="A training machine is called by nobody from outside. A public address makes every port that a framework "
    "opens (rendezvous, dashboards, NCCL's sockets) a matter of one security group.",
    wrong="""
public:
  type: aws:ec2/subnet:Subnet
  properties: {cidrBlock: 10.0.0.0/24, mapPublicIpOnLaunch: true}
""",
    right="""
private:
  type: aws:ec2/subnet:Subnet
  properties: {cidrBlock: 10.0.0.0/24, mapPublicIpOnLaunch: false}
""",
    steps="Take the flag away; machines reach out through a NAT gateway and endpoints.",
    references=("https://docs.aws.amazon.com/eks/latest/userguide/network-reqs.html",),
    mend=lambda props: _set_false(props, "mapPublicIpOnLaunch", "associatePublicIpAddress"),
)
def no_public_address(resource: Resource, _: Settings) -> Iterator[str]:
    """Three places where it can be asked for."""
    for key in ("mapPublicIpOnLaunch", "associatePublicIpAddress"):
        if resource.props.at(key).flag():
            yield f"{key} is true"
    for one in resource.props.at("networkInterfaces").items():
        if one.at("associatePublicIpAddress").flag():
            yield f"{one.path}.associatePublicIpAddress is true"


@topic.rule(
    "no-ssh-to-nodes",
    "Nobody logs in to the machines by SSH.",
    severity="high",
    types=(NODE_GROUP, TEMPLATE),
    frameworks=("CKV_AWS_100",),
    settings={"allowKeys": Setting(False, "Whether templates may name a key pair.", "boolean")},
    presence=("ec2SshKey",),
    why="EKS opens port 22 to the whole internet for a group with a key and without sourceSecurityGroupIds. Session "
    "Manager and `kubectl debug node` do the same job, and leave a record.",
    wrong="""
workers:
  type: aws:eks/nodeGroup:NodeGroup
  properties: {remoteAccess: {ec2SshKey: me}}
""",
    right="""
workers:
  type: aws:eks/nodeGroup:NodeGroup
  properties: {scalingConfig: {minSize: 0, maxSize: 4, desiredSize: 0}}
""",
    steps="Take remoteAccess and keyName away.",
    references=("https://docs.aws.amazon.com/eks/latest/best-practices/protecting-the-infrastructure.html",),
)
def no_ssh_to_nodes(resource: Resource, settings: Settings) -> Iterator[str]:
    """Of groups: remote access; of templates: key pairs."""
    if resource.props.at("remoteAccess", "ec2SshKey").is_set:
        yield "remoteAccess opens port 22"
    if resource.type == TEMPLATE and resource.props.at("keyName").is_set and not settings["allowKeys"]:
        yield "keyName puts a key pair on every machine"


@topic.rule(
    "no-secrets-in-user-data",
    "User data holds no secrets.",
    severity="critical",
    types=_STARTS,
    frameworks=("CKV_AWS_46",),
    why="Whoever may describe the template reads its user data, and so does every process of the machine that reaches "
    "the metadata service.",
    wrong="""
workers:
  type: aws:ec2/launchTemplate:LaunchTemplate
  properties: {userData: "#!/bin/sh\\nexport AWS_SECRET_ACCESS_KEY=wJalrXUtnFEMIexamplebPxRfiCYzzzzzzzzzzzz"}
""",
    right="""
workers:
  type: aws:ec2/launchTemplate:LaunchTemplate
  properties: {userData: "#!/bin/sh\\nexport AWS_REGION=us-east-2"}
""",
    steps="Take it out and make it invalid: it has been read. Give pods a role (Pod Identity), or a Secret from a "
    "store.",
    references=("https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/user-data.html",),
)
def no_secrets_in_user_data(resource: Resource, _: Settings) -> Iterator[str]:
    """Both spellings of the property, decoded."""
    for key in ("userData", "userDataBase64"):
        text = resource.props.at(key).text()
        for found in dict.fromkeys((*secrets_in(text), *secrets_in(decoded(text)))):
            yield f"{key} holds what looks like {found}"


def _place(value: Value) -> str:
    return f"{value.path}." if value.path else ""


def _shown(value: Value) -> str:
    return re.sub(r"\.0$", "", str(value.raw))


def _set(props: RawProps, path: tuple[str, ...], wanted: Any) -> bool:
    """Set a member; parents that are not there are made, and what is no plain mapping is left alone."""
    *parents, last = path
    node: Any = props
    for key in parents:
        node = node.setdefault(key, {})
        if not _is_plain(node):
            return False
    if str(node.get(last)).lower() == str(wanted).lower():
        return False
    node[last] = wanted
    return True


def _modernise(disk: RawProps) -> bool:
    """Only the types that gp3 replaces in everything: io1, st1 and the like somebody chose."""
    for key in ("volumeType", "type"):
        if disk.get(key) in ("gp2", "standard"):
            disk[key] = "gp3"
            return True
    return False


def _set_false(props: RawProps, *keys: str) -> bool:
    changed = False
    interfaces = props.get("networkInterfaces")
    for one in [props, *(interfaces if isinstance(interfaces, list) else [])]:
        for key in keys:
            if _is_plain(one) and str(one.get(key)).lower() == "true":
                one[key], changed = False, True
    return changed


def _for_disks(props: RawProps, mend: Any) -> bool:
    mappings = props.get("blockDeviceMappings")
    disks = (
        [one["ebs"] for one in mappings if _is_plain(one) and _is_plain(one.get("ebs"))]
        if isinstance(mappings, list)
        else []
    )
    for key in ("rootBlockDevice", "ebsBlockDevices"):
        value = props.get(key)
        disks += [one for one in (value if isinstance(value, list) else [value]) if _is_plain(one)]
    if "availabilityZone" in props and not props.keys() & {"ami", "instanceType", "launchTemplate"}:
        disks = [props]  # a volume itself
    changed = [mend(disk) for disk in disks]  # all of them, not up to the first
    return any(changed)


def _is_plain(value: object) -> bool:
    """Whether it is a mapping of ours, and no secret, whose content is not to be touched."""
    return isinstance(value, dict) and "4dabf18193072939515e22adb298388d" not in value
