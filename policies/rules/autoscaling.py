"""The autoscaler: what it must be told so that it adds machines, and who else decides on their number."""

from __future__ import annotations

from collections.abc import Iterator

from policies.groups import NODE_GROUP, Group, groups
from policies.registry import Topic
from policies.rule import Finding, Resource, Setting, Settings, Stack
from policies.rules.storage import listed, statements
from policies.values import UnknownMemberError, Value
from policies.workloads import EFA, HUGEPAGES, pods

topic = Topic("Autoscaling")
_HINT = "k8s.io/cluster-autoscaler/node-template/"
_RESOURCES, _TAINT = f"{_HINT}resources/", f"{_HINT}taint/"
_README = "https://github.com/kubernetes/autoscaler/blob/master/cluster-autoscaler/cloudprovider/aws/README.md"


@topic.rule(
    "scale-from-zero-hints",
    "A group that may have no machine tells the autoscaler what a machine would offer.",
    severity="high",
    each=groups,
    settings={"disk": Setting(True, "Whether the size of the disk must be told as well.", "boolean")},
    why="With no machine to look at, the autoscaler reckons with CPUs, memory and GPUs of the type. EFA, huge pages "
    "and disk it takes for absent: a job that asks for them waits forever, and the log says `pod didn't trigger "
    "scale-up`.",
    wrong="""
template: {type: "aws:ec2/launchTemplate:LaunchTemplate", properties: {networkInterfaces: [{interfaceType: efa-only,
    deviceIndex: 1}]}}
workers:
  type: aws:eks/nodeGroup:NodeGroup
  properties:
    instanceTypes: [g6.48xlarge]
    scalingConfig: {minSize: 0, maxSize: 4, desiredSize: 0}
    launchTemplate: {id: "${template.id}"}
""",
    right="""
template: {type: "aws:ec2/launchTemplate:LaunchTemplate", properties: {networkInterfaces: [{interfaceType: efa-only,
    deviceIndex: 1}]}}
workers:
  type: aws:eks/nodeGroup:NodeGroup
  properties:
    instanceTypes: [g6.48xlarge]
    scalingConfig: {minSize: 0, maxSize: 4, desiredSize: 0}
    launchTemplate: {id: "${template.id}"}
    tags:
      k8s.io/cluster-autoscaler/node-template/resources/vpc.amazonaws.com/efa: "1"
      k8s.io/cluster-autoscaler/node-template/resources/hugepages-2Mi: 5120Mi
      k8s.io/cluster-autoscaler/node-template/resources/ephemeral-storage: 200000Mi
""",
    steps="Add the tags to the node group.",
    references=(
        _README,
        "https://github.com/kubernetes/autoscaler/issues/4998",
        "https://github.com/kubernetes/autoscaler/issues/1869",
    ),
)
def scale_from_zero(group: Group, settings: Settings) -> Iterator[Finding]:
    """Groups with a minimum of 0, GPUs and room to grow."""
    scaling = group.props.at("scalingConfig")
    if scaling.at("minSize").number() != 0 or not group.has_gpus():
        return
    tags = {**group.tags(), **_tags_of_scaling_group(group)}
    efa = len(group.efa_interfaces())
    wanted = [*((EFA, HUGEPAGES) if efa else ()), *(("ephemeral-storage",) if settings["disk"] else ())]
    if missing := [one for one in wanted if _RESOURCES + one not in tags]:
        yield Finding(f"tags lacks {', '.join(_RESOURCES + one for one in missing)}", group.resource)
    told = tags.get(_RESOURCES + EFA)
    if told is not None and told.number() != efa:
        yield Finding(
            f"a tag tells the autoscaler of {told.text() or 'no'} EFA interfaces; the template has {efa}",
            group.resource,
        )


def _tags_of_scaling_group(group: Group) -> dict[str, Value]:
    """Hints that the program puts on the scaling group behind the node group, where the autoscaler looks as well."""
    return {
        one.props.at("tag", "key").text(): one.props.at("tag", "value")
        for one in group.stack.of("aws:autoscaling/tag:Tag")
        if group.resource in group.stack.behind(one, "autoscalingGroupName", NODE_GROUP)
    }


@topic.rule(
    "autoscaler-hints-spelled",
    "Hints of taints are written in Kubernetes' spelling.",
    severity="medium",
    types=(NODE_GROUP,),
    why="A tag says `present:NoSchedule` where the group itself says NO_SCHEDULE. In the wrong spelling the "
    "autoscaler imagines a machine without the taint, or none at all.",
    wrong="""
workers:
  type: aws:eks/nodeGroup:NodeGroup
  properties: {tags: {k8s.io/cluster-autoscaler/node-template/taint/nvidia.com/gpu: "present:NO_SCHEDULE"}}
""",
    right="""
workers:
  type: aws:eks/nodeGroup:NodeGroup
  properties: {tags: {k8s.io/cluster-autoscaler/node-template/taint/nvidia.com/gpu: "present:NoSchedule"}}
""",
    steps="Write value:NoSchedule, value:PreferNoSchedule or value:NoExecute; or no tag, where the autoscaler may ask "
    "EKS itself.",
    references=(_README,),
)
def hints_spelled(group: Resource, _: Settings) -> Iterator[str]:
    """Value, colon, effect."""
    for key, one in group.props.at("tags").members().items():
        if key.startswith(_TAINT) and one.text().rpartition(":")[2] not in (
            "NoSchedule",
            "PreferNoSchedule",
            "NoExecute",
        ):
            yield f"tags.{key} is {one.text() or 'no text'}"


