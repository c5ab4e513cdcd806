"""What the planner decides, case by case."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from decimal import Decimal
from typing import Any

import pytest
from planned_jobs import GOING, NOW, creates, job, pod, releases

from training.controller.api import (
    ConditionType,
    ElasticJob,
    Phase,
    Reason,
)
from training.controller.capacity import Taint, room
from training.controller.planner import (
    Action,
    CreatePod,
    CreateService,
    CreateStore,
    DeleteJob,
    DeletePod,
    DeleteService,
    Loss,
    Plan,
    ReleasePod,
    SetBudget,
    failure_backoff,
    plan,
)
from training.controller.records import NodeRecord, PodRecord

NODE = NodeRecord("node-a")
NODES = {"node-a": NODE}
DRAIN_WINDOW = timedelta(seconds=300)
"""The default of drainSeconds."""
RECLAIM_AT = NOW + timedelta(seconds=120)
NOTICED = {
    "node-a": replace(NODE, notice="aws-node-termination-handler/spot-itn", reclaim_at=RECLAIM_AT),
    "node-b": NodeRecord("node-b"),
}


def failed(index: int, code: int | None, **fields: Any) -> PodRecord:
    return pod(index, **({"phase": "Failed", "exit_code": code, "finished_at": NOW, "ready": False} | fields))


def running(replicas: int = 2, **spec: Any) -> ElasticJob:
    """A job whose workers 0 .. replicas-1 run, as its status has it."""
    fresh = job(replicas, **spec)
    return job(replicas, status=plan(fresh, [pod(i) for i in range(replicas)], NODES, NOW).status, **spec)


def greedy() -> ElasticJob:
    """A job of one worker that asks for 8 GPUs."""
    made = job(1)
    made.spec.worker.template["spec"]["containers"][0]["resources"] = {"limits": {"nvidia.com/gpu": 8}}
    return made


def deletes(made: Plan) -> list[str]:
    return [action.name for action in made.actions if isinstance(action, DeletePod)]


def true_conditions(made: Plan) -> set[str]:
    return {c.type for c in made.status.conditions if c.status == "True"}


def message(made: Plan, kind: ConditionType) -> str:
    found = made.status.condition(kind)
    return found.message if found is not None else ""


class TestStart:
    def test_a_new_job_gets_its_service_and_all_its_workers(self) -> None:
        made = plan(job(3), [], NODES, NOW, missing_services=["j-workers", "j-worker-0"])
        assert made.actions[:2] == (CreateService("j-workers"), CreateService("j-worker-0"))
        assert made.actions[2:] == tuple(CreatePod(f"j-worker-{i}", i, 1, "3:3") for i in range(3))
        assert made.status.phase == Phase.PENDING
        assert made.status.start_time == NOW
        assert made.status.selector == "group-name=elastic.pytorch.org,job-name=j,replica-type=worker"

    def test_min_and_max_become_nnodes(self) -> None:
        assert plan(job(2, minReplicas=1, maxReplicas=4), [], NODES, NOW).status.nnodes == "1:4"

    def test_it_runs_when_min_workers_run(self) -> None:
        elastic = job(3, minReplicas=1, maxReplicas=3)
        made = plan(elastic, [pod(0), pod(1, phase="Pending", node=None), pod(2, phase="Pending")], NODES, NOW)
        assert true_conditions(made) == {"Created", "Running"}
        assert message(made, ConditionType.RUNNING) == "1 of 3 workers run"
        assert made.actions == ()

    def test_a_job_that_trains_with_fewer_says_why_no_more_can_be_made(self) -> None:
        elastic, refused = job(2, minReplicas=1, maxReplicas=2), "exceeded quota: tight"
        made = plan(elastic, [pod(0)], NODES, NOW, create_error=refused)
        assert message(made, ConditionType.RUNNING) == f"1 of 2 workers run; {refused}"
        full = plan(elastic, [pod(0), pod(1)], NODES, NOW, create_error=refused)
        assert message(full, ConditionType.RUNNING) == "2 of 2 workers run"

    def test_pods_of_an_earlier_job_of_the_name_only_block_their_names(self) -> None:
        made = plan(job(1), [pod(0, owner_uid="another")], NODES, NOW)
        assert creates(made) == ["j-worker-1"]
        assert made.status.replicas == 0

    def test_a_job_that_is_being_deleted_is_left_to_the_garbage_collector(self) -> None:
        doomed = job(2)
        doomed.metadata.deletion_timestamp = NOW
        assert plan(doomed, [], NODES, NOW).actions == ()

    def test_a_restart_policy_in_the_template_is_said_to_be_ignored(self) -> None:
        odd = job(2)
        odd.spec.worker.template["spec"]["restartPolicy"] = "Always"
        (told,) = (e for e in plan(odd, [], NODES, NOW).events if e.reason == Reason.RESTART_POLICY_IGNORED)
        assert told.message.startswith("restartPolicy Always in the pod template is ignored")
        odd.spec.worker.template["spec"]["restartPolicy"] = "Never"
        assert all(e.reason != Reason.RESTART_POLICY_IGNORED for e in plan(odd, [], NODES, NOW).events)

    def test_why_a_worker_does_not_start_is_said(self) -> None:
        stuck = [pod(i, phase="Pending", waiting="ErrImagePull: no such image") for i in range(2)]
        made = plan(job(2), stuck, NODES, NOW)
        assert message(made, ConditionType.RUNNING) == (
            "0 of 2 workers run, at least 2 are needed; j-worker-0: ErrImagePull: no such image"
        )


class TestTemplate:
    @pytest.mark.parametrize(
        ("template", "told"),
        [
            ({"spec": []}, "spec: "),
            ({"spec": {"containers": {"name": "c"}}}, "spec.containers: "),
            ({"spec": {"containers": ["c"]}}, "spec.containers.0: "),
            ({"spec": {"containers": [{"resources": []}]}}, "spec.containers.0.resources: "),
            ({"spec": {"containers": [{"resources": {"limits": 1}}]}}, "spec.containers.0.resources.limits: "),
            ({"spec": {"containers": [{"args": "train.py"}]}}, "spec.containers.0.args: "),
            ({"spec": {"containers": [{"env": {"A": "b"}}]}}, "spec.containers.0.env: "),
            ({"spec": {"nodeSelector": ["a"]}}, "spec.nodeSelector: "),
            ({"metadata": []}, "metadata: "),
            ({"metadata": {"labels": ["a"]}}, "metadata.labels: "),
        ],
    )
    def test_one_that_is_malformed_is_told_once_and_can_be_corrected(self, template: dict[str, Any], told: str) -> None:
        broken = job(2)
        broken.spec.worker.template = template
        made = plan(broken, [], NODES, NOW)
        assert creates(made) == []
        assert f"template.{told}" in message(made, ConditionType.RUNNING)
        assert "kubectl edit elasticjob j -n n" in message(made, ConditionType.RUNNING)
        assert [e.type for e in made.events if e.reason == Reason.TEMPLATE_INVALID] == ["Warning"]
        broken.status = made.status
        again = plan(broken, [], NODES, NOW)
        assert (again.status, again.events) == (made.status, ())
        assert len(creates(plan(job(2, status=made.status), [], NODES, NOW))) == 2

    def test_workers_that_run_are_cared_for_while_it_is_malformed(self) -> None:
        broken = job(2, status=running(2).status)
        broken.spec.worker.template = {"spec": []}
        workers = [pod(0), pod(1, node="node-b")]
        made = plan(broken, workers, NOTICED, NOW + timedelta(seconds=90))
        assert deletes(made) == ["j-worker-0"]
        assert "template.spec: " in message(made, ConditionType.RUNNING)


class TestLoss:
    def test_a_pod_deleted_by_others_is_replaced_at_once_under_a_free_name(self) -> None:
        going = pod(0, deletion_deadline=NOW + timedelta(seconds=30), deletion_requested=NOW)
        made = plan(running(2), [going, pod(1)], NODES, NOW)
        assert creates(made) == ["j-worker-2"]
        assert (made.status.disruptions, made.status.restarts) == (1, 0)
        assert made.status.accounted_pods == ["uid-0"]

    def test_it_is_counted_once_however_often_it_is_looked_at(self) -> None:
        going = pod(0, deletion_deadline=NOW + timedelta(seconds=30), deletion_requested=NOW)
        first = plan(running(2), [going, pod(1)], NODES, NOW)
        again = plan(job(2, status=first.status), [going, pod(1), pod(2)], NODES, NOW)
        ended = replace(going, phase="Failed", exit_code=143, finished_at=NOW)
        third = plan(job(2, status=again.status), [ended, pod(1), pod(2)], NODES, NOW)
        assert third.status.disruptions == 1
        assert third.actions == ()

    def test_workers_are_counted_not_numbered(self) -> None:
        three = job(3, minReplicas=1, maxReplicas=4, status=running(4, minReplicas=1, maxReplicas=4).status)
        made = plan(three, [pod(0), pod(2), pod(3)], NODES, NOW)
        assert made.actions == ()

    @pytest.mark.parametrize(
        "reason",
        [
            "PreemptionByScheduler",
            "DeletionByTaintManager",
            "EvictionByEvictionAPI",
            "DeletionByPodGC",
            "TerminationByKubelet",
        ],
    )
    @pytest.mark.parametrize("policy", ["Never", "ExitCode", "OnFailure", "Always"])
    def test_disruptions_are_replaced_under_every_policy_and_not_charged(self, reason: str, policy: str) -> None:
        lost = failed(0, 137, disruption=reason)
        made = plan(running(2, restart_policy=policy, backoffLimit=0), [lost, pod(1)], NODES, NOW)
        assert creates(made) == deletes(made) == ["j-worker-0"]
        assert (made.status.disruptions, made.status.restarts) == (1, 0)

    def test_a_success_is_not_lost_with_its_pod(self) -> None:
        """Somebody deleted the finished pod while no controller ran; its finalizer kept it."""
        done = pod(0, phase="Succeeded", exit_code=0, finished_at=NOW, held=True)
        later = NOW + timedelta(minutes=1)
        deleted = replace(done, deletion_requested=later, deletion_deadline=later)
        made = plan(running(2), [deleted, pod(1)], NODES, later)
        assert (made.status.phase, releases(made)) == (Phase.COMPLETING, ["j-worker-0"])

    def test_a_worker_that_was_told_to_go_and_ended_with_0_has_not_finished_the_training(self) -> None:
        told = NOW - timedelta(seconds=5)
        left = pod(0, phase="Succeeded", exit_code=0, finished_at=NOW, deletion_requested=told, deletion_deadline=NOW)
        made = plan(running(2), [left, pod(1)], NODES, NOW)
        assert made.status.first_success_time is None
        assert creates(made) == ["j-worker-2"]

    @pytest.mark.parametrize("code", [0, 1, 143])
    def test_a_worker_told_and_ended_within_the_same_second_was_told_first(self, code: int) -> None:
        phase = "Succeeded" if code == 0 else "Failed"
        quick = pod(0, phase=phase, exit_code=code, finished_at=NOW, **GOING)
        made = plan(running(2), [quick, pod(1)], NODES, NOW)
        assert (made.status.disruptions, made.status.restarts) == (1, 0)
        assert creates(made) == ["j-worker-2"]

    @pytest.mark.parametrize(("silent", "patience"), [(True, 10), (False, 60)])
    def test_a_node_that_is_not_ready_loses_its_workers_after_a_while(self, silent: bool, patience: int) -> None:
        nodes = {"node-a": replace(NODE, ready=False, not_ready_since=NOW, silent=silent)}
        early = plan(running(1), [pod(0)], nodes, NOW)
        assert early.actions == ()
        assert early.requeue_after == timedelta(seconds=patience)
        late = plan(running(1), [pod(0)], nodes, NOW + timedelta(seconds=patience))
        assert deletes(late) == ["j-worker-0"]
        assert creates(late) == ["j-worker-1"]
        assert late.status.disruptions == 1

    def test_a_terminating_pod_is_removed_by_force_only_when_its_node_is_gone(self) -> None:
        stuck = pod(0, deletion_deadline=NOW - timedelta(seconds=1), deletion_requested=NOW - timedelta(seconds=31))
        silent = {"node-a": replace(NODE, ready=False, not_ready_since=NOW - timedelta(hours=1))}
        assert deletes(plan(running(1), [stuck], silent, NOW)) == []
        assert deletes(plan(running(1), [stuck], NODES, NOW)) == []
        gone = plan(running(1), [stuck], {}, NOW, lost_nodes={"node-a"})
        (forced,) = (a for a in gone.actions if isinstance(a, DeletePod))
        assert forced.grace_seconds == 0
        out = {"node-a": replace(NODE, out_of_service=True)}
        assert deletes(plan(running(1), [stuck], out, NOW)) == ["j-worker-0"]

    def test_a_pod_that_its_kubelet_turns_away_is_free_but_not_tried_again_and_again_at_once(self) -> None:
        refused = failed(0, None, disruption="OutOfnvidia.com/gpu", finished_at=None)
        first = plan(running(2), [refused, pod(1)], NODES, NOW)
        again = plan(job(2, status=first.status), [replace(refused, uid="second", created=NOW), pod(1)], NODES, NOW)
        assert (again.status.disruptions, again.status.restarts) == (2, 0)
        assert creates(again) == []
        assert again.requeue_after == timedelta(seconds=1)

    def test_a_node_that_is_not_known_is_not_for_that_gone(self) -> None:
        queued_for_long = pod(0, created=NOW - timedelta(hours=1), node="new")
        assert plan(running(1), [queued_for_long], NODES, NOW).actions == ()
        lost = plan(running(1), [queued_for_long], NODES, NOW, lost_nodes={"new"})
        assert deletes(lost) == ["j-worker-0"]
        assert lost.status.disruptions == 1


class TestFinalizer:
    """A worker pod does not go before its end is counted."""

    def test_it_is_let_go_in_the_pass_that_counts_its_end(self) -> None:
        going = pod(0, held=True, deletion_deadline=NOW + timedelta(seconds=30), deletion_requested=NOW)
        made = plan(running(2), [going, pod(1, held=True)], NODES, NOW)
        assert (made.status.accounted_pods, releases(made)) == (["uid-0"], ["j-worker-0"])

    def test_a_worker_that_trains_is_held(self) -> None:
        assert plan(running(2), [pod(0, held=True), pod(1, held=True)], NODES, NOW).actions == ()

    def test_a_failed_one_is_let_go_before_it_is_deleted_so_that_its_name_is_free(self) -> None:
        made = plan(running(2), [failed(0, 139, held=True), pod(1, held=True)], NODES, NOW)
        (deletion,) = (action for action in made.actions if isinstance(action, DeletePod))
        assert (deletion.name, deletion.release, releases(made)) == ("j-worker-0", True, [])
        assert creates(made) == ["j-worker-0"]

    def test_one_that_is_to_leave_is_let_go_at_once(self) -> None:
        smaller = running(3, minReplicas=1, maxReplicas=3)
        smaller.spec.worker.replicas = 2
        made = plan(smaller, [pod(i, held=True) for i in range(3)], NODES, NOW)
        assert deletes(made) == releases(made) == ["j-worker-2"]

    def test_a_suspended_one_is_let_go_when_it_is_known_not_to_have_finished_before(self) -> None:
        suspended = job(1, status=running(1).status, suspend=True)
        told = plan(suspended, [pod(0, held=True)], NODES, NOW)
        assert (deletes(told), releases(told)) == (["j-worker-0"], [])
        going = pod(0, held=True, **GOING)
        assert releases(plan(job(1, status=told.status, suspend=True), [going], NODES, NOW)) == ["j-worker-0"]

    def test_an_earlier_generation_is_let_go(self) -> None:
        scaled = plan(job(3, status=running(2).status), [pod(0, held=True), pod(1, held=True)], NODES, NOW)
        assert scaled.status.generation == 2
        assert releases(scaled) == deletes(scaled) == ["j-worker-0", "j-worker-1"]

    def test_pods_of_an_earlier_job_of_the_name_are_let_go(self) -> None:
        made = plan(running(1), [pod(0), pod(1, held=True, owner_uid="earlier")], NODES, NOW)
        assert made.actions == (ReleasePod("j-worker-1", "uid-1"),)

    def test_when_the_job_has_ended_all_of_them_are_let_go(self) -> None:
        done = pod(0, phase="Succeeded", exit_code=0, finished_at=NOW, held=True)
        first = plan(running(2), [done, pod(1, held=True)], NODES, NOW)
        last = plan(job(2, status=first.status), [done, pod(1, held=True)], NODES, NOW + DRAIN_WINDOW)
        assert (last.status.phase, deletes(last)) == (Phase.SUCCEEDED, ["j-worker-1"])
        assert releases(last) == ["j-worker-0", "j-worker-1"]

    @pytest.mark.parametrize(("finalizer", "deleted"), [("foregroundDeletion", ["j-worker-0"]), ("orphan", [])])
    def test_a_job_on_its_way_out_lets_all_go_and_takes_them_with_it(self, finalizer: str, deleted: list[str]) -> None:
        leaving = running(1)
        leaving.metadata.deletion_timestamp, leaving.metadata.finalizers = NOW, [finalizer]
        made = plan(leaving, [pod(0, held=True)], NODES, NOW)
        assert (deletes(made), releases(made)) == (deleted, ["j-worker-0"])

    def test_what_others_labelled_like_a_worker_is_theirs(self) -> None:
        leaving = running(1)
        leaving.metadata.deletion_timestamp = NOW
        assert plan(leaving, [pod(0, owner_uid="deployment"), pod(1, owner_uid="")], NODES, NOW).actions == ()

    def test_the_books_say_how_new_the_view_was_from_which_they_were_made(self) -> None:
        """Random histories found a controller that struck off a counted pod of which it had no news yet."""
        first = plan(running(2), [failed(0, 137), pod(1)], NODES, NOW, pods_version=7)
        assert (first.status.accounted_pods, first.status.pods_version) == (["uid-0"], "7")
        later = plan(job(2, status=first.status), [pod(0, uid="new"), pod(1)], NODES, NOW, pods_version=9)
        assert (later.status.accounted_pods, later.status.pods_version) == ([], "9")
        quiet = plan(job(2, status=later.status), [pod(0, uid="new"), pod(1)], NODES, NOW, pods_version=50)
        assert quiet.status == later.status


class TestStore:
    """The rendezvous store is a pod of the job's."""

    STORE = pod(0, name="j-store", uid="store", store=True)

    def managed(self, **spec: Any) -> ElasticJob:
        return job(2, rdzvEndpoint="auto", **spec)

    def test_workers_come_when_the_store_is_ready(self) -> None:
        first = plan(self.managed(), [], NODES, NOW)
        assert first.actions == (CreateStore(1),)
        pulling = replace(self.STORE, ready=False, waiting="ErrImagePull: no such image")
        waiting = plan(self.managed(status=first.status), [pulling], NODES, NOW)
        assert waiting.actions == ()
        assert message(waiting, ConditionType.RUNNING) == (
            "0 of 2 workers run, at least 2 are needed; the rendezvous store j-store is not ready yet: "
            "ErrImagePull: no such image"
        )
        ready = plan(self.managed(status=waiting.status), [self.STORE], NODES, NOW)
        assert (creates(ready), ready.status.rendezvous_store) == (["j-worker-0", "j-worker-1"], "store")
        assert ready.status.replicas == 0  # it is no worker

    @pytest.mark.parametrize("lost", [{"phase": "Failed", "exit_code": 1}, GOING, {"node": "lost"}], ids=str)
    def test_when_it_is_lost_all_start_anew_at_once_and_uncharged(self, lost: dict[str, Any]) -> None:
        workers = [pod(0), pod(1)]
        status = plan(self.managed(), [self.STORE, *workers], NODES, NOW).status
        store = replace(self.STORE, **lost)
        made = plan(self.managed(status=status), [store, *workers], NODES, NOW, lost_nodes={"lost"})
        assert [name for name in deletes(made) if name != "j-store"] == ["j-worker-0", "j-worker-1"]
        assert (made.status.generation, made.status.restarts, made.status.disruptions) == (2, 0, 0)
        assert made.status.rendezvous_store is None
        assert creates(made) == []
        gone = plan(self.managed(status=made.status), [], NODES, NOW)
        assert gone.actions == (CreateStore(2),)

    def test_workers_that_fail_for_want_of_it_do_not_fail_the_job(self) -> None:
        status = plan(self.managed(), [self.STORE, pod(0), pod(1)], NODES, NOW).status
        broken = [replace(self.STORE, **GOING), failed(0, 1), failed(1, 1)]
        made = plan(self.managed(status=status, restart_policy="ExitCode"), broken, NODES, NOW)
        assert (made.status.phase, made.status.restarts, made.status.generation) == (Phase.RESTARTING, 0, 2)

    @pytest.mark.parametrize("spec", [{"suspend": True}, {"activeDeadlineSeconds": 1}], ids=str)
    def test_it_goes_with_the_workers(self, spec: dict[str, Any]) -> None:
        status = plan(self.managed(), [self.STORE, pod(0), pod(1)], NODES, NOW).status
        later = NOW + timedelta(seconds=1)
        made = plan(self.managed(status=status, **spec), [self.STORE, pod(0), pod(1)], NODES, later)
        assert set(deletes(made)) == {"j-store", "j-worker-0", "j-worker-1"}


