"""The ElasticJob API `elastic.pytorch.org/v1alpha1`: one typed model for its schema, its readers and its writers.

The contract with the archived upstream controller is kept (names, labels, prepended launcher arguments, flat
run-policy fields). `crd.py` makes the custom resource definition from these models, so descriptions here are what
`kubectl explain` shows. This module needs pydantic only: the Pulumi program reads it too.
"""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime
from enum import StrEnum
from typing import Annotated, Any, ClassVar, NamedTuple

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, PlainSerializer
from pydantic.alias_generators import to_camel

GROUP = "elastic.pytorch.org"
VERSION = "v1alpha1"
API_VERSION = f"{GROUP}/{VERSION}"
KIND = "ElasticJob"
PLURAL = "elasticjobs"

WORKER = "Worker"
"""The only replica type; its lower-case form is part of pod names and labels."""

STORE = "store"
"""`replica-type` of the pod that holds the rendezvous store."""

MAIN_CONTAINER = "elasticjob-worker"
"""Name of the container that runs the launcher; without one of this name it is the first container."""

MAX_NAME_LENGTH = 51
"""`<name>-worker-9999` has to fit the 63 characters of a host name."""

# Labels on pods and services: the four of upstream, then ours.
LABEL_GROUP_NAME = "group-name"
LABEL_JOB_NAME = "job-name"
LABEL_REPLICA_TYPE = "replica-type"
LABEL_REPLICA_INDEX = "replica-index"
LABEL_OUR_JOB_NAME = f"{GROUP}/job-name"
LABEL_GENERATION = f"{GROUP}/generation"
LABEL_MANAGED_BY = "app.kubernetes.io/managed-by"
MANAGED_BY = "trainyard"

FINALIZER = f"{GROUP}/outcome"
"""On a worker pod: it does not go before the controller knows how it ended."""

ANNOTATION_VICTIMS = f"{GROUP}/victims"
"""On a job: names of workers, separated by commas, that go first when fewer are wanted."""

CONTROLLER_NAME = "trainyard.dev/elastic-controller"
"""`managedBy` of the jobs that are this controller's; jobs that name nobody are its own too."""

# Spot notices as they are seen in the cluster.
ANNOTATION_RECLAIM_AT = "trainyard.dev/reclaim-at"
NOTICE_TAINTS = frozenset(
    {
        "aws-node-termination-handler/spot-itn",
        "karpenter.sh/disrupted",
        "karpenter.sh/disruption",
        "ToBeDeletedByClusterAutoscaler",
        "cloud.google.com/impending-node-termination",
        # AKS drains nodes with scheduled events (docs: "node auto-drain"), under its older and its newer name
        "remediator.aks.microsoft.com/unschedulable",
        "remediator.kubernetes.azure.com/unschedulable",
    }
)
TAINT_OUT_OF_SERVICE = "node.kubernetes.io/out-of-service"

# Exit codes of the launcher with a meaning of their own; others are judged by the restart policy.
EXIT_PREEMPTED = 75
"""Preempted after saving a checkpoint: retried, not charged."""
EXIT_DO_NOT_RESTART = 78
"""Trying again cannot help: the job fails."""
FIRST_RETRYABLE_EXIT_CODE = 128
"""With `restartPolicy: ExitCode`, codes from here on (killed by a signal) are retried."""


class ConditionType(StrEnum):
    """Types of `status.conditions`."""

    CREATED = "Created"
    RUNNING = "Running"
    RESTARTING = "Restarting"
    SUSPENDED = "Suspended"
    SUCCEEDED = "Succeeded"
    FAILED = "Failed"
    WAITING_FOR_CAPACITY = "WaitingForCapacity"
    DEGRADED = "Degraded"
    SCALING = "Scaling"


class Phase(StrEnum):
    """`status.phase`: one word for people; programs read the conditions."""

    PENDING = "Pending"
    WAITING_FOR_CAPACITY = "WaitingForCapacity"
    RUNNING = "Running"
    RESTARTING = "Restarting"
    COMPLETING = "Completing"
    SUSPENDED = "Suspended"
    SUCCEEDED = "Succeeded"
    FAILED = "Failed"


