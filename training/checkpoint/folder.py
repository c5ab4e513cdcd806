"""A folder of checkpoints: each is complete or absent, never overwritten, and written only by the newest world.

    /checkpoints/
      fence.json            who may write: run and generation
      step-000000120/       one checkpoint, named by the number of completed steps
        __0_0.distcp ...    the state (training.checkpoint.contents)
        .metadata
        values.pt
        manifest.json       written last: size and SHA-256 of every file
      .saving-...           being written; swept when the next world begins

Publication: write into a hidden folder, fsync the files, write and fsync the manifest, fsync the folder, rename it,
fsync the parent. After a crash at any point the folder holds the previous checkpoints and perhaps the new one. Readers
trust nothing: `newest` verifies sizes and digests, and skips what does not match with a warning that names the file.

Fence: after a partition or a freeze a process of an old world may still be training. Every world claims the folder
before its first step (`claim`), and a writer that sees a newer claim is refused. Claims are a file, which is looked at
and then written or relied upon: there are moments between. In them

* an old world that was about to publish adds one complete checkpoint, of a step that it really made, and deletes what
  its rules then no longer keep;
* an old world that was about to claim replaces the newer claim. The newer world is refused at its next save, ends, and
  its launcher starts it again from the newest checkpoint, with a newer generation.

Neither leaves a checkpoint that is not whole, nor two worlds that go on writing. Where the launcher has etcd, claims
and publications go through a lock there as well (training.checkpoint.lock): no claim is replaced then, and nothing is
deleted.

A checkpoint is data and cannot run code when it is loaded. So `save` refuses what could not be loaded that way.
"""

import contextlib
import errno
import hashlib
import json
import logging
import re
import secrets
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor

from training.checkpoint import contents, disk
from training.checkpoint.lock import EtcdLock, LostLockError
from training.checkpoint.retention import Kept, Retention

logger = logging.getLogger(__name__)

FORMAT: Final = 2
MANIFEST: Final = "manifest.json"
FENCE: Final = "fence.json"
_NAME = re.compile(r"^step-(\d+)$")
_SAVING = ".saving-"
_CLAIMING = f".{FENCE}-"
_DAMAGED = ".damaged-"
_writing: dict[Path, threading.RLock] = {}


class CheckpointError(Exception):
    """A checkpoint cannot be written or read; the message names the file and what to do."""


class StaleWriterError(CheckpointError):
    """A newer world has claimed the folder: this process must stop training."""


@dataclass(frozen=True, kw_only=True)
class Writer:
    """Who writes.

    Attributes:
        run: name of the job's life (`TRAINYARD_RUN`).
        generation: number of its world (`TRAINYARD_GENERATION`); grows within a run.
    """

    run: str = ""
    generation: int = 0


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """A checkpoint that matches its manifest.

    Attributes:
        step: number of steps completed when it was made.
        path: its folder.
        writer: who made it.
        metrics: figures that were given with it.
        time: when it was made, in seconds since the epoch.
        files: size in bytes and SHA-256 of every file.
    """

    step: int
    path: Path
    writer: Writer
    metrics: Mapping[str, float] = field(default_factory=dict)
    time: float = 0.0
    files: Mapping[str, tuple[int, str]] = field(default_factory=dict)

    @property
    def size(self) -> int:
        """Bytes of all its files but the manifest."""
        return sum(size for size, _ in self.files.values())

    def load(self, device: str | torch.device = "cpu", *, only: str | None = None) -> dict[str, Any]:
        """Read the state, or one key of it.

        Raises:
            CheckpointError: it cannot be read although its digest was right, or has no such key.
        """
        try:
            return contents.read(self.path, device, only=only)
        except (OSError, contents.ContentError) as error:
            raise CheckpointError(str(error)) from error


@dataclass(frozen=True, kw_only=True)
class Snapshot:
    """A state that nobody changes any more, ready to be written.

    Attributes:
        step: number of completed steps.
        values: all but the tensors, as bytes.
        tensors: on the CPU.
        metrics: figures that the rules for keeping may look at.
    """

    step: int
    values: bytes
    tensors: Mapping[str, Tensor]
    metrics: Mapping[str, float] = field(default_factory=dict)


