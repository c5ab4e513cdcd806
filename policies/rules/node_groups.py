"""Managed node groups: taints, labels, types, capacity, and how group and launch template fit together."""

from __future__ import annotations

from collections.abc import Iterator

from policies.catalogue import ami_driver, machine
from policies.groups import CAPACITY_BLOCK, NODE_GROUP, Group, gpu_groups, groups, has_driver
from policies.registry import Topic
from policies.rule import Finding, Resource, Setting, Settings, Stack
from policies.values import UnknownMemberError
from policies.workloads import GPU, SPOT_TAINTS

topic = Topic("Node groups")
_FARGATE = "aws:eks/fargateProfile:FargateProfile"
EFFECTS = ("NO_SCHEDULE", "PREFER_NO_SCHEDULE", "NO_EXECUTE")
_EKS = "https://docs.aws.amazon.com/eks/latest/userguide/launch-templates.html"
_TAINTS = "https://docs.aws.amazon.com/eks/latest/userguide/node-taints-managed-node-groups.html"


@topic.rule(
    "gpu-group-tainted",
    "Machines with GPUs carry a taint that keeps other pods off.",
    severity="high",
    each=gpu_groups,
    settings={"keys": Setting([GPU], "Keys of taints that count.", "array")},
    why="Without it the scheduler puts any pod on a machine of 50 USD an hour, and the autoscaler keeps it alive for "
    "that pod.",
    wrong="""
gpus:
  type: aws:eks/nodeGroup:NodeGroup
  properties: {instanceTypes: [g6.xlarge], taints: []}
""",
    right="""
gpus:
  type: aws:eks/nodeGroup:NodeGroup
  properties: {instanceTypes: [g6.xlarge], taints: [{key: nvidia.com/gpu, value: present, effect: NO_SCHEDULE}]}
""",
    steps="Add the taint nvidia.com/gpu=present with effect NO_SCHEDULE.",
    references=(_TAINTS,),
)
def gpu_group_tainted(group: Group, settings: Settings) -> Iterator[Finding]:
    """A taint of these keys that bars."""
    if not group.has_gpus():
        return
    if not any(
        key in settings["keys"] and effect in ("NO_SCHEDULE", "NO_EXECUTE") for key, _, effect in group.taints()
    ):
        yield Finding(f"taints has none of {', '.join(settings['keys'])} with effect NO_SCHEDULE", group.resource)


@topic.rule(
    "gpu-group-labelled",
    "Machines with GPUs carry the labels that the autoscaler and the device plugins look for.",
    severity="medium",
    each=gpu_groups,
    settings={
        "labels": Setting(
            ["k8s.amazonaws.com/accelerator", "nvidia.com/gpu.present"], "Labels that must be there.", "array"
        )
    },
    why="k8s.amazonaws.com/accelerator makes the autoscaler wait until a new machine shows its GPUs, instead of "
    "adding a second one; by nvidia.com/gpu.present DaemonSets find the machines, also before they exist.",
    wrong="""
gpus:
  type: aws:eks/nodeGroup:NodeGroup
  properties: {instanceTypes: [g6.xlarge], labels: {team: research}}
""",
    right="""
gpus:
  type: aws:eks/nodeGroup:NodeGroup
  properties:
    instanceTypes: [g6.xlarge]
    labels: {k8s.amazonaws.com/accelerator: nvidia-l4, nvidia.com/gpu.present: "true"}
""",
    steps="Add the labels to the node group.",
    references=("https://github.com/kubernetes/autoscaler/blob/master/cluster-autoscaler/cloudprovider/aws/README.md",),
)
def gpu_group_labelled(group: Group, settings: Settings) -> Iterator[Finding]:
    """All of them."""
    if not group.has_gpus():
        return
    there = group.labels()
    if missing := [one for one in settings["labels"] if one not in there]:
        yield Finding(f"labels lacks {', '.join(missing)}", group.resource)


