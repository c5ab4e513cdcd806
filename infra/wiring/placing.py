"""Which pods fit on which pools, decided without a cluster: the scheduler's rules that depend on kinds of nodes.

Node selectors, required node affinity, taints and requests are judged as kube-scheduler does, for an otherwise empty
node. What depends on how many nodes there are and what else runs on them (pod affinity, spreading, ports) is left out.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import TYPE_CHECKING, Any

from infra.catalog.instance_types import InstanceType, instance_type
from infra.wiring.allocatable import allocatable, as_quantities, ephemeral_mib, in_mib
from infra.wiring.errors import WiringError
from infra.wiring.pools import PoolPlan, node_labels, pool_plans, system_plan
from infra.wiring.scheduling import EPHEMERAL_STORAGE, Taint

if TYPE_CHECKING:
    from infra.settings.aws import Aws

_NUMBER = re.compile(r"([+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+))(?:([eE][+-]?[0-9]+)|([numkMGTPE]|[KMGTPE]i)?)")
_SUFFIXES: dict[str, Fraction] = {
    "n": Fraction(1, 10**9),
    "u": Fraction(1, 10**6),
    "m": Fraction(1, 1000),
    **{letter: Fraction(1000) ** power for power, letter in enumerate("kMGTPE", start=1)},
    **{f"{letter}i": Fraction(1024) ** power for power, letter in enumerate("KMGTPE", start=1)},
}
_MIB = Fraction(1024) ** 2
# Effects that keep a pod away; PreferNoSchedule only ranks nodes.
_BARRING = ("NoSchedule", "NoExecute")


@dataclass(frozen=True)
class Toleration:
    """One toleration; an empty key or effect matches all."""

    key: str
    operator: str
    value: str
    effect: str

    def tolerates(self, taint: Taint) -> bool:
        """Kubernetes' own rule."""
        if self.effect not in ("", taint.effect) or self.key not in ("", taint.key):
            return False
        return self.operator == "Exists" or (self.key == taint.key and self.value == taint.value)


@dataclass(frozen=True)
class Requirement:
    """One expression of node affinity."""

    key: str
    operator: str
    values: tuple[str, ...]

    def met_by(self, labels: Mapping[str, str]) -> bool:
        """Kubernetes' own rule; a label that is absent meets NotIn and DoesNotExist only.

        Raises:
            WiringError: Kubernetes has no such operator, or the values of Gt or Lt are no whole number.
        """
        value = labels.get(self.key)
        if self.operator == "In":
            return value is not None and value in self.values
        if self.operator == "NotIn":
            return value is None or value not in self.values
        if self.operator == "Exists":
            return value is not None
        if self.operator == "DoesNotExist":
            return value is None
        if self.operator in ("Gt", "Lt") and len(self.values) == 1 and re.fullmatch(r"-?[0-9]+", self.values[0]):
            if value is None or not re.fullmatch(r"-?[0-9]+", value):
                return False
            difference = int(value) - int(self.values[0])
            return difference > 0 if self.operator == "Gt" else difference < 0
        raise WiringError(
            f"node affinity on {self.key!r}: {self.operator} {list(self.values)} is none of Kubernetes'. Take"
            " In, NotIn, Exists or DoesNotExist, or Gt or Lt with one whole number."
        )

    def __str__(self) -> str:
        """As people read it: `arch In [amd64]`."""
        return f"{self.key} {self.operator}" + (f" [{', '.join(self.values)}]" if self.values else "")


@dataclass(frozen=True)
class Pod:
    """What of a pod decides where it fits."""

    name: str
    requests: Mapping[str, int]
    """In the units of `infra.wiring.allocatable`."""
    node_selector: Mapping[str, str]
    tolerations: tuple[Toleration, ...]
    node_terms: tuple[tuple[Requirement, ...], ...] = ()
    """Required node affinity: one of the terms, all expressions of it. Empty: none."""


