"""The cluster on this computer, with the real engines: comes up, is repaired, loses nodes, goes without a trace.

The engines are taken from the folder `$TRAINYARD_ENGINE_BIN` where it has them, else from where `trainyard` finds them.
"""

import contextlib
import json
import os
import shutil
import signal
import socket
import ssl
import stat
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psutil
import pytest

from infra.local import engines as engine_room
from infra.local import ports
from infra.local.cloud import PROVISIONER
from infra.local.cluster import CLOUD, ENGINES, LocalCluster
from infra.local.control_plane import API_SERVER, COMPONENTS, CONTROLLER_MANAGER, ETCD, SCHEDULER
from infra.local.errors import LocalClusterError
from infra.local.nodes import NodeSpec
from infra.local.nodes.kubelet import PORT as KUBELET_PORT
from infra.local.nodes.reclaim import NOTICE_TAINT, RECLAIM_AT
from infra.local.processes import MARK, Processes
from infra.local.state import State
from infra.wiring.scheduling import GPU_TAINT, SPOT_TAINT

pytestmark = [pytest.mark.engines, pytest.mark.timeout(1200), pytest.mark.xdist_group("local-cluster")]

ROOT = Path(__file__).resolve().parents[2]
NOBODY = 65534
IMAGE = "trainyard/test:local"
IMAGES = {
    IMAGE: {
        "entrypoint": ["sh", "-c"],
        "environment": {"PATH": "/usr/local/bin:/usr/bin:/bin"},
        "workingDir": "/",
        "user": "65532",
        "size": 1,
    }
}
NODES = [
    NodeSpec("system-1", "system", {"trainyard.dev/pool": "system"}),
    *(
        NodeSpec(
            f"spot-{n}",
            "spot",
            {"trainyard.dev/pool": "spot", "node.kubernetes.io/instance-type": "g5.xlarge"},
            (GPU_TAINT, SPOT_TAINT),
            {"cpu": "1", "nvidia.com/gpu": "2"},
        )
        for n in (1, 2)
    ),
]


def engine(name: str) -> Path:
    chosen = Path(os.environ.get("TRAINYARD_ENGINE_BIN", "/nonexistent")) / name
    if chosen.exists():
        return chosen
    found = engine_room.locate(name)
    assert found, f"{name} is missing: trainyard engines build, or set TRAINYARD_ENGINE_BIN"
    return found.path


class Local:
    """A cluster with what the tests do to it."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.engines = {name: engine(name) for name in ENGINES}
        self.kubectl_path = engine("kubectl")

    @property
    def processes(self) -> Processes:
        return Processes(State(self.directory))

    def cluster(self, **options: Any) -> LocalCluster:
        return LocalCluster(State(self.directory), self.engines, **options)

    def up(self, nodes: list[NodeSpec] | None = None, **options: Any) -> None:
        self.cluster(**options).up(IMAGES, NODES if nodes is None else nodes)

    def pids(self) -> dict[str, int]:
        return {name: running.pid for name, running in self.processes.running().items()}

    def kubectl(self, *arguments: str, stdin: str | None = None) -> str:
        command = [str(self.kubectl_path), f"--kubeconfig={self.directory / 'kubeconfig'}", *arguments]
        done: subprocess.CompletedProcess[str] = subprocess.run(
            command, input=stdin, capture_output=True, text=True, timeout=300, check=False
        )
        if done.returncode:
            raise AssertionError(f"kubectl {' '.join(arguments)}: {done.stderr}")
        return done.stdout

    def get(self, *arguments: str) -> Any:
        return json.loads(self.kubectl("get", *arguments, "-o", "json"))

    def apply(self, *objects: dict[str, Any]) -> None:
        self.kubectl("apply", "-f", "-", stdin=json.dumps({"apiVersion": "v1", "kind": "List", "items": objects}))

    def up_as_command(self) -> "subprocess.Popen[str]":
        """`up` in a process of its own, as the command line would do it."""
        return subprocess.Popen(
            [sys.executable, __file__, self.directory, "up"],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )


def pod(name: str, script: str, *, namespace: str = "default", gpus: int = 0, **spec: Any) -> dict[str, Any]:
    container: dict[str, Any] = {"name": "main", "image": IMAGE, "args": [script]}
    container |= spec.pop("container", {})
    if gpus:
        container["resources"] = {"limits": {"nvidia.com/gpu": gpus}}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": namespace, "labels": {"app": name.rpartition("-")[0] or name}},
        "spec": {
            "containers": [container],
            "terminationGracePeriodSeconds": 2,
            "tolerations": [GPU_TAINT.toleration(), SPOT_TAINT.toleration()] if gpus else [],
            **spec,
        },
    }


def wait_for(what: str, condition: Callable[[], Any], seconds: float = 240) -> Any:
    deadline = time.monotonic() + seconds
    while True:
        try:
            if found := condition():
                return found
        except AssertionError:
            if time.monotonic() > deadline:
                raise
        assert time.monotonic() < deadline, f"not within {seconds} s: {what}"
        time.sleep(0.1)


def all_is_well(local: "Local") -> None:
    """Health is of a moment, in which a component of a busy computer may be late with its answer."""
    wait_for("all is well", lambda: local.cluster().status().healthy)


def marked(directory: Path) -> list[str]:
    """Every process that was started for a cluster, leader or not."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get(MARK, "").startswith(f"{directory}:"):
                found.append(" ".join(process.cmdline()))
        except psutil.Error:
            continue
    return found


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    """The state folder, beside a folder for temporary files."""
    path = Path(tempfile.mkdtemp(prefix="ty", dir="/tmp"))
    with pytest.MonkeyPatch.context() as patch:
        (path / "tmp").mkdir()
        patch.setenv("TMPDIR", str(path / "tmp"))
        yield path / "state"
    shutil.rmtree(path, ignore_errors=True)


