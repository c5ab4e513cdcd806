"""The state folder of one local cluster: everything it ever writes, private to the user, written whole or not at all.

There is no record of processes here: the process table is that record (see `processes`).
"""

import contextlib
import errno
import json
import os
import shutil
import stat
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
from filelock import FileLock, Timeout

from infra.local.errors import LocalClusterError

PRIVATE_FOLDER = 0o700
PRIVATE_FILE = 0o600
SOCKET_PATH_MAX = 107  # bytes: sun_path of unix(7) holds 108 with its terminating zero
# The longest socket that any part opens below the state folder is a kubelet's (n/250 leads to a node's folder).
LONGEST_SOCKET_BELOW = "n/250/kubelet/pod-resources/kubelet.sock"
_ELSEWHERE = "choose another folder: export TRAINYARD_STATE_DIR=<folder>"


class State:
    """One cluster's folder; `State(dir)` creates it when needed.

    Raises:
        LocalClusterError: the folder can't be used (foreign, not to be made, or its path is too long for sockets).
    """

    def __init__(self, directory: Path) -> None:
        self.directory = Path(os.path.abspath(directory))  # noqa: PTH100 - resolve() would follow the user's links
        _require_socket_path(self.directory / LONGEST_SOCKET_BELOW, self.directory)
        with self._plain_errors("open"):
            self.directory.mkdir(mode=PRIVATE_FOLDER, parents=True, exist_ok=True)
            found = self.directory.stat()
            if found.st_uid != os.geteuid():
                raise LocalClusterError(
                    f"the state folder {self.directory} belongs to another user",
                    why=f"its owner has user id {found.st_uid}, you have {os.geteuid()}: keys in it would be theirs",
                    remedy="choose another folder: export TRAINYARD_STATE_DIR=<folder>",
                )
            if stat.S_IMODE(found.st_mode) != PRIVATE_FOLDER:
                self.directory.chmod(PRIVATE_FOLDER)
        self._lock = FileLock(self.path("lock"), mode=PRIVATE_FILE)

    def path(self, *parts: str) -> Path:
        """The path of something in the folder (nothing is created)."""
        return self.directory.joinpath(*parts)

    def folder(self, *parts: str) -> Path:
        """The path of a private subfolder, created when missing."""
        path = self.path(*parts)
        with self._plain_errors("create a folder in"):
            path.mkdir(mode=PRIVATE_FOLDER, parents=True, exist_ok=True)
        return path

    def write(self, path: Path, content: str | bytes, mode: int = PRIVATE_FILE) -> bool:
        """Replace a file of the folder by `content` in one step; a reader never sees half of it.

        Returns:
            Whether the file differed before (an equal file stays untouched).
        """
        data = content.encode() if isinstance(content, str) else content
        with self._plain_errors("write to"):
            try:
                if path.read_bytes() == data and stat.S_IMODE(path.stat().st_mode) == mode:
                    return False
            except FileNotFoundError:
                pass
            path.parent.mkdir(mode=PRIVATE_FOLDER, parents=True, exist_ok=True)
            handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
            try:
                with os.fdopen(handle, "wb") as stream:
                    stream.write(data)
                    stream.flush()
                    os.fchmod(stream.fileno(), mode)
                    os.fsync(stream.fileno())
                Path(temporary).replace(path)
            except BaseException:
                Path(temporary).unlink(missing_ok=True)
                raise
        return True

    def write_json(self, path: Path, value: object) -> bool:
        """Like `write`, for one JSON document."""
        return self.write(path, json.dumps(value, indent=2, sort_keys=True) + "\n")

    def read_json(self, path: Path) -> Any:
        """A JSON document of the folder, or None where it's missing or was damaged (it is made anew then)."""
        try:
            return json.loads(path.read_bytes())
        except (FileNotFoundError, NotADirectoryError, ValueError):
            return None

    @contextmanager
    def lock(self, *, wait: bool = True, note: Callable[[str], None] | None = None) -> Iterator[None]:
        """Hold the right to change the cluster; ends with the process that holds it, whatever way that ends.

        Who holds it may take it again through the same `State`, so that a command can keep it over several operations.

        Args:
            wait: Wait for another command that changes the cluster now; else raise.
            note: Told, once, which process is waited for.

        Raises:
            LocalClusterError: `wait` is false and another command holds the lock.
        """
        if self._lock.is_locked:
            yield
            return
        holder, lock = self.path("lock.holder"), self._lock
        with self._plain_errors("lock"):
            try:
                lock.acquire(timeout=0.05)
            except Timeout:
                who = _holder(holder)
                if not wait:
                    raise LocalClusterError(
                        f"another command is changing this cluster: {who}",
                        why=f"one at a time may change {self.directory}",
                        remedy="wait until it has ended, or run the command without --no-wait",
                    ) from None
                if note:
                    note(f"waiting for {who}, which is changing this cluster")
                lock.acquire()
        try:
            # It is only for the message to who waits: a full disk must not keep a cluster from being ended.
            with contextlib.suppress(LocalClusterError):
                self.write(holder, f"{os.getpid()}\n")
            yield
        finally:
            holder.unlink(missing_ok=True)
            lock.release()

    def require_room(self, size: int) -> None:
        """Make sure that a cluster can write here before it starts to; to look at one or to end it needs no room.

        Args:
            size: Bytes that must be free.

        Raises:
            LocalClusterError: the folder is read-only, or less is free.
        """
        with self._plain_errors("write to"):
            handle, probe = tempfile.mkstemp(dir=self.directory, prefix=".probe.")
            try:
                # A full disk still makes empty files: only written blocks tell.
                os.write(handle, b"\0" * 65536)
                os.fsync(handle)
            finally:
                os.close(handle)
                Path(probe).unlink()
        free = shutil.disk_usage(self.directory).free
        if free < size:
            raise LocalClusterError(
                f"the disk of the state folder {self.directory} is nearly full",
                why=f"{free >> 20} MiB are free, {size >> 20} MiB are needed",
                remedy=f"free some space, or {_ELSEWHERE}",
            )

    @contextmanager
    def _plain_errors(self, verb: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise LocalClusterError(
                f"can't {verb} the state folder {self.directory}: {error.strerror or error}",
                why=f"{_reason(error)}{f' ({error.filename})' if error.filename else ''}",
                remedy=_remedy(error, self.directory),
            ) from error


def _reason(error: OSError) -> str:
    if error.errno in {errno.ENOSPC, errno.EDQUOT}:
        return "the disk, or your share of it, is full"
    if error.errno == errno.EROFS:
        return "it is on a file system that's mounted read-only"
    if error.errno in {errno.EACCES, errno.EPERM}:
        return "you have no permission there"
    if error.errno in {errno.ENOTDIR, errno.EEXIST}:
        return "a part of the path is a file, not a folder"
    return os.strerror(error.errno) if error.errno else str(error)


def _remedy(error: OSError, directory: Path) -> str:
    elsewhere = _ELSEWHERE
    if error.errno in {errno.ENOSPC, errno.EDQUOT}:
        return f"see what fills it (df -h {directory.parent}), free some space, or {elsewhere}"
    return elsewhere


def _require_socket_path(path: Path, directory: Path) -> None:
    length = len(os.fsencode(path))
    if length > SOCKET_PATH_MAX:
        raise LocalClusterError(
            f"the path of the state folder is too long: {directory}",
            why=f"the socket {path} would have {length} bytes, Linux allows {SOCKET_PATH_MAX}",
            remedy="choose a folder with a shorter path: export TRAINYARD_STATE_DIR=<folder>",
        )


def _holder(path: Path) -> str:
    try:
        process = psutil.Process(int(path.read_text()))
        return f"process {process.pid} ({' '.join(process.cmdline())[:120]})"
    except (OSError, ValueError, psutil.Error):
        return "another process"
