"""The registry of a stack comes before its cluster, which pulls what was pushed there: rehearsed on the engine."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from test_rehearsal import TRAINYARD, Rehearsed

from infra.local.state import State
from infra.rehearsal.environment import Rehearsal

pytestmark = [pytest.mark.engines, pytest.mark.timeout(1200), pytest.mark.xdist_group("rehearsal")]

ONLY = ("up", "--only", "registry")


@pytest.fixture(scope="module")
def dev() -> Iterator[Rehearsed]:
    folder = Path(tempfile.mkdtemp(prefix="ty", dir="/tmp"))
    one = Rehearsed("dev", folder)
    yield one
    if one.folder.exists():  # a test failed
        Rehearsal(State(one.folder)).down()
    shutil.rmtree(folder, ignore_errors=True)


def test_without_a_cluster_it_comes_up_with_its_key_and_the_run_ends_well(dev: Rehearsed) -> None:
    told = dev.run(*ONLY)
    assert set(told["changes"]) == {"create"}
    repositories = dev.client("ecr").describe_repositories()["repositories"]
    assert {each["repositoryName"] for each in repositories} == {
        f"{dev.cluster}/{name}" for name in dev.aws.registry.repositories
    }
    (key,) = {each["encryptionConfiguration"]["kmsKey"] for each in repositories}
    assert dev.client("kms").describe_key(KeyId=key)["KeyMetadata"]["Enabled"]
    assert dev.client("eks").list_clusters()["clusters"] == []
    assert dev.client("ec2").describe_vpcs(Filters=[{"Name": "is-default", "Values": ["false"]}])["Vpcs"] == []


def test_a_second_run_changes_nothing(dev: Rehearsed) -> None:
    assert set(dev.run(*ONLY)["changes"]) == {"same"}


def test_the_rest_comes_to_it_with_a_stand_in_for_what_was_not_built(dev: Rehearsed) -> None:
    told = dev.run("up")
    assert set(told["changes"]) == {"create", "same"}
    assert told["images_not_built"] == ["controller"]
    assert "the controller's image is not built yet" in told["note"]
    images = {
        container["image"] for pod in dev.pods() for container in pod["spec"]["containers"] if "trainyard" in str(pod)
    }
    assert [image for image in images if image.startswith("not-built.invalid/controller@sha256:")]


def test_beside_the_rest_nothing_but_the_registry_is_touched(dev: Rehearsed) -> None:
    changes = dev.run(*ONLY)["changes"]
    assert set(changes) == {"same"}
    assert changes["same"] > 100
    assert dev.client("eks").list_clusters()["clusters"] == [dev.cluster]
    line = (
        f'eval "$({TRAINYARD} env -s dev --rehearse)";'
        ' pulumi -C "$TRAINYARD_REHEARSAL/project" stack output -s dev clusterName'
    )
    done = subprocess.run(
        ["bash", "-c", line], env=dev.environment, capture_output=True, text=True, timeout=900, check=False
    )
    assert done.stdout.strip() == dev.cluster, f"outputs of the stack stay: {done.stderr}"


def test_all_of_it_goes(dev: Rehearsed) -> None:
    assert dev.run("down")["changes"]["delete"] > 100
    assert not dev.folder.exists()
