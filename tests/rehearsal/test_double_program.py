"""The whole AWS part of the example stacks goes through the double, without the real engine."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from little_engine import Resource, little_engine
from pulumi.runtime import MockResourceArgs
from recorded_program import Answers, Program

from infra.clusters import CHECKOUT
from infra.rehearsal import moto
from infra.rehearsal.double.values import UNKNOWN
from infra.rehearsal.leftovers import book_entries, leftovers
from infra.settings.images import NOT_BUILT

pytest_plugins = ["program_fixture"]


def configuration(stack: str) -> dict[str, Any]:
    """What a stack file says, with everything allowed to be deleted, and a name for the image that is not built."""
    found = yaml.safe_load((CHECKOUT / f"Pulumi.{stack}.yaml").read_text())["config"]
    config = {key.removeprefix("trainyard:"): value for key, value in found.items() if key.startswith("trainyard:")}
    config["aws"]["protect"] = False
    config["images"] = {"controller": NOT_BUILT, **config.get("images", {})}
    return config


def refusals_of_unknown_values(resource: Resource) -> Iterator[str]:
    """What is said against a resource with one of its values not known yet, wherever that is: it must be nothing.

    In a preview any value may be unknown.
    """
    for name, value in resource.inputs.items():
        for variant in with_one_unknown(value):
            inputs = {**resource.inputs, name: variant}
            if said := resource.engine.refusal(resource.token, inputs):
                yield f"{resource.token} with {variant} as {name}: {said}"
            else:
                resource.engine.preview(resource.token, **inputs)


def with_one_unknown(value: Any) -> Iterator[Any]:
    """The value unknown, and with each value in it unknown; of a list the ends are enough."""
    yield UNKNOWN
    if isinstance(value, dict):
        for key, item in value.items():
            yield from ({**value, key: variant} for variant in with_one_unknown(item))
    if isinstance(value, list):
        for index, item in {0: value[0], len(value) - 1: value[-1]}.items() if value else ():
            yield from ([*value[:index], variant, *value[index + 1 :]] for variant in with_one_unknown(item))


@pytest.mark.parametrize("stack", ["dev", "prod"])
def test_aws_takes_the_whole_stack_and_is_left_with_nothing(
    stack: str, program: Program, short_tmp: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in moto.environment().items():
        monkeypatch.setenv(name, value)
    made: list[Resource] = []
    others = Answers.new_resource
    with little_engine(short_tmp) as engine:

        def new_resource(answers: Answers, args: MockResourceArgs) -> tuple[str | None, dict[str, Any]]:
            if args.typ == "pulumi:providers:aws":
                engine.configure(args.inputs)
            if not args.typ.startswith("aws:"):
                return others(answers, args)
            resource = Resource(engine, args.typ, args.name)
            resource.up(**args.inputs)
            made.append(resource)
            return resource.id, dict(resource.outputs)

        monkeypatch.setattr(Answers, "new_resource", new_resource)
        program(configuration(stack))

        assert len(made) > 70
        one_of_each = {each.token: each for each in made}.values()
        assert "\n".join(said for each in one_of_each for said in refusals_of_unknown_values(each)) == ""
        assert [each.name for each in made if each.refresh() != "same"] == []
        assert [each.name for each in made if each.up(**each.inputs) != "same"] == []
        for resource in reversed(made):
            resource.down()
        assert [each.name for each in made if each.refresh() != "gone"] == []
        for resource in reversed(made):
            resource.down()  # what is gone is no error
        assert leftovers(engine.aws.connection) == []
        assert book_entries(short_tmp) == []
