"""A stack file is understood as a whole, and whatever is wrong in it is said in one go."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from infra.clusters import CHECKOUT
from infra.local.nodes.spec import LAST_NUMBER
from infra.settings import LOCAL_NODES_MAX, Settings, SettingsError, from_engine, parse, read_stack_file


def stack_file(folder: Path, text: str, stack: str = "dev") -> Path:
    path = folder / f"Pulumi.{stack}.yaml"
    path.write_text(text)
    return path


def mistakes(folder: Path, text: str) -> str:
    with pytest.raises(SettingsError) as caught:
        read_stack_file(stack_file(folder, text), "dev")
    assert caught.value.exit_code == 2
    return str(caught.value)


@pytest.mark.parametrize("stack", ["dev", "local", "prod"])  # not what is there: other tests bring stacks of theirs
def test_every_stack_file_of_the_repository_is_valid(stack: str) -> None:
    settings = read_stack_file(CHECKOUT / f"Pulumi.{stack}.yaml", stack)
    assert settings.node_pools or (settings.aws and settings.aws.node_pools)


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
    assert "trainyard:colour (line 11): unknown key; known keys here: aws, checkpoints" in message


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
    assert "one pool with a node must have neither GPUs nor capacity spot" in message


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


def told(config: dict[str, Any]) -> dict[str, str]:
    """A configuration as the engine hands it over."""
    return {f"trainyard:{key}": value if isinstance(value, str) else json.dumps(value) for key, value in config.items()}


def written(folder: Path, config: dict[str, Any]) -> str:
    """What is wrong with a stack file of this configuration."""
    return mistakes(folder, yaml.safe_dump({"config": {f"trainyard:{key}": value for key, value in config.items()}}))


def pools(*some: dict[str, Any]) -> dict[str, Any]:
    return {"target": "local", "nodePools": [{"name": f"p{n}"} | pool for n, pool in enumerate(some)]}


@pytest.mark.parametrize("home", [{"gpusPerNode": 1}, {"capacity": "spot"}, {"nodes": 0}])
def test_etcd_and_the_controller_need_a_pool_that_takes_everything(tmp_path: Path, home: dict[str, Any]) -> None:
    assert "trainyard:nodePools (line 2): one pool with a node must" in written(tmp_path, pools(home))
    assert len(from_engine(told(pools(home, {})), "dev").node_pools) == 2


def test_three_members_of_etcd_have_three_machines(tmp_path: Path) -> None:
    message = written(tmp_path, pools({}, {"gpusPerNode": 1, "nodes": 3}) | {"etcd": {"members": 3}})
    assert "trainyard:etcd.members (line 3): is 3, each on a machine of its own; without GPUs and not spot" in message
    assert "fix: pulumi config set --path trainyard:etcd.members 1 -s dev" in message
    assert from_engine(told(pools({"nodes": 3}) | {"etcd": {"members": 3}}), "dev").etcd.members == 3


def test_an_existing_cluster_brings_its_own_machines_and_pulls_its_images(tmp_path: Path) -> None:
    message = written(
        tmp_path, {"target": "kubeconfig", "kubeconfig": {"path": "k"}, **pools({})} | {"target": "kubeconfig"}
    )
    assert "1 mistake;" in message
    assert "trainyard:nodePools (line 4): has no meaning with target kubeconfig" in message
    with pytest.raises(SettingsError) as caught:
        from_engine(told({"target": "kubeconfig", "kubeconfig": {"path": "k"}}), "dev")
    assert "trainyard:images.controller: is missing, and images.dev.toml has none: it was not built yet" in str(
        caught.value
    )
    assert "or pulumi config set --path trainyard:images.controller REGISTRY/controller:TAG -s dev" in str(caught.value)


def test_an_existing_cluster_has_no_pools_of_ours() -> None:
    images = {"controller": "registry.example/c:1", "etcd": "registry.example/e:1"}
    settings = from_engine(told({"target": "kubeconfig", "kubeconfig": {"path": "k"}, "images": images}), "dev")
    assert settings.node_pools == ()
    assert settings.images.controller == "registry.example/c:1"


def test_torch_of_the_local_cluster_is_that_of_this_computer(tmp_path: Path) -> None:
    message = written(tmp_path, {"target": "local", "images": {"torch": "2.15"}})
    assert "trainyard:images.torch (line 3): has no meaning with target local" in message
    assert "fix: pulumi config rm --path trainyard:images.torch -s dev" in message


def test_block_and_shared_volumes_have_classes_of_their_own(tmp_path: Path) -> None:
    own = {"etcd": {"storageClass": "fast"}, "checkpoints": {"storageClass": "nfs", "accessMode": "ReadWriteMany"}}
    message = written(tmp_path, {"target": "local", **own})
    assert "2 mistakes" in message
    assert "trainyard:etcd.storageClass (line 6): has no meaning with target local" in message
    assert "fix: pulumi config rm --path trainyard:checkpoints.storageClass -s dev" in message
    assert "allowed: ReadWriteMany, ReadWriteOnce" in written(
        tmp_path, {"target": "local", "checkpoints": {"accessMode": "rwx"}}
    )


@pytest.mark.parametrize("nodes", ["3", True, 2.0, None])
def test_a_number_in_a_stack_file_is_a_number(tmp_path: Path, nodes: Any) -> None:
    message = written(tmp_path, pools({"nodes": nodes}))
    assert "trainyard:nodePools[0].nodes (line 4)" in message
    assert "must be a whole number, without quotes" in message


@pytest.mark.parametrize("nodes", [3, "3"])
def test_a_number_from_the_engine_may_be_text(nodes: Any) -> None:
    assert from_engine(told(pools({"nodes": nodes})), "dev").node_pools[0].nodes == 3


@pytest.mark.parametrize("nodes", ["three", "2.0", True, 2.0])
def test_text_from_the_engine_is_not_taken_for_a_number_that_it_is_not(nodes: Any) -> None:
    with pytest.raises(SettingsError, match="must be a whole number"):
        from_engine(told(pools({"nodes": nodes})), "dev")


def test_keys_are_in_camel_case(tmp_path: Path) -> None:
    message = written(tmp_path, pools({"gpus_per_node": 1}))
    assert "trainyard:nodePools[0].gpus_per_node (line 3): unknown key; did you mean 'gpusPerNode'?" in message


@pytest.mark.parametrize(
    ("text", "sentence"),
    {
        "config: {3: x, trainyard:target: local}": "3 (line 1): is no text; keys are text",
        "config: {trainyard:target: local, trainyard:etcd: {true: 1}}": "trainyard:etcd.true (line 1): is no text",
        "config: {trainyard:target: 2026-13-45}": "line 1: '2026-13-45' is no timestamp; put it in quotes",
        "config: {trainyard:target: !!int ''}": "line 1: '' is no int",
        "config: {trainyard:nodePools: &a [*a]}": "line 1: an alias (*name) stands inside what it names",
        "config: &a {trainyard:nodePools: *a}": "line 1: an alias (*name) stands inside what it names",
        "config: {? [a] : b}": "is not YAML",
        "config: " + "[" * 1000: "is not YAML",
        "config: {trainyard:target: local, trainyard:target: local}": "is given twice, first in line 1",
        "config: {trainyard:target: local, trainyard:namespace: {secure: v1:x}}": "no setting of a stack is a secret",
        "config: {trainyard:target: local, trainyard:namespace: 2026-01-01}": "is 2026-01-01: must be text; in quotes",
        "config: {trainyard:target: local, trainyard:controller: [2]}": "is a list: must be a mapping",
        "config: {trainyard:target: local, trainyard:nodePools: {a: 1}}": "is a mapping: must be a list",
    }.items(),
)
def test_odd_yaml_is_told_in_plain_words(tmp_path: Path, text: str, sentence: str) -> None:
    assert sentence in mistakes(tmp_path, text)


def test_what_is_not_yaml_is_named_with_its_file_and_line(tmp_path: Path) -> None:
    path = tmp_path / "Pulumi.dev.yaml"
    path.write_text("config:\n  trainyard:target: [local\n  trainyard:namespace: x\n")
    with pytest.raises(SettingsError, match=r"is not YAML: (?s:.*)in Pulumi\.dev\.yaml, line 3") as caught:
        read_stack_file(path, "dev")
    assert "unicode string" not in str(caught.value)


def test_aliases_within_aliases_are_read_once(tmp_path: Path) -> None:
    levels = "".join(f"  {b}: &{b} [{','.join([f'*{a}'] * 20)}]\n" for a, b in zip("abcdefg", "bcdefgh", strict=True))
    message = mistakes(tmp_path, f"config:\n  a: &a [x]\n{levels}  trainyard:target: local\n  trainyard:etcd: *h\n")
    assert "trainyard:etcd (line 11): is a list" in message


def test_another_encoding_is_named_with_its_line(tmp_path: Path) -> None:
    path = tmp_path / "Pulumi.dev.yaml"
    path.write_bytes("config:\n  trainyard:target: lokal\n  # für später\n".encode("latin-1"))
    with pytest.raises(SettingsError, match="is not UTF-8 text \\(line 3 ") as caught:
        read_stack_file(path, "dev")
    assert "iconv" in str(caught.value)


@pytest.mark.parametrize("value", ["[x", '{"a":', "[" * 5000])
def test_a_text_of_the_engine_that_only_looks_structured_is_text(value: str) -> None:
    with pytest.raises(SettingsError, match="must be a list"):
        from_engine({"trainyard:target": "local", "trainyard:nodePools": value}, "dev")


def test_a_mistyped_prefix_is_not_passed_over(tmp_path: Path) -> None:
    message = mistakes(tmp_path, "config: {trainyard:target: local, trainyrd:namespace: x, aws:region: eu-north-1}")
    assert "1 mistake;" in message
    assert "trainyrd:namespace (line 1): is not read: did you mean 'trainyard:namespace'?" in message
    with pytest.raises(SettingsError, match="did you mean 'trainyard:namespace'"):
        from_engine({"trainyard:target": "local", "trainyrd:namespace": "x"}, "dev")


def test_keys_beside_config_are_pulumi_s_own(tmp_path: Path) -> None:
    message = mistakes(
        tmp_path,
        """\
