"""Reading an OCI image archive: which image it holds, and its layers, each checked against its digest.

An archive is a tar file with an `index.json` that leads by digests to a manifest, and blobs. buildah, podman and skopeo
(`oci-archive:`) and docker (`docker save` since Docker 25, `docker buildx build --output type=oci`) write such. Nothing
in it is believed before its digest was checked, and no name in it decides where anything is written.
"""

import contextlib
import gzip
import hashlib
import json
import platform
import re
import tarfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self

from infra.local.errors import LocalClusterError

MOST_TEXT = 4 << 20
"""Bytes that an index, a manifest, a configuration or the header of a file may have."""
_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
_BLOCK = 1 << 20
_DEEPEST = 4  # indexes in indexes
_LISTS, _TEXTS = ("Entrypoint", "Cmd", "Env"), ("User", "WorkingDir", "StopSignal")  # of a configuration
_OF_HEADERS = (ValueError, OverflowError, RecursionError)
"""What tarfile ends with, besides its own errors, where a header has impossible numbers or thousands of extensions."""
_TIME = re.compile(r"[0-9TZ:.+-]{1,40}")
_NAMES = ("io.containerd.image.name", "org.opencontainers.image.ref.name")
_WRITE_ONE = (
    "write one: trainyard images build, or buildah push IMAGE oci-archive:FILE, or docker save IMAGE -o FILE (since 25)"
)


def this_architecture() -> str:
    """As images name it: `amd64`."""
    machine = platform.machine()
    return _ARCHITECTURES.get(machine, machine)


class DamagedError(LocalClusterError):
    """The archive cannot be used, and so nothing of it."""

    def __init__(self, archive: Path | str, why: str, remedy: str = "copy or write it again") -> None:
        super().__init__(f"the image archive {archive} can't be used", why=why, remedy=remedy)


@dataclass(frozen=True)
class _Blob:
    """What a descriptor says of a blob."""

    digest: str
    size: int
    architecture: str | None
    system: str | None
    annotations: Mapping[str, str]


