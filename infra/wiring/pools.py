"""Node groups: from a pool of the settings to all that its launch template and its EKS node group must agree on.

Rules that EKS and EC2 hold these two to (aws-gpu-clusters facts §1.3, §2; EKS user guide, launch templates):
the instance type stands in one of them and never in both; the disk's size stands in the template; a capacity block has
its type, its market and its reservation in the template, and no machine is asked for before it begins.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from infra.catalog.instance_types import InstanceType, instance_type
from infra.catalog.versions import versions
from infra.wiring.autoscaling import autoscaler_tags
from infra.wiring.errors import WiringError
from infra.wiring.interfaces import PRIMARY, Interface, interfaces_of
from infra.wiring.naming import node_group_name
from infra.wiring.placement import NOWHERE, Placement, placement_of
from infra.wiring.scheduling import (
    ACCELERATOR_LABEL,
    CAPACITY_LABEL,
    EFA_LABEL,
    POOL_LABEL,
    SYSTEM_POOL,
    Taint,
    labels_of,
    taints_of,
)
from infra.wiring.user_data import user_data

if TYPE_CHECKING:
    from infra.settings.aws import Aws, AwsNodePool, OperatingSystem

CapacityType = Literal["ON_DEMAND", "SPOT", "CAPACITY_BLOCK"]

_CAPACITY_TYPES: dict[str, CapacityType] = {
    "on-demand": "ON_DEMAND",
    "odcr": "ON_DEMAND",  # a reservation is used by on-demand machines that name it
    "spot": "SPOT",
    "capacity-block": "CAPACITY_BLOCK",
}
# Where images, containers and pod folders are: AL2023 has one disk, Bottlerocket one for itself and one for data.
_DISK_DEVICES: dict[OperatingSystem, str] = {"al2023": "/dev/xvda", "bottlerocket": "/dev/xvdb"}
_SEVERAL_GPUS = "nvidia"
_ARCHITECTURES = {"x86_64": "amd64", "arm64": "arm64"}


@dataclass(frozen=True)
class Repair:
    """Node auto repair of a node group."""

    enabled: bool
    max_parallel: int
    """How many machines may be replaced or rebooted at a time."""


@dataclass(frozen=True)
class PoolPlan:
    """One EKS managed node group with its launch template."""

    name: str
    """Name of the pool; `infra.wiring.naming.node_group_name` makes that of its node group of it."""
    instance_types: tuple[str, ...]
    """In order of preference; the autoscaler reckons with the first."""
    type_in_template: bool
    """The (only) type stands in the launch template, and the node group's list is left out; else the other way."""
    capacity_type: CapacityType
    market: Literal["capacity-block"] | None
    """Market type in the launch template. Never spot: EKS refuses spot options in a template."""
    reservation_id: str | None
    """Capacity reservation that the launch template targets."""
    interfaces: tuple[Interface, ...]
    placement: Placement
    zone: str | None
    """The one zone whose subnet the node group uses; None: those of all zones."""
    min: int
    max: int
    desired: int
    """At creation; from then on it is the autoscaler's."""
    disk_gib: int
    root_device: str
    """Device of the disk on which images and pods are."""
    ami_type: str
    release_version: str
    user_data: str | None
    """Plain text; launch templates take it in base64. None: none."""
    labels: Mapping[str, str]
    taints: tuple[Taint, ...]
    """Kubernetes' spelling; `as_eks()` gives that of the node group."""
    tags: Mapping[str, str]
    """Tags of the node group beside the stack's own: what the autoscaler must know."""
    repair: Repair
    max_unavailable: int
    """Machines that an update takes away at a time."""

    @property
    def efa(self) -> bool:
        """Whether the machines have EFA."""
        return any(each.kind == "efa-only" for each in self.interfaces)


def pool_plans(aws: Aws, cluster: str) -> tuple[PoolPlan, ...]:
    """The GPU pools, in the order of the settings.

    Raises:
        UnknownInstanceTypeError: the catalogue does not have a type.
        WiringError: the types of a pool do not go together.
    """
    return tuple(_gpu_plan(aws, pool, cluster) for pool in aws.node_pools)


def system_plan(aws: Aws) -> PoolPlan:
    """The pool without GPUs and without taints: on-demand, so that etcd and the controller outlive any reclaim.

    Raises:
        UnknownInstanceTypeError: the catalogue does not have a type.
        WiringError: the types do not go together.
    """
    pool = aws.system_pool
    types = [instance_type(name) for name in pool.types]
    _same_architecture(SYSTEM_POOL, types)
    image = versions().ami(_kubernetes(aws), "al2023", types[0].architecture, gpu=False)
    return PoolPlan(
        name=SYSTEM_POOL,
        instance_types=pool.types,
        type_in_template=False,
        capacity_type="ON_DEMAND",
        market=None,
        reservation_id=None,
        interfaces=(PRIMARY,),
        placement=NOWHERE,
        zone=None,
        min=pool.min,
        max=pool.max,
        desired=pool.min,
        disk_gib=pool.disk_gib,
        root_device=_DISK_DEVICES["al2023"],
        ami_type=image.ami_type,
        release_version=image.release_version,
        user_data=user_data(types[0], operating_system="al2023", efa=False),
        labels={POOL_LABEL: SYSTEM_POOL, CAPACITY_LABEL: "on-demand"},
        taints=(),
        tags={},
        # etcd keeps its quorum only if its members' machines go one after the other.
        repair=Repair(enabled=True, max_parallel=1),
        max_unavailable=1,
    )


