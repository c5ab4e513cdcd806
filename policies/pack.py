"""Makes a CrossGuard pack of the rules: the only module besides `policies.testing` that knows pulumi-policy."""

from __future__ import annotations

import dataclasses
import functools
import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, cast

import pulumi_policy.policy
from pulumi_policy import (
    EnforcementLevel,
    Policy,
    PolicyComplianceFramework,
    PolicyConfigSchema,
    PolicyPack,
    PolicyResource,
    ReportViolation,
    ResourceRemediation,
    ResourceValidationArgs,
    ResourceValidationPolicy,
    Severity,
    StackValidationArgs,
    StackValidationPolicy,
)
from pulumi_policy.deserialize import deserialize_properties, serialize_properties
from pulumi_policy.proxy import UNKNOWN_STRING_VALUE, UnknownValueError, unknown_checking_proxy

from policies.once import convert_once
from policies.rule import Resource, Rule, Stack, Verdict, is_of, judge
from policies.rules import all_rules
from policies.values import UNKNOWN, Value

NAME = "trainyard"
DOCS_VARIABLE = "TRAINYARD_DOCS_URL"
"""Where the documentation is published; the rules' links are relative to it, and relative where it is not set."""
_Arguments = ResourceValidationArgs | PolicyResource


class UndecidedError(UnknownValueError):
    """A rule needs values that are known only after `up`: the SDK reports it as advisory, whatever the rule's level."""

    def __init__(self, paths: Sequence[str]) -> None:
        super().__init__(UNKNOWN_STRING_VALUE, list(paths[:1]))
        verb = "is" if len(paths) == 1 else "are"
        self.message = f"cannot be judged before up: {', '.join(paths)} {verb} unknown"


class RuleError(Exception):
    """A rule itself failed: said in a sentence, since the engine shows nothing else of it."""

    def __init__(self, rule: Rule, where: str, error: Exception) -> None:
        super().__init__(
            f"{rule.name} at {where}: {type(error).__name__}: {error}. Report it; until it is mended, switch the rule "
            f'off in the settings of the policies: "{rule.name}": "disabled"'
        )


def serve() -> None:
    """Answer the engine until it ends this process."""
    convert_once(pulumi_policy.policy)
    PolicyPack(NAME, policies(), EnforcementLevel.MANDATORY)


def policies(rules: Iterable[Rule] | None = None) -> list[Policy]:
    """The policies; they share what they saw of single resources, so that those of stacks know it as well."""
    seen: dict[str, Resource] = {}
    remember = ResourceValidationPolicy(
        "resources-seen",
        "Keeps what the program asks for, which rules of whole stacks look at. It never complains.",
        lambda args, _: seen.update({args.urn: _resource(args)}) if args.urn else None,
        EnforcementLevel.ADVISORY,
    )
    return [remember, *(policy(rule, seen) for rule in (all_rules().values() if rules is None else rules))]


def policy(rule: Rule, seen: Mapping[str, Resource] | None = None) -> Policy:
    """One rule as a policy.

    Args:
        rule: it.
        seen: resources as the program asks for them, by URN. At the end of a first preview the engine has nothing of
            objects in a cluster that is not there yet.
    """
    common: dict[str, Any] = {
        "name": rule.name,
        "description": rule.title,
        "enforcement_level": EnforcementLevel(rule.level),
        "display_name": rule.title,
        "severity": Severity(rule.severity),
        "framework": PolicyComplianceFramework(name="Checkov", reference=", ".join(rule.frameworks))
        if rule.frameworks
        else None,
        "tags": [rule.topic, *rule.frameworks],
        "remediation_steps": rule.steps,
        "url": documentation(rule),
        "config_schema": PolicyConfigSchema({key: one.schema for key, one in rule.settings.items()})
        if rule.settings
        else None,
    }
    if rule.of_stack:
        return StackValidationPolicy(
            validate=functools.partial(_validate_stack, rule, {} if seen is None else seen), **common
        )
    return ResourceValidationPolicy(
        validate=functools.partial(_validate, rule),
        remediate=cast("ResourceRemediation", functools.partial(_remediate, rule)) if rule.mend else None,
        **common,
    )


def documentation(rule: Rule) -> str:
    """Address of a rule's explanation."""
    base = os.environ.get(DOCS_VARIABLE, "")
    return f"{base.rstrip('/')}/{rule.documentation}" if base else rule.documentation


def _validate(rule: Rule, args: ResourceValidationArgs, report: ReportViolation) -> None:
    if not is_of(args.resource_type, rule.types):
        args.not_applicable()
    _report(_judged(rule, _resource(args), args.get_config()), report)


def _validate_stack(
    rule: Rule, seen: Mapping[str, Resource], args: StackValidationArgs, report: ReportViolation
) -> None:
    _report(_judged(rule, _stack(args, seen), args.get_config()), report)


def _judged(rule: Rule, target: Resource | Stack, settings: Mapping[str, Any] | None) -> Verdict:
    try:
        return judge(rule, target, settings)
    except Exception as error:
        where = f"{target.kind} {target.name}" if isinstance(target, Resource) else "the stack"
        raise RuleError(rule, where, error) from error


def _remediate(rule: Rule, args: ResourceValidationArgs) -> Mapping[str, Any] | None:
    if rule.mend is None or not is_of(args.resource_type, rule.types):
        return None
    # Secrets stay secret and unknown values unknown: what the rule does not touch goes back as it came.
    raw = dict(serialize_properties(args.props))
    # After another correction the SDK hands on what that returned, without its guards: here they are always new.
    args.props = unknown_checking_proxy(deserialize_properties(raw))
    if not _judged(rule, _resource(args), args.get_config()).findings:
        return None  # what complies in its own way, or cannot be judged, is left alone
    return raw if rule.mend(raw) else None


def _report(verdict: Verdict, report: ReportViolation) -> None:
    for one in verdict.findings:
        report(one.message, one.resource.urn or None if one.resource else None)
    if verdict.unknown:
        raise UndecidedError(verdict.unknown)


def _stack(args: StackValidationArgs, seen: Mapping[str, Resource]) -> Stack:
    found = []
    for one in args.resources:
        depends = {key: tuple(each.urn for each in those) for key, those in one.property_dependencies.items() if those}
        found.append(dataclasses.replace(seen.get(one.urn) or _resource(one), depends=depends))
    return Stack(tuple(found))


def _resource(args: _Arguments) -> Resource:
    return Resource(
        type=args.resource_type,
        name=args.name,
        props=Value(plain(args.props)),
        urn=args.urn,
        protect=bool(args.opts.protect) if args.opts else False,
        ignore_changes=tuple(args.opts.ignore_changes) if args.opts else (),
        provider=Value(plain(args.provider.props)) if args.provider else Value(None),
    )


def plain(value: Any) -> Any:
    """Properties as the SDK gives them, as plain data; what is unknown is `UNKNOWN` instead of an exception."""
    if isinstance(value, Mapping):
        return {key: _element(value, key) for key in value}
    if isinstance(value, Sequence) and not isinstance(value, str | bytes):
        return [_element(value, index) for index in range(len(value))]
    return value


def _element(of: Any, key: Any) -> Any:
    try:
        return plain(of[key])
    except UnknownValueError:
        return UNKNOWN
