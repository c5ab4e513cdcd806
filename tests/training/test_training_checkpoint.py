"""A checkpoint is whole or absent, whatever happens while it is written, and only the newest world writes."""

import contextlib
import errno
import hashlib
import json
import logging
import os
import pickle
import resource
import threading
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.distributed.checkpoint import state_dict_loader
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save

from training.checkpoint import contents
from training.checkpoint.contents import METADATA, VALUES
from training.checkpoint.folder import (
    MANIFEST,
    CheckpointError,
    CheckpointFolder,
    StaleWriterError,
    Writer,
    verify,
)
from training.checkpoint.retention import Kept, Retention
from training.checkpoint.saver import AsyncSaver

STATE = "__0_0.distcp"


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


class PowerCutError(BaseException):
    """Not an Exception: nothing that tidies up after errors may touch the disk of a machine without power."""


class Disk:
    """Stands between the program and a folder on disk: counts the system calls that change it, and can fail one.

    It also knows what a power cut would leave: contents of files and names in folders as they were last synced.
    """

    def __init__(self, root: Path, patch: pytest.MonkeyPatch) -> None:
        self.calls: list[str] = []
        self.fail_at = -1
        self.failure: Callable[[], BaseException] = PowerCutError
        self._without_power = False
        self._root = root
        self._open: dict[int, Path] = {}
        self._contents: dict[int, bytes] = {}
        self._names: dict[int, dict[str, tuple[int, bool]]] = {}
        self._real_fsync = os.fsync
        for name in ("open", "write", "fsync", "mkdir", "rename", "unlink", "rmdir"):
            patch.setattr(os, name, self._between(name, getattr(os, name)))

    def _between(self, name: str, real: Any) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            path = self._open.get(args[0]) if isinstance(args[0], int) else Path(args[0])
            if path is None or (path != self._root and self._root not in path.parents):
                return real(*args, **kwargs)
            if name != "open" or args[1] & os.O_CREAT:
                if self._without_power:
                    raise PowerCutError
                self.calls.append(name)
                if len(self.calls) - 1 == self.fail_at:
                    self._without_power = self.failure is PowerCutError
                    raise self.failure()
            result = real(*args, **kwargs)
            if name == "open":
                self._open[result] = path
            if name in {"mkdir", "open"} and not path.is_dir():
                self._contents.pop(path.stat().st_ino, None)
            if name == "mkdir":
                self._names.pop(path.stat().st_ino, None)
            if name == "fsync":
                self._sync(path)
            return result

        return call

    def _sync(self, path: Path) -> None:
        inode = path.stat().st_ino
        if path.is_file():
            self._contents[inode] = path.read_bytes()
        else:
            self._names[inode] = {entry.name: (entry.stat().st_ino, entry.is_dir()) for entry in path.iterdir()}

    def after_power_cut(self, target: Path, inode: int | None = None) -> Path:
        """Make a folder with what the disk holds for certain."""
        target.mkdir()
        for name, (entry, is_folder) in self._names.get(inode or self._root.stat().st_ino, {}).items():
            if is_folder:
                self.after_power_cut(target / name, entry)
            else:
                (target / name).write_bytes(self._contents.get(entry, b""))
        return target


def save_twice(tmp_path: Path, fail_at: int, failure: Callable[[], BaseException] = PowerCutError) -> Disk:
    """Save step 10, then step 20 with a failure at one system call; step 10 is then one too many."""
    root = tmp_path / "root"
    with pytest.MonkeyPatch.context() as patch:
        folder = CheckpointFolder(root, writer=Writer(run="r", generation=1), keep=1)
        disk = Disk(root, patch)
        folder.claim()
        folder.save(10, state(10))
        disk.calls.clear()
        disk.fail_at, disk.failure = fail_at, failure
        if fail_at < 0:
            folder.save(20, state(20))
        else:
            with contextlib.suppress(PowerCutError, CheckpointError):
                folder.save(20, state(20))
    return disk


def loadable(root: Path) -> int:
    newest = CheckpointFolder(root).newest()
    assert newest is not None
    assert newest.load()["step"] == newest.step
    return newest.step