class Reason(StrEnum):
    """Reasons of conditions and events."""

    JOB_CREATED = "ElasticJobCreated"
    JOB_RUNNING = "ElasticJobRunning"
    JOB_NOT_RUNNING = "ElasticJobNotRunning"
    JOB_RESTARTING = "ElasticJobRestarting"
    JOB_SUSPENDED = "ElasticJobSuspended"
    JOB_RESUMED = "ElasticJobResumed"
    JOB_SUCCEEDED = "ElasticJobSucceeded"
    JOB_FAILED = "ElasticJobFailed"
    WORKER_FAILED = "WorkerFailed"
    BACKOFF_LIMIT_EXCEEDED = "BackoffLimitExceeded"
    DEADLINE_EXCEEDED = "DeadlineExceeded"
    REQUEST_TOO_LARGE = "RequestTooLarge"
    NO_NODE_YET = "NoNodeYet"
    UNSCHEDULABLE = "Unschedulable"
    CAPACITY_FOUND = "CapacityFound"
    POD_CREATED = "SuccessfulCreatePod"
    POD_DELETED = "SuccessfulDeletePod"
    WORKER_DISRUPTED = "WorkerDisrupted"
    WORKER_RESTARTED = "WorkerRestarted"
    NODE_RECLAIM_NOTICE = "NodeReclaimNotice"
    GENERATION_CHANGED = "RendezvousGenerationChanged"
    GROUP_RESTARTED = "GroupRestarted"
    TOO_MANY_LOSSES = "TooManyLosses"
    LOSSES_NORMAL = "LossesNormal"
    SCALED = "ElasticJobScaled"
    SCALE_REACHED = "ScaleReached"
    JOB_EXPIRED = "TTLExpired"
    NAME_TAKEN = "NameTaken"
    NODES_GIVEN_BACK = "NodesGivenBack"
    STORE_NOT_READY = "RendezvousStoreNotReady"
    TEMPLATE_INVALID = "PodTemplateInvalid"
    POD_GROUP_REFUSED = "PodGroupRefused"
    RESTART_POLICY_IGNORED = "PodRestartPolicyIgnored"
    FIELD_IGNORED = "FieldIgnored"
    DEFINITION_UNFIT = "DefinitionUnfit"
    TRAINING_OPERATOR_FOUND = "TrainingOperatorFound"


class RestartPolicy(StrEnum):
    """What happens when a worker ends with an exit code other than 0."""

    ALWAYS = "Always"
    ON_FAILURE = "OnFailure"
    NEVER = "Never"
    EXIT_CODE = "ExitCode"


class CleanPodPolicy(StrEnum):
    """Which pods are deleted when the job has ended."""

    ALL = "All"
    RUNNING = "Running"
    NONE = "None"


class RendezvousBackend(StrEnum):
    """How workers find each other; the names are torchrun's."""

    ETCD = "etcd"
    ETCD_V2 = "etcd-v2"
    C10D = "c10d"


class SuccessPolicy(StrEnum):
    """When a job has succeeded."""

    ANY_WORKER = "AnyWorker"
    ALL_WORKERS = "AllWorkers"


class FailureAction(StrEnum):
    """What a failure brings about."""

    IGNORE = "Ignore"
    RESTART_POD = "RestartPod"
    RESTART_GROUP = "RestartGroup"
    FAIL_JOB = "FailJob"


class Operator(StrEnum):
    """How a list of exit codes is meant."""

    IN = "In"
    NOT_IN = "NotIn"


class ScalingMode(StrEnum):
    """Who decides on the number of workers."""

    MANUAL = "Manual"
    CAPACITY = "Capacity"


class Growth(StrEnum):
    """How a job in mode Capacity comes to more workers."""

    EAGER = "Eager"
    PROBE = "Probe"


Time = Annotated[datetime, PlainSerializer(lambda t: t.strftime("%Y-%m-%dT%H:%M:%SZ"), return_type=str)]
"""A moment as the Kubernetes API writes it: UTC, whole seconds."""


class _Model(BaseModel):
    """camelCase on the wire, snake_case in Python, unknown fields ignored (the API server has pruned them)."""

    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True, extra="ignore")


class RunPolicyFields(_Model):
    """When a job ends and what is left of it."""

    clean_pod_policy: CleanPodPolicy | None = Field(
        default=None,
        description="Pods to delete when the job has ended. None (the default) keeps the pods that have finished, "
        "Running is the same, All deletes every pod. Pods that still run are always deleted: they hold GPUs.",
    )
    ttl_seconds_after_finished: int | None = Field(
        default=None,
        ge=0,
        description="Seconds after its end until the job object and all it owns are deleted. Unset: never.",
    )
    active_deadline_seconds: int | None = Field(
        default=None,
        ge=1,
        description="Seconds after its start (or its last resume) until a job that has not ended fails.",
    )
    backoff_limit: int | None = Field(
        default=None,
        ge=0,
        description="Worker failures after which the job fails. Disruptions (spot reclaim, drain, preemption, lost "
        "node) are not counted. Unset: no limit.",
    )


