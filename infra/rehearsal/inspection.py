"""Looking at a rehearsed cluster: its nodes, pods that no node takes, claims in use, volumes that stayed."""

from __future__ import annotations

import contextlib
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import httpx2
from lightkube import ApiError, Client, KubeConfig
from lightkube.resources.core_v1 import Node, PersistentVolume, PersistentVolumeClaim, Pod

from infra.errors import TrainyardError
from infra.rehearsal.volumes import MADE_BY
from infra.wiring.scheduling import EFA_RESOURCE, GPU_RESOURCE, POOL_LABEL

PATIENCE = 45.0
"""Seconds: pods wait that long for volumes to be bound, and for nodes to become ready, on a busy computer."""
_LOOK_SECONDS = 2.0


class UnscheduledError(TrainyardError):
    """A pod of the stack fits no node of its pools."""


class ClaimInUseError(TrainyardError):
    """A claim of the stack cannot be deleted while pods have it mounted."""


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
def pods_must_fit(kubeconfig: Path, jobs: str | None = None) -> Iterator[threading.Event]:
    """Watch, while something is done here, for pods that no node takes.

    A provider waits ten minutes for what needs such a pod, and then does not always say why. No autoscaler acts in a
    rehearsal, so a pod that fits no node now never will.

    Args:
        kubeconfig: the cluster's.
        jobs: namespace of the users' jobs, whose pods are not the stack's: a run does not wait for them.

    Yields:
        An event that is set when a pod has found no node for `PATIENCE` seconds: to be ended then.

    Raises:
        UnscheduledError: what was done failed, and there are such pods.
    """

    def waiting() -> dict[str, str]:
        found = {one["pod"]: one["reason"] for one in unscheduled(kubeconfig)}
        return {pod: reason for pod, reason in found.items() if pod.partition("/")[0] != jobs}

    with _none_may_stay(waiting) as (hopeless, stayed):
        try:
            yield hopeless
        except TrainyardError as error:
            if not (rows := stayed()):
                raise
            raise UnscheduledError(
                f"pods of the stack fit no node of its pools:\n{rows}\n{error}\n"
                "No autoscaler acts in a rehearsal: the machines are those that each pool has at least."
            ) from error


def claims_in_use(kubeconfig: Path) -> dict[str, str]:
    """Claims that shall go and cannot, by `namespace/name`: which pods have them mounted."""
    client = _client(kubeconfig)
    going = [claim.to_dict()["metadata"] for claim in client.list(PersistentVolumeClaim, namespace="*")]
    going = [about for about in going if about.get("deletionTimestamp")]
    if not going:
        return {}
    pods = [pod.to_dict() for pod in client.list(Pod, namespace="*")]
    found = {}
    for claim in going:
        users = sorted(pod["metadata"]["name"] for pod in pods if _mounts(pod, claim["namespace"], claim["name"]))
        if users:
            found[f"{claim['namespace']}/{claim['name']}"] = f"used by {', '.join(users)}"
    return found


@contextlib.contextmanager
def claims_must_be_free(kubeconfig: Path) -> Iterator[threading.Event]:
    """Like `pods_must_fit`, while a stack is removed: for claims that pods of others keep from being deleted.

    Raises:
        ClaimInUseError: what was done failed, and there are such claims.
    """
    with _none_may_stay(lambda: claims_in_use(kubeconfig)) as (hopeless, stayed):
        try:
            yield hopeless
        except TrainyardError as error:
            if not (rows := stayed()):
                raise
            raise ClaimInUseError(
                f"claims of the stack are in use, so that they cannot be deleted:\n{rows}\n{error}\n"
                "On AWS the run would wait ten minutes and fail. Delete jobs and pods first, then the stack."
            ) from error


@contextlib.contextmanager
def _none_may_stay(look: Callable[[], Mapping[str, str]]) -> Iterator[tuple[threading.Event, Callable[[], str]]]:
    """Look again and again for things, by name with a reason, that must not be there for long.

    Yields:
        An event that is set when one of them has stayed for `PATIENCE` seconds, and a function that tells what is
        there now, a line for each.
    """
    hopeless, ended = threading.Event(), threading.Event()

    def now() -> Mapping[str, str]:
        try:
            return look()
        except (ApiError, httpx2.HTTPError):  # the API server does not answer, which others will say
            return {}

    def watch() -> None:
        since: dict[str, float] = {}
        while not ended.wait(_LOOK_SECONDS):
            moment = time.monotonic()
            since = {name: since.get(name, moment) for name in now()}
            if any(moment - begin > PATIENCE for begin in since.values()):
                hopeless.set()
                return

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield hopeless, lambda: "\n".join(f"  {name}: {reason}" for name, reason in now().items())
    finally:
        ended.set()
        watcher.join()


def _mounts(pod: Mapping[str, Any], namespace: str, claim: str) -> bool:
    """Whether a pod that has a node keeps a claim from being deleted."""
    if pod["metadata"]["namespace"] != namespace or not pod["spec"].get("nodeName"):
        return False
    volumes = pod["spec"].get("volumes") or []
    return any((volume.get("persistentVolumeClaim") or {}).get("claimName") == claim for volume in volumes)


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
