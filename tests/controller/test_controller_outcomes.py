"""No end of a worker is lost, and no pod is kept for longer than its end is of interest: the finalizer at work."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from real_api_server import JOBS, NODE, Cluster, ControllerProcess, elastic_job, end, eventually, start_controller

from training.controller.api import FINALIZER
from training.controller.rbac import DEPLOYMENT_NAME

pytest_plugins = ["api_server_fixture"]
pytestmark = pytest.mark.engines

DEPLOYMENTS = "/apis/apps/v1/namespaces/default/deployments"


@contextmanager
def running(cluster: Cluster, namespace: str, *options: str) -> Iterator[ControllerProcess]:
    """A controller of one namespace; it has ended well when the block is left."""
    made = start_controller(cluster, f"--lease-namespace={namespace}", f"--namespace={namespace}", *options)
    try:
        eventually("it leads", lambda: made.leading)
        yield made
    finally:
        assert end(made.process) == 0, made.log.read_text()
        assert "Traceback" not in made.log.read_text(), made.log.read_text()


def submit(cluster: Cluster, namespace: str, number: int) -> None:
    cluster.create(f"{JOBS}/namespaces/{namespace}/elasticjobs", elastic_job("digits", replicas=number, backoffLimit=5))
    cluster.wait_running(namespace, number, NODE)


def held(cluster: Cluster, namespace: str) -> list[str]:
    return [name for name, pod in cluster.pods(namespace).items() if FINALIZER in pod["metadata"].get("finalizers", ())]


def test_ends_while_no_controller_runs_are_counted_though_somebody_deletes_the_pods(cluster: Cluster) -> None:
    namespace = cluster.allow_lease(cluster.namespace("outcomes-away"))
    with running(cluster, namespace):
        submit(cluster, namespace, 3)
    cluster.phase(namespace, "digits-worker-0", "Failed", exit_code=137)
    time.sleep(1.1)  # times have whole seconds, and what happens within one counts as told before it ended
    for name in ("digits-worker-0", "digits-worker-1"):  # the second by force, while it works
        cluster.remove(namespace, name)
    assert held(cluster, namespace) == ["digits-worker-0", "digits-worker-1", "digits-worker-2"]
    with running(cluster, namespace):
        cluster.wait_running(namespace, 3, NODE)
        status = cluster.job(namespace, "digits")["status"]
        assert (status["restarts"], status["disruptions"]) == (1, 1)
        assert len(held(cluster, namespace)) == 3  # of the new ones


def test_a_job_that_is_deleted_takes_its_pods_with_it(cluster: Cluster) -> None:
    """No garbage collector runs here: the controller does it, and faster."""
    namespace = cluster.allow_lease(cluster.namespace("outcomes-deleted"))
    with running(cluster, namespace):
        submit(cluster, namespace, 2)
        cluster.call("DELETE", f"{JOBS}/namespaces/{namespace}/elasticjobs/digits")
        eventually("they are told to go and let go", lambda: not held(cluster, namespace))
        eventually("they go", lambda: not cluster.run_pods(namespace, NODE) and not cluster.pods(namespace))


def test_a_job_may_be_deleted_without_its_pods(cluster: Cluster) -> None:
    namespace = cluster.allow_lease(cluster.namespace("outcomes-orphans"))
    with running(cluster, namespace):
        submit(cluster, namespace, 1)
        path = f"{JOBS}/namespaces/{namespace}/elasticjobs/digits"
        cluster.call("DELETE", path, {"propagationPolicy": "Orphan"})
        # the garbage collector takes the owner from the pod, then the finalizer from the job
        eventually("it is let go", lambda: not held(cluster, namespace))
        assert list(cluster.run_pods(namespace, NODE)) == ["digits-worker-0"]


def test_a_controller_that_is_removed_lets_the_pods_go_and_one_that_is_updated_does_not(cluster: Cluster) -> None:
    namespace = cluster.allow_lease(cluster.namespace("outcomes-removed"))
    labels = {"app": DEPLOYMENT_NAME}
    template = {"metadata": {"labels": labels}, "spec": {"containers": [{"name": "c", "image": "i"}]}}
    spec = {"selector": {"matchLabels": labels}, "template": template}
    cluster.create(DEPLOYMENTS, {"metadata": {"name": DEPLOYMENT_NAME}, "spec": spec})
    with running(cluster, namespace, f"--deployment={DEPLOYMENT_NAME}"):
        submit(cluster, namespace, 2)
    assert len(held(cluster, namespace)) == 2
    with running(cluster, namespace, f"--deployment={DEPLOYMENT_NAME}"):
        cluster.call("DELETE", f"{DEPLOYMENTS}/{DEPLOYMENT_NAME}")
    assert held(cluster, namespace) == []
    assert len(cluster.run_pods(namespace, NODE)) == 2  # they train on