AUTO = "auto"
"""`rdzvEndpoint` of a job whose store the controller runs."""
STORE_PORT = 29400
"""torchrun's own for c10d."""

MAX_WORKERS = 10_000  # names end in four digits, `J-worker-9999`; a slip of the keyboard must not flood a cluster


class GangScheduler(StrEnum):
    """Schedulers that start a group of pods together or not at all, each by its own kind of PodGroup."""

    VOLCANO = "volcano"
    SCHEDULER_PLUGINS = "scheduler-plugins"


class SchedulingPolicy(_Model):
    """How the workers are scheduled together."""

    model_config = ConfigDict(
        json_schema_extra={
            "x-kubernetes-validations": [
                {
                    "rule": "!has(self.queue) || (has(self.scheduler) && self.scheduler == 'volcano')",
                    "message": "schedulingPolicy.queue is a queue of Volcano: set scheduler: volcano, or leave it out "
                    "(for Kueue see docs/how-to/queues.md)",
                }
            ]
        }
    )

    scheduler: GangScheduler | None = Field(
        default=None,
        description="The scheduler that is asked, by a PodGroup, to start minAvailable workers together or none. "
        "Unset: workers are scheduled one by one. schedulerName in the pod template names it if it is not called "
        "volcano or scheduler-plugins-scheduler.",
    )
    min_available: int | None = Field(
        default=None,
        ge=0,
        description="Workers that have to fit together. Unset or 0: minReplicas. Never more than are wanted. Without "
        "scheduler it is accepted for compatibility with the upstream API and has no effect.",
    )
    queue: str | None = Field(
        default=None, min_length=1, max_length=253, description="Queue of Volcano. Unset: its queue `default`."
    )


class ReplicaSpec(_Model):
    """The workers."""

    replicas: int = Field(
        default=1,
        ge=1,
        le=MAX_WORKERS,
        description="Wanted number of workers; also what `kubectl scale` sets.",
    )
    restart_policy: RestartPolicy = Field(
        default=RestartPolicy.NEVER,
        description="After an exit code other than 0. Never: the job fails. ExitCode: codes from 128 and 75 start a "
        "new pod, others fail the job. OnFailure and Always: the kubelet restarts the container in its pod. Disrupted "
        "workers are replaced under each policy.",
    )
    template: dict[str, Any] = Field(
        description="Pod template of a worker. The launcher runs in container `elasticjob-worker`, or in the first "
        "one; the launcher's rendezvous arguments are put before its args.",
        json_schema_extra={"x-kubernetes-preserve-unknown-fields": True},
    )


class OnExitCodes(_Model):
    """Exit codes of the main container."""

    operator: Operator = Field(description="In: one of the values; NotIn: none of them (and not 0).")
    values: list[Annotated[int, Field(ge=1, le=255)]] = Field(
        min_length=1, max_length=255, description="Exit codes.", json_schema_extra={"x-kubernetes-list-type": "set"}
    )


class FailureRule(_Model):
    """What failures of one kind bring about."""

    model_config = ConfigDict(
        json_schema_extra={
            "x-kubernetes-validations": [
                {
                    "rule": "has(self.onExitCodes) || has(self.onReasons)",
                    "message": "a rule of failurePolicy needs onExitCodes, onReasons or both: what it is for",
                }
            ]
        }
    )

    action: FailureAction = Field(
        description="Ignore: the worker is replaced, not charged to backoffLimit. RestartPod: it is replaced and "
        "charged. RestartGroup: all workers start anew under a new rendezvous id, charged once. FailJob: the job fails."
    )
    on_exit_codes: OnExitCodes | None = Field(default=None, description="Applies to these exit codes.")
    on_reasons: list[str] | None = Field(
        default=None,
        min_length=1,
        max_length=20,
        description="Applies to these reasons, as `kubectl describe pod` shows them: OOMKilled, Error, Evicted.",
        json_schema_extra={"x-kubernetes-list-type": "set"},
    )

    def matches(self, exit_code: int | None, reasons: Collection[str]) -> bool:
        """Whether an end is of this kind: what is given has to apply, all of it."""
        if self.on_exit_codes is not None:
            listed = exit_code in self.on_exit_codes.values
            if exit_code is None or listed != (self.on_exit_codes.operator is Operator.IN):
                return False
        return self.on_reasons is None or any(reason in reasons for reason in self.on_reasons)


