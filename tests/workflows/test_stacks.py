"""Which stacks a matrix has: what is there, whatever is in the files."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from ci.failures import StepError
from ci.stacks import ROOT, stacks


def test_the_stacks_of_this_repository_are_found() -> None:
    found = {one["stack"]: one for one in stacks(ROOT)}
    assert found["local"] == {"stack": "local", "target": "local", "region": ""}
    assert found["prod"] == {"stack": "prod", "target": "aws", "region": "us-east-2"}
    assert "local" not in {one["stack"] for one in stacks(ROOT, "aws")}


@pytest.mark.parametrize(
    "content",
    [
        "",
        "{",
        "config: [1]",
        "config: {}",
        "config: {trainyard:target: 7}",
        "- x",
        "a: *b",
        "\x00",
        "config: {trainyard:target: aws\n",
    ],
)
def test_a_broken_stack_file_is_a_stack_whose_preview_says_so(tmp_path: Path, content: str) -> None:
    (tmp_path / "Pulumi.broken.yaml").write_text(content)
    assert stacks(tmp_path) == [{"stack": "broken", "target": "unknown", "region": ""}]


def test_a_region_that_is_none_goes_nowhere(tmp_path: Path) -> None:
    (tmp_path / "Pulumi.x.yaml").write_text("config: {trainyard:target: aws, trainyard:aws: {region: 'a b; id'}}")
    assert stacks(tmp_path) == [{"stack": "x", "target": "aws", "region": ""}]


@pytest.mark.parametrize("name", ["a b", "$(id)", "-x", "a'b", "ä", "x" * 101])
def test_a_name_that_a_shell_would_read_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / f"Pulumi.{name}.yaml").write_text("config: {}")
    with pytest.raises(StepError, match="no name of a stack"):
        stacks(tmp_path)


def test_the_step_gives_one_line_of_json_to_the_workflow(tmp_path: Path) -> None:
    shutil.copy(ROOT / "Pulumi.dev.yaml", tmp_path)
    output = tmp_path / "output"
    done = subprocess.run(
        [sys.executable, "-m", "ci.stacks", "--folder", tmp_path, "--target", "aws"],
        cwd=ROOT,
        env={"GITHUB_OUTPUT": str(output), "PATH": ""},
        capture_output=True,
        text=True,
        check=True,
    )
    expected = {"include": [{"stack": "dev", "target": "aws", "region": "us-east-2"}]}
    assert json.loads(done.stdout) == expected
    assert output.read_text() == f"stacks={done.stdout}"


def test_no_stack_at_all_is_said(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "ci.stacks", "--folder", tmp_path], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert "nothing to look at" in done.stderr
    assert "Traceback" not in done.stderr
