"""The daemon as a whole, without an API server: what it watches, and when its heart beats."""

import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import httpx2
import pytest
from lightkube.resources.core_v1 import Node

from infra.local.cloud import heartbeat
from infra.local.cloud.__main__ import Cloud
from infra.local.cloud.inotify import FolderWatch
from infra.local.cloud.watching import Change, client_of
from infra.local.control_plane.pki import Authority, Subject, kubeconfig
from infra.local.state import State


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
    reader.join(60)
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


def test_no_answer_is_waited_for_without_end(short_tmp: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    limits: list[dict[str, float | None]] = []

    def record(_: object, request: httpx2.Request) -> httpx2.Response:
        limits.append(request.extensions["timeout"])
        return httpx2.Response(403, json={"message": "no"})

    authority = Authority(State(short_tmp), short_tmp, "ca")
    pair = authority.issue("cloud", Subject("cloud"))
    path = short_tmp / "kubeconfig"
    path.write_text(kubeconfig("https://127.0.0.1:1", authority.certificate_pem, pair, "cloud"))
    monkeypatch.setattr(httpx2.HTTPTransport, "handle_request", record)
    client = client_of(path)
    for ask in (lambda: client.get(Node, "n"), lambda: next(iter(client.watch(Node)))):
        with pytest.raises(httpx2.HTTPError):
            ask()
    assert len(limits) == 2
    assert all(limit["read"] for limit in limits)
