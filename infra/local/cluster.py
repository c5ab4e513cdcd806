"""The cluster on this computer as one thing: up, down, status, and what can befall its nodes.

Everything here may be interrupted at any point, by Ctrl-C or SIGKILL, and repeated: the process table says what runs,
every file is replaced whole, and `up` starts exactly what is missing.
"""

import os
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import httpx2
from lightkube import ApiError
from lightkube.core.exceptions import ConfigError

from infra.local import cloud
from infra.local.control_plane import COMPONENTS, ControlPlane
from infra.local.errors import LocalClusterError
from infra.local.folders import remove_tree
from infra.local.images import ImageStore
from infra.local.images.table import write_table
from infra.local.nodes import Machine, Nodes, NodeSpec, NodeStatus, Reclaimed
from infra.local.processes import Processes
from infra.local.progress import Progress, Silent
from infra.local.state import State

CLOUD = "cloud"
# etcd alone preallocates 64 MB for each of its logs, and a cluster has two etcds (its own, and that of the jobs).
ROOM_TO_BEGIN = 512 << 20
ROOM_TO_GO_ON = 32 << 20
CLOUD_TIMEOUT = 120.0  # seconds; about 1 on two cores
ENGINES = (*COMPONENTS, "kubelet", "process-runtime")  # the programs that are needed
_CHECKOUT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class ComponentStatus:
    """One part of the cluster as it is now.

    Attributes:
        name: E.g. "etcd".
        pid: Its process, None when it doesn't run.
        port: Where it listens on 127.0.0.1, None when nowhere.
        healthy: Whether it answers so.
        since: Start of its process.
        resident_bytes: Its memory.
    """

    name: str
    pid: int | None
    port: int | None
    healthy: bool
    since: datetime | None
    resident_bytes: int


@dataclass(frozen=True)
class ClusterStatus:
    """The cluster as it is now."""

    kubeconfig: Path
    components: tuple[ComponentStatus, ...]
    nodes: tuple[NodeStatus, ...]

    @property
    def healthy(self) -> bool:
        """Whether every component is healthy and every node ready."""
        return all(part.healthy for part in self.components) and all(node.ready for node in self.nodes)


