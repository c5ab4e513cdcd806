"""Building: in parallel, once, resumable, atomic; each failure a plain sentence. `go` is a small script here."""

import contextlib
import os
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from infra.local import engines
from infra.local.engines import building, cache
from infra.local.engines.building import batches, build
from infra.local.engines.catalogue import CATALOGUE, EngineSpec

FAKE_GO = """#!/bin/sh
case $1 in
version) echo "go version ${FAKE_GO_VERSION:-go1.26.8} linux/amd64"; exit 0 ;;
env) echo "/its/$2"; exit 0 ;;
esac
echo "$$ $*" >>"$FAKE_GO_DIR/builds"
env >"$FAKE_GO_DIR/environment"
mode=${FAKE_GO_MODE:-ok}
if [ $mode = slow-once ]; then
  mode=slow; [ -e "$FAKE_GO_DIR/slowed" ] && mode=ok
  touch "$FAKE_GO_DIR/slowed"
fi
if [ $mode = one-fails ]; then
  mode=slow
  case $* in *broken*) mode=fail; until [ -s "$FAKE_GO_DIR/compiler" ]; do sleep 0.05; done ;; esac
fi
case $mode in
fail) for i in $(seq 30); do echo "line $i"; done; echo "${FAKE_GO_SAYS:-undefined: x}"; exit 1 ;;
slow) echo "compiling"; touch "$GOTMPDIR/half-written"; sleep 60 & echo $! >"$FAKE_GO_DIR/compiler"; wait; exit 1 ;;
pause) sleep 0.5 ;;
held) until [ -e "$FAKE_GO_DIR/go on" ]; do sleep 0.05; done ;;
esac
out=; packages=
while [ $# -gt 0 ]; do
  case $1 in
  -o) out=$2; shift ;;
  -tags|-ldflags) shift ;;
  */*|.) packages="$packages $1" ;;
  esac
  shift
done
for package in $packages; do
  echo "$package"
  case $out in */) target=$out${package##*/} ;; *) target=$out ;; esac
  echo "#!/bin/sh" >"$target" || exit 1
done
"""


class Recorded:
    """Progress that keeps what it is told."""

    def __init__(self, on_log: Callable[[], None] = lambda: None, on_note: Callable[[], None] = lambda: None) -> None:
        self.events: list[tuple[str, str]] = []
        self._on_log = on_log
        self._on_note = on_note

    def note(self, text: str) -> None:
        self.events.append(("note", text))
        self._on_note()

    def started(self, name: str, seconds: int) -> None:  # noqa: ARG002 - the protocol's name
        self.events.append(("started", name))

    def log(self, name: str, line: str) -> None:
        self.events.append((name, line))
        self._on_log()

    def finished(self, name: str, seconds: float) -> None:  # noqa: ARG002 - the protocol's name
        self.events.append(("finished", name))


