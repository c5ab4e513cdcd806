"""Property values between the engine's protobuf and plain Python: unknown values, secrets, outputs.

The signature keys are those of Pulumi's `sdk/go/common/resource/properties.go` and of `pulumi.runtime.rpc`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from google.protobuf import struct_pb2

SIGNATURE = "4dabf18193072939515e22adb298388d"
SECRET = "1b47061264138c4ac30d75fd1eb44270"  # noqa: S105 - a marker of Pulumi's protocol
OUTPUT = "d0e6a833031e9bbcd3f4e8bde6ca49a4"
RESOURCE = "5cf8f73096256a8f31e491e813e4eb8e"
UNKNOWN_TEXTS = frozenset({
    "04da6b54-80e4-46f7-96ec-b56ff0331ba9",  # any type
    "1c4a061d-8072-4f0a-a4cb-0ff528b18fe7",  # bool
    "3eeb2bf0-c639-47a8-9e75-3b44932eb421",  # number
    "6a19a0b0-7e62-4c92-b797-7f8e31da9cc2",  # array
    "030794c1-ac77-496b-92df-f27374a8bd58",  # asset
    "e48ece36-62e2-4504-bad9-02848725956a",  # archive
    "dd056dcd-154b-4c76-9bd3-c8f88648b5ff",  # object
})  # fmt: skip


class Unknown:
    """A value that is known only after another resource was made; there is one instance, `UNKNOWN`.

    Looking into it gives unknown values, walking over it nothing, so that code may treat it as an object or a list.
    It equals nothing but itself.
    """

    def get(self, _key: object, _default: object = None) -> Unknown:
        """A member of an unknown object is unknown."""
        return self

    def __getitem__(self, _key: object) -> Unknown:
        return self

    def __iter__(self) -> Iterator[Any]:
        return iter(())

    def __repr__(self) -> str:
        return "<known after apply>"


UNKNOWN = Unknown()


def decode(struct: struct_pb2.Struct) -> dict[str, Any]:
    """The plain values of a Struct: whole numbers are int, unknown values `UNKNOWN`; secrets and outputs are opened."""
    return {key: _decode(value) for key, value in struct.fields.items()}


def secret_members(struct: struct_pb2.Struct) -> frozenset[str]:
    """The top-level members that hold a secret somewhere: outputs of the same name are secret as well."""
    return frozenset(key for key, value in struct.fields.items() if _has_secret(value))


def encode(values: Mapping[str, Any], secrets: frozenset[str] = frozenset()) -> struct_pb2.Struct:
    """A Struct of plain values, with None left out and the named top-level members marked as secret."""
    fields = {}
    for key, value in values.items():
        if value is not None:
            encoded = _encode(value)
            fields[key] = _secret(encoded) if key in secrets else encoded
    return struct_pb2.Struct(fields=fields)


def has_unknown(value: object) -> bool:
    """Whether a plain value is unknown or holds something unknown."""
    if isinstance(value, Mapping):
        return any(has_unknown(item) for item in value.values())
    if isinstance(value, list | tuple):
        return any(has_unknown(item) for item in value)
    return value is UNKNOWN


def is_known(value: object) -> bool:
    """Whether a value is there and known. Only such a value may be refused for being there."""
    return value is not None and value is not UNKNOWN


def map_known(value: Any, change: Callable[[Any], Any]) -> Any:
    """`change(value)` of a value that is there; absent and unknown values stay what they are."""
    return change(value) if is_known(value) else value


def _decode(value: struct_pb2.Value) -> Any:
    kind = value.WhichOneof("kind")
    if kind == "struct_value":
        return _decode_object(value.struct_value)
    if kind == "list_value":
        return [_decode(item) for item in value.list_value.values]
    if kind == "number_value":
        number = value.number_value
        return int(number) if number.is_integer() else number
    if kind == "string_value":
        return UNKNOWN if value.string_value in UNKNOWN_TEXTS else value.string_value
    return value.bool_value if kind == "bool_value" else None


def _decode_object(struct: struct_pb2.Struct) -> Any:
    fields = struct.fields
    signature = fields[SIGNATURE].string_value if SIGNATURE in fields else None
    if signature is None:
        return {key: _decode(item) for key, item in fields.items()}
    if signature == SECRET:
        return _decode(fields["value"])
    if signature == OUTPUT:  # an output without a value is one that isn't known yet
        return _decode(fields["value"]) if "value" in fields else UNKNOWN
    if signature == RESOURCE:
        return _decode(fields["id"]) if "id" in fields else UNKNOWN
    raise ValueError(f"the rehearsal's AWS takes no assets and archives (signature {signature})")


def _has_secret(value: struct_pb2.Value) -> bool:
    kind = value.WhichOneof("kind")
    if kind == "list_value":
        return any(_has_secret(item) for item in value.list_value.values)
    if kind != "struct_value":
        return False
    fields = value.struct_value.fields
    signature = fields[SIGNATURE].string_value if SIGNATURE in fields else None
    if signature == SECRET or (signature == OUTPUT and "secret" in fields and fields["secret"].bool_value):
        return True
    return any(_has_secret(item) for item in fields.values())


def _encode(value: Any) -> struct_pb2.Value:
    if value is None:
        return struct_pb2.Value(null_value=struct_pb2.NULL_VALUE)
    if value is UNKNOWN:
        return struct_pb2.Value(string_value="04da6b54-80e4-46f7-96ec-b56ff0331ba9")
    if isinstance(value, bool):
        return struct_pb2.Value(bool_value=value)
    if isinstance(value, int | float):
        return struct_pb2.Value(number_value=value)
    if isinstance(value, str):
        return struct_pb2.Value(string_value=value)
    if isinstance(value, Mapping):
        return struct_pb2.Value(struct_value=encode(value))
    if isinstance(value, list | tuple):
        return struct_pb2.Value(list_value=struct_pb2.ListValue(values=[_encode(item) for item in value]))
    raise TypeError(f"no property value: {value!r} ({type(value).__name__})")


def _secret(value: struct_pb2.Value) -> struct_pb2.Value:
    fields = {SIGNATURE: struct_pb2.Value(string_value=SECRET), "value": value}
    return struct_pb2.Value(struct_value=struct_pb2.Struct(fields=fields))
