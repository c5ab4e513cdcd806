"""Network interfaces of a machine: which card, which device index, plain or EFA.

AWS's current layout (EC2 user guide, accelerated EFA types; EKS user guide, EFA): card 0 carries the one plain
interface, with the machine's address, at device index 0; where card 0 has EFA too, that is `efa-only` at device index
1; each other card has `efa-only` at device index 0. The older layout (`efa` as primary interface, one per card) fails
on types whose number of EFA interfaces is not that of their cards, or whose card 0 has no EFA.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from infra.catalog.instance_types import InstanceType
from infra.wiring.errors import WiringError


@dataclass(frozen=True)
class Interface:
    """One network interface of a launch template."""

    card: int
    device_index: int
    kind: Literal["interface", "efa-only"]
    """`interface` has an address and carries all IP traffic; `efa-only` has none and carries only EFA."""


PRIMARY = Interface(card=0, device_index=0, kind="interface")
"""Every machine has it: `efa-only` cannot be the primary interface."""


def interfaces_of(machine: InstanceType, *, efa: bool) -> tuple[Interface, ...]:
    """The interfaces of a machine, the primary one first, then in the order of the cards.

    Args:
        machine: Its type.
        efa: Whether it gets EFA: then as many interfaces as EC2 allows for the type (`EfaInfo`), not one per card.

    Raises:
        WiringError: EFA is asked for and the type has none, or its cards have no room for the interfaces that the
            catalogue promises.
    """
    if not efa:
        return (PRIMARY,)
    if not machine.efa:
        raise WiringError(
            f"{machine.name} has no EFA. Take `efa: true` off its pool, or choose a type that has it: `trainyard gpus`"
            " lists them."
        )
    room = [
        Interface(card=number, device_index=0 if number else 1, kind="efa-only")
        for number, card in enumerate(machine.cards)
        # Card 0 needs a second place beside the primary interface.
        if card.efa and card.interfaces >= (1 if number else 2)
    ]
    if len(room) < machine.efa:
        raise WiringError(
            f"the catalogue gives {machine.name} {machine.efa} EFA interfaces and room for {len(room)} on its cards."
            " One of the two is wrong: compare with `trainyard gpus --refresh`, mend infra/catalog/instance_types.toml."
        )
    return (PRIMARY, *room[: machine.efa])
