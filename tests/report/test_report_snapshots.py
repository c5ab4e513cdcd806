"""The comment under five kinds of change, as a reviewer reads it; made from previews of the real engine.

`tests/report/record.py` records the previews. Look at a changed snapshot as a page before you accept it.
"""

from __future__ import annotations

import json
from datetime import date
from pathlib import Path
from typing import Any

import pytest
from syrupy.assertion import SnapshotAssertion
from syrupy.extensions.single_file import SingleFileSnapshotExtension, WriteMode

from infra.report.markdown import MOST, markdown
from infra.report.model import Report, build
from infra.report.preview import Preview, from_events, with_advice

RECORDED = Path(__file__).parent / "recorded"
DAY = date(2026, 8, 1)


class MarkdownFile(SingleFileSnapshotExtension):
    """A snapshot that GitHub shows as a page."""

    _write_mode = WriteMode.TEXT
    file_extension = "md"


def events(name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (RECORDED / f"{name}.jsonl").read_text(encoding="utf-8").splitlines()]


def recorded(name: str) -> Preview:
    """A recorded preview; what stays as it is, is recorded once for all of them."""
    stays = {
        event["resourcePreEvent"]["metadata"]["urn"]: event for event in events("stack") if "resourcePreEvent" in event
    }
    whole = [one for event in events(name) for one in ([stays[urn] for urn in event.get("same", ())] or [event])]
    return from_events(whole, rehearsal=True)


def report(name: str) -> Report:
    advice = dict.fromkeys(["gpu-count-capped", "cost-per-hour-capped"], "What the rule advises.")
    return build(with_advice(recorded(name), "trainyard", advice), today=DAY)


@pytest.mark.parametrize("name", ["first", "stack", "resized", "subnet", "policy", "failed"])
def test_the_comment_reads_as_it_was_accepted(name: str, snapshot: SnapshotAssertion) -> None:
    text = markdown([report(name)])
    assert len(text) < MOST
    assert text == snapshot(extension_class=MarkdownFile)


def test_nothing_changes() -> None:
    found = report("stack")
    assert set(found.preview.counts()) == {"same"}
    assert "**Nothing changes.**" in markdown([found])
    assert not found.failures


def test_a_pool_is_resized() -> None:
    (row,) = [row for row in report("resized").pools if row.before != row.after]
    assert row.before is not None
    assert row.after is not None
    assert (row.before.maximum, row.after.maximum) == (4, 6)
    assert "4 → 6" in markdown([report("resized")])


def test_a_replacement_names_the_property_that_forces_it() -> None:
    text = markdown([report("subnet")])
    assert "**replace** `NodeGroup` **`gpu-spot-nodes`**" in text
    assert "because of **`subnetIds[1]`**" in text
    assert text.index("Replaced and deleted") < text.index("Node pools")


def test_a_broken_policy_refuses_the_change() -> None:
    found = report("policy")
    assert [one.kind for one in found.failures] == ["policy"]
    assert "This change cannot go in as it is." in markdown([found])


def test_an_engine_that_fails_half_way_leaves_a_partial_report() -> None:
    found = report("failed")
    assert not found.preview.complete
    text = markdown([found])
    assert "What went wrong" in text
    assert "not complete" in text
