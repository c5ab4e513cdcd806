"""Writes the reference page of the rules from the rules themselves: `python -m policies.reference`."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from policies.configuration import FOLDER, configuration, environments
from policies.rule import Rule
from policies.rules import all_rules

PAGE = FOLDER.parent.parent / "docs/reference/policies.md"

_HEAD = """\
# Policies

Rules that every `trainyard preview` and `trainyard up` looks at, and plain Pulumi as well:
`pulumi preview --policy-pack policies --policy-pack-config policies/config/<stack>.json`. Made by
`python -m policies.reference` from `policies/rules`; `trainyard explain RULE` shows the same at a shell.

- **mandatory** stops the change, **advisory** does not, **remediate** corrects the resource and goes on, **disabled**
  is off. Levels and settings of an environment are in `policies/config/<stack>.json`; what is not there has the rule's
  own.
- `pulumi` looks for the pack in the folder that `-C` names, so that a rehearsal wants it in full: after
  `eval "$(trainyard env -s dev --rehearse)"`, `pulumi -C "$TRAINYARD_REHEARSAL/project" preview -s dev --policy-pack
  "$PWD/policies" --policy-pack-config "$PWD/policies/config/dev.json"`.
- What is known only after `up` is not passed: the rule says `cannot be judged before up`, as an advisory.
- What a Helm chart makes, or a TrainJob takes from its runtime, is not visible to rules about pods; what Karpenter may
  start is not counted by those about cost: its limits are in the cluster.
- Examples are written as in a Pulumi YAML program.
"""


def page() -> str:
    """The page as Markdown."""
    rules = list(all_rules().values())
    names = environments()
    lines = [_HEAD, f"\n| rule | asks for | severity | level | {' | '.join(names)} |\n"]
    lines.append(f"| --- | --- | --- | --- | {' | '.join('---' for _ in names)} |\n")
    for rule in rules:
        cells = [f"[{rule.name}](#{rule.name})", rule.title, rule.severity, rule.level]
        lines.append(f"| {' | '.join([*cells, *(level_in(rule, one) for one in names)])} |\n")
    topic = ""
    for rule in rules:
        if rule.topic != topic:
            topic = rule.topic
            lines.append(f"\n## {topic}\n")
        lines.extend(_section(rule))
    return "".join(lines)


def level_in(rule: Rule, environment: str) -> str:
    """The level of a rule in an environment."""
    return str(configuration(environment).get(rule.name, {}).get("enforcementLevel", rule.level))


def settings_in(rule: Rule, environment: str) -> dict[str, Any]:
    """The settings of a rule that an environment changes."""
    own = configuration(environment).get(rule.name, {})
    return {key: value for key, value in own.items() if key != "enforcementLevel"}


def _section(rule: Rule) -> Iterator[str]:
    yield f"\n### {rule.name}\n\n**{rule.title}**\n\n{rule.why}\n\n"
    yield f"- What to do: {rule.steps}\n"
    if rule.mend:
        yield "- At the level remediate the rule corrects it itself.\n"
    if rule.frameworks:
        yield f"- The same is asked for by: {', '.join(rule.frameworks)}\n"
    for key, one in rule.settings.items():
        set_in = [
            f"{name} {json.dumps(settings_in(rule, name)[key])}"
            for name in environments()
            if key in settings_in(rule, name)
        ]
        changed = f"; {', '.join(set_in)}" if set_in else ""
        yield f"- Setting `{key}` ({one.type}, {json.dumps(one.default)}{changed}): {one.about}\n"
    for link in rule.references:
        yield f"- See {link}\n"
    yield f"\nWrong:\n\n```yaml\n{rule.wrong.strip()}\n```\n\nRight:\n\n```yaml\n{rule.right.strip()}\n```\n"


def main(path: Path = PAGE) -> int:
    """Write the page."""
    path.write_text(page(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