class TestHost:
    """The rendezvous store is in the first worker."""

    SPEC: dict[str, Any] = {  # noqa: RUF012 -- never changed
        "rdzvBackend": "c10d",
        "rdzvEndpoint": "j-worker-0:29400",
        "minReplicas": 1,
        "maxReplicas": 3,
    }

    def status_of(self, *pods: PodRecord) -> Any:
        return plan(job(len(pods), **self.SPEC), pods, NODES, NOW).status

    def test_it_is_never_the_one_to_leave(self) -> None:
        youngest = [pod(0, created=NOW), pod(1), pod(2)]
        smaller = job(1, status=self.status_of(*youngest), **self.SPEC)
        smaller.metadata.annotations["elastic.pytorch.org/victims"] = "j-worker-0"
        assert sorted(deletes(plan(smaller, youngest, NODES, NOW))) == ["j-worker-1", "j-worker-2"]

    def test_when_it_is_lost_all_start_anew_at_once(self) -> None:
        status = self.status_of(pod(0), pod(1))
        lost = [replace(pod(0), **GOING), pod(1)]
        made = plan(job(2, status=status, **self.SPEC), lost, NODES, NOW)
        assert (made.status.generation, deletes(made), creates(made)) == (2, ["j-worker-1"], [])
        again = plan(job(2, status=made.status, **self.SPEC), [], NODES, NOW)
        assert creates(again) == ["j-worker-0", "j-worker-1"]

    def test_another_that_is_lost_is_replaced_alone(self) -> None:
        status = self.status_of(pod(0), pod(1))
        made = plan(job(2, status=status, **self.SPEC), [pod(0), replace(pod(1), **GOING)], NODES, NOW)
        assert (made.status.generation, creates(made)) == (1, ["j-worker-2"])

    def test_no_worker_is_made_where_the_host_cannot_have_its_name(self) -> None:
        made = plan(job(2, **self.SPEC), [], NODES, NOW, names_taken={"j-worker-0"})
        assert creates(made) == []


