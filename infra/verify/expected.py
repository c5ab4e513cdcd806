"""What a stack must be, by its settings and the catalogue: never by the cluster that is looked at.

A cluster that lost half of its EFA interfaces is in agreement with itself. So every number that `trainyard verify`
holds it to is made here, before anything is asked of it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from infra.catalog.instance_types import instance_type
from infra.catalog.versions import Versions, versions
from infra.wiring.allocatable import allocatable
from infra.wiring.etcd_layout import SERVICE as ETCD
from infra.wiring.images import driver_of
from infra.wiring.job_resources import job_resources
from infra.wiring.naming import KUEUE_NAMESPACE, NODE_AGENTS_NAMESPACE, SYSTEM_NAMESPACE, cluster_name, node_group_name
from infra.wiring.node_agents import OnNodes, node_agents_of
from infra.wiring.pools import PoolPlan, pool_plans, system_plan
from infra.wiring.queue_plan import queue_plan
from infra.wiring.scheduling import (
    EFA_RESOURCE,
    GPU_RESOURCE,
    PRIORITY_CONTROL,
    PRIORITY_TRAINING,
    PRIORITY_TRAINING_LOW,
    Taint,
    labels_of,
    taints_of,
)
from infra.wiring.storage import CHECKPOINT_CLAIM
from training.controller.rbac import DEPLOYMENT_NAME

if TYPE_CHECKING:
    from infra.settings import NodePool, Settings
    from infra.settings.aws import Aws, AwsNodePool

Kind = Literal["Deployment", "StatefulSet", "DaemonSet"]
TYPE_LABEL = "node.kubernetes.io/instance-type"
_AUTOSCALER = "cluster-autoscaler"
_ARCHITECTURES = {"x86_64": "amd64", "arm64": "arm64"}


@dataclass(frozen=True)
class Machines:
    """What a pool's machines must be."""

    pool: str
    least: int
    most: int
    """The same where nothing scales the pool."""
    labels: Mapping[str, str]
    taints: tuple[Taint, ...]
    devices: Mapping[str, Mapping[str, int]]
    """What a machine offers exactly, by instance type; without types, of the local stack, the key is empty."""
    hugepages_mib: int
    """What a worker of the pool takes of them, so the least."""
    types: tuple[str, ...] = ()
    """Instance types; none: the settings name none."""
    driver: str | None = None
    """NVIDIA driver of its machine image; None: not known beforehand, or no GPUs."""

    @property
    def gpus(self) -> int:
        """GPUs of one machine."""
        return min((offer.get(GPU_RESOURCE, 0) for offer in self.devices.values()), default=0)

    @property
    def efa(self) -> bool:
        """Whether they have EFA."""
        return any(offer.get(EFA_RESOURCE) for offer in self.devices.values())


@dataclass(frozen=True)
class Workload:
    """Something that must run in the cluster."""

    kind: Kind
    namespace: str
    name: str
    replicas: int | None = None
    """How many pods; None: for a DaemonSet one on each of the machines of `pools`."""
    images: frozenset[str] = frozenset()
    """Of its containers; none: another's lock has them (a chart's, an add-on's)."""
    pools: tuple[str, ...] = ()

    @property
    def key(self) -> str:
        """As in `Deployment trainyard-system/etcd`."""
        return f"{self.kind} {self.namespace}/{self.name}"


@dataclass(frozen=True)
class Expected:
    """All of it."""

    target: str
    kubernetes: str | None
    """Minor version; None: the settings do not say (a cluster that exists)."""
    machines: tuple[Machines, ...]
    """None: the settings name no machines (a cluster that exists)."""
    workloads: tuple[Workload, ...]
    definitions: tuple[str, ...]
    """Custom resources' definitions."""
    priorities: tuple[str, ...]
    claim: str
    """`namespace/name` of the volume of the checkpoints."""
    addons: Mapping[str, str]
    """Versions of EKS's add-ons by name."""
    cluster: str | None
    """Name of the EKS cluster; None: it is none."""
    region: str | None


def expected(settings: Settings, stack: str, catalog: Versions | None = None) -> Expected:
    """What a stack must be.

    Args:
        settings: of the stack.
        stack: its name.
        catalog: the version lock; absent: the project's.

    Raises:
        UnknownInstanceTypeError: the catalogue does not have a type.
        NotInLockError: the version lock does not have what the settings ask for.
    """
    lock = catalog or versions()
    aws = settings.aws
    minor = _local_minor() if settings.target == "local" else None
    if aws is not None:
        minor = aws.kubernetes_version or lock.default_kubernetes
    return Expected(
        target=settings.target,
        kubernetes=minor,
        machines=_aws_machines(settings, aws, stack) if aws else tuple(map(_local_machines, settings.node_pools)),
        workloads=(*_own(settings), *(_of_aws(aws, lock) if aws else ())),
        definitions=(
            "elasticjobs.elastic.pytorch.org",
            *(("pytorchjobs.kubeflow.org",) if settings.controller.pytorch_jobs else ()),
        ),
        priorities=(PRIORITY_CONTROL, PRIORITY_TRAINING, PRIORITY_TRAINING_LOW),
        claim=f"{settings.namespace}/{CHECKPOINT_CLAIM}",
        addons=_addons(aws, lock, minor) if aws and minor else {},
        cluster=cluster_name(settings, stack) if aws else None,
        region=aws.region if aws else None,
    )


