"""Looking at a rehearsed cluster: its nodes, pods that no node takes, volumes that stayed."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
from lightkube import ApiError, Client, KubeConfig
from lightkube.resources.core_v1 import Node, PersistentVolume, Pod

from infra.errors import TrainyardError
from infra.rehearsal.volumes import MADE_BY
from infra.wiring.scheduling import EFA_RESOURCE, GPU_RESOURCE, POOL_LABEL


class UnscheduledError(TrainyardError):
    """A pod of the stack fits no node of its pools."""


def nodes_of(kubeconfig: Path) -> list[dict[str, Any]]:
    """The nodes: name, state, pool, instance type, zone, GPUs, EFA interfaces, number of pods."""
    client = _client(kubeconfig)
    pods = Counter(pod.to_dict()["spec"].get("nodeName") for pod in client.list(Pod, namespace="*"))
    found = []
    for node in client.list(Node):
        about = node.to_dict()
        labels, offers = about["metadata"]["labels"], about["status"].get("allocatable") or {}
        conditions = {one["type"]: one["status"] for one in about["status"].get("conditions") or []}
        found.append(
            {
                "name": about["metadata"]["name"],
                "state": "ready" if conditions.get("Ready") == "True" else "not ready",
                "pool": labels.get(POOL_LABEL, ""),
                "type": labels.get("node.kubernetes.io/instance-type", ""),
                "zone": labels.get("topology.kubernetes.io/zone", ""),
                "gpus": int(offers.get(GPU_RESOURCE, 0)),
                "efa": int(offers.get(EFA_RESOURCE, 0)),
                "pods": pods[about["metadata"]["name"]],
            }
        )
    return sorted(found, key=lambda node: (node["pool"], node["name"]))


def unscheduled(kubeconfig: Path) -> list[dict[str, str]]:
    """Pods that the scheduler found no node for: `namespace/name`, and its reason."""
    found = []
    for pod in _client(kubeconfig).list(Pod, namespace="*", fields={"status.phase": "Pending"}):
        about = pod.to_dict()
        for condition in (about.get("status") or {}).get("conditions") or []:
            if condition["type"] == "PodScheduled" and condition.get("reason") == "Unschedulable":
                name = f"{about['metadata']['namespace']}/{about['metadata']['name']}"
                found.append({"pod": name, "reason": condition.get("message", "")})
    return found


@contextlib.contextmanager
def raising_for_unscheduled(kubeconfig: Path) -> Iterator[None]:
    """When what is done here fails, say also which pods found no node: that is what a provider has waited for.

    Raises:
        UnscheduledError: it failed, and there are such pods.
    """
    try:
        yield
    except TrainyardError as error:
        try:
            waiting = unscheduled(kubeconfig)
        except (ApiError, httpx2.HTTPError):
            raise error from None
        if not waiting:
            raise
        rows = "\n".join(f"  {one['pod']}: {one['reason']}" for one in waiting)
        raise UnscheduledError(f"{error}\nPods that fit no node:\n{rows}") from error


def volumes_left(kubeconfig: Path) -> list[str]:
    """Volumes that claims have left behind: on AWS, disks that nobody owns."""
    found = [volume.to_dict() for volume in _client(kubeconfig).list(PersistentVolume)]
    return sorted(
        f"volume {one['metadata']['name']} of claim {one['spec']['claimRef']['namespace']}/"
        f"{one['spec']['claimRef']['name']}"
        for one in found
        if MADE_BY in (one["metadata"].get("annotations") or {})
    )


def _client(kubeconfig: Path) -> Client:
    return Client(config=KubeConfig.from_file(kubeconfig), trust_env=False)
