"""What the controller remembers of pods and nodes: small records instead of whole objects.

A cluster may hold tens of thousands of pods; a record takes well under 2 KB, a pod as a dictionary around 60.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

from training.controller.api import (
    ANNOTATION_RECLAIM_AT,
    FINALIZER,
    LABEL_GENERATION,
    LABEL_JOB_NAME,
    LABEL_REPLICA_INDEX,
    LABEL_REPLICA_TYPE,
    MAIN_CONTAINER,
    NOTICE_TAINTS,
    STORE,
    TAINT_OUT_OF_SERVICE,
)
from training.controller.capacity import Taint, parse_quantity, pod_requests

# Reasons in status.reason of pods that were ended from outside (kubelet, node life cycle, old and new names).
DISRUPTION_POD_REASONS = frozenset(
    {
        "Evicted",
        "Terminated",
        "Shutdown",
        "NodeShutdown",
        "NodeLost",
        "NodeAffinity",
        "Preempting",
        "Preempted",
        # the kubelet had less room than the scheduler thought
        "UnexpectedAdmissionError",
        "OutOfcpu",
        "OutOfmemory",
        "OutOfpods",
        "OutOfephemeral-storage",
        "OutOfnvidia.com/gpu",
    }
)


@dataclass(frozen=True, slots=True)
class Notices:
    """What announces the end of a node."""

    taints: frozenset[str] = NOTICE_TAINTS
    """Keys of taints."""
    conditions: frozenset[str] = frozenset()
    """Types of conditions that are True then, as termination handlers and problem detectors set them."""
    annotations: frozenset[str] = frozenset({ANNOTATION_RECLAIM_AT})
    """Keys of annotations."""

    def of(self, node: Mapping[str, Any]) -> str | None:
        """What announces the end of this node object; None if nothing does."""
        taints = (taint["key"] for taint in node.get("spec", {}).get("taints", ()))
        conditions = (c["type"] for c in node.get("status", {}).get("conditions", ()) if c.get("status") == "True")
        annotations = node["metadata"].get("annotations", {})
        known = ((taints, self.taints), (conditions, self.conditions), (annotations, self.annotations))
        return next((name for names, notices in known for name in names if name in notices), None)


KNOWN_NOTICES = Notices()


@dataclass(frozen=True, slots=True)
class PodRecord:
    """One worker pod, as far as plans depend on it."""

    name: str
    uid: str
    namespace: str = "default"
    job: str = ""
    owner_uid: str = ""
    index: int = 0
    generation: int = 0
    phase: str = "Pending"
    node: str | None = None
    ready: bool = False
    created: datetime | None = None
    scheduled: datetime | None = None
    """When it was given its node."""
    deletion_deadline: datetime | None = None
    """When the pod's grace period ends, if its deletion was requested."""
    deletion_requested: datetime | None = None
    """When its deletion was requested: the deadline less the grace period. None if it was seen to have ended before."""
    disruption: str | None = None
    """Reason of condition DisruptionTarget, or of the pod's end from outside."""
    memory_eviction: bool = False
    unschedulable: str | None = None
    """The scheduler's message, if it found no node."""
    exit_code: int | None = None
    last_exit_code: int | None = None
    """Exit code of the run before this one, where the kubelet restarted the container in its pod."""
    last_reason: str | None = None
    """Reason of that end: OOMKilled, Error."""
    term_reason: str | None = None
    finished_at: datetime | None = None
    restarts: int = 0
    waiting: str | None = None
    """Why the main container does not start, if that is an error: `ErrImagePull: ...`."""
    requests: Mapping[str, Decimal] = field(default_factory=dict)
    """What it takes of its node."""
    store: bool = False
    """It is no worker: it holds the rendezvous store."""
    held: bool = False
    """It carries the controller's finalizer: it does not go before it is let go."""
    resource_version: int = 0

    @property
    def key(self) -> str:
        """`namespace/name`."""
        return f"{self.namespace}/{self.name}"

    @property
    def job_key(self) -> str:
        """Key of the job that the pod's labels name."""
        return f"{self.namespace}/{self.job}"

    @property
    def finished(self) -> bool:
        """Whether the pod's containers have ended for good."""
        return self.phase in {"Succeeded", "Failed"}

    @property
    def terminating(self) -> bool:
        """Whether the pod's deletion was requested."""
        return self.deletion_deadline is not None

    @property
    def active(self) -> bool:
        """Whether the pod counts as a worker: not finished and not on its way out."""
        return not self.finished and not self.terminating


@dataclass(frozen=True, slots=True)
class NodeRecord:
    """One node, as far as plans depend on it."""

    name: str
    ready: bool = True
    not_ready_since: datetime | None = None
    silent: bool = False
    """Not ready because nothing is heard of it, rather than by its own account."""
    notice: str | None = None
    """What announces the node's end: key of a taint or an annotation, or type of a condition."""
    reclaim_at: datetime | None = None
    out_of_service: bool = False
    cordoned: bool = False
    taints: tuple[Taint, ...] = ()
    """Those that keep pods away."""
    labels: Mapping[str, str] = field(default_factory=dict)
    allocatable: Mapping[str, Decimal] = field(default_factory=dict)
    resource_version: int = 0


def parse_time(text: str | None) -> datetime | None:
    """An RFC 3339 time; None for None and for what is not a time (an annotation may hold anything)."""
    if not text:
        return None
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return None
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


