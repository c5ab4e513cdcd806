"""Cost: what a stack may grow to, who is told, whose it is."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal

from policies.catalogue import machine, usd_per_hour
from policies.groups import NODE_GROUP, TEMPLATE, groups
from policies.registry import Topic
from policies.rule import Finding, Resource, Setting, Settings, Stack
from policies.rules.machines import INSTANCE, LAUNCH_CONFIGURATION, SPOT_REQUEST
from policies.values import UnknownMemberError, Value

SCALING_GROUP = "aws:autoscaling/group:Group"
_HAVE_MACHINES = (NODE_GROUP, SCALING_GROUP, INSTANCE, SPOT_REQUEST)
BUDGET = "aws:budgets/budget:Budget"
TAGGABLE = (
    "aws:ec2/vpc:Vpc", "aws:ec2/launchTemplate:LaunchTemplate", "aws:ec2/instance:Instance", "aws:ebs/volume:Volume",
    "aws:eks/cluster:Cluster", NODE_GROUP, "aws:fsx/lustreFileSystem:LustreFileSystem", "aws:efs/fileSystem:FileSystem",
    "aws:s3/bucket:Bucket", "aws:ecr/repository:Repository", "aws:kms/key:Key", "aws:ec2/natGateway:NatGateway",
)  # fmt: skip
_GPU_FAMILY = re.compile(r"(?:p|g|gr)[0-9]")
"""How AWS names machines with GPUs."""
topic = Topic("Cost")
_BUDGETS = "https://docs.aws.amazon.com/cost-management/latest/userguide/budgets-managing-costs.html"


def _has_machines(stack: Stack) -> bool:
    return bool(stack.of(*_HAVE_MACHINES))


@dataclass(frozen=True)
class _Fleet:
    """Machines that a resource may start: a node group, a scaling group of one's own, a single machine."""

    resource: Resource
    types: list[str]
    most: float
    capacity: str = "ON_DEMAND"


def _fleets(stack: Stack) -> list[_Fleet]:
    """All of a stack. What Karpenter starts has its limits in the cluster."""
    found = [
        _Fleet(one.resource, one.type_names(), one.props.at("scalingConfig", "maxSize").number() or 0, one.capacity())
        for one in groups(stack)
    ]
    found += [
        _Fleet(one, _types_of_scaling_group(stack, one), one.props.at("maxSize").number() or 0)
        for one in stack.of(SCALING_GROUP)
    ]
    for one in stack.of(INSTANCE, SPOT_REQUEST):
        own = one.props.at("instanceType").text()
        found.append(_Fleet(one, [own] if own else [], 1))
    return found


def _types_of_scaling_group(stack: Stack, group: Resource) -> list[str]:
    policy = group.props.at("mixedInstancesPolicy")
    overrides = [one.at("instanceType").text() for one in policy.at("launchTemplate", "overrides").items()]
    if named := [one for one in overrides if one]:
        return named
    for key in ("launchTemplate", "mixedInstancesPolicy", "launchConfiguration"):
        for one in stack.behind(group, key, TEMPLATE, LAUNCH_CONFIGURATION):
            return [text] if (text := one.props.at("instanceType").text()) else []
    raise UnknownMemberError(f"the instance type of scaling group {group.name}")


@topic.rule(
    "gpu-count-capped",
    "A stack cannot grow to more GPUs than was agreed.",
    severity="high",
    each=lambda stack: [stack] if _has_machines(stack) else [],
    settings={"maximum": Setting(64, "Most GPUs of the stack, over all groups at their largest.")},
    why="The autoscaler goes up to maxSize when somebody submits enough jobs. A zero too many there is found on the "
    "bill.",
    wrong="""
gpus:
  type: aws:eks/nodeGroup:NodeGroup
  properties: {instanceTypes: [p5.48xlarge], scalingConfig: {minSize: 0, maxSize: 80}}
""",
    right="""
gpus:
  type: aws:eks/nodeGroup:NodeGroup
  properties: {instanceTypes: [p5.48xlarge], scalingConfig: {minSize: 0, maxSize: 8}}
""",
    steps="Lower maxSize, or raise `maximum` in the settings of the policies, where the reviewer sees it.",
)
def gpu_count(stack: Stack, settings: Settings) -> Iterator[Finding]:
    """By the type with the most GPUs of each group."""
    fleets = _fleets(stack)
    counted = [
        (one.resource.name, one.most * max((each.gpus for name in one.types if (each := machine(name))), default=0))
        for one in fleets
    ]
    total = sum(count for _, count in counted)
    if total > settings["maximum"]:
        parts = ", ".join(f"{name} {count:.0f}" for name, count in counted if count)
        yield Finding(f"groups at their largest have {total:.0f} GPUs ({parts}); at most {settings['maximum']}")
    strange = [name for one in fleets for name in one.types if machine(name) is None]
    if unknown := [f"the number of GPUs of {name}" for name in dict.fromkeys(strange) if _GPU_FAMILY.match(name)]:
        raise UnknownMemberError(", ".join(unknown))


