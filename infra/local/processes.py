"""The long-running processes of one local cluster: started detached, found again through the process table alone.

Each carries `TRAINYARD_PROCESS=<state folder>:<name>` in its environment and leads a session of its own. So whatever
happens to the command that started it (closed terminal, SIGKILL), the next command finds exactly what runs, and
nothing that somebody else started can be mistaken for it.
"""

import contextlib
import hashlib
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import psutil

from infra.local.errors import LocalClusterError
from infra.local.state import PRIVATE_FILE, State

MARK = "TRAINYARD_PROCESS"  # names the cluster and the process
FINGERPRINT = "TRAINYARD_FINGERPRINT"  # changes when the process would be started differently today
LOG_LIMIT = 16 << 20  # bytes; an older log is kept as <name>.log.1 when the process starts again
_LOG_TAIL_LINES = 15
_POLL = 0.03  # seconds between two looks at a process that starts or ends
_KILLED_ENDS = 60.0  # seconds; the kernel lets a process finish its writes to a slow disk first

# Children that this very interpreter started; asked now and then so that ended ones don't stay as zombies.
_children: list[subprocess.Popen[bytes]] = []


@dataclass(frozen=True)
class Running:
    """One process of the cluster that lives."""

    name: str
    process: psutil.Process
    fingerprint: str

    @property
    def pid(self) -> int:
        """The process id; also the id of its session and process group."""
        return self.process.pid

    @property
    def since(self) -> datetime:
        """When it was started."""
        return datetime.fromtimestamp(self.process.create_time(), UTC)

    def resident_bytes(self) -> int:
        """Resident memory of the process and its children, in bytes."""
        total = 0
        with contextlib.suppress(psutil.Error):
            for process in [self.process, *self.process.children(recursive=True)]:
                with contextlib.suppress(psutil.Error):
                    total += process.memory_info().rss
        return total


