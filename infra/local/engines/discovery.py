"""Which engine serves a name right now: one on PATH whose version fits, else the cache's. Builds nothing.

Asked at each start, so it costs milliseconds: a program on PATH is asked for its version once per change of its file.
"""

import contextlib
import json
import os
import re
import shutil
import subprocess
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from infra.local.engines import cache
from infra.local.engines.catalogue import CATALOGUE, LANGUAGE_HOST, EngineSpec, VersionRange

STAND_INS = ".rehearsal"
"""File in a Pulumi home whose plugins are a rehearsal's stand-ins, never to be taken for the real ones."""
PROBE_TIMEOUT_SECONDS = 60  # a cold disk may take a while to load 90 MB

Origin = Literal["PATH", "plugin", "cache"]


@dataclass(frozen=True)
class Engine:
    """An engine that can be run.

    Attributes:
        path: the executable.
        version: as it tells itself (`1.36.3`); of a built process-runtime, the key of its sources.
        origin: `PATH`; `plugin`: installed in the user's own Pulumi home; `cache`: built or unpacked by this project.
    """

    name: str
    path: Path
    version: str
    origin: Origin


@dataclass
class Search:
    """The outcome of a search: the engine, and what was passed over on the way, in words."""

    engine: Engine | None = None
    passed_over: list[str] = field(default_factory=list)


def locate(name: str) -> Engine | None:
    """The engine that serves this name, or None where it has to be built first.

    Args:
        name: one of `EVERY_ENGINE`.
    """
    return search(name).engine


def search(name: str) -> Search:
    """Like `locate`, and says which candidates did not fit."""
    if name == LANGUAGE_HOST:
        return _search_language_host()
    spec = CATALOGUE[name]
    found = Search()
    if name == "pulumi-resource-kubernetes":
        found.engine = _installed_plugin(spec)
    elif spec.accepts:
        _search_path(spec, spec.accepts, found)
    if not found.engine and (build := cache.find_build(spec)):
        version = build.source_key if spec.is_own else spec.version
        path = cache.pulumi_with_host(build) / "pulumi" if name == "pulumi" else build.binary
        found.engine = Engine(name, path, version, "cache")
    return found


def _search_path(spec: EngineSpec, accepts: VersionRange, found: Search) -> None:
    ours = cache.engines_directory().resolve()
    for folder in dict.fromkeys(os.environ.get("PATH", os.defpath).split(os.pathsep)):
        candidate = Path(folder or ".", spec.name).absolute()
        if not (candidate.is_file() and os.access(candidate, os.X_OK)) or ours in candidate.resolve().parents:
            continue
        version = program_version(candidate, spec)
        if version is None:
            found.passed_over.append(f"{candidate}: does not tell its version")
        elif not accepts.fits(version):
            found.passed_over.append(f"{candidate}: version {version}, wanted {accepts}")
        elif spec.name == "pulumi" and not _released_host(candidate):
            found.passed_over.append(f"{candidate}: has no {LANGUAGE_HOST} beside it or on PATH")
        else:
            found.engine = Engine(spec.name, candidate, version, "PATH")
            return


def _released_host(pulumi: Path) -> Path | None:
    """The language host that a Pulumi from PATH would use: PATH first, then its own folder, as the engine looks."""
    if on_path := shutil.which(LANGUAGE_HOST):
        return Path(on_path)
    beside = pulumi.resolve().parent / LANGUAGE_HOST
    return beside if os.access(beside, os.X_OK) else None


def _search_language_host() -> Search:
    found = search("pulumi")
    pulumi = found.engine
    if not pulumi:
        return Search()
    host = _released_host(pulumi.path) if pulumi.origin == "PATH" else pulumi.path.with_name(LANGUAGE_HOST)
    return Search(Engine(LANGUAGE_HOST, host, pulumi.version, pulumi.origin) if host else None)


def _installed_plugin(spec: EngineSpec) -> Engine | None:
    """A plugin of exactly the right version in the user's own Pulumi home: `PULUMI_HOME`, `~/.pulumi`."""
    homes = [Path.home() / ".pulumi"]
    if chosen := os.environ.get("PULUMI_HOME"):
        homes.insert(0, Path(chosen))
    ours = cache.cache_directory().resolve()
    for home in homes:
        path = home / plugin_path(spec)
        unfinished = path.parent.with_name(f"{path.parent.name}.partial")  # Pulumi's mark of an install that was cut
        a_link_to_ours = ours in path.resolve().parents
        stand_in = (home / STAND_INS).exists()
        if os.access(path, os.X_OK) and not unfinished.exists() and not a_link_to_ours and not stand_in:
            return Engine(spec.name, path.absolute(), spec.version, "plugin")
    return None


def plugin_path(spec: EngineSpec) -> Path:
    """Where a resource plugin lies in a Pulumi home."""
    return Path("plugins", f"resource-{spec.name.removeprefix('pulumi-resource-')}-v{spec.version}", spec.name)


def program_version(program: Path, spec: EngineSpec) -> str | None:
    """The version that a program tells, remembered until its file changes; None where it tells none."""
    stamp = _stamp(program)
    remembered = _read_probes()
    known = remembered.get(str(program))
    if isinstance(known, dict) and known.get("stamp") == stamp:
        return known.get("version")
    try:
        version = ask_version([str(program), *spec.version_arguments], spec.version_pattern)
    except subprocess.TimeoutExpired:
        return None  # a busy machine: asked again next time
    _write_probes(remembered | {str(program): {"stamp": stamp, "version": version}})
    return version


def ask_version(command: list[str], pattern: str) -> str | None:
    """Runs a program for its version.

    Raises:
        subprocess.TimeoutExpired: it does not answer.
    """
    environment = os.environ | {"PULUMI_SKIP_UPDATE_CHECK": "true", "GOTOOLCHAIN": "local"}
    try:
        answer = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=PROBE_TIMEOUT_SECONDS,
            check=False,
            text=True,
            errors="replace",
            env=environment,
        )
    except OSError:
        return None
    found = re.search(pattern, answer.stdout + answer.stderr)
    return found.group(1) if found and answer.returncode == 0 else None


def _stamp(program: Path) -> list[int]:
    status = program.stat()
    return [status.st_mtime_ns, status.st_size]


def _probes_file() -> Path:
    return cache.cache_directory() / "versions.json"


def _read_probes() -> dict[str, Any]:
    try:
        content = json.loads(_probes_file().read_text())
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def _write_probes(probes: dict[str, Any]) -> None:
    """Atomically; where the cache cannot be written, programs are simply asked each time."""
    with contextlib.suppress(OSError):
        _probes_file().parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile("w", dir=_probes_file().parent, delete=False) as file:
            file.write(json.dumps(probes, indent=1))
        Path(file.name).replace(_probes_file())
