"""Settings of `target: aws`: the EKS cluster that the stack makes, and all that belongs to it."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from infra.settings.aws_values import (
    Email,
    InstanceTypeName,
    KeyArn,
    KubernetesVersion,
    LustreCapacity,
    Moment,
    Principal,
    PublicCidr,
    Region,
    RepositoryName,
    ReservationId,
    RetentionDays,
    SubnetId,
    TagKey,
    TagValue,
    VpcCidr,
    VpcId,
    Zone,
)
from infra.settings.base import Name, Section, Switch, Whole, Words

AwsCapacity = Literal["on-demand", "spot", "odcr", "capacity-block"]
PlacementMode = Literal["auto", "none", "existing"]
OperatingSystem = Literal["al2023", "bottlerocket"]
NatGateways = Literal["none", "single", "one-per-zone"]
LustreDeployment = Literal["scratch-2", "persistent-2"]
CheckpointStore = Literal["lustre", "efs"]


class AwsNetwork(Section):
    """A VPC of the stack's own, or parts of one that exists."""

    cidr: VpcCidr = "10.0.0.0/16"
    """Addresses of the new VPC: private ones, /16 to /22; each zone gets an eighth of them. Not with `vpcId`."""
    zones: tuple[Zone, ...] = ()
    """Availability zones of the new VPC, 2 or 3 of the region: `us-east-2a`, … Not with `vpcId`."""
    nat_gateways: NatGateways = "single"
    """How private subnets reach the internet: one gateway (cheap), one in each zone (no zone is a single point of
    failure), or none: then vendors' images (nvcr.io, registry.k8s.io) need a way that you make, such as a pull-through
    cache or a transit gateway. Not with `vpcId`."""
    endpoints: Switch = True
    """Interface endpoints for ECR, STS, EC2, EKS, logs and autoscaling: that traffic stays in the VPC. The gateway
    endpoint for S3 costs nothing and is always there. Not with `vpcId`."""
    flow_logs: Switch = True
    """Record the VPC's connections in the stack's log group. Not with `vpcId`."""
    vpc_id: VpcId | None = None
    """An existing VPC; then `privateSubnets` as well. Its gateways, endpoints and flow logs are its owner's."""
    private_subnets: dict[Zone, SubnetId] = Field(default_factory=dict)
    """Existing private subnets by zone, in 2 or 3 zones of the region: `us-east-2a: subnet-0123456789abcdef0`. They
    need a way to ECR, STS, EC2, EKS and S3: a NAT gateway or endpoints."""

    @property
    def own_zones(self) -> list[str]:
        """The zones in which the stack has subnets, its own or existing ones."""
        return sorted(set(self.private_subnets if self.vpc_id else self.zones))


class AwsEndpoint(Section):
    """Who reaches the Kubernetes API."""

    public_cidrs: Annotated[tuple[PublicCidr, ...], Field(max_length=40)] = ()
    """Addresses (IPv4) from which the API can be reached over the internet; none: only from inside the VPC, which
    `pulumi up` then has to run in. `0.0.0.0/0` is refused: name your office's or VPN's addresses."""


class AwsAccess(Section):
    """Who may do what in the cluster, by IAM role. Who creates the cluster is its administrator in any case."""

    administrators: tuple[Principal, ...] = ()
    """ARNs of IAM roles or users with all rights."""
    researchers: tuple[Principal, ...] = ()
    """ARNs of IAM roles or users that may run jobs in the jobs' namespace."""


class AwsLogs(Section):
    """Logs of the control plane."""

    types: tuple[Literal["api", "audit", "authenticator", "controllerManager", "scheduler"], ...] = (
        "api",
        "audit",
        "authenticator",
    )
    """Which of them; `audit` says who did what."""
    retention_days: RetentionDays = 30
    """How long they are kept. CloudWatch takes only some numbers: 1, 3, 5, 7, 14, 30, 60, 90, 120, 150, 180, 365, …,
    3653."""


class AwsSystemPool(Section):
    """On-demand machines without GPUs, for etcd, the controller, the autoscaler and add-ons."""

    types: Annotated[tuple[InstanceTypeName, ...], Field(min_length=1, max_length=20)] = ("m7i.large",)
    """Instance types, all with the same number of CPUs, the same memory and the same architecture."""
    min: Annotated[int, Field(ge=1, le=20), Whole] = 3
    """Least number of machines; not fewer than etcd has members, each of which is on a machine of its own."""
    max: Annotated[int, Field(ge=1, le=20), Whole] = 4
    """Greatest number of machines."""
    disk_gib: Annotated[int, Field(ge=20, le=16384), Whole] = 50
    """Root disk, in GiB."""


