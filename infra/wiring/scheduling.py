"""Which pods may run on which nodes: labels, taints and the tolerations that match them, decided in one place.

A taint and the toleration that answers it are written by different objects (node, DaemonSet, job). Both come from here,
so they cannot disagree.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from infra.settings import NodePool

POOL_LABEL = "trainyard.dev/pool"
CAPACITY_LABEL = "trainyard.dev/capacity"
GPU_PRESENT_LABEL = "nvidia.com/gpu.present"  # the label that NVIDIA's GPU feature discovery sets
GPU_RESOURCE = "nvidia.com/gpu"

PRIORITY_CONTROL = "trainyard-control"
PRIORITY_TRAINING = "trainyard-training"
PRIORITY_TRAINING_LOW = "trainyard-training-low"


@dataclass(frozen=True)
class Taint:
    """A node taint in Kubernetes' spelling."""

    key: str
    value: str
    effect: str

    def as_kubernetes(self) -> dict[str, str]:
        """As it stands in `Node.spec.taints`."""
        return {"key": self.key, "value": self.value, "effect": self.effect}

    def toleration(self) -> dict[str, str]:
        """The toleration that answers exactly this taint."""
        return {"key": self.key, "operator": "Equal", "value": self.value, "effect": self.effect}


GPU_TAINT = Taint(GPU_RESOURCE, "present", "NoSchedule")
"""Keeps pods without a GPU request away from GPU machines."""
SPOT_TAINT = Taint("trainyard.dev/spot", "true", "NoSchedule")
"""Keeps what does not survive a reclaim away from spot machines."""


def labels_of(pool: NodePool) -> dict[str, str]:
    """Labels of every node of a pool."""
    labels = {POOL_LABEL: pool.name, CAPACITY_LABEL: pool.capacity}
    if pool.gpus_per_node:
        labels[GPU_PRESENT_LABEL] = "true"
    return labels


def taints_of(pool: NodePool) -> tuple[Taint, ...]:
    """Taints of every node of a pool."""
    return ((GPU_TAINT,) if pool.gpus_per_node else ()) + ((SPOT_TAINT,) if pool.capacity == "spot" else ())


def tolerations_for(pools: Iterable[NodePool]) -> list[dict[str, str]]:
    """Tolerations of a workload that may run on any of these pools, each once, in a stable order."""
    wanted = {taint for pool in pools for taint in taints_of(pool)}
    return [taint.toleration() for taint in (GPU_TAINT, SPOT_TAINT) if taint in wanted]
