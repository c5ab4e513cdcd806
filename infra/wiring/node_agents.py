"""Which agents the machines of an AWS stack need, and where."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from infra.wiring.scheduling import EFA_LABEL, GPU_PRESENT_LABEL, node_agent_tolerations

if TYPE_CHECKING:
    from infra.settings.aws import Aws


@dataclass(frozen=True)
class OnNodes:
    """The nodes on which an agent runs, one pod each (a DaemonSet)."""

    labels: Mapping[str, str]
    """By label and not by a list of instance types, as vendors' charts do it: a type newer than the chart is served
    all the same."""
    tolerations: Sequence[Mapping[str, str]]
    """Answers to every taint of every pool, in Kubernetes' spelling."""
    except_pools: tuple[str, ...] = ()
    """Pools whose machines bring the agent along."""


@dataclass(frozen=True)
class NodeAgents:
    """Where each agent runs; None: no machine needs it."""

    nvidia: OnNodes | None
    """Device plugin of the GPUs. Bottlerocket brings it along, and two of them would both register."""
    efa: OnNodes | None
    """Device plugin of EFA, which no image brings."""
    dcgm: OnNodes | None
    """Metrics of the GPUs."""


def node_agents_of(aws: Aws) -> NodeAgents:
    """The agents of a stack's pools; each tolerates every taint of every pool."""
    tolerations = node_agent_tolerations(aws.node_pools)
    gpu = [pool for pool in aws.node_pools if pool.gpus_per_node]
    own = tuple(pool.name for pool in gpu if pool.operating_system == "bottlerocket")
    on_gpus = {GPU_PRESENT_LABEL: "true"}
    return NodeAgents(
        nvidia=OnNodes(on_gpus, tolerations, except_pools=own) if len(own) < len(gpu) else None,
        efa=OnNodes({EFA_LABEL: "true"}, tolerations) if any(pool.efa for pool in aws.node_pools) else None,
        dcgm=OnNodes(on_gpus, tolerations) if gpu else None,
    )
