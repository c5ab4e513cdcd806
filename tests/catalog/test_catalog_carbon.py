"""Carbon dioxide of electricity: each figure with its source, and in grams."""

from __future__ import annotations

from decimal import Decimal

from infra.catalog.carbon import grid, grids
from infra.catalog.prices import regions


def test_every_region_with_prices_has_its_electricity_with_source_and_year() -> None:
    assert set(regions()) <= set(grids())
    for one in grids().values():
        assert 5 < one.grams_per_kwh < 1000  # coal alone has about 1000: not kilograms, nor tons
        assert "https://github.com/cloud-carbon-footprint/" in one.source
        assert one.published == 2021


def test_the_least_comes_first_and_what_is_not_known_is_none() -> None:
    grams = [one.grams_per_kwh for one in grids().values()]
    assert grams == sorted(grams)
    sweden = grid("eu-north-1")
    assert sweden is not None
    assert sweden.grams_per_kwh == Decimal(8)
    assert grid("moon-1") is None
    assert grid(None) is None
