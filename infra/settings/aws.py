"""Settings of `target: aws`: the EKS cluster that the stack makes, and all that belongs to it."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from infra.settings.base import Name, Section, Switch, Whole, Words

AwsCapacity = Literal["on-demand", "spot", "odcr", "capacity-block"]
PlacementMode = Literal["auto", "none", "existing"]
OperatingSystem = Literal["al2023", "bottlerocket"]
NatGateways = Literal["none", "single", "one-per-zone"]
LustreDeployment = Literal["scratch-2", "persistent-2"]
CheckpointStore = Literal["lustre", "efs"]


class AwsNetwork(Section):
    """A VPC of the stack's own, or parts of one that exists."""

    cidr: Words = "10.0.0.0/16"
    """Addresses of the new VPC. Not with `vpcId`."""
    zones: tuple[Words, ...] = ()
    """Availability zones of the new VPC, 2 or 3 of the region: `us-east-2a`, … Not with `vpcId`."""
    nat_gateways: NatGateways = "single"
    """How private subnets reach the internet: one gateway (cheap), one in each zone (no zone is a single point of
    failure), or none (all images and packages come through endpoints and a registry of the account)."""
    endpoints: Switch = True
    """Interface endpoints for ECR, STS, EC2, EKS, logs and autoscaling: that traffic stays in the VPC. The gateway
    endpoint for S3 costs nothing and is always there."""
    flow_logs: Switch = True
    """Record the VPC's connections in the stack's log group."""
    vpc_id: Words | None = None
    """An existing VPC; then `privateSubnets` as well."""
    private_subnets: dict[str, Words] = Field(default_factory=dict)
    """Existing private subnets by zone: `us-east-2a: subnet-0123`."""


class AwsEndpoint(Section):
    """Who reaches the Kubernetes API."""

    public_cidrs: tuple[Words, ...] = ()
    """Addresses from which the API can be reached over the internet; none: only from inside the VPC. `0.0.0.0/0` is
    refused: name your office's or VPN's addresses."""


class AwsAccess(Section):
    """Who may do what in the cluster, by IAM role. Who creates the cluster is its administrator in any case."""

    administrators: tuple[Words, ...] = ()
    """ARNs of IAM roles or users with all rights."""
    researchers: tuple[Words, ...] = ()
    """ARNs of IAM roles or users that may run jobs in the jobs' namespace."""


class AwsLogs(Section):
    """Logs of the control plane."""

    types: tuple[Literal["api", "audit", "authenticator", "controllerManager", "scheduler"], ...] = (
        "api",
        "audit",
        "authenticator",
    )
    """Which."""
    retention_days: Annotated[int, Field(ge=1, le=3653), Whole] = 30
    """How long they are kept. CloudWatch takes only some numbers: 1, 3, 5, 7, 14, 30, 60, 90, 120, 150, 180, 365, …"""


class AwsSystemPool(Section):
    """On-demand machines without GPUs, for etcd, the controller, the autoscaler and add-ons."""

    types: tuple[Words, ...] = ("m7i.large",)
    """Instance types, all with the same number of CPUs and the same memory."""
    min: Annotated[int, Field(ge=1, le=20), Whole] = 2
    """Least number of machines."""
    max: Annotated[int, Field(ge=1, le=20), Whole] = 4
    """Greatest number of machines."""
    disk_gib: Annotated[int, Field(ge=20, le=16384), Whole] = 50
    """Root disk."""


class AwsReservation(Section):
    """Capacity that is paid for already."""

    id: Words
    """Its id: `cr-0123456789abcdef0`."""
    start: Words | None = None
    """Capacity blocks: when it begins, `2027-01-31T11:30:00Z`."""
    end: Words | None = None
    """Capacity blocks: when it ends. EKS takes the machines away from 40 minutes before."""


class AwsRepair(Section):
    """What EKS does with machines whose GPU or fabric is broken."""

    enabled: Switch = True
    """Replace or reboot them."""
    max_parallel: Annotated[int, Field(ge=1, le=100), Whole] | None = None
    """How many at a time; absent: derived from the elasticity that jobs of the pool have (max - min), at least 1."""


