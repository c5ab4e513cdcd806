"""Interfaces lie where EC2 takes them: every type of the catalogue, with EFA and without."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from infra.catalog.instance_types import InstanceType, NetworkCard, instance_type, instance_types
from infra.wiring.errors import WiringError
from infra.wiring.interfaces import Interface, interfaces_of

WITH_EFA = [each for each in instance_types().values() if each.efa]


def layout(name: str) -> list[tuple[int, int, str]]:
    return [(each.card, each.device_index, each.kind) for each in interfaces_of(instance_type(name), efa=True)]


@pytest.mark.parametrize(
    ("name", "efa"),
    [("p4d.24xlarge", 4), ("p4de.24xlarge", 4), ("p5.48xlarge", 32), ("p5en.48xlarge", 16), ("p6-b200.48xlarge", 8)],
)
def test_machines_with_efa_on_every_card_get_one_plain_interface_and_all_their_efa(name: str, efa: int) -> None:
    first = [(0, 0, "interface"), (0, 1, "efa-only")]
    assert layout(name) == first + [(card, 0, "efa-only") for card in range(1, efa)]


def test_the_plain_first_card_of_p6_b300_carries_no_efa() -> None:
    assert layout("p6-b300.48xlarge") == [(0, 0, "interface"), *((card, 0, "efa-only") for card in range(1, 17))]


@pytest.mark.parametrize("name", ["g5.8xlarge", "g6.48xlarge", "g6e.12xlarge", "p5.4xlarge", "g4dn.8xlarge"])
def test_one_card_holds_the_plain_interface_and_the_one_efa_beside_it(name: str) -> None:
    assert layout(name) == [(0, 0, "interface"), (0, 1, "efa-only")]


def test_on_gb200_only_the_cards_with_efa_carry_it() -> None:
    assert layout("p6e-gb200.36xlarge") == [(0, 0, "interface"), *((card, 0, "efa-only") for card in range(1, 17, 2))]


@given(st.sampled_from(list(instance_types().values())), st.booleans())
def test_no_layout_asks_for_what_ec2_refuses(machine: InstanceType, efa: bool) -> None:
    efa = efa and machine.efa > 0
    interfaces = interfaces_of(machine, efa=efa)
    assert sum(each.kind == "efa-only" for each in interfaces) == (machine.efa if efa else 0)
    assert [each for each in interfaces if each.kind == "interface"] == [Interface(0, 0, "interface")]
    assert interfaces[0].kind == "interface"
    places = [(each.card, each.device_index) for each in interfaces]
    assert len(set(places)) == len(places)
    for card, count in Counter(each.card for each in interfaces).items():
        assert count <= machine.cards[card].interfaces
    for each in interfaces:
        assert machine.cards[each.card].efa or each.kind == "interface"
        assert each.device_index <= (1 if machine.device_index_max is None else machine.device_index_max)


def test_p5_is_launched_with_device_indexes_of_at_most_one() -> None:
    assert {instance_type(name).device_index_max for name in ("p5.48xlarge", "p5e.48xlarge")} == {1}
    assert max(index for _, index, _ in layout("p5.48xlarge")) == 1


def test_without_efa_a_machine_has_its_one_interface() -> None:
    assert interfaces_of(instance_type("p5.48xlarge"), efa=False) == (Interface(0, 0, "interface"),)


def test_efa_on_a_type_without_it_is_refused_and_not_passed_over() -> None:
    with pytest.raises(WiringError, match=r"g5\.xlarge has no EFA.*trainyard gpus"):
        interfaces_of(instance_type("g5.xlarge"), efa=True)


def test_a_catalogue_that_promises_more_efa_than_cards_hold_is_found_out() -> None:
    # Card 0 with room for one interface cannot take EFA beside the primary one.
    wrong = replace(WITH_EFA[0], name="x.large", efa=2, cards=(NetworkCard(1, efa=True), NetworkCard(4, efa=True)))
    with pytest.raises(WiringError, match=r"x\.large 2 EFA interfaces and room for 1 on its cards"):
        interfaces_of(wrong, efa=True)