@pytest.fixture(scope="module")
def shared(folder: Path) -> Iterator[Local]:
    local = Local(folder)
    yield local
    local.cluster().down()


@pytest.fixture
def local(shared: Local) -> Local:
    """The cluster of this module, up: whatever an earlier test did to it is repaired first."""
    shared.up()
    return shared


def test_up_makes_the_nodes_that_were_asked_for(local: Local) -> None:
    nodes = {node["metadata"]["name"]: node for node in local.get("nodes")["items"]}
    pools = sorted(node["metadata"]["labels"]["trainyard.dev/pool"] for node in nodes.values())
    assert pools == ["spot", "spot", "system"]
    spot = next(node for name, node in nodes.items() if name.startswith("spot"))
    assert {taint["key"] for taint in spot["spec"]["taints"]} == {GPU_TAINT.key, SPOT_TAINT.key}
    assert spot["status"]["allocatable"]["nvidia.com/gpu"] == "2"
    assert spot["status"]["allocatable"]["cpu"] == "1"
    assert spot["spec"]["providerID"].startswith("trainyard-local:///")
    assert spot["metadata"]["labels"]["node.kubernetes.io/instance-type"] == "g5.xlarge"
    assert spot["metadata"]["labels"]["topology.kubernetes.io/zone"]
    addresses = {item["type"]: item["address"] for item in spot["status"]["addresses"]}
    assert addresses["InternalIP"].startswith("127.")


def test_status_tells_what_runs_where(local: Local) -> None:
    all_is_well(local)
    status = local.cluster().status()
    assert [part.name for part in status.components] == [*COMPONENTS, CLOUD]
    assert all(part.resident_bytes > 1 << 20 and part.since for part in status.components)
    assert all(part.port for part in status.components if part.name != CLOUD)
    assert all(node.ready and node.pid for node in status.nodes)


def test_a_second_up_changes_nothing(local: Local) -> None:
    before, kubeconfig = local.pids(), (local.directory / "kubeconfig").read_text()
    local.up()
    assert local.pids() == before
    assert (local.directory / "kubeconfig").read_text() == kubeconfig


def test_keys_are_for_the_user_alone(local: Local) -> None:
    assert stat.S_IMODE(local.directory.stat().st_mode) == 0o700
    keys = [*local.directory.rglob("*.key"), *local.directory.rglob("*kubeconfig")]
    assert len(keys) > 10
    assert {stat.S_IMODE(key.stat().st_mode) for key in keys} == {0o600}


