"""A folder of checkpoints: each is complete or absent, never overwritten, and written only by the newest world.

    /checkpoints/
      fence.json            who may write: run and generation
      step-000000120/       one checkpoint, named by the number of completed steps
        state.pt            the state, as torch.save writes it
        manifest.json       written last: size and SHA-256 of every file
      .saving-...           being written; swept when the next world begins

Publication: write into a hidden folder, fsync the files, write and fsync the manifest, fsync the folder, rename it,
fsync the parent. After a crash at any point the folder holds the previous checkpoints and perhaps the new one. Readers
trust nothing: `newest` verifies sizes and digests, and skips what does not match with a warning that names the file.

Fence: after a partition or a freeze a process of an old world may still be training. Every world claims the folder
before its first step (`claim`), and a writer that sees a newer claim is refused. Claims are a file, which is looked at
and then written or relied upon: there are moments between. In them

* an old world that was about to publish adds one complete checkpoint, of a step that it really made, and deletes what
  is then beyond `keep`;
* an old world that was about to claim replaces the newer claim. The newer world is refused at its next save, ends, and
  its launcher starts it again from the newest checkpoint, with a newer generation.

Neither leaves a checkpoint that is not whole, nor two worlds that go on writing.

Loading uses `torch.load(weights_only=True)`: a checkpoint is data and cannot run code. So `save` refuses what could not
be loaded that way.
"""

import contextlib
import errno
import hashlib
import io
import json
import logging
import os
import pickle
import re
import secrets
import shutil
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import torch

logger = logging.getLogger(__name__)

FORMAT: Final = 1
STATE: Final = "state.pt"
MANIFEST: Final = "manifest.json"
FENCE: Final = "fence.json"
_NAME = re.compile(r"^step-(\d+)$")
_SAVING = ".saving-"
_CLAIMING = f".{FENCE}-"
_DAMAGED = ".damaged-"


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
    """A verified checkpoint.

    Attributes:
        step: number of steps completed when it was made.
        path: its folder.
        writer: who made it.
    """

    step: int
    path: Path
    writer: Writer

    def load(self, device: str | torch.device = "cpu") -> dict[str, Any]:
        """Read the state.

        Raises:
            CheckpointError: it cannot be read although its digest was right.
        """
        try:
            state: dict[str, Any] = torch.load(self.path / STATE, map_location=device, weights_only=True)
        except (OSError, RuntimeError, EOFError, ValueError, pickle.UnpicklingError) as error:
            raise CheckpointError(f"{self.path / STATE} cannot be read: {error}") from error
        return state


