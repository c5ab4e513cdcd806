"""EFA: what must agree so that NCCL uses it. Where it does not, training works, over TCP, some twenty times slower."""

from __future__ import annotations

from collections.abc import Iterator

from policies.catalogue import InstanceType, machine
from policies.groups import EFA_KINDS, Group, efa_groups, groups
from policies.registry import Topic
from policies.rule import Finding, Resource, Settings, Stack
from policies.values import Value
from policies.workloads import EFA, HUGEPAGES, KUBERNETES, Pod, pods, quantity

GROUP = "aws:ec2/securityGroup:SecurityGroup"
INGRESS, EGRESS = (
    "aws:vpc/securityGroupIngressRule:SecurityGroupIngressRule",
    "aws:vpc/securityGroupEgressRule:SecurityGroupEgressRule",
)
RULE = "aws:ec2/securityGroupRule:SecurityGroupRule"
PLACEMENT = "aws:ec2/placementGroup:PlacementGroup"
topic = Topic("EFA")
_GUIDE = "https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/efa-start.html"
_ACCELERATED = "https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/efa-acc-inst-types.html"
_NODE_EFA = "https://docs.aws.amazon.com/eks/latest/userguide/node-efa.html"


@topic.rule(
    "efa-security-group-self",
    "The security group of EFA interfaces lets all traffic in from itself and out to itself.",
    severity="critical",
    each=lambda stack: [(stack, one) for one in efa_groups(stack)],
    presence=("securityGroupId", "referencedSecurityGroupId", "sourceSecurityGroupId", "cidrIpv4"),
    why="EFA packets pass only where a rule names the group itself, in both directions, for all protocols. Egress to "
    "0.0.0.0/0 does not do. Without it NCCL falls back to TCP, or hangs in its first collective.",
    wrong="""
efa: {type: "aws:ec2/securityGroup:SecurityGroup", properties: {name: efa}}
in:
  type: aws:vpc/securityGroupIngressRule:SecurityGroupIngressRule
  properties: {securityGroupId: "${efa.id}", referencedSecurityGroupId: "${efa.id}", ipProtocol: "-1"}
out:
  type: aws:vpc/securityGroupEgressRule:SecurityGroupEgressRule
  properties: {securityGroupId: "${efa.id}", cidrIpv4: 0.0.0.0/0, ipProtocol: "-1"}
template:
  type: aws:ec2/launchTemplate:LaunchTemplate
  properties: {networkInterfaces: [{interfaceType: efa-only, deviceIndex: 1, securityGroups: ["${efa.id}"]}]}
workers:
  type: aws:eks/nodeGroup:NodeGroup
  properties: {instanceTypes: [p5.48xlarge], launchTemplate: {id: "${template.id}"}}
""",
    right="""
efa: {type: "aws:ec2/securityGroup:SecurityGroup", properties: {name: efa}}
in:
  type: aws:vpc/securityGroupIngressRule:SecurityGroupIngressRule
  properties: {securityGroupId: "${efa.id}", referencedSecurityGroupId: "${efa.id}", ipProtocol: "-1"}
out:
  type: aws:vpc/securityGroupEgressRule:SecurityGroupEgressRule
  properties: {securityGroupId: "${efa.id}", referencedSecurityGroupId: "${efa.id}", ipProtocol: "-1"}
template:
  type: aws:ec2/launchTemplate:LaunchTemplate
  properties: {networkInterfaces: [{interfaceType: efa-only, deviceIndex: 1, securityGroups: ["${efa.id}"]}]}
workers:
  type: aws:eks/nodeGroup:NodeGroup
  properties: {instanceTypes: [p5.48xlarge], launchTemplate: {id: "${template.id}"}}
""",
    steps="Add an ingress and an egress rule with protocol -1 that reference the group itself.",
    references=(_GUIDE, "https://github.com/gardener/gardener-extension-provider-aws/pull/1833"),
)
def security_group_self(subject: tuple[Stack, Group], _: Settings) -> Iterator[Finding]:
    """By rules of their own, by rules of the older kind, or inline.

    Which interface has which of several groups is not visible while ids are unknown: then one of them must be open.
    """
    stack, group = subject
    if not group.has_efa() or group.template is None:
        return
    candidates = stack.behind(group.template, "networkInterfaces", GROUP)
    if not candidates:  # groups made elsewhere cannot be seen, and those that are unknown are said to be
        for interface in group.efa_interfaces():
            interface.at("securityGroups").texts()
    lacking = [(one, _ways_closed(stack, one)) for one in candidates]
    if all(ways for _, ways in lacking):
        for one, ways in lacking:
            for way in ways:
                yield Finding(f"has no {way} rule for all protocols that references the group itself", one)


