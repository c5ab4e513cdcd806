"""Workers that start together or not at all: PodGroups for Volcano and the scheduler-plugins, on a real API server."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from planned_jobs import NOW, job, pod
from pod_group_crds import SCHEDULER_PLUGINS, VOLCANO
from real_api_server import (
    CONTROLLER_USER,
    JOBS,
    NODE,
    ApiRefusalError,
    Cluster,
    ControllerProcess,
    elastic_job,
    eventually,
)

from training.controller.api import ElasticJob, GangScheduler
from training.controller.planner import Plan, SetPodGroup, plan
from training.controller.pods import job_pod_group, worker_pod
from training.controller.rbac import cluster_rules

pytest_plugins = ["api_server_fixture"]

CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
VOLCANO_API, PLUGINS_API = "/apis/scheduling.volcano.sh/v1beta1", "/apis/scheduling.x-k8s.io/v1alpha1"
GANG_RULES = cluster_rules(gang=tuple(GangScheduler))[len(cluster_rules()) :]


def gang(**policy: Any) -> dict[str, Any]:
    return {"scheduler": "volcano", **policy}


def groups(made: Plan) -> list[int]:
    return [action.members for action in made.actions if isinstance(action, SetPodGroup)]


class TestPlan:
    def test_a_job_that_asks_for_nothing_gets_none(self) -> None:
        assert groups(plan(job(), [], {}, NOW)) == []
        assert groups(plan(job(schedulingPolicy={"minAvailable": 1}), [], {}, NOW)) == []

    @pytest.mark.parametrize(
        ("spec", "members"),
        [
            ({}, 4),
            ({"minReplicas": 2, "maxReplicas": 6}, 2),
            ({"minReplicas": 2, "maxReplicas": 6, "schedulingPolicy": gang(minAvailable=3)}, 3),
            ({"schedulingPolicy": gang(minAvailable=9)}, 4),  # more would never start
            ({"schedulingPolicy": gang(minAvailable=0)}, 4),
        ],
    )
    def test_the_group_asks_for_the_fewest_workers(self, spec: dict[str, Any], members: int) -> None:
        made = plan(job(replicas=4, **{"schedulingPolicy": gang(), **spec}), [], {}, NOW)
        assert groups(made) == [members]

    def test_a_group_that_is_as_it_should_be_is_left_alone(self) -> None:
        elastic = job(minReplicas=1, maxReplicas=4, schedulingPolicy=gang())
        first = plan(elastic, [], {}, NOW, pod_group=1)
        assert groups(first) == [1], "it is looked at again before workers are made"
        running = elastic.model_copy(update={"status": first.status})
        assert groups(plan(running, [pod(0), pod(1)], {}, NOW, pod_group=1)) == []
        assert groups(plan(running, [pod(0), pod(1)], {}, NOW)) == [1], "another controller does not know of it"

    def test_it_goes_with_a_suspension_and_with_the_end(self) -> None:
        started = plan(job(schedulingPolicy=gang()), [], {}, NOW).status
        suspended = job(schedulingPolicy=gang(), suspend=True, status=started)
        assert groups(plan(suspended, [pod(0), pod(1)], {}, NOW, pod_group=2)) == [0]
        assert groups(plan(suspended, [], {}, NOW, pod_group=0)) == []
        finished = [pod(index, phase="Succeeded", exit_code=0, finished_at=NOW) for index in range(2)]
        ended = plan(job(schedulingPolicy=gang(), status=started), finished, {}, NOW, pod_group=2)
        assert ended.status.ended
        assert groups(ended) == [0]

    def test_it_stays_while_the_last_workers_finish(self) -> None:
        started = plan(job(schedulingPolicy=gang()), [], {}, NOW).status
        finishing = job(schedulingPolicy=gang(), status=started)
        pods = [pod(0, phase="Succeeded", exit_code=0, finished_at=NOW), pod(1)]
        assert groups(plan(finishing, pods, {}, NOW + timedelta(seconds=1), pod_group=2)) == []


class TestObjects:
    def of(self, scheduler: str, pod_spec: dict[str, Any]) -> ElasticJob:
        main = {
            "name": "elasticjob-worker",
            "image": "i",
            "resources": {"limits": {"nvidia.com/gpu": 8, "cpu": "500m"}},
        }
        template = {"metadata": {"annotations": {"a": "b"}}, "spec": {"containers": [main], **pod_spec}}
        made = job(schedulingPolicy={"scheduler": scheduler, **({"queue": "lab"} if scheduler == "volcano" else {})})
        made.spec.worker.template = template
        return made

    def test_volcano_finds_a_pods_group_in_annotations(self) -> None:
        worker = worker_pod(self.of("volcano", {}), 0, 1, "2:2")
        assert worker["spec"]["schedulerName"] == "volcano"
        expected = {"a": "b", "scheduling.k8s.io/group-name": "j", "volcano.sh/task-spec": "worker"}
        assert worker["metadata"]["annotations"] == expected

    def test_the_scheduler_plugins_find_it_in_a_label(self) -> None:
        worker = worker_pod(self.of("scheduler-plugins", {"schedulerName": "batch"}), 0, 1, "2:2")
        assert worker["spec"]["schedulerName"] == "batch"
        assert worker["metadata"]["labels"]["scheduling.x-k8s.io/pod-group"] == "j"
        assert worker["metadata"]["annotations"] == {"a": "b"}

    def test_the_group_tells_what_its_members_need_together(self) -> None:
        made = job_pod_group(self.of("volcano", {"priorityClassName": "high"}), GangScheduler.VOLCANO, 3)
        assert made["spec"] == {
            "minMember": 3,
            "minResources": {"nvidia.com/gpu": "24", "cpu": "1.5"},
            "queue": "lab",
            "priorityClassName": "high",
        }


@pytest.fixture(scope="module")
def gangs(cluster: Cluster, controller: ControllerProcess) -> Iterator[Cluster]:
    """A cluster with Volcano's API, whose controller has the rights to both kinds of PodGroup."""
    rbac, name = "/apis/rbac.authorization.k8s.io/v1", "elastic-controller-gang"
    user = {"kind": "User", "apiGroup": "rbac.authorization.k8s.io", "name": CONTROLLER_USER}
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": name}
    cluster.create(f"{rbac}/clusterroles", {"metadata": {"name": name}, "rules": GANG_RULES})
    binding = {"metadata": {"name": name}, "roleRef": role, "subjects": [user]}
    cluster.create(f"{rbac}/clusterrolebindings", binding)
    install(cluster, VOLCANO, VOLCANO_API)
    yield cluster
    assert controller.process.poll() is None
    cluster.call("DELETE", f"{rbac}/clusterrolebindings/{name}")
    cluster.call("DELETE", f"{rbac}/clusterroles/{name}")


