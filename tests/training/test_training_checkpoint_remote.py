"""A second place for checkpoints: a folder, and a store that fsspec keeps in memory, with their failures."""

import logging
import os
import threading
from pathlib import Path
from typing import Any

import pytest
import torch

from training.checkpoint import contents
from training.checkpoint.folder import CheckpointError, CheckpointFolder, StaleWriterError, Writer
from training.checkpoint.remote import OBJECTS, Remote, Syncer
from training.checkpoint.retention import Retention

PATIENCE = 120.0


@pytest.fixture(params=["file", "memory"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return f"file://{tmp_path}/remote" if request.param == "file" else f"memory://{tmp_path.name}"


@pytest.fixture(autouse=True)
def _small_shards(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(contents, "SHARD_BYTES", 4000)


def state(step: int) -> dict[str, Any]:
    """Three quarters are frozen; what is trained changes with every step."""
    generator = torch.Generator().manual_seed(1)
    frozen = {f"layer{i}": torch.randn(1000, generator=generator) for i in range(3)}
    return {"model": {**frozen, "head": torch.full((1000,), float(step))}, "step": step}


def save(folder: CheckpointFolder, *steps: int) -> Path:
    for step in steps:
        path = folder.save(step, state(step), metrics={"accuracy": step / 100})
    return path


def test_another_machine_continues_from_the_second_place(tmp_path: Path, url: str) -> None:
    writer = Writer(run="job.1", generation=2)
    folder = CheckpointFolder(tmp_path / "local", writer=writer)
    remote = Remote(url, writer=writer)
    remote.push(save(folder, 10))
    remote.push(save(folder, 20))

    elsewhere = CheckpointFolder(tmp_path / "elsewhere")
    fetched = Remote(url).fetch(elsewhere)

    assert fetched is not None
    assert (fetched.step, fetched.writer, fetched.metrics) == (20, writer, {"accuracy": 0.2})
    newest = elsewhere.newest()
    assert newest is not None
    assert torch.equal(newest.load()["model"]["head"], torch.full((1000,), 20.0))


def test_what_has_not_changed_is_not_sent_again(tmp_path: Path, url: str) -> None:
    folder = CheckpointFolder(tmp_path / "local")
    remote = Remote(url)
    first = remote.push(save(folder, 10))
    second = remote.push(save(folder, 20))

    assert first > 16_000
    assert second < 0.7 * first  # the head, the small files
    assert remote.push(folder.root / "step-000000020") == 0


def test_an_upload_that_broke_off_goes_on_where_it_was(
    tmp_path: Path, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = CheckpointFolder(tmp_path / "local")
    path = save(folder, 10)
    whole = sum(file.stat().st_size for file in path.iterdir())
    broken = Remote(url)
    write, written = broken._store.write, 0

    def away(name: str, data: bytes) -> None:
        nonlocal written
        if written > 8000:
            raise ConnectionError("connection reset by peer")
        written += len(data)
        write(name, data)

    monkeypatch.setattr(broken._store, "write", away)
    with pytest.raises(CheckpointError, match=r"cannot be written: connection reset by peer; local"):
        broken.push(path)
    assert Remote(url).manifests() == []
    assert Remote(url).fetch(CheckpointFolder(tmp_path / "elsewhere")) is None

    assert Remote(url).push(path) == whole - written
    assert Remote(url).manifests()[0].step == 10


def test_a_damaged_object_costs_one_checkpoint_and_is_named(
    tmp_path: Path, url: str, caplog: pytest.LogCaptureFixture
) -> None:
    folder = CheckpointFolder(tmp_path / "local")
    remote = Remote(url)
    for step in (10, 20, 30, 40):
        remote.push(save(folder, step))
    digests = [{digest for _, digest in one.files.values()} for one in remote.manifests()]
    missing, altered = (min(digests[i] - digests[i + 1]) for i in range(2))
    remote._store.delete(OBJECTS + missing)
    size = remote._store.sizes(OBJECTS)[OBJECTS + altered]
    remote._store.write(OBJECTS + altered, b"x" * size)
    remote._store.write("step-000000020.json", b"{")

    with caplog.at_level(logging.WARNING):
        fetched = remote.fetch(CheckpointFolder(tmp_path / "elsewhere"))

    assert fetched is not None
    assert fetched.step == 10
    assert f"step-000000040.json: {OBJECTS}{missing} is missing" in caplog.text
    assert f"step-000000030.json: {OBJECTS}{altered} does not match" in caplog.text
    assert "step-000000020.json: " in caplog.text
    assert [path.name for path in (tmp_path / "elsewhere").iterdir()] == ["step-000000010"]


def test_rules_for_keeping_hold_there_too(tmp_path: Path, url: str) -> None:
    folder = CheckpointFolder(tmp_path / "local")
    remote = Remote(url)
    for step in (10, 20, 30):
        remote.push(save(folder, step))
    before = len(remote._store.sizes(OBJECTS))

    assert remote.prune(Retention(last=1, every=20)) == 1
    assert [one.step for one in remote.manifests()] == [30, 20]
    assert remote.prune(Retention(last=1)) == 1
    assert remote.prune(Retention(last=1)) == 0

    assert len(remote._store.sizes(OBJECTS)) < before
    fetched = remote.fetch(CheckpointFolder(tmp_path / "elsewhere"))
    assert fetched is not None
    assert fetched.step == 30


def test_a_world_that_was_replaced_publishes_nothing(tmp_path: Path, url: str) -> None:
    old = CheckpointFolder(tmp_path / "old", writer=Writer(run="r", generation=1))
    new = CheckpointFolder(tmp_path / "new", writer=Writer(run="r", generation=2))
    Remote(url, writer=Writer(run="r", generation=2)).push(save(new, 10))

    replaced = Remote(url, writer=Writer(run="r", generation=1))
    with pytest.raises(StaleWriterError, match=r"generation 1 of run 'r' may not write .* 2 has published step 10"):
        replaced.push(save(old, 20))
    with pytest.raises(StaleWriterError):
        replaced.prune(Retention())


def test_training_waits_for_no_slow_store_and_only_the_newest_is_sent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = CheckpointFolder(tmp_path / "local", keep=9)
    remote = Remote(f"file://{tmp_path}/remote")
    may_write, begun = threading.Event(), threading.Event()
    write = remote._store.write

    def slow(name: str, data: bytes) -> None:
        begun.set()
        assert may_write.wait(PATIENCE)
        write(name, data)

    monkeypatch.setattr(remote._store, "write", slow)
    with Syncer(remote) as syncer:
        syncer.submit(save(folder, 10))
        assert begun.wait(PATIENCE)
        syncer.submit(save(folder, 20))
        syncer.submit(save(folder, 30))
        assert not syncer.wait(0.01)
        may_write.set()
        assert syncer.wait(PATIENCE)
    assert [one.step for one in remote.manifests()] == [30, 10]
    assert syncer.sent > 0


def test_a_store_that_is_away_for_a_time_is_told_and_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    folder = CheckpointFolder(tmp_path / "local")
    remote = Remote(f"file://{tmp_path}/remote")

    def away(*_: Any) -> dict[str, int]:
        raise TimeoutError

    with Syncer(remote) as syncer, caplog.at_level(logging.WARNING):
        with monkeypatch.context() as patch:
            patch.setattr(remote._store, "sizes", away)
            syncer.submit(save(folder, 10))
            assert not syncer.wait(PATIENCE)
        assert "step-000000010 is not in the second place, the next one will be tried" in caplog.text
        assert "cannot be read: TimeoutError; local checkpoints are untouched" in caplog.text
        assert isinstance(syncer.error, CheckpointError)
        syncer.submit(save(folder, 20))
        assert syncer.wait(PATIENCE)
    assert [one.step for one in remote.manifests()] == [20]


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("nonsense://x/y", r"nonsense://x/y: Protocol not known: nonsense\. Known are file and"),
        ("/mnt/checkpoints", r"'/mnt/checkpoints' is no URL: write s3://bucket/prefix, or file:///folder"),
    ],
)
def test_an_unknown_place_is_told_at_once(url: str, message: str) -> None:
    with pytest.raises(CheckpointError, match=message):
        Remote(url)


def test_no_permission_is_told_and_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = save(CheckpointFolder(tmp_path / "local"), 10)
    remote = Remote(f"file://{tmp_path}/remote")

    def denied(_: int) -> None:
        raise PermissionError(13, "Permission denied")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", denied)
        with pytest.raises(CheckpointError, match=r"remote cannot be written: .*Permission denied"):
            remote.push(path)
    assert list((tmp_path / "remote" / "objects").iterdir()) == []
    with pytest.raises(CheckpointError, match=r"step-000000099/manifest.json cannot be read: No such file"):
        remote.push(tmp_path / "local" / "step-000000099")
