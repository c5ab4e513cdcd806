"""The controller as a process, with its own rights, on a real control plane; the test plays the kubelets."""

from __future__ import annotations

import json
import time
from typing import Any

import httpx2
import pytest
from real_api_server import (
    JOBS,
    NODE,
    PATIENCE,
    Cluster,
    ControllerProcess,
    elastic_job,
    eventually,
    own_pods,
    prefer,
)

from training.controller.rbac import LEASE_NAME, cluster_rules, lease_rules

pytest_plugins = ["api_server_fixture"]
pytestmark = pytest.mark.engines


def submit(cluster: Cluster, namespace: str, body: dict[str, Any]) -> None:
    cluster.namespace(namespace)
    cluster.create(f"{JOBS}/namespaces/{namespace}/elasticjobs", body)


def edit(cluster: Cluster, namespace: str, name: str, spec: dict[str, Any]) -> None:
    cluster.merge(f"{JOBS}/namespaces/{namespace}/elasticjobs/{name}", {"spec": spec})


def scale(cluster: Cluster, namespace: str, name: str, replicas: int) -> None:
    path = f"{JOBS}/namespaces/{namespace}/elasticjobs/{name}/scale"
    cluster.merge(path, {"spec": {"replicas": replicas}})


def test_a_job_becomes_workers_and_succeeds(cluster: Cluster, controller: ControllerProcess) -> None:
    submit(cluster, "loop-success", elastic_job("digits", replicas=3, minReplicas=1, maxReplicas=4))
    pods = cluster.wait_running("loop-success", 3, NODE)
    assert sorted(pods) == ["digits-worker-0", "digits-worker-1", "digits-worker-2"]
    job = cluster.wait_condition("loop-success", "digits", "Running")

    pod = pods["digits-worker-1"]
    uid8 = job["metadata"]["uid"][:8]
    container = pod["spec"]["containers"][0]
    assert container["args"] == [
        "--rdzv_backend=etcd",
        "--rdzv_endpoint=etcd.trainyard-system:2379",
        f"--rdzv_id=digits-{uid8}-1",
        "--nnodes=1:4",
        "train.py",
    ]
    assert pod["spec"]["hostname"] == "digits-worker-1"
    assert pod["spec"]["subdomain"] == "digits-workers"
    assert pod["metadata"]["labels"]["replica-index"] == "1"
    assert pod["metadata"]["ownerReferences"][0]["uid"] == job["metadata"]["uid"]
    service = cluster.call("GET", "/api/v1/namespaces/loop-success/services/digits-workers")
    assert service["spec"]["clusterIP"] == "None"
    assert service["spec"]["publishNotReadyAddresses"] is True

    for name in pods:
        cluster.phase("loop-success", name, "Succeeded", exit_code=0)
    job = cluster.wait_condition("loop-success", "digits", "Succeeded")
    status = job["status"]
    assert status["phase"] == "Succeeded"
    assert status["replicaStatuses"]["Worker"]["succeeded"] == 3
    assert status["completionTime"]
    assert {c["type"] for c in status["conditions"] if c["status"] == "True"} == {"Created", "Succeeded"}
    assert all(c["observedGeneration"] == 1 for c in status["conditions"])


def test_a_deleted_worker_is_replaced_and_not_charged(cluster: Cluster, controller: ControllerProcess) -> None:
    submit(cluster, "loop-deleted", elastic_job("digits", replicas=2, minReplicas=1, maxReplicas=2, backoffLimit=0))
    cluster.wait_running("loop-deleted", 2, NODE)
    cluster.call("DELETE", "/api/v1/namespaces/loop-deleted/pods/digits-worker-0")
    eventually("a replacement beside the leaving worker", lambda: "digits-worker-2" in cluster.pods("loop-deleted"))
    pods = cluster.wait_running("loop-deleted", 2, NODE)
    assert sorted(pods) == ["digits-worker-1", "digits-worker-2"]

    def counted() -> bool:
        status = cluster.job("loop-deleted", "digits")["status"]
        return (status["disruptions"], status["restarts"]) == (1, 0)

    eventually("one disruption, no restart", counted)


