"""One controller after the other: what the first has begun, the second ends."""

from __future__ import annotations

import signal

import httpx2
import pytest
from real_api_server import JOBS, NODE, PATIENCE, Cluster, elastic_job, end, eventually, start_controller

from training.controller.rbac import LEASE_NAME

pytest_plugins = ["api_server_fixture"]
pytestmark = pytest.mark.engines


def test_c22_a_controller_killed_in_the_middle_of_a_scale_up_is_continued(cluster: Cluster) -> None:
    namespace = cluster.allow_lease(cluster.namespace("failover-killed-controller"))
    options = (f"--lease-namespace={namespace}", f"--namespace={namespace}")
    first = start_controller(cluster, *options)
    second = None
    try:
        eventually("the first leads", lambda: first.leading)
        cluster.create(
            f"{JOBS}/namespaces/{namespace}/elasticjobs",
            elastic_job("digits", replicas=100, minReplicas=1, maxReplicas=100),
        )
        eventually("some workers", lambda: len(cluster.pods(namespace)) > 3, pause=0.01)
        end(first.process, signal.SIGKILL)
        # 15 s would pass until its lease runs out
        cluster.call("DELETE", f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases/{LEASE_NAME}")
        second = start_controller(cluster, *options)
        every = {f"digits-worker-{i}" for i in range(100)}
        eventually("the second makes the rest", lambda: cluster.pods(namespace).keys() == every)
        leader = second
        eventually("and leads", lambda: leader.leading)
    finally:
        for process in (first, second):
            if process is not None:
                end(process.process)


def test_a_failure_that_the_first_has_counted_is_not_counted_by_the_second(cluster: Cluster) -> None:
    """The second sees the failed pod vanish while it waits, and not that it was counted."""
    namespace = cluster.allow_lease(cluster.namespace("failover-books"))
    options = (f"--lease-namespace={namespace}", f"--namespace={namespace}")
    first = start_controller(cluster, *options)
    second = None
    try:
        eventually("the first leads", lambda: first.leading)
        second = start_controller(cluster, *options)
        waiting = second
        eventually("the second waits", lambda: "another controller leads" in waiting.log.read_text())
        body = elastic_job("digits", minReplicas=1, maxReplicas=2, backoffLimit=1)
        cluster.create(f"{JOBS}/namespaces/{namespace}/elasticjobs", body)
        cluster.wait_running(namespace, 2, NODE)
        cluster.phase(namespace, "digits-worker-1", "Failed", exit_code=137)
        cluster.wait_running(namespace, 2, NODE)
        count = "trainyard_worker_pods"
        eventually("the second has seen it", lambda: waiting.metrics()[count] == first.metrics()[count] == 2)
        eventually("and has nothing to do", lambda: waiting.metrics()["trainyard_queue_length"] == 0)
        end(first.process, signal.SIGTERM)
        eventually("the second leads and plans", lambda: waiting.metrics()["trainyard_plans_total"] > 0)
        scale = f"{JOBS}/namespaces/{namespace}/elasticjobs/digits/scale"
        cluster.merge(scale, {"spec": {"replicas": 1}})
        eventually("it obeys", lambda: cluster.job(namespace, "digits")["status"]["desiredReplicas"] == 1)
        status = cluster.job(namespace, "digits")["status"]
        assert (status["restarts"], status["disruptions"], status["phase"]) == (1, 0, "Running")
    finally:
        for process in (first, second):
            if process is not None:
                end(process.process)


def test_c23_a_leader_that_stood_still_and_wakes_up_beside_its_successor_does_no_harm(cluster: Cluster) -> None:
    namespace = cluster.allow_lease(cluster.namespace("failover-frozen"))
    options = (f"--lease-namespace={namespace}", f"--namespace={namespace}")
    first = start_controller(cluster, *options)
    second = None
    try:
        eventually("the first leads", lambda: first.leading)
        cluster.create(f"{JOBS}/namespaces/{namespace}/elasticjobs", elastic_job("digits"))
        cluster.wait_running(namespace, 2, NODE)
        first.process.send_signal(signal.SIGSTOP)
        # 15 s would pass until its lease runs out
        cluster.call("DELETE", f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases/{LEASE_NAME}")
        second = start_controller(cluster, *options)
        leader = second
        eventually("the second leads", lambda: leader.leading)
        cluster.phase(namespace, "digits-worker-1", "Failed", exit_code=137)
        first.process.send_signal(signal.SIGCONT)

        def counted() -> bool:
            return bool(cluster.job(namespace, "digits")["status"]["restarts"] == 1)

        eventually("the failure is counted", counted)
        pods = cluster.wait_running(namespace, 2, NODE)
        assert sorted(pods) == ["digits-worker-0", "digits-worker-1"]
        eventually("the first has stepped back", lambda: not first.leading and leader.leading)
        status = cluster.job(namespace, "digits")["status"]
        assert (status["restarts"], status["disruptions"]) == (1, 0)
    finally:
        for process in (first, second):
            if process is not None:
                process.process.send_signal(signal.SIGCONT)
                end(process.process)


def test_the_lease_passes_to_the_next_controller_at_once(cluster: Cluster) -> None:
    cluster.allow_lease(cluster.namespace("failover-lease"))
    first = start_controller(cluster, "--lease-namespace=failover-lease", "--namespace=failover-lease")
    second = None
    try:
        eventually("the first leads", lambda: first.leading)
        second = start_controller(cluster, "--lease-namespace=failover-lease", "--namespace=failover-lease")
        waiting = second
        eventually("the second waits", lambda: "another controller leads" in waiting.log.read_text())
        assert not second.leading
        assert httpx2.get(f"http://127.0.0.1:{second.port}/readyz", timeout=PATIENCE).status_code == 200
        lease = f"/apis/coordination.k8s.io/v1/namespaces/failover-lease/leases/{LEASE_NAME}"
        holder = cluster.call("GET", lease)["spec"]["holderIdentity"]
        assert end(first.process, signal.SIGTERM) == 0
        assert "released the lease" in first.log.read_text()
        # Nobody need wait for it to run out: it is free, or the second's already.
        assert cluster.call("GET", lease)["spec"].get("holderIdentity") != holder
        eventually("the second leads", lambda: waiting.leading)
    finally:
        for process in (first, second):
            if process is not None:
                end(process.process)
