"""The claim on a place for checkpoints in etcd: what the file in the folder cannot promise."""

import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from local_agents import etcd_server, patient_client
from memory_etcd import MemoryEtcd

from training.checkpoint import disk
from training.checkpoint import lock as module
from training.checkpoint.folder import FENCE, CheckpointFolder, StaleWriterError, Writer
from training.checkpoint.lock import EtcdLock
from training.checkpoint.remote import Remote
from training.launch import rendezvous
from training.launch.etcd_client import EtcdClient, parse_endpoints

RUN = "job.1"


@pytest.fixture
def etcd(monkeypatch: pytest.MonkeyPatch) -> MemoryEtcd:
    """The etcd of the launcher, for folders of this run."""
    etcd = MemoryEtcd()
    monkeypatch.setenv("TRAINYARD_RUN", RUN)
    told = {"endpoint": "etcd:2379", "config": {"prefix": "/jobs"}, "run_id": "job"}
    monkeypatch.setenv("TRAINYARD_CHECKPOINT_LOCK", json.dumps(told))
    monkeypatch.setattr(rendezvous.Options, "client", lambda _: etcd)
    return etcd


def folder(path: Path, generation: int, run: str = RUN) -> CheckpointFolder:
    return CheckpointFolder(path, writer=Writer(run=run, generation=generation), keep=1)


def state(step: int) -> dict[str, Any]:
    return {"step": step, "weight": torch.full((3,), float(step))}


def published(path: Path) -> list[str]:
    return sorted(found.name for found in path.glob("step-*"))