def test_a_worker_killed_by_a_signal_is_restarted_under_its_name(
    cluster: Cluster, controller: ControllerProcess
) -> None:
    submit(cluster, "loop-killed", elastic_job("digits", minReplicas=1, maxReplicas=2))
    before = cluster.wait_running("loop-killed", 2, NODE)
    cluster.phase("loop-killed", "digits-worker-1", "Failed", exit_code=137)

    def replaced() -> bool:
        pod = cluster.pods("loop-killed").get("digits-worker-1")
        return pod is not None and pod["metadata"]["uid"] != before["digits-worker-1"]["metadata"]["uid"]

    eventually("a new digits-worker-1", replaced)
    cluster.wait_running("loop-killed", 2, NODE)
    eventually("it is counted", lambda: cluster.job("loop-killed", "digits")["status"]["restarts"] == 1)


def test_c09_exit_code_1_fails_the_job_with_the_reason_and_frees_its_gpus(
    cluster: Cluster, controller: ControllerProcess
) -> None:
    submit(cluster, "loop-failed", elastic_job("digits"))
    cluster.wait_running("loop-failed", 2, NODE)
    cluster.phase("loop-failed", "digits-worker-0", "Failed", exit_code=1)
    job = cluster.wait_condition("loop-failed", "digits", "Failed")
    failed = next(c for c in job["status"]["conditions"] if c["type"] == "Failed")
    assert failed["reason"] == "WorkerFailed"
    assert "digits-worker-0 failed with exit code 1" in failed["message"]
    assert job["status"]["completionTime"]
    eventually("the survivor is stopped", lambda: sorted(cluster.run_pods("loop-failed", NODE)) == ["digits-worker-0"])


def test_scaling_up_and_down_while_training(cluster: Cluster, controller: ControllerProcess) -> None:
    submit(cluster, "loop-scale", elastic_job("digits", replicas=1, minReplicas=1, maxReplicas=4))
    first = cluster.wait_running("loop-scale", 1, NODE)
    scale(cluster, "loop-scale", "digits", 4)
    cluster.wait_running("loop-scale", 4, NODE)
    scale(cluster, "loop-scale", "digits", 2)
    left = cluster.wait_running("loop-scale", 2, NODE)
    assert left["digits-worker-0"]["metadata"]["uid"] == first["digits-worker-0"]["metadata"]["uid"]

    def settled() -> bool:
        status = cluster.job("loop-scale", "digits")["status"]
        return (status["replicas"], status["restarts"], status["disruptions"]) == (2, 0, 0)

    eventually("status with 2 workers and nothing charged", settled)


def test_c21_suspend_frees_the_workers_and_resume_starts_a_new_generation(
    cluster: Cluster, controller: ControllerProcess
) -> None:
    submit(cluster, "loop-suspend", elastic_job("digits", minReplicas=1, maxReplicas=2))
    cluster.wait_running("loop-suspend", 2, NODE)
    edit(cluster, "loop-suspend", "digits", {"suspend": True})
    cluster.wait_condition("loop-suspend", "digits", "Suspended")
    eventually("no workers", lambda: not cluster.run_pods("loop-suspend", NODE))
    assert "startTime" not in cluster.job("loop-suspend", "digits")["status"]
    edit(cluster, "loop-suspend", "digits", {"suspend": False})
    pods = cluster.wait_running("loop-suspend", 2, NODE)
    assert sorted(pods) == ["digits-worker-0", "digits-worker-1"]
    args = pods["digits-worker-0"]["spec"]["containers"][0]["args"]
    assert next(a for a in args if a.startswith("--rdzv_id")).endswith("-2")
    assert cluster.job("loop-suspend", "digits")["status"]["disruptions"] == 0


