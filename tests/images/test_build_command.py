"""`trainyard images build` and `pin` as a user at a shell sees them; the tool is a script, AWS is moto."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator
from importlib import resources
from pathlib import Path

import boto3
import pytest
from moto import mock_aws

from images.builders import registry
from infra.cli import app
from infra.cli import workspace as workspaces
from infra.cli.images import pushing
from infra.errors import TrainyardError

CHECKOUT = Path(__file__).parents[2]
RUN = "import sys; from infra.cli import main; sys.argv[0] = 'trainyard'; main()"
IMAGE_ID = "1f0c" * 16
DIGEST = "sha256:" + "d1" * 32
# What buildah answers, and a record of what it was asked for.
BUILDAH = f"""\
#!/bin/sh
echo "$*" >>"$ASKED"
case $1 in
build) echo 'STEP 1/1: FROM scratch' ;;
inspect) echo '{{"FromImageID": "{IMAGE_ID}", "FromImageDigest": "sha256:{"ab" * 32}",
  "OCIv1": {{"architecture": "amd64"}}, "Manifest": "{{\\\\"layers\\\\": [{{\\\\"size\\\\": 4000000}}]}}"}}' ;;
login) cat >"$ASKED.password" ;;
push)
  for last; do :; done
  case $2 in --digestfile) printf %s {DIGEST} >"$3" ;; *) echo archive >"${{last#oci-archive:}}" ;; esac ;;
esac
"""


@pytest.fixture
def asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], list[str]]:
    """Puts the script on PATH; returns what it was asked for."""
    folder = tmp_path / "bin"
    folder.mkdir()
    (folder / "buildah").write_text(BUILDAH)
    (folder / "buildah").chmod(0o755)
    for name in ("sh", "cat", "git", "uname"):
        if found := shutil.which(name):
            (folder / name).symlink_to(found)
    record = tmp_path / "asked"
    monkeypatch.setenv("PATH", str(folder))
    monkeypatch.setenv("ASKED", str(record))
    monkeypatch.setenv("TRAINYARD_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.delenv("SOURCE_DATE_EPOCH", raising=False)
    return lambda: record.read_text().splitlines() if record.exists() else []


def trainyard(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", RUN, "images", *arguments],
        env={**os.environ, "PYTHONPATH": str(CHECKOUT), "COLUMNS": "200", **variables},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )


def build_in_process(*arguments: str) -> None:
    app(["images", "build", *arguments], standalone_mode=False)


def test_a_row_is_built_under_a_name_that_says_what_it_is(asked: Callable[[], list[str]], tmp_path: Path) -> None:
    archive = tmp_path / "cpu.tar"
    ran = trainyard(
        "build", "cpu", "--platform", "linux/amd64", "--archive", str(archive), "--json", SOURCE_DATE_EPOCH="7"
    )
    assert ran.returncode == 0, ran.stderr
    (said,) = json.loads(ran.stdout)["images"]
    assert said["tag"] == "trainyard/training:torch2.15-cpu"
    assert said["image_id"] == f"sha256:{IMAGE_ID}"
    assert said["size"] == 4_000_000
    assert said["reference"] is None
    assert archive.read_text() == "archive\n"
    (command,) = [line for line in asked() if line.startswith("build ")]
    assert "--timestamp=7" in command
    assert "--build-arg=REVISION=" in command
    assert "step 1/1: FROM scratch" in ran.stderr
    assert f"… writing the archive {archive}" in ran.stderr
    assert (
        tmp_path / "cache" / "images" / "logs" / "torch2.15-cpu-amd64.log"
    ).read_text() == "STEP 1/1: FROM scratch\n"


def test_a_push_goes_where_the_name_says(asked: Callable[[], list[str]]) -> None:
    registry = ("--registry", "registry.example/acme/")
    ran = trainyard("build", "controller", "cpu", "--platform", "amd64", *registry, "--push", "--json")
    assert ran.returncode == 0, ran.stderr
    references = [said["reference"] for said in json.loads(ran.stdout)["images"]]
    assert references == [
        f"registry.example/acme/controller:0.1.0@{DIGEST}",
        f"registry.example/acme/training:torch2.15-cpu@{DIGEST}",
    ]
    assert len([line for line in asked() if line.startswith("push --digestfile")]) == 2


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], ["build what?", "-s STACK"]),
        (["cpuu"], ["cpu"]),
        (["cpu", "--platform", "linux/riscv64"], ["there are linux/amd64 and linux/arm64"]),
        (["cpu", "--tool", "kaniko"], ["docker, podman, buildah"]),
        (["cpu", "--push"], ["push where?", "--registry"]),
        (["cpu", "--push", "--tag", "training:1"], ["push where?"]),
        (
            ["cpu", "controller", "--tag", "a:1", "--archive", "/nowhere/a.tar", "--registry", "r.example"],
            ["--tag is for one image", "--archive is for one image", "leave --registry out", "no folder /nowhere"],
        ),
        (["cpu", "--tag", "a,push=true"], ["--tag 'a,push=true' is no name of an image"]),
        (["cpu", "--tag", f"a@{DIGEST}"], [f"--tag 'a@{DIGEST}' is no name of an image"]),
        (["cpu", "--registry", "r.example/a b"], ["--registry 'r.example/a b' is no registry"]),
        (["cpu", "--index", "packages.example"], ["--index (or TRAINYARD_INDEX) is no address"]),
        (["cpu", "--archive", "/"], ["--archive / is a folder: name the file in it"]),
        (["cpu", "--extra-ca", "/nowhere.pem"], ["--extra-ca /nowhere.pem cannot be read"]),
        (["controller", "--compile"], ["--compile is for training images"]),
    ],
)
def test_a_mistake_is_sentences_without_a_build(
    asked: Callable[[], list[str]], arguments: list[str], words: list[str]
) -> None:
    ran = trainyard("build", *arguments)
    assert ran.returncode in (1, 2)
    assert "Traceback" not in ran.stderr
    for word in words:
        assert word in ran.stderr
    assert not [line for line in asked() if line.startswith("build ")]


@pytest.mark.usefixtures("asked")
@pytest.mark.parametrize("time", ["today", "-1", "253402300800", "9" * 40])
def test_a_time_that_is_no_number_of_seconds_is_refused(time: str) -> None:
    ran = trainyard("build", "cpu", SOURCE_DATE_EPOCH=time)
    assert ran.returncode == 2
    assert f"SOURCE_DATE_EPOCH is '{time}': it must be a number" in ran.stderr


def test_digests_cannot_be_read_without_a_way_to_the_registries() -> None:
    ran = trainyard("pin", "--check", HTTPS_PROXY="http://127.0.0.1:9")
    assert ran.returncode == 1
    assert "Traceback" not in ran.stderr
    assert "registry-1.docker.io cannot be reached" in ran.stderr


def test_digests_are_compared_and_written_with_the_comments_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "matrix.toml"
    text = (CHECKOUT / "images" / "matrix.toml").read_text()
    file.write_text(text)
    monkeypatch.setattr(resources, "files", lambda _: tmp_path)
    monkeypatch.setattr(registry, "digest", lambda _: DIGEST)
    assert app(["images", "pin", "--check", "--json"], standalone_mode=False) == 1
    assert json.loads(capfd.readouterr().out)["written"] is False
    assert file.read_text() == text
    assert not app(["images", "pin", "--json"], standalone_mode=False)
    assert json.loads(capfd.readouterr().out)["written"] is True
    made = file.read_text()
    assert {base["digest"] for base in tomllib.loads(made)["base"].values()} == {DIGEST}
    assert [line for line in made.splitlines() if "#" in line] == [line for line in text.splitlines() if "#" in line]
    assert not app(["images", "pin", "--check"], standalone_mode=False)
    assert [one.name for one in tmp_path.iterdir()] == ["matrix.toml"]


@pytest.fixture
def prod(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The stack prod in a folder of its own, in an account of moto's."""
    folder = tmp_path / "checkout"
    folder.mkdir()
    shutil.copy(CHECKOUT / "Pulumi.prod.yaml", folder)
    for module in (workspaces, pushing):
        monkeypatch.setattr(module, "CHECKOUT", folder)
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "testing")
    with mock_aws():
        yield folder