class TestBudget:
    """Evictions leave the fewest that train."""

    @pytest.mark.parametrize(("replicas", "fewest", "least"), [(4, 2, 2), (2, 2, 1), (1, 1, 0), (4, 1, 1)])
    def test_it_follows_the_size(self, replicas: int, fewest: int, least: int) -> None:
        made = plan(job(replicas, minReplicas=fewest, maxReplicas=4), [], NODES, NOW, budget=-1)
        assert SetBudget(least) in made.actions
        settled = plan(job(replicas, minReplicas=fewest, maxReplicas=4), [], NODES, NOW, budget=least)
        assert not any(isinstance(action, SetBudget) for action in settled.actions)

    def test_workers_on_nodes_that_end_may_go_together(self) -> None:
        """Two on one node would be evicted one after the other, and the world would change twice."""
        workers = [pod(0), pod(1), pod(2, node="node-b")]
        made = plan(running(3), workers, NOTICED, NOW, budget=2)
        assert SetBudget(1) in made.actions


class TestBelowMin:
    """Too few to train do not hold nodes for ever."""

    WAITING = [pod(0), pod(1, phase="Pending", node=None, unschedulable="full", ready=False)]  # noqa: RUF012 -- constant
    LATE = NOW + timedelta(seconds=540)

    def test_they_give_them_back_after_a_while(self) -> None:
        early = plan(running(2), self.WAITING, NODES, NOW)
        assert (early.actions, early.requeue_after) == ((), timedelta(seconds=540))
        made = plan(job(2, status=early.status), self.WAITING, NODES, self.LATE)
        assert (deletes(made), creates(made)) == (["j-worker-0", "j-worker-1"], [])
        assert (made.status.generation, made.status.restarts, made.status.disruptions) == (2, 0, 0)

    def test_they_queue_again_when_there_is_room_or_a_minute_later(self) -> None:
        status = plan(running(2), self.WAITING, NODES, NOW).status
        status = plan(job(2, status=status), self.WAITING, NODES, self.LATE).status
        small = {"node-a": replace(NODE, allocatable={"pods": Decimal(1)})}
        waiting = plan(job(2, status=status), [], small, self.LATE)
        assert (waiting.actions, waiting.requeue_after) == ((), timedelta(seconds=60))
        assert waiting.status.phase == Phase.WAITING_FOR_CAPACITY
        large = {"node-a": replace(NODE, allocatable={"pods": Decimal(2)})}
        assert len(creates(plan(job(2, status=waiting.status), [], large, self.LATE))) == 2
        later = plan(job(2, status=waiting.status), [], small, self.LATE + timedelta(seconds=60))
        assert (len(creates(later)), later.status.released_at) == (2, None)

    def test_enough_of_them_stay(self) -> None:
        elastic = running(2, minReplicas=1, maxReplicas=2)
        status = plan(elastic, self.WAITING, NODES, NOW).status
        made = plan(job(2, minReplicas=1, maxReplicas=2, status=status), self.WAITING, NODES, self.LATE)
        assert made.actions == ()
        assert made.status.below_min_since is None


