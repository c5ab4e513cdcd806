"""A second place for checkpoints: a folder, S3 as moto speaks it, and fsspec's store in memory, with their failures."""

import http.client
import logging
import os
import socket
import threading
from collections.abc import Iterator
from datetime import timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import torch
from moto.server import ThreadedMotoServer
from s3fs import S3FileSystem

from training.checkpoint import contents
from training.checkpoint import folder as folder_module
from training.checkpoint import remote as remote_module
from training.checkpoint.folder import CheckpointError, CheckpointFolder, StaleWriterError, Writer
from training.checkpoint.remote import OBJECTS, ORPHAN_AGE, Remote, Syncer, shown
from training.checkpoint.retention import Retention

PATIENCE = 120.0


SECRET = "do/not+show"


@pytest.fixture(scope="module")
def s3() -> Iterator[str]:
    """Address of an S3 with one bucket, which the variables of AWS's own tools name."""
    server = ThreadedMotoServer(port=0)
    server.start()
    address = f"http://127.0.0.1:{server.get_host_and_port()[1]}"
    with pytest.MonkeyPatch.context() as patch:
        for name in [name for name in os.environ if name.startswith("AWS_") or name.lower().endswith("_proxy")]:
            patch.delenv(name)
        for name, value in {
            "AWS_ENDPOINT_URL": address,
            "AWS_ACCESS_KEY_ID": "AKIAKEY",
            "AWS_SECRET_ACCESS_KEY": SECRET,
            "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_CONFIG_FILE": os.devnull,
            "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
        }.items():
            patch.setenv(name, value)
        S3FileSystem.clear_instance_cache()
        S3FileSystem().mkdir("checkpoints")
        yield address
        S3FileSystem.clear_instance_cache()
    server.stop()