@topic.rule(
    "autoscaler-asks-eks",
    "The autoscaler may ask EKS for labels and taints of its groups.",
    severity="high",
    each=lambda stack: [stack] if groups(stack) else [],
    why="Labels and taints of a group without machines are known to EKS only. Without eks:DescribeNodegroup the "
    "autoscaler imagines machines without them: a pod with a node selector never brings one up, one that does not "
    "tolerate the taint does.",
    wrong="""
workers: {type: "aws:eks/nodeGroup:NodeGroup", properties: {scalingConfig: {minSize: 0, maxSize: 4}}}
rights:
  type: aws:iam/rolePolicy:RolePolicy
  properties: {policy: '{"Statement": [{"Effect": "Allow", "Action": ["autoscaling:SetDesiredCapacity"],
      "Resource": "*"}]}'}
""",
    right="""
workers: {type: "aws:eks/nodeGroup:NodeGroup", properties: {scalingConfig: {minSize: 0, maxSize: 4}}}
rights:
  type: aws:iam/rolePolicy:RolePolicy
  properties:
    policy: '{"Statement": [{"Effect": "Allow", "Action": ["autoscaling:SetDesiredCapacity",
        "eks:DescribeNodegroup"], "Resource": "*"}]}'
""",
    steps="Allow eks:DescribeNodegroup on the cluster's node groups in the autoscaler's policy.",
    references=(_README,),
)
def asks_eks(stack: Stack, _: Settings) -> Iterator[Finding]:
    """Policies that let somebody scale groups from zero must let them ask; one such policy is enough to know."""
    if not any(one.props.at("scalingConfig", "minSize").number() == 0 for one in stack.of(NODE_GROUP)):
        return
    unknown, scales = [], False
    for one in stack.of("aws:iam/rolePolicy:RolePolicy", "aws:iam/policy:Policy"):
        if one.props.at("policy").is_unknown:
            unknown.append(f"policy of {one.name}")
            continue
        actions = {
            action
            for statement in statements(one.props.at("policy"))
            if statement.get("Effect") == "Allow"
            for action in listed(statement.get("Action"))
        }
        if "autoscaling:SetDesiredCapacity" in actions:
            scales = True
            if not actions & {"eks:DescribeNodegroup", "eks:Describe*", "eks:*"}:
                yield Finding("allows autoscaling:SetDesiredCapacity and not eks:DescribeNodegroup", one)
    if unknown and not scales:
        raise UnknownMemberError(", ".join(unknown))


@topic.rule(
    "desired-size-left-alone",
    "The program does not decide on the number of machines that the autoscaler decides on.",
    severity="high",
    types=(NODE_GROUP,),
    why="Otherwise each `pulumi up` sets the size back to what the program says: machines in the middle of training "
    "are taken away, or idle ones come back.",
    wrong="""
workers:
  type: aws:eks/nodeGroup:NodeGroup
  properties: {scalingConfig: {minSize: 0, maxSize: 4, desiredSize: 0}}
""",
    right="""
workers:
  type: aws:eks/nodeGroup:NodeGroup
  properties: {scalingConfig: {minSize: 0, maxSize: 4, desiredSize: 0}}
  options: {ignoreChanges: [scalingConfig.desiredSize]}
""",
    steps="Set the resource option ignoreChanges: [scalingConfig.desiredSize] on the node group itself (a component "
    "hands it on to nobody).",
    references=("https://github.com/pulumi/pulumi-eks/issues/985",),
)
def desired_size(group: Resource, _: Settings) -> Iterator[str]:
    """Only groups with room to scale."""
    scaling = group.props.at("scalingConfig")
    least, most = scaling.at("minSize").number(), scaling.at("maxSize").number()
    if least is None or most is None or least == most:
        return
    if not {"scalingConfig.desiredSize", "scalingConfig", "*"} & set(group.ignore_changes):
        yield "scalingConfig.desiredSize is not among ignoreChanges"


