"""Kueue itself, built from its Go module, with the queues of a stack: what waits, what is lent, what is taken back.

Not part of `make test`, for building Kueue takes minutes: `make test-kueue`. Its webhooks are those of its module.
Their Service is an ExternalName, by which an API server without a network for pods finds them on this computer.
"""

from __future__ import annotations

import base64
import os
from collections.abc import Iterator
from typing import Any

import httpx2
import pytest
import yaml
from kueue_module import kueue_module
from real_api_server import (
    ADMIN_TOKEN,
    JOBS,
    NODE,
    Cluster,
    ControllerProcess,
    Object,
    elastic_job,
    end,
    eventually,
    free_port,
)

from infra.in_cluster.queues import configuration, manifests
from infra.settings.aws import Aws
from infra.wiring.queue_plan import queue_plan
from infra.wiring.scheduling import POOL_LABEL

pytest_plugins = ["api_server_fixture"]
pytestmark = [pytest.mark.kueue, pytest.mark.timeout(600)]

API = "/apis/kueue.x-k8s.io/v1beta2"
ADMISSION = "/apis/admissionregistration.k8s.io/v1"
JOBS_NAMESPACE, OWN_NAMESPACE = "training", "kueue-system"
SERVICE, SECRET = "kueue-webhook-service", "kueue-webhook-server-cert"
CONVERTED = ("localqueues", "clusterqueues", "cohorts", "workloads", "multikueueclusters")
# One GPU a machine; the team's two machines are lent while they stand idle.
AWS = {
    "region": "us-east-2",
    "network": {"zones": ["us-east-2a"]},
    "nodePools": [
        {"name": "team", "types": ["g5.xlarge"], "capacity": "on-demand", "max": 2},
        {"name": "spot", "types": ["g5.xlarge"], "capacity": "spot", "max": 1},
    ],
    "queues": {"dedicated": {"team": ["team"]}},
}


@pytest.fixture(scope="module")
def kueue(cluster: Cluster) -> Iterator[Cluster]:
    """The control plane with Kueue, and the queues of a stack."""
    program = os.environ.get("TRAINYARD_KUEUE")
    assert program, "make test-kueue builds Kueue, and names it here"
    port, health, folder = free_port(), free_port(), cluster.folder / "kueue"
    certificates = folder / "certificates"
    certificates.mkdir(parents=True)
    for name in (JOBS_NAMESPACE, OWN_NAMESPACE):
        cluster.namespace(name)
    install(cluster, port)
    settings = configuration(JOBS_NAMESPACE) | {
        "namespace": OWN_NAMESPACE,
        "health": {"healthProbeBindAddress": f"127.0.0.1:{health}"},
        "metrics": {"bindAddress": f"127.0.0.1:{free_port()}"},
        "webhook": {"port": port, "certDir": str(certificates)},
        "leaderElection": {"leaderElect": False},
        "internalCertManagement": {"enable": True, "webhookServiceName": SERVICE, "webhookSecretName": SECRET},
    }
    (folder / "configuration.yaml").write_text(yaml.safe_dump(settings))
    cluster.commands["kueue"] = [
        program,
        f"--config={folder / 'configuration.yaml'}",
        f"--visibility-server-port={free_port()}",
        "--feature-gates=VisibilityOnDemand=false",
        f"--kubeconfig={cluster.kubeconfig(ADMIN_TOKEN)}",
    ]
    cluster.start("kueue")
    where = f"/api/v1/namespaces/{OWN_NAMESPACE}/secrets/{SECRET}"
    # A kubelet mounts the certificate that Kueue has made for itself.

    def certificate() -> dict[str, str]:
        return cluster.call("GET", where).get("data") or {}

    for name, data in eventually("Kueue's certificate", certificate).items():
        (certificates / name).write_bytes(base64.b64decode(data))

    def ready() -> bool:
        assert cluster.processes["kueue"].poll() is None, (cluster.folder / "kueue.log").read_text()[-3000:]
        try:
            return httpx2.get(f"http://127.0.0.1:{health}/readyz").status_code == 200
        except httpx2.HTTPError:
            return False

    eventually("Kueue is ready", ready)
    plan = queue_plan(Aws.model_validate(AWS, by_alias=True, by_name=False))
    assert plan is not None
    for manifest in manifests(plan, JOBS_NAMESPACE):
        make(cluster, manifest)
    for pool, number in {"team": 2, "spot": 1}.items():
        for index in range(number):
            cluster.node(f"{pool}-{index}", gpus=1, labels={POOL_LABEL: pool})
            cluster.merge(f"/api/v1/nodes/{pool}-{index}", {"spec": {"taints": None}})
    yield cluster
    end(cluster.processes.pop("kueue"))