def install(cluster: Cluster, definition: dict[str, Any], api: str) -> None:
    cluster.create(CRDS, definition)
    eventually(f"{api} served", lambda: cluster.admin.get(f"{api}/podgroups").status_code == 200)


def gang_running(cluster: Cluster, namespace: str, number: int) -> dict[str, Any]:
    """Plays the scheduler of gangs, which gives the pods their node, and waits until exactly so many run."""

    def look() -> dict[str, Any]:
        for name, each in cluster.pods(namespace).items():
            if not each["spec"].get("nodeName") and not each["metadata"].get("deletionTimestamp"):
                target = {"apiVersion": "v1", "kind": "Node", "name": NODE}
                body = {"metadata": {"name": name}, "target": target}
                answer = cluster.admin.post(f"/api/v1/namespaces/{namespace}/pods/{name}/binding", json=body)
                assert answer.status_code in {201, 404, 409}, answer.text  # told to go since it was listed
        pods = cluster.run_pods(namespace, NODE)
        running = {name: each for name, each in pods.items() if each["status"]["phase"] == "Running"}
        return running if len(running) == len(pods) == number else {}

    return eventually(f"{number} running pods in {namespace}", look)


def group_of(cluster: Cluster, namespace: str, api: str = VOLCANO_API) -> dict[str, Any]:
    answer = cluster.admin.get(f"{api}/namespaces/{namespace}/podgroups/digits")
    found: dict[str, Any] = answer.json() if answer.status_code == 200 else {}
    return found


def wait_members(cluster: Cluster, namespace: str, members: int | None, api: str = VOLCANO_API) -> None:
    def look() -> bool:
        return bool(group_of(cluster, namespace, api).get("spec", {}).get("minMember") == members)

    eventually(f"a PodGroup of {members} members in {namespace}", look)


def refusals(cluster: Cluster, namespace: str) -> list[str]:
    events = cluster.call("GET", f"/api/v1/namespaces/{namespace}/events")["items"]
    return [event["message"] for event in events if event["reason"] == "PodGroupRefused"]


