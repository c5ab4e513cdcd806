"""What is promised about PyTorchJobs, point by point, with the controller as a process on a real kube-apiserver.

The points are numbered PT1 to PT17. PT1 to PT7 restate what the training operator's own suite asserts of PyTorchJobs.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from real_api_server import (
    CONTROLLER_USER,
    NODE,
    ApiRefusalError,
    Cluster,
    ControllerProcess,
    end,
    eventually,
    start_controller,
)

from training.controller.crd import custom_resource_definition
from training.controller.pytorchjob_crd import pytorchjob_definition
from training.controller.rbac import PYTORCH_LEASE_NAME, cluster_rules, lease_rules

pytest_plugins = ["api_server_fixture"]
pytestmark = pytest.mark.engines

API = "/apis/kubeflow.org/v1"
CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
RBAC = "/apis/rbac.authorization.k8s.io/v1"
POINTS = 17
OWN_RULES = cluster_rules(pytorch_jobs=True)[len(cluster_rules()) :]
OPERATOR = {
    "metadata": {"name": "training-operator", "labels": {"control-plane": "kubeflow-training-operator"}},
    "spec": {
        "replicas": 1,
        "selector": {"matchLabels": {"control-plane": "kubeflow-training-operator"}},
        "template": {
            "metadata": {"labels": {"control-plane": "kubeflow-training-operator"}},
            "spec": {"containers": [{"name": "training-operator", "image": "kubeflow/training-operator"}]},
        },
    },
}


def test_every_point_has_its_test() -> None:
    found = re.findall(r"def test_pt(\d\d)_", Path(__file__).read_text(encoding="utf-8"))
    assert sorted(int(number) for number in found) == list(range(1, POINTS + 1))


@pytest.fixture(scope="module")
def served(cluster: Cluster) -> Iterator[ControllerProcess]:
    """A controller that serves PyTorchJobs, with the rights that it has then and no others."""
    cluster.admin.delete(f"/apis/coordination.k8s.io/v1/namespaces/default/leases/{PYTORCH_LEASE_NAME}")
    cluster.create(CRDS, pytorchjob_definition())
    eventually("PyTorchJob API served", lambda: cluster.admin.get(f"{API}/pytorchjobs").status_code == 200)
    name, group = "pytorchjobs-of-the-controller", "rbac.authorization.k8s.io"
    user = {"kind": "User", "apiGroup": group, "name": CONTROLLER_USER}
    for place, kind, rules in (
        ("", "ClusterRole", OWN_RULES),
        ("/namespaces/default", "Role", lease_rules(pytorch_jobs=True)),
    ):
        cluster.create(f"{RBAC}{place}/{kind.lower()}s", {"metadata": {"name": name}, "rules": rules})
        binding = {"metadata": {"name": name}, "roleRef": {"apiGroup": group, "kind": kind, "name": name}}
        cluster.create(f"{RBAC}{place}/{kind.lower()}bindings", binding | {"subjects": [user]})
    made = start_controller(cluster, "--pytorch-jobs")
    try:
        eventually(
            "the controller leads", lambda: made.leading and made.metrics()["trainyard_pytorchjob_controller_leader"]
        )
        yield made
    finally:
        assert end(made.process) == 0, made.log.read_text()
        assert "Traceback" not in made.log.read_text(), made.log.read_text()
        for path in ("/clusterrolebindings/", "/clusterroles/"):
            cluster.call("DELETE", f"{RBAC}{path}{name}")


def template(**pod_spec: Any) -> dict[str, Any]:
    return {"spec": {"containers": [{"name": "pytorch", "image": "trainyard/training:local"}], **pod_spec}}


def pytorch_job(*, master: bool = True, workers: int = 2, policy: str = "ExitCode", **spec: Any) -> dict[str, Any]:
    replica = {"restartPolicy": policy, "template": template()}
    roles = {"Master": {"replicas": 1, **replica}} if master else {}
    roles |= {"Worker": {"replicas": workers, **replica}} if workers else {}
    return {
        "apiVersion": "kubeflow.org/v1",
        "kind": "PyTorchJob",
        "metadata": {"name": "digits"},
        "spec": {"pytorchReplicaSpecs": roles, **spec},
    }


class Job:
    """The job `digits` of a namespace of its own."""

    def __init__(self, cluster: Cluster, namespace: str, body: dict[str, Any]) -> None:
        self.cluster, self.namespace = cluster, cluster.namespace(namespace)
        self.path = f"{API}/namespaces/{namespace}/pytorchjobs/digits"
        self.made = cluster.create(f"{API}/namespaces/{namespace}/pytorchjobs", body)

    def now(self) -> dict[str, Any]:
        return self.cluster.call("GET", self.path)

    def merge(self, spec: dict[str, Any]) -> dict[str, Any]:
        return self.cluster.merge(self.path, {"spec": spec})

    def running(self, number: int) -> dict[str, Any]:
        return self.cluster.wait_running(self.namespace, number, NODE)

    def ends(self, pod: str, code: int) -> None:
        """The replica's container ends."""
        self.cluster.phase(self.namespace, pod, "Failed" if code else "Succeeded", exit_code=code, main="pytorch")

    def condition(self, kind: str, value: str = "True") -> dict[str, Any]:
        def look() -> dict[str, Any]:
            conditions = self.now().get("status", {}).get("conditions", [])
            return next((each for each in conditions if (each["type"], each["status"]) == (kind, value)), {})

        return eventually(f"condition {kind} {value} of {self.namespace}", look)

    def events(self, reason: str) -> list[str]:
        listed = self.cluster.call("GET", f"/api/v1/namespaces/{self.namespace}/events")["items"]
        return [event["message"] for event in listed if event["reason"] == reason]

    def left(self) -> dict[str, Any]:
        """Its pods that are not told to go, after the kubelet has done its part."""
        return self.cluster.run_pods(self.namespace, NODE)

    def empty(self) -> None:
        eventually("no replica is left", lambda: not self.left())


