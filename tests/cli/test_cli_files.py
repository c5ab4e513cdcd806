"""Files that commands write for the user: whole, or not at all; devices stay devices."""

from __future__ import annotations

import os
import stat
import threading
from pathlib import Path

import pytest

from infra.cli.files import write
from infra.errors import TrainyardError, UsageError


def test_a_file_is_written_with_the_rights_of_any_new_file(tmp_path: Path) -> None:
    write(tmp_path / "a.md", "größe \ud800")
    mask = os.umask(0)
    os.umask(mask)
    assert stat.S_IMODE((tmp_path / "a.md").stat().st_mode) == 0o666 & ~mask
    assert (tmp_path / "a.md").read_text(encoding="utf-8") == "größe ?"


@pytest.mark.parametrize("name", ["", ".", "no/such/folder", "x" * 300])
def test_what_cannot_be_written_is_a_sentence_and_leaves_nothing(tmp_path: Path, name: str) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    with pytest.raises(UsageError, match="cannot be written"):
        write(folder / name, "a")
    assert list(folder.iterdir()) == []
    assert [one.name for one in tmp_path.iterdir()] == ["folder"]


def test_a_pipe_is_written_into_and_not_replaced(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    read: list[str] = []
    reader = threading.Thread(target=lambda: read.append(pipe.read_text()), daemon=True)
    reader.start()
    write(pipe, b"through")
    reader.join(timeout=300)
    assert read == ["through"]
    assert stat.S_ISFIFO(pipe.stat().st_mode)


def test_a_link_is_followed(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("target")
    write(tmp_path / "link", "a")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "target").read_text() == "a"


def test_a_full_disk_is_a_sentence() -> None:
    full = Path("/dev/full")
    with pytest.raises(TrainyardError, match="No space left on device"):
        write(full, "a")
    assert stat.S_ISCHR(full.stat().st_mode)