class CheckpointFolder:
    """Saves and finds checkpoints.

    Args:
        root: the folder; made if it is not there.
        writer: who we are; a reader needs no name.
        keep: which checkpoints stay when a new one is saved; a number: so many of the newest.
    """

    def __init__(self, root: Path, *, writer: Writer | None = None, keep: Retention | int = 3) -> None:
        self.root = root
        self._writer = writer or Writer()
        self._keep = Retention(last=keep) if isinstance(keep, int) else keep
        self._claimed = False
        self._lock = EtcdLock.of_launcher(self._writer.run, str(root.absolute()))
        # One at a time in this process, whatever objects it has for the folder.
        self._writing = _writing.setdefault(root.absolute(), threading.RLock())
        try:
            root.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise CheckpointError(
                f"the checkpoint folder {root} cannot be made: {error.strerror}; check its mount and owner"
            ) from error

    def newest(self) -> Checkpoint | None:
        """The newest checkpoint that is whole; damaged ones are skipped with a warning. None: there is none."""
        for path in self.published():
            try:
                return verify(path)
            except CheckpointError as error:
                logger.warning("checkpoint skipped: %s", error)
        return None

    def published(self) -> list[Path]:
        """Everything that bears a checkpoint's name, whole or not, the newest first.

        Raises:
            CheckpointError: the folder cannot be read.
        """
        try:
            found = [(int(match[1]), path) for path in self.root.iterdir() if (match := _NAME.match(path.name))]
        except OSError as error:
            raise CheckpointError(f"the checkpoint folder {self.root} cannot be read: {error.strerror}") from error
        return [path for _, path in sorted(found, reverse=True)]

    def claim(self) -> None:
        """Become the only writer: to be called by one process of a new world, before its first step.

        What is being written by an older world is swept. What this very process writes for one, in a process that
        lives on from world to world, is waited for and counts; what it would write later is refused.

        Raises:
            StaleWriterError: a newer world of the same run was faster.
            CheckpointError: the disk refuses.
        """
        with self._writing:
            self._claim()

    def _claim(self) -> None:
        self._check_fence()
        if self._lock:
            with claimed(str(self.root)):
                self._lock.claim(self._writer.run, self._writer.generation)
        data = json.dumps({"run": self._writer.run, "generation": self._writer.generation}).encode()
        temporary = self.root / f"{_CLAIMING}{secrets.token_hex(4)}"
        try:
            disk.write_synced(temporary, data)
            disk.rename(temporary, self.root / FENCE)
            disk.sync_folder(self.root)
            leftovers = [path for path in self.root.iterdir() if path.name.startswith((_SAVING, _CLAIMING))]
        except OSError as error:
            disk.remove(temporary)
            raise CheckpointError(
                f"the checkpoint folder {self.root} cannot be written: {error.strerror}; check its mount, owner and "
                "free space"
            ) from error
        self._claimed = True
        for leftover in leftovers:
            disk.remove(leftover)

    def save(self, step: int, state: Mapping[str, Any], *, metrics: Mapping[str, float] | None = None) -> Path:
        """Publish a checkpoint; when this returns it survives a crash of the machine.

        Args:
            step: number of completed steps.
            state: tensors, numbers, texts and containers of them.
            metrics: figures that the rules for keeping may look at.

        Returns:
            The checkpoint's folder.

        Raises:
            StaleWriterError: a newer world has claimed the folder.
            CheckpointError: the disk refuses, or the state holds something that `Checkpoint.load` would refuse.
        """
        values, tensors = self.separate(step, state)
        on_cpu = {name: tensor.cpu() for name, tensor in tensors.items()}
        return self.publish(Snapshot(step=step, values=values, tensors=on_cpu, metrics=metrics or {}))

    def separate(self, step: int, state: Mapping[str, Any]) -> tuple[bytes, dict[str, Tensor]]:
        """Take a state apart into what is small and the tensors, which are still the state's own.

        Raises:
            CheckpointError: the state holds something that `Checkpoint.load` would refuse.
        """
        try:
            values, tensors = contents.split(state)
            return contents.dump_values(values), tensors
        except contents.ContentError as error:
            raise CheckpointError(f"checkpoint {self._path(step)} was not written, because {error}") from error

    def publish(self, snapshot: Snapshot) -> Path:
        """Publish a checkpoint, and delete what is kept no longer.

        A whole checkpoint of the same step that exists already is kept, and ours is dropped.

        Raises:
            StaleWriterError: a newer world has claimed the folder.
            CheckpointError: the disk refuses.
        """
        with self._writing:
            return self._publish(snapshot)

    def _publish(self, snapshot: Snapshot) -> Path:
        self._check_fence()
        target = self._path(snapshot.step)
        temporary = self.root / f"{_SAVING}{snapshot.step:09d}-{secrets.token_hex(4)}"
        try:
            disk.make_folder(temporary)
            files = contents.write(temporary, snapshot.values, snapshot.tensors)
            disk.write_synced(temporary / MANIFEST, self._manifest(snapshot, files))
            disk.sync_folder(temporary)
            self._check_fence()
            self._check_lock(snapshot.step)
            self._rename(temporary, target)
        except OSError as error:
            raise CheckpointError(
                f"checkpoint {target} cannot be written: {error.strerror}; earlier checkpoints are untouched"
            ) from error
        finally:
            disk.remove(temporary)
        self._check_lock(None)  # an old world deletes nothing
        self.prune(self._keep)
        return target

    def receive(self, step: int, manifest: bytes, files: Iterable[tuple[str, bytes]]) -> Checkpoint:
        """Publish a checkpoint that was made elsewhere.

        Args:
            step: number of completed steps.
            manifest: its manifest, as it was written there.
            files: names and contents of all its other files.

        Raises:
            CheckpointError: the files do not match the manifest, or the disk refuses.
        """
        with self._writing:
            return self._receive(step, manifest, files)

    def _receive(self, step: int, manifest: bytes, files: Iterable[tuple[str, bytes]]) -> Checkpoint:
        target = self._path(step)
        temporary = self.root / f"{_SAVING}{step:09d}-{secrets.token_hex(4)}"
        try:
            disk.make_folder(temporary)
            for name, data in files:
                disk.write_synced(temporary / name, data)
            disk.write_synced(temporary / MANIFEST, manifest)
            disk.sync_folder(temporary)
            verify(temporary)
            self._rename(temporary, target)
        except OSError as error:
            raise CheckpointError(f"checkpoint {target} cannot be written: {error.strerror}") from error
        finally:
            disk.remove(temporary)
        return verify(target, contents=False)

    def prune(self, keep: Retention, *, digests: bool = False) -> list[Path]:
        """Delete the checkpoints that no rule keeps.

        Damaged ones do not count, and go only when they are older than as many good ones as are kept for being newest.

        Args:
            keep: the rules.
            digests: read everything to know what is good; else sizes are believed.

        Returns:
            The folders that are gone.
        """
        whole: list[Checkpoint] = []
        doomed: list[Path] = []
        for path in self.published():
            try:
                whole.append(verify(path, contents=digests))
            except CheckpointError:
                if len(whole) >= keep.last:
                    doomed.append(path)
        wanted = keep.keep(Kept(step=checkpoint.step, metrics=checkpoint.metrics) for checkpoint in whole)
        doomed += [checkpoint.path for checkpoint in whole if checkpoint.step not in wanted]
        gone: list[Path] = []
        for path in doomed:
            # Out of the readers' sight first: a half-deleted checkpoint must not look like a damaged one.
            hidden = self.root / f"{_SAVING}old-{path.name}-{secrets.token_hex(4)}"
            with contextlib.suppress(OSError):
                disk.rename(path, hidden)
                gone.append(path)
                disk.remove(hidden)
        return gone

    def _path(self, step: int) -> Path:
        return self.root / f"step-{step:09d}"

    def _rename(self, temporary: Path, target: Path) -> None:
        try:
            disk.rename(temporary, target)
        except OSError as error:
            if error.errno not in {errno.ENOTEMPTY, errno.EEXIST}:
                raise
            try:
                verify(target)
            except CheckpointError as damage:
                logger.warning("damaged checkpoint moved aside: %s", damage)
                disk.rename(target, self.root / f"{_DAMAGED}{target.name}-{secrets.token_hex(4)}")
                disk.rename(temporary, target)
        disk.sync_folder(self.root)

    def _manifest(self, snapshot: Snapshot, files: Mapping[str, Any]) -> bytes:
        manifest = {
            "format": FORMAT,
            "step": snapshot.step,
            "run": self._writer.run,
            "generation": self._writer.generation,
            "time": time.time(),
            "metrics": dict(snapshot.metrics),
            "files": files,
        }
        return json.dumps(manifest, indent=1).encode()

    def _check_lock(self, step: int | None) -> None:
        if self._lock:
            with claimed(str(self.root)):
                self._lock.publish(self._writer.run, self._writer.generation, step)

    def _check_fence(self) -> None:
        try:
            fence = json.loads((self.root / FENCE).read_bytes())
            run, generation = str(fence["run"]), int(fence["generation"])
        except FileNotFoundError:
            return
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise CheckpointError(f"{self.root / FENCE} cannot be read ({error}); delete it if no job runs") from error
        ours = self._writer
        newer = run == ours.run and generation > ours.generation
        taken = self._claimed and (run, generation) != (ours.run, ours.generation)
        if newer or taken:
            raise StaleWriterError(
                f"generation {ours.generation} of run '{ours.run}' may not write to {self.root}: generation "
                f"{generation} of run '{run}' has taken over"
            )


