"""What users met with the archived upstream controller and its successors, and what happens here instead.

The numbers are those of the project's list of threads; each test fails on the behaviour that was reported. Two are the
launcher's, and tested where it is (`OF_THE_LAUNCHER`).
"""

from __future__ import annotations

import json
import re
from dataclasses import replace
from datetime import timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from planned_jobs import GOING, NOW, UID, creates, job, pod

from training.controller.api import ConditionType, ElasticJob, Phase, Reason
from training.controller.crd import custom_resource_definition
from training.controller.planner import CreatePod, DeleteJob, DeletePod, Plan, plan
from training.controller.pods import rendezvous_id, worker_pod
from training.controller.rbac import cluster_rules
from training.controller.records import NodeRecord, PodRecord, pod_record

NODES = {"node-a": NodeRecord("node-a", allocatable={"pods": Decimal(100)})}
THREADS = 27
OF_THE_LAUNCHER = {
    # survivors of a lost or frozen peer hung in a collective for minutes
    5: ("test_training_elastic.py", "test_a_plain_ddp_program_recovers_without_knowing_of_us"),
    # etcd from 3.6 on has no v2 API, by which torch's etcd and etcd-v2 meet
    24: ("test_training_launcher.py", "test_etcd_is_served_by_the_v3_handler_with_a_notice"),
}


def test_each_thread_has_its_test() -> None:
    own = {int(number) for number in re.findall(r"def test_(\d\d)_", Path(__file__).read_text(encoding="utf-8"))}
    assert sorted(own | OF_THE_LAUNCHER.keys()) == list(range(1, THREADS + 1))
    for file, name in OF_THE_LAUNCHER.values():
        text = (Path(__file__).parents[1] / "training" / file).read_text(encoding="utf-8")
        assert f"def {name}(" in text


def ended(index: int, code: int | None, **fields: Any) -> PodRecord:
    phase = "Succeeded" if code == 0 else "Failed"
    return pod(index, **({"phase": phase, "exit_code": code, "finished_at": NOW, "ready": False} | fields))


class Story:
    """A job through several passes; the status goes from one to the next."""

    def __init__(self, subject: ElasticJob, workers: int | None = None) -> None:
        self.job = subject
        number = subject.spec.worker.replicas if workers is None else workers
        self.see([pod(i) for i in range(number)])

    def see(self, pods: list[PodRecord], after: float = 0, nodes: dict[str, NodeRecord] | None = None) -> Plan:
        """What is done when the cluster looks like this, `after` seconds from the start."""
        made = plan(self.job, pods, NODES if nodes is None else nodes, NOW + timedelta(seconds=after))
        self.job = self.job.model_copy(update={"status": made.status})
        return made


def deletes(made: Plan) -> list[str]:
    return [action.name for action in made.actions if isinstance(action, DeletePod)]


def true_conditions(made: Plan) -> set[str]:
    return {condition.type for condition in made.status.conditions if condition.status == "True"}


def books(made: Plan) -> tuple[int, int]:
    return made.status.restarts, made.status.disruptions


def version() -> dict[str, Any]:
    found: dict[str, Any] = custom_resource_definition()["spec"]["versions"][0]
    return found


def test_01_the_definition_is_one_that_todays_api_servers_take() -> None:
    assert custom_resource_definition()["apiVersion"] == "apiextensions.k8s.io/v1"
    assert version()["schema"]["openAPIV3Schema"]["type"] == "object"
    assert set(version()["subresources"]) == {"status", "scale"}


def test_02_what_the_user_wrote_is_never_written_over() -> None:
    """Upstream wrote whole objects and lost the fields that it did not know; here there is no right to do so."""
    rights = {resource: rule["verbs"] for rule in cluster_rules() for resource in rule["resources"]}
    assert not {"update", "patch", "create"} & set(rights["elasticjobs"])
    assert rights["elasticjobs/status"] == ["patch"]
    assert job(ttlSecondsAfterFinished=5).spec.effective_run_policy().ttl_seconds_after_finished == 5