@topic.rule(
    "cost-per-hour-capped",
    "A stack cannot grow to cost more an hour than was agreed.",
    severity="high",
    each=lambda stack: [stack] if _has_machines(stack) else [],
    settings={
        "maximumUsd": Setting(
            1000, "Most USD an hour for machines, all groups at their largest, at prices on demand.", "number"
        ),
        "region": Setting("", "Region whose prices hold; empty: that of the AWS provider.", "string"),
    },
    why="Forty p5 machines cost more in a night than a small car. The rule reckons with what could run, not with what "
    "does.",
    wrong="""
gpus:
  type: aws:eks/nodeGroup:NodeGroup
  properties: {instanceTypes: [p5.48xlarge], scalingConfig: {minSize: 0, maxSize: 40}}
  options: {provider: {region: us-east-1}}
""",
    right="""
gpus:
  type: aws:eks/nodeGroup:NodeGroup
  properties: {instanceTypes: [p5.48xlarge], scalingConfig: {minSize: 0, maxSize: 8}}
  options: {provider: {region: us-east-1}}
""",
    steps="Lower maxSize, or raise `maximumUsd` in the settings of the policies. `trainyard cost -s STACK` shows the "
    "sum.",
    references=(_BUDGETS,),
)
def cost_capped(stack: Stack, settings: Settings) -> Iterator[Finding]:
    """Types without a price are named, and the rest is judged first."""
    total, without = Decimal(0), dict[str, None]()
    for fleet in _fleets(stack):
        own = fleet.resource.props.at("region").text() or fleet.resource.provider.at("region").text()
        region = settings["region"] or own
        prices = [usd_per_hour(name, region, fleet.capacity) for name in fleet.types]
        known = [one for one in prices if one is not None]
        if len(known) < len(prices):
            missing = [name for name, one in zip(fleet.types, prices, strict=True) if one is None]
            without.update(dict.fromkeys(f"the price of {name} in {region or 'an unknown region'}" for name in missing))
        total += max(known, default=Decimal(0)) * Decimal(str(fleet.most))
    if total > Decimal(str(settings["maximumUsd"])):
        most = f"{settings['maximumUsd']:g}"
        yield Finding(f"groups at their largest cost {total:.2f} USD an hour on demand; at most {most}")
    if without:
        raise UnknownMemberError(", ".join(without))


@topic.rule(
    "budget-exists",
    "A stack with machines has a budget that tells somebody.",
    severity="medium",
    each=lambda stack: [stack] if _has_machines(stack) else [],
    presence=("subscriberEmailAddresses", "subscriberSnsTopicArns", "limitAmount"),
    why="AWS tells nobody by itself. A budget that notifies at 80 % and at the forecast is the difference between a "
    "surprise and a decision.",
    wrong="""
gpus: {type: "aws:eks/nodeGroup:NodeGroup", properties: {instanceTypes: [g6.xlarge]}}
""",
    right="""
gpus: {type: "aws:eks/nodeGroup:NodeGroup", properties: {instanceTypes: [g6.xlarge]}}
budget:
  type: aws:budgets/budget:Budget
  properties:
    budgetType: COST
    limitAmount: "500"
    limitUnit: USD
    timeUnit: MONTHLY
    notifications: [{notificationType: ACTUAL, threshold: 80, thresholdType: PERCENTAGE,
        subscriberEmailAddresses: [ml@example.com]}]
""",
    steps="Add a Budget with a notification (trainyard:aws.budget).",
    references=(_BUDGETS,),
)
def budget_exists(stack: Stack, _: Settings) -> Iterator[Finding]:
    """One that somebody hears of."""
    budgets = stack.of(BUDGET)
    if not budgets:
        yield Finding("has machines and no budget")
    for one in budgets:
        told = one.props.at("notifications").items()
        if not any(
            _has_any(each.at(key)) for each in told for key in ("subscriberEmailAddresses", "subscriberSnsTopicArns")
        ):
            yield Finding("has no notification with subscribers", one)


def _has_any(addresses: Value) -> bool:
    return addresses.is_set and (addresses.is_unknown or addresses.raw not in ([], ""))


@topic.rule(
    "required-tags",
    "What costs money carries the tags by which costs are told apart.",
    severity="low",
    types=TAGGABLE,
    settings={"keys": Setting(["environment"], "Tags that must be there: owner, project, ttl, …", "array")},
    why="A bill without tags is one number. Tags cannot be put on the past.",
    wrong="""
vpc: {type: "aws:ec2/vpc:Vpc", properties: {cidrBlock: 10.0.0.0/16}}
""",
    right="""
vpc: {type: "aws:ec2/vpc:Vpc", properties: {cidrBlock: 10.0.0.0/16, tags: {environment: prod}}}
""",
    steps="Set them once, as default tags of the AWS provider (trainyard:aws.tags); templates need them in "
    "tagSpecifications as well.",
    references=("https://docs.aws.amazon.com/awsaccountbilling/latest/aboutv2/cost-alloc-tags.html",),
)
def required_tags(resource: Resource, settings: Settings) -> Iterator[str]:
    """Own tags and the provider's default ones; machines take theirs from the template."""
    there = _default_tags(resource)
    for key in ("tags", "tagsAll"):
        if not set(settings["keys"]) <= there:
            there |= set(resource.props.at(key).members())
    if missing := [one for one in settings["keys"] if one not in there]:
        yield f"tags lacks {', '.join(missing)}"


def _default_tags(resource: Resource) -> set[str]:
    """Of the provider, whose inputs are JSON texts."""
    told = resource.provider.at("defaultTags")
    if isinstance(told.raw, str):
        try:
            told = Value(json.loads(told.raw), told.path)
        except (ValueError, RecursionError):
            return set()
    return set(told.at("tags").members())
