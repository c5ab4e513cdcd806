"""Published models: versions that never change, and which of them is the current one.

      versions/<run>-<digest>/…                the files of a model
      versions/<run>-<digest>/manifest.json    written last: a version is there when its manifest is
      current/000000007.json                   the seventh decision which version is current; the last one counts

Neither object stores nor folders replace a file only if nobody else has meanwhile, but both can make one only if it is
not there. So a decision is a new file with the next number: of two who decide at once one is refused, reads what
the other has decided, and asks the gate again. What was decided before stays readable, with who, when and why.

A version's name holds a digest of its contents, so two who publish under one name write the same bytes.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import secrets
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

from infra.workflow.definition import Gate
from infra.workflow.errors import GateError, StoreError

MANIFEST = "manifest.json"
_VERSIONS, _CURRENT = "versions", "current"
_DECISION = re.compile(r"(\d{9})\.json")
_CHUNK = 1 << 20  # bytes
# Schemes whose objects appear when they are whole, and only where there is none, when so asked.
_WHOLE = frozenset({"s3", "s3a", "memory"})
T = TypeVar("T")


@dataclass(frozen=True)
class Version:
    """A published model."""

    name: str
    run: str
    """Of the workflow."""
    job: str
    """The ElasticJob that trained it."""
    time: str
    """When it was published: RFC 3339, UTC."""
    metrics: Mapping[str, float]
    files: Mapping[str, tuple[int, str]]
    """Bytes and SHA-256 of each, by its path below the version's folder."""


@dataclass(frozen=True)
class Decision:
    """Which version is current since when, and why."""

    number: int
    version: str
    time: str
    """RFC 3339, UTC."""
    reason: str


