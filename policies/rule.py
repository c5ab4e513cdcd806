"""What a rule is, and how it judges resources: plain data and pure functions, no Pulumi.

`policies.pack` makes policies of the engine of them, `policies.reference` a page, `trainyard explain` a text.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from policies.values import UnknownMemberError, Value

Severity = Literal["low", "medium", "high", "critical"]
Level = Literal["advisory", "mandatory", "remediate", "disabled"]
SEVERITIES: tuple[Severity, ...] = ("critical", "high", "medium", "low")

RawProps = dict[str, Any]
"""Properties as plain data; UNKNOWN stands for what is known after `up`."""


def is_of(type_name: str, types: Iterable[str]) -> bool:
    """Whether a type is one of these; one that ends with a colon stands for all that begin so."""
    return any(type_name.startswith(one) if one.endswith(":") else type_name == one for one in types)


@dataclass(frozen=True, eq=False)
class Resource:
    """One resource as the program asks for it."""

    type: str
    """`aws:eks/cluster:Cluster`."""
    name: str
    props: Value
    urn: str = ""
    protect: bool = False
    ignore_changes: tuple[str, ...] = ()
    provider: Value = field(default_factory=lambda: Value(None))
    """Properties of its explicit provider: region, default tags."""
    depends: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """By property: URNs of the resources that its value comes from. Only in whole stacks."""

    @property
    def kind(self) -> str:
        """The last part of the type: `Cluster`."""
        return self.type.rsplit(":", 1)[-1]

    def is_a(self, types: Iterable[str]) -> bool:
        """Whether its type is one of these, as `is_of` has it."""
        return is_of(self.type, types)


@dataclass(frozen=True, eq=False)
class Stack:
    """All resources of a stack, with what refers to what."""

    resources: tuple[Resource, ...]

    def of(self, *types: str) -> list[Resource]:
        """The resources of these types."""
        return [one for one in self.resources if one.is_a(types)]

    def behind(self, resource: Resource, key: str, *types: str) -> list[Resource]:
        """The resources of these types that a property's value comes from.

        The engine tells, also while ids are unknown. Where the program wrote an id or a name by hand, those are found
        that say the same of themselves.
        """
        if resource.props.at(key).raw is None:
            return []
        urns = resource.depends.get(key, ())
        found = [one for one in self.of(*types) if one.urn in urns]
        if found:
            return found
        written = _texts_in(resource.props.at(key).raw)
        names = ("id", "name", "bucket", "arn", "repositoryUrl")
        return [one for one in self.of(*types) if any(_same(one.props.at(name).raw, written) for name in names)]


def _same(raw: object, written: set[str]) -> bool:
    return isinstance(raw, str) and raw in written


def _texts_in(raw: object) -> set[str]:
    """All texts in a value, however deep."""
    if isinstance(raw, str):
        return {raw}
    if isinstance(raw, Mapping):
        return {text for one in raw.values() for text in _texts_in(one)}
    return {text for one in raw for text in _texts_in(one)} if isinstance(raw, list | tuple) else set()


@dataclass(frozen=True)
class Finding:
    """One thing that breaks a rule."""

    message: str
    """A sentence: what is wrong where."""
    resource: Resource | None = None
    """Absent: the stack as a whole."""


@dataclass(frozen=True)
class Setting:
    """What of a rule is a matter of taste."""

    default: Any
    about: str
    type: Literal["integer", "number", "boolean", "string", "array"] = "integer"

    def read(self, value: Any) -> Any:
        """A value as it was meant: the engine's messages know no whole numbers."""
        return int(value) if self.type == "integer" else value

    @property
    def schema(self) -> dict[str, Any]:
        """Its JSON schema."""
        return {"type": self.type, **({"items": {"type": "string"}} if self.type == "array" else {})}


Settings = Mapping[str, Any]
Check = Callable[[Any, Settings], Iterable[Finding | str]]


@dataclass(frozen=True)
class Rule:
    """One rule."""

    name: str
    """Stable: reports, settings and links name it."""
    title: str
    """What must hold, in one sentence."""
    topic: str
    severity: Severity
    why: str
    wrong: str
    """An example that breaks it: YAML, as in Pulumi YAML programs."""
    right: str
    steps: str
    """What to do about it."""
    check: Check
    types: tuple[str, ...] = ()
    """Of one resource; empty: of the whole stack."""
    each: Callable[[Any], Iterable[Any]] | None = None
    """What of the resource or stack the check is given, one after the other: what is unknown in one hides nothing in
    another."""
    mend: Callable[[RawProps], bool] | None = None
    """Corrects properties in place where that is safe; says whether it did."""
    level: Level = "mandatory"
    frameworks: tuple[str, ...] = ()
    """Rules of others that ask the same: `CKV_AWS_39`."""
    references: tuple[str, ...] = ()
    settings: Mapping[str, Setting] = field(default_factory=dict)
    presence: tuple[str, ...] = ()
    """Members that only have to be set, so that unknown values of them will do."""

    @property
    def of_stack(self) -> bool:
        """Whether it looks at a whole stack."""
        return not self.types

    @property
    def documentation(self) -> str:
        """Where it is explained, relative to the documentation's address."""
        return f"reference/policies.md#{self.name}"

    def with_defaults(self, configured: Settings | None) -> dict[str, Any]:
        """Its settings, with the default of each that is not set or not of its type."""
        given = configured or {}
        return {
            key: one.read(value) if _fits(value := given.get(key), one) else one.default
            for key, one in self.settings.items()
        }


def _fits(value: object, setting: Setting) -> bool:
    match setting.type:
        case "array":
            return isinstance(value, list | tuple) and all(isinstance(one, str) for one in value)
        case "boolean":
            return isinstance(value, bool)
        case "string":
            return isinstance(value, str)
        case _:
            return isinstance(value, int | float) and not isinstance(value, bool)


@dataclass(frozen=True)
class Verdict:
    """What came of it."""

    findings: tuple[Finding, ...] = ()
    unknown: tuple[str, ...] = ()
    """Paths of what must be known to judge the rest."""

    @property
    def complies(self) -> bool:
        """Whether everything was judged and nothing found."""
        return not self.findings and not self.unknown


def judge(rule: Rule, target: Resource | Stack, configured: Settings | None = None) -> Verdict:
    """Apply a rule.

    Args:
        rule: it.
        target: a resource, or the stack for rules of stacks.
        configured: its settings, where they are not the defaults.
    """
    settings = rule.with_defaults(configured)
    findings: list[Finding] = []
    unknown: list[str] = []
    own = target if isinstance(target, Resource) else None

    def guarded(subjects: Callable[[], Iterator[Any]], then: Callable[[Any], None]) -> None:
        try:
            for one in subjects():
                then(one)
        except UnknownMemberError as error:
            unknown.append(error.path)

    def found(one: Finding | str) -> None:
        findings.append(one if isinstance(one, Finding) else Finding(one, own))

    def checked(subject: Any) -> None:
        guarded(lambda: iter(rule.check(subject, settings)), found)

    if rule.each is None:
        checked(target)
    else:
        each = rule.each
        guarded(lambda: iter(list(each(target))), checked)
    return Verdict(tuple(dict.fromkeys(findings)), tuple(dict.fromkeys(unknown)))