@topic.rule(
    "taint-effects-spelled",
    "Taints of node groups are written in EKS's spelling.",
    severity="medium",
    types=(NODE_GROUP,),
    why="EKS writes NO_SCHEDULE where Kubernetes writes NoSchedule. EKS refuses the other, after half of the stack is "
    "made.",
    wrong="""
gpus:
  type: aws:eks/nodeGroup:NodeGroup
  properties: {taints: [{key: nvidia.com/gpu, value: present, effect: NoSchedule}]}
""",
    right="""
gpus:
  type: aws:eks/nodeGroup:NodeGroup
  properties: {taints: [{key: nvidia.com/gpu, value: present, effect: NO_SCHEDULE}]}
""",
    steps="Write NO_SCHEDULE, PREFER_NO_SCHEDULE or NO_EXECUTE.",
    references=("https://docs.aws.amazon.com/eks/latest/APIReference/API_Taint.html",),
)
def taint_effects_spelled(group: Resource, _: Settings) -> Iterator[str]:
    """One of three."""
    for one in group.props.at("taints").items():
        if (effect := one.at("effect").text()) not in EFFECTS:
            yield f"{one.path}.effect is {effect or 'not set'}; EKS knows {', '.join(EFFECTS)}"


@topic.rule(
    "capacity-type-explicit",
    "Every node group says how its machines are bought.",
    severity="medium",
    types=(NODE_GROUP,),
    settings={"allowed": Setting(["ON_DEMAND", "SPOT", CAPACITY_BLOCK], "Kinds that are allowed.", "array")},
    why="A group that says nothing is bought on demand, at up to five times the price of spot; the reader cannot tell "
    "whether that was meant.",
    wrong="""
gpus:
  type: aws:eks/nodeGroup:NodeGroup
  properties: {instanceTypes: [g6.xlarge]}
""",
    right="""
gpus:
  type: aws:eks/nodeGroup:NodeGroup
  properties: {instanceTypes: [g6.xlarge], capacityType: SPOT}
""",
    steps="Set capacityType.",
    references=("https://docs.aws.amazon.com/eks/latest/userguide/managed-node-groups.html",),
)
def capacity_type_explicit(group: Resource, settings: Settings) -> Iterator[str]:
    """Named, and allowed here."""
    capacity = group.props.at("capacityType").text()
    if capacity not in settings["allowed"]:
        yield f"capacityType is {capacity or 'not set'}; allowed: {', '.join(settings['allowed'])}"


@topic.rule(
    "spot-group-tainted",
    "Spot machines carry a taint, so that only pods that survive a reclaim run there.",
    severity="high",
    types=(NODE_GROUP,),
    settings={"keys": Setting(list(SPOT_TAINTS), "Keys of taints that count.", "array")},
    why="EKS labels spot machines and does not taint them: a database, etcd or a job without checkpoints lands there "
    "and is gone two minutes after the notice.",
    wrong="""
gpus:
  type: aws:eks/nodeGroup:NodeGroup
  properties: {capacityType: SPOT, taints: [{key: nvidia.com/gpu, value: present, effect: NO_SCHEDULE}]}
""",
    right="""
gpus:
  type: aws:eks/nodeGroup:NodeGroup
  properties: {capacityType: SPOT, taints: [{key: trainyard.dev/spot, value: "true", effect: NO_SCHEDULE}]}
""",
    steps="Add a taint such as trainyard.dev/spot=true with effect NO_SCHEDULE, and the toleration to jobs that write "
    "checkpoints.",
    references=("https://github.com/aws/aws-node-termination-handler/issues/186", _TAINTS),
)
def spot_group_tainted(group: Resource, settings: Settings) -> Iterator[str]:
    """Spot only."""
    if group.props.at("capacityType").text() != "SPOT":
        return
    taints = group.props.at("taints").items()
    barring = [one.at("key").text() for one in taints if one.at("effect").text() in ("NO_SCHEDULE", "NO_EXECUTE")]
    if not set(barring) & set(settings["keys"]):
        yield "taints has none that marks the machines as spot"


