"""The namespaces: Trainyard's own parts, the jobs, and agents that need rights on the nodes."""

from __future__ import annotations

import pulumi
from pulumi_kubernetes.core.v1 import Namespace
from pulumi_kubernetes.meta.v1 import ObjectMetaArgs

from infra.in_cluster.pods import MANAGED_BY
from infra.wiring.naming import NODE_AGENTS_NAMESPACE, SYSTEM_NAMESPACE


class Namespaces(pulumi.ComponentResource):
    """Namespaces that refuse privileged pods (Kubernetes' pod security standards).

    Trainyard's own parts meet the `restricted` standard. Jobs are held to `baseline`, since many training images still
    run as root, and are warned about `restricted`.
    """

    system: pulumi.Output[str]
    """Name of the namespace of etcd and the controller."""
    training: pulumi.Output[str]
    """Name of the namespace of the jobs."""

    def __init__(self, name: str, *, training: str, opts: pulumi.ResourceOptions) -> None:
        super().__init__("trainyard:in_cluster:Namespaces", name, None, opts)
        child = pulumi.ResourceOptions(parent=self)
        self.system = _name(namespace_of_level(SYSTEM_NAMESPACE, {"enforce": "restricted"}, child))
        self.training = _name(namespace_of_level(training, {"enforce": "baseline", "warn": "restricted"}, child))
        self.register_outputs({"system": self.system, "training": self.training})


class NodeAgentsNamespace(pulumi.ComponentResource):
    """The namespace of the agents on GPU nodes; people who may run jobs have no rights in it."""

    node_agents: pulumi.Output[str]
    """Its name."""

    def __init__(self, name: str, *, opts: pulumi.ResourceOptions) -> None:
        super().__init__("trainyard:in_cluster:NodeAgentsNamespace", name, None, opts)
        child = pulumi.ResourceOptions(parent=self)
        self.node_agents = _name(namespace_of_level(NODE_AGENTS_NAMESPACE, {"enforce": "privileged"}, child))
        self.register_outputs({"nodeAgents": self.node_agents})


def namespace_of_level(name: str, levels: dict[str, str], opts: pulumi.ResourceOptions) -> Namespace:
    """A namespace with levels of the pod security standards, by mode (`enforce`, `warn`)."""
    labels = {f"pod-security.kubernetes.io/{mode}": level for mode, level in levels.items()}
    return Namespace(name, metadata=ObjectMetaArgs(name=name, labels=labels | MANAGED_BY), opts=opts)


def _name(namespace: Namespace) -> pulumi.Output[str]:
    return namespace.metadata.apply(lambda m: str(m.name))
