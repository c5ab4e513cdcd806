"""A report fits into a comment, however large the stack: what matters least goes first, and that it went is said."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from report_previews import NODE_GROUP, SUBNET, broken_rule, said, step, summary, urn

from infra.report.fitting import Section, fit
from infra.report.markdown import MOST, markdown
from infra.report.model import Report, build
from infra.report.preview import from_events


def report(*events: dict[str, Any]) -> Report:
    return build(from_events([*events, summary()]))


def creations(number: int) -> list[dict[str, Any]]:
    return [step("create", f"aws:x/kind{index % 97}:Kind", f"resource-{index:05}", new={}) for index in range(number)]


def updates(number: int) -> list[dict[str, Any]]:
    long = {f"property{index}": "x" * 300 for index in range(60)}
    return [
        step("update", name=f"updated-{index:05}", old=long, new=dict.fromkeys(long, "y")) for index in range(number)
    ]


def replacements(number: int) -> list[dict[str, Any]]:
    return [
        step("replace", name=f"replaced-{index:05}", old={"cidrBlock": "a"}, new={"cidrBlock": "b"}, keys=["cidrBlock"])
        for index in range(number)
    ]


def violations(number: int) -> list[dict[str, Any]]:
    return [
        broken_rule(f"rule-{index % 50}", message=f"T.\nwrong {index}", resourceUrn=urn(SUBNET, f"r{index}"))
        for index in range(number)
    ]


def node_groups(number: int) -> list[dict[str, Any]]:
    return [
        step(
            "create", NODE_GROUP, f"pool-{index:05}", new={"instanceTypes": ["g6.xlarge"], "nodeGroupName": f"p{index}"}
        )
        for index in range(number)
    ]


STACKS = {
    "many creations": creations(5000),
    "long updates": updates(500),
    "many replacements": replacements(3000),
    "many violations": violations(3000),
    "many pools": node_groups(2000),
    "many errors": [said("boom\n" * 200, urn=urn(SUBNET, f"{index}")) for index in range(500)],
    "everything": [*creations(2000), *updates(200), *replacements(1000), *violations(1000), *node_groups(500)],
}


@pytest.mark.parametrize("what", STACKS)
def test_a_report_fits_however_large_the_stack(what: str) -> None:
    large = report(*STACKS[what])
    text = markdown([large], full_text="All of it is in report.full.md.")
    assert len(text) <= MOST
    assert len(text) > MOST // 4, "room is used"
    assert "Left out, so that this fits into a comment" in text
    assert "All of it is in report.full.md." in text
    assert text.count("<details>") == text.count("</details>")
    assert text.count("\n```") % 2 == 0
    whole = markdown([large], most=None)
    assert "Left out" not in whole
    assert len(whole) > len(text)


def test_what_is_replaced_and_what_is_broken_stay_when_there_is_no_room() -> None:
    text = markdown([report(*creations(4000), *updates(300), *replacements(20), *violations(20))])
    for name in ("replaced-00000", "replaced-00019", "rule-0", "rule-19"):
        assert name in text
    assert "… and" in text


def test_nothing_is_cut_of_what_fits() -> None:
    small = report(*creations(30), *updates(3), *replacements(3), *violations(3))
    assert markdown([small]) == markdown([small], most=None)


def test_several_stacks_share_the_room() -> None:
    many = [report(*STACKS["everything"]) for _ in range(4)]
    text = markdown(many)
    assert len(text) <= MOST
    assert text.count("## ") >= 4


@given(
    sizes=st.lists(st.lists(st.integers(0, 400), max_size=30), min_size=1, max_size=6),
    room=st.integers(2000, 6000),
    shares=st.lists(st.floats(0, 1), min_size=6, max_size=6),
)
def test_sections_never_take_more_than_the_room(sizes: list[list[int]], room: int, shares: list[float]) -> None:
    sections = [
        Section(f"Part {index}", index, ["x" * size for size in items], "things", "head", "tail", share=shares[index])
        for index, items in enumerate(sizes)
    ]
    fit(sections, room)
    assert len("\n".join(section.render() for section in sections)) <= room


def test_what_makes_sense_only_whole_is_whole_or_not_there() -> None:
    drawing = Section("Drawing", 0, ["a" * 300, "b" * 300], "drawings", whole=True)
    fit([drawing], 500)
    assert drawing.kept == 0
    assert "left out for want of room" in drawing.render()
