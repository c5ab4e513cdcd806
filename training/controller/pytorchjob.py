"""The PyTorchJob API `kubeflow.org/v1` of the training operator, and how such a job is planned.

A PyTorchJob becomes the job that the planner knows: replicas with roles and numbers, the Master before the workers.
What the planner has to remember is kept in `status.trainyard`; the rest of the status is as the training operator
writes it. This module needs pydantic only: the Pulumi program reads it too.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from enum import StrEnum
from typing import Any, ClassVar

from pydantic import Field

from training.controller.api import (
    CONTROLLER_NAME,
    KIND,
    MAX_WORKERS,
    WORKER,
    ConditionType,
    ElasticJob,
    ElasticJobSpec,
    ElasticJobStatus,
    GangScheduler,
    ReplicaSpec,
    RestartPolicy,
    Role,
    RunPolicyFields,
    SchedulingPolicy,
    Time,
    _Model,
    dumped,
)
from training.controller.gang import GANG_APIS

GROUP = "kubeflow.org"
VERSION = "v1"
API_VERSION = f"{GROUP}/{VERSION}"
PYTORCH_KIND = "PyTorchJob"
PLURAL = "pytorchjobs"

MASTER = "Master"
MAIN_CONTAINER = "pytorch"
PORT_NAME = "pytorchjob-port"
PORT = 23456

# Labels on pods and services, as the training operator sets them.
LABEL_OPERATOR = "training.kubeflow.org/operator-name"
LABEL_JOB_NAME = "training.kubeflow.org/job-name"
LABEL_REPLICA_TYPE = "training.kubeflow.org/replica-type"
LABEL_REPLICA_INDEX = "training.kubeflow.org/replica-index"
LABEL_JOB_ROLE = "training.kubeflow.org/job-role"
OPERATOR = "pytorchjob-controller"

TRAINING_OPERATOR = "kubeflow.org/training-operator"
"""`managedBy` of jobs of the training operator, and of whoever serves its API in its place."""
TRAINING_OPERATOR_LABELS = "control-plane=kubeflow-training-operator"
"""Labels of the training operator's Deployment in its own manifests."""
CONDITIONS = (
    ConditionType.CREATED,
    ConditionType.RUNNING,
    ConditionType.RESTARTING,
    ConditionType.SUSPENDED,
    ConditionType.SUCCEEDED,
    ConditionType.FAILED,
)
"""Conditions that the training operator knows; others stand in `status.trainyard`."""


class RendezvousBackend(StrEnum):
    """What the launchers meet at."""

    C10D = "c10d"
    ETCD = "etcd"
    ETCD_V2 = "etcd-v2"
    ETCD_V3 = "etcd-v3"


class PyTorchReplicaSpec(ReplicaSpec):
    """Replicas of one role."""

    replicas: int = Field(default=1, ge=1, le=MAX_WORKERS, description="Wanted number of replicas.")
    restart_policy: RestartPolicy = Field(
        default=RestartPolicy.ON_FAILURE,
        description="After an exit code other than 0. OnFailure and Always: the kubelet restarts the container in its "
        "pod. ExitCode: codes from 128 and 75 start a new pod, others fail the job. Never: the job fails. Disrupted "
        "replicas are replaced under each policy.",
    )
    template: dict[str, Any] = Field(
        description="Pod template of a replica. Its main container is `pytorch`, or the first one.",
        json_schema_extra={"x-kubernetes-preserve-unknown-fields": True},
    )


class RendezvousSetting(_Model):
    """One setting of the rendezvous."""

    key: str = Field(description="Name.")
    value: str = Field(description="Value.")


