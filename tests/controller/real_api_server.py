"""A real etcd and a real kube-apiserver for the tests of the controller; the tests play kubelet and scheduler.

No controller-manager runs here: nothing collects garbage, ends namespaces or writes node conditions but the tests.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import httpx2
import pytest
import yaml

from infra.local.engines import locate
from training.controller.crd import custom_resource_definition
from training.controller.rbac import cluster_rules, lease_rules

Object = dict[str, Any]
T = TypeVar("T")

ADMIN_TOKEN = "admin-token"
CONTROLLER_TOKEN = "controller-token"
CONTROLLER_USER = "system:serviceaccount:trainyard-system:elastic-controller"
# Seconds. A wait ends as soon as what it waits for is there, so this costs nothing; a machine whose disk or processor
# stands still for a while must not decide a test.
PATIENCE = 120.0
NODE = "steady-node"
"""A node with one GPU that is there all the time."""
UPSTREAM_SAMPLE = """
apiVersion: elastic.pytorch.org/v1alpha1
kind: ElasticJob
metadata:
  name: imagenet
spec:
  # Use "etcd-service:2379" if you already apply etcd.yaml
  rdzvEndpoint: "etcd-service:2379"
  minReplicas: 1
  maxReplicas: 3
  replicaSpecs:
    Worker:
      replicas: 2
      restartPolicy: ExitCode
      template:
        apiVersion: v1
        kind: Pod
        spec:
          containers:
            - name: elasticjob-worker
              image: torchelastic/examples:0.2.0
              imagePullPolicy: Always
              args:
                - "--nproc_per_node=1"
                - "/workspace/examples/imagenet/main.py"
                - "--arch=resnet18"
                - "--epochs=20"
                - "--batch-size=32"
                - "--workers=0"
                - "/workspace/data/tiny-imagenet-200"
              resources:
                limits:
                  nvidia.com/gpu: 1