class FailurePolicy(_Model):
    """What failures of workers bring about, where restartPolicy does not say it finely enough."""

    rules: list[FailureRule] = Field(
        max_length=20,
        description="The first rule that applies decides; restartPolicy where none does. Disruptions (spot reclaim, "
        "drain, preemption, lost node) are no failures and meet no rule.",
        json_schema_extra={"x-kubernetes-list-type": "atomic"},
    )


class Scaling(_Model):
    """How many workers there are to be, between minReplicas and maxReplicas."""

    mode: ScalingMode = Field(
        default=ScalingMode.MANUAL,
        description="Manual: replicas, as the user, an autoscaler or `kubectl scale` sets it. Capacity: as many as the "
        "cluster has room for; replicas is the number to begin with.",
    )
    growth: Growth = Field(
        default=Growth.EAGER,
        description="In mode Capacity. Eager: maxReplicas workers are asked for all the time; those without a node "
        "wait, which makes an autoscaler provision. Probe: workers are added when nodes have room for them, and given "
        "up when they find none.",
    )
    stabilization_seconds: int = Field(
        default=60,
        ge=0,
        le=3600,
        description="Probe: seconds for which there has to be room before workers are added, all that fit together: "
        "each change of the world costs every worker time.",
    )
    min_interval_seconds: int = Field(
        default=300, ge=0, le=86_400, description="Probe: fewest seconds between a change of size and more workers."
    )
    unschedulable_seconds: int = Field(
        default=60, ge=1, le=3600, description="Probe: seconds after which a worker that finds no node is given up."
    )
    below_min_seconds: int = Field(
        default=540,
        ge=1,
        le=86_400,
        description="Seconds for which fewer than minReplicas keep their nodes while others find none. Then they give "
        "them back, and all queue again when nodes have room for minReplicas, or a minute later. Less than the "
        "join_timeout of the launchers, which end then as failed.",
    )
    spare_replicas: int = Field(
        default=0,
        ge=0,
        le=100,
        description="Workers beyond maxReplicas that wait at the rendezvous and take the place of one that is lost.",
    )


