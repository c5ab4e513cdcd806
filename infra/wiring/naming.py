"""Names that several objects must agree on, and how pods look names up."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from infra.settings import Target

SYSTEM_NAMESPACE = "trainyard-system"
"""Namespace of Trainyard's own parts: etcd and the controller."""

TAKEN_NAMESPACES = (SYSTEM_NAMESPACE, "default", "kube-system", "kube-public", "kube-node-lease")
"""Namespaces that are Trainyard's own, or that every cluster has already; none of them can be the jobs' namespace."""


def dns_policy(target: Target) -> str:
    """The DNS policy of Trainyard's own pods.

    The local cluster has no cluster DNS, names of Services stand in the pods' hosts files: a pod that asks for cluster
    DNS all the same gets the computer's resolver, and a warning event every few seconds.
    """
    return "Default" if target == "local" else "ClusterFirst"