"""
JOBS = "/apis/elastic.pytorch.org/v1alpha1"


def engine(name: str) -> str:
    """Path of an engine, from where the command would take it."""
    found = locate(name)
    if found is None:
        pytest.fail(f"{name} is missing: make setup")
    return str(found.path)


def free_port() -> int:
    """A port to listen on; below those of outgoing connections, one of which could take it before the server does."""
    while True:
        port = random.randrange(10000, 20000)  # noqa: S311 - no secret
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port


def eventually(what: str, look: Callable[[], T], *, within: float = PATIENCE, pause: float = 0.05) -> T:
    """Looks until there is something true to see, which is returned."""
    deadline = time.monotonic() + within
    while True:
        seen = look()
        if seen:
            return seen
        if time.monotonic() > deadline:
            pytest.fail(f"not within {within} s: {what}; last seen: {seen!r}")
        time.sleep(pause)


def end(process: subprocess.Popen[bytes], number: int = signal.SIGTERM, within: float = PATIENCE) -> int:
    """Ends a process that this test started."""
    if process.poll() is None:
        process.send_signal(number)
        try:
            process.wait(within)
        except subprocess.TimeoutExpired:
            process.kill()
    return process.wait()


@dataclass
class Cluster:
    """The API server, with what a kubelet and a scheduler would do as methods."""

    server: str
    ca: Path
    folder: Path
    commands: dict[str, list[str]]
    processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)
    admin: httpx2.Client = field(init=False)

    def connect(self) -> None:
        """Trusts the certificate that the API server has made for itself."""
        eventually("certificate of the API server", self.ca.exists)
        self.admin = httpx2.Client(
            base_url=self.server,
            verify=ssl.create_default_context(cafile=self.ca),
            headers={"Authorization": f"Bearer {ADMIN_TOKEN}"},
            timeout=PATIENCE,
        )

    def start(self, name: str) -> None:
        """Starts an engine, again perhaps."""
        log = (self.folder / f"{name}.log").open("ab")
        self.processes[name] = subprocess.Popen(
            self.commands[name], stdout=log, stderr=subprocess.STDOUT, start_new_session=True
        )

    def wait_ready(self) -> None:
        """Waits until the API server answers."""

        def ready() -> bool:
            assert all(process.poll() is None for process in self.processes.values()), "an engine ended: see its log"
            try:
                return self.admin.get("/readyz").status_code == 200
            except httpx2.HTTPError:
                return False

        eventually("API server ready", ready, pause=0.2)

    def kubeconfig(self, token: str) -> Path:
        """A kubeconfig for the holder of a token."""
        path = self.folder / f"{token}.kubeconfig"
        cluster = {"server": self.server, "certificate-authority": str(self.ca)}
        content = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "test", "cluster": cluster}],
            "users": [{"name": "test", "user": {"token": token}}],
            "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test"}}],
            "current-context": "test",
        }
        path.write_text(yaml.safe_dump(content))
        return path

    def call(self, method: str, path: str, body: Object | None = None, kind: str = "application/json") -> Object:
        answer = self.admin.request(method, path, json=body, headers={"Content-Type": kind})
        if answer.status_code >= 400:
            raise ApiRefusalError(answer.status_code, answer.json().get("message", answer.text))
        result: Object = answer.json()
        return result

    def create(self, path: str, body: Object) -> Object:
        return self.call("POST", path, body)

    def merge(self, path: str, body: Object) -> Object:
        return self.call("PATCH", path, body, "application/merge-patch+json")

    def namespace(self, name: str) -> str:
        self.create("/api/v1/namespaces", {"metadata": {"name": name}})
        return name

    def allow_lease(self, namespace: str) -> str:
        """Gives the controller its rights to the Lease in a namespace."""
        path = f"/apis/rbac.authorization.k8s.io/v1/namespaces/{namespace}"
        name = {"name": "elastic-controller"}
        self.create(f"{path}/roles", {"metadata": name, "rules": lease_rules()})
        role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", **name}
        user = {"kind": "User", "apiGroup": "rbac.authorization.k8s.io", "name": CONTROLLER_USER}
        self.create(f"{path}/rolebindings", {"metadata": name, "roleRef": role, "subjects": [user]})
        return namespace

    def may(self, verb: str, resource: str, namespace: str, name: str = "", group: str = "") -> bool:
        """Whether the controller has a right, as the API server judges."""
        what = {"verb": verb, "group": group, "resource": resource, "namespace": namespace, "name": name}
        review = {"spec": {"user": CONTROLLER_USER, "groups": ["system:serviceaccounts"], "resourceAttributes": what}}
        answer = self.create("/apis/authorization.k8s.io/v1/subjectaccessreviews", review)
        return bool(answer["status"]["allowed"])

    def node(self, name: str, *, gpus: int = 0, ready: bool = True, labels: dict[str, str] | None = None) -> None:
        self.create("/api/v1/nodes", {"metadata": {"name": name, "labels": labels or {}}})
        resources = {"cpu": "8", "memory": "32Gi", "pods": "110"} | ({"nvidia.com/gpu": str(gpus)} if gpus else {})
        self.merge(
            f"/api/v1/nodes/{name}/status",
            {
                "status": {
                    "capacity": resources,
                    "allocatable": resources,
                    "conditions": [
                        {"type": "Ready", "status": str(ready), "lastTransitionTime": "2026-01-01T00:00:00Z"}
                    ],
                }
            },
        )
        if ready:  # the API server taints new nodes, the node life-cycle controller opens them
            self.merge(f"/api/v1/nodes/{name}", {"spec": {"taints": None}})

    def job(self, namespace: str, name: str) -> Object:
        return self.call("GET", f"{JOBS}/namespaces/{namespace}/elasticjobs/{name}")

    def pods(self, namespace: str) -> dict[str, Object]:
        listed = self.call("GET", f"/api/v1/namespaces/{namespace}/pods")["items"]
        return {pod["metadata"]["name"]: pod for pod in listed}

    def bind(self, namespace: str, pod: str, node: str) -> None:
        target = {"apiVersion": "v1", "kind": "Node", "name": node}
        self.create(f"/api/v1/namespaces/{namespace}/pods/{pod}/binding", {"metadata": {"name": pod}, "target": target})

    def phase(
        self,
        namespace: str,
        pod: str,
        phase: str,
        *,
        exit_code: int | None = None,
        main: str = "elasticjob-worker",
        **status: Any,
    ) -> None:
        """Sets a pod's phase as its kubelet would; `main` is the container that has ended."""
        body: Object = {"phase": phase, **status}
        if exit_code is not None:
            ended = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
            terminated = {"exitCode": exit_code, "reason": "Completed" if exit_code == 0 else "Error"}
            state = {"terminated": terminated | {"startedAt": ended, "finishedAt": ended}}
            container = {"ready": False, "restartCount": 0, "image": "i", "imageID": "i", "state": state}
            body["containerStatuses"] = [{"name": main, **container}]
        elif phase == "Running":
            body.setdefault("conditions", [{"type": "Ready", "status": "True"}])
        self.merge(f"/api/v1/namespaces/{namespace}/pods/{pod}/status", {"status": body})

    def remove(self, namespace: str, pod: str, uid: str | None = None) -> None:
        """The kubelet confirms that a terminating pod has ended; with `uid` that one, and not another of its name."""
        body: Object = {"gracePeriodSeconds": 0}
        if uid is not None:
            body["preconditions"] = {"uid": uid}
        self.call("DELETE", f"/api/v1/namespaces/{namespace}/pods/{pod}", body)

    def run_pods(self, namespace: str, node: str) -> dict[str, Object]:
        """What scheduler and kubelets do in a healthy cluster: pods are bound, run, and end when told to."""
        for name, pod in self.pods(namespace).items():
            try:
                self._care_for(namespace, name, pod, node)
            except ApiRefusalError as refusal:
                if refusal.code not in {404, 409}:  # deleted, or told to go, since it was listed
                    raise
        return {name: pod for name, pod in self.pods(namespace).items() if not pod["metadata"].get("deletionTimestamp")}

    def _care_for(self, namespace: str, name: str, pod: Object, node: str) -> None:
        if pod["metadata"].get("deletionTimestamp"):
            self.remove(namespace, name, pod["metadata"]["uid"])
        elif pod["status"]["phase"] == "Pending":
            if not pod["spec"].get("nodeName"):
                self.bind(namespace, name, node)
            self.phase(namespace, name, "Running")

    def wait_running(self, namespace: str, number: int, node: str) -> dict[str, Object]:
        """Plays kubelet until exactly so many pods run."""

        def look() -> dict[str, Object]:
            pods = self.run_pods(namespace, node)
            running = {name: pod for name, pod in pods.items() if pod["status"]["phase"] == "Running"}
            return running if len(running) == len(pods) == number else {}

        return eventually(f"{number} running pods in {namespace}", look)

    def wait_condition(self, namespace: str, name: str, kind: str) -> Object:
        """Waits until a condition of the job is True, and returns the job."""

        def look() -> Object:
            job = self.job(namespace, name)
            met = any(c["type"] == kind and c["status"] == "True" for c in job.get("status", {}).get("conditions", ()))
            return job if met else {}

        return eventually(f"condition {kind} of {namespace}/{name}", look)


