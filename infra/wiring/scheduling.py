"""Which pods may run on which nodes: labels, taints and the tolerations that match them, decided in one place.

A taint and the toleration that answers it are written by different objects (node, DaemonSet, job). Both come from here,
so they cannot disagree.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

POOL_LABEL = "trainyard.dev/pool"
CAPACITY_LABEL = "trainyard.dev/capacity"
GPU_PRESENT_LABEL = "nvidia.com/gpu.present"  # the label that NVIDIA's GPU feature discovery and EKS's nodeadm set
GPU_RESOURCE = "nvidia.com/gpu"
EFA_LABEL = "trainyard.dev/efa"
"""`true` on nodes with EFA interfaces: where the EFA device plugin runs, and nowhere else, whatever the type is."""
EFA_RESOURCE = "vpc.amazonaws.com/efa"
HUGEPAGES = "hugepages-2Mi"
EPHEMERAL_STORAGE = "ephemeral-storage"
ACCELERATOR_LABEL = "k8s.amazonaws.com/accelerator"
"""Name of the GPU: with it the autoscaler waits for the GPUs of a new node instead of adding another one."""

SYSTEM_POOL = "system"
"""Name of the pool of an AWS stack that has neither GPUs nor taints."""

PRIORITY_CONTROL = "trainyard-control"
PRIORITY_TRAINING = "trainyard-training"
PRIORITY_TRAINING_LOW = "trainyard-training-low"

_EKS_EFFECTS = {
    "NoSchedule": "NO_SCHEDULE",
    "PreferNoSchedule": "PREFER_NO_SCHEDULE",
    "NoExecute": "NO_EXECUTE",
}


class Pool(Protocol):
    """What decides on labels and taints: pools of the local target and of AWS alike."""

    @property
    def name(self) -> str:
        """Its name."""

    @property
    def capacity(self) -> str:
        """`on-demand`, `spot`, `odcr` or `capacity-block`."""

    @property
    def gpus_per_node(self) -> int:
        """GPUs of one machine."""


@dataclass(frozen=True)
class Taint:
    """A node taint in Kubernetes' spelling."""

    key: str
    value: str
    effect: str

    def as_kubernetes(self) -> dict[str, str]:
        """As it stands in `Node.spec.taints`."""
        return {"key": self.key, "value": self.value, "effect": self.effect}

    def as_eks(self) -> dict[str, str]:
        """As the EKS API takes it for a node group: `NO_SCHEDULE` where Kubernetes says `NoSchedule`."""
        return {"key": self.key, "value": self.value, "effect": _EKS_EFFECTS[self.effect]}

    def toleration(self) -> dict[str, str]:
        """The toleration that answers exactly this taint."""
        return {"key": self.key, "operator": "Equal", "value": self.value, "effect": self.effect}


GPU_TAINT = Taint(GPU_RESOURCE, "present", "NoSchedule")
"""Keeps pods without a GPU request away from GPU machines."""
SPOT_TAINT = Taint("trainyard.dev/spot", "true", "NoSchedule")
"""Keeps what does not survive a reclaim away from spot machines. (EKS labels them, and sets no taint of its own.)"""


def labels_of(pool: Pool) -> dict[str, str]:
    """Labels of every node of a pool."""
    labels = {POOL_LABEL: pool.name, CAPACITY_LABEL: pool.capacity}
    if pool.gpus_per_node:
        labels[GPU_PRESENT_LABEL] = "true"
    return labels


def taints_of(pool: Pool) -> tuple[Taint, ...]:
    """Taints of every node of a pool; reserved capacity is not reclaimed and counts as on-demand here."""
    return ((GPU_TAINT,) if pool.gpus_per_node else ()) + ((SPOT_TAINT,) if pool.capacity == "spot" else ())


def tolerations_for(pools: Iterable[Pool]) -> list[dict[str, str]]:
    """Tolerations of a workload that may run on any of these pools, each once, in a stable order."""
    return [taint.toleration() for taint in _all_taints(pools)]


def node_agent_tolerations(pools: Iterable[Pool]) -> list[dict[str, str]]:
    """Tolerations of what must run on every node: device plugins, CSI nodes, DCGM, log and monitoring agents.

    By key alone: an agent stays whatever value or effect a taint of ours has. The charts' own defaults tolerate none of
    them, and a device plugin that does not land offers nothing, without an error.
    """
    return [{"key": taint.key, "operator": "Exists"} for taint in _all_taints(pools)]


def _all_taints(pools: Iterable[Pool]) -> list[Taint]:
    wanted = {taint for pool in pools for taint in taints_of(pool)}
    return [taint for taint in (GPU_TAINT, SPOT_TAINT) if taint in wanted]
