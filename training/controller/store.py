"""All that the controller knows of the cluster: informers of jobs, pods, services and nodes, and which job cares.

Beside the informers stand the nodes that vanished while pods still name them, which they alone cannot tell.
"""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from decimal import Decimal

from training.controller import client
from training.controller.api import ElasticJob
from training.controller.client import Api, Object
from training.controller.planner import NO_BUDGET
from training.controller.records import (
    KNOWN_NOTICES,
    NodeRecord,
    Notices,
    PodRecord,
    merged_pod,
    node_record,
)
from training.controller.served import JobRecord, Served
from training.controller.watch import Informer

POD_NEWS_DELAY = 0.05
"""Seconds for which news of pods is gathered before their job is planned: they come in crowds."""
BOUND_BEFORE_LIST = timedelta(seconds=10)
"""A pod that got its node so long before the nodes were listed got one that was in the list, or it was gone by then."""


@dataclass(frozen=True, slots=True)
class RivalRecord:
    """A Deployment that serves the same jobs, and whether it is to run."""

    runs: bool
    resource_version: int


def rival_record(obj: Object) -> RivalRecord:
    """The record of a Deployment object."""
    return RivalRecord(obj["spec"].get("replicas", 1) > 0, int(obj["metadata"]["resourceVersion"]))


@dataclass(frozen=True, slots=True)
class ServiceRecord:
    """That a service exists."""

    job_key: str
    resource_version: int


def service_record(obj: Object, job_label: str) -> ServiceRecord:
    """The record of a service object, one of whose labels names its job."""
    metadata = obj["metadata"]
    job = metadata.get("labels", {}).get(job_label, "")
    return ServiceRecord(f"{metadata['namespace']}/{job}", int(metadata["resourceVersion"]))


@dataclass(frozen=True, slots=True)
class BudgetRecord:
    """A disruption budget."""

    job_key: str
    least: int
    """Workers that evictions have to leave."""
    resource_version: int


def budget_record(obj: Object, job_label: str) -> BudgetRecord:
    """The record of a disruption budget; one that says it in another way than the controller does is none."""
    metadata, least = obj["metadata"], obj["spec"].get("minAvailable")
    job = metadata.get("labels", {}).get(job_label, "")
    return BudgetRecord(
        f"{metadata['namespace']}/{job}",
        least if isinstance(least, int) else NO_BUDGET,
        int(metadata["resourceVersion"]),
    )


