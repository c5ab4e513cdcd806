"""Whole stacks: the examples comply, and each of many mistakes is caught by its rules, and by no others."""

from __future__ import annotations

import pytest
from broken_stacks import VARIANTS, Variant
from recorded_program import Recorded, run_stack_file
from recorded_stacks import AskedStack

ECR = "111122223333.dkr.ecr.us-east-2.amazonaws.com"


@pytest.fixture(scope="session")
def recorded() -> dict[str, Recorded]:
    """The example stacks of AWS, with a controller that was built."""
    image = f"@sha256:{'1' * 64}"
    return {
        name: run_stack_file(name, images={"controller": f"{ECR}/trainyard-{name}/controller{image}"})
        for name in ("dev", "prod")
    }


@pytest.mark.parametrize("name", ["dev", "prod"])
def test_the_examples_break_no_rule_and_leave_none_undecided(recorded: dict[str, Recorded], name: str) -> None:
    assert AskedStack(name, recorded[name]).told() == {}


@pytest.mark.parametrize("variant", VARIANTS, ids=lambda variant: variant.name.replace(" ", "-"))
def test_a_mistake_is_caught_by_its_rules_and_by_no_others(recorded: dict[str, Recorded], variant: Variant) -> None:
    stack = AskedStack(variant.stack, recorded[variant.stack])
    stack.apply(variant)
    told = stack.told()
    assert set(told) == set(variant.expected), told
    for messages in told.values():
        where = {message.partition(":")[0] for message in messages}
        assert variant.of_stack or where <= {*variant.places, "stack"}, messages


def test_a_bucket_that_loses_what_guards_it_is_caught_by_each_rule_of_buckets(recorded: dict[str, Recorded]) -> None:
    stack = AskedStack("prod", recorded["prod"])
    for each in [one for one in stack.resources if one.type.startswith("aws:s3/") and one.name != "bucket"]:
        stack.resources.remove(each)
    assert set(stack.told()) == {
        "bucket-not-public",
        "bucket-versioned",
        "bucket-tls-only",
        "bucket-encrypted",
        "bucket-ends-uploads",
    }


def test_a_stack_without_a_budget_or_a_plugin_is_caught(recorded: dict[str, Recorded]) -> None:
    stack = AskedStack("prod", recorded["prod"])
    stack.remove("Budget", "budget")
    stack.remove("DaemonSet", "efa-device-plugin")
    stack.remove("PodDisruptionBudget", "etcd")
    assert set(stack.told()) == {"budget-exists", "device-plugins-cover-pools", "replicated-has-budget"}
