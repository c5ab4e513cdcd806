"""Where built engines live: one folder per engine and key, complete or absent.

    <cache>/engines/<engine>/<source key>-<platform>-<go version>/<engine>, engine.json

The *source key* is a hash of all that decides the binary: locks, sources, package, flags. A build by another Go version
from the same sources serves as well, so a Go update or an unpacked cache never forces a rebuild; the newest is taken.
"""

import contextlib
import fcntl
import hashlib
import json
import os
import platform
import shutil
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from infra.local.engines.catalogue import CATALOGUE, LANGUAGE_HOST, LANGUAGE_HOST_SOURCE, EngineSpec, version_numbers
from infra.local.engines.errors import cannot_write

BUILD_FLAGS = "-trimpath -buildvcs=false -mod=readonly"  # reproducible, and never another version than the lock's
_GO_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}


@dataclass(frozen=True)
class CachedBuild:
    """One complete build in the cache."""

    name: str
    folder: Path
    source_key: str
    platform: str
    go_version: str

    @property
    def binary(self) -> Path:
        """The executable."""
        return self.folder / self.name


def cache_directory() -> Path:
    """`$TRAINYARD_CACHE_DIR`, else `trainyard` in the XDG cache folder."""
    if chosen := os.environ.get("TRAINYARD_CACHE_DIR"):
        return Path(chosen).expanduser().absolute()
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "trainyard")


def engines_directory() -> Path:
    """Where engines, their logs and the lock are."""
    return cache_directory() / "engines"


def writable_engines_directory() -> Path:
    """The same, made if need be.

    Raises:
        EngineError: it cannot be written.
    """
    folder = engines_directory()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder) as probe:
            probe.write(b"\0" * 4096)
    except OSError as error:
        raise cannot_write(folder, error) from error
    return folder


def this_platform() -> str:
    """As Go names it: `linux-amd64`."""
    machine = platform.machine()
    return f"{sys.platform}-{_GO_ARCHITECTURES.get(machine, machine)}"


def source_key(spec: EngineSpec) -> str:
    """16 hex digits that change whenever the binary would: locks, sources, package and flags."""
    digest = hashlib.sha256()
    for part in (spec.name, spec.package, spec.tags, spec.ldflags, "CGO_ENABLED=0", BUILD_FLAGS):
        digest.update(part.encode() + b"\0")
    for name, content in _sources(spec):
        digest.update(f"{name}\0{len(content)}\0".encode() + content)
    return digest.hexdigest()[:16]


def _sources(spec: EngineSpec) -> list[tuple[str, bytes]]:
    found = [
        path
        for path in spec.module.rglob("*")
        if (path.name in ("go.mod", "go.sum") or path.suffix == ".go") and not path.name.endswith("_test.go")
    ]
    return sorted((path.relative_to(spec.module).as_posix(), path.read_bytes()) for path in found)


def all_builds() -> list[CachedBuild]:
    """Every complete build in the cache, of whatever key."""
    root = engines_directory()
    found = [build for name in CATALOGUE for folder in _folders(root / name) if (build := _as_build(name, folder))]
    return sorted(found, key=lambda build: build.folder)


def find_build(spec: EngineSpec) -> CachedBuild | None:
    """The build of the present sources for this platform, by the newest Go that made one."""
    wanted = (source_key(spec), this_platform())
    fitting = [
        build
        for folder in _folders(engines_directory() / spec.name)
        if (build := _as_build(spec.name, folder)) and (build.source_key, build.platform) == wanted
    ]
    return max(fitting, key=lambda build: version_numbers(build.go_version.removeprefix("go")) or (), default=None)


def _folders(folder: Path) -> list[Path]:
    try:
        return sorted(folder.iterdir())
    except OSError:
        return []


def _as_build(name: str, folder: Path) -> CachedBuild | None:
    parts = folder.name.split("-")
    if len(parts) != 4 or not _is_complete(folder, [name]):
        return None
    return CachedBuild(name, folder, parts[0], f"{parts[1]}-{parts[2]}", parts[3])


@contextlib.contextmanager
def staging_folder() -> Iterator[Path]:
    """A folder on the cache's own file system, gone afterwards whatever happens.

    Its owner holds a lock on it, which ends with the process: so `sweep_stagings` knows which are left over.
    """
    with tempfile.TemporaryDirectory(prefix=".staging-", dir=writable_engines_directory()) as folder:
        handle = os.open(folder, os.O_RDONLY)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX)
            yield Path(folder)
        finally:
            os.close(handle)