@dataclass(frozen=True)
class NodeKind:
    """Nodes of a pool that are alike: of one type, in one zone."""

    pool: str
    labels: Mapping[str, str]
    taints: tuple[Taint, ...]
    allocatable: Mapping[str, int]


@dataclass(frozen=True)
class Fit:
    """Where a pod fits."""

    pools: tuple[str, ...]
    """Pools with nodes of a kind on which it fits."""
    reasons: Mapping[str, str]
    """For each of the other pools, why not (for the first kind of its nodes)."""


def fits(pod: Pod, nodes: Iterable[NodeKind]) -> Fit:
    """The pools on which a pod fits, in the order of the nodes, and why it does not fit on the others."""
    found: dict[str, str | None] = {}
    for node in nodes:
        if node.pool not in found or found[node.pool] is not None:
            obstacle = _obstacle(pod, node)
            found[node.pool] = found.get(node.pool) or obstacle if obstacle else None
    return Fit(
        pools=tuple(pool for pool, obstacle in found.items() if obstacle is None),
        reasons={pool: obstacle for pool, obstacle in found.items() if obstacle is not None},
    )


def with_agents(nodes: Iterable[NodeKind], agents: Sequence[Pod]) -> tuple[NodeKind, ...]:
    """The nodes with what is left on each after the pods that run on every node for which they fit (DaemonSets)."""
    return tuple(_less(node, [agent for agent in agents if _obstacle(agent, node) is None]) for node in nodes)


def node_kinds(aws: Aws, cluster: str) -> tuple[NodeKind, ...]:
    """All kinds of nodes of a stack: the system pool, then the GPU pools; of each type, in each zone.

    Raises:
        UnknownInstanceTypeError, WiringError: as `pool_plans`.
    """
    zones = tuple(aws.network.private_subnets) or aws.network.zones
    return tuple(
        NodeKind(
            pool=plan.name,
            labels=node_labels(plan, zone, cluster=cluster, type_name=name),
            taints=plan.taints,
            allocatable=_offered(plan, instance_type(name)),
        )
        for plan in (system_plan(aws), *pool_plans(aws, cluster))
        for name in plan.instance_types
        for zone in ((plan.zone,) if plan.zone else zones)
    )


def pod_of(spec: Mapping[str, Any], *, name: str = "pod") -> Pod:
    """What decides where a pod fits, from its manifest's `spec`.

    Args:
        spec: In Kubernetes' camelCase.
        name: For messages.

    Raises:
        WiringError: a quantity or an expression is none of Kubernetes'.
    """
    affinity = ((spec.get("affinity") or {}).get("nodeAffinity") or {}).get(
        "requiredDuringSchedulingIgnoredDuringExecution"
    ) or {}
    return Pod(
        name=name,
        requests=_requests(spec),
        node_selector=dict(spec.get("nodeSelector") or {}),
        tolerations=tuple(
            Toleration(
                key=each.get("key") or "",
                operator=each.get("operator") or "Equal",
                value=each.get("value") or "",
                effect=each.get("effect") or "",
            )
            for each in spec.get("tolerations") or ()
        ),
        node_terms=tuple(_term(term) for term in affinity.get("nodeSelectorTerms") or ()),
    )


def amount(resource: str, quantity: str | float) -> int:
    """A Kubernetes quantity in the unit of its resource (see `infra.wiring.allocatable`), rounded up.

    Raises:
        WiringError: it is no quantity.
    """
    match = _NUMBER.fullmatch(str(quantity))
    if match is None:
        raise WiringError(
            f"{quantity!r} is no quantity of {resource}: Kubernetes takes numbers like 2, 0.5, 500m, 128Mi, 10G."
        )
    number, exponent, suffix = match.groups()
    value = Fraction(number) * (Fraction(f"1{exponent}") if exponent else _SUFFIXES.get(suffix, Fraction(1)))
    if resource == "cpu":
        return math.ceil(value * 1000)
    if in_mib(resource):
        return math.ceil(value / _MIB)
    return math.ceil(value)


