"""The Kubernetes nodes of EKS node groups, as AWS would give them: simulated by kwok, real to the scheduler.

What a node says of itself comes from the request to AWS (labels and taints of the node group, instance type, interfaces
of the launch template), never from the settings: so it tells whether the program asked AWS for the right thing.
"""

from __future__ import annotations

import hashlib
import ipaddress
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NotRequired, TypedDict, cast

from lightkube import ApiError, Client, KubeConfig
from lightkube.resources.core_v1 import Node, Pod
from lightkube.types import PatchType

from infra.catalog.instance_types import InstanceType, instance_type
from infra.rehearsal.bundles import REHEARSAL_LABEL
from infra.rehearsal.stages import SIMULATED
from infra.wiring.allocatable import allocatable, as_quantities, capacity
from infra.wiring.pools import eks_labels

if TYPE_CHECKING:
    from infra.rehearsal.connection import Connection

GROUP_LABEL = "eks.amazonaws.com/nodegroup"
EFFECTS = {"NO_SCHEDULE": "NoSchedule", "PREFER_NO_SCHEDULE": "PreferNoSchedule", "NO_EXECUTE": "NoExecute"}
"""The EKS API's spelling of taint effects, and Kubernetes' own."""
_KUBERNETES = ("node.kubernetes.io/", "node.cloudprovider.kubernetes.io/")  # taints that its controllers keep
_ARCHITECTURES = {"x86_64": "amd64", "arm64": "arm64"}
_VERSION = "v1.36.3-eks-rehearsal"
_MACHINE = "trainyard.dev/machine"  # annotation: what of a node cannot change without a new machine
_ROOM = 1 << 10  # addresses of one group


class Group(TypedDict):
    """What AWS was asked for: a node group with what its launch template adds."""

    name: str
    instanceType: str
    """The first of the group's types, or the template's."""
    capacityType: str
    """`ON_DEMAND`, `SPOT` or `CAPACITY_BLOCK`."""
    labels: Mapping[str, str]
    taints: Sequence[Mapping[str, str]]
    """In EKS's spelling: `{"key": …, "value": …, "effect": "NO_SCHEDULE"}`."""
    zones: Sequence[str]
    """Availability zones of its subnets; machines are spread over them."""
    efa: bool
    """Whether the launch template has EFA interfaces."""
    diskGib: NotRequired[int]
    """Root disk."""


def node_manifest(group: Group, number: int, region: str) -> dict[str, Any]:
    """One node of a group, ready to be registered.

    Args:
        group: the node group.
        number: which of its nodes, from 0.
        region: AWS region.

    Raises:
        UnknownInstanceTypeError: the catalogue does not have the group's type.
        KeyError: a taint's effect is not in EKS's spelling.
    """
    machine = instance_type(group["instanceType"])
    zone = group["zones"][number % len(group["zones"])]
    address = _address(group["name"], number)
    name = f"ip-{address.replace('.', '-')}.{region}.compute.internal"
    digest = hashlib.sha256(f"{group['name']}/{number}".encode()).hexdigest()
    disk = {"ephemeral-storage": f"{group.get('diskGib', 20)}Gi"}
    return {
        "metadata": {
            "name": name,
            "labels": _labels(group, machine, zone, name),
            "annotations": {
                SIMULATED[0]: SIMULATED[1],
                _MACHINE: f"{machine.name} {'EFA' if group['efa'] else 'without EFA'}, {disk['ephemeral-storage']}",
            },
        },
        "spec": {"providerID": f"aws:///{zone}/i-{digest[:17]}", "taints": _taints(group)},
        "status": {
            "capacity": as_quantities(capacity(machine, efa=group["efa"])) | disk,
            "allocatable": as_quantities(allocatable(machine, efa=group["efa"])) | disk,
            "addresses": [{"type": "InternalIP", "address": address}, {"type": "Hostname", "address": name}],
            "nodeInfo": {
                "architecture": _ARCHITECTURES[machine.architecture],
                "operatingSystem": "linux",
                "kubeletVersion": _VERSION,
                "kubeProxyVersion": "",
                "containerRuntimeVersion": "simulated",
                "kernelVersion": "simulated",
                "osImage": "simulated",
                "machineID": digest[:32],
                "systemUUID": digest[:32],
                "bootID": digest[:32],
            },
        },
    }


