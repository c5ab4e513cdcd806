"""The store of loaded images: complete or absent, one change at a time, and what clusters are told of it."""

import json
import os
import signal
import stat
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from oci_archives import Layout, as_ordinary_user, entry, folder, layer

from infra.local.errors import LocalClusterError
from infra.local.images import ImageStore, StoredImage, normalised
from infra.local.images.clusters import refresh, running, users
from infra.local.images.table import entries, write_table
from infra.local.processes import MARK
from infra.local.state import State

CONTENT = layer(folder("etc"), entry("etc/made", "of the image"))
CONFIG: dict[str, Any] = {
    "Entrypoint": ["python", "-m"],
    "Cmd": ["training"],
    "Env": ["PATH=/opt/bin:/bin", "EMPTY=", "SUM=1+1=2"],
    "WorkingDir": "/workspace",
    "User": "65532:65532",
    "StopSignal": "SIGINT",
}


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    return Layout(CONTENT, **CONFIG).write(tmp_path / "small.tar")


@pytest.fixture
def store(tmp_path: Path) -> ImageStore:
    return ImageStore(tmp_path / "images")


def left(store: ImageStore) -> list[str]:
    return sorted(path.name for path in store.folder.iterdir() if path.name != "lock")


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("trainyard/training:cpu", "trainyard/training:cpu"),
        ("docker.io/library/debian", "debian:latest"),
        ("localhost/x:1", "localhost/x:1"),
        ("host.example:5000/a/b", "host.example:5000/a/b:latest"),
    ],
)
def test_names_have_one_spelling(given: str, expected: str) -> None:
    assert normalised(given) == expected


@pytest.mark.parametrize(
    "name", ["", "a b", "Training", "../up:1", "/etc:1", "a@sha256:00", "-x", "a:" + "b" * 129, "a//b"]
)
def test_what_can_be_no_name_is_refused(name: str) -> None:
    with pytest.raises(LocalClusterError, match="can't be the name of an image"):
        normalised(name)


def test_a_loaded_image_is_there_under_its_name(store: ImageStore, archive: Path) -> None:
    seen: list[tuple[int, int]] = []
    image = store.load(archive, progress=lambda done, size: seen.append((done, size)))
    assert seen[-1][0] == seen[-1][1] > 0
    assert image.name == "trainyard/small:1"
    assert image.pinned == f"trainyard/small@{image.digest}"
    assert (image.rootfs / "etc/made").read_text() == "of the image"
    assert image.size == len("of the image")
    assert store.images() == [image]
    assert image.rootfs.parent.name == image.image_id.replace(":", "-")
    assert stat.S_IMODE(store.folder.stat().st_mode) == 0o700
    assert stat.S_IMODE((store.folder / "names.json").stat().st_mode) == 0o600


def test_its_entry_of_the_image_table_says_how_it_runs(store: ImageStore, archive: Path) -> None:
    image = store.load(archive)
    assert entries([image]) == {
        "trainyard/small:1": {
            "rootfs": str(image.rootfs),
            "digest": image.digest,
            "entrypoint": ["python", "-m"],
            "cmd": ["training"],
            "environment": {"PATH": "/opt/bin:/bin", "EMPTY": "", "SUM": "1+1=2"},
            "workingDir": "/workspace",
            "user": "65532:65532",
            "stopSignal": "SIGINT",
            "size": image.size,
        }
    }


def test_an_image_without_settings_has_none(store: ImageStore, tmp_path: Path) -> None:
    layout = Layout(CONTENT)
    layout.config["config"] = None
    found = entries([store.load(layout.write(tmp_path / "bare.tar"))])["trainyard/small:1"]
    assert (found["entrypoint"], found["environment"], found["user"]) == ([], {}, "")


def test_several_names_share_the_files_which_go_with_the_last(store: ImageStore, archive: Path) -> None:
    first = store.load(archive)
    inode = (first.rootfs / "etc/made").stat().st_ino
    second = store.load(archive, "trainyard/other")
    assert (second.rootfs / "etc/made").stat().st_ino == inode
    assert [image.name for image in store.images()] == ["trainyard/other:latest", "trainyard/small:1"]
    store.remove("trainyard/small:1")
    assert second.rootfs.exists()
    store.remove("trainyard/other:latest")
    assert left(store) == ["names.json"]
    with pytest.raises(LocalClusterError, match="there is no loaded image trainyard/other:latest"):
        store.remove("trainyard/other")


def test_a_name_that_moves_on_takes_the_old_image_away(store: ImageStore, archive: Path, tmp_path: Path) -> None:
    old = store.load(archive)
    new = store.load(Layout(layer(entry("new", "x"))).write(tmp_path / "new.tar"))
    assert not old.rootfs.exists()
    assert [image.rootfs for image in store.images()] == [new.rootfs]