class ElasticJobSpec(RunPolicyFields):
    """What is wanted."""

    rdzv_backend: RendezvousBackend | None = Field(
        default=None,
        description="Kind of the rendezvous, passed to each launcher as --rdzv_backend. Unset: etcd where an endpoint "
        "is given, else c10d.",
    )
    rdzv_endpoint: str | None = Field(
        default=None,
        min_length=1,
        description="host:port of the rendezvous store, passed to each launcher as --rdzv_endpoint. Unset or auto: the "
        "controller runs a store for the job, pod J-store, off spot nodes. A worker (J-worker-0:29400, with c10d) is "
        "never the one to leave when fewer are wanted, and when it is lost all start anew.",
    )
    rdzv_conf: dict[str, Annotated[str, Field(max_length=253)]] | None = Field(
        default=None,
        description="More settings of the rendezvous (`last_call_timeout: '5'`), for the launcher's --rdzv_conf.",
        json_schema_extra={
            "maxProperties": 32,
            "x-kubernetes-validations": [
                {
                    "rule": "self.all(key, !key.contains(',') && !key.contains('=') && !self[key].contains(','))",
                    "message": "rdzvConf can hold neither ',' nor (in keys) '=': launchers split --rdzv_conf there",
                }
            ],
        },
    )
    max_restarts: int | None = Field(
        default=None,
        ge=0,
        description="Restarts of its processes that each launcher may make (--max_restarts). Unset: 1000, for to "
        "torchrun the loss of a peer is a failure, and its own default of 0 lets one lost worker end all others.",
    )
    inject_arguments: bool = Field(
        default=True,
        description="Whether the rendezvous is put before the template's args; false: it is in PET_* variables only.",
    )
    worker_services: bool = Field(
        default=False,
        description="Whether every worker has a Service of its name, as upstream made them. False: J-worker-0 only.",
    )
    min_replicas: int | None = Field(
        default=None,
        ge=1,
        le=MAX_WORKERS,
        description="Fewest workers that train. Unset: the number of replicas, so the job is not elastic.",
    )
    max_replicas: int | None = Field(
        default=None,
        ge=1,
        le=MAX_WORKERS,
        description="Most workers that train. Unset: the number of replicas, so the job is not elastic.",
    )
    suspend: bool | None = Field(
        default=None, description="True stops the job and frees its GPUs; false or unset lets it run (again)."
    )
    scaling: Scaling | None = Field(default=None, description="Who decides on the number of workers, and how.")
    managed_by: str | None = Field(
        default=None,
        max_length=63,
        description=f"Who takes care of the job: unset or {CONTROLLER_NAME} for this controller, which leaves all "
        "others alone. Cannot change.",
    )
    success_policy: SuccessPolicy | None = Field(
        default=None,
        description="AnyWorker (the default): after the first worker with exit code 0 the others have drainSeconds to "
        "end, then the job has succeeded however they did. AllWorkers: each has to end with 0, else the job fails.",
    )
    drain_seconds: int = Field(
        default=300,
        ge=0,
        le=86_400,
        description="Seconds for which other workers may go on after the first has finished (successPolicy AnyWorker).",
    )
    failure_policy: FailurePolicy | None = Field(
        default=None, description="What failures bring about, by exit code and reason."
    )
    scheduling_policy: SchedulingPolicy | None = Field(
        default=None, description="Whether the workers are scheduled together, by which scheduler and in which queue."
    )
    replica_specs: dict[str, ReplicaSpec] = Field(
        description="The workers, under the only key Worker.", json_schema_extra={"maxProperties": 8}
    )
    run_policy: RunPolicyFields | None = Field(
        default=None, description="The run-policy fields in Kubeflow's place; the same field directly under spec wins."
    )
    legacy_run_policy: RunPolicyFields | None = Field(
        default=None,
        alias="RunPolicy",
        description="The run-policy fields as the upstream controller wrote them; the same field directly under spec "
        "wins.",
    )

    @property
    def managed_store(self) -> bool:
        """Whether the controller runs the rendezvous store of the job."""
        return self.rdzv_endpoint in {None, AUTO}

    @property
    def backend(self) -> RendezvousBackend:
        """Kind of the rendezvous."""
        return self.rdzv_backend or (RendezvousBackend.C10D if self.managed_store else RendezvousBackend.ETCD)

    @property
    def probes(self) -> bool:
        """Whether the number of workers follows the room that nodes have."""
        return (
            self.scaling is not None
            and self.scaling.mode is ScalingMode.CAPACITY
            and self.scaling.growth is Growth.PROBE
        )

    @property
    def gang_scheduler(self) -> GangScheduler | None:
        """The scheduler that starts the workers together; None if they are scheduled one by one."""
        return self.scheduling_policy.scheduler if self.scheduling_policy is not None else None

    @property
    def scaling_or_default(self) -> Scaling:
        """Who decides on the number of workers, and how, also where the user has not said it."""
        return self.scaling or Scaling()

    @property
    def worker(self) -> ReplicaSpec:
        """The replica spec of the workers."""
        return self.replica_specs[WORKER]

    def effective_run_policy(self) -> RunPolicyFields:
        """Run policy of the three places where it may stand; flat fields win, then `runPolicy`, then `RunPolicy`."""
        values: dict[str, Any] = {}
        for source in (self.legacy_run_policy, self.run_policy, self):
            if source is not None:
                for name in RunPolicyFields.model_fields:
                    if (value := getattr(source, name)) is not None:
                        values[name] = value
        return RunPolicyFields(**values)


class Condition(_Model):
    """One aspect of a job's state."""

    type: str = Field(
        description="Created, Running, Restarting, Suspended, Succeeded, Failed, WaitingForCapacity, Degraded or "
        "Scaling."
    )
    status: str = Field(description="True or False.")
    reason: str = Field(default="", description="One word for programs.")
    message: str = Field(default="", description="A sentence for people.")
    last_transition_time: Time | None = Field(default=None, description="When status last changed.")
    observed_generation: int | None = Field(
        default=None, description="metadata.generation from which this was concluded."
    )


