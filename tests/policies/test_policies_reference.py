"""The page of the rules, the command that explains them, and the files of levels say what the rules are."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from infra.cli import app
from infra.errors import UsageError
from policies.configuration import configuration, environments
from policies.reference import PAGE, page
from policies.rule import SEVERITIES, Rule
from policies.rules import all_rules

LEVELS = {"advisory", "mandatory", "remediate", "disabled"}


def test_the_page_is_up_to_date() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), "run: python -m policies.reference"


@pytest.mark.parametrize("environment", environments())
def test_levels_and_settings_of_an_environment_are_of_rules_that_are_there(environment: str) -> None:
    for name, own in configuration(environment).items():
        rule = all_rules()[name]
        level = own.pop("enforcementLevel", rule.level)
        assert level in LEVELS
        assert level != "remediate" or rule.mend, f"{name} corrects nothing"
        assert rule.with_defaults(own) == {**rule.with_defaults({}), **own}, f"{environment}: {name}"


@pytest.mark.parametrize("rule", all_rules().values(), ids=lambda rule: rule.name)
def test_a_rule_says_everything_that_a_reader_needs(rule: Rule) -> None:
    assert rule.severity in SEVERITIES
    assert rule.level in LEVELS
    assert rule.name == rule.name.lower().replace("_", "-")
    for text in (rule.title, rule.why, rule.steps):
        assert text.endswith((".", "POOL")), text


def test_explain_lists_every_rule() -> None:
    told = json.loads(CliRunner().invoke(app, ["explain", "--json"]).stdout)
    assert [one["rule"] for one in told] == list(all_rules())


def test_explain_shows_a_rule_with_its_examples_and_levels() -> None:
    result = CliRunner().invoke(app, ["explain", "stateful-protected"])
    assert result.exit_code == 0
    for part in ("dev disabled", "prod mandatory", "wrong:", "right:", "docs/reference/policies.md#stateful-protected"):
        assert part in result.stdout


def test_explain_knows_what_a_mistyped_rule_may_have_meant() -> None:
    result = CliRunner().invoke(app, ["explain", "efa-one-subnets"])
    assert isinstance(result.exception, UsageError)
    assert "Did you mean efa-one-subnet" in str(result.exception)
