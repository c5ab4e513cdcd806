"""A second place for checkpoints, behind a URL, filled from the fast local folder while training goes on.

    remote = Remote("s3://bucket/job-7", writer=writer)
    with Syncer(remote, keep=Retention(last=5)) as syncer:
        saver = AsyncSaver(folder, optimizer=optimizer, on_saved=lambda step, path, seconds: syncer.submit(path))
    ...
    checkpoint = folder.newest() or remote.fetch(folder)      # on a new machine

      objects/<SHA-256>        a file of some checkpoints; the same bytes are there once
      step-000000120.json      the manifest of one checkpoint, written when all its objects are there

Object stores have no rename, so a checkpoint is there when its manifest is, and a manifest is never replaced. What is
there already is not sent again: shards that have not changed since the last checkpoint, and those that a broken-off
upload had sent.

**Deleting beside others.** An object that no manifest names may be one that another process is just about to name. So
only old ones are swept (`ORPHAN_AGE`); who uploads trusts an object only if a manifest names it or it is half as old,
and looks once more when its manifest is there: what has been deleted meanwhile it sends again.

**Failures.** What may pass (a time-out, a broken connection, "slow down") is tried a few times, beside what the library
of the scheme does; then it is an error, and the local checkpoint is what there is. Names, keys and addresses come from
where the scheme's own tools look: for S3 the AWS variables and files, among them `AWS_ENDPOINT_URL`. Encryption at
rest is the bucket's setting. Messages never show what stands in a URL before `@` or after `?`.

A scheme is served by the fsspec package that is installed for it: `file` comes with torch, `s3` is s3fs. Fence: a
writer does not publish beside a manifest of a newer generation of its run, nor, where the launcher has etcd, when a
newer one has begun to send here (training.checkpoint.lock).
"""

import contextlib
import errno
import hashlib
import logging
import os
import re
import secrets
import threading
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final, Protocol, TypeVar
from urllib.parse import urlsplit

from training.checkpoint.folder import (
    MANIFEST,
    Checkpoint,
    CheckpointError,
    CheckpointFolder,
    StaleWriterError,
    Writer,
    claimed,
    read_manifest,
)
from training.checkpoint.lock import EtcdLock
from training.checkpoint.retention import Kept, Retention

logger = logging.getLogger(__name__)

OBJECTS: Final = "objects/"
_MANIFEST: Final = re.compile(r"^step-(\d+)\.json$")
# What no manifest names for so long is left over from an upload that broke off.
ORPHAN_AGE: Final = timedelta(hours=24)
# Seconds between attempts, when a store fails in a way that may pass. S3's own client has tried for about as long then.
PAUSES: Final = (0.5, 1.0, 2.0)
# Another attempt would be refused like the first.
_FINAL: Final = (PermissionError, FileNotFoundError, FileExistsError, ImportError, NotImplementedError, ValueError)
_FINAL_NUMBERS: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EFBIG})
# Schemes whose objects appear when they are whole, and only once, when so asked. Others get a rename.
_WHOLE: Final = frozenset({"s3", "s3a", "memory"})
_Result = TypeVar("_Result")


class Store(Protocol):
    """Named objects: each is whole or not there."""

    def sizes(self, prefix: str) -> dict[str, int]:
        """Names that begin so, and bytes of each."""

    def read(self, name: str) -> bytes:
        """Contents of an object."""

    def write(self, name: str, data: bytes) -> None:
        """Make an object, or make it anew."""

    def create(self, name: str, data: bytes) -> None:
        """Make an object that is not there; FileExistsError: it is."""

    def delete(self, name: str) -> None:
        """Remove an object."""

    def age(self, name: str) -> timedelta:
        """How long ago an object was written."""