def test_nobody_gets_in_without_a_certificate(local: Local) -> None:
    status = local.cluster().status()
    by_name = {part.name: part.port for part in status.components}
    kubelet = next(node.machine.address for node in status.nodes)
    unchecked = ssl._create_unverified_context()  # noqa: S323 - the test is about the other direction
    for url in (f"https://127.0.0.1:{by_name[API_SERVER]}/api", f"https://{kubelet}:{KUBELET_PORT}/pods"):
        with pytest.raises(urllib.error.HTTPError) as caught:
            urllib.request.urlopen(url, context=unchecked, timeout=120)  # noqa: S310 - https
        assert caught.value.code == 401, url
    # etcd holds every secret: not even the cluster's administrator may talk to it.
    unchecked.load_cert_chain(local.directory / "control_plane/admin.crt", local.directory / "control_plane/admin.key")
    with pytest.raises((urllib.error.URLError, ssl.SSLError, ConnectionError)):
        urllib.request.urlopen(f"https://127.0.0.1:{by_name[ETCD]}/version", context=unchecked, timeout=120)


def test_a_node_may_not_act_for_another(local: Local) -> None:
    one, other = (node["metadata"]["name"] for node in local.get("nodes")["items"][:2])
    kubeconfig = local.directory / "nodes" / one / "kubelet.kubeconfig"
    command = [local.kubectl_path, f"--kubeconfig={kubeconfig}", "label", "node", other, "x=y"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert "Forbidden" in done.stderr or "forbidden" in done.stderr


STORAGE_CLASS = {
    "apiVersion": "storage.k8s.io/v1",
    "kind": "StorageClass",
    "metadata": {"name": "folder"},
    "provisioner": PROVISIONER,
    "reclaimPolicy": "Delete",
}
CLAIM = {
    "apiVersion": "v1",
    "kind": "PersistentVolumeClaim",
    "metadata": {"name": "data", "namespace": "default"},
    "spec": {
        "accessModes": ["ReadWriteMany"],
        "storageClassName": "folder",
        "resources": {"requests": {"storage": "1Gi"}},
    },
}


def test_a_volume_is_shared_by_pods_of_two_nodes_and_removed_with_its_claim(local: Local) -> None:
    mount: dict[str, Any] = {
        "container": {"volumeMounts": [{"name": "data", "mountPath": "/data"}]},
        "volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}],
        "restartPolicy": "Never",
    }
    local.apply(STORAGE_CLASS, CLAIM)
    local.apply(pod("writer-0", "echo hello > /data/file", **mount))
    local.apply(pod("reader-0", "until cat /data/file; do sleep 0.2; done", gpus=1, **mount))
    wait_for("reader has read", lambda: local.get("pod", "reader-0")["status"]["phase"] == "Succeeded")
    assert "hello" in local.kubectl("logs", "reader-0")
    nodes = {local.get("pod", name)["spec"]["nodeName"].partition("-")[0] for name in ("writer-0", "reader-0")}
    assert nodes == {"system", "spot"}
    [made] = [path for path in (local.directory / "volumes").iterdir() if "data" in path.name]
    assert made.name.startswith("default-data-")
    local.kubectl("delete", "pod", "writer-0", "reader-0")
    local.kubectl("delete", "pvc", "data")
    wait_for("volume is gone", lambda: not local.get("pv")["items"])
    wait_for("folder is gone", lambda: not made.exists())


def test_pods_find_each_other_by_the_names_of_services(local: Local) -> None:
    service = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": "workers", "namespace": "default"},
        "spec": {
            "clusterIP": "None",
            "selector": {"app": "worker"},
            "publishNotReadyAddresses": True,
            "ports": [{"port": 29500}],
        },
    }
    # Kubernetes turns $$$$ into $$.
    script = (
        "for name in worker-1.workers worker-0.workers.default.svc.cluster.local workers workers.default.svc; do "
        "until getent ahostsv4 $name; do sleep 0.1; done; done; echo complete; echo $$$$ > /tmp/pid; exec sleep 600"
    )
    local.apply(service)
    local.apply(
        *(pod(f"worker-{n}", script, gpus=1, hostname=f"worker-{n}", subdomain="workers") for n in (0, 1)),
    )
    wait_for("names are known", lambda: "complete" in local.kubectl("logs", "worker-0"))
    wait_for("names are known", lambda: "complete" in local.kubectl("logs", "worker-1"))
    found = {item["status"]["podIP"] for item in local.get("pods", "-l", "app=worker")["items"]}
    hosts = local.kubectl("exec", "worker-0", "--", "cat", "/etc/hosts")
    assert {line.split()[0] for line in hosts.splitlines() if "\tworkers.default\t" in line} == found
    # The same file after a restart of the container, which the kubelet writes anew, and without the pod that left;
    # also by a cloud that started when the pod was there already.
    os.kill(local.pids()[CLOUD], signal.SIGKILL)
    wait_for("cloud is dead", lambda: CLOUD not in local.pids())
    local.up()
    local.kubectl("delete", "pod", "worker-1")
    # A moment later: the container's end would end this very command, too.
    local.kubectl("exec", "worker-0", "--", "sh", "-c", "(sleep 0.3; kill -9 $(cat /tmp/pid)) >/dev/null 2>&1 &")
    wait_for(
        "container restarted", lambda: local.get("pod", "worker-0")["status"]["containerStatuses"][0]["restartCount"]
    )

    def only_one() -> bool:
        hosts = local.kubectl("exec", "worker-0", "--", "cat", "/etc/hosts")
        return "worker-0.workers" in hosts and "worker-1" not in hosts

    wait_for("hosts file is complete again", only_one)
    local.kubectl("delete", "service/workers", "pod/worker-0")