def test_an_older_world_cannot_claim_between_two_looks_at_the_file(
    tmp_path: Path, etcd: MemoryEtcd, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The old world has looked at the file and is about to replace it, when the newer one claims."""
    old, new = folder(tmp_path, 1), folder(tmp_path, 2)
    get = etcd.get

    def newer_is_faster(key: bytes, **_: Any) -> Any:
        found = get(key)
        monkeypatch.setattr(etcd, "get", get)
        new.claim()
        return found

    monkeypatch.setattr(etcd, "get", newer_is_faster)
    with pytest.raises(
        StaleWriterError, match=r"may not write to .* any more: generation 2 of run 'job\.1' has claimed"
    ):
        old.claim()
    assert json.loads((tmp_path / FENCE).read_bytes())["generation"] == 2
    new.save(10, state(10))
    assert published(tmp_path) == ["step-000000010"]
    (key,) = etcd.keys
    assert key.startswith(b"/jobs/job/checkpoints/")
    held = json.loads(etcd.keys[key][0])
    assert (held["run"], held["generation"]) == (RUN, 2)


def test_a_claim_during_a_save_refuses_its_publication(
    tmp_path: Path, etcd: MemoryEtcd, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the file: as where a network file system shows it late."""
    old, new = folder(tmp_path, 1), folder(tmp_path, 2)
    old.claim()
    sync = disk.sync_folder

    def newer_claims(path: Path) -> None:
        monkeypatch.setattr(disk, "sync_folder", sync)
        sync(path)
        new.claim()
        (tmp_path / FENCE).write_text(json.dumps({"run": RUN, "generation": 1}))

    monkeypatch.setattr(disk, "sync_folder", newer_claims)
    with pytest.raises(StaleWriterError, match=r"generation 2 of run 'job\.1' has claimed it in etcd"):
        old.save(10, state(10))
    assert published(tmp_path) == []


def test_an_old_world_that_was_about_to_publish_deletes_nothing(
    tmp_path: Path, etcd: MemoryEtcd, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has asked, and then publishes: one checkpoint more; but its rules would keep one only."""
    old, new = folder(tmp_path, 1), folder(tmp_path, 2)
    old.claim()
    old.save(10, state(10))
    rename = disk.rename

    def newer_claims(source: Path, target: Path) -> None:
        rename(source, target)
        if target.name == "step-000000020":
            new.claim()

    monkeypatch.setattr(disk, "rename", newer_claims)
    with pytest.raises(StaleWriterError):
        old.save(20, state(20))
    assert published(tmp_path) == ["step-000000010", "step-000000020"]


def test_a_second_place_is_claimed_by_the_first_upload_of_a_world(
    tmp_path: Path, etcd: MemoryEtcd, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The old world has sent all its objects and is about to publish; its own folder nobody else sees."""
    url = f"file://{tmp_path}/remote"
    old_path = folder(tmp_path / "old", 1).save(20, state(20))
    new_path = folder(tmp_path / "new", 2).save(10, state(10))
    old, new = (Remote(url, writer=Writer(run=RUN, generation=generation)) for generation in (1, 2))
    check = old._check_fence

    def newer_is_faster(published: Any) -> None:
        check(published)
        monkeypatch.setattr(old, "_check_fence", lambda published: (check(published), new.push(new_path)))

    monkeypatch.setattr(old, "_check_fence", newer_is_faster)
    with pytest.raises(StaleWriterError, match=r"file:///.*/remote any more: generation 2 of run 'job\.1' has claimed"):
        old.push(old_path)
    assert [one.step for one in new.manifests()] == [10]


def test_another_life_of_the_job_takes_over(tmp_path: Path, etcd: MemoryEtcd, monkeypatch: pytest.MonkeyPatch) -> None:
    first = folder(tmp_path, 7)
    first.claim()
    monkeypatch.setenv("TRAINYARD_RUN", "job.2")
    second = folder(tmp_path, 1, run="job.2")
    second.claim()
    second.save(10, state(10))
    with pytest.raises(StaleWriterError):
        first.save(20, state(20))


def test_without_etcd_the_file_decides(tmp_path: Path, etcd: MemoryEtcd, caplog: pytest.LogCaptureFixture) -> None:
    old, new = folder(tmp_path, 1), folder(tmp_path, 2)
    old.claim()
    etcd.down = True
    with caplog.at_level(logging.WARNING):
        old.save(10, state(10))
        old.save(20, state(20))
        assert published(tmp_path) == ["step-000000020"]
        new.claim()
        with pytest.raises(StaleWriterError):
            old.save(30, state(30))
    told = [record.message for record in caplog.records]
    assert [message.startswith("the lock of the checkpoints in etcd cannot be used") for message in told] == [
        True,
        True,
    ]


def test_etcd_that_was_made_anew_is_claimed_anew(tmp_path: Path, etcd: MemoryEtcd) -> None:
    old = folder(tmp_path, 1)
    old.claim()
    etcd.keys.clear()
    old.save(10, state(10))
    assert len(etcd.keys) == 1


def test_without_a_launcher_that_has_etcd_there_is_no_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert EtcdLock.of_launcher(RUN, str(tmp_path)) is None
    monkeypatch.setenv("TRAINYARD_CHECKPOINT_LOCK", json.dumps({"endpoint": "x", "config": {}, "run_id": "job"}))
    monkeypatch.setenv("TRAINYARD_RUN", "another")
    assert EtcdLock.of_launcher(RUN, str(tmp_path)) is None
    assert EtcdLock.of_launcher("", str(tmp_path)) is None


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdClient]:
    with etcd_server(tmp_path_factory.mktemp("etcd")) as server:
        yield patient_client(parse_endpoints(server.endpoint)[0])


@pytest.mark.engines
@pytest.mark.timeout(300)
def test_a_real_etcd_keeps_the_same_promises(client: EtcdClient) -> None:
    old, new = EtcdLock(client, b"/jobs/claim"), EtcdLock(client, b"/jobs/claim")
    old.claim(RUN, 1)
    old.publish(RUN, 1, 10)
    held = client.get(b"/jobs/claim")
    assert held is not None
    assert json.loads(held.value)["step"] == 10
    new.claim(RUN, 2)
    for refused in (lambda: old.publish(RUN, 1, 20), lambda: old.claim(RUN, 1)):
        with pytest.raises(module.LostLockError, match=r"generation 2 of run 'job\.1' has claimed it in etcd"):
            cast(Any, refused)()
    new.publish(RUN, 2, 20)
    new.publish(RUN, 2, None)
    assert client.delete(b"/jobs/claim")
    new.publish(RUN, 2, 30)
    held = client.get(b"/jobs/claim")
    assert held is not None
    assert json.loads(held.value)["generation"] == 2