class TestInterruption:
    """The controller died, or its calls failed, after the status write: actions are repeated, counts are not."""

    @pytest.mark.parametrize(
        ("worker", "nodes"),
        [
            (failed(0, 139), NODES),
            (failed(0, 137, disruption="TerminationByKubelet"), NODES),
            (pod(0, node="lost"), NODES),
            (pod(0), NOTICED | {"node-a": replace(NOTICED["node-a"], reclaim_at=NOW)}),
        ],
        ids=["failed", "evicted", "node lost", "leaving"],
    )
    def test_a_removal_is_repeated(self, worker: PodRecord, nodes: dict[str, NodeRecord]) -> None:
        workers = [worker, pod(1, node="node-b")]
        nodes = nodes | {"node-b": NodeRecord("node-b")}
        first = plan(running(2), workers, nodes, NOW, lost_nodes={"lost"})
        again = plan(job(2, status=first.status), workers, nodes, NOW, lost_nodes={"lost"})
        assert deletes(first) == deletes(again) == ["j-worker-0"]
        assert first.status == again.status
        assert first.status.restarts + first.status.disruptions == 1


class TestNotice:
    def test_the_replacement_is_asked_for_first(self) -> None:
        made = plan(running(2), [pod(0), pod(1, node="node-b")], NOTICED, NOW)
        assert creates(made) == ["j-worker-2"]
        assert deletes(made) == []
        assert made.requeue_after == timedelta(seconds=85)

    def test_the_leaving_worker_goes_when_its_replacement_runs(self) -> None:
        workers = [pod(0), pod(1, node="node-b"), pod(2, node="node-b")]
        made = plan(running(2), workers, NOTICED, NOW)
        (told,) = made.actions
        assert told == DeletePod("j-worker-0", "uid-0", "node node-a will be taken away", 30)
        assert made.status.disruptions == 1
        assert made.status.replicas == 2

    def test_each_node_under_notice_is_told_once(self) -> None:
        nodes = NOTICED | {"node-b": replace(NOTICED["node-a"], name="node-b")}
        made = plan(running(3), [pod(0), pod(1), pod(2, node="node-b")], nodes, NOW)
        told = [e.message.split()[1] for e in made.events if e.reason == Reason.NODE_RECLAIM_NOTICE]
        assert told == ["node-a", "node-b"]

    def test_without_capacity_it_trains_on_until_it_is_time_to_save_and_go(self) -> None:
        workers = [pod(0), pod(1, node="node-b"), pod(2, phase="Pending", node=None, unschedulable="no room")]
        early = plan(running(2), workers, NOTICED, NOW)
        assert early.actions == ()
        late = plan(running(2), workers, NOTICED, NOW + timedelta(seconds=90))
        (told,) = late.actions
        assert told == DeletePod("j-worker-0", "uid-0", "node node-a will be taken away", 25)

    def test_a_withdrawn_notice_costs_the_youngest_worker(self) -> None:
        workers = [pod(0), pod(1), pod(2, phase="Pending", created=NOW)]
        made = plan(running(2), workers, NODES, NOW)
        assert deletes(made) == ["j-worker-2"]
        assert made.status.disruptions == 0


class TestFailure:
    @pytest.mark.parametrize("code", [130, 137, 138, 139, 143, 255])
    def test_signals_are_retried_under_exit_code(self, code: int) -> None:
        made = plan(running(2), [failed(0, code), pod(1)], NODES, NOW)
        assert deletes(made) == ["j-worker-0"]
        assert made.status.restarts == 1
        assert creates(made) == ["j-worker-0"]

    def test_the_second_failure_in_a_row_waits(self) -> None:
        first = plan(running(2), [failed(0, 139), pod(1)], NODES, NOW)
        soon = NOW + timedelta(seconds=3)
        second = plan(job(2, status=first.status), [failed(0, 139, uid="second", created=NOW), pod(1)], NODES, soon)
        assert deletes(second) == ["j-worker-0"]
        assert creates(second) == []
        assert second.requeue_after == timedelta(seconds=1)
        later = plan(job(2, status=second.status), [pod(1)], NODES, soon + timedelta(seconds=1))
        assert creates(later) == ["j-worker-0"]

    @pytest.mark.parametrize("code", [1, 2, 64, 127])
    def test_other_codes_fail_the_job_with_the_code(self, code: int) -> None:
        made = plan(running(2), [failed(0, code), pod(1)], NODES, NOW)
        assert true_conditions(made) == {"Created", "Failed"}
        assert f"j-worker-0 failed with exit code {code}" in message(made, ConditionType.FAILED)
        assert made.status.completion_time == NOW
        assert deletes(made) == ["j-worker-1"]  # holds a GPU; the failed one keeps its log
        assert creates(made) == []

    def test_never_fails_the_job_whatever_the_code(self) -> None:
        made = plan(running(2, restart_policy="Never"), [failed(0, 137), pod(1)], NODES, NOW)
        assert made.status.phase == Phase.FAILED

    def test_preempted_with_a_checkpoint_is_free(self) -> None:
        made = plan(running(2, restart_policy="Never", backoffLimit=0), [failed(0, 75), pod(1)], NODES, NOW)
        assert (made.status.disruptions, made.status.restarts) == (1, 0)
        assert deletes(made) == ["j-worker-0"]

    @pytest.mark.parametrize("policy", ["ExitCode", "OnFailure", "Always"])
    def test_do_not_restart_is_obeyed(self, policy: str) -> None:
        assert plan(running(2, restart_policy=policy), [failed(0, 78), pod(1)], NODES, NOW).status.phase == Phase.FAILED

    def test_running_out_of_memory_is_charged(self) -> None:
        made = plan(running(2), [failed(0, 137, term_reason="OOMKilled"), pod(1)], NODES, NOW)
        assert made.status.restarts == 1
        evicted = failed(0, 137, disruption="Evicted", memory_eviction=True)
        assert plan(running(2), [evicted, pod(1)], NODES, NOW).status.restarts == 1

    def test_a_failure_without_a_word_is_retried_and_charged(self) -> None:
        made = plan(running(2), [failed(0, None), pod(1)], NODES, NOW)
        assert made.status.restarts == 1
        assert deletes(made) == ["j-worker-0"]

    def test_exit_1_right_after_a_loss_is_that_losss_doing(self) -> None:
        status = running(2, backoffLimit=0).status.model_copy(update={"last_disruption_time": NOW})
        made = plan(job(2, status=status, backoffLimit=0), [failed(0, 1), pod(1)], NODES, NOW)
        assert (made.status.disruptions, made.status.restarts, made.status.phase) == (1, 0, Phase.RESTARTING)

    def test_the_budget_counts_over_pods_and_ends_the_job(self) -> None:
        status = running(2, backoffLimit=1).status
        now = NOW
        for expected in (Phase.RESTARTING, Phase.FAILED):
            made = plan(job(2, status=status, backoffLimit=1), [failed(0, 139, uid=f"u{now}"), pod(1)], NODES, now)
            assert made.status.phase == expected
            status, now = made.status, now + timedelta(seconds=10)
        assert message(made, ConditionType.FAILED) == "workers failed 2 times, more than backoffLimit (1)"

    def test_restarts_inside_pods_count_too_and_survive_them(self) -> None:
        first = plan(running(2, restart_policy="OnFailure"), [pod(0, restarts=2), pod(1)], NODES, NOW)
        again = plan(job(2, "OnFailure", first.status), [pod(0, restarts=3), pod(1)], NODES, NOW)
        fresh = plan(job(2, "OnFailure", again.status), [pod(0, uid="new", restarts=1), pod(1)], NODES, NOW)
        assert [p.status.restarts for p in (first, again, fresh)] == [2, 3, 4]
        assert fresh.status.container_restarts == {"new": 1}

    def test_restarts_inside_pods_are_free_where_those_of_pods_are(self) -> None:
        policy: dict[str, Any] = {"restart_policy": "OnFailure", "backoffLimit": 0}
        preempted = plan(running(2, **policy), [pod(0, restarts=1, last_exit_code=75), pod(1)], NODES, NOW)
        assert (preempted.status.restarts, preempted.status.disruptions) == (0, 1)
        assert preempted.status.phase == Phase.RUNNING
        status = running(2, **policy).status.model_copy(update={"last_disruption_time": NOW})
        collateral = plan(job(2, status=status, **policy), [pod(0, restarts=1, last_exit_code=1), pod(1)], NODES, NOW)
        assert (collateral.status.restarts, collateral.status.phase) == (0, Phase.RUNNING)
        guilty = plan(running(2, **policy), [pod(0, restarts=1, last_exit_code=1), pod(1)], NODES, NOW)
        assert (guilty.status.restarts, guilty.status.phase) == (1, Phase.FAILED)

    def test_failures_in_a_row_wait_longer(self) -> None:
        assert [failure_backoff(n).total_seconds() for n in (0, 1, 2, 3, 4, 10, 11, 10_000)] == [
            0,
            0,
            1,
            2,
            4,
            256,
            300,
            300,
        ]