class LocalCluster:
    """The cluster whose state is in `state`.

    Args:
        state: The cluster's folder.
        engines: Paths of the programs in `ENGINES`; may be empty for `down` and `status`.
        progress: Told what happens.
        api_server_port: A port that the user fixed for the API server; else a free one is chosen and kept.
        wait: Wait for another command that changes the same cluster; else raise.
    """

    def __init__(
        self,
        state: State,
        engines: Mapping[str, Path] | None = None,
        *,
        progress: Progress | None = None,
        api_server_port: int | None = None,
        wait: bool = True,
    ) -> None:
        self.state = state
        self._engines = engines or {}
        self._progress = progress or Silent()
        self._wait = wait
        self._processes = Processes(state)
        self.control_plane = ControlPlane(state, self._engines, api_server_port)
        self._nodes = Nodes(state, self._engines, self.control_plane, hide=hidden_folders(state))

    @property
    def kubeconfig(self) -> Path:
        """The administrator's kubeconfig (mode 0600)."""
        return self.control_plane.kubeconfig

    def up(self, images: Mapping[str, Mapping[str, Any]], nodes: Sequence[NodeSpec]) -> None:
        """Start whatever of the cluster doesn't run, and make its nodes the given ones.

        Args:
            images: What the names of the checkout's own images mean here, as in `images.json` of the process runtime.
                Loaded images are added.
            nodes: All nodes that shall be.

        Raises:
            LocalClusterError: a plain message; running `up` again continues.
        """
        with self._changing():
            self.state.require_room(ROOM_TO_GO_ON if self.kubeconfig.exists() else ROOM_TO_BEGIN)
            store = ImageStore()
            write_table(self.state, store, images)
            for name in sorted(images.keys() & {image.name for image in store.images()}):
                self._progress.note(f"{name} is the loaded image, not the checkout's")
            with self._progress.step("control plane"):
                self.control_plane.start()
            self._start_cloud()
            with self._progress.step(f"{len(nodes)} nodes"):
                self._nodes.reconcile(nodes, self._progress)
                self.control_plane.wait_healthy()
                self._processes.wait_ready(CLOUD, self._cloud_beats, timeout=CLOUD_TIMEOUT)

    def down(self) -> list[str]:
        """End every process; state stays and the next `up` continues from it.

        Returns:
            The names of the processes that ran.
        """
        with self._changing():
            ended = self._nodes.stop()
            ended += self._processes.stop(CLOUD)
            ended += self.control_plane.down()
            # Whatever an earlier version of this program may have started.
            return ended + self._processes.stop(*self._processes.running())

    def erase(self) -> None:
        """Delete what the cluster knew and held, volumes included; its processes must have ended (`down`).

        Logs stay, and so does what others keep in the state folder.
        """
        with self._changing():
            # The kubeconfig goes first: without it nobody takes a half erased cluster for one that is there.
            for name in ("kubeconfig", "images.json"):
                self.state.path(name).unlink(missing_ok=True)
            for name in ("n", "nodes", "cloud", "volumes", "control_plane"):
                if self.state.path(name).exists():
                    remove_tree(self.state.path(name))

    def status(self) -> ClusterStatus:
        """What runs, where, how well; changes nothing."""
        running = self._processes.running()
        attached = self.control_plane.attach()
        health = self.control_plane.health() if attached else {}
        health[CLOUD] = self._cloud_beats()
        ports = self.control_plane.component_ports() if attached else {}
        parts = []
        for name in (*COMPONENTS, CLOUD):
            process = running.get(name)
            parts.append(
                ComponentStatus(
                    name=name,
                    pid=process.pid if process else None,
                    port=ports.get(name) if process else None,
                    healthy=process is not None and health.get(name, False),
                    since=process.since if process else None,
                    resident_bytes=process.resident_bytes() if process else 0,
                )
            )
        return ClusterStatus(self.kubeconfig, tuple(parts), tuple(self._nodes.status() if attached else ()))

    def reclaim(self, node: str, notice_seconds: float = 120.0) -> Reclaimed:
        """See `Nodes.reclaim`."""
        with self._changing():
            self._attach()
            return self._nodes.reclaim(node, notice_seconds)

    def kill(self, node: str) -> Machine:
        """See `Nodes.kill`."""
        with self._changing():
            return self._nodes.kill(node)

    def replace(self, node: str) -> Machine:
        """See `Nodes.replace`."""
        with self._changing():
            self._attach()
            return self._nodes.replace(node)

    def machines(self) -> list[Machine]:
        """The nodes that exist on this computer."""
        return self._nodes.machines()

    @contextmanager
    def _changing(self) -> Iterator[None]:
        with self.state.lock(wait=self._wait, note=self._progress.note):
            try:
                yield
            except ApiError as error:
                raise LocalClusterError(
                    "the cluster's API server refused a request",
                    why=error.status.message or str(error),
                    remedy="trainyard status says what is not well; trainyard up repairs it",
                ) from error
            except (httpx2.HTTPError, ConfigError) as error:
                raise LocalClusterError(
                    "the cluster's API server doesn't answer", why=str(error) or repr(error), remedy="trainyard up"
                ) from error

    def _attach(self) -> None:
        if not (self.control_plane.attach() and self.kubeconfig.exists()):
            raise LocalClusterError(
                "there is no cluster yet",
                why=f"nothing is known of one in {self.state.directory}",
                remedy="trainyard up",
            )

    def _cloud_beats(self) -> bool:
        """Whether the cloud acts and hears from the API server, as its heartbeat tells."""
        try:
            return time.time() - cloud.heartbeat(self.state.directory).stat().st_mtime < cloud.BEAT_LIMIT
        except OSError:
            return False

    def _start_cloud(self) -> None:
        config = self.control_plane.client_kubeconfig(cloud.USER, folder=self.state.folder("cloud"))
        self.state.folder("volumes")
        started = self._processes.start(
            CLOUD,
            [sys.executable, "-m", "infra.local.cloud", "--kubeconfig", config, "--state", self.state.directory],
            environment={"PYTHONPATH": os.pathsep.join([str(_CHECKOUT), *_python_path()])},
            inputs=(config, *sorted(Path(cloud.__file__).parent.glob("*.py"))),
        )
        if started:
            cloud.heartbeat(self.state.directory).unlink(missing_ok=True)  # of its earlier life


def _python_path() -> list[str]:
    """Where the user lets this interpreter look for packages besides its own."""
    return [entry for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep) if entry and Path(entry) != _CHECKOUT]


def hidden_folders(state: State) -> list[Path]:
    """What pods must not see of this computer: the cluster's own keys and all that is the user's.

    An image's `mounts` are shown to its pods wherever they are.
    """
    home = Path.home()
    # Some accounts have the root folder as their home, without which there would be no programs.
    private = [home] if home != Path("/") else sorted(path for path in home.glob(".*") if path.is_dir())
    return [state.directory, *private]