def test_an_image_that_is_replaced_stays_under_its_digest_while_pods_run_in_it(
    store: ImageStore, archive: Path, tmp_path: Path
) -> None:
    used: set[str] = set()
    old = store.load(archive)
    used.add(old.digest)

    def load(content: str) -> StoredImage:
        path = Layout(layer(entry("new", content))).write(tmp_path / "new.tar")
        return store.load(path, in_use=lambda image: image.digest in used)

    new = load("x")
    assert [image.name for image in store.images()] == ["trainyard/small:1", old.pinned]
    assert store.find("trainyard/small:1").digest == new.digest
    assert store.find(old.pinned).rootfs == old.rootfs
    assert store.find(old.pinned).pinned == old.pinned
    assert (old.rootfs / "etc/made").exists()
    assert entries(store.images())[old.pinned]["digest"] == old.digest
    load("y")
    assert [image.name for image in store.images()] == ["trainyard/small:1", old.pinned]
    used.clear()
    load("z")
    assert [image.name for image in store.images()] == ["trainyard/small:1"]
    assert len(left(store)) == len(["names.json", "the image"])


def test_an_image_in_use_that_comes_back_has_its_name_again(store: ImageStore, archive: Path, tmp_path: Path) -> None:
    old = store.load(archive)
    other = Layout(layer(entry("new", "x"))).write(tmp_path / "new.tar")
    new = store.load(other, in_use=lambda _: True)
    assert store.load(archive, in_use=lambda image: image.digest == new.digest) == old
    assert [image.name for image in store.images()] == ["trainyard/small:1", new.pinned]
    store.remove(new.pinned)
    assert store.images() == [old]


def test_what_an_interrupted_removal_left_does_not_stop_the_next(store: ImageStore, archive: Path) -> None:
    image = store.load(archive)
    half = store.folder / f".unfinished-{image.rootfs.parent.name}"
    (half / "rootfs").mkdir(parents=True)
    store.remove(image.name)
    assert left(store) == ["names.json"]


def test_names_that_cannot_be_read_are_said_plainly(store: ImageStore) -> None:
    (store.folder / "names.json").mkdir(parents=True)
    with pytest.raises(LocalClusterError, match=r"names\.json can't be read: Is a directory"):
        store.images()


def test_an_archive_that_does_not_say_its_name_needs_one(store: ImageStore, tmp_path: Path) -> None:
    for said in (None, "latest"):
        path = Layout(CONTENT, name=said).write(tmp_path / "nameless.tar")
        with pytest.raises(LocalClusterError, match="doesn't say what its image is called"):
            store.load(path)
    assert store.load(path, "trainyard/named:1").name == "trainyard/named:1"


@pytest.mark.parametrize(
    ("tag", "name"),
    [
        ("localhost/trainyard/tagged:1", "trainyard/tagged:1"),
        ("trainyard/tagged", "trainyard/tagged:latest"),
        ("registry.example/team/tagged:1", "registry.example/team/tagged:1"),
    ],
)
def test_an_image_of_a_build_tool_is_called_by_its_tag(store: ImageStore, tmp_path: Path, tag: str, name: str) -> None:
    for said in (None, "latest", "trainyard/other:1"):
        path = Layout(CONTENT, name=said).write(tmp_path / "saved.tar")
        assert store.load(path, tag=tag).name == name


@pytest.mark.parametrize("tag", ["ab" * 8, f"sha256:{'ab' * 32}", f"trainyard/tagged@sha256:{'ab' * 32}"])
def test_an_image_that_is_named_by_its_id_needs_a_name(store: ImageStore, archive: Path, tag: str) -> None:
    with pytest.raises(LocalClusterError, match="not what the image is called") as caught:
        store.load(archive, tag=tag)
    assert f"trainyard images load {tag} --name" in str(caught.value)
    assert str(archive) not in str(caught.value)
    assert store.load(archive, "trainyard/named:1", tag=tag).name == "trainyard/named:1"


def test_no_message_names_the_file_that_a_build_tool_wrote(store: ImageStore, tmp_path: Path) -> None:
    path = tmp_path / "saved.tar"
    own = Layout(CONTENT).write(path)
    with pytest.raises(LocalClusterError, match="this checkout's own") as reserved:
        store.load(own, tag="localhost/trainyard/controller:local", reserved=frozenset({"trainyard/controller:local"}))
    path.write_text("text")
    with pytest.raises(LocalClusterError, match="no tar file") as damaged:
        store.load(path, tag="trainyard/tagged:1")
    assert "trainyard/tagged:1" in str(damaged.value)
    assert str(path) not in f"{reserved.value}{damaged.value}"


def test_the_checkouts_own_names_are_given_away_only_on_purpose(store: ImageStore, tmp_path: Path) -> None:
    path = Layout(CONTENT, name="docker.io/trainyard/controller:local").write(tmp_path / "controller.tar")
    reserved = frozenset({"trainyard/controller:local"})
    with pytest.raises(LocalClusterError, match="this checkout's own"):
        store.load(path, reserved=reserved)
    assert store.load(path, "trainyard/controller:local", reserved=reserved).name == "trainyard/controller:local"


