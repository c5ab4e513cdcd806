"""Looking at a rehearsed cluster: its nodes, pods that no node takes, volumes that stayed."""

from __future__ import annotations

import contextlib
import threading
import time
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

PATIENCE = 20.0
"""Seconds: pods wait that long for volumes to be bound, and for nodes to become ready, on a busy computer."""
_LOOK_SECONDS = 2.0


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
def pods_must_fit(kubeconfig: Path) -> Iterator[threading.Event]:
    """Watch, while something is done here, for pods that no node takes.

    A provider waits ten minutes for what needs such a pod, and then does not always say why. No autoscaler acts in a
    rehearsal, so a pod that fits no node now never will.

    Yields:
        An event that is set when a pod has found no node for `PATIENCE` seconds: to be ended then.

    Raises:
        UnscheduledError: what was done failed, and there are such pods.
    """
    hopeless, ended = threading.Event(), threading.Event()
    watcher = threading.Thread(target=_watch, args=(kubeconfig, hopeless, ended), daemon=True)
    watcher.start()
    try:
        yield hopeless
    except TrainyardError as error:
        waiting = _unscheduled_or_none(kubeconfig)
        if not waiting:
            raise
        rows = "\n".join(f"  {one['pod']}: {one['reason']}" for one in waiting)
        raise UnscheduledError(
            f"pods of the stack fit no node of its pools:\n{rows}\n{error}\n"
            "No autoscaler acts in a rehearsal: the machines are those that each pool has at least."
        ) from error
    finally:
        ended.set()
        watcher.join()


def _watch(kubeconfig: Path, hopeless: threading.Event, ended: threading.Event) -> None:
    since: dict[str, float] = {}
    while not ended.wait(_LOOK_SECONDS):
        now = time.monotonic()
        waiting = {one["pod"] for one in _unscheduled_or_none(kubeconfig)}
        since = {pod: since.get(pod, now) for pod in waiting}
        if any(now - begin > PATIENCE for begin in since.values()):
            hopeless.set()
            return


def _unscheduled_or_none(kubeconfig: Path) -> list[dict[str, str]]:
    """Like `unscheduled`; nothing where the API server does not answer, which others will say."""
    try:
        return unscheduled(kubeconfig)
    except (ApiError, httpx2.HTTPError):
        return []


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
