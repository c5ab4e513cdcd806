"""`trainyard explain`: the rules of the policies, why each is there and what to do about it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from infra.cli.console import print_json, row, show, stdout, table
from infra.cli.options import Json
from infra.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from policies.rule import Rule


def register(app: typer.Typer) -> None:
    """Add this module's command."""
    app.command()(explain)


def explain(
    rule: Annotated[str | None, typer.Argument(metavar="[RULE]", help="A rule, as a preview names it.")] = None,
    json: Json = False,
) -> None:
    """List the rules of the policies; or say of one why it is there, what breaks it, and what to do.

    Example: [bold]trainyard explain[/bold], [bold]trainyard explain efa-security-group-self[/bold]
    """
    from policies.rules import all_rules  # noqa: PLC0415 - the catalogue behind it is read

    rules = all_rules()
    if rule is None:
        if json:
            print_json([_document(one) for one in rules.values()])
        else:
            _list(rules)
        return
    if rule not in rules:
        raise UsageError(f"there is no rule {rule!r}. {_nearest(rule, rules)}`trainyard explain` lists them all.")
    if json:
        print_json(_document(rules[rule]))
    else:
        _show(rules[rule])


def _nearest(name: str, rules: Mapping[str, Rule]) -> str:
    import difflib  # noqa: PLC0415 - only for mistakes

    near = difflib.get_close_matches(name, rules, n=3, cutoff=0.5) or [one for one in rules if name in one][:3]
    return f"Did you mean {', '.join(near)}? " if near else ""


def _levels(rule: Rule) -> dict[str, str]:
    from policies.configuration import environments  # noqa: PLC0415 - read with the rules
    from policies.reference import level_in  # noqa: PLC0415

    return {name: level_in(rule, name) for name in environments()}


def _document(rule: Rule) -> dict[str, Any]:
    from policies.configuration import environments  # noqa: PLC0415 - read with the rules
    from policies.reference import settings_in  # noqa: PLC0415

    return {
        "rule": rule.name,
        "title": rule.title,
        "topic": rule.topic,
        "severity": rule.severity,
        "level": rule.level,
        "levels": _levels(rule),
        "why": rule.why,
        "remediation": rule.steps,
        "corrects_itself": rule.mend is not None,
        "frameworks": list(rule.frameworks),
        "settings": {
            key: {"type": one.type, "default": one.default, "about": one.about} for key, one in rule.settings.items()
        },
        "settings_by_environment": {name: own for name in environments() if (own := settings_in(rule, name))},
        "references": list(rule.references),
        "documentation": f"docs/{rule.documentation}",
        "wrong": rule.wrong.strip(),
        "right": rule.right.strip(),
    }


def _list(rules: Mapping[str, Rule]) -> None:
    shown = table("rule", "severity", "level", "message")
    topic = ""
    for one in rules.values():
        if one.topic != topic:
            if topic:
                shown.add_section()
            topic = one.topic
        row(shown, one.name, one.severity, one.level, one.title)
    show(shown)
    stdout().print("Why, examples, and what to do: trainyard explain RULE", markup=False)


def _show(rule: Rule) -> None:
    document = _document(rule)
    levels = ", ".join(f"{name} {level}" for name, level in document["levels"].items())
    lines = [
        f"{rule.name}: {rule.title}",
        "",
        rule.why,
        "",
        f"severity: {rule.severity}    level: {rule.level} ({levels})",
        f"what to do: {rule.steps}",
    ]
    if rule.mend:
        lines.append("At the level remediate the rule corrects it itself.")
    if rule.frameworks:
        lines.append(f"asked for as well by: {', '.join(rule.frameworks)}")
    for key, one in rule.settings.items():
        set_in = [f"{name} {own[key]!r}" for name, own in document["settings_by_environment"].items() if key in own]
        lines.append(f"setting {key} ({', '.join([f'default {one.default!r}', *set_in])}): {one.about}")
    lines += ["", "wrong:", *_indented(rule.wrong), "", "right:", *_indented(rule.right), ""]
    lines += [f"see {one}" for one in (*rule.references, document["documentation"])]
    for line in lines:
        stdout().print(line, markup=False)


def _indented(text: str) -> list[str]:
    return [f"  {line}" for line in text.strip().splitlines()]
