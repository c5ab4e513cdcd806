"""What a rehearsal makes of Helm Releases: checked, recorded, never rendered.

Apart from the plugin, which starts without the engine's messages: they take as long to load as all the rest of it.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from google.protobuf import empty_pb2, json_format, struct_pb2
from pulumi.runtime.proto import provider_pb2

from infra.errors import TrainyardError
from infra.local.state import State
from infra.rehearsal import bundles
from infra.rehearsal.connection import Connection

RELEASE = "kubernetes:helm.sh/v3:Release"
RECORD = "releases.json"
STATUS = "recorded by a rehearsal, not rendered"

# How the engine writes what is not known before the first `up`, and secrets (sdk/go/common/resource/properties.go).
_UNKNOWN = "04da6b54-80e4-46f7-96ec-b56ff0331ba9"
_SIGNATURE, _SECRET = "4dabf18193072939515e22adb298388d", "1b47061264138c4ac30d75fd1eb44270"
_VERSION = re.compile(r"v?\d+\.\d+\.\d+(-[0-9A-Za-z.-]+)?(\+[0-9A-Za-z.-]+)?")
_REPLACING = ("name", "namespace")  # a release under another name is another release, as Helm has it


def mistakes(inputs: Mapping[str, Any]) -> list[tuple[str, str]]:
    """What keeps a Release from being repeatable: property and sentence.

    Args:
        inputs: its inputs as plain data; values that are not known yet pass.
    """
    found = []
    chart, version = inputs.get("chart"), inputs.get("version")
    local = isinstance(chart, str) and chart.startswith((".", "/"))
    if not chart:
        found.append(("chart", "is missing: name the chart"))
    elif local:
        found.append(("chart", f"is the folder {chart}: only charts of a repository are the same for everybody"))
    if not version:
        found.append(("version", "is missing: without it every run takes the chart that is newest on that day"))
    elif version != _UNKNOWN and not (isinstance(version, str) and _VERSION.fullmatch(version)):
        found.append(("version", f"is {version!r}: must be one version, for example 1.2.3, not a range"))
    repository = (inputs.get("repositoryOpts") or {}).get("repo")
    if not repository and not str(chart).startswith("oci://"):
        found.append(("repositoryOpts.repo", "is missing: a name of the user's own Helm configuration is not enough"))
    values = inputs.get("values")
    if values is not None and values != _UNKNOWN and not isinstance(values, dict):
        found.append(("values", f"is {type(values).__name__}: must be a mapping"))
    if inputs.get("valueYamlFiles"):
        found.append(("valueYamlFiles", "is not checked by a rehearsal: give the values as a mapping in `values`"))
    return found


def readable(value: Any) -> Any:
    """Inputs as people may see them: secrets hidden, unknown values named."""
    if isinstance(value, dict):
        if _SIGNATURE in value:
            return "[secret]" if value[_SIGNATURE] == _SECRET else readable(value.get("value", "[computed]"))
        return {name: readable(one) for name, one in value.items()}
    if isinstance(value, list):
        return [readable(one) for one in value]
    return "[known after up]" if value == _UNKNOWN else value


def chart_name(chart: str) -> str:
    """`oci://registry.k8s.io/kueue/charts/kueue` -> `kueue`."""
    return chart.rstrip("/").rpartition("/")[2]


class Releases:
    """The recorded Releases of a rehearsal, and the answers to the engine about them.

    Args:
        folder: of the rehearsal.
    """

    def __init__(self, folder: Path) -> None:
        self._state = State(folder)
        self._path = self._state.path(RECORD)
        self._lock = threading.Lock()

    def all(self) -> dict[str, dict[str, Any]]:
        """What is recorded, by id (`namespace/name`)."""
        found = self._state.read_json(self._path)
        return dict(found) if isinstance(found, dict) else {}

    def answer(self, method: str, request: bytes) -> bytes | None:
        """The answer to a call of the engine, both as they travel; None: the call is not about a Release.

        Raises:
            AlreadyThereError: there is a Release of this name.
        """
        messages = provider_pb2
        own: dict[str, tuple[type[Any], Callable[[Any], Any]]] = {
            "Check": (messages.CheckRequest, self.check),
            "Diff": (messages.DiffRequest, self.diff),
            "Create": (messages.CreateRequest, self.create),
            "Read": (messages.ReadRequest, self.read),
            "Update": (messages.UpdateRequest, self.update),
            "Delete": (messages.DeleteRequest, self.delete),
        }
        if method not in own:
            return None
        message, act = own[method]
        parsed = message.FromString(request)
        if f"${RELEASE}::" not in parsed.urn and f"::{RELEASE}::" not in parsed.urn:
            return None
        return bytes(act(parsed).SerializeToString())

    def check(self, request: provider_pb2.CheckRequest) -> provider_pb2.CheckResponse:
        """Inputs with Helm's defaults, or what is wrong with them."""
        inputs = struct_pb2.Struct()
        inputs.CopyFrom(request.news)
        for name, default in (("name", request.urn.rpartition("::")[2]), ("namespace", "default")):
            if name not in inputs or not inputs[name]:
                inputs[name] = default
        failures = [
            provider_pb2.CheckFailure(property=name, reason=f"Helm Release {inputs['name']}: {name} {reason}")
            for name, reason in mistakes(_plain(inputs))
        ]
        return provider_pb2.CheckResponse(inputs=inputs, failures=failures)

    def diff(self, request: provider_pb2.DiffRequest) -> provider_pb2.DiffResponse:
        """Which inputs changed."""
        before, after = _plain(request.old_inputs), _plain(request.news)
        changed = sorted(name for name in before.keys() | after.keys() if before.get(name) != after.get(name))
        kinds = provider_pb2.DiffResponse
        return kinds(
            changes=kinds.DIFF_SOME if changed else kinds.DIFF_NONE,
            diffs=changed,
            replaces=[name for name in changed if name in _REPLACING],
            deleteBeforeReplace=bool(changed),
        )

    def create(self, request: provider_pb2.CreateRequest) -> provider_pb2.CreateResponse:
        """Record one, unless this is a preview."""
        id = _id(_plain(request.properties))  # noqa: A001
        if not request.preview:
            if id in self.all():
                raise AlreadyThereError(f"Helm Release {id} is there already: two of one name cannot be")
            self._record(id, request.properties)
        return provider_pb2.CreateResponse(id="" if request.preview else id, properties=_outputs(request.properties))

    def update(self, request: provider_pb2.UpdateRequest) -> provider_pb2.UpdateResponse:
        """Record its new inputs, unless this is a preview."""
        if not request.preview:
            self._record(request.id, request.news)
        return provider_pb2.UpdateResponse(properties=_outputs(request.news))

    def read(self, request: provider_pb2.ReadRequest) -> provider_pb2.ReadResponse:
        """What is recorded; nothing where it is not."""
        if request.id not in self.all():
            return provider_pb2.ReadResponse()
        return provider_pb2.ReadResponse(id=request.id, properties=request.properties, inputs=request.inputs)

    def delete(self, request: provider_pb2.DeleteRequest) -> empty_pb2.Empty:
        """Strike it off the record, with the kinds that its chart brought."""
        with self._lock:
            records = self.all()
            gone = records.pop(request.id, None)
            if gone:
                if not any(chart_name(one["chart"]) == chart_name(gone["chart"]) for one in records.values()):
                    bundles.unregister(self._connection().kubeconfig, chart_name(gone["chart"]))
                self._state.write_json(self._path, records)
        return empty_pb2.Empty()

    def _record(self, id: str, inputs: struct_pb2.Struct) -> None:  # noqa: A002
        given = readable(_plain(inputs))
        kinds = bundles.register(self._connection().kubeconfig, chart_name(given["chart"]))
        with self._lock:
            kept = {
                "chart": given["chart"],
                "version": given["version"],
                "repository": (given.get("repositoryOpts") or {}).get("repo", ""),
                "values": given.get("values") or {},
                "kinds": list(kinds),
            }
            self._state.write_json(self._path, self.all() | {id: kept})

    def _connection(self) -> Connection:
        return Connection.read(self._state.directory)


class AlreadyThereError(TrainyardError):
    """A Release of this name is recorded already."""


def _id(inputs: Mapping[str, Any]) -> str:
    return f"{inputs['namespace']}/{inputs['name']}"


def _outputs(inputs: struct_pb2.Struct) -> struct_pb2.Struct:
    outputs = struct_pb2.Struct()
    outputs.CopyFrom(inputs)
    status = {name: inputs[name] for name in ("name", "namespace", "chart", "version") if name in inputs}
    outputs["status"] = {**status, "status": STATUS, "revision": 1}
    return outputs


def _plain(properties: struct_pb2.Struct) -> dict[str, Any]:
    return dict(json_format.MessageToDict(properties))
