"""The EKS cluster as a target: AWS's part, then what goes into the cluster because it is AWS's."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pulumi
import pulumi_kubernetes as kubernetes

from infra.aws.account import Account
from infra.aws.researchers import Researchers
from infra.aws.stack import AwsCluster
from infra.catalog.versions import versions
from infra.in_cluster.autoscaler import ClusterAutoscaler
from infra.in_cluster.dcgm_exporter import DcgmExporter
from infra.in_cluster.device_plugins import DevicePlugins
from infra.in_cluster.monitoring import FabricExporter, Monitoring
from infra.in_cluster.namespaces import NodeAgentsNamespace
from infra.in_cluster.network_policies import ClosedByDefault
from infra.in_cluster.pods import OwnPods
from infra.in_cluster.queues import Queues
from infra.in_cluster.storage_claims import CloudStorageClasses, Lustre, LustreVolume, StorageClasses
from infra.settings import Settings
from infra.settings.aws import Aws
from infra.wiring.monitoring_plan import monitoring_plan
from infra.wiring.naming import dns_policy
from infra.wiring.node_agents import node_agents_of
from infra.wiring.queue_plan import queue_plan
from infra.wiring.scheduling import POOL_LABEL, SYSTEM_POOL
from infra.wiring.storage import Storage


class AwsTarget:
    """An EKS cluster of the stack's own."""

    def __init__(self, settings: Settings, aws: Aws, stack: str, account: Account) -> None:
        self._aws, self._controller = aws, settings.images.controller
        self._made = made = AwsCluster("aws", settings=settings, aws=aws, stack=stack, account=account)
        self.provider = kubernetes.Provider(
            "cluster",
            kubeconfig=made.kubeconfig,
            # Every object comes after what is ready here, since it comes after this provider.
            opts=pulumi.ResourceOptions(depends_on=made.ready),
        )
        self._there = pulumi.ResourceOptions(provider=self.provider)
        self.own_pods: Mapping[str, Any] = {
            "dns_policy": dns_policy(settings.target),
            "node_selector": {POOL_LABEL: SYSTEM_POOL},  # machines that are neither reclaimed nor scaled to zero
        }
        self.exports: Mapping[str, Any] = {"kubeconfig": made.kubeconfig, **made.exports}

    def storage_classes(self, storage: Storage) -> StorageClasses:
        """gp3 and EFS as classes, Lustre as a volume."""
        made = self._made
        known: dict[str, pulumi.Input[str]] = {"kms-key": made.key_arn}
        if made.storage.efs_id is not None:
            known["efs"] = made.storage.efs_id
        volumes = []
        if made.storage.lustre is not None:
            system = made.storage.lustre
            lustre = Lustre(system.id, system.dns_name, system.mount_name)
            volumes = [
                LustreVolume(plan.name, plan=plan, file_system=lustre, opts=self._there)
                for plan in storage.static_volumes
            ]
        return CloudStorageClasses(
            "storage-classes", plans=storage.classes, known=known, volumes=volumes, opts=self._there
        )

    def machines(self, pods: OwnPods) -> None:
        """Closed doors, agents on the GPU machines, the autoscaler, queues, and who may use them."""
        lock, kubernetes_version = versions(), self._made.kubernetes
        agents = node_agents_of(self._aws)
        namespace = NodeAgentsNamespace("node-agents", opts=self._there).node_agents
        DevicePlugins(
            "device-plugins",
            namespace=namespace,
            nvidia_image=lock.image("nvidia-device-plugin"),
            nvidia=agents.nvidia,
            efa_image=lock.image("efa-device-plugin", region=self._aws.region),
            efa=agents.efa,
            opts=self._there,
        )
        if agents.dcgm is not None:
            DcgmExporter(
                "dcgm-exporter",
                namespace=namespace,
                image=lock.image("dcgm-exporter"),
                on=agents.dcgm,
                opts=self._there,
            )
        if (plan := monitoring_plan(self._aws)) is not None:
            if agents.efa is not None:
                FabricExporter(
                    "fabric-exporter", namespace=namespace, image=self._controller, on=agents.efa, opts=self._there
                )
            chart = lock.chart("kube-prometheus-stack")
            Monitoring("monitoring", plan=plan, chart=chart, pods=pods, opts=self._there)
        ClusterAutoscaler(
            "autoscaler",
            pods=pods,
            image=lock.image("cluster-autoscaler", kubernetes=kubernetes_version),
            cluster_name=self._made.name,
            region=self._aws.region,
            opts=self._there,
        )
        ClosedByDefault("closed-by-default", namespace=pods.namespace, opts=self._there)
        if self._aws.access.researchers:
            Researchers("researchers", namespace=pods.jobs, opts=self._there)
        if (queues := queue_plan(self._aws)) is not None:
            Queues("queues", plan=queues, chart=lock.chart("kueue"), pods=pods, opts=self._there)