def _ways_closed(stack: Stack, group: Resource) -> list[str]:
    """In which directions a security group is not open to itself."""
    return [
        way
        for way, kind in (("ingress", INGRESS), ("egress", EGRESS))
        if not any(_to_itself(stack, group, one, kind, way) for one in stack.of(kind, RULE))
        and not any(
            one.at("self").flag() and one.at("protocol").text() in ("-1", "all") for one in group.props.at(way).items()
        )
    ]


def _to_itself(stack: Stack, group: Resource, rule: Resource, kind: str, way: str) -> bool:
    props = rule.props
    if rule.type == kind:
        ends = [stack.behind(rule, key, GROUP) for key in ("securityGroupId", "referencedSecurityGroupId")]
        return all(group in end for end in ends) and props.at("ipProtocol").text() == "-1"
    if group not in stack.behind(rule, "securityGroupId", GROUP) or props.at("type").text() != way:
        return False
    itself = props.at("self").flag() or group in stack.behind(rule, "sourceSecurityGroupId", GROUP)
    return bool(itself) and props.at("protocol").text() in ("-1", "all")


@topic.rule(
    "efa-interface-count",
    "A machine has as many EFA interfaces as its type allows: all of them or none.",
    severity="high",
    each=efa_groups,
    why="Each interface carries its share: a p4d with one of four reaches 20 GB/s instead of 78 in an all-reduce. "
    "More than the type has, and EC2 refuses to start it. The number is that of the type, not that of its network "
    "cards.",
    wrong="""
template:
  type: aws:ec2/launchTemplate:LaunchTemplate
  properties:
    networkInterfaces:
      - {networkCardIndex: 0, deviceIndex: 0, interfaceType: interface, securityGroups: [sg-1]}
      - {networkCardIndex: 0, deviceIndex: 1, interfaceType: efa-only, securityGroups: [sg-2]}
workers:
  type: aws:eks/nodeGroup:NodeGroup
  properties: {instanceTypes: [p4d.24xlarge], launchTemplate: {id: "${template.id}"}}
""",
    right="""
template:
  type: aws:ec2/launchTemplate:LaunchTemplate
  properties:
    networkInterfaces:
      - {networkCardIndex: 0, deviceIndex: 0, interfaceType: interface, securityGroups: [sg-1]}
      - {networkCardIndex: 0, deviceIndex: 1, interfaceType: efa-only, securityGroups: [sg-2]}
      - {networkCardIndex: 1, deviceIndex: 0, interfaceType: efa-only, securityGroups: [sg-2]}
      - {networkCardIndex: 2, deviceIndex: 0, interfaceType: efa-only, securityGroups: [sg-2]}
      - {networkCardIndex: 3, deviceIndex: 0, interfaceType: efa-only, securityGroups: [sg-2]}
workers:
  type: aws:eks/nodeGroup:NodeGroup
  properties: {instanceTypes: [p4d.24xlarge], launchTemplate: {id: "${template.id}"}}
""",
    steps="Write one plain interface and the type's number of efa-only ones: `trainyard gpus TYPE` shows both.",
    references=(
        _ACCELERATED,
        "https://github.com/skypilot-org/skypilot/issues/8391",
        "https://github.com/eksctl-io/eksctl/pull/8692",
    ),
)
def interface_count(group: Group, _: Settings) -> Iterator[Finding]:
    """For each type of the group."""
    count = len(group.efa_interfaces())
    if not count:
        return
    for one in group.machines():
        if count != one.efa:
            has = f"has {one.efa}" if one.efa else "has no EFA"
            yield Finding(f"its template has {count} EFA interfaces; {one.name} {has}", group.template)