class Processes:
    """The processes of the cluster in `state`."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._prefix = f"{state.directory}:"

    def log_path(self, name: str) -> Path:
        """Where the process writes its output."""
        return self._state.path("logs", f"{name}.log")

    def running(self) -> dict[str, Running]:
        """All that live, by name."""
        found: dict[str, Running] = {}
        for mark, process, environment in sorted(self._marked(), key=lambda item: item[1].create_time(), reverse=True):
            if _leads_session(process) and _is_mine(process):
                found[mark] = Running(mark, process, environment.get(FINGERPRINT, ""))
        return found

    def start(
        self,
        name: str,
        command: Sequence[str | Path],
        *,
        environment: Mapping[str, str] | None = None,
        inputs: Iterable[Path] = (),
    ) -> bool:
        """Start a process unless it runs already just so; one that runs otherwise is restarted.

        Args:
            name: Its name in the cluster, e.g. "etcd" or "node-gpu-1".
            command: Program and arguments.
            environment: Added to the clean environment (nothing of the user's shell is handed on).
            inputs: Files that it reads at its start; a change of theirs means a restart.

        Returns:
            Whether it had to be started.
        """
        argv = [str(part) for part in command]
        extra = dict(environment or {})
        fingerprint = _fingerprint(argv, extra, inputs)
        current = self.running().get(name)
        if current is not None:
            if current.fingerprint == fingerprint:
                return False
            self.stop(name)
        self._end_leftovers(name)
        variables = _clean_environment(self._state) | extra | {MARK: self._prefix + name, FINGERPRINT: fingerprint}
        log = self.log_path(name)
        self._state.folder("logs")
        if log.exists() and log.stat().st_size > LOG_LIMIT:
            log.replace(log.with_suffix(".log.1"))
        descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, PRIVATE_FILE)
        try:
            _children.append(
                subprocess.Popen(
                    argv,
                    env=variables,
                    cwd=self._state.directory,
                    stdin=subprocess.DEVNULL,
                    stdout=descriptor,
                    stderr=descriptor,
                    start_new_session=True,
                )
            )
        except OSError as error:
            raise LocalClusterError(
                f"can't start {name}: {error.strerror}", why=f"the program is {argv[0]}", remedy="trainyard doctor"
            ) from error
        finally:
            os.close(descriptor)
        return True

    def wait_ready(self, name: str, ready: Callable[[], bool], *, timeout: float) -> None:
        """Return as soon as `ready()` is true.

        Args:
            name: The process that is meant to become ready.
            ready: Quick to answer; called often.
            timeout: Seconds.

        Raises:
            LocalClusterError: the process ended or the time ran out; the end of its log is in the message.
        """
        deadline = time.monotonic() + timeout
        running = self.running().get(name)
        while True:
            if ready():
                return
            if running is None or not _alive(running.process):
                self._fail(name, "ended instead of becoming ready")
            if time.monotonic() > deadline:
                self._fail(name, f"isn't ready after {timeout:.0f} s")
            time.sleep(_POLL)

    def stop(self, *names: str, grace: float = 5.0) -> list[str]:
        """End processes with everything they started: SIGTERM, after `grace` seconds SIGKILL.

        Returns:
            The names of those that ran.
        """
        running = self.running()
        wanted = [running[name] for name in names if name in running]
        for one in wanted:
            with contextlib.suppress(psutil.Error):
                one.process.terminate()  # the leader alone: it knows in which order its children end
        _await_end([one.process for one in wanted], grace)
        for one in wanted:
            with contextlib.suppress(psutil.Error, OSError):
                if one.process.is_running():  # compares start times, so the id is still this process's
                    os.killpg(one.pid, signal.SIGKILL)
        _await_end([one.process for one in wanted], _KILLED_ENDS)
        for name in names:
            self._end_leftovers(name)
        return [one.name for one in wanted]

    def kill(self, name: str) -> bool:
        """SIGKILL one process at once, as a crash would; returns whether it ran."""
        current = self.running().get(name)
        if current is None:
            return False
        with contextlib.suppress(psutil.Error):
            current.process.kill()
        _await_end([current.process], _KILLED_ENDS)
        return True

    def _end_leftovers(self, name: str) -> None:
        """SIGKILL what a process left behind when it was killed itself."""
        left = [process for mark, process, _ in self._marked() if mark == name]
        for process in left:
            with contextlib.suppress(psutil.Error):
                process.kill()
        _await_end(left, _KILLED_ENDS)

    def _marked(self) -> list[tuple[str, psutil.Process, dict[str, str]]]:
        found = []
        me = os.geteuid()
        for child in list(_children):
            if child.poll() is not None:
                _children.remove(child)
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error, OSError):
                if process.uids().effective != me and me != 0:
                    continue
                environment = process.environ()
                mark = environment.get(MARK, "")
                if mark.startswith(self._prefix) and _alive(process):
                    found.append((mark.removeprefix(self._prefix), process, environment))
        return found

    def _fail(self, name: str, what: str) -> None:
        log = self.log_path(name)
        end = tail(log, lines=60)
        if "no space left on device" in end.lower():
            raise LocalClusterError(
                f"{name} {what}",
                why=f"the disk is full, says {log}",
                remedy=f"free some space where {self._state.directory} is, then run the command again: nothing is lost",
            )
        raise LocalClusterError(
            f"{name} {what}",
            why=f"the end of {log}:\n{tail(log)}",
            remedy="run the command again; if it stays so, `make clean` begins from nothing",
        )


def tail(log: Path, lines: int = _LOG_TAIL_LINES) -> str:
    """The last lines of a log, indented, long ones cut."""
    try:
        with log.open("rb") as stream:
            stream.seek(max(0, log.stat().st_size - 64 * 1024))
            text = stream.read().decode(errors="replace")
    except OSError:
        return "    (no log)"
    return "\n".join(f"    {line[:300]}" for line in text.splitlines()[-lines:]) or "    (empty)"


def _clean_environment(state: State) -> dict[str, str]:
    """What every process gets: nothing of the user's shell but where programs, time zone and temporary files are."""
    kept = {name: os.environ[name] for name in ("PATH", "TZ", "TMPDIR") if name in os.environ}
    return {"PATH": os.defpath, "LANG": "C.UTF-8", "HOME": str(state.directory)} | kept


def _fingerprint(argv: Sequence[str], environment: Mapping[str, str], inputs: Iterable[Path]) -> str:
    digest = hashlib.sha256(repr((list(argv), sorted(environment.items()))).encode())
    for path in inputs:
        digest.update(path.read_bytes() if path.exists() else b"")
        digest.update(b"\0")
    return digest.hexdigest()[:16]


def _leads_session(process: psutil.Process) -> bool:
    try:
        return os.getsid(process.pid) == process.pid
    except OSError:
        return False


def _is_mine(process: psutil.Process) -> bool:
    """Whether it is this user's in all respects: root sees everybody's, and anybody can set the mark."""
    try:
        return set(process.uids()) == {os.geteuid()}
    except psutil.Error:
        return False


def _alive(process: psutil.Process) -> bool:
    for child in _children:
        if child.pid == process.pid:
            child.poll()  # reaps it
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False


def _await_end(processes: Sequence[psutil.Process], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while any(_alive(process) for process in processes) and time.monotonic() < deadline:
        time.sleep(_POLL)
