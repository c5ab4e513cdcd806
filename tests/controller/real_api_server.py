"""A real control plane for the tests of the controller: etcd, API server, scheduler, controller-manager.

The tests play the kubelets; the benchmark lets kwok play them. Of the controller-manager run the parts that a job
meets: garbage collection, the end of namespaces, the removal of pods whose node is gone, disruption budgets.
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
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import httpx2
import pytest
import yaml
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from infra.local.engines import locate
from training.controller.crd import custom_resource_definition
from training.controller.rbac import cluster_rules, lease_rules

Object = dict[str, Any]
T = TypeVar("T")

ADMIN_TOKEN = "admin-token"
CONTROLLER_TOKEN = "controller-token"
CONTROLLER_USER = "system:serviceaccount:trainyard-system:elastic-controller"
SCHEDULER_TOKEN = "scheduler-token"
MANAGERS = (
    "garbage-collector-controller",
    "namespace-controller",
    "pod-garbage-collector-controller",
    "disruption-controller",
)
"""What runs of the controller-manager. Nobody plays the nodes' heartbeats, so the node life cycle does not."""
# Seconds. A wait ends as soon as what it waits for is there, so this costs nothing; a machine whose disk or processor
# stands still for a while must not decide a test.
PATIENCE = 120.0
NODE = "steady-node"
"""A node that is there all the time and takes all pods but those that `prefer` another."""
OWN_POD = "tests.invalid/own"
"""Taint of the other nodes: pods come there only if their test wants it."""
HOSTNAME = "kubernetes.io/hostname"
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


@contextlib.contextmanager
def control_plane(folder: Path) -> Iterator[Cluster]:
    """A control plane below a folder, until the end of the block; `start` adds other programs to it."""
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    key_file = folder / "service-accounts.key"
    key_file.write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    tokens = folder / "tokens.csv"
    tokens.write_text(
        f'{ADMIN_TOKEN},admin,admin,"system:masters"\n'
        f"{SCHEDULER_TOKEN},system:kube-scheduler,scheduler\n"
        f'{CONTROLLER_TOKEN},{CONTROLLER_USER},controller,"system:serviceaccounts"\n'
    )
    client_port, peer_port, secure_port = free_port(), free_port(), free_port()
    store = f"http://127.0.0.1:{client_port}"
    commands = {
        "etcd": [
            engine("etcd"),
            f"--data-dir={folder / 'etcd'}",
            f"--listen-client-urls={store}",
            f"--advertise-client-urls={store}",
            f"--listen-peer-urls=http://127.0.0.1:{peer_port}",
            "--unsafe-no-fsync",
            "--log-level=error",
        ],
        "kube-apiserver": [
            engine("kube-apiserver"),
            f"--etcd-servers={store}",
            "--bind-address=127.0.0.1",
            f"--secure-port={secure_port}",
            f"--cert-dir={folder / 'certificates'}",
            "--service-cluster-ip-range=10.96.0.0/16",
            "--authorization-mode=RBAC",
            f"--token-auth-file={tokens}",
            "--service-account-issuer=https://test.invalid",
            f"--service-account-key-file={key_file}",
            f"--service-account-signing-key-file={key_file}",
            "--endpoint-reconciler-type=none",
            "--disable-admission-plugins=ServiceAccount",
        ],
    }
    ca = folder / "certificates" / "apiserver.crt"
    made = Cluster(f"https://127.0.0.1:{secure_port}", ca, folder, commands, store)
    alone = ("--leader-elect=false", "--secure-port=0")
    try:
        for name in ("etcd", "kube-apiserver"):
            made.start(name)
        made.connect()
        made.wait_ready()
        scheduler, manager = made.kubeconfig(SCHEDULER_TOKEN), made.kubeconfig(ADMIN_TOKEN)
        commands["kube-scheduler"] = [
            engine("kube-scheduler"),
            f"--kubeconfig={scheduler}",
            "--kube-api-qps=400",  # at the default of 50 a large job waits for nothing else
            "--kube-api-burst=800",
            *alone,
        ]
        commands["kube-controller-manager"] = [
            engine("kube-controller-manager"),
            f"--kubeconfig={manager}",
            f"--controllers={','.join(MANAGERS)}",
            *alone,
        ]
        for name in ("kube-scheduler", "kube-controller-manager"):
            made.start(name)
        install(made)
        yield made
    finally:
        for process in reversed(made.processes.values()):
            end(process)


