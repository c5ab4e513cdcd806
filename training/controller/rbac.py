"""The rights that the controller needs: each verb that it uses and none besides (a test compares with its calls)."""

from __future__ import annotations

from typing import Any

from training.controller.api import GROUP, PLURAL

LEASE_NAME = "trainyard-elastic-controller"
"""Name of the Lease for which the replicas of the controller compete."""


def cluster_rules() -> list[dict[str, Any]]:
    """Rules of the controller's ClusterRole, in the form of rbac.authorization.k8s.io/v1."""
    return [
        # delete: jobs whose ttlSecondsAfterFinished has run out
        _rule(GROUP, [PLURAL], ["list", "watch", "delete"]),
        _rule(GROUP, [f"{PLURAL}/status"], ["patch"]),
        # get: whose pod it is that has a worker's name already
        _rule("", ["pods"], ["list", "watch", "get", "create", "delete"]),
        _rule("", ["services"], ["list", "watch", "create", "delete"]),
        _rule("", ["nodes"], ["list", "watch"]),
        _rule("", ["events"], ["create"]),
    ]


def lease_rules() -> list[dict[str, Any]]:
    """Rules of the controller's Role in the namespace of its Lease; a right to create cannot be tied to a name."""
    return [
        _rule("coordination.k8s.io", ["leases"], ["create"]),
        _rule("coordination.k8s.io", ["leases"], ["get", "update"], names=[LEASE_NAME]),
    ]


def _rule(group: str, resources: list[str], verbs: list[str], names: list[str] | None = None) -> dict[str, Any]:
    rule: dict[str, Any] = {"apiGroups": [group], "resources": resources, "verbs": verbs}
    return rule | {"resourceNames": names} if names else rule
