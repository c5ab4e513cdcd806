"""Nodes of the local cluster: for each a real kubelet on the process runtime, in an address range of its own.

A node is one process, `process-runtime node`, with the kubelet as its child; when it ends, by whatever signal, all of
the node ends with it, as a machine that loses its power. What each node is stands in `nodes/<name>/spec.json`.
"""

import contextlib
import dataclasses
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx2
import yaml
from lightkube import ApiError, Client, KubeConfig
from lightkube.config import client_adapter
from lightkube.core.exceptions import ConfigError
from lightkube.resources.core_v1 import Node

from infra.local import ports
from infra.local.control_plane import LOOPBACK, ControlPlane
from infra.local.control_plane.pki import Subject
from infra.local.errors import LocalClusterError
from infra.local.folders import remove_tree
from infra.local.nodes import kubelet
from infra.local.nodes.reclaim import RECLAIM_AT, Reclaimed, drain, free_pods, give_notice
from infra.local.nodes.spec import LAST_NUMBER, Machine, NodeSpec, ordinal_of, plan, renamed
from infra.local.processes import Processes, tail
from infra.local.progress import Progress, Silent
from infra.local.state import State

__all__ = ["Machine", "NodeSpec", "NodeStatus", "Nodes", "Reclaimed"]

PROCESS_PREFIX = "node-"
RETIRED = "retired.json"
KUBELET_LOG = "kubelet.log"  # in the node's folder, kept by the process runtime
READY_TIMEOUT = 240.0  # seconds; about 5 on two cores
ANSWER_SECONDS = 60.0  # for the API server's, whose etcd may wait for a slow disk
STOP_GRACE = 8.0  # seconds for the containers of a node that is taken away
RETIRE_SECONDS = 10.0  # for the pods of a node that nobody wants any more to move elsewhere
# Start times of processes and heartbeats are whole seconds, of two clocks.
_CLOCK_SLACK = timedelta(seconds=2)
_HOLDING_TAINTS = ("node.cloudprovider.kubernetes.io/", "node.kubernetes.io/not-ready")


@dataclass(frozen=True)
class NodeStatus:
    """One node as it is now.

    Attributes:
        machine: What it is.
        pid: Its process, None when it doesn't run.
        ready: Whether the cluster counts it as ready.
        since: Start of its process.
        resident_bytes: Memory of its process and all pods on it.
    """

    machine: Machine
    pid: int | None
    ready: bool
    since: datetime | None
    resident_bytes: int