class CheckpointFolder:
    """Saves and finds checkpoints.

    Args:
        root: the folder; made if it is not there.
        writer: who we are; a reader needs no name.
        keep: how many checkpoints are kept, the newest first.
    """

    def __init__(self, root: Path, *, writer: Writer | None = None, keep: int = 3) -> None:
        if keep < 1:
            raise ValueError(f"at least one checkpoint must be kept, not {keep}")
        self.root = root
        self._writer = writer or Writer()
        self._keep = keep
        self._claimed = False
        try:
            root.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise CheckpointError(f"the checkpoint folder {root} cannot be made: {error.strerror}") from error

    def newest(self) -> Checkpoint | None:
        """The newest checkpoint that is whole; damaged ones are skipped with a warning. None: there is none."""
        for step, path in self._published():
            try:
                return Checkpoint(step=step, path=path, writer=verify(path))
            except CheckpointError as error:
                logger.warning("checkpoint skipped: %s", error)
        return None

    def claim(self) -> None:
        """Become the only writer: to be called by one process of a new world, before its first step.

        Raises:
            StaleWriterError: a newer world of the same run was faster.
            CheckpointError: the disk refuses.
        """
        self._check_fence()
        data = json.dumps({"run": self._writer.run, "generation": self._writer.generation}).encode()
        temporary = self.root / f"{_CLAIMING}{secrets.token_hex(4)}"
        try:
            _write_synced(temporary, data)
            temporary.rename(self.root / FENCE)
            _sync_folder(self.root)
            leftovers = [path for path in self.root.iterdir() if path.name.startswith((_SAVING, _CLAIMING))]
        except OSError as error:
            temporary.unlink(missing_ok=True)
            raise CheckpointError(
                f"the checkpoint folder {self.root} cannot be written: {error.strerror}; check its mount, owner and "
                "free space"
            ) from error
        self._claimed = True
        for leftover in leftovers:
            if leftover.is_dir():
                shutil.rmtree(leftover, ignore_errors=True)
            else:
                leftover.unlink(missing_ok=True)

    def save(self, step: int, state: Mapping[str, Any]) -> Path:
        """Publish a checkpoint; when this returns it survives a crash of the machine.

        A whole checkpoint of the same step that exists already is kept, and ours is dropped.

        Args:
            step: number of completed steps.
            state: tensors, numbers, texts and containers of them.

        Returns:
            The checkpoint's folder.

        Raises:
            StaleWriterError: a newer world has claimed the folder.
            CheckpointError: the disk refuses, or the state holds something that `Checkpoint.load` would refuse.
        """
        self._check_fence()
        target = self.root / f"step-{step:09d}"
        temporary = self.root / f"{_SAVING}{step:09d}-{secrets.token_hex(4)}"
        buffer = _loadable(state, target)
        try:
            temporary.mkdir()
            _write_synced(temporary / STATE, buffer.getbuffer())
            _write_synced(temporary / MANIFEST, self._manifest(step, buffer.getbuffer()))
            _sync_folder(temporary)
            self._check_fence()
            self._publish(temporary, target)
        except OSError as error:
            raise CheckpointError(
                f"checkpoint {target} cannot be written: {error.strerror}; earlier checkpoints are untouched"
            ) from error
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
        self._prune()
        return target

    def _publish(self, temporary: Path, target: Path) -> None:
        try:
            temporary.rename(target)
        except OSError as error:
            if error.errno not in {errno.ENOTEMPTY, errno.EEXIST}:
                raise
            try:
                verify(target)
            except CheckpointError as damage:
                logger.warning("damaged checkpoint moved aside: %s", damage)
                target.rename(self.root / f"{_DAMAGED}{target.name}-{secrets.token_hex(4)}")
                temporary.rename(target)
        _sync_folder(self.root)

    def _manifest(self, step: int, state: memoryview) -> bytes:
        files = {STATE: {"size": len(state), "sha256": hashlib.sha256(state).hexdigest()}}
        manifest = {
            "format": FORMAT,
            "step": step,
            "run": self._writer.run,
            "generation": self._writer.generation,
            "time": time.time(),
            "files": files,
        }
        return json.dumps(manifest, indent=1).encode()

    def _prune(self) -> None:
        """Delete all but the newest `keep`, but nothing before as many newer ones are known to be whole."""
        whole = 0
        for _, path in list(self._published()):
            if whole >= self._keep:
                # Out of the readers' sight first: a half-deleted checkpoint must not look like a damaged one.
                doomed = self.root / f"{_SAVING}old-{path.name}-{secrets.token_hex(4)}"
                with contextlib.suppress(OSError):
                    path.rename(doomed)
                    shutil.rmtree(doomed, ignore_errors=True)
                continue
            with contextlib.suppress(CheckpointError):
                verify(path, contents=False)
                whole += 1

    def _published(self) -> Iterator[tuple[int, Path]]:
        """Step and folder of everything that bears a checkpoint's name, newest first."""
        found = [(int(match[1]), path) for path in self.root.iterdir() if (match := _NAME.match(path.name))]
        yield from sorted(found, reverse=True)

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


def verify(path: Path, *, contents: bool = True) -> Writer:
    """Check a checkpoint against its manifest.

    Args:
        path: the checkpoint's folder.
        contents: also compare digests, which reads all files; else sizes only.

    Returns:
        Who wrote it.

    Raises:
        CheckpointError: what is missing or differs, by file name.
    """
    manifest_path = path / MANIFEST
    try:
        manifest = json.loads(manifest_path.read_bytes())
        if manifest["format"] != FORMAT:
            raise CheckpointError(f"{manifest_path} has format {manifest['format']}, known is {FORMAT}")
        writer = Writer(run=str(manifest["run"]), generation=int(manifest["generation"]))
        files = {str(name): (int(file["size"]), str(file["sha256"])) for name, file in manifest["files"].items()}
    except FileNotFoundError as error:
        raise CheckpointError(f"{manifest_path} is missing: the checkpoint was never completed") from error
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise CheckpointError(f"{manifest_path} is damaged ({type(error).__name__}: {error})") from error
    if STATE not in files:
        raise CheckpointError(f"{manifest_path} is damaged: it does not name {STATE}")
    for name, (size, digest) in files.items():
        file = path / Path(name).name
        try:
            actual = file.stat().st_size
            if actual != size:
                raise CheckpointError(f"{file} has {actual} bytes, its manifest says {size}")
            if contents and _digest(file) != digest:
                raise CheckpointError(f"{file} does not match its SHA-256 in the manifest")
        except OSError as error:
            raise CheckpointError(f"{file} cannot be read: {error.strerror}") from error
    return writer


def _loadable(state: Mapping[str, Any], target: Path) -> io.BytesIO:
    """The state as bytes that can be loaded again, which is tried: the next world must not be the first to find out."""
    buffer = io.BytesIO()
    try:
        torch.save(dict(state), buffer)
        buffer.seek(0)
        torch.load(buffer, map_location="cpu", weights_only=True)
    except Exception as error:
        raise CheckpointError(
            f"checkpoint {target} was not written, because it could not be loaded: {error}\nSave tensors, numbers, "
            "texts and containers of them (for your own objects their state_dict)"
        ) from error
    return buffer


def _digest(file: Path) -> str:
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _write_synced(path: Path, data: bytes | memoryview) -> None:
    with path.open("xb") as stream:
        stream.write(data)
        stream.flush()
        os.fsync(stream.fileno())


def _sync_folder(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
