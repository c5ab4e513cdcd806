"""Which engine serves: PATH where the version fits, the user's plugin, the cache."""

import json
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from infra.local import engines
from infra.local.engines import cache
from infra.local.engines.catalogue import CATALOGUE, VersionRange
from infra.local.engines.discovery import search
from infra.local.engines.doctor import doctor_rows


@pytest.fixture(autouse=True)
def _nothing_of_the_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRAINYARD_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("PULUMI_HOME", str(tmp_path / "pulumi-home"))
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("PATH", f"{tmp_path / 'first'}:{tmp_path / 'second'}")


def program(file: Path, says: str, code: int = 0) -> Path:
    """A program that prints something and notes each of its runs beside itself."""
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(f"#!/bin/sh\n[ -z \"$0\" ] || echo run >>'{file}.runs'\necho '{says}'\nexit {code}\n")
    file.chmod(0o755)
    return file


def cached(name: str, go: str = "go1.26.8") -> Path:
    folder = cache.engines_directory() / name / f"{cache.source_key(CATALOGUE[name])}-{cache.this_platform()}-{go}"
    return program(folder / name, "built")


@pytest.mark.parametrize(
    ("name", "says", "version"),
    [
        ("etcd", "etcd Version: 3.6.1\nGit SHA: x", "3.6.1"),
        ("kube-apiserver", "Kubernetes v1.36.0", "1.36.0"),
        ("kubelet", "Kubernetes v1.36.9-eks-1", "1.36.9"),
        ("kubectl", "Client Version: v1.35.2\nKustomize Version: v5.5.0", "1.35.2"),
    ],
)
def test_a_fitting_program_on_path_serves(tmp_path: Path, name: str, says: str, version: str) -> None:
    there = program(tmp_path / "first" / name, says)
    assert engines.locate(name) == engines.Engine(name, there, version, "PATH")


@pytest.mark.parametrize(
    ("name", "says", "why"),
    [
        ("etcd", "etcd Version: 3.4.23", "version 3.4.23, wanted >= 3.6 and < 4"),
        ("kube-scheduler", "Kubernetes v1.35.9", "version 1.35.9, wanted >= 1.36 and < 1.37"),
        ("kubectl", "Client Version: v1.32.4-dispatcher", "version 1.32.4"),
        ("kubectl", "who knows", "does not tell its version"),
    ],
)
def test_a_program_that_does_not_fit_is_passed_over_with_the_reason(
    tmp_path: Path, name: str, says: str, why: str
) -> None:
    there = program(tmp_path / "first" / name, says)
    found = search(name)
    assert found.engine is None
    assert found.passed_over[0].startswith(f"{there}: ")
    assert why in found.passed_over[0]


def test_a_later_fitting_program_on_path_is_taken(tmp_path: Path) -> None:
    program(tmp_path / "first" / "etcd", "etcd Version: 3.4.23")
    program(tmp_path / "second" / "etcd", "etcd Version: 3.6.7")
    found = engines.locate("etcd")
    assert found
    assert found.version == "3.6.7"


def test_a_program_that_fails_does_not_serve(tmp_path: Path) -> None:
    program(tmp_path / "first" / "etcd", "etcd Version: 3.6.1", code=1)
    assert engines.locate("etcd") is None


def test_a_program_is_asked_for_its_version_once_until_its_file_changes(tmp_path: Path) -> None:
    there = program(tmp_path / "first" / "etcd", "etcd Version: 3.6.1")
    for _ in range(3):
        engines.locate("etcd")
    assert Path(f"{there}.runs").read_text().count("run") == 1
    program(there, "etcd Version: 3.6.10")
    found = engines.locate("etcd")
    assert found
    assert found.version == "3.6.10"


@pytest.mark.parametrize("content", ["", "{", "[]", '{"PROGRAM": 3}', '{"PROGRAM": {}}'])
def test_a_damaged_memory_of_versions_is_no_obstacle(tmp_path: Path, content: str) -> None:
    there = program(tmp_path / "first" / "etcd", "etcd Version: 3.6.1")
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache" / "versions.json").write_text(content.replace("PROGRAM", str(there)))
    assert engines.locate("etcd")