@topic.rule(
    "efa-interface-layout",
    "Interfaces sit where EC2 wants them: a plain one first, EFA beside it and one on each further card.",
    severity="high",
    each=efa_groups,
    why="The layout changed: `efa` as the first interface fails on types whose card 0 has no EFA, and where cards and "
    "interfaces differ in number. The first one carries the address, so it cannot be efa-only; p5 refuses device "
    "indexes above 1.",
    wrong="""
template:
  type: aws:ec2/launchTemplate:LaunchTemplate
  properties: {networkInterfaces: [{networkCardIndex: 0, deviceIndex: 0, interfaceType: efa-only,
      securityGroups: [sg-1]}]}
workers:
  type: aws:eks/nodeGroup:NodeGroup
  properties: {instanceTypes: [g6.48xlarge], launchTemplate: {id: "${template.id}"}}
""",
    right="""
template:
  type: aws:ec2/launchTemplate:LaunchTemplate
  properties:
    networkInterfaces:
      - {networkCardIndex: 0, deviceIndex: 0, interfaceType: interface, securityGroups: [sg-1]}
      - {networkCardIndex: 0, deviceIndex: 1, interfaceType: efa-only, securityGroups: [sg-2]}
workers:
  type: aws:eks/nodeGroup:NodeGroup
  properties: {instanceTypes: [g6.48xlarge], launchTemplate: {id: "${template.id}"}}
""",
    steps="Card 0: `interface` at device index 0, `efa-only` at 1 if the card has EFA. Every other card: `efa-only` "
    "at device index 0.",
    references=(
        _ACCELERATED,
        "https://github.com/eksctl-io/eksctl/issues/7520",
        "https://github.com/aws/aws-parallelcluster/pull/7262",
    ),
)
def interface_layout(group: Group, _: Settings) -> Iterator[Finding]:
    """Places taken once, the primary one plain, EFA only on cards that have it, and no more than a card holds."""
    interfaces = group.interfaces()
    if not group.has_efa():
        return
    places: dict[tuple[int, int], str] = {}
    for one in interfaces:
        place = (int(one.at("networkCardIndex").number() or 0), int(one.at("deviceIndex").number() or 0))
        if place in places:
            yield Finding(f"{one.path}: card {place[0]}, device index {place[1]} is taken twice", group.template)
        places[place] = one.at("interfaceType").text() or "interface"
    first = places.get((0, 0))
    if first is None:
        yield Finding("no interface is at card 0, device index 0: the machine has no address", group.template)
    elif first == "efa-only":
        yield Finding("the interface at card 0, device index 0 is efa-only: the machine has no address", group.template)
    elif first == "efa":
        yield Finding(
            "the interface at card 0, device index 0 is efa, the older layout: make it plain, and EFA at index 1",
            group.template,
        )
    if any(kind == "efa" for place, kind in places.items() if place != (0, 0)):
        yield Finding(
            "interfaces beside the first are efa instead of efa-only: each takes an address and a route", group.template
        )
    for type_of in group.machines():
        if not type_of.efa:
            continue
        for (card, index), kind in places.items():
            if card >= len(type_of.cards):
                yield Finding(f"card {card} does not exist: {type_of.name} has {len(type_of.cards)}", group.template)
            elif kind in EFA_KINDS and not type_of.cards[card].efa:
                yield Finding(f"card {card} of {type_of.name} has no EFA", group.template)
            elif type_of.device_index_max is not None and index > type_of.device_index_max:
                yield Finding(
                    f"device index {index} on card {card}: {type_of.name} starts with at most "
                    f"{type_of.device_index_max}",
                    group.template,
                )
            elif sum(1 for place in places if place[0] == card) > type_of.cards[card].interfaces:
                yield Finding(
                    f"card {card} of {type_of.name} holds {type_of.cards[card].interfaces} interfaces", group.template
                )