encryptionsalt: v1:x
secretprovider: x
trainyard:namespace: x
colour: red
config: {trainyard:target: local}
""",
    )
    assert "3 mistakes" in message
    assert "secretprovider (line 2): unknown key; did you mean 'secretsprovider'?" in message
    assert "trainyard:namespace (line 3): stands beside `config`, not in it" in message
    assert "colour (line 4): unknown key; Pulumi knows here: config, encryptedkey" in message


def test_what_contradicts_is_said_even_where_other_values_are_wrong(tmp_path: Path) -> None:
    message = written(
        tmp_path,
        {
            "target": "local",
            "namespace": "Bad_Name",
            "kubeconfig": {"path": "k"},
            "nodePools": [{"name": "a", "gpusPerNode": 1}, {"name": "a", "gpusPerNode": 1, "capacity": "sopt"}],
            "colour": "red",
        },
    )
    assert "two pools are named 'a'" in message
    assert "trainyard:kubeconfig (line 3): has no meaning with target local" in message
    assert "allowed: on-demand, spot" in message
    assert "trainyard:colour" in message
    assert "trainyard:namespace" in message


def test_nothing_is_concluded_from_a_wrong_value(tmp_path: Path) -> None:
    message = written(tmp_path, {"target": "lokal", "nodePools": [{"name": "gpu", "gpusPerNode": 1}], "local": {}})
    assert "1 mistake;" in message
    message = written(tmp_path, pools({"nodes": "many", "gpusPerNode": 0}))
    assert "1 mistake;" in message
    message = written(tmp_path, {"target": "kubeconfig", "kubeconfig": {}, "images": {"controller": "", "etcd": "e:1"}})
    assert "2 mistakes;" in message


@pytest.mark.parametrize("namespace", ["trainyard-system", "default", "kube-system"])
def test_the_jobs_have_a_namespace_of_their_own(tmp_path: Path, namespace: str) -> None:
    message = written(tmp_path, {"target": "local", "namespace": namespace})
    assert f"is '{namespace}': must be a namespace of the jobs' own" in message


def test_the_local_target_has_room_for_so_many_nodes(tmp_path: Path) -> None:
    assert LOCAL_NODES_MAX == LAST_NUMBER
    message = written(tmp_path, pools({"nodes": 100}, {"nodes": 100}, {"nodes": 51}))
    assert "trainyard:nodePools (line 2): ask for 251 nodes; the local target has room for 250" in message


def test_settings_cannot_be_changed_after_they_were_checked() -> None:
    settings = Settings(target="local")
    with pytest.raises(Exception, match="frozen"):
        settings.namespace = "other"
