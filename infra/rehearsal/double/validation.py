"""What AWS would refuse, told from the service models that botocore ships.

Names, types, lengths and what is required, as botocore's own `ParamValidator`; beside these enumerations, patterns and
upper bounds. Unknown values pass anywhere, and all mistakes of a request are found in one go.
"""

from __future__ import annotations

import datetime
import difflib
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from infra.rehearsal.double.values import UNKNOWN


@dataclass(frozen=True)
class Mistake:
    """One thing in a request that AWS refuses."""

    path: tuple[str | int, ...]
    """Where: names of members and indices of lists, as in the request."""
    reason: str
    """What is wrong there and what would be right."""


def mistakes(service: str, operation: str, parameters: Mapping[str, Any]) -> list[Mistake]:
    """All that the service's model has against a request.

    Args:
        service: name as botocore has it, e.g. `eks`.
        operation: name as in the API, e.g. `CreateNodegroup`.
        parameters: the request; values that are `UNKNOWN` pass.

    Raises:
        botocore.exceptions.UnknownServiceError, OperationNotFoundError: a mistake in the double itself.
    """
    shape = _request(service, operation)
    return [] if shape is None else list(_against(shape, parameters, ()))


@cache
def _request(service: str, operation: str) -> Any:
    # One shape for all requests of a kind: botocore resolves its members anew for each shape.
    return model(service).operation_model(operation).input_shape


@cache
def model(service: str) -> Any:
    """The model of one service; reading EC2's takes about 0.1 s, so each is read once."""
    return session().get_service_model(service)


@cache
def regions() -> Mapping[str, str]:
    """All regions that botocore knows, each with its partition (`us-east-2` -> `aws`)."""
    return {
        region: partition
        for partition in session().get_available_partitions()
        for region in session().get_available_regions("ec2", partition)
    }


@cache
def session() -> Any:
    """The session of all models and clients, so that each model is read once; the user's profiles are not looked at."""
    import botocore.session  # noqa: PLC0415 - the engine starts the plugin often; most starts need no model

    nowhere = {"config_file": os.devnull, "credentials_file": os.devnull, "profile": None}
    return botocore.session.Session(session_vars={name: (None, None, value, None) for name, value in nowhere.items()})


def _against(shape: Any, value: Any, path: tuple[str | int, ...]) -> Iterator[Mistake]:
    if value is UNKNOWN:
        return
    name = shape.type_name
    if name == "structure":
        yield from _structure(shape, value, path)
    elif name == "list":
        if not isinstance(value, list | tuple):
            yield _wrong_type(path, "a list", value)
            return
        yield from _bounds(shape, len(value), path, "items")
        for index, item in enumerate(value):
            yield from _against(shape.member, item, (*path, index))
    elif name == "map":
        if not isinstance(value, Mapping):
            yield _wrong_type(path, "an object", value)
            return
        yield from _bounds(shape, len(value), path, "entries")
        for key, item in value.items():
            yield from _against(shape.key, key, (*path, key))
            yield from _against(shape.value, item, (*path, key))
    else:
        yield from _scalar(shape, value, path)


def _structure(shape: Any, value: Any, path: tuple[str | int, ...]) -> Iterator[Mistake]:
    if shape.metadata.get("document"):
        return
    if not isinstance(value, Mapping):
        yield _wrong_type(path, "an object", value)
        return
    for name in shape.required_members:
        if value.get(name) is None:
            yield Mistake((*path, name), f"{name} is required and missing")
    for name, item in value.items():
        if name not in shape.members:
            near = difflib.get_close_matches(name, shape.members, n=1)
            yield Mistake(
                (*path, name), f"there is no member {name} here" + (f"; did you mean {near[0]}?" if near else "")
            )
        else:
            yield from _against(shape.members[name], item, (*path, name))
    if shape.is_tagged_union and len(value) != 1:
        yield Mistake(path, f"exactly one of {', '.join(shape.members)} is allowed")


