"""Can a worker fit any node that there is? Says so at once, in a sentence, instead of waiting in silence."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from training.controller.api import Reason

if TYPE_CHECKING:
    from training.controller.records import NodeRecord

_FACTORS = {
    "n": Decimal("1e-9"),
    "u": Decimal("1e-6"),
    "m": Decimal("1e-3"),
    "": Decimal(1),
    "k": Decimal(10) ** 3,
    "M": Decimal(10) ** 6,
    "G": Decimal(10) ** 9,
    "T": Decimal(10) ** 12,
    "P": Decimal(10) ** 15,
    "E": Decimal(10) ** 18,
    "Ki": Decimal(2) ** 10,
    "Mi": Decimal(2) ** 20,
    "Gi": Decimal(2) ** 30,
    "Ti": Decimal(2) ** 40,
    "Pi": Decimal(2) ** 50,
    "Ei": Decimal(2) ** 60,
}


def parse_quantity(quantity: str | float) -> Decimal:
    """A Kubernetes quantity (`500m`, `1.5Gi`, `1e3`, 2) as a number; 0 for what is none (the API server refuses it)."""
    text = str(quantity).strip()
    number = text.rstrip("numkKMGTPEi")
    try:
        return Decimal(number) * _FACTORS[text[len(number) :]]
    except (InvalidOperation, KeyError):
        return Decimal(0)


def worker_requests(template: Mapping[str, Any]) -> dict[str, str]:
    """What one worker asks for, by resource, as written; summed where several containers ask.

    A limit without a request is a request too, as the API server has it.
    """
    totals: dict[str, Decimal] = {}
    written: dict[str, str] = {}
    for container in (template.get("spec") or {}).get("containers") or ():
        resources = container.get("resources") or {}
        wanted = {**(resources.get("limits") or {}), **(resources.get("requests") or {})}
        for resource, amount in wanted.items():
            written[resource] = str(amount) if resource not in totals else ""
            totals[resource] = totals.get(resource, Decimal(0)) + parse_quantity(amount)
    return {resource: written[resource] or f"{total.normalize():f}" for resource, total in totals.items()}


def pod_requests(spec: Mapping[str, Any]) -> Mapping[str, Decimal]:
    """What a pod takes of its node: the sum of its containers, and one of the node's pods."""
    written = worker_requests({"spec": spec})
    return _shared(tuple(sorted(written.items())))


@lru_cache(maxsize=1024)
def _shared(written: tuple[tuple[str, str], ...]) -> Mapping[str, Decimal]:
    """One mapping for all the pods, tens of thousands perhaps, that ask for the same."""
    return {"pods": Decimal(1), **{resource: parse_quantity(amount) for resource, amount in written}}


@dataclass(frozen=True, slots=True)
class Taint:
    """A taint that keeps pods away from a node."""

    key: str
    value: str
    effect: str

    def tolerated(self, tolerations: Iterable[Mapping[str, Any]]) -> bool:
        """Whether one of a pod's tolerations is for it."""
        return any(
            toleration.get("effect") in {None, "", self.effect}
            and (
                toleration.get("key") == self.key
                if toleration.get("key")
                else toleration.get("operator") == "Exists"  # of every taint
            )
            and (toleration.get("operator") == "Exists" or (toleration.get("value") or "") == self.value)
            for toleration in tolerations
        )


def room(template: Mapping[str, Any], nodes: Iterable[NodeRecord], used: Mapping[str, Mapping[str, Decimal]]) -> int:
    """How many more workers of this template nodes have room for, as far as the controller sees.

    It knows what workers of ElasticJobs take (`used`, by node), not what other pods do, and of the template it reads
    requests, nodeSelector and tolerations. Where it hopes too much the scheduler says so, and the worker is given up.
    """
    spec = template.get("spec") or {}
    selector = spec.get("nodeSelector") or {}
    tolerations = spec.get("tolerations") or ()
    asked = {resource: amount for resource, amount in pod_requests(spec).items() if amount > 0}
    found = 0
    for node in nodes:
        if not node.ready or node.cordoned or node.notice or node.out_of_service:
            continue
        if any(node.labels.get(key) != value for key, value in selector.items()):
            continue
        if not all(taint.tolerated(tolerations) for taint in node.taints):
            continue
        taken = used.get(node.name, {})
        found += max(
            0,
            min(
                int((node.allocatable.get(resource, Decimal(0)) - taken.get(resource, Decimal(0))) // amount)
                for resource, amount in asked.items()
            ),
        )
    return found


@dataclass(frozen=True, slots=True)
class NoRoom:
    """Why no node can hold a worker: RequestTooLarge, the user's to correct, or NoNodeYet, for which one can wait."""

    reason: Reason
    message: str


def no_room(template: Mapping[str, Any], nodes: Iterable[NodeRecord]) -> NoRoom | None:
    """Why none of the nodes can hold a worker of this template; None if one might.

    Pools that are empty now, or that make nodes on demand, cannot be seen: too large is only what is more than nodes
    of its kind have.
    """
    selector = (template.get("spec") or {}).get("nodeSelector") or {}
    every = list(nodes)
    fitting = [node for node in every if all(node.labels.get(k) == v for k, v in selector.items())]
    if not every:
        return NoRoom(Reason.NO_NODE_YET, "the cluster has no nodes yet: workers wait until one joins")
    if not fitting:
        labels = ", ".join(f"{key}={value}" for key, value in sorted(selector.items()))
        message = f"no node has the labels of the worker's nodeSelector now ({labels}): workers wait until one joins"
        return NoRoom(Reason.NO_NODE_YET, f"{message} (correct the labels, or add a pool with them, if none can)")
    unseen: NoRoom | None = None
    for resource, amount in sorted(worker_requests(template).items()):
        largest = max(fitting, key=lambda node: (node.allocatable.get(resource, Decimal(0)), node.name))
        most = largest.allocatable.get(resource, Decimal(0))
        asks = f"each worker asks for {amount} {resource}"
        if most and parse_quantity(amount) > most:
            has = f"the largest node has {_show(resource, most)}: {largest.name}"
            return NoRoom(Reason.REQUEST_TOO_LARGE, f"{asks}; {has}: lower the request or add a pool")
        if not most and parse_quantity(amount) and unseen is None:
            message = f"{asks}, which no node has now: workers wait until one joins (add a pool if none can)"
            unseen = NoRoom(Reason.NO_NODE_YET, message)
    return unseen


def _show(resource: str, amount: Decimal) -> str:
    if resource in {"memory", "ephemeral-storage"} or resource.startswith("hugepages-"):
        return f"{amount / _FACTORS['Mi']:.0f}Mi"
    return f"{amount.normalize():f}"
