"""Helps to test CrossGuard policies in Python, yours as well as these: no engine, no cloud, milliseconds.

    from policies.testing import UNKNOWN, assert_complies, assert_undecided, assert_violates, resource

    def test_a_bucket_has_an_owner() -> None:
        assert_complies(bucket_has_owner, resource("aws:s3/bucket:Bucket", {"tags": {"owner": "research"}}))
        assert_violates(bucket_has_owner, resource("aws:s3/bucket:Bucket", {}), "no owner")
        assert_undecided(bucket_has_owner, resource("aws:s3/bucket:Bucket", {"tags": UNKNOWN}))

A policy is any `ResourceValidationPolicy` or `StackValidationPolicy`. Its arguments are built as the SDK builds them
from the engine's messages: numbers are floats, unknown values raise when they are touched, coroutines are awaited. The
module needs pulumi-policy, and PyYAML for `from_yaml`; nothing of this project.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from inspect import isawaitable
from typing import Any, Final, NoReturn, cast

from pulumi_policy import (
    Policy,
    PolicyCustomTimeouts,
    PolicyProviderResource,
    PolicyResource,
    PolicyResourceOptions,
    ResourceValidationArgs,
    ResourceValidationPolicy,
    StackValidationArgs,
    StackValidationPolicy,
)
from pulumi_policy.deserialize import deserialize_properties, serialize_properties
from pulumi_policy.proxy import UNKNOWN_STRING_VALUE, UnknownValueError, unknown_checking_proxy

UNKNOWN: Final = UNKNOWN_STRING_VALUE
"""A value that is known only after `up`, wherever properties are given."""
_REFERENCE = re.compile(r"\$\{(?P<name>[^.}]+)\.(?P<output>[^}]+)\}")

Props = Mapping[str, Any]


@dataclass(frozen=True)
class Violation:
    """One thing that a policy reported."""

    message: str
    urn: str | None = None


@dataclass(frozen=True)
class Outcome:
    """What a policy did with its arguments."""

    violations: tuple[Violation, ...] = ()
    undecided: str | None = None
    """What is unknown that it needed; the engine shows this as an advisory. Violations may have been found before."""
    not_applicable: bool = False

    @property
    def complies(self) -> bool:
        """Whether it judged, or was not asked, and found nothing."""
        return not self.violations and self.undecided is None


class _NotApplicableError(Exception):
    pass


class _ResourceArgs(ResourceValidationArgs):
    def not_applicable(self, reason: str | None = None) -> NoReturn:
        raise _NotApplicableError(reason)


class _StackArgs(StackValidationArgs):
    def not_applicable(self, reason: str | None = None) -> NoReturn:
        raise _NotApplicableError(reason)


def resource(
    type_name: str,
    props: Props,
    *,
    name: str = "it",
    urn: str | None = None,
    protect: bool = False,
    ignore_changes: Sequence[str] = (),
    provider: Props | None = None,
    depends: Mapping[str, Sequence[PolicyResource]] | None = None,
    parent: PolicyResource | None = None,
) -> PolicyResource:
    """A resource, for policies of resources and of stacks alike.

    Args:
        type_name: its type token.
        props: its properties in camel case, with `UNKNOWN` for what is known only after `up`.
        name: its logical name.
        urn: its URN, where it matters.
        protect: the resource option.
        ignore_changes: the resource option.
        provider: properties of its explicit provider.
        depends: by property, the resources that its value comes from.
        parent: its parent.
    """
    own = urn or f"urn:pulumi:test::test::{type_name}::{name}"
    options = PolicyResourceOptions(
        protect, list(ignore_changes), None, [], PolicyCustomTimeouts(0, 0, 0), [], parent.urn if parent else None
    )
    package = type_name.partition(":")[0]
    made = (
        PolicyProviderResource(f"pulumi:providers:{package}", _proxied(provider), f"{own}-provider", package)
        if provider is not None
        else None
    )
    behind = {key: list(those) for key, those in (depends or {}).items()}
    every = list({id(one): one for those in behind.values() for one in those}.values())
    return PolicyResource(type_name, _proxied(props), own, name, options, made, parent, every, behind)


def from_yaml(text: str) -> list[PolicyResource]:
    """Resources from the `resources` of a Pulumi YAML program: type, properties, options protect and ignoreChanges.

    `${bucket.arn}` is a value that comes from the resource `bucket`; alone it is unknown, as in a first preview. An
    option `provider: {region: …}` holds properties of the provider, instead of its name.
    """
    import yaml  # noqa: PLC0415 - only here

    made: dict[str, PolicyResource] = {}
    declared = yaml.safe_load(text)
    for name, one in declared.items():  # what is referred to stands above, as in a readable example
        props, options = one.get("properties") or {}, one.get("options") or {}
        made[name] = resource(
            one["type"],
            _substituted(props),
            name=name,
            protect=options.get("protect", False),
            ignore_changes=options.get("ignoreChanges", ()),
            provider=options.get("provider"),
            depends={key: [made[each] for each in names] for key, value in props.items() if (names := _names(value))},
        )
    return list(made.values())


def run(
    policy: Policy, tested: PolicyResource | Iterable[PolicyResource], config: Mapping[str, Any] | None = None
) -> Outcome:
    """Run a policy.

    Args:
        policy: of resources or of stacks.
        tested: a resource, or those of a stack.
        config: settings of the policy.

    Raises:
        Exception: whatever the policy raises besides saying that a value is unknown: the engine would end with it.
    """
    found: list[Violation] = []

    def report(message: str, urn: str | None = None) -> None:
        found.append(Violation(message, urn))

    undecided: str | None = None
    try:
        if isinstance(policy, StackValidationPolicy):
            several = [tested] if isinstance(tested, PolicyResource) else list(tested)
            result = policy.validate(_StackArgs(several, config), report)
        elif isinstance(policy, ResourceValidationPolicy) and isinstance(tested, PolicyResource):
            result = policy.validate(_arguments(tested, config), report)
        else:
            raise TypeError(f"{policy.name}: one resource for a ResourceValidationPolicy, or a StackValidationPolicy")
        if isawaitable(result):
            asyncio.run(_awaited(result))
    except UnknownValueError as error:
        undecided = error.message
    except _NotApplicableError:
        return Outcome(tuple(found), not_applicable=True)
    return Outcome(tuple(found), undecided)


def remediated(
    policy: Policy, tested: PolicyResource, config: Mapping[str, Any] | None = None
) -> dict[str, Any] | None:
    """The properties that a policy would use instead; None where it leaves them."""
    if not isinstance(policy, ResourceValidationPolicy):
        raise TypeError(f"{policy.name}: only policies of resources remediate")
    result: Any = policy.remediate(_arguments(tested, config))
    if isawaitable(result):
        result = asyncio.run(_awaited(result))
    return None if result is None else dict(serialize_properties(result))


def assert_complies(
    policy: Policy, tested: PolicyResource | Iterable[PolicyResource], config: Mapping[str, Any] | None = None
) -> None:
    """The policy judges, and finds nothing."""
    outcome = run(policy, tested, config)
    assert outcome.complies, f"{policy.name} should have nothing to say: {outcome}"  # noqa: S101 - for tests
    assert not outcome.not_applicable, f"{policy.name} should look at it, and does not"  # noqa: S101


def assert_violates(
    policy: Policy,
    tested: PolicyResource | Iterable[PolicyResource],
    match: str = "",
    config: Mapping[str, Any] | None = None,
) -> None:
    """The policy reports something that a regular expression matches."""
    outcome = run(policy, tested, config)
    told = [one.message for one in outcome.violations]
    assert any(re.search(match, one) for one in told), f"{policy.name} should say {match!r}: {outcome}"  # noqa: S101


def assert_undecided(
    policy: Policy,
    tested: PolicyResource | Iterable[PolicyResource],
    match: str = "",
    config: Mapping[str, Any] | None = None,
) -> None:
    """The policy says that it needs what is unknown, in words that a regular expression matches."""
    told = run(policy, tested, config).undecided
    assert told is not None, f"{policy.name} should say that it cannot judge yet"  # noqa: S101
    assert re.search(match, told), f"{policy.name} should say {match!r}: {told}"  # noqa: S101


def assert_not_applicable(policy: Policy, tested: PolicyResource, config: Mapping[str, Any] | None = None) -> None:
    """The policy does not look at resources like this."""
    assert run(policy, tested, config).not_applicable, f"{policy.name} should leave it alone"  # noqa: S101


async def _awaited(result: Any) -> Any:
    return await result


def _arguments(one: PolicyResource, config: Mapping[str, Any] | None) -> ResourceValidationArgs:
    return _ResourceArgs(one.resource_type, one.props, one.urn, one.name, one.opts, one.provider, config)


def _proxied(props: Props) -> Props:
    """Properties as they come out of the engine's message: numbers are floats, unknown values raise."""
    plain = cast("dict[str, Any]", _with_floats(props))
    return unknown_checking_proxy(deserialize_properties(plain))


def _with_floats(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _with_floats(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_with_floats(one) for one in value]
    return float(value) if isinstance(value, int) and not isinstance(value, bool) else value


def _substituted(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _substituted(one) for key, one in value.items()}
    if isinstance(value, list):
        return [_substituted(one) for one in value]
    return UNKNOWN if isinstance(value, str) and _REFERENCE.search(value) else value


def _names(value: Any) -> list[str]:
    """Names of the resources that a value refers to."""
    if isinstance(value, Mapping):
        return list(dict.fromkeys(name for one in value.values() for name in _names(one)))
    if isinstance(value, list):
        return list(dict.fromkeys(name for one in value for name in _names(one)))
    return [each["name"] for each in _REFERENCE.finditer(value)] if isinstance(value, str) else []
