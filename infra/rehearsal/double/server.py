"""The engine's protocol: a Pulumi resource plugin for `aws` that turns each request into a step of a `Kind`."""

from __future__ import annotations

import json
import os
import signal
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
from google.protobuf import empty_pb2, struct_pb2
from pulumi.runtime.proto import plugin_pb2, provider_pb2_grpc
from pulumi.runtime.proto import provider_pb2 as messages

from infra.errors import TrainyardError
from infra.rehearsal.double.aws import Aws
from infra.rehearsal.double.kind import Failure, Kind, failures
from infra.rehearsal.double.registry import UnknownTypeError, kind_of, prepare
from infra.rehearsal.double.validation import regions
from infra.rehearsal.double.values import UNKNOWN, decode, encode, has_unknown, secret_members

VERSION = "7.51.1"
"""Of the pulumi-aws whose place it takes: the SDK asks for exactly this plugin."""
MAX_MESSAGE_BYTES = 400 << 20  # the engine's own limit for one gRPC message

# Members that Pulumi's AWS provider fills by itself when a program doesn't. Where a program gives such a name, an old
# and a new resource cannot both have it, so a replacement deletes first: as the Terraform bridge does.
_NAMES = ("name", "nodeGroupName", "bucket", "creationToken")
_FREE = frozenset({"tags", "labels"})  # objects whose members are the user's own
# Lists that AWS's provider takes as sets: another order of the same items is no change.
_SETS = frozenset({
    "enabledClusterLogTypes", "kubernetesGroups", "namespaces", "publicAccessCidrs", "routeTableIds",
    "securityGroupIds", "securityGroups", "subnetIds", "taints", "vpcSecurityGroupIds",
})  # fmt: skip


