"""Real etcd and real launchers as local processes, for tests and benchmarks. Everything started here is ended here."""

import contextlib
import json
import os
import random
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from http.client import HTTPException
from pathlib import Path
from typing import Any, cast
from urllib.request import HTTPSHandler, ProxyHandler, build_opener

from training.launch.etcd_client import Endpoint, EtcdClient

ROOT = Path(__file__).parents[2]
# Seconds. A wait ends as soon as what it waits for is there, so this costs nothing; a machine whose disk or processor
# stands still for a while must not decide a test.
PATIENCE = 120.0


def find_etcd() -> str:
    """The etcd to test with: $TRAINYARD_ETCD, the engine cache, or PATH, where it may be an old one."""
    cache = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache"))
    cache = Path(os.environ.get("TRAINYARD_CACHE_DIR", cache / "trainyard"))
    candidates = [os.environ.get("TRAINYARD_ETCD"), *map(str, sorted(cache.glob("**/etcd"))), shutil.which("etcd")]
    for candidate in candidates:
        if candidate and Path(candidate).is_file() and os.access(candidate, os.X_OK):
            return candidate
    raise AssertionError("no etcd: put one on PATH, set TRAINYARD_ETCD, or build the engines with `make setup`")


def find_old_etcd() -> str:
    """The oldest etcd that the rendezvous serves, 3.4, as Debian has it: $TRAINYARD_OLD_ETCD or its package's."""
    candidate = os.environ.get("TRAINYARD_OLD_ETCD", "/usr/bin/etcd")
    if not os.access(candidate, os.X_OK):
        raise AssertionError(
            "no etcd 3.4: install Debian's etcd-server, or unpack it (apt-get download etcd-server; dpkg-deb -x) and "
            "set TRAINYARD_OLD_ETCD"
        )
    return candidate


def free_port() -> int:
    """A port to listen on; below those of outgoing connections, one of which could take it before the server does."""
    while True:
        port = random.randrange(10000, 20000)  # noqa: S311 - no secret
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port


