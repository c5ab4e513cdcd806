"""EKS add-ons: the parts of the cluster whose versions EKS keeps, by version of the lock.

What must be there before machines can join (network, proxy, the agent that hands out rights to pods) comes before the
node groups, the rest after the first of them: a Deployment without machines is a degraded add-on.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pulumi
from pulumi_aws.eks import Addon, AddonPodIdentityAssociationArgs

from infra.aws.account import Account, Statement
from infra.aws.encryption import USE
from infra.aws.identity import PodRole
from infra.catalog.versions import versions
from infra.settings.aws import Aws
from infra.wiring.scheduling import POOL_LABEL, SYSTEM_POOL, node_agent_tolerations


@dataclass(frozen=True)
class AddonPlan:
    """One add-on."""

    name: str
    """EKS's name."""
    before_nodes: bool = False
    values: Mapping[str, Any] = field(default_factory=dict)
    """Configuration by the add-on's own schema, which EKS holds it to: what a schema does not have is refused. What is
    not said here is the default."""
    service_account: str | None = None
    """The one that needs rights in AWS; None: it needs none."""
    aws_policies: tuple[str, ...] = ()
    """These rights, as policies that AWS keeps."""
    uses_key: bool = False
    """Whether it also makes things that the stack's key encrypts."""


_ON_SYSTEM = {"nodeSelector": {POOL_LABEL: SYSTEM_POOL}}
"""For Deployments. GPU machines come and go, and their taints keep these away anyway; this says so."""


def addon_plans(aws: Aws) -> list[AddonPlan]:
    """The add-ons of a stack.

    Those that run on every machine tolerate every taint by default, network, proxy, identity and drivers of volumes
    alike (values of their charts), all but one.
    """
    taints = node_agent_tolerations(aws.node_pools)
    plans = [
        AddonPlan(
            "vpc-cni",
            before_nodes=True,
            # Without this NetworkPolicies are taken and have no effect.
            values={"enableNetworkPolicy": "true"},
            service_account="aws-node",
            aws_policies=("AmazonEKS_CNI_Policy",),
        ),
        AddonPlan("kube-proxy", before_nodes=True),
        AddonPlan("eks-pod-identity-agent", before_nodes=True),
        AddonPlan("coredns", values=_ON_SYSTEM),
        AddonPlan("metrics-server"),
        AddonPlan(
            "aws-ebs-csi-driver",
            values={"controller": _ON_SYSTEM, "node": {"tolerateAllTaints": True}},
            service_account="ebs-csi-controller-sa",
            aws_policies=("service-role/AmazonEBSCSIDriverPolicy",),
            uses_key=True,
        ),
        # By default its DCGM server tolerates nothing: it does not land on tainted GPU machines, and a broken GPU is
        # never reported.
        AddonPlan(
            "eks-node-monitoring-agent",
            values={"nodeAgent": {"tolerations": [{"operator": "Exists"}]}, "dcgmAgent": {"tolerations": taints}},
        ),
    ]
    if aws.storage.efs:
        plans.append(
            AddonPlan(
                "aws-efs-csi-driver",
                values={"controller": _ON_SYSTEM},
                service_account="efs-csi-controller-sa",
                aws_policies=("service-role/AmazonEFSCSIDriverPolicy",),
            )
        )
    if aws.storage.lustre:
        # The volume is the stack's own file system: the driver mounts it and makes none, so it needs no rights in AWS.
        plans.append(AddonPlan("aws-fsx-csi-driver"))
    return plans


class Addons(pulumi.ComponentResource):
    """The add-ons of a cluster, with the roles of their pods: at once those which machines need in order to join."""

    made: list[pulumi.Resource]

    def __init__(
        self,
        name: str,
        *,
        cluster: str,
        cluster_name: pulumi.Input[str],
        kubernetes: str,
        plans: Sequence[AddonPlan],
        account: Account,
        key_arn: pulumi.Input[str],
        opts: pulumi.ResourceOptions,
    ) -> None:
        """Install what comes before the machines.

        Args:
            name: logical name.
            cluster: name of the cluster, as text: names of roles are made of it.
            cluster_name: the same as an output of the cluster.
            kubernetes: minor version.
            plans: all add-ons.
            account: where roles are made.
            key_arn: key of what drivers make.
            opts: the component's options.
        """
        super().__init__("trainyard:aws:Addons", name, None, opts)
        self._cluster, self._cluster_name, self._kubernetes = cluster, cluster_name, kubernetes
        self._plans, self._account, self._key = plans, account, key_arn
        self.made = [self._install(plan, ()) for plan in plans if plan.before_nodes]

    def with_nodes(self, nodes: pulumi.Resource) -> None:
        """Install the others: they come up on these machines."""
        self.made += [self._install(plan, (nodes,)) for plan in self._plans if not plan.before_nodes]
        self.register_outputs({"names": [plan.name for plan in self._plans]})

    def _install(self, plan: AddonPlan, after: Sequence[pulumi.Resource]) -> Addon:
        identities, rights = None, list[pulumi.Resource]()
        if plan.service_account:
            role = PodRole(
                f"{plan.name}-role",
                cluster=self._cluster,
                use=plan.name,
                account=self._account,
                aws_policies=plan.aws_policies,
                policies={"key": _key_rights(self._key)} if plan.uses_key else {},
                opts=pulumi.ResourceOptions(parent=self),
            )
            identities = [AddonPodIdentityAssociationArgs(service_account=plan.service_account, role_arn=role.arn)]
            rights = role.rights
        return Addon(
            plan.name,
            cluster_name=self._cluster_name,
            addon_name=plan.name,
            addon_version=versions().addon(plan.name, self._kubernetes),
            configuration_values=json.dumps(plan.values, sort_keys=True) if plan.values else None,
            pod_identity_associations=identities,
            resolve_conflicts_on_create="OVERWRITE",
            resolve_conflicts_on_update="OVERWRITE",
            opts=pulumi.ResourceOptions(parent=self, depends_on=[*after, *rights]),
        )


def _key_rights(key_arn: pulumi.Input[str]) -> list[Statement]:
    """Encrypted disks with the stack's key; also with one that exists, whose own policy may name nobody."""
    return [
        {"Effect": "Allow", "Action": list(USE), "Resource": key_arn},
        {
            "Effect": "Allow",
            "Action": ["kms:CreateGrant"],
            "Resource": key_arn,
            "Condition": {"Bool": {"kms:GrantIsForAWSResource": "true"}},
        },
    ]