RULES: dict[str, Any] = {
    "failurePolicy": {
        "rules": [
            {"action": "FailJob", "onExitCodes": {"operator": "In", "values": [42]}},
            {"action": "Ignore", "onExitCodes": {"operator": "In", "values": [43]}},
            {"action": "RestartGroup", "onExitCodes": {"operator": "In", "values": [44]}},
            {"action": "FailJob", "onReasons": ["OOMKilled"]},
            {"action": "RestartPod", "onExitCodes": {"operator": "NotIn", "values": [1, 78]}},
        ]
    }
}


class TestCauses:
    """Each loss is counted once, charged or not, with its cause in one word."""

    @pytest.mark.parametrize(
        ("lost", "charged", "cause"),
        [
            (failed(0, 137, term_reason="OOMKilled"), True, "OOMKilled"),
            (failed(0, None, disruption="Evicted", memory_eviction=True), True, "MemoryPressure"),
            (failed(0, 139), True, "ExitCode139"),
            (failed(0, None), True, "Unknown"),
            (failed(0, 75), False, "ExitCode75"),
            (failed(0, 137, disruption="PreemptionByScheduler"), False, "PreemptionByScheduler"),
            (replace(pod(0), **GOING), False, "PodDeleted"),
            (failed(0, 137, node="gone"), False, "NodeGone"),
            (failed(0, 137, node="spot"), False, "NodeNotice"),
            (pod(0, node="silent"), False, "NodeSilent"),
            (pod(0, node="unready"), False, "NodeNotReady"),
            (pod(0, node="outOfService"), False, "NodeOutOfService"),
            (pod(0, restarts=1, last_exit_code=139), True, "ExitCode139"),
        ],
        ids=lambda value: getattr(value, "name", str(value)),
    )
    def test_a_loss(self, lost: PodRecord, charged: bool, cause: str) -> None:
        since = NOW - timedelta(hours=1)
        nodes = {
            **NODES,
            "spot": NodeRecord("spot", notice="a taint"),
            "silent": NodeRecord("silent", ready=False, silent=True, not_ready_since=since),
            "unready": NodeRecord("unready", ready=False, not_ready_since=since),
            "outOfService": NodeRecord("outOfService", out_of_service=True),
        }
        first = plan(running(2), [lost, pod(1)], nodes, NOW, lost_nodes={"gone"})
        assert first.losses == {Loss(charged, cause): 1}
        assert (first.status.restarts, first.status.disruptions) == ((1, 0) if charged else (0, 1))
        again = plan(job(2, status=first.status), [lost, pod(1)], nodes, NOW, lost_nodes={"gone"})
        assert again.losses == {}

    def test_what_the_loss_of_another_brings_about_is_told_apart(self) -> None:
        lost = failed(0, 137, disruption="DeletionByTaintManager")
        made = plan(running(3), [lost, failed(1, 1), pod(2)], NODES, NOW)
        assert made.losses == {Loss(False, "DeletionByTaintManager"): 1, Loss(False, "Collateral"): 1}


class TestRules:
    """`failurePolicy`: the first rule that applies decides, the restart policy where none does."""

    @pytest.mark.parametrize("policy", ["Never", "ExitCode", "OnFailure", "Always"])
    @pytest.mark.parametrize(
        ("code", "reason", "phase", "charged", "free"),
        [
            (42, "Error", Phase.FAILED, 0, 0),
            (43, "Error", Phase.RESTARTING, 0, 1),
            (137, "OOMKilled", Phase.FAILED, 0, 0),
            (2, "Error", Phase.RESTARTING, 1, 0),
            (78, "Error", Phase.FAILED, 0, 0),
        ],
    )
    def test_under_every_restart_policy(
        self, policy: str, code: int, reason: str, phase: Phase, charged: int, free: int
    ) -> None:
        made = plan(
            running(2, restart_policy=policy, **RULES), [failed(0, code, term_reason=reason), pod(1)], NODES, NOW
        )
        assert (made.status.phase, made.status.restarts, made.status.disruptions) == (phase, charged, free)

    def test_restart_group_is_a_new_generation_of_all_charged_once(self) -> None:
        made = plan(running(3, **RULES), [failed(0, 44), pod(1), pod(2)], NODES, NOW)
        assert deletes(made) == ["j-worker-0", "j-worker-1", "j-worker-2"]
        assert creates(made) == []
        assert (made.status.generation, made.status.restarts, made.status.nnodes) == (2, 1, "3:3")
        after = plan(job(3, status=made.status, **RULES), [], NODES, NOW)
        assert after.actions == tuple(CreatePod(f"j-worker-{i}", i, 2, "3:3") for i in range(3))
        assert (after.status.restarts, after.status.disruptions) == (1, 0)

    def test_a_disruption_meets_no_rule(self) -> None:
        made = plan(running(2, **RULES), [failed(0, 42, disruption="PreemptionByScheduler"), pod(1)], NODES, NOW)
        assert (made.status.phase, made.status.disruptions) == (Phase.RESTARTING, 1)

    @pytest.mark.parametrize(
        ("code", "deleted", "charged", "free", "generation"),
        [
            (43, [], 0, 1, 1),
            (2, ["j-worker-0"], 1, 0, 1),
            (44, ["j-worker-0", "j-worker-1"], 1, 0, 2),
            (1, [], 1, 0, 1),
        ],
    )
    def test_restarts_inside_pods_meet_them_too(
        self, code: int, deleted: list[str], charged: int, free: int, generation: int
    ) -> None:
        workers = [pod(0, restarts=1, last_exit_code=code, last_reason="Error"), pod(1)]
        made = plan(running(2, restart_policy="OnFailure", **RULES), workers, NODES, NOW)
        assert deletes(made) == deleted
        assert (made.status.restarts, made.status.disruptions, made.status.generation) == (charged, free, generation)

    def test_a_rule_for_running_out_of_memory_sees_it_inside_pods(self) -> None:
        workers = [pod(0, restarts=1, last_exit_code=137, last_reason="OOMKilled"), pod(1)]
        assert plan(running(2, restart_policy="Always", **RULES), workers, NODES, NOW).status.phase == Phase.FAILED


