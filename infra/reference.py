"""Writes the reference page of the settings from the settings themselves: `python -m infra.reference`."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from typing import Any

from infra.clusters import CHECKOUT
from infra.settings import PROJECT, Settings

PAGE = CHECKOUT / "docs/reference/settings.md"

_HEAD = """\
# Settings of a stack

Keys of `Pulumi.<stack>.yaml`, under `config`. Made by `python -m infra.reference` from `infra/settings`.
`[]` stands for the number of an entry of a list, from 0.
"""
_TABLE = "| key | value | default | meaning |\n| --- | --- | --- | --- |\n"
_KINDS = {"integer": "whole number", "string": "text", "boolean": "`true`, `false`"}

Schema = dict[str, Any]


def page() -> str:
    """The page as Markdown: one table for each section, in the order of the settings."""
    schema = Settings.model_json_schema(by_alias=True)
    return _HEAD + "".join(_tables(schema, schema, f"{PROJECT}:"))


def _tables(schema: Schema, section: Schema, prefix: str) -> Iterator[str]:
    """The table of a section, and those of the sections in it."""
    if prefix != f"{PROJECT}:":
        yield f"\n## {prefix.rstrip('.')}\n\n{_text(section, 'about')}\n"
    yield "\n" + _TABLE
    inner: list[tuple[str, Schema]] = []
    for key, raw in section["properties"].items():
        field = _resolved(schema, raw)
        many = field.get("type") == "array"
        item = _resolved(schema, field["items"]) if many else field
        if "properties" in item:
            inner.append((f"{prefix}{key}{'[].' if many else '.'}", item))
        row = (f"`{prefix}{key}`", _values(schema, field), _default(raw, key in section.get("required", ())))
        yield f"| {' | '.join((*row, _text(raw) or _text(field)))} |\n"
    for name, item in inner:
        yield from _tables(schema, item, name)


def _resolved(schema: Schema, field: Schema) -> Schema:
    """A field with what it refers to in its place, and without the `null` of optional ones."""
    for option in field.get("anyOf", ()):
        if option.get("type") != "null":
            return _resolved(schema, {**option, **{k: v for k, v in field.items() if k != "anyOf"}})
    if "$ref" in field:
        section = schema["$defs"][field["$ref"].rsplit("/", 1)[1]]
        return {**section, "about": section.get("description"), **{k: v for k, v in field.items() if k != "$ref"}}
    return field


def _values(schema: Schema, field: Schema) -> str:
    """What may stand there: `whole number, 0 to 100`."""
    if "enum" in field:
        return ", ".join(f"`{value}`" for value in field["enum"])
    if "properties" in field:
        return "mapping"
    if field["type"] == "array":
        item = _resolved(schema, field["items"])
        item = _plain(item) if field.get("default") else item
        inner = "mappings" if "properties" in item else _values(schema, item)
        limits = _limits(field.get("minItems"), field.get("maxItems"))
        return f"list{f' ({limits})' if limits else ''} of {inner}"
    if field["type"] == "object":
        return f"mapping of any key to {_values(schema, _resolved(schema, field['additionalProperties']))}"
    example = field["examples"][0] if field.get("examples") and field.get("default") is None else None
    limits = _limits(field.get("minimum"), field.get("maximum"))
    return ", ".join(part for part in (_KINDS[field["type"]], limits, example and f"as `{example}`") if part)


def _plain(field: Schema) -> Schema:
    """Without its example, for fields whose default is one."""
    return {key: value for key, value in field.items() if key != "examples"}


def _limits(low: int | None, high: int | None) -> str:
    if low is None and high is None:
        return ""
    return f"at most {high}" if low is None else f"at least {low}" if high is None else f"{low} to {high}"


def _default(field: Schema, required: bool) -> str:
    if required:
        return "required"
    value = field.get("default")
    if isinstance(value, list):
        return ", ".join(f"`{part}`" for part in value if not isinstance(part, dict))
    if value is None or isinstance(value, dict):
        return ""
    return f"`{json.dumps(value) if isinstance(value, bool) else value}`"


def _text(field: Schema, key: str = "description") -> str:
    return " ".join(str(field.get(key) or "").split())


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
    sys.stderr.write(f"wrote {PAGE}\n")
