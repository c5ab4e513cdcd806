"""Builds engines with Go into the cache: in parallel, resumable, and with nothing left behind when it is interrupted.

Go's own build cache makes a repeated build quick, so a killed one resumes by being run again. At most two builds run at
once on a small machine: each compiles on all cores anyway, but fetching modules and linking are serial, and another
build fills those gaps. The longest goes first. Programs of one module are built by one command, which shares its
loading and checking of some 2,000 packages.
"""

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

import filelock
import psutil

from infra.local.engines import cache
from infra.local.engines.catalogue import EngineSpec
from infra.local.engines.errors import EngineError, cannot_write
from infra.local.engines.go import Go, build_environment, find_go, go_env
from infra.local.engines.progress import BuildProgress

POLL_SECONDS = 0.1
ENDING_SECONDS = 5  # Go removes its temporary files when it is interrupted; then it is killed
SHOWN_LOG_LINES = 12
MEMORY_FOR_TWO = 6 << 30  # bytes; linking the provider takes about 3 GiB, compiling beside it the rest

# Runs a command which the kernel interrupts when this process dies, however it dies. A program of its own, because
# setting this between fork and exec is not safe in a process with threads.
_TIED_TO_PARENT = """
import ctypes, os, sys
ctypes.CDLL(None).prctl(1, 2)  # PR_SET_PDEATHSIG, SIGINT
if os.getppid() == int(sys.argv[1]):
    os.execv(sys.argv[2], sys.argv[2:])
"""


@dataclass(frozen=True)
class Batch:
    """Engines that one `go build` makes."""

    specs: tuple[EngineSpec, ...]

    @property
    def name(self) -> str:
        """Names the log: the engine, or the module where there are several."""
        return self.specs[0].name if len(self.specs) == 1 else self.specs[0].module.name

    @property
    def seconds(self) -> int:
        """Expected time, cold, on two cores."""
        return sum(spec.seconds for spec in self.specs)

    def arguments(self, output: Path) -> list[str]:
        """What follows `go`, to put the binaries into the folder `output`, each under its engine's name."""
        first = self.specs[0]
        target = str(output / first.name) if len(self.specs) == 1 else f"{output}/"
        tags = ["-tags", first.tags] if first.tags else []
        return ["build", "-v", "-o", target, *tags, "-ldflags", first.ldflags, *(spec.package for spec in self.specs)]


def batches(specs: list[EngineSpec]) -> list[Batch]:
    """Groups engines by what one command can build, longest first."""

    def together(spec: EngineSpec) -> tuple[str, str, str]:
        return (str(spec.module), spec.tags, spec.ldflags)

    groups = (Batch(tuple(group)) for _, group in groupby(sorted(specs, key=together), key=together))
    return sorted(groups, key=lambda batch: -batch.seconds)


def build(specs: list[EngineSpec], progress: BuildProgress) -> None:
    """Builds and installs engines; those that another process finishes meanwhile are taken from it.

    Raises:
        EngineError: Go is missing or too old, the cache cannot be written, or a build failed.
    """
    find_go([spec.name for spec in specs])  # said at once, not after waiting for another process
    with _sole_builder(progress):
        cache.sweep_stagings()
        missing = [spec for spec in specs if cache.find_build(spec) is None]
        if not missing:
            return
        for spec in missing:
            if not (spec.module / "go.mod").exists():
                raise EngineError(f"{spec.name} cannot be built: its Go module {spec.module} is not there.")
        go = find_go([spec.name for spec in missing])
        _check_space(missing)
        _announce(missing, progress)
        with cache.staging_folder() as staging:
            _run_all([_Build(batch, go, staging) for batch in batches(missing)], progress)


def _announce(specs: list[EngineSpec], progress: BuildProgress) -> None:
    minutes = round(sum(spec.seconds for spec in specs) / 60)
    if minutes > 0:
        progress.note(
            f"To be built, once: {', '.join(spec.name for spec in specs)}. That takes about {minutes} min on two cores"
            " when nothing is cached; it may be interrupted and goes on where it was."
            " Ways round it: docs/how-to/engines.md"
        )


def _check_space(specs: list[EngineSpec]) -> None:
    folder = cache.engines_directory()
    needed = sum(spec.megabytes for spec in specs) * 3 // 2  # the linker writes beside what it has written
    free = psutil.disk_usage(str(folder)).free // 10**6
    if free < needed:
        raise EngineError(
            f"the engine cache {folder} has {free} MB free, and building {', '.join(s.name for s in specs)} takes"
            f" {needed} MB there. Free some space, or name another folder in TRAINYARD_CACHE_DIR."
        )


@contextlib.contextmanager
def _sole_builder(progress: BuildProgress) -> Iterator[None]:
    folder = cache.writable_engines_directory()
    holder = folder / ".builder"
    lock = filelock.FileLock(folder / ".lock")
    told = False
    while True:
        try:
            lock.acquire(timeout=0)
            break
        except filelock.Timeout:
            if not told:
                told = True
                progress.note(f"another process ({_read(holder) or 'unknown'}) is building engines; waiting for it")
            time.sleep(0.5)
        except OSError as error:
            raise cannot_write(folder, error) from error
    try:
        with contextlib.suppress(OSError):
            holder.write_text(str(os.getpid()))
        yield
    finally:
        with contextlib.suppress(OSError):
            holder.unlink(missing_ok=True)
        lock.release()


