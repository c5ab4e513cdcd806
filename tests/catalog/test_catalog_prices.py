"""Prices: each with date and source, in order with themselves, and old ones said to be old."""

from __future__ import annotations

from datetime import date, timedelta
from decimal import Decimal

import pytest

from infra.catalog.instance_types import instance_type, instance_types
from infra.catalog.prices import (
    STALE_AFTER,
    Price,
    ServicePrice,
    price,
    price_table,
    prices,
    regions,
    stale_warning,
)


@pytest.mark.parametrize("cost", prices().values(), ids=lambda cost: f"{cost.type}-{cost.region}")
def test_every_price_has_its_date_its_source_and_a_type_of_the_catalogue(cost: Price) -> None:
    assert cost.type in instance_types()
    assert cost.region in regions()
    assert date(2026, 1, 1) <= cost.as_of <= date.today()  # noqa: DTZ011 - a day of slack does no harm
    assert "https://" in cost.source
    figures = [cost.usd_per_hour, cost.spot_low, cost.spot_high, cost.capacity_block]
    assert any(figure is not None for figure in figures)
    assert all(figure is None or figure > 0 for figure in figures)


@pytest.mark.parametrize("cost", prices().values(), ids=lambda cost: f"{cost.type}-{cost.region}")
def test_figures_agree_with_each_other_and_with_how_the_type_is_sold(cost: Price) -> None:
    sold = instance_type(cost.type).capacities
    assert (cost.spot_low is None) == (cost.spot_high is None)
    if cost.spot_low is not None and cost.spot_high is not None:
        assert cost.spot_low <= cost.spot_high
        assert "spot" in sold
        assert cost.usd_per_hour is None or cost.spot_high <= cost.usd_per_hour
    if cost.usd_per_hour is not None:
        assert "on-demand" in sold
        assert cost.capacity_block is None or cost.capacity_block <= cost.usd_per_hour
    if cost.capacity_block is not None:
        assert "capacity-block" in sold


def test_a_bigger_machine_of_a_family_with_more_gpus_costs_more() -> None:
    for small, big in (("g5.xlarge", "g5.48xlarge"), ("g6e.12xlarge", "g6e.48xlarge"), ("p5.4xlarge", "p5.48xlarge")):
        low, high = price(small, "us-east-1"), price(big, "us-east-1")
        assert low is not None and high is not None  # noqa: PT018
        assert Decimal(low.usd_per_hour or 0) < Decimal(high.usd_per_hour or 0)


def test_machines_of_system_pools_and_the_big_gpu_machines_have_prices() -> None:
    without = {name for name in instance_types() if price(name, "us-east-1") is None}
    assert {instance_type(name).family for name in without} <= {"g7"}


def test_a_region_or_type_without_prices_has_none() -> None:
    assert price("p5.48xlarge", "mars-north-1") is None
    assert price("x9.large", "us-east-1") is None


def test_prices_are_said_to_be_old_after_ninety_days() -> None:
    cost = price("p5.48xlarge", "us-east-1")
    assert cost is not None
    last_day = cost.as_of + STALE_AFTER
    assert stale_warning([cost], last_day) is None
    warning = stale_warning([cost], last_day + timedelta(days=1))
    assert warning is not None
    assert str(cost.as_of) in warning
    assert "trainyard gpus --refresh --region us-east-1" in warning


@pytest.mark.parametrize("cost", price_table().services.values(), ids=lambda cost: cost.name)
def test_every_service_has_its_price_its_date_and_its_source(cost: ServicePrice) -> None:
    assert cost.usd > 0
    assert cost.per in {"hour", "GiB-month", "month"}
    assert date(2026, 1, 1) <= cost.as_of <= date.today()  # noqa: DTZ011 - a day of slack does no harm
    assert "https://" in cost.source


def test_a_service_has_the_price_of_its_region_or_the_one_of_all_regions() -> None:
    found = price_table()
    assert found.service("nat-gateway", "us-east-2") is not None
    assert found.service("nat-gateway", "mars-north-1") is None
    assert found.service("nat-gateway", None) is None
    everywhere = found.service("eks-control-plane", "mars-north-1")
    assert everywhere is not None
    assert everywhere == found.service("eks-control-plane", None)
    assert found.service("quantum-teleporter", "us-east-2") is None


def test_faster_lustre_costs_more() -> None:
    steps = [price_table().service(f"fsx-lustre-persistent-2-{speed}", "us-east-2") for speed in (125, 250, 500, 1000)]
    figures = [step.usd for step in steps if step is not None]
    assert len(figures) == 4
    assert figures == sorted(figures)


def test_prices_on_demand_in_ohio_are_those_of_virginia() -> None:
    """They are for every type of which both price lists were read."""
    for (name, region), cost in prices().items():
        if region == "us-east-2":
            virginia = price(name, "us-east-1")
            assert virginia is not None
            assert cost.usd_per_hour == virginia.usd_per_hour
