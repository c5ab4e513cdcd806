"""All that the controller knows of the cluster: informers of jobs, pods, services and nodes, and which job cares.

Beside the informers stands what they alone cannot tell: the pods that vanished since a job's last plan, because how a
worker ended must not be lost with its object.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from training.controller import client
from training.controller.api import GROUP, LABEL_GROUP_NAME, LABEL_JOB_NAME, ElasticJob
from training.controller.client import Api, Object
from training.controller.records import NodeRecord, PodRecord, merged_pod, node_record, pod_record
from training.controller.watch import Informer

POD_NEWS_DELAY = 0.05
"""Seconds for which news of pods is gathered before their job is planned: they come in crowds."""


@dataclass(frozen=True, slots=True)
class JobRecord:
    """A job as last seen, or why it cannot be read."""

    job: ElasticJob | None
    resource_version: int
    error: str | None = None


@dataclass(frozen=True, slots=True)
class ServiceRecord:
    """That a service exists."""

    job_key: str
    resource_version: int


def service_record(obj: Object) -> ServiceRecord:
    """The record of a service object."""
    metadata = obj["metadata"]
    job = metadata.get("labels", {}).get(LABEL_JOB_NAME, "")
    return ServiceRecord(f"{metadata['namespace']}/{job}", int(metadata["resourceVersion"]))


class Store:
    """Informers, and the index from pods and nodes to jobs."""

    def __init__(
        self,
        api: Api,
        job_record: Callable[[Object], JobRecord],
        due: Callable[[str, float], None],
        namespace: str | None = None,
    ) -> None:
        """Reads through `api`; calls `due(job key, delay in seconds)` when a job has to be looked at."""
        self._due = due
        self._pods_by_job: defaultdict[str, set[str]] = defaultdict(set)
        self._vanished: defaultdict[str, list[PodRecord]] = defaultdict(list)
        ours = f"{LABEL_GROUP_NAME}={GROUP}"
        self.jobs = Informer(api, client.Job, job_record, self._job_changed, namespace=namespace)
        self.pods = Informer(
            api, client.Pod, pod_record, self._pod_changed, namespace=namespace, labels=ours, merge=merged_pod
        )
        self.services = Informer(
            api, client.Service, service_record, self._service_changed, namespace=namespace, labels=ours
        )
        self.nodes = Informer(api, client.Node, node_record, self._node_changed)

    @property
    def informers(
        self,
    ) -> Sequence[Informer[JobRecord] | Informer[PodRecord] | Informer[ServiceRecord] | Informer[NodeRecord]]:
        """All of them."""
        return self.jobs, self.pods, self.services, self.nodes

    async def wait_synced(self) -> None:
        """Returns when each informer has its first list."""
        await asyncio.gather(*(informer.synced.wait() for informer in self.informers))

    def pods_of(self, job_key: str) -> list[PodRecord]:
        """Pods that carry a job's name."""
        found = (self.pods.get(key) for key in self._pods_by_job.get(job_key, ()))
        return [pod for pod in found if pod is not None]

    def vanished(self, job_key: str) -> list[PodRecord]:
        """Last states of the job's pods that vanished and that no plan has taken into account yet."""
        return list(self._vanished.get(job_key, ()))

    def forget_vanished(self, job_key: str, pods: Sequence[PodRecord]) -> None:
        """A plan that took these into account has been written down."""
        if pods:
            known = {pod.uid for pod in pods}
            left = [pod for pod in self._vanished[job_key] if pod.uid not in known]
            if left:
                self._vanished[job_key] = left
            else:
                del self._vanished[job_key]

    def forget(self, job_key: str) -> None:
        """The job is gone."""
        self._vanished.pop(job_key, None)

    def _job_changed(self, key: str, old: JobRecord | None, new: JobRecord | None) -> None:
        del old, new
        self._due(key, 0.0)

    def _service_changed(self, key: str, old: ServiceRecord | None, new: ServiceRecord | None) -> None:
        del key
        known = new or old
        if known is not None:
            self._due(known.job_key, 0.0)

    def _pod_changed(self, key: str, old: PodRecord | None, new: PodRecord | None) -> None:
        if old is not None and (new is None or new.uid != old.uid):
            self._vanished[old.job_key].append(replace(old, gone=True))
        if new is not None:
            self._pods_by_job[new.job_key].add(key)
        elif old is not None:
            of_job = self._pods_by_job[old.job_key]
            of_job.discard(key)
            if not of_job:
                del self._pods_by_job[old.job_key]
        known = new or old
        if known is not None and (old is None or new is None or _differs(old, new)):
            self._due(known.job_key, POD_NEWS_DELAY)

    def _node_changed(self, key: str, old: NodeRecord | None, new: NodeRecord | None) -> None:
        if old is not None and new is not None and replace(old, resource_version=new.resource_version) == new:
            return  # a heartbeat
        for job_key, pod_keys in self._pods_by_job.items():
            if any((pod := self.pods.get(pod_key)) is not None and pod.node == key for pod_key in pod_keys):
                self._due(job_key, 0.0)
        if old is None or new is None or old.allocatable != new.allocatable or old.labels != new.labels:
            for record in self.jobs:
                if record.job is not None and not record.job.status.ended:
                    self._due(record.job.key, POD_NEWS_DELAY)


def _differs(old: PodRecord, new: PodRecord) -> bool:
    return replace(old, resource_version=new.resource_version) != new