def test_an_unknown_image_is_said_plainly(local: Local) -> None:
    local.apply(pod("unknown-0", "", container={"image": "example.org/nobody/knows:1"}))

    def message() -> str:
        events = local.get("events", "--field-selector=involvedObject.name=unknown-0")["items"]
        return "".join(event["message"] for event in events if event["reason"] == "Failed")

    text = wait_for("pull fails", message)
    assert "image table" in text
    assert IMAGE in text
    local.kubectl("delete", "pod", "unknown-0")


def test_more_gpus_than_any_node_has_is_said_and_not_waited_for(local: Local) -> None:
    local.apply(pod("greedy-0", "sleep 1", gpus=3))

    def message() -> str:
        conditions = local.get("pod", "greedy-0")["status"].get("conditions", [])
        return "".join(item.get("message", "") for item in conditions if item["type"] == "PodScheduled")

    assert "Insufficient nvidia.com/gpu" in wait_for("scheduler answers", message)
    local.kubectl("delete", "pod", "greedy-0")


@pytest.mark.parametrize("name", [ETCD, API_SERVER, CONTROLLER_MANAGER, SCHEDULER, CLOUD, "node-system-1"])
def test_what_was_killed_is_brought_back_by_up_and_nothing_else_is_touched(local: Local, name: str) -> None:
    before = local.pids()
    os.kill(before[name], signal.SIGKILL)
    wait_for("it is dead", lambda: name not in local.pids())
    local.up()
    after = local.pids()
    assert {other for other in after if after[other] != before[other]} == {name}
    all_is_well(local)


def test_down_and_up_keep_objects_and_running_pods(local: Local) -> None:
    local.kubectl("create", "configmap", "kept", "--from-literal=a=b")
    local.apply(pod("survivor-0", "sleep 600", gpus=1))
    wait_for("pod runs", lambda: local.get("pod", "survivor-0")["status"]["phase"] == "Running")
    stopped = local.cluster().down()
    assert set(stopped) == {*COMPONENTS, CLOUD, *(f"node-{machine.name}" for machine in local.cluster().machines())}
    assert not local.cluster().status().healthy
    local.up()
    assert local.get("configmap", "kept")["data"] == {"a": "b"}

    def running_again() -> bool:
        [status] = local.get("pod", "survivor-0")["status"]["containerStatuses"]
        return status["restartCount"] >= 1 and "running" in status["state"]

    wait_for("pod runs again", running_again)
    local.kubectl("delete", "configmap/kept", "pod/survivor-0")