class ApiRefusalError(Exception):
    """The API server refused a call."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(f"{code}: {message}")
        self.code = code
        self.message = message


def elastic_job(name: str, *, replicas: int = 2, **spec: Any) -> Object:
    """A job as a user would write it."""
    worker = {
        "replicas": replicas,
        "restartPolicy": spec.pop("restart_policy", "ExitCode"),
        "template": spec.pop(
            "template",
            {
                "spec": {
                    "containers": [
                        {"name": "elasticjob-worker", "image": "trainyard/training:local", "args": ["train.py"]}
                    ]
                }
            },
        ),
    }
    return {
        "apiVersion": "elastic.pytorch.org/v1alpha1",
        "kind": "ElasticJob",
        "metadata": {"name": name},
        "spec": {"rdzvEndpoint": "etcd.trainyard-system:2379", "replicaSpecs": {"Worker": worker}, **spec},
    }


def install(cluster: Cluster) -> None:
    cluster.create("/apis/apiextensions.k8s.io/v1/customresourcedefinitions", custom_resource_definition())
    rbac = "/apis/rbac.authorization.k8s.io/v1"
    cluster.create(f"{rbac}/clusterroles", {"metadata": {"name": "elastic-controller"}, "rules": cluster_rules()})
    cluster.create(
        f"{rbac}/clusterrolebindings",
        {
            "metadata": {"name": "elastic-controller"},
            "roleRef": {
                "apiGroup": "rbac.authorization.k8s.io",
                "kind": "ClusterRole",
                "name": "elastic-controller",
            },
            "subjects": [{"kind": "User", "apiGroup": "rbac.authorization.k8s.io", "name": CONTROLLER_USER}],
        },
    )

    def served() -> bool:
        return cluster.admin.get(f"{JOBS}/elasticjobs").status_code == 200

    eventually("ElasticJob API served", served)
    eventually("namespace default", lambda: cluster.admin.get("/api/v1/namespaces/default").status_code == 200)
    cluster.allow_lease("default")


@dataclass
class ControllerProcess:
    """`python -m training.controller` with the rights of the controller's user."""

    process: subprocess.Popen[bytes]
    port: int
    log: Path

    def metrics(self) -> dict[str, float]:
        """Every sample of /metrics by its name and labels."""
        text = httpx2.get(f"http://127.0.0.1:{self.port}/metrics", timeout=PATIENCE).text
        pairs = (line.rsplit(" ", 1) for line in text.splitlines() if line and not line.startswith("#"))
        return {name: float(value) for name, value in pairs}

    @property
    def leading(self) -> bool:
        try:
            return self.metrics()["trainyard_controller_leader"] == 1
        except httpx2.HTTPError:
            return False


def start_controller(cluster: Cluster, *options: str) -> ControllerProcess:
    """Starts a controller process; the caller ends it."""
    port = free_port()
    log = cluster.folder / f"controller-{port}.log"
    env = {key: value for key, value in os.environ.items() if not key.startswith("KUBERNETES_")}
    process = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "training.controller",
            f"--metrics-port={port}",
            "--metrics-address=127.0.0.1",
            *options,
        ],
        stdout=log.open("wb"),
        stderr=subprocess.STDOUT,
        env=env | {"KUBECONFIG": str(cluster.kubeconfig(CONTROLLER_TOKEN))},
        cwd=Path(__file__).parents[2],
    )
    return ControllerProcess(process, port, log)