@topic.rule(
    "untainted-pool-on-demand",
    "There are machines without taints for everything else, and they are bought on demand.",
    severity="high",
    settings={"least": Setting(1, "Fewest machines that run at any time, in all such groups.")},
    why="etcd, the controller, DNS and the autoscaler itself need a place that nobody takes away. If that is spot, or "
    "is not there, the first reclaim takes down what would have repaired it.",
    wrong="""
cluster: {type: "aws:eks/cluster:Cluster", properties: {name: training}}
gpus:
  type: aws:eks/nodeGroup:NodeGroup
  properties:
    capacityType: SPOT
    taints: [{key: trainyard.dev/spot, value: "true", effect: NO_SCHEDULE}]
    scalingConfig: {minSize: 0, maxSize: 4, desiredSize: 0}
""",
    right="""
cluster: {type: "aws:eks/cluster:Cluster", properties: {name: training}}
system:
  type: aws:eks/nodeGroup:NodeGroup
  properties: {capacityType: ON_DEMAND, taints: [], scalingConfig: {minSize: 2, maxSize: 3, desiredSize: 2}}
""",
    steps="Add a small group without GPUs and taints, capacityType ON_DEMAND, minSize at least 1.",
)
def untainted_pool_on_demand(stack: Stack, settings: Settings) -> Iterator[Finding]:
    """Of stacks that make the cluster: where it is made elsewhere, its groups may be as well."""
    every = groups(stack)
    clusters = stack.of("aws:eks/cluster:Cluster")
    least = 0.0
    for group in every:
        if any(effect in ("NO_SCHEDULE", "NO_EXECUTE") for _, _, effect in group.taints()):
            continue
        if group.capacity() == "ON_DEMAND":
            least += group.props.at("scalingConfig", "minSize").number() or 0
        elif not group.has_gpus():
            yield Finding(
                f"has no taint and is {group.capacity()}: what everything depends on may run here", group.resource
            )
    # EKS's own machines (Auto Mode, Fargate) are such a place as well.
    elsewhere = any(one.props.at("computeConfig", "enabled").flag() for one in clusters) or stack.of(_FARGATE)
    if every and clusters and not elsewhere and least < settings["least"]:
        yield Finding(
            f"groups without taints that are bought on demand have {least:.0f} machines at least; {settings['least']} "
            f"are needed"
        )


@topic.rule(
    "capacity-block-complete",
    "A group on a capacity block has what EKS and EC2 ask of it.",
    severity="high",
    each=groups,
    presence=("capacityReservationId", "capacityReservationResourceGroupArn", "instanceType"),
    why="A capacity block is paid for in advance. It needs a template with the market type, the reservation's id and "
    "the one type; the type in the group, or more than one zone, is refused only when the block has begun.",
    wrong="""
template: {type: "aws:ec2/launchTemplate:LaunchTemplate", properties: {instanceType: p5.48xlarge}}
block:
  type: aws:eks/nodeGroup:NodeGroup
  properties: {capacityType: CAPACITY_BLOCK, launchTemplate: {id: "${template.id}"}, subnetIds: [subnet-1]}
""",
    right="""
template:
  type: aws:ec2/launchTemplate:LaunchTemplate
  properties:
    instanceType: p5.48xlarge
    instanceMarketOptions: {marketType: capacity-block}
    capacityReservationSpecification: {capacityReservationTarget: {capacityReservationId: cr-0123456789abcdef0}}
block:
  type: aws:eks/nodeGroup:NodeGroup
  properties: {capacityType: CAPACITY_BLOCK, launchTemplate: {id: "${template.id}"}, subnetIds: [subnet-1]}
""",
    steps="Give the group a launch template with instanceType, instanceMarketOptions.marketType: capacity-block and "
    "the reservation's id; no instanceTypes in the group; one subnet, in the block's zone.",
    references=(
        "https://docs.aws.amazon.com/eks/latest/userguide/capacity-blocks-mng.html",
        "https://github.com/eksctl-io/eksctl/pull/8207",
    ),
)
def capacity_block_complete(group: Group, _: Settings) -> Iterator[Finding]:
    """In both directions: a market type without the capacity type is as wrong."""
    market = group.body.at("instanceMarketOptions", "marketType").text()
    if group.capacity() != CAPACITY_BLOCK:
        if market == "capacity-block":
            yield Finding(
                f"capacityType is {group.capacity()} and its template buys from a capacity block", group.resource
            )
        return
    if group.template is None:
        if not group.template_elsewhere:
            yield Finding("launchTemplate is not set: the reservation can be named only there", group.resource)
        return
    target = group.body.at("capacityReservationSpecification", "capacityReservationTarget")
    if market != "capacity-block":
        yield Finding("its template lacks instanceMarketOptions.marketType: capacity-block", group.template)
    if not target.at("capacityReservationId").is_set and not target.at("capacityReservationResourceGroupArn").is_set:
        yield Finding("its template names no reservation (capacityReservationSpecification)", group.template)
    if not group.body.at("instanceType").is_set:
        yield Finding("its template lacks instanceType, which a capacity block wants there", group.template)
    if len(group.props.at("subnetIds").items()) > 1:
        yield Finding("subnetIds has more than one subnet; a block is in one zone", group.resource)


