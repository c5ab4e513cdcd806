"""The API server serves the controller from seats of its own (API priority and fairness)."""

from __future__ import annotations

import re
import ssl
from collections.abc import Iterator

import httpx2
import pytest
from real_api_server import CONTROLLER_TOKEN, CONTROLLER_USER, JOBS, Cluster, ControllerProcess, eventually

from training.controller.flow import LEASES, LEVEL, flow_objects

pytest_plugins = ["api_server_fixture"]
pytestmark = pytest.mark.engines

API = "/apis/flowcontrol.apiserver.k8s.io/v1"
PLURALS = {"PriorityLevelConfiguration": "prioritylevelconfigurations", "FlowSchema": "flowschemas"}


@pytest.fixture(scope="module")
def flows(cluster: Cluster) -> Iterator[dict[str, str]]:
    """The UID of each object, by `kind/name`."""
    _, _, namespace, account = CONTROLLER_USER.split(":")
    objects = flow_objects(namespace, account)
    made = {
        f"{each['kind']}/{each['metadata']['name']}": cluster.create(f"{API}/{PLURALS[each['kind']]}", each)
        for each in objects
    }
    yield {name: each["metadata"]["uid"] for name, each in made.items()}
    for each in reversed(objects):
        cluster.call("DELETE", f"{API}/{PLURALS[each['kind']]}/{each['metadata']['name']}")


@pytest.fixture(scope="module")
def as_controller(cluster: Cluster) -> Iterator[httpx2.Client]:
    """A client with the controller's token."""
    headers = {"Authorization": f"Bearer {CONTROLLER_TOKEN}"}
    trust = ssl.create_default_context(cafile=cluster.ca)
    with httpx2.Client(base_url=cluster.server, verify=trust, headers=headers, timeout=120) as client:
        yield client


@pytest.mark.parametrize(
    ("path", "schema", "level"),
    [
        (f"{JOBS}/elasticjobs", LEVEL, LEVEL),
        ("/api/v1/nodes", LEVEL, LEVEL),
        ("/api/v1/namespaces/default/pods", LEVEL, LEVEL),
        ("/apis/coordination.k8s.io/v1/namespaces/default/leases/any", LEASES, "leader-election"),
    ],
)
def test_the_controllers_requests_are_classified(
    cluster: Cluster, flows: dict[str, str], as_controller: httpx2.Client, path: str, schema: str, level: str
) -> None:
    """The API server tells in each answer by which schema and level it was served."""
    levels = cluster.call("GET", f"{API}/prioritylevelconfigurations/{level}")

    def classified() -> bool:
        headers = as_controller.get(path).headers
        return (headers["x-kubernetes-pf-flowschema-uid"], headers["x-kubernetes-pf-prioritylevel-uid"]) == (
            flows[f"FlowSchema/{schema}"],
            levels["metadata"]["uid"],
        )

    eventually(f"{path} is served by {schema}", classified)  # the API server takes up new schemas after a moment


def test_others_are_not(cluster: Cluster, flows: dict[str, str]) -> None:
    answer = cluster.admin.get(f"{JOBS}/elasticjobs")
    assert answer.headers["x-kubernetes-pf-flowschema-uid"] not in flows.values()


@pytest.mark.usefixtures("flows")
def test_the_running_controller_is_served_there(cluster: Cluster, controller: ControllerProcess) -> None:
    def dispatched(schema: str) -> float:
        name = "apiserver_flowcontrol_dispatched_requests_total"
        pattern = rf'^{name}{{[^}}]*flow_schema="{schema}"[^}}]*}} (\S+)$'
        return sum(float(number) for number in re.findall(pattern, cluster.admin.get("/metrics").text, re.MULTILINE))

    def both_grow() -> bool:
        return dispatched(LEVEL) > before[0] and dispatched(LEASES) > before[1]

    before = dispatched(LEVEL), dispatched(LEASES)
    namespace = cluster.namespace("flow-job")
    worker = {"template": {"spec": {"containers": [{"name": "c", "image": "i"}]}}}
    spec = {"rdzvEndpoint": "etcd:2379", "replicaSpecs": {"Worker": worker}}
    body = {
        "apiVersion": "elastic.pytorch.org/v1alpha1",
        "kind": "ElasticJob",
        "metadata": {"name": "digits"},
        "spec": spec,
    }
    cluster.create(f"{JOBS}/namespaces/{namespace}/elasticjobs", body)
    eventually("the worker is made", lambda: cluster.pods(namespace))
    eventually("requests of both kinds are counted", both_grow)
    assert controller.process.poll() is None