def test_a_cache_that_cannot_be_written_does_not_hinder_finding(tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("a file where a folder should be")
    program(tmp_path / "first" / "etcd", "etcd Version: 3.6.1")
    assert engines.locate("etcd")
    assert engines.locate("kubelet") is None


def test_pulumi_on_path_needs_its_own_language_host(tmp_path: Path) -> None:
    there = program(tmp_path / "first" / "pulumi", "v3.280.0")
    assert engines.locate("pulumi") is None
    assert "pulumi-language-python" in search("pulumi").passed_over[0]
    host = program(tmp_path / "first" / "pulumi-language-python", "")
    found = engines.ensure(["pulumi", "pulumi-language-python"])
    assert found["pulumi"].path == there
    assert found["pulumi-language-python"].path == host


def test_a_released_pulumi_keeps_its_own_host_also_through_a_link(tmp_path: Path) -> None:
    program(tmp_path / "release" / "pulumi", "v3.280.0")
    host = program(tmp_path / "release" / "pulumi-language-python", "")
    (tmp_path / "first").mkdir()
    (tmp_path / "first" / "pulumi").symlink_to(tmp_path / "release" / "pulumi")
    found = engines.locate("pulumi-language-python")
    assert found
    assert found.path == host


def test_a_plugin_of_the_right_version_in_the_users_pulumi_home_serves(tmp_path: Path) -> None:
    plugins = tmp_path / "pulumi-home" / "plugins"
    program(plugins / "resource-kubernetes-v4.24.0" / "pulumi-resource-kubernetes", "")
    assert engines.locate("pulumi-resource-kubernetes") is None
    there = program(plugins / "resource-kubernetes-v4.25.0" / "pulumi-resource-kubernetes", "")
    assert engines.locate("pulumi-resource-kubernetes") == engines.Engine(
        "pulumi-resource-kubernetes", there, "4.25.0", "plugin"
    )


def test_a_plugin_whose_installation_was_cut_does_not_serve(tmp_path: Path) -> None:
    plugins = tmp_path / "pulumi-home" / "plugins"
    program(plugins / "resource-kubernetes-v4.25.0" / "pulumi-resource-kubernetes", "")
    (plugins / "resource-kubernetes-v4.25.0.partial").touch()
    assert engines.locate("pulumi-resource-kubernetes") is None


def test_a_link_to_our_own_build_in_a_pulumi_home_is_no_find(tmp_path: Path) -> None:
    built = cached("pulumi-resource-kubernetes")
    link = tmp_path / "pulumi-home/plugins/resource-kubernetes-v4.25.0/pulumi-resource-kubernetes"
    link.parent.mkdir(parents=True)
    link.symlink_to(built)
    found = engines.locate("pulumi-resource-kubernetes")
    assert found
    assert (found.path, found.origin) == (built, "cache")


def test_the_cache_serves_what_path_does_not(tmp_path: Path) -> None:
    program(tmp_path / "first" / "etcd", "etcd Version: 3.4.23")
    built = cached("etcd")
    assert engines.locate("etcd") == engines.Engine("etcd", built, "3.7.3", "cache")


def test_a_build_of_the_same_sources_by_another_go_serves_and_the_newest_wins() -> None:
    cached("etcd", "go1.26.8")
    newest = cached("etcd", "go1.26.11")
    found = engines.locate("etcd")
    assert found
    assert found.path == newest


def test_our_own_build_on_path_is_not_taken_for_the_users(monkeypatch: pytest.MonkeyPatch) -> None:
    built = cached("etcd")
    built.write_text("#!/bin/sh\necho 'etcd Version: 3.7.3'\n")
    monkeypatch.setenv("PATH", str(built.parent))
    found = engines.locate("etcd")
    assert found
    assert found.origin == "cache"


def test_a_built_pulumi_has_the_projects_host_beside_it() -> None:
    built = cached("pulumi")
    found = engines.ensure(["pulumi", "pulumi-language-python"])
    pulumi, host = found["pulumi"].path, found["pulumi-language-python"].path
    assert pulumi.parent == host.parent
    assert pulumi.stat().st_ino == built.stat().st_ino  # one copy on the disk
    assert not pulumi.is_symlink()  # the engine would look beside the link's target
    assert host.read_text().splitlines()[0] == f"#!{sys.executable} -P"
    assert host.stat().st_mode & stat.S_IXUSR


def test_each_python_gets_its_own_host(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    cached("pulumi")
    first = engines.locate("pulumi")
    monkeypatch.setattr(sys, "executable", str(tmp_path / "another" / "python"))
    second = engines.locate("pulumi")
    assert first
    assert second
    assert first.path != second.path


def test_a_host_starts_in_an_interpreter_whose_path_has_spaces(tmp_path: Path) -> None:
    folder = tmp_path / "it's a folder"
    folder.mkdir()
    (folder / "python").symlink_to(sys.executable)
    script = tmp_path / "script"
    script.write_text(cache.interpreter_line(str(folder / "python")) + "import sys\nprint(sys.flags.safe_path)\n")
    script.chmod(0o755)
    answer = subprocess.run([str(script)], capture_output=True, text=True, check=True, env={"PATH": "/usr/bin:/bin"})
    assert answer.stdout == "True\n"


def test_locating_every_engine_starts_no_process(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in CATALOGUE:
        if name != "process-runtime":
            cached(name)
    monkeypatch.setattr(subprocess, "run", None)
    monkeypatch.setattr(subprocess, "Popen", None)
    assert all(engines.locate(name) for name in engines.EVERY_ENGINE if name != "process-runtime")


def test_doctor_says_where_from_and_what_to_install(tmp_path: Path) -> None:
    program(tmp_path / "first" / "kubectl", "Client Version: v1.36.1")
    program(tmp_path / "first" / "etcd", "etcd Version: 3.4.23")
    cached("kubelet")
    rows = {row.name: row for row in doctor_rows()}
    assert set(rows) == set(engines.EVERY_ENGINE)
    assert (rows["kubectl"].origin, rows["kubectl"].remedy) == ("PATH", "")
    assert (rows["kubelet"].origin, rows["kubelet"].build_seconds) == ("cache", 0)
    assert "kubelet 1.36 on PATH" in rows["kubelet"].remedy
    etcd = rows["etcd"]
    assert (etcd.origin, etcd.version) == ("missing", "3.7.3")
    assert "3.6 or newer" in etcd.remedy
    assert "3.4.23" in etcd.passed_over[0]
    assert etcd.build_seconds > 60
    json.dumps([row.document() for row in rows.values()])


@pytest.mark.parametrize(
    ("version", "fits"),
    [("3.6", True), ("v3.6.0", True), ("3.99.1-rc.1", True), ("4.0.0", False), ("3.5.9", False), ("three", False)],
)
def test_version_ranges_are_half_open(version: str, fits: bool) -> None:
    assert VersionRange((3, 6), (4,)).fits(version) is fits


def test_every_locked_module_is_there_with_its_checksums() -> None:
    for spec in CATALOGUE.values():
        if not spec.is_own:
            assert (spec.module / "go.mod").exists(), spec.name
            assert (spec.module / "go.sum").exists(), spec.name


def test_no_name_of_an_engine_can_be_missing_from_the_locks() -> None:
    locks = "".join((spec.module / "go.mod").read_text() for spec in CATALOGUE.values() if not spec.is_own)
    for version in ("v1.36.3", "v3.7.3", "v3.274.1"):
        assert version in locks


def test_path_entries_that_are_empty_or_unreadable_are_passed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", f"{os.pathsep}/proc/1/nothing{os.pathsep}/nowhere")
    assert engines.locate("etcd") is None
