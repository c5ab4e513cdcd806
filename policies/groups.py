"""A managed node group together with its launch template: the pairs that EFA, spot and cost rules look at."""

from __future__ import annotations

import base64
import binascii
import zlib
from dataclasses import dataclass

from policies.catalogue import InstanceType, machine
from policies.rule import Resource, Stack
from policies.values import UNKNOWN, UnknownMemberError, Value

NODE_GROUP = "aws:eks/nodeGroup:NodeGroup"
TEMPLATE = "aws:ec2/launchTemplate:LaunchTemplate"
CAPACITY_BLOCK = "CAPACITY_BLOCK"
_GZIP = b"\x1f\x8b"
_LARGEST_USER_DATA = 2**20  # bytes that are looked at; EC2 takes 16 KiB, compressed
EFA_KINDS = ("efa", "efa-only")


@dataclass(frozen=True)
class Group:
    """A node group and its template."""

    resource: Resource
    template: Resource | None
    stack: Stack

    @property
    def props(self) -> Value:
        """Of the node group."""
        return self.resource.props

    @property
    def body(self) -> Value:
        """Of the template; nothing where there is none, unknown where it is made elsewhere."""
        if self.template is not None:
            return self.template.props
        return Value(UNKNOWN, "launchTemplate") if self.template_elsewhere else Value(None)

    @property
    def name(self) -> str:
        """Logical name."""
        return self.resource.name

    @property
    def template_elsewhere(self) -> bool:
        """Whether it has a template that this stack does not make."""
        return self.template is None and self.props.at("launchTemplate").is_set

    def type_names(self) -> list[str]:
        """Instance types, of the group or of its template."""
        names = self.props.at("instanceTypes").texts()
        if names:
            return names
        own = self.body.at("instanceType").text()
        return [own] if own else []

    def machines(self) -> list[InstanceType]:
        """Those types that the catalogue knows."""
        return [found for name in self.type_names() if (found := machine(name)) is not None]

    def has_gpus(self) -> bool:
        """Whether its machines have GPUs; a GPU image tells where the catalogue does not know the type."""
        ami = self.props.at("amiType")
        known = self.machines()
        return any(one.has_gpu for one in known) if known else has_driver(ami.text())

    def interfaces(self) -> list[Value]:
        """Network interfaces of the template."""
        return self.body.at("networkInterfaces").items()

    def efa_interfaces(self) -> list[Value]:
        """Those of them that are EFA."""
        return [one for one in self.interfaces() if one.at("interfaceType").text() in EFA_KINDS]

    def has_efa(self) -> bool:
        """Whether its machines get EFA interfaces."""
        return bool(self.efa_interfaces())

    def capacity(self) -> str:
        """`ON_DEMAND`, `SPOT`, `CAPACITY_BLOCK`; on demand where it says nothing, as EKS takes it."""
        return self.props.at("capacityType").text() or "ON_DEMAND"

    def reserved(self) -> bool:
        """Whether its machines come from a reservation."""
        return self.capacity() == CAPACITY_BLOCK or self.body.at("capacityReservationSpecification").is_set

    def taints(self) -> list[tuple[str, str, str]]:
        """Key, value and effect (in EKS's spelling) of each taint."""
        return [
            (one.at("key").text(), one.at("value").text(), one.at("effect").text())
            for one in self.props.at("taints").items()
        ]

    def labels(self) -> dict[str, str]:
        """Node labels."""
        return {key: one.text() for key, one in self.props.at("labels").members().items()}

    def tags(self) -> dict[str, Value]:
        """Tags of the group: where the autoscaler's hints are."""
        return self.props.at("tags").members()

    def user_data(self) -> str:
        """The template's user data, decoded."""
        return decoded(self.body.at("userData").text())


def groups(stack: Stack) -> list[Group]:
    """All node groups of a stack."""
    return [
        Group(one, next(iter(stack.behind(one, "launchTemplate", TEMPLATE)), None), stack)
        for one in stack.of(NODE_GROUP)
    ]


def gpu_groups(stack: Stack) -> list[Group]:
    """Those with GPUs; one whose types are unknown is among them, so that the rule says so."""
    return [one for one in groups(stack) if _holds_or_unknown(one.has_gpus)]


def efa_groups(stack: Stack) -> list[Group]:
    """Those with EFA interfaces; one whose interfaces are unknown is among them."""
    return [one for one in groups(stack) if _holds_or_unknown(one.has_efa)]


def _holds_or_unknown(question: object) -> bool:
    try:
        return bool(question())  # type: ignore[operator]
    except UnknownMemberError:
        return True


def has_driver(ami_type: str) -> bool:
    """Whether a family of EKS's machine images has NVIDIA's driver: `AL2023_x86_64_NVIDIA`, `AL2_x86_64_GPU`."""
    return ami_type.endswith(("NVIDIA", "_GPU", "NVIDIA_FIPS"))


def decoded(text: str) -> str:
    """User data as text: launch templates hold it as base64, in lines or not, and cloud-init takes it compressed."""
    try:
        raw = base64.b64decode("".join(text.split()), validate=True)
    except (binascii.Error, ValueError):
        return text
    if raw.startswith(_GZIP):
        try:
            raw = zlib.decompressobj(zlib.MAX_WBITS | 16).decompress(raw, _LARGEST_USER_DATA)
        except zlib.error:
            return text
    return raw.decode("utf-8", "replace")