@pytest.mark.usefixtures("served")
class TestOfTheTrainingOperatorsSuite:
    def test_pt01_replicas_and_the_service_of_the_master_are_made(self, cluster: Cluster) -> None:
        job = Job(cluster, "pt-create", pytorch_job())
        pods = job.running(3)
        assert sorted(pods) == ["digits-master-0", "digits-worker-0", "digits-worker-1"]
        service = cluster.call("GET", f"/api/v1/namespaces/{job.namespace}/services/digits-master-0")
        assert service["spec"]["selector"].items() <= pods["digits-master-0"]["metadata"]["labels"].items()
        assert service["spec"]["ports"][0]["port"] == 23456
        for made in (service, *pods.values()):
            (owner,) = made["metadata"]["ownerReferences"]
            assert (owner["kind"], owner["uid"], owner["controller"]) == (
                "PyTorchJob",
                job.made["metadata"]["uid"],
                True,
            )
        job.condition("Created")
        job.condition("Running")
        eventually("all are counted", lambda: job.now()["status"]["replicaStatuses"]["Worker"].get("active") == 2)
        job.ends("digits-master-0", 0)
        for name in ("digits-worker-0", "digits-worker-1"):
            job.ends(name, 0)
        assert job.condition("Succeeded")["reason"] == "PyTorchJobSucceeded"
        job.condition("Running", "False")
        assert job.now()["status"]["completionTime"]

    def test_pt02_the_queue_cannot_change(self, cluster: Cluster) -> None:
        policy = {"schedulingPolicy": {"queue": "first"}}
        job = Job(cluster, "pt-queue", pytorch_job(runPolicy={"suspend": True, **policy}))
        with pytest.raises(ApiRefusalError, match=r"spec\.runPolicy\.schedulingPolicy\.queue is immutable"):
            job.merge({"runPolicy": {"schedulingPolicy": {"queue": "second"}}})

    def test_pt03_a_job_that_is_made_suspended_makes_nothing(self, cluster: Cluster) -> None:
        job = Job(cluster, "pt-suspended", pytorch_job(runPolicy={"suspend": True}))
        job.condition("Created")
        assert job.condition("Suspended")["reason"] == "PyTorchJobSuspended"
        assert cluster.pods(job.namespace) == {}
        assert "startTime" not in job.now()["status"]

    def test_pt04_suspend_and_resume(self, cluster: Cluster) -> None:
        job = Job(cluster, "pt-resume", pytorch_job())
        job.running(3)
        job.condition("Running")
        job.merge({"runPolicy": {"suspend": True}})
        job.condition("Suspended")
        job.condition("Running", "False")
        job.empty()
        job.merge({"runPolicy": {"suspend": False}})
        job.running(3)
        assert job.condition("Suspended", "False")["reason"] == "PyTorchJobResumed"
        job.condition("Running")
        assert job.now()["status"]["startTime"]

    def test_pt05_a_job_of_another_manager_is_left_alone(self, cluster: Cluster) -> None:
        job = Job(cluster, "pt-foreign", pytorch_job(runPolicy={"managedBy": "kueue.x-k8s.io/multikueue"}))
        own = Job(cluster, "pt-own", pytorch_job(runPolicy={"managedBy": "kubeflow.org/training-operator"}))
        own.running(3)
        assert cluster.pods(job.namespace) == {}
        assert "status" not in job.now()
        with pytest.raises(ApiRefusalError, match=r"runPolicy\.managedBy cannot change"):
            job.merge({"runPolicy": {"managedBy": None}})

    def test_pt06_an_elastic_job_is_told_where_to_meet(self, cluster: Cluster) -> None:
        elastic = {"minReplicas": 1, "maxReplicas": 3, "rdzvBackend": "c10d"}
        job = Job(cluster, "pt-elastic", pytorch_job(master=False, elasticPolicy=elastic))
        for made in job.running(2).values():
            env = {each["name"]: each.get("value") for each in made["spec"]["containers"][0]["env"]}
            assert (env["PET_RDZV_ENDPOINT"], env["PET_NNODES"]) == ("digits-worker-0:23456", "1:3")
        cluster.call("GET", f"/api/v1/namespaces/{job.namespace}/services/digits-worker-0")

    def test_pt07_metrics_make_no_autoscaler_running_or_suspended(self, cluster: Cluster) -> None:
        """The training operator makes one, and removes it on suspension; here an event says that it is the user's."""
        target = {"type": "Utilization", "averageUtilization": 80}
        metrics = [{"type": "Resource", "resource": {"name": "cpu", "target": target}}]
        elastic = {"minReplicas": 1, "maxReplicas": 3, "metrics": metrics}
        job = Job(cluster, "pt-metrics", pytorch_job(master=False, elasticPolicy=elastic))
        job.running(2)
        (message,) = eventually("the user is told", lambda: job.events("FieldIgnored"))
        assert "elasticPolicy.metrics is ignored" in message
        assert job.now()["spec"]["elasticPolicy"]["metrics"] == metrics, "what the user wrote stays"
        job.merge({"runPolicy": {"suspend": True}})
        job.empty()
        scalers = f"/apis/autoscaling/v2/namespaces/{job.namespace}/horizontalpodautoscalers"
        assert cluster.call("GET", scalers)["items"] == []