def test_after_a_crash_at_any_system_call_the_newest_checkpoint_is_whole(tmp_path: Path) -> None:
    """The process dies, or the machine loses power, before each call that changes the disk; nothing is tidied up."""
    calls = save_twice(tmp_path / "count", -1).calls
    assert calls[0] == "mkdir"
    assert {"open", "write", "fsync", "rename", "unlink", "rmdir"} < set(calls)
    published = calls.index("rename")
    safe = published + 1
    assert calls[safe] == "fsync"

    for point in range(len(calls)):
        here = tmp_path / str(point)
        disk = save_twice(here, point)
        assert loadable(here / "root") == (20 if point > published else 10), f"killed before {point}: {calls[point]}"
        after = disk.after_power_cut(here / "disk")
        assert loadable(after) == (20 if point > safe else 10), f"no power before {point}: {calls[point]}"

        # The next world sweeps what was left half-written, and saves the same step again.
        heir = CheckpointFolder(here / "root", writer=Writer(run="r", generation=2))
        heir.claim()
        heir.save(20, state(20))
        assert loadable(here / "root") == 20
        assert not [path for path in (here / "root").iterdir() if path.name.startswith(".")]


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO])
def test_a_disk_that_refuses_at_any_system_call_is_told_and_costs_nothing(tmp_path: Path, number: int) -> None:
    calls = save_twice(tmp_path / "count", -1).calls
    published = calls.index("rename")
    for point in range(len(calls)):
        here = tmp_path / str(point)
        save_twice(here, point, lambda: OSError(number, os.strerror(number)))

        assert loadable(here / "root") == (20 if point > published else 10), f"{point}: {calls[point]}"
        folder = CheckpointFolder(here / "root", writer=Writer(run="r", generation=1))
        folder.save(30, state(30))
        assert loadable(here / "root") == 30


def test_a_limit_of_the_system_is_told_plainly_and_leaves_nothing(tmp_path: Path) -> None:
    """The real thing: the kernel refuses a write in the middle of a file."""
    folder = CheckpointFolder(tmp_path)
    folder.save(10, state(10))
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, limits[1]))
    try:
        with pytest.raises(CheckpointError, match="step-000000020 cannot be written: File too large; earlier"):
            folder.save(20, {"large": torch.zeros(100_000)})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)

    assert names(tmp_path) == ["step-000000010"]


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


class Evil:
    def __init__(self, marker: Path) -> None:
        self._marker = marker

    def __reduce__(self) -> Any:
        return (os.mkdir, (str(self._marker),))


def trust(path: Path) -> None:
    """Make the manifest agree with the files."""
    manifest = json.loads((path / MANIFEST).read_text())
    for name in manifest["files"]:
        data = (path / name).read_bytes()
        manifest["files"][name] = {"size": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    (path / MANIFEST).write_text(json.dumps(manifest))


@pytest.mark.parametrize("file", [VALUES, METADATA, STATE])
def test_a_checkpoint_is_data_and_never_code(tmp_path: Path, file: str) -> None:
    marker = tmp_path / "executed"
    folder = CheckpointFolder(tmp_path / "checkpoints")
    path = folder.save(10, state(10))
    if file == METADATA:
        (path / file).write_bytes(pickle.dumps(Evil(marker)))
    elif file == VALUES:
        torch.save({"evil": Evil(marker)}, path / file)
    else:
        place = next(iter(pickle.loads((path / METADATA).read_bytes()).storage_data.values()))  # noqa: S301
        assert place.relative_path == file
        torch.save({"evil": Evil(marker)}, path / "evil")
        evil = (path / "evil").read_bytes()
        place.offset, place.length = 0, len(evil)
        metadata = pickle.loads((path / METADATA).read_bytes())  # noqa: S301
        metadata.storage_data = dict.fromkeys(metadata.storage_data, place)
        (path / METADATA).write_bytes(pickle.dumps(metadata))
        (path / file).write_bytes(evil)
    trust(path)

    newest = folder.newest()
    assert newest is not None
    with pytest.raises(CheckpointError, match=rf"{file} cannot be read"):
        newest.load()
    assert not marker.exists()


def edit(path: Path, **changes: Any) -> None:
    manifest = json.loads((path / MANIFEST).read_text())
    (path / MANIFEST).write_text(json.dumps({**manifest, **changes}))


def test_an_edited_manifest_is_told(tmp_path: Path) -> None:
    folder = CheckpointFolder(tmp_path)
    path = folder.save(10, state(10))
    files = json.loads((path / MANIFEST).read_text())["files"]
    for changes, message in (
        ({"step": 11}, r"manifest.json is of step 11, its folder of step 10"),
        ({"step": 10, "files": {**files, "../x": files[VALUES]}}, r"names '../x', which is no file of its folder"),
        ({"files": {**files, VALUES: {"size": 1, "sha256": ""}}}, r"values.pt has \d+ bytes, its manifest says 1"),
        ({"files": files, "format": 1}, "has format 1, known is 2"),
        ({"format": 2, "metrics": {"loss": "low"}}, "is damaged"),
    ):
        edit(path, **changes)
        with pytest.raises(CheckpointError, match=message):
            verify(path)
    edit(path, metrics={"loss": 0.5})
    assert verify(path).metrics == {"loss": 0.5}


def training_state() -> tuple[nn.Module, torch.optim.Optimizer, dict[str, Any]]:
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3), nn.Linear(3, 2)).double()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    torch.autograd.backward(model(torch.randn(5, 4, dtype=torch.float64)).sum())
    optimizer.step()
    whole = {
        "model": model.state_dict(),
        "optimizer": optimizer.state_dict(),
        "nothing": torch.zeros(0, 3),
        "scalar": torch.tensor(7, dtype=torch.int32),
        "half": torch.ones(2, dtype=torch.bfloat16),
        "part": torch.arange(100_000)[10:12],
        "turned": torch.arange(6).reshape(2, 3).t(),
        "values": {"list": [1, torch.ones(2), "a"], "tuple": (1.5, None, True), 3: {"deep": torch.ones(1)}},
    }
    return model, optimizer, whole