def repositories(folder: Path) -> None:
    """Those that the stack makes."""
    settings = workspaces.Workspace.open("prod").settings
    assert settings.aws is not None
    ecr = boto3.client("ecr", region_name=settings.aws.region)
    for name in settings.aws.registry.repositories:
        ecr.create_repository(repositoryName=f"trainyard-prod/{name}")


def test_a_stack_gets_what_its_pools_need_and_its_lock_the_digests(
    asked: Callable[[], list[str]], prod: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    repositories(prod)
    build_in_process("-s", "prod", "--push", "--platform", "linux/amd64", "--json")
    said = json.loads(capfd.readouterr().out)["images"]
    lock = tomllib.loads((prod / "images.prod.toml").read_text())["images"]
    assert lock == {image["row"]: image["reference"] for image in said}
    assert lock["controller"].endswith(f"/trainyard-prod/controller:0.1.0-{IMAGE_ID[:12]}@{DIGEST}")
    assert any("efa" in row for row in lock)
    password = (tmp_path / "asked.password").read_text()
    assert password
    logins = [line for line in asked() if line.startswith("login ")]
    assert logins
    assert all(line.startswith("login --username AWS --password-stdin ") for line in logins)
    assert not [line for line in asked() if password in line]


def test_without_repositories_nothing_is_built(asked: Callable[[], list[str]], prod: Path) -> None:
    with pytest.raises(TrainyardError, match=r"no repository trainyard-prod/\w+ in ECR yet.*trainyard up -s prod"):
        build_in_process("-s", "prod", "--push", "--platform", "linux/amd64")
    assert not [line for line in asked() if line.startswith("build ")]


def test_the_names_in_a_stacks_registry_are_not_the_users(asked: Callable[[], list[str]], prod: Path) -> None:
    with pytest.raises(TrainyardError, match="leave --tag and --registry out"):
        build_in_process("controller", "-s", "prod", "--push", "--tag", "a:1", "--platform", "linux/amd64")
