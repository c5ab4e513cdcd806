"""The whole AWS part of the example stacks goes through the double, without the real engine."""

from pathlib import Path
from typing import Any

import pytest
import yaml
from little_engine import Resource, little_engine
from pulumi.runtime import MockResourceArgs
from recorded_program import Answers, Program

from infra.clusters import CHECKOUT
from infra.rehearsal import moto
from infra.rehearsal.leftovers import book_entries, leftovers

pytest_plugins = ["program_fixture"]


def configuration(stack: str) -> dict[str, Any]:
    """What a stack file says, with everything allowed to be deleted."""
    found = yaml.safe_load((CHECKOUT / f"Pulumi.{stack}.yaml").read_text())["config"]
    config = {key.removeprefix("trainyard:"): value for key, value in found.items() if key.startswith("trainyard:")}
    config["aws"]["protect"] = False
    return config


@pytest.mark.parametrize("stack", ["dev", "prod"])
def test_aws_takes_the_whole_stack_and_is_left_with_nothing(
    stack: str, program: Program, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in moto.environment().items():
        monkeypatch.setenv(name, value)
    made: list[Resource] = []
    others = Answers.new_resource
    with little_engine(tmp_path) as engine:

        def new_resource(answers: Answers, args: MockResourceArgs) -> tuple[str | None, dict[str, Any]]:
            if args.typ == "pulumi:providers:aws":
                engine.configure(args.inputs)
            if not args.typ.startswith("aws:"):
                return others(answers, args)
            resource = Resource(engine, args.typ, args.name)
            resource.up(**args.inputs)
            made.append(resource)
            return resource.id, resource.outputs

        monkeypatch.setattr(Answers, "new_resource", new_resource)
        program(configuration(stack))

        assert len(made) > 70
        assert [each.name for each in made if each.refresh() != "same"] == []
        assert [each.name for each in made if each.up(**each.inputs) != "same"] == []
        for resource in reversed(made):
            resource.down()
        assert leftovers(engine.aws.connection) == []
        assert book_entries(tmp_path) == []
