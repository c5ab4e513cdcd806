"""What to do about one job: a pure function of what is known about it.

`plan` reads the job, its pods, the nodes and the clock, and answers with actions and the status that belongs to them.
It never waits, calls or remembers: all memory is in the job's status, so a new controller goes on where the old ended.

Three rules keep the books right:

- The status is written before the actions are carried out, and names (`accountedPods`) the pods whose end it has
  counted. So no end is counted twice, whoever dies in between.
- A worker pod carries a finalizer until its end is counted, or matters to nobody. So no end is missed, whoever deletes
  the pod and whether or not a controller runs then.
- Workers are counted, not numbered: losing one of four when three are wanted creates nothing and deletes nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from decimal import Decimal
from itertools import count, islice
from types import MappingProxyType
from typing import Literal, NamedTuple

from training.controller.api import (
    ANNOTATION_VICTIMS,
    EXIT_DO_NOT_RESTART,
    EXIT_PREEMPTED,
    FIRST_RETRYABLE_EXIT_CODE,
    CleanPodPolicy,
    Condition,
    ConditionType,
    ElasticJob,
    ElasticJobStatus,
    FailureAction,
    Growth,
    Phase,
    Reason,
    ReplicaStatus,
    RestartPolicy,
    Scaling,
    ScalingMode,
    SuccessPolicy,
)
from training.controller.capacity import no_room, room
from training.controller.gang import NO_GROUP
from training.controller.pods import POD_RESTART_POLICY, grace_period, template_trouble
from training.controller.records import NodeRecord, PodRecord

SILENT_NODE_LOST_AFTER = timedelta(seconds=10)
"""How long a node's readiness may be Unknown, as the cluster says after 40-50 s of silence, before it is given up.

Nodes look silent for some seconds after an outage of the API server, too: their heartbeats could not be written."""
UNREADY_NODE_LOST_AFTER = timedelta(seconds=60)
"""How long a node may call itself not ready (its runtime restarts, say) before it is given up."""
NOTICE_MARGIN = timedelta(seconds=5)
"""A leaving worker's grace period ends this long before its node does."""
COLLATERAL_WINDOW = timedelta(seconds=120)
"""Exit code 1 this soon after a worker was lost is that loss's doing (torchrun ends with 1 when a peer goes), ..."""
MOST_COLLATERAL = 10
"""... but not for ever."""
COLLATERAL_RESTARTS_GROUP = 3
"""So many of them, and the rendezvous is broken for all: they start anew together, not each by itself."""
SAME_INCIDENT = timedelta(seconds=60)
"""Workers older than a failure that fail this soon after it fail with it: the wait does not grow for each."""
RELEASED_FOR = timedelta(seconds=60)
"""How long workers that gave their nodes back wait for room at the most: autoscalers see only pods that wait."""
PROBE_INTERVAL = timedelta(seconds=30)
"""How often a job that may grow looks for room: what other jobs give back is told to nobody."""
LOSSES_WINDOW = timedelta(hours=1)
MOST_LOSSES = 20
MOST_LOSSES_PER_WORKER = 4
"""More free replacements within the window (the greater number counts) make the job Degraded: it waits before more."""
SECOND_BACKOFF = timedelta(seconds=1)
"""The first failure is made good at once."""
LONGEST_BACKOFF = timedelta(seconds=300)
STREAK_ENDS_AFTER = timedelta(seconds=600)
"""A failure this long after the one before starts a new streak: the wait is short again."""

SHORTEST_WAIT = timedelta(milliseconds=100)

ORPHAN = "orphan"
"""Finalizer of an object whose dependents are to outlive it (metav1.FinalizerOrphanDependents)."""

# Causes of losses; others are reasons of Kubernetes'.
COLLATERAL = "Collateral"
MEMORY_PRESSURE = "MemoryPressure"
NODE_GONE = "NodeGone"
NODE_NOTICE = "NodeNotice"

OWN_END = frozenset({EXIT_PREEMPTED, EXIT_DO_NOT_RESTART})


@dataclass(frozen=True, slots=True)
class CreateService:
    """Create a headless Service of the job."""

    name: str


@dataclass(frozen=True, slots=True)
class DeleteService:
    """Delete a headless Service of the job."""

    name: str


@dataclass(frozen=True, slots=True)
class CreatePod:
    """Create a worker."""

    name: str
    index: int
    generation: int
    nnodes: str


@dataclass(frozen=True, slots=True)
class DeletePod:
    """Delete a worker; `grace_seconds` 0 removes the object without waiting for its node."""

    name: str
    uid: str
    why: str
    grace_seconds: int | None = None
    release: bool = False
    """Its finalizer goes first: it has ended, and its name is wanted."""


@dataclass(frozen=True, slots=True)
class ReleasePod:
    """Take the controller's finalizer off a pod."""

    name: str
    uid: str


@dataclass(frozen=True, slots=True)
class CreateStore:
    """Create the pod that holds the rendezvous store."""

    generation: int


NO_BUDGET = -1


@dataclass(frozen=True, slots=True)
class SetBudget:
    """See to it that evictions leave so many workers."""

    least: int


@dataclass(frozen=True, slots=True)
class SetPodGroup:
    """See to it that the job's PodGroup asks for so many members; 0: that there is none."""

    members: int


@dataclass(frozen=True, slots=True)
class DeleteJob:
    """Delete the job itself, whose time to live is over."""


Action = (
    CreateService
    | DeleteService
    | SetPodGroup
    | SetBudget
    | CreateStore
    | CreatePod
    | DeletePod
    | ReleasePod
    | DeleteJob
)


@dataclass(frozen=True, slots=True)
class Event:
    """Something worth telling on the job's event list."""

    type: Literal["Normal", "Warning"]
    reason: Reason
    message: str


class Loss(NamedTuple):
    """How a worker was lost, as metrics count it."""

    charged: bool
    """Whether backoffLimit was."""
    cause: str
    """In one word: reason of the disruption, what became of the node, or how the container ended."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What to do now. The status comes first, then the actions in their order."""

    actions: tuple[Action, ...]
    status: ElasticJobStatus
    events: tuple[Event, ...] = ()
    requeue_after: timedelta | None = None
    """When to look again even if nothing happens."""
    replaced_nodes: tuple[str, ...] = ()
    """Nodes under notice for whose workers others are created."""
    losses: Counter[Loss] = field(default_factory=Counter)
    """Workers whose end this plan counts."""


def bounds(job: ElasticJob) -> tuple[int, int]:
    """Fewest and most workers; an unset one is the number of replicas."""
    replicas = job.spec.worker.replicas
    fewest = job.spec.min_replicas if job.spec.min_replicas is not None else replicas
    most = job.spec.max_replicas if job.spec.max_replicas is not None else replicas
    return min(fewest, most), max(fewest, most)


