"""The little shell scripts of the workflows, run as the workflows run them."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from ci.stacks import ROOT


def run(script: Path, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [script, *arguments], env={"PATH": os.environ["PATH"], **variables}, capture_output=True, text=True, check=False
    )


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A repository with the script in it, and an image lock that was just written."""
    (tmp_path / "ci").mkdir()
    shutil.copy(ROOT / "ci/image-lock.sh", tmp_path / "ci")
    who = ["-c", "user.name=Tests", "-c", "user.email=tests@example.com"]
    for command in (["init", "-q"], ["add", "ci"], [*who, "commit", "-qm", "begin"]):
        subprocess.run(["git", *command], cwd=tmp_path, check=True)
    (tmp_path / "images.dev.toml").write_text('controller = "registry.example/controller@sha256:1"\n')
    return tmp_path


def test_what_was_pushed_is_shown_as_a_change(checkout: Path) -> None:
    summary = checkout / "summary.md"
    done = run(checkout / "ci/image-lock.sh", "dev", GITHUB_STEP_SUMMARY=str(summary))
    assert done.returncode == 0, done.stderr
    assert '+controller = "registry.example/controller@sha256:1"' in done.stdout
    text = summary.read_text()
    assert "Commit `images.dev.toml`" in text
    assert "```diff\ndiff --git" in text


def test_a_lock_that_was_not_written_fails_the_step(checkout: Path) -> None:
    assert run(checkout / "ci/image-lock.sh", "prod").returncode != 0


def test_a_lock_of_no_stack_is_refused(checkout: Path) -> None:
    assert "usage: ci/image-lock.sh STACK" in run(checkout / "ci/image-lock.sh").stderr


def test_a_folder_that_cannot_be_written_is_a_sentence(tmp_path: Path) -> None:
    event, report = tmp_path / "event.json", tmp_path / "dev.md"
    event.write_text('{"pull_request": {"number": 7}}')
    report.write_text("## Preview\n")
    command: list[str | Path] = [sys.executable, "-m", "ci.hand_over", report, "--to", report / "below"]
    variables = {"GITHUB_EVENT_PATH": str(event)}
    done = subprocess.run(command, cwd=ROOT, env=variables, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.startswith("ci: ")
    assert "Traceback" not in done.stderr


def test_the_token_of_gitlab_goes_where_only_its_owner_reads(tmp_path: Path) -> None:
    file = tmp_path / "token"
    done = run(ROOT / "ci/aws-token.sh", AWS_TOKEN="a.b.c", AWS_WEB_IDENTITY_TOKEN_FILE=str(file))
    assert done.returncode == 0, done.stderr
    assert file.read_text() == "a.b.c"
    assert file.stat().st_mode & 0o077 == 0
    without = run(ROOT / "ci/aws-token.sh", AWS_WEB_IDENTITY_TOKEN_FILE=str(file))
    assert without.returncode != 0
    assert "id_tokens" in without.stderr


def test_an_installation_of_nothing_is_refused() -> None:
    done = run(ROOT / "ci/install.sh")
    assert done.returncode == 2
    assert "usage" in done.stderr


def test_the_command_runs_where_only_its_requirements_are_installed() -> None:
    done = run(ROOT / "ci/trainyard", "--help", HOME=os.environ.get("HOME", "/"))
    assert done.returncode == 0, done.stderr
    assert "Usage: trainyard" in done.stdout