@pytest.mark.usefixtures("served")
class TestLife:
    def test_pt08_the_scale_subresource_scales_the_workers(self, cluster: Cluster) -> None:
        elastic = {"minReplicas": 1, "maxReplicas": 4}
        job = Job(cluster, "pt-scale", pytorch_job(master=False, elasticPolicy=elastic))
        before = job.running(2)
        cluster.merge(f"{job.path}/scale", {"spec": {"replicas": 4}})
        grown = job.running(4)
        assert {name: grown[name]["metadata"]["uid"] for name in before} == {
            name: each["metadata"]["uid"] for name, each in before.items()
        }
        cluster.merge(f"{job.path}/scale", {"spec": {"replicas": 1}})
        assert list(job.running(1)) == ["digits-worker-0"]

        def counted() -> bool:
            scale = cluster.call("GET", f"{job.path}/scale")["status"]
            return bool(scale["replicas"] == 1 and "replica-type=worker" in scale["selector"])

        eventually("the subresource tells the number", counted)

    def test_pt09_a_killed_replica_comes_back_with_its_rank(self, cluster: Cluster) -> None:
        job = Job(cluster, "pt-killed", pytorch_job())
        before = job.running(3)
        job.ends("digits-worker-0", 137)

        def again() -> bool:
            pods = cluster.run_pods(job.namespace, NODE)
            name = "digits-worker-0"
            return name in pods and pods[name]["metadata"]["uid"] != before[name]["metadata"]["uid"]

        eventually("worker 0 is made anew", again)
        after = job.running(3)
        assert sorted(after) == sorted(before)
        env = {each["name"]: each.get("value") for each in after["digits-worker-0"]["spec"]["containers"][0]["env"]}
        assert env["RANK"] == "1"
        eventually("it is counted", lambda: job.now()["status"]["trainyard"].get("restarts") == 1)

    def test_pt10_backoff_limit_fails_the_job(self, cluster: Cluster) -> None:
        job = Job(cluster, "pt-backoff", pytorch_job(runPolicy={"backoffLimit": 0}))
        job.running(3)
        job.ends("digits-worker-1", 137)
        assert "backoffLimit (0)" in job.condition("Failed")["message"]

    def test_pt11_an_error_of_the_program_fails_the_job(self, cluster: Cluster) -> None:
        job = Job(cluster, "pt-error", pytorch_job())
        job.running(3)
        job.ends("digits-master-0", 1)
        assert "exit code 1" in job.condition("Failed")["message"]
        assert job.now()["status"]["completionTime"]

    def test_pt12_all_pods_go_and_then_the_job(self, cluster: Cluster) -> None:
        policy = {"cleanPodPolicy": "All", "ttlSecondsAfterFinished": 1}
        job = Job(cluster, "pt-ttl", pytorch_job(workers=0, runPolicy=policy))
        job.running(1)
        job.ends("digits-master-0", 0)
        eventually("ttlSecondsAfterFinished deletes the job", lambda: cluster.admin.get(job.path).status_code == 404)
        job.empty()

    def test_pt13_the_deadline_fails_the_job(self, cluster: Cluster) -> None:
        job = Job(cluster, "pt-deadline", pytorch_job(workers=0, runPolicy={"activeDeadlineSeconds": 1}))
        assert "activeDeadlineSeconds (1)" in job.condition("Failed")["message"]

    def test_pt14_the_pods_of_a_job_that_is_deleted_go(self, cluster: Cluster) -> None:
        job = Job(cluster, "pt-deleted", pytorch_job())
        job.running(3)
        cluster.call("DELETE", job.path)
        eventually("they are let go", lambda: not job.left() and cluster.pods(job.namespace) == {})


