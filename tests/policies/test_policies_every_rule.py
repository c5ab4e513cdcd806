"""What holds for every rule: its own examples, and that nothing a program may write makes it fail or look away."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import pytest
import yaml
from pulumi_policy import Policy, PolicyResource, ResourceValidationPolicy

from policies.pack import policy
from policies.rule import Rule
from policies.rules import all_rules
from policies.testing import UNKNOWN, Outcome, from_yaml, run

RULES = list(all_rules().values())
WRONG_TYPES: tuple[Any, ...] = (None, True, 7, "text", [], [[]], {}, {"x": {"y": 1}}, [None, 7, "text", {}])

Path = tuple[str | int, ...]


def outcomes(tested: Policy, example: list[PolicyResource]) -> list[Outcome]:
    """What a policy says of an example: of each resource that it looks at, or of the whole."""
    if isinstance(tested, ResourceValidationPolicy):
        return [outcome for one in example if not (outcome := run(tested, one)).not_applicable]
    return [run(tested, example)]


def judged(rule: Rule, document: dict[str, Any]) -> tuple[bool, bool]:
    """Whether anything was found in an example, and whether anything was left undecided."""
    told = outcomes(policy(rule), from_yaml(yaml.safe_dump(document, sort_keys=False)))
    return any(one.violations for one in told), any(one.undecided for one in told)


def paths(node: Any, at: Path = ()) -> Iterator[Path]:
    """All members of properties, however deep."""
    if isinstance(node, dict):
        for key, value in node.items():
            yield (*at, key)
            yield from paths(value, (*at, key))
    elif isinstance(node, list):
        for index, value in enumerate(node):
            yield (*at, index)
            yield from paths(value, (*at, index))


def changed(document: dict[str, Any], path: Path, value: Any = None, *, remove: bool = False) -> dict[str, Any]:
    copied: Any = copy.deepcopy(document)
    node = copied
    for key in path[:-1]:
        node = node[key]
    if remove:
        del node[path[-1]]
    else:
        node[path[-1]] = value
    return copied  # type: ignore[no-any-return]


def members(document: dict[str, Any]) -> list[Path]:
    return [
        (name, "properties", *path) for name, one in document.items() for path in paths(one.get("properties") or {})
    ]


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
class TestEveryRule:
    def test_its_wrong_example_breaks_it(self, rule: Rule) -> None:
        assert judged(rule, yaml.safe_load(rule.wrong)) == (True, False)

    def test_its_right_example_is_judged_and_complies(self, rule: Rule) -> None:
        told = outcomes(policy(rule), from_yaml(rule.right))
        assert told, "nothing in the example is looked at"
        assert all(one.complies for one in told), told

    def test_no_absent_member_makes_it_fail(self, rule: Rule) -> None:
        for text in (rule.wrong, rule.right):
            document = yaml.safe_load(text)
            for path in members(document):
                judged(rule, changed(document, path, remove=True))

    def test_no_type_makes_it_fail(self, rule: Rule) -> None:
        for text in (rule.wrong, rule.right):
            document = yaml.safe_load(text)
            for path in members(document):
                for value in WRONG_TYPES:
                    judged(rule, changed(document, path, value))

    def test_it_looks_at_nothing_without_properties_and_fails_at_nothing(self, rule: Rule) -> None:
        document = yaml.safe_load(rule.right)
        for name in document:
            judged(rule, changed(document, (name, "properties"), {}))

    def test_what_it_needs_and_is_unknown_it_says(self, rule: Rule) -> None:
        """Where a member decides, an unknown one leaves the rule undecided, or is found wrong; it is never passed."""
        document = yaml.safe_load(rule.right)
        for path in members(document):
            if path[-1] in rule.presence or set(path) & set(rule.presence):
                continue
            others: tuple[Any, ...] = ("text", None, {}, [])
            decides = any(judged(rule, changed(document, path, value))[0] for value in others)
            if decides:
                assert any(judged(rule, changed(document, path, UNKNOWN))), f"{path} is unknown, and it passes"

    def test_unknown_members_of_the_wrong_example_are_never_passed_off_as_right(self, rule: Rule) -> None:
        document = yaml.safe_load(rule.wrong)
        for path in members(document):
            if set(path) & set(rule.presence):
                continue
            if not judged(rule, changed(document, path, remove=True))[0]:
                assert any(judged(rule, changed(document, path, UNKNOWN))), f"{path} is unknown, and it passes"