class ReplicaStatus(_Model):
    """Workers counted by state."""

    active: int = Field(default=0, description="Pods that exist, have not finished and are not being deleted.")
    ready: int = Field(default=0, description="Active pods that are ready.")
    pending: int = Field(default=0, description="Active pods that do not run yet.")
    succeeded: int = Field(default=0, description="Pods that finished with exit code 0.")
    failed: int = Field(default=0, description="Pods that failed and still exist.")


class ElasticJobStatus(_Model):
    """What is."""

    phase: Phase | None = Field(
        default=None, description="The state in one word, for people; programs read conditions."
    )
    conditions: list[Condition] = Field(
        default_factory=list,
        description="Aspects of the job's state.",
        json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["type"]},
    )
    observed_generation: int | None = Field(default=None, description="metadata.generation that this status answers.")
    replicas: int = Field(default=0, description="Active workers; read by the scale subresource.")
    ready_replicas: int = Field(default=0, description="Workers that are ready.")
    desired_replicas: int = Field(default=0, description="Workers that the controller aims at now.")
    selector: str | None = Field(
        default=None, description="Label selector of the workers; read by the scale subresource."
    )
    replica_statuses: dict[str, ReplicaStatus] = Field(default_factory=dict, description="Workers counted by state.")
    generation: int = Field(
        default=0,
        description="Rendezvous generation, part of the rendezvous id: grows when all workers start anew together.",
    )
    rendezvous_store: str | None = Field(
        default=None,
        description="UID of the pod that holds the rendezvous store, if it is one of the job's: when it is lost, all "
        "workers start anew as the next generation.",
    )
    nnodes: str | None = Field(default=None, description="min:max with which this generation's launchers were started.")
    restarts: int = Field(default=0, description="Worker failures charged to backoffLimit since the job was created.")
    disruptions: int = Field(
        default=0, description="Workers lost to reclaims, drains, preemption or node loss; not charged."
    )
    last_scale_time: Time | None = Field(
        default=None, description="When the controller last changed the number of workers by itself."
    )
    room_since: Time | None = Field(
        default=None, description="Since when nodes have room for more workers than there are (growth Probe)."
    )
    below_min_since: Time | None = Field(
        default=None, description="Since when fewer than minReplicas have nodes while others find none."
    )
    released_at: Time | None = Field(
        default=None, description="When workers gave their nodes back for that; unset when others are made."
    )
    losses: int = Field(
        default=0, description="Workers replaced free of charge in the hour from lossesSince; many make it Degraded."
    )
    losses_since: Time | None = Field(default=None, description="Start of the hour in which losses are counted.")
    collateral: int = Field(
        default=0,
        description="Workers that ended with exit code 1 within two minutes from collateralSince after another was "
        "lost; several restart the whole group.",
    )
    collateral_since: Time | None = Field(default=None, description="When the first of them ended.")
    failure_streak: int = Field(
        default=0, description="Failures in short succession; the wait for a replacement grows with it."
    )
    last_failure_time: Time | None = Field(default=None, description="When a worker failure was last counted.")
    last_disruption_time: Time | None = Field(default=None, description="When a disruption was last counted.")
    accounted_pods: list[str] = Field(
        default_factory=list,
        description="UIDs of pods whose end has been counted already and that still exist: no end is counted twice.",
        json_schema_extra={"x-kubernetes-list-type": "set"},
    )
    pods_version: str | None = Field(
        default=None,
        description="Resource version up to which the news of pods had come when accountedPods last changed: a "
        "controller whose news are older waits, or it would count a pod again that is counted, and gone perhaps.",
    )
    container_restarts: dict[str, int] = Field(
        default_factory=dict,
        description="Restarts inside existing pods that were counted already, by pod UID (OnFailure and Always).",
    )
    start_time: Time | None = Field(default=None, description="When the job started, or was last resumed.")
    first_success_time: Time | None = Field(
        default=None, description="When the first worker finished: from here none is created."
    )
    completion_time: Time | None = Field(default=None, description="When the job ended, well or not.")

    def condition(self, kind: ConditionType) -> Condition | None:
        """The condition of a type, if it has ever been set."""
        return next((c for c in self.conditions if c.type == kind), None)

    def is_true(self, kind: ConditionType) -> bool:
        """Whether the condition of a type is set and True."""
        found = self.condition(kind)
        return found is not None and found.status == "True"

    @property
    def ended(self) -> bool:
        """Whether the job has ended for good."""
        return self.is_true(ConditionType.SUCCEEDED) or self.is_true(ConditionType.FAILED)