def failure_backoff(streak: int) -> timedelta:
    """The wait before a replacement after `streak` failures in short succession: none, 1 s, 2 s, 4 s ... 5 minutes."""
    return min(SECOND_BACKOFF * 2 ** min(streak - 2, 20), LONGEST_BACKOFF) if streak > 1 else timedelta(0)


def plan(
    job: ElasticJob,
    pods: Sequence[PodRecord],
    nodes: Mapping[str, NodeRecord],
    now: datetime,
    *,
    missing_services: Collection[str] = (),
    create_error: str | None = None,
    names_taken: Collection[str] = (),
    lost_nodes: Collection[str] = (),
    used: Mapping[str, Mapping[str, Decimal]] = MappingProxyType({}),
    pod_group: int | None = None,
    pods_version: int = 0,
    budget: int | None = None,
) -> Plan:
    """Decides what to do about a job.

    Args:
        job: the job as last read or written.
        pods: all pods that carry the job's name, also those of an earlier job of the same name.
        nodes: every node that is known, by name; the news of a new one may be late.
        now: the current time (UTC).
        missing_services: those of the job's `service_names` that are not there.
        create_error: why the API server refused a pod of this job the last time, to be told to the user.
        names_taken: pod names that others, unknown to the controller, use.
        lost_nodes: names of nodes that pods still name and that are gone for certain.
        used: what worker pods, of all jobs, take of each node; for jobs that probe for room.
        pod_group: members that the job's PodGroup asks for, 0 if there is none; None: not known.
        pods_version: resource version up to which `pods` is known.
        budget: workers that evictions have to leave by the job's PodDisruptionBudget, -1 if there is none; None: not
            known.
    """
    if job.foreign:
        return Plan((), job.status)
    if job.metadata.deletion_timestamp is not None:
        return Plan(leave_to_deletion(pods, orphans=ORPHAN in job.metadata.finalizers), job.status)
    return _Planning(
        job,
        pods,
        nodes,
        now,
        missing_services,
        create_error,
        names_taken,
        lost_nodes,
        used,
        pod_group,
        pods_version,
        budget,
    ).plan()


def leave_to_deletion(pods: Iterable[PodRecord], *, orphans: bool = False) -> tuple[Action, ...]:
    """What to do about the pods of a job that is deleted: how they end matters to nobody.

    The garbage collector deletes them too, but at 20 calls a second in all: too slow for thousands of workers.

    Args:
        pods: all that carry the job's name.
        orphans: whether they are to outlive the job (`kubectl delete --cascade=orphan`). Those that have lost their
            owner already do in any case.
    """
    return (
        *(
            DeletePod(pod.name, pod.uid, "its job is deleted")
            for pod in pods
            if pod.held and pod.owner_uid and not pod.terminating and not orphans
        ),
        *(ReleasePod(pod.name, pod.uid) for pod in pods if pod.held),
    )


