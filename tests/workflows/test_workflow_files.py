"""The workflows: valid, pinned, with as few rights as they need, and without shell that cannot be run here."""

from __future__ import annotations

import importlib.util
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parent.parent.parent
BIN = Path(sys.prefix) / "bin"
WORKFLOWS = sorted((ROOT / ".github/workflows").glob("*.yml"))
ACTIONS = sorted((ROOT / ".github/actions").glob("*/action.yml"))
GITLAB = ROOT / "docs/how-to/gitlab-ci.yml"
SCRIPTS = sorted({*(ROOT / "ci").glob("*.sh"), ROOT / "ci/trainyard", ROOT / ".ci/run"})
PIN = re.compile(r"[\w.-]+/[\w./-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+")
TOKENS = ("github.token", "secrets.")
WRITING = {"ci.comment", "ci.handed_over", "ci.issue"}


def loaded(file: Path) -> dict[Any, Any]:
    found: dict[Any, Any] = yaml.safe_load(file.read_text())
    return found


def jobs() -> Iterator[tuple[str, dict[str, Any]]]:
    for file in WORKFLOWS:
        for name, job in loaded(file)["jobs"].items():
            yield f"{file.stem}/{name}", job


def steps() -> Iterator[tuple[str, dict[str, Any]]]:
    for name, job in jobs():
        yield from ((name, step) for step in job["steps"])
    for file in ACTIONS:
        yield from ((file.parent.name, step) for step in loaded(file)["runs"]["steps"])


def commands() -> list[tuple[str, str]]:
    return [(name, step["run"]) for name, step in steps() if "run" in step]


JOBS = dict(jobs())


def test_the_workflows_that_the_how_to_describes_are_there() -> None:
    names = {file.stem for file in WORKFLOWS}
    assert names == {"preview", "fork-preview", "fork-comment", "deploy", "drift", "images", "tests"}