class TestTogether:
    """Many workers that fail for one cause are one incident."""

    def test_several_that_follow_a_loss_restart_together(self) -> None:
        status = running(4).status.model_copy(update={"last_disruption_time": NOW})
        one = plan(job(4, status=status), [failed(0, 1), pod(1), pod(2), pod(3)], NODES, NOW)
        assert (one.status.generation, creates(one)) == (1, ["j-worker-0"])
        three = plan(job(4, status=one.status), [pod(0, created=NOW), failed(1, 1), failed(2, 1), pod(3)], NODES, NOW)
        assert three.status.generation == 2
        assert sorted(deletes(three)) == ["j-worker-0", "j-worker-1", "j-worker-2", "j-worker-3"]
        assert (three.status.restarts, three.status.collateral) == (0, 0)
        told = [e.message for e in three.events if e.reason == Reason.GROUP_RESTARTED]
        assert told == [
            "3 workers failed after the loss of another, the last j-worker-2: all workers start anew as generation 2"
        ]

    def test_a_hundred_failures_at_once_do_not_wait_a_hundred_times(self) -> None:
        made = plan(running(100), [failed(i, 139) for i in range(100)], NODES, NOW)
        assert (made.status.restarts, made.status.failure_streak) == (100, 1)
        assert len(creates(made)) == 100

    def test_what_is_lost_again_and_again_is_degraded_and_waits(self) -> None:
        status = running(2).status.model_copy(update={"losses": 20, "losses_since": NOW})
        now = NOW + timedelta(minutes=1)
        made = plan(job(2, status=status), [pod(0, **GOING), pod(1)], NODES, now)
        assert "Degraded" in true_conditions(made)
        assert [e.reason for e in made.events if e.type == "Warning"] == [Reason.TOO_MANY_LOSSES]
        again = plan(job(2, status=made.status), [pod(0, uid="n", created=now, **GOING), pod(1)], NODES, now)
        assert creates(again) == []
        assert again.status.restarts == 0
        calm = plan(job(2, status=again.status), [pod(0, uid="o"), pod(1)], NODES, now + timedelta(hours=1))
        assert "Degraded" not in true_conditions(calm)


class TestForeign:
    def test_a_job_of_another_controller_is_left_alone(self) -> None:
        theirs = job(2, managedBy="kueue.x-k8s.io/multikueue")
        assert plan(theirs, [pod(0, **GOING)], NODES, NOW) == Plan((), theirs.status)
        ours = plan(job(2, managedBy="trainyard.dev/elastic-controller"), [], NODES, NOW)
        assert len(creates(ours)) == 2


class TestEnd:
    def test_all_workers_have_to_succeed_where_that_is_asked_for(self) -> None:
        done = pod(0, phase="Succeeded", exit_code=0, finished_at=NOW)
        all_of_them = running(2, successPolicy="AllWorkers")
        waiting = plan(all_of_them, [done, pod(1)], NODES, NOW)
        assert (waiting.status.phase, waiting.requeue_after) == (Phase.COMPLETING, None)
        late = NOW + 2 * DRAIN_WINDOW
        status = waiting.status
        still = plan(job(2, status=status, successPolicy="AllWorkers"), [done, pod(1)], NODES, late)
        assert (still.status.phase, still.actions) == (Phase.COMPLETING, ())
        good = plan(
            job(2, status=status, successPolicy="AllWorkers"), [done, replace(done, uid="uid-1", index=1)], NODES, late
        )
        assert good.status.phase == Phase.SUCCEEDED

    @pytest.mark.parametrize("other", [failed(1, 137), failed(1, 1), pod(1, **GOING)])
    def test_one_that_is_lost_after_the_first_success_fails_such_a_job(self, other: PodRecord) -> None:
        done = pod(0, phase="Succeeded", exit_code=0, finished_at=NOW)
        first = plan(running(2, successPolicy="AllWorkers"), [done, pod(1)], NODES, NOW)
        made = plan(job(2, status=first.status, successPolicy="AllWorkers"), [done, other], NODES, NOW)
        assert made.status.phase == Phase.FAILED
        assert creates(made) == []

    def test_after_the_first_success_nothing_is_created(self) -> None:
        done = pod(0, phase="Succeeded", exit_code=0, finished_at=NOW)
        made = plan(running(3), [done, pod(1)], NODES, NOW)
        assert made.actions == ()
        assert made.status.phase == Phase.COMPLETING
        assert made.requeue_after == DRAIN_WINDOW

    def test_workers_that_never_ran_do_not_hold_up_the_end(self) -> None:
        done = pod(0, phase="Succeeded", exit_code=0, finished_at=NOW)
        late = pod(2, phase="Pending", node=None, unschedulable="no room")
        made = plan(running(3), [done, pod(1), late], NODES, NOW)
        assert deletes(made) == ["j-worker-2"]
        assert made.status.phase == Phase.COMPLETING
        assert message(made, ConditionType.RUNNING) == "a worker has finished, 1 are finishing"
        going = replace(late, **GOING)
        last = plan(job(3, status=made.status), [done, replace(done, uid="uid-1", index=1), going], NODES, NOW)
        assert (last.status.phase, last.status.disruptions) == (Phase.SUCCEEDED, 0)

    def test_it_succeeds_when_the_others_end_however_they_do(self) -> None:
        done = pod(0, phase="Succeeded", exit_code=0, finished_at=NOW)
        made = plan(running(2), [done, failed(1, 1)], NODES, NOW)
        assert true_conditions(made) == {"Created", "Succeeded"}
        assert made.status.completion_time == NOW

    def test_late_workers_are_stopped_after_the_drain_window(self) -> None:
        done = pod(0, phase="Succeeded", exit_code=0, finished_at=NOW)
        first = plan(running(2), [done, pod(1)], NODES, NOW)
        made = plan(job(2, status=first.status), [done, pod(1)], NODES, NOW + DRAIN_WINDOW)
        assert made.status.phase == Phase.SUCCEEDED
        assert deletes(made) == ["j-worker-1"]

    @pytest.mark.parametrize(
        ("policy", "deleted"), [(None, []), ("None", []), ("Running", []), ("All", ["j-worker-0", "j-worker-1"])]
    )
    def test_clean_pod_policy(self, policy: str | None, deleted: list[str]) -> None:
        done = [pod(i, phase="Succeeded", exit_code=0, finished_at=NOW) for i in range(2)]
        made = plan(running(2, cleanPodPolicy=policy), done, NODES, NOW)
        assert deletes(made) == deleted
        others: list[Action] = [action for action in made.actions if not isinstance(action, DeletePod)]
        services = [DeleteService("j-workers"), DeleteService("j-worker-0")]
        assert others == (services if policy == "All" else [])

    def test_a_terminal_state_stays_even_if_the_workers_are_deleted(self) -> None:
        done = [pod(i, phase="Succeeded", exit_code=0, finished_at=NOW) for i in range(2)]
        ended = plan(running(2), done, NODES, NOW)
        made = plan(job(2, status=ended.status), [], NODES, NOW + timedelta(hours=1))
        assert made.actions == ()
        assert made.status.phase == Phase.SUCCEEDED

    @pytest.mark.parametrize("phase", ["Succeeded", "Failed"])
    def test_ttl_after_either_end(self, phase: str) -> None:
        code = 0 if phase == "Succeeded" else 1
        done = [pod(i, phase=phase, exit_code=code, finished_at=NOW) for i in range(2)]
        ended = plan(running(2, ttlSecondsAfterFinished=60), done, NODES, NOW)
        assert ended.requeue_after == timedelta(seconds=60)
        expired = job(2, status=ended.status, ttlSecondsAfterFinished=60)
        made = plan(expired, done, NODES, NOW + timedelta(seconds=60))
        assert DeleteJob() in made.actions

    def test_the_deadline_fails_the_job(self) -> None:
        late = job(2, status=running(2).status, activeDeadlineSeconds=60)
        early = plan(late, [pod(0), pod(1)], NODES, NOW + timedelta(seconds=59))
        assert early.requeue_after == timedelta(seconds=1)
        made = plan(late, [pod(0), pod(1)], NODES, NOW + timedelta(seconds=60))
        failed_condition = made.status.condition(ConditionType.FAILED)
        assert failed_condition is not None
        assert failed_condition.reason == Reason.DEADLINE_EXCEEDED

    def test_run_policy_is_read_in_all_three_places_and_the_flat_one_wins(self) -> None:
        spec = job(
            2,
            backoffLimit=1,
            runPolicy={"backoffLimit": 2, "activeDeadlineSeconds": 5},
            RunPolicy={"cleanPodPolicy": "All"},
        ).spec
        policy = spec.effective_run_policy()
        assert (policy.backoff_limit, policy.active_deadline_seconds, policy.clean_pod_policy) == (1, 5, "All")


