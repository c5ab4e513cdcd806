"""Runs the Pulumi program without an engine and keeps what it asks for; tests use it through the fixture `program`.

Resources come out as they were asked for, with what AWS would add where the program goes on with it.
"""

from __future__ import annotations

import json
import runpy
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import pulumi
from pulumi.runtime import mocks, rpc
from pulumi.runtime.config import set_all_config

from infra.clusters import CHECKOUT

PROGRAM = CHECKOUT / "infra/__main__.py"
STACK = "dev"
ACCOUNT, REGION, PARTITION = "123456789012", "us-east-2", "aws"
CLUSTER_GROUP = "sg-of-the-cluster"

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
    urn: str


class Recorder(mocks.MockMonitor):
    """Takes the place of the engine's resource monitor, and keeps what it is asked."""

    def __init__(self) -> None:
        super().__init__(Answers())
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
                    urn=answer.urn,
                )
            )
        return answer


class Answers(mocks.Mocks):
    """What a cloud adds to what is asked for."""

    def new_resource(self, args: pulumi.runtime.MockResourceArgs) -> tuple[str | None, dict[str, Any]]:
        known = dict(args.inputs)
        if args.typ.startswith("aws:"):
            service = args.typ.split(":")[1].split("/")[0]
            known["arn"] = f"arn:{PARTITION}:{service}:{REGION}:{ACCOUNT}:{args.name}"
        match args.typ:
            case "aws:eks/cluster:Cluster":
                known["endpoint"] = "https://control-plane.example"
                known["certificateAuthority"] = {"data": "Y2VydA=="}
                known["vpcConfig"] = {**args.inputs["vpcConfig"], "clusterSecurityGroupId": CLUSTER_GROUP}
            case "aws:ec2/launchTemplate:LaunchTemplate":
                known["latestVersion"] = 1
            case "aws:ec2/eip:Eip":
                known["allocationId"] = f"{args.name}-allocation"
            case "aws:kms/key:Key":
                known["keyId"] = f"{args.name}-id"
            case "aws:fsx/lustreFileSystem:LustreFileSystem":
                known["dnsName"], known["mountName"] = "fs-0123.fsx.us-east-2.amazonaws.com", "abcdefgh"
            case "aws:ecr/repository:Repository":
                known["repositoryUrl"] = f"{ACCOUNT}.dkr.ecr.{REGION}.amazonaws.com/{args.inputs['name']}"
        return f"{args.name}-id", known

    def call(self, args: pulumi.runtime.MockCallArgs) -> tuple[dict[str, Any], list[tuple[str, str]] | None]:
        match args.token:
            case "aws:index/getPartition:getPartition":
                return {
                    "partition": PARTITION,
                    "dnsSuffix": "amazonaws.com",
                    "reverseDnsPrefix": "com.amazonaws",
                    "id": PARTITION,
                }, []
            case "aws:index/getCallerIdentity:getCallerIdentity":
                return {"accountId": ACCOUNT, "arn": "", "id": ACCOUNT, "userId": "U"}, []
        raise AssertionError(f"the program calls nothing else, and now {args.token}")


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


def run(config: Config) -> Recorded:
    """Run the program once."""
    recorder = Recorder()
    mocks.set_mocks(recorder.mocks, project="trainyard", stack=STACK, preview=False, monitor=recorder)
    set_all_config(as_the_engine_tells(config))
    outputs: dict[str, Any] = {}

    def whole() -> None:
        runpy.run_path(str(PROGRAM))
        stack = pulumi.runtime.get_root_resource()
        assert isinstance(stack, pulumi.runtime.stack.Stack)
        pulumi.Output.from_input(dict(stack.outputs)).apply(outputs.update)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # pulumi_aws.s3 also brings what it warns of
        pulumi.runtime.test(whole)()  # type: ignore[no-untyped-call]
    return Recorded(recorder.recorded, outputs)


def as_the_engine_tells(config: Config) -> dict[str, str]:
    """A configuration as the engine hands it over: structured values as JSON text."""
    return {f"trainyard:{key}": value if isinstance(value, str) else json.dumps(value) for key, value in config.items()}
