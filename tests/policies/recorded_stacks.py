"""Turns what the program asks for into what policies are given: whole stacks without an engine."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from broken_stacks import Variant
from pulumi_policy import PolicyResource, ResourceValidationPolicy
from recorded_program import Recorded

from policies.configuration import configuration
from policies.pack import policies
from policies.rules import all_rules
from policies.testing import resource, run


@dataclass
class Asked:
    """One resource, to be changed at will."""

    type: str
    name: str
    urn: str
    props: dict[str, Any]
    provider: dict[str, Any]
    protect: bool = False
    ignore_changes: list[str] = field(default_factory=list)
    sources: dict[str, list[str]] = field(default_factory=dict)


class AskedStack:
    """The resources of a stack, to be changed at will."""

    def __init__(self, name: str, recorded: Recorded) -> None:
        self.name = name
        provider = {each.urn: dict(each.inputs) for each in recorded.resources if each.type.startswith("pulumi:prov")}
        self.resources = [
            Asked(
                each.type,
                each.name,
                each.urn,
                copy.deepcopy(dict(each.inputs)),
                provider.get(each.provider.rpartition("::")[0], {}),
                each.protect,
                list(each.ignore_changes),
                {key: list(urns) for key, urns in each.sources.items()},
            )
            for each in recorded.resources
        ]

    def one(self, kind: str, name: str) -> Asked:
        """The resource of a kind (last part of its type) with a logical name; components are none."""
        of_kind = [each for each in self.resources if each.type.rsplit(":", 1)[-1] == kind]
        (found,) = [each for each in of_kind if each.name == name and not each.type.startswith("trainyard:")]
        return found

    def pod(self, kind: str, name: str) -> dict[str, Any]:
        """The pod spec of a Deployment, StatefulSet or DaemonSet."""
        spec: dict[str, Any] = self.one(kind, name).props["spec"]["template"]["spec"]
        return spec

    def remove(self, kind: str, name: str) -> None:
        """Take a resource away."""
        self.resources.remove(self.one(kind, name))

    def add(self, type_name: str, name: str, props: Mapping[str, Any]) -> None:
        """Add a resource."""
        urn = f"urn:pulumi:{self.name}::trainyard::{type_name}::{name}"
        self.resources.append(Asked(type_name, name, urn, dict(props), {}))

    def apply(self, variant: Variant) -> None:
        """Make a mistake."""
        changed = self.one(variant.kind, variant.resource)
        variant.change(changed.props)
        if variant.protect is not None:
            changed.protect = variant.protect
        if variant.ignore_changes is not None:
            changed.ignore_changes = list(variant.ignore_changes)
        # What was written by hand comes from nothing else of the stack.
        changed.sources = {key: urns for key, urns in changed.sources.items() if key in changed.props}

    def built(self) -> list[PolicyResource]:
        """As policies are given them."""
        made = {
            each.urn: resource(
                each.type,
                each.props,
                name=each.name,
                urn=each.urn,
                protect=each.protect,
                ignore_changes=each.ignore_changes,
                provider=each.provider,
            )
            for each in self.resources
        }
        for each in self.resources:
            made[each.urn].property_dependencies.update(
                {key: [made[urn] for urn in urns if urn in made] for key, urns in each.sources.items()}
            )
        return list(made.values())

    def told(self) -> dict[str, list[str]]:
        """What the rules say, by rule: of which resource and what. Rules that are off say nothing."""
        levels = configuration(self.name)
        asked, said = self.built(), dict[str, list[str]]()
        for each in policies():
            settings = levels.get(each.name, {})
            if settings.get("enforcementLevel") == "disabled":
                continue
            own = {key: value for key, value in settings.items() if key != "enforcementLevel"}
            targets: list[Any] = list(asked) if isinstance(each, ResourceValidationPolicy) else [asked]
            for target in targets:
                outcome = run(each, target, own)
                where = target.name if isinstance(target, PolicyResource) else "stack"
                found = [f"{where}: {one.message}" for one in outcome.violations]
                if outcome.undecided:
                    found.append(f"{where}: {outcome.undecided}")
                if found:
                    said.setdefault(each.name, []).extend(found)
        assert set(said) <= set(all_rules())
        return said
