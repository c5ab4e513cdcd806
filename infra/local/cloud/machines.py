"""Nodes as a cloud completes them once they registered: addresses, place, accelerators, and then "ready for pods"."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lightkube import Client
from lightkube.resources.core_v1 import Node, NodeStatus
from lightkube.types import PatchType

UNINITIALIZED = "node.cloudprovider.kubernetes.io/uninitialized"
REGION, ZONE = "local", "local-a"
_MACHINE_RESOURCES = {"cpu", "memory"}  # measured by the kubelet; everything else is what a device plugin would report


def provider_id(name: str) -> str:
    """The id under which the "cloud" knows the machine of a node."""
    return f"trainyard-local:///{ZONE}/{name}"


class Machines:
    """Completes the Nodes whose folder is under `nodes`."""

    def __init__(self, client: Client, nodes: Path) -> None:
        self._client = client
        self._nodes = nodes

    def complete(self, node: Node) -> None:
        """Bring one Node object to what its machine is; does nothing when it is so already."""
        name = str(node.metadata.name if node.metadata else "")
        try:
            machine = json.loads((self._nodes / name / "spec.json").read_bytes())
        except (OSError, ValueError):
            return  # somebody else's node
        found = node.to_dict()
        # Addresses first: from the moment that the taint is gone, pods run and their logs are asked for.
        if status := status_patch(found, machine):
            patched = self._client.patch(NodeStatus, name, {"status": status}, patch_type=PatchType.STRATEGIC)
            found = patched.to_dict()
        if rest := object_patch(found, machine):
            self._client.patch(Node, name, rest, patch_type=PatchType.STRATEGIC)


def status_patch(node: Mapping[str, Any], machine: Mapping[str, Any]) -> dict[str, Any]:
    """What is missing or different in `Node.status`; empty when nothing is."""
    status = node.get("status") or {}
    patch: dict[str, Any] = {}
    addresses = [
        {"type": "InternalIP", "address": machine["address"]},
        {"type": "Hostname", "address": machine["name"]},
    ]
    if status.get("addresses") != addresses:
        # Replaced as a whole: a merge would keep what the kubelet guessed.
        patch["addresses"] = [{"$patch": "replace"}, *addresses]
    accelerators = {
        resource: str(amount) for resource, amount in machine["resources"].items() if resource not in _MACHINE_RESOURCES
    }
    # The kubelet keeps such a capacity, sets it to zero when it starts, and copies it to allocatable at its next
    # report; both are set here so that nobody waits for that.
    for field in ("capacity", "allocatable"):
        current = status.get(field) or {}
        if different := {name: amount for name, amount in accelerators.items() if current.get(name) != amount}:
            patch[field] = different
    return patch


def object_patch(node: Mapping[str, Any], machine: Mapping[str, Any]) -> dict[str, Any]:
    """What is missing or different in labels and spec; empty when nothing is."""
    labels = {
        "topology.kubernetes.io/region": REGION,
        "topology.kubernetes.io/zone": ZONE,
        "node.kubernetes.io/instance-type": "local",
        **machine["labels"],
    }
    current = node["metadata"].get("labels") or {}
    spec = node.get("spec") or {}
    patch: dict[str, Any] = {}
    if missing := {name: value for name, value in labels.items() if current.get(name) != value}:
        patch["metadata"] = {"labels": missing}
    if not spec.get("providerID"):
        patch.setdefault("spec", {})["providerID"] = provider_id(machine["name"])
    taints = spec.get("taints") or []
    left = [taint for taint in taints if taint["key"] != UNINITIALIZED]
    if left != taints:
        # Taints are replaced as a whole, so the patch must fail where somebody changed them meanwhile.
        patch.setdefault("spec", {})["taints"] = left
        patch.setdefault("metadata", {})["resourceVersion"] = node["metadata"]["resourceVersion"]
    return patch
