"""Volumes: a folder for each claim that is ours, and nothing else ever removed."""

import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from lightkube import Client
from lightkube.resources.core_v1 import PersistentVolume, PersistentVolumeClaim

from infra.local.cloud import PROVISIONER
from infra.local.cloud.volumes import MADE_BY, WANTED_BY, Volumes, folder_name


class FakeClient:
    """Records what is created and deleted."""

    def __init__(self) -> None:
        self.created: list[dict[str, Any]] = []
        self.deleted: list[str] = []

    def get(self, _kind: object, _name: str) -> object:
        return SimpleNamespace(reclaimPolicy="Delete", mountOptions=None)

    def create(self, item: Any) -> None:
        self.created.append(item.to_dict())

    def delete(self, _kind: object, name: str) -> None:
        self.deleted.append(name)

    def volumes(self) -> list[dict[str, Any]]:
        return [item for item in self.created if "hostPath" in item.get("spec", {})]


@pytest.fixture
def client() -> FakeClient:
    return FakeClient()


@pytest.fixture
def volumes(client: FakeClient, tmp_path: Path) -> Volumes:
    return Volumes(cast(Client, client), tmp_path / "volumes")


def claim(**changes: Any) -> PersistentVolumeClaim:
    metadata = {"name": "checkpoints", "namespace": "training", "uid": "u1", "annotations": {WANTED_BY: PROVISIONER}}
    spec = {
        "accessModes": ["ReadWriteMany"],
        "storageClassName": "trainyard-shared",
        "resources": {"requests": {"storage": "1Gi"}},
    }
    return cast(
        PersistentVolumeClaim,
        PersistentVolumeClaim.from_dict(
            {"metadata": metadata | changes.pop("metadata", {}), "spec": spec | changes.pop("spec", {})}
        ),
    )


def released(folder: Path, **changes: Any) -> PersistentVolume:
    spec = {
        "persistentVolumeReclaimPolicy": "Delete",
        "hostPath": {"path": str(folder)},
        "claimRef": {"name": "checkpoints", "namespace": "training", "uid": "u1"},
    }
    return cast(
        PersistentVolume,
        PersistentVolume.from_dict(
            {
                "metadata": {"name": "pvc-u1", "annotations": {MADE_BY: PROVISIONER}} | changes.pop("metadata", {}),
                "spec": spec | changes.pop("spec", {}),
                "status": {"phase": changes.pop("phase", "Released")},
            }
        ),
    )


def gone(path: Path) -> bool:
    deadline = time.monotonic() + 60
    while path.exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    return not path.exists()


def test_a_claim_gets_a_folder_that_any_user_of_a_pod_may_write(
    volumes: Volumes, client: FakeClient, tmp_path: Path
) -> None:
    volumes.provision(claim())
    [made] = client.volumes()
    folder = tmp_path / "volumes" / "training-checkpoints-u1"
    assert made["spec"]["hostPath"] == {"path": str(folder), "type": "Directory"}
    assert made["spec"]["claimRef"]["uid"] == "u1"
    assert made["spec"]["accessModes"] == ["ReadWriteMany"]
    assert made["metadata"]["annotations"] == {MADE_BY: PROVISIONER}
    assert folder.stat().st_mode & 0o777 == 0o777
    assert folder.parent.stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize(
    "changes",
    [
        {"metadata": {"annotations": {WANTED_BY: "ebs.csi.aws.com"}}},
        {"metadata": {"annotations": {}}},
        {"metadata": {"deletionTimestamp": "2026-11-30T10:00:00Z"}},
        {"spec": {"volumeName": "pvc-u1"}},
    ],
)
def test_other_claims_are_left_alone(volumes: Volumes, client: FakeClient, changes: dict[str, Any]) -> None:
    volumes.provision(claim(**changes))
    assert not client.created


def test_raw_block_volumes_are_refused_in_an_event(volumes: Volumes, client: FakeClient) -> None:
    volumes.provision(claim(spec={"volumeMode": "Block"}))
    [event] = client.created
    assert event["reason"] == "ProvisioningFailed"
    assert "file system" in event["message"]


def test_a_released_volume_is_removed_with_its_folder(volumes: Volumes, client: FakeClient, tmp_path: Path) -> None:
    volumes.provision(claim())
    folder = tmp_path / "volumes" / "training-checkpoints-u1"
    (folder / "data").write_text("x")
    volumes.reclaim(released(folder))
    assert client.deleted == ["pvc-u1"]
    assert gone(folder)
    assert gone(tmp_path / "volumes" / ".deleting-training-checkpoints-u1")


@pytest.mark.parametrize(
    "changes",
    [
        {"phase": "Bound"},
        {"spec": {"persistentVolumeReclaimPolicy": "Retain"}},
        {"metadata": {"annotations": {MADE_BY: "ebs.csi.aws.com"}}},
    ],
)
def test_other_volumes_are_left_alone(
    volumes: Volumes, client: FakeClient, tmp_path: Path, changes: dict[str, Any]
) -> None:
    folder = tmp_path / "volumes" / "training-checkpoints-u1"
    folder.mkdir()
    volumes.reclaim(released(folder, **changes))
    assert folder.is_dir()
    assert not client.deleted


@pytest.mark.parametrize("path", ["precious", "volumes", "volumes/../precious", "volumes/someone-elses-u2", ""])
def test_an_edited_volume_never_takes_a_foreign_folder_with_it(volumes: Volumes, tmp_path: Path, path: str) -> None:
    for name in ("precious", "volumes/someone-elses-u2"):
        (tmp_path / name).mkdir(parents=True)
    volumes.reclaim(released(tmp_path / path))
    assert (tmp_path / "precious").is_dir()
    assert (tmp_path / "volumes" / "someone-elses-u2").is_dir()


def test_what_an_interruption_left_half_deleted_is_finished(client: FakeClient, tmp_path: Path) -> None:
    left = tmp_path / "volumes" / ".deleting-x"
    left.mkdir(parents=True)
    Volumes(cast(Client, client), tmp_path / "volumes")
    assert gone(left)


def test_long_names_fit_a_folder_name() -> None:
    assert len(folder_name({"namespace": "n" * 63, "name": "c" * 253, "uid": "u" * 36})) < 255
