"""The real pack as the engine runs it: a process that prints its port and answers gRPC."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import grpc
import psutil
from google.protobuf import empty_pb2, json_format, struct_pb2
from pulumi.runtime.proto import analyzer_pb2, analyzer_pb2_grpc
from pulumi_policy import PolicyResource
from pulumi_policy.deserialize import serialize_properties

from infra.clusters import CHECKOUT

PACK = CHECKOUT / "policies"
_ANSWER_WITHIN = 300.0  # seconds; far beyond what a loaded computer needs
_LARGEST = 64 * 2**20


@dataclass
class Pack:
    """A running pack."""

    stub: analyzer_pb2_grpc.AnalyzerStub
    process: psutil.Process

    def info(self) -> Any:
        """What it says of itself."""
        return self.stub.GetAnalyzerInfo(empty_pb2.Empty(), timeout=_ANSWER_WITHIN)

    def configure(self, levels: Mapping[str, Mapping[str, Any]]) -> None:
        """Give it levels and settings, as the engine does with a file."""
        told = {each.name: each.enforcementLevel for each in self.info().policies}
        request = analyzer_pb2.ConfigureAnalyzerRequest()
        for name, level in told.items():
            own = dict(levels.get(name, {}))
            named = own.pop("enforcementLevel", None)
            request.policyConfig[name].enforcementLevel = (
                analyzer_pb2.EnforcementLevel.Value(named.upper()) if named else level
            )
            request.policyConfig[name].properties.update(own)
        self.stub.Configure(request, timeout=_ANSWER_WITHIN)

    def analyze(self, one: PolicyResource) -> list[Any]:
        """What it says of a resource."""
        request = analyzer_pb2.AnalyzeRequest(
            type=one.resource_type, urn=one.urn, name=one.name, properties=_struct(one.props)
        )
        _fill(request, one)
        return list(self.stub.Analyze(request, timeout=_ANSWER_WITHIN).diagnostics)

    def remediate(self, type_name: str, props: Mapping[str, Any]) -> list[Any]:
        """What it would change in a resource, whose properties are as the engine sends them."""
        properties = struct_pb2.Struct()
        json_format.ParseDict(dict(props), properties)
        request = analyzer_pb2.AnalyzeRequest(type=type_name, urn="urn:it", name="it", properties=properties)
        return list(self.stub.Remediate(request, timeout=_ANSWER_WITHIN).remediations)

    def analyze_stack(self, several: list[PolicyResource]) -> list[Any]:
        """What it says of a stack."""
        request = analyzer_pb2.AnalyzeStackRequest()
        for one in several:
            added = request.resources.add(
                type=one.resource_type, urn=one.urn, name=one.name, properties=_struct(one.props)
            )
            _fill(added, one)
            for key, those in one.property_dependencies.items():
                added.propertyDependencies[key].urns.extend(each.urn for each in those)
        return list(self.stub.AnalyzeStack(request, timeout=_ANSWER_WITHIN).diagnostics)


@contextlib.contextmanager
def running_pack() -> Iterator[Pack]:
    """Start the pack, and end it."""
    with subprocess.Popen([sys.executable, str(PACK)], stdout=subprocess.PIPE, cwd=CHECKOUT.parent) as process:
        try:
            assert process.stdout is not None
            port = int(process.stdout.readline())
            options = [("grpc.max_receive_message_length", _LARGEST)]
            with grpc.insecure_channel(f"127.0.0.1:{port}", options=options) as channel:
                yield Pack(analyzer_pb2_grpc.AnalyzerStub(channel), psutil.Process(process.pid))
        finally:
            process.kill()


def _struct(props: Mapping[str, Any]) -> struct_pb2.Struct:
    made = struct_pb2.Struct()
    json_format.ParseDict(json.loads(json.dumps(serialize_properties(props))), made)
    return made


def _fill(request: Any, one: PolicyResource) -> None:
    request.options.protect = one.opts.protect
    request.options.ignoreChanges.extend(one.opts.ignore_changes)
    if one.provider is not None:
        request.provider.CopyFrom(
            analyzer_pb2.AnalyzerProviderResource(
                type=one.provider.resource_type,
                urn=one.provider.urn,
                name=one.provider.name,
                properties=_struct(one.provider.props),
            )
        )