class Provider(provider_pb2_grpc.ResourceProviderServicer):
    """The part of the `ResourceProvider` service that a program with AWS resources needs.

    Args:
        open_aws: gives the way to one region of the rehearsal's AWS; called once the provider's region is known.
    """

    def __init__(self, open_aws: Callable[[str], Aws]) -> None:
        self._open_aws = open_aws
        self._aws: Aws | None = None
        self._default_tags: dict[str, str] = {}

    def Handshake(self, request: Any, context: Any) -> Any:  # noqa: ARG002, N802, D102
        return messages.ProviderHandshakeResponse(accept_secrets=True, accept_resources=True, accept_outputs=True)

    def Attach(self, request: Any, context: Any) -> Any:  # noqa: ARG002, N802, D102
        return empty_pb2.Empty()

    def Cancel(self, request: Any, context: Any) -> Any:  # noqa: ARG002, N802
        """Nothing to stop: no step takes long."""
        return empty_pb2.Empty()

    def GetPluginInfo(self, request: Any, context: Any) -> Any:  # noqa: ARG002, N802, D102
        return plugin_pb2.PluginInfo(version=VERSION)

    def GetSchema(self, request: Any, context: Any) -> Any:  # noqa: ARG002, N802
        """Only the name: the engine needs no more for programs that have the SDK."""
        return messages.GetSchemaResponse(schema=json.dumps({"name": "aws", "version": VERSION}))

    def CheckConfig(self, request: Any, context: Any) -> Any:  # noqa: ARG002, N802
        """The provider's settings: a region that exists is all that the rehearsal needs."""
        region = decode(request.news).get("region")
        found = []
        if region is None:
            found.append(("region", "the AWS provider has no region: give each AWS resource the stack's own provider"))
        elif region is not UNKNOWN and region not in regions():
            found.append(("region", f"AWS has no region {region!r}: set trainyard:aws.region, e.g. us-east-2"))
        return messages.CheckResponse(
            inputs=request.news,
            failures=[messages.CheckFailure(property=where, reason=reason) for where, reason in found],
        )

    def DiffConfig(self, request: Any, context: Any) -> Any:  # noqa: ARG002, N802
        """Another region is another cloud: everything in it is replaced."""
        old, new = decode(request.old_inputs), decode(request.news)
        return _response(_changes(old, new, ""), frozenset({"region"}), delete_first=False)

    def Configure(self, request: Any, context: Any) -> Any:  # noqa: N802
        """Settings that only matter to the real AWS (credentials, retries, endpoints) are left aside."""
        settings = decode(request.args)
        with _told(context):
            self._aws = self._open_aws(settings["region"])
            self._default_tags = _object(settings.get("defaultTags")).get("tags", {})
        return messages.ConfigureResponse(
            acceptSecrets=True, supportsPreview=True, acceptResources=True, acceptOutputs=True
        )

    def Check(self, request: Any, context: Any) -> Any:  # noqa: N802
        """Everything that AWS would refuse, told in one go; nothing is made."""
        try:
            kind = kind_of(request.type)
        except UnknownTypeError as error:
            return messages.CheckResponse(
                inputs=request.news, failures=[messages.CheckFailure(property="", reason=str(error))]
            )
        inputs = self._tagged(kind, request.news)
        old, new = decode(request.olds), decode(inputs)
        with _told(context):
            found = failures(kind, new, self._ready())
        if request.HasField("olds") and not _difference(old, new, kind, delete_first=False).replaces:
            refused = kind.changes(old, new)
            found += [Failure(each.path, f"AWS would refuse this: {each.reason}") for each in refused]
        return messages.CheckResponse(
            inputs=inputs,
            failures=[messages.CheckFailure(property=failure.path, reason=failure.reason) for failure in found],
        )

    def Diff(self, request: Any, context: Any) -> Any:  # noqa: N802
        """Which inputs differ, and whether AWS can change them."""
        with _told(context):
            kind = kind_of(request.type)
        old, new = decode(request.old_inputs), decode(request.news)
        same_name = any(name in new and new[name] == old.get(name) for name in _NAMES)
        return _difference(old, new, kind, delete_first=kind.delete_first or same_name)

    def Create(self, request: Any, context: Any) -> Any:  # noqa: N802
        """Makes the resource, or says in a preview what is known of it."""
        inputs, secrets = decode(request.properties), secret_members(request.properties)
        with _told(context):
            kind, aws = kind_of(request.type), self._ready()
            if request.preview:
                outputs = _outputs(kind, aws, _with_unknown({**inputs, **kind.known(inputs, aws)}, kind.computed))
                return messages.CreateResponse(properties=_encoded(outputs, secrets))
            made = kind.create(aws, request.name, inputs)
            outputs = _outputs(kind, aws, {**inputs, **kind.known(inputs, aws), **made.outputs})
        return messages.CreateResponse(id=made.id, properties=_encoded(outputs, secrets))

    def Read(self, request: Any, context: Any) -> Any:  # noqa: N802
        """What is there now, laid over what was known."""
        state, inputs = decode(request.properties), decode(request.inputs)
        with _told(context):
            kind, aws = kind_of(request.type), self._ready()
            if not state:
                raise TrainyardError(
                    f"{request.id} cannot be imported or looked up: a rehearsal has only what its own stack makes"
                )
            seen = kind.read(aws, request.id, state)
            if seen is None:
                return messages.ReadResponse()
            outputs = _outputs(kind, aws, {**state, **seen})
        fresh = _like(inputs, {**inputs, **seen})
        secrets = secret_members(request.properties) | secret_members(request.inputs)
        properties = _encoded(outputs, secrets)
        return messages.ReadResponse(id=request.id, properties=properties, inputs=encode(fresh, secrets))

    def Update(self, request: Any, context: Any) -> Any:  # noqa: N802
        """Changes the resource in place, or says in a preview what will be known of it."""
        old, new = decode(request.olds), decode(request.news)
        kept = _computed_of(old, decode(request.old_inputs))
        with _told(context):
            kind, aws = kind_of(request.type), self._ready()
            if request.preview:
                seen: Mapping[str, Any] = dict.fromkeys(kind.recomputed, UNKNOWN)
            else:
                seen = kind.update(aws, request.id, old, new)
            outputs = _outputs(kind, aws, {**_laid_over(kept, new), **kind.known(new, aws), **seen})
        return messages.UpdateResponse(properties=_encoded(outputs, secret_members(request.news)))

    def Delete(self, request: Any, context: Any) -> Any:  # noqa: N802, D102
        with _told(context):
            kind_of(request.type).delete(self._ready(), request.id, decode(request.properties))
        return empty_pb2.Empty()

    def Invoke(self, request: Any, context: Any) -> Any:  # noqa: N802
        """Answers the look-ups that the program makes; there are few."""
        from infra.rehearsal.double.invokes import INVOKES  # noqa: PLC0415 - most starts of the plugin answer none

        with _told(context):
            if (answer := INVOKES.get(request.tok)) is None:
                raise UnknownTypeError(
                    f"the rehearsal's AWS does not know the look-up {request.tok}:"
                    " add it to infra/rehearsal/double/invokes.py"
                )
            arguments = decode(request.args)
            if has_unknown(arguments):
                return messages.InvokeResponse()
            result = encode(answer(self._ready(), arguments))
        return messages.InvokeResponse(**{"return": result})

    def _ready(self) -> Aws:
        if self._aws is None:
            raise TrainyardError("the AWS provider was asked before it was configured; this is a bug of the rehearsal")
        return self._aws

    def _tagged(self, kind: Kind, inputs: struct_pb2.Struct) -> struct_pb2.Struct:
        """The inputs with the provider's default tags below the resource's own, as the real provider's Check does."""
        tags = decode(inputs).get("tags")
        if not kind.tagged or not self._default_tags or tags is UNKNOWN:
            return inputs
        tagged = struct_pb2.Struct()
        tagged.CopyFrom(inputs)
        merged = encode({"tags": {**self._default_tags, **(tags or {})}}, secret_members(inputs) & {"tags"})
        tagged.fields["tags"].CopyFrom(merged.fields["tags"])
        return tagged


