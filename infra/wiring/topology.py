"""Where in the network machines stand, as far as Kueue places jobs by it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from infra.catalog.instance_types import instance_type

if TYPE_CHECKING:
    from infra.settings.aws import AwsNodePool

HOSTNAME_LABEL = "kubernetes.io/hostname"
PREFERRED_TOPOLOGY = "kueue.x-k8s.io/podset-preferred-topology"
"""Annotation of pods. Not the `required` one: an elastic job had better train spread out than wait for one corner."""


def layer_label(layer: int) -> str:
    """The node label of a layer of the network: 1 is the broadest, the highest number that a type has the nearest."""
    return f"topology.k8s.aws/network-node-layer-{layer}"


def topology_layers(pool: AwsNodePool) -> int:
    """By how many layers of the network Kueue places the workloads of a pool; 0: by none.

    The layers that all its types have, and only where its machines are always there: Kueue looks for a place among the
    machines that exist. In a pool that grows when there is work, it would admit nothing, so nothing would be pending,
    so the autoscaler would add nothing. Flavours and jobs must agree: a job that asks for a topology is never admitted
    to a flavour without one.
    """
    if pool.min != pool.max or pool.capacity == "capacity-block":
        return 0
    return min(instance_type(name).topology_layers for name in pool.types)


def topology_levels(layers: int) -> tuple[str, ...]:
    """Node labels from the broadest layer to the machine itself, as Kueue's `Topology` lists them."""
    return (*(layer_label(layer) for layer in range(1, layers + 1)), HOSTNAME_LABEL)
