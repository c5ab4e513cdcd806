"""A stack file is understood as a whole, and whatever is wrong in it is said in one go."""

from __future__ import annotations

from pathlib import Path

import pytest

from infra.clusters import CHECKOUT
from infra.settings import Settings, SettingsError, from_engine, parse, read_stack_file

STACK_FILES = sorted(CHECKOUT.glob("Pulumi.*.yaml"))


def stack_file(folder: Path, text: str, stack: str = "dev") -> Path:
    path = folder / f"Pulumi.{stack}.yaml"
    path.write_text(text)
    return path


def mistakes(folder: Path, text: str) -> str:
    with pytest.raises(SettingsError) as caught:
        read_stack_file(stack_file(folder, text), "dev")
    assert caught.value.exit_code == 2
    return str(caught.value)


@pytest.mark.parametrize("path", STACK_FILES, ids=lambda path: path.name)
def test_every_stack_file_of_the_repository_is_valid(path: Path) -> None:
    stack = path.name.split(".")[1]
    assert read_stack_file(path, stack).node_pools


def test_the_smallest_stack_file_gets_sensible_defaults(tmp_path: Path) -> None:
    settings = read_stack_file(stack_file(tmp_path, "config: {trainyard:target: local}"), "dev")
    assert settings.namespace == "training"
    assert [pool.name for pool in settings.node_pools] == ["system"]
    assert settings.local is None


def test_all_mistakes_are_reported_together_with_line_and_fix(tmp_path: Path) -> None:
    message = mistakes(
        tmp_path,
        """\
config:
  trainyard:target: locl
  trainyard:nodePools:
    - name: Bad_Name
      nodes: many
    - name: gpu
      capcity: spot
      gpusPerNode: 99
  trainyard:etcd:
    storage: lots
  trainyard:colour: red
""",
    )
    assert "7 mistakes" in message
    assert "trainyard:target (line 2): is 'locl'; allowed: local, kubeconfig" in message
    assert "fix: pulumi config set --path trainyard:target local -s dev" in message
    assert "trainyard:nodePools[0].name (line 4)" in message
    assert "trainyard:nodePools[0].nodes (line 5): is 'many'" in message
    assert "trainyard:nodePools[1].capcity (line 7): unknown key; did you mean 'capacity'?" in message
    assert "fix: pulumi config rm --path 'trainyard:nodePools[1].capcity' -s dev" in message
    assert "trainyard:nodePools[1].gpusPerNode (line 8): is 99" in message
    assert "trainyard:etcd.storage (line 10): is 'lots'" in message
    assert "trainyard:colour (line 11): unknown key; known keys here: checkpoints" in message


def test_settings_that_contradict_each_other_are_refused(tmp_path: Path) -> None:
    message = mistakes(
        tmp_path,
        """\
config:
  trainyard:target: local
  trainyard:kubeconfig: {path: ~/.kube/config}
  trainyard:nodePools:
    - {name: gpu, gpusPerNode: 1}
    - {name: gpu, gpusPerNode: 2}
""",
    )
    assert "two pools are named 'gpu'" in message
    assert "trainyard:kubeconfig (line 3): has no meaning with target local" in message
    assert "one pool without GPUs must have a node" in message


def test_a_kubeconfig_target_needs_to_know_which(tmp_path: Path) -> None:
    assert "at least its `path`" in mistakes(tmp_path, "config: {trainyard:target: kubeconfig}")


def test_a_missing_target_is_asked_for(tmp_path: Path) -> None:
    message = mistakes(tmp_path, "config: {}")
    assert "trainyard:target: is missing" in message
    assert "pulumi config set --path trainyard:target local -s dev" in message


def test_a_key_without_namespace_is_named(tmp_path: Path) -> None:
    message = mistakes(tmp_path, "config: {target: local, trainyard:target: local}")
    assert "rename it to trainyard:target" in message


def test_keys_of_providers_are_left_alone() -> None:
    values = {"trainyard:target": "local", "aws:region": "eu-central-1"}
    assert parse(values, stack="dev", source="test").target == "local"


@pytest.mark.parametrize("text", ["config: [", "- a\n- b", "config: 3"])
def test_a_file_that_is_not_a_stack_file_is_refused_in_plain_words(tmp_path: Path, text: str) -> None:
    assert "Pulumi.dev.yaml" in mistakes(tmp_path, text)


def test_an_unknown_stack_lists_those_that_exist(tmp_path: Path) -> None:
    stack_file(tmp_path, "config: {}", "prod")
    with pytest.raises(SettingsError, match=r"Stacks here: prod"):
        read_stack_file(tmp_path / "Pulumi.dev.yaml", "dev")


def test_the_engine_hands_over_the_same_settings_as_text(tmp_path: Path) -> None:
    path = stack_file(
        tmp_path,
        "config:\n  trainyard:target: local\n  trainyard:nodePools:\n    - {name: '7', nodes: 2}\n",
    )
    told = {"trainyard:target": "local", "trainyard:nodePools": '[{"name":"7","nodes":2}]'}
    assert from_engine(told, "dev") == read_stack_file(path, "dev")


def test_settings_cannot_be_changed_after_they_were_checked() -> None:
    settings = Settings(target="local")
    with pytest.raises(Exception, match="frozen"):
        settings.namespace = "other"
