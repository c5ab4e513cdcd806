"""A second place for checkpoints, behind a URL, filled from the fast local folder while training goes on.

    remote = Remote("s3://bucket/job-7", writer=writer)
    with Syncer(remote, keep=Retention(last=5)) as syncer:
        saver = AsyncSaver(folder, optimizer=optimizer, on_saved=lambda step, path, seconds: syncer.submit(path))
    ...
    checkpoint = folder.newest() or remote.fetch(folder)      # on a new machine

      objects/<SHA-256>        a file of some checkpoints; the same bytes are there once
      step-000000120.json      the manifest of one checkpoint, written when all its objects are there

Object stores have no rename, so a checkpoint is there when its manifest is. What is there already is not sent again:
shards that have not changed since the last checkpoint, and those that a broken-off upload had sent.

A scheme is served by the fsspec package that is installed for it: `file` comes with torch, `s3` is s3fs. Fence: a
writer does not publish beside a manifest of a newer generation of its run.
"""

import contextlib
import hashlib
import logging
import os
import re
import secrets
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, Protocol

from training.checkpoint.folder import (
    MANIFEST,
    Checkpoint,
    CheckpointError,
    CheckpointFolder,
    StaleWriterError,
    Writer,
    read_manifest,
)
from training.checkpoint.retention import Kept, Retention

logger = logging.getLogger(__name__)

OBJECTS: Final = "objects/"
_MANIFEST: Final = re.compile(r"^step-(\d+)\.json$")


class Store(Protocol):
    """Named objects: each is whole or not there."""

    def sizes(self, prefix: str) -> dict[str, int]:
        """Names that begin so, and bytes of each."""

    def read(self, name: str) -> bytes:
        """Contents of an object."""

    def write(self, name: str, data: bytes) -> None:
        """Make an object."""

    def delete(self, name: str) -> None:
        """Remove an object."""


class Remote:
    """Checkpoints behind a URL.

    Args:
        url: `s3://bucket/prefix`, `file:///folder`, or a scheme for which fsspec has an implementation installed.
        writer: who we are; a reader needs no name.

    Raises:
        CheckpointError: nothing here knows the scheme.
    """

    def __init__(self, url: str, *, writer: Writer | None = None) -> None:
        self.url = url.rstrip("/")
        self._writer = writer or Writer()
        self._store = open_store(self.url)

    def manifests(self) -> list[Checkpoint]:
        """The published checkpoints, the newest first; manifests that are damaged are skipped with a warning.

        Raises:
            CheckpointError: the store refuses or is away.
        """
        with self._told("cannot be read"):
            names = [name for name in self._store.sizes("step-") if _MANIFEST.match(name)]
            found = []
            for name in sorted(names, key=_step_of, reverse=True):
                try:
                    found.append(read_manifest(Path(name).with_suffix(""), self._store.read(name)))
                except CheckpointError as error:
                    logger.warning("checkpoint skipped: %s/%s: %s", self.url, name, error)
            return found

    def push(self, path: Path) -> int:
        """Send a checkpoint; when this returns it can be fetched.

        Args:
            path: the folder of a published checkpoint.

        Returns:
            Bytes sent.

        Raises:
            StaleWriterError: a newer world has published here.
            CheckpointError: the store refuses or is away, or the folder is gone.
        """
        try:
            manifest = (path / MANIFEST).read_bytes()
        except OSError as error:
            raise CheckpointError(f"{path / MANIFEST} cannot be read: {error.strerror}") from error
        checkpoint = read_manifest(path, manifest)
        published = self.manifests()
        self._check_fence(published)
        if checkpoint.step in {other.step for other in published}:
            return 0
        sent = 0
        with self._told("cannot be written"):
            there = self._store.sizes(OBJECTS)
            for name, (size, digest) in checkpoint.files.items():
                if there.get(OBJECTS + digest) != size:
                    self._store.write(OBJECTS + digest, (path / name).read_bytes())
                    there[OBJECTS + digest] = size
                    sent += size
        self._check_fence(self.manifests())
        with self._told("cannot be written"):
            self._store.write(f"{path.name}.json", manifest)
        return sent + len(manifest)

    def fetch(self, folder: CheckpointFolder) -> Checkpoint | None:
        """Bring the newest checkpoint that is whole into a local folder; None: there is none.

        Raises:
            CheckpointError: the store or the disk refuses.
        """
        for remote in self.manifests():
            name = f"{remote.path.name}.json"
            try:
                with self._told("cannot be read"):
                    manifest = self._store.read(name)
                return folder.receive(remote.step, manifest, self._files(remote))
            except _DamagedError as error:
                logger.warning("checkpoint skipped: %s/%s: %s", self.url, name, error)
        return None

    def prune(self, keep: Retention) -> int:
        """Delete the checkpoints that no rule keeps, then the objects that none needs; returns how many checkpoints.

        Raises:
            StaleWriterError: a newer world has published here.
            CheckpointError: the store refuses or is away.
        """
        published = self.manifests()
        self._check_fence(published)
        wanted = keep.keep(Kept(step=checkpoint.step, metrics=checkpoint.metrics) for checkpoint in published)
        doomed = [checkpoint for checkpoint in published if checkpoint.step not in wanted]
        if not doomed:
            return 0
        needed = {digest for one in published if one.step in wanted for _, digest in one.files.values()}
        with self._told("cannot be written"):
            for checkpoint in doomed:
                self._store.delete(f"{checkpoint.path.name}.json")
            for digest in {digest for one in doomed for _, digest in one.files.values()} - needed:
                self._store.delete(OBJECTS + digest)
        return len(doomed)

    def _files(self, checkpoint: Checkpoint) -> Iterator[tuple[str, bytes]]:
        there = self._store.sizes(OBJECTS)
        for name, (size, digest) in checkpoint.files.items():
            if there.get(OBJECTS + digest) != size:
                raise _DamagedError(f"{OBJECTS}{digest} is missing or has another size than {size} bytes")
            with self._told("cannot be read"):
                data = self._store.read(OBJECTS + digest)
            if hashlib.sha256(data).hexdigest() != digest:
                raise _DamagedError(f"{OBJECTS}{digest} does not match its name, which is its SHA-256")
            yield name, data

    def _check_fence(self, published: list[Checkpoint]) -> None:
        ours = self._writer
        newer = [one for one in published if one.writer.run == ours.run and one.writer.generation > ours.generation]
        if newer:
            raise StaleWriterError(
                f"generation {ours.generation} of run '{ours.run}' may not write to {self.url}: generation "
                f"{newer[0].writer.generation} has published step {newer[0].step}"
            )

    @contextlib.contextmanager
    def _told(self, what: str) -> Iterator[None]:
        try:
            yield
        except CheckpointError:
            raise
        except Exception as error:  # whatever the libraries behind a URL raise
            reason = str(error) or type(error).__name__
            raise CheckpointError(f"{self.url} {what}: {reason}; local checkpoints are untouched") from error


