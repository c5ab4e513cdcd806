"""A checkpoint is whole or absent, whatever happens while it is written, and only the newest world writes."""

import hashlib
import json
import logging
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from training.checkpoint import folder as module
from training.checkpoint.folder import (
    MANIFEST,
    STATE,
    CheckpointError,
    CheckpointFolder,
    StaleWriterError,
    Writer,
    verify,
)


def state(step: int) -> dict[str, Any]:
    return {"step": step, "model": {"weight": torch.full((3,), float(step))}, "seed": 7, "name": "digits"}


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_what_is_saved_is_what_is_loaded(tmp_path: Path) -> None:
    writer = Writer(run="job.ab12", generation=4)
    path = CheckpointFolder(tmp_path, writer=writer).save(12, state(12))

    newest = CheckpointFolder(tmp_path).newest()

    assert newest is not None
    assert (newest.step, newest.path, newest.writer) == (12, path, writer)
    loaded = newest.load()
    assert loaded["step"] == 12
    assert torch.equal(loaded["model"]["weight"], torch.full((3,), 12.0))


def test_an_empty_or_new_folder_has_no_checkpoint(tmp_path: Path) -> None:
    assert CheckpointFolder(tmp_path / "new" / "folder").newest() is None


def truncate(path: Path) -> None:
    (path / STATE).write_bytes((path / STATE).read_bytes()[:-5])


def flip_a_bit(path: Path) -> None:
    data = bytearray((path / STATE).read_bytes())
    data[len(data) // 2] ^= 1
    (path / STATE).write_bytes(data)


def lose_the_state(path: Path) -> None:
    (path / STATE).unlink()


def lose_the_manifest(path: Path) -> None:
    (path / MANIFEST).unlink()


def tear_the_manifest(path: Path) -> None:
    (path / MANIFEST).write_bytes((path / MANIFEST).read_bytes()[:40])


def edit_the_manifest(path: Path) -> None:
    manifest = json.loads((path / MANIFEST).read_text())
    manifest["files"] = []
    (path / MANIFEST).write_text(json.dumps(manifest))


def forget_the_state(path: Path) -> None:
    manifest = json.loads((path / MANIFEST).read_text())
    (path / MANIFEST).write_text(json.dumps({**manifest, "files": {}}))


@pytest.mark.parametrize(
    ("damage", "file"),
    [
        (forget_the_state, MANIFEST),
        (truncate, STATE),
        (flip_a_bit, STATE),
        (lose_the_state, STATE),
        (lose_the_manifest, MANIFEST),
        (tear_the_manifest, MANIFEST),
        (edit_the_manifest, MANIFEST),
    ],
)
def test_a_damaged_checkpoint_is_skipped_with_a_warning_that_names_the_file(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, damage: Any, file: str
) -> None:
    folder = CheckpointFolder(tmp_path)
    folder.save(10, state(10))
    damage(folder.save(20, state(20)))

    with caplog.at_level(logging.WARNING):
        newest = folder.newest()

    assert newest is not None
    assert newest.step == 10
    assert str(tmp_path / "step-000000020" / file) in caplog.text


SYSTEM_CALLS = ("mkdir", "_write_synced", "_write_synced", "_sync_folder", "rename", "_sync_folder")


@pytest.mark.parametrize("survived", range(len(SYSTEM_CALLS)))
def test_after_a_crash_at_any_point_the_newest_checkpoint_is_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, survived: int
) -> None:
    """The save is cut off before each of its effects in turn, as a power cut would; nothing is tidied up after it."""
    CheckpointFolder(tmp_path).save(10, state(10))
    remaining = survived

    class PowerCut(BaseException):
        pass

    def cut(function: Any) -> Any:
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            nonlocal remaining
            remaining -= 1
            if remaining < 0:
                raise PowerCut
            return function(*args, **kwargs)

        return wrapper

    monkeypatch.setattr(shutil, "rmtree", lambda *_, **__: None)
    monkeypatch.setattr(module, "_write_synced", cut(module._write_synced))
    monkeypatch.setattr(module, "_sync_folder", cut(module._sync_folder))
    monkeypatch.setattr(Path, "rename", cut(Path.rename))
    folder = CheckpointFolder(tmp_path)
    monkeypatch.setattr(Path, "mkdir", cut(Path.mkdir))
    with pytest.raises(PowerCut):
        folder.save(20, state(20))
    monkeypatch.undo()

    newest = CheckpointFolder(tmp_path).newest()
    assert newest is not None
    assert newest.step == (20 if SYSTEM_CALLS[:survived].count("rename") else 10)
    assert newest.load()["step"] == newest.step
    # The next world sweeps what was left half-written, and saves the same step again.
    heir = CheckpointFolder(tmp_path, writer=Writer(run="r", generation=1))
    heir.claim()
    heir.save(20, state(20))
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".saving")]


