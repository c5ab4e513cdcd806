"""Finds the pods that Kubernetes objects will make, whatever kind of object that is.

A template is recognised by its shape (`spec` with a list of `containers`), not by its place: so ElasticJob, PyTorchJob,
TrainJob, JobSet, Ray and kinds to come are looked at as Deployments are. What a Helm chart makes is not visible.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from policies.rule import Resource, Stack
from policies.values import UNKNOWN, UnknownMemberError, Value

KUBERNETES = ("kubernetes:",)
_NVIDIA = "nvidia.com/"
GPU = f"{_NVIDIA}gpu"
EFA = "vpc.amazonaws.com/efa"
HUGEPAGES = "hugepages-2Mi"
SPOT_TAINTS = (
    "trainyard.dev/spot",
    "cloud.google.com/gke-spot",
    "kubernetes.azure.com/scalesetpriority",
    "eks.amazonaws.com/capacityType",
    "karpenter.sh/capacity-type",
    "spot",
)
"""Keys of taints and labels by which clouds and people mark machines that may be reclaimed."""
NODE_AGENTS = ("kube-system", "trainyard-node-agents", "gpu-operator", "nvidia-device-plugin", "amazon-cloudwatch")
"""Namespaces of agents that need the machine itself: device plugins, metrics, network."""
_DEFINITIONS = ("CustomResourceDefinition", "Release", "Chart")
"""Kinds that hold no pods of their own, though what they hold may look so."""
_ELASTIC = re.compile(r"kubernetes:(elastic\.pytorch\.org|kubeflow\.org|trainer\.kubeflow\.org)/")
_DEEPEST = 12
_LEADING = ("spec", "template", "jobTemplate")
"""Members that lead to pods."""
_SUFFIXES = {
    "n": 1e-9, "u": 1e-6, "m": 1e-3, "": 1.0, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15, "E": 1e18,
    "Ki": 2.0**10, "Mi": 2.0**20, "Gi": 2.0**30, "Ti": 2.0**40, "Pi": 2.0**50, "Ei": 2.0**60,
}  # fmt: skip
_QUANTITY = re.compile(r"([+-]?[0-9.]+(?:[eE][+-]?[0-9]+)?)([a-zA-Z]*)")


@dataclass(frozen=True)
class Container:
    """One container of a pod."""

    value: Value
    pod: Pod

    @property
    def name(self) -> str:
        """Its name, for messages."""
        name = self.value.at("name")
        return "(no name)" if name.is_unknown else name.text() or "(no name)"

    def asked(self, which: str, resource: str) -> Value:
        """What it asks for: `which` is `limits` or `requests`."""
        return self.value.at("resources", which, resource)

    def gpus(self) -> float:
        """How many GPUs it is given."""
        return quantity(self.asked("limits", GPU)) or 0.0

    def has_gpus(self) -> bool:
        """Whether it is given devices of NVIDIA, whole ones or slices."""
        limits = self.value.at("resources", "limits").members()
        return any(key.startswith(_NVIDIA) and quantity(one) for key, one in limits.items())

    def variables(self) -> list[tuple[str, Value]]:
        """Its environment: name and entry."""
        return [(one.at("name").text(), one) for one in self.value.at("env").items()]


@dataclass(frozen=True)
class Pod:
    """One pod template."""

    owner: Resource
    spec: Value
    metadata: Value

    @property
    def where(self) -> str:
        """Which of the owner's templates, for messages; empty where there is one place only."""
        return self.spec.path

    @property
    def namespace(self) -> str:
        """The namespace of its owner.

        In a first preview it is often unknown, as it comes from the Namespace: look for what is wrong first, and then
        whether the namespace allows it.
        """
        return self.owner.props.at("metadata", "namespace").text() or "default"

    @property
    def is_elastic(self) -> bool:
        """Whether it belongs to a training job."""
        return bool(_ELASTIC.match(self.owner.type))

    def containers(self, *, init: bool = True) -> list[Container]:
        """Its containers."""
        lists = ("initContainers", "containers") if init else ("containers",)
        return [Container(one, self) for key in lists for one in self.spec.at(key).items()]

    def has_gpus(self) -> bool:
        """Whether a container is given GPUs, or slices of one (`nvidia.com/mig-1g.10gb`)."""
        return any(each.has_gpus() for each in self.containers())

    def tolerations(self) -> list[Toleration]:
        """What it tolerates."""
        return [
            Toleration(
                one.at("key").text(), one.at("operator").text() or "Equal", one.at("value").text(),
                one.at("effect").text(),
            )
            for one in self.spec.at("tolerations").items()
        ]  # fmt: skip

    def tolerates_spot(self) -> bool:
        """Whether it may be put on machines that can be reclaimed."""
        selected = self.spec.at("nodeSelector").members()
        capacity = ("eks.amazonaws.com/capacityType", "trainyard.dev/capacity", "karpenter.sh/capacity-type")
        wanted = {selected[key].text().lower() for key in capacity if key in selected}
        if wanted:
            return wanted == {"spot"}
        return any(not one.key or one.key in SPOT_TAINTS for one in self.tolerations())

    def volumes(self) -> dict[str, Value]:
        """Its volumes by name."""
        return {one.at("name").text(): one for one in self.spec.at("volumes").items()}