@pytest.mark.usefixtures("served")
class TestNeighbours:
    def test_pt15_where_a_training_operator_runs_the_jobs_are_its_own(self, cluster: Cluster) -> None:
        """Until it goes; and but for those that name this controller."""
        cluster.namespace("kubeflow")
        path = "/apis/apps/v1/namespaces/kubeflow/deployments"
        cluster.create(path, OPERATOR)
        named = pytorch_job(workers=0, runPolicy={"managedBy": "trainyard.dev/elastic-controller"})
        Job(cluster, "pt-named", named).running(1)  # by now the controller knows of the operator
        job = Job(cluster, "pt-operator", pytorch_job(workers=0))
        (message,) = eventually("the user is told", lambda: job.events("TrainingOperatorFound"))
        assert "kubeflow/training-operator" in message
        assert "status" not in job.now()
        cluster.merge(f"{path}/training-operator", {"spec": {"replicas": 0}})
        job.running(1)
        cluster.call("DELETE", f"{path}/training-operator")

    def test_pt16_the_api_server_refuses_what_cannot_be_served(self, cluster: Cluster) -> None:
        def refused(body: dict[str, Any]) -> str:
            with pytest.raises(ApiRefusalError) as refusal:
                cluster.create(f"{API}/namespaces/default/pytorchjobs", body)
            return refusal.value.message

        two = pytorch_job()
        two["spec"]["pytorchReplicaSpecs"]["Master"]["replicas"] = 2
        assert "there is one Master" in refused(two)
        other = pytorch_job()
        other["spec"]["pytorchReplicaSpecs"]["Chief"] = {"template": template()}
        assert "are Master and Worker" in refused(other)
        assert "needs Master, Worker or both" in refused(pytorch_job(master=False, workers=0))
        assert "must not exceed" in refused(pytorch_job(elasticPolicy={"minReplicas": 3, "maxReplicas": 2}))
        assert "needs the key Worker" in refused(pytorch_job(workers=0, elasticPolicy={}))

    def test_pt17_each_right_is_used_and_none_is_missing(self, served: ControllerProcess) -> None:
        """After the tests above, that is."""
        every = cluster_rules(pytorch_jobs=True) + lease_rules(pytorch_jobs=True)
        granted = {(verb, resource) for rule in every for resource in rule["resources"] for verb in rule["verbs"]}
        granted -= {(verb, resource) for verb, resource in granted if resource.startswith("elasticjobs")}
        # of a pod that has a replica's name already, and at the controller's own removal: tested with ElasticJobs
        granted -= {("get", "pods"), ("get", "deployments")}
        prefix = "trainyard_pytorchjob_api_calls_total{"
        calls = {
            tuple(part.split('"')[1] for part in sample.removeprefix(prefix).split(","))
            for sample in served.metrics()
            if sample.startswith(prefix)
        }
        assert calls == granted
        # it serves ElasticJobs too; one asks for a PodGroup without the right to it (test_controller_gang.py)
        refused = [line for line in served.log.read_text().splitlines() if "is forbidden" in line]
        assert [line for line in refused if "podgroups" not in line] == []


