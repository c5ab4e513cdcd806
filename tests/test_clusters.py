"""Which folder and which kubeconfig a stack means."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from infra.clusters import (
    CHECKOUT,
    ClusterUnreachableError,
    StateFolderError,
    kubeconfig_of,
    local_state_directory,
)
from infra.settings import Images, Kubeconfig, Settings
from infra.settings.aws import Aws, AwsNetwork


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TRAINYARD_STATE_DIR", str(tmp_path))
    return tmp_path


def record(state: Path, stack: str, resources: list[Any] | None) -> None:
    """What the engine keeps of a stack; without resources after a destroy."""
    folder = state / "pulumi/backend/.pulumi/stacks/trainyard"
    folder.mkdir(parents=True, exist_ok=True)
    latest = {"manifest": {}} if resources is None else {"manifest": {}, "resources": resources}
    (folder / f"{stack}.json").write_text(json.dumps({"version": 3, "checkpoint": {"stack": stack, "latest": latest}}))


def elsewhere(path: str, context: str | None = None) -> Settings:
    images = Images(controller="registry.example/c:1", etcd="registry.example/e:1")
    return Settings(target="kubeconfig", kubeconfig=Kubeconfig(path=path, context=context), images=images)


def test_the_state_folder_that_the_user_names_is_this_very_folder(state: Path) -> None:
    assert local_state_directory("local") == state


def test_each_stack_has_a_state_folder_of_its_own_by_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TRAINYARD_STATE_DIR", raising=False)
    assert local_state_directory("a") != local_state_directory("b")
    assert local_state_directory("a").is_absolute()


@pytest.mark.parametrize("chosen", ["state", "./x/../state"])
def test_a_relative_state_folder_means_the_same_wherever_one_stands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, chosen: str
) -> None:
    monkeypatch.setenv("TRAINYARD_STATE_DIR", chosen)
    monkeypatch.chdir(tmp_path)
    assert local_state_directory("local") == CHECKOUT / "state"


def test_a_state_folder_below_the_home_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRAINYARD_STATE_DIR", "~/state")
    assert local_state_directory("local") == Path.home() / "state"


def test_a_state_folder_that_cannot_be_is_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRAINYARD_STATE_DIR", "/tmp/" + 300 * "x")  # noqa: S108 - never made
    with pytest.raises(StateFolderError, match="cannot be a state folder: File name too long"):
        local_state_directory("a")


def test_a_second_stack_may_not_take_over_the_state_folder_of_the_first(state: Path) -> None:
    record(state, "a", [{"urn": "urn:pulumi:a::trainyard::pulumi:pulumi:Stack::trainyard-a"}])
    assert local_state_directory("a") == state
    with pytest.raises(StateFolderError, match="is the state folder of stack a: b would take over") as caught:
        local_state_directory("b")
    assert "unset TRAINYARD_STATE_DIR" in str(caught.value)
    record(state, "b", [])  # `pulumi stack init b` by hand
    with pytest.raises(StateFolderError):
        local_state_directory("b")
    assert local_state_directory("a") == state


@pytest.mark.parametrize("left", [None, []])
def test_a_state_folder_is_free_again_when_its_stack_has_gone(state: Path, left: list[Any] | None) -> None:
    record(state, "a", left)
    assert local_state_directory("b") == state


def test_a_half_written_record_holds_nothing(state: Path) -> None:
    record(state, "a", [])
    next(state.glob("pulumi/backend/.pulumi/stacks/*/a.json")).write_text('{"version": 3, "che')
    assert local_state_directory("b") == state


def test_a_local_stack_that_does_not_run_says_how_to_start_it(state: Path) -> None:
    with pytest.raises(ClusterUnreachableError, match="Start it: trainyard up -s dev"):
        kubeconfig_of(Settings(target="local"), "dev")


def test_a_local_stack_that_runs(state: Path) -> None:
    (state / "kubeconfig").write_text("{}")
    access = kubeconfig_of(Settings(target="local"), "dev")
    assert (access.path, access.context) == (state / "kubeconfig", None)
    assert access.remedy == "Look: trainyard status -s dev. Start it: trainyard up -s dev"


def test_a_relative_kubeconfig_is_found_from_any_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    access = kubeconfig_of(elsewhere("Pulumi.yaml", "kind"), "dev")  # any file of the checkout
    assert access.path == CHECKOUT / "Pulumi.yaml"
    assert access.remedy.endswith(f"kubectl --kubeconfig {CHECKOUT / 'Pulumi.yaml'} --context kind cluster-info")


@pytest.mark.parametrize(
    ("path", "reason"), {"missing": "No such file", "infra": "Is a directory", "~nobody-here/x": "No such file"}.items()
)
def test_a_kubeconfig_that_cannot_be_read_is_named_with_its_key(path: str, reason: str) -> None:
    with pytest.raises(ClusterUnreachableError, match=reason) as caught:
        kubeconfig_of(elsewhere(path), "dev")
    assert "Correct trainyard:kubeconfig.path in Pulumi.dev.yaml" in str(caught.value)


def test_an_eks_cluster_s_kubeconfig_is_written_by_the_aws_command(state: Path) -> None:
    settings = Settings(
        target="aws",
        aws=Aws(region="us-east-2", network=AwsNetwork(zones=("us-east-2a", "us-east-2b"))),
        images=Images(controller="registry.example/c:1", etcd="registry.example/e:1"),
    )
    write = f"aws eks update-kubeconfig --name trainyard-prod --region us-east-2 --kubeconfig {state / 'kubeconfig'}"
    with pytest.raises(ClusterUnreachableError, match=f"no kubeconfig for the EKS cluster trainyard-prod.*{write}"):
        kubeconfig_of(settings, "prod")
    (state / "kubeconfig").write_text("{}")
    access = kubeconfig_of(settings, "prod")
    assert (access.path, access.context) == (state / "kubeconfig", None)
    assert write in access.remedy, "what to do when it does not answer"
