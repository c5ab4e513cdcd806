"""Previews are read as the engine wrote them, and what is cut, foreign or broken is said to be so."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from report_previews import (
    NODE_GROUP,
    STACK,
    SUBNET,
    UNKNOWN_TEXT,
    broken_rule,
    digest,
    lines,
    said,
    step,
    summary,
    urn,
)

from infra.report.changes import ABSENT
from infra.report.markdown import markdown
from infra.report.model import build
from infra.report.preview import UNKNOWN, Preview, ReportError, from_digest, from_events, from_text, with_advice

KEYS = [
    *("steps", "op", "urn", "oldState", "newState", "inputs", "type", "diffReasons", "detailedDiff", "kind"),
    *("diagnostics", "severity", "message", "changeSummary", "duration", "resourcePreEvent", "metadata", "old", "new"),
    *("policyEvent", "summaryEvent"),
]
REPLACED = {"cidrBlock": {"diffKind": "update-replace", "inputDiff": True}}
REPLACEMENT = [
    step("create-replacement", old={"cidrBlock": "10.0.0.0/24"}, new={"cidrBlock": "10.0.1.0/24"}, keys=["cidrBlock"]),
    step("replace", old={"cidrBlock": "10.0.0.0/24"}, new={"cidrBlock": "10.0.1.0/24"}, detailedDiff=REPLACED),
    step("delete-replaced", old={"cidrBlock": "10.0.0.0/24"}, new={"cidrBlock": "10.0.1.0/24"}),
]


@pytest.mark.parametrize("form", [lines, digest])
def test_the_parts_of_a_replacement_are_one_step(form: Callable[..., str]) -> None:
    preview = from_text(form([*REPLACEMENT, summary(replace=1)]))
    assert preview.counts() == {"replace": 1}
    (change,) = build(preview).changes
    assert [(one.path, one.old, one.new, one.forces) for one in change.fields] == [
        ("cidrBlock", "10.0.0.0/24", "10.0.1.0/24", True)
    ]
    assert not change.after_delete


def test_a_replacement_that_deletes_first_says_so() -> None:
    preview = from_events([REPLACEMENT[2], REPLACEMENT[1], REPLACEMENT[0], summary()])
    (change,) = build(preview).changes
    assert (change.op, change.after_delete) == ("replace", True)


@pytest.mark.parametrize("form", [lines, digest])
def test_before_and_after_are_what_there_is_and_what_there_will_be(form: Callable[..., str]) -> None:
    events = [
        step("same", "pulumi:pulumi:Stack", "trainyard-dev", {}, {}),
        step("same", name="stays", old={"a": 1}, new={"a": 1}),
        step("create", name="comes", new={"a": UNKNOWN_TEXT}),
        step("update", name="changes", old={"a": 1}, new={"a": 2}),
        step("delete", name="goes", old={"a": 1}),
        step("read", name="looked at", new={"a": 1}),
        *REPLACEMENT,
        summary(),
    ]
    preview = from_text(form(events))
    assert (preview.stack, preview.project, preview.complete) == ("dev", "trainyard", True)
    assert {one.name for one in preview.before} == {"trainyard-dev", "stays", "changes", "goes", "one"}
    assert {one.name for one in preview.after} == {"trainyard-dev", "stays", "comes", "changes", "one"}
    assert {one.name: one.inputs.get("a") for one in preview.after}["comes"] is UNKNOWN
    assert {one.name: one.inputs.get("a") for one in preview.after}["changes"] == 2


def test_resources_that_a_digest_leaves_out_are_counted_and_told() -> None:
    preview = from_digest(digest([step("create", new={})], changeSummary={"create": 1, "same": 40}))
    assert preview.counts() == {"create": 1, "same": 40}
    assert any("--show-sames" in warning for warning in build(preview).warnings)


def test_what_the_engine_only_counted_is_still_counted() -> None:
    assert from_events([{"summaryEvent": {"resourceChanges": {"create": 3}}}]).counts() == {"create": 3}


def test_unknown_values_are_counted_and_told() -> None:
    preview = from_events([step("create", new={"a": UNKNOWN_TEXT, "b": [UNKNOWN_TEXT, 1]}), summary()])
    assert "2 properties of 1 resource are known only after up." in build(preview).warnings


def test_events_without_an_end_are_not_complete() -> None:
    text = lines([*REPLACEMENT, step("create", name="two", new={}), summary()])
    whole = from_text(text)
    assert whole.complete
    cut = from_text(text[: text.index("summaryEvent") + 20])
    assert not cut.complete
    assert "cut" in cut.why_incomplete
    assert cut.counts() == {"replace": 1, "create": 1}
    assert build(cut).fails()
    assert not build(cut).fails(on=[])


@given(at=st.integers(min_value=0, max_value=10_000))
def test_a_digest_cut_anywhere_gives_its_whole_steps_or_a_sentence(at: int) -> None:
    text = digest([*REPLACEMENT, step("create", name="two", new={"a": "]}{["}), step("delete", name="three", old={})])
    whole = from_text(text)
    cut = text[: min(at, len(text) - 1)]
    try:
        preview = from_text(cut)
    except ReportError as error:
        _advises(error)
    else:
        assert not preview.complete
        assert set(preview.counts()) <= set(whole.counts())


@given(text=st.text())
def test_no_text_is_a_traceback(text: str) -> None:
    try:
        from_text(text)
    except ReportError as error:
        _advises(error)


def _advises(error: ReportError) -> None:
    assert "pulumi preview --json" in str(error)


@given(
    st.recursive(
        st.none() | st.booleans() | st.floats(allow_nan=False) | st.text(max_size=5),
        lambda inside: (
            st.lists(inside, max_size=4)
            | st.dictionaries(
                st.sampled_from(KEYS),
                inside,
                max_size=6,
            )
        ),
        max_leaves=30,
    )
)
def test_members_of_any_other_type_are_no_traceback(document: Any) -> None:
    for text in (json.dumps(document), json.dumps({"steps": document}), json.dumps({"steps": [document]})):
        try:
            preview = from_text(text)
        except ReportError:
            continue
        build(preview)
    for key in ("resourcePreEvent", "policyEvent", "diagnosticEvent", "summaryEvent", "resOutputsEvent"):
        build(from_events([{key: document}]))


FOREIGN = {
    "a plan of Terraform": {"format_version": "1.2", "resource_changes": []},
    "a template of CloudFormation": {"AWSTemplateFormatVersion": "2010-09-09", "Resources": {}},
    "pulumi stack export": {"version": 3, "deployment": {"resources": []}},
    "saved plan": {"manifest": {}, "resourcePlans": {}},
    "an object of Kubernetes": {"apiVersion": "v1", "kind": "Pod"},
    "SARIF": {"$schema": "x", "version": "2.1.0", "runs": []},
    "a report already": {"schema": "trainyard-preview/1", "stack": "dev", "changes": {}, "steps": []},
    "an error message": {"error": "no stack"},
    "no steps": {"hello": 1},
}


@pytest.mark.parametrize("what", FOREIGN)
def test_other_tools_documents_are_named(what: str) -> None:
    with pytest.raises(ReportError, match=what):
        from_text(json.dumps(FOREIGN[what]))


@pytest.mark.parametrize(
    ("text", "said_so"),
    [
        ("", "is empty"),
        ("   \n", "is empty"),
        ("error: no stack selected", "no JSON"),
        ('{"steps": [', "cut"),
        ("[]", "no object"),
        ("3", "no object"),
        ("<html>", "no JSON"),
    ],
)
def test_what_is_no_preview_is_said_in_a_sentence(text: str, said_so: str) -> None:
    with pytest.raises(ReportError, match=said_so):
        from_text(text)


def test_a_line_before_the_document_is_no_hindrance() -> None:
    assert from_text("Previewing update (dev):\n" + digest(REPLACEMENT)).counts() == {"replace": 1}


def test_a_failing_engine_makes_a_preview_that_is_not_complete() -> None:
    for text in (
        lines([step("create", new={}), said("AWS would refuse this", urn=urn(NODE_GROUP, "gpu")), summary("failed")]),
        digest(
            [step("create", new={})], diagnostics=[{"message": "boom", "severity": "error", "urn": urn("a:b:C", "gpu")}]
        ),
    ):
        preview = from_text(text)
        assert not preview.complete
        assert "failed at gpu" in preview.why_incomplete
        assert [one.kind for one in build(preview).failures] == ["incomplete"]


def test_broken_policies_alone_leave_a_preview_complete() -> None:
    events = [step("create", new={}), broken_rule("rule"), said("preview failed\n"), summary("failed")]
    preview = from_events(events)
    assert preview.complete
    assert preview.diagnostics == ()
    report = build(preview)
    assert [one.kind for one in report.failures] == ["policy"]
    assert report.fails()
    assert not report.fails(on=["version"])


def test_a_pack_that_raises_is_no_broken_rule() -> None:
    trace = "Traceback (most recent call last):\n  File x\nValueError: policy rule"
    preview = from_events([step("create", new={}), broken_rule("rule"), said(trace), summary("failed")])
    assert not preview.complete


def test_results_of_policies_are_told_apart() -> None:
    unknown = (
        "can't run policy 'cost' from policy pack 'trainyard@v0.0.1' during preview: cannot be judged before up: x"
    )
    mended = {"policyName": "mended", "policyPackName": "trainyard", "resourceUrn": urn(SUBNET, "one"), "before": {}}
    events = [
        broken_rule("advice", "advisory"),
        broken_rule("cost", "advisory", unknown, resourceUrn=STACK),
        {"sequence": 1, "timestamp": 1, "policyRemediationEvent": mended},
        broken_rule("must"),
        broken_rule("must"),
        summary(),
    ]
    report = build(from_events(events))
    assert [(one.rule, one.kind, one.blocks) for one in report.policies] == [
        ("must", "violation", True),
        ("advice", "violation", False),
        ("cost", "unknown", False),
        ("mended", "remediated", False),
    ]
    assert report.policies[2].finding == "cannot be judged before up: x"


def test_a_pack_is_named_without_its_folder() -> None:
    end = summary()
    end["summaryEvent"]["PolicyPacks"] = {"trainyard|local|/home/me/policies": "0.1.0"}
    assert from_events([end]).policy_packs == ("trainyard 0.1.0",)


def test_names_with_colons_and_of_other_languages_are_whole() -> None:
    for name in ("a::b::c", "größe-東京", "пул", "$x$y"):
        preview = from_events([step("create", name=name, new={}), summary()])
        assert [one.name for one in preview.after] == [name]
        assert preview.stack == "dev"


def test_what_is_removed_with_all_its_data_comes_first() -> None:
    events = [
        step("create", name="new", new={}),
        step("delete", SUBNET, "subnet", old={}),
        step("replace", NODE_GROUP, "pool", old={"a": 1}, new={"a": 2}, keys=["a"]),
        step("delete", "aws:s3/bucket:Bucket", "bucket", old={}, of_old={"protect": True}),
        summary(),
    ]
    report = build(from_events(events))
    assert [one.name for one in report.changes] == ["bucket", "pool", "subnet", "new"]
    assert "all that is in it" in report.changes[0].loses
    assert report.changes[0].protected
    assert any("the engine will refuse" in one for one in report.warnings)


def test_an_id_of_what_goes_is_explained() -> None:
    events = [
        step("delete", SUBNET, "private-a", old={}, of_old={"id": "subnet-1"}),
        step("replace", NODE_GROUP, "pool", old={"s": ["subnet-0", "subnet-1"]}, new={"s": ["subnet-0", UNKNOWN_TEXT]}),
        summary(),
    ]
    pool = next(one for one in build(from_events(events)).changes if one.name == "pool")
    (field,) = pool.fields
    assert (field.path, field.new) == ("s[1]", UNKNOWN)
    assert field.behind == "Subnet private-a, which is deleted"


def test_added_and_removed_properties_are_seen() -> None:
    events = [step("update", old={"gone": 1, "tags": {"a.b": "x"}}, new={"added": [1], "tags": {}}), summary()]
    (change,) = build(from_events(events)).changes
    assert {one.path: (one.old, one.new) for one in change.fields} == {
        "gone": (1, ABSENT),
        'tags["a.b"]': ("x", ABSENT),
        "added": (ABSENT, [1]),
    }


def test_a_report_of_nothing_is_one() -> None:
    report = build(Preview("dev", "trainyard", ()))
    assert (report.changes, report.pools, report.failures) == ((), (), ())


def test_a_version_that_no_record_knows_refuses_the_change() -> None:
    events = [
        step("update", "aws:eks/cluster:Cluster", "eks", old={"version": "1.33"}, new={"version": "9.99"}),
        summary(),
    ]
    report = build(from_events(events))
    assert [one.kind for one in report.failures] == ["version"]
    assert report.fails()
    assert not report.fails(on=["policy", "known-bad"])
    text = markdown([report])
    assert "### Versions" in text
    assert "`1.33` → `9.99`" in text


def test_a_combination_that_is_known_to_fail_refuses_the_change() -> None:
    scaling = {"minSize": 1, "maxSize": 1}
    release = {"amiType": "AL2023_x86_64_STANDARD", "releaseVersion": "1.35.6-20261003", "version": "1.35"}
    group = {"instanceTypes": ["g6.xlarge"], "scalingConfig": scaling, "nodeGroupName": "gpu", **release}
    report = build(from_events([step("create", NODE_GROUP, "gpu", new=group), summary()]))
    assert [one.kind for one in report.failures] == ["known-bad"]
    assert "### Known to fail" in markdown([report])


def test_advice_is_given_for_broken_rules_of_the_pack_that_is_known() -> None:
    events = [broken_rule("ours"), broken_rule("theirs", policyPackName="other"), summary("failed")]
    preview = with_advice(from_events(events), "trainyard", {"ours": "Set it to `true`.", "theirs": "nothing"})
    text = markdown([build(preview)])
    assert "- `ours`: Set it to `true`." in text
    assert "nothing" not in text
