"""Writes the reference page of the settings from the settings themselves: `python -m infra.reference`."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

from infra.clusters import CHECKOUT
from infra.settings import PROJECT, Settings

PAGE = CHECKOUT / "docs/reference/settings.md"

_HEAD = """\
# Settings of a stack

Keys of `Pulumi.<stack>.yaml`, under `config`. Made by `python -m infra.reference` from `infra/settings.py`.

| key | value | default | meaning |
| --- | --- | --- | --- |
"""


def page() -> str:
    """The page as Markdown."""
    schema = Settings.model_json_schema(by_alias=True)
    return _HEAD + "".join(f"| {' | '.join(row)} |\n" for row in _rows(schema, schema, f"{PROJECT}:"))


def _rows(schema: dict[str, Any], section: dict[str, Any], prefix: str) -> Iterator[tuple[str, str, str, str]]:
    required = section.get("required", ())
    for key, raw in section["properties"].items():
        field = _resolved(schema, raw)
        default = raw.get("default")
        shown = "required" if key in required else f"`{default}`" if isinstance(default, int | str) else ""
        meaning = " ".join(raw.get("description", field.get("description", "")).split())
        yield f"`{prefix}{key}`", _values(field), shown, meaning
        inner = _resolved(schema, field["items"]) if field.get("type") == "array" else field
        if "properties" in inner:
            yield from _rows(schema, inner, f"{prefix}{key}{'[].' if field.get('type') == 'array' else '.'}")


def _resolved(schema: dict[str, Any], field: dict[str, Any]) -> dict[str, Any]:
    for option in field.get("anyOf", ()):
        if option.get("type") != "null":
            return _resolved(schema, {**option, **{k: v for k, v in field.items() if k != "anyOf"}})
    if "$ref" in field:
        return {**schema["$defs"][field["$ref"].rsplit("/", 1)[1]], **{k: v for k, v in field.items() if k != "$ref"}}
    return field


def _values(field: dict[str, Any]) -> str:
    if "enum" in field:
        return ", ".join(f"`{value}`" for value in field["enum"])
    kind = {"integer": "whole number", "string": "text", "array": "list", "object": "mapping"}[field["type"]]
    low, high = field.get("minimum"), field.get("maximum")
    return f"{kind}, {low} to {high}" if low is not None else kind


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
    sys.stderr.write(f"wrote {PAGE}\n")