def test_half_written_state_is_made_anew_and_data_kept(local: Local) -> None:
    local.kubectl("create", "configmap", "kept2", "--from-literal=a=b")
    local.cluster().down()
    plane = local.directory / "control_plane"
    (plane / "apiserver.crt").write_bytes((plane / "apiserver.crt").read_bytes()[:100])
    (plane / "admin.key").unlink()
    (plane / "ports.json").write_text('{"etcd": ')
    (local.directory / "kubeconfig").unlink()
    next((local.directory / "nodes").glob("*/kubelet.yaml")).write_text("half")
    local.up()
    assert local.get("configmap", "kept2")["data"] == {"a": "b"}
    local.kubectl("delete", "configmap", "kept2")


def test_a_lost_authority_is_replaced_and_data_kept(local: Local) -> None:
    local.kubectl("create", "configmap", "kept3", "--from-literal=a=b")
    (local.directory / "control_plane" / "ca.key").write_text("")
    local.up()
    assert local.get("configmap", "kept3")["data"] == {"a": "b"}
    all_is_well(local)
    local.kubectl("delete", "configmap", "kept3")


def test_ports_that_others_took_meanwhile_are_given_up(local: Local) -> None:
    port = next(part.port for part in local.cluster().status().components if part.name == API_SERVER)
    assert port
    network = local.cluster().machines()[0].network
    local.cluster().down()
    with socket.create_server(("127.0.0.1", port)), socket.create_server((f"127.{network}.1.1", KUBELET_PORT)):
        local.up()
        all_is_well(local)
        status = local.cluster().status()
    assert port not in {part.port for part in status.components}
    assert network not in {node.machine.network for node in status.nodes}
    assert len(local.get("nodes")["items"]) == 3


def test_a_fixed_port_that_is_taken_is_an_error_and_the_cluster_goes_on(local: Local) -> None:
    before = local.pids()
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        with pytest.raises(LocalClusterError, match=f"port {port} .*is taken") as caught:
            local.up(api_server_port=port)
    assert str(os.getpid()) in caught.value.why
    assert local.pids() == before
    all_is_well(local)
    [free] = ports.choose("fixed port of the test", 1)
    local.up(api_server_port=free)
    assert next(part.port for part in local.cluster().status().components if part.name == API_SERVER) == free


def test_two_ups_at_once_do_not_collide(local: Local) -> None:
    local.cluster().down()
    with State(local.directory).lock():  # both wait for us, so that they begin together
        both = [local.up_as_command() for _ in range(2)]
        for one in both:
            assert one.stdout
            assert "waiting for process" in one.stdout.readline()
    outputs = [one.communicate(timeout=600)[0] for one in both]
    assert [one.returncode for one in both] == [0, 0], outputs
    all_is_well(local)
    assert len([mark for mark in marked(local.directory) if "kube-apiserver" in mark]) == 1


@pytest.mark.parametrize("seconds", [0.6, 2.0, 4.0])
def test_a_killed_up_is_continued_by_the_next(local: Local, seconds: float) -> None:
    local.cluster().down()
    command = local.up_as_command()
    time.sleep(seconds)
    os.killpg(command.pid, signal.SIGKILL)
    command.communicate()
    local.up()
    all_is_well(local)