def _requests(spec: Mapping[str, Any]) -> dict[str, int]:
    """What the pod needs at once: its containers and sidecars together, or the greatest init container."""
    running: dict[str, int] = {}
    greatest: dict[str, int] = {}
    for container in spec.get("initContainers") or ():
        own = _container_requests(container)
        if container.get("restartPolicy") == "Always":  # a sidecar: goes on beside all that follows
            running = _sum(running, own)
            greatest = _max(greatest, running)
        else:
            greatest = _max(greatest, _sum(running, own))
    for container in spec.get("containers") or ():
        running = _sum(running, _container_requests(container))
    overhead = {name: amount(name, value) for name, value in (spec.get("overhead") or {}).items()}
    total = _sum(_max(greatest, running), overhead)
    return {"pods": 1} | {name: value for name, value in total.items() if value}


def _container_requests(container: Mapping[str, Any]) -> dict[str, int]:
    """A limit without a request is a request as well."""
    resources = container.get("resources") or {}
    wanted = {**(resources.get("limits") or {}), **(resources.get("requests") or {})}
    return {name: amount(name, quantity) for name, quantity in wanted.items()}


def _sum(one: Mapping[str, int], other: Mapping[str, int]) -> dict[str, int]:
    return {name: one.get(name, 0) + other.get(name, 0) for name in {**one, **other}}


def _max(one: Mapping[str, int], other: Mapping[str, int]) -> dict[str, int]:
    return {name: max(one.get(name, 0), other.get(name, 0)) for name in {**one, **other}}


def _term(term: Mapping[str, Any]) -> tuple[Requirement, ...]:
    if term.get("matchFields"):
        raise WiringError(
            "node affinity by matchFields names single nodes, and here are only kinds of nodes. Select by labels:"
            " matchExpressions, or nodeSelector."
        )
    return tuple(
        Requirement(each["key"], each["operator"], tuple(str(value) for value in each.get("values") or ()))
        for each in term.get("matchExpressions") or ()
    )


def _obstacle(pod: Pod, node: NodeKind) -> str | None:
    """The first reason why a pod does not fit on an empty node, as a sentence; None: it fits."""
    for key, value in pod.node_selector.items():
        if node.labels.get(key) != value:
            return f"its node selector wants {key}={value}, the nodes have {node.labels.get(key, 'no such label')}"
    # A term without expressions matches nothing, as in Kubernetes.
    if pod.node_terms and not any(
        term and all(requirement.met_by(node.labels) for requirement in term) for term in pod.node_terms
    ):
        wanted = " or ".join(" and ".join(map(str, term)) or "nothing" for term in pod.node_terms)
        return f"its node affinity wants {wanted}"
    for taint in node.taints:
        if taint.effect in _BARRING and not any(toleration.tolerates(taint) for toleration in pod.tolerations):
            return f"it does not tolerate the taint {taint.key}={taint.value}:{taint.effect}"
    for name, wanted_amount in pod.requests.items():
        offered = node.allocatable.get(name, 0)
        if wanted_amount > offered:
            return f"it asks for {_shown(name, wanted_amount)} and a node offers {_shown(name, offered)}"
    return None


def _shown(resource: str, value: int) -> str:
    return f"{resource} {as_quantities({resource: value})[resource]}"


def _less(node: NodeKind, agents: Sequence[Pod]) -> NodeKind:
    used: dict[str, int] = {}
    for agent in agents:
        used = _sum(used, agent.requests)
    return replace(node, allocatable={name: value - used.get(name, 0) for name, value in node.allocatable.items()})


def _offered(plan: PoolPlan, machine: InstanceType) -> dict[str, int]:
    disk = ephemeral_mib(machine, disk_gib=plan.disk_gib)
    return {**allocatable(machine, efa=plan.efa), EPHEMERAL_STORAGE: disk}
