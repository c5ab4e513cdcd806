"""One rehearsal's stand-ins as one thing: up, down, status.

moto, a real Kubernetes control plane, kwok and a binder of volumes run as processes of this computer below one state
folder; the process table says what runs (`infra.local.processes`). `down` ends them all and deletes the folder.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from infra.errors import TrainyardError
from infra.local import ports
from infra.local.cluster import ComponentStatus
from infra.local.control_plane import COMPONENTS, NODE_LEASE_SECONDS, ControlPlane
from infra.local.engines.pulumi import PROVIDER
from infra.local.processes import Processes
from infra.local.progress import Progress, Silent
from infra.local.state import State
from infra.rehearsal import moto, tools
from infra.rehearsal.connection import Connection, NoRehearsalError
from infra.rehearsal.stages import SIMULATED, stages

KWOK, VOLUMES = "kwok", "volumes"
ENGINES = (*COMPONENTS, KWOK, "pulumi", "pulumi-language-python", PROVIDER)
"""The programs that a rehearsal needs."""
LABEL = "rehearsal: stand-ins answered for AWS and played the nodes, no AWS account was touched"
"""Goes with everything that a rehearsal says."""
ROOM = 512 << 20  # bytes: etcd's logs, and what the engine writes
_MOTO_SECONDS = 120.0  # until it answers; about 3 on two cores
_PODS = "100.64.0.1/16"  # addresses of pods; nobody listens on them
_BORROWED = "borrowed"
"""File in the folder of a rehearsal that uses the stand-ins of another one."""
_CHECKOUT = Path(__file__).resolve().parents[2]


class MemoryLostError(TrainyardError):
    """moto has ended, and with it all that it knew; the engine's record of it is worth nothing."""


class UnfinishedError(TrainyardError):
    """An earlier run was killed while it made something, and now the engine is in its own way."""


