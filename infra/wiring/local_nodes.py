"""The nodes of the local cluster that a stack's pools ask for."""

from __future__ import annotations

from collections.abc import Iterable

from infra.local.nodes.spec import NodeSpec
from infra.settings import NodePool
from infra.wiring.scheduling import GPU_RESOURCE, labels_of, taints_of


def node_specs(pools: Iterable[NodePool]) -> list[NodeSpec]:
    """One spec for each node, with labels and taints as the nodes of a real pool have them."""
    return [
        NodeSpec(
            name=f"{pool.name}-{number}",
            pool=pool.name,
            labels=labels_of(pool),
            taints=taints_of(pool),
            resources=_resources(pool),
        )
        for pool in pools
        for number in range(1, pool.nodes + 1)
    ]


def _resources(pool: NodePool) -> dict[str, str]:
    """What a node of the pool offers; processors and memory only where the pool limits them."""
    offered = {
        "cpu": pool.cpus_per_node and str(pool.cpus_per_node),
        "memory": pool.memory_per_node,
        GPU_RESOURCE: pool.gpus_per_node and str(pool.gpus_per_node),
    }
    return {name: str(quantity) for name, quantity in offered.items() if quantity}
