"""Carries plans out: one status write first, then the actions, many at a time but starting with one.

Everything may be done twice: names of pods are deterministic, so what exists already is a 409 and no harm, and
deletions name the pod's UID, so a successor of the same name is never hit.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import math
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import httpx2

from training.controller import client, pods
from training.controller.api import FINALIZER, KIND, MANAGED_BY, ElasticJob, ElasticJobStatus, GangScheduler, Reason
from training.controller.client import CONFLICT, CONNECTIONS, FORBIDDEN, NOT_FOUND, Api, Object, code_of, explain
from training.controller.events import EventFilter
from training.controller.gang import GANG_APIS, NO_GROUP
from training.controller.metrics import Histogram, TimeBelow
from training.controller.planner import (
    NO_BUDGET,
    Action,
    CreatePod,
    CreateService,
    CreateStore,
    DeleteJob,
    DeletePod,
    DeleteService,
    Event,
    Loss,
    Plan,
    ReleasePod,
    SetBudget,
    SetPodGroup,
    leave_to_deletion,
    plan,
)
from training.controller.served import ELASTIC, Served
from training.controller.store import Store

PODS_PER_PASS = 500  # as many as Kubernetes' own Job controller creates in one sync

FIRST_CREATIONS = (1, 8)
"""Pods that are created at once before the API server is known to take those of a job, as far as its size allows."""
TRUST = 60.0
"""Seconds for which it is known."""

log = logging.getLogger(__name__)

MOST_EVENTS_WAITING = 1000

NEWS_PAUSE = 0.1  # seconds


class RefusedError(Exception):
    """The API server refuses something for a reason that the user has to know."""


@dataclass(frozen=True, slots=True)
class Pass:
    """What is to be known of a pass that went well."""

    look_again_after: float | None = None
    """Seconds after which to look again even if nothing happens."""
    planning_seconds: float = 0.0


class Executor:
    """Plans one job at a time and carries the plan out."""

    def __init__(
        self,
        api: Api,
        store: Store,
        identity: str,
        login: pods.RendezvousLogin | None = None,
        served: Served = ELASTIC,
    ) -> None:
        self._api = api
        self._served = served
        self._login = login
        self._store = store
        self._identity = identity
        self._caught_up: set[str] = set()  # keys of jobs whose pods are known as well as the last leader knew them
        self._create_errors: dict[str, str] = {}
        self._accepted: dict[str, float] = {}  # by job key: when all that was asked for was created last
        self._names_taken: dict[str, set[str]] = {}  # by job key: pod names that others use
        self._groups: dict[str, int] = {}  # by job key: members that its PodGroup asks for
        self._told: dict[str, tuple[str, Reason]] = {}  # by job key: UID of the job, and what its user was told last
        self._filter = EventFilter()
        self.happened: Counter[str] = Counter()
        """Events so far by reason."""
        self.losses: Counter[Loss] = Counter()
        self.scalings: Counter[str] = Counter()
        """Changes of the number of workers wanted, up and down."""
        self.below = TimeBelow()
        """Jobs with fewer ready workers than they want."""
        self.replacements = Histogram(
            "trainyard_notice_to_replacement_seconds",
            "Time from the notice of a node's end until another worker was created.",
        )
        self._events: asyncio.Queue[tuple[ElasticJob, Event]] = asyncio.Queue(MOST_EVENTS_WAITING)
        self.plans = 0
        self.seconds = 0.0

    async def reconcile(self, key: str) -> Pass:
        """One pass over a job.

        Raises:
            RefusedError: the API server refuses what the job asks for.
            httpx2.HTTPError: a call failed, or (409) the job has changed meanwhile: the pass is to be repeated.
        """
        record = self._store.jobs.get(key)
        if record is None:
            self._forget(key)
            await self._bury(key)
            return Pass()
        if record.job is None:
            log.error("this job cannot be read: %s", record.error, extra={"job": key})
            return Pass()
        job = record.job
        if (rival := self._store.rival_of(job)) is not None:
            await self._give_way(job, rival)
            return Pass()
        if key not in self._caught_up:
            if int(job.status.pods_version or 0) > self._store.pods.reached:
                return Pass(NEWS_PAUSE)  # pods may be gone that are still known here and whose end is counted
            self._caught_up.add(key)
        started, used = time.perf_counter(), time.thread_time()
        known = self._store.pods_of(key)
        if taken := self._names_taken.get(key):
            taken.difference_update(pod.name for pod in known)  # seen since: their own news tells when they are free
        budget = self._store.budgets.get(f"{job.metadata.namespace}/{job.service_name}")
        result = plan(
            job,
            known,
            self._store.nodes.all(),
            datetime.now(UTC),
            missing_services=[
                name
                for name in job.service_names
                if self._store.services.get(f"{job.metadata.namespace}/{name}") is None
            ],
            create_error=self._create_errors.get(key),
            names_taken=self._names_taken.get(key, ()),
            lost_nodes=self._store.lost_nodes(known),
            used=self._store.used() if job.spec.probes or job.status.released_at is not None else {},
            pod_group=self._groups.get(key),
            pods_version=self._store.pods.newest,
            budget=budget.least if budget is not None else NO_BUDGET,
        )
        self.plans += 1
        self.seconds += time.perf_counter() - started
        busy = time.thread_time() - used  # on a busy machine a plan takes longer, which is no reason for a longer rest
        await self._write_status(job, result.status)
        self.happened.update(str(event.reason) for event in result.events)
        self.losses.update(result.losses)
        if any(event.reason is Reason.SCALED for event in result.events):
            self.scalings["up" if result.status.desired_replicas > job.status.desired_replicas else "down"] += 1
        self.below.note(key, below=result.status.ready_replicas < result.status.desired_replicas)
        self._tell(job, summarised(result.events))
        await self._carry_out(key, job, result)
        if sum(isinstance(action, CreatePod) for action in result.actions) > PODS_PER_PASS:
            return Pass(0.0)  # the rest of them, without a rest
        return Pass(result.requeue_after.total_seconds() if result.requeue_after is not None else None, busy)

    async def _write_status(self, job: ElasticJob, status: ElasticJobStatus) -> None:
        if status == job.status:
            return
        body: Object = {
            "apiVersion": job.api_version,
            "kind": job.kind,
            # With the version it is a conflict if somebody, an earlier leader perhaps, has written since: counters
            # that were not read must not be overwritten. The UID tells jobs of the same name apart.
            "metadata": {
                "name": job.metadata.name,
                "namespace": job.metadata.namespace,
                "uid": job.metadata.uid,
                "resourceVersion": job.metadata.resource_version,
            },
            "status": self._served.status_body(job, status),
        }
        try:
            answer = await self._api.apply(self._served.status, body)
        except httpx2.HTTPStatusError as error:
            memory = self._served.memory
            if memory is None or f".status.{memory}: field not declared" not in explain(error):
                raise
            message = (
                f"the definition of {job.kind} in this cluster is another's: it has no status.{memory}, without which "
                "no job can be looked after. Remove it (the stack brings its own), or unset controller.pytorchJobs"
            )
            self._tell_once(job, Event("Warning", Reason.DEFINITION_UNFIT, message))
            raise RefusedError(message) from error
        self._store.jobs.put(answer)

    async def _carry_out(self, key: str, job: ElasticJob, result: Plan) -> None:
        deletions = [action for action in result.actions if isinstance(action, DeletePod)]
        creations = [action for action in result.actions if isinstance(action, CreatePod)]
        releases = [action for action in result.actions if isinstance(action, ReleasePod)]
        others = [action for action in result.actions if not isinstance(action, DeletePod | CreatePod | ReleasePod)]
        for action in others:
            if not isinstance(action, DeleteJob | SetPodGroup | SetBudget):
                await self._other(job, action)
        if deletions:
            await self._together([self._delete_pod(job.metadata.namespace, action) for action in deletions])
            self._tell_pods(job, Reason.POD_DELETED, "deleted", deletions)
            log.info("deleted %s", _names(deletions), extra={"job": key, "why": deletions[0].why})
        try:
            for action in others:
                if isinstance(action, SetPodGroup):
                    await self._set_pod_group(job, action.members)
            if creations:
                await self._create_pods(key, job, creations)
                for node in result.replaced_nodes:
                    if (noticed := self._store.noticed_at.pop(node, None)) is not None:
                        self.replacements.observe(time.monotonic() - noticed)
        finally:  # replacements come first, but a namespace that is on its way out refuses them for ever
            await self._together([self._release_pod(job.metadata.namespace, action) for action in releases])
            await self._together([self._set_budget(job, a.least) for a in others if isinstance(a, SetBudget)])
        if any(isinstance(action, DeleteJob) for action in others):
            await self._delete(self._served.job, job.metadata.namespace, job.metadata.name, uid=job.metadata.uid)
            log.info("deleted the job: its time to live is over", extra={"job": key})

    async def _create_pods(self, key: str, job: ElasticJob, creations: Sequence[CreatePod]) -> None:
        """Slow start: one, a few, then many at once: a job whose pods are refused costs one call and not a thousand.

        A job whose pods were taken a moment ago starts with many. What is left over after a pass follows in the next: a
        large job neither outlives its deletion nor holds up others.
        """
        waiting = iter(creations[:PODS_PER_PASS])
        made: list[CreatePod] = []

        async def create(most: int | None) -> None:
            for action in itertools.islice(waiting, most):
                await self._create_pod(key, job, action)
                made.append(action)

        try:
            if self._accepted.get(key, -math.inf) + TRUST < time.monotonic():
                for size in FIRST_CREATIONS:
                    await self._together([create(1) for _ in range(size)])
            await self._together([create(None) for _ in range(CONNECTIONS)])  # each ends with the first call that fails
            self._accepted[key] = time.monotonic()
        except Exception:
            self._accepted.pop(key, None)
            raise
        finally:
            if made:
                self._tell_pods(job, Reason.POD_CREATED, "created", made)
                log.info("created %s", _names(made), extra={"job": key, "generation": made[0].generation})
        self._create_errors.pop(key, None)

    async def _create_pod(self, key: str, job: ElasticJob, action: CreatePod) -> None:
        manifest = self._served.pod(job, action.index, action.generation, action.nnodes, self._login)
        try:
            created = await self._api.create(client.Pod, manifest)
        except httpx2.HTTPStatusError as error:
            if code_of(error) == CONFLICT:
                created = await self._own_pod(key, job, action.name)
            elif code_of(error) in {400, 403, 404, 422}:
                message = f"the API server refuses {action.name}: {error}"
                self._create_errors[key] = message
                raise RefusedError(message) from error
            else:
                raise
        self._store.pods.put(created)

    async def _own_pod(self, key: str, job: ElasticJob, name: str) -> Object:
        """The pod that has a name already, if it is the job's own: made before, its news still on the way."""
        try:
            found = await self._api.get(client.Pod, job.metadata.namespace, name)
        except httpx2.HTTPStatusError as error:
            if code_of(error) != NOT_FOUND:
                raise
            raise RefusedError(f"pod {name} existed a moment ago") from error
        if self._served.pod_record(found).owner_uid != job.metadata.uid:
            self._names_taken.setdefault(key, set()).add(name)
            raise RefusedError(f"pod {name} exists and is not of this job: another name is taken")
        return found

    async def _bury(self, key: str) -> None:
        """The job is gone, and its pods with it: the garbage collector alone would take minutes for a large one.

        A pod that has changed since it was last seen is left for its news, for it may have lost its owner meanwhile.
        """
        namespace, _, name = key.partition("/")
        known = {pod.uid: pod for pod in self._store.pods_of(key) if pod.held}
        if not known or await self._exists(namespace, name):
            return
        actions = leave_to_deletion(known.values())
        deletions = [action for action in actions if isinstance(action, DeletePod)]
        releases = [action for action in actions if isinstance(action, ReleasePod)]
        await self._together(
            [self._delete_pod(namespace, action, known[action.uid].resource_version) for action in deletions]
        )
        await self._together([self._release_pod(namespace, action) for action in releases])
        if deletions:
            log.info("deleted %s", _names(deletions), extra={"job": key, "why": deletions[0].why})

    async def release_all(self) -> None:
        """Lets all pods go: the controller is being removed, and nobody could let them go later."""
        held = [pod for pod in self._store.pods if pod.held]
        log.info("the controller is being removed: %d pods are let go", len(held))
        await self._together([self._release_pod(pod.namespace, ReleasePod(pod.name, pod.uid)) for pod in held])

    async def _exists(self, namespace: str, name: str) -> bool:
        """Whether there is a job of a name: news of jobs may be later than news of their pods."""
        try:
            await self._api.get(self._served.job, namespace, name)
        except httpx2.HTTPStatusError as error:
            if code_of(error) != NOT_FOUND:
                raise
            return False
        return True

    async def _delete_pod(self, namespace: str, action: DeletePod, version: int | None = None) -> None:
        if action.release:
            await self._release_pod(namespace, ReleasePod(action.name, action.uid))
        answer = await self._delete(
            client.Pod, namespace, action.name, uid=action.uid, version=version, grace_seconds=action.grace_seconds
        )
        if answer is None or answer.get("kind") != "Pod" or "resourceVersion" not in answer["metadata"]:
            return  # the watch tells (of a pod that went meanwhile the API server answers with no version)
        self._take_in(answer)

    def _take_in(self, answer: Object) -> None:
        """What a call that removes a pod, or may remove it, has answered."""
        metadata = answer["metadata"]
        if metadata.get("deletionTimestamp") and not _gone_at_once(answer):
            self._store.pods.put(answer)
        else:
            self._store.pods.drop(f"{metadata['namespace']}/{metadata['name']}", int(metadata["resourceVersion"]))

    async def _release_pod(self, namespace: str, action: ReleasePod) -> None:
        try:
            answer = await self._api.take_off(client.Pod, namespace, action.name, FINALIZER, uid=action.uid)
        except httpx2.HTTPStatusError as error:
            if code_of(error) not in {NOT_FOUND, CONFLICT}:
                raise
            return
        if answer["metadata"].get("deletionTimestamp"):
            self._take_in(answer)
        else:
            self._store.pods.put(answer)

    async def _other(self, job: ElasticJob, action: Action) -> None:
        namespace = job.metadata.namespace
        if isinstance(action, CreateStore):
            await self._create_store(job, action)
        elif isinstance(action, DeleteService):
            await self._delete(client.Service, namespace, action.name)
        elif isinstance(action, CreateService):
            manifest = self._served.service(job, action.name)
            try:
                created = await self._api.create(client.Service, manifest)
            except httpx2.HTTPStatusError as error:
                if code_of(error) != CONFLICT:
                    raise
                self._service_name_taken(job, manifest["metadata"]["name"])
            else:
                self._store.services.put(created)

    async def _create_store(self, job: ElasticJob, action: CreateStore) -> None:
        try:
            created = await self._api.create(client.Pod, pods.store_pod(job, action.generation))
        except httpx2.HTTPStatusError as error:
            if code_of(error) in {400, 403, 404, CONFLICT, 422}:
                message = f"the API server refuses the rendezvous store {job.store_name}: {error}"
                self._create_errors[job.key] = message
                raise RefusedError(message) from error
            raise
        self._create_errors.pop(job.key, None)
        self._store.pods.put(created)

    async def _set_budget(self, job: ElasticJob, least: int) -> None:
        manifest = pods.disruption_budget(job, least)
        if self._store.budgets.get(f"{job.metadata.namespace}/{job.service_name}") is not None:
            self._store.budgets.put(await self._api.apply(client.DisruptionBudget, manifest))
            return
        try:
            self._store.budgets.put(await self._api.create(client.DisruptionBudget, manifest))
        except httpx2.HTTPStatusError as error:
            if code_of(error) != CONFLICT:  # made meanwhile, or another's of the name, which is left alone
                raise

    async def _set_pod_group(self, job: ElasticJob, members: int) -> None:
        """Makes, changes or deletes the job's PodGroup.

        Raises:
            RefusedError: it cannot be had; no worker is made then, for the scheduler would not look at it.
        """
        scheduler = job.spec.gang_scheduler
        if scheduler is None:
            return
        kind = client.POD_GROUPS[scheduler]
        try:
            if members == NO_GROUP:
                await self._drop_pod_group(job, kind)
            else:
                await self._make_pod_group(job, kind, pods.job_pod_group(job, scheduler, members), members)
        except httpx2.HTTPStatusError as error:
            raise self._no_group(job, scheduler, error) from error
        self._groups[job.key] = members

    async def _make_pod_group(
        self, job: ElasticJob, kind: type[client.PodGroup], manifest: Object, members: int
    ) -> None:
        try:
            await self._api.create(kind, manifest)
        except httpx2.HTTPStatusError as error:
            if code_of(error) != CONFLICT or (found := await self._own_group(job, kind)) is None:
                raise
            if found.get("spec", {}).get("minMember") != members:
                await self._api.apply(kind, manifest)
        self._create_errors.pop(job.key, None)

    async def _drop_pod_group(self, job: ElasticJob, kind: type[client.PodGroup]) -> None:
        try:
            found = await self._own_group(job, kind)
        except httpx2.HTTPStatusError as error:
            if code_of(error) != FORBIDDEN:
                raise
            return  # without the rights to it none can have been made
        if found is not None:
            await self._delete(kind, job.metadata.namespace, job.metadata.name, uid=found["metadata"]["uid"])

    async def _own_group(self, job: ElasticJob, kind: type[client.PodGroup]) -> Object | None:
        """The PodGroup of the job's name, if it is the job's own."""
        try:
            found = await self._api.get(kind, job.metadata.namespace, job.metadata.name)
        except httpx2.HTTPStatusError as error:
            if code_of(error) != NOT_FOUND:
                raise
            return None
        owners = {owner.get("uid") for owner in found["metadata"].get("ownerReferences", ())}
        return found if job.metadata.uid in owners else None

    def _no_group(self, job: ElasticJob, scheduler: GangScheduler, error: httpx2.HTTPStatusError) -> RefusedError:
        api = GANG_APIS[scheduler].api_version
        why = {
            NOT_FOUND: f"cannot be made: this cluster does not know {api}. Install {scheduler}, or make the job anew "
            "without schedulingPolicy.scheduler",
            FORBIDDEN: f"cannot be made: {error}. Has the stack's setting controller.gangSchedulers {scheduler}?",
            CONFLICT: "exists and is not of this job: delete it, or give the job another name",
        }.get(code_of(error) or 0, f"cannot be made: {explain(error)}")
        message = f"PodGroup {job.metadata.name} for schedulingPolicy.scheduler {scheduler} {why}"
        if self._create_errors.get(job.key) != message:
            self._create_errors[job.key] = message
            self._tell(job, [Event("Warning", Reason.POD_GROUP_REFUSED, message)])
        return RefusedError(message)

    async def _give_way(self, job: ElasticJob, rival: str) -> None:
        """The job is another's, and so are its pods, which nobody else would let go."""
        self.below.note(job.key, below=False)
        held = [ReleasePod(pod.name, pod.uid) for pod in self._store.pods_of(job.key) if pod.held]
        await self._together([self._release_pod(job.metadata.namespace, action) for action in held])
        if not job.status.ended:
            message = f"Deployment {rival} serves this job, so Trainyard's controller leaves it alone"
            self._tell_once(job, Event("Normal", Reason.TRAINING_OPERATOR_FOUND, message))

    def _service_name_taken(self, job: ElasticJob, name: str) -> None:
        if self._store.services.get(f"{job.metadata.namespace}/{name}") is not None:
            return  # ours, made meanwhile
        message = f"Service {name} exists and is not of this job: its workers have no names in DNS until it is deleted"
        self._tell_once(job, Event("Warning", Reason.NAME_TAKEN, message))

    def _tell_once(self, job: ElasticJob, event: Event) -> None:
        """Tells what would be told in every pass."""
        if self._told.get(job.key) != (job.metadata.uid, event.reason):
            self._told[job.key] = (job.metadata.uid, event.reason)
            self._tell(job, [event])

    async def _delete(
        self,
        kind: client.Resource,
        namespace: str,
        name: str,
        *,
        uid: str | None = None,
        version: int | None = None,
        grace_seconds: int | None = None,
    ) -> Object | None:
        """Deletes what may be gone, or replaced by another of its name, already."""
        try:
            return await self._api.delete(kind, namespace, name, uid=uid, version=version, grace_seconds=grace_seconds)
        except httpx2.HTTPStatusError as error:
            if code_of(error) not in {NOT_FOUND, CONFLICT}:
                raise
            return None

    @staticmethod
    async def _together(calls: Sequence[Any]) -> None:
        """Makes calls side by side; all are seen to their end before the first error is raised."""
        results = await asyncio.gather(*calls, return_exceptions=True)
        for result in results:
            if isinstance(result, BaseException):
                raise result

    def forget_all(self) -> None:
        """A new term as leader: what was learned in an earlier one need not be true any more."""
        for memory in (
            self._caught_up,
            self._create_errors,
            self._accepted,
            self._names_taken,
            self._groups,
            self._told,
        ):
            memory.clear()
        self.below.forget_all()

    def _forget(self, key: str) -> None:
        self.below.note(key, below=False)
        self._caught_up.discard(key)
        for memory in (self._create_errors, self._accepted, self._names_taken, self._groups, self._told):
            memory.pop(key, None)

    # --- events: best effort, never in the way ----------------------------------------------------------------------

    def _tell(self, job: ElasticJob, events: Sequence[Event]) -> None:
        for event in events:
            log.info("%s", event.message, extra={"job": job.key, "reason": str(event.reason)})
            self._queue_event(job, event)

    def _tell_pods(self, job: ElasticJob, reason: Reason, verb: str, actions: Sequence[CreatePod | DeletePod]) -> None:
        self._queue_event(job, Event("Normal", reason, f"{verb} {_names(actions)}"))

    def _queue_event(self, job: ElasticJob, event: Event) -> None:
        worth_a_call = self._filter.pass_on(job.metadata.uid, event, time.monotonic())
        if worth_a_call is not None and not self._events.full():
            self._events.put_nowait((job, worth_a_call))

    async def run_events(self) -> None:
        """Sends events until cancelled."""
        while True:
            job, event = await self._events.get()
            try:
                await self._api.create(client.Event, self._event(job, event))
            except httpx2.HTTPError as error:
                log.debug("event not sent: %s", error, extra={"job": job.key})

    def _event(self, job: ElasticJob, event: Event) -> Object:
        now = datetime.now(UTC)
        stamp = now.strftime("%Y-%m-%dT%H:%M:%SZ")
        return {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"name": f"{job.metadata.name}.{time.time_ns():x}", "namespace": job.metadata.namespace},
            "involvedObject": {
                "apiVersion": job.api_version,
                "kind": job.kind,
                "name": job.metadata.name,
                "namespace": job.metadata.namespace,
                "uid": job.metadata.uid,
                "resourceVersion": job.metadata.resource_version,
            },
            "type": event.type,
            "reason": str(event.reason).replace(KIND, job.kind),
            "message": event.message[:1000],
            "firstTimestamp": stamp,
            "lastTimestamp": stamp,
            "count": 1,
            "source": {"component": f"{MANAGED_BY}-elastic-controller"},
            "reportingComponent": f"{MANAGED_BY}-elastic-controller",
            "reportingInstance": self._identity,
        }


def summarised(events: Sequence[Event], most: int = 3) -> list[Event]:
    """At most a few events of a reason; where there are more, one tells their number and the first."""
    result: list[Event] = []
    for kind, reason in dict.fromkeys((event.type, event.reason) for event in events):
        same = [event for event in events if (event.type, event.reason) == (kind, reason)]
        result.extend(
            same if len(same) <= most else [Event(kind, reason, f"{len(same)} times, first: {same[0].message}")]
        )
    return result


def _names(actions: Sequence[CreatePod | DeletePod], most: int = 4) -> str:
    names = [action.name for action in actions]
    if len(names) <= most:
        return ", ".join(names)
    return f"{len(names)} workers: {', '.join(names[: most - 1])} ... {names[-1]}"


def _gone_at_once(pod: Object) -> bool:
    return pod["metadata"].get("deletionGracePeriodSeconds") == 0 and not pod["metadata"].get("finalizers")