class Store:
    """Informers, and the index from pods and nodes to jobs."""

    def __init__(
        self,
        api: Api,
        served: Served,
        due: Callable[[str, float], None],
        namespace: str | None = None,
        edited: Callable[[str], None] = lambda _: None,
        notices: Notices = KNOWN_NOTICES,
    ) -> None:
        """Reads through `api` what jobs of the kind `served` need; `notices` tell which nodes come to their end.

        Calls `due(job key, delay in seconds)` when a job has to be looked at, and before it `edited(job key)` when it
        is because its user has changed it.
        """
        self._due = due
        self._edited = edited
        self._pods_by_job: defaultdict[str, set[str]] = defaultdict(set)
        self._pods_by_node: defaultdict[str, set[str]] = defaultdict(set)
        self._lost_nodes: set[str] = set()
        self.noticed_at: dict[str, float] = {}
        """When the end of a node was announced whose workers have not been replaced yet; of the monotonic clock."""
        self.jobs = Informer(api, served.job, served.record, self._job_changed, namespace=namespace)
        ours = served.labels
        self.pods = Informer(
            api, client.Pod, served.pod_record, self._pod_changed, namespace=namespace, labels=ours, merge=merged_pod
        )
        self.services = Informer(
            api,
            client.Service,
            lambda service: service_record(service, served.job_label),
            self._service_changed,
            namespace=namespace,
            labels=ours,
        )
        self.budgets = Informer(
            api,
            client.DisruptionBudget,
            lambda budget: budget_record(budget, served.job_label),
            self._budget_changed,
            namespace=namespace,
            labels=ours,
        )
        self.nodes = Informer(api, client.Node, lambda node: node_record(node, notices), self._node_changed)

        self._rivals = (
            None
            if served.rivals is None
            else Informer(api, client.Deployment, rival_record, self._rival_changed, labels=served.rivals)
        )

    @property
    def informers(
        self,
    ) -> Sequence[
        Informer[JobRecord]
        | Informer[PodRecord]
        | Informer[ServiceRecord]
        | Informer[BudgetRecord]
        | Informer[NodeRecord]
        | Informer[RivalRecord]
    ]:
        """All of them."""
        always = self.jobs, self.pods, self.services, self.budgets, self.nodes
        return always if self._rivals is None else (*always, self._rivals)

    def rival_of(self, job: ElasticJob) -> str | None:
        """The Deployment, as `namespace/name`, that a job is left to; None if it is this controller's."""
        if self._rivals is None or not job.gives_way:
            return None
        return next((key for key, rival in sorted(self._rivals.all().items()) if rival.runs), None)

    async def wait_synced(self) -> None:
        """Returns when each informer has its first list."""
        await asyncio.gather(*(informer.synced.wait() for informer in self.informers))

    def pods_of(self, job_key: str) -> list[PodRecord]:
        """Pods that carry a job's name."""
        found = (self.pods.get(key) for key in self._pods_by_job.get(job_key, ()))
        return [pod for pod in found if pod is not None]

    def lost_nodes(self, pods: Iterable[PodRecord]) -> set[str]:
        """Which of the nodes that pods name are gone for certain; of others that are not known the news may be late."""
        listed = self.nodes.listed_at
        return {
            pod.node
            for pod in pods
            if pod.node is not None
            and self.nodes.get(pod.node) is None
            and (
                pod.node in self._lost_nodes
                or (
                    listed is not None
                    and (bound := pod.scheduled or pod.created) is not None
                    and bound + BOUND_BEFORE_LIST <= listed
                )
            )
        }

    def used(self) -> dict[str, dict[str, Decimal]]:
        """What worker pods take of each node, until they have ended."""
        taken: defaultdict[str, defaultdict[str, Decimal]] = defaultdict(lambda: defaultdict(Decimal))
        for pod in self.pods:
            if pod.node is not None and not pod.finished:
                for resource, amount in pod.requests.items():
                    taken[pod.node][resource] += amount
        return {node: dict(resources) for node, resources in taken.items()}

    def _job_changed(self, key: str, old: JobRecord | None, new: JobRecord | None) -> None:
        before, after = (record.job if record is not None else None for record in (old, new))
        if (
            new is not None
            and old is not None
            and (before is None or after is None or before.metadata.generation != after.metadata.generation)
        ):
            self._edited(key)
        self._due(key, 0.0)

    def _rival_changed(self, key: str, old: RivalRecord | None, new: RivalRecord | None) -> None:
        del key
        if (old is not None and old.runs) != (new is not None and new.runs):
            for job in self.jobs.all():
                self._due(job, 0.0)

    def _service_changed(self, key: str, old: ServiceRecord | None, new: ServiceRecord | None) -> None:
        del key
        known = new or old
        if known is not None:
            self._due(known.job_key, 0.0)

    def _budget_changed(self, key: str, old: BudgetRecord | None, new: BudgetRecord | None) -> None:
        del key
        known = new or old
        if known is not None and (old is None or new is None or old.least != new.least):
            self._due(known.job_key, 0.0)

    def _pod_changed(self, key: str, old: PodRecord | None, new: PodRecord | None) -> None:
        if old is not None and (new is None or new.job_key != old.job_key):
            _take_out(self._pods_by_job, old.job_key, key)
            self._due(old.job_key, POD_NEWS_DELAY)
        if old is not None and old.node is not None and (new is None or new.node != old.node):
            _take_out(self._pods_by_node, old.node, key)
        if new is not None:
            self._pods_by_job[new.job_key].add(key)
            if new.node is not None:
                self._pods_by_node[new.node].add(key)
            if old is None or _differs(old, new):
                self._due(new.job_key, POD_NEWS_DELAY)

    def _node_changed(self, key: str, old: NodeRecord | None, new: NodeRecord | None) -> None:
        if old is not None and new is not None and replace(old, resource_version=new.resource_version) == new:
            return  # a heartbeat
        if new is None or new.notice is None:
            self.noticed_at.pop(key, None)
        elif old is not None and old.notice is None:
            self.noticed_at[key] = time.monotonic()
        if new is not None:
            self._lost_nodes.discard(key)
        elif old is not None:
            self._lost_nodes &= self._pods_by_node.keys()
            self._lost_nodes.add(key)
        found = (self.pods.get(pod_key) for pod_key in self._pods_by_node.get(key, ()))
        for job_key in {pod.job_key for pod in found if pod is not None}:
            self._due(job_key, 0.0)
        other = old is None or new is None or (old.allocatable, old.labels) != (new.allocatable, new.labels)
        if other or old is None or new is None or _open(old) != _open(new):
            for record in self.jobs:
                if record.job is not None and not record.job.status.ended and (other or record.job.spec.probes):
                    self._due(record.job.key, POD_NEWS_DELAY)


def _take_out(index: defaultdict[str, set[str]], name: str, key: str) -> None:
    index[name].discard(key)
    if not index[name]:
        del index[name]


def _open(node: NodeRecord) -> tuple[object, ...]:
    """To whom a node is open, which only jobs that look for room care about."""
    return node.taints, node.cordoned, node.ready


def _differs(old: PodRecord, new: PodRecord) -> bool:
    return replace(old, resource_version=new.resource_version) != new