@dataclass(frozen=True)
class Toleration:
    """One toleration; empty texts match everything."""

    key: str
    operator: str
    value: str
    effect: str

    def matches(self, key: str, value: str, effect: str) -> bool:
        """Whether it answers a taint (effect in Kubernetes' spelling)."""
        if self.effect and self.effect != effect:
            return False
        if not self.key:
            return self.operator == "Exists"
        return self.key == key and (self.operator == "Exists" or self.value == value)


def pods(resource: Resource, *, patches: bool = False) -> list[Pod]:
    """All pod templates of a Kubernetes object.

    Args:
        resource: it.
        patches: those of a patch (`DaemonSetPatch`) as well, which say only what they change: for rules that forbid.

    Raises:
        UnknownMemberError: something is unknown that may hold pods.
    """
    if not resource.is_a(KUBERNETES) or resource.kind in _DEFINITIONS:
        return []
    if resource.kind.endswith("Patch") and not patches:
        return []
    return list(_templates(resource, resource.props, 0))


def namespace_of(stack: Stack, resource: Resource) -> str:
    """The namespace of an object; where it is unknown, that of the Namespace that it comes from."""
    own = resource.props.at("metadata", "namespace")
    if own.is_unknown:
        for one in stack.behind(resource, "metadata", "kubernetes:core/v1:Namespace"):
            return one.props.at("metadata", "name").text()
    return own.text() or "default"


def containers(resource: Resource, *, patches: bool = False) -> Iterable[Container]:
    """All containers of all pods of an object, init containers too; of patches as `pods` says."""
    return [each for pod in pods(resource, patches=patches) for each in pod.containers()]


def _templates(owner: Resource, value: Value, depth: int) -> Iterator[Pod]:
    if depth > _DEEPEST or not isinstance(value.raw, Mapping):
        return
    for key, one in value.members().items():
        if one.is_unknown and (key in _LEADING or key.endswith("eplicaSpecs") or value.path.endswith("eplicaSpecs")):
            raise UnknownMemberError(one.path)  # pods may be in it
        if key == "status" and depth == 0:
            continue
        if key == "spec" and isinstance(one.raw, Mapping) and _is_list(one.raw.get("containers")):
            yield Pod(owner, one, value.at("metadata"))
        elif isinstance(one.raw, Mapping):
            yield from _templates(owner, one, depth + 1)
        elif isinstance(one.raw, list | tuple):
            for each in one.items():
                yield from _templates(owner, each, depth + 1)


def _is_list(raw: object) -> bool:
    return raw is UNKNOWN or isinstance(raw, list | tuple)


def quantity(value: Value) -> float | None:
    """A Kubernetes quantity as a number (bytes, cores, devices); None where there is none."""
    raw = value.raw
    if isinstance(raw, str):
        found = _QUANTITY.fullmatch(raw)
        number = Value(found[1]).number() if found else None
        if found is None or number is None or found[2] not in _SUFFIXES:
            return None
        scaled = number * _SUFFIXES[found[2]]
        return scaled if math.isfinite(scaled) else None
    return value.number()


def image_parts(image: str) -> tuple[str, str, str]:
    """Repository, tag and digest of an image reference; empty where it has none."""
    rest, _, digest = image.partition("@")
    last = rest.rsplit("/", 1)[-1]
    tag = last.partition(":")[2]
    return rest[: len(rest) - len(tag) - 1] if tag else rest, tag, digest