def install(cluster: Cluster, port: int) -> None:
    """Kueue's definitions and its webhooks for its own kinds and for pods."""
    components = kueue_module() / "config/components"
    inside = f"/api/v1/namespaces/{OWN_NAMESPACE}"
    name = {"type": "ExternalName", "externalName": "localhost"}
    cluster.create(f"{inside}/services", {"metadata": {"name": SERVICE}, "spec": name})
    cluster.create(f"{inside}/secrets", {"metadata": {"name": SECRET}})
    service = {"namespace": OWN_NAMESPACE, "name": SERVICE, "port": port}
    for path in sorted((components / "crd/bases").glob("*.yaml")):
        definition = yaml.safe_load(path.read_text())
        if definition["spec"]["names"]["plural"] in CONVERTED:
            client = {"clientConfig": {"service": service | {"path": "/convert"}}, "conversionReviewVersions": ["v1"]}
            definition["spec"]["conversion"] = {"strategy": "Webhook", "webhook": client}
        cluster.create("/apis/apiextensions.k8s.io/v1/customresourcedefinitions", definition)
    for configuration_ in yaml.safe_load_all((components / "webhook/manifests.yaml").read_text()):
        word = "mutating" if configuration_["kind"].startswith("Mutating") else "validating"
        configuration_["metadata"]["name"] = f"kueue-{word}-webhook-configuration"
        configuration_["webhooks"] = [each for each in configuration_["webhooks"] if is_wanted(each)]
        for webhook in configuration_["webhooks"]:
            webhook["clientConfig"]["service"] |= service
            if webhook["rules"][0]["apiGroups"] == [""]:
                webhook["namespaceSelector"] = {"matchLabels": {"kubernetes.io/metadata.name": JOBS_NAMESPACE}}
        cluster.create(f"{ADMISSION}/{word}webhookconfigurations", configuration_)


def is_wanted(webhook: dict[str, Any]) -> bool:
    of = {(group, kind) for rule in webhook["rules"] for group in rule["apiGroups"] for kind in rule["resources"]}
    return all(group == "kueue.x-k8s.io" or (group, kind) == ("", "pods") for group, kind in of)


def make(cluster: Cluster, manifest: Object) -> None:
    plurals = {"Topology": "topologies", "WorkloadPriorityClass": "workloadpriorityclasses"}
    namespace = manifest["metadata"].get("namespace")
    where = f"/namespaces/{namespace}" if namespace else ""
    cluster.create(f"{API}{where}/{plurals.get(manifest['kind'], manifest['kind'].lower() + 's')}", manifest)


def queued(name: str, queue: str, replicas: int, **spec: Any) -> Object:
    """A job each of whose workers asks for a GPU of a queue's pools."""
    resources = {"limits": {"nvidia.com/gpu": 1, "cpu": "1", "memory": "1Gi"}}
    container = {"name": "elasticjob-worker", "image": "registry.example/training:1", "args": ["train.py"]}
    tolerations = [{"key": "nvidia.com/gpu", "operator": "Exists"}, {"key": "trainyard.dev/spot", "operator": "Exists"}]
    template = {
        "metadata": {"labels": {"kueue.x-k8s.io/queue-name": queue}},
        "spec": {"containers": [{**container, "resources": resources}], "tolerations": tolerations},
    }
    return elastic_job(name, replicas=replicas, template=template, minReplicas=1, maxReplicas=replicas, **spec)


def played(cluster: Cluster, job: str) -> dict[str, str]:
    """All kubelets have done their part; the workers of a job, and what each does."""
    for node in ("team-0", "team-1", "spot-0", NODE):
        cluster.run_pods(JOBS_NAMESPACE, node)
    found = {}
    for name, pod in cluster.pods(JOBS_NAMESPACE).items():
        if name.startswith(f"{job}-worker"):
            waits = bool(pod["spec"].get("schedulingGates"))
            found[name] = "waits" if waits else pod["spec"].get("nodeName", "admitted")
    return found


def test_workers_wait_for_their_quota_idle_pools_are_lent_and_taken_back(
    kueue: Cluster, controller: ControllerProcess
) -> None:
    where = f"{JOBS}/namespaces/{JOBS_NAMESPACE}/elasticjobs"
    kueue.create(where, queued("guest", "shared", 4))
    eventually(
        "three of four train, two of them on what the team does not use",
        lambda: sorted(played(kueue, "guest").values()) == ["spot-0", "team-0", "team-1", "waits"],
    )
    kueue.wait_condition(JOBS_NAMESPACE, "guest", "Running")
    waiting = [name for name, node in played(kueue, "guest").items() if node == "waits"]
    workloads = kueue.call("GET", f"{API}/namespaces/{JOBS_NAMESPACE}/workloads")["items"]
    owners = {each["metadata"]["ownerReferences"][0]["name"]: each["status"]["conditions"] for each in workloads}
    assert any("insufficient" in condition["message"] for condition in owners[waiting[0]])

    kueue.create(where, queued("owner", "team", 2))
    eventually(
        "the team has its machines back, and the guest trains on with one worker",
        lambda: (
            (sorted(played(kueue, "owner").values()), sorted(played(kueue, "guest").values()))
            == (["team-0", "team-1"], ["spot-0", "waits", "waits", "waits"])
        ),
    )
    guest = kueue.wait_condition(JOBS_NAMESPACE, "guest", "Running")
    assert not [each for each in guest["status"]["conditions"] if each["type"] == "Failed" and each["status"] == "True"]

    kueue.call("DELETE", f"{where}/owner")
    eventually(
        "the guest has them again",
        lambda: sorted(played(kueue, "guest").values()) == ["spot-0", "team-0", "team-1", "waits"],
    )
    kueue.call("DELETE", f"{where}/guest")
    eventually("all workers are gone", lambda: not played(kueue, "guest"))