class AwsReservation(Section):
    """Capacity that is paid for already."""

    id: ReservationId
    """Its id: `cr-0123456789abcdef0`."""
    start: Moment | None = None
    """Capacity blocks: when it begins, in UTC: `'2027-01-31T11:30:00Z'`."""
    end: Moment | None = None
    """Capacity blocks: when it ends, in UTC. EKS takes the machines away from 40 minutes before."""


class AwsRepair(Section):
    """What EKS does with machines whose GPU or fabric is broken."""

    enabled: Switch = True
    """Replace or reboot them."""
    max_parallel: Annotated[int, Field(ge=1, le=100), Whole] | None = None
    """How many at a time; absent: as many as jobs can do without, max - min where the pool has a `min`, else 1."""


class AwsNodePool(Section):
    """GPU machines of one kind, one EKS managed node group."""

    name: Name
    """Also the value of the node label `trainyard.dev/pool`."""
    types: Annotated[tuple[InstanceTypeName, ...], Field(min_length=1, max_length=20)]
    """Instance types, the same number of GPUs and EFA interfaces in all of them; the first one is what the autoscaler
    reckons with, so no other may have fewer CPUs or less memory. More than one only for spot and on-demand."""
    capacity: AwsCapacity = "on-demand"
    """`spot` machines carry a taint that only workloads which survive a reclaim tolerate. EKS updates the machines of a
    `capacity-block` only while there are none."""
    min: Annotated[int, Field(ge=0, le=1000), Whole] = 0
    """Least number of machines; 0 with `capacity-block`, which has none before it begins."""
    max: Annotated[int, Field(ge=1, le=1000), Whole] = 4
    """Greatest number of machines."""
    efa: Switch = False
    """Elastic Fabric Adapter on every machine; needs types that have it and keeps the pool in one zone."""
    zone: Zone | None = None
    """The availability zone of all machines; absent: all zones. Needed with `efa`, for reservations and for a placement
    group: each lies in one zone."""
    placement: PlacementMode = "auto"
    """Cluster placement group: `auto` makes one for on-demand pools with EFA, `none` none, `existing` takes
    `placementGroup`. Never with a reservation: a forced group breaks it."""
    placement_group: Words | None = None
    """Name of an existing placement group, for `placement: existing`."""
    reservation: AwsReservation | None = None
    """The reserved capacity; for `odcr` and `capacity-block`, which need it."""
    operating_system: OperatingSystem = "al2023"
    """Image family of the machines."""
    disk_gib: Annotated[int, Field(ge=50, le=16384), Whole] = 200
    """Root disk, in GiB: a training image is 10 to 20 GB, unpacked twice that."""
    repair: AwsRepair = AwsRepair()
    """What EKS does with broken machines."""

    @property
    def gpus_per_node(self) -> int:
        """GPUs of one machine, from the catalogue; all types of a checked pool have the same number.

        Raises:
            UnknownInstanceTypeError: the catalogue does not have the type.
        """
        from infra.catalog.instance_types import instance_type  # noqa: PLC0415 - stacks of other targets need none

        return instance_type(self.types[0]).gpus


class AwsLustre(Section):
    """FSx for Lustre: the file system for data sets and checkpoints."""

    deployment: LustreDeployment = "persistent-2"
    """`scratch-2` is cheaper, not replicated, for data that can be made again."""
    capacity_gib: LustreCapacity = 1200
    """Size in GiB: 1200, 2400, then steps of 2400."""
    throughput: Annotated[Literal[125, 250, 500, 1000], Whole] = 250
    """MB/s for each TiB of a `persistent-2`. A `scratch-2` has 200, which cannot be chosen."""
    zone: Zone
    """Its zone: that of the GPU pools which use it."""


class AwsStorage(Section):
    """File systems and buckets."""

    lustre: AwsLustre | None = None
    """FSx for Lustre; absent: none."""
    efs: Switch = True
    """EFS: shared, in all zones, no sizing; for small stacks and home folders."""
    checkpoints: CheckpointStore = "efs"
    """Where the volume of the checkpoints is."""
    archive_after_days: Annotated[int, Field(ge=1, le=3650), Whole] = 30
    """The bucket moves objects to a cheaper class after this time."""
    expire_after_days: Annotated[int, Field(ge=1, le=3650), Whole] | None = None
    """The bucket deletes checkpoints after this time, later than they are archived; absent: never."""


