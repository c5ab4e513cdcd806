"""The plot of a cost: the same bytes each time, and no name means anything in it."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from decimal import Decimal

import pytest
from report_stacks import pool, provider

from infra.report.cost import cost
from infra.report.plot import MOST, svg
from infra.report.preview import Resource

pytest_plugins = ["report_stacks_fixture"]


def texts(drawn: str) -> list[str]:
    root = ET.fromstring(drawn)  # noqa: S314
    return ["".join(one.itertext()) for one in root.iter("{http://www.w3.org/2000/svg}text")]


def test_the_same_cost_gives_the_same_bytes(
    prod_resources: tuple[Resource, ...], dev_resources: tuple[Resource, ...]
) -> None:
    found, other = cost(prod_resources), cost(dev_resources)
    assert svg(found, stack="prod") == svg(found, stack="prod")
    assert svg(found, stack="prod", before=other) == svg(found, stack="prod", before=other)
    assert "<dc:date>" not in svg(found, stack="prod")


def test_parts_totals_and_what_is_unknown_are_told(
    prod_resources: tuple[Resource, ...], dev_resources: tuple[Resource, ...]
) -> None:
    told = texts(svg(cost(prod_resources), stack="prod", before=cost(dev_resources), against="main"))
    assert "Stack prod, USD per month at 50 % utilisation: >= 37,441.66, without gpu-block" in told
    assert {"gpu-spot", "Lustre", "3,264.00?", "unknown", "at main", "as it is"} <= set(told)
    assert "73.00" in told  # a control plane, whose price list was seen


@pytest.mark.parametrize("hostile", ["$\\frac{1}{2}$", "</text><script>x</script>", "a&b", "\u202ex\x00", "x" * 300])
def test_no_name_means_anything(hostile: str) -> None:
    found = cost([provider(), *pool("gpu", "g6.xlarge", labels={"trainyard.dev/pool": hostile})])
    drawn = svg(found, stack=hostile, before=found, against=hostile)
    ET.fromstring(drawn)  # noqa: S314
    assert "<script" not in drawn
    assert svg(found, stack=hostile, before=found, against=hostile) == drawn


def test_many_parts_are_gathered() -> None:
    many = [one for index in range(100) for one in pool(f"pool-{index:02}", "g6.xlarge", gib=None)]
    told = texts(svg(cost([provider(), *many]), stack="large"))
    assert f"{100 - MOST + 1} more parts" in told


def test_a_stack_without_parts_is_drawn_as_well() -> None:
    assert "Stack empty, USD per month at 25 % utilisation: 0.00" in texts(
        svg(cost([], utilisation=Decimal("0.25")), stack="empty")
    )
