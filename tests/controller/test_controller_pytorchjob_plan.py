"""How a PyTorchJob is planned: its roles, numbers and environment, without an API server."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from planned_jobs import NOW, UID, creates

from training.controller.planner import DeletePod, Plan, plan
from training.controller.pytorchjob import PyTorchJob, pytorch_job, status_body
from training.controller.pytorchjob_pods import first_service, replica_pod
from training.controller.records import NodeRecord, PodRecord

NODE = {"node-a": NodeRecord("node-a")}


def replicas(number: int = 1, restart_policy: str | None = None, **pod_spec: Any) -> dict[str, Any]:
    containers = [{"name": "sidecar", "image": "logs"}, {"name": "pytorch", "image": "i", "args": ["train.py"]}]
    spec = {"containers": containers, **pod_spec}
    policy = {} if restart_policy is None else {"restartPolicy": restart_policy}
    return {"replicas": number, "template": {"spec": spec}, **policy}


def job(
    status: Any = None, *, master: bool = True, workers: int = 2, policy: str | None = None, **spec: Any
) -> PyTorchJob:
    roles = {"Master": replicas(1, policy)} if master else {}
    roles |= {"Worker": replicas(workers, policy)} if workers else {}
    made = pytorch_job(
        {
            "metadata": {"name": "j", "namespace": "n", "uid": UID, "generation": 1},
            "spec": {"pytorchReplicaSpecs": roles, **spec},
        }
    )
    return made if status is None else made.model_copy(update={"status": status})


def pod(number: int, **fields: Any) -> PodRecord:
    """A running replica; -1 is the Master."""
    known: dict[str, Any] = {
        "name": "j-master-0" if number < 0 else f"j-worker-{number}",
        "uid": f"uid-{number}",
        "namespace": "n",
        "job": "j",
        "owner_uid": UID,
        "index": number,
        "generation": 1,
        "phase": "Running",
        "node": "node-a",
        "created": NOW - timedelta(hours=1),
    }
    return PodRecord(**(known | fields))


def ended(number: int, code: int = 0, **fields: Any) -> PodRecord:
    phase = "Failed" if code else "Succeeded"
    return pod(number, phase=phase, exit_code=code, finished_at=NOW - timedelta(seconds=1), **fields)


def started(**spec: Any) -> PyTorchJob:
    return job(plan(job(**spec), [], NODE, NOW).status, **spec)


def deletions(made: Plan) -> list[str]:
    return [action.name for action in made.actions if isinstance(action, DeletePod)]


def environment(made: dict[str, Any], container: int = 1) -> dict[str, Any]:
    return {each["name"]: each.get("value") for each in made["spec"]["containers"][container]["env"]}


class TestReplicas:
    def test_master_and_workers_are_made_by_their_names(self) -> None:
        assert creates(plan(job(), [], NODE, NOW)) == ["j-master-0", "j-worker-0", "j-worker-1"]
        assert creates(plan(job(master=False), [], NODE, NOW)) == ["j-worker-0", "j-worker-1"]
        assert creates(plan(job(workers=0), [], NODE, NOW)) == ["j-master-0"]

    def test_what_is_lost_comes_back_under_its_own_name_and_not_before_it_is_free(self) -> None:
        """Its rank is part of its environment, and there is no rank beyond the others."""
        subject = started()
        leaving = pod(0, deletion_deadline=NOW + timedelta(seconds=20), deletion_requested=NOW)
        made = plan(subject, [pod(-1), leaving, pod(1)], NODE, NOW)
        assert creates(made) == []
        again = job(made.status)
        assert creates(plan(again, [pod(-1), pod(1)], NODE, NOW)) == ["j-worker-0"]

    def test_fewer_workers_are_those_with_the_lowest_numbers(self) -> None:
        """Counted, {0, 3} of two wanted would be left as it is; worker 0 is where all meet, and 1 has to come."""
        elastic = {"minReplicas": 1, "maxReplicas": 4}
        status = started(master=False, workers=4, elasticPolicy=elastic).status
        smaller = job(status, master=False, workers=2, elasticPolicy=elastic)
        made = plan(smaller, [pod(0), pod(3)], NODE, NOW)
        assert deletions(made) == ["j-worker-3"]
        assert creates(made) == ["j-worker-1"]

    def test_another_number_of_workers_without_elasticity_is_another_world(self) -> None:
        made = plan(job(started().status, workers=3), [pod(-1), pod(0), pod(1)], NODE, NOW)
        assert made.status.generation == 2
        assert deletions(made) == ["j-master-0", "j-worker-0", "j-worker-1"]

    def test_each_role_has_its_own_restart_policy(self) -> None:
        roles = {"Master": replicas(1, "Never"), "Worker": replicas(2, "ExitCode")}
        status = started().status
        made = plan(job(status, pytorchReplicaSpecs=roles), [pod(-1), ended(0, 137), pod(1)], NODE, NOW)
        assert (made.status.restarts, made.status.ended) == (1, False)
        made = plan(job(status, pytorchReplicaSpecs=roles), [ended(-1, 137), pod(0), pod(1)], NODE, NOW)
        assert made.status.ended, "Never does not retry"

    def test_a_replica_on_a_node_that_goes_leaves_at_once_where_no_time_is_known(self) -> None:
        """Another one could only come when its name is free."""
        nodes = {"node-a": NodeRecord("node-a"), "spot": NodeRecord("spot", notice="a taint")}
        made = plan(started(), [pod(-1), pod(0, node="spot"), pod(1)], nodes, NOW)
        assert deletions(made) == ["j-worker-0"]
        assert made.status.disruptions == 1


class TestHost:
    """The first replica of a job that meets by c10d holds the rendezvous store."""

    @pytest.mark.parametrize(
        ("elastic", "host"),
        [
            ({}, 0),
            ({"rdzvHost": "j-worker-0.n.svc"}, 0),
            ({"rdzvHost": "elsewhere"}, None),
            ({"rdzvBackend": "etcd"}, None),
            ({"standalone": True}, None),
        ],
    )
    def test_it_is_the_first_unless_they_meet_elsewhere(self, elastic: dict[str, Any], host: int | None) -> None:
        assert job(master=False, elasticPolicy=elastic).hosting_worker == host
        assert job(elasticPolicy=elastic).hosting_worker == (-1 if elastic == {} else None)
        assert job().hosting_worker is None

    def test_it_holds_the_store_and_keeps_to_machines_that_stay(self) -> None:
        subject = job(master=False, elasticPolicy={})
        host, other = replica_pod(subject, 0, 1, ""), replica_pod(subject, 1, 1, "")
        assert "spot" in str(host["spec"]["affinity"])
        assert "affinity" not in other["spec"]
        told = [environment(each)["PET_RDZV_CONF"] for each in (host, other)]
        assert told == ["is_host=true", "is_host=false"]

    def test_when_it_is_lost_all_start_anew_and_not_when_another_is(self) -> None:
        elastic = {"minReplicas": 1, "maxReplicas": 2}
        subject: dict[str, Any] = {"master": False, "workers": 2, "elasticPolicy": elastic}
        both = [pod(0, ready=True), pod(1, ready=True)]
        status = plan(started(**subject), both, NODE, NOW).status
        assert status.rendezvous_store == "uid-0"
        going = {"deletion_deadline": NOW + timedelta(seconds=20), "deletion_requested": NOW}
        other_lost = plan(job(status, **subject), [both[0], pod(1, **going)], NODE, NOW)
        assert (other_lost.status.generation, deletions(other_lost)) == (1, [])
        host_lost = plan(job(status, **subject), [pod(0, **going), both[1]], NODE, NOW)
        assert (host_lost.status.generation, deletions(host_lost)) == (2, ["j-worker-1"])
        assert (host_lost.status.restarts, host_lost.status.disruptions) == (0, 1)
        assert creates(plan(job(host_lost.status, **subject), [], NODE, NOW)) == ["j-worker-0", "j-worker-1"]


class TestSuccess:
    def test_the_masters_success_is_the_jobs(self) -> None:
        made = plan(started(), [pod(-1), ended(0), pod(1)], NODE, NOW)
        assert made.status.first_success_time is None, "a worker's is not"
        assert creates(made) == []
        assert made.status.phase == "Running"
        finished = plan(job(made.status), [ended(-1), ended(0), ended(1)], NODE, NOW)
        assert finished.status.phase == "Succeeded"

    def test_without_a_master_all_workers_have_to_succeed(self) -> None:
        made = plan(started(master=False), [ended(0), pod(1)], NODE, NOW)
        assert made.status.first_success_time is None
        assert plan(job(made.status, master=False), [ended(0), ended(1)], NODE, NOW).status.phase == "Succeeded"

    def test_of_an_elastic_job_one_worker_is_enough(self) -> None:
        made = plan(started(master=False, elasticPolicy={}), [ended(0), pod(1)], NODE, NOW)
        assert made.status.phase == "Completing"


class TestStatus:
    def test_it_is_the_training_operators_and_remembers_all(self) -> None:
        subject = started()
        internal = plan(subject, [pod(-1), pod(0), pod(1)], NODE, NOW).status
        body = status_body(subject, internal)
        assert [each["type"] for each in body["conditions"]] == ["Created", "Running"]
        assert {each["reason"] for each in body["conditions"]} == {"PyTorchJobCreated", "PyTorchJobRunning"}
        assert {role: each["active"] for role, each in body["replicaStatuses"].items()} == {"Master": 1, "Worker": 2}
        selector = "training.kubeflow.org/operator-name=pytorchjob-controller,training.kubeflow.org/job-name=j"
        assert body["replicaStatuses"]["Worker"]["selector"] == f"{selector},training.kubeflow.org/replica-type=worker"
        read = pytorch_job(
            {
                "metadata": {"name": "j", "namespace": "n", "uid": UID},
                "spec": {"pytorchReplicaSpecs": {"Worker": replicas()}},
                "status": body,
            }
        )
        assert read.status == internal


class TestPods:
    def test_with_a_master_all_are_told_where_it_is_and_who_they_are(self) -> None:
        """The training operator's contract."""
        subject = job(nprocPerNode="4")
        master, worker = replica_pod(subject, -1, 1, ""), replica_pod(subject, 1, 1, "")
        assert environment(master) == environment(master, 0), "all containers are told"
        common = {
            "PYTHONUNBUFFERED": "1",
            "PET_LOCAL_ADDR": None,
            "PET_NPROC_PER_NODE": "4",
            "MASTER_ADDR": "j-master-0",
            "MASTER_PORT": "23456",
            "PET_MASTER_ADDR": "j-master-0",
            "PET_MASTER_PORT": "23456",
            "WORLD_SIZE": "12",
            "PET_NNODES": "3",
        }
        assert environment(master) == common | {"RANK": "0", "PET_NODE_RANK": "0"}
        assert environment(worker) == common | {"RANK": "2", "PET_NODE_RANK": "2"}
        assert environment(replica_pod(job(), 0, 1, ""))["WORLD_SIZE"] == "3", "auto counts as one"

    def test_an_elastic_job_meets_at_its_first_worker(self) -> None:
        elastic = {"minReplicas": 1, "maxReplicas": 4, "rdzvConf": [{"key": "timeout", "value": "9"}]}
        subject = job(master=False, elasticPolicy=elastic)
        assert environment(replica_pod(subject, 1, 3, "")) == {
            "PYTHONUNBUFFERED": "1",
            "PET_LOCAL_ADDR": None,
            "PET_NPROC_PER_NODE": "auto",
            "PET_RDZV_BACKEND": "c10d",
            "PET_RDZV_ENDPOINT": "j-worker-0:23456",
            "PET_RDZV_ID": f"j-{UID[:8]}-3",
            "PET_NNODES": "1:4",
            "PET_MAX_RESTARTS": "1000",
            "PET_RDZV_CONF": "is_host=false,timeout=9",
        }
        service = first_service(subject, *subject.service_names)
        assert service["metadata"]["name"] == "j-worker-0"
        labels = replica_pod(subject, 0, 1, "")["metadata"]["labels"]
        assert service["spec"]["selector"].items() <= labels.items()

    @pytest.mark.parametrize(
        ("bounds", "nnodes"),
        [
            ({}, "2:2"),
            ({"minReplicas": 1}, "1:1"),
            ({"maxReplicas": 4}, "4:4"),
            ({"minReplicas": 1, "maxReplicas": 3}, "1:3"),
        ],
    )
    def test_a_bound_that_is_missing_is_the_other_one(self, bounds: dict[str, Any], nnodes: str) -> None:
        subject = job(master=False, elasticPolicy={"rdzvId": "mine", "maxRestarts": 3, **bounds})
        told = environment(replica_pod(subject, 0, 1, ""))
        assert (told["PET_NNODES"], told["PET_RDZV_ID"], told["PET_MAX_RESTARTS"]) == (nnodes, "mine", "3")

    def test_labels_tell_role_and_number(self) -> None:
        def labels(subject: PyTorchJob, number: int) -> tuple[str | None, ...]:
            told = replica_pod(subject, number, 1, "")["metadata"]["labels"]
            names = ("operator-name", "job-name", "replica-type", "replica-index", "job-role")
            return tuple(told.get(f"training.kubeflow.org/{name}") for name in names)

        operator = "pytorchjob-controller"
        assert labels(job(), -1) == (operator, "j", "master", "0", "master")
        assert labels(job(), 1) == (operator, "j", "worker", "1", None)
        assert labels(job(master=False), 0) == (operator, "j", "worker", "0", "master")

    def test_the_users_own_variables_port_and_scheduler_stay(self) -> None:
        main = {"name": "pytorch", "image": "i", "env": [{"name": "RANK", "value": "7"}]}
        main["ports"] = [{"name": "pytorchjob-port", "containerPort": 999}]
        spec = {"containers": [main], "schedulerName": "volcano"}
        subject = job(pytorchReplicaSpecs={"Master": {"template": {"spec": spec}}})
        made = replica_pod(subject, -1, 1, "")
        told = environment(made, 0)
        assert (told["RANK"], told["MASTER_PORT"]) == ("7", "999")
        assert made["spec"]["containers"][0]["ports"] == main["ports"]
        assert made["metadata"]["annotations"]["scheduling.k8s.io/group-name"] == "j", "a scheduler of gangs gets one"
        assert subject.wanted.pytorch_replica_specs["Master"].template == {"spec": spec}