def dumped(status: ElasticJobStatus) -> dict[str, Any]:
    """A status as it is written; what is empty is left out."""
    written = status.model_dump(mode="json", by_alias=True, exclude_none=True)
    return {key: value for key, value in written.items() if value not in ([], {})}


def _own_annotations(annotations: Any) -> Any:
    """Without what other programs wrote there; kubectl leaves whole manifests."""
    if not isinstance(annotations, dict):
        return annotations
    return {key: value for key, value in annotations.items() if str(key).startswith(f"{GROUP}/")}


class ObjectMeta(_Model):
    """The part of the metadata that the controller reads."""

    name: str
    namespace: str
    uid: str
    generation: int = 1
    resource_version: str = "0"
    deletion_timestamp: datetime | None = None
    finalizers: list[str] = Field(default_factory=list)
    annotations: Annotated[dict[str, str], BeforeValidator(_own_annotations)] = Field(default_factory=dict)
    """Those of the controller's own prefix."""


class Role(NamedTuple):
    """Replicas of one kind."""

    name: str
    """Worker, Master."""
    first: int
    """The lowest of their numbers."""
    spec: ReplicaSpec


class ElasticJob(_Model):
    """An elastic PyTorch training job: workers that may come and go while it trains.

    What other kinds of job do differently stands in the properties and methods below (see `pytorchjob.py`).
    """

    api_version: ClassVar[str] = API_VERSION
    kind: ClassVar[str] = KIND
    numbered: ClassVar[bool] = False
    """Whether each number below the number of replicas is to be taken, and none above: what is lost comes back under
    its own number."""

    metadata: ObjectMeta
    spec: ElasticJobSpec
    status: ElasticJobStatus = ElasticJobStatus()

    @property
    def key(self) -> str:
        """`namespace/name`."""
        return f"{self.metadata.namespace}/{self.metadata.name}"

    @property
    def roles(self) -> tuple[Role, ...]:
        """The kinds of its replicas, by their first numbers."""
        return (Role(WORKER, 0, self.spec.worker),)

    def role(self, index: int) -> Role:
        """The role of a replica."""
        return next(role for role in reversed(self.roles) if index >= role.first)

    def pod_name(self, index: int) -> str:
        """`J-worker-<i>`, as upstream names them."""
        role = self.role(index)
        return f"{self.metadata.name}-{role.name.lower()}-{index - role.first}"

    @property
    def service_name(self) -> str:
        """Name of the one headless Service of the job, the `subdomain` of its pods."""
        return f"{self.metadata.name}-workers"

    @property
    def service_names(self) -> tuple[str, ...]:
        """Names of all its Services: of the workers together, of those that endpoints may name, of the store."""
        alone = self.spec.worker.replicas if self.spec.worker_services else 1
        if self.spec.worker_services:
            alone = max(alone, self.spec.max_replicas or 0)
        store = (self.store_name,) if self.spec.managed_store else ()
        return (self.service_name, *(self.pod_name(index) for index in range(alone)), *store)

    @property
    def store_name(self) -> str:
        """Name of the pod that holds the rendezvous store, and of its Service."""
        return f"{self.metadata.name}-store"

    @property
    def hosting_worker(self) -> int | None:
        """Number of the worker that holds the rendezvous store; None if none does."""
        if self.spec.managed_store or self.spec.backend is not RendezvousBackend.C10D:
            return None
        first, _, _ = str(self.spec.rdzv_endpoint).partition(":")
        return 0 if first.partition(".")[0] == self.pod_name(0) else None

    def selector(self) -> dict[str, str]:
        """Labels that select exactly the workers of the job."""
        return {LABEL_GROUP_NAME: GROUP, LABEL_JOB_NAME: self.metadata.name, LABEL_REPLICA_TYPE: WORKER.lower()}

    def finished_with(self, succeeded: Collection[int]) -> bool:
        """Whether the training has finished when the replicas of these numbers have succeeded."""
        return bool(succeeded)

    @property
    def gives_way(self) -> bool:
        """Whether the job is left to another program that serves jobs of its kind, where one runs."""
        return False

    @property
    def ignored(self) -> tuple[str, ...]:
        """Sentences about fields that are accepted and have no effect."""
        return ()

    @property
    def foreign(self) -> bool:
        """Whether the job is another controller's."""
        return self.spec.managed_by not in {None, CONTROLLER_NAME}