class ElasticPolicy(_Model):
    """Makes the number of workers elastic."""

    min_replicas: int | None = Field(
        default=None, ge=1, le=MAX_WORKERS, description="Fewest workers. Unset: maxReplicas, or the number of workers."
    )
    max_replicas: int | None = Field(
        default=None, ge=1, le=MAX_WORKERS, description="Most workers. Unset: minReplicas, or the number of workers."
    )
    rdzv_backend: RendezvousBackend | None = Field(default=None, description="PET_RDZV_BACKEND. Unset: c10d.")
    rdzv_port: int | None = Field(
        default=None, ge=1, le=65535, description="Port of PET_RDZV_ENDPOINT. Unset: pytorchjob-port of the container."
    )
    rdzv_host: str | None = Field(
        default=None, description="Host of PET_RDZV_ENDPOINT. Unset: the first replica, which has a Service."
    )
    rdzv_id: str | None = Field(
        default=None, description="PET_RDZV_ID. Unset: another one for each time that all replicas start anew."
    )
    rdzv_conf: list[RendezvousSetting] | None = Field(default=None, max_length=32, description="PET_RDZV_CONF.")
    standalone: bool | None = Field(default=None, description="True sets PET_STANDALONE.")
    n_proc_per_node: int | None = Field(default=None, ge=1, description="Older place of nprocPerNode.")
    max_restarts: int | None = Field(default=None, ge=0, description="PET_MAX_RESTARTS. Unset: 1000.")
    metrics: list[dict[str, Any]] | None = Field(
        default=None,
        description="Ignored, which an event says: no HorizontalPodAutoscaler is made. One of your own can scale the "
        "job through its scale subresource.",
        json_schema_extra={"x-kubernetes-list-type": "atomic"},
    )


class PyTorchSchedulingPolicy(_Model):
    """How the replicas are scheduled together, where schedulerName of their template is one that can."""

    min_available: int | None = Field(
        default=None, ge=0, description="Replicas that have to fit together. Unset: all that the job cannot do without."
    )
    queue: str | None = Field(
        default=None,
        max_length=253,
        description="Queue of Volcano.",
        json_schema_extra={
            "x-kubernetes-validations": [
                {"rule": "self == oldSelf", "message": "spec.runPolicy.schedulingPolicy.queue is immutable"}
            ]
        },
    )


class RunPolicy(RunPolicyFields):
    """When a job ends, what is left of it, and who takes care of it."""

    suspend: bool | None = Field(
        default=None, description="True stops the job and frees its GPUs; false or unset lets it run (again)."
    )
    managed_by: str | None = Field(
        default=None,
        max_length=253,
        description=f"Who takes care of the job. Unset or {TRAINING_OPERATOR}: this controller, where no training "
        f"operator runs. {CONTROLLER_NAME}: this controller in any case. Others are left alone.",
    )
    scheduling_policy: PyTorchSchedulingPolicy | None = Field(
        default=None, description="How the replicas are scheduled together."
    )


class PyTorchJobSpec(_Model):
    """What is wanted."""

    run_policy: RunPolicy = Field(default_factory=RunPolicy, description="When the job ends, and what is left of it.")
    elastic_policy: ElasticPolicy | None = Field(
        default=None, description="Makes the number of workers elastic, and tells torchrun where they meet."
    )
    nproc_per_node: str | None = Field(
        default=None, max_length=10, description="PET_NPROC_PER_NODE: auto, cpu, gpu or a number. Unset: auto."
    )
    pytorch_replica_specs: dict[str, PyTorchReplicaSpec] = Field(
        description="The replicas, under Master and Worker.", json_schema_extra={"maxProperties": 8}
    )


class PyTorchCondition(_Model):
    """One aspect of a job's state."""

    type: str = Field(description="Created, Running, Restarting, Suspended, Succeeded or Failed.")
    status: str = Field(description="True or False.")
    reason: str = Field(default="", description="One word for programs.")
    message: str = Field(default="", description="A sentence for people.")
    last_update_time: Time | None = Field(default=None, description="When status last changed.")
    last_transition_time: Time | None = Field(default=None, description="When status last changed.")


class PyTorchReplicaStatus(_Model):
    """Replicas of a role, counted by state."""

    active: int = Field(default=0, description="Pods that exist, have not finished and are not being deleted.")
    succeeded: int = Field(default=0, description="Pods that finished with exit code 0.")
    failed: int = Field(default=0, description="Pods that failed and still exist.")
    selector: str = Field(default="", description="Label selector of the role; read by the scale subresource.")


