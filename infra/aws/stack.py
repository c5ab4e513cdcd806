"""All that `target: aws` makes in AWS, put together: from the key by the network and the cluster to the budget."""

from __future__ import annotations

from typing import Any

import pulumi

from infra.aws.account import STACK_TAG, Account
from infra.aws.addons import Addons, addon_plans
from infra.aws.budget import Budget
from infra.aws.cluster import Cluster
from infra.aws.encryption import Encryption
from infra.aws.identity import Identity, PodRole, autoscaler_rights
from infra.aws.network import Network
from infra.aws.node_pool import Fabric, NodePool
from infra.aws.registry import Registry
from infra.aws.storage import Storage, training_rights
from infra.catalog.versions import versions
from infra.in_cluster.autoscaler import AUTOSCALER_ACCOUNT
from infra.settings import Settings
from infra.settings.aws import Aws, AwsNodePool
from infra.wiring.job_resources import job_resources
from infra.wiring.naming import SYSTEM_NAMESPACE, cluster_name
from infra.wiring.pools import pool_plans, system_plan

CLUSTER_TYPE = "trainyard:aws:AwsCluster"


class RegistryAlone(pulumi.ComponentResource):
    """Of what `AwsCluster` makes the key and the registry: images are pushed before a cluster pulls them.

    It has type and name of `AwsCluster`, so that all of this is found again when the whole is made. To be run with
    targets: an engine that knows none would take the rest of the stack for removed.
    """

    exports: dict[str, object]
    """Outputs of the stack, as far as they are known."""

    def __init__(self, name: str, *, settings: Settings, aws: Aws, stack: str, account: Account) -> None:
        """Make the registry of a stack; the arguments are those of `AwsCluster`."""
        super().__init__(CLUSTER_TYPE, name, None, pulumi.ResourceOptions(providers=[account.provider]))
        here = pulumi.ResourceOptions(parent=self)
        cluster = cluster_name(settings, stack)
        key = _encryption(aws, cluster, account, here)
        self.exports = {"region": aws.region, "registries": _registry(aws, cluster, key, here).urls}
        self.register_outputs({})


class AwsCluster(pulumi.ComponentResource):
    """An EKS cluster with its network, machines, file systems, registry and budget."""

    name: pulumi.Output[str]
    """Of the cluster."""
    kubernetes: str
    """Its minor version."""
    kubeconfig: pulumi.Output[str]
    key_arn: pulumi.Output[str]
    storage: Storage
    ready: list[pulumi.Resource]
    """What runs in the cluster comes after these, and goes before them."""
    exports: dict[str, Any]
    """Outputs of the stack that only this target has."""

    def __init__(self, name: str, *, settings: Settings, aws: Aws, stack: str, account: Account) -> None:
        """Make the cluster of a stack.

        Args:
            name: logical name.
            settings: the stack's settings.
            aws: their section for this target.
            stack: name of the stack, after which the cluster is named where the settings name none.
            account: where it is made.
        """
        super().__init__(CLUSTER_TYPE, name, None, pulumi.ResourceOptions(providers=[account.provider]))
        here = pulumi.ResourceOptions(parent=self)
        cluster = cluster_name(settings, stack)
        self.kubernetes = kubernetes = aws.kubernetes_version or versions().default_kubernetes

        key = _encryption(aws, cluster, account, here)
        self.key_arn = key.key_arn
        network = Network(
            "network",
            cluster=cluster,
            network=aws.network,
            retention_days=aws.logs.retention_days,
            key_arn=key.key_arn,
            account=account,
            opts=here,
        )
        identity = Identity("identity", cluster=cluster, account=account, opts=here)
        control = Cluster(
            "eks",
            cluster=cluster,
            version=kubernetes,
            aws=aws,
            account=account,
            identity=identity,
            key_arn=key.key_arn,
            subnet_ids=network.private_in(None),
            jobs_namespace=settings.namespace,
            opts=here,
        )
        self.name, self.kubeconfig = control.name, control.kubeconfig

        addons = Addons(
            "addons",
            cluster=cluster,
            cluster_name=control.name,
            kubernetes=kubernetes,
            plans=addon_plans(aws),
            account=account,
            key_arn=key.key_arn,
            opts=here,
        )
        plans = (system_plan(aws), *pool_plans(aws, cluster))
        fabric = None
        if any(plan.efa for plan in plans):
            fabric = Fabric("fabric", cluster=cluster, vpc_id=network.vpc_id, opts=here)
        system, *_ = [
            NodePool(
                plan.name,
                plan=plan,
                cluster=control,
                network=network,
                node_role_arn=identity.node_role_arn,
                efa_group_id=fabric.group_id if fabric else None,
                key_arn=key.key_arn,
                tags=account.tags,
                after=[*addons.made, *identity.attachments, *network.ways_out],
                opts=here,
            )
            for plan in plans
        ]
        addons.with_nodes(system.group)

        self.storage = Storage(
            "storage",
            cluster=cluster,
            storage=aws.storage,
            network=network,
            node_group_id=control.security_group_id,
            key_arn=key.key_arn,
            account=account,
            protect=aws.protect,
            opts=here,
        )
        registry = _registry(aws, cluster, key, here)
        if aws.budget:
            Budget("budget", cluster=cluster, budget=aws.budget, tag=(STACK_TAG, stack), opts=here)
        autoscaler = PodRole(
            "autoscaler",
            cluster=cluster,
            use="autoscaler",
            account=account,
            policies={"scale": autoscaler_rights(cluster, account)},
            opts=here,
        )
        training = PodRole(
            "training",
            cluster=cluster,
            use="training",
            account=account,
            policies=training_rights(self.storage.bucket, account, key.key_arn),
            opts=here,
        )
        self.ready = [
            system.group,
            *addons.made,
            *control.access,
            *self.storage.ready,
            autoscaler.of(AUTOSCALER_ACCOUNT, cluster_name=control.name, namespace=SYSTEM_NAMESPACE),
            # Whatever runs in the jobs' namespace and names no account of its own.
            training.of("default", cluster_name=control.name, namespace=settings.namespace),
        ]
        self.exports = {
            "clusterName": control.name,
            "region": aws.region,
            "bucket": self.storage.bucket,
            "registries": registry.urls,
            "pools": {pool.name: _for_jobs(pool) for pool in aws.node_pools},
        }
        self.register_outputs({"kubeconfig": self.kubeconfig})


def _encryption(aws: Aws, cluster: str, account: Account, here: pulumi.ResourceOptions) -> Encryption:
    existing, protect = aws.kms_key_arn, aws.protect
    return Encryption("encryption", cluster=cluster, existing=existing, account=account, protect=protect, opts=here)


def _registry(aws: Aws, cluster: str, key: Encryption, here: pulumi.ResourceOptions) -> Registry:
    wanted, protect = aws.registry, aws.protect
    return Registry("registry", cluster=cluster, registry=wanted, key_arn=key.key_arn, protect=protect, opts=here)


def _for_jobs(pool: AwsNodePool) -> dict[str, Any]:
    """What a worker of a pool has to say, under the names that a pod has for it."""
    worker = job_resources(pool)
    return {
        "requests": worker.requests(),
        "limits": worker.limits(),
        "shmMib": worker.shm_mib,
        "nodeSelector": worker.node_selector,
        "tolerations": worker.tolerations,
        "annotations": worker.topology_annotations,
        "terminationGracePeriodSeconds": worker.grace_seconds,
    }