@topic.rule(
    "types-known",
    "Instance types are in the catalogue.",
    severity="medium",
    level="advisory",
    each=groups,
    settings={"allowed": Setting([], "Further types that are fine.", "array")},
    why="What is not in the catalogue has no price, no interface plan and no driver floor: the other rules cannot "
    "look at it. Most often it is a typing mistake.",
    wrong="""
gpus: {type: "aws:eks/nodeGroup:NodeGroup", properties: {instanceTypes: [p5.48xlrge]}}
""",
    right="""
gpus: {type: "aws:eks/nodeGroup:NodeGroup", properties: {instanceTypes: [p5.48xlarge]}}
""",
    steps="`trainyard gpus` lists the types; add a new one to infra/catalog/instance_types.toml with its source.",
)
def types_known(group: Group, settings: Settings) -> Iterator[Finding]:
    """Each one."""
    for name in group.type_names():
        if machine(name) is None and name not in settings["allowed"]:
            yield Finding(f"instance type {name} is not in the catalogue", group.resource)


@topic.rule(
    "types-alike",
    "The types of one group are the same size: CPUs, memory, GPUs, EFA.",
    severity="high",
    each=groups,
    why="The autoscaler reckons with the first type only. A second one with fewer GPUs starts, the job does not fit, "
    "and another machine is started; a job over machines with different EFA counts runs at the speed of the poorest.",
    wrong="""
gpus: {type: "aws:eks/nodeGroup:NodeGroup", properties: {instanceTypes: [g6.xlarge, g6.12xlarge]}}
""",
    right="""
gpus: {type: "aws:eks/nodeGroup:NodeGroup", properties: {instanceTypes: [g6.xlarge, g5.xlarge]}}
""",
    steps="Make one group for each size.",
    references=("https://github.com/kubernetes/autoscaler/blob/master/cluster-autoscaler/cloudprovider/aws/README.md",),
)
def types_alike(group: Group, _: Settings) -> Iterator[Finding]:
    """By the catalogue; types that it does not know are another rule's matter."""
    machines = group.machines()
    efa = group.has_efa()
    for one in machines[1:]:
        first = machines[0]
        differs = [
            what
            for what, here, there in (
                ("CPUs", first.vcpus, one.vcpus),
                ("memory", first.memory_mib, one.memory_mib),
                ("GPUs", first.gpus, one.gpus),
                ("architecture", first.architecture, one.architecture),
                ("EFA interfaces", first.efa if efa else 0, one.efa if efa else 0),
            )
            if here != there
        ]
        if differs:
            yield Finding(f"{one.name} and {first.name} differ in {', '.join(differs)}", group.resource)


@topic.rule(
    "group-fits-template",
    "Node group and launch template together are what EKS accepts, and the machines join.",
    severity="high",
    each=groups,
    presence=("securityGroups", "subnetId", "iamInstanceProfile", "instanceType", "vpcSecurityGroupIds"),
    why="EKS refuses some members of a template, and as soon as one names any security group it no longer adds the "
    "cluster's own: the machines start, cost money and never join.",
    wrong="""
template:
  type: aws:ec2/launchTemplate:LaunchTemplate
  properties: {instanceType: p5.48xlarge, networkInterfaces: [{deviceIndex: 0, subnetId: subnet-1}]}
gpus:
  type: aws:eks/nodeGroup:NodeGroup
  properties: {instanceTypes: [p5.48xlarge], launchTemplate: {id: "${template.id}"}}
""",
    right="""
template:
  type: aws:ec2/launchTemplate:LaunchTemplate
  properties: {networkInterfaces: [{deviceIndex: 0, networkCardIndex: 0, securityGroups: [sg-1]}]}
gpus:
  type: aws:eks/nodeGroup:NodeGroup
  properties: {instanceTypes: [p5.48xlarge], launchTemplate: {id: "${template.id}"}}
""",
    steps="Types in the group or in the template, not in both. No subnetId, instance profile or spot market options "
    "in the template. With interfaces: security groups on them and none above, the cluster's own on the first.",
    references=(_EKS, "https://github.com/aws/containers-roadmap/issues/1352"),
)
def group_fits_template(group: Group, _: Settings) -> Iterator[Finding]:
    """What EKS's user guide lists, and what keeps machines from joining."""
    in_group = bool(group.props.at("instanceTypes").items())
    if group.template is None:
        if not in_group and not group.template_elsewhere:
            yield Finding("names no instance type: EKS takes t3.medium", group.resource)
        if group.template_elsewhere:
            raise UnknownMemberError("launchTemplate")
        return
    body = group.body
    in_template = body.at("instanceType").is_set
    if in_group and in_template:
        yield Finding("names instanceTypes, and its template an instanceType: one of them only", group.resource)
    if not in_group and not in_template:
        yield Finding("names no instance type, nor does its template: EKS takes t3.medium", group.resource)
    if group.props.at("diskSize").is_set:
        yield Finding("diskSize beside a launch template: it belongs into the template", group.resource)
    for key in ("iamInstanceProfile", "hibernationOptions", "instanceInitiatedShutdownBehavior"):
        if body.at(key).is_set:
            yield Finding(f"{key}: EKS refuses it in a node group's template", group.template)
    if body.at("instanceMarketOptions", "marketType").text() == "spot":
        yield Finding("instanceMarketOptions.marketType spot: EKS wants capacityType SPOT instead", group.template)
    interfaces = group.interfaces()
    if interfaces and body.at("vpcSecurityGroupIds").is_set:
        yield Finding(
            "vpcSecurityGroupIds beside networkInterfaces: security groups belong on the interfaces", group.template
        )
    for one in interfaces:
        if one.at("subnetId").is_set:
            yield Finding(f"{one.path}.subnetId: the node group decides on subnets", group.template)
        if not one.at("securityGroups").is_set:
            yield Finding(
                f"{one.path}.securityGroups is not set: the interface gets the VPC's default group", group.template
            )