@topic.rule(
    "efa-one-subnet",
    "A group with EFA is in one subnet.",
    severity="high",
    each=efa_groups,
    why="EFA is not routed: machines in two zones cannot use it with each other. A group over several subnets spreads "
    "over their zones, and a job over it falls back to TCP, or hangs.",
    wrong="""
template: {type: "aws:ec2/launchTemplate:LaunchTemplate", properties: {networkInterfaces: [{interfaceType: efa-only,
    deviceIndex: 1}]}}
workers:
  type: aws:eks/nodeGroup:NodeGroup
  properties: {subnetIds: [subnet-1, subnet-2], launchTemplate: {id: "${template.id}"}}
""",
    right="""
template: {type: "aws:ec2/launchTemplate:LaunchTemplate", properties: {networkInterfaces: [{interfaceType: efa-only,
    deviceIndex: 1}]}}
workers:
  type: aws:eks/nodeGroup:NodeGroup
  properties: {subnetIds: [subnet-1], launchTemplate: {id: "${template.id}"}}
""",
    steps="Name one subnet, in the zone that has the machines (trainyard:aws.nodePools[].zone).",
    references=(_GUIDE, "https://github.com/aws-samples/amazon-eks-machine-learning/issues/83"),
)
def one_subnet(group: Group, _: Settings) -> Iterator[Finding]:
    """Ids may be unknown; their number is not."""
    if group.has_efa() and (count := len(group.props.at("subnetIds").items())) != 1:
        yield Finding(f"subnetIds has {count} subnets; a group with EFA needs exactly one", group.resource)


@topic.rule(
    "efa-placement",
    "Groups with EFA that are bought on demand are in a cluster placement group; reserved ones are not.",
    severity="medium",
    each=efa_groups,
    presence=("placement", "groupName", "groupId"),
    why="A cluster placement group puts machines near each other. Forced on a reservation it breaks it: of 16 "
    "reserved machines 11 came. Spot gets capacity where there is some, and may go without.",
    wrong="""
template: {type: "aws:ec2/launchTemplate:LaunchTemplate", properties: {networkInterfaces: [{interfaceType: efa-only,
    deviceIndex: 1}]}}
workers:
  type: aws:eks/nodeGroup:NodeGroup
  properties: {capacityType: ON_DEMAND, subnetIds: [subnet-1], launchTemplate: {id: "${template.id}"}}
""",
    right="""
near: {type: "aws:ec2/placementGroup:PlacementGroup", properties: {strategy: cluster}}
template:
  type: aws:ec2/launchTemplate:LaunchTemplate
  properties: {networkInterfaces: [{interfaceType: efa-only, deviceIndex: 1}], placement: {groupName: "${near.name}"}}
workers:
  type: aws:eks/nodeGroup:NodeGroup
  properties: {capacityType: ON_DEMAND, subnetIds: [subnet-1], launchTemplate: {id: "${template.id}"}}
""",
    steps="On demand: a placement group with strategy cluster, named in the template's placement. Reservation: none, "
    "unless the reservation itself was made in one.",
    references=(
        "https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/placement-strategies.html",
        "https://github.com/terraform-aws-modules/terraform-aws-eks/pull/3730",
        "https://github.com/eksctl-io/eksctl/issues/7949",
    ),
)
def placement(group: Group, _: Settings) -> Iterator[Finding]:
    """By how the machines are bought."""
    if not group.has_efa() or group.template is None:
        return
    placed = group.body.at("placement")
    named = placed.at("groupName").is_set or placed.at("groupId").is_set
    if group.reserved():
        if named:
            yield Finding(
                "placement names a placement group, and the machines are reserved: they may not all start",
                group.template,
            )
        return
    if group.capacity() == "ON_DEMAND" and not named:
        yield Finding("placement names no placement group", group.template)
    for one in group.stack.behind(group.template, "placement", PLACEMENT):
        if (strategy := one.props.at("strategy").text()) != "cluster":
            yield Finding(f"strategy is {strategy or 'not set'} instead of cluster", one)


def _plugins(stack: Stack) -> list[Pod]:
    return [pod for one in stack.of("kubernetes:apps/v1:DaemonSet") for pod in pods(one)]


