"""The EC2 instance types that pools can be made of: GPUs, network cards, EFA, memory and what the hardware asks for.

An offline table, so that previews, tests and rehearsals need no credentials. `trainyard gpus --refresh` compares it
with an account.
"""

from __future__ import annotations

import difflib
import functools
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Literal

from infra.catalog.tables import table
from infra.errors import TrainyardError

Architecture = Literal["x86_64", "arm64"]


class UnknownInstanceTypeError(TrainyardError):
    """The catalogue has no instance type of this name."""

    exit_code = 2


@dataclass(frozen=True)
class NetworkCard:
    """One network card of a machine."""

    interfaces: int
    """How many network interfaces fit on it."""
    efa: bool
    """Whether one of them may be an EFA interface."""


@dataclass(frozen=True)
class Gpu:
    """A kind of GPU, whatever machine it is in."""

    name: str
    """EC2's name of it: `H100`."""
    compute_capability: str
    """What images must be compiled for: `9.0`."""
    minimum_driver: str
    """Oldest NVIDIA driver, dotted number, that runs it."""
    minimum_driver_unconfirmed: bool
    """The number is derived from the first CUDA that knows the compute capability, no document names it."""
    source: str


@dataclass(frozen=True)
class InstanceType:
    """One EC2 instance type."""

    name: str
    architecture: Architecture
    vcpus: int
    memory_mib: int
    """As advertised; the operating system sees less."""
    gpu: str | None
    """EC2's name of the GPU: `H100`."""
    gpus: int
    gpu_memory_mib: int
    """Memory of one GPU."""
    compute_capability: str | None
    efa: int
    """How many EFA interfaces the machine may have, 0 where it has no EFA. Not the number of network cards."""
    cards: tuple[NetworkCard, ...]
    """Network cards by their index."""
    device_index_max: int | None
    """Highest device index at which EC2 still launches the type; None where no limit below the card's is known."""
    ipv4_per_interface: int
    """IPv4 addresses of one interface, the interface's own included."""
    nvme_gb: int
    """Instance store in all, 0 where there is none."""
    topology_layers: int
    """How many `topology.k8s.aws/network-node-layer-N` labels its nodes carry."""
    capacities: tuple[str, ...]
    """Ways in which the type is sold, spelled as the setting `capacity`."""
    minimum_driver: str | None
    """Oldest NVIDIA driver that runs its GPU."""
    unconfirmed: tuple[str, ...]
    """Fields whose value no document or account has confirmed."""
    source: str

    @property
    def family(self) -> str:
        """The part before the dot: `p5`."""
        return self.name.partition(".")[0]

    @property
    def has_gpu(self) -> bool:
        """Whether it is a GPU machine."""
        return self.gpus > 0

    @property
    def accelerator_label(self) -> str | None:
        """Value of the node label `k8s.amazonaws.com/accelerator`: the autoscaler waits for the GPUs of such nodes."""
        return f"nvidia-{self.gpu.lower().replace(' ', '-')}" if self.gpu else None

    @property
    def max_pods(self) -> int:
        """How many pods fit by IP addresses: EKS's rule for the VPC CNI without prefixes, first network card only."""
        return self.cards[0].interfaces * (self.ipv4_per_interface - 1) + 2


@functools.cache
def gpus() -> Mapping[str, Gpu]:
    """All kinds of GPU by EC2's name."""
    return MappingProxyType(
        {
            name: Gpu(
                name=name,
                compute_capability=row["compute_capability"],
                minimum_driver=row["minimum_driver"],
                minimum_driver_unconfirmed=row.get("minimum_driver_unconfirmed", False),
                source=row["source"],
            )
            for name, row in table("instance_types")["gpu"].items()
        }
    )


@functools.cache
def instance_types() -> Mapping[str, InstanceType]:
    """All instance types of the catalogue by name, in the order of the file: newest GPU machines first, CPUs last."""
    return MappingProxyType({name: _type(name, row) for name, row in table("instance_types")["type"].items()})


def instance_type(name: str) -> InstanceType:
    """One instance type.

    Raises:
        UnknownInstanceTypeError: the catalogue does not have it; the message gives the nearest names.
    """
    known = instance_types()
    if name in known:
        return known[name]
    if reason := left_out(name):
        raise UnknownInstanceTypeError(
            f"the catalogue has no {name!r} on purpose: {reason}. `trainyard gpus` shows what it has."
        )
    names = nearest_names(name)
    nearest = f"Nearest: {', '.join(names)}. " if names else ""
    raise UnknownInstanceTypeError(
        f"the catalogue has no instance type {name!r}. {nearest}`trainyard gpus` shows all; a missing one belongs into "
        "infra/catalog/instance_types.toml."
    )


def left_out(name: str) -> str | None:
    """Why a type is not in the catalogue on purpose; None: its family is there, or nobody has thought of it."""
    reason: str | None = table("instance_types")["left_out"].get(name.partition(".")[0])
    return reason


def nearest_names(name: str) -> list[str]:
    """Up to six names of the catalogue that a wrong one may have meant, the likeliest first."""
    known = instance_types()
    near = difflib.get_close_matches(name, known, n=3, cutoff=0.5)
    family = [other for other in known if other.partition(".")[0] == name.partition(".")[0]]
    return list(dict.fromkeys([*near, *family]))[:6]


@functools.cache
def differences() -> Mapping[tuple[str, str], str]:
    """Where a value is on purpose not EC2's own, by type and field; the reason of each."""
    rows = table("instance_types").get("difference", [])
    return MappingProxyType({(row["type"], row["field"]): row["reason"] for row in rows})


def _type(name: str, row: Mapping[str, Any]) -> InstanceType:
    gpu = gpus()[row["gpu"]] if "gpu" in row else None
    unconfirmed = tuple(row.get("unconfirmed", ()))
    if gpu is not None and gpu.minimum_driver_unconfirmed:
        unconfirmed += ("minimum_driver",)
    return InstanceType(
        name=name,
        architecture=row.get("architecture", "x86_64"),
        vcpus=row["vcpus"],
        memory_mib=row["memory_gib"] * 1024,
        gpu=row.get("gpu"),
        gpus=row.get("gpus", 0),
        gpu_memory_mib=row.get("gpu_memory_mib", 0),
        compute_capability=gpu.compute_capability if gpu else None,
        efa=row.get("efa", 0),
        cards=tuple(
            NetworkCard(interfaces=group["interfaces"], efa=group["efa"])
            for group in row["cards"]
            for _ in range(group.get("count", 1))
        ),
        device_index_max=row.get("device_index_max"),
        ipv4_per_interface=row["ipv4_per_interface"],
        nvme_gb=row.get("nvme_gb", 0),
        topology_layers=row.get("topology_layers", 0),
        capacities=tuple(row["capacities"]),
        minimum_driver=gpu.minimum_driver if gpu else None,
        unconfirmed=unconfirmed,
        source=row["source"],
    )