def test_a_reclaimed_node_gives_notice_lets_pods_end_and_is_gone(local: Local) -> None:
    # It ends only when asked to, and not before the notice has been looked at.
    asked = "echo asked; until [ -e /tmp/seen ]; do sleep 0.1; done; echo done; exit 0"
    script = f"trap '{asked}' TERM; echo ready; while :; do sleep 0.1; done"
    local.apply(pod("worker-0", script, gpus=1, restartPolicy="Never", terminationGracePeriodSeconds=200))
    wait_for("pod runs", lambda: "ready" in local.kubectl("logs", "worker-0"))
    node = local.get("pod", "worker-0")["spec"]["nodeName"]
    output: list[str] = []

    def follow() -> None:
        output.append(local.kubectl("logs", "-f", "worker-0"))

    reader = threading.Thread(target=follow)
    reader.start()
    seen: list[dict[str, Any]] = []

    def look() -> None:
        while not seen:
            found = local.get("node", node)
            if any(taint["key"] == NOTICE_TAINT for taint in found["spec"]["taints"]):
                seen.append({"node": found, "pods": local.get("pods")["items"]})
                local.kubectl("exec", "worker-0", "--", "touch", "/tmp/seen")  # noqa: S108 - the pod's own

    watcher = threading.Thread(target=look)
    watcher.start()
    outcome = local.cluster().reclaim(node, notice_seconds=240)
    watcher.join(120)
    reader.join(120)
    assert outcome.noticed < outcome.drained <= outcome.gone
    at = datetime.fromisoformat(seen[0]["node"]["metadata"]["annotations"][RECLAIM_AT])
    assert 235 < (at - outcome.noticed).total_seconds() <= 240
    assert at.tzinfo == UTC
    assert seen[0]["node"]["spec"]["unschedulable"] is True
    assert output
    assert output[0].split() == ["ready", "asked", "done"]
    assert node not in [item["metadata"]["name"] for item in local.get("nodes")["items"]]
    assert not [mark for mark in marked(local.directory) if node in mark]
    replacement = local.cluster().replace(node)
    assert replacement.spec.pool == "spot"
    assert replacement.name not in {node, "spot-1", "spot-2"}
    local.up()
    assert replacement.name in [machine.name for machine in local.cluster().machines()]


def test_an_interrupted_reclaim_is_finished_by_the_next_up(local: Local) -> None:
    node = next(machine.name for machine in local.cluster().machines() if machine.spec.pool == "spot")
    # What a reclaim that was killed leaves behind.
    local.kubectl("annotate", "node", node, f"{RECLAIM_AT}=2026-01-01T00:00:00Z")
    local.kubectl("cordon", node)
    local.up()
    names = [item["metadata"]["name"] for item in local.get("nodes")["items"]]
    assert node not in names
    assert len(names) == 3
    assert not any(item["spec"].get("unschedulable") for item in local.get("nodes")["items"])


def test_a_killed_node_is_noticed_and_its_pods_are_evicted(local: Local) -> None:
    local.apply(pod("victim-0", "sleep 600", gpus=1))
    wait_for("pod runs", lambda: local.get("pod", "victim-0")["status"]["phase"] == "Running")
    node = local.get("pod", "victim-0")["spec"]["nodeName"]
    local.cluster().kill(node)
    assert not [mark for mark in marked(local.directory) if f"node-{node}" in mark]

    def ready() -> str:
        conditions = local.get("node", node)["status"]["conditions"]
        return str(next(item["status"] for item in conditions if item["type"] == "Ready"))

    wait_for("node is not ready", lambda: ready() != "True")
    wait_for("pod is evicted", lambda: local.get("pod", "victim-0")["metadata"].get("deletionTimestamp"))
    conditions = local.get("pod", "victim-0")["status"]["conditions"]
    assert "DeletionByTaintManager" in [item.get("reason") for item in conditions if item["type"] == "DisruptionTarget"]
    # The pod stays until somebody knows that the machine is gone for good.
    assert local.get("pod", "victim-0")
    replacement = local.cluster().replace(node)
    assert "victim-0" not in local.kubectl("get", "pods")
    assert replacement.name in local.kubectl("get", "nodes")


def test_a_killed_node_that_comes_back_ends_the_pods_that_were_evicted(local: Local) -> None:
    local.apply(pod("victim-0", "sleep 600", gpus=1))
    wait_for("pod runs", lambda: local.get("pod", "victim-0")["status"]["phase"] == "Running")
    local.cluster().kill(local.get("pod", "victim-0")["spec"]["nodeName"])
    local.kubectl("delete", "pod", "victim-0", "--wait=false")
    local.up()
    wait_for("pod is gone", lambda: "victim-0" not in local.kubectl("get", "pods"))


def test_unknown_and_dead_nodes_are_plain_errors(local: Local) -> None:
    for act in (local.cluster().kill, local.cluster().reclaim, local.cluster().replace):
        with pytest.raises(LocalClusterError, match="there is no node nothing-1") as caught:
            act("nothing-1")
        assert "system-1" in caught.value.why


