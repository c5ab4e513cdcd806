"""The daemon as a whole, without an API server: what it watches, and when its heart beats."""

import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from infra.local.cloud import heartbeat
from infra.local.cloud.__main__ import Cloud
from infra.local.cloud.inotify import FolderWatch
from infra.local.cloud.watching import Change


@pytest.fixture
def cloud(tmp_path: Path) -> Cloud:
    heartbeat(tmp_path).parent.mkdir()
    return Cloud(cast(Any, None), tmp_path)


def node(name: str) -> Change:
    return Change(SimpleNamespace(metadata=SimpleNamespace(name=name)))


def test_pods_that_were_there_before_the_daemon_are_watched(cloud: Cloud, tmp_path: Path) -> None:
    hosts = tmp_path / "nodes" / "gpu-1" / "kubelet" / "pods" / "uid-1" / "etc-hosts"
    hosts.parent.mkdir(parents=True)
    hosts.write_text("127.0.0.1 localhost\n")
    cloud._on_node(node("gpu-1"))
    hosts.write_text("127.0.0.1 localhost\n")
    found: list[Path] = []
    reader = threading.Thread(target=lambda: found.append(next(cloud._files.events())), daemon=True)
    reader.start()
    reader.join(5)
    assert found == [hosts]


def test_what_cannot_be_watched_is_said(
    cloud: Cloud, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: object) -> bool:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(FolderWatch, "add", fail)
    cloud._on_node(node("gpu-1"))
    assert "No space left on device" in caplog.text


def test_a_folder_is_new_once_and_a_file_is_none(tmp_path: Path) -> None:
    watch = FolderWatch()
    assert watch.add(tmp_path)
    assert not watch.add(tmp_path)
    (tmp_path / "file").touch()
    assert not watch.add(tmp_path / "file")
    watch._descriptor = -1
    with pytest.raises(OSError, match="Bad file descriptor"):
        watch.add(tmp_path)


def test_the_heart_beats_while_all_watches_stand(cloud: Cloud, tmp_path: Path) -> None:
    watch = SimpleNamespace(connected=False)
    cloud._watches.append(cast(Any, watch))
    cloud._beat()
    assert not heartbeat(tmp_path).exists()
    watch.connected = True
    cloud._beat()
    assert heartbeat(tmp_path).exists()
