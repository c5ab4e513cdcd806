"""Placement groups: where they help, and never where they break a reservation."""

from __future__ import annotations

from itertools import product

import pytest

from infra.settings.aws import AwsNodePool, AwsReservation
from infra.wiring.placement import NOWHERE, Placement, placement_of


def pool(**fields: object) -> AwsNodePool:
    return AwsNodePool.model_validate(
        {"name": "gpu", "types": ("p5.48xlarge",), "efa": True, "zone": "us-east-2a", **fields}
    )


def test_an_on_demand_pool_with_efa_gets_a_group_of_its_own() -> None:
    assert placement_of(pool(), "trainyard-prod") == Placement("make", "trainyard-prod-gpu")


def test_without_efa_machines_gain_nothing_from_standing_together() -> None:
    assert placement_of(pool(efa=False), "c") == NOWHERE


def test_spot_machines_are_scarce_enough_without_a_group() -> None:
    assert placement_of(pool(capacity="spot"), "c") == NOWHERE


def test_a_group_that_exists_is_taken_by_its_name_also_for_spot() -> None:
    existing = Placement("existing", "lab")
    assert placement_of(pool(placement="existing", placement_group="lab"), "c") == existing
    assert placement_of(pool(placement="existing", placement_group="lab", capacity="spot"), "c") == existing


def test_none_means_none() -> None:
    assert placement_of(pool(placement="none"), "c") == NOWHERE


@pytest.mark.parametrize(("capacity", "mode"), list(product(("odcr", "capacity-block"), ("auto", "none", "existing"))))
def test_a_reservation_is_never_forced_into_a_group(capacity: str, mode: str) -> None:
    reserved = pool(
        capacity=capacity, placement=mode, placement_group="lab", reservation=AwsReservation(id="cr-0123456789abcdef0")
    )
    assert placement_of(reserved, "c") == NOWHERE