def test_fewer_nodes_are_left_in_peace(local: Local) -> None:
    local.up(NODES[:2])
    assert len(local.get("nodes")["items"]) == 2
    assert len(local.cluster().machines()) == 2


def test_down_leaves_no_process_no_port_and_no_file_elsewhere(local: Local) -> None:
    status = local.cluster().status()
    used = [part.port for part in status.components if part.port]
    addresses = [node.machine.address for node in status.nodes]
    local.cluster().down()
    assert marked(local.directory) == []
    wait_for("ports are free", lambda: all(ports.is_free(port) for port in used))
    wait_for("addresses are free", lambda: all(ports.is_free(KUBELET_PORT, address) for address in addresses))
    assert local.cluster().down() == []
    # All that ran since the first test of this module had this folder for its temporary files.
    assert list(Path(os.environ["TMPDIR"]).iterdir()) == []


def interpreter_for_everyone() -> Path | None:
    """A Python of this version that any user may run."""
    others = Path("/usr").glob(f"**/bin/python3.{sys.version_info.minor}")
    for candidate in (Path(sys.executable), *others):
        with contextlib.suppress(PermissionError):
            subprocess.run([candidate, "-c", ""], user=NOBODY, check=True)
            return candidate
    return None


if os.geteuid() == 0:  # else all tests of this module run as an ordinary user already

    def test_an_ordinary_user_gets_the_same(shared: Local) -> None:
        python = interpreter_for_everyone()
        assert python, "root's Python is closed to others: install one for all users (Debian: python3)"
        shared.cluster().down()
        place = Path(tempfile.mkdtemp(prefix="ty", dir="/tmp"))
        os.chown(place, NOBODY, NOBODY)
        (place / "engines").mkdir(mode=0o755)
        for name in (*ENGINES, "kubectl"):
            # A second name costs nothing; copies of 600 MB keep a slow disk from etcd's writes for half a minute.
            try:
                os.link(engine(name), place / "engines" / name)
            except OSError:  # another file system
                shutil.copy(engine(name), place / "engines" / name)
        packages = [entry for entry in sys.path if entry.endswith("-packages")]
        environment = {
            "PATH": "/usr/bin:/bin",
            "HOME": str(place),
            "PYTHONPATH": os.pathsep.join([str(ROOT), *packages]),
            "TRAINYARD_ENGINE_BIN": str(place / "engines"),
        }

        def run(action: str) -> str:
            done = subprocess.run(
                [python, __file__, place / "state", action],
                cwd=place,
                env=environment,
                user=NOBODY,
                group=NOBODY,
                extra_groups=[],
                capture_output=True,
                text=True,
                timeout=600,
                check=False,
            )
            assert done.returncode == 0, done.stdout + done.stderr
            return done.stdout

        def nothing_ails() -> bool:
            assert run("status").split() == []
            return True

        theirs = Local(place / "state")
        try:
            run("up")
            theirs.apply(pod("worker-0", "id -u; sleep 623", gpus=1))  # no other test sleeps so long
            wait_for("pod runs", lambda: theirs.kubectl("logs", "worker-0"))
            assert "worker-0" in theirs.kubectl("exec", "worker-0", "--", "hostname")
            processes = psutil.process_iter(["cmdline", "uids"])
            owners = [one.info["uids"].effective for one in processes if one.info["cmdline"] == ["sleep", "623"]]
            assert owners
            assert 0 not in owners
            wait_for("all is well", nothing_ails)
        finally:
            run("down")
            left = marked(place / "state")
            shutil.rmtree(place, ignore_errors=True)
        assert left == []


class _Print:
    """Progress as lines."""

    def step(self, name: str) -> Any:
        print("step", name, flush=True)
        return contextlib.nullcontext()

    def note(self, text: str) -> None:
        print("note", text, flush=True)


if __name__ == "__main__":
    it = Local(Path(sys.argv[1]))
    match sys.argv[2]:
        case "up":
            it.up(progress=_Print())
        case "down":
            it.cluster().down()
        case "status":
            now = it.cluster().status()
            parts = [part.name for part in now.components if not part.healthy]
            print(*parts, *(node.machine.name for node in now.nodes if not node.ready), sep="\n")
