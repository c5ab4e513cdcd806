"""One controller after the other: what the first has begun, the second ends."""

from __future__ import annotations

import signal

import httpx2
import pytest
from real_api_server import JOBS, Cluster, elastic_job, end, eventually, start_controller

from training.controller.rbac import LEASE_NAME

pytest_plugins = ["api_server_fixture"]
pytestmark = pytest.mark.engines


def test_a_controller_killed_in_the_middle_of_a_scale_up_is_continued(cluster: Cluster) -> None:
    namespace = cluster.namespace("failover-killed-controller")
    options = (f"--lease-namespace={namespace}", f"--namespace={namespace}")
    first = start_controller(cluster, *options)
    second = None
    try:
        eventually("the first leads", lambda: first.leading, within=20)
        cluster.create(
            f"{JOBS}/namespaces/{namespace}/elasticjobs",
            elastic_job("digits", replicas=100, minReplicas=1, maxReplicas=100),
        )
        eventually("some workers", lambda: len(cluster.pods(namespace)) > 3, pause=0.01)
        end(first.process, signal.SIGKILL)
        # 15 s would pass until its lease runs out
        cluster.call("DELETE", f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases/{LEASE_NAME}")
        second = start_controller(cluster, *options)
        log = second.log
        eventually("the second makes the rest", lambda: '"created ' in log.read_text(), within=20)
        assert sorted(cluster.pods(namespace)) == sorted(f"digits-worker-{i}" for i in range(100))
    finally:
        for process in (first, second):
            if process is not None:
                end(process.process)


def test_the_lease_passes_to_the_next_controller_at_once(cluster: Cluster) -> None:
    cluster.namespace("failover-lease")
    first = start_controller(cluster, "--lease-namespace=failover-lease", "--namespace=failover-lease")
    second = None
    try:
        eventually("the first leads", lambda: first.leading, within=20)
        second = start_controller(cluster, "--lease-namespace=failover-lease", "--namespace=failover-lease")
        waiting = second
        eventually("the second waits", lambda: "another controller leads" in waiting.log.read_text(), within=20)
        assert not second.leading
        assert httpx2.get(f"http://127.0.0.1:{second.port}/readyz").status_code == 200
        assert end(first.process, signal.SIGTERM) == 0
        lease = cluster.call("GET", f"/apis/coordination.k8s.io/v1/namespaces/failover-lease/leases/{LEASE_NAME}")
        assert not lease["spec"].get("holderIdentity") or waiting.leading
        eventually("the second leads", lambda: waiting.leading, within=6)
    finally:
        for process in (first, second):
            if process is not None:
                end(process.process)