def same(left: Any, right: Any) -> bool:
    if isinstance(left, torch.Tensor):
        return left.dtype == right.dtype and left.shape == right.shape and bool(torch.equal(left, right))
    if isinstance(left, dict):
        return isinstance(right, dict) and left.keys() == right.keys() and all(same(left[k], right[k]) for k in left)
    if isinstance(left, list | tuple):
        return type(left) is type(right) and all(same(a, b) for a, b in zip(left, right, strict=True))
    return bool(left == right)


def test_everything_comes_back_as_it_was(tmp_path: Path) -> None:
    model, optimizer, whole = training_state()
    CheckpointFolder(tmp_path).save(10, whole)

    newest = CheckpointFolder(tmp_path).newest()
    assert newest is not None
    loaded = newest.load()
    assert same(loaded, {**whole, "model": dict(whole["model"])})
    assert (newest.path / STATE).stat().st_size < 100_000  # of a part of a tensor only the part is written
    model.load_state_dict(loaded["model"])
    optimizer.load_state_dict(loaded["optimizer"])
    assert same(newest.load(only="scalar"), {"scalar": torch.tensor(7, dtype=torch.int32)})
    with pytest.raises(CheckpointError, match="has no 'modell': it holds model, optimizer"):
        newest.load(only="modell")


def test_torch_s_own_checkpoint_functions_read_ours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """DCP into a model, in place; and its tool that makes one file of a checkpoint."""
    monkeypatch.setattr(contents, "SHARD_BYTES", 100)
    _, _, whole = training_state()
    path = CheckpointFolder(tmp_path).save(10, whole)
    assert len(list(path.glob("*.distcp"))) > 3

    template = {"model": {name: torch.zeros_like(value) for name, value in whole["model"].items()}}
    state_dict_loader.load(template, checkpoint_id=path, no_dist=True)
    assert same(template["model"], dict(whole["model"]))
    dcp_to_torch_save(path, tmp_path / "one.pt")
    assert torch.equal(torch.load(tmp_path / "one.pt")["scalar"], whole["scalar"])


def test_a_large_tensor_is_cut_by_rows_and_is_one_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(contents, "SHARD_BYTES", 100)
    table = torch.arange(7 * 11, dtype=torch.float32).reshape(7, 11)
    state = {"table": table, "turned": table.t(), "long": torch.arange(200), "scalar": torch.tensor(1.0)}
    path = CheckpointFolder(tmp_path).save(10, state)

    assert same(verify(path).load(), state)
    template = {name: torch.zeros(value.shape, dtype=value.dtype) for name, value in state.items()}
    state_dict_loader.load(template, checkpoint_id=path, no_dist=True)
    assert same(template, state)


def test_shards_that_did_not_change_are_the_same_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(contents, "SHARD_BYTES", 400)
    frozen, moving = torch.randn(100), torch.randn(100)
    folder = CheckpointFolder(tmp_path)
    first = verify(folder.save(10, {"model": OrderedDict(frozen=frozen, moving=moving)}))
    second = verify(folder.save(20, {"model": OrderedDict(frozen=frozen, moving=moving + 1)}))

    assert first.files["__0_0.distcp"] == second.files["__0_0.distcp"]
    assert first.files["__0_1.distcp"] != second.files["__0_1.distcp"]


