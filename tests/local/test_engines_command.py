"""`trainyard engines` as a user at a shell sees it."""

import io
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from rich.console import Console

from infra.cli.engines import PLAIN_LINE_SECONDS, PlainProgress, TableProgress
from infra.local.engines import EVERY_ENGINE, cache
from infra.local.engines.catalogue import CATALOGUE

RUN = "import sys; from infra.cli import main; sys.argv[0] = 'trainyard'; main()"
CHECKOUT = Path(__file__).parents[2]


def trainyard(tmp_path: Path, *arguments: str, path: str = "/usr/bin:/bin") -> subprocess.CompletedProcess[str]:
    environment = {
        "PATH": path,
        "HOME": str(tmp_path),
        "TRAINYARD_CACHE_DIR": str(tmp_path / "cache"),
        "PYTHONPATH": str(CHECKOUT),
        "COLUMNS": "200",
    }
    return subprocess.run(
        [sys.executable, "-c", RUN, "engines", *arguments],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
        cwd=tmp_path,
    )


@pytest.fixture
def built(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache with etcd in it."""
    monkeypatch.setenv("TRAINYARD_CACHE_DIR", str(tmp_path / "cache"))
    key = f"{cache.source_key(CATALOGUE['etcd'])}-{cache.this_platform()}-go1.26.8"
    file = tmp_path / "cache" / "engines" / "etcd" / key / "etcd"
    file.parent.mkdir(parents=True)
    file.write_text("#!/bin/sh\n")
    file.chmod(0o755)
    return file


def test_list_shows_every_engine_and_what_to_install(tmp_path: Path, built: Path) -> None:
    answer = trainyard(tmp_path, "list")
    assert answer.returncode == 0, answer.stderr
    for name in EVERY_ENGINE:
        assert name in answer.stdout
    assert "missing" in answer.stdout
    assert "put kubelet 1.36 on PATH" in answer.stdout


def test_list_as_json_is_one_document(tmp_path: Path, built: Path) -> None:
    answer = trainyard(tmp_path, "list", "--json")
    rows = {row["name"]: row for row in json.loads(answer.stdout)["engines"]}
    assert rows["etcd"]["origin"] == "cache"
    assert rows["etcd"]["path"] == str(built)
    assert rows["pulumi"]["origin"] == "missing"


def test_build_of_what_is_there_builds_nothing(tmp_path: Path, built: Path) -> None:
    answer = trainyard(tmp_path, "build", "etcd", "--json", path="/nowhere")
    assert answer.returncode == 0, answer.stderr
    document = json.loads(answer.stdout)
    assert document["engines"] == [{"name": "etcd", "version": "3.7.3", "from": "cache", "path": str(built)}]


def test_build_without_go_ends_with_plain_sentences_and_code_1(tmp_path: Path) -> None:
    answer = trainyard(tmp_path, "build", "etcd", path="/nowhere")
    assert answer.returncode == 1
    assert answer.stderr.startswith("trainyard: etcd must be built first")
    assert "Traceback" not in answer.stderr


def test_a_name_that_is_no_engine_is_a_usage_error_with_the_nearest(tmp_path: Path) -> None:
    answer = trainyard(tmp_path, "build", "kublet")
    assert answer.returncode == 2
    assert "did you mean kubelet?" in answer.stderr


def test_pack_and_unpack_and_prune_from_the_shell(tmp_path: Path, built: Path) -> None:
    assert trainyard(tmp_path, "pack", "e.tar.gz").returncode == 0
    old = built.parent.rename(built.parent.with_name(f"{'0' * 16}-{cache.this_platform()}-go1.26.8"))
    unpacked = trainyard(tmp_path, "unpack", "e.tar.gz", "--json")
    assert json.loads(unpacked.stdout) == {"engines": ["etcd"], "left_out": {}}
    assert built.exists()
    pruned = json.loads(trainyard(tmp_path, "prune", "--json").stdout)
    assert [entry["folder"] for entry in pruned["removed"]] == [str(old)]
    assert "nothing to remove" in trainyard(tmp_path, "prune").stderr


def test_key_is_one_line(tmp_path: Path) -> None:
    answer = trainyard(tmp_path, "key")
    assert answer.stdout.startswith("trainyard-engines-linux-")
    assert answer.stdout.count("\n") == 1
    assert json.loads(trainyard(tmp_path, "key", "--json").stdout)["key"] == answer.stdout.strip()


def test_a_log_gets_a_line_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    said = io.StringIO()
    now = 0.0
    monkeypatch.setattr("time.monotonic", lambda: now)
    progress = PlainProgress(Console(file=said, width=200))
    progress.started("etcd", 105)
    for second in range(2 * PLAIN_LINE_SECONDS + 1):
        now = float(second)
        progress.log("etcd", f"package [{second}]")
    progress.finished("etcd", 61)
    assert said.getvalue().splitlines() == [
        "building etcd (about 1 min 45 s on two cores when nothing is cached)",
        "building etcd: 30 s, package [30]",
        "building etcd: 1 min 00 s, package [60]",
        "built etcd in 1 min 01 s",
    ]


def test_a_terminal_gets_a_row_per_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr("time.monotonic", lambda: now)
    progress = TableProgress(Console(file=io.StringIO()))
    progress.started("etcd", 105)
    progress.started("kubelet", 9)
    progress.log("kubelet", "k8s.io/[api]")
    progress.finished("etcd", 61)
    now = 107.0
    said = io.StringIO()
    Console(file=said, width=120).print(progress.table())
    first, second = said.getvalue().splitlines()
    assert first.split() == ["✓", "etcd", "1", "min", "01", "s"]
    assert "kubelet" in second
    assert "7 s" in second
    assert "k8s.io/[api]" in second


@pytest.mark.engines
def test_the_real_engines_are_there_or_built_and_tell_their_versions() -> None:
    """Takes half an hour on two cores where nothing was built before; seconds afterwards."""
    command = [sys.executable, "-c", RUN, "engines", "build", "--json"]
    answer = subprocess.run(
        command, env=os.environ | {"PYTHONPATH": str(CHECKOUT)}, stdout=subprocess.PIPE, text=True, check=True
    )
    found = {engine["name"]: engine for engine in json.loads(answer.stdout)["engines"]}
    assert set(found) == set(EVERY_ENGINE)
    for name, spec in CATALOGUE.items():
        if spec.accepts:
            said = subprocess.run(
                [found[name]["path"], *spec.version_arguments], capture_output=True, text=True, check=True
            )
            assert found[name]["version"] in said.stdout
