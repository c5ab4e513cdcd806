"""What the settings know about themselves: every field has its example, its place, its remedy."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from pydantic import TypeAdapter, ValidationError

from infra.settings import PROJECT, Section, Settings, SettingsError, from_engine
from infra.settings.mistakes import Location, dotted, key_path, line_of
from infra.settings.shape import Place, keys_at, place_at


def fields(section: type[Section] = Settings, at: Location = ()) -> Iterator[tuple[Location, Any, Place]]:
    """Every field of the tree: where it stands, its annotation with all that is checked, and its place."""
    for field in section.model_fields.values():
        location: Location = (*at, str(field.alias))
        place = place_at(location)
        assert place is not None
        yield location, field.rebuild_annotation(), place
        entry = place.inner(0)
        if place.section:
            yield from fields(place.section, location)
        elif entry and entry.section:
            yield from fields(entry.section, (*location, 0))


FIELDS = {dotted(location): (annotation, place) for location, annotation, place in fields()}


@pytest.mark.parametrize("key", FIELDS)
def test_the_example_in_a_remedy_is_a_right_value(key: str) -> None:
    annotation, place = FIELDS[key]
    example = place.example()
    if example == "VALUE":  # any text will do
        example = "anything"
    TypeAdapter(annotation).validate_python(example, by_alias=True, by_name=False)


def test_a_field_without_an_example_takes_any_text() -> None:
    without = {key for key, (_, place) in FIELDS.items() if place.example() == "VALUE"}
    assert without == {
        "aws.nodePools[0].placementGroup",
        "checkpoints.storageClass",
        "etcd.storageClass",
        "kubeconfig.context",
    }


def test_a_place_is_found_through_lists_and_free_keys() -> None:
    assert keys_at(("aws", "nodePools", 3, "reservation")) == ["id", "start", "end"]
    assert keys_at(("aws", "queues", "dedicated")) == []
    team = place_at(("aws", "queues", "dedicated", "team-a", 0))
    assert team is not None
    assert team.example() == "gpu-spot"
    assert place_at(("aws", "nodePools", "name")) is None
    assert place_at(("aws", "region", 0)) is None


def test_keys_with_dots_are_quoted_as_pulumi_reads_paths() -> None:
    assert key_path(("aws", "tags", "kubernetes.io/x")) == 'trainyard:aws.tags["kubernetes.io/x"]'
    assert key_path(("aws", "tags", 'a"b')) == 'trainyard:aws.tags["a\\"b"]'
    assert key_path(("aws", "nodePools", 0, "types", 1)) == "trainyard:aws.nodePools[0].types[1]"


def test_a_value_that_is_not_written_has_the_line_of_what_encloses_it() -> None:
    lines = {(f"{PROJECT}:aws",): 3, (f"{PROJECT}:aws", "nodePools"): 5, (f"{PROJECT}:aws", "nodePools", 0): 6}
    assert line_of(("aws", "nodePools", 0, "zone"), lines) == 6
    assert line_of(("aws", "tags", "a.b"), lines) == 3
    assert line_of(("etcd",), lines) is None


@pytest.mark.parametrize("value", ["yes", 1, 0, None, "True"])
def test_a_switch_is_true_or_false(value: Any) -> None:
    with pytest.raises(SettingsError, match="must be true or false, without quotes"):
        from_engine({"trainyard:target": "local", "trainyard:etcd": json.dumps({"secure": value})}, "dev")


def test_python_code_is_held_to_the_same_rules() -> None:
    with pytest.raises(ValidationError):
        Settings(target="local", etcd={"members": 2})  # type: ignore[arg-type]
