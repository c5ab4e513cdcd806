"""Starting workers in hundredths of a second: fork them from a process that has imported torch already.

A fresh interpreter needs 2.5-3.4 s to import torch and as much again for the compiler stack that DDP imports; with
every recovery, the whole job waits for it. So the launcher forks a *template* right after its own imports, before it
has any thread, any signal handler and anything to do with CUDA. The template sits at a socket; for each worker it forks
itself once more, and the child becomes what `python -u script.py` would be:

* own session, so that the agent can signal the worker with all its children;
* environment, arguments, working directory, output and `sys.path[0]` as for a fresh interpreter, the script run as
  `__main__`, no descriptors but the standard ones and the line to the launcher (`workers.CONTROL`), logging not
  configured, this package out of the way of one named `training` that the program has beside it, random numbers of
  `random` and numpy not shared with siblings;
* when launcher or template die, however that comes, the kernel ends their workers: no orphan trains on.

What differs from a fresh interpreter:

* modules are imported already, and what libraries read from the environment meanwhile is the launcher's environment
  (`OMP_NUM_THREADS` is applied to torch again by hand; the interpreter's own `PYTHON*` variables are those of the
  launcher, so all workers share one hash seed, and `sys.orig_argv` and `/proc/PID/cmdline` are the launcher's);
* native threads that a library started while it was imported do not exist in workers; those of OpenBLAS and OpenMP
  start again by themselves. When a module starts a Python thread or initialises CUDA while it is imported, no
  template is used;
* objects from before the fork are frozen for the garbage collector (`gc.freeze`).

`TRAINYARD_START=spawn` gives fresh interpreters.
"""

import contextlib
import ctypes
import gc
import importlib
import importlib.machinery
import io
import json
import logging
import os
import random
import runpy
import signal
import socket
import struct
import sys
import threading
import time
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from datetime import timedelta
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any, Final, NoReturn

from training.launch import python_private

START_TIMEOUT: Final = timedelta(seconds=120)

# They are for the launcher, which ends the template in its own time.
_LAUNCHERS_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
_PR_SET_PDEATHSIG = 1
_PR_SET_NAME = 15
_HEADER = struct.Struct("!I")


@dataclass(frozen=True, kw_only=True)
class Job:
    """What one worker is to run, as `python` would be told on its command line.

    Attributes:
        program: path of the script, or name of the module.
        is_module: whether it is a module (`python -m`).
        args: the script's arguments.
        environment: the whole environment.
        directory: working directory.
    """

    program: str
    is_module: bool
    args: tuple[str, ...]
    environment: Mapping[str, str]
    directory: str

    def to_json(self) -> bytes:
        """For the way through the socket."""
        return json.dumps({**self.__dict__, "environment": dict(self.environment)}).encode()

    @classmethod
    def from_json(cls, data: bytes) -> "Job":
        """The reverse of `to_json`."""
        fields = json.loads(data)
        return cls(**{**fields, "args": tuple(fields["args"])})