def _gpu_plan(aws: Aws, pool: AwsNodePool, cluster: str) -> PoolPlan:
    types = [instance_type(name) for name in pool.types]
    first = types[0]
    _same_architecture(pool.name, types)
    image = versions().ami(_kubernetes(aws), pool.operating_system, first.architecture, gpu=True)
    block = pool.capacity == "capacity-block"
    if block and len(types) > 1:
        raise WiringError(
            f"pool {pool.name!r} is a capacity block of {len(types)} types: its launch template names exactly one."
            " Leave the type in `types` that the block was bought for."
        )
    return PoolPlan(
        name=pool.name,
        instance_types=pool.types,
        type_in_template=block,
        capacity_type=_CAPACITY_TYPES[pool.capacity],
        market="capacity-block" if block else None,
        reservation_id=pool.reservation.id if pool.reservation else None,
        interfaces=_layout(pool, types),
        placement=placement_of(pool, cluster),
        zone=pool.zone,
        # Before its block begins a pool can have no machine; the autoscaler adds them when it has.
        min=0 if block else pool.min,
        max=pool.max,
        desired=0 if block else pool.min,
        disk_gib=pool.disk_gib,
        root_device=_DISK_DEVICES[pool.operating_system],
        ami_type=image.ami_type,
        release_version=image.release_version,
        user_data=user_data(first, operating_system=pool.operating_system, efa=pool.efa),
        labels=_labels(pool, types),
        taints=taints_of(pool),
        tags=autoscaler_tags(pool),
        repair=Repair(pool.repair.enabled, pool.repair.max_parallel or _elasticity(pool)),
        # One worker away costs a job one rendezvous; an update is in no hurry.
        max_unavailable=1,
    )


def node_labels(plan: PoolPlan, zone: str, *, cluster: str, type_name: str | None = None) -> dict[str, str]:
    """All labels of a node of a pool that scheduling can ask for.

    Args:
        plan: The pool.
        zone: Availability zone of the node.
        cluster: Name of its cluster.
        type_name: Its instance type; absent: the first of the pool.
    """
    return dict(plan.labels) | eks_labels(
        group=node_group_name(cluster, plan.name),
        capacity_type=plan.capacity_type,
        machine=instance_type(type_name or plan.instance_types[0]),
        zone=zone,
    )


def eks_labels(*, group: str, capacity_type: str, machine: InstanceType, zone: str) -> dict[str, str]:
    """Labels that EKS, the kubelet and the cloud controller give to a node beside those of its node group.

    Args:
        group: Name of the node group.
        capacity_type: As the EKS API spells it.
        machine: Instance type of the node.
        zone: Its availability zone; the region is that without the last letter.
    """
    return {
        "eks.amazonaws.com/nodegroup": group,
        "eks.amazonaws.com/capacityType": capacity_type,
        "node.kubernetes.io/instance-type": machine.name,
        "topology.kubernetes.io/region": zone[:-1],
        "topology.kubernetes.io/zone": zone,
        "kubernetes.io/arch": _ARCHITECTURES[machine.architecture],
        "kubernetes.io/os": "linux",
    }


def _labels(pool: AwsNodePool, types: list[InstanceType]) -> dict[str, str]:
    labels = labels_of(pool)
    if accelerators := {each.accelerator_label for each in types if each.accelerator_label}:
        # That it is there makes the autoscaler wait for GPUs; a pool of several kinds cannot say which.
        labels[ACCELERATOR_LABEL] = accelerators.pop() if len(accelerators) == 1 else _SEVERAL_GPUS
    if pool.efa:
        labels[EFA_LABEL] = "true"
    return labels


def _kubernetes(aws: Aws) -> str:
    return aws.kubernetes_version or versions().default_kubernetes


def _layout(pool: AwsNodePool, types: list[InstanceType]) -> tuple[Interface, ...]:
    """One launch template serves all types of a pool, so one layout of interfaces has to."""
    layouts = {each.name: interfaces_of(each, efa=pool.efa) for each in types}
    first = layouts[types[0].name]
    if others := [name for name, layout in layouts.items() if layout != first]:
        raise WiringError(
            f"pool {pool.name!r}: the EFA interfaces of {types[0].name} are laid out differently from those of"
            f" {', '.join(others)}, and one launch template serves all types. Give each of them a pool of its own."
        )
    return first


def _same_architecture(pool: str, types: list[InstanceType]) -> None:
    if len({each.architecture for each in types}) > 1:
        named = ", ".join(f"{each.name} ({each.architecture})" for each in types)
        raise WiringError(
            f"pool {pool!r} mixes architectures: {named}. One image serves all types of a pool: give each architecture"
            " a pool of its own."
        )


def _elasticity(pool: AwsNodePool) -> int:
    """How many machines of a pool may be in repair at a time: those which jobs can do without.

    Jobs that keep going with `min` machines can lose max - min. A `min` of 0 is about cost and says nothing of jobs:
    then, as where jobs can do without none, it is one at a time, else nothing would ever be repaired.
    """
    return max(1, pool.max - pool.min) if pool.min else 1
