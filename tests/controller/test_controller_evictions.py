"""Workers that the cluster itself sends away: preempted by the real scheduler, drained through the eviction API."""

from __future__ import annotations

from typing import Any

import pytest
from real_api_server import (
    JOBS,
    ApiRefusalError,
    Cluster,
    ControllerProcess,
    elastic_job,
    eventually,
    own_pods,
)

pytest_plugins = ["api_server_fixture"]
pytestmark = pytest.mark.engines

CLASSES = "/apis/scheduling.k8s.io/v1/priorityclasses"
TOO_MANY_REQUESTS = 429


def pod_spec(name: str, priority: str, node: str) -> dict[str, Any]:
    """A pod that takes the one GPU of a node."""
    return {
        "containers": [{"name": name, "image": "i", "resources": {"limits": {"nvidia.com/gpu": "1"}}}],
        "priorityClassName": priority,
        "nodeSelector": {"pool": node},
        "tolerations": [own_pods(node)],
    }


def disruptions(controller: ControllerProcess, cause: str) -> float:
    return controller.metrics().get(f'trainyard_worker_disruptions_total{{cause="{cause}"}}', 0)


def test_a_preempted_worker_comes_back_when_there_is_room_and_is_not_charged(
    cluster: Cluster, controller: ControllerProcess
) -> None:
    node = "priority-node"
    cluster.node(node, gpus=1, labels={"pool": node})
    for name, value in (("priority-high", 1000), ("priority-low", 100)):
        cluster.create(CLASSES, {"metadata": {"name": name}, "value": value})
    namespace = cluster.namespace("priority")
    template = {"spec": pod_spec("elasticjob-worker", "priority-low", node)}
    cluster.create(f"{JOBS}/namespaces/{namespace}/elasticjobs", elastic_job("digits", replicas=1, template=template))
    (worker,) = cluster.wait_running(namespace, 1, node).values()
    assert worker["spec"]["priority"] == 100

    urgent = {"metadata": {"name": "urgent"}, "spec": pod_spec("c", "priority-high", node)}
    cluster.create(f"/api/v1/namespaces/{namespace}/pods", urgent)
    eventually(
        "the urgent pod has the worker's place",
        lambda: cluster.run_pods(namespace, node)["urgent"]["spec"].get("nodeName") == node,
    )
    eventually("it is counted", lambda: cluster.job(namespace, "digits")["status"].get("disruptions") == 1)
    eventually("and its cause", lambda: disruptions(controller, "PreemptionByScheduler") >= 1)
    cluster.wait_condition(namespace, "digits", "WaitingForCapacity")
    eventually("time below desired", lambda: controller.metrics()["trainyard_jobs_below_desired"] >= 1)

    cluster.call("DELETE", f"/api/v1/namespaces/{namespace}/pods/urgent")
    (another,) = cluster.wait_running(namespace, 1, node).values()
    assert another["metadata"]["labels"]["job-name"] == "digits"
    assert another["metadata"]["uid"] != worker["metadata"]["uid"]
    assert not cluster.job(namespace, "digits")["status"].get("restarts")
    assert controller.metrics()["trainyard_below_desired_seconds_total"] > 0


def evicted(cluster: Cluster, namespace: str, pod: str) -> bool:
    """Whether the eviction that a drain asks for is granted now."""
    body = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": pod, "namespace": namespace}}
    try:
        cluster.create(f"/api/v1/namespaces/{namespace}/pods/{pod}/eviction", body)
    except ApiRefusalError as refusal:
        if refusal.code != TOO_MANY_REQUESTS:
            raise
        return False
    return True


def test_a_drain_takes_two_workers_of_a_node_one_after_the_other(
    cluster: Cluster, controller: ControllerProcess
) -> None:
    """The second may go when another trains in the first one's place: there are never fewer than minReplicas."""
    drained, other = "drained-node", "other-node"
    namespace = cluster.namespace("drain")
    job = elastic_job("digits", replicas=2, minReplicas=1, maxReplicas=2)
    spec = job["spec"]["replicaSpecs"]["Worker"]["template"]["spec"]
    spec |= {"nodeSelector": {"pool": "drain"}, "tolerations": [own_pods(drained), own_pods(other)]}
    cluster.node(drained, labels={"pool": "drain"})
    cluster.create(f"{JOBS}/namespaces/{namespace}/elasticjobs", job)
    first, second = sorted(cluster.wait_running(namespace, 2, drained))
    cluster.node(other, labels={"pool": "drain"})

    cluster.merge(f"/api/v1/nodes/{drained}", {"spec": {"unschedulable": True}})
    eventually("the budget lets the first go", lambda: evicted(cluster, namespace, first))
    assert not evicted(cluster, namespace, second), "the last one that trains has to stay"

    def the_second_may_go() -> bool:
        for node in (drained, other):
            cluster.run_pods(namespace, node)
        return evicted(cluster, namespace, second)

    eventually("the second may go when a replacement runs", the_second_may_go)
    running = [pod for pod in cluster.pods(namespace).values() if pod["spec"].get("nodeName") == other]
    assert "Running" in [pod["status"]["phase"] for pod in running]

    def all_moved() -> bool:
        pods = [cluster.run_pods(namespace, node) for node in (drained, other)][-1].values()
        return [(pod["spec"].get("nodeName"), pod["status"]["phase"]) for pod in pods] == [(other, "Running")] * 2

    eventually("both workers are on the other node", all_moved)
    eventually("both were counted", lambda: cluster.job(namespace, "digits")["status"].get("disruptions") == 2)
    eventually("and their cause", lambda: disruptions(controller, "EvictionByEvictionAPI") >= 2)
    assert not cluster.job(namespace, "digits")["status"].get("restarts")