class Models:
    """The models of one place.

    Args:
        place: a folder, or a URL `s3://bucket/prefix`.
        now: the time, for tests.

    Raises:
        StoreError: the scheme is not one whose files can be made only where there is none.
    """

    def __init__(self, place: str, *, now: Callable[[], datetime] = lambda: datetime.now(UTC)) -> None:
        self.place = shown(place)
        self._files = _Files(place)
        self._now = now

    def publish(
        self, folder: Path, *, run: str, job: str, metrics: Mapping[str, float], gate: Gate
    ) -> tuple[Version, Decision]:
        """Publish the files of a folder and make them the current model; a second time changes nothing.

        Args:
            folder: holds the model.
            run: of the workflow.
            job: the ElasticJob that trained it.
            metrics: what was measured.
            gate: asked before anything is sent, and again at the moment at which the version becomes current.

        Raises:
            GateError: the model is not good enough, or another one became current meanwhile that is better.
            StoreError: the folder is empty, or the place refuses or is away.
        """
        files = _digests(folder)
        if gate.metric not in metrics:
            known = ", ".join(metrics) or "none"
            raise GateError(f"nothing was measured that is called {gate.metric} (publish.metric); there: {known}")
        contents = hashlib.sha256(json.dumps(files, sort_keys=True).encode()).hexdigest()
        name = f"{run}-{contents[:12]}"
        current = self.current()
        if current is not None and current.version == name:
            return self.version(name), current
        self._ask(gate, metrics, current)
        version = Version(name, run, job, self._moment(), dict(metrics), files)
        for path in files:
            self._told(lambda path=path: self._files.send(folder / path, f"{_VERSIONS}/{name}/{path}"))  # type: ignore[misc]
        with contextlib.suppress(FileExistsError):  # the same contents: published before, or by another just now
            self._told(lambda: self._files.create(f"{_VERSIONS}/{name}/{MANIFEST}", _json(asdict(version))))
        while True:
            number = 1 + (current.number if current else 0)
            decision = Decision(number, name, self._moment(), f"published by run {run}")
            if self._decide(decision):
                return self.version(name), decision
            current = self.current()
            if current is not None and current.version == name:
                return self.version(name), current
            self._ask(gate, metrics, current)

    def rollback(self, version: str | None = None) -> Decision:
        """Make an earlier version the current one again.

        Args:
            version: one that was current before; None: the one before the current one.

        Raises:
            StoreError: there is none, it is damaged, somebody else has decided meanwhile, or the place is away.
        """
        decisions = self.decisions()
        if not decisions:
            raise StoreError(f"{self.place} has no published model")
        current = decisions[-1]
        earlier = list(dict.fromkeys(each.version for each in reversed(decisions) if each.version != current.version))
        if version is None:
            version = next(iter(earlier), None)
        if version is None or version not in earlier:
            known = ", ".join(earlier) or "none"
            asked = f"version {version}" if version else "an earlier version"
            raise StoreError(f"{self.place} cannot go back to {asked}: current before were {known}")
        self.verify(version)
        decision = Decision(current.number + 1, version, self._moment(), f"rollback from {current.version}")
        if not self._decide(decision):
            raise StoreError(
                f"{self.place}: somebody has just made another version current, so nothing was changed. Look:"
                " trainyard workflow history"
            )
        return decision

    def current(self) -> Decision | None:
        """The decision that counts; None: nothing is published.

        Raises:
            StoreError: it is damaged, or the place is away.
        """
        numbers = self._numbers()
        return self._decision(numbers[-1]) if numbers else None

    def decisions(self) -> list[Decision]:
        """All decisions, the oldest first; errors as of `current`."""
        return [self._decision(number) for number in self._numbers()]

    def version(self, name: str) -> Version:
        """A published version.

        Raises:
            StoreError: there is none of that name, it is damaged, or the place is away.
        """
        path = f"{_VERSIONS}/{name}/{MANIFEST}"
        try:
            document = self._read(path)
        except FileNotFoundError:
            raise StoreError(f"{self.place} has no version {name}") from None
        try:
            files = {file: (int(size), str(digest)) for file, (size, digest) in document["files"].items()}
            return Version(**{**document, "files": files})
        except (TypeError, ValueError, LookupError, AttributeError):
            raise StoreError(f"{self.place}/{path} is damaged") from None

    def verify(self, name: str) -> Version:
        """Read all files of a version and compare them with its manifest.

        Raises:
            StoreError: the first that is missing or differs, or the place is away.
        """
        version = self.version(name)
        for file, (size, digest) in version.files.items():
            path = f"{_VERSIONS}/{name}/{file}"
            try:
                found = self._told(lambda path=path: self._files.digest(path))  # type: ignore[misc]
            except FileNotFoundError:
                raise StoreError(f"{self.place}/{path} is missing") from None
            if found != (size, digest):
                raise StoreError(f"{self.place}/{path} is damaged: other contents than when it was published")
        return version

    def address(self, name: str) -> str:
        """Folder of a version."""
        return f"{self.place}/{_VERSIONS}/{name}"

    def _ask(self, gate: Gate, metrics: Mapping[str, float], current: Decision | None) -> None:
        best = self.version(current.version).metrics.get(gate.metric) if current else None
        if reason := gate.refusal(metrics[gate.metric], best):
            raise GateError(reason)

    def _decide(self, decision: Decision) -> bool:
        """Whether nobody was faster."""
        try:
            self._told(lambda: self._files.create(f"{_CURRENT}/{decision.number:09d}.json", _json(asdict(decision))))
        except FileExistsError:
            return False
        return True

    def _numbers(self) -> list[int]:
        names = self._told(lambda: self._files.names(_CURRENT))
        return sorted(int(found[1]) for name in names if (found := _DECISION.fullmatch(name)))

    def _decision(self, number: int) -> Decision:
        path = f"{_CURRENT}/{number:09d}.json"
        try:
            return Decision(**self._read(path))
        except (TypeError, FileNotFoundError):
            raise StoreError(f"{self.place}/{path} is damaged") from None

    def _read(self, path: str) -> dict[str, Any]:
        data = self._told(lambda: self._files.read(path))
        try:
            document = json.loads(data)
        except ValueError:
            document = None
        if not isinstance(document, dict):
            raise StoreError(f"{self.place}/{path} is damaged")
        return document

    def _moment(self) -> str:
        return self._now().strftime("%Y-%m-%dT%H:%M:%SZ")

    def _told(self, call: Callable[[], T]) -> T:
        """What a call returns; what the store's library raises as an error with the place in it."""
        try:
            return call()
        except (FileExistsError, FileNotFoundError, StoreError):
            raise
        except Exception as error:  # the libraries of the schemes have errors of their own
            raise StoreError(f"{self.place} cannot be used: {str(error) or type(error).__name__}") from error