@topic.rule(
    "queue-matches-group",
    "Kueue's flavours name the labels and taints that groups have.",
    severity="high",
    each=lambda stack: [
        (stack, one)
        for one in stack.resources
        if one.type.startswith("kubernetes:kueue.") and one.kind == "ResourceFlavor"
    ],
    why="Kueue sends a job to the machines of a flavour by its labels, and adds tolerations for its taints. Where the "
    "group says something else, the job is admitted, holds its quota, and never starts.",
    wrong="""
workers:
  type: aws:eks/nodeGroup:NodeGroup
  properties: {labels: {trainyard.dev/pool: gpu-spot}, taints: [{key: nvidia.com/gpu, value: present,
      effect: NO_SCHEDULE}]}
flavour:
  type: kubernetes:kueue.x-k8s.io/v1beta2:ResourceFlavor
  properties: {metadata: {name: gpus}, spec: {nodeLabels: {trainyard.dev/pool: gpu-block}}}
""",
    right="""
workers:
  type: aws:eks/nodeGroup:NodeGroup
  properties: {labels: {trainyard.dev/pool: gpu-spot}, taints: [{key: nvidia.com/gpu, value: present,
      effect: NO_SCHEDULE}]}
flavour:
  type: kubernetes:kueue.x-k8s.io/v1beta2:ResourceFlavor
  properties:
    metadata: {name: gpus}
    spec:
      nodeLabels: {trainyard.dev/pool: gpu-spot}
      nodeTaints: [{key: nvidia.com/gpu, value: present, effect: NoSchedule}]
""",
    steps="Copy labels and taints from the node group.",
    references=("https://kueue.sigs.k8s.io/docs/concepts/resource_flavor/",),
)
def queue_matches(subject: tuple[Stack, Resource], _: Settings) -> Iterator[Finding]:
    """Against the groups whose labels it selects."""
    stack, flavour = subject
    every = groups(stack)
    labels = {key: one.text() for key, one in flavour.props.at("spec", "nodeLabels").members().items()}
    if not labels or not every:
        return
    chosen = [one for one in every if labels.items() <= one.labels().items()]
    if not chosen:
        yield Finding(
            f"no group has the labels {', '.join(f'{key}={value}' for key, value in labels.items())}", flavour
        )
    named = {one.at("key").text() for one in flavour.props.at("spec", "nodeTaints").items()}
    named |= {one.at("key").text() for one in flavour.props.at("spec", "tolerations").items()}
    for group in chosen:
        if missing := [
            key for key, _value, effect in group.taints() if effect != "PREFER_NO_SCHEDULE" and key not in named
        ]:
            yield Finding(f"nodeTaints lacks {', '.join(missing)}, which {group.name} has", flavour)


@topic.rule(
    "known-bad-versions",
    "No version is used that is known to fail in these surroundings.",
    severity="high",
    each=lambda stack: [stack],
    why="Some versions fail silently together: NVIDIA's plugin 0.19.0 to 0.19.2 beside EFA, the EFA plugin before "
    "0.5.10 on B200, the VPC CNI before 1.18.5 with efa-only interfaces.",
    wrong="""
template: {type: "aws:ec2/launchTemplate:LaunchTemplate", properties: {networkInterfaces: [{interfaceType: efa-only,
    deviceIndex: 1}]}}
workers:
  type: aws:eks/nodeGroup:NodeGroup
  properties: {instanceTypes: [g6.48xlarge], launchTemplate: {id: "${template.id}"}}
cni: {type: "aws:eks/addon:Addon", properties: {addonName: vpc-cni, addonVersion: v1.18.3-eksbuild.1}}
""",
    right="""
template: {type: "aws:ec2/launchTemplate:LaunchTemplate", properties: {networkInterfaces: [{interfaceType: efa-only,
    deviceIndex: 1}]}}
workers:
  type: aws:eks/nodeGroup:NodeGroup
  properties: {instanceTypes: [g6.48xlarge], launchTemplate: {id: "${template.id}"}}
cni: {type: "aws:eks/addon:Addon", properties: {addonName: vpc-cni, addonVersion: v1.20.0-eksbuild.1}}
""",
    steps="Take another version; the message says why and since which.",
    references=("infra/catalog/known_bad.toml",),
)
def known_bad_versions(stack: Stack, _: Settings) -> Iterator[Finding]:
    """Add-ons and device plugins, in the surroundings that the stack's groups make."""
    from policies.catalogue import known_failures, surroundings  # noqa: PLC0415

    conditions = {"amazon-linux"}
    for group in groups(stack):
        for machine in group.machines():
            if group.has_efa():
                conditions |= surroundings(machine)
    for one, component, version in _components(stack):
        for bad in known_failures(component, version, conditions):
            if bad.range != "*":
                yield Finding(f"{component} {version}: {bad.effect}. {bad.reason} ({bad.link})", one)


def _components(stack: Stack) -> Iterator[tuple[Resource, str, str]]:
    for one in stack.of("aws:eks/addon:Addon"):
        if one.props.at("addonVersion").is_set:
            yield one, one.props.at("addonName").text(), one.props.at("addonVersion").text()
    for one in stack.of("kubernetes:apps/v1:DaemonSet"):
        for pod in pods(one):
            for container in pod.containers():
                image = container.value.at("image").text()
                for name, component in (
                    ("aws-efa-k8s-device-plugin", "efa-device-plugin"),
                    ("nvidia/k8s-device-plugin", "nvidia-device-plugin"),
                ):
                    if f"/{name}:" in image:
                        yield one, component, image.partition(f"/{name}:")[2].partition("@")[0]
