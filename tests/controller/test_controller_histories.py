"""Random histories of pods, nodes, user edits, clock and crashes: what holds for the planner whatever happens.

The model cluster does what the API server, the scheduler and the kubelets would do; the controller may die between the
status write and any of its actions.
"""

from __future__ import annotations

import os
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from training.controller.api import ConditionType, ElasticJob, ElasticJobStatus
from training.controller.planner import (
    NO_BUDGET,
    CreatePod,
    CreateService,
    CreateStore,
    DeleteJob,
    DeletePod,
    DeleteService,
    Plan,
    ReleasePod,
    SetBudget,
    bounds,
    plan,
)
from training.controller.records import NodeRecord, PodRecord

UID = "0123456789abcdef"
GRACE = timedelta(seconds=30)
START = datetime(2026, 11, 30, 12, 0, tzinfo=UTC)
ROOM = {"pods": Decimal(2)}
MOST_PASSES = 4
"""Passes after which a job has come to rest if nothing happens."""


class Histories(RuleBasedStateMachine):
    """One job in a small cluster."""

    def __init__(self) -> None:
        super().__init__()
        self.now = START
        self.pods: dict[str, PodRecord] = {}
        self.version = 0
        self.views: list[tuple[int, dict[str, PodRecord]]] = []
        self.nodes = {name: NodeRecord(name, allocatable=ROOM) for name in ("a", "b", "c")}
        self.born = 0
        self.services: set[str] = set()
        self.budget = NO_BUDGET
        self.deleted_job = False
        self.restarts_by_uid: dict[str, int] = {}
        self.touched: set[str] = set()
        self.bad_nodes: set[str] = set()
        self.confirmed: set[str] = set()  # UIDs of pods that only their finalizer keeps
        self.node_of: dict[str, str] = {}

    @initialize(
        fewest=st.integers(1, 3),
        extra=st.integers(0, 3),
        policy=st.sampled_from(["Always", "OnFailure", "Never", "ExitCode"]),
        fixed=st.booleans(),
        backoff_limit=st.one_of(st.none(), st.integers(0, 3)),
        clean=st.sampled_from([None, "All", "Running", "None"]),
        ttl=st.one_of(st.none(), st.integers(0, 100)),
        deadline=st.one_of(st.none(), st.integers(60, 3600)),
        success=st.sampled_from([None, "AnyWorker", "AllWorkers"]),
        growth=st.sampled_from([None, "Eager", "Probe"]),
        spares=st.integers(0, 2),
        endpoint=st.sampled_from(["etcd:2379", "etcd:2379", None, "j-worker-0:29400"]),
        rule_for=st.sampled_from([None, "Ignore", "RestartPod", "RestartGroup", "FailJob"]),
    )
    def submit(
        self,
        fewest: int,
        extra: int,
        policy: str,
        fixed: bool,
        backoff_limit: int | None,
        clean: str | None,
        ttl: int | None,
        deadline: int | None,
        success: str | None,
        growth: str | None,
        spares: int,
        endpoint: str | None,
        rule_for: str | None,
    ) -> None:
        mode = "Capacity" if growth else "Manual"
        scaling = {"mode": mode, "growth": growth or "Eager", "spareReplicas": spares, "minIntervalSeconds": 60}
        rule = {"action": rule_for, "onExitCodes": {"operator": "In", "values": [1, 137]}}
        spec: dict[str, Any] = {
            "scaling": scaling if growth or spares else None,
            "successPolicy": success,
            "failurePolicy": {"rules": [rule]} if rule_for else None,
            "rdzvEndpoint": endpoint,
            "rdzvBackend": "etcd" if endpoint == "etcd:2379" else "c10d",
            "backoffLimit": backoff_limit,
            "cleanPodPolicy": clean,
            "ttlSecondsAfterFinished": ttl,
            "activeDeadlineSeconds": deadline,
            "replicaSpecs": {"Worker": {"replicas": fewest, "restartPolicy": policy, "template": {}}},
        }
        if not fixed:
            spec |= {"minReplicas": fewest, "maxReplicas": fewest + extra}
        metadata = {"name": "j", "namespace": "n", "uid": UID, "generation": 1}
        self.job = ElasticJob.model_validate({"metadata": metadata, "spec": spec})
        self.fixed = fixed
        self.spares = spares

    # --- the world --------------------------------------------------------------------------------------------------

    def pick(self, number: int, *, terminating: bool | None = None, phases: tuple[str, ...] = ()) -> PodRecord | None:
        fitting = [
            pod
            for pod in sorted(self.pods.values(), key=lambda pod: pod.uid)
            if (terminating is None or pod.terminating == terminating) and (not phases or pod.phase in phases)
        ]
        return fitting[number % len(fitting)] if fitting else None

    def put(self, pod: PodRecord) -> None:
        self.pods[pod.name] = pod
        self.changed()

    def changed(self) -> None:
        self.version += 1
        self.views.append((self.version, dict(self.pods)))

    @rule(number=st.integers(0, 9), node=st.sampled_from(["a", "b", "c"]))
    def a_pod_starts(self, number: int, node: str) -> None:
        if node in self.nodes and (pod := self.pick(number, terminating=False, phases=("Pending",))):
            self.put(replace(pod, node=node, phase="Running", ready=True, unschedulable=None))
            self.node_of[pod.uid] = node

    @rule(number=st.integers(0, 9))
    def no_node_is_found(self, number: int) -> None:
        if pod := self.pick(number, terminating=False, phases=("Pending",)):
            self.put(replace(pod, unschedulable="0/3 nodes are available"))

    @rule(number=st.integers(0, 9), code=st.sampled_from([0, 0, 1, 75, 78, 137, 143, None]), oom=st.booleans())
    def a_worker_ends(self, number: int, code: int | None, oom: bool) -> None:
        if pod := self.pick(number, phases=("Running",)):
            reason = "OOMKilled" if oom and code == 137 else None
            phase = "Succeeded" if code == 0 else "Failed"
            self.touched.add(pod.uid)
            self.put(replace(pod, phase=phase, exit_code=code, term_reason=reason, finished_at=self.now, ready=False))

    @rule(number=st.integers(0, 9), code=st.sampled_from([1, 75, 137]))
    def the_kubelet_restarts_a_container(self, number: int, code: int) -> None:
        if pod := self.pick(number, phases=("Running",)):
            self.put(replace(pod, restarts=pod.restarts + 1, last_exit_code=code))
            self.restarts_by_uid[pod.uid] = pod.restarts + 1

    @rule(number=st.integers(0, 9))
    def somebody_deletes_a_pod(self, number: int) -> None:
        if pod := self.pick(number, terminating=False):
            self.touched.add(pod.uid)
            self.delete(pod, GRACE)

    @rule(number=st.integers(0, 9), code=st.sampled_from([137, None]))
    def a_pod_is_evicted(self, number: int, code: int | None) -> None:
        if pod := self.pick(number, phases=("Running",)):
            self.touched.add(pod.uid)
            self.put(replace(pod, phase="Failed", disruption="TerminationByKubelet", exit_code=code, ready=False))

    @rule(number=st.integers(0, 9), exit_code=st.sampled_from([0, 75, 143]))
    def a_kubelet_confirms(self, number: int, exit_code: int) -> None:
        pod = self.pick(number, terminating=True)
        if pod is not None and (pod.node is None or pod.node in self.nodes):
            if not pod.finished:
                phase = "Succeeded" if exit_code == 0 else "Failed"
                pod = replace(pod, phase=phase, exit_code=exit_code, finished_at=self.now, ready=False)
            self.remove(pod)

    @rule(number=st.integers(0, 9))
    def somebody_deletes_a_pod_by_force(self, number: int) -> None:
        if pod := self.pick(number):
            self.touched.add(pod.uid)
            self.remove(pod)

    @rule(node=st.sampled_from(["a", "b", "c"]), seconds=st.one_of(st.none(), st.integers(10, 120)))
    def a_notice(self, node: str, seconds: int | None) -> None:
        if node in self.nodes:
            at = self.now + timedelta(seconds=seconds) if seconds is not None else None
            self.bad_nodes.add(node)
            self.nodes[node] = replace(self.nodes[node], notice="karpenter.sh/disrupted", reclaim_at=at)

    @rule(node=st.sampled_from(["a", "b", "c"]))
    def a_node_is_lost(self, node: str) -> None:
        self.bad_nodes.add(node)
        self.nodes.pop(node, None)

    @rule(node=st.sampled_from(["a", "b", "c"]), ready=st.booleans(), silent=st.booleans())
    def a_node_comes_or_goes_silent(self, node: str, ready: bool, silent: bool) -> None:
        self.bad_nodes.add(node)
        since = None if ready else self.now
        self.nodes[node] = NodeRecord(
            node, allocatable=ROOM, ready=ready, not_ready_since=since, silent=silent and not ready
        )

    @rule(seconds=st.sampled_from([1, 5, 20, 60, 400]))
    def time_passes(self, seconds: int) -> None:
        self.now += timedelta(seconds=seconds)

    @rule(seconds=st.sampled_from([-3600, -30, -2, 7200]))
    def the_clock_jumps(self, seconds: int) -> None:
        self.now += timedelta(seconds=seconds)

    # --- the user ---------------------------------------------------------------------------------------------------

    @rule(replicas=st.integers(1, 6))
    def the_user_scales(self, replicas: int) -> None:
        fewest, most = bounds(self.job)
        if not self.fixed:
            replicas = max(fewest, min(replicas, most))
        self.job.spec.worker.replicas = replicas
        self.job.metadata.generation += 1

    @rule(suspend=st.booleans())
    def the_user_suspends_or_resumes(self, suspend: bool) -> None:
        self.job.spec.suspend = suspend
        self.job.metadata.generation += 1

    # --- the controller ---------------------------------------------------------------------------------------------

    @precondition(lambda self: not self.deleted_job)
    @rule()
    def the_controller_acts(self) -> None:
        self.pass_over(None)

    @precondition(lambda self: not self.deleted_job)
    @rule(actions=st.integers(0, 3))
    def the_controller_dies_after_some_actions(self, actions: int) -> None:
        self.pass_over(actions)

    @precondition(lambda self: not self.deleted_job and self.views)
    @rule(age=st.integers(0, 5))
    def another_controller_takes_over_whose_news_are_old(self, age: int) -> None:
        """It waits where the books are newer than its news, and else counts nothing that is counted already."""
        version, pods = self.views[max(0, len(self.views) - 1 - age)]
        if int(self.job.status.pods_version or 0) > version:
            return
        current = self.pods, self.version
        self.pods, self.version = pods, version
        before, made = self.job.status, self.look()
        self.pods, self.version = current
        self.check_books(before, made.status)
        charged = sum(number for loss, number in made.losses.items() if loss.charged)
        told = (charged, made.losses.total() - charged)
        counted = (made.status.restarts - before.restarts, made.status.disruptions - before.disruptions)
        assert told == counted, "metrics tell another number of losses than the books"
        self.job.status = made.status
        for action in made.actions:
            named = self.pods.get(action.name) if isinstance(action, DeletePod | ReleasePod) else None
            if isinstance(action, DeletePod) and named is not None and named.uid == action.uid:
                self.carry_out_deletion(action)
            elif isinstance(action, ReleasePod) and named is not None and named.uid == action.uid:
                self.release(named)

    @precondition(lambda self: not self.deleted_job)
    @rule()
    def the_controller_comes_to_rest(self) -> None:
        for _ in range(MOST_PASSES):
            made = self.pass_over(None)
            if self.deleted_job:
                return
        before = self.job.status
        made = self.look()
        assert made.actions == (), f"still busy: {made.actions}"
        assert made.status == before, "still changing its mind"
        if not before.ended and before.first_success_time is None:
            left = [pod for pod in self.pods.values() if not pod.terminating]
            assert not [pod for pod in left if pod.phase == "Failed"], "failed workers are left lying"
            assert not [pod for pod in left if pod.node and pod.node not in self.nodes]
        if not before.ended and before.first_success_time is None and not self.job.spec.suspend:
            waiting = made.requeue_after is not None or any(p.terminating for p in self.pods.values())
            staying = self.staying()
            size = made.status.desired_replicas
            waiting |= any(pod.store and not pod.ready for pod in self.pods.values())
            assert len(staying) == size + (self.spares if size == bounds(self.job)[1] else 0) or waiting

    def look(self) -> Plan:
        known = list(self.pods.values())
        lost = {"a", "b", "c"} - self.nodes.keys()
        used: dict[str, dict[str, Decimal]] = {}
        for pod in self.pods.values():
            if pod.node is not None and not pod.finished:
                used[pod.node] = {"pods": used.get(pod.node, {}).get("pods", Decimal(0)) + 1}
        return plan(
            self.job,
            known,
            self.nodes,
            self.now,
            missing_services=[name for name in self.job.service_names if name not in self.services],
            lost_nodes=lost,
            used=used,
            pods_version=self.version,
            budget=self.budget,
        )

    def pass_over(self, actions: int | None) -> Plan:
        before = self.job.status
        members = self.staying()
        made = self.look()
        self.check_books(before, made.status)
        self.job.status = ElasticJobStatus.model_validate(made.status.model_dump(mode="json", by_alias=True))
        assert self.job.status == made.status, "the status does not survive the API server"
        limit = len(made.actions) if actions is None else actions
        for action in made.actions[:limit]:
            if isinstance(action, DeletePod):
                pod = self.pods.get(action.name)
                assert pod is not None
                assert pod.uid == action.uid
                if made.status.first_success_time is not None and not made.status.ended:
                    assert pod.store or pod.phase == "Pending" or not pod.active, (
                        "stopped a worker that may still finish"
                    )
                self.carry_out_deletion(action)
            elif isinstance(action, ReleasePod):
                named = self.pods.get(action.name)
                if named is not None and named.uid == action.uid:
                    self.release(named)
            elif isinstance(action, CreatePod):
                self.create(action, before, made.status)
            elif isinstance(action, DeleteJob):
                assert made.status.ended
                self.deleted_job = True
            elif isinstance(action, CreateStore):
                assert "j-store" not in self.pods, "two stores"
                self.create_store(action)
            elif isinstance(action, SetBudget):
                assert 0 <= action.least <= bounds(self.job)[0]
                self.budget = action.least
            elif isinstance(action, CreateService):
                assert action.name not in self.services
                self.services.add(action.name)
            else:
                assert isinstance(action, DeleteService)
                self.services.discard(action.name)
        if actions is None and not made.status.ended and made.status.first_success_time is None:
            fewest, most = bounds(self.job)
            assert fewest <= made.status.desired_replicas <= most or self.job.spec.suspend
            assert len(self.staying()) <= most + self.spares
            lost = made.status.disruptions + made.status.restarts - before.disruptions - before.restarts
            if made.status.generation == before.generation and not self.job.spec.suspend:
                assert len(self.staying()) >= min(len(members) - lost, fewest), "went under min by its own act"
        return made

    def create(self, action: CreatePod, before: ElasticJobStatus, after: ElasticJobStatus) -> None:
        assert action.name not in self.pods, "two pods with one name"
        assert not before.ended, "created after the end"
        assert not after.ended, "created after the end"
        assert after.first_success_time is None, "created after the first success"
        assert not self.job.spec.suspend, "created while suspended"
        self.born += 1
        self.put(
            PodRecord(
                name=action.name,
                uid=f"uid-{self.born:04}",
                namespace="n",
                job="j",
                owner_uid=UID,
                index=action.index,
                generation=action.generation,
                created=self.now,
                held=True,
            )
        )

    def create_store(self, action: CreateStore) -> None:
        self.born += 1
        self.put(
            PodRecord(
                name="j-store",
                uid=f"uid-{self.born:04}",
                namespace="n",
                job="j",
                owner_uid=UID,
                generation=action.generation,
                created=self.now,
                store=True,
            )
        )

    def carry_out_deletion(self, action: DeletePod) -> None:
        pod = self.pods[action.name]
        if action.release:
            self.release(pod)
        if left := self.pods.get(action.name):
            self.delete(left, GRACE if action.grace_seconds is None else timedelta(seconds=action.grace_seconds))

    def release(self, pod: PodRecord) -> None:
        """Its finalizer is taken off: what nothing else keeps vanishes."""
        counted = pod.uid in self.job.status.accounted_pods or pod.generation != self.job.status.generation
        assert counted or self.job.status.ended, "let go before its end was counted"
        self.put(replace(pod, held=False))
        if pod.uid in self.confirmed:
            self.remove(self.pods[pod.name])

    def check_books(self, before: ElasticJobStatus, after: ElasticJobStatus) -> None:
        assert after.restarts >= before.restarts
        assert after.disruptions >= before.disruptions
        assert after.generation >= before.generation
        for kind in (ConditionType.SUCCEEDED, ConditionType.FAILED):
            assert not before.is_true(kind) or after.is_true(kind), f"{kind} was taken back"
        assert not (after.is_true(ConditionType.SUCCEEDED) and after.is_true(ConditionType.FAILED))
        if after.ended:
            assert after.completion_time is not None
            assert not after.is_true(ConditionType.RUNNING)
        assert all(c.observed_generation is not None for c in after.conditions)
        assert len({c.type for c in after.conditions}) == len(after.conditions)

    # --- helpers ----------------------------------------------------------------------------------------------------

    def staying(self) -> list[PodRecord]:
        """Active workers of the generation on nodes that stay."""
        return [
            pod
            for pod in self.pods.values()
            if pod.active
            and not pod.store
            and pod.generation == self.job.status.generation
            and not (pod.node in self.nodes and self.nodes[pod.node].notice)
        ]

    def delete(self, pod: PodRecord, grace: timedelta) -> None:
        """As the API server does it: at once where nothing runs, else a deadline for the kubelet."""
        if pod.finished or pod.node is None or not grace:
            self.remove(pod)
        elif not pod.terminating:
            self.put(replace(pod, deletion_requested=self.now, deletion_deadline=self.now + grace))

    def remove(self, pod: PodRecord) -> None:
        """Its kubelet needs it no more; its finalizer may still keep it."""
        if pod.held:
            self.confirmed.add(pod.uid)
            requested = pod.deletion_requested or self.now
            self.put(replace(pod, deletion_requested=requested, deletion_deadline=requested))
        else:
            del self.pods[pod.name]
            self.changed()

    @invariant()
    def each_end_is_counted_at_most_once(self) -> None:
        if self.born:
            in_place = sum(self.restarts_by_uid.values())
            lost = self.touched | {uid for uid, node in self.node_of.items() if node in self.bad_nodes}
            assert self.job.status.disruptions <= len(lost) + in_place
            assert self.job.status.restarts + self.job.status.disruptions <= len(lost) + in_place


# Each run of the tests sees a few; `make histories` sees ten thousand.
Histories.TestCase.settings = settings(
    max_examples=10_000 if os.environ.get("TRAINYARD_ALL_HISTORIES") else 100, stateful_step_count=40, deadline=None
)
TestHistories = Histories.TestCase