def sweep_stagings() -> None:
    """Removes what killed builds left behind."""
    for folder in engines_directory().glob(".staging-*"):
        with contextlib.suppress(OSError):
            handle = os.open(folder, os.O_RDONLY)
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder, ignore_errors=True)
            finally:
                os.close(handle)


def install(spec: EngineSpec, binary: Path, go_version: str, key: str | None = None) -> CachedBuild:
    """Moves a finished binary into its place: all of it or nothing, also when killed in the middle.

    Args:
        spec: the engine.
        binary: the executable, in a staging folder.
        go_version: as in `go1.26.8`.
        key: the source key that it was built from; by default the present one.
    """
    build = _as_build_to_be(spec.name, key or source_key(spec), go_version)
    staged = binary.with_name(f"{binary.name}.installing")
    try:
        staged.mkdir()
        binary.chmod(0o755)
        with binary.open("rb") as file:
            os.fsync(file.fileno())  # a power cut must not leave a complete-looking folder with an empty file
        binary.rename(staged / spec.name)
        about = {"name": spec.name, "version": spec.version, "go": go_version, "source_key": build.source_key}
        (staged / "engine.json").write_text(json.dumps(about, indent=1) + "\n")
        build.folder.parent.mkdir(parents=True, exist_ok=True)
        _move_into_place(staged, build.folder, [spec.name])
    except OSError as error:
        raise cannot_write(build.folder, error) from error
    return build


def _as_build_to_be(name: str, key: str, go_version: str) -> CachedBuild:
    folder = engines_directory() / name / f"{key}-{this_platform()}-{go_version}"
    return CachedBuild(name, folder, key, this_platform(), go_version)


def pulumi_with_host(build: CachedBuild) -> Path:
    """A folder with the built CLI and, beside it, a language host for this Python.

    The engine looks for the host beside its own executable after resolving symbolic links, and each virtual environment
    needs a host of its own: so each gets a folder with a hard link to the one binary.
    """
    source = LANGUAGE_HOST_SOURCE.read_text()
    tag = hashlib.sha256(f"{sys.executable}\0{source}".encode()).hexdigest()[:12]
    folder = build.folder / "hosts" / tag
    if _is_complete(folder, ["pulumi", LANGUAGE_HOST]):
        return folder
    try:
        folder.parent.mkdir(exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".", dir=folder.parent) as temporary:
            staged = Path(temporary, tag)
            staged.mkdir()
            try:
                os.link(build.binary, staged / "pulumi")
            except OSError:  # file systems without hard links
                shutil.copy2(build.binary, staged / "pulumi")
            host = staged / LANGUAGE_HOST
            host.write_text(interpreter_line(sys.executable) + source)
            host.chmod(0o755)
            _move_into_place(staged, folder, ["pulumi", LANGUAGE_HOST])
    except OSError as error:
        raise cannot_write(folder, error) from error
    return folder


def _is_complete(folder: Path, executables: list[str]) -> bool:
    return all(os.access(folder / name, os.X_OK) for name in executables)


def _move_into_place(staged: Path, folder: Path, executables: list[str]) -> None:
    try:
        staged.rename(folder)
    except OSError:
        if _is_complete(folder, executables):  # another process was first, with the same
            return
        if not folder.exists():
            raise
        shutil.rmtree(folder)  # somebody emptied it by hand
        staged.rename(folder)


def interpreter_line(interpreter: str) -> str:
    """The first lines with which the kernel starts a script in `interpreter`.

    The kernel takes no spaces and at most 255 bytes there; the other form, which pip uses too, is shell and Python.
    `-P` keeps the script's own folder off the module search path.
    """
    if len(interpreter) < 240 and " " not in interpreter:
        return f"#!{interpreter} -P\n"
    quoted = interpreter.replace("'", "'\"'\"'")
    return f"#!/bin/sh\n'''exec' '{quoted}' -P \"$0\" \"$@\"\n' '''\n"


def prune() -> list[tuple[CachedBuild, int]]:
    """Removes what this checkout does not use: builds of other sources, and by an older Go than another build.

    A build that is running is kept: a cluster of another checkout may have to start it again.

    Returns:
        Each removed build with the bytes that it took.
    """
    import psutil  # noqa: PLC0415 - 20 ms that no start of the cluster needs to pay

    used = [find_build(spec) for spec in CATALOGUE.values()]
    running = [Path(process.info["exe"] or "/") for process in psutil.process_iter(["exe"])]
    removed = []
    for build in all_builds():
        if build not in used and not any(build.folder in program.parents for program in running):
            removed.append((build, sum(file.stat().st_size for file in build.folder.rglob("*") if file.is_file())))
            try:
                shutil.rmtree(build.folder)
            except OSError as error:
                raise cannot_write(build.folder, error) from error
    return removed
