"""Closed doors: nothing reaches a pod of Trainyard's own unless a policy says so.

Only where the cluster's network enforces policies; elsewhere (the local cluster) they are without effect.
"""

from __future__ import annotations

from collections.abc import Mapping

import pulumi
from pulumi_kubernetes.meta.v1 import LabelSelectorArgs, ObjectMetaArgs
from pulumi_kubernetes.networking.v1 import (
    NetworkPolicy,
    NetworkPolicyIngressRuleArgs,
    NetworkPolicyPeerArgs,
    NetworkPolicyPortArgs,
    NetworkPolicySpecArgs,
)

from infra.in_cluster.pods import MANAGED_BY, OwnPods
from infra.wiring.etcd_layout import CLIENT_PORT, PEER_PORT, SERVICE


class ClosedByDefault(pulumi.ComponentResource):
    """No way into a namespace, for any pod, but those that other policies open: see `etcd_ports`.

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


def etcd_ports(
    pods: OwnPods,
    *,
    members: Mapping[str, str],
    keeper: Mapping[str, str] | None,
    opts: pulumi.ResourceOptions,
) -> NetworkPolicy:
    """Clients of etcd are the jobs and who sets the passwords; members talk to members. Nobody else reaches a port.

    An etcd without passwords needs this no less: where all doors are closed, none of its clients would get in.

    Args:
        pods: where etcd and the jobs are.
        members: labels of etcd's pods.
        keeper: labels of who sets the passwords; None: there are none.
        opts: of the policy.
    """
    own, theirs = dict(members), LabelSelectorArgs(match_labels={"kubernetes.io/metadata.name": pods.jobs})
    clients = [NetworkPolicyPeerArgs(namespace_selector=theirs)]
    if keeper is not None:
        clients.append(NetworkPolicyPeerArgs(pod_selector=LabelSelectorArgs(match_labels=dict(keeper))))
    others = [NetworkPolicyPeerArgs(pod_selector=LabelSelectorArgs(match_labels=own))]
    return NetworkPolicy(
        SERVICE,
        metadata=ObjectMetaArgs(name=SERVICE, namespace=pods.namespace, labels=own),
        spec=NetworkPolicySpecArgs(
            pod_selector=LabelSelectorArgs(match_labels=own),
            policy_types=["Ingress"],
            ingress=[
                NetworkPolicyIngressRuleArgs(
                    from_=clients, ports=[NetworkPolicyPortArgs(protocol="TCP", port=CLIENT_PORT)]
                ),
                NetworkPolicyIngressRuleArgs(
                    from_=others, ports=[NetworkPolicyPortArgs(protocol="TCP", port=PEER_PORT)]
                ),
            ],
        ),
        opts=opts,
    )