class TestSize:
    def test_victims_are_the_least_useful(self) -> None:
        workers = [
            pod(0, created=NOW - timedelta(minutes=1)),
            pod(1),
            pod(2, phase="Pending", node=None),
            pod(3, phase="Pending"),
        ]
        two = job(2, minReplicas=1, maxReplicas=4, status=running(4, minReplicas=1, maxReplicas=4).status)
        made = plan(two, workers, NODES, NOW)
        assert deletes(made) == ["j-worker-2", "j-worker-3"]
        one = job(1, minReplicas=1, maxReplicas=4, status=two.status)
        assert deletes(plan(one, workers[:2], NODES, NOW)) == ["j-worker-0"]

    def test_victims_can_be_named(self) -> None:
        three = job(2, minReplicas=1, maxReplicas=4, status=running(4, minReplicas=1, maxReplicas=4).status)
        three.metadata.annotations["elastic.pytorch.org/victims"] = "j-worker-1, j-worker-9"
        made = plan(three, [pod(0), pod(1), pod(2, phase="Pending", node=None)], NODES, NOW)
        assert deletes(made) == ["j-worker-1"]

    def test_scaling_down_is_never_charged(self) -> None:
        one = job(1, minReplicas=1, maxReplicas=2, status=running(2, minReplicas=1, maxReplicas=2).status)
        made = plan(one, [pod(0), pod(1)], NODES, NOW)
        going = pod(1, phase="Failed", exit_code=143, finished_at=NOW, deletion_requested=NOW, deletion_deadline=NOW)
        after = plan(job(1, minReplicas=1, maxReplicas=2, status=made.status), [pod(0), going], NODES, NOW)
        assert (after.status.restarts, after.status.disruptions) == (0, 0)

    def test_a_fixed_job_that_is_scaled_starts_a_new_generation_after_the_old_one_has_gone(self) -> None:
        made = plan(job(3, status=running(2).status), [pod(0), pod(1)], NODES, NOW)
        assert deletes(made) == ["j-worker-0", "j-worker-1"]
        assert creates(made) == []
        assert (made.status.generation, made.status.nnodes) == (2, "3:3")
        after = plan(job(3, status=made.status), [], NODES, NOW)
        assert after.actions == tuple(CreatePod(f"j-worker-{i}", i, 2, "3:3") for i in range(3))
        assert after.status.disruptions == 0

    def test_a_silent_node_does_not_hold_up_a_new_generation(self) -> None:
        """Its pods stay Terminating for as long as the node is there and does not answer."""
        silent = {"node-a": replace(NODE, ready=False, silent=True, not_ready_since=NOW - timedelta(minutes=5))}
        status = plan(job(3, status=running(2).status), [pod(0), pod(1)], NODES, NOW).status
        grace = timedelta(seconds=30)
        ending = [pod(i, deletion_requested=NOW, deletion_deadline=NOW + grace) for i in range(2)]
        early = plan(job(3, status=status), ending, silent, NOW)
        assert creates(early) == []
        assert early.requeue_after == grace
        late = plan(job(3, status=status), ending, silent, NOW + grace)
        assert creates(late) == ["j-worker-2", "j-worker-3", "j-worker-4"]
        assert creates(plan(job(3, status=status), ending, NODES, NOW + grace)) == []  # it may still answer

    def test_suspend_stops_the_workers_and_forgets_the_start(self) -> None:
        made = plan(job(2, status=running(2).status, suspend=True), [pod(0), pod(1)], NODES, NOW)
        assert deletes(made) == ["j-worker-0", "j-worker-1"]
        assert true_conditions(made) == {"Created", "Suspended"}
        assert made.status.start_time is None
        assert made.status.disruptions == 0

    def test_workers_that_end_because_of_the_suspension_are_not_counted(self) -> None:
        halted = plan(job(2, status=running(2).status, suspend=True), [pod(0), pod(1)], NODES, NOW)
        going = pod(0, deletion_deadline=NOW + timedelta(seconds=30), deletion_requested=NOW)
        went = failed(1, 143, deletion_deadline=NOW, deletion_requested=NOW - timedelta(seconds=1))
        made = plan(job(2, status=halted.status, suspend=True), [going, went], NODES, NOW)
        resumed = plan(job(2, status=made.status), [going], NODES, NOW)
        assert [(p.status.disruptions, p.status.restarts) for p in (made, resumed)] == [(0, 0), (0, 0)]

    def test_resume_is_a_new_generation(self) -> None:
        halted = plan(job(2, status=running(2).status, suspend=True), [], NODES, NOW)
        made = plan(job(2, status=halted.status), [], NODES, NOW + timedelta(hours=1))
        assert made.status.generation == 2
        assert made.status.start_time == NOW + timedelta(hours=1)
        assert "Suspended" not in true_conditions(made)
        assert creates(made) == ["j-worker-0", "j-worker-1"]

    def test_a_failed_worker_of_an_earlier_generation_goes_too(self) -> None:
        """Found by random histories: suspended between a new generation and the removal of the old one."""
        scaled = plan(job(3, status=running(2).status), [pod(0), pod(1)], NODES, NOW)
        left = failed(0, 137, disruption="TerminationByKubelet")
        made = plan(job(3, status=scaled.status, suspend=True), [left], NODES, NOW)
        assert deletes(made) == ["j-worker-0"]

    def test_a_job_created_suspended_creates_nothing(self) -> None:
        made = plan(job(2, suspend=True), [], NODES, NOW, missing_services=["j-workers", "j-worker-0"])
        assert made.actions == ()
        assert made.status.phase == Phase.SUSPENDED


def probing(replicas: int = 2, status: Any = None, **scaling: Any) -> ElasticJob:
    """A job that takes the room there is, between 1 and 6 workers."""
    wanted = {"mode": "Capacity", "growth": "Probe", **scaling}
    return job(replicas, status=status, minReplicas=1, maxReplicas=6, scaling=wanted)


def with_room(*places: int) -> dict[str, NodeRecord]:
    names = ("node-a", "node-b", "node-c")
    return {
        name: replace(NODE, name=name, allocatable={"pods": Decimal(number)})
        for name, number in zip(names, places, strict=False)
    }


