"""What a node is asked to be, and the machine that this computer plays for it."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from infra.wiring.scheduling import Taint

LAST_NUMBER = 250  # node numbers are the third part of 127.A.number.0
_NAME = re.compile(r"(?P<pool>[a-z0-9]([-a-z0-9]*[a-z0-9])?)-(?P<ordinal>[1-9][0-9]*)")


@dataclass(frozen=True)
class NodeSpec:
    """One node as the stack wants it.

    Attributes:
        name: `<pool>-<ordinal>`.
        pool: The pool that it belongs to; nodes of a pool are interchangeable.
        labels: Labels of the Node.
        taints: Taints with which it registers.
        resources: Kubernetes quantities. `cpu` and `memory` limit what the computer has, others (`nvidia.com/gpu`)
            are taken as they are.
    """

    name: str
    pool: str
    labels: Mapping[str, str] = field(default_factory=dict)
    taints: tuple[Taint, ...] = ()
    resources: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        ordinal_of(self.name, self.pool)


@dataclass(frozen=True)
class Machine:
    """A node that exists on this computer, as `nodes/<name>/spec.json` records it.

    Attributes:
        spec: What it was asked to be.
        number: Its number k on this computer, 1 to 250.
        network: The second part A of its network 127.A.k.0/24.
    """

    spec: NodeSpec
    number: int
    network: int

    @property
    def name(self) -> str:
        """The Node's name."""
        return self.spec.name

    @property
    def address(self) -> str:
        """Where its kubelet listens; its pods get the addresses that follow."""
        return f"127.{self.network}.{self.number}.1"

    @property
    def pod_network(self) -> str:
        """The addresses of its pods, and its own."""
        return f"127.{self.network}.{self.number}.0/24"

    def as_record(self) -> dict[str, Any]:
        """The content of `spec.json`, which the local cloud reads too."""
        return {
            "name": self.spec.name,
            "pool": self.spec.pool,
            "number": self.number,
            "network": self.network,
            "address": self.address,
            "labels": dict(self.spec.labels),
            "taints": [taint.as_kubernetes() for taint in self.spec.taints],
            "resources": dict(self.spec.resources),
        }

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> "Machine":
        """The inverse of `as_record`.

        Raises:
            KeyError, TypeError, ValueError: the record is damaged.
        """
        spec = NodeSpec(
            name=record["name"],
            pool=record["pool"],
            labels=record["labels"],
            taints=tuple(Taint(**taint) for taint in record["taints"]),
            resources=record["resources"],
        )
        return cls(spec, int(record["number"]), int(record["network"]))


@dataclass(frozen=True)
class Plan:
    """What has to happen so that the machines become the wanted nodes.

    Attributes:
        keep: Machines that stay (and are started where they don't run).
        add: Specs of new ones, with the names that they get.
        remove: Machines that nobody wants any more.
    """

    keep: tuple[Machine, ...]
    add: tuple[NodeSpec, ...]
    remove: tuple[Machine, ...]


def ordinal_of(name: str, pool: str) -> int:
    """The number at the end of a node's name.

    Raises:
        ValueError: the name isn't `<pool>-<number>`.
    """
    match = _NAME.fullmatch(name)
    if match is None or match["pool"] != pool:
        raise ValueError(f"node name {name!r} isn't {pool}-<number>")
    return int(match["ordinal"])


def plan(desired: Iterable[NodeSpec], machines: Iterable[Machine], last_ordinals: Mapping[str, int]) -> Plan:
    """Decide which machines stay, come and go, as an auto-scaling group of each pool would.

    A machine is kept for any wanted node of its pool that asks for the same, whatever its name, so a node that was
    replaced stays. A name that was used once never comes back.

    Args:
        desired: All wanted nodes.
        machines: All that exist.
        last_ordinals: The highest number that each pool ever used.
    """
    open_specs = list(desired)
    keep, remove = [], []
    for machine in sorted(
        machines, key=lambda machine: (machine.spec.pool, ordinal_of(machine.name, machine.spec.pool))
    ):
        same = [spec for spec in open_specs if _asks_for_same(spec, machine.spec)]
        if not same:
            remove.append(machine)
            continue
        # Its own spec where it is still asked for by name, so that later ones keep theirs as well.
        named = [spec for spec in same if spec.name == machine.name]
        open_specs.remove((named or same)[0])
        keep.append(machine)
    used = {machine.name for machine in keep} | {machine.name for machine in remove}
    last = dict(last_ordinals)
    add = []
    for spec in open_specs:
        ordinal = ordinal_of(spec.name, spec.pool)
        if ordinal <= last.get(spec.pool, 0) or spec.name in used:
            ordinal = last.get(spec.pool, 0) + 1
        last[spec.pool] = max(last.get(spec.pool, 0), ordinal)
        add.append(renamed(spec, ordinal))
    return Plan(tuple(keep), tuple(add), tuple(remove))


def renamed(spec: NodeSpec, ordinal: int) -> NodeSpec:
    """The same node under another number of its pool."""
    return NodeSpec(f"{spec.pool}-{ordinal}", spec.pool, spec.labels, spec.taints, spec.resources)


def _asks_for_same(one: NodeSpec, other: NodeSpec) -> bool:
    return renamed(one, 1) == renamed(other, 1)
