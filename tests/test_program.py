"""The Pulumi program as the engine runs it: every setting reaches a resource, every resource has its place."""

from __future__ import annotations

import asyncio
import json
import runpy
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, get_args

import pulumi
import pytest
from pulumi.runtime import mocks, rpc
from pulumi.runtime.config import set_all_config

from infra.clusters import CHECKOUT
from infra.settings import Settings, from_engine
from infra.settings.base import Section
from infra.wiring.local_nodes import node_specs

PROGRAM = CHECKOUT / "infra/__main__.py"
STACK = "dev"

Config = dict[str, Any]
Recorded = list[Any]
"""Requests to register a resource, as the engine gets them."""

LOCAL: Config = {"target": "local"}


def on_kubeconfig(folder: Path) -> Config:
    path = folder / "kubeconfig"
    return {
        "target": "kubeconfig",
        "kubeconfig": {"path": str(path)},
        "images": {"controller": "registry.example/controller:1", "etcd": "registry.example/etcd:1"},
    }


class Recorder(mocks.MockMonitor):
    """Takes the place of the engine's resource monitor, and keeps what it is asked."""

    def __init__(self) -> None:
        super().__init__(Echo())
        self.requests: Recorded = []

    def RegisterResource(self, request: Any) -> Any:  # noqa: N802 - a method of the engine's protocol
        if request.type != "pulumi:pulumi:Stack":
            self.requests.append(request)
        return super().RegisterResource(request)  # type: ignore[no-untyped-call]


class Echo(mocks.Mocks):
    """Every resource comes out as it was asked for."""

    def new_resource(self, args: pulumi.runtime.MockResourceArgs) -> tuple[str | None, dict[str, Any]]:
        return f"{args.name}-id", args.inputs

    def call(self, args: pulumi.runtime.MockCallArgs) -> tuple[dict[str, Any], list[tuple[str, str]] | None]:
        raise AssertionError(f"the program calls nothing, and now {args.token}")


Program = Callable[[Config], Recorded]


@pytest.fixture(autouse=True)
def _event_loop() -> None:
    """Pulumi's SDK takes the thread's event loop; a test before this one may have left none."""
    asyncio.set_event_loop(asyncio.new_event_loop())


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Program]:
    """Runs the program on a configuration; the kubeconfig of the local cluster is there."""
    (tmp_path / "kubeconfig").write_text("{}")
    monkeypatch.setenv("TRAINYARD_STATE_DIR", str(tmp_path))
    monkeypatch.setattr(sys, "path", list(sys.path))

    def run(config: Config) -> Recorded:
        recorder = Recorder()
        mocks.set_mocks(recorder.mocks, project="trainyard", stack=STACK, preview=False, monitor=recorder)
        set_all_config(as_the_engine_tells(config))
        pulumi.runtime.test(lambda: runpy.run_path(str(PROGRAM)) and None)()  # type: ignore[no-untyped-call]
        return recorder.requests

    yield run
    set_all_config({})


def as_the_engine_tells(config: Config) -> dict[str, str]:
    return {f"trainyard:{key}": value if isinstance(value, str) else json.dumps(value) for key, value in config.items()}


def changed(config: Config, key: str, value: Any) -> Config:
    """The configuration with one leaf changed: `etcd.storage`."""
    section, _, leaf = key.partition(".")
    return config | ({section: {**config.get(section, {}), leaf: value}} if leaf else {section: value})


def inputs(recorded: Recorded) -> dict[str, str]:
    """What each resource is asked to be, by type and name, as JSON with sorted keys."""
    return {
        f"{request.type} {request.name}": json.dumps(rpc.deserialize_properties(request.object), sort_keys=True)
        for request in recorded
    }


def leaves(section: type[Section] = Settings, prefix: str = "") -> Iterator[str]:
    """Every key that holds a value and not a section: `nodePools[].name`, `etcd.storage`, …"""
    for field in section.model_fields.values():
        annotation = field.annotation
        inner = next((part for part in (annotation, *get_args(annotation)) if is_section(part)), None)
        many = "[]" if str(annotation).startswith("tuple") else ""
        if inner is None:
            yield f"{prefix}{field.alias}"
        else:
            yield from leaves(inner, f"{prefix}{field.alias}{many}.")


def is_section(part: Any) -> bool:
    return isinstance(part, type) and issubclass(part, Section)


# Another value for each leaf that shall reach a resource, on the target where it has a meaning.
ON_LOCAL: Mapping[str, Any] = {
    "namespace": "experiments",
    "etcd.storage": "3Gi",
    "checkpoints.size": "77Gi",
    "checkpoints.accessMode": "ReadWriteOnce",
    "controller.replicas": 2,
    "images.controller": "registry.example/controller:2",
    "images.etcd": "registry.example/etcd:2",
}
ON_KUBECONFIG: Mapping[str, Any] = {
    "kubeconfig.path": str(CHECKOUT / "Pulumi.yaml"),  # any file that is there
    "kubeconfig.context": "other",
    "etcd.storageClass": "fast",
    "checkpoints.storageClass": "nfs",
}
# Leaves that never reach a resource, and who reads them instead.
COMMAND_ONLY: Mapping[str, str] = {
    "local.apiServerPort": "`trainyard up` starts the control plane there, before there is a cluster to declare in",
    **{
        f"nodePools[].{key}": "`trainyard up` starts the local nodes, see infra/wiring/local_nodes.py"
        for key in ("name", "nodes", "gpusPerNode", "cpusPerNode", "memoryPerNode", "capacity")
    },
}