@pytest.mark.parametrize(
    ("schema", "files"),
    [("vendor.github-workflows", WORKFLOWS), ("vendor.github-actions", ACTIONS), ("vendor.gitlab-ci", [GITLAB])],
)
def test_they_are_valid(schema: str, files: list[Path]) -> None:
    done = subprocess.run(
        [BIN / "check-jsonschema", "--builtin-schema", schema, *files], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_zizmor_finds_nothing_even_as_an_auditor() -> None:
    done = subprocess.run(
        [
            BIN / "zizmor",
            "--offline",
            "--color",
            "never",
            "--persona",
            "auditor",
            "--config",
            ROOT / ".github/zizmor.yml",
            ROOT / ".github",
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "(1 ignored)" in done.stdout, "only the trigger of `fork comment` is excused"


@pytest.mark.parametrize("file", [*WORKFLOWS, *ACTIONS], ids=lambda file: f"{file.parent.name}/{file.name}")
def test_every_action_is_pinned_by_its_commit_and_says_its_version(file: Path) -> None:
    uses = re.findall(r"^\s*-?\s*uses:\s*(.+)$", file.read_text(), re.MULTILINE)
    assert [one for one in uses if not PIN.fullmatch(one) and one != "./.github/actions/prepare"] == []


def test_one_action_has_one_version_everywhere() -> None:
    text = "\n".join(file.read_text() for file in [*WORKFLOWS, *ACTIONS])
    pins = set(re.findall(r"uses: ([\w./-]+)@([0-9a-f]{40} # v[\d.]+)", text))
    assert len(pins) == len({name for name, _ in pins})


@pytest.mark.parametrize(("where", "command"), commands())
def test_every_step_is_one_call_of_what_is_in_the_repository(where: str, command: str) -> None:
    assert "\n" not in command.strip(), f"{where}: a script of its own would be tested"
    assert "${{" not in command, f"{where}: an expression becomes a part of the shell's text"
    assert not re.search(r"[;&|<>`]|\$\(", command), f"{where}: more than a call"
    program, *arguments = shlex.split(command)
    if program == ".venv/bin/python":
        assert arguments[0] == "-m"
        assert importlib.util.find_spec(arguments[1]), f"{where}: there is no {arguments[1]}"
    else:
        assert (ROOT / program).is_file(), f"{where}: there is no {program}"
        assert (ROOT / program).stat().st_mode & 0o100


@pytest.mark.parametrize(("where", "command"), [one for one in commands() if " -m " in one[1]])
def test_every_step_takes_the_options_that_it_is_given(where: str, command: str) -> None:
    _, _, module, *arguments = shlex.split(command.replace("$WHERE", "rehearsal"))
    done = subprocess.run(
        [sys.executable, "-m", module, *arguments, "--help"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, f"{where}: {done.stderr}"
    for option in (one for one in arguments if one.startswith("--")):
        assert option in done.stdout, f"{where}: {module} has no {option}"


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda file: file.name)
def test_shellcheck_finds_nothing(script: Path) -> None:
    done = subprocess.run([BIN / "shellcheck", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("file", WORKFLOWS, ids=lambda file: file.stem)
def test_nothing_is_permitted_that_a_job_does_not_ask_for(file: Path) -> None:
    workflow = loaded(file)
    assert workflow["permissions"] == {}
    for job in workflow["jobs"].values():
        assert isinstance(job["permissions"], dict)
        assert "timeout-minutes" in job
    assert "pull_request_target" not in workflow[True]  # YAML 1.1 reads `on` so


def test_no_checkout_leaves_a_token_behind() -> None:
    checkouts = [step for _, step in steps() if step.get("uses", "").startswith("actions/checkout@")]
    assert len(checkouts) > 10
    assert all(step["with"]["persist-credentials"] is False for step in checkouts)
    assert not [step for step in checkouts if "ref" in step["with"]]


@pytest.mark.parametrize("name", JOBS)
def test_no_job_has_both_a_way_to_aws_and_a_token_that_writes(name: str) -> None:
    rights = JOBS[name]["permissions"]
    writes = {right for right, level in rights.items() if level == "write"}
    assert "id-token" not in writes or writes == {"id-token"}
    assert "contents" not in writes


@pytest.mark.parametrize("name", JOBS)
def test_a_token_is_given_only_to_the_step_that_writes(name: str) -> None:
    job = JOBS[name]
    assert not any(token in str(job.get("env", {})) for token in TOKENS)
    for step in job["steps"]:
        if any(token in str(step) for token in TOKENS):
            assert shlex.split(step["run"])[2] in WRITING


def test_no_workflow_has_a_secret() -> None:
    assert not [file.name for file in WORKFLOWS if "secrets." in file.read_text()]


def test_the_code_of_a_fork_runs_without_anything_worth_stealing() -> None:
    workflow = loaded(ROOT / ".github/workflows/fork-preview.yml")
    for job in workflow["jobs"].values():
        assert job["permissions"] == {"contents": "read"}
        assert "environment" not in job
    text = (ROOT / ".github/workflows/fork-preview.yml").read_text()
    assert "vars." not in text
    assert "token" not in text.split("permissions: {}")[1]
    assert "configure-aws-credentials" not in text


def test_what_may_write_about_a_fork_runs_only_code_of_the_main_branch() -> None:
    workflow = loaded(ROOT / ".github/workflows/fork-comment.yml")
    assert set(workflow[True]) == {"workflow_run"}
    assert workflow[True]["workflow_run"]["workflows"] == [loaded(ROOT / ".github/workflows/fork-preview.yml")["name"]]
    (job,) = workflow["jobs"].values()
    used = [step["uses"].split("@")[0] for step in job["steps"] if "uses" in step]
    assert used == ["actions/checkout", "./.github/actions/prepare"], "no artifact is unpacked onto the disk"
    assert "head_repository.full_name != github.repository" in job["if"]


def test_the_code_of_a_fork_runs_on_no_machine_of_ones_own() -> None:
    ours = "github.event.pull_request.head.repo.full_name == github.repository"
    for file in WORKFLOWS:
        workflow = loaded(file)
        if "pull_request" not in workflow[True]:
            continue
        first = str(workflow["jobs"].get("stacks", {}).get("if"))  # what needs it is skipped with it
        for name, job in workflow["jobs"].items():
            if "vars." in job["runs-on"]:
                kept_out = "stacks" in job.get("needs", ()) and (ours in first or "!= 'pull_request'" in first)
                assert kept_out or ours in job["runs-on"], f"{file.stem}/{name}"


def test_forks_have_no_part_in_the_other_workflow() -> None:
    for name in ("preview", "fork-preview"):
        first = loaded(ROOT / f".github/workflows/{name}.yml")["jobs"]["stacks"]["if"]
        sign = "==" if name == "preview" else "!="
        assert first == f"github.event.pull_request.head.repo.full_name {sign} github.repository"


def test_only_a_deployment_changes_aws_and_only_after_approval() -> None:
    with_role = {name for name, job in JOBS.items() if "TRAINYARD_DEPLOY_ROLE" in str(job["steps"])}
    assert with_role == {"deploy/deploy", "images/build"}
    for name in with_role:
        assert JOBS[name]["environment"] == "${{ matrix.stack }}"
        assert JOBS[name]["concurrency"]["cancel-in-progress"] is False


def test_every_preview_can_be_overtaken_by_the_next_one() -> None:
    for name in ("preview/preview", "fork-preview/rehearse"):
        job = JOBS[name]
        assert "matrix.stack" in job["concurrency"]["group"]
        assert "pull_request.number" in job["concurrency"]["group"]
        assert job["concurrency"]["cancel-in-progress"] is True
        assert job["strategy"]["fail-fast"] is False