@pytest.fixture(params=["file", "memory", "s3"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "s3":
        request.getfixturevalue("s3")
        return f"s3://checkpoints/{tmp_path.name}"
    return f"file://{tmp_path}/remote" if request.param == "file" else f"memory://{tmp_path.name}"


@pytest.fixture(autouse=True)
def _small_shards_and_no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(contents, "SHARD_BYTES", 4000)
    monkeypatch.setattr(remote_module, "PAUSES", (0.0, 0.0))


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

    assert remote.prune(Retention(last=1, every=20)) == ["step-000000010.json"]
    assert [one.step for one in remote.manifests()] == [30, 20]
    assert remote.prune(Retention(last=1)) == ["step-000000020.json"]
    assert remote.prune(Retention(last=1)) == []

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


def test_a_bucket_that_is_not_there_or_not_ours_is_told(tmp_path: Path, s3: str) -> None:
    path = save(CheckpointFolder(tmp_path / "local"), 10)
    with pytest.raises(CheckpointError, match=r"s3://no-such-bucket/x cannot be .*bucket does not exist"):
        Remote("s3://no-such-bucket/x").push(path)


def test_a_failure_that_passes_is_tried_again_and_one_that_stays_is_told(
    tmp_path: Path, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = save(CheckpointFolder(tmp_path / "local"), 10)
    remote = Remote(url)
    write, attempts = remote._store.write, 0

    def shaky(name: str, data: bytes) -> None:
        nonlocal attempts
        attempts += 1
        if attempts % 3:
            raise OSError(5, "We encountered an internal error. Please try again.")
        write(name, data)

    with monkeypatch.context() as patch:
        patch.setattr(remote._store, "write", shaky)
        assert remote.push(path) > 0
    assert attempts == 3 * len(list(path.glob("*.distcp"))) + 3 * 2  # and .metadata and values.pt

    def full(*_: Any) -> None:
        nonlocal attempts
        attempts += 1
        raise OSError(28, "No space left on device")

    attempts = 0
    path = save(CheckpointFolder(tmp_path / "local"), 20)
    monkeypatch.setattr(remote._store, "write", full)
    with pytest.raises(CheckpointError, match=r"cannot be written: .*No space left on device"):
        remote.push(path)
    assert attempts == 1
    assert [one.step for one in remote.manifests()] == [10]


@pytest.mark.timeout(300)
def test_a_store_that_throttles_and_breaks_connections_gets_it_in_the_end(tmp_path: Path, s3: str) -> None:
    """A proxy in front of S3: 503 SlowDown, 500, a cut connection; then it is vanished for good."""
    path = save(CheckpointFolder(tmp_path / "local"), 10)
    with ShakyProxy(s3) as proxy, pytest.MonkeyPatch.context() as patch:
        patch.setenv("AWS_ENDPOINT_URL", proxy.address)
        patch.setenv("AWS_MAX_ATTEMPTS", "2")
        S3FileSystem.clear_instance_cache()
        remote = Remote("s3://checkpoints/shaky")
        proxy.accidents = ["slow down", "error", "cut"] * 2
        assert remote.push(path) > 0
        assert proxy.accidents == []
        patch.setattr(remote._store._files, "retries", 1)  # type: ignore[attr-defined]
        proxy.accidents = ["cut"] * 1000
        newer = save(CheckpointFolder(tmp_path / "local"), 20)
        with pytest.raises(CheckpointError, match=r"s3://checkpoints/shaky cannot be read: .*; local checkpoints are"):
            remote.push(newer)
    S3FileSystem.clear_instance_cache()
    elsewhere = CheckpointFolder(tmp_path / "elsewhere")
    fetched = Remote("s3://checkpoints/shaky").fetch(elsewhere)
    assert fetched is not None
    assert fetched.step == 10
    newest = CheckpointFolder(tmp_path / "local").newest()
    assert newest is not None
    assert newest.step == 20


@pytest.mark.parametrize(
    ("denied", "message"),
    [
        ({"PUT", "POST"}, r"s3://checkpoints/denied cannot be written: .*Access Denied"),
        ({"GET", "HEAD"}, r"s3://checkpoints/denied cannot be read: .*(Access Denied|Forbidden)"),
    ],
    ids=["write", "read"],
)
def test_a_role_without_the_right_is_told_at_once(tmp_path: Path, s3: str, denied: set[str], message: str) -> None:
    path = save(CheckpointFolder(tmp_path / "local"), 10)
    with ShakyProxy(s3) as proxy, pytest.MonkeyPatch.context() as patch:
        patch.setenv("AWS_ENDPOINT_URL", proxy.address)
        S3FileSystem.clear_instance_cache()
        remote = Remote("s3://checkpoints/denied")
        proxy.denied = denied
        with pytest.raises(CheckpointError, match=message) as told:
            remote.push(path)
    S3FileSystem.clear_instance_cache()
    assert SECRET not in str(told.value)
    newest = CheckpointFolder(tmp_path / "local").newest()
    assert newest is not None, "what is here already stays"
    assert Remote("s3://checkpoints/denied").manifests() == [], "and nothing half is there"


def test_no_secret_is_in_a_log_or_a_message(
    tmp_path: Path,
    s3: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    path = save(CheckpointFolder(tmp_path / "local"), 10)
    with caplog.at_level(logging.DEBUG):
        Remote("s3://checkpoints/quiet").push(path)
        with pytest.raises(CheckpointError) as told:
            Remote("nonsense://user:do/not+show@host/x?token=do/not+show")
    assert SECRET not in caplog.text
    assert SECRET not in str(told.value)
    assert shown("sftp://user:pass@host:22/folder/?a=b") == "sftp://host:22/folder"
    assert shown("s3://bucket/prefix/") == "s3://bucket/prefix"


def test_what_broken_uploads_left_is_swept_when_it_is_old(
    tmp_path: Path, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    remote = Remote(url)
    remote.push(save(CheckpointFolder(tmp_path / "local"), 10))
    named = set(remote._store.sizes(OBJECTS))
    remote._store.write(f"{OBJECTS}{'0' * 64}", b"left")
    assert remote.sweep() == 0  # it may be of an upload that is under way
    assert timedelta(0) - timedelta(minutes=1) < remote._store.age(f"{OBJECTS}{'0' * 64}") < timedelta(hours=1)

    monkeypatch.setattr(remote._store, "age", lambda _: ORPHAN_AGE * 1.01)
    assert remote.sweep() == 1
    assert set(remote._store.sizes(OBJECTS)) == named

    remote._store.write("step-000000020.json", b"{")  # which objects it needs nobody knows
    remote._store.write(f"{OBJECTS}{'0' * 64}", b"left")
    with pytest.raises(CheckpointError, match=r"manifest\.json is damaged"):
        remote.sweep()


def test_an_object_that_is_swept_under_an_upload_is_sent_again(
    tmp_path: Path, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two processes: one uploads, and finds objects there that the other is just about to sweep."""
    path = save(CheckpointFolder(tmp_path / "local"), 10)
    uploading, sweeping = Remote(url), Remote(url)
    for file in path.glob("*.distcp"):  # an upload that broke off, a day ago
        uploading._store.write(OBJECTS + folder_module.digest_of(file), file.read_bytes())
    monkeypatch.setattr(sweeping._store, "age", lambda _: ORPHAN_AGE * 1.01)
    create = uploading._store.create

    def late(name: str, data: bytes) -> None:
        sweeping.sweep()
        create(name, data)

    monkeypatch.setattr(uploading._store, "create", late)
    uploading.push(path)
    fetched = Remote(url).fetch(CheckpointFolder(tmp_path / "elsewhere"))
    assert fetched is not None
    assert fetched.step == 10


def test_a_published_checkpoint_is_never_replaced(tmp_path: Path, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two writers publish the same step at once, each having seen that it is not there."""
    path = save(CheckpointFolder(tmp_path / "local"), 10)
    first, second = Remote(url), Remote(url)
    first.push(path)
    before = first._store.read("step-000000010.json")
    monkeypatch.setattr(second, "manifests", list)
    other = CheckpointFolder(tmp_path / "other", writer=Writer(run="other")).save(10, state(11))
    second.push(other)
    assert first._store.read("step-000000010.json") == before
    assert first.verify("step-000000010.json").step == 10


class ShakyProxy:
    """Passes requests on, after the accidents that are asked for, one each."""

    def __init__(self, behind: str) -> None:
        self.accidents: list[str] = []
        self.denied: set[str] = set()  # methods
        shaky = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def _pass(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                if self.command in shaky.denied:
                    self._answer(403, b"<Error><Code>AccessDenied</Code><Message>Access Denied</Message></Error>", {})
                    return
                match shaky.accidents.pop(0) if shaky.accidents else "":
                    case "cut":
                        self.close_connection = True
                        self.connection.shutdown(socket.SHUT_RDWR)
                        return
                    case "slow down":
                        self._answer(503, b"<Error><Code>SlowDown</Code><Message>slow down</Message></Error>", {})
                        return
                    case "error":
                        self._answer(500, b"<Error><Code>InternalError</Code><Message>again</Message></Error>", {})
                        return
                connection = http.client.HTTPConnection(behind.partition("://")[2], timeout=PATIENCE)
                connection.request(self.command, self.path, body=body, headers=dict(self.headers))
                response = connection.getresponse()
                self._answer(response.status, response.read(), dict(response.getheaders()))
                connection.close()

            do_GET = do_PUT = do_HEAD = do_POST = do_DELETE = _pass  # noqa: N815

            def _answer(self, status: int, body: bytes, headers: dict[str, str]) -> None:
                self.send_response_only(status)
                for name, value in headers.items():
                    if name.lower() not in {"content-length", "transfer-encoding", "connection"}:
                        self.send_header(name, value)
                length = headers.get("Content-Length", "0") if self.command == "HEAD" else str(len(body))
                self.send_header("Content-Length", length)
                self.end_headers()
                if self.command != "HEAD":
                    self.wfile.write(body)

            def log_message(self, *_: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.address = f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> "ShakyProxy":
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