def test_a_definition_without_the_controllers_memory_is_said_and_nothing_made(
    cluster: Cluster, served: ControllerProcess
) -> None:
    """As where a training operator has left its own behind."""
    definition = pytorchjob_definition()
    schema = definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    name = definition["metadata"]["name"]
    without = json.loads(json.dumps(schema))
    del without["properties"]["status"]["properties"]["trainyard"]

    def set_schema(new: dict[str, Any]) -> None:
        version = definition["spec"]["versions"][0] | {"schema": {"openAPIV3Schema": new}}
        cluster.merge(f"{CRDS}/{name}", {"spec": {"versions": [version]}})

    set_schema(without)
    namespace = cluster.namespace("pt-left-behind")
    path = f"{API}/namespaces/{namespace}/pytorchjobs"

    def known() -> bool:
        body = pytorch_job() | {"metadata": {"name": "digits", "namespace": namespace}, "status": {"trainyard": {}}}
        answer = cluster.admin.patch(
            f"{path}/digits/status?fieldManager=probe&dryRun=All&force=true",
            json=body,
            headers={"Content-Type": "application/apply-patch+yaml"},
        )
        return "field not declared" not in answer.text

    cluster.create(path, pytorch_job(runPolicy={"managedBy": "example.com/nobody"}))
    eventually("the API server knows the definition", lambda: not known())
    cluster.call("DELETE", f"{path}/digits")
    cluster.create(path, pytorch_job())

    def told() -> bool:
        events = cluster.call("GET", f"/api/v1/namespaces/{namespace}/events")["items"]
        return any(event["reason"] == "DefinitionUnfit" for event in events)

    eventually("the user is told", told)
    assert "it has no status.trainyard" in served.log.read_text()
    assert cluster.pods(namespace) == {}
    set_schema(schema)
    cluster.wait_running(namespace, 3, NODE)


def test_the_definitions_stay_readable() -> None:
    for made in (custom_resource_definition(), pytorchjob_definition()):
        assert len(json.dumps(made)) < 60_000, "kubectl apply keeps a copy in an annotation, which has a limit"