@contextlib.contextmanager
def closed_port() -> Iterator[int]:
    """A port that refuses connections, and that nobody else can open meanwhile."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))  # bound and not listening
        yield held.getsockname()[1]


def patient_client(endpoints: Sequence[Endpoint], **options: Any) -> EtcdClient:
    """A client for what is not about time limits: a slow machine delays its answers and changes none."""
    limits = {"attempt_timeout": timedelta(seconds=30), "call_timeout": timedelta(seconds=PATIENCE)}
    return EtcdClient(endpoints, **{**limits, **options})


def wipe(client: EtcdClient) -> None:
    """Delete all that is in an etcd, which no launcher may."""
    everything = {"key": "AA==", "range_end": "AA=="}  # from zero on, in base64
    client._call("/v3/kv/deleterange", everything)


class Etcd:
    """One etcd member that can be killed, frozen and started again on the same data."""

    def __init__(
        self, folder: Path, *options: str, scheme: str = "http", host: str = "127.0.0.1", program: str | None = None
    ) -> None:
        self._program = program or find_etcd()
        self.port, self._peer_port = free_port(), free_port()
        self.endpoint = f"{host}:{self.port}"
        self._folder, self._options, self._scheme = folder, options, scheme
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        client, peer = f"{self._scheme}://{self.endpoint}", f"http://127.0.0.1:{self._peer_port}"
        command = [
            *(self._program, "--name=default", f"--data-dir={self._folder / 'data'}", "--unsafe-no-fsync"),
            *(f"--listen-client-urls={client}", f"--advertise-client-urls={client}"),
            *(f"--listen-peer-urls={peer}", f"--initial-advertise-peer-urls={peer}"),
            *(f"--initial-cluster=default={peer}", "--log-level=warn", *self._options),
        ]
        with (self._folder / "etcd.log").open("ab") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log)
        wait_for(self._is_well, "etcd to answer")

    def _is_well(self) -> bool:
        """Whether it has a leader and serves; a port that listens says less."""
        assert self.process is not None
        assert self.process.poll() is None, (self._folder / "etcd.log").read_text(errors="replace")[-1500:]
        unchecked = ssl._create_unverified_context()  # noqa: S323
        direct = build_opener(ProxyHandler({}), HTTPSHandler(context=unchecked))
        url = f"{self._scheme}://{self.endpoint}/health"
        with contextlib.suppress(OSError, HTTPException), direct.open(url, timeout=10) as answer:
            return b'"true"' in answer.read()
        return False

    def signal(self, number: int) -> None:
        assert self.process is not None
        self.process.send_signal(number)

    def stop(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()


@contextlib.contextmanager
def etcd_server(folder: Path) -> Iterator[Etcd]:
    etcd = Etcd(folder)
    try:
        etcd.start()
        yield etcd
    finally:
        etcd.stop()


def wait_for(condition: Callable[[], Any], what: str, seconds: float = PATIENCE) -> Any:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if result := condition():
            return result
        time.sleep(0.05)
    raise AssertionError(f"waited {seconds:g} s for {what}")


@dataclass
class Agent:
    """One launcher process and what it and its workers have said."""

    name: str
    process: subprocess.Popen[bytes]
    log: Path

    def events(self, kind: str | None = None) -> list[dict[str, Any]]:
        lines = [line for line in self.log.read_text(errors="replace").splitlines() if line.startswith('{"trainyard"')]
        events = [json.loads(line) for line in lines if line.endswith("}")]
        return [event for event in events if kind in {None, event["trainyard"]}]

    def children(self, pid: int | None = None) -> list[int]:
        """The process ids below this one (or below `pid`), nearest first."""
        pid = self.process.pid if pid is None else pid
        direct: list[int] = []
        for task in Path(f"/proc/{pid}/task").glob("*/children"):
            with contextlib.suppress(OSError):  # it has ended meanwhile
                direct += [int(child) for child in task.read_text().split()]
        return [*direct, *(below for child in direct for below in self.children(child))]

    def worker(self) -> int:
        """The process that trains: a session of its own below the template (or below the agent, without one)."""
        workers = [pid for pid in self.children() if os.getsid(pid) == pid][1:]
        assert workers, f"{self.name} has no worker"
        return workers[0]

    @property
    def is_alive(self) -> bool:
        return self.process.poll() is None

    def signal_tree(self, number: int) -> None:
        """To the launcher and all below it, as when their computer stands still or is switched off."""
        below = self.children() if self.is_alive else []
        for pid in (self.process.pid, *below):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)

    def wait(self, seconds: float = PATIENCE) -> int:
        return self.process.wait(seconds)


class Job:
    """Launchers of one job, all on this computer."""

    launcher = "training"

    def __init__(
        self,
        folder: Path,
        etcd: Etcd,
        script: Sequence[str],
        *,
        nnodes: str = "1:3",
        run: str = "job",
        preload: str = "numpy",
    ) -> None:
        self.folder, self._etcd, self._script, self._nnodes, self._run = folder, etcd, script, nnodes, run
        self._preload = preload
        self.agents: list[Agent] = []

    def start(
        self,
        name: str,
        *options: str,
        environment: Mapping[str, str] | None = None,
        inside: Sequence[str] = (),
    ) -> Agent:
        """Start a launcher; `inside` is a command that runs another one somewhere, as `ip netns exec`."""
        command = [
            *(*inside, sys.executable, "-m", self.launcher, f"--nnodes={self._nnodes}", *self.meeting_place()),
            *(f"--rdzv-id={self._run}", *options, *self._script),
        ]
        base = {key: value for key, value in os.environ.items() if not key.startswith(("PET_", "TRAINYARD_", "COV_"))}
        ours = {
            "OMP_NUM_THREADS": "1",
            "PYTHONPATH": str(ROOT),
            "TRAINYARD_PRELOAD": self._preload,
            "TRAINYARD_NOTICES": "none",  # the machine of the tests may be one of a cloud
        }
        log = self.folder / f"{name}.log"
        with log.open("wb") as stream:
            process = subprocess.Popen(
                command,
                stdout=stream,
                stderr=stream,
                cwd=self.folder,
                env={**base, **ours, **(environment or {})},
                start_new_session=True,
            )
        agent = Agent(name, process, log)
        self.agents.append(agent)
        return agent

    def meeting_place(self) -> list[str]:
        return ["--rdzv-backend=etcd-v3", f"--rdzv-endpoint={self._etcd.endpoint}"]

    def events(self, kind: str) -> list[dict[str, Any]]:
        """Events of all launchers, by time."""
        return sorted((event for agent in self.agents for event in agent.events(kind)), key=lambda event: event["time"])

    def wait_for_step(self, step: int, *, newer_than: int = 0, **fields: Any) -> dict[str, Any]:
        """Wait until a world of a newer generation has completed `step` or a later one, with these fields."""

        def found() -> dict[str, Any] | None:
            for event in self.events("step"):
                if event["step"] >= step and event["generation"] > newer_than and fields.items() <= event.items():
                    return event
            return None

        return cast(dict[str, Any], wait_for(found, f"step {step} with {fields}: {self.tail()}"))

    def tail(self) -> str:
        return "\n".join(f"--- {agent.name}\n{agent.log.read_text(errors='replace')[-1500:]}" for agent in self.agents)

    def stop(self) -> None:
        for agent in self.agents:
            agent.signal_tree(signal.SIGKILL)
            agent.process.wait()
