"""What AWS would refuse, by its own models; where the mistake stands in the program's words."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from infra.rehearsal.double.kind import Watched, property_path
from infra.rehearsal.double.validation import mistakes, model, regions
from infra.rehearsal.double.values import (
    OUTPUT,
    SECRET,
    SIGNATURE,
    UNKNOWN,
    UNKNOWN_TEXTS,
    decode,
    encode,
    has_unknown,
    secret_members,
)

GROUP: dict[str, Any] = {
    "clusterName": "dev",
    "nodegroupName": "gpu",
    "subnets": ["subnet-0"],
    "nodeRole": "arn:aws:iam::123456789012:role/node",
}


def of_group(**members: Any) -> list[tuple[tuple[str | int, ...], str]]:
    return [(mistake.path, mistake.reason) for mistake in mistakes("eks", "CreateNodegroup", {**GROUP, **members})]


def test_a_right_request_has_no_mistakes_with_unknown_values_anywhere() -> None:
    assert of_group() == []
    assert of_group(subnets=UNKNOWN, scalingConfig={"minSize": UNKNOWN}, taints=[UNKNOWN], labels={"a": UNKNOWN}) == []


def test_all_mistakes_are_found_in_one_go_each_with_its_place() -> None:
    found = of_group(
        subnets="subnet-0",
        scalingConfig={"minSize": -1, "maxSize": "4", "desired": 1},
        taints=[{"key": "gpu", "effect": "NoSchedule"}],
        capacityType="SPOTS",
        diskSize=True,
    )
    assert [path for path, _ in found] == [
        ("subnets",),
        ("scalingConfig", "minSize"),
        ("scalingConfig", "maxSize"),
        ("scalingConfig", "desired"),
        ("taints", 0, "effect"),
        ("capacityType",),
        ("diskSize",),
    ]
    reasons = [reason for _, reason in found]
    assert reasons[0] == "must be a list, is 'subnet-0'"
    assert reasons[3] == "there is no member desired here; did you mean desiredSize?"
    assert reasons[4].endswith("did you mean NO_SCHEDULE?")
    assert reasons[5].endswith("did you mean SPOT?")


def test_what_is_required_and_missing_is_named() -> None:
    found = mistakes("eks", "CreateNodegroup", {})
    assert {mistake.path[0] for mistake in found} == {"clusterName", "nodegroupName", "subnets", "nodeRole"}


@pytest.mark.parametrize(
    ("service", "operation", "request_", "words"),
    [
        ("eks", "CreateCluster", {"name": "a b"}, "does not match the pattern"),
        ("eks", "CreateCluster", {"name": "a" * 101}, "101 characters is too many; the most is 100"),
        ("iam", "TagRole", {"RoleName": "r", "Tags": [{"Key": "a/b é", "Value": ""}] * 51}, "51 items is too many"),
        ("logs", "PutRetentionPolicy", {"logGroupName": "", "retentionInDays": 30}, "0 characters is too few"),
        ("efs", "CreateFileSystem", {"Tags": [{"Key": "aws:x", "Value": ""}]}, "does not match the pattern"),
        ("efs", "CreateFileSystem", {"ThroughputMode": "Bursting"}, "did you mean bursting?"),
        ("efs", "CreateFileSystem", {"ProvisionedThroughputInMibps": 0.5}, "0.5 is below 1"),
        ("budgets", "CreateBudget", {"Budget": {"TimePeriod": {"Start": "soon"}}}, "must be a time such as 2027-01-31"),
    ],
)
def test_lengths_numbers_patterns_and_enumerations(
    service: str, operation: str, request_: dict[str, Any], words: str
) -> None:
    assert any(words in mistake.reason for mistake in mistakes(service, operation, request_))


@pytest.mark.parametrize("service", ["ec2", "eks", "iam", "kms", "logs", "s3", "fsx", "efs", "ecr", "budgets", "sts"])
def test_every_pattern_of_the_services_in_use_can_be_said_in_python(service: str) -> None:
    from infra.rehearsal.double.validation import _compiled  # noqa: PLC0415

    shapes = model(service)
    patterns = {shapes.shape_for(name).metadata.get("pattern") for name in shapes.shape_names} - {None}
    assert [pattern for pattern in patterns if _compiled(pattern) is None] == []


def test_regions_know_their_partition() -> None:
    assert regions()["us-east-2"] == "aws"
    assert regions()["cn-north-1"] == "aws-cn"
    assert "us-east-9" not in regions()


def test_a_place_in_a_request_is_told_in_the_programs_words() -> None:
    inputs = {
        "name": "t",
        "networkInterfaces": [{"deviceIndex": 0}, {"deviceIndex": 1, "securityGroups": ["sg-0"]}],
        "vpcConfig": {"subnetIds": ["subnet-0"]},
        "tags": {"a": "b"},
    }

    def place(*path: str | int, **names: str) -> str:
        return property_path(path, inputs, names)

    assert place("LaunchTemplateData", "NetworkInterfaces", 1, "DeviceIndex") == "networkInterfaces[1].deviceIndex"
    named = place("LaunchTemplateData", "NetworkInterfaces", 1, "Groups", 0, Groups="securityGroups")
    assert named == "networkInterfaces[1].securityGroups[0]"
    assert place("resourcesVpcConfig", "subnetIds", 0, resourcesVpcConfig="vpcConfig") == "vpcConfig.subnetIds[0]"
    assert place("TagSpecifications", 0, "Tags", 0, "Value") == "tags"  # as far as it can be told
    assert place("VpcId") == ""


def test_inputs_that_nobody_looked_at_are_known() -> None:
    inputs = Watched({"a": 1, "b": {"c": 2, "d": 3}, "e": [{"f": 4, "g": 5}], "h": 6})
    assert inputs.get("a") == 1
    assert inputs["b"]["c"] == 2
    assert inputs["e"][0].get("f") == 4
    assert inputs.unread() == ["b.d", "e[0].g", "h"]
    assert dict(inputs)["h"] == 6
    assert inputs.unread() == ["b.d", "e[0].g"]


def test_values_of_the_engine_are_opened() -> None:
    struct = encode({"size": 4.0, "share": 0.5, "secret": "geheim", "later": UNKNOWN}, frozenset({"secret"}))
    assert struct.fields["secret"].struct_value.fields[SIGNATURE].string_value == SECRET
    struct.update({
        "output": {SIGNATURE: OUTPUT, "value": {"deep": "x"}, "secret": True},
        "unknown": {SIGNATURE: OUTPUT, "dependencies": []},
        "texts": sorted(UNKNOWN_TEXTS),
    })  # fmt: skip
    found = decode(struct)
    assert found == {
        "size": 4, "share": 0.5, "secret": "geheim", "later": UNKNOWN, "output": {"deep": "x"}, "unknown": UNKNOWN,
        "texts": [UNKNOWN] * len(UNKNOWN_TEXTS),
    }  # fmt: skip
    assert secret_members(struct) == {"secret", "output"}
    assert has_unknown(found)
    assert not has_unknown(found["output"])


def test_looking_into_the_unknown_stays_unknown() -> None:
    assert UNKNOWN.get("a")["b"] is UNKNOWN
    assert list(UNKNOWN) == []


plain = st.recursive(
    st.booleans() | st.integers(-(2**53), 2**53) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(st.text(max_size=5), plain, max_size=4))
def test_plain_values_come_back_as_they_went(values: dict[str, Any]) -> None:
    assert decode(encode(values)) == values
    assert decode(encode(values, frozenset(values))) == values