@pytest.fixture(autouse=True)
def go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A fake go on PATH, an empty cache, and nothing else of this machine."""
    tools = tmp_path / "tools"
    tools.mkdir()
    (tools / "go").write_text(FAKE_GO)
    (tools / "go").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tools}:/usr/bin:/bin")
    monkeypatch.setenv("FAKE_GO_DIR", str(tmp_path))
    monkeypatch.setenv("TRAINYARD_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("PULUMI_HOME", str(tmp_path / "pulumi-home"))
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr(building, "POLL_SECONDS", 0.01)
    return tools / "go"


@pytest.fixture
def spec(tmp_path: Path) -> EngineSpec:
    return module(tmp_path, "alpha")


def module(tmp_path: Path, name: str, package: str = ".", **fields: object) -> EngineSpec:
    folder = tmp_path / "modules" / str(fields.pop("folder", name))
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "go.mod").write_text(f"module {name}\n")
    (folder / "go.sum").write_text("sums\n")
    made = EngineSpec(name, "for a test", "1.0.0", folder, package, "-s -w", seconds=10, megabytes=1)
    return replace(made, **fields)  # type: ignore[arg-type]


def builds(tmp_path: Path) -> list[str]:
    """The arguments of each `go build` so far."""
    file = tmp_path / "builds"
    return [line.split(" ", 1)[1] for line in file.read_text().splitlines()] if file.exists() else []


def left_behind() -> list[str]:
    return sorted(path.name for path in cache.engines_directory().glob(".*") if path.name != ".lock")


def wait_for(condition: Callable[[], object], seconds: float = 120) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.02)


def is_alive(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


@pytest.fixture
def in_another_process(tmp_path: Path) -> Iterator[Callable[[EngineSpec], subprocess.Popen[str]]]:
    """Starts `build` of one engine in a process of its own."""
    started: list[subprocess.Popen[str]] = []

    def start(spec: EngineSpec) -> subprocess.Popen[str]:
        code = (
            "import sys, pathlib\n"
            "from infra.local.engines.building import build\n"
            "from infra.local.engines.catalogue import EngineSpec\n"
            "from infra.local.engines.progress import NoProgress\n"
            f"build([EngineSpec({spec.name!r}, '', '1.0.0', pathlib.Path({str(spec.module)!r}), {spec.package!r},"
            " '-s -w', seconds=10, megabytes=1)], NoProgress())\n"
        )
        environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])}
        process = subprocess.Popen(
            [sys.executable, "-c", code], env=environment, text=True, stderr=subprocess.PIPE, cwd=tmp_path
        )
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


def test_a_build_is_installed_under_its_key_and_told_about(tmp_path: Path, spec: EngineSpec) -> None:
    progress = Recorded()
    build([spec], progress)
    found = cache.find_build(spec)
    assert found
    assert found.folder.name == f"{cache.source_key(spec)}-{cache.this_platform()}-go1.26.8"
    assert os.access(found.binary, os.X_OK)
    assert progress.events == [("started", "alpha"), ("alpha", "."), ("finished", "alpha")]
    assert left_behind() == []


def test_what_is_built_is_not_built_again(tmp_path: Path, spec: EngineSpec) -> None:
    build([spec], Recorded())
    progress = Recorded()
    build([spec], progress)
    assert progress.events == []
    assert len(builds(tmp_path)) == 1


def test_another_lock_is_another_build(tmp_path: Path, spec: EngineSpec) -> None:
    build([spec], Recorded())
    (spec.module / "go.sum").write_text("other sums\n")
    assert cache.find_build(spec) is None
    build([spec], Recorded())
    assert len(builds(tmp_path)) == 2


def test_tests_and_other_files_do_not_change_the_key(spec: EngineSpec) -> None:
    before = cache.source_key(spec)
    (spec.module / "main_test.go").write_text("package main")
    (spec.module / "README.md").write_text("words")
    assert cache.source_key(spec) == before
    (spec.module / "internal").mkdir()
    (spec.module / "internal" / "more.go").write_text("package internal")
    assert cache.source_key(spec) != before


def test_the_build_is_reproducible_and_takes_nothing_of_the_users_settings(
    tmp_path: Path, spec: EngineSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {"GOFLAGS": "-mod=mod -race", "GOOS": "plan9", "CGO_ENABLED": "1", "GOPROXY": "mirror"}.items():
        monkeypatch.setenv(name, value)
    build([spec], Recorded())
    environment = dict(line.split("=", 1) for line in (tmp_path / "environment").read_text().splitlines())
    assert environment["GOFLAGS"] == "-trimpath -buildvcs=false -mod=readonly"
    assert environment["CGO_ENABLED"] == "0"
    assert environment["GOTOOLCHAIN"] == "local"
    assert "GOOS" not in environment
    assert environment["GOPROXY"] == "mirror"  # where modules come from is the user's own affair


def test_programs_of_one_module_are_built_by_one_command(tmp_path: Path) -> None:
    one, two = (module(tmp_path, name, f"x.io/cmd/{name}", folder="shared", tags="t") for name in ("one", "two"))
    build([one, two], Recorded())
    (command,) = builds(tmp_path)
    assert command.endswith("-tags t -ldflags -s -w x.io/cmd/one x.io/cmd/two")
    assert cache.find_build(one)
    assert cache.find_build(two)


def test_the_longest_build_comes_first_and_kubernetes_is_one() -> None:
    plan = batches(list(CATALOGUE.values()))
    assert [batch.name for batch in plan] == [
        "pulumi-resource-kubernetes",
        "kubernetes",
        "pulumi",
        "prometheus",
        "kwok",
        "etcd",
        "process-runtime",
    ]
    assert {spec.name for spec in plan[1].specs} == {
        "kube-apiserver",
        "kube-controller-manager",
        "kube-scheduler",
        "kubelet",
        "kubectl",
    }


@pytest.mark.parametrize(("slots", "most"), [(1, 1), (2, 2)])
def test_no_more_builds_run_at_once_than_there_are_slots(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, slots: int, most: int
) -> None:
    monkeypatch.setattr(building, "_slots", lambda: slots)
    monkeypatch.setenv("FAKE_GO_MODE", "pause")
    progress = Recorded()
    build([module(tmp_path, name) for name in ("a", "b", "c")], progress)
    running = seen = 0
    for kind, _ in progress.events:
        running += {"started": 1, "finished": -1}.get(kind, 0)
        seen = max(seen, running)
    assert seen == most


def test_a_failed_build_shows_the_end_of_its_log_and_names_it(
    spec: EngineSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE_GO_MODE", "fail")
    with pytest.raises(engines.EngineError) as caught:
        build([spec], Recorded())
    text = str(caught.value)
    log = cache.engines_directory() / "logs" / "alpha.log"
    assert text.startswith(f"building alpha failed; the end of {log}:")
    assert "undefined: x" in text
    assert "line 30" in text
    assert "line 5\n" not in text
    assert "line 5\n" in log.read_text()
    assert cache.find_build(spec) is None
    assert left_behind() == []


@pytest.mark.parametrize(
    ("says", "remedy"),
    [
        ("write /tmp/x: no space left on device", "The disk is full"),
        ("mv: file too large", "The disk is full or a limit"),
        ("compile: signal: killed", "want of memory"),
        ("dial tcp: lookup mirror: no such host", "GOPROXY=/its/GOPROXY"),
    ],
)
def test_usual_causes_of_a_failed_build_are_named(
    spec: EngineSpec, monkeypatch: pytest.MonkeyPatch, says: str, remedy: str
) -> None:
    monkeypatch.setenv("FAKE_GO_MODE", "fail")
    monkeypatch.setenv("FAKE_GO_SAYS", says)
    with pytest.raises(engines.EngineError, match=remedy):
        build([spec], Recorded())


def test_one_failure_ends_the_other_builds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(building, "_slots", lambda: 2)
    monkeypatch.setenv("FAKE_GO_MODE", "one-fails")
    with pytest.raises(engines.EngineError, match="building broken failed"):
        build([module(tmp_path, "slow"), module(tmp_path, "broken")], Recorded())
    compiler = int((tmp_path / "compiler").read_text())
    wait_for(lambda: not is_alive(compiler))  # told to end; the kernel does it when it comes to it
    assert left_behind() == []


def test_ctrl_c_ends_go_and_its_compilers_and_the_next_run_goes_on(
    tmp_path: Path, spec: EngineSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE_GO_MODE", "slow-once")

    def interrupt() -> None:
        wait_for(lambda: (tmp_path / "compiler").exists() and (tmp_path / "compiler").read_text())
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        build([spec], Recorded(on_log=interrupt))
    compiler = int((tmp_path / "compiler").read_text())
    wait_for(lambda: not is_alive(compiler))
    assert left_behind() == []
    build([spec], Recorded())
    assert cache.find_build(spec)


def test_a_killed_build_leaves_nothing_installed_and_the_next_cleans_up(
    tmp_path: Path,
    spec: EngineSpec,
    monkeypatch: pytest.MonkeyPatch,
    in_another_process: Callable[[EngineSpec], subprocess.Popen[str]],
) -> None:
    monkeypatch.setenv("FAKE_GO_MODE", "slow-once")
    killed = in_another_process(spec)
    wait_for(lambda: (tmp_path / "compiler").exists() and (tmp_path / "compiler").read_text())
    fake_go = int((tmp_path / "builds").read_text().split()[0])
    killed.kill()
    killed.wait()
    wait_for(lambda: not is_alive(fake_go))  # the kernel interrupts it: no orphan goes on compiling
    assert cache.find_build(spec) is None
    assert any(name.startswith(".staging-") for name in left_behind())
    build([spec], Recorded())
    assert cache.find_build(spec)
    assert left_behind() == []


def test_the_files_of_another_living_process_are_left_alone(spec: EngineSpec) -> None:
    with cache.staging_folder() as unpacking:
        build([spec], Recorded())
        assert unpacking.exists()
    assert left_behind() == []


def test_two_at_once_build_once_and_the_second_says_whom_it_waits_for(
    tmp_path: Path,
    spec: EngineSpec,
    monkeypatch: pytest.MonkeyPatch,
    in_another_process: Callable[[EngineSpec], subprocess.Popen[str]],
) -> None:
    monkeypatch.setenv("FAKE_GO_MODE", "held")
    first = in_another_process(spec)
    wait_for(lambda: builds(tmp_path))
    progress = Recorded(on_note=(tmp_path / "go on").touch)  # the first builds until the second has said its word
    build([spec], progress)
    assert first.wait(120) == 0
    assert progress.events == [
        ("note", f"another process ({first.pid}) is building engines; waiting for it"),
    ]
    assert len(builds(tmp_path)) == 1


def test_many_threads_at_once_build_once(tmp_path: Path, spec: EngineSpec) -> None:
    threads = [threading.Thread(target=build, args=([spec], Recorded())) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert len(builds(tmp_path)) == 1
    assert cache.find_build(spec)


def test_without_go_the_ways_out_are_named(go: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(go.parent / "elsewhere"))
    with pytest.raises(engines.EngineError) as caught:
        engines.ensure(["etcd", "kubelet"])
    text = str(caught.value)
    assert text.startswith(
        "etcd, kubelet must be built first, and that needs Go 1.26 or newer; there is no go on PATH."
    )
    for way in ("Install", "on PATH", "trainyard engines unpack", "kubeconfig"):
        assert way in text


def test_a_go_that_is_too_old_is_named_with_its_version(go: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_GO_VERSION", "go1.21.13")
    with pytest.raises(engines.EngineError, match=rf"{go} is go1\.21\.13\. Install a newer one"):
        engines.ensure(["etcd"])


def test_go_is_not_asked_for_when_nothing_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    engines.ensure(["etcd"])
    monkeypatch.setenv("PATH", "/nowhere")
    assert engines.ensure(["etcd"])["etcd"].origin == "cache"


def test_a_file_in_place_of_the_cache_folder_is_a_plain_error(tmp_path: Path, spec: EngineSpec) -> None:
    (tmp_path / "cache").write_text("")
    with pytest.raises(engines.EngineError, match=r"the engine cache .*cannot be written: .*TRAINYARD_CACHE_DIR"):
        build([spec], Recorded())


@contextlib.contextmanager
def ordinary_user() -> Iterator[None]:
    """Root may write into read-only folders, so it becomes somebody else for a while."""
    before = os.geteuid()
    if before == 0:
        os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(before)


def test_a_read_only_cache_folder_is_a_plain_error(go: Path, spec: EngineSpec, monkeypatch: pytest.MonkeyPatch) -> None:
    with tempfile.TemporaryDirectory() as folder:  # tmp_path is closed to other users
        shutil.copy(go, folder)
        Path(folder, "cache").mkdir()
        for name in (folder, f"{folder}/cache"):
            Path(name).chmod(0o555)
        monkeypatch.setenv("PATH", folder)
        monkeypatch.setenv("TRAINYARD_CACHE_DIR", f"{folder}/cache")
        with (
            ordinary_user(),
            pytest.raises(engines.EngineError, match=r"the engine cache .*cannot be written: Permission denied"),
        ):
            build([spec], Recorded())
        Path(folder).chmod(0o755)


def test_a_disk_with_too_little_space_is_told_before_building(tmp_path: Path, spec: EngineSpec) -> None:
    with pytest.raises(engines.EngineError, match=r"has \d+ MB free, and building alpha takes 1500000000 MB there"):
        build([replace(spec, megabytes=10**9)], Recorded())
    assert builds(tmp_path) == []


def test_a_cache_that_fills_up_while_installing_is_a_plain_error(
    spec: EngineSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(self: Path, target: Path) -> Path:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "rename", full)
    with pytest.raises(engines.EngineError, match="No space left on device"):
        build([spec], Recorded())
    monkeypatch.undo()


def test_a_limit_on_file_sizes_is_a_plain_error(
    tmp_path: Path, spec: EngineSpec, in_another_process: Callable[[EngineSpec], subprocess.Popen[str]]
) -> None:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, before[1]))
    try:
        limited = in_another_process(spec)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    _, said = limited.communicate(timeout=120)
    assert limited.returncode == 1
    assert "EngineError: the engine cache" in said
    assert "File too large" in said


def test_a_long_build_is_announced_with_what_it_takes(spec: EngineSpec) -> None:
    progress = Recorded()
    build([replace(spec, seconds=600)], progress)
    assert progress.events[0][0] == "note"
    assert "about 10 min on two cores" in progress.events[0][1]


def test_a_module_that_is_not_there_is_a_plain_error(tmp_path: Path, spec: EngineSpec) -> None:
    with pytest.raises(engines.EngineError, match=r"alpha cannot be built: its Go module .*gone is not there"):
        build([replace(spec, module=tmp_path / "gone")], Recorded())


def test_what_of_a_batch_is_there_already_is_left_out(tmp_path: Path) -> None:
    one, two = (module(tmp_path, name, f"x.io/cmd/{name}", folder="shared") for name in ("one", "two"))
    build([one], Recorded())
    build([one, two], Recorded())
    assert builds(tmp_path)[1].endswith("x.io/cmd/two")
    assert "x.io/cmd/one" not in builds(tmp_path)[1]


def test_a_folder_that_somebody_emptied_is_filled_again(spec: EngineSpec) -> None:
    build([spec], Recorded())
    found = cache.find_build(spec)
    assert found
    found.binary.unlink()
    build([spec], Recorded())
    assert cache.find_build(spec)


def test_prune_removes_what_this_checkout_does_not_use(monkeypatch: pytest.MonkeyPatch) -> None:
    engines.ensure(["etcd"])
    kept = cache.find_build(CATALOGUE["etcd"])
    assert kept
    old = kept.folder.with_name(f"{'0' * 16}-{cache.this_platform()}-go1.26.8")
    old.mkdir()
    (old / "etcd").write_text("old")
    (old / "etcd").chmod(0o755)
    older_go = kept.folder.with_name(kept.folder.name.replace("go1.26.8", "go1.26.1"))
    shutil.copytree(kept.folder, older_go)
    assert {build.folder for build, _ in cache.prune()} == {old, older_go}
    assert not old.exists()
    assert kept.binary.exists()
    assert cache.prune() == []


def test_prune_keeps_what_is_running() -> None:
    engines.ensure(["etcd"])
    kept = cache.find_build(CATALOGUE["etcd"])
    assert kept
    old = kept.folder.with_name(f"{'0' * 16}-{cache.this_platform()}-go1.26.8")
    old.mkdir()
    shutil.copy("/bin/sleep", old / "etcd")
    with subprocess.Popen([str(old / "etcd"), "60"]) as process:
        assert cache.prune() == []
        process.kill()
    assert len(cache.prune()) == 1


def test_signals_are_left_as_they_were() -> None:
    before = signal.getsignal(signal.SIGINT)
    engines.ensure(["etcd"])
    assert signal.getsignal(signal.SIGINT) is before
