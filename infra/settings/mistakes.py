"""What a mistake in a stack file is, and how all of them are reported: key, line, what is wrong, and what to do."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from infra.errors import TrainyardError

PROJECT = "trainyard"

Location = tuple[str | int, ...]
"""Where a value stands: `("nodePools", 1, "capacity")`."""

# What may stand in a path without quotes, as `pulumi config set --path` reads it.
_PLAIN = re.compile(r'[^.\[\]"]+')


class SettingsError(TrainyardError):
    """A stack's settings cannot be used; the message lists every mistake with the command that fixes it."""

    exit_code = 2


@dataclass(frozen=True)
class Mistake:
    """One thing that is wrong in a stack file."""

    key: str
    what: str
    fix: str
    line: int | None = None


@dataclass(frozen=True)
class Contradiction:
    """Settings that are right one by one and wrong together."""

    at: Location
    what: str
    fix: str | None = None
    """A command, without the stack. None: edit the file by hand."""
    by: tuple[Location, ...] = (("target",),)
    """The values that led to this; where one of them is wrong itself, that is what is said."""


def repeated(where: Location, values: Sequence[str]) -> Iterator[Contradiction]:
    """What is said of a list in which something stands more than once."""
    for value in dict.fromkeys(value for index, value in enumerate(values) if value in values[:index]):
        yield Contradiction(where, f"name {value} twice", by=(where,))


def dotted(location: Location) -> str:
    """`("nodePools", 1, "capacity")` -> `nodePools[1].capacity`; parts with dots or brackets are quoted."""
    text = ""
    for part in location:
        if isinstance(part, int):
            text += f"[{part}]"
        elif _PLAIN.fullmatch(part):
            text += f".{part}" if text else part
        else:
            text += '["' + part.replace('"', '\\"') + '"]'
    return text


def key_path(location: Location) -> str:
    """`("nodePools", 1, "capacity")` -> `trainyard:nodePools[1].capacity`, as `pulumi config set --path` takes it."""
    return f"{PROJECT}:{dotted(location)}"


def removing(*location: str | int) -> str:
    """The command that takes a value out of the stack file."""
    return f"pulumi config rm --path {shlex.quote(key_path(location))}"


def setting(location: Location, value: object) -> str:
    """The command that puts a value into the stack file."""
    return f"pulumi config set --path {shlex.quote(key_path(location))} {shlex.quote(str(value))}"


def line_of(location: Location, lines: Mapping[Location, int]) -> int | None:
    """The line of a value; of the nearest enclosing one where the value itself is not in the file."""
    path: Location = (f"{PROJECT}:{location[0]}", *location[1:])
    while path and path not in lines:
        path = path[:-1]
    return lines.get(path)


def report(mistakes: list[Mistake], source: str) -> str:
    """All mistakes as the message of a SettingsError."""
    count = "1 mistake" if len(mistakes) == 1 else f"{len(mistakes)} mistakes"
    rows = [f"{source}: {count}; nothing was changed."]
    for mistake in mistakes:
        where = f" (line {mistake.line})" if mistake.line else ""
        rows += [f"  {mistake.key}{where}: {mistake.what}", f"    fix: {mistake.fix}"]
    return "\n".join(rows)