class _told:  # noqa: N801 - reads as a statement
    """Errors of the double reach the user as their sentence; others are bugs and keep their traceback."""

    def __init__(self, context: Any) -> None:
        self._context = context

    def __enter__(self) -> None:
        pass

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        if isinstance(error, TrainyardError | UnknownTypeError):
            self._context.abort(grpc.StatusCode.UNKNOWN, str(error))


def _outputs(kind: Kind, aws: Aws, values: dict[str, Any]) -> dict[str, Any]:
    outputs = {**values, "region": aws.region}
    if kind.tagged:
        outputs["tagsAll"] = values.get("tags") or {}
    return outputs


def _encoded(outputs: Mapping[str, Any], secrets: frozenset[str]) -> struct_pb2.Struct:
    """Outputs with what is secret in the inputs; all tags hold the secret ones."""
    return encode(outputs, secrets | {"tagsAll"} if "tags" in secrets else secrets)


def _with_unknown(values: dict[str, Any], paths: Iterable[str]) -> dict[str, Any]:
    """The values with unknown ones at these paths, where nothing is given."""
    filled = dict(values)
    for path in paths:
        first, _, rest = path.partition(".")
        if not rest:
            filled.setdefault(first, UNKNOWN)
        elif isinstance(filled.get(first), Mapping):
            filled[first] = _with_unknown(filled[first], [rest])
    return filled


def _computed_of(state: Mapping[str, Any], inputs: Mapping[str, Any]) -> dict[str, Any]:
    """What AWS added to the inputs, also inside objects."""
    kept: dict[str, Any] = {}
    for name, value in state.items():
        if name not in inputs:
            kept[name] = value
        elif isinstance(value, Mapping) and isinstance(inputs[name], Mapping) and name not in _FREE:
            kept[name] = _computed_of(value, inputs[name])
    return kept


