"""How a spot machine goes: a notice that everybody can see, then its pods, then the machine."""

import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import httpx2
from lightkube import ApiError, Client
from lightkube.models.meta_v1 import DeleteOptions, ObjectMeta, Preconditions
from lightkube.resources.core_v1 import Node, Pod, PodEviction, PodStatus
from lightkube.types import PatchType

# What aws-node-termination-handler puts on a node that gets an interruption notice.
NOTICE_TAINT = "aws-node-termination-handler/spot-itn"
RECLAIM_AT = "trainyard.dev/reclaim-at"  # annotation: RFC 3339, UTC
_POLL = 0.1  # seconds


@dataclass(frozen=True)
class Reclaimed:
    """The end of a node, in UTC.

    Attributes:
        name: The node.
        noticed: When taint and annotation were set.
        drained: When its last pod had ended, or the notice had.
        gone: When machine and Node were gone.
    """

    name: str
    noticed: datetime
    drained: datetime
    gone: datetime


def give_notice(client: Client, node: str, deadline: datetime) -> None:
    """Mark the node: no new pods, and the time at which it goes."""
    at = deadline.isoformat(timespec="seconds").replace("+00:00", "Z")
    notice = {"key": NOTICE_TAINT, "value": "reclaimed", "effect": "NoSchedule"}
    while True:
        found = client.get(Node, node).to_dict()
        # Taints are replaced as a whole, so the patch must fail where somebody changed them meanwhile.
        others = [taint for taint in found["spec"].get("taints") or () if taint["key"] != NOTICE_TAINT]
        patch = {
            "metadata": {
                "resourceVersion": found["metadata"]["resourceVersion"],
                "annotations": {RECLAIM_AT: at},
            },
            "spec": {"unschedulable": True, "taints": [*others, notice]},
        }
        try:
            client.patch(Node, node, patch, patch_type=PatchType.MERGE)
        except ApiError as error:
            if error.status.code != 409:
                raise
        else:
            return


def drain(client: Client, node: str, deadline: datetime) -> datetime:
    """Evict the node's pods and wait until they have ended or `deadline` has come; returns when that was.

    A disruption budget may refuse an eviction; it's asked for again until the deadline, when the machine goes anyway.
    """
    asked: set[str] = set()
    while True:
        left = [pod for pod in _pods(client, node) if not _stays(pod)]
        now = datetime.now(UTC)
        if not left or now >= deadline:
            return now
        for pod in left:
            if pod["metadata"]["uid"] not in asked and _evict(client, pod, (deadline - now).total_seconds()):
                asked.add(pod["metadata"]["uid"])
        time.sleep(_POLL)


def free_pods(client: Client, http: httpx2.Client, node: str) -> None:
    """Give up the pods of a machine that is known to be gone, as Kubernetes' pod garbage collector would.

    The collector waits for about a minute after the Node is gone, because it can't know that nothing runs any more.

    Args:
        client: As the administrator.
        http: Of the same API server, for what `client` can't: delete this very pod, not one that got its name since.
        node: The machine that is gone.
    """
    now = datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
    condition = {
        "type": "DisruptionTarget",
        "status": "True",
        "reason": "DeletionByPodGC",
        "message": "PodGC: node no longer exists",
        "lastTransitionTime": now,
    }
    for pod in _pods(client, node):
        name, namespace, uid = (pod["metadata"][field] for field in ("name", "namespace", "uid"))
        try:
            if not _is_over(pod):
                patch = {"metadata": {"uid": uid}, "status": {"phase": "Failed", "conditions": [condition]}}
                client.patch(PodStatus, name, patch, namespace=namespace, patch_type=PatchType.STRATEGIC)
        except ApiError as error:
            if error.status.code not in {404, 409, 422}:
                raise
            continue  # gone, or another pod by now, whose uid can't be changed
        options = {"gracePeriodSeconds": 0, "preconditions": {"uid": uid}}
        answer = http.request("DELETE", f"/api/v1/namespaces/{namespace}/pods/{name}", json=options)
        if answer.status_code not in {404, 409}:
            answer.raise_for_status()


def _pods(client: Client, node: str) -> list[dict[str, Any]]:
    return [pod.to_dict() for pod in client.list(Pod, namespace="*", fields={"spec.nodeName": node})]


def _stays(pod: Mapping[str, Any]) -> bool:
    """Whether draining leaves a pod alone: it is over, or a DaemonSet would put it back at once."""
    owners = pod["metadata"].get("ownerReferences") or ()
    return _is_over(pod) or any(owner.get("kind") == "DaemonSet" and owner.get("controller") for owner in owners)


def _is_over(pod: Mapping[str, Any]) -> bool:
    return (pod.get("status") or {}).get("phase") in {"Succeeded", "Failed"}


def _evict(client: Client, pod: Mapping[str, Any], seconds_left: float) -> bool:
    """Ask for an eviction; returns False where it must be asked for again."""
    name, namespace, uid = (pod["metadata"][field] for field in ("name", "namespace", "uid"))
    if pod["metadata"].get("deletionTimestamp"):
        return True
    grace = min(int(pod["spec"].get("terminationGracePeriodSeconds", 30)), max(0, int(seconds_left)))
    eviction = PodEviction(
        metadata=ObjectMeta(name=name, namespace=namespace),
        deleteOptions=DeleteOptions(gracePeriodSeconds=grace, preconditions=Preconditions(uid=uid)),
    )
    try:
        client.create(eviction, name, namespace=namespace)
    except ApiError as error:
        if error.status.code == 404:
            return True
        # A disruption budget says not now, or the pod changed meanwhile.
        if error.status.code in {409, 429, 500}:
            return False
        raise
    return True
