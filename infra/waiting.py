"""Why a job's workers do not run yet, in a sentence, and what helps: pure, from what the API server knows.

Objects are Kubernetes' JSON. Texts of scheduler, kubelet and API server are looked into for their kind only; what is
shown is their own sentence.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

from infra.wiring.job_resources import QUEUE_LABEL
from infra.wiring.naming import SYSTEM_NAMESPACE

Cause = Literal[
    "controller", "suspended", "queue", "quota", "refused", "capacity", "volume", "image", "configuration", "crash"
]

_IMAGE = frozenset(
    {
        "ErrImagePull",
        "ImagePullBackOff",
        "InvalidImageName",
        "ErrImageNeverPull",
        "ImageInspectError",
        "RegistryUnavailable",
        "SignatureValidationFailed",
    }
)
"""Reasons for which a kubelet waits with a container: its image (kubelet/images/types.go)."""
_CONFIGURATION = frozenset({"CreateContainerConfigError", "CreateContainerError", "RunContainerError"})
_VOLUME_EVENTS = frozenset({"FailedMount", "FailedAttachVolume"})
_VOLUME_WORDS = ("persistentvolumeclaim", "PersistentVolume", "volume node affinity", "volume limits", "volume zone")
_PREEMPTION = re.compile(r" (no new claims to deallocate, )?preemption: .*")
"""What the scheduler adds: nobody is displaced for the worker either, and why."""


@dataclass(frozen=True)
class Waiting:
    """One reason why workers do not run."""

    cause: Cause
    message: str
    next: str
    """A command, or what to change and then a command."""
    workers: tuple[str, ...] = ()
    """The pods that wait for it; empty where it is the whole job."""

    def as_json(self) -> dict[str, Any]:
        """Plain data for `--json`."""
        return asdict(self)

    def sentence(self) -> str:
        """For people, in one line."""
        return f"{self.message}. Next: {self.next}"


@dataclass(frozen=True)
class Commands:
    """The next commands, as they are spelled for one job of one stack."""

    job: str
    stack: str
    namespace: str
    local: bool

    def trainyard(self, command: str, *arguments: str) -> str:
        """A command of ours on this job."""
        of_stack = [] if self.stack == "local" else ["-s", self.stack]
        return shlex.join(["trainyard", command, self.job, *arguments, *of_stack])

    def kubectl(self, *arguments: str) -> str:
        """The same for kubectl, in the jobs' namespace."""
        return shlex.join(["kubectl", "-n", self.namespace, *arguments])

    @property
    def up(self) -> str:
        """Bring the stack to what its file says."""
        return f"trainyard up -s {self.stack}"


def explain(
    job: Mapping[str, Any],
    pods: Sequence[Mapping[str, Any]],
    events: Sequence[Mapping[str, Any]],
    commands: Commands,
) -> list[Waiting]:
    """Why workers of a job do not run, the whole job's reason first; empty: nothing is waited for, or nobody says why.

    Args:
        job: the ElasticJob.
        pods: its workers.
        events: of the job and its workers; only what they say of volumes is used.
        commands: how the next commands are spelled.
    """
    conditions = {c["type"]: c for c in (job.get("status") or {}).get("conditions") or () if c["status"] == "True"}
    if "Succeeded" in conditions or "Failed" in conditions:
        return []
    if (job.get("spec") or {}).get("suspend"):
        return [_suspended(job, commands)]
    if not (job.get("status") or {}).get("conditions"):
        return [
            Waiting(
                "controller",
                "the controller has not seen the job yet",
                f"kubectl -n {SYSTEM_NAMESPACE} get pods",
            )
        ]
    found = [*_refused(job, pods, commands), *_job_s_capacity(conditions, commands)]
    of_job = {waiting.cause for waiting in found}
    of_pods = (waiting for pod in pods for waiting in _of_pod(pod, events, commands))
    return [*found, *_together(waiting for waiting in of_pods if waiting.cause not in of_job)]


def _suspended(job: Mapping[str, Any], commands: Commands) -> Waiting:
    if queue := _queue(job.get("metadata")):
        return Waiting(
            "queue",
            f"the job is suspended until queue {queue} has quota for it",
            commands.kubectl("get", "workloads,localqueues"),
        )
    return Waiting("suspended", "the job is suspended", commands.trainyard("resume"))


def _queue(metadata: Mapping[str, Any] | None) -> str | None:
    labels = (metadata or {}).get("labels") or {}
    return labels.get(QUEUE_LABEL)