def test_a_notice_brings_a_replacement_before_the_worker_leaves(
    cluster: Cluster, controller: ControllerProcess
) -> None:
    cluster.node("spot-1", gpus=1)
    submit(cluster, "loop-notice", prefer(elastic_job("digits", minReplicas=1, maxReplicas=2), "spot-1"))
    cluster.wait_running("loop-notice", 2, "spot-1")
    taints = [own_pods("spot-1"), {"key": "aws-node-termination-handler/spot-itn", "effect": "NoSchedule"}]
    reclaim_at = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() + 3600))
    cluster.merge(
        "/api/v1/nodes/spot-1",
        {"metadata": {"annotations": {"trainyard.dev/reclaim-at": reclaim_at}}, "spec": {"taints": taints}},
    )
    eventually("two replacements", lambda: len(cluster.pods("loop-notice")) == 4)
    pods = cluster.pods("loop-notice")
    assert not any(pod["metadata"].get("deletionTimestamp") for pod in pods.values())

    def replaced() -> bool:
        cluster.run_pods("loop-notice", NODE)
        return len(cluster.run_pods("loop-notice", "spot-1")) == 2

    eventually("two leave when the others run", replaced)
    left = cluster.wait_running("loop-notice", 2, NODE)
    assert sorted(left) == ["digits-worker-2", "digits-worker-3"]
    eventually("both are counted", lambda: cluster.job("loop-notice", "digits")["status"]["disruptions"] == 2)
    assert controller.metrics()["trainyard_notice_to_replacement_seconds_count"] > 0


def test_c15_a_node_that_is_gone_gives_its_stuck_pods_back(cluster: Cluster, controller: ControllerProcess) -> None:
    cluster.node("dying", gpus=1)
    body = elastic_job("digits", replicas=1)
    body["spec"]["replicaSpecs"]["Worker"]["template"]["spec"]["terminationGracePeriodSeconds"] = 1
    submit(cluster, "loop-node", prefer(body, "dying"))
    old = cluster.wait_running("loop-node", 1, "dying")["digits-worker-0"]["metadata"]["uid"]
    cluster.call("DELETE", "/api/v1/nodes/dying")

    def stuck_one_is_gone() -> bool:
        pods = cluster.pods("loop-node").values()
        return bool(pods) and all(pod["metadata"]["uid"] != old for pod in pods)

    eventually("the stuck pod is removed and replaced", stuck_one_is_gone)
    cluster.wait_running("loop-node", 1, NODE)


def test_a_request_that_no_node_can_hold_is_said_at_once(cluster: Cluster, controller: ControllerProcess) -> None:
    body = elastic_job("greedy", replicas=1)
    container = body["spec"]["replicaSpecs"]["Worker"]["template"]["spec"]["containers"][0]
    container["resources"] = {"limits": {"nvidia.com/gpu": 8}}
    submit(cluster, "loop-greedy", body)
    job = cluster.wait_condition("loop-greedy", "greedy", "WaitingForCapacity")
    waiting = next(c for c in job["status"]["conditions"] if c["type"] == "WaitingForCapacity")
    assert waiting["reason"] == "RequestTooLarge"
    assert waiting["message"].startswith("each worker asks for 8 nvidia.com/gpu; the largest node has 4: ")
    assert waiting["message"].endswith("lower the request or add a pool")


def test_a_template_that_the_api_server_refuses_is_told_to_the_user(
    cluster: Cluster, controller: ControllerProcess
) -> None:
    body = elastic_job("broken", replicas=1)
    body["spec"]["replicaSpecs"]["Worker"]["template"]["spec"]["containers"][0]["name"] = "Not A Name"
    submit(cluster, "loop-broken", body)

    def told() -> bool:
        conditions = cluster.job("loop-broken", "broken").get("status", {}).get("conditions", [])
        return any("the API server refuses broken-worker-0" in c["message"] for c in conditions)

    eventually("the refusal in the job's conditions", told)
    assert cluster.pods("loop-broken") == {}
    edit(cluster, "loop-broken", "broken", elastic_job("broken", replicas=1)["spec"])
    cluster.wait_running("loop-broken", 1, NODE)


def test_a_template_of_the_wrong_shape_is_told_and_can_be_corrected(
    cluster: Cluster, controller: ControllerProcess
) -> None:
    wrong = {"spec": {"containers": {"name": "elasticjob-worker", "image": "i"}}}
    submit(cluster, "loop-shape", elastic_job("shape", replicas=1, template=wrong))

    def told() -> bool:
        conditions = cluster.job("loop-shape", "shape").get("status", {}).get("conditions", [])
        return any("template.spec.containers: input should be a valid list" in c["message"] for c in conditions)

    eventually("the mistake in the job's conditions", told)

    def warned() -> bool:
        events = cluster.call("GET", "/api/v1/namespaces/loop-shape/events")["items"]
        return [event["type"] for event in events if event["reason"] == "PodTemplateInvalid"] == ["Warning"]

    eventually("one event about it", warned)
    edit(cluster, "loop-shape", "shape", elastic_job("shape", replicas=1)["spec"])
    cluster.wait_running("loop-shape", 1, NODE)