def _read(file: Path) -> str:
    try:
        return file.read_text().strip()
    except OSError:
        return ""


class _Build:
    """One running `go build`."""

    def __init__(self, batch: Batch, go: Go, staging: Path) -> None:
        self.batch = batch
        self.go = go
        self.output = staging / batch.name
        self.log_file = cache.engines_directory() / "logs" / f"{batch.name}.log"
        self._staging = staging
        self._process: subprocess.Popen[bytes] | None = None
        self._began = 0.0
        self._seen = 0  # bytes of the log

    def start(self) -> None:
        command = [str(self.go.path), *self.batch.arguments(self.output)]
        try:
            self.output.mkdir()
            temporary = self._staging / f"{self.batch.name}.tmp"
            temporary.mkdir()
            self.log_file.parent.mkdir(exist_ok=True)
            with self.log_file.open("wb") as log:
                # Without -S: the shim needs no packages; with -I no variable of the user's changes it.
                self._process = subprocess.Popen(
                    [sys.executable, "-I", "-S", "-c", _TIED_TO_PARENT, str(os.getpid()), *command],
                    cwd=self.batch.specs[0].module,
                    env=build_environment(temporary),
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,  # Ctrl-C reaches us alone; we end the whole group
                )
        except OSError as error:
            raise cannot_write(self.output, error) from error
        self._began = time.monotonic()

    @property
    def elapsed(self) -> float:
        return time.monotonic() - self._began

    def exit_code(self) -> int | None:
        return self._process.poll() if self._process else None

    def new_lines(self) -> list[str]:
        """Complete lines that the log has gained."""
        with contextlib.suppress(OSError), self.log_file.open("rb") as log:
            log.seek(self._seen)
            text = log.read()
            complete = text[: text.rfind(b"\n") + 1]
            self._seen += len(complete)
            return complete.decode(errors="replace").splitlines()
        return []

    def install(self) -> None:
        for spec in self.batch.specs:
            cache.install(spec, self.output / spec.name, self.go.version)

    def end(self) -> None:
        """Ends the build and all its children; does nothing to one that has ended."""
        if self._process is None or self._process.poll() is not None:
            return
        for number in (signal.SIGINT, signal.SIGKILL):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, number)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(ENDING_SECONDS)
        with contextlib.suppress(ProcessLookupError):  # compilers that outlived their `go`
            os.killpg(self._process.pid, signal.SIGKILL)

    def failure(self) -> EngineError:
        """What went wrong, with the end of the log and what helps against the usual causes."""
        text = _read(self.log_file)
        shown = "\n".join(f"    {line}" for line in text.splitlines()[-SHOWN_LOG_LINES:])
        names = ", ".join(spec.name for spec in self.batch.specs)
        return EngineError(
            f"building {names} failed; the end of {self.log_file}:\n{shown}\n{_remedy(text, self.go)}"
            " Run it again to go on from here: what is compiled stays compiled."
        )


def _remedy(log: str, go: Go) -> str:
    if "no space left on device" in log or "file too large" in log:
        places = ", ".join(
            dict.fromkeys([go_env(go, "GOCACHE"), go_env(go, "GOMODCACHE"), str(cache.cache_directory())])
        )
        return f"The disk is full or a limit on it was reached: a first build takes about 7 GB in {places}."
    if "signal: killed" in log:
        return "The system ended a compiler, most likely for want of memory: a build takes up to 4 GB."
    if any(sign in log for sign in ("dial tcp", "no such host", "i/o timeout", "TLS handshake")):
        return f"Go could not fetch modules (GOPROXY={go_env(go, 'GOPROXY')}): the first build needs the network."
    return ""


def _run_all(waiting: list[_Build], progress: BuildProgress) -> None:
    running: list[_Build] = []
    try:
        while waiting or running:
            while waiting and len(running) < _slots():
                build = waiting.pop(0)
                build.start()
                running.append(build)
                for spec in build.batch.specs:
                    progress.started(spec.name, build.batch.seconds)
            time.sleep(POLL_SECONDS)
            for build in list(running):
                code = build.exit_code()
                for line in build.new_lines():
                    for spec in build.batch.specs:
                        progress.log(spec.name, line)
                if code is None:
                    continue
                running.remove(build)
                if code != 0:
                    raise build.failure()
                build.install()
                for spec in build.batch.specs:
                    progress.finished(spec.name, build.elapsed)
    finally:
        for build in running:
            build.end()


def _slots() -> int:
    """How many builds at once: one without memory for two, two on small machines, more where cores would idle."""
    if psutil.virtual_memory().available < MEMORY_FOR_TWO:
        return 1
    return 2 if (os.cpu_count() or 1) < 8 else 4
