"""How money is written in a report: rounded as on a bill, with signs where it is a difference, and nothing claimed."""

from __future__ import annotations

from datetime import date, timedelta
from decimal import Decimal

import pytest
from report_previews import NODE_GROUP, said, step, summary

from infra.catalog.prices import STALE_AFTER, old_prices
from infra.report.cost import Usd
from infra.report.markdown import markdown
from infra.report.model import build
from infra.report.preview import from_events

POOL = {"instanceTypes": ["g6.xlarge"], "capacityType": "SPOT", "region": "us-east-2"}
LARGE = {**POOL, "scalingConfig": {"minSize": 0, "maxSize": 6}}
SMALL = {**POOL, "scalingConfig": {"minSize": 0, "maxSize": 4}}


@pytest.mark.parametrize(
    ("low", "high", "shown", "signed"),
    [
        ("0.045", "0.045", "0.05", "+0.05"),
        ("0.5", "1234.565", "0.50-1,234.57", "+0.50 to +1,234.57"),
        ("-0.5636", "-0.8325", "-0.83--0.56", "-0.83 to -0.56"),
        ("-1", "2", "-1.00-2.00", "-1.00 to +2.00"),
        ("-0.001", "0.001", "0.00", "0.00"),
    ],
)
def test_money_is_rounded_as_on_a_bill(low: str, high: str, shown: str, signed: str) -> None:
    money = Usd(Decimal(low), Decimal(high))
    assert (money.shown(), money.signed()) == (shown, signed)


def test_a_pool_that_shrinks_saves_a_range_of_money() -> None:
    text = markdown([build(from_events([step("update", NODE_GROUP, "gpu", old=LARGE, new=SMALL), summary()]))])
    (row,) = [line for line in text.splitlines() if line.startswith("| per hour, with the most")]
    assert row.endswith("| **-0.56 to -0.52** |")  # two machines at 0.2756 and at 0.2599, and their disks


def test_figures_for_which_no_price_list_was_seen_are_marked_and_unknown_ones_need_no_mark() -> None:
    def drawn(types: str, capacity: str) -> str:
        group = {**SMALL, "instanceTypes": [types], "capacityType": capacity, "region": "us-east-1"}
        return markdown([build(from_events([step("create", NODE_GROUP, "gpu", new=group), summary()]))])

    text = drawn("g7e.2xlarge", "ON_DEMAND")  # 3.363 USD, quoted by others
    assert "| 3.36? | 3.36? |" in text
    assert "| 0.00? | 13.45? | 4,909.98? |" in text
    assert "`?` behind a figure: no price list of AWS was seen for it." in text
    assert "unknown?" not in drawn("g7e.2xlarge", "SPOT")
    seen = markdown([build(from_events([step("create", NODE_GROUP, "gpu", new=SMALL), summary()]))])
    assert "| 0.26-0.28 | 0.26-0.28 |" in seen


def test_half_a_preview_claims_no_difference_in_cost() -> None:
    events = [step("update", NODE_GROUP, "gpu", old=LARGE, new=SMALL), said("broken"), summary("failed")]
    text = markdown([build(from_events(events))])
    assert "Cost with the most machines" not in text
    (row,) = [line for line in text.splitlines() if line.startswith("| per hour, with the most")]
    assert row.endswith("| unknown |")


def test_old_prices_are_told_beside_the_cost_and_not_before_what_changes() -> None:
    events = [step("update", NODE_GROUP, "gpu", old=LARGE, new=SMALL), summary()]
    text = markdown([build(from_events(events), today=date(2030, 1, 1))])
    assert text.index("### Cost") < text.index("older than 90 days") < text.index("Properties that change")


@pytest.mark.parametrize(
    ("ages", "said"),
    [
        ([91], "The only price is older than 90 days, of "),
        ([91, 0], "1 of 2 prices is older than 90 days, of "),
        ([92, 91, 0], "2 of 3 prices are older than 90 days, the oldest of "),
        ([92, 91], "All 2 prices are older than 90 days, the oldest of "),
    ],
)
def test_old_prices_are_told_in_whole_sentences(ages: list[int], said: str) -> None:
    today = date(2026, 11, 30)
    told = old_prices([today - timedelta(days=age) for age in ages], today, "us-east-2")
    assert told is not None
    assert told.startswith(f"{said}{today - timedelta(days=max(ages))}. ")
    assert old_prices([today - STALE_AFTER], today, None) is None