def test_a_service_of_the_name_that_belongs_to_others_is_left_alone_and_told(
    cluster: Cluster, controller: ControllerProcess
) -> None:
    cluster.namespace("loop-service")
    foreign = {"metadata": {"name": "digits-workers"}, "spec": {"ports": [{"port": 80}]}}
    cluster.create("/api/v1/namespaces/loop-service/services", foreign)
    cluster.create(f"{JOBS}/namespaces/loop-service/elasticjobs", elastic_job("digits"))
    cluster.wait_running("loop-service", 2, NODE)

    def told() -> bool:
        events = cluster.call("GET", "/api/v1/namespaces/loop-service/events")["items"]
        return any(event["reason"] == "NameTaken" for event in events)

    eventually("an event about the service", told)
    service = cluster.call("GET", "/api/v1/namespaces/loop-service/services/digits-workers")
    assert "ownerReferences" not in service["metadata"]


def test_status_is_not_written_again_when_nothing_changes(cluster: Cluster, controller: ControllerProcess) -> None:
    submit(cluster, "loop-quiet", elastic_job("digits"))
    cluster.wait_running("loop-quiet", 2, NODE)

    def settled() -> bool:
        status = cluster.job("loop-quiet", "digits")["status"]
        return (status["phase"], status["readyReplicas"]) == ("Running", 2)

    eventually("the last word on two ready workers", settled)
    cluster.merge("/api/v1/nodes/" + NODE, {"metadata": {"annotations": {"heartbeat": "1"}}})
    planned = controller.metrics()["trainyard_plans_total"]
    note = {"metadata": {"annotations": {"note": "look again"}}}
    noted = cluster.merge(f"{JOBS}/namespaces/loop-quiet/elasticjobs/digits", note)
    eventually("the controller looks again", lambda: controller.metrics()["trainyard_plans_total"] > planned)
    after = cluster.job("loop-quiet", "digits")["metadata"]["resourceVersion"]
    assert after == noted["metadata"]["resourceVersion"]


def test_health_and_metrics_are_served(controller: ControllerProcess) -> None:
    base = f"http://127.0.0.1:{controller.port}"
    assert httpx2.get(f"{base}/healthz", timeout=PATIENCE).text == "ok\n"
    assert httpx2.get(f"{base}/readyz", timeout=PATIENCE).status_code == 200
    assert httpx2.get(f"{base}/else", timeout=PATIENCE).status_code == 404
    metrics = controller.metrics()
    assert metrics['trainyard_api_calls_total{verb="create",resource="pods"}'] > 0
    assert metrics['trainyard_job_events_total{reason="ElasticJobCreated"}'] > 0
    assert metrics['trainyard_queue_seconds_bucket{le="+Inf"}'] == metrics["trainyard_queue_seconds_count"] > 0
    assert metrics["trainyard_pass_seconds_count"] > 0
    assert metrics["trainyard_workers_missing"] >= 0


def test_each_line_of_its_log_is_json_and_names_the_job_it_is_about(
    cluster: Cluster, controller: ControllerProcess
) -> None:
    namespace = cluster.namespace("log")
    cluster.create(f"{JOBS}/namespaces/{namespace}/elasticjobs", elastic_job("digits"))

    def lines() -> list[dict[str, Any]]:
        whole, _, _ = controller.log.read_text().rpartition("\n")
        return [json.loads(line) for line in whole.splitlines()]

    def told() -> str:
        return "; ".join(str(line["message"]) for line in lines() if line.get("job") == f"{namespace}/digits")

    eventually("the job is told of", lambda: "takes care of this job" in told() and "created digits-worker-0" in told())
    assert all({"time", "level", "message", "logger"} <= line.keys() for line in lines())