class Remote:
    """Checkpoints behind a URL.

    Args:
        url: `s3://bucket/prefix`, `file:///folder`, or a scheme for which fsspec has an implementation installed.
        writer: who we are; a reader needs no name.

    Raises:
        CheckpointError: nothing here knows the scheme.
    """

    def __init__(self, url: str, *, writer: Writer | None = None) -> None:
        self.url = shown(url)
        self._writer = writer or Writer()
        self._store = open_store(url.rstrip("/"))
        self._lock = EtcdLock.of_launcher(self._writer.run, self.url)

    def published(self) -> list[str]:
        """Names of the manifests, the newest first.

        Raises:
            CheckpointError: the store refuses or is away.
        """
        with self._told("cannot be read"):
            names = [name for name in self._try(lambda: self._store.sizes("step-")) if _MANIFEST.match(name)]
        return sorted(names, key=_step_of, reverse=True)

    def verify(self, name: str, *, contents: bool = True) -> Checkpoint:
        """Check a checkpoint: its manifest, that its objects are there with the right sizes, and their digests.

        Args:
            name: of the manifest.
            contents: also compare digests, which reads all objects.

        Raises:
            CheckpointError: what is missing or differs, or the store refuses or is away.
        """
        with self._told("cannot be read"):
            checkpoint = self._read_manifest(name)
            there = self._try(lambda: self._store.sizes(OBJECTS))
            for file, (size, digest) in checkpoint.files.items():
                if there.get(OBJECTS + digest) != size:
                    raise _DamagedError(f"{OBJECTS}{digest} ({file}) is missing or has another size than {size} bytes")
            if contents:
                for _ in self._files(checkpoint):
                    pass
        return checkpoint

    def manifests(self) -> list[Checkpoint]:
        """The published checkpoints, the newest first; manifests that are damaged are skipped with a warning.

        Raises:
            CheckpointError: the store refuses or is away.
        """
        found = []
        for name in self.published():
            with self._told("cannot be read"):
                try:
                    found.append(self._read_manifest(name))
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
        with claimed(self.url):
            if self._lock and not self._lock.is_claimed:
                self._lock.claim(self._writer.run, self._writer.generation)
        if checkpoint.step in {other.step for other in published}:
            return 0
        named = {digest for one in published for _, digest in one.files.values()}
        sent = self._send(checkpoint, lambda digest: digest in named or self._is_young(digest))
        self._check_fence(self.manifests())
        with claimed(self.url):
            if self._lock:
                self._lock.publish(self._writer.run, self._writer.generation, checkpoint.step)
        # Already there: another writer was faster, or the answer to our first attempt was lost.
        with self._told("cannot be written"), contextlib.suppress(FileExistsError):
            self._try(lambda: self._store.create(f"{path.name}.json", manifest))
        # What somebody has swept who had not seen our manifest yet.
        return sent + len(manifest) + self._send(checkpoint, lambda _: True)

    def fetch(self, folder: CheckpointFolder, *, step: int | None = None) -> Checkpoint | None:
        """Bring the newest checkpoint that is whole into a local folder; None: there is none.

        Args:
            folder: where to.
            step: this one and no other.

        Raises:
            CheckpointError: the store or the disk refuses.
        """
        for remote in self.manifests():
            if step not in {None, remote.step}:
                continue
            name = f"{remote.path.name}.json"
            try:
                with self._told("cannot be read"):
                    manifest = self._try(lambda name=name: self._store.read(name))  # type: ignore[misc]
                return folder.receive(remote.step, manifest, self._files(remote))
            except _DamagedError as error:
                logger.warning("checkpoint skipped: %s/%s: %s", self.url, name, error)
        return None

    def prune(self, keep: Retention, *, digests: bool = False) -> list[str]:
        """Delete the checkpoints that no rule keeps, then the objects that none needs.

        Damaged ones do not count, and go only when they are older than as many good ones as are kept for being newest.

        Args:
            keep: the rules.
            digests: read everything to know what is good; else sizes are believed.

        Returns:
            Names of the manifests that are gone.

        Raises:
            StaleWriterError: a newer world has published here.
            CheckpointError: the store refuses or is away.
        """
        whole: list[Checkpoint] = []
        doomed: list[Checkpoint] = []
        published = self.manifests()
        self._check_fence(published)
        for checkpoint in published:
            try:
                whole.append(self.verify(f"{checkpoint.path.name}.json", contents=digests))
            except _DamagedError:
                if len(whole) >= keep.last:
                    doomed.append(checkpoint)
        wanted = keep.keep(Kept(step=checkpoint.step, metrics=checkpoint.metrics) for checkpoint in whole)
        doomed += [checkpoint for checkpoint in whole if checkpoint.step not in wanted]
        steps = {checkpoint.step for checkpoint in doomed}
        needed = {digest for one in published if one.step not in steps for _, digest in one.files.values()}
        gone = [f"{checkpoint.path.name}.json" for checkpoint in doomed]
        with self._told("cannot be written"):
            for name in gone:
                self._delete(name)
            for digest in {digest for one in doomed for _, digest in one.files.values()} - needed:
                self._delete(OBJECTS + digest)
        return gone

    def sweep(self) -> int:
        """Delete objects that no manifest names, left over from uploads that broke off long ago; returns how many.

        Raises:
            StaleWriterError: a newer world has published here.
            CheckpointError: the store refuses or is away, or a manifest is damaged, which may name any of them.
        """
        with self._told("cannot be written"):
            objects = self._try(lambda: self._store.sizes(OBJECTS))
            published = [self._read_manifest(name) for name in self.published()]
            self._check_fence(published)
            named = {OBJECTS + digest for one in published for _, digest in one.files.values()}
            orphans = [name for name in objects if name not in named and self._age(name) > ORPHAN_AGE]
            for name in orphans:
                self._delete(name)
        return len(orphans)

    def _send(self, checkpoint: Checkpoint, is_safe: Callable[[str], bool]) -> int:
        """Send the objects that are not there, or are but may be swept; returns how many bytes."""
        sent = 0
        with self._told("cannot be written"):
            there = self._try(lambda: self._store.sizes(OBJECTS))
            for name, (size, digest) in checkpoint.files.items():
                if there.get(OBJECTS + digest) != size or not is_safe(digest):
                    data = (checkpoint.path / name).read_bytes()
                    self._try(lambda digest=digest, data=data: self._store.write(OBJECTS + digest, data))  # type: ignore[misc]
                    there[OBJECTS + digest] = size
                    sent += size
        return sent

    def _is_young(self, digest: str) -> bool:
        return self._age(OBJECTS + digest) < ORPHAN_AGE / 2

    def _age(self, name: str) -> timedelta:
        """How old an object is; one that is gone meanwhile is as old as can be, and deleting it again does no harm."""
        try:
            return self._try(lambda: self._store.age(name))
        except FileNotFoundError:
            return timedelta.max

    def _delete(self, name: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            self._try(lambda: self._store.delete(name))

    def _read_manifest(self, name: str) -> Checkpoint:
        return read_manifest(Path(name).with_suffix(""), self._try(lambda: self._store.read(name)))

    def _try(self, call: Callable[[], _Result]) -> _Result:
        """Call the store, again after a failure that may pass."""
        for pause in PAUSES:
            try:
                return call()
            except Exception as error:  # whatever the libraries behind a URL raise
                number = error.errno if isinstance(error, OSError) else None
                if isinstance(error, (CheckpointError, *_FINAL)) or number in _FINAL_NUMBERS:
                    raise
                logger.info("%s: %s; tried again in %g s", self.url, _reason(error), pause)
                time.sleep(pause)
        return call()

    def _files(self, checkpoint: Checkpoint) -> Iterator[tuple[str, bytes]]:
        with self._told("cannot be read"):
            there = self._try(lambda: self._store.sizes(OBJECTS))
        for name, (size, digest) in checkpoint.files.items():
            if there.get(OBJECTS + digest) != size:
                raise _DamagedError(f"{OBJECTS}{digest} is missing or has another size than {size} bytes")
            with self._told("cannot be read"):
                data = self._try(lambda digest=digest: self._store.read(OBJECTS + digest))  # type: ignore[misc]
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
            raise CheckpointError(f"{self.url} {what}: {_reason(error)}; local checkpoints are untouched") from error


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
        self._has_swept = False
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
                if not self._has_swept:
                    self._remote.sweep()
                    self._has_swept = True
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


def shown(url: str) -> str:
    """A URL as it may stand in a log: without a user, a password, and what follows a question mark."""
    scheme, separator, rest = url.rstrip("/").partition("://")
    # The last one, wherever it is: who writes a key of AWS into a URL writes slashes with it.
    return f"{scheme}{separator}{rest.partition('?')[0].rpartition('@')[2].rstrip('/')}"


def open_store(url: str) -> Store:
    """The objects behind a URL.

    Raises:
        CheckpointError: nothing here knows the scheme.
    """
    if "://" not in url:
        raise CheckpointError(f"{url!r} is no URL: write s3://bucket/prefix, or file:///folder for a folder")
    return _Fsspec(url)


def _reason(error: BaseException) -> str:
    return str(error) or type(error).__name__


class _Fsspec:
    """A file system of fsspec. An object has its name when it is whole; a local one is synced before."""

    def __init__(self, url: str) -> None:
        import fsspec  # noqa: PLC0415

        try:
            self._files, self._root = fsspec.core.url_to_fs(url)
        except (ValueError, ImportError) as error:
            raise CheckpointError(
                f"{shown(url)}: {error}. Known are file and the schemes for which an fsspec package is installed"
            ) from error
        self._scheme = urlsplit(url).scheme

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
        self._write(name, data, is_new=False)

    def create(self, name: str, data: bytes) -> None:
        self._write(name, data, is_new=True)

    def age(self, name: str) -> timedelta:
        moment: datetime = self._files.modified(f"{self._root}/{name}")
        return datetime.now(UTC) - (moment if moment.tzinfo else moment.replace(tzinfo=UTC))

    def _write(self, name: str, data: bytes, *, is_new: bool) -> None:
        path = f"{self._root}/{name}"
        if is_new and self._scheme not in {*_WHOLE, "file"} and self._files.exists(path):
            raise FileExistsError(errno.EEXIST, "it is there already", path)
        if self._scheme in _WHOLE:
            self._files.pipe_file(path, data, mode="create" if is_new else "overwrite")
            return
        folder, _, last = path.rpartition("/")
        self._files.makedirs(folder, exist_ok=True)
        temporary = f"{folder}/.{last}-{secrets.token_hex(4)}"
        try:
            with self._files.open(temporary, "wb") as stream:
                stream.write(data)
                stream.flush()
                if self._scheme == "file":
                    os.fsync(stream.fileno())
            if is_new and self._scheme == "file":
                os.link(temporary, path)
                self._files.rm_file(temporary)
            else:
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
