"""Who may use how much of which pool: Kueue's flavours and queues, as plain data.

A pool becomes a flavour. Pools that nobody has for himself belong to the queue `shared`; a queue with pools of its own
lends them while they stand idle, and takes them back by preemption. All queues are in one cohort for that.

Each flavour has a quota of everything that a worker asks for. Kueue never admits a workload that asks for something
without a quota, and says so only in the workload's status: EFA and hugepages are what gets forgotten.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from infra.catalog.instance_types import instance_type
from infra.wiring.allocatable import allocatable, as_quantities
from infra.wiring.naming import SHARED_QUEUE
from infra.wiring.scheduling import EFA_RESOURCE, GPU_RESOURCE, HUGEPAGES, POOL_LABEL, Taint, taints_of
from infra.wiring.topology import topology_layers, topology_levels

if TYPE_CHECKING:
    from infra.settings.aws import Aws, AwsNodePool

COHORT = "trainyard"
RESOURCES = ("cpu", "memory", GPU_RESOURCE, EFA_RESOURCE, HUGEPAGES)
"""What has a quota, in the order of Kueue's lists."""


@dataclass(frozen=True)
class Flavor:
    """A pool as Kueue sees it."""

    name: str
    node_labels: Mapping[str, str]
    taints: tuple[Taint, ...]
    """Only workloads that tolerate them get this flavour: nothing lands on spot machines that did not ask for it."""
    quota: Mapping[str, str]
    """All of the pool at its greatest size, by resource."""
    topology: str | None
    """Name of a `Topology`; None: workloads may be anywhere in the pool."""


@dataclass(frozen=True)
class Topology:
    """How near to each other machines are, from the broadest to the machine itself."""

    name: str
    levels: tuple[str, ...]


@dataclass(frozen=True)
class Queue:
    """A ClusterQueue, and the LocalQueue of its name in the jobs' namespace."""

    name: str
    own: tuple[str, ...]
    """Flavours of its own."""
    borrowed: tuple[str, ...]
    """Flavours that it may use while their owners don't."""

    @property
    def flavors(self) -> tuple[str, ...]:
        """In the order in which they are tried."""
        return self.own + self.borrowed


@dataclass(frozen=True)
class QueuePlan:
    """All that Kueue is told."""

    flavors: tuple[Flavor, ...]
    topologies: tuple[Topology, ...]
    queues: tuple[Queue, ...]


def queue_plan(aws: Aws) -> QueuePlan | None:
    """The queues of a stack; None: it wants none, or has no pool to share."""
    pools = [pool for pool in aws.node_pools if pool.gpus_per_node]
    if not aws.queues.enabled or not pools:
        return None
    owned = {name for names in aws.queues.dedicated.values() for name in names}
    shared = tuple(pool.name for pool in pools if pool.name not in owned)
    lent = tuple(pool.name for pool in pools if pool.name in owned)
    return QueuePlan(
        flavors=tuple(_flavor(pool) for pool in pools),
        topologies=tuple(_topology(layers) for layers in sorted({topology_layers(pool) for pool in pools} - {0})),
        queues=(
            Queue(SHARED_QUEUE, own=shared, borrowed=lent),
            *(Queue(name, own=names, borrowed=()) for name, names in aws.queues.dedicated.items()),
        ),
    )


def _flavor(pool: AwsNodePool) -> Flavor:
    offered = allocatable(instance_type(pool.types[0]), efa=pool.efa)
    whole = {name: offered.get(name, 0) * pool.max for name in RESOURCES}
    layers = topology_layers(pool)
    return Flavor(
        name=pool.name,
        node_labels={POOL_LABEL: pool.name},
        taints=taints_of(pool),
        quota=as_quantities(whole),
        topology=_topology(layers).name if layers else None,
    )


def _topology(layers: int) -> Topology:
    return Topology(f"network-{layers}-layers", topology_levels(layers))