class Template:
    """The launcher's side: asks the template process for workers and hears how they ended.

    Make it with `fork`, in a process without other threads. In the template's own workers `fork` does not return a
    template but the job that the worker has to run.
    """

    def __init__(self, connection: socket.socket, pid: int) -> None:
        self._connection = connection
        self.pid = pid
        self._buffer = b""
        self._statuses: dict[int, int] = {}
        self._is_closed = False
        self.alive = True

    @classmethod
    def fork(cls, modules: Sequence[str]) -> "Template | Job":
        """Fork the template, which imports `modules` (they must not touch CUDA, nor start threads).

        Returns:
            The launcher's side of it, or, later and in another process, a worker's job.
        """
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        parent = os.getpid()
        sys.stdout.flush()
        sys.stderr.flush()
        pid = os.fork()
        if pid:
            theirs.close()
            return cls(ours, pid)
        ours.close()
        _die_with_parent(parent)
        os.setsid()
        ignored = {number for number in _LAUNCHERS_SIGNALS if signal.getsignal(number) == signal.SIG_IGN}
        for number in _LAUNCHERS_SIGNALS:
            signal.signal(number, signal.SIG_IGN)
        _preload(modules)
        if obstacle := _obstacle():
            sys.stderr.write(f"workers cannot be forked: {obstacle}\n")
            os._exit(1)
        return _serve(theirs, ignored)

    def wait_until_ready(self, timeout: timedelta = START_TIMEOUT) -> bool:
        """Wait for the template's imports; False when it has died, or takes too long and was ended for that."""
        if self._receive("ready", timeout) is None:
            self.close()
        return self.alive

    def fileno(self) -> int:
        """For select(2): there is something to read when a worker has ended."""
        return self._connection.fileno()

    def start(
        self,
        job: Job,
        stdout: int,
        stderr: int,
        timeout: timedelta = START_TIMEOUT,
        *,
        control: int | None = None,
    ) -> int:
        """Start a worker that writes to these descriptors; returns its process id.

        Args:
            job: what it runs.
            stdout: where it writes.
            stderr: where it complains.
            timeout: patience with the template.
            control: a descriptor that the worker gets as its number 3.

        Raises:
            ChildProcessError: the template is gone, or did not answer in time and was ended, so that it does not start
                the worker later, when another has taken its place.
        """
        payload = job.to_json()
        try:
            descriptors = [stdout, stderr] if control is None else [stdout, stderr, control]
            socket.send_fds(self._connection, [_HEADER.pack(len(payload))], descriptors)
            self._connection.sendall(payload)
        except OSError as error:
            self.close()
            raise ChildProcessError("the process that starts workers is gone") from error
        if (answer := self._receive("pid", timeout)) is None:
            self.close()
            raise ChildProcessError("the process that starts workers has died or does not answer")
        pid = int(answer["pid"])
        self._statuses.pop(pid, None)  # of an earlier worker that had the same number
        return pid

    def status(self, pid: int, timeout: timedelta = timedelta(0)) -> int | None:
        """Exit code of a worker (negative: the signal that ended it), None while it runs."""
        deadline = time.monotonic() + timeout.total_seconds()
        while pid not in self._statuses:
            remaining = timedelta(seconds=max(0.0, deadline - time.monotonic()))
            if self._receive("ended", remaining) is None:
                if not self.alive:
                    return -signal.SIGKILL  # with the template the kernel has ended all its workers
                return None
        return self._statuses[pid]

    def close(self) -> None:
        """End the template, and with it any worker that is left."""
        if self._is_closed:
            return
        self._is_closed = True
        self.alive = False
        self._connection.close()
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(self.pid, 0)

    def _receive(self, kind: str, timeout: timedelta) -> dict[str, Any] | None:
        """Next message of this kind; endings of workers that arrive before it are kept."""
        deadline = time.monotonic() + timeout.total_seconds()
        while True:
            while b"\n" in self._buffer:
                line, self._buffer = self._buffer.split(b"\n", 1)
                message: dict[str, Any] = json.loads(line)
                if message["kind"] == "ended":
                    self._statuses[message["pid"]] = message["status"]
                if message["kind"] == kind:
                    return message
            if not self.alive:
                return None
            if not wait([self._connection], max(0.0, deadline - time.monotonic())):
                return None
            chunk = self._connection.recv(65536)
            if not chunk:
                self.alive = False
                return None
            self._buffer += chunk


def run_job(job: Job) -> NoReturn:
    """Become the worker: run the script as `__main__`, and exit with its code."""
    sys.argv = [job.program, *job.args]
    sys.path[0:1] = [job.directory if job.is_module else str(Path(job.program).resolve().parent)]
    _forget_this_package()
    code = 0
    try:
        if job.is_module:
            runpy.run_module(job.program, run_name="__main__", alter_sys=True)
        else:
            runpy.run_path(job.program, run_name="__main__")
    except SystemExit as error:
        if error.code is None or isinstance(error.code, int):
            code = error.code or 0
        else:
            code = 1
            sys.stderr.write(f"{error.code}\n")
    except BaseException:  # noqa: BLE001  (the end of the program, whatever it was)
        code = 1
        sys.excepthook(*sys.exc_info())
    exit_quickly(code)


def exit_quickly(code: int) -> NoReturn:
    """Exit as Python would, but without dismantling the heap.

    That takes seconds with torch in it, most of all in a forked process, where every object taken down is a page to
    copy. What programs rely on is done: other threads are awaited, exit functions run, open files flushed.
    """
    python_private.end_threads()
    python_private.run_exit_functions()
    for thing in gc.get_objects():
        if issubclass(type(thing), io.IOBase):
            with contextlib.suppress(Exception):
                thing.flush()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()
    os._exit(code & 0xFF)


def _preload(modules: Sequence[str]) -> None:
    """Import what workers will need. A module that cannot be imported is the worker's own trouble, and its message."""
    for name in modules:
        with contextlib.suppress(Exception):
            importlib.import_module(name)
    gc.collect()
    gc.freeze()  # keep the collector from touching, and so copying, the shared pages


def _obstacle() -> str:
    """Why this process, with all its imports, cannot be forked; empty if it can."""
    if others := [thread.name for thread in threading.enumerate() if thread is not threading.main_thread()]:
        return f"a module that is imported before has started threads ({', '.join(others)})"
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        return "a module that is imported before has initialised CUDA"
    return ""