@topic.rule(
    "device-plugins-cover-pools",
    "The NVIDIA and the EFA device plugin run on every group that needs them, whatever its taints and labels.",
    severity="critical",
    each=lambda stack: [(stack, one) for one in groups(stack)],
    why="Without the plugin a machine offers no nvidia.com/gpu or vpc.amazonaws.com/efa: pods wait forever, or train "
    "over TCP. The EFA plugin's chart tolerates none of the taints that GPU machines have.",
    wrong="""
workers:
  type: aws:eks/nodeGroup:NodeGroup
  properties: {instanceTypes: [g6.xlarge], taints: [{key: nvidia.com/gpu, value: present, effect: NO_SCHEDULE}]}
plugin:
  type: kubernetes:apps/v1:DaemonSet
  properties:
    metadata: {name: nvidia-device-plugin}
    spec: {template: {spec: {containers: [{name: plugin, image: "nvcr.io/nvidia/k8s-device-plugin:v0.19.3"}]}}}
""",
    right="""
workers:
  type: aws:eks/nodeGroup:NodeGroup
  properties: {instanceTypes: [g6.xlarge], taints: [{key: nvidia.com/gpu, value: present, effect: NO_SCHEDULE}]}
plugin:
  type: kubernetes:apps/v1:DaemonSet
  properties:
    metadata: {name: nvidia-device-plugin}
    spec:
      template:
        spec:
          tolerations: [{key: nvidia.com/gpu, operator: Exists}]
          containers: [{name: plugin, image: "nvcr.io/nvidia/k8s-device-plugin:v0.19.3"}]
""",
    steps="Give the plugins' DaemonSets a toleration for every taint of GPU groups, and node selectors that the "
    "groups' labels meet.",
    references=(_NODE_EFA, "https://github.com/aws/eks-charts/tree/master/stable/aws-efa-k8s-device-plugin"),
)
def device_plugins(subject: tuple[Stack, Group], _: Settings) -> Iterator[Finding]:
    """Stacks that install no plugin as a DaemonSet (a chart does, or another stack) are not judged."""
    stack, group = subject
    plugins = _plugins(stack)
    wanted = [("nvidia", "k8s-device-plugin", group.has_gpus()), ("EFA", "aws-efa-k8s-device-plugin", group.has_efa())]
    for what, image, needed in wanted:
        of_kind = [pod for pod in plugins if any(_is_image(one.value.at("image"), image) for one in pod.containers())]
        if not needed or not of_kind:
            if needed and what == "EFA" and plugins:
                yield Finding("has EFA interfaces, and no EFA device plugin is in the stack", group.resource)
            continue
        reasons = [_keeps_off(pod, group) for pod in of_kind]
        if all(reasons):
            yield Finding(f"the {what} device plugin does not run here: {reasons[0]}", group.resource)


def _is_image(value: Value, name: str) -> bool:
    text = value.text()
    return f"/{name}:" in text or f"/{name}@" in text


def _keeps_off(pod: Pod, group: Group) -> str:
    """Why a DaemonSet's pods do not run on a group's machines; empty: they do."""
    spelled = {"NO_SCHEDULE": "NoSchedule", "NO_EXECUTE": "NoExecute"}
    for key, value, effect in group.taints():
        if effect in spelled and not any(one.matches(key, value, spelled[effect]) for one in pod.tolerations()):
            return f"it does not tolerate the taint {key}"
    labels = group.labels()
    for key, one in pod.spec.at("nodeSelector").members().items():
        if (
            "/" in key
            and not key.startswith(("kubernetes.io/", "node.kubernetes.io/", "topology."))
            and labels.get(key) != one.text()
        ):
            return f"it selects machines with {key}={one.text()}"
    return ""