def _scalar(shape: Any, value: Any, path: tuple[str | int, ...]) -> Iterator[Mistake]:
    name = shape.type_name
    expected, accepted = _TYPES[name]
    fits = isinstance(value, accepted) and (bool in accepted or not isinstance(value, bool))
    if not fits:
        yield _wrong_type(path, expected, value)
    elif name in {"integer", "long", "float", "double"}:
        yield from _bounds(shape, value, path, "")
    elif name == "timestamp" and isinstance(value, str) and not _is_time(value):
        yield _wrong_type(path, expected, value)
    elif name == "string":
        yield from _text(shape, value, path)


def _text(shape: Any, value: str, path: tuple[str | int, ...]) -> Iterator[Mistake]:
    if shape.enum and value not in shape.enum:
        near = difflib.get_close_matches(value, shape.enum, n=1) or difflib.get_close_matches(
            _screaming(value), shape.enum, n=1
        )
        hint = f"; did you mean {near[0]}?" if near else ""
        yield Mistake(path, f"{value!r} is not one of {_listed(shape.enum)}{hint}")
        return
    yield from _bounds(shape, len(value), path, "characters")
    pattern = shape.metadata.get("pattern")
    if pattern and (compiled := _compiled(pattern)) and not compiled.fullmatch(value):
        yield Mistake(path, f"{value!r} does not match the pattern {pattern}")


def _is_time(text: str) -> bool:
    try:
        datetime.datetime.fromisoformat(text)
    except ValueError:
        return False
    return True


def _bounds(shape: Any, size: float, path: tuple[str | int, ...], unit: str) -> Iterator[Mistake]:
    least, most = shape.metadata.get("min"), shape.metadata.get("max")
    counted = f"{size} {unit}".strip()
    if least is not None and size < least:
        yield Mistake(path, f"{counted} is too few; the least is {least}" if unit else f"{size} is below {least}")
    if most is not None and size > most:
        yield Mistake(path, f"{counted} is too many; the most is {most}" if unit else f"{size} is above {most}")


def _wrong_type(path: tuple[str | int, ...], expected: str, value: object) -> Mistake:
    return Mistake(path, f"must be {expected}, is {value!r}")


def _screaming(value: str) -> str:
    """`NoSchedule` -> `NO_SCHEDULE`: the usual mix-up between the spellings of Kubernetes and of AWS."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])|[-\s]", "_", value).upper()


def _listed(values: list[str]) -> str:
    return ", ".join(values) if len(values) <= 12 else f"{', '.join(values[:12])}, … ({len(values)} in all)"


# Java's classes of characters as Python can say them inside [...]: generous, since Python's re has no Unicode classes.
_CLASSES = {r"\p{L}": r"\w", r"\p{N}": r"\d", r"\p{Z}": r"\s", r"[\w-_]": r"[\w_-]", r"^(?i)": r"(?i)^"}


@cache
def _compiled(pattern: str) -> re.Pattern[str] | None:
    """The pattern for Python, or None where it cannot be said in Python: such a pattern checks nothing."""
    for java, python in _CLASSES.items():
        pattern = pattern.replace(java, python)
    if "|(?i)" in pattern:
        pattern = f"(?i){pattern.replace('|(?i)', '|')}"
    try:
        return re.compile(pattern)
    except re.error:
        return None


_TYPES: dict[str, tuple[str, tuple[type, ...]]] = {
    "string": ("text", (str,)),
    "character": ("text", (str,)),
    "integer": ("a whole number", (int,)),
    "long": ("a whole number", (int,)),
    "float": ("a number", (int, float)),
    "double": ("a number", (int, float)),
    "boolean": ("true or false", (bool,)),
    "blob": ("bytes", (bytes, bytearray, str)),
    "timestamp": ("a time such as 2027-01-31T12:00:00Z", (str, int, float, datetime.datetime)),
}
