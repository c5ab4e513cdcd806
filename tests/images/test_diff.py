"""`trainyard images diff`: what a version bump changes, between rows, revisions of git, and folders."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import infra.cli
from images.diff import ROOT, State, at_revision, compare, in_folder, state_of
from images.errors import MatrixError
from images.matrix import matrix
from images.render import render
from infra.errors import TrainyardError, UsageError

Run = Callable[..., tuple[int, str, str]]
NEW, OLD = "torch2.15-cuda13.2", "torch2.9-cuda12.8"


def state(name: str) -> State:
    return state_of(render(matrix().row(name)))


@pytest.fixture
def diff(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    def run(*arguments: str | Path) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["trainyard", "images", "diff", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            infra.cli.main()
        output = capsys.readouterr()
        return int(ended.value.code or 0), output.out, output.err

    return run


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A repository with the rooms that render, as they are now."""
    root = tmp_path / "checkout"
    for room in ("images", "infra", "training"):
        shutil.copytree(ROOT / room, root / room, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", root)
    git(root, "init", "--quiet", "--initial-branch=main")
    commit(root, "first")
    return root


def git(root: Path, *arguments: str) -> None:
    names = {f"GIT_{who}_{what}": "a@example.com" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
    environment = {**os.environ, **names, "GIT_CONFIG_GLOBAL": os.devnull}
    subprocess.run(["git", "-C", root, *arguments], check=True, capture_output=True, env=environment)


def commit(root: Path, message: str) -> None:
    git(root, "add", "--all", "--force")
    git(root, "commit", "--quiet", f"--message={message}")
    git(root, "tag", message)


def test_a_row_does_not_differ_from_itself() -> None:
    assert not compare(state(NEW), state(NEW))


def test_facts_packages_and_the_dockerfile_are_compared() -> None:
    found = compare(state(OLD), state(NEW))
    facts = {one.name: (one.old, one.new) for one in found.facts}
    assert facts["torch"] == ("2.9.1", "2.15.0")
    assert facts["GPU code, amd64"] == ("sm_70", None)
    packages = {one.name: (one.old, one.new) for one in found.packages}
    assert packages["torch"] == ("2.9.1", "2.15.0")
    assert packages["nvidia-nccl-cu12"][1] is None
    assert packages["nvidia-nccl-cu13"][0] is None
    assert packages["numpy"] == ("2.4.6, 2.5.5", "2.4.6"), "a lock has a version for each Python"
    assert found.dockerfile[:2] == (f"--- {OLD}/Dockerfile", f"+++ {NEW}/Dockerfile")


def test_a_newer_cuda_says_which_machines_need_a_newer_driver_and_which_gpus_are_lost() -> None:
    said = " ".join(compare(state(OLD), state(NEW)).meaning)
    assert "The oldest driver rises from 525.60.13 to 580.65.06" in said
    assert "The locked al2023 image of EKS has driver" in said
    assert "All workers of a job need the same NCCL" in said
    assert "CUDA's major version changes" in said


def test_an_older_machine_image_is_named_as_too_old() -> None:
    new = state(NEW)
    future = dataclasses.replace(new, facts={**new.facts, "oldest driver": "999.1"})
    said = compare(new, future).meaning
    assert any("al2023" in one and "too old" in one for one in said)
    assert compare(future, new).meaning == (
        "The oldest driver falls from 999.1 to 580.65.06: older machines can run it.",
    )


def test_gpus_whose_code_goes_or_comes_are_named() -> None:
    new = state(NEW)
    less = dataclasses.replace(new, sm={**new.sm, "amd64": ("sm_80", "sm_90")})
    (lost,) = (one for one in compare(new, less).meaning if "no code now" in one)
    assert "T4" in lost
    assert "H100" not in lost
    assert any("code now for" in one and "T4" in one for one in compare(less, new).meaning)
    by_the_driver = dataclasses.replace(new, sm={**new.sm, "amd64": ("compute_75",)})
    assert not any("no code now" in one for one in compare(new, by_the_driver).meaning)


def test_a_plugin_that_goes_is_named() -> None:
    said = compare(state("torch2.15-cuda13.2-efa"), state(NEW)).meaning
    assert any("no EFA plugin any more" in one for one in said)


def test_a_changed_base_means_that_machines_pull_everything() -> None:
    new = state(NEW)
    other = dataclasses.replace(new, facts={**new.facts, "base": "debian:bookworm-slim@sha256:1"})
    assert any("pull the whole image" in one for one in compare(new, other).meaning)


def test_two_rows_are_compared_by_the_command(diff: Run) -> None:
    code, out, err = diff(OLD, "--to", NEW)
    assert (code, err) == (0, "")
    assert f"{OLD} -> {NEW}" in out
    assert out.index("2.9.1") < out.index("The oldest driver rises") < out.index("@@ ")
    code, out, _ = diff(OLD, "--to", NEW, "--json", "--exit-code")
    assert code == 1
    (found,) = json.loads(out)["differences"]
    assert (found["old"], found["new"]) == (OLD, NEW)
    assert {"name": "torch", "old": "2.9.1", "new": "2.15.0"} in found["facts"]


def test_what_was_compared_is_said_where_nothing_differs(diff: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "Nothing differs from cpu." in diff("torch2.15-cpu", "--to", "cpu")[2]
    now = {"torch2.15-cpu": state("cpu")}
    monkeypatch.setattr("images.diff.at_revision", lambda _: now)
    assert "Nothing differs from HEAD." in diff("cpu")[2]
    assert "Nothing differs from main." in diff("cpu", "--against", "main")[2]


def test_a_folder_that_was_rendered_is_compared_one_row_or_many(diff: Run, tmp_path: Path) -> None:
    one = tmp_path / "one"
    render(matrix().row("cpu")).write(one)
    many = tmp_path / "many"
    for name in ("cpu", "cuda"):
        render(matrix().row(name)).write(many / name)
    for folder in (one, many):
        code, out, err = diff("--folder", folder, "--exit-code")
        assert (code, out) == (0, ""), out
        assert f"Nothing differs from {folder}." in " ".join(err.split())
    dockerfile = many / "cuda" / "Dockerfile"
    dockerfile.write_text(dockerfile.read_text().replace("NCCL_DEBUG=WARN", "NCCL_DEBUG=INFO"))
    code, out, _ = diff("--folder", many, "--exit-code")
    assert code == 1
    assert "-ENV NCCL_DEBUG=INFO\n+ENV NCCL_DEBUG=WARN\n" in out
    assert "torch2.15-cpu" not in out
    code, _, err = diff("efa", "--folder", many)
    assert code == 2
    assert "has no row torch2.15-cuda13.2-efa. It has:" in err


def test_another_revision_renders_with_its_own_matrix_and_templates(checkout: Path) -> None:
    before = (checkout / "images" / "templates" / "training.Dockerfile.j2").read_text()
    (checkout / "images" / "templates" / "training.Dockerfile.j2").write_text(f"{before}\n# another end\n")
    commit(checkout, "second")
    first, second = at_revision("first", checkout), at_revision("second", checkout)
    assert list(first) == sorted(row.name for row in matrix().rows)
    assert not compare(first[NEW], dataclasses.replace(state(NEW), name=NEW))
    assert compare(first[NEW], second[NEW]).dockerfile[-1] == "+# another end"
    assert (checkout / "images" / "templates" / "training.Dockerfile.j2").read_text().endswith("another end\n")


def test_a_revision_that_cannot_render_says_so(checkout: Path) -> None:
    (checkout / "images" / "matrix.toml").write_text("schema = 2\n")
    commit(checkout, "broken")
    with pytest.raises(TrainyardError, match="broken cannot render its rows"):
        at_revision("broken", checkout)
    (checkout / "images" / "render.py").unlink()
    commit(checkout, "empty")
    with pytest.raises(UsageError, match=r"empty has no images/render\.py"):
        at_revision("empty", checkout)


@pytest.mark.parametrize("revision", ["no-such-branch", "--output=x", "", "HEAD:README.md"])
def test_what_git_does_not_know_is_refused(tmp_path: Path, revision: str) -> None:
    git(tmp_path, "init", "--quiet")
    (tmp_path / "README.md").write_text("a\n")
    commit(tmp_path, "first")
    with pytest.raises(UsageError, match="git knows no revision"):
        at_revision(revision, tmp_path)


def test_without_a_checkout_a_folder_is_the_way(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="compare with --folder"):
        at_revision("HEAD", tmp_path)


@pytest.mark.parametrize(
    ("name", "content", "sentence"),
    [
        ("image.json", b"{", "is no JSON object"),
        ("image.json", b"[]", "is no JSON object"),
        ("image.json", b"\xff", "is no JSON object"),
        ("requirements.txt", b"0" * (17 << 20), "longer than 16 MiB"),
    ],
)
def test_a_damaged_folder_is_refused_with_a_sentence(tmp_path: Path, name: str, content: bytes, sentence: str) -> None:
    render(matrix().row("cpu")).write(tmp_path / "cpu")
    (tmp_path / "cpu" / name).write_bytes(content)
    with pytest.raises(UsageError, match=sentence):
        in_folder(tmp_path)


def test_a_folder_without_anything_is_refused(tmp_path: Path) -> None:
    for folder in (tmp_path, tmp_path / "absent"):
        with pytest.raises(UsageError, match="has no Dockerfile"):
            in_folder(folder)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("--to", NEW), f"trainyard images diff ROW --to {NEW}"),
        ((NEW, "--to", OLD, "--against", "HEAD"), "give one"),
        (("no-such-row", "--to", OLD), "there is no image 'no-such-row'"),
        (("--against", "no-such-branch"), "git knows no revision 'no-such-branch'"),
    ],
)
def test_the_command_says_what_it_cannot_do(diff: Run, arguments: tuple[str, ...], sentence: str) -> None:
    code, out, err = diff(*arguments)
    assert (code, out) == (2, "")
    assert sentence in err


def test_an_unknown_row_is_an_error_of_the_matrix() -> None:
    with pytest.raises(MatrixError):
        state("no-such-row")
