"""Closed doors: nothing reaches a pod of Trainyard's own unless a policy says so.

Only where the cluster's network enforces policies; elsewhere (the local cluster) they are without effect.
"""

from __future__ import annotations

import pulumi
from pulumi_kubernetes.meta.v1 import LabelSelectorArgs, ObjectMetaArgs
from pulumi_kubernetes.networking.v1 import NetworkPolicy, NetworkPolicySpecArgs

from infra.in_cluster.pods import MANAGED_BY


class ClosedByDefault(pulumi.ComponentResource):
    """No way into a namespace, for any pod, but those that other policies open: see etcd's.

    The controller and the autoscaler need none: they call, and are called by the kubelet's probes alone, which come
    from the node itself and pass.
    """

    def __init__(self, name: str, *, namespace: pulumi.Input[str], opts: pulumi.ResourceOptions) -> None:
        super().__init__("trainyard:in_cluster:ClosedByDefault", name, None, opts)
        NetworkPolicy(
            "default-deny-ingress",
            metadata=ObjectMetaArgs(name="default-deny-ingress", namespace=namespace, labels=MANAGED_BY),
            spec=NetworkPolicySpecArgs(pod_selector=LabelSelectorArgs(), policy_types=["Ingress"]),
            opts=pulumi.ResourceOptions(parent=self),
        )
        self.register_outputs({})