def test_every_setting_is_in_one_of_the_tables_here() -> None:
    known = ["target", *ON_LOCAL, *ON_KUBECONFIG, *COMMAND_ONLY]
    assert sorted(leaves()) == sorted(known), "a new setting goes into the table of those who read it"


def test_the_same_settings_declare_the_same(program: Program) -> None:
    assert inputs(program(LOCAL)) == inputs(program(LOCAL))


@pytest.mark.parametrize("key", ON_LOCAL)
def test_a_setting_of_any_target_reaches_a_resource(program: Program, key: str) -> None:
    assert inputs(program(changed(LOCAL, key, ON_LOCAL[key]))) != inputs(program(LOCAL))


@pytest.mark.parametrize("key", ON_KUBECONFIG)
def test_a_setting_of_an_existing_cluster_reaches_a_resource(program: Program, key: str, tmp_path: Path) -> None:
    base = on_kubeconfig(tmp_path)
    assert inputs(program(changed(base, key, ON_KUBECONFIG[key]))) != inputs(program(base))


@pytest.mark.parametrize(
    ("key", "value"),
    {
        "name": "other",
        "nodes": 3,
        "gpusPerNode": 2,
        "cpusPerNode": 4,
        "memoryPerNode": "8Gi",
        "capacity": "spot",
    }.items(),
)
def test_a_setting_of_a_pool_changes_the_local_nodes(key: str, value: Any) -> None:
    def nodes(**pool: Any) -> Any:
        pools = [{"name": "home"}, {"name": "gpu", "gpusPerNode": 1} | pool]
        return node_specs(from_engine(as_the_engine_tells({**LOCAL, "nodePools": pools}), STACK).node_pools)

    assert f"nodePools[].{key}" in COMMAND_ONLY
    assert nodes(**{key: value}) != nodes()


def test_the_local_stack_brings_storage_classes_and_needs_no_cluster_dns(program: Program) -> None:
    made = inputs(program(LOCAL))
    assert {name.split()[-1] for name in made if "StorageClass " in name} == {"trainyard-block", "trainyard-shared"}
    pods = [spec for name, spec in made.items() if "StatefulSet" in name or "Deployment" in name]
    assert ['"dnsPolicy": "Default"' in spec for spec in pods] == [True, True]
    assert "trainyard-shared" in made["kubernetes:core/v1:PersistentVolumeClaim checkpoints"]
    assert "trainyard-block" in made["kubernetes:apps/v1:StatefulSet etcd"]


def test_an_existing_cluster_keeps_its_classes_and_its_dns(program: Program, tmp_path: Path) -> None:
    made = inputs(program(on_kubeconfig(tmp_path)))
    assert not [name for name in made if "StorageClass " in name]
    assert "storageClassName" not in made["kubernetes:core/v1:PersistentVolumeClaim checkpoints"]
    assert '"dnsPolicy": "ClusterFirst"' in made["kubernetes:apps/v1:StatefulSet etcd"]


@pytest.mark.parametrize("target", ["local", "kubeconfig"])
def test_every_resource_has_a_parent_the_stack_s_provider_and_a_name_of_its_own(
    program: Program, target: str, tmp_path: Path
) -> None:
    recorded = program(LOCAL if target == "local" else on_kubeconfig(tmp_path))
    provider = next(r for r in recorded if r.type == "pulumi:providers:kubernetes")
    components = {r.name for r in recorded if r.type.startswith("trainyard:")}
    objects = [r for r in recorded if r.type.startswith("kubernetes:")]
    assert len(recorded) == 1 + len(components) + len(objects)
    assert len(objects) >= 10
    for request in objects:
        *_, kind, parent = request.parent.split("::")
        assert parent in components, f"{request.name} has no component for a parent"
        assert kind.split("$")[-1].startswith("trainyard:in_cluster:")
        assert request.provider.split("::")[-2] == provider.name, f"{request.name} has another provider"
        name = request.object["metadata"]["name"]
        assert name == request.name, f"{request.type} {request.name} is named {name} in the cluster"


def test_a_mistake_in_the_settings_is_told_without_a_traceback(program: Program) -> None:
    with pytest.raises(pulumi.RunError, match="1 mistake"):
        program(LOCAL | {"namespace": "trainyard-system"})


def test_a_cluster_that_is_not_there_is_told_without_a_traceback(program: Program, tmp_path: Path) -> None:
    (tmp_path / "kubeconfig").unlink()
    with pytest.raises(pulumi.RunError, match=r"Start it: trainyard up -s dev"):
        program(LOCAL)


def test_the_program_reads_like_a_table_of_contents() -> None:
    assert len(PROGRAM.read_text().splitlines()) <= 60