def test_names_that_cannot_be_told_apart_are_refused(tmp_path: Path) -> None:
    folder = CheckpointFolder(tmp_path)
    with pytest.raises(CheckpointError, match=r"two tensors of the state have the name a\.b"):
        folder.save(10, {"a": {"b": torch.ones(1)}, "a.b": torch.ones(1)})
    with pytest.raises(CheckpointError, match="reserved"):
        folder.save(10, {"a": {"trainyard.tensor": "b"}})
    with pytest.raises(CheckpointError, match="not a plain tensor"):
        folder.save(10, {"a": torch.ones(2).to_sparse()})


steps = st.integers(0, 40)
figures = st.one_of(st.just(float("nan")), st.floats(-5, 5))


@given(
    checkpoints=st.dictionaries(steps, st.dictionaries(st.sampled_from(["accuracy", "loss"]), figures), min_size=1),
    last=st.integers(1, 4),
    every=st.integers(0, 10),
    best=st.integers(0, 3),
    mode=st.sampled_from(["max", "min"]),
)
@settings(max_examples=100, deadline=None)
def test_rules_keep_what_they_say_and_always_the_newest(
    checkpoints: dict[int, dict[str, float]], last: int, every: int, best: int, mode: Any
) -> None:
    rules = Retention(last=last, every=every, best=best, metric="accuracy" if best else "", mode=mode)
    kept = rules.keep(Kept(step=step, metrics=metrics) for step, metrics in checkpoints.items())

    in_order = sorted(checkpoints, reverse=True)
    assert max(checkpoints) in kept
    assert set(in_order[:last]) <= kept <= set(checkpoints)
    assert all(step in kept for step in checkpoints if every and step % every == 0)
    measured = [m["accuracy"] for m in checkpoints.values() if m.get("accuracy", float("nan")) == m.get("accuracy")]
    if best and measured:
        first = max(measured) if mode == "max" else min(measured)
        assert any(checkpoints[step].get("accuracy") == first for step in kept)
    assert len(kept) <= last + best + len([step for step in checkpoints if every and step % every == 0])


def test_rules_work_on_the_folder(tmp_path: Path) -> None:
    folder = CheckpointFolder(tmp_path, keep=Retention(last=1, every=40, best=1, metric="accuracy"))
    for step, accuracy in ((10, 0.5), (20, 0.9), (30, 0.7), (40, 0.6), (50, float("nan")), (60, 0.8)):
        folder.save(step, state(step), metrics={"accuracy": accuracy})

    assert names(tmp_path) == ["step-000000020", "step-000000040", "step-000000060"]


def test_rules_without_sense_are_refused() -> None:
    for rules, message in (
        ({"last": 0}, "at least one"),
        ({"every": -1}, "negative"),
        ({"best": 1}, "both how many and by which"),
        ({"metric": "loss"}, "both how many and by which"),
        ({"best": 1, "metric": "loss", "mode": "most"}, "not the 'most'"),
    ):
        with pytest.raises(ValueError, match=message):
            Retention(**rules)


def test_a_folder_without_permission_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(CheckpointError, match=r"file/checkpoints cannot be made: Not a directory; check its mount"):
        CheckpointFolder(tmp_path / "file" / "checkpoints")


def test_verify_reads_sizes_only_when_told_so(tmp_path: Path) -> None:
    path = CheckpointFolder(tmp_path).save(10, state(10))
    flip_a_bit(path)

    verify(path, contents=False)
    with pytest.raises(CheckpointError, match="SHA-256"):
        verify(path)


def test_keeping_none_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="at least one"):
        CheckpointFolder(tmp_path, keep=0)


def test_a_process_that_lives_on_cannot_sweep_what_it_is_writing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A kept process claims the folder for the next world while its own thread still writes for the last one."""
    may_write, begun, claimed = (threading.Event() for _ in range(3))
    write = contents.write

    def slow(*args: Any) -> Any:
        begun.set()
        assert may_write.wait(120)
        return write(*args)

    monkeypatch.setattr(contents, "write", slow)
    old = CheckpointFolder(tmp_path, writer=Writer(run="r", generation=1))
    old.claim()
    with AsyncSaver(old) as saver:
        saver.save(10, state(10))
        assert begun.wait(120)
        new = CheckpointFolder(tmp_path, writer=Writer(run="r", generation=2))

        def claim() -> None:
            new.claim()
            claimed.set()

        claiming = threading.Thread(target=claim)
        claiming.start()
        assert not claimed.wait(0.05)  # the claim waits for what is being written
        may_write.set()
        saver.wait()
        claiming.join(120)
        assert claimed.is_set()
        newest = new.newest()
        assert newest is not None
        assert newest.step == 10
        saver.save(20, state(20))
        with pytest.raises(StaleWriterError):
            saver.wait()
    assert names(tmp_path) == ["fence.json", "step-000000010"]