@contextlib.contextmanager
def claimed(place: str) -> Iterator[None]:
    """Calls of the lock for a folder or URL.

    Raises:
        StaleWriterError: it is somebody else's.
    """
    try:
        yield
    except LostLockError as error:
        raise StaleWriterError(f"this process may not write to {place} any more: {error}") from error


def verify(path: Path, *, contents: bool = True) -> Checkpoint:
    """Check a checkpoint against its manifest.

    Args:
        path: the checkpoint's folder.
        contents: also compare digests, which reads all files; else sizes only.

    Raises:
        CheckpointError: what is missing or differs, by file name.
    """
    manifest_path = path / MANIFEST
    try:
        checkpoint = read_manifest(path, manifest_path.read_bytes())
    except FileNotFoundError as error:
        raise CheckpointError(f"{manifest_path} is missing: the checkpoint was never completed") from error
    except OSError as error:
        raise CheckpointError(f"{manifest_path} cannot be read: {error.strerror}") from error
    for name, (size, digest) in checkpoint.files.items():
        file = path / name
        try:
            actual = file.stat().st_size
            if actual != size:
                raise CheckpointError(f"{file} has {actual} bytes, its manifest says {size}")
            if contents and digest_of(file) != digest:
                raise CheckpointError(f"{file} does not match its SHA-256 in the manifest")
        except OSError as error:
            raise CheckpointError(f"{file} cannot be read: {error.strerror}") from error
    return checkpoint