def set_nodes(connection: Connection, group: Group, count: int) -> None:
    """Let a group have this many nodes; those that are there take over changed labels and taints.

    Nodes of another instance type or with other interfaces are replaced, as EKS replaces them when the launch template
    has a new version.

    Args:
        connection: of the rehearsal.
        group: the node group as AWS was asked for it.
        count: its desired size.
    """
    client = _client(connection)
    present = _nodes_of(client, group["name"])
    for manifest in (node_manifest(group, number, connection.region) for number in range(count)):
        found = present.pop(manifest["metadata"]["name"], None)
        if found and _same_machine(found, manifest):
            _relabel(client, found, manifest)
            continue
        if found:
            _remove(client, found["metadata"]["name"])
        client.create(cast(Node, Node.from_dict(manifest)))
    for name in present:
        _remove(client, name)


def remove_nodes(connection: Connection, group_name: str) -> None:
    """Take all nodes of a group away, with what runs on them."""
    client = _client(connection)
    for name in _nodes_of(client, group_name):
        _remove(client, name)


def _nodes_of(client: Client, group: str) -> dict[str, dict[str, Any]]:
    """The nodes of a group by name."""
    found = [node.to_dict() for node in list(client.list(Node, labels={GROUP_LABEL: group}))]
    return {node["metadata"]["name"]: node for node in found}


def _labels(group: Group, machine: InstanceType, zone: str, name: str) -> dict[str, str]:
    """The group's labels, and those that EKS and the cloud's node controller write on every node."""
    return {
        **group["labels"],
        **eks_labels(group=group["name"], capacity_type=group["capacityType"], machine=machine, zone=zone),
        "kubernetes.io/hostname": name,
        REHEARSAL_LABEL: "true",
    }


def _taints(group: Group) -> list[dict[str, str]]:
    return [
        {"key": taint["key"], "value": taint.get("value", ""), "effect": EFFECTS[taint["effect"]]}
        for taint in group["taints"]
    ]


def _address(group: str, number: int) -> str:
    """An address of 10.0.0.0/8 for the n-th node of a group, in a part of the network that is the group's own."""
    part = int.from_bytes(hashlib.sha256(group.encode()).digest()[:3], "big") & ~(_ROOM - 1)
    return str(ipaddress.IPv4Address("10.0.0.0") + part + 4 + number)


def _same_machine(found: Mapping[str, Any], wanted: Mapping[str, Any]) -> bool:
    """Whether a registered node is the machine that is wanted; its labels and taints may differ."""
    return bool(
        found["spec"].get("providerID") == wanted["spec"]["providerID"]
        and found["metadata"]["annotations"].get(_MACHINE) == wanted["metadata"]["annotations"][_MACHINE]
    )


def _relabel(client: Client, found: Mapping[str, Any], wanted: Mapping[str, Any]) -> None:
    """Give a node the labels and taints that it should have; those of Kubernetes' controllers stay."""
    labels = wanted["metadata"]["labels"]
    gone = {label: None for label in found["metadata"]["labels"] if label not in labels}
    has = found["spec"].get("taints") or []
    taints = wanted["spec"]["taints"] + [taint for taint in has if taint["key"].startswith(_KUBERNETES)]
    if gone or found["metadata"]["labels"] != labels or has != taints:
        patch = {"metadata": {"labels": {**labels, **gone}}, "spec": {"taints": taints}}
        client.patch(Node, found["metadata"]["name"], patch, patch_type=PatchType.MERGE)


def _remove(client: Client, name: str) -> None:
    """Drain a node as far as that is simulated, and take it away."""
    for pod in list(client.list(Pod, namespace="*", fields={"spec.nodeName": name})):
        metadata = pod.to_dict()["metadata"]
        _delete(client, Pod, metadata["name"], namespace=metadata["namespace"], grace_period=0)
    _delete(client, Node, name)


def _delete(client: Client, kind: Any, name: str, **options: Any) -> None:
    try:
        client.delete(kind, name, **options)
    except ApiError as error:
        if error.status.code != 404:
            raise


def _client(connection: Connection) -> Client:
    config = KubeConfig.from_file(connection.kubeconfig)
    return Client(config=config, trust_env=False, field_manager="trainyard-rehearsal")