def _refused(job: Mapping[str, Any], pods: Sequence[Mapping[str, Any]], commands: Commands) -> Iterator[Waiting]:
    """What the API server said when the controller wanted to make a worker; it stands in the condition Running."""
    running = next((c for c in job["status"]["conditions"] if c["type"] == "Running"), None)
    why = str((running or {}).get("message", "")).partition("; ")[2]
    if "exceeded quota" in why:
        yield Waiting("quota", why, commands.kubectl("describe", "resourcequotas"))
    elif why and not pods:
        yield Waiting("refused", why, f"correct the job's file, {commands.trainyard('cancel')}, and submit it again")


def _job_s_capacity(conditions: Mapping[str, Mapping[str, Any]], commands: Commands) -> Iterator[Waiting]:
    """The controller sees at once what no node can ever hold."""
    waiting = conditions.get("WaitingForCapacity")
    if waiting is None or waiting.get("reason") == "Unschedulable":
        return
    if waiting.get("reason") == "RequestTooLarge":
        advice = f"lower the request in the job's file, {commands.trainyard('cancel')}, and submit it again"
    else:
        advice = _more_nodes(commands)
    yield Waiting("capacity", str(waiting.get("message", "")), advice)


def _more_nodes(commands: Commands) -> str:
    if commands.local:
        return f"raise `nodes` of a pool in Pulumi.{commands.stack}.yaml, then {commands.up}"
    return "kubectl get nodes -L trainyard.dev/pool,trainyard.dev/capacity"


def _of_pod(pod: Mapping[str, Any], events: Sequence[Mapping[str, Any]], commands: Commands) -> Iterator[Waiting]:
    status = pod.get("status") or {}
    name = pod["metadata"]["name"]
    if status.get("phase") not in (None, "Pending", "Running") or pod["metadata"].get("deletionTimestamp"):
        return
    scheduled = next((c for c in status.get("conditions") or () if c["type"] == "PodScheduled"), None)
    if scheduled is not None and scheduled["status"] == "False":
        yield replace(_unscheduled(pod, scheduled, commands), workers=(name,))
        return
    waiting = [(c.get("state") or {}).get("waiting") or {} for c in _containers(status)]
    told = False
    for why in waiting:
        if known := _held_back(why, name, commands):
            told = True
            yield replace(known, workers=(name,))
    if told or status.get("phase") == "Running":
        return
    for event in reversed(events):
        if event["involvedObject"].get("name") == name and event.get("reason") in _VOLUME_EVENTS:
            message = " ".join(str(event.get("message", "")).split())
            yield Waiting("volume", message, commands.kubectl("describe", "pod", name), (name,))
            return


def _containers(status: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    yield from status.get("initContainerStatuses") or ()
    yield from status.get("containerStatuses") or ()


def _unscheduled(pod: Mapping[str, Any], condition: Mapping[str, Any], commands: Commands) -> Waiting:
    message = _PREEMPTION.sub("", " ".join(str(condition.get("message", "")).split())).rstrip(".")
    message = message or "no node was found yet"
    if condition.get("reason") == "SchedulingGated":
        queue = _queue(pod["metadata"])
        where = f"queue {queue} has not admitted the workers yet" if queue else message
        return Waiting("queue", where, commands.kubectl("get", "workloads,localqueues"))
    if any(word in message for word in _VOLUME_WORDS):
        claims = commands.kubectl("get", "persistentvolumeclaims")
        return Waiting("volume", message, f"{claims}; the claim of the stack is made by {commands.up}")
    if "untolerated taint" in message and "Insufficient" not in message:
        return Waiting("capacity", message, f"give the workers a toleration, or {_more_nodes(commands)}")
    ways = [_more_nodes(commands), "free nodes of others (trainyard jobs)"]
    return Waiting("capacity", message, "; or ".join(ways))


def _held_back(waiting: Mapping[str, Any], pod: str, commands: Commands) -> Waiting | None:
    reason, message = str(waiting.get("reason", "")), " ".join(str(waiting.get("message", "")).split())
    said = f"{reason}: {message}" if message else reason
    if reason in _IMAGE:
        _, inner, cause = said.rpartition("ErrImagePull: ")  # the wait before the next try tells it again
        said = inner + cause
        # The image store belongs to local stacks; elsewhere a registry is asked.
        advice = "trainyard images list" if commands.local else commands.kubectl("describe", "pod", pod)
        return Waiting("image", said, advice)
    if reason in _CONFIGURATION:
        return Waiting("configuration", said, commands.kubectl("describe", "pod", pod))
    if reason == "CrashLoopBackOff":
        return Waiting("crash", said, commands.trainyard("logs"))
    return None


def _together(found: Iterable[Waiting]) -> list[Waiting]:
    """Workers that wait for the same are told in one."""
    merged: dict[tuple[str, str], Waiting] = {}
    for waiting in found:
        key = waiting.cause, waiting.message.replace(waiting.workers[0], "")
        known = merged.get(key)
        merged[key] = replace(known, workers=(*known.workers, *waiting.workers)) if known else waiting
    return list(merged.values())