class PyTorchJobStatus(_Model):
    """What is."""

    conditions: list[PyTorchCondition] = Field(default_factory=list, description="Aspects of the job's state.")
    replica_statuses: dict[str, PyTorchReplicaStatus] = Field(
        default_factory=dict, description="Replicas counted by role and state."
    )
    start_time: Time | None = Field(default=None, description="When the job started, or was last resumed.")
    completion_time: Time | None = Field(default=None, description="When the job ended, well or not.")
    trainyard: ElasticJobStatus | None = Field(
        default=None, description="What Trainyard's controller remembers, as in the status of an ElasticJob."
    )


class PyTorchJob(ElasticJob):
    """A PyTorchJob, as the planner sees it: number -1 is the Master, 0 and up are the workers."""

    api_version: ClassVar[str] = API_VERSION
    kind: ClassVar[str] = PYTORCH_KIND
    numbered: ClassVar[bool] = True

    wanted: PyTorchJobSpec
    """The spec as the user wrote it; `spec` is what it means to the planner."""

    @property
    def roles(self) -> tuple[Role, ...]:
        """Master, if there is one, and workers."""
        specs = self.wanted.pytorch_replica_specs
        numbers = ((MASTER, -1), (WORKER, 0))
        return tuple(Role(name, first, specs[name]) for name, first in numbers if name in specs)

    @property
    def has_master(self) -> bool:
        """Whether there is a Master, whose success is the job's."""
        return MASTER in self.wanted.pytorch_replica_specs

    @property
    def service_name(self) -> str:
        """Name of the Service of the first replica, which is the first replica's own name."""
        return self.pod_name(self.roles[0].first)

    @property
    def service_names(self) -> tuple[str, ...]:
        """Names of all its Services."""
        return (self.service_name,)

    @property
    def hosting_worker(self) -> int | None:
        """Number of the first replica where launchers meet there by c10d, for it holds their store; else None."""
        elastic = self.wanted.elastic_policy
        backend = elastic and (elastic.rdzv_backend or RendezvousBackend.C10D)
        if elastic is None or elastic.standalone or backend is not RendezvousBackend.C10D:
            return None
        host, _, _ = (elastic.rdzv_host or self.service_name).partition(".")
        return self.roles[0].first if host == self.service_name else None

    def selector(self, role: str | None = None) -> dict[str, str]:
        """Labels that select exactly the pods of the job, or of one role of it."""
        of_job = {LABEL_OPERATOR: OPERATOR, LABEL_JOB_NAME: self.metadata.name}
        return of_job | ({LABEL_REPLICA_TYPE: role.lower()} if role is not None else {})

    def finished_with(self, succeeded: Collection[int]) -> bool:
        """As the training operator has it: the Master; without one any worker of an elastic job, or all of another."""
        if self.has_master:
            return self.roles[0].first in succeeded
        if self.wanted.elastic_policy is not None:
            return bool(succeeded)
        return len(set(succeeded)) >= self.spec.worker.replicas

    @property
    def ignored(self) -> tuple[str, ...]:
        """Sentences about fields that are accepted and have no effect."""
        policy = self.wanted.elastic_policy
        if policy is None or not policy.metrics:
            return ()
        command = f"kubectl autoscale pytorchjob {self.metadata.name} -n {self.metadata.namespace} --max=NUMBER"
        return (f"elasticPolicy.metrics is ignored: no HorizontalPodAutoscaler is made. Make your own: {command}",)

    @property
    def foreign(self) -> bool:
        """Whether the job is another controller's, by its own word."""
        return self.spec.managed_by not in {None, TRAINING_OPERATOR, CONTROLLER_NAME}

    @property
    def gives_way(self) -> bool:
        """Whether the job is the training operator's where one runs."""
        return self.spec.managed_by != CONTROLLER_NAME


def pytorch_job(obj: Mapping[str, Any]) -> PyTorchJob:
    """The job of a PyTorchJob object.

    Raises:
        ValidationError: the object is none that the definition here would let pass.
    """
    wanted = PyTorchJobSpec.model_validate(obj["spec"])
    memory = (obj.get("status") or {}).get("trainyard") or {}
    spec = _planned(obj["metadata"]["name"], wanted)
    return PyTorchJob.model_validate({"metadata": obj["metadata"], "spec": spec, "status": memory, "wanted": wanted})