@pytest.mark.parametrize(("code", "condition"), [(0, "Succeeded"), (1, "Failed")])
def test_03_a_job_that_is_done_says_so_in_one_condition(code: int, condition: str) -> None:
    made = Story(job()).see([ended(0, code), ended(1, code)])
    assert true_conditions(made) == {"Created", condition}


def test_04_late_spot_nodes_join_together_and_not_one_by_one() -> None:
    wanted = {"mode": "Capacity", "growth": "Probe", "stabilizationSeconds": 60, "minIntervalSeconds": 300}
    story = Story(job(1, minReplicas=1, maxReplicas=8, scaling=wanted))
    worlds = []
    for seconds in range(0, 400, 10):
        arrived = min(1 + seconds // 20, 8)  # another node every 20 s
        nodes = {f"spot-{i}": NodeRecord(f"spot-{i}", allocatable={"pods": Decimal(1)}) for i in range(arrived)}
        size = story.job.status.desired_replicas
        used = {f"spot-{i}": {"pods": Decimal(1)} for i in range(size)}
        pods = [pod(i, node=f"spot-{i}") for i in range(size)]
        made = plan(story.job, pods, nodes, NOW + timedelta(seconds=seconds), used=used)
        story.job = story.job.model_copy(update={"status": made.status})
        worlds.append(made.status.desired_replicas)
    assert list(dict.fromkeys(worlds)) == [1, 5, 8]  # upstream: seven restarts from the last checkpoint


def test_06_fewer_workers_cost_the_others_no_restart() -> None:
    made = worker_pod(job(), 0, 1, "1:4")
    env = {variable["name"]: variable.get("value") for variable in made["spec"]["containers"][0]["env"]}
    assert env["PET_MAX_RESTARTS"] == "1000"
    story = Story(job(4, minReplicas=1, maxReplicas=4))
    story.job.spec.worker.replicas = 2
    smaller = story.see([pod(i) for i in range(4)])
    assert len(deletes(smaller)) == 2
    after = story.see([pod(0), pod(1), ended(2, 143, **GOING), ended(3, 143, **GOING)])
    assert (books(after), after.status.generation) == ((0, 0), 1)


def test_07_a_rendezvous_that_was_closed_is_not_entered_again() -> None:
    rules = [{"action": "RestartGroup", "onExitCodes": {"operator": "NotIn", "values": [1]}}]
    story = Story(job(3, failurePolicy={"rules": rules}))
    before = rendezvous_id(story.job, story.job.status.generation)
    made = story.see([ended(0, 139), pod(1), pod(2)])
    assert deletes(made) == ["j-worker-0", "j-worker-1", "j-worker-2"]
    assert rendezvous_id(story.job, made.status.generation) != before


def test_07_replacements_that_find_it_closed_bring_about_a_new_one() -> None:
    """However long they waited for a node; the launcher says no more than exit code 1."""
    story = Story(job(2))
    story.see([pod(0, **GOING), pod(1)])
    for number in range(3):
        found_a_node = NOW + timedelta(seconds=600 + 20 * number)
        closed = ended(0, 1, uid=f"late-{number}", created=NOW, scheduled=found_a_node, finished_at=found_a_node)
        made = story.see([closed, pod(1)], after=600 + 20 * number)
        assert (made.status.phase, made.status.restarts) == (Phase.RESTARTING, 0)
    assert (made.status.generation, sorted(deletes(made))) == (2, ["j-worker-0", "j-worker-1"])


def test_08_the_end_of_one_worker_is_not_the_end_of_the_store() -> None:
    """The store is the job's endpoint, never a worker; if others follow the first all the same, all start anew."""
    args = worker_pod(job(), 0, 1, "4:4")["spec"]["containers"][0]["args"]
    assert args[1] == "--rdzv_endpoint=etcd:2379"
    story = Story(job(4))
    story.see([pod(0, **GOING), *(pod(i) for i in range(1, 4))])
    made = story.see([pod(0, uid="new"), *(ended(i, 1) for i in range(1, 4))], after=5)
    assert (made.status.phase, made.status.generation) == (Phase.RESTARTING, 2)


def test_09_no_worker_starts_after_its_peers_have_finished() -> None:
    story = Story(job(3))
    made = story.see([ended(0, 0), pod(1), pod(2, phase="Pending", node=None)])
    assert (creates(made), deletes(made)) == ([], ["j-worker-2"])
    last = story.see([ended(0, 0), ended(1, 0)], after=1)
    assert last.status.phase == Phase.SUCCEEDED


def test_10_a_job_that_is_over_holds_no_gpu() -> None:
    made = Story(job(3, cleanPodPolicy="None")).see([ended(0, 1), pod(1), pod(2)])
    assert made.status.phase == Phase.FAILED
    assert deletes(made) == ["j-worker-1", "j-worker-2"]


@pytest.mark.parametrize("reason", ["Terminated", "Shutdown", "NodeShutdown"])
@pytest.mark.parametrize("policy", ["OnFailure", "Never", "ExitCode", "Always"])
def test_11_a_node_that_shuts_down_fails_no_job(reason: str, policy: str) -> None:
    metadata = {
        "name": "j-worker-0",
        "uid": "uid-0",
        "namespace": "n",
        "labels": {"job-name": "j", "replica-index": "0", "elastic.pytorch.org/generation": "1"},
        "ownerReferences": [{"controller": True, "uid": UID}],
    }
    spec = {"nodeName": "node-a", "containers": [{"name": "elasticjob-worker"}]}
    lost = pod_record({"metadata": metadata, "spec": spec, "status": {"phase": "Failed", "reason": reason}})
    made = Story(job(2, policy, backoffLimit=0)).see([lost, pod(1)])
    assert (books(made), creates(made)) == ((0, 1), ["j-worker-0"])


def test_12_a_dead_node_holds_up_nothing() -> None:
    story = Story(job(2))
    going = pod(0, deletion_requested=NOW, deletion_deadline=NOW + timedelta(seconds=30))
    silent = {"node-a": NodeRecord("node-a", ready=False, silent=True, not_ready_since=NOW)}
    assert creates(story.see([going, pod(1, node="node-b")], after=20, nodes=silent)) == ["j-worker-2"]
    out = {"node-a": replace(silent["node-a"], out_of_service=True)}
    forced = story.see([going, pod(1, node="node-b"), pod(2, node="node-b")], after=40, nodes=out)
    assert [a.grace_seconds for a in forced.actions if isinstance(a, DeletePod)] == [0]


def test_13_replaced_workers_do_not_pile_up() -> None:
    story = Story(job(1, "ExitCode"))
    for number in range(50):
        made = story.see([ended(0, 137, uid=f"u{number}", disruption="TerminationByKubelet")], after=number * 600)
        assert deletes(made) == creates(made) == ["j-worker-0"]
    assert len(story.job.status.accounted_pods) == 1


def test_14_a_worker_that_somebody_deleted_has_not_failed() -> None:
    told = ended(0, 137, deletion_requested=NOW, deletion_deadline=NOW + timedelta(seconds=30))
    made = Story(job(2, backoffLimit=0)).see([told, pod(1)])
    assert (books(made), made.status.phase) == ((0, 1), Phase.RESTARTING)


def test_15_exit_code_1_fails_at_once_with_the_code() -> None:
    made = Story(job(2)).see([ended(0, 1), pod(1)])
    failed = made.status.condition(ConditionType.FAILED)
    assert failed is not None
    assert (failed.reason, "exit code 1" in failed.message) == (Reason.WORKER_FAILED, True)


def test_16_running_out_of_memory_comes_to_an_end() -> None:
    story = Story(job(1, backoffLimit=2))
    phases = []
    for number in range(3):
        oom = ended(0, 137, uid=f"u{number}", term_reason="OOMKilled")
        phases.append(story.see([oom], after=number * 1000).status.phase)
    assert phases == [Phase.RESTARTING, Phase.RESTARTING, Phase.FAILED]


def test_17_a_pod_can_be_made_anew_after_exit_code_1() -> None:
    rules = [{"action": "RestartPod", "onExitCodes": {"operator": "In", "values": [1]}}]
    made = Story(job(2, "Never", failurePolicy={"rules": rules})).see([ended(0, 1), pod(1)])
    assert (creates(made), books(made)) == (["j-worker-0"], (1, 0))
    assert worker_pod(job(2, "Never"), 0, 1, "2:2")["spec"]["restartPolicy"] == "Never"


def test_18_each_end_has_its_time_and_the_time_to_live_its_timer() -> None:
    story = Story(job(1, ttlSecondsAfterFinished=60))
    made = story.see([ended(0, 1)])
    assert (made.status.completion_time, made.requeue_after) == (NOW, timedelta(seconds=60))
    assert DeleteJob() in story.see([ended(0, 1)], after=60).actions


def test_19_pods_are_cleaned_also_when_the_budget_is_exceeded() -> None:
    made = Story(job(2, backoffLimit=0, cleanPodPolicy="All")).see([ended(0, 137), pod(1)])
    assert (made.status.phase, deletes(made)) == (Phase.FAILED, ["j-worker-0", "j-worker-1"])


def test_20_autoscalers_find_what_they_need_and_none_is_made() -> None:
    assert version()["subresources"]["scale"]["labelSelectorPath"] == ".status.selector"
    made = Story(job(2)).see([pod(0), pod(1)])
    assert made.status.selector == "group-name=elastic.pytorch.org,job-name=j,replica-type=worker"
    assert all("autoscaling" not in group for rule in cluster_rules() for group in rule["apiGroups"])


@pytest.mark.parametrize(("asked", "made"), [(1, 2), (9, 4)])
def test_21_no_number_outside_the_bounds_reaches_the_rendezvous(asked: int, made: int) -> None:
    """The API server refuses such numbers; a job that is older than its rules is held to them."""
    first = plan(job(asked, minReplicas=2, maxReplicas=4), [], NODES, NOW)
    assert (len(creates(first)), first.status.nnodes) == (made, "2:4")


def test_22_the_store_is_no_worker_and_outlives_them_all() -> None:
    args = worker_pod(job(), 0, 1, "2:2")["spec"]["containers"][0]["args"]
    assert not any("j-worker" in argument for argument in args)


def test_23_a_hundred_workers_restart_together() -> None:
    story = Story(job(100))
    story.see([pod(0, **GOING), *(pod(i) for i in range(1, 100))])
    made = story.see([pod(0, uid="new"), *(ended(i, 1) for i in range(1, 60)), *(pod(i) for i in range(60, 100))])
    assert (made.status.generation, len(deletes(made)), creates(made)) == (2, 100, [])
    after = story.see([], after=1)
    assert {a.generation for a in after.actions if isinstance(a, CreatePod)} == {2}
    assert len(creates(after)) == 100


def test_25_suspension_is_never_charged() -> None:
    story = Story(job(2, backoffLimit=0))
    story.job.spec.suspend = True
    story.see([pod(0), pod(1)])
    going = [ended(i, 143, **GOING) for i in range(2)]
    made = story.see(going)
    assert (books(made), made.status.phase) == ((0, 0), Phase.SUSPENDED)


def test_26_an_end_is_for_good_and_the_budget_is_the_jobs() -> None:
    story = Story(job(1, backoffLimit=1))
    story.see([ended(0, 137)])
    story.see([ended(0, 137, uid="second", created=NOW)], after=1000)
    made = story.see([], after=2000)
    assert (made.actions, books(made), made.status.phase) == ((), (2, 0), Phase.FAILED)


def test_27_the_definition_fits_kubectl_apply() -> None:
    assert len(json.dumps(custom_resource_definition())) < 60_000  # 262,144 is the limit of an annotation
    worker = version()["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]["replicaSpecs"]
    template = worker["additionalProperties"]["properties"]["template"]
    assert template["x-kubernetes-preserve-unknown-fields"] is True
    assert "properties" not in template
