"""The program of a stack, run without an engine: as it is, as it was, and when it refuses."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from infra.clusters import CHECKOUT
from infra.errors import UsageError
from infra.report import program
from infra.report.cost import cost, delta
from infra.report.preview import Resource
from infra.report.program import ProgramError, at_revision, resources_of
from infra.report.topology import mermaid

pytest_plugins = ["report_stacks_fixture"]


def git(folder: Path, *arguments: str) -> None:
    identity = ["-c", "user.name=Tester", "-c", "user.email=tester@example.com", "-c", "commit.gpgsign=false"]
    subprocess.run(["git", "-C", str(folder), *identity, *arguments], check=True, capture_output=True)


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A project of its own with a stack `dev` and a program that does nothing."""
    folder = tmp_path / "project"
    (folder / "program").mkdir(parents=True)
    (folder / "Pulumi.yaml").write_text("name: small\nruntime: python\nmain: program/\n")
    (folder / "Pulumi.dev.yaml").write_text("config:\n  small:size: 3\n  small:list: [a]\n")
    return folder


def write(project: Path, source: str) -> None:
    (project / "program/__main__.py").write_text(f"import pulumi\nimport pulumi_aws as aws\n{source}\n")


def test_what_the_program_asks_for_is_what_the_tests_of_the_program_see(prod_resources: tuple[Resource, ...]) -> None:
    found = resources_of("prod")
    assert {(one.type, one.name) for one in found} == {(one.type, one.name) for one in prod_resources}
    assert cost(found) == cost(prod_resources)
    assert mermaid(found)
    scaled = {one.name: one.inputs["scalingConfig"] for one in found if one.kind == "NodeGroup"}
    assert scaled == {one.name: one.inputs["scalingConfig"] for one in prod_resources if one.kind == "NodeGroup"}


def test_a_local_stack_is_drawn_without_its_cluster() -> None:
    assert "elastic-controller" in mermaid(resources_of("local"))


def test_a_stack_is_compared_with_what_it_was(tmp_path: Path) -> None:
    checkout = tmp_path / "checkout"
    checkout.mkdir()
    for name in ("infra", "images"):
        shutil.copytree(CHECKOUT / name, checkout / name, ignore=shutil.ignore_patterns("__pycache__"))
    for path in CHECKOUT.glob("Pulumi*.yaml"):
        shutil.copy(path, checkout)
    git(checkout, "init", "--quiet")
    git(checkout, "add", "--all")
    git(checkout, "commit", "--quiet", "--message", "as it was")
    stack_file = checkout / "Pulumi.dev.yaml"
    values = yaml.safe_load(stack_file.read_text())
    values["config"]["trainyard:aws"]["nodePools"][0]["max"] = 8
    stack_file.write_text(yaml.safe_dump(values))

    with at_revision("HEAD", "dev", checkout) as folder:
        before = resources_of("dev", folder)
    assert not folder.exists()
    found = delta(cost(before), cost(resources_of("dev", checkout)))
    assert {change.name for change in found.changes} == {"gpu-spot", "disks of gpu-spot"}
    assert found.month.usd.low > 0


def test_revisions_that_are_not_there_are_named(project: Path) -> None:
    with pytest.raises(UsageError, match="git knows no revision 'nope'"), at_revision("nope", "dev", project):
        pass
    git(project, "init", "--quiet")
    git(project, "add", "--all")
    git(project, "commit", "--quiet", "--message", "first")
    with (
        pytest.raises(UsageError, match="there is no stack prod; there are: dev"),
        at_revision("HEAD", "prod", project),
    ):
        pass
    with pytest.raises(UsageError, match="no revision '--help'"), at_revision("--help", "dev", project):
        pass


def test_without_git_the_message_says_so(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(project))
    with pytest.raises(ProgramError, match="git is not installed"), at_revision("HEAD", "dev", project):
        pass


def test_inputs_come_out_as_they_were_asked_for(project: Path) -> None:
    write(
        project,
        "size = pulumi.Config().require_int('size')\n"
        "vpc = aws.ec2.Vpc('vpc', cidr_block='10.0.0.0/16', tags={'size': str(size)})\n"
        "aws.ec2.Subnet('subnet', vpc_id=vpc.id, availability_zone='us-east-2a')\n",
    )
    vpc, subnet = sorted(
        (one for one in resources_of("dev", project) if not one.is_provider), key=lambda one: one.name, reverse=True
    )
    assert (vpc.type, vpc.inputs["tags"]) == ("aws:ec2/vpc:Vpc", {"size": "3"})
    assert subnet.inputs["vpcId"] == "vpc-id"
    assert vpc.custom


def test_secrets_do_not_come_out(project: Path) -> None:
    (project / "Pulumi.dev.yaml").write_text("config:\n  small:word: {secure: v1:abc}\n  small:plain: hello\n")
    write(
        project,
        "assert pulumi.Config().get('word') is None\n"
        "aws.s3.Bucket('b', tags={'token': 'hunter22222', 'plain': pulumi.Config().get('plain')})\n",
    )
    written = json.dumps([dict(one.inputs) for one in resources_of("dev", project)])
    assert "hunter22222" not in written
    assert "hello" in written


def test_a_program_that_refuses_is_quoted_and_one_that_breaks_shows_its_end(project: Path) -> None:
    write(project, "raise pulumi.RunError('pool gpu: 3 is no type')")
    with pytest.raises(ProgramError, match=r"the program of stack dev says:\npool gpu: 3 is no type$"):
        resources_of("dev", project)
    write(project, "1 / 0")
    with pytest.raises(ProgramError, match="ZeroDivisionError") as broken:
        resources_of("dev", project)
    assert len(str(broken.value).splitlines()) < 12
    write(project, "import os\nos._exit(9)")
    with pytest.raises(ProgramError, match="ended with code 9"):
        resources_of("dev", project)


def test_a_program_that_asks_aws_is_told_that_nobody_is_there(project: Path) -> None:
    write(project, "aws.get_availability_zones()")
    with pytest.raises(ProgramError, match="getAvailabilityZones"):
        resources_of("dev", project)


def test_a_program_that_does_not_end_is_ended(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(project, "import threading\nthreading.Event().wait()")
    monkeypatch.setattr(program, "_TIMEOUT", 5)
    with pytest.raises(ProgramError, match="did not end within 5 seconds"):
        resources_of("dev", project)


def test_credentials_and_modules_of_the_caller_do_not_reach_the_program(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "x")
    monkeypatch.setenv("PYTHONPATH", str(project / "elsewhere"))
    write(
        project,
        "import os, secrets\n"
        "assert not [name for name in os.environ if name.startswith('AWS_')]\n"
        "assert secrets.token_hex\n"  # Python's own, not infra/report/secrets.py
        "aws.s3.Bucket('b')\n",
    )
    assert [one.name for one in resources_of("dev", project) if not one.is_provider] == ["b"]