class AwsNodePool(Section):
    """GPU machines of one kind, one EKS managed node group."""

    name: Name
    """Also the value of the node label `trainyard.dev/pool`."""
    types: tuple[Words, ...]
    """Instance types, the same number of GPUs and EFA interfaces in all of them; the first one is what the autoscaler
    reckons with. More than one only for spot and on-demand."""
    capacity: AwsCapacity = "on-demand"
    """`spot` machines carry a taint that only workloads which survive a reclaim tolerate."""
    min: Annotated[int, Field(ge=0, le=1000), Whole] = 0
    """Least number of machines."""
    max: Annotated[int, Field(ge=1, le=1000), Whole] = 4
    """Greatest number of machines."""
    efa: Switch = False
    """Elastic Fabric Adapter on every machine; needs types that have it and keeps the pool in one zone."""
    zone: Words | None = None
    """The availability zone of all machines; absent: all zones. Needed with `efa`, and for reservations."""
    placement: PlacementMode = "auto"
    """Cluster placement group: `auto` makes one for on-demand pools with EFA, `none` none, `existing` takes
    `placementGroup`. Never with a reservation: a forced group breaks it."""
    placement_group: Words | None = None
    """Name of an existing placement group, for `placement: existing`."""
    reservation: AwsReservation | None = None
    """For capacity `odcr` and `capacity-block`."""
    operating_system: OperatingSystem = "al2023"
    """Image family of the machines."""
    disk_gib: Annotated[int, Field(ge=50, le=16384), Whole] = 200
    """Root disk: a training image is 10 to 20 GB, unpacked twice that."""
    repair: AwsRepair = AwsRepair()
    """What EKS does with broken machines."""


class AwsLustre(Section):
    """FSx for Lustre: the file system for data sets and checkpoints."""

    deployment: LustreDeployment = "persistent-2"
    """`scratch-2` is cheaper, not replicated, for data that can be made again."""
    capacity_gib: Annotated[int, Field(ge=1200), Whole] = 1200
    """Size: 1200, 2400, then steps of 2400."""
    throughput: Annotated[int, Field(ge=125, le=1000), Whole] = 250
    """MB/s for each TiB, for persistent-2: 125, 250, 500 or 1000."""
    zone: Words
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
    """The bucket deletes checkpoints after this time; absent: never."""


class AwsRegistry(Section):
    """ECR repositories of the stack's images; tags cannot be overwritten."""

    repositories: tuple[Words, ...] = ("training", "controller")
    """Names, below the cluster's name."""
    keep_images: Annotated[int, Field(ge=1, le=1000), Whole] = 30
    """How many images each keeps."""


class AwsBudget(Section):
    """A monthly budget of what carries the stack's tag, with notification."""

    monthly_usd: Annotated[int, Field(ge=1, le=100_000_000), Whole]
    """Limit in USD."""
    emails: tuple[Words, ...]
    """Who is told: at 80 % of the limit, at 100 %, and when 100 % is forecast."""


class AwsQueues(Section):
    """Kueue: who may use how much of the pools."""

    enabled: Switch = True
    """Install Kueue and make the queues."""
    dedicated: dict[str, tuple[Words, ...]] = Field(default_factory=dict)
    """Queues with pools of their own: `team-a: [gpu-p5]`. Pools that no queue names are shared by the queue `shared`;
    dedicated pools that stand idle are lent to it and taken back by preemption."""


class Aws(Section):
    """Only for `target: aws`: the EKS cluster that the stack makes."""

    region: Words
    """Region: `us-east-2`."""
    cluster_name: Name | None = None
    """Name of the cluster; absent: `trainyard-<stack>`."""
    kubernetes_version: Words | None = None
    """Minor version of Kubernetes; absent: the newest that the version lock has tested."""
    cuda: Words = "13.0"
    """CUDA of the training image: the driver of the machines must be new enough for it."""
    network: AwsNetwork = AwsNetwork()
    """A VPC of the stack's own, or parts of one that exists."""
    endpoint: AwsEndpoint = AwsEndpoint()
    """Who reaches the Kubernetes API."""
    access: AwsAccess = AwsAccess()
    """Who may do what in the cluster, by IAM role."""
    logs: AwsLogs = AwsLogs()
    """Logs of the control plane."""
    kms_key_arn: Words | None = None
    """An existing KMS key for secrets, disks, file systems and logs; absent: the stack makes one."""
    system_pool: AwsSystemPool = AwsSystemPool()
    """On-demand machines without GPUs, for etcd, the controller, the autoscaler and add-ons."""
    node_pools: tuple[AwsNodePool, ...] = ()
    """GPU machines."""
    storage: AwsStorage = AwsStorage()
    """File systems and buckets."""
    registry: AwsRegistry = AwsRegistry()
    """ECR repositories."""
    budget: AwsBudget | None = None
    """A monthly budget with notification; absent: none."""
    queues: AwsQueues = AwsQueues()
    """Kueue."""
    tags: dict[str, Words] = Field(default_factory=dict)
    """Tags of every AWS resource, beside the stack's own."""
    protect: Switch = False
    """Production: cluster, file systems, buckets and keys can be deleted only after this is switched off, and are
    kept when the stack is destroyed."""
