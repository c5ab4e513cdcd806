"""What researchers may do inside the cluster beyond what EKS's own access policy knows."""

from __future__ import annotations

import pulumi
from pulumi_kubernetes.meta.v1 import ObjectMetaArgs
from pulumi_kubernetes.rbac.v1 import PolicyRuleArgs, Role, RoleBinding, RoleRefArgs, SubjectArgs

from infra.aws.names import RESEARCHERS
from infra.in_cluster.pods import MANAGED_BY
from training.controller.api import GROUP, PLURAL

_NAME = "researchers"
_EVERYTHING = ["create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"]
_LOOK = ["get", "list", "watch"]


class Researchers(pulumi.ComponentResource):
    """Rights to run ElasticJobs and to see their place in the queues.

    `AmazonEKSEditPolicy` gives pods, logs and volumes of the namespace; custom resources it does not know.
    """

    def __init__(self, name: str, *, namespace: pulumi.Input[str], opts: pulumi.ResourceOptions) -> None:
        super().__init__("trainyard:aws:Researchers", name, None, opts)
        metadata = ObjectMetaArgs(name=_NAME, namespace=namespace, labels=MANAGED_BY)
        role = Role(
            _NAME,
            metadata=metadata,
            rules=[
                PolicyRuleArgs(
                    api_groups=[GROUP],
                    resources=[PLURAL, f"{PLURAL}/scale"],
                    verbs=_EVERYTHING,
                ),
                PolicyRuleArgs(
                    api_groups=["kueue.x-k8s.io"],
                    resources=["localqueues", "workloads"],
                    verbs=_LOOK,
                ),
            ],
            opts=pulumi.ResourceOptions(parent=self),
        )
        RoleBinding(
            _NAME,
            metadata=metadata,
            role_ref=RoleRefArgs(api_group="rbac.authorization.k8s.io", kind="Role", name=_NAME),
            subjects=[SubjectArgs(api_group="rbac.authorization.k8s.io", kind="Group", name=RESEARCHERS)],
            opts=pulumi.ResourceOptions(parent=self, depends_on=[role]),
        )
        self.register_outputs({})
