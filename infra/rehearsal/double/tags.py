"""Tags between Pulumi's form, a mapping, and the lists that AWS's services exchange."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from infra.rehearsal.double.values import UNKNOWN


def tag_list(tags: Any, *, key: str = "Key", value: str = "Value") -> Any:
    """`{"a": "b"}` as the list that AWS's calls take; None where there are none.

    `key` and `value` are what the service calls the two (KMS: `TagKey`, `TagValue`).
    """
    if tags is UNKNOWN:
        return UNKNOWN
    return [{key: name, value: tags[name]} for name in sorted(tags)] if tags else None


def tags_of(listed: Iterable[Mapping[str, str]] | None, *, key: str = "Key", value: str = "Value") -> dict[str, str]:
    """AWS's list as a mapping."""
    return {tag[key]: tag[value] for tag in listed or ()}


def retag(
    old: Mapping[str, Any], new: Mapping[str, Any], *, put: Callable[[dict[str, str]], object],
    remove: Callable[[list[str]], object],
) -> None:  # fmt: skip
    """Bring the tags of a resource from those of its state to those of its new inputs, with the calls that it takes."""
    before, after = old.get("tags") or {}, new.get("tags") or {}
    if gone := sorted(before.keys() - after.keys()):
        remove(gone)
    if changed := {name: value for name, value in sorted(after.items()) if before.get(name) != value}:
        put(changed)
