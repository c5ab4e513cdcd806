"""Contexts in folders: complete or absent, and never over something else."""

from __future__ import annotations

import json
import os
import shlex
import stat
from pathlib import Path

import pytest
from typer.testing import CliRunner

from images.context import MARK, write
from images.errors import BuildError
from images.matrix import matrix
from images.render import render
from infra.cli.images import app
from infra.errors import UsageError


def test_a_context_is_written_as_it_is_whatever_the_umask(tmp_path: Path) -> None:
    context = render(matrix().row("controller"))
    before = os.umask(0o077)
    try:
        context.write(tmp_path / "new" / "controller")
    finally:
        os.umask(before)
    folder = tmp_path / "new" / "controller"
    written = {path.relative_to(folder).as_posix(): path for path in folder.rglob("*") if path.is_file()}
    assert {name: path.read_bytes() for name, path in written.items() if name != MARK} == dict(context.files)
    assert {stat.S_IMODE(path.stat().st_mode) for path in written.values()} == {0o644}
    assert {stat.S_IMODE(path.stat().st_mode) for path in (folder, *folder.rglob("*/"))} == {0o755}
    assert {path.stat().st_mtime for path in written.values()} == {0}


def test_writing_again_leaves_nothing_of_the_old_files(tmp_path: Path) -> None:
    write(tmp_path / "out", {"old/file": b"1", "both": b"1"})
    write(tmp_path / "out", {"both": b"2"})
    assert {path.name for path in (tmp_path / "out").iterdir()} == {MARK, "both"}
    assert (tmp_path / "out" / "both").read_bytes() == b"2"
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_a_folder_of_somebody_else_stays_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "thesis").write_text("mine")
    with pytest.raises(UsageError, match="was not written by"):
        write(tmp_path / "home", {"file": b""})
    assert (tmp_path / "home" / "thesis").read_text() == "mine"
    write(tmp_path / "home", {"file": b""}, force=True)
    assert not (tmp_path / "home" / "thesis").exists()


def test_an_empty_folder_is_used_and_a_file_or_link_is_not(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    write(tmp_path / "empty", {"file": b""})
    (tmp_path / "file").write_text("")
    (tmp_path / "link").symlink_to(tmp_path / "empty")
    for name in ("file", "link"):
        with pytest.raises(UsageError, match="is no folder"):
            write(tmp_path / name, {"file": b""})


def test_a_name_that_leaves_the_folder_is_an_error_and_leaves_nothing_behind(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="leaves the folder"):
        write(tmp_path / "out", {"../outside": b""})
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_made_is_a_plain_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(BuildError, match="out cannot be written"):
        write(tmp_path / "file" / "out", {"file": b""})


def test_the_command_prints_one_dockerfile(tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["render", "controller"])
    assert result.exit_code == 0
    assert result.stdout == render(matrix().row("controller")).dockerfile
    assert list(tmp_path.iterdir()) == []


def test_the_command_writes_folders_and_a_bake_file(tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["render", "controller", "cpu", "-o", str(tmp_path / "out"), "--json"])
    assert result.exit_code == 0
    assert [one["row"] for one in json.loads(result.stdout)] == ["controller", matrix().row("cpu").name]
    document = json.loads((tmp_path / "out" / "docker-bake.json").read_text())
    for target in document["target"].values():
        assert (tmp_path / "out" / target["context"] / target["dockerfile"]).is_file()


def test_the_command_says_how_the_same_is_built_here(tmp_path: Path) -> None:
    (tmp_path / "my code").mkdir()
    (tmp_path / "my code" / "train.py").write_text("")
    options = ["--source", str(tmp_path / "my code"), "--apt", "libgl1", "--apt", "git"]
    result = CliRunner().invoke(app, ["render", "cpu", "-o", str(tmp_path / "out"), *options])
    assert result.exit_code == 0, result.output
    words = shlex.split(result.stderr.splitlines()[-1])
    assert words == ["trainyard", "images", "build", matrix().row("cpu").name, *options]


def test_the_command_warns_of_what_is_not_pinned_and_of_what_it_left_out(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("")
    (tmp_path / ".netrc").write_text("")
    result = CliRunner().invoke(app, ["render", "cpu", "--base-image", "debian:bookworm", "--source", str(tmp_path)])
    assert result.exit_code == 0
    assert "debian:bookworm has no digest" in result.stderr
    assert ".netrc" in result.stderr
    assert "no digest" not in CliRunner().invoke(app, ["render", "cpu", "--base-image", "localhost/base:1"]).stderr


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "no image was named"),
        (["cpu", "cuda"], "one Dockerfile at a time"),
        (["--all"], "one Dockerfile at a time"),
        (["cpu", "--all"], "--all is all rows"),
        (["cpuu"], "there is no image 'cpuu'"),
    ],
)
def test_the_command_refuses_what_it_cannot_do(arguments: list[str], said: str) -> None:
    result = CliRunner().invoke(app, ["render", *arguments])
    assert isinstance(result.exception, UsageError)
    assert said in str(result.exception)