class _Files:
    """Files by fsspec: each is whole or not there."""

    def __init__(self, place: str) -> None:
        from fsspec.core import url_to_fs  # noqa: PLC0415 - 0.1 s

        self._scheme = urlsplit(place).scheme if "://" in place else "file"
        if self._scheme not in {*_WHOLE, "file"}:
            raise StoreError(
                f"models cannot be published to {shown(place)}: two who publish at once would not notice each other"
                " there. Name a folder, or a place s3://bucket/prefix"
            )
        try:
            self._system, root = url_to_fs(place if "://" in place else str(Path(place).absolute()))
        except (ValueError, ImportError) as error:
            raise StoreError(f"models cannot be published to {shown(place)}: {error}") from None
        self._root = str(root).rstrip("/")

    def names(self, folder: str) -> list[str]:
        """Of the files in a folder."""
        self._system.invalidate_cache()  # others write here too
        try:
            entries: list[dict[str, Any]] = self._system.ls(f"{self._root}/{folder}", detail=True)
        except FileNotFoundError:
            return []
        return [entry["name"].rpartition("/")[2] for entry in entries if entry["type"] == "file"]

    def read(self, name: str) -> bytes:
        """Contents of a file."""
        data: bytes = self._system.cat_file(f"{self._root}/{name}")
        return data

    def digest(self, name: str) -> tuple[int, str]:
        """Bytes and SHA-256."""
        with self._system.open(f"{self._root}/{name}", "rb") as stream:
            return _digest(stream)

    def create(self, name: str, data: bytes) -> None:
        """Make a file; FileExistsError: it is there."""
        if self._scheme in _WHOLE:
            self._system.pipe_file(f"{self._root}/{name}", data, mode="create")
            return
        with self._beside(Path(self._root) / name) as temporary:
            _write(temporary, data)
            os.link(temporary, Path(self._root) / name)

    def send(self, source: Path, name: str) -> None:
        """Make a file from a local one, or make it anew."""
        if self._scheme in _WHOLE:
            self._system.put_file(str(source), f"{self._root}/{name}")
            return
        with self._beside(Path(self._root) / name) as temporary:
            self._system.put_file(str(source), str(temporary))
            with temporary.open("rb") as stream:
                os.fsync(stream.fileno())
            temporary.rename(Path(self._root) / name)

    @contextlib.contextmanager
    def _beside(self, path: Path) -> Iterator[Path]:
        """A name for a file that is being written; gone at the end."""
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_name(f".{path.name}-{secrets.token_hex(4)}")
        try:
            yield temporary
        finally:
            temporary.unlink(missing_ok=True)


def shown(place: str) -> str:
    """A place as it may stand in a message: without a password in it, and without a slash at its end."""
    scheme, separator, rest = place.rstrip("/").partition("://")
    return f"{scheme}{separator}{rest.partition('?')[0].rpartition('@')[2]}" if separator else place.rstrip("/")


def _digests(folder: Path) -> dict[str, tuple[int, str]]:
    """Bytes and SHA-256 of the files of a folder, by path."""
    found = {}
    try:
        for path in sorted(each for each in folder.rglob("*") if each.is_file()):
            with path.open("rb") as stream:
                found[str(path.relative_to(folder))] = _digest(stream)
    except OSError as error:
        raise StoreError(f"{error.filename or folder} cannot be read: {error.strerror}") from None
    if not found:
        raise StoreError(f"{folder} holds no model: `evaluate` has to write its files there")
    if MANIFEST in found:
        raise StoreError(f"{folder / MANIFEST} has the name of a version's manifest: give the file another one")
    return found


def _digest(stream: Any) -> tuple[int, str]:
    digest, size = hashlib.sha256(), 0
    while data := stream.read(_CHUNK):
        digest.update(data)
        size += len(data)
    return size, digest.hexdigest()


def _write(path: Path, data: bytes) -> None:
    with path.open("xb") as stream:
        stream.write(data)
        stream.flush()
        os.fsync(stream.fileno())


def _json(document: Mapping[str, Any]) -> bytes:
    return (json.dumps(document, indent=1) + "\n").encode()
