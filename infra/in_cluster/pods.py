"""What every pod of Trainyard's own parts has in common."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import pulumi
from pulumi_kubernetes.core.v1 import (
    AffinityArgs,
    CapabilitiesArgs,
    EnvVarArgs,
    EnvVarSourceArgs,
    NodeAffinityArgs,
    NodeSelectorArgs,
    NodeSelectorRequirementArgs,
    NodeSelectorTermArgs,
    ObjectFieldSelectorArgs,
    PodAffinityTermArgs,
    PodAntiAffinityArgs,
    PodSecurityContextArgs,
    SeccompProfileArgs,
    SecurityContextArgs,
    TolerationArgs,
    TopologySpreadConstraintArgs,
    WeightedPodAffinityTermArgs,
)
from pulumi_kubernetes.meta.v1 import LabelSelectorArgs

from infra.wiring.scheduling import POOL_LABEL
from infra.wiring.topology import HOSTNAME_LABEL

UNPRIVILEGED = 65532
"""User and group of the project's images (the number that distroless images use for `nonroot`)."""

MANAGED_BY = {"app.kubernetes.io/managed-by": "trainyard"}
ZONE_LABEL = "topology.kubernetes.io/zone"


@dataclass(frozen=True)
class OwnPods:
    """Where the pods of Trainyard's own parts run."""

    namespace: pulumi.Input[str]
    dns_policy: str
    """See `infra.wiring.naming.dns_policy`."""
    node_selector: Mapping[str, str] = field(default_factory=dict)
    """Labels of the nodes that they keep to; none: any node that their tolerations allow."""

    @property
    def selector(self) -> dict[str, str] | None:
        """The node selector as a pod takes it."""
        return dict(self.node_selector) or None


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

    def affinity(self) -> AffinityArgs | None:
        """Keeps the agent away from the pools that have it already."""
        if not self.except_pools:
            return None
        other = NodeSelectorRequirementArgs(key=POOL_LABEL, operator="NotIn", values=list(self.except_pools))
        required = NodeSelectorArgs(node_selector_terms=[NodeSelectorTermArgs(match_expressions=[other])])
        return AffinityArgs(
            node_affinity=NodeAffinityArgs(required_during_scheduling_ignored_during_execution=required)
        )

    def toleration_args(self) -> list[TolerationArgs]:
        """The tolerations as a pod takes them."""
        return [
            TolerationArgs(
                key=each["key"], operator=each["operator"], value=each.get("value"), effect=each.get("effect")
            )
            for each in self.tolerations
        ]


def apart(labels: Mapping[str, str], *, required: bool) -> AffinityArgs:
    """Keeps the pods with these labels on different nodes: always, or where there are enough of them."""
    term = PodAffinityTermArgs(topology_key=HOSTNAME_LABEL, label_selector=LabelSelectorArgs(match_labels=dict(labels)))
    if required:
        away = PodAntiAffinityArgs(required_during_scheduling_ignored_during_execution=[term])
    else:
        weighted = WeightedPodAffinityTermArgs(weight=100, pod_affinity_term=term)
        away = PodAntiAffinityArgs(preferred_during_scheduling_ignored_during_execution=[weighted])
    return AffinityArgs(pod_anti_affinity=away)


def over_zones(labels: Mapping[str, str]) -> TopologySpreadConstraintArgs:
    """Spreads the pods with these labels over the zones, as far as there are nodes."""
    return TopologySpreadConstraintArgs(
        max_skew=1,
        topology_key=ZONE_LABEL,
        when_unsatisfiable="ScheduleAnyway",
        label_selector=LabelSelectorArgs(match_labels=dict(labels)),
    )


def pod_field(name: str, path: str) -> EnvVarArgs:
    """An environment variable that holds a field of the pod (`status.podIP`)."""
    return EnvVarArgs(name=name, value_from=EnvVarSourceArgs(field_ref=ObjectFieldSelectorArgs(field_path=path)))


def restricted_pod() -> PodSecurityContextArgs:
    """Pod part of the `restricted` pod security standard."""
    return PodSecurityContextArgs(
        run_as_non_root=True,
        run_as_user=UNPRIVILEGED,
        run_as_group=UNPRIVILEGED,
        fs_group=UNPRIVILEGED,
        seccomp_profile=SeccompProfileArgs(type="RuntimeDefault"),
    )


def restricted_container() -> SecurityContextArgs:
    """Container part of the `restricted` pod security standard."""
    return SecurityContextArgs(
        allow_privilege_escalation=False,
        read_only_root_filesystem=True,
        capabilities=CapabilitiesArgs(drop=["ALL"]),
    )