class Rehearsal:
    """The rehearsal in `state`.

    Args:
        state: its folder.
        engines: paths of the programs in `ENGINES`; may be empty for `down` and `status`.
        progress: told what happens.
    """

    def __init__(
        self, state: State, engines: Mapping[str, Path] | None = None, *, progress: Progress | None = None
    ) -> None:
        self.state = state
        self._engines = engines or {}
        self._progress = progress or Silent()
        self._processes = Processes(state)
        self._control_plane = ControlPlane(state, self._engines, like_cloud=True)

    def up(self, region: str) -> Connection:
        """Start whatever does not run, and return when all of it answers.

        Args:
            region: the stack's AWS region.

        Raises:
            MemoryLostError: moto had ended while the engine has resources on record.
            LocalClusterError: a part does not start.
        """
        if self.state.path(_BORROWED).exists():
            return self.connection()
        with self.state.lock(note=self._progress.note), self._progress.step("stand-ins"):
            self.state.require_room(ROOM)
            self._require_memory()
            endpoint = self._start_moto()
            self._progress.note("control plane")
            self._control_plane.start()
            connection = self._connection(endpoint, region)
            tools.install(self.state, connection.kubeconfig, _CHECKOUT, self._engines[PROVIDER])
            self._start_simulation()
            self._control_plane.wait_healthy()
            self._progress.note("moto")
            self._processes.wait_ready(moto.NAME, lambda: moto.answers(endpoint), timeout=_MOTO_SECONDS)
            connection.write(self.state)
        return connection

    def up_to_look(self, region: str) -> Connection:
        """Start only what a preview asks: moto, etcd and the API server. Nothing could be brought up with these.

        Raises:
            LocalClusterError: a part does not start.
        """
        with self.state.lock(note=self._progress.note), self._progress.step("stand-ins to look at"):
            self.state.require_room(ROOM)
            endpoint = self._start_moto()
            self._control_plane.start_api_server()
            self._processes.wait_ready(moto.NAME, lambda: moto.answers(endpoint), timeout=_MOTO_SECONDS)
            connection = self._connection(endpoint, region)
            connection.write(self.state)
        return connection

    def lend(self, state: State, region: str) -> None:
        """Make the rehearsal in another folder one that uses these stand-ins, for previews of many stacks at once.

        It has a record, a book and plugins of its own, and must not outlive these; `down` there ends nothing here.

        Args:
            state: the folder of that rehearsal.
            region: of its stack.
        """
        connection = dataclasses.replace(self.connection(), region=region)
        tools.install(state, connection.kubeconfig, _CHECKOUT, self._engines[PROVIDER])
        connection.write(state)
        state.write(state.path(_BORROWED), f"{self.state.directory}\n")

    def down(self, *, at_once: bool = False) -> list[str]:
        """End every process and delete the folder.

        Args:
            at_once: without a word before: nobody needs what they would still write.

        Returns:
            The names of the processes that ran.
        """
        with self.state.lock(note=self._progress.note), self._progress.step("stand-ins"):
            ended = self._processes.stop(*self._processes.running(), grace=0.0) if at_once else []
            ended += self._processes.stop(KWOK, VOLUMES, moto.NAME, grace=2.0)
            ended += self._control_plane.down()
            ended += self._processes.stop(*self._processes.running())  # the engine's leftovers
            self._delete_folder()
        with contextlib.suppress(OSError):
            self.state.directory.parent.rmdir()  # unless others keep something there
        return ended

    def connection(self) -> Connection:
        """How to reach it.

        Raises:
            NoRehearsalError: it was never up.
        """
        return Connection.read(self.state.directory)

    def has_memory(self) -> bool:
        """Whether moto runs and so remembers what was made."""
        return moto.NAME in self._processes.running()

    def has_record(self) -> bool:
        """Whether the engine has resources on record."""
        return any(latest.get("resources") for latest in self._records())

    def unfinished(self) -> list[str]:
        """What a run was making when it was killed: it may be there, and the engine does not know it."""
        urns = [
            operation["resource"]["urn"]
            for latest in self._records()
            for operation in latest.get("pending_operations") or []
            if operation["type"] == "creating"
        ]
        return sorted(f"{kind.rpartition(':')[2]} {name}" for *_, kind, name in (urn.split("::") for urn in urns))

    def components(self) -> tuple[ComponentStatus, ...]:
        """What runs, where, how well; changes nothing."""
        running = self._processes.running()
        attached = self._control_plane.attach()
        health = self._control_plane.health() if attached else {}
        known = self._control_plane.component_ports() if attached else {}
        with contextlib.suppress(NoRehearsalError):
            endpoint = self.connection().aws_endpoint_url
            known[moto.NAME] = int(endpoint.rpartition(":")[2])
            health[moto.NAME] = moto.answers(endpoint)
        health |= {name: name in running for name in (KWOK, VOLUMES)}
        found = []
        for name in (moto.NAME, *COMPONENTS, KWOK, VOLUMES):
            process = running.get(name)
            found.append(
                ComponentStatus(
                    name=name,
                    pid=process.pid if process else None,
                    port=known.get(name) if process else None,
                    healthy=process is not None and health.get(name, False),
                    since=process.since if process else None,
                    resident_bytes=process.resident_bytes() if process else 0,
                )
            )
        return tuple(found)

    def _connection(self, endpoint: str, region: str) -> Connection:
        return Connection(
            aws_endpoint_url=endpoint,
            region=region,
            account=moto.ACCOUNT,
            kubeconfig=self._control_plane.kubeconfig,
            server=self._control_plane.server,
            certificate_authority=_authority(self._control_plane.kubeconfig),
        )

    def _delete_folder(self) -> None:
        """Delete everything, what the lock is made of last: until then who waits for it must not get it.

        After that they may be quicker than the folder's end, which is theirs then.
        """
        locks = ("lock", "lock.holder")
        for path in self.state.directory.iterdir():
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            elif path.name not in locks:
                path.unlink(missing_ok=True)
        for name in reversed(locks):
            self.state.path(name).unlink(missing_ok=True)
        with contextlib.suppress(OSError):
            self.state.directory.rmdir()

    def _records(self) -> list[dict[str, Any]]:
        """The engine's records of stacks, as far as they can be read."""
        found = []
        for record in self.state.path("pulumi", "backend").glob(".pulumi/stacks/*/*.json"):
            with contextlib.suppress(OSError, ValueError, LookupError, TypeError):
                latest = json.loads(record.read_bytes())["checkpoint"]["latest"]
                found.append(dict(latest or {}))
        return found

    def _require_memory(self) -> None:
        if self.has_record() and not self.has_memory():
            raise MemoryLostError(
                "the rehearsal's moto has ended, and what it knew of the stack with it (a restarted computer, or"
                " somebody ended it). Begin the rehearsal anew: `down --rehearse`, then `up --rehearse`"
            )

    def _start_moto(self) -> str:
        port_file = self.state.path("moto.json")
        stored = self.state.read_json(port_file)
        port = stored.get("port") if isinstance(stored, dict) else None
        if not isinstance(port, int) or not (self.has_memory() or ports.becomes_free(port)):
            port = ports.choose(f"{self.state.directory}:{moto.NAME}", 1)[0]
            self.state.write_json(port_file, {"port": port})
        if not self.has_memory():  # one that runs is left as it is, however it was started: it would forget everything
            self._processes.start(moto.NAME, moto.command(port), environment=moto.environment())
        return f"http://{moto.LOOPBACK}:{port}"

    def _start_simulation(self) -> None:
        """The nodes' player and the volumes' binder, each with the rights of an administrator of this cluster."""
        masters = ("system:masters",)
        config = self._control_plane.client_kubeconfig("trainyard:rehearsal", masters)
        behaviour = self.state.path("stages.yaml")
        self.state.write(behaviour, stages())
        options = {
            "config": behaviour,
            "kubeconfig": config,
            "manage-nodes-with-annotation-selector": "=".join(SIMULATED),
            "node-lease-duration-seconds": NODE_LEASE_SECONDS,
            "cidr": _PODS,
        }
        kwok: list[str | Path] = [self._engines[KWOK], *(f"--{name}={value}" for name, value in options.items())]
        self._processes.start(KWOK, kwok, inputs=(behaviour, config))
        python_path = os.pathsep.join(filter(None, [str(_CHECKOUT), os.environ.get("PYTHONPATH", "")]))
        self._processes.start(
            VOLUMES,
            [sys.executable, "-m", "infra.rehearsal.volumes", "--kubeconfig", config],
            environment={"PYTHONPATH": python_path},
            inputs=(config,),
        )


def _authority(kubeconfig: Path) -> str:
    """The authority of the API server as base64 of PEM, as kubeconfigs and EKS write it."""
    (cluster,) = yaml.safe_load(kubeconfig.read_text())["clusters"]
    return str(cluster["cluster"]["certificate-authority-data"])
