"""The page of a job."""

from __future__ import annotations

import base64
import hashlib
import math
import re
import xml.etree.ElementTree as ET
from datetime import date
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from infra.catalog.prices import Price, PriceTable
from infra.history import JobHistory, history
from infra.job_page import Facts, page
from infra.job_page.charts import MOST, Line, lines, ticks
from infra.job_page.money import Rate, rank_seconds, rate, spent
from infra.jobs import Progress

FACTS = Facts("local", "training", "Running", "", is_live=True, made=1000.0)


def lived() -> JobHistory:
    """Two worlds, a recovery in between, steps that tell their parts."""
    told = [Progress("w-0", "rendezvous", 0.0, {"generation": 1, "world_size": 2})]
    for number in range(1, 301):
        late = number > 150
        fields = {"step": number, "loss": 1 / number, "generation": 2 if late else 1, "world_size": 3 if late else 2}
        split = {"data": 0.2, "forward": 0.3, "backward": 0.5}
        told.append(Progress("w-0", "step", number + (20.0 if late else 0.0), {**fields, "seconds": split}))
    record = {"began": 150.5, "total": 19.5, "outcome": "resumed", "generation": 2, "world_size": 3, "steps_lost": 4}
    told.append(Progress("w-0", "recovery", 170.0, {**record, "cause": "node_lost"}))
    told.append(Progress("w-0", "notice", 150.0, {"message": "<script>alert(1)</script>"}))
    return history("digits", told)


def test_the_page_needs_nothing_beside_itself_and_allows_nothing() -> None:
    text = page(lived(), FACTS)
    style = re.findall(r"<style>(.*?)</style>", text, re.DOTALL)
    digest = base64.b64encode(hashlib.sha256(style[0].encode()).digest()).decode()
    assert f"default-src 'none'; style-src 'sha256-{digest}'" in text
    assert not re.search(r"<script|\ssrc=|\shref=|\sstyle=|@import|url\(", text)
    for title in ("Loss", "World size", "Progress", "Goodput", "Step time", "Recoveries"):
        assert f"<h2>{title}</h2>\n<svg" in text


def test_names_and_messages_of_others_stay_text() -> None:
    evil = '<img src=x onerror=alert(1)>"\u202e'
    text = page(lived(), Facts(evil, evil, evil, evil, is_live=True, made=1000.0, rate=evil))
    assert "<img" not in text
    assert "\u202e" not in text
    assert "&lt;script&gt;alert(1)" in text


def test_a_job_of_which_nothing_is_known_has_a_page_that_says_so() -> None:
    text = page(JobHistory(job="digits"), FACTS)
    assert "<svg" not in text
    assert "No step tells a loss." in text
    assert "Not known: it was not asked for." in text


def test_what_is_missing_stands_on_the_page() -> None:
    told = [Progress("w", "step", float(number), {"step": number, "loss": 1.0}) for number in (40, 41, 90)]
    text = page(history("digits", told), FACTS)
    assert "What is missing" in text
    assert "steps 42 to 89 are not known" in text


def machine(name: str, **labels: str) -> dict[str, Any]:
    known = {"node.kubernetes.io/instance-type": "p5.48xlarge", "topology.kubernetes.io/region": "us-east-1"}
    extra = {"eks.amazonaws.com/capacityType": labels["capacity"]} if "capacity" in labels else {}
    allocatable = {"nvidia.com/gpu": "8"}
    return {"metadata": {"name": name, "labels": {**known, **extra}}, "status": {"allocatable": allocatable}}


def worker(node: str, gpus: int) -> dict[str, Any]:
    limits = {"nvidia.com/gpu": str(gpus)}
    return {"spec": {"nodeName": node, "containers": [{"resources": {"limits": limits}}]}}


def table() -> PriceTable:
    price = Price(
        type="p5.48xlarge",
        region="us-east-1",
        usd_per_hour=Decimal(80),
        spot_low=Decimal(20),
        spot_high=Decimal(40),
        capacity_block=None,
        as_of=date(2026, 11, 1),
        source="test",
        unconfirmed=False,
    )
    return PriceTable({("p5.48xlarge", "us-east-1"): price}, {})


def test_a_rank_costs_its_share_of_the_machine() -> None:
    whole = rate([machine("a")], [worker("a", 8)], 8, table())
    half = rate([machine("a", capacity="SPOT")], [worker("a", 4)], 4, table())
    assert isinstance(whole, Rate)
    assert isinstance(half, Rate)
    assert (whole.low, whole.high) == (Decimal(10), Decimal(10))
    assert (half.low, half.high) == (Decimal("2.5"), Decimal(5))


@pytest.mark.parametrize(
    ("nodes", "pods", "why"),
    [
        ([], [], "no worker is on a machine"),
        ([machine("a")], [worker("b", 1)], "no worker is on a machine"),
        (
            [{"metadata": {"name": "a", "labels": {"node.kubernetes.io/instance-type": "local"}}}],
            [worker("a", 1)],
            "this computer",
        ),
        (
            [{"metadata": {"name": "a", "labels": {"node.kubernetes.io/instance-type": "odd"}}}],
            [worker("a", 1)],
            "no on-demand price",
        ),
    ],
    ids=["nothing", "other machines", "local", "no price"],
)
def test_a_cost_that_is_not_known_says_why(nodes: list[Any], pods: list[Any], why: str) -> None:
    found = rate(nodes, pods, 1, table())
    assert isinstance(found, str)
    assert why in found


def test_cost_follows_the_world_s_size() -> None:
    found = spent(lived(), Rate(Decimal(36), Decimal(36), ""), until=320.0)
    # Two ranks until step 151 at 171 s, three afterwards; 36 USD an hour are a cent a second.
    assert float(found.low) == float(found.high) == pytest.approx(0.01 * (2 * 171 + 3 * 149))
    assert rank_seconds(lived(), 320.0) == 2 * 171 + 3 * 149
    assert found.curve[-1] == (320.0, float(found.low))


def test_ticks_are_round_and_within() -> None:
    assert ticks(0, 1, 4) == [0.0, 0.5, 1.0]
    assert ticks(3, 3, 4) == [3]


_POINTS = st.lists(st.tuples(st.floats(0, 1e9), st.floats()), max_size=60)


@settings(deadline=None, max_examples=25)
@given(_POINTS, st.text(max_size=20))
def test_whatever_the_figures_a_plot_is_sound_svg(points: list[tuple[float, float]], name: str) -> None:
    made = lines(name, [Line(name, sorted(points)), Line("b", points[:1], steps=True)], x="step")
    if not any(abs(value) <= MOST for _, value in points):
        assert made == ""
        return
    drawing = ET.fromstring(made)  # noqa: S314 - ours
    placed = [element.get("points", "") for element in drawing.iter() if element.tag.endswith("polyline")]
    for place in " ".join(placed).split():
        assert all(math.isfinite(float(number)) for number in place.split(","))
