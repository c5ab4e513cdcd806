"""`trainyard images load|list|remove` as a user types them."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from oci_archives import Layout, entry, layer

TRAINYARD = Path(sys.executable).with_name("trainyard")


class Command:
    """The command, with a cache and without clusters of its own."""

    def __init__(self, folder: Path) -> None:
        self.cache = folder / "cache"
        self.environment = {**os.environ, "TRAINYARD_CACHE_DIR": str(self.cache), "COLUMNS": "200"}

    def __call__(self, *arguments: str | Path, code: int = 0) -> tuple[str, str]:
        done = subprocess.run(
            [TRAINYARD, "images", *arguments],
            env=self.environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == code, done.stdout + done.stderr
        assert "Traceback" not in done.stderr
        return done.stdout, done.stderr

    def json(self, *arguments: str | Path) -> Any:
        return json.loads(self(*arguments, "--json")[0])


@pytest.fixture
def command(tmp_path: Path) -> Command:
    return Command(tmp_path)


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    return Layout(layer(entry("made", "x" * 1000), entry("null", type=b"3"))).write(tmp_path / "small.tar")


def test_an_image_is_loaded_listed_and_removed(command: Command, archive: Path) -> None:
    assert "No image is loaded" in command("list")[0]
    out, err = command("load", archive)
    assert out.startswith("trainyard/small:1 (trainyard/small@sha256:")
    assert "100 % of" in err
    assert "left out: 1 device files" in err
    assert "trainyard/small:1" in command("list")[0]
    assert command("remove", "trainyard/small:1")[0] == "trainyard/small:1 is no longer loaded.\n"
    assert command.json("list") == {"images": [], "folder": str(command.cache / "images")}


def test_each_of_them_writes_one_document(command: Command, archive: Path) -> None:
    loaded = command.json("load", archive, "--name", "trainyard/named:2")
    assert loaded["name"] == "trainyard/named:2"
    assert loaded["clusters"] == [] or all(Path(one).is_absolute() for one in loaded["clusters"])
    (listed,) = command.json("list")["images"]
    assert listed == {key: value for key, value in loaded.items() if key not in ("clusters", "seconds")}
    assert Path(listed["rootfs"], "made").stat().st_size == listed["size"] == 1000
    assert command.json("remove", "trainyard/named:2")["removed"] == "trainyard/named:2"


def test_mistakes_are_plain(command: Command, archive: Path, tmp_path: Path) -> None:
    assert "not there" in command("load", tmp_path / "none.tar", code=2)[1]
    assert "a folder" in command("load", tmp_path, code=2)[1]
    (tmp_path / "text.tar").write_text("text")
    assert "no tar file" in command("load", tmp_path / "text.tar", code=1)[1]
    assert "can't be the name" in command("load", archive, "--name", "No Name", code=1)[1]
    assert "there is no loaded image" in command("remove", "none", code=1)[1]
    own = Layout(layer(entry("made", "x")), name="trainyard/controller:local").write(tmp_path / "own.tar")
    assert "--name trainyard/controller:local" in command("load", own, code=1)[1]


@pytest.mark.engines  # it needs what the process runtime needs: file systems of its own
def test_a_full_disk_is_said_and_left_as_it_was(command: Command, tmp_path: Path) -> None:
    noise = os.urandom(12 << 20)
    layers = layer(entry("fits", noise[: 2 << 20])), layer(entry("does-not", noise))
    large = Layout(*layers).write(tmp_path / "large.tar")
    command.cache.mkdir()
    script = f"""mount -t tmpfs -o size=10m tmpfs {command.cache}
        {TRAINYARD} images load {large}; echo "code $?"
        ls -A {command.cache}/images; df --output=used {command.cache}"""
    kind = ["-m"] if os.geteuid() == 0 else ["-r", "-m"]
    done = subprocess.run(
        ["unshare", *kind, "sh", "-c", script],
        env=command.environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert "code 1\nlock\n" in done.stdout, done.stdout + done.stderr
    assert int(done.stdout.split()[-1]) < 100
    assert "the disk is full" in done.stderr
    assert "Traceback" not in done.stderr