def _planned(name: str, wanted: PyTorchJobSpec) -> ElasticJobSpec:
    """What a spec means to the planner: its replicas together, Master included."""
    specs, elastic, run = wanted.pytorch_replica_specs, wanted.elastic_policy, wanted.run_policy
    first = specs[MASTER] if MASTER in specs else specs[WORKER]
    number = sum(role.replicas for role in specs.values())
    fewest, most = None, None
    host, port = f"{name}-{MASTER if MASTER in specs else WORKER}-0".lower(), main_port(first.template)
    if elastic is not None and WORKER in specs:
        others = number - specs[WORKER].replicas
        bounds = [bound for bound in (elastic.min_replicas, elastic.max_replicas) if bound is not None]
        if bounds:
            fewest, most = min(bounds) + others, max(bounds) + others
    if elastic is not None:
        host, port = elastic.rdzv_host or host, elastic.rdzv_port or port
    return ElasticJobSpec(
        rdzv_endpoint=f"{host}:{port}",
        min_replicas=fewest,
        max_replicas=most,
        suspend=run.suspend,
        managed_by=run.managed_by,
        scheduling_policy=_scheduling(first.template, run.scheduling_policy),
        replica_specs={WORKER: first.model_copy(update={"replicas": number})},
        run_policy=run,
    )


def _scheduling(template: Mapping[str, Any], policy: PyTorchSchedulingPolicy | None) -> SchedulingPolicy | None:
    """By name of the scheduler: the API has no field that asks for a gang, the training operator has an option."""
    spec = template.get("spec")
    name = spec.get("schedulerName") if isinstance(spec, dict) else None
    scheduler = next((which for which, api in GANG_APIS.items() if api.scheduler_name == name), None)
    if scheduler is None:
        return None
    asked = policy or PyTorchSchedulingPolicy()
    queue = asked.queue if scheduler is GangScheduler.VOLCANO else None
    return SchedulingPolicy(scheduler=scheduler, min_available=asked.min_available, queue=queue or None)


def main_port(template: Mapping[str, Any]) -> int:
    """Port of the main container by the name that the training operator gives it; its default where there is none."""
    spec = template.get("spec")
    containers = spec.get("containers") if isinstance(spec, dict) else None
    every = [each for each in containers if isinstance(each, dict)] if isinstance(containers, list) else []
    main: dict[str, Any] = next(
        (each for each in every if each.get("name") == MAIN_CONTAINER), every[0] if every else {}
    )
    named = (port.get("containerPort") for port in main.get("ports") or () if port.get("name") == PORT_NAME)
    return next((port for port in named if isinstance(port, int)), PORT)


def status_body(job: ElasticJob, status: ElasticJobStatus) -> dict[str, Any]:
    """The status of a PyTorchJob, ready to be written."""
    if not isinstance(job, PyTorchJob):
        raise TypeError(f"{job.key} is no PyTorchJob")
    conditions = [
        PyTorchCondition(
            type=each.type,
            status=each.status,
            reason=each.reason.replace(KIND, PYTORCH_KIND),
            message=each.message,
            last_update_time=each.last_transition_time,
            last_transition_time=each.last_transition_time,
        )
        for kind in CONDITIONS
        if (each := status.condition(kind)) is not None
    ]
    replicas = {
        role: PyTorchReplicaStatus(
            active=counted.active,
            succeeded=counted.succeeded,
            failed=counted.failed,
            selector=",".join(f"{key}={value}" for key, value in job.selector(role).items()),
        )
        for role, counted in status.replica_statuses.items()
    }
    whole = PyTorchJobStatus(
        conditions=conditions,
        replica_statuses=replicas,
        start_time=status.start_time,
        completion_time=status.completion_time,
    )
    written: dict[str, Any] = whole.model_dump(mode="json", by_alias=True, exclude_none=True)
    return written | {"trainyard": dumped(status)}
