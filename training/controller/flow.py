"""How the API server ranks the controller's requests (API priority and fairness).

Without a schema of its own the controller shares `workload-low` with every other service account: one that lists in a
loop would make spot notices wait. It gets seats and queues of its own, and lends those that it does not need; its
Lease goes where Kubernetes' own leader elections go, past the thousand pods that it may be creating.
"""

from __future__ import annotations

from typing import Any

API_VERSION = "flowcontrol.apiserver.k8s.io/v1"
LEVEL = "elastic-controller"
"""Name of the priority level, and of the schema that leads to it."""
LEASES = "elastic-controller-lease"
_PRECEDENCE = 900
"""Before `workload-high` (1000) and `service-accounts` (9000), where service accounts would be met."""
_SHARES = 40
"""As many as `workload-high` has: of 245 in all, a sixth of the API server's seats while they are wanted."""
_LENDABLE_PERCENT = 75


def flow_objects(namespace: object, account: str) -> list[dict[str, Any]]:
    """The PriorityLevelConfiguration and the FlowSchemas of the controller, level first.

    Args:
        namespace: of the controller: a text, or what the caller's program will have a text for.
        account: its service account.
    """
    subject = {"kind": "ServiceAccount", "serviceAccount": {"namespace": namespace, "name": account}}
    queuing = {"queues": 16, "handSize": 4, "queueLengthLimit": 100}
    limited = {
        "nominalConcurrencyShares": _SHARES,
        "lendablePercent": _LENDABLE_PERCENT,
        "limitResponse": {"type": "Queue", "queuing": queuing},
    }
    return [
        {
            "apiVersion": API_VERSION,
            "kind": "PriorityLevelConfiguration",
            "metadata": {"name": LEVEL},
            "spec": {"type": "Limited", "limited": limited},
        },
        _schema(LEVEL, LEVEL, _PRECEDENCE, subject, "*", "*", whole_cluster=True),
        _schema(LEASES, "leader-election", _PRECEDENCE - 1, subject, "coordination.k8s.io", "leases"),
    ]


def _schema(
    name: str,
    level: str,
    precedence: int,
    subject: dict[str, Any],
    group: str,
    resource: str,
    *,
    whole_cluster: bool = False,
) -> dict[str, Any]:
    rule: dict[str, Any] = {"verbs": ["*"], "apiGroups": [group], "resources": [resource], "namespaces": ["*"]}
    if whole_cluster:
        rule["clusterScope"] = True
    return {
        "apiVersion": API_VERSION,
        "kind": "FlowSchema",
        "metadata": {"name": name},
        "spec": {
            "priorityLevelConfiguration": {"name": level},
            "matchingPrecedence": precedence,
            # watches of jobs, pods and nodes, and the writes of all jobs, are told apart by namespace
            "distinguisherMethod": {"type": "ByNamespace"},
            "rules": [{"subjects": [subject], "resourceRules": [rule]}],
        },
    }