class AwsRegistry(Section):
    """ECR repositories of the stack's images; tags cannot be overwritten."""

    repositories: tuple[RepositoryName, ...] = ("training", "controller", "nccl-tests")
    """Names, below the cluster's name: those of the kinds of image that `trainyard images build` pushes, and your
    own."""
    keep_images: Annotated[int, Field(ge=1, le=1000), Whole] = 30
    """How many images each keeps."""


class AwsBudget(Section):
    """A monthly budget of what carries the stack's tag, with notification."""

    monthly_usd: Annotated[int, Field(ge=1, le=100_000_000, examples=[500]), Whole]
    """Limit in USD."""
    emails: Annotated[tuple[Email, ...], Field(min_length=1, max_length=10)]
    """Who is told: at 80 % of the limit, at 100 %, and when 100 % is forecast."""


class AwsQueues(Section):
    """Kueue: who may use how much of the pools."""

    enabled: Switch = True
    """Install Kueue and make the queues."""
    dedicated: dict[Name, Annotated[tuple[Name, ...], Field(min_length=1)]] = Field(default_factory=dict)
    """Queues with pools of their own: `team-a: [gpu-p5]`. Pools that no queue names are shared by the queue `shared`;
    dedicated pools that stand idle are lent to it and taken back by preemption."""


class AwsMonitoring(Section):
    """Prometheus, Alertmanager and Grafana in the cluster, with dashboards and alerts: docs/how-to/monitoring.md."""

    enabled: Switch = False
    """Install them: for stacks that people rely on. They take some 2 GiB of memory of the system machines."""
    retention_days: Annotated[int, Field(ge=1, le=365), Whole] = 15
    """How long Prometheus keeps series."""
    storage_gib: Annotated[int, Field(ge=5, le=16384), Whole] = 50
    """Size of Prometheus' volume, in GiB; the oldest series go when it is full."""
    alertmanager_secret: Name | None = None
    """A Secret of yours in the namespace `trainyard-monitoring`, key `alertmanager.yaml`: who is told of alerts;
    absent: nobody."""
    no_progress_minutes: Annotated[int, Field(ge=2, le=1440), Whole] = 15
    """After this time without a further step a job is reported; longer than its longest evaluation."""
    checkpoint_minutes: Annotated[int, Field(ge=5, le=10080), Whole] = 60
    """Older checkpoints of running jobs are reported."""


class Aws(Section):
    """Only for `target: aws`: the EKS cluster that the stack makes."""

    region: Region
    """Region: `us-east-2`."""
    cluster_name: Name | None = None
    """Name of the cluster; absent: `trainyard-<stack>`."""
    kubernetes_version: KubernetesVersion | None = None
    """Minor version of Kubernetes, in quotes: `"1.36"`; absent: the newest that the version lock has tested."""
    network: AwsNetwork = AwsNetwork()
    """A VPC of the stack's own, or parts of one that exists."""
    endpoint: AwsEndpoint = AwsEndpoint()
    """Who reaches the Kubernetes API."""
    access: AwsAccess = AwsAccess()
    """Who may do what in the cluster, by IAM role."""
    logs: AwsLogs = AwsLogs()
    """Logs of the control plane."""
    kms_key_arn: KeyArn | None = None
    """An existing KMS key for secrets, disks, file systems and logs; absent: the stack makes one."""
    system_pool: AwsSystemPool = AwsSystemPool()
    """On-demand machines without GPUs, for etcd, the controller, the autoscaler and add-ons."""
    node_pools: tuple[AwsNodePool, ...] = ()
    """GPU machines; none: a cluster without GPUs."""
    storage: AwsStorage = AwsStorage()
    """File systems and buckets."""
    registry: AwsRegistry = AwsRegistry()
    """ECR repositories of the stack's images."""
    budget: AwsBudget | None = None
    """A monthly budget with notification; absent: none."""
    queues: AwsQueues = AwsQueues()
    """Kueue: who may use how much of the pools."""
    monitoring: AwsMonitoring = AwsMonitoring()
    """Prometheus, Alertmanager and Grafana in the cluster."""
    tags: Annotated[dict[TagKey, TagValue], Field(max_length=40)] = Field(default_factory=dict)
    """Tags of every AWS resource, beside the stack's own; at most 40, as AWS takes 50 and EKS adds some."""
    protect: Switch = False
    """Production: cluster, file systems, buckets and keys can be deleted only after this is switched off, and are
    kept when the stack is destroyed."""
