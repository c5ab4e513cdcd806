"""Turns what pydantic finds wrong with single values into sentences with a remedy."""

from __future__ import annotations

import difflib
import json
from collections.abc import Mapping
from typing import Any

from infra.settings.base import WrongValueError
from infra.settings.mistakes import Location, Mistake, key_path, line_of, removing, setting
from infra.settings.shape import keys_at, place_at

_SHAPES = {
    "model_type": "a mapping (indented lines of `key: value`)",
    "dict_type": "a mapping (indented lines of `key: value`)",
    "tuple_type": "a list (lines that begin with `- `)",
}
_OF_KEY = "[key]"  # how pydantic says that a key of a mapping is wrong, not its value


def explained(problem: Any, stack: str, lines: Mapping[Location, int]) -> Mistake:
    """One of pydantic's errors as a mistake."""
    location = location_of(problem)
    what, fix = _what_and_fix(problem, location)
    key = key_path(location)
    fix = f"{fix} -s {stack}" if fix else f"edit {key} in Pulumi.{stack}.yaml"
    return Mistake(key, what, fix, line_of(location, lines))


def follows(problem: Any) -> bool:
    """Whether one of pydantic's errors only follows from another one.

    A default that depends on a wrong value, and a list that is too short without its wrong entries.
    """
    if problem["type"] == "too_short":
        return len(problem["input"]) >= int(problem["ctx"]["min_length"])
    return bool(problem["type"] == "default_factory_not_called")


def location_of(problem: Any) -> Location:
    """Where one of pydantic's errors is."""
    location = tuple(problem["loc"])
    return location[:-1] if location[-1] == _OF_KEY else location


def meant_by(problem: Any) -> Location | None:
    """Where the key is that an unknown one was probably meant for."""
    if problem["type"] != "extra_forbidden":
        return None
    location = location_of(problem)
    close = difflib.get_close_matches(str(location[-1]), keys_at(location[:-1]), n=1, cutoff=0.5)
    return (*location[:-1], close[0]) if close else None


def _what_and_fix(problem: Any, location: Location) -> tuple[str, str | None]:
    given, context, kind = problem.get("input"), problem.get("ctx", {}), problem["type"]
    if kind == "extra_forbidden":
        meant = meant_by(problem)
        known = f"known keys here: {', '.join(sorted(keys_at(location[:-1])))}"
        return f"unknown key; {f'did you mean {meant[-1]!r}?' if meant else known}", removing(*location)
    if kind == "missing":
        return "is missing", _example(location)
    if isinstance(given, dict) and set(given) == {"secure"}:
        return "is encrypted; no setting of a stack is a secret", _example(location)
    if kind == "literal_error":
        allowed = context["expected"].replace(" or ", ", ").replace("'", "")
        options = [option.strip() for option in allowed.split(",")]
        close = difflib.get_close_matches(str(given), options, n=1, cutoff=0.4)
        return f"is {_shown(given)}; allowed: {', '.join(options)}", setting(location, (close or options)[0])
    if kind in _SHAPES:
        return f"is {_shown(given)}: must be {_SHAPES[kind]}", None
    if kind in ("too_short", "too_long"):
        least, most = context.get("min_length"), context.get("max_length")
        how_many = f"at least {least}" if kind == "too_short" else f"at most {most}"
        return f"has {len(given)} entries: must have {how_many}", None
    reason = {
        "string_type": "must be text; in quotes if YAML takes it for something else",
        "greater_than_equal": f"must be at least {context.get('ge')}",
        "less_than_equal": f"must be at most {context.get('le')}",
    }.get(kind, problem["msg"].removeprefix("Value error, "))
    reason = reason[0].lower() + reason[1:]
    if problem["loc"][-1] == _OF_KEY:
        return f"is no key for this mapping: {reason}", removing(*location)
    error = context.get("error")
    instead = error.instead if isinstance(error, WrongValueError) else None
    return f"is {_shown(given)}: {reason}", setting(location, instead) if instead else _example(location)


def _example(location: Location) -> str | None:
    """The command that sets a right value; None for whole sections, which are better written by hand."""
    place = place_at(location)
    value = place.example() if place else "VALUE"
    if isinstance(value, list) and len(value) == 1:
        location, value = (*location, 0), value[0]
    if isinstance(value, list | dict):
        return None
    return setting(location, json.dumps(value) if isinstance(value, bool) else value)


def _shown(value: Any) -> str:
    """A value as the user wrote it, roughly."""
    if isinstance(value, dict | list):
        return "a mapping" if isinstance(value, dict) else "a list"
    if value is None or isinstance(value, bool):
        return json.dumps(value)
    text = repr(value) if isinstance(value, str | int | float) else str(value)
    return text if len(text) <= 60 else f"{text[:60]}…"