class Nodes:
    """The nodes of the cluster in `state`.

    Args:
        state: The cluster's folder.
        engines: Paths of `kubelet` and `process-runtime`.
        control_plane: Up, or attached to.
        hide: Folders of this computer that no pod may see.
    """

    def __init__(
        self, state: State, engines: Mapping[str, Path], control_plane: ControlPlane, hide: Sequence[Path] = ()
    ) -> None:
        self._state = state
        self._engines = engines
        self._control_plane = control_plane
        self._hide = hide
        self._processes = Processes(state)

    # -- what is there -------------------------------------------------------------------------------------------

    def machines(self) -> list[Machine]:
        """All nodes that exist on this computer, running or not, by pool and number."""
        found = []
        for record in self._state.path("nodes").glob("*/spec.json"):
            # A damaged record is no node: its process is ended and its Node deleted by the next reconcile.
            with contextlib.suppress(KeyError, TypeError, ValueError):
                machine = Machine.from_record(self._state.read_json(record))
                if machine.name == record.parent.name:
                    found.append(machine)
        return sorted(found, key=lambda machine: (machine.spec.pool, ordinal_of(machine.name, machine.spec.pool)))

    def status(self) -> list[NodeStatus]:
        """Each node with its process and what the cluster thinks of it."""
        running = self._processes.running()
        ready: set[str] = set()
        with contextlib.suppress(httpx2.HTTPError, ConfigError, OSError):
            ready = {name_of(node) for node in self._client().list(Node) if is_ready(node)}
        result = []
        for machine in self.machines():
            process = running.get(PROCESS_PREFIX + machine.name)
            result.append(
                NodeStatus(
                    machine=machine,
                    pid=process.pid if process else None,
                    ready=machine.name in ready,
                    since=process.since if process else None,
                    resident_bytes=process.resident_bytes() if process else 0,
                )
            )
        return result

    # -- what is wanted ------------------------------------------------------------------------------------------

    def reconcile(self, desired: Iterable[NodeSpec], progress: Progress | None = None) -> list[Machine]:
        """Start, keep and end nodes until there are exactly the desired ones, and wait until all are ready.

        Raises:
            LocalClusterError: a node doesn't become ready; the end of its log is in the message.
        """
        tell = progress or Silent()
        self._avoid_clash(tell)
        for name in self._under_notice():
            tell.note(f"node {name} had its notice: finishing an interrupted reclaim")
            self._retire(name)
        last = self._last_ordinals()
        steps = plan(desired, self.machines(), last)
        self._remove_strangers(steps.keep)
        for machine in steps.remove:
            tell.note(f"taking node {machine.name} away")
            self._retire(machine.name)
        machines = [*steps.keep]
        for spec in steps.add:
            machines.append(self._create(spec, machines))
        for machine in machines:
            self._start(machine)
        self.wait_ready(machines)
        # All that were wanted are there again: none is left to take the place of one that went.
        self._state.path("nodes", RETIRED).unlink(missing_ok=True)
        return machines

    def wait_ready(self, machines: Sequence[Machine], timeout: float = READY_TIMEOUT) -> None:
        """Return when all are ready and take pods.

        Raises:
            LocalClusterError: one isn't after `timeout` seconds, or its process ended.
        """
        deadline = time.monotonic() + timeout
        waiting = {machine.name for machine in machines}
        client = self._client()
        while True:
            running = self._processes.running()
            with contextlib.suppress(httpx2.HTTPError):
                for node in client.list(Node):
                    process = running.get(PROCESS_PREFIX + name_of(node))
                    # The object may tell of an earlier life of the node.
                    if process and is_ready(node, since=process.since - _CLOCK_SLACK):
                        waiting.discard(name_of(node))
            if not waiting:
                return
            for name in sorted(waiting):
                ended = PROCESS_PREFIX + name not in running
                if ended or time.monotonic() > deadline:
                    logs = [
                        self._processes.log_path(PROCESS_PREFIX + name),
                        self._state.path("nodes", name, KUBELET_LOG),
                    ]
                    raise LocalClusterError(
                        f"node {name} {'ended' if ended else f'is not ready after {timeout:.0f} s'}",
                        why="\n  ".join(f"the end of {log}:\n{tail(log)}" for log in logs if log.exists()),
                        remedy="trainyard doctor says whether this computer can run pods; trainyard up tries again",
                    )
            time.sleep(0.15)

    def remove(self, name: str) -> None:
        """End a node, delete its Node object, give up its pods, and forget it."""
        self._processes.stop(PROCESS_PREFIX + name, grace=STOP_GRACE)
        self._delete_object(name)
        self._free_pods(name)
        self._forget(name)

    def stop(self) -> list[str]:
        """End all node processes; the nodes stay known and start again with the next reconcile."""
        names = [name for name in self._processes.running() if name.startswith(PROCESS_PREFIX)]
        return self._processes.stop(*names, grace=STOP_GRACE)

    # -- what befalls nodes --------------------------------------------------------------------------------------

    def kill(self, name: str) -> Machine:
        """End a node as a power failure would: nothing is told to anyone, the cluster has to notice.

        Raises:
            LocalClusterError: there is no such node, or it doesn't run.
        """
        machine = self._known(name)
        if not self._processes.kill(PROCESS_PREFIX + name):
            raise LocalClusterError(f"node {name} doesn't run", remedy="trainyard status")
        self._processes.stop(PROCESS_PREFIX + name)  # waits until what died with it is gone
        return machine

    def reclaim(self, name: str, notice_seconds: float = 120.0) -> Reclaimed:
        """Take a node back as a cloud takes a spot machine.

        The notice comes first (taint and annotation); then its pods are evicted with their own grace, which the
        remaining notice limits; when the last has ended, or the notice has, the machine goes and its Node with it.

        Returns:
            When each of this happened.

        Raises:
            LocalClusterError: there is no such node.
        """
        self._known(name)
        client = self._client()
        noticed = datetime.now(UTC)
        deadline = noticed + timedelta(seconds=notice_seconds)
        give_notice(client, name, deadline)
        drained = drain(client, name, deadline)
        self.remove(name)
        return Reclaimed(name, noticed, drained, datetime.now(UTC))

    def replace(self, name: str) -> Machine:
        """Start the node that takes the place of one that is gone or dead, under the next number of its pool.

        Raises:
            LocalClusterError: nothing is known of such a node or of its pool.
        """
        known = {machine.name: machine for machine in self.machines()}
        if name in known:
            template = known[name].spec
            self.remove(name)
        else:
            if name not in self._retired():
                raise self._unknown(name)
            template = Machine.from_record(self._retired()[name]).spec
        machine = self._create(renamed(template, self._last_ordinals().get(template.pool, 0) + 1), self.machines())
        rest = {other: record for other, record in self._retired().items() if other != name}
        self._state.write_json(self._state.path("nodes", RETIRED), rest)
        self._start(machine)
        self.wait_ready([machine])
        return machine

    # -- parts ---------------------------------------------------------------------------------------------------

    def _client(self) -> Client:
        return Client(config=KubeConfig.from_file(self._control_plane.kubeconfig), trust_env=False)

    def _free_pods(self, name: str) -> None:
        config = KubeConfig.from_file(self._control_plane.kubeconfig).get()
        if config is not None:
            limit = httpx2.Timeout(ANSWER_SECONDS)
            with client_adapter.Client(config, client_adapter.ConnectionParams(limit, trust_env=False)) as http:
                free_pods(self._client(), http, name)

    def _known(self, name: str) -> Machine:
        for machine in self.machines():
            if machine.name == name:
                return machine
        raise self._unknown(name)

    def _unknown(self, name: str) -> LocalClusterError:
        names = ", ".join(machine.name for machine in self.machines()) or "none"
        return LocalClusterError(f"there is no node {name}", why=f"nodes: {names}", remedy="trainyard status")

    def _under_notice(self) -> list[str]:
        """Nodes that were told of their end; a cloud never takes that back."""
        known = {machine.name for machine in self.machines()}
        noticed = []
        for node in self._client().list(Node):
            annotations = (node.metadata.annotations if node.metadata else None) or {}
            if RECLAIM_AT in annotations and name_of(node) in known:
                noticed.append(name_of(node))
        return noticed

    def _retire(self, name: str) -> None:
        """Remove a node in peace: its pods first."""
        if PROCESS_PREFIX + name in self._processes.running():
            client = self._client()
            with contextlib.suppress(ApiError):
                client.patch(Node, name, {"spec": {"unschedulable": True}})
                drain(client, name, datetime.now(UTC) + timedelta(seconds=RETIRE_SECONDS))
        self.remove(name)

    def _create(self, spec: NodeSpec, others: Sequence[Machine]) -> Machine:
        taken = {machine.number for machine in others}
        free = [number for number in range(1, LAST_NUMBER + 1) if number not in taken]
        if not free:
            raise LocalClusterError(f"no more than {LAST_NUMBER} nodes fit on this computer", remedy="ask for fewer")
        machine = Machine(spec, free[0], self._network())
        # The number is used up before the folder exists: an interruption leaves a gap, never a name used twice.
        last = self._last_ordinals()
        last[spec.pool] = max(last.get(spec.pool, 0), ordinal_of(spec.name, spec.pool))
        self._state.write_json(self._state.path("nodes", "ordinals.json"), last)
        self._delete_object(spec.name)
        self._state.write_json(self._state.path("nodes", spec.name, "spec.json"), machine.as_record())
        return machine

    def _start(self, machine: Machine) -> None:
        state, folder = self._state, self._state.folder("nodes", machine.name)
        short = self._short_path(machine)
        for below in ("kubelet/pods", "pod-logs", "volume-plugins"):
            state.folder("nodes", machine.name, below)
        issue = self._control_plane.authority.issue
        serving = issue(
            "kubelet-serving",
            Subject(f"system:node:{machine.name}", ("system:nodes",), (machine.name, machine.address), client=False),
            folder,
        )
        user = f"system:node:{machine.name}"
        client = issue("kubelet-client", Subject(user, ("system:nodes",)), folder)
        config = self._control_plane.write_kubeconfig(folder / "kubelet.kubeconfig", client, user)
        resolver = Path("/etc/resolv.conf")
        host_resolver = resolver.read_text() if resolver.exists() else ""
        state.write(folder / "resolv.conf", kubelet.resolver(host_resolver), mode=0o644)
        authority = self._control_plane.authority.pair.certificate
        settings = kubelet.configuration(machine, folder, short, authority, serving)
        state.write(folder / "kubelet.yaml", yaml.safe_dump(settings, sort_keys=False))
        process = kubelet.node_process(
            machine,
            folder,
            short,
            images=state.path("images.json"),
            # Containers find the API server through these; the Service's own address leads nowhere without kube-proxy.
            environment={
                "KUBERNETES_SERVICE_HOST": LOOPBACK,
                "KUBERNETES_SERVICE_PORT": str(self._control_plane.ports.api_server),
                "KUBERNETES_SERVICE_PORT_HTTPS": str(self._control_plane.ports.api_server),
            },
            hide=self._hide,
            kubelet_command=kubelet.command(machine, folder, short, self._engines["kubelet"], config),
        )
        state.write_json(folder / "node.json", process)
        self._processes.start(
            PROCESS_PREFIX + machine.name,
            [self._engines["process-runtime"], "node", "--config", folder / "node.json"],
            inputs=(folder / "node.json", folder / "kubelet.yaml", config, serving.certificate),
        )

    def _short_path(self, machine: Machine) -> Path:
        """A link to the node's folder whose path leaves room for the sockets below it (unix(7): 107 bytes)."""
        link = self._state.folder("n") / str(machine.number)
        target = Path("..", "nodes", machine.name)
        if not (link.is_symlink() and link.readlink() == target):
            link.unlink(missing_ok=True)
            link.symlink_to(target)
        return link

    def _network(self) -> int:
        path = self._state.path("nodes", "network.json")
        known = self._state.read_json(path)
        if isinstance(known, int) and 0 < known < 255:
            return known
        chosen = ports.choose_network(self._state.directory)
        self._state.write_json(path, chosen)
        return chosen

    def _avoid_clash(self, progress: Progress) -> None:
        """Move the nodes to another network where somebody took theirs while none of them ran."""
        network = self._network()
        ours = any(name.startswith(PROCESS_PREFIX) for name in self._processes.running())
        if ours or network not in ports.used_networks():
            return
        chosen = ports.choose_network(self._state.directory)
        progress.note(f"another program listens in 127.{network}.0.0/16: the nodes move to 127.{chosen}.0.0/16")
        for machine in self.machines():
            moved = dataclasses.replace(machine, network=chosen)
            self._state.write_json(self._state.path("nodes", machine.name, "spec.json"), moved.as_record())
        self._state.write_json(self._state.path("nodes", "network.json"), chosen)

    def _retired(self) -> dict[str, Any]:
        """Records of nodes that went and whose place nobody took yet, by name."""
        known = self._state.read_json(self._state.path("nodes", RETIRED))
        return known if isinstance(known, dict) else {}

    def _last_ordinals(self) -> dict[str, int]:
        known = self._state.read_json(self._state.path("nodes", "ordinals.json"))
        return {str(pool): int(last) for pool, last in known.items()} if isinstance(known, dict) else {}

    def _remove_strangers(self, keep: Sequence[Machine]) -> None:
        """End node processes and delete folders that no record explains: what an interruption left."""
        known = {machine.name for machine in self.machines()} | {machine.name for machine in keep}
        for name in self._processes.running():
            node = name.removeprefix(PROCESS_PREFIX)
            if name.startswith(PROCESS_PREFIX) and node not in known:
                self._processes.stop(name, grace=STOP_GRACE)
        for folder in self._state.folder("nodes").iterdir():
            if folder.is_dir() and folder.name not in known:
                self._delete_object(folder.name)
                self._free_pods(folder.name)
                remove_tree(folder, ignore_errors=True)

    def _forget(self, name: str) -> None:
        folder = self._state.path("nodes", name)
        record = self._state.read_json(folder / "spec.json")
        if record is not None:
            self._state.write_json(self._state.path("nodes", RETIRED), {**self._retired(), name: record})
        remove_tree(folder, ignore_errors=True)

    def _delete_object(self, name: str) -> None:
        try:
            self._client().delete(Node, name)
        except ApiError as error:
            if error.status.code != 404:
                raise


def is_ready(node: Node, since: datetime | None = None) -> bool:
    """Whether pods can start on the Node: ready, initialised, and (with `since`) heard of since then."""
    found: dict[str, Any] = node.to_dict()
    ready = [item for item in (found.get("status") or {}).get("conditions") or () if item["type"] == "Ready"]
    if not ready or ready[0]["status"] != "True":
        return False
    heard = ready[0].get("lastHeartbeatTime")
    if since is not None and (heard is None or datetime.fromisoformat(str(heard)) < since):
        return False
    taints = {taint["key"] for taint in (found.get("spec") or {}).get("taints") or ()}
    return not any(key.startswith(_HOLDING_TAINTS) for key in taints)


def name_of(node: Node) -> str:
    """The Node's name."""
    return str(node.metadata.name if node.metadata else "")