@topic.rule(
    "efa-pods-ask-for-all",
    "A pod that takes all GPUs of an EFA machine asks for its EFA interfaces and huge pages as well.",
    severity="high",
    level="advisory",
    each=lambda stack: [(stack, one) for one in stack.of(*KUBERNETES)],
    why="A pod that asks for GPUs only gets no EFA device: NCCL uses TCP and says nothing. Without huge pages "
    "libfabric's buffers do not fit, and the job ends with `Cannot allocate memory`.",
    wrong="""
job:
  type: kubernetes:elastic.pytorch.org/v1alpha1:ElasticJob
  properties:
    metadata: {name: train, namespace: training}
    spec:
      replicaSpecs:
        Worker:
          template:
            spec:
              nodeSelector: {node.kubernetes.io/instance-type: p5.48xlarge}
              containers: [{name: pytorch, image: train@sha256:1, resources: {limits: {nvidia.com/gpu: 8}}}]
""",
    right="""
job:
  type: kubernetes:elastic.pytorch.org/v1alpha1:ElasticJob
  properties:
    metadata: {name: train, namespace: training}
    spec:
      replicaSpecs:
        Worker:
          template:
            spec:
              nodeSelector: {node.kubernetes.io/instance-type: p5.48xlarge}
              containers:
                - name: pytorch
                  image: train@sha256:1
                  resources: {limits: {nvidia.com/gpu: 8, vpc.amazonaws.com/efa: 32, hugepages-2Mi: 5120Mi}}
""",
    steps="`trainyard template POOL` prints a job that asks for everything its machines offer.",
    references=(_NODE_EFA, "https://github.com/skypilot-org/skypilot/issues/10055"),
)
def pods_ask_for_all(subject: tuple[Stack, Resource], _: Settings) -> Iterator[Finding]:
    """Where a node selector tells the machine: its type, or labels of a group of this stack."""
    stack, owner = subject
    for pod in pods(owner):
        if not pod.has_gpus():
            continue
        type_of = _machine_of(stack, pod)
        for container in pod.containers(init=False):
            efa = quantity(container.asked("limits", EFA)) or 0
            if type_of and type_of.efa and container.gpus() >= type_of.gpus and efa < type_of.efa:
                of = f"all {type_of.gpus} GPUs of {type_of.name} and {efa:.0f} of its {type_of.efa} {EFA}"
                yield Finding(f"container {container.name} takes {of}", owner)
            if efa and not (quantity(container.asked("limits", HUGEPAGES)) or 0):
                yield Finding(f"container {container.name} asks for {EFA} and no {HUGEPAGES}", owner)


def _machine_of(stack: Stack, pod: Pod) -> InstanceType | None:
    selector = {key: one.text() for key, one in pod.spec.at("nodeSelector").members().items()}
    if named := selector.get("node.kubernetes.io/instance-type"):
        return machine(named)
    for group in groups(stack):
        labels = group.labels()
        if selector and group.has_efa() and all(labels.get(key) == value for key, value in selector.items()):
            return next(iter(group.machines()), None)
    return None


@topic.rule(
    "no-infiniband-from-host",
    "Training pods get EFA from the device plugin, not by mounting /dev/infiniband.",
    severity="high",
    types=KUBERNETES,
    each=pods,
    why="The mounted folder shows devices that the pod may not open: on B200 EFA is off altogether. The plugin gives "
    "a pod the devices next to its GPUs.",
    wrong="""
pod:
  type: kubernetes:core/v1:Pod
  properties:
    metadata: {namespace: training}
    spec:
      containers: [{name: train, resources: {limits: {nvidia.com/gpu: 8}}}]
      volumes: [{name: ib, hostPath: {path: /dev/infiniband}}]
""",
    right="""
pod:
  type: kubernetes:core/v1:Pod
  properties:
    metadata: {namespace: training}
    spec: {containers: [{name: train, resources: {limits: {nvidia.com/gpu: 8, vpc.amazonaws.com/efa: 32}}}]}
""",
    steps=f"Take the volume away and ask for {EFA}.",
    references=("https://github.com/aws-samples/aws-do-eks/pull/63",),
)
def no_infiniband(pod: Pod, _: Settings) -> Iterator[str]:
    """Of pods that use GPUs; the plugin itself needs the folder."""
    if not pod.has_gpus():
        return
    for name, one in pod.volumes().items():
        if one.at("hostPath", "path").text().rstrip("/").startswith("/dev/infiniband"):
            yield f"volume {name} mounts the host's /dev/infiniband"
