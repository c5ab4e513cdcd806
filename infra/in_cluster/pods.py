"""What every pod of Trainyard's own parts has in common."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import pulumi
from pulumi_kubernetes.core.v1 import (
    AffinityArgs,
    CapabilitiesArgs,
    EnvVarArgs,
    EnvVarSourceArgs,
    ObjectFieldSelectorArgs,
    PodAffinityTermArgs,
    PodAntiAffinityArgs,
    PodSecurityContextArgs,
    SeccompProfileArgs,
    SecurityContextArgs,
    TopologySpreadConstraintArgs,
    WeightedPodAffinityTermArgs,
)
from pulumi_kubernetes.meta.v1 import LabelSelectorArgs

from infra.wiring.naming import UNPRIVILEGED
from infra.wiring.topology import HOSTNAME_LABEL

MANAGED_BY = {"app.kubernetes.io/managed-by": "trainyard"}
ZONE_LABEL = "topology.kubernetes.io/zone"


@dataclass(frozen=True)
class OwnPods:
    """Where the pods of Trainyard's own parts run, and whom they serve."""

    namespace: pulumi.Input[str]
    jobs: pulumi.Input[str]
    """Namespace of the jobs."""
    dns_policy: str
    """See `infra.wiring.naming.dns_policy`."""
    node_selector: Mapping[str, str] = field(default_factory=dict)
    """Labels of the nodes that they keep to; none: any node that their tolerations allow."""

    @property
    def selector(self) -> dict[str, str] | None:
        """The node selector as a pod takes it."""
        return dict(self.node_selector) or None


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