class Archive:
    """One image in an archive; a context manager.

    Args:
        path: The archive.
        called: What messages call it, where the file means nothing to the user.

    Attributes:
        name: What the archive calls its image, None where it does not say.
        digest: Of the manifest: what a registry would pin it by.
        image_id: Of the configuration: what a build tool calls its id.
        architecture: E.g. "amd64".
        config: The configuration's `config`: entrypoint, environment, user, …
        created: As the configuration says, "" where it does not.
        size: Bytes of all layers in the archive.

    Raises:
        LocalClusterError: it cannot be read, is damaged, holds no image or several, or none for this computer.
    """

    def __init__(self, path: Path, called: str | None = None) -> None:
        self.called: Path | str = called or path
        try:
            self._tar = tarfile.open(path, "r:", tarinfo=BoundedHeader)  # noqa: SIM115 - closed by the context manager
        except (OSError, tarfile.TarError, *_OF_HEADERS) as error:
            raise _unreadable(path, self.called, error) from error
        try:
            with self.plain_errors():
                self._read()
        except BaseException:
            self._tar.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        self._tar.close()

    def layers(self, read: Callable[[int], None]) -> Iterator[tarfile.TarFile]:
        """The layers, the lowest first; what follows a layer's end is checked when the next one is asked for.

        Args:
            read: Told how many bytes of the archive have been read since the last time.
        """
        for blob, content in zip(self._layers, self._contents, strict=True):
            with self.plain_errors():
                packed = _Checked(self._open(blob), blob.digest, blob.size, read)
                unpacked = _Checked(_decompressed(packed, self.called), content)
                with tarfile.open(fileobj=unpacked, mode="r|", tarinfo=BoundedHeader) as layer:  # type: ignore[call-overload]
                    yield layer
                unpacked.finish()
                packed.finish()

    @contextlib.contextmanager
    def plain_errors(self) -> Iterator[None]:
        """Whatever reading it can end with becomes a plain error; for who reads a layer, too."""
        try:
            yield
        except (tarfile.TarError, zlib.error, EOFError, gzip.BadGzipFile, *_OF_HEADERS) as error:
            raise DamagedError(self.called, f"it is damaged or cut short: {error}") from error

    def _read(self) -> None:
        try:
            self._read_documents()
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise DamagedError(
                self.called, f"it isn't what an OCI image archive must be: {type(error).__name__}: {error}", _WRITE_ONE
            ) from error

    def _read_documents(self) -> None:
        members = {member.name.removeprefix("./"): member for member in self._tar}
        self._members = members
        if "index.json" not in members:
            old = "manifest.json" in members
            why = "it has no index.json" + (": docker save of Docker before 25 wrote another format" if old else "")
            raise DamagedError(self.called, why, _WRITE_ONE)
        index = self._json(self._regular("index.json").read(MOST_TEXT + 1))
        chosen = self._choose(list(self._images(index, {}, _DEEPEST)))
        self.digest = chosen.digest
        self.name = next((chosen.annotations[key] for key in _NAMES if chosen.annotations.get(key)), None)
        manifest = self._document(chosen)
        config = _blob(manifest["config"])
        self._layers = [_blob(layer) for layer in manifest["layers"]]
        self.size = sum(blob.size for blob in self._layers)
        self.image_id = config.digest
        document = self._document(config)
        self.architecture = str(document["architecture"])
        created = str(document.get("created") or "")
        self.created = created if _TIME.fullmatch(created) else ""
        self.config = _settings(document.get("config"))
        self._contents = [_digest(one) for one in document["rootfs"]["diff_ids"]]
        if len(self._contents) != len(self._layers):
            raise DamagedError(self.called, "its manifest and its configuration disagree about the layers")
        if document["os"] != "linux" or self.architecture != this_architecture():
            self._refuse_platform({_shown(f"{document['os']}/{self.architecture}")})

    def _images(self, index: Any, annotations: Mapping[str, str], deepest: int) -> Iterator[_Blob]:
        """All images of an index, those of the indexes in it included; statements about images are none."""
        if deepest == 0:
            raise DamagedError(self.called, "its index leads to indexes without end")
        for entry in index["manifests"]:
            blob = _blob(entry, annotations)
            if "vnd.docker.reference.type" in blob.annotations or blob.system == "unknown":
                continue
            if not _is_for_here(blob):
                yield blob  # to be named; an archive need not hold it, and those of `docker save` don't
                continue
            document = self._document(blob)
            if "manifests" in document:
                yield from self._images(document, blob.annotations, deepest - 1)
            elif "layers" in document:
                yield blob

    def _choose(self, found: list[_Blob]) -> _Blob:
        fitting = [one for one in found if _is_for_here(one)]
        unique = {one.digest: one for one in fitting}
        if len(unique) == 1:
            return next(iter(unique.values()))
        if unique:
            names = sorted(
                {_shown(one.annotations[key]) for one in fitting for key in _NAMES if key in one.annotations}
            )
            raise DamagedError(
                self.called,
                f"it holds {len(unique)} images{': ' if names else ''}{', '.join(names)}",
                "write an archive of the one that you want",
            )
        if found:
            self._refuse_platform({_shown(f"{one.system}/{one.architecture}") for one in found})
        raise DamagedError(self.called, "there is no image in it", _WRITE_ONE)

    def _refuse_platform(self, platforms: set[str]) -> None:
        here = this_architecture()
        raise DamagedError(
            self.called,
            f"its image is for {', '.join(sorted(platforms))}, and this computer is linux/{here}",
            f"build it for this computer (--platform linux/{here})",
        )

    def _document(self, blob: _Blob) -> Any:
        if blob.size > MOST_TEXT:
            raise DamagedError(self.called, f"{blob.digest} has {blob.size} bytes, too many for what it should be")
        reader = _Checked(self._open(blob), blob.digest, blob.size)
        text = reader.read(MOST_TEXT)
        reader.finish()
        return self._json(text)

    def _json(self, text: bytes) -> Any:
        try:
            document = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise DamagedError(self.called, f"a document in it isn't JSON: {error}") from error
        if not isinstance(document, dict):
            raise DamagedError(self.called, "a document in it isn't a JSON object")
        return document

    def _open(self, blob: _Blob) -> IO[bytes]:
        return self._regular(f"blobs/sha256/{blob.digest.removeprefix('sha256:')}")

    def _regular(self, name: str) -> IO[bytes]:
        member = self._members.get(name)
        content = self._tar.extractfile(member) if member is not None and member.isreg() else None
        if content is None:
            raise DamagedError(self.called, f"{name} is missing in it")
        return content