class Syncer:
    """Sends checkpoints from a thread of its own; of those that wait, only the newest.

    Args:
        remote: where to.
        keep: what stays there.
    """

    def __init__(self, remote: Remote, *, keep: Retention | None = None) -> None:
        self._remote = remote
        self._keep = keep or Retention()
        self._change = threading.Condition()
        self._waiting: Path | None = None
        self._busy = False
        self._closing = False
        # Bytes sent since the beginning, and the last error, if the last checkpoint did not get through.
        self.sent = 0
        self.error: CheckpointError | None = None
        self._thread = threading.Thread(target=self._work, name="checkpoint-sync", daemon=True)
        self._thread.start()

    def submit(self, path: Path) -> None:
        """Send a published checkpoint soon. Never waits, never raises: the local checkpoint is safe."""
        with self._change:
            self._waiting = path
            self._change.notify_all()

    def wait(self, seconds: float) -> bool:
        """Wait until all is sent, at most so long; whether it is, and got through."""
        with self._change:
            done = self._change.wait_for(lambda: not self._busy and self._waiting is None, seconds)
            return done and self.error is None

    def close(self, seconds: float = 60.0) -> bool:
        """Wait as `wait` does, and end the thread when it has nothing more to do."""
        done = self.wait(seconds)
        with self._change:
            self._closing = True
            self._change.notify_all()
        return done

    def __enter__(self) -> "Syncer":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _work(self) -> None:
        while True:
            with self._change:
                self._change.wait_for(lambda: self._waiting is not None or self._closing)
                path, self._waiting = self._waiting, None
                if path is None:
                    return
                self._busy = True
            error: CheckpointError | None = None
            try:
                self.sent += self._remote.push(path)
                self._remote.prune(self._keep)
            except CheckpointError as problem:
                error = problem
                logger.warning(
                    "checkpoint %s is not in the second place, the next one will be tried: %s", path, problem
                )
            with self._change:
                self.error = error
                self._busy = False
                self._change.notify_all()


class _DamagedError(CheckpointError):
    """A remote checkpoint lacks an object, or has one that is not what it should be."""


def open_store(url: str) -> Store:
    """The objects behind a URL.

    Raises:
        CheckpointError: nothing here knows the scheme.
    """
    if "://" not in url:
        raise CheckpointError(f"{url!r} is no URL: write s3://bucket/prefix, or file:///folder for a folder")
    return _Fsspec(url)


class _Fsspec:
    """A file system of fsspec. A file gets its name when it is whole; a local one is synced before."""

    def __init__(self, url: str) -> None:
        import fsspec  # type: ignore[import-untyped]  # noqa: PLC0415

        try:
            self._files, self._root = fsspec.core.url_to_fs(url)
        except (ValueError, ImportError) as error:
            raise CheckpointError(
                f"{url}: {error}. Known are file and the schemes for which an fsspec package is installed"
            ) from error

    def sizes(self, prefix: str) -> dict[str, int]:
        folder, _, begin = prefix.rpartition("/")
        where = f"{self._root}/{folder}" if folder else self._root
        self._files.invalidate_cache()  # others write here too
        try:
            entries: list[dict[str, Any]] = self._files.ls(where, detail=True)
        except FileNotFoundError:
            return {}
        lead = f"{folder}/" if folder else ""
        named = {entry["name"].rpartition("/")[2]: entry for entry in entries if entry["type"] == "file"}
        return {lead + name: int(entry["size"]) for name, entry in named.items() if name.startswith(begin)}

    def read(self, name: str) -> bytes:
        data: bytes = self._files.cat_file(f"{self._root}/{name}")
        return data

    def write(self, name: str, data: bytes) -> None:
        path = f"{self._root}/{name}"
        folder, _, last = path.rpartition("/")
        self._files.makedirs(folder, exist_ok=True)
        temporary = f"{folder}/.{last}-{secrets.token_hex(4)}"
        try:
            with self._files.open(temporary, "wb") as stream:
                stream.write(data)
                stream.flush()
                if "file" in self._files.protocol:
                    os.fsync(stream.fileno())
            self._files.mv(temporary, path)
        except BaseException:
            with contextlib.suppress(Exception):
                self._files.rm_file(temporary)
            raise

    def delete(self, name: str) -> None:
        self._files.rm_file(f"{self._root}/{name}")


def _step_of(name: str) -> int:
    match = _MANIFEST.match(name)
    assert match  # noqa: S101  (the caller has filtered)
    return int(match[1])