def test_a_checkpoint_is_never_overwritten(tmp_path: Path) -> None:
    folder = CheckpointFolder(tmp_path)
    path = folder.save(10, state(10))
    before = (path / MANIFEST).read_bytes()

    folder.save(10, state(10))

    assert (path / MANIFEST).read_bytes() == before
    assert names(tmp_path) == [path.name]


def test_a_damaged_checkpoint_is_replaced_and_kept_aside(tmp_path: Path) -> None:
    folder = CheckpointFolder(tmp_path)
    truncate(folder.save(10, state(10)))

    folder.save(10, state(10))

    newest = folder.newest()
    assert newest is not None
    assert newest.step == 10
    assert len([path for path in tmp_path.iterdir() if path.name.startswith(".damaged")]) == 1


def test_the_last_ones_are_kept(tmp_path: Path) -> None:
    folder = CheckpointFolder(tmp_path, keep=2)
    for step in (10, 20, 30, 40):
        folder.save(step, state(step))

    assert names(tmp_path) == ["step-000000030", "step-000000040"]


def test_damaged_checkpoints_do_not_count_among_those_kept(tmp_path: Path) -> None:
    folder = CheckpointFolder(tmp_path, keep=2)
    for step in (10, 20, 30):
        path = folder.save(step, state(step))
    truncate(path)
    folder.save(40, state(40))

    assert names(tmp_path) == ["step-000000020", "step-000000030", "step-000000040"]


def test_an_older_generation_is_refused(tmp_path: Path) -> None:
    old = CheckpointFolder(tmp_path, writer=Writer(run="r", generation=3))
    old.claim()
    old.save(10, state(10))
    new = CheckpointFolder(tmp_path, writer=Writer(run="r", generation=4))
    new.claim()

    with pytest.raises(StaleWriterError, match=r"generation 3 of run 'r' may not write .* generation 4"):
        old.save(20, state(20))
    with pytest.raises(StaleWriterError):
        CheckpointFolder(tmp_path, writer=Writer(run="r", generation=2)).claim()
    new.save(20, state(20))
    newest = new.newest()
    assert newest is not None
    assert newest.writer.generation == 4


def test_another_run_takes_over_whatever_its_generation(tmp_path: Path) -> None:
    old = CheckpointFolder(tmp_path, writer=Writer(run="r.1", generation=9))
    old.claim()
    new = CheckpointFolder(tmp_path, writer=Writer(run="r.2", generation=1))
    new.claim()

    new.save(10, state(10))
    with pytest.raises(StaleWriterError):
        old.save(20, state(20))


def test_a_full_disk_is_told_plainly_and_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = CheckpointFolder(tmp_path)
    folder.save(10, state(10))

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(CheckpointError, match="step-000000020 cannot be written: No space left on device"):
        folder.save(20, state(20))
    monkeypatch.undo()

    assert names(tmp_path) == ["step-000000010"]


def test_what_could_not_be_loaded_is_not_saved(tmp_path: Path) -> None:
    folder = CheckpointFolder(tmp_path)
    folder.save(10, state(10))

    with pytest.raises(CheckpointError, match=r"step-000000020 was not written, because it could not be loaded"):
        folder.save(20, {"path": tmp_path})
    with pytest.raises(CheckpointError, match="their state_dict"):
        folder.save(20, {"function": lambda: None})

    assert names(tmp_path) == ["step-000000010"]


def test_a_folder_that_cannot_be_claimed_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def denied(_: int) -> None:
        raise OSError(13, "Permission denied")

    folder = CheckpointFolder(tmp_path, writer=Writer(run="r", generation=1))
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", denied)
        with pytest.raises(CheckpointError, match=r"cannot be written: Permission denied; check its mount"):
            folder.claim()
    assert names(tmp_path) == []

    (tmp_path / ".fence.json-1234").write_text("left by a crash")
    folder.claim()
    assert names(tmp_path) == ["fence.json"]


def test_a_checkpoint_is_data_and_never_code(tmp_path: Path) -> None:
    marker = tmp_path / "executed"

    class Evil:
        def __reduce__(self) -> Any:
            return (os.mkdir, (str(marker),))

    folder = CheckpointFolder(tmp_path / "checkpoints")
    path = folder.save(10, state(10))
    torch.save({"evil": Evil()}, path / STATE)
    data = (path / STATE).read_bytes()
    manifest = json.loads((path / MANIFEST).read_text())
    manifest["files"][STATE] = {"size": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    (path / MANIFEST).write_text(json.dumps(manifest))
    newest = folder.newest()
    assert newest is not None
    with pytest.raises(CheckpointError, match="cannot be read"):
        newest.load()
    assert not marker.exists()


def test_verify_reads_sizes_only_when_told_so(tmp_path: Path) -> None:
    path = CheckpointFolder(tmp_path).save(10, state(10))
    flip_a_bit(path)

    verify(path, contents=False)
    with pytest.raises(CheckpointError, match="SHA-256"):
        verify(path)


def test_keeping_none_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="at least one"):
        CheckpointFolder(tmp_path, keep=0)