def _laid_over(kept: Mapping[str, Any], inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Inputs over what AWS had added to earlier ones."""
    merged = {name: value for name, value in kept.items() if name not in inputs and value != {}}
    for name, value in inputs.items():
        below = kept.get(name)
        merged[name] = _laid_over(below, value) if isinstance(below, Mapping) and isinstance(value, Mapping) else value
    return merged


def _like(given: Any, seen: Any) -> Any:
    """What is seen of an input, without the members that AWS added to it; maps of the user's own are taken whole."""
    if isinstance(given, Mapping) and isinstance(seen, Mapping):
        return {
            name: seen[name] if name in _FREE else _like(value, seen[name])
            for name, value in given.items()
            if name in seen
        }
    if isinstance(given, list) and isinstance(seen, list) and len(given) == len(seen):
        return [_like(old, new) for old, new in zip(given, seen, strict=True)]
    return seen


def _object(value: Any) -> dict[str, Any]:
    """A nested setting of a provider: the engine hands these over as JSON texts."""
    if isinstance(value, str):
        value = json.loads(value)
    return value if isinstance(value, dict) else {}


def _difference(old: Mapping[str, Any], new: Mapping[str, Any], kind: Kind, *, delete_first: bool) -> Any:
    replace_on = kind.replace_on.union(kind.replaces(old, new))
    return _response(_changes(old, new, ""), replace_on, delete_first=delete_first)


def _response(changes: Iterable[tuple[str, str]], replace_on: frozenset[str], *, delete_first: bool) -> Any:
    kinds = messages.PropertyDiff.Kind
    detailed = {}
    replaces = set()
    for path, change in changes:
        if not path.startswith("__"):
            if replaced := _covers(replace_on, path):
                replaces.add(path.split(".")[0].split("[")[0])
            kind = kinds.Value(f"{change}_REPLACE" if replaced else change)
            detailed[path] = messages.PropertyDiff(kind=kind, inputDiff=True)
    return messages.DiffResponse(
        changes=messages.DiffResponse.DIFF_SOME if detailed else messages.DiffResponse.DIFF_NONE,
        diffs=sorted({path.split(".")[0].split("[")[0] for path in detailed}),
        replaces=sorted(replaces),
        detailedDiff=detailed,
        hasDetailedDiff=True,
        deleteBeforeReplace=bool(replaces) and delete_first,
    )


def _changes(old: Any, new: Any, path: str) -> Iterator[tuple[str, str]]:
    """(path, ADD | DELETE | UPDATE) of each difference, as deep as both sides have the same form."""
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        for key in [*old, *(key for key in new if key not in old)]:
            below = _member(path, key)
            if new.get(key) is None:
                if old.get(key) is not None:
                    yield below, "DELETE"
            elif old.get(key) is None:
                yield below, "ADD"
            else:
                yield from _changes(old[key], new[key], below)
    elif isinstance(old, list) and isinstance(new, list):
        if path.rpartition(".")[2] in _SETS and _same_items(old, new):
            return
        for index in range(max(len(old), len(new))):
            below = f"{path}[{index}]"
            if index >= len(new):
                yield below, "DELETE"
            elif index >= len(old):
                yield below, "ADD"
            else:
                yield from _changes(old[index], new[index], below)
    elif new is UNKNOWN or old != new:
        yield path, "UPDATE"


def _same_items(old: list[Any], new: list[Any]) -> bool:
    return len(old) == len(new) and all(item in old for item in new) and all(item in new for item in old)


def _member(path: str, key: str) -> str:
    if not key.replace("_", "").isalnum():
        return f"{path}[{json.dumps(key)}]"
    return f"{path}.{key}" if path else key


def _covers(replace_on: frozenset[str], path: str) -> bool:
    """Whether a changed path is one of these, or below or above one."""
    plain = "".join(part.split("]")[-1] for part in path.split("["))
    return any(plain == name or plain.startswith(f"{name}.") or name.startswith(f"{plain}.") for name in replace_on)


def serve(open_aws: Callable[[str], Aws]) -> None:
    """Serves until SIGTERM or SIGINT, or until the engine that started this process is gone; prints the port first."""
    parent = os.getppid()
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    server = grpc.server(
        ThreadPoolExecutor(max_workers=8),
        options=[
            ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
            ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
        ],
    )
    provider_pb2_grpc.add_ResourceProviderServicer_to_server(Provider(open_aws), server)
    print(server.add_insecure_port("127.0.0.1:0"), flush=True)
    server.start()
    threading.Thread(target=prepare, name="prepare", daemon=True).start()
    while not stop.wait(timeout=1) and os.getppid() == parent:
        pass
    server.stop(grace=2).wait()
