"""The kinds of job that the controller serves, and what is different about them at the edges.

Both are planned by the same planner; what a pod, a Service and a status look like is each kind's own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from pydantic import ValidationError

from training.controller import api, client, pods, pytorchjob, pytorchjob_pods
from training.controller.api import ElasticJob, ElasticJobStatus
from training.controller.client import Object, Resource
from training.controller.rbac import LEASE_NAME, PYTORCH_LEASE_NAME
from training.controller.records import PodRecord, pod_record


@dataclass(frozen=True, slots=True)
class JobRecord:
    """A job as last seen, or why it cannot be read."""

    job: ElasticJob | None
    resource_version: int
    error: str | None = None


@dataclass(frozen=True, slots=True)
class Served:
    """One kind of job."""

    job: Resource
    status: Resource
    read: Callable[[Object], ElasticJob]
    """The job of an object; raises ValidationError."""
    pod: Callable[[ElasticJob, int, int, str, pods.RendezvousLogin | None], Object]
    """The manifest of a replica: job, index, generation, `min:max`, login."""
    pod_record: Callable[[Object], PodRecord]
    service: Callable[[ElasticJob, str], Object]
    """The manifest of one of the job's `service_names`."""
    status_body: Callable[[ElasticJob, ElasticJobStatus], Object]
    labels: str
    """Of all pods and services of such jobs."""
    job_label: str
    """Label that names the job."""
    lease: str
    """Name of the Lease for which controllers of this kind compete."""
    metrics: str
    """How the names of its metrics begin."""
    gauge: str
    """End of the name of the gauge of its jobs."""
    memory: str | None = None
    """Field of the status that another definition of the kind might not have."""
    rivals: str | None = None
    """Labels of the Deployment that serves these jobs where it runs."""

    def record(self, obj: Object) -> JobRecord:
        """The record of an object; one that cannot be read keeps the reason."""
        version = int(obj["metadata"]["resourceVersion"])
        try:
            return JobRecord(self.read(obj), version)
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(str(part) for part in first["loc"])
            return JobRecord(None, version, f"{where}: {first['msg']}")


def _pytorch_pod_record(pod: Mapping[str, Any]) -> PodRecord:
    labels = pod["metadata"].get("labels", {})
    number = labels.get(pytorchjob.LABEL_REPLICA_INDEX, "")
    master = labels.get(pytorchjob.LABEL_REPLICA_TYPE) == pytorchjob.MASTER.lower()
    return replace(
        pod_record(pod, pytorchjob.MAIN_CONTAINER),
        job=labels.get(pytorchjob.LABEL_JOB_NAME, ""),
        index=-1 if master else int(number) if number.isdecimal() else 0,
    )


ELASTIC = Served(
    job=client.Job,
    status=client.JobStatus,
    read=ElasticJob.model_validate,
    pod=pods.worker_pod,
    pod_record=pod_record,
    service=pods.headless_service,
    status_body=lambda _, status: api.dumped(status),
    labels=f"{api.LABEL_GROUP_NAME}={api.GROUP}",
    job_label=api.LABEL_JOB_NAME,
    lease=LEASE_NAME,
    metrics="trainyard_",
    gauge="elasticjobs",
)
PYTORCH = Served(
    job=client.PyTorchJob,
    status=client.PyTorchJobStatus,
    read=pytorchjob.pytorch_job,
    pod=pytorchjob_pods.replica_pod,
    pod_record=_pytorch_pod_record,
    service=pytorchjob_pods.first_service,
    status_body=pytorchjob.status_body,
    labels=f"{pytorchjob.LABEL_OPERATOR}={pytorchjob.OPERATOR}",
    job_label=pytorchjob.LABEL_JOB_NAME,
    lease=PYTORCH_LEASE_NAME,
    metrics="trainyard_pytorchjob_",
    gauge="jobs",
    memory="trainyard",
    rivals=pytorchjob.TRAINING_OPERATOR_LABELS,
)
