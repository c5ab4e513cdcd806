"""Moving built engines between computers and into CI caches: one archive with a manifest of checksums."""

import contextlib
import hashlib
import io
import json
import re
import shutil
import subprocess
import tarfile
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from infra.local.engines import cache
from infra.local.engines.catalogue import CATALOGUE
from infra.local.engines.errors import EngineError, cannot_write

MANIFEST = "trainyard-engines.json"  # the archive's first member
FORMAT = 1


@dataclass
class Unpacked:
    """What came of an archive: the engines taken, and those left out with the reason."""

    taken: list[str] = field(default_factory=list)
    left_out: dict[str, str] = field(default_factory=dict)


def ci_key() -> str:
    """A cache key for CI: platform and a hash over the locks of all engines from other projects."""
    keys = [cache.source_key(spec) for spec in CATALOGUE.values() if not spec.is_own]
    return f"trainyard-engines-{cache.this_platform()}-{hashlib.sha256(' '.join(keys).encode()).hexdigest()[:16]}"


def pack(file: Path) -> list[str]:
    """Writes the built engines of the present sources into an archive; engines from PATH are not ours to copy.

    Args:
        file: ends in `.tar.gz` or `.tar.zst`; replaced only when the archive is complete.

    Returns:
        The names of the engines in it.

    Raises:
        EngineError: nothing is built, the ending is unknown, or the file cannot be written.
    """
    compress = _compressor(file)
    builds = [build for spec in CATALOGUE.values() if (build := cache.find_build(spec))]
    if not builds:
        raise EngineError(
            f"there are no built engines in {cache.engines_directory()} to pack. Run `trainyard engines build` first"
            " (engines on PATH are used where they are and never packed)."
        )
    manifest = {
        "format": FORMAT,
        "platform": cache.this_platform(),
        "engines": [
            {
                "name": build.name,
                "source_key": build.source_key,
                "go": build.go_version,
                "sha256": _sha256(build.binary),
                "bytes": build.binary.stat().st_size,
            }
            for build in builds
        ],
    }
    try:
        with tempfile.TemporaryDirectory(prefix=f".{file.name}.", dir=file.absolute().parent) as temporary:
            staged = Path(temporary, file.name)
            with compress(staged) as stream, tarfile.open(fileobj=stream, mode="w|") as archive:
                content = json.dumps(manifest, indent=1).encode()
                about = tarfile.TarInfo(MANIFEST)
                about.size = len(content)
                archive.addfile(about, io.BytesIO(content))
                for build in builds:
                    member = tarfile.TarInfo(build.name)
                    member.size = build.binary.stat().st_size
                    member.mode = 0o755
                    with build.binary.open("rb") as binary:
                        archive.addfile(member, binary)
            staged.replace(file)
    except OSError as error:
        raise EngineError(f"the archive {file} cannot be written: {error.strerror or error}.") from error
    return [build.name for build in builds]


def unpack(file: Path) -> Unpacked:
    """Installs the engines of an archive whose sources are the present ones.

    Nothing is installed before every checksum has been verified. Members are read by the names in the manifest, so no
    path in the archive decides where anything is written.

    Raises:
        EngineError: it cannot be read, is damaged or foreign, or none of its engines fits this checkout.
    """
    try:
        with cache.staging_folder() as staging, _decompressed(file) as stream:
            with tarfile.open(fileobj=stream, mode="r|") as archive:
                manifest, outcome = _extract(file, archive, staging)
            for engine in manifest["engines"]:
                name = engine["name"]
                if name in outcome.taken:
                    cache.install(CATALOGUE[name], staging / name, engine["go"], engine["source_key"])
    except (tarfile.TarError, EOFError, OSError) as error:
        reason = getattr(error, "strerror", None) or error
        raise EngineError(f"the archive {file} cannot be read: {reason}. Pack it again where it came from.") from error
    return outcome