def _forget_this_package() -> None:
    """Drop our modules when the program has a package of the same name beside it."""
    package = __name__.partition(".")[0]
    importlib.invalidate_caches()
    found = importlib.machinery.PathFinder.find_spec(package, sys.path)
    ours = sys.modules[package].__spec__
    if found is not None and ours is not None and found.origin == ours.origin:
        return
    for name in [name for name in sys.modules if name.partition(".")[0] == package]:
        del sys.modules[name]


def _serve(connection: socket.socket, ignored: Set[int]) -> Job:
    """The template's life. Returns in a forked worker only, with its job; ends when the launcher is gone."""
    wake_read, wake_write = os.pipe()
    os.set_blocking(wake_write, False)
    signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    workers: set[int] = set()
    _send(connection, kind="ready")
    while True:
        ready = wait([connection.fileno(), wake_read])
        if wake_read in ready:
            os.read(wake_read, 4096)
            for pid in tuple(workers):
                if (status := _collect(pid)) is not None:
                    workers.discard(pid)
                    _send(connection, kind="ended", pid=pid, status=status)
        if connection.fileno() in ready:
            request = _read_request(connection)
            if request is None:
                for pid in workers:
                    _kill_group(pid)
                os._exit(0)
            job, descriptors = request
            started_read, started_write = os.pipe()
            template = os.getpid()
            pid = os.fork()
            if pid == 0:
                signal.set_wakeup_fd(-1)
                _become_worker(template, job, descriptors, ignored)
                connection.detach()
                return job
            os.close(started_write)
            os.read(started_read, 1)  # returns when the worker has closed all, and so when its process group exists
            for descriptor in (started_read, *descriptors):
                os.close(descriptor)
            workers.add(pid)
            _send(connection, kind="pid", pid=pid)


def _become_worker(template: int, job: Job, descriptors: Sequence[int], ignored: Set[int]) -> None:
    os.setsid()
    _die_with_parent(template)
    _name_process(f"rank-{job.environment.get('RANK', '?')}")
    # Only those that launcher and template have set: others belong to the interpreter (SIGPIPE, faulthandler's).
    for number in (*_LAUNCHERS_SIGNALS, signal.SIGCHLD):
        if number not in ignored:
            signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
    null = os.open(os.devnull, os.O_RDONLY)
    inherited = [os.dup(descriptor) for descriptor in (null, *descriptors)]  # so that no target is a source to come
    while min(inherited) < len(inherited):
        inherited = [os.dup(descriptor) for descriptor in inherited]
    for target, source in enumerate(inherited):
        os.dup2(source, target)
    for descriptor in [int(entry.name) for entry in Path("/proc/self/fd").iterdir()]:
        if descriptor >= len(inherited):
            with contextlib.suppress(OSError):  # the one by which the folder was read
                os.close(descriptor)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(line_buffering=True, write_through=True)  # python -u
    os.chdir(job.directory)
    os.environ.clear()
    os.environ.update(job.environment)
    for handler in logging.root.handlers[:]:  # the launcher's; with them the program's basicConfig would do nothing
        logging.root.removeHandler(handler)
    logging.root.setLevel(logging.WARNING)
    random.seed()
    if "numpy.random" in sys.modules:
        sys.modules["numpy.random"].seed(int.from_bytes(os.urandom(4), "big"))
    if "torch" in sys.modules and (threads := job.environment.get("OMP_NUM_THREADS", "")).isdigit():
        sys.modules["torch"].set_num_threads(max(1, int(threads)))


def _collect(pid: int) -> int | None:
    """Reap a worker that has ended, after ending what it left behind in its process group; None while it runs."""
    if os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
        return None
    _kill_group(pid)
    _, status = os.waitpid(pid, 0)
    return os.waitstatus_to_exitcode(status)


def _kill_group(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)


def _send(connection: socket.socket, **message: object) -> None:
    with contextlib.suppress(OSError):  # the launcher is gone; the next read ends us
        connection.sendall(json.dumps(message).encode() + b"\n")


def _read_request(connection: socket.socket) -> tuple[Job, Sequence[int]] | None:
    try:
        header, descriptors, _, _ = socket.recv_fds(connection, _HEADER.size, 3)
        if len(header) < _HEADER.size:
            return None
        (size,) = _HEADER.unpack(header)
        payload = b""
        while len(payload) < size:
            chunk = connection.recv(size - len(payload))
            if not chunk:
                return None
            payload += chunk
    except OSError:
        return None
    return Job.from_json(payload), descriptors


def _name_process(name: str) -> None:
    """What `ps` and `top` show (at most 15 bytes): a forked worker looks like its launcher otherwise."""
    ctypes.CDLL(None).prctl(_PR_SET_NAME, name.encode(), 0, 0, 0)


def _die_with_parent(parent: int) -> None:
    """Ask the kernel to end this process when its parent ends (prctl(2), PR_SET_PDEATHSIG)."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:  # it ended before we asked
        os._exit(1)
