"""What changes about one resource: the properties that differ, old and new, and which of them force a replacement."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from infra.report.preview import SECRET, UNKNOWN, Preview, Resource, Step

ABSENT: Final = type("Absent", (), {"__repr__": lambda _: "ABSENT"})()
"""Stands for a property that is not there."""

HOLDS_DATA = {
    "aws:ebs/volume:Volume": "a disk with all that is on it",
    "aws:ecr/repository:Repository": "a registry with its images",
    "aws:efs/fileSystem:FileSystem": "a file system with all that is in it",
    "aws:fsx/lustreFileSystem:LustreFileSystem": "a file system with all that is in it",
    "aws:fsx/openZfsFileSystem:OpenZfsFileSystem": "a file system with all that is in it",
    "aws:kms/key:Key": "a key, without which all that it encrypts cannot be read",
    "aws:s3/bucket:Bucket": "a bucket with all that is in it",
    "aws:s3/bucketV2:BucketV2": "a bucket with all that is in it",
    "kubernetes:core/v1:Namespace": "a namespace with everything in it",
    "kubernetes:core/v1:PersistentVolume": "a volume",
    "kubernetes:core/v1:PersistentVolumeClaim": "a claim, and with it its volume",
}
"""Types whose removal loses what nobody can make again."""
INTERRUPTS = {
    "aws:eks/cluster:Cluster": "the cluster with everything that runs in it",
    "aws:eks/nodeGroup:NodeGroup": "its machines: jobs on them are interrupted",
    "kubernetes:apiextensions.k8s.io/v1:CustomResourceDefinition": "every object of the kind goes with it",
}
"""Types whose removal stops what runs."""
_MOST_FIELDS = 400  # of one resource: nobody reads more


@dataclass(frozen=True)
class FieldChange:
    """One property that differs."""

    path: str
    old: Any
    new: Any
    forces: bool
    """Whether the resource is replaced because of it."""
    behind: str = ""
    """Where the old value is the id of a resource that goes: `Subnet private-us-east-2b, which is deleted`."""


@dataclass(frozen=True)
class Change:
    """What happens to one resource."""

    op: str
    type: str
    name: str
    urn: str
    fields: tuple[FieldChange, ...]
    protected: bool
    """The engine will refuse to replace or delete it."""
    loses: str = ""
    """What goes with it, in words; empty where nothing does that cannot be made again."""
    interrupts: str = ""
    component: str = ""
    """Name of the component that it belongs to."""
    after_delete: bool = False

    @property
    def kind(self) -> str:
        """The last part of the type."""
        return self.type.rsplit(":", 1)[-1]

    @property
    def removes(self) -> bool:
        """Whether what is there now goes away."""
        return self.op in {"replace", "delete"}

    @property
    def reasons(self) -> tuple[FieldChange, ...]:
        """The properties that force the replacement."""
        return tuple(one for one in self.fields if one.forces)


_ORDER = {"replace": 0, "delete": 1, "update": 2, "import": 3, "create": 4}


def changes(preview: Preview) -> tuple[Change, ...]:
    """All changes: what loses data first, then what is replaced and deleted, then the rest.

    Among their likes by type and name: the engine's own order differs from run to run.
    """
    going = {
        step.old.id: f"{step.old.kind} {step.old.name}, which is {'replaced' if step.op == 'replace' else 'deleted'}"
        for step in preview.steps
        if step.op in {"replace", "delete"} and step.old and step.old.id
    }
    made = [_change(step, going) for step in preview.steps if step.changes]
    return tuple(
        sorted(
            made,
            key=lambda one: (
                not (one.removes and one.loses),
                not one.interrupts,
                _ORDER.get(one.op, 9),
                one.type,
                one.name,
            ),
        )
    )


def fields(step: Step) -> tuple[FieldChange, ...]:
    """The properties of a step that differ, in the order of their paths; those that force a replacement first."""
    old = step.old.inputs if step.old else {}
    new = step.new.inputs if step.new else {}
    if not step.old or not step.new:
        return ()
    found: dict[str, FieldChange] = {}
    for path, before, after in _differences(old, new, ""):
        found[path] = FieldChange(path, before, after, _forces(step, path))
        if len(found) >= _MOST_FIELDS:
            break
    # What differs although both sides look alike here: secrets, and what only the provider compares.
    for path in [*step.detailed, *step.replace_reasons, *step.diffs]:
        if (
            path.startswith("__")
            or len(found) >= _MOST_FIELDS
            or any(_within(known, path) or _within(path, known) for known in found)
        ):
            continue
        before, after = _at(old, path), _at(new, path)
        if before is ABSENT and after is ABSENT:
            before, after = _at(step.old.outputs, path), UNKNOWN
        found[path] = FieldChange(path, before, after, _forces(step, path))
    return tuple(sorted(found.values(), key=lambda one: not one.forces))


def said(value: Any, limit: int = 200) -> str:
    """A value in words: `"text"`, `3`, `(known after up)`; long ones are cut."""
    if value is ABSENT:
        return "(none)"
    if value is UNKNOWN:
        return "(known after up)"
    if value == SECRET:
        return "[secret]"
    if isinstance(value, str):
        text = value if value and value.strip() == value else json.dumps(value, ensure_ascii=False)
    else:
        text = json.dumps(value, ensure_ascii=False, default=lambda _: "(known after up)")
    return text if len(text) <= limit else f"{text[:limit]}… ({len(text)} characters)"


def unknown_properties(resource: Resource) -> list[str]:
    """Paths of the properties whose values are known only after `up`."""
    return [path for path, value in _leaves(resource.inputs, "") if value is UNKNOWN]


def _change(step: Step, going: Mapping[str, str]) -> Change:
    resource = step.resource
    removed = step.op in {"replace", "delete"}
    parent = resource.parent or ""
    return Change(
        op=step.op,
        type=resource.type,
        name=resource.name,
        urn=step.urn,
        fields=tuple(
            replace(one, behind=going[one.old]) if isinstance(one.old, str) and one.old in going else one
            for one in fields(step)
        ),
        protected=removed and bool(step.old and step.old.protect),
        loses=HOLDS_DATA.get(resource.type, "") if removed else "",
        interrupts=INTERRUPTS.get(resource.type, "") if removed else "",
        component=parent.split("::", 3)[-1] if "pulumi:pulumi:Stack" not in parent else "",
        after_delete=step.after_delete,
    )


def _forces(step: Step, path: str) -> bool:
    """Whether a property is among the reasons; the engine names either whole paths or only their first keys."""
    if step.op != "replace":
        return False
    exact = [known for known, kind in step.detailed.items() if kind.endswith("-replace")]
    if exact:
        return any(_within(path, known) or _within(known, path) for known in exact)
    return any(_within(path, reason) for reason in step.replace_reasons)


def _within(path: str, outer: str) -> bool:
    return path == outer or (path.startswith(outer) and path[len(outer) : len(outer) + 1] in {".", "["})


def _differences(old: Any, new: Any, path: str) -> Iterator[tuple[str, Any, Any]]:
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        for key in dict.fromkeys([*old, *new]):
            yield from _differences(old.get(key, ABSENT), new.get(key, ABSENT), _joined(path, key))
    elif isinstance(old, list) and isinstance(new, list) and (len(old) == len(new) or _deep(old) or _deep(new)):
        for index in range(max(len(old), len(new))):
            one = old[index] if index < len(old) else ABSENT
            other = new[index] if index < len(new) else ABSENT
            yield from _differences(one, other, f"{path}[{index}]")
    elif old is not new and old != new:
        yield path, old, new


def _deep(items: list[Any]) -> bool:
    return any(isinstance(one, dict | list) for one in items)


def _leaves(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping):
        for key, inside in value.items():
            yield from _leaves(inside, _joined(path, key))
    elif isinstance(value, list):
        for index, inside in enumerate(value):
            yield from _leaves(inside, f"{path}[{index}]")
    else:
        yield path, value


def _joined(path: str, key: str) -> str:
    if key.replace("_", "a").replace("-", "a").isalnum():
        return f"{path}.{key}" if path else key
    return f"{path}[{json.dumps(key, ensure_ascii=False)}]"


def _at(value: Any, path: str) -> Any:
    """The value under a simple path; absent where the path is not simple."""
    for key in path.replace("[", ".[").split("."):
        if key.startswith("[") and key[1:-1].isdigit() and isinstance(value, list):
            value = value[int(key[1:-1])] if int(key[1:-1]) < len(value) else ABSENT
        elif key.startswith('["') and isinstance(value, Mapping):
            value = value.get(key[2:-2], ABSENT)
        elif isinstance(value, Mapping):
            value = value.get(key, ABSENT)
        else:
            return ABSENT
    return value