def pod_record(pod: Mapping[str, Any], main_container: str = MAIN_CONTAINER) -> PodRecord:
    """The record of a pod object, whose worker is the container of that name, or the first."""
    meta, spec, status = pod["metadata"], pod.get("spec", {}), pod.get("status", {})
    labels = meta.get("labels", {})
    owner: Mapping[str, Any] = next((ref for ref in meta.get("ownerReferences", ()) if ref.get("controller")), {})
    conditions = {condition["type"]: condition for condition in status.get("conditions", ())}
    scheduled = conditions.get("PodScheduled", {})
    target = conditions.get("DisruptionTarget", {})
    reason = status.get("reason")
    disruption = target.get("reason", "DisruptionTarget") if target.get("status") == "True" else None
    if disruption is None and reason in DISRUPTION_POD_REASONS:
        disruption = reason
    main = _main_container_status(spec, status, main_container)
    terminated = main.get("state", {}).get("terminated") or {}
    waiting = main.get("state", {}).get("waiting") or {}
    last = main.get("lastState", {}).get("terminated") or {}
    deadline = parse_time(meta.get("deletionTimestamp"))
    grace = timedelta(seconds=meta.get("deletionGracePeriodSeconds") or 0)
    return PodRecord(
        name=meta["name"],
        uid=meta["uid"],
        namespace=meta["namespace"],
        job=labels.get(LABEL_JOB_NAME, ""),
        owner_uid=owner.get("uid", ""),
        index=_number(labels.get(LABEL_REPLICA_INDEX)),
        generation=_number(labels.get(LABEL_GENERATION)),
        phase=status.get("phase", "Pending"),
        node=spec.get("nodeName"),
        ready=conditions.get("Ready", {}).get("status") == "True",
        created=parse_time(meta.get("creationTimestamp")),
        scheduled=parse_time(scheduled.get("lastTransitionTime")) if scheduled.get("status") == "True" else None,
        deletion_deadline=deadline,
        deletion_requested=deadline - grace if deadline else None,
        disruption=disruption,
        memory_eviction=reason == "Evicted" and "memory" in status.get("message", "").lower(),
        unschedulable=scheduled.get("message", "no reason given")
        if scheduled.get("status") == "False" and scheduled.get("reason") == "Unschedulable"
        else None,
        exit_code=terminated.get("exitCode"),
        last_exit_code=last.get("exitCode"),
        last_reason=last.get("reason"),
        term_reason=terminated.get("reason"),
        finished_at=parse_time(terminated.get("finishedAt")),
        restarts=main.get("restartCount", 0),
        waiting=_waiting(waiting),
        requests=pod_requests(spec),
        store=labels.get(LABEL_REPLICA_TYPE) == STORE,
        held=FINALIZER in meta.get("finalizers", ()),
        resource_version=_number(meta.get("resourceVersion")),
    )


def merged_pod(old: PodRecord, new: PodRecord) -> PodRecord:
    """The newer of two records of a pod, with what only the older one tells: which came first, its end or its deletion.

    The API server moves the time of a deletion that is repeated with a shorter grace period, as kubelets do at the end.
    """
    if old.uid != new.uid or new.deletion_requested is None:
        return new
    if old.deletion_requested is not None:
        return replace(new, deletion_requested=min(old.deletion_requested, new.deletion_requested))
    return replace(new, deletion_requested=None) if old.finished else new


def _main_container_status(spec: Mapping[str, Any], status: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    names = [container["name"] for container in spec.get("containers", ())]
    main = name if name in names or not names else names[0]
    found: Mapping[str, Any] = next((s for s in status.get("containerStatuses", ()) if s.get("name") == main), {})
    return found


def _waiting(waiting: Mapping[str, Any]) -> str | None:
    reason = waiting.get("reason", "")
    if reason in {"", "ContainerCreating", "PodInitializing"}:
        return None
    message = waiting.get("message", "")
    return f"{reason}: {message}"[:400] if message else reason


def node_record(node: Mapping[str, Any], notices: Notices = KNOWN_NOTICES) -> NodeRecord:
    """The record of a node object."""
    meta, spec, status = node["metadata"], node.get("spec", {}), node.get("status", {})
    taints = [taint["key"] for taint in spec.get("taints", ())]
    ready: Mapping[str, Any] = next((c for c in status.get("conditions", ()) if c["type"] == "Ready"), {})
    is_ready = ready.get("status") == "True"
    return NodeRecord(
        name=meta["name"],
        ready=is_ready,
        not_ready_since=None if is_ready else parse_time(ready.get("lastTransitionTime")),
        silent=ready.get("status") == "Unknown",
        notice=notices.of(node),
        reclaim_at=parse_time(meta.get("annotations", {}).get(ANNOTATION_RECLAIM_AT)),
        out_of_service=TAINT_OUT_OF_SERVICE in taints,
        cordoned=bool(spec.get("unschedulable")),
        taints=tuple(
            Taint(taint["key"], taint.get("value", ""), taint["effect"])
            for taint in spec.get("taints", ())
            if taint["effect"] != "PreferNoSchedule"
        ),
        labels=meta.get("labels", {}),
        allocatable={name: parse_quantity(amount) for name, amount in status.get("allocatable", {}).items()},
        resource_version=_number(meta.get("resourceVersion")),
    )


def _number(text: str | None) -> int:
    return int(text) if text and text.isdigit() else 0
