"""Drift that a refresh of the engine cannot see: what nodes are, against what they were when they were verified.

Keyed by object and field, never by position. Pure.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from infra.diagnose.finding import Finding

_PLAIN = ("pool", "kernel", "system", "kubelet", "runtime", "architecture", "driver")
_OF_AN_IMAGE = ("kernel", "system", "kubelet", "runtime", "driver")
"""What all machines of a pool have from their image, so that a new one is held to it too."""
_ABSENT = "(absent)"


@dataclass(frozen=True)
class Change:
    """One field of one object that is not what it was."""

    object: str
    field: str
    """`kernel`, `labels.trainyard.dev/pool`, `allocatable.nvidia.com/gpu`, …; `node` for a node as a whole."""
    before: str
    after: str

    def finding(self) -> Finding:
        """As other commands show what is wrong."""
        return Finding(
            code="drift",
            title=f"{self.object}: {self.field} was {self.before}, is {self.after}",
            evidence=(),
            remedy="find who changed it; if it is right, verify anew, which records it: trainyard verify",
            command=None,
            severity="error",
            object=self.object,
        )


@dataclass(frozen=True)
class Drift:
    """All that differs."""

    changed: tuple[Change, ...]
    new: tuple[str, ...]
    """Nodes that were not there; in pools that scale this is no drift."""
    gone: tuple[str, ...]


def compare(
    before: Mapping[str, Mapping[str, Any]],
    after: Mapping[str, Mapping[str, Any]],
    version: tuple[str, str],
    fixed: frozenset[str],
) -> Drift:
    """What has changed.

    Args:
        before: nodes as recorded, by name.
        after: nodes as they are.
        version: of the API server, recorded and now.
        fixed: pools that nothing scales: there a node that is new or gone is a change.
    """
    changes = []
    if version[0] != version[1]:
        changes.append(Change("apiserver", "version", *version))
    for name in sorted(before.keys() & after.keys()):
        changes += _changes(name, before[name], after[name])
    new, gone = sorted(after.keys() - before.keys()), sorted(before.keys() - after.keys())
    for name in new:
        changes += _unlike_its_pool(name, after[name], before)
    changes += [Change(f"node/{name}", "node", _ABSENT, "there") for name in new if after[name]["pool"] in fixed]
    changes += [Change(f"node/{name}", "node", "there", _ABSENT) for name in gone if before[name]["pool"] in fixed]
    return Drift(tuple(changes), tuple(new), tuple(gone))


def _changes(name: str, before: Mapping[str, Any], after: Mapping[str, Any]) -> Iterator[Change]:
    for field in _PLAIN:
        # A driver that only a worker can see is not seen now: that is no change.
        if field == "driver" and None in (before.get(field), after.get(field)):
            continue
        if before.get(field) != after.get(field):
            yield Change(f"node/{name}", field, _text(before.get(field)), _text(after.get(field)))
    for field in ("labels", "allocatable"):
        old, now = before.get(field) or {}, after.get(field) or {}
        for key in sorted(old.keys() | now.keys()):
            if old.get(key) != now.get(key):
                yield Change(f"node/{name}", f"{field}.{key}", _text(old.get(key)), _text(now.get(key)))
    had, has = set(before.get("taints") or ()), set(after.get("taints") or ())
    yield from (Change(f"node/{name}", "taints", taint, _ABSENT) for taint in sorted(had - has))
    yield from (Change(f"node/{name}", "taints", _ABSENT, taint) for taint in sorted(has - had))


def _unlike_its_pool(name: str, node: Mapping[str, Any], before: Mapping[str, Mapping[str, Any]]) -> Iterator[Change]:
    """A new node has no record of its own; that of its pool says what its image must have brought."""
    of_pool = [record for record in before.values() if record.get("pool") == node.get("pool")]
    for field in _OF_AN_IMAGE:
        known = {str(record[field]) for record in of_pool if record.get(field) is not None}
        if known and node.get(field) is not None and node[field] not in known:
            yield Change(f"node/{name}", field, f"{' or '.join(sorted(known))} on others of its pool", node[field])


def _text(value: Any) -> str:
    return _ABSENT if value is None else str(value)
