"""Runs a Pulumi program without an engine and writes down what it asks for. A script: `python -P recorder.py …`.

It imports nothing of this project, as it is run on other revisions of it too, with their folder first on `sys.path`.
Nothing is asked of AWS and nothing is made: ids and ARNs are made up, inputs are those that the engine would be given.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import runpy
import sys
import traceback
import warnings
from pathlib import Path
from typing import Any

import pulumi
import yaml
from pulumi.runtime import mocks, rpc
from pulumi.runtime.config import set_all_config

ACCOUNT, REGION, PARTITION = "123456789012", "us-east-2", "aws"
CLUSTER_GROUP = "sg-of-the-cluster"
NOT_BUILT = f"not-built.invalid/controller@sha256:{'0' * 64}"
"""Stands for the controller's image, which need not be built to reckon; as in the settings."""
FAILED = 3
"""Exit code where the program itself refused; its message is on stderr."""


class Answers(mocks.Mocks):
    """What a cloud adds to what is asked for."""

    def __init__(self, partition: str) -> None:
        self._partition = partition
        self._china = ("amazonaws.com.cn", "cn.com.amazonaws") if partition == "aws-cn" else None

    def new_resource(self, args: pulumi.runtime.MockResourceArgs) -> tuple[str | None, dict[str, Any]]:
        """Id and properties of a resource: what was asked for, and what the program goes on with."""
        known = dict(args.inputs)
        if args.typ.startswith("aws:"):
            service = args.typ.split(":")[1].split("/")[0]
            known["arn"] = f"arn:{self._partition}:{service}:{REGION}:{ACCOUNT}:{args.name}"
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
        """What a function of the provider answers."""
        match args.token:
            case "aws:index/getPartition:getPartition":
                suffix, prefix = self._china or ("amazonaws.com", "com.amazonaws")
                names = {"partition": self._partition, "id": self._partition}
                return names | {"dnsSuffix": suffix, "reverseDnsPrefix": prefix}, []
            case "aws:index/getCallerIdentity:getCallerIdentity":
                return {"accountId": ACCOUNT, "arn": "", "id": ACCOUNT, "userId": "U"}, []
        raise AssertionError(f"the program calls nothing else, and now {args.token}")


class Recorder(mocks.MockMonitor):
    """Takes the place of the engine's resource monitor, and keeps what it is asked."""

    def __init__(self) -> None:
        super().__init__(Answers(PARTITION))
        self.recorded: list[dict[str, Any]] = []

    def RegisterResource(self, request: Any) -> Any:  # noqa: N802 - a method of the engine's protocol
        """Keep what is asked for, and answer as a cloud would."""
        answer = super().RegisterResource(request)  # type: ignore[no-untyped-call]
        if request.type != "pulumi:pulumi:Stack":
            self.recorded.append(
                {
                    "urn": answer.urn,
                    "type": request.type,
                    "name": request.name,
                    "id": f"{request.name}-id" if request.custom else "",
                    "inputs": rpc.deserialize_properties(request.object),
                    "parent": request.parent,
                    "provider": request.provider,
                    "protect": request.protect,
                    "custom": request.custom,
                }
            )
        return answer


def configuration(folder: Path, stack: str) -> tuple[str, dict[str, str], str]:
    """The project's name, the stack's values as the engine hands them over, and the program's folder."""
    project = yaml.safe_load((folder / "Pulumi.yaml").read_text(encoding="utf-8"))
    stack_file = yaml.safe_load((folder / f"Pulumi.{stack}.yaml").read_text(encoding="utf-8")) or {}
    values = {
        key: value
        for key, value in (stack_file.get("config") or {}).items()
        if not (isinstance(value, dict) and "secure" in value)  # a secret: nobody here has the passphrase
    }
    name = str(project["name"])
    images = values.get(f"{name}:images") or {}
    if values.get(f"{name}:target") != "local" and isinstance(images, dict):
        values[f"{name}:images"] = {"controller": NOT_BUILT, **images}
    told = {key: value if isinstance(value, str) else json.dumps(value) for key, value in values.items()}
    return name, told, str(project.get("main", "."))


def record(folder: Path, stack: str) -> list[dict[str, Any]]:
    """Run the program in a folder and return what it asks for.

    Raises:
        pulumi.RunError: the program refused.
    """
    project, config, main = configuration(folder, stack)
    sys.path.insert(0, str(folder))
    asyncio.set_event_loop(asyncio.new_event_loop())
    recorder = Recorder()
    mocks.set_mocks(recorder.mocks, project=project, stack=stack, preview=False, monitor=recorder)
    set_all_config(config)
    program = folder / main
    path = program / "__main__.py" if program.is_dir() else program
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # pulumi_aws.s3 also brings what it warns of
        pulumi.runtime.test(lambda: runpy.run_path(str(path)) and None)()  # type: ignore[no-untyped-call]
    return recorder.recorded


def _end(said: str, code: int) -> None:
    """End at once: what the interpreter would say on its way out would bury the message."""
    sys.stderr.write(said.rstrip() + "\n")
    sys.stderr.flush()
    os._exit(code)


def main() -> None:
    """Record a stack and write it to a file, as JSON."""
    parser = argparse.ArgumentParser()
    for name in ("folder", "stack", "out"):
        parser.add_argument(name)
    given = parser.parse_args()
    try:
        recorded = record(Path(given.folder), given.stack)
    except (pulumi.RunError, OSError, KeyError, yaml.YAMLError) as error:
        _end(f"{error}", FAILED)
    except BaseException:  # noqa: BLE001 - whatever the program does wrong is told
        _end(traceback.format_exc(), 1)
    Path(given.out).write_text(json.dumps(recorded, default=str), encoding="utf-8")


if __name__ == "__main__":
    main()
