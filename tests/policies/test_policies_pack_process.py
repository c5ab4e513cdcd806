"""The pack as a process: what the engine's messages make of values, and what comes back."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pack_process import Pack, running_pack
from pulumi.runtime.proto import analyzer_pb2

from policies.configuration import configuration
from policies.rules import all_rules
from policies.testing import UNKNOWN, from_yaml, resource

TEMPLATE = "aws:ec2/launchTemplate:LaunchTemplate"
OPEN = resource(TEMPLATE, {"blockDeviceMappings": [{"ebs": {"volumeType": "gp3"}}]}, urn="urn:template")
SECRET = {"4dabf18193072939515e22adb298388d": "1b47061264138c4ac30d75fd1eb44270", "value": "hidden"}


@pytest.fixture(scope="module")
def pack() -> Iterator[Pack]:
    with running_pack() as started:
        yield started


def names(diagnostics: list[object]) -> set[str]:
    return {str(one.policyName) for one in diagnostics}  # type: ignore[attr-defined]


def test_it_tells_of_every_rule_what_a_report_needs(pack: Pack) -> None:
    told = {one.name: one for one in pack.info().policies}
    for rule in all_rules().values():
        one = told[rule.name]
        assert one.description == rule.title
        assert one.remediation_steps == rule.steps
        assert one.url == f"reference/policies.md#{rule.name}"
        assert analyzer_pb2.PolicySeverity.Name(one.severity) == f"POLICY_SEVERITY_{rule.severity.upper()}"
        assert analyzer_pb2.EnforcementLevel.Name(one.enforcementLevel).lower() == rule.level
        assert set(one.configSchema.properties) == set(rule.settings)


def test_it_judges_a_resource_by_its_own_levels_and_by_those_of_an_environment(pack: Pack) -> None:
    assert names(pack.analyze(OPEN)) == {"disk-encrypted", "imdsv2-required", "required-tags"}
    pack.configure({**configuration("prod"), "imdsv2-required": {"enforcementLevel": "disabled"}})
    assert names(pack.analyze(OPEN)) == {"disk-encrypted", "required-tags"}
    pack.configure({})


def test_what_is_unknown_is_an_advisory_of_a_mandatory_rule(pack: Pack) -> None:
    (told,) = [
        one
        for one in pack.analyze(resource(TEMPLATE, {"metadataOptions": UNKNOWN, "tags": {"environment": "x"}}))
        if one.policyName == "imdsv2-required"
    ]
    assert told.enforcementLevel == analyzer_pb2.ADVISORY
    assert "cannot be judged before up: metadataOptions.httpTokens is unknown" in told.message


def test_rules_of_stacks_know_what_single_resources_asked_for(pack: Pack) -> None:
    """In a first preview the engine has nothing of objects in a cluster that is not there yet."""
    wrong = from_yaml(all_rules()["etcd-durable"].wrong)
    for one in wrong:
        pack.analyze(one)
    nothing = [resource(one.resource_type, {}, name=one.name, urn=one.urn) for one in wrong]
    assert "etcd-durable" in names(pack.analyze_stack(nothing))


def test_a_correction_leaves_everything_else_as_it_was(pack: Pack) -> None:
    pack.configure({"disk-encrypted": {"enforcementLevel": "remediate"}})
    props = {"blockDeviceMappings": [{"ebs": {"volumeSize": 10, "kmsKeyId": UNKNOWN}}], "userData": SECRET}
    (told,) = pack.remediate(TEMPLATE, props)
    after = told.properties
    assert told.policyName == "disk-encrypted"
    assert after["blockDeviceMappings"][0]["ebs"]["encrypted"] is True
    assert after["blockDeviceMappings"][0]["ebs"]["kmsKeyId"] == UNKNOWN
    assert dict(after["userData"]) == SECRET
    pack.configure({})