def test_a_broken_archive_leaves_nothing(store: ImageStore, archive: Path, tmp_path: Path) -> None:
    image = store.load(archive)
    broken = Layout(layer(entry("fine", "x")), layer(entry("../out", "x")))
    with pytest.raises(LocalClusterError, match="refused"):
        store.load(broken.write(tmp_path / "broken.tar"))
    wrong = Layout(layer(entry("fine", "x")))
    wrong.config["rootfs"]["diff_ids"] = ["sha256:" + "0" * 64]
    with pytest.raises(LocalClusterError, match="damaged"):
        store.load(wrong.write(tmp_path / "wrong.tar"))
    assert store.images() == [image]
    assert left(store) == ["names.json", image.rootfs.parent.name]


def test_a_load_that_is_killed_leaves_nothing_that_counts(store: ImageStore, archive: Path) -> None:
    child = os.fork()
    if child == 0:
        store.load(archive, progress=lambda *_: os.kill(os.getpid(), signal.SIGKILL))
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
    assert store.images() == []
    assert len(left(store)) == 1
    image = store.load(archive)
    assert left(store) == ["names.json", image.rootfs.parent.name]


def test_an_incomplete_folder_is_made_anew(store: ImageStore, archive: Path) -> None:
    image = store.load(archive)
    (image.rootfs.parent / "image.json").write_text("{")
    assert store.images() == []
    assert store.load(archive) == image


def test_damaged_names_are_said_plainly(store: ImageStore, archive: Path) -> None:
    store.load(archive)
    (store.folder / "names.json").write_text("[]")
    with pytest.raises(LocalClusterError, match=r"names\.json is damaged"):
        store.images()


def test_what_was_on_its_way_in_is_gone_with_the_command_or_after_a_day(store: ImageStore) -> None:
    with store.scratch() as folder:
        (folder / "image.tar").touch()
    abandoned, recent = store.folder / ".arriving-old", store.folder / ".arriving-new"
    for path in (abandoned, recent):
        path.mkdir()
    os.utime(abandoned, (0, 0))
    with store.scratch() as folder:
        assert left(store) == sorted([recent.name, folder.name])


def test_two_at_once_wait_for_each_other(store: ImageStore, archive: Path) -> None:
    notes: list[str] = []
    second = threading.Thread(target=lambda: store.load(archive, "trainyard/second:1", note=notes.append))

    def progress(*_: int) -> None:
        if not second.ident:
            second.start()
            while not notes:
                second.join(0.01)

    store.load(archive, progress=progress)
    second.join(60)
    assert notes == ["waiting for another command that changes the loaded images"]
    assert [image.name for image in store.images()] == ["trainyard/second:1", "trainyard/small:1"]


def test_an_ordinary_user_loads_and_removes_any_image(short_tmp: Path) -> None:
    closed = layer(
        folder("dark", 0, uid=0), entry("dark/x", "x", mode=0), folder("closed", 0o555), entry("closed/y", "y")
    )
    path = Layout(closed, name="trainyard/closed:1").write(short_tmp / "closed.tar")

    def act() -> None:
        store = ImageStore(short_tmp / "images")
        store.load(path)
        store.remove("trainyard/closed:1")
        assert left(store) == ["names.json"]

    as_ordinary_user(short_tmp, act)


def test_the_table_has_the_checkouts_images_and_the_loaded_ones(
    store: ImageStore, archive: Path, short_tmp: Path
) -> None:
    state = State(short_tmp / "state")
    own = {"trainyard/small:1": {"entrypoint": ["own"]}, "trainyard/etcd:local": {"entrypoint": ["etcd"]}}
    write_table(state, store, own)

    def table() -> dict[str, dict[str, object]]:
        found: dict[str, dict[str, object]] = json.loads(state.path("images.json").read_bytes())["images"]
        return found

    assert table() == own
    image = store.load(archive)
    write_table(state, store)
    assert table()["trainyard/small:1"]["rootfs"] == str(image.rootfs)
    assert table()["trainyard/etcd:local"] == own["trainyard/etcd:local"]
    store.remove("trainyard/small:1")
    write_table(state, store)
    assert table() == own


def test_clusters_that_run_are_told_and_asked(store: ImageStore, archive: Path, short_tmp: Path) -> None:
    up, down = State(short_tmp / "up"), State(short_tmp / "down")
    for state in (up, down):
        write_table(state, store, {})
    image = store.load(archive)
    script = "print('ready', flush=True); input()"
    with subprocess.Popen(
        [sys.executable, "-c", script],
        env={**os.environ, MARK: f"{up.directory}:cloud"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as process:
        assert process.stdout
        process.stdout.readline()
        assert [state.directory for state in running(store)] == [up.directory]
        assert running(ImageStore(short_tmp / "another")) == []
        told = refresh(store, lambda _: None)
        assert told == [up.directory]
        assert image.name in json.loads(up.path("images.json").read_bytes())["images"]
        for number in (1, 2):
            record = up.folder("nodes", "n-1", "runtime", "containers", str(number)) / "record.json"
            labels = {"io.kubernetes.pod.name": f"pod-{number}", "io.kubernetes.pod.namespace": "training"}
            record.write_text(json.dumps({"Image": image.digest, "State": number, "Config": {"labels": labels}}))
        assert users(store, image) == ["training/pod-1 (up)"]
        process.communicate(b"\n")
    assert running(store) == []
    assert users(store, image) == []