@dataclass
class Cluster:
    """The API server, with what a kubelet would do as methods."""

    server: str
    ca: Path
    folder: Path
    commands: dict[str, list[str]]
    store: str
    """URL of etcd."""
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

    def restart_api_server(self) -> None:
        """The API server is killed and comes back, with none of its own memory.

        A scheduler ends itself where the news after an outage are not what it expected, and whoever runs it starts it
        again. Here it is always started again.
        """
        end(self.processes.pop("kube-scheduler"), signal.SIGKILL)
        end(self.processes["kube-apiserver"], signal.SIGKILL)
        self.start("kube-apiserver")
        self.wait_ready()
        self.start("kube-scheduler")

    def wait_ready(self) -> None:
        """Waits until the API server answers."""

        def ready() -> bool:
            assert all(process.poll() is None for process in self.processes.values()), "an engine ended: see its log"
            try:
                return self.admin.get("/readyz").status_code == 200
            except httpx2.HTTPError:
                return False

        eventually("API server ready", ready, pause=0.2)

    def compact(self) -> None:
        """etcd forgets all that was before this moment: nobody can read on from there."""
        with httpx2.Client(base_url=self.store, timeout=PATIENCE) as etcd:
            now = etcd.post("/v3/kv/range", json={"key": "AA=="}).json()["header"]["revision"]
            etcd.post("/v3/kv/compaction", json={"revision": now, "physical": True}).raise_for_status()

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

    def node(self, name: str, *, gpus: int = 0, labels: dict[str, str] | None = None) -> None:
        """A node that is ready; whoever plays its kubelet calls `run_pods`."""
        self.create("/api/v1/nodes", {"metadata": {"name": name, "labels": {HOSTNAME: name, **(labels or {})}}})
        resources = {"cpu": "800", "memory": "3200Gi", "pods": "2000"} | ({"nvidia.com/gpu": str(gpus)} if gpus else {})
        ready = [{"type": "Ready", "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z"}]
        status = {"capacity": resources, "allocatable": resources, "conditions": ready}
        self.merge(f"/api/v1/nodes/{name}/status", {"status": status})
        # The API server taints new nodes, the node life-cycle controller would open them.
        taints = None if name == NODE else [own_pods(name)]
        self.merge(f"/api/v1/nodes/{name}", {"spec": {"taints": taints}})

    def job(self, namespace: str, name: str) -> Object:
        return self.call("GET", f"{JOBS}/namespaces/{namespace}/elasticjobs/{name}")

    def pods(self, namespace: str) -> dict[str, Object]:
        listed = self.call("GET", f"/api/v1/namespaces/{namespace}/pods")["items"]
        return {pod["metadata"]["name"]: pod for pod in listed}

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
        """What a node's kubelet does when all is well: its pods run, and end when told to; returns those that stay."""
        for name, pod in self.pods(namespace).items():
            if pod["spec"].get("nodeName") != node:
                continue
            try:
                self._care_for(namespace, name, pod)
            except ApiRefusalError as refusal:
                if refusal.code not in {404, 409}:  # deleted, or told to go, since it was listed
                    raise
        return {name: pod for name, pod in self.pods(namespace).items() if not pod["metadata"].get("deletionTimestamp")}

    def _care_for(self, namespace: str, name: str, pod: Object) -> None:
        if pod["metadata"].get("deletionTimestamp"):
            self.remove(namespace, name, pod["metadata"]["uid"])
        elif pod["status"]["phase"] == "Pending":
            self.phase(namespace, name, "Running")

    def wait_running(self, namespace: str, number: int, node: str) -> dict[str, Object]:
        """Plays a node's kubelet until exactly so many pods run."""

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


def own_pods(node: str) -> dict[str, str]:
    """The taint that keeps other tests' pods away from a node, which is also what tolerates it."""
    return {"key": OWN_POD, "value": node, "effect": "NoSchedule"}


def prefer(job: Object, node: str) -> Object:
    """The job with workers that go to a node of their test while they can."""
    spec = job["spec"]["replicaSpecs"]["Worker"]["template"]["spec"]
    spec["tolerations"] = [own_pods(node)]
    wish = {"matchExpressions": [{"key": HOSTNAME, "operator": "In", "values": [node]}]}
    preferred = [{"weight": 100, "preference": wish}]
    spec["affinity"] = {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": preferred}}
    return job


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