@topic.rule(
    "image-fits-machine",
    "The machine image has a driver for the GPUs, new enough, and is of the machine's architecture.",
    severity="high",
    each=groups,
    why="A GPU machine with an image that has no driver, or one older than the GPU needs, is a normal machine at "
    "forty times the price: pods wait for nvidia.com/gpu and nobody says why.",
    wrong="""
gpus:
  type: aws:eks/nodeGroup:NodeGroup
  properties: {instanceTypes: [g6.xlarge], amiType: AL2023_x86_64_STANDARD}
""",
    right="""
gpus:
  type: aws:eks/nodeGroup:NodeGroup
  properties: {instanceTypes: [g6.xlarge], amiType: AL2023_x86_64_NVIDIA}
""",
    steps="Take an amiType ending with NVIDIA, of the architecture of the types; for GPUs newer than its driver a "
    "custom image.",
    references=(
        "https://docs.aws.amazon.com/eks/latest/userguide/ml-eks-optimized-ami.html",
        "https://github.com/awslabs/amazon-eks-ami/releases",
    ),
)
def image_fits_machine(group: Group, _: Settings) -> Iterator[Finding]:
    """Groups with a custom image say nothing of it, and are left alone."""
    if not group.props.at("amiType").is_set:
        return
    ami = group.props.at("amiType").text()
    if ami == "CUSTOM":
        return
    driver = ami_driver(ami)
    for one in group.machines():
        if one.has_gpu and not has_driver(ami):
            yield Finding(f"amiType {ami} has no NVIDIA driver, and {one.name} has GPUs", group.resource)
        elif one.minimum_driver and driver and _number(driver) < _number(one.minimum_driver):
            yield Finding(
                f"amiType {ami} has driver {driver}; the GPUs of {one.name} need {one.minimum_driver}", group.resource
            )
        if ("ARM_64" in ami) != (one.architecture == "arm64"):
            yield Finding(
                f"amiType {ami} is not of the architecture of {one.name} ({one.architecture})", group.resource
            )


def _number(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".") if part.isdigit())


@topic.rule(
    "node-image-pinned",
    "Node groups name the release of their machine image.",
    severity="low",
    level="advisory",
    types=(NODE_GROUP,),
    presence=("imageId",),
    why="Otherwise two machines of one job may have different drivers, and an update of the group is whatever came "
    "out since. NCCL needs the same on all machines.",
    wrong="""
gpus: {type: "aws:eks/nodeGroup:NodeGroup", properties: {amiType: AL2023_x86_64_NVIDIA}}
""",
    right="""
gpus: {type: "aws:eks/nodeGroup:NodeGroup", properties: {amiType: AL2023_x86_64_NVIDIA,
    releaseVersion: 1.36.2-20260714}}
""",
    steps="Set releaseVersion.",
)
def node_image_pinned(group: Resource, _: Settings) -> Iterator[str]:
    """A custom image is pinned by its id."""
    if group.props.at("amiType").text() != "CUSTOM" and not group.props.at("releaseVersion").text():
        yield "releaseVersion is not set"
