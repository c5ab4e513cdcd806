"""Packing and unpacking: what one computer built serves another, and nothing else gets in."""

import gzip
import io
import json
import shutil
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from infra.local import engines
from infra.local.engines import archive, cache
from infra.local.engines.catalogue import CATALOGUE


@pytest.fixture(autouse=True)
def _nothing_of_the_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("PULUMI_HOME", str(tmp_path / "pulumi-home"))
    monkeypatch.setenv("PATH", "/usr/bin:/bin")


@pytest.fixture
def move_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Goes to another computer: another cache."""

    def move(name: str) -> None:
        monkeypatch.setenv("TRAINYARD_CACHE_DIR", str(tmp_path / name))

    move("first")
    return move


def built(name: str, content: str = "binary") -> Path:
    spec = CATALOGUE[name]
    folder = cache.engines_directory() / name / f"{cache.source_key(spec)}-{cache.this_platform()}-go1.26.8"
    folder.mkdir(parents=True)
    (folder / name).write_text(f"#!/bin/sh\n# {content} {name}\n")
    (folder / name).chmod(0o755)
    return folder / name


def repacked(file: Path, change: Callable[[dict[str, Any], dict[str, bytes]], None]) -> Path:
    """An archive whose manifest and members were changed."""
    with tarfile.open(file) as original:
        members = {m.name: original.extractfile(m).read() for m in original}  # type: ignore[union-attr]
    manifest = json.loads(members.pop(archive.MANIFEST))
    change(manifest, members)
    changed = file.with_name("changed.tar.gz")
    with tarfile.open(changed, "w:gz") as target:
        for name, content in {archive.MANIFEST: json.dumps(manifest).encode(), **members}.items():
            about = tarfile.TarInfo(name)
            about.size = len(content)
            target.addfile(about, io.BytesIO(content))
    return changed


@pytest.fixture
def packed(tmp_path: Path, move_to: Callable[[str], None]) -> Path:
    """An archive with etcd and kubelet, seen from another computer."""
    built("etcd")
    built("kubelet")
    assert archive.pack(tmp_path / "engines.tar.gz") == ["etcd", "kubelet"]
    move_to("second")
    return tmp_path / "engines.tar.gz"


def nothing_was_installed() -> bool:
    return [path.name for path in cache.engines_directory().glob("*")] == []


@pytest.mark.parametrize("ending", ["tar.gz", "tar.zst"])
def test_what_one_computer_packs_serves_another(tmp_path: Path, move_to: Callable[[str], None], ending: str) -> None:
    if ending == "tar.zst" and not shutil.which("zstd"):
        with pytest.raises(engines.EngineError, match=r"Install zstd, or use a name that ends in \.tar\.gz"):
            archive.pack(tmp_path / "engines.tar.zst")
        return
    original = built("etcd")
    archive.pack(tmp_path / f"engines.{ending}")
    move_to("second")
    assert engines.locate("etcd") is None
    outcome = archive.unpack(tmp_path / f"engines.{ending}")
    assert (outcome.taken, outcome.left_out) == (["etcd"], {})
    found = engines.locate("etcd")
    assert found
    assert found.path.read_bytes() == original.read_bytes()
    assert found.path.parent.name == original.parent.name
    assert archive.unpack(tmp_path / f"engines.{ending}").taken == ["etcd"]  # again: no harm


def test_only_built_engines_are_packed_and_none_is_a_plain_error(
    tmp_path: Path, move_to: Callable[[str], None]
) -> None:
    with pytest.raises(engines.EngineError, match=r"no built engines .*trainyard engines build"):
        archive.pack(tmp_path / "engines.tar.gz")
    assert not (tmp_path / "engines.tar.gz").exists()


def test_an_unknown_ending_is_a_plain_error(tmp_path: Path, move_to: Callable[[str], None]) -> None:
    with pytest.raises(engines.EngineError, match=r"must end in \.tar\.gz or \.tar\.zst"):
        archive.pack(tmp_path / "engines.zip")


def test_an_archive_that_cannot_be_written_is_a_plain_error(tmp_path: Path, move_to: Callable[[str], None]) -> None:
    built("etcd")
    with pytest.raises(engines.EngineError, match="cannot be written: No such file"):
        archive.pack(tmp_path / "nowhere" / "engines.tar.gz")


def test_engines_of_other_locks_are_left_out_with_both_keys(packed: Path) -> None:
    def other_lock(manifest: dict[str, Any], _: dict[str, bytes]) -> None:
        manifest["engines"][0]["source_key"] = "0" * 16

    outcome = archive.unpack(repacked(packed, other_lock))
    assert outcome.taken == ["kubelet"]
    assert "other sources or locks (0000000000000000)" in outcome.left_out["etcd"]
    assert engines.locate("etcd") is None


def test_an_archive_of_which_nothing_fits_says_why(packed: Path) -> None:
    def other_locks(manifest: dict[str, Any], _: dict[str, bytes]) -> None:
        for engine in manifest["engines"]:
            engine["source_key"] = "0" * 16

    with pytest.raises(engines.EngineError, match=r"nothing in .* fits this checkout:\n  etcd: .*\n  kubelet"):
        archive.unpack(repacked(packed, other_locks))
    assert nothing_was_installed()


def test_an_archive_for_another_platform_says_so(packed: Path) -> None:
    def other_platform(manifest: dict[str, Any], _: dict[str, bytes]) -> None:
        manifest["platform"] = "linux-riscv64"

    with pytest.raises(engines.EngineError, match=r"holds engines for linux-riscv64; this computer is linux-"):
        archive.unpack(repacked(packed, other_platform))


def test_a_changed_binary_is_refused_and_nothing_of_the_archive_installed(packed: Path) -> None:
    def change(_: dict[str, Any], members: dict[str, bytes]) -> None:
        members["kubelet"] = members["kubelet"].replace(b"binary", b"wicked")

    with pytest.raises(engines.EngineError, match="the checksum of kubelet is wrong"):
        archive.unpack(repacked(packed, change))
    assert nothing_was_installed()


@pytest.mark.parametrize("name", ["../../escaped", "/tmp/escaped", "sub/etcd"])  # noqa: S108 - refused, never written
def test_a_member_with_a_path_is_refused(packed: Path, tmp_path: Path, name: str) -> None:
    def add(_: dict[str, Any], members: dict[str, bytes]) -> None:
        members[name] = b"wicked"

    with pytest.raises(engines.EngineError, match="is not what the manifest says"):
        archive.unpack(repacked(packed, add))
    assert nothing_was_installed()
    assert not list(tmp_path.rglob("escaped"))


def test_a_manifest_cannot_declare_a_path_either(packed: Path, tmp_path: Path) -> None:
    def declare(manifest: dict[str, Any], members: dict[str, bytes]) -> None:
        manifest["engines"][0]["name"] = "../etcd"
        members["../etcd"] = members.pop("etcd")

    outcome = archive.unpack(repacked(packed, declare))
    assert outcome.taken == ["kubelet"]
    assert outcome.left_out == {"../etcd": "this checkout has no such engine"}


@pytest.mark.parametrize(("field", "value"), [("go", "../../go1.26"), ("source_key", "../x"), ("go", None)])
def test_a_manifest_with_strange_values_is_refused(packed: Path, field: str, value: str | None) -> None:
    def declare(manifest: dict[str, Any], _: dict[str, bytes]) -> None:
        manifest["engines"][0][field] = value

    with pytest.raises(engines.EngineError, match="is no archive of engines"):
        archive.unpack(repacked(packed, declare))
    assert nothing_was_installed()


def test_a_link_in_place_of_a_binary_is_refused(packed: Path) -> None:
    with tarfile.open(packed) as original:
        manifest = original.extractfile(archive.MANIFEST).read()  # type: ignore[union-attr]
    with tarfile.open(packed, "w:gz") as target:
        about = tarfile.TarInfo(archive.MANIFEST)
        about.size = len(manifest)
        target.addfile(about, io.BytesIO(manifest))
        link = tarfile.TarInfo("etcd")
        link.type, link.linkname = tarfile.SYMTYPE, "/bin/sh"
        target.addfile(link)
    with pytest.raises(engines.EngineError, match="is not what the manifest says"):
        archive.unpack(packed)
    assert nothing_was_installed()


def test_a_member_that_is_missing_is_a_plain_error(packed: Path) -> None:
    def remove(_: dict[str, Any], members: dict[str, bytes]) -> None:
        del members["etcd"]

    with pytest.raises(engines.EngineError, match="is cut short: etcd missing"):
        archive.unpack(repacked(packed, remove))
    assert nothing_was_installed()


@pytest.mark.parametrize("keep", [0, 3, 60, 200])
def test_an_archive_that_was_cut_is_a_plain_error(packed: Path, keep: int) -> None:
    packed.write_bytes(packed.read_bytes()[:keep])
    with pytest.raises(engines.EngineError, match=r"is no archive of engines|cannot be read"):
        archive.unpack(packed)
    assert nothing_was_installed()


def test_other_files_are_no_archives(tmp_path: Path, move_to: Callable[[str], None]) -> None:
    file = tmp_path / "engines.tar.gz"
    for content in (b"just text", gzip.compress(b"just text"), gzip.compress(b"\0" * 10240)):
        file.write_bytes(content)
        with pytest.raises(engines.EngineError, match=r"is no archive of engines|cannot be read"):
            archive.unpack(file)
    with pytest.raises(engines.EngineError, match="cannot be read: No such file"):
        archive.unpack(tmp_path / "nothing.tar.gz")


def test_the_key_for_ci_changes_with_the_locks_but_not_with_our_own_sources(monkeypatch: pytest.MonkeyPatch) -> None:
    before = archive.ci_key()
    assert before.startswith(f"trainyard-engines-{cache.this_platform()}-")
    original = cache.source_key
    monkeypatch.setattr(cache, "source_key", lambda spec: "new" if spec.is_own else original(spec))
    assert archive.ci_key() == before
    monkeypatch.setattr(cache, "source_key", lambda spec: "new" if spec.name == "etcd" else original(spec))
    assert archive.ci_key() != before