@dataclass
class _Planning:
    """One pass; the fields from `status` on are what it works out."""

    job: ElasticJob
    pods: Sequence[PodRecord]
    nodes: Mapping[str, NodeRecord]
    now: datetime
    missing_services: Collection[str]
    create_error: str | None
    names_taken: Collection[str]
    lost_nodes: Collection[str]
    used: Mapping[str, Mapping[str, Decimal]]
    pod_group: int | None
    pods_version: int
    budget: int | None
    status: ElasticJobStatus = field(init=False)
    before: ElasticJobStatus = field(init=False)
    own: list[PodRecord] = field(init=False)
    """The job's workers."""
    stores: list[PodRecord] = field(init=False)
    """The job's pods that hold a rendezvous store: one, and perhaps an earlier one on its way out."""
    aim: int = 0
    """Workers to have now, spares not counted."""
    regroup: str | None = None
    """Why all workers have to start anew together."""
    doomed: set[str] = field(default_factory=set)
    accounted: set[str] = field(init=False)
    actions: list[Action] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)
    timers: list[datetime] = field(default_factory=list)
    replaced_nodes: list[str] = field(default_factory=list)
    losses: Counter[Loss] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self.clock = self.now
        self.now = self.now.replace(microsecond=0)  # as times are written in a status
        self.before = self.job.status
        self.status = self.job.status.model_copy(deep=True)
        mine = [pod for pod in self.pods if pod.owner_uid == self.job.metadata.uid]
        self.own = sorted((pod for pod in mine if not pod.store), key=lambda pod: (pod.index, pod.uid))
        self.stores = [pod for pod in mine if pod.store]
        self.accounted = set(self.status.accounted_pods)
        self.trouble = template_trouble(self.job)
        self.template = {} if self.trouble else self.job.spec.worker.template
        self.fewest, self.most = bounds(self.job)

    # --- the pass ---------------------------------------------------------------------------------------------------

    def plan(self) -> Plan:
        first_pass = self.status.condition(ConditionType.CREATED) is None
        self.status.observed_generation = self.job.metadata.generation
        self.status.selector = ",".join(f"{key}={value}" for key, value in self.job.selector().items())
        self.condition(ConditionType.CREATED, True, Reason.JOB_CREATED, "the controller has seen the job")
        if first_pass:
            self.event("Normal", Reason.JOB_CREATED, "the controller takes care of this job")
            self._mention_what_is_ignored()
        if not self.status.ended:
            self._go_on()
        if self.status.ended:
            self._clean_up()
        self._keep_pod_group()
        self._force_delete_stuck()
        self._release()
        self._summarise()
        wait = max(min(self.timers) - self.clock, SHORTEST_WAIT) if self.timers else None
        nodes = tuple(self.replaced_nodes)
        return Plan(tuple(self.actions), self.status, tuple(self.events), wait, nodes, self.losses)

    def _mention_what_is_ignored(self) -> None:
        for role in self.job.roles:
            policy = role.spec.restart_policy
            of_template = None if self.trouble else (role.spec.template.get("spec") or {}).get("restartPolicy")
            if of_template not in {None, POD_RESTART_POLICY[policy]}:
                self.event(
                    "Warning",
                    Reason.RESTART_POLICY_IGNORED,
                    f"restartPolicy {of_template} in the pod template is ignored: {policy} of the {role.name} decides",
                )
        for sentence in self.job.ignored:
            self.event("Warning", Reason.FIELD_IGNORED, sentence)

    def _go_on(self) -> None:
        suspended = bool(self.job.spec.suspend)
        self._choose_generation(suspended)
        self._watch_store()
        fatal = self._account_for_ends()
        completing = self.status.first_success_time is not None
        if completing and not self._all_must_succeed:
            self._complete()
            return
        if completing:
            fatal = fatal or self._somebody_missing()
        fatal = fatal or self._budget_or_deadline_exceeded()
        if fatal is not None:
            self._fail(*fatal)
            return
        if completing:
            self._complete()
            return
        if suspended:
            self._suspend()
            return
        self._give_nodes_back()
        self._restart_group()
        self._choose_size()
        self.actions.extend(CreateService(name) for name in self.job.service_names if name in self.missing_services)
        self._keep_store()
        self._scale()
        self._keep_budget()

    # --- generation -------------------------------------------------------------------------------------------------

    def _choose_generation(self, suspended: bool) -> None:
        """All workers of a generation share a rendezvous id and min:max; a resume or a changed min:max starts anew."""
        if suspended or self.status.first_success_time is not None:
            return
        nnodes = f"{self.fewest}:{self.most}"
        resumed = self.status.is_true(ConditionType.SUSPENDED)
        if resumed:
            self.condition(ConditionType.SUSPENDED, False, Reason.JOB_RESUMED, "the job was resumed")
            self.event("Normal", Reason.JOB_RESUMED, "the job was resumed")
        if self.status.start_time is None:
            self.status.start_time = self.now
        if self.status.generation == 0:
            self.status.generation = 1
        elif resumed or self.status.nnodes != nnodes:
            self.status.generation += 1
            if not resumed:
                self.event(
                    "Normal",
                    Reason.GENERATION_CHANGED,
                    f"min:max changed from {self.status.nnodes} to {nnodes}: all workers start anew as generation "
                    f"{self.status.generation} (set minReplicas and maxReplicas to scale without a restart)",
                )
        self.status.nnodes = nnodes

    def _restart_group(self) -> None:
        if self.regroup is None:
            return
        self.status.generation += 1
        self.status.collateral, self.status.collateral_since = 0, None
        self.event(
            "Warning",
            Reason.GROUP_RESTARTED,
            f"{self.regroup}: all workers start anew as generation {self.status.generation}",
        )

    def _give_nodes_back(self) -> None:
        """Too few to train that hold nodes while others find none may be what keeps another job from its last node."""
        members = self._members()
        placed = sum(1 for pod in members if pod.node is not None)
        if not 0 < placed < self.fewest or not any(pod.unschedulable for pod in members):
            self.status.below_min_since = None
            return
        patience = timedelta(seconds=self.job.spec.scaling_or_default.below_min_seconds)
        since = self.status.below_min_since = self.status.below_min_since or self.now
        if self.now < since + patience:
            self.timers.append(since + patience)
            return
        self.status.below_min_since, self.status.released_at = None, self.now
        message = f"{placed} workers had nodes for {patience.total_seconds():g} s, at least {self.fewest} are needed"
        self.event("Warning", Reason.NODES_GIVEN_BACK, f"{message}: they give them back")
        self.regroup = message

    def _await_room(self) -> bool:
        """Whether workers that gave their nodes back have to wait for others."""
        released = self.status.released_at
        if released is None:
            return False
        if self.now < released + RELEASED_FOR and room(self.template, self.nodes.values(), self.used) < self.fewest:
            self.timers.append(released + RELEASED_FOR)
            return True
        self.status.released_at = None
        return False

    # --- rendezvous store -------------------------------------------------------------------------------------------

    def _watch_store(self) -> None:
        """Where one of the job's pods holds the store: when it is lost, all have to meet anew."""
        for pod in self.stores:
            lost = self._node_lost(pod)
            if (pod.finished or lost) and not pod.terminating:
                self._delete(pod, lost or "the store has ended")
        known = self.status.rendezvous_store
        if known is None or known in {pod.uid for pod in self._store_holders()}:
            return
        self.status.rendezvous_store = None
        if any(pod.generation == self.status.generation for pod in self.own) and not self.job.spec.suspend:
            self.status.last_disruption_time = self.now  # workers that fail for it are let off
            self.regroup = "the rendezvous store was lost with its pod"

    def _store_holders(self) -> list[PodRecord]:
        """Pods that hold a store, or will."""
        host = self.job.hosting_worker
        workers = [pod for pod in self.own if pod.index == host and pod.generation == self.status.generation]
        holders = self.stores if self.job.spec.managed_store else workers
        return [
            pod
            for pod in holders
            if pod.active and pod.uid not in self.doomed and (pod.store or not self._node_lost(pod))
        ]

    def _keep_store(self) -> None:
        """Sees to it that there is a store, and remembers the pod that holds it."""
        if not self.job.spec.managed_store and self.job.hosting_worker is None:
            return
        if self.job.spec.managed_store and not self.stores and self.trouble is None:
            self.actions.append(CreateStore(self.status.generation))
        ready = [pod for pod in self._store_holders() if pod.ready]
        if ready and self.status.rendezvous_store is None:
            self.status.rendezvous_store = ready[0].uid

    @property
    def _awaits_store(self) -> str | None:
        """Why no worker can start yet, as a sentence; None if workers have where to meet."""
        if not self.job.spec.managed_store or self.status.rendezvous_store is not None:
            return None
        trouble = next((why for pod in self.stores if (why := pod.waiting or pod.unschedulable)), None)
        return f"the rendezvous store {self.job.store_name} is not ready yet" + (f": {trouble}" if trouble else "")

    def _keep_budget(self) -> None:
        """Evictions leave the fewest workers that train, and take one at a time at the least.

        Those whose nodes are to be taken away may all go at once: one change of the world instead of one for each.
        """
        leaving = sum(1 for pod in self._members() if self._notice(pod) is not None)
        least = max(0, min(self.fewest, self.aim - max(1, leaving)))
        if self.budget is not None and self.budget != least:
            self.actions.append(SetBudget(least))

    # --- ends of workers --------------------------------------------------------------------------------------------

    def _account_for_ends(self) -> tuple[Reason, str] | None:
        """Counts each worker's end once, and orders the removal of what is left of it.

        Returns:
            Reason and message if one of them ends the job.
        """
        fatal: tuple[Reason, str] | None = None
        succeeded: set[int] = set()
        for pod in self.own:
            if pod.generation != self.status.generation:
                continue
            if self._succeeded(pod):
                succeeded.add(pod.index)
                self.accounted.add(pod.uid)
            elif self.job.spec.suspend and _told_before_its_end(pod):
                self.accounted.add(pod.uid)  # by the suspension; who else may have told it no longer matters
            elif (disrupted := self._disruption(pod)) is not None:
                self._count_disruption(pod, disrupted)
            elif pod.finished:
                verdict = self._judge_failure(pod)
                fatal = fatal or verdict
            else:
                verdict = self._count_container_restarts(pod)
                fatal = fatal or verdict
        if self.status.first_success_time is None and self.job.finished_with(succeeded):
            self.status.first_success_time = self.now
        return fatal

    @staticmethod
    def _succeeded(pod: PodRecord) -> bool:
        if not pod.finished or pod.disruption is not None:
            return False
        if pod.phase == "Failed" and pod.exit_code != 0:
            return False
        return not _told_before_its_end(pod)  # it has left, it has not finished the training

    def _disruption(self, pod: PodRecord) -> str | None:
        """Why the pod's end, or its coming end, is none of its own doing; None if it lives on or ended by itself."""
        if pod.term_reason == "OOMKilled" or pod.memory_eviction:
            return None
        if pod.disruption is not None:
            return pod.disruption
        node = self.nodes.get(pod.node) if pod.node else None
        if pod.finished:
            if pod.exit_code in OWN_END:
                return None
            if pod.node in self.lost_nodes:
                return f"node {pod.node} is gone"
            if node is not None and (node.notice or node.out_of_service):
                return f"node {node.name} is being taken away"
        if _told_before_its_end(pod):
            return "the pod was deleted"
        return None if pod.finished else self._node_lost(pod)

    def _node_lost(self, pod: PodRecord) -> str | None:
        if pod.node is None:
            return None
        if pod.node in self.lost_nodes:
            return f"node {pod.node} is gone"
        node = self.nodes.get(pod.node)
        if node is None:  # its news is late
            return None
        if node.out_of_service:
            return f"node {pod.node} is out of service"
        if not node.ready and node.not_ready_since is not None:
            patience = SILENT_NODE_LOST_AFTER if node.silent else UNREADY_NODE_LOST_AFTER
            if self.now - node.not_ready_since >= patience:
                return f"node {pod.node} {'does not answer' if node.silent else 'is not ready'}"
            self.timers.append(node.not_ready_since + patience)
        return None

    def _disruption_cause(self, pod: PodRecord) -> str:
        """In one word what `_disruption` says."""
        if pod.disruption is not None:
            return pod.disruption
        node = self.nodes.get(pod.node) if pod.node else None
        if pod.node in self.lost_nodes:
            return NODE_GONE
        if node is not None and node.out_of_service:
            return "NodeOutOfService"
        if node is not None and node.notice:
            return NODE_NOTICE
        if _told_before_its_end(pod):
            return "PodDeleted"
        return "NodeSilent" if node is not None and node.silent else "NodeNotReady"

    def _count_disruption(self, pod: PodRecord, why: str) -> None:
        if pod.uid not in self.accounted:
            self.accounted.add(pod.uid)
            self._count_free(pod, self._disruption_cause(pod))
            self.status.last_disruption_time = self.now
            self.event("Normal", Reason.WORKER_DISRUPTED, f"{pod.name} was lost ({why}); not charged to backoffLimit")
            if pod.finished and pod.exit_code is None:
                self._lengthen_streak(pod)  # it did not even start: trying again at once would go on for ever
        if not pod.terminating:
            self._delete(pod, why)

    def _judge_failure(self, pod: PodRecord) -> tuple[Reason, str] | None:
        """Charges a failed worker, or lets it off, and has it replaced; or says that it ends the job."""
        if pod.uid in self.accounted:  # but its removal may have been cut short
            if not pod.terminating:
                self._delete(pod, "it has failed")
            return None
        self.accounted.add(pod.uid)
        policy = self.job.role(pod.index).spec.restart_policy
        code = pod.exit_code
        ended = f"{pod.name} failed with exit code {code}" if code is not None else f"{pod.name} failed without a word"
        if pod.term_reason and pod.term_reason != "Error":
            ended += f" ({pod.term_reason})"
        action = self._ruled(code, {pod.term_reason or "", pod.disruption or ""})
        if action is FailureAction.FAIL_JOB:
            return Reason.WORKER_FAILED, f"{ended}: a rule of failurePolicy says that the job fails then"
        if action is None and code == EXIT_DO_NOT_RESTART:
            return Reason.WORKER_FAILED, f"{ended}: the worker says that starting it again cannot help"
        free = action is FailureAction.IGNORE or (action is None and self._free(code, pod.finished_at, pod))
        retried = (
            action is not None
            or code is None
            or code >= FIRST_RETRYABLE_EXIT_CODE
            or pod.memory_eviction
            or policy in {RestartPolicy.ON_FAILURE, RestartPolicy.ALWAYS}
        ) and not (action is None and policy is RestartPolicy.NEVER and code is not None)
        if not free and not retried:
            return Reason.WORKER_FAILED, f"{ended}: restartPolicy {policy} does not retry it"
        if action is FailureAction.RESTART_GROUP:
            self.regroup = f"{ended}, and a rule of failurePolicy restarts the group then"
        self._lengthen_streak(pod)
        cause = MEMORY_PRESSURE if pod.memory_eviction else _failure_cause(code, pod.term_reason)
        if free:
            self._count_free(pod, COLLATERAL if action is None and code == 1 else cause)
            self.event("Normal", Reason.WORKER_DISRUPTED, f"{ended}; not charged to backoffLimit")
        else:
            self._charge(cause)
            self.event("Warning", Reason.WORKER_RESTARTED, f"{ended}; a new worker takes its place")
        if not pod.terminating:
            self._delete(pod, ended)
        return None

    def _ruled(self, code: int | None, reasons: Collection[str]) -> FailureAction | None:
        """What the user's rules make of a failure; None if they say nothing."""
        policy = self.job.spec.failure_policy
        rules = policy.rules if policy is not None else ()
        return next((rule.action for rule in rules if rule.matches(code, reasons)), None)

    def _free(self, code: int | None, ended: datetime | None, pod: PodRecord) -> bool:
        """Whether an end is not charged: a checkpoint was saved first, or it is another loss's doing.

        Of a replacement too, however long it had to wait for a node: those that find the rendezvous closed end so.
        """
        if code == EXIT_PREEMPTED:
            return True
        lost = self.status.last_disruption_time
        if code != 1 or lost is None or self.status.failure_streak >= MOST_COLLATERAL:
            return False
        if pod.created is not None and pod.created >= lost:
            lost = max(lost, pod.scheduled or pod.created)
        if (ended or self.now) - lost > COLLATERAL_WINDOW:
            return False
        since = self.status.collateral_since
        if since is None or self.now - since > COLLATERAL_WINDOW:
            self.status.collateral, self.status.collateral_since = 0, self.now
        self.status.collateral += 1
        if self.status.collateral >= COLLATERAL_RESTARTS_GROUP:
            self.regroup = f"{self.status.collateral} workers failed after the loss of another, the last {pod.name}"
        return True

    def _charge(self, cause: str, number: int = 1) -> None:
        """Counts what is charged to backoffLimit."""
        self.status.restarts += number
        self.losses[Loss(True, cause)] += number

    def _count_free(self, pod: PodRecord, cause: str, number: int = 1) -> None:
        """Counts what is not charged; more than spot machines explain makes replacements wait."""
        self.status.disruptions += number
        self.losses[Loss(False, cause)] += number
        since = self.status.losses_since
        if since is None or self.now - since >= LOSSES_WINDOW:
            self.status.losses, self.status.losses_since = 0, self.now
        self.status.losses += number
        if self._degraded():
            self._lengthen_streak(pod)

    def _degraded(self) -> bool:
        since = self.status.losses_since
        most = max(MOST_LOSSES, MOST_LOSSES_PER_WORKER * self.most)
        return since is not None and self.now - since < LOSSES_WINDOW and self.status.losses > most

    def _count_container_restarts(self, pod: PodRecord) -> tuple[Reason, str] | None:
        """Charges what the kubelet restarted in place, or lets it off: the sum survives the pod's restartCount."""
        counted = self.status.container_restarts.get(pod.uid, 0)
        if pod.restarts <= counted:
            return None
        self.status.container_restarts[pod.uid] = pod.restarts
        code = pod.last_exit_code
        ended = f"{pod.name} ended with exit code {code} and was restarted in its pod"
        action = self._ruled(code, {pod.last_reason or ""})
        if action is FailureAction.FAIL_JOB:
            return Reason.WORKER_FAILED, f"{ended}: a rule of failurePolicy says that the job fails then"
        if action is FailureAction.IGNORE or (action is None and self._free(code, None, pod)):
            cause = COLLATERAL if action is None and code == 1 else _failure_cause(code, pod.last_reason)
            self._count_free(pod, cause, pod.restarts - counted)
            self._lengthen_streak(pod)
            self.event("Normal", Reason.WORKER_DISRUPTED, f"{ended}; not charged to backoffLimit")
            return None
        self._charge(_failure_cause(code, pod.last_reason), pod.restarts - counted)
        self.status.last_failure_time = self.now
        self.event("Warning", Reason.WORKER_RESTARTED, f"{pod.name} failed and was restarted in its pod")
        if action is FailureAction.RESTART_GROUP:
            self.regroup = f"{ended}, and a rule of failurePolicy restarts the group then"
        elif action is FailureAction.RESTART_POD:
            self.accounted.add(pod.uid)
            self._delete(pod, "a rule of failurePolicy replaces it")
        elif code == EXIT_DO_NOT_RESTART:
            return Reason.WORKER_FAILED, f"{pod.name} says (exit code 78) that starting it again cannot help"
        return None

    def _lengthen_streak(self, pod: PodRecord) -> None:
        last = self.status.last_failure_time
        if last is not None and self.now - last < SAME_INCIDENT and pod.created is not None and pod.created < last:
            return
        in_a_row = last is not None and self.now - last < STREAK_ENDS_AFTER
        self.status.failure_streak = self.status.failure_streak + 1 if in_a_row else 1
        self.status.last_failure_time = self.now

    # --- the job's end ----------------------------------------------------------------------------------------------

    def _budget_or_deadline_exceeded(self) -> tuple[Reason, str] | None:
        policy = self.job.spec.effective_run_policy()
        if policy.backoff_limit is not None and self.status.restarts > policy.backoff_limit:
            return (
                Reason.BACKOFF_LIMIT_EXCEEDED,
                f"workers failed {self.status.restarts} times, more than backoffLimit ({policy.backoff_limit})",
            )
        if policy.active_deadline_seconds is not None and self.status.start_time is not None:
            deadline = self.status.start_time + timedelta(seconds=policy.active_deadline_seconds)
            if self.now >= deadline and not self.job.spec.suspend:
                return (
                    Reason.DEADLINE_EXCEEDED,
                    f"the job did not end within activeDeadlineSeconds ({policy.active_deadline_seconds})",
                )
            self.timers.append(deadline)
        return None

    def _fail(self, reason: Reason, message: str) -> None:
        self.status.completion_time = self.now
        self._keep_the_evidence()
        self._end_conditions(Reason.JOB_FAILED, "the job has failed")
        self.condition(ConditionType.FAILED, True, reason, message)
        self.event("Warning", Reason.JOB_FAILED, message)

    def _keep_the_evidence(self) -> None:
        """Failed workers are not replaced any more: their logs tell why the job failed."""
        finished = {pod.uid for pod in self.own if pod.finished and pod.uid in self.doomed}
        self.doomed -= finished
        self.actions = [a for a in self.actions if not (isinstance(a, DeletePod) and a.uid in finished)]

    @property
    def _all_must_succeed(self) -> bool:
        return self.job.spec.success_policy is SuccessPolicy.ALL_WORKERS

    def _somebody_missing(self) -> tuple[Reason, str] | None:
        """After the first success the world is closed: who is lost now cannot succeed any more."""
        lost = self.status.restarts + self.status.disruptions - self.before.restarts - self.before.disruptions
        if lost == 0:
            return None
        return (
            Reason.WORKER_FAILED,
            f"a worker has finished and {lost} ended otherwise; successPolicy AllWorkers needs all of them",
        )

    def _complete(self) -> None:
        """After the first success nothing is created any more; the others may finish what they do."""
        first = self.status.first_success_time or self.now
        for pod in self.own:
            if pod.active and pod.phase == "Pending":  # it would find nobody to train with
                self.accounted.add(pod.uid)
                self._delete(pod, "the training is finishing without it")
        working = [pod for pod in self.own if pod.active and pod.uid not in self.doomed]
        window = timedelta(seconds=self.job.spec.drain_seconds)
        if working and (self._all_must_succeed or self.now < first + window):
            if not self._all_must_succeed:
                self.timers.append(first + window)
            self.condition(
                ConditionType.RUNNING, True, Reason.JOB_RUNNING, f"a worker has finished, {len(working)} are finishing"
            )
            self.condition(ConditionType.RESTARTING, False, Reason.JOB_RUNNING, "a worker has finished")
            return
        message = "the training has finished"
        if working:
            message += f"; {len(working)} workers are stopped that did not end within {window.total_seconds():g} s"
        self.status.completion_time = self.now
        self._end_conditions(Reason.JOB_SUCCEEDED, "the job has finished")
        self.condition(ConditionType.SUCCEEDED, True, Reason.JOB_SUCCEEDED, message)
        self.event("Normal", Reason.JOB_SUCCEEDED, message)

    def _clean_up(self) -> None:
        policy = self.job.spec.effective_run_policy()
        everything = policy.clean_pod_policy is CleanPodPolicy.ALL
        for pod in self.own:
            if not pod.terminating and pod.uid not in self.doomed and (everything or not pod.finished):
                self._delete(pod, "the job has ended")
        self._stop_store("the job has ended")
        if everything:
            self.actions.extend(
                DeleteService(name) for name in self.job.service_names if name not in self.missing_services
            )
        if policy.ttl_seconds_after_finished is not None and self.status.completion_time is not None:
            expiry = self.status.completion_time + timedelta(seconds=policy.ttl_seconds_after_finished)
            if self.now >= expiry:
                self.event("Normal", Reason.JOB_EXPIRED, "ttlSecondsAfterFinished has run out: the job is deleted")
                self.actions.append(DeleteJob())
            else:
                self.timers.append(expiry)

    def _stop_store(self, why: str) -> None:
        for pod in self.stores:
            if not pod.terminating and pod.uid not in self.doomed:
                self._delete(pod, why)

    # --- size -------------------------------------------------------------------------------------------------------

    @property
    def wanted(self) -> int:
        """Pods to have now: spares come on top of a full world only, in a smaller one they would train."""
        scaling = self.job.spec.scaling
        return self.aim + (scaling.spare_replicas if scaling is not None and self.aim == self.most else 0)

    def _choose_size(self) -> None:
        scaling = self.job.spec.scaling
        asked = max(self.fewest, min(self.job.spec.worker.replicas, self.most))
        before = self.before.desired_replicas
        why = "replicas is now"
        if scaling is None or scaling.mode is ScalingMode.MANUAL:
            self.aim = asked
        elif scaling.growth is Growth.EAGER:
            self.aim, why = self.most, "as many as nodes can be had for, so maxReplicas is"
        else:
            self.aim, why = self._probe(scaling, max(self.fewest, min(before or asked, self.most)))
        if before and self.aim != before:
            message = f"{before} -> {self.aim} workers: {why} {self.aim}"
            self.condition(ConditionType.SCALING, True, Reason.SCALED, message)
            self.event("Normal", Reason.SCALED, message)

    def _probe(self, scaling: Scaling, size: int) -> tuple[int, str]:
        """The size that fits the room there is, from what it was; and why, in words that end before a number."""
        homeless = [pod for pod in self._members() if pod.unschedulable is not None and pod.created is not None]
        patience = timedelta(seconds=scaling.unschedulable_seconds)
        late = [pod for pod in homeless if pod.created is not None and self.now >= pod.created + patience]
        self.timers.extend(
            pod.created + patience for pod in homeless if pod.created is not None and self.now < pod.created + patience
        )
        fewer = max(self.fewest, size - len(late))
        if fewer < size:
            self.status.last_scale_time, self.status.room_since = self.now, None
            return fewer, f"{len(late)} found no node within {scaling.unschedulable_seconds} s, so the number is"
        unplaced = sum(1 for pod in self._members() if pod.node is None)
        coming = max(0, size - len(self._members()))
        # The scheduler knows more than the sum of what is free: while one finds no node, others find none either.
        looks = size < self.most and not late and not self.trouble
        space = room(self.template, self.nodes.values(), self.used) if looks else 0
        more = min(space - unplaced - coming, self.most - size)
        if size < self.most:
            self.timers.append(self.now + PROBE_INTERVAL)
        if more <= 0:
            self.status.room_since = None
            return size, ""
        since = self.status.room_since = self.status.room_since or self.now
        ready = since + timedelta(seconds=scaling.stabilization_seconds)
        if self.status.last_scale_time is not None:
            ready = max(ready, self.status.last_scale_time + timedelta(seconds=scaling.min_interval_seconds))
        if self.now < ready:
            self.timers.append(ready)
            return size, ""
        self.status.last_scale_time, self.status.room_since = self.now, None
        return size + more, f"nodes have room for {more} more, so the number is"

    def _suspend(self) -> None:
        for pod in self.own:
            left_over = pod.generation != self.status.generation and not pod.terminating
            if (pod.active or left_over) and pod.uid not in self.doomed:
                self._delete(pod, "the job is suspended")
        self._stop_store("the job is suspended")
        if not self.status.is_true(ConditionType.SUSPENDED):
            self.event("Normal", Reason.JOB_SUSPENDED, "the job is suspended: its workers are stopped")
        self.status.start_time = None
        self.status.failure_streak = 0
        self.condition(ConditionType.SUSPENDED, True, Reason.JOB_SUSPENDED, "suspend is true")
        self._end_conditions(Reason.JOB_SUSPENDED, "the job is suspended")

    def _keep_pod_group(self) -> None:
        """One PodGroup while there are workers to be scheduled: a group left over would keep its place in a queue."""
        policy = self.job.spec.scheduling_policy
        if policy is None or policy.scheduler is None:
            return
        members = NO_GROUP
        if not self.status.ended and not self.job.spec.suspend and self.status.first_success_time is None:
            members = min(policy.min_available or self.fewest, self.aim)
        elif not self.status.ended and not self.job.spec.suspend:
            return  # the last ones are finishing
        created = any(isinstance(action, CreatePod) for action in self.actions)
        if self.pod_group != members or created:  # it is looked at again before pods that need it are made
            self.actions.append(SetPodGroup(members))

    def _members(self) -> list[PodRecord]:
        """Active workers of this generation that this plan leaves alone."""
        return [
            pod
            for pod in self.own
            if pod.active and pod.generation == self.status.generation and pod.uid not in self.doomed
        ]

    def _scale(self) -> None:
        for pod in self.own:
            if pod.generation != self.status.generation and not pod.terminating and pod.uid not in self.doomed:
                self._delete(pod, f"generation {self.status.generation} starts anew")
        members = self._members()
        leaving = [pod for pod in members if self._notice(pod) is not None]
        staying = [pod for pod in members if self._notice(pod) is None]
        surplus = len(staying) - self.wanted
        for pod in self._victims(staying, surplus):
            self.accounted.add(pod.uid)
            self._delete(pod, f"{self.aim} workers are wanted")
        missing = self.wanted - sum(1 for pod in staying if pod.uid not in self.doomed)
        if missing > 0:
            self._create(missing, leaving)
        self._see_off(leaving, [pod for pod in staying if pod.phase == "Running"])

    def _victims(self, staying: Sequence[PodRecord], surplus: int) -> Sequence[PodRecord]:
        """Who goes because fewer are wanted."""
        if self.job.numbered:
            return [pod for pod in staying if pod.index >= self.job.roles[0].first + self.wanted]
        named = self._named_victims()
        candidates = [pod for pod in staying if pod.index != self.job.hosting_worker]
        return sorted(candidates, key=lambda pod: (pod.name not in named, *_victim_order(pod)))[: max(0, surplus)]

    def _named_victims(self) -> set[str]:
        names = self.job.metadata.annotations.get(ANNOTATION_VICTIMS, "")
        return {name.strip() for name in names.split(",")}

    def _create(self, missing: int, leaving: Sequence[PodRecord]) -> None:
        if self.trouble is not None or self._awaits_store is not None:
            return
        if any(self._in_the_way(pod) for pod in self.own):
            return  # the old generation goes first: its names and its GPUs become free
        if self._await_room():
            return
        if self.status.last_failure_time is not None:
            ready = self.status.last_failure_time + failure_backoff(self.status.failure_streak)
            if self.now < ready:
                self.timers.append(ready)
                return
        taken = {pod.name for pod in self.pods if not (pod.finished and pod.uid in self.doomed)}
        taken.update(self.names_taken)
        if self._host_cannot_be_named(taken):
            return
        first = self.job.roles[0].first
        numbers = range(first, first + self.wanted) if self.job.numbered else count(first)
        free = ((name, index) for index in numbers if (name := self.job.pod_name(index)) not in taken)
        made = [
            CreatePod(name, index, self.status.generation, self.status.nnodes or "")
            for name, index in islice(free, missing)
        ]
        self.actions += made
        for node in dict.fromkeys(pod.node or "" for pod in leaving[: len(made)]):
            self.replaced_nodes.append(node)
            notice = self.nodes[node].notice
            self.event("Normal", Reason.NODE_RECLAIM_NOTICE, f"node {node} ({notice}) will be taken away")

    def _host_cannot_be_named(self, taken: Collection[str]) -> bool:
        """Whether the worker where the others are to meet is missing, and its name is still another pod's."""
        host = self.job.hosting_worker
        return (
            host is not None
            and self.job.pod_name(host) in taken
            and not any(pod.index == host for pod in self._members())
        )

    def _in_the_way(self, pod: PodRecord) -> bool:
        """Whether a pod of an earlier generation is still to be waited for: not if its node cannot tell of its end."""
        if pod.generation == self.status.generation:
            return False
        if pod.deletion_deadline is None or self._node_lost(pod) is None:
            return True
        if self.now >= pod.deletion_deadline:
            return False
        self.timers.append(pod.deletion_deadline)
        return True

    def _notice(self, pod: PodRecord) -> NodeRecord | None:
        node = self.nodes.get(pod.node) if pod.node else None
        return node if node is not None and node.notice is not None else None

    def _see_off(self, leaving: Sequence[PodRecord], running: Sequence[PodRecord]) -> None:
        """Workers on nodes under notice train on until their replacements run, or until it is time to save and go."""
        replaced = len(running) >= self.aim
        for pod in leaving:
            node = self._notice(pod)
            reclaim_at = node.reclaim_at if node is not None else None
            patience = timedelta(seconds=grace_period(self.template))
            last_call = reclaim_at - NOTICE_MARGIN - patience if reclaim_at else None
            if last_call is None and self.job.numbered:
                replaced = True  # another can come only when its name is free
            if replaced or (last_call is not None and self.now >= last_call):
                grace = None
                if reclaim_at is not None:
                    left = int((reclaim_at - NOTICE_MARGIN - self.now).total_seconds())
                    grace = max(1, min(left, grace_period(self.template)))
                self._count_leaving(pod, grace)
            elif last_call is not None:
                self.timers.append(last_call)

    def _count_leaving(self, pod: PodRecord, grace: int | None) -> None:
        why = f"node {pod.node} will be taken away"
        if pod.uid not in self.accounted:
            self.accounted.add(pod.uid)
            self._count_free(pod, NODE_NOTICE)
            self.status.last_disruption_time = self.now
            self.event("Normal", Reason.WORKER_DISRUPTED, f"{pod.name} is told to leave ({why}); not charged")
        self._delete(pod, why, grace)

    def _delete(self, pod: PodRecord, why: str, grace_seconds: int | None = None) -> None:
        self.doomed.add(pod.uid)
        self.actions.append(DeletePod(pod.name, pod.uid, why, grace_seconds))

    def _stuck(self, pod: PodRecord) -> bool:
        """Whether the pod cannot end by itself because its node is gone."""
        if pod.node is None or not pod.terminating or pod.deletion_deadline is None:
            return False
        node = self.nodes.get(pod.node)
        return pod.node in self.lost_nodes or (node is not None and node.out_of_service)

    def _force_delete_stuck(self) -> None:
        """Terminating pods wait for their node to say that they ended; a node that is gone will not."""
        for pod in (*self.own, *self.stores):
            if pod.deletion_deadline is None or not self._stuck(pod):
                continue
            if self.now >= pod.deletion_deadline:
                self._delete(pod, f"node {pod.node} is gone", 0)
            else:
                self.timers.append(pod.deletion_deadline)

    def _release(self) -> None:
        """Lets go of each pod whose end is counted, or matters to nobody: it may vanish now."""
        released = {
            pod.uid
            for pod in self.pods
            if pod.held
            and (
                pod.owner_uid != self.job.metadata.uid
                or self.status.ended
                or pod.generation != self.status.generation
                or pod.uid in self.accounted
            )
        }
        at_once = {pod.uid for pod in self.own if pod.finished} & released
        self.actions = [
            replace(action, release=True) if isinstance(action, DeletePod) and action.uid in at_once else action
            for action in self.actions
        ]
        at_once &= self.doomed
        self.actions.extend(
            ReleasePod(pod.name, pod.uid) for pod in self.pods if pod.uid in released and pod.uid not in at_once
        )

    # --- status -----------------------------------------------------------------------------------------------------

    def _summarise(self) -> None:
        status = self.status
        existing = {pod.uid for pod in self.pods}
        status.accounted_pods = sorted(self.accounted & existing)
        if status.accounted_pods != self.before.accounted_pods:
            status.pods_version = str(self.pods_version)
        status.container_restarts = {uid: n for uid, n in sorted(status.container_restarts.items()) if uid in existing}
        active = [pod for pod in self.own if pod.active and pod.uid not in self.doomed]
        running = [pod for pod in active if pod.phase == "Running" and pod.generation == status.generation]
        kept = [pod for pod in self.own if pod.finished and not pod.terminating and pod.uid not in self.doomed]
        status.replica_statuses = {
            role.name: self._replica_status(
                [pod for pod in active if self.job.role(pod.index).name == role.name],
                [pod for pod in kept if self.job.role(pod.index).name == role.name],
            )
            for role in self.job.roles
        }
        status.replicas = len(active)
        status.ready_replicas = sum(each.ready for each in status.replica_statuses.values())
        status.desired_replicas = self.aim
        if not status.ended and not self.job.spec.suspend and status.first_success_time is None:
            self._running_conditions(active, running)
        self._degraded_condition()
        status.phase = self._phase()

    @staticmethod
    def _replica_status(active: Sequence[PodRecord], kept: Sequence[PodRecord]) -> ReplicaStatus:
        succeeded = sum(1 for pod in kept if pod.phase == "Succeeded")
        return ReplicaStatus(
            active=len(active),
            ready=sum(1 for pod in active if pod.ready),
            pending=sum(1 for pod in active if pod.phase == "Pending"),
            succeeded=succeeded,
            failed=len(kept) - succeeded,
        )

    def _running_conditions(self, active: Sequence[PodRecord], running: Sequence[PodRecord]) -> None:
        done = sum(each.succeeded for each in self.status.replica_statuses.values())  # of jobs that need them all
        enough = len(running) + done >= self.fewest
        count = f"{len(running)} of {self.aim} workers run"
        ran_before = self.before.is_true(ConditionType.RUNNING) or self.before.is_true(ConditionType.RESTARTING)
        if self.trouble is not None:
            told = self.before.condition(ConditionType.RUNNING)
            if told is None or self.trouble not in told.message:
                self.event("Warning", Reason.TEMPLATE_INVALID, self.trouble)
        if enough:
            refused = self.trouble or (self.create_error if len(active) < self.aim else None)
            message = f"{count}; {refused}" if refused else count
            self.condition(ConditionType.RUNNING, True, Reason.JOB_RUNNING, message)
            self.condition(ConditionType.RESTARTING, False, Reason.JOB_RUNNING, count)
        else:
            message = f"{count}, at least {self.fewest} are needed"
            trouble = (
                self.trouble
                or self.create_error
                or self._awaits_store
                or next((f"{pod.name}: {pod.waiting}" for pod in active if pod.waiting), None)
            )
            if trouble:
                message += f"; {trouble}"
            self.condition(ConditionType.RUNNING, False, Reason.JOB_NOT_RUNNING, message)
            self.condition(ConditionType.RESTARTING, ran_before, Reason.JOB_RESTARTING, message)
        self._capacity_condition(active, running)
        if len(running) >= self.aim:
            self.condition(ConditionType.SCALING, False, Reason.SCALE_REACHED, count)

    def _capacity_condition(self, active: Sequence[PodRecord], running: Sequence[PodRecord]) -> None:
        missing = self.aim - len(running)
        impossible = no_room(self.template, self.nodes.values()) if missing > 0 and not self.trouble else None
        unschedulable = [pod for pod in active if pod.unschedulable is not None]
        if impossible is not None:
            self.condition(ConditionType.WAITING_FOR_CAPACITY, True, impossible.reason, impossible.message)
        elif unschedulable:
            self.condition(
                ConditionType.WAITING_FOR_CAPACITY,
                True,
                Reason.UNSCHEDULABLE,
                f"{len(unschedulable)} of {self.aim} workers find no node: {unschedulable[0].unschedulable}",
            )
        elif self.status.released_at is not None:
            message = f"workers gave their nodes back and wait until there is room for {self.fewest}"
            self.condition(ConditionType.WAITING_FOR_CAPACITY, True, Reason.NODES_GIVEN_BACK, message)
        else:
            self.condition(ConditionType.WAITING_FOR_CAPACITY, False, Reason.CAPACITY_FOUND, "every worker has a node")
        was = self.before.is_true(ConditionType.WAITING_FOR_CAPACITY)
        waiting = self.status.condition(ConditionType.WAITING_FOR_CAPACITY)
        if waiting is not None and waiting.status == "True" and not was:
            self.event("Warning", Reason(waiting.reason), waiting.message)

    def _degraded_condition(self) -> None:
        status = self.status
        if self._degraded() and not status.ended and status.losses_since is not None:
            since = f"{status.losses} workers were lost since {status.losses_since:%H:%M} UTC"
            message = f"{since}, more than machines that come and go explain: replacements wait longer and longer"
            if not self.before.is_true(ConditionType.DEGRADED):
                self.event("Warning", Reason.TOO_MANY_LOSSES, message)
            self.condition(ConditionType.DEGRADED, True, Reason.TOO_MANY_LOSSES, message)
            self.timers.append(status.losses_since + LOSSES_WINDOW)
        else:
            self.condition(ConditionType.DEGRADED, False, Reason.LOSSES_NORMAL, "few workers are lost")

    def _end_conditions(self, reason: Reason, message: str) -> None:
        for kind in (
            ConditionType.RUNNING,
            ConditionType.RESTARTING,
            ConditionType.WAITING_FOR_CAPACITY,
            ConditionType.SCALING,
        ):
            self.condition(kind, False, reason, message)

    def _phase(self) -> Phase:
        status = self.status
        ordered: Iterable[tuple[bool, Phase]] = (
            (status.is_true(ConditionType.SUCCEEDED), Phase.SUCCEEDED),
            (status.is_true(ConditionType.FAILED), Phase.FAILED),
            (status.first_success_time is not None, Phase.COMPLETING),
            (bool(self.job.spec.suspend), Phase.SUSPENDED),
            (status.is_true(ConditionType.RUNNING), Phase.RUNNING),
            (status.is_true(ConditionType.WAITING_FOR_CAPACITY), Phase.WAITING_FOR_CAPACITY),
            (status.is_true(ConditionType.RESTARTING), Phase.RESTARTING),
        )
        return next((phase for true, phase in ordered if true), Phase.PENDING)

    def condition(self, kind: ConditionType, value: bool, reason: Reason, message: str) -> None:
        """Sets a condition; one that was never True is not mentioned as False, but for Running."""
        found = self.status.condition(kind)
        if found is None:
            if not value and kind is not ConditionType.RUNNING:
                return
            found = Condition(type=kind, status="")
            self.status.conditions.append(found)
        text = "True" if value else "False"
        if found.status != text:
            found.last_transition_time = self.now
        found.status, found.reason, found.message = text, reason, message
        found.observed_generation = self.job.metadata.generation

    def event(self, kind: Literal["Normal", "Warning"], reason: Reason, message: str) -> None:
        """Adds an event."""
        self.events.append(Event(kind, reason, message))


def _failure_cause(code: int | None, reason: str | None) -> str:
    """How a container ended, in one word."""
    if reason == "OOMKilled":
        return reason
    return "Unknown" if code is None else f"ExitCode{code}"


def _told_before_its_end(pod: PodRecord) -> bool:
    """Whether somebody deleted the pod before it ended by itself; within the same second, deletion came first."""
    if not pod.finished:
        return pod.terminating
    told = pod.deletion_requested
    return told is not None and (pod.finished_at is None or pod.finished_at >= told)


def _victim_order(pod: PodRecord) -> tuple[int, float, int]:
    """Who goes first when fewer are wanted: never scheduled, not running, youngest, highest index."""
    scheduled = 0 if pod.node is None else 1 if pod.phase != "Running" else 2
    age = -pod.created.timestamp() if pod.created else 0.0
    return scheduled, age, -pod.index