def test_each_right_is_used_and_none_is_missing(cluster: Cluster, controller: ControllerProcess) -> None:
    """The whole life of a job, after which the calls made are exactly the rights granted."""
    cluster.namespace("loop-life")
    foreign = {"metadata": {"name": "digits-worker-0"}, "spec": {"containers": [{"name": "c", "image": "i"}]}}
    cluster.create("/api/v1/namespaces/loop-life/pods", foreign)
    body = elastic_job("digits", cleanPodPolicy="All", ttlSecondsAfterFinished=1)
    cluster.create(f"{JOBS}/namespaces/loop-life/elasticjobs", body)
    pods = cluster.wait_running("loop-life", 3, NODE)
    assert sorted(pods) == ["digits-worker-0", "digits-worker-1", "digits-worker-2"]
    for name in ("digits-worker-1", "digits-worker-2"):
        cluster.phase("loop-life", name, "Succeeded", exit_code=0)

    def job_is_gone() -> bool:
        path = f"{JOBS}/namespaces/loop-life/elasticjobs/digits"
        return cluster.admin.get(path).status_code == 404

    eventually("ttlSecondsAfterFinished deletes the job", job_is_gone)
    eventually("its pods go", lambda: sorted(cluster.run_pods("loop-life", NODE)) == ["digits-worker-0"])

    def all_told() -> bool:
        events = cluster.call("GET", "/api/v1/namespaces/loop-life/events")["items"]
        return {"SuccessfulCreatePod", "ElasticJobSucceeded", "TTLExpired"} <= {e["reason"] for e in events}

    eventually("an event of each kind", all_told)
    cluster.create(f"{JOBS}/namespaces/loop-life/elasticjobs", elastic_job("unwanted", replicas=1))
    eventually("it has its worker", lambda: "unwanted-worker-0" in cluster.run_pods("loop-life", NODE))
    cluster.call("DELETE", f"{JOBS}/namespaces/loop-life/elasticjobs/unwanted")
    eventually("which goes with it", lambda: sorted(cluster.run_pods("loop-life", NODE)) == ["digits-worker-0"])

    every = cluster_rules() + lease_rules()
    granted = {(verb, resource) for rule in every for resource in rule["resources"] for verb in rule["verbs"]}
    # when it ends, and where nobody collects garbage: test_controller_outcomes.py; PodGroups: test_controller_gang.py
    elsewhere = {("get", "deployments"), ("get", "elasticjobs")}
    prefix = "trainyard_api_calls_total{"

    def calls() -> set[tuple[str, ...]]:
        made = {
            tuple(part.split('"')[1] for part in sample.removeprefix(prefix).split(","))
            for sample in controller.metrics()
            if sample.startswith(prefix)
        }
        return {call for call in made if call[1] != "podgroups"} - elsewhere

    eventually("each right is used", lambda: calls() >= granted - elsewhere)
    assert calls() == granted - elsewhere
    refused = [line for line in controller.log.read_text().splitlines() if "is forbidden" in line]
    assert [line for line in refused if "podgroups" not in line] == []


def test_the_lease_is_the_controllers_in_one_namespace_and_by_its_name_only(cluster: Cluster) -> None:
    cluster.namespace("loop-rights")
    group = "coordination.k8s.io"
    assert cluster.may("create", "leases", "default", group=group)
    assert cluster.may("update", "leases", "default", LEASE_NAME, group)
    assert not cluster.may("update", "leases", "default", "another", group)
    for verb, name in (("create", ""), ("get", LEASE_NAME), ("update", LEASE_NAME)):
        assert not cluster.may(verb, "leases", "loop-rights", name, group)
    assert cluster.may("get", "pods", "loop-rights", "any")
    assert not cluster.may("get", "secrets", "loop-rights", "any")


def test_a_restarted_api_server_is_survived(cluster: Cluster, controller: ControllerProcess) -> None:
    submit(cluster, "loop-outage", elastic_job("digits", minReplicas=1, maxReplicas=2))
    cluster.wait_running("loop-outage", 2, NODE)
    cluster.restart_api_server()
    cluster.phase("loop-outage", "digits-worker-0", "Failed", exit_code=137)

    def counted() -> bool:
        return bool(cluster.job("loop-outage", "digits")["status"]["restarts"] == 1)

    eventually("the failure is counted", counted)
    pods = cluster.wait_running("loop-outage", 2, NODE)
    assert sorted(pods) == ["digits-worker-0", "digits-worker-1"]
    assert controller.process.poll() is None