def _extract(file: Path, archive: tarfile.TarFile, staging: Path) -> tuple[dict[str, Any], Unpacked]:
    manifest = _manifest(file, archive)
    outcome = Unpacked()
    expected = {engine["name"]: engine for engine in manifest["engines"]}
    for name, engine in expected.items():
        if name not in CATALOGUE:
            outcome.left_out[name] = "this checkout has no such engine"
        elif engine["source_key"] != (key := cache.source_key(CATALOGUE[name])):
            outcome.left_out[name] = (
                f"it was built from other sources or locks ({engine['source_key']}) than this checkout's ({key})"
            )
    seen = set()
    while member := archive.next():  # plain iteration would give the manifest again
        declared = expected.get(member.name)
        if declared is None or not member.isreg() or member.size != declared["bytes"] or member.name in seen:
            raise EngineError(
                f"the archive {file} was not written by `trainyard engines pack`, or was changed since: its member"
                f" {member.name!r} is not what the manifest says. Nothing was installed."
            )
        seen.add(member.name)
        if member.name not in outcome.left_out:
            content = archive.extractfile(member)
            if content is None or _copy(content, staging / member.name) != declared["sha256"]:
                raise EngineError(
                    f"the archive {file} is damaged: the checksum of {member.name} is wrong. Nothing was installed;"
                    " copy or pack it again."
                )
            outcome.taken.append(member.name)
    if absent := expected.keys() - seen:
        raise EngineError(f"the archive {file} is cut short: {', '.join(sorted(absent))} missing. Copy it again.")
    if not outcome.taken:
        reasons = "".join(f"\n  {name}: {why}" for name, why in outcome.left_out.items())
        raise EngineError(
            f"nothing in the archive {file} fits this checkout:{reasons}\n"
            "Check out the commit that it was packed from, or pack anew with `trainyard engines build` and `pack`."
        )
    return manifest, outcome


def _manifest(file: Path, archive: tarfile.TarFile) -> dict[str, Any]:
    first = archive.next()
    content = archive.extractfile(first) if first and first.name == MANIFEST and first.isreg() else None
    try:
        manifest: Any = json.loads(content.read(1 << 20) if content else b"{}")
        well_formed = manifest["format"] == FORMAT and all(
            re.fullmatch(r"[0-9a-f]{16}", e["source_key"])
            and re.fullmatch(r"go[0-9][0-9a-z.]*", e["go"])
            and isinstance(e["name"], str)
            and isinstance(e["bytes"], int)
            and isinstance(e["sha256"], str)
            for e in manifest["engines"]
        )
    except (ValueError, KeyError, TypeError):
        well_formed = False
    if not well_formed:
        raise EngineError(f"{file} is no archive of engines: it has no manifest that `trainyard engines pack` writes.")
    if manifest["platform"] != (here := cache.this_platform()):
        raise EngineError(f"the archive {file} holds engines for {manifest['platform']}; this computer is {here}.")
    return dict(manifest)


def _copy(source: IO[bytes], target: Path) -> str:
    digest = hashlib.sha256()
    try:
        with target.open("wb") as file:
            while block := source.read(1 << 20):
                digest.update(block)
                file.write(block)
    except OSError as error:
        if target.exists() and error.errno is None:  # from the decompressor, not from our disk
            raise
        raise cannot_write(target.parent.parent, error) from error
    return digest.hexdigest()


def _sha256(file: Path) -> str:
    with file.open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()


def _compressor(file: Path) -> Any:
    if file.name.endswith(".tar.gz"):
        return _gzip
    if file.name.endswith(".tar.zst"):
        _zstd()
        return _zstandard
    raise EngineError(f"the archive {file} must end in .tar.gz or .tar.zst.")


def _zstd() -> str:
    program = shutil.which("zstd")
    if not program:
        raise EngineError("there is no zstd program on PATH. Install zstd, or use a name that ends in .tar.gz.")
    return program


@contextlib.contextmanager
def _gzip(file: Path) -> Iterator[IO[bytes]]:
    import gzip  # noqa: PLC0415

    with gzip.open(file, "wb", compresslevel=1) as stream:  # 3 s and 40 % of the size; level 9 takes minutes
        yield stream  # type: ignore[misc]


@contextlib.contextmanager
def _zstandard(file: Path) -> Iterator[IO[bytes]]:
    command = [_zstd(), "-q", "-T0", "-o", str(file)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdin  # noqa: S101 - a pipe was asked for
        yield process.stdin
        process.stdin.close()
        if process.wait() != 0:
            said = process.stderr.read().decode(errors="replace").strip() if process.stderr else ""
            raise OSError(None, said)


@contextlib.contextmanager
def _decompressed(file: Path) -> Iterator[IO[bytes]]:
    with file.open("rb") as raw:
        magic = raw.read(4)
        raw.seek(0)
        if magic == b"\x28\xb5\x2f\xfd":
            command = [_zstd(), "-q", "-d", "-c", str(file)]
            with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
                assert process.stdout  # noqa: S101 - a pipe was asked for
                yield process.stdout
            return
        if magic[:2] != b"\x1f\x8b":
            raise EngineError(f"{file} is no archive of engines: it is neither gzip nor zstd.")
        import gzip  # noqa: PLC0415

        with gzip.open(raw) as stream:
            yield stream  # type: ignore[misc]
