"""The rights that the controller needs: each verb that it uses and none besides (a test compares with its calls)."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from training.controller import pytorchjob
from training.controller.api import GROUP, PLURAL, GangScheduler
from training.controller.gang import GANG_APIS
from training.controller.gang import PLURAL as POD_GROUPS

LEASE_NAME = "trainyard-elastic-controller"
"""Name of the Lease for which the replicas of the controller compete."""
DEPLOYMENT_NAME = "elastic-controller"
"""Name of the Deployment of the controller."""
PYTORCH_LEASE_NAME = "trainyard-pytorchjob-controller"
"""The same for PyTorchJobs, which are looked after independently."""


def cluster_rules(gang: Collection[GangScheduler] = (), *, pytorch_jobs: bool = False) -> list[dict[str, Any]]:
    """Rules of the controller's ClusterRole, in the form of rbac.authorization.k8s.io/v1.

    Args:
        gang: schedulers that jobs may ask for in `schedulingPolicy.scheduler`.
        pytorch_jobs: whether PyTorchJobs are served.
    """
    rules = [
        # get: whether a job is gone whose pods are left; delete: jobs whose ttlSecondsAfterFinished has run out
        _rule(GROUP, [PLURAL], ["list", "watch", "get", "delete"]),
        _rule(GROUP, [f"{PLURAL}/status"], ["patch"]),
        # get: whose pod it is that has a worker's name already; patch: takes the controller's finalizer off
        _rule("", ["pods"], ["list", "watch", "get", "create", "patch", "delete"]),
        _rule("", ["services"], ["list", "watch", "create", "delete"]),
        _rule("policy", ["poddisruptionbudgets"], ["list", "watch", "create", "patch"]),
        _rule("", ["nodes"], ["list", "watch"]),
        _rule("", ["events"], ["create"]),
    ]
    groups = [GANG_APIS[scheduler].group for scheduler in GangScheduler if scheduler in gang]
    if groups:
        # get: whose PodGroup it is; patch: another number of members
        rules.append(_rule(groups, [POD_GROUPS], ["get", "create", "patch", "delete"]))
    if pytorch_jobs:
        rules += [
            _rule(pytorchjob.GROUP, [pytorchjob.PLURAL], ["list", "watch", "get", "delete"]),
            _rule(pytorchjob.GROUP, [f"{pytorchjob.PLURAL}/status"], ["patch"]),
            # whether a training operator runs, whose jobs these would be
            _rule("apps", ["deployments"], ["list", "watch"]),
        ]
    return rules


def lease_rules(*, pytorch_jobs: bool = False) -> list[dict[str, Any]]:
    """Rules of the controller's Role in its own namespace, that of its Lease. Creation cannot be tied to a name."""
    names = [LEASE_NAME, *([PYTORCH_LEASE_NAME] if pytorch_jobs else [])]
    return [
        _rule("coordination.k8s.io", ["leases"], ["create"]),
        _rule("coordination.k8s.io", ["leases"], ["get", "update"], names=names),
        # whether the controller is being removed for good, and must let worker pods go
        _rule("apps", ["deployments"], ["get"], names=[DEPLOYMENT_NAME]),
    ]


def _rule(
    groups: str | list[str], resources: list[str], verbs: list[str], names: list[str] | None = None
) -> dict[str, Any]:
    rule: dict[str, Any] = {
        "apiGroups": [groups] if isinstance(groups, str) else groups,
        "resources": resources,
        "verbs": verbs,
    }
    return rule | {"resourceNames": names} if names else rule