class BoundedHeader(tarfile.TarInfo):
    """A header that reading ends with, whatever it says: no endless extension, no way back, no silent end."""

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> Self:
        """See `tarfile.TarInfo.frombuf`.

        Raises:
            tarfile.ReadError: it is damaged, which tarfile itself would take for the end of the archive; or its
                extensions (long names, attributes) are too large for the memory.
        """
        try:
            made = super().frombuf(buf, encoding, errors)
        except tarfile.HeaderError as error:
            if any(buf):
                raise tarfile.ReadError(f"a header in it: {error}") from error
            raise  # its end
        extension = made.type in (
            tarfile.XHDTYPE,
            tarfile.XGLTYPE,
            tarfile.SOLARIS_XHDTYPE,
            tarfile.GNUTYPE_LONGNAME,
            tarfile.GNUTYPE_LONGLINK,
        )
        if extension and made.size > MOST_TEXT:
            raise tarfile.ReadError(f"a header of {made.size} bytes")
        if made.type == tarfile.GNUTYPE_SPARSE:
            raise tarfile.ReadError(f"{made.name[:200]!r} is stored with holes")
        return made

    # What follows tells tarfile's own steps apart by their names, as its source invites to do.

    def _block(self, count: int) -> int:
        if count < 0:  # it would go back, and round and round
            raise tarfile.ReadError(f"a size of {count} bytes")
        return -(-count // tarfile.BLOCKSIZE) * tarfile.BLOCKSIZE

    def _proc_gnusparse_10(self, following: tarfile.TarInfo, *_: object) -> None:
        """The list of holes lies in the content and has any length."""
        raise tarfile.ReadError(f"{following.name[:200]!r} is stored with holes")


class _Checked:
    """A stream whose digest (and size) must be right once it has been read to its end."""

    def __init__(
        self, source: IO[bytes], digest: str, size: int | None = None, read: Callable[[int], None] | None = None
    ) -> None:
        self._source, self._wanted, self._size = source, digest, size
        self._hash, self._told, self._count = hashlib.sha256(), read, 0

    def read(self, size: int = -1) -> bytes:
        data = self._source.read(size)
        self._hash.update(data)
        self._count += len(data)
        if self._told and data:
            self._told(len(data))
        return data

    def finish(self) -> None:
        """Read what is left, then judge.

        Raises:
            EOFError: it is not what was announced.
        """
        while self.read(_BLOCK):
            pass
        found = f"sha256:{self._hash.hexdigest()}"
        if self._size is not None and self._count != self._size:
            raise EOFError(f"{self._wanted} has {self._count} bytes, not {self._size}")
        if found != self._wanted:
            raise EOFError(f"the digest of {self._wanted} is {found}")


class _Joined:
    """A stream from its beginning, part of which has been read already."""

    def __init__(self, begin: bytes, rest: _Checked) -> None:
        self._begin, self._rest = begin, rest

    def read(self, size: int = -1) -> bytes:
        if self._begin:
            taken = self._begin if size < 0 else self._begin[:size]
            self._begin = self._begin[len(taken) :]
            return taken
        return self._rest.read(size)


def _decompressed(packed: _Checked, archive: Path | str) -> Any:
    begin = packed.read(4)
    whole = _Joined(begin, packed)
    if begin[:2] == b"\x1f\x8b":
        return gzip.GzipFile(fileobj=whole)  # type: ignore[call-overload]
    if begin == b"\x28\xb5\x2f\xfd":
        raise DamagedError(
            archive,
            "its layers are compressed by zstd, which Python can't read before 3.14",
            "write it with gzip: buildah push --compression-format gzip, or docker buildx --output compression=gzip,…",
        )
    return whole


def _blob(entry: Any, inherited: Mapping[str, str] | None = None) -> _Blob:
    place = entry.get("platform") or {}
    size = entry["size"]
    if not isinstance(size, int) or size < 0:
        raise ValueError(f"{size!r} is no size")
    annotations = {str(key): str(value) for key, value in (entry.get("annotations") or {}).items()}
    return _Blob(
        digest=_digest(entry["digest"]),
        size=size,
        architecture=place.get("architecture"),
        system=place.get("os"),
        annotations={**(inherited or {}), **annotations},
    )


def _settings(config: Any) -> dict[str, Any]:
    """A configuration's `config`, whose values are of the kinds that whoever runs the image relies on."""
    found: dict[str, Any] = dict(config or {})
    for key in _LISTS:
        value = found.get(key)
        if value is not None and not (isinstance(value, list) and all(isinstance(one, str) for one in value)):
            raise ValueError(f"{key} of its configuration is no list of texts")
    for key in _TEXTS:
        if not isinstance(found.get(key) or "", str):
            raise TypeError(f"{key} of its configuration is no text")
    return found


def _is_for_here(blob: _Blob) -> bool:
    """Whether it may be for this computer, as far as its descriptor says."""
    return blob.architecture in (None, this_architecture()) and blob.system in (None, "linux")


def _shown(text: str) -> str:
    """A text of the archive, for a terminal."""
    return text if text.isprintable() else ascii(text)


def _digest(text: Any) -> str:
    if not isinstance(text, str) or not _DIGEST.fullmatch(text):
        raise ValueError(f"{str(text)[:80]!r} is no sha256 digest")
    return text


def _unreadable(path: Path, called: Path | str, error: Exception) -> LocalClusterError:
    if isinstance(error, OSError):
        return LocalClusterError(
            f"the image archive {called} can't be read: {error.strerror or error}",
            remedy="name a file that you can read",
        )
    with contextlib.suppress(OSError), path.open("rb") as file:
        if file.read(2) == b"\x1f\x8b":
            return DamagedError(called, "it is compressed as a whole", f"unpack it first: gunzip {called}")
    return DamagedError(called, "it is no tar file", _WRITE_ONE)