def read_manifest(path: Path, data: bytes) -> Checkpoint:
    """What a manifest says of the checkpoint in a folder.

    Raises:
        CheckpointError: it is damaged, of another step than the folder's name says, or of another format.
    """
    file = path / MANIFEST
    try:
        manifest = json.loads(data)
        if manifest["format"] != FORMAT:
            raise CheckpointError(f"{file} has format {manifest['format']}, known is {FORMAT}")
        checkpoint = Checkpoint(
            step=int(manifest["step"]),
            path=path,
            writer=Writer(run=str(manifest["run"]), generation=int(manifest["generation"])),
            metrics={str(name): float(value) for name, value in manifest["metrics"].items()},
            time=float(manifest["time"]),
            files={str(name): (int(entry["size"]), str(entry["sha256"])) for name, entry in manifest["files"].items()},
        )
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise CheckpointError(f"{file} is damaged ({type(error).__name__}: {error})") from error
    for name in (contents.METADATA, contents.VALUES):
        if name not in checkpoint.files:
            raise CheckpointError(f"{file} is damaged: it does not name {name}")
    for name in checkpoint.files:
        if name != Path(name).name or name in {"", ".", ".."}:
            raise CheckpointError(f"{file} is damaged: it names {name!r}, which is no file of its folder")
    if (match := _NAME.match(path.name)) and int(match[1]) != checkpoint.step:
        raise CheckpointError(f"{file} is of step {checkpoint.step}, its folder of step {int(match[1])}")
    return checkpoint


def digest_of(file: Path) -> str:
    """SHA-256 of a file.

    Raises:
        OSError: it cannot be read.
    """
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
