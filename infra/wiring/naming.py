"""Names that several objects must agree on, and how pods look names up."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from infra.wiring.errors import WiringError

if TYPE_CHECKING:
    from infra.settings import Settings, Target

SYSTEM_NAMESPACE = "trainyard-system"
"""Namespace of Trainyard's own parts: etcd and the controller."""

NODE_AGENTS_NAMESPACE = "trainyard-node-agents"
"""Namespace of the device plugins and the GPU metrics: they need folders and devices of the nodes, which only the
`privileged` level allows. One of their own, so that nothing else enjoys that level, and not kube-system, so that it
goes with the stack."""

UNPRIVILEGED = 65532
"""User and group of the project's images (the number that distroless images use for `nonroot`): whom pods run as, and
whose the folders are that they share."""

KUEUE_NAMESPACE = "kueue-system"

MONITORING_NAMESPACE = "trainyard-monitoring"
"""Namespace of Prometheus, Grafana and what belongs to them."""

SHARED_QUEUE = "shared"
"""The queue of all pools that no queue has for itself."""

TAKEN_NAMESPACES = (
    SYSTEM_NAMESPACE,
    NODE_AGENTS_NAMESPACE,
    KUEUE_NAMESPACE,
    MONITORING_NAMESPACE,
    "default",
    "kube-system",
    "kube-public",
    "kube-node-lease",
)
"""Namespaces that are Trainyard's own, or that every cluster has already; none of them can be the jobs' namespace."""

CLUSTER_NAME_LONGEST = 40
"""Names of roles, templates and buckets are made from it, and may have 63 or 64 characters."""


def cluster_name(settings: Settings, stack: str) -> str:
    """Name of the EKS cluster, and the beginning of the names of all that belongs to it.

    Raises:
        WiringError: none is set, and the stack's own name is too long to make one of it.
    """
    if settings.aws is not None and settings.aws.cluster_name is not None:
        return settings.aws.cluster_name
    # What EKS and S3 both take; Pulumi's stack names may have dots, underscores and capitals as well.
    name = re.sub(r"[^a-z0-9]+", "-", f"trainyard-{stack}".lower()).strip("-")
    if len(name) > CLUSTER_NAME_LONGEST:
        raise WiringError(
            f"the cluster of stack {stack!r} would be named {name!r}, longer than {CLUSTER_NAME_LONGEST} characters."
            f" Give it a shorter one: pulumi config set --path trainyard:aws.clusterName NAME -s {stack}"
        )
    return name


NODE_GROUP_NAME_LONGEST = 63


def node_group_name(cluster: str, pool: str) -> str:
    """Name of a pool's node group, of its launch template, and of its placement group.

    Raises:
        WiringError: it is longer than EKS takes.
    """
    name = f"{cluster}-{pool}"
    if len(name) > NODE_GROUP_NAME_LONGEST:
        raise WiringError(
            f"the node group of pool {pool!r} would be named {name!r}, longer than the {NODE_GROUP_NAME_LONGEST}"
            " characters that EKS takes. Give the pool or the cluster (aws.clusterName) a shorter name."
        )
    return name


def dns_policy(target: Target) -> str:
    """The DNS policy of Trainyard's own pods.

    The local cluster has no cluster DNS, names of Services stand in the pods' hosts files: a pod that asks for cluster
    DNS all the same gets the computer's resolver, and a warning event every few seconds.
    """
    return "Default" if target == "local" else "ClusterFirst"
