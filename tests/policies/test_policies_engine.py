"""The policies on the real engine: previews of the example stacks, as they are and with mistakes in them.

Mistakes that no rule confuses with each other are made in one preview together: what a rule tells names the resource.
A preview goes on after broken rules, mandatory ones too, so that all of them are told.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from broken_stacks import VARIANTS, Variant

from infra.cli.console import Steps
from infra.cli.policies import OWN
from infra.cli.workspace import PREVIEWING, RehearsedWorkspace
from infra.engine import EngineRunError, PolicyError, Summary
from infra.policy_results import PolicyPack
from infra.rehearsal.tools import project_folder
from policies.configuration import configuration_file, mandatory

pytestmark = [pytest.mark.engines, pytest.mark.timeout(1800), pytest.mark.xdist_group("rehearsal")]

PROGRAM = Path(__file__).parent / "broken_program"


class Previews:
    """Previews of one stack in a rehearsal, with mistakes."""

    def __init__(self, workspace: RehearsedWorkspace) -> None:
        pack = PolicyPack(OWN, configuration_file(workspace.stack), mandatory(workspace.stack))
        self.workspace = replace(workspace, packs=(pack,))

    def told(self, mistakes: list[Variant], monkeypatch: pytest.MonkeyPatch) -> tuple[Summary, bool]:
        """What a preview tells, and whether its policies stop it."""
        self.workspace.write_project()
        path = project_folder(self.workspace.state) / "Pulumi.yaml"
        project = yaml.safe_load(path.read_text())
        path.write_text(yaml.safe_dump({**project, "main": str(PROGRAM)}))
        monkeypatch.setenv("BROKEN_VARIANTS", json.dumps([each.name for each in mistakes]))
        try:
            return self.workspace.engine(PREVIEWING).run("preview"), False
        except PolicyError as error:
            return error.summary, True


@pytest.fixture(scope="module", params=["dev", "prod"])
def previews(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Previews]:
    """A rehearsal of a stack, for all previews of it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRAINYARD_STATE_DIR", str(tmp_path_factory.mktemp("state")))
        workspace, steps = RehearsedWorkspace.open(request.param), Steps()
        with workspace.changing(steps, wait=True):
            rehearsal = workspace.rehearsal(steps)
            try:
                rehearsal.up(workspace.region)
                yield Previews(workspace)
            finally:
                rehearsal.down()


def together(stack: str) -> list[list[Variant]]:
    """The mistakes of a stack, in as few groups as keep apart what one rule would tell of two of them."""
    groups: list[list[Variant]] = []
    for variant in [each for each in VARIANTS if each.stack == stack and not each.refused]:
        for group in groups:
            if not any(set(variant.expected) & set(each.expected) or variant.clashes(each) for each in group):
                group.append(variant)
                break
        else:
            groups.append([variant])
    return groups


def test_the_examples_are_not_stopped(previews: Previews, monkeypatch: pytest.MonkeyPatch) -> None:
    summary, stopped = previews.told([], monkeypatch)
    assert not stopped
    assert [one for one in summary.policies if one.outcome == "violation"] == []
    assert summary.changes["create"] > 100


PACKS_WITH_MISTAKES = {
    "a rule of a policy pack failed, which is a mistake of the rule and not of the program: 'vpcConfig'": """
from pulumi_policy import EnforcementLevel, PolicyPack, ResourceValidationPolicy

def careless(args, report):
    if args.resource_type == "aws:eks/cluster:Cluster":
        raise KeyError("vpcConfig")

PolicyPack("careless", [ResourceValidationPolicy("careless", "It fails.", careless)], EnforcementLevel.MANDATORY)
""",
    "does not start, so that nothing was judged. Why: python ": 'raise RuntimeError("no such table")',
}


@pytest.mark.parametrize("said", PACKS_WITH_MISTAKES, ids=["raises", "does-not-start"])
def test_a_pack_that_is_broken_itself_is_said_to_be(previews: Previews, tmp_path: Path, said: str) -> None:
    python = {"name": "python", "options": {"toolchain": "pip", "virtualenv": sys.prefix}}
    (tmp_path / "PulumiPolicy.yaml").write_text(yaml.safe_dump({"name": "careless", "runtime": python}))
    (tmp_path / "__main__.py").write_text(PACKS_WITH_MISTAKES[said])
    previews.workspace.write_project()
    engine = replace(previews.workspace, packs=(PolicyPack(tmp_path),)).engine(PREVIEWING)
    with pytest.raises(EngineRunError) as error:
        engine.run("preview")
    assert said in str(error.value)
    assert "Traceback" not in str(error.value)
    assert not isinstance(error.value, PolicyError)


def test_each_mistake_is_caught_by_its_rules_and_by_no_others(
    previews: Previews, monkeypatch: pytest.MonkeyPatch
) -> None:
    for group in together(previews.workspace.stack):
        summary, stopped = previews.told(group, monkeypatch)
        told: dict[str, set[str]] = {}
        for one in summary.policies:
            told.setdefault(one.rule, set()).add(one.urn.rsplit("::", 1)[-1])
        for variant in group:
            where = {*variant.places, f"trainyard-{variant.stack}"}
            for rule in variant.expected:
                assert told.get(rule, set()) & where, (variant.name, rule, told)
        expected = {rule for variant in group for rule in variant.expected}
        found = {one.rule for one in summary.policies if one.outcome in ("violation", "corrected")}
        assert found <= expected, [one for one in summary.policies if one.rule in found - expected]
        assert stopped == any(one.blocks for one in summary.policies)
