"""Workers that start together or not at all: the PodGroups of Volcano and of the scheduler-plugins.

A PodGroup tells the scheduler how many pods have to fit; which pods are meant, labels and annotations of theirs tell.
Names and fields are those of the two projects' APIs. This module needs no client: the Pulumi program reads it too.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from training.controller.api import GangScheduler
from training.controller.capacity import parse_quantity, worker_requests

PLURAL = "podgroups"
NO_GROUP = 0
"""Members of a PodGroup that is not to be, or is known not to be there."""


@dataclass(frozen=True, slots=True)
class GangApi:
    """What one scheduler wants to see."""

    group: str
    version: str
    scheduler_name: str
    """Under which it usually runs; `schedulerName` of the pod template wins."""
    labels: Mapping[str, str] = field(default_factory=dict)
    """Of a pod: `{group}` stands for the name of its PodGroup, `{task}` for its role."""
    annotations: Mapping[str, str] = field(default_factory=dict)

    @property
    def api_version(self) -> str:
        """Group and version."""
        return f"{self.group}/{self.version}"


GANG_APIS: Mapping[GangScheduler, GangApi] = MappingProxyType(
    {
        GangScheduler.VOLCANO: GangApi(
            "scheduling.volcano.sh",
            "v1beta1",
            "volcano",
            annotations={"scheduling.k8s.io/group-name": "{group}", "volcano.sh/task-spec": "{task}"},
        ),
        GangScheduler.SCHEDULER_PLUGINS: GangApi(
            "scheduling.x-k8s.io",
            "v1alpha1",
            "scheduler-plugins-scheduler",  # as its chart names the second scheduler
            labels={"scheduling.x-k8s.io/pod-group": "{group}"},
        ),
    }
)


def join_gang(pod: dict[str, Any], scheduler: GangScheduler, group: str, task: str) -> None:
    """Puts a pod, a manifest, into a PodGroup.

    Args:
        pod: the pod; changed.
        scheduler: which scheduler.
        group: name of the PodGroup.
        task: the pod's role, `worker`.
    """
    api = GANG_APIS[scheduler]
    pod["spec"]["schedulerName"] = pod["spec"].get("schedulerName") or api.scheduler_name
    metadata = pod["metadata"]
    for key, texts in (("labels", api.labels), ("annotations", api.annotations)):
        if texts:
            told = {name: text.format(group=group, task=task) for name, text in texts.items()}
            metadata[key] = {**(metadata.get(key) or {}), **told}


def pod_group(
    scheduler: GangScheduler, metadata: dict[str, Any], members: int, template: Mapping[str, Any], queue: str | None
) -> dict[str, Any]:
    """The manifest of a PodGroup.

    Args:
        scheduler: which scheduler.
        metadata: name, namespace, labels and owner.
        members: pods that have to fit together.
        template: pod template of a worker: what they ask for, and their priority.
        queue: of Volcano.
    """
    api = GANG_APIS[scheduler]
    requests = worker_requests(template)
    least = {name: f"{(parse_quantity(amount) * members).normalize():f}" for name, amount in requests.items()}
    spec: dict[str, Any] = {"minMember": members} | ({"minResources": least} if least else {})
    if scheduler is GangScheduler.VOLCANO:
        priority = (template.get("spec") or {}).get("priorityClassName")
        spec |= {key: value for key, value in (("queue", queue), ("priorityClassName", priority)) if value}
    return {"apiVersion": api.api_version, "kind": "PodGroup", "metadata": metadata, "spec": spec}