@pytest.mark.engines
def test_a_group_lives_with_the_work_of_its_job(gangs: Cluster) -> None:
    """Made before the workers, changed with their number, gone while the job is suspended and when it has ended."""
    namespace = gangs.namespace("gang-life")
    path = f"{JOBS}/namespaces/{namespace}/elasticjobs"
    made = gangs.create(path, elastic_job("digits", schedulingPolicy=gang(queue="lab")))
    pods = gang_running(gangs, namespace, 2)
    assert {each["spec"]["schedulerName"] for each in pods.values()} == {"volcano"}
    group = group_of(gangs, namespace)
    assert group["spec"] == {"minMember": 2, "queue": "lab"}
    (owner,) = group["metadata"]["ownerReferences"]
    assert (owner["uid"], owner["controller"]) == (made["metadata"]["uid"], True), "it is deleted with the job"
    created = min(each["metadata"]["creationTimestamp"] for each in pods.values())
    assert group["metadata"]["creationTimestamp"] <= created

    gangs.merge(f"{path}/digits", {"spec": {"replicaSpecs": {"Worker": {"replicas": 3}}}})
    gang_running(gangs, namespace, 3)
    wait_members(gangs, namespace, 3)
    gangs.merge(f"{path}/digits", {"spec": {"suspend": True}})
    wait_members(gangs, namespace, None)
    eventually("the workers go", lambda: not gangs.run_pods(namespace, NODE))
    gangs.merge(f"{path}/digits", {"spec": {"suspend": False}})
    running = gang_running(gangs, namespace, 3)
    wait_members(gangs, namespace, 3)
    for name in running:
        gangs.phase(namespace, name, "Succeeded", exit_code=0)
    gangs.wait_condition(namespace, "digits", "Succeeded")
    wait_members(gangs, namespace, None)


@pytest.mark.engines
def test_a_scheduler_that_is_not_installed_is_said_and_waited_for(
    gangs: Cluster, controller: ControllerProcess
) -> None:
    namespace = gangs.namespace("gang-late")
    path = f"{JOBS}/namespaces/{namespace}/elasticjobs"
    body = elastic_job("digits", minReplicas=1, maxReplicas=2, schedulingPolicy={"scheduler": "scheduler-plugins"})
    gangs.create(path, body)
    (message,) = eventually("the user is told", lambda: refusals(gangs, namespace))
    assert "this cluster does not know scheduling.x-k8s.io/v1alpha1. Install scheduler-plugins" in message

    def told_in_status() -> bool:
        conditions = gangs.job(namespace, "digits")["status"]["conditions"]
        return any(c["type"] == "Running" and "Install scheduler-plugins" in c["message"] for c in conditions)

    eventually("the condition Running says why", told_in_status)
    assert gangs.pods(namespace) == {}, "workers that nobody schedules are not made"
    install(gangs, SCHEDULER_PLUGINS, PLUGINS_API)
    pods = gang_running(gangs, namespace, 2)
    assert {each["metadata"]["labels"]["scheduling.x-k8s.io/pod-group"] for each in pods.values()} == {"digits"}
    wait_members(gangs, namespace, 1, PLUGINS_API)
    assert "Traceback" not in controller.log.read_text()


@pytest.mark.engines
def test_a_group_of_somebody_else_is_not_touched(gangs: Cluster) -> None:
    namespace = gangs.namespace("gang-foreign")
    foreign = {
        "apiVersion": "scheduling.volcano.sh/v1beta1",
        "kind": "PodGroup",
        "metadata": {"name": "digits"},
        "spec": {"minMember": 7},
    }
    gangs.create(f"{VOLCANO_API}/namespaces/{namespace}/podgroups", foreign)
    gangs.create(f"{JOBS}/namespaces/{namespace}/elasticjobs", elastic_job("digits", schedulingPolicy=gang()))
    (message,) = eventually("the user is told", lambda: refusals(gangs, namespace))
    assert "exists and is not of this job" in message
    assert group_of(gangs, namespace)["spec"]["minMember"] == 7
    gangs.call("DELETE", f"{VOLCANO_API}/namespaces/{namespace}/podgroups/digits")
    gang_running(gangs, namespace, 2)
    wait_members(gangs, namespace, 2)


@pytest.mark.engines
def test_the_api_server_refuses_what_means_nothing(gangs: Cluster) -> None:
    namespace = gangs.namespace("gang-refused")
    path = f"{JOBS}/namespaces/{namespace}/elasticjobs"
    with pytest.raises(ApiRefusalError, match="is a queue of Volcano"):
        gangs.create(path, elastic_job("digits", schedulingPolicy={"queue": "lab"}))
    gangs.create(path, elastic_job("digits", schedulingPolicy=gang(), suspend=True))
    with pytest.raises(ApiRefusalError, match=r"schedulingPolicy\.scheduler cannot change"):
        gangs.merge(f"{path}/digits", {"spec": {"schedulingPolicy": None}})


@pytest.mark.engines
def test_each_right_to_groups_is_used_and_none_is_missing(gangs: Cluster, controller: ControllerProcess) -> None:
    """After the tests above, that is."""
    (rule,) = GANG_RULES
    prefix = "trainyard_api_calls_total{"
    calls = [sample for sample in controller.metrics() if sample.startswith(prefix) and '"podgroups"' in sample]
    assert {sample.split('verb="')[1].split('"')[0] for sample in calls} == set(rule["verbs"])
    assert "is forbidden" not in controller.log.read_text()
    for api_group in rule["apiGroups"]:
        assert gangs.may("patch", "podgroups", "default", group=api_group)
        assert not gangs.may("list", "podgroups", "default", group=api_group)