class TestSizeByCapacity:
    def test_room_has_to_last_and_is_then_taken_in_one_step(self) -> None:
        two, used = [pod(0), pod(1)], {"node-a": {"pods": Decimal(2)}}
        first = plan(probing(), two, with_room(2), NOW, used=used)
        assert (first.actions, first.status.desired_replicas) == ((), 2)
        seen = plan(probing(status=first.status), two, with_room(2, 2, 1), NOW, used=used)
        assert (seen.actions, seen.status.room_since, seen.requeue_after) == ((), NOW, timedelta(seconds=30))
        later = NOW + timedelta(seconds=60)
        grown = plan(probing(status=seen.status), two, with_room(2, 2, 1), later, used=used)
        assert creates(grown) == ["j-worker-2", "j-worker-3", "j-worker-4"]
        assert (grown.status.desired_replicas, grown.status.last_scale_time) == (5, later)
        assert message(grown, ConditionType.SCALING) == "2 -> 5 workers: nodes have room for 3 more, so the number is 5"
        assert Reason.SCALED in {e.reason for e in grown.events}
        five = [pod(i) for i in range(5)]
        settled = plan(probing(status=grown.status), five, with_room(5), later, used={"node-a": {"pods": Decimal(5)}})
        assert true_conditions(settled) == {"Created", "Running"}

    def test_room_that_goes_again_changes_nothing(self) -> None:
        two, used = [pod(0), pod(1)], {"node-a": {"pods": Decimal(2)}}
        status = plan(probing(), two, with_room(2, 1), NOW, used=used).status
        gone = plan(probing(status=status), two, with_room(2), NOW + timedelta(seconds=50), used=used)
        assert gone.status.room_since is None
        back = plan(probing(status=gone.status), two, with_room(2, 1), NOW + timedelta(seconds=61), used=used)
        assert back.actions == ()

    def test_two_growths_are_the_interval_apart(self) -> None:
        two, used = [pod(0), pod(1)], {"node-a": {"pods": Decimal(2)}}
        status = plan(probing(), two, with_room(2), NOW, used=used).status
        status = status.model_copy(update={"last_scale_time": NOW, "room_since": NOW})
        early = plan(probing(status=status), two, with_room(3), NOW + timedelta(seconds=299), used=used)
        assert creates(early) == []
        late = plan(probing(status=early.status), two, with_room(3), NOW + timedelta(seconds=300), used=used)
        assert creates(late) == ["j-worker-2"]

    def test_a_worker_that_finds_no_node_is_given_up_but_not_below_the_least(self) -> None:
        start = plan(probing(3), [], with_room(1), NOW).status
        waiting = [pod(i, phase="Pending", node=None, unschedulable="full", created=NOW) for i in range(3)]
        early = plan(probing(3, status=start), waiting, with_room(1), NOW + timedelta(seconds=59))
        assert (early.actions, early.requeue_after) == ((), timedelta(seconds=1))
        late = plan(probing(3, status=early.status), waiting, with_room(1), NOW + timedelta(seconds=60))
        assert len(deletes(late)) == 2
        assert (late.status.desired_replicas, late.status.disruptions, late.status.restarts) == (1, 0, 0)
        assert message(late, ConditionType.SCALING).startswith("3 -> 1 workers: 3 found no node within 60 s")

    def test_nobody_is_asked_for_while_the_least_find_no_node(self) -> None:
        """Found by random histories: nodes seemed to have room, so three more were made, and given up one by one."""
        stuck = [pod(0, phase="Pending", node=None, unschedulable="full", created=NOW)]
        status = plan(probing(1), stuck, with_room(2, 2), NOW).status.model_copy(update={"room_since": NOW})
        later = plan(probing(1, status=status), stuck, with_room(2, 2), NOW + timedelta(hours=2))
        assert (later.actions, later.status.desired_replicas, later.status.room_since) == ((), 1, None)
        placed = plan(probing(1, status=later.status), [pod(0)], with_room(2, 2), NOW + timedelta(hours=2))
        assert placed.status.room_since is not None

    def test_a_lost_worker_is_asked_for_again_at_once(self) -> None:
        status = plan(probing(), [pod(0), pod(1)], with_room(2), NOW).status
        made = plan(probing(status=status), [pod(0, **GOING), pod(1)], with_room(2), NOW)
        assert creates(made) == ["j-worker-2"]

    def test_nodes_that_are_not_for_the_worker_are_no_room(self) -> None:
        node = replace(NODE, allocatable={"pods": Decimal(9), "nvidia.com/gpu": Decimal(8)})
        gpu = {"spec": {"containers": [{"resources": {"limits": {"nvidia.com/gpu": 4}}}]}}
        taint = Taint("nvidia.com/gpu", "present", "NoSchedule")
        assert room(gpu, [node], {}) == 2
        assert room(gpu, [node], {"node-a": {"nvidia.com/gpu": Decimal(5)}}) == 0
        for change in (
            {"ready": False},
            {"cordoned": True},
            {"notice": "karpenter.sh/disrupted"},
            {"out_of_service": True},
            {"taints": (taint,)},
        ):
            assert room(gpu, [replace(node, **change)], {}) == 0
        assert room({"spec": {"nodeSelector": {"a": "b"}}}, [node], {}) == 0
        for toleration in (
            {"key": "nvidia.com/gpu", "operator": "Exists"},
            {"key": "nvidia.com/gpu", "operator": "Equal", "value": "present", "effect": "NoSchedule"},
            {"operator": "Exists"},
        ):
            tolerant = {"spec": {**gpu["spec"], "tolerations": [toleration]}}
            assert room(tolerant, [replace(node, taints=(taint,))], {}) == 2
        wrong = {"spec": {**gpu["spec"], "tolerations": [{"key": "nvidia.com/gpu", "value": "absent"}]}}
        assert room(wrong, [replace(node, taints=(taint,))], {}) == 0

    def test_eager_asks_for_all_of_them_all_the_time(self) -> None:
        eager = job(2, minReplicas=1, maxReplicas=4, scaling={"mode": "Capacity"})
        made = plan(eager, [], NODES, NOW)
        assert (len(creates(made)), made.status.desired_replicas) == (4, 4)
        hopeless = [pod(i, phase="Pending", node=None, unschedulable="full") for i in range(1, 4)]
        status = made.status
        later = plan(
            job(2, minReplicas=1, maxReplicas=4, scaling={"mode": "Capacity"}, status=status),
            [pod(0), *hopeless],
            NODES,
            NOW,
        )
        assert later.actions == ()
        assert later.status.phase == Phase.RUNNING

    def test_spares_stand_beside_a_full_world_only(self) -> None:
        spec: dict[str, Any] = {"minReplicas": 1, "maxReplicas": 3, "scaling": {"spareReplicas": 2}}
        full = plan(job(3, **spec), [], NODES, NOW)
        assert (len(creates(full)), full.status.desired_replicas, full.status.nnodes) == (5, 3, "1:3")
        assert len(creates(plan(job(2, **spec), [], NODES, NOW))) == 2

    def test_the_user_scales_by_hand_and_is_told(self) -> None:
        spec: dict[str, Any] = {"minReplicas": 1, "maxReplicas": 4}
        made = plan(job(4, status=running(2, **spec).status, **spec), [pod(0), pod(1)], NODES, NOW)
        assert message(made, ConditionType.SCALING) == "2 -> 4 workers: replicas is now 4"
        done = plan(job(4, status=made.status, **spec), [pod(i) for i in range(4)], NODES, NOW)
        assert "Scaling" not in true_conditions(done)


class TestCapacity:
    def test_unschedulable_workers_are_told_with_the_schedulers_words(self) -> None:
        waiting = pod(1, phase="Pending", node=None, unschedulable="0/3 nodes are available: 3 Insufficient gpu.")
        made = plan(running(2), [pod(0), waiting], NODES, NOW)
        assert message(made, ConditionType.WAITING_FOR_CAPACITY) == (
            "1 of 2 workers find no node: 0/3 nodes are available: 3 Insufficient gpu."
        )
        assert made.status.phase == Phase.WAITING_FOR_CAPACITY
        found = plan(job(2, status=made.status), [pod(0), pod(1)], NODES, NOW)
        assert "WaitingForCapacity" not in true_conditions(found)

    def test_a_pool_that_has_no_node_now_is_no_mistake_of_the_user(self) -> None:
        made = plan(greedy(), [pod(0, phase="Pending", node=None)], NODES, NOW)
        waiting = made.status.condition(ConditionType.WAITING_FOR_CAPACITY)
        assert waiting is not None
        assert (waiting.status, waiting.reason) == ("True", "NoNodeYet")
        small = {"node-a": replace(NODE, allocatable={"nvidia.com/gpu": Decimal(1)})}
        made = plan(greedy(), [pod(0, phase="Pending", node=None)], small, NOW)
        waiting = made.status.condition(ConditionType.WAITING_FOR_CAPACITY)
        assert waiting is not None
        assert waiting.reason == "RequestTooLarge"

    def test_the_same_news_is_no_news(self) -> None:
        waiting = pod(1, phase="Pending", node=None, unschedulable="full")
        first = plan(running(2), [pod(0), waiting], NODES, NOW)
        again = plan(job(2, status=first.status), [pod(0), waiting], NODES, NOW + timedelta(minutes=5))
        assert any(event.reason == Reason.UNSCHEDULABLE for event in first.events)
        assert again.events == ()
        assert again.status == first.status