def _local_minor() -> str:
    from infra.local.engines.catalogue import KUBERNETES_VERSION  # noqa: PLC0415

    return KUBERNETES_VERSION.rpartition(".")[0]


def _local_machines(pool: NodePool) -> Machines:
    return Machines(
        pool=pool.name,
        least=pool.nodes,
        most=pool.nodes,
        labels=labels_of(pool),
        taints=taints_of(pool),
        devices={"": {GPU_RESOURCE: pool.gpus_per_node, EFA_RESOURCE: 0}},
        hugepages_mib=0,
    )


def _aws_machines(settings: Settings, aws: Aws, stack: str) -> tuple[Machines, ...]:
    cluster = cluster_name(settings, stack)
    pools = {pool.name: pool for pool in aws.node_pools}
    return tuple(
        _of_plan(aws, plan, pools.get(plan.name), cluster) for plan in (system_plan(aws), *pool_plans(aws, cluster))
    )


def _of_plan(aws: Aws, plan: PoolPlan, pool: AwsNodePool | None, cluster: str) -> Machines:
    labels = {
        **plan.labels,
        "eks.amazonaws.com/nodegroup": node_group_name(cluster, plan.name),
        "eks.amazonaws.com/capacityType": plan.capacity_type,
        "kubernetes.io/arch": _ARCHITECTURES[instance_type(plan.instance_types[0]).architecture],
    }
    if plan.zone:
        labels["topology.kubernetes.io/zone"] = plan.zone
    offers = {name: allocatable(instance_type(name), efa=plan.efa) for name in plan.instance_types}
    return Machines(
        pool=plan.name,
        least=plan.min,
        most=plan.max,
        labels=labels,
        taints=plan.taints,
        devices={
            name: {resource: offer.get(resource, 0) for resource in (GPU_RESOURCE, EFA_RESOURCE)}
            for name, offer in offers.items()
        },
        hugepages_mib=job_resources(pool).hugepages_mib if pool else 0,
        types=plan.instance_types,
        driver=driver_of(aws, pool) if pool else None,
    )


def _own(settings: Settings) -> Sequence[Workload]:
    images = settings.images
    return (
        Workload(
            "Deployment",
            SYSTEM_NAMESPACE,
            DEPLOYMENT_NAME,
            replicas=settings.controller.replicas,
            images=frozenset({images.controller}),
        ),
        Workload(
            "StatefulSet", SYSTEM_NAMESPACE, ETCD, replicas=settings.etcd.members, images=frozenset({images.etcd})
        ),
    )


def _of_aws(aws: Aws, lock: Versions) -> list[Workload]:
    minor = aws.kubernetes_version or lock.default_kubernetes
    agents = node_agents_of(aws)
    with_gpus = [pool for pool in aws.node_pools if pool.gpus_per_node]
    found = [
        _agent("nvidia-device-plugin", lock.image("nvidia-device-plugin"), agents.nvidia, with_gpus),
        _agent(
            "efa-device-plugin",
            lock.image("efa-device-plugin", region=aws.region),
            agents.efa,
            [pool for pool in aws.node_pools if pool.efa],
        ),
        _agent("dcgm-exporter", lock.image("dcgm-exporter"), agents.dcgm, with_gpus),
        Workload(
            "Deployment",
            SYSTEM_NAMESPACE,
            _AUTOSCALER,
            replicas=1,
            images=frozenset({lock.image("cluster-autoscaler", kubernetes=minor)}),
        ),
        Workload("Deployment", KUEUE_NAMESPACE, "kueue-controller-manager", replicas=1) if queue_plan(aws) else None,
    ]
    return [workload for workload in found if workload is not None]


def _agent(name: str, image: str, on: OnNodes | None, pools: Sequence[AwsNodePool]) -> Workload | None:
    if on is None:
        return None
    names = tuple(pool.name for pool in pools if pool.name not in on.except_pools)
    return Workload("DaemonSet", NODE_AGENTS_NAMESPACE, name, images=frozenset({image}), pools=names)


def _addons(aws: Aws, lock: Versions, minor: str) -> dict[str, str]:
    from infra.aws.addons import addon_plans  # noqa: PLC0415 - brings the whole of Pulumi's package for AWS

    return {plan.name: lock.addon(plan.name, minor) for plan in addon_plans(aws)}
