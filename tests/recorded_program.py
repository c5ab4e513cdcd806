"""Runs the Pulumi program without an engine and keeps what it asks for; tests use it through the fixture `program`.

Resources come out as they were asked for, with what AWS would add where the program goes on with it.
"""

from __future__ import annotations

import asyncio
import json
import runpy
import sys
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import pulumi
import yaml
from pulumi.runtime import mocks, rpc
from pulumi.runtime.config import set_all_config

from infra.clusters import CHECKOUT
from infra.report.recorder import ACCOUNT, CLUSTER_GROUP, PARTITION, REGION, Answers

__all__ = ["ACCOUNT", "CLUSTER_GROUP", "PARTITION", "REGION", "Answers"]

PROGRAM = CHECKOUT / "infra/__main__.py"
STACK = "dev"
CONTROLLER = f"registry.example/controller@sha256:{'1' * 64}"

Config = dict[str, Any]


@dataclass(frozen=True)
class Resource:
    """What the program asks the engine to make."""

    type: str
    name: str
    inputs: Mapping[str, Any]
    """Outputs of other resources in them are known: ids are `<name>-id`."""
    parent: str
    """URN."""
    provider: str
    """Its URN and id; empty for components."""
    protect: bool
    retain: bool
    ignore_changes: tuple[str, ...]
    after: frozenset[str]
    """URNs of what it depends on."""
    sources: Mapping[str, tuple[str, ...]]
    """By property: URNs of what its value comes from."""
    urn: str

    def statements(self, document: str = "policy") -> list[dict[str, Any]]:
        """The statements of a policy document, each with its actions and resources as lists."""
        found: list[dict[str, Any]] = json.loads(self.inputs[document])["Statement"]
        for each in found:
            for key in ("Action", "Resource"):
                if isinstance(each.get(key), str):
                    each[key] = [each[key]]
        return found


class Recorder(mocks.MockMonitor):
    """Takes the place of the engine's resource monitor, and keeps what it is asked."""

    def __init__(self, partition: str) -> None:
        super().__init__(Answers(partition))
        self.recorded: list[Resource] = []

    def RegisterResource(self, request: Any) -> Any:  # noqa: N802 - a method of the engine's protocol
        answer = super().RegisterResource(request)  # type: ignore[no-untyped-call]
        if request.type != "pulumi:pulumi:Stack":
            self.recorded.append(
                Resource(
                    type=request.type,
                    name=request.name,
                    inputs=rpc.deserialize_properties(request.object),
                    parent=request.parent,
                    provider=request.provider,
                    protect=request.protect,
                    retain=request.retainOnDelete,
                    ignore_changes=tuple(request.ignoreChanges),
                    after=frozenset(request.dependencies),
                    sources={key: tuple(each.urns) for key, each in request.propertyDependencies.items()},
                    urn=answer.urn,
                )
            )
        return answer


@dataclass(frozen=True)
class Recorded:
    """What one run of the program asked for."""

    resources: list[Resource]
    outputs: Mapping[str, Any]

    def of(self, type: str) -> list[Resource]:  # noqa: A002 - the engine's word
        """Resources of a type, by its last part: `LaunchTemplate`."""
        return [each for each in self.resources if each.type.rsplit(":", 1)[-1] == type]

    def one(self, type: str, name: str) -> Resource:  # noqa: A002 - the engine's word
        """The resource of a type with a logical name."""
        (found,) = [each for each in self.of(type) if each.name == name]
        return found

    def inputs(self) -> dict[str, str]:
        """What each resource is asked to be, by type and name, as JSON with sorted keys."""
        return {
            f"{each.type} {each.name}": json.dumps([each.inputs, each.protect, each.retain], sort_keys=True)
            for each in self.resources
        }


Program = Callable[[Config], Recorded]


def run(config: Config, *, stack: str = STACK, partition: str = PARTITION) -> Recorded:
    """Run the program once.

    Args:
        config: the stack file's values.
        stack: name of the stack.
        partition: that of the AWS account.
    """
    asyncio.set_event_loop(
        asyncio.new_event_loop()
    )  # Pulumi's SDK takes the thread's; a test before may have left none
    recorder, outputs, path = Recorder(partition), dict[str, Any](), list(sys.path)
    mocks.set_mocks(recorder.mocks, project="trainyard", stack=stack, preview=False, monitor=recorder)
    set_all_config(as_the_engine_tells(config))

    def whole() -> None:
        runpy.run_path(str(PROGRAM))
        root = pulumi.runtime.get_root_resource()
        assert isinstance(root, pulumi.runtime.stack.Stack)
        pulumi.Output.from_input(dict(root.outputs)).apply(outputs.update)

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # pulumi_aws.s3 also brings what it warns of
            pulumi.runtime.test(whole)()  # type: ignore[no-untyped-call]
    finally:
        sys.path[:] = path  # the program puts the checkout there
        set_all_config({})
    return Recorded(recorder.recorded, outputs)


def run_stack_file(name: str, **changes: Any) -> Recorded:
    """Run the program on `Pulumi.<name>.yaml`, with some sections of `trainyard:` changed."""
    values = yaml.safe_load((CHECKOUT / f"Pulumi.{name}.yaml").read_text(encoding="utf-8"))["config"]
    config = {key.removeprefix("trainyard:"): value for key, value in values.items()}
    config["images"] = {**config.get("images", {}), "controller": CONTROLLER}  # else it comes from the image lock
    return run(config | changes, stack=name)


def as_the_engine_tells(config: Config) -> dict[str, str]:
    """A configuration as the engine hands it over: structured values as JSON text."""
    return {f"trainyard:{key}": value if isinstance(value, str) else json.dumps(value) for key, value in config.items()}
