"""What a machine offers to pods, reckoned before it exists.

Rounded to the safe side, so that what fits here fits on the machine. Sources: kube-reserved as EKS's nodeadm and
Bottlerocket reckon it; hugepages as seen on machines with EFA; memory that the hypervisor and the kernel keep as
Karpenter assumes it (`vmMemoryOverheadPercent`, 7.5 %; p4d was seen with 2.6 %); of disks the kubelet's hard eviction
at 10 % free, and 1 GiB that EKS reserves.
"""

from __future__ import annotations

from collections.abc import Mapping

from infra.catalog.instance_types import InstanceType
from infra.wiring.interfaces import interfaces_of
from infra.wiring.scheduling import EFA_RESOURCE, EPHEMERAL_STORAGE, GPU_RESOURCE, HUGEPAGES

_UNSEEN_MEMORY_PER_MILLE = 75
_EVICTION_MIB = 100  # memory.available of the kubelet's hard eviction
_RESERVED_MIB = 255
_RESERVED_MIB_PER_POD = 11
# Of the first CPU, of the second, of the next two, of all others: in hundredths of a per cent of one CPU.
_RESERVED_CPU = (600, 100, 50, 50)
_RESERVED_CPU_REST = 25
_SMALL_VCPUS = 30
_PODS_SMALL, _PODS_LARGE = 110, 250  # most pods that a managed node group sets, below 30 vCPUs and from there on
_HUGEPAGES_MIB_PER_VCPU = 220  # 110 pages
_DISK_PER_CENT = 88  # 10 % for the hard eviction, 2 % for the file system itself
_RESERVED_DISK_MIB = 1024


def allocatable(machine: InstanceType, *, efa: bool) -> dict[str, int]:
    """What a node of a type offers: `cpu` in thousandths, `memory` and hugepages in MiB, all else in pieces.

    Resources that it does not have are absent.

    Raises:
        WiringError: `efa` and the type has none.
    """
    interfaces = interfaces_of(machine, efa=efa)
    cap = _PODS_SMALL if machine.vcpus < _SMALL_VCPUS else _PODS_LARGE
    hugepages = hugepages_mib(machine) if efa else 0
    # The reservation goes by the addresses of the bare type, also where EFA takes some of their room.
    reserved = _RESERVED_MIB + _RESERVED_MIB_PER_POD * max(machine.max_pods, cap) + _EVICTION_MIB
    seen = machine.memory_mib * (1000 - _UNSEEN_MEMORY_PER_MILLE) // 1000
    offered = {
        "cpu": machine.vcpus * 1000 - _reserved_millicores(machine.vcpus),
        "memory": seen - reserved - hugepages,
        "pods": min(cap, _pod_addresses(machine, sum(each.card == 0 for each in interfaces) - 1)),
        GPU_RESOURCE: machine.gpus,
        EFA_RESOURCE: sum(each.kind == "efa-only" for each in interfaces),
        HUGEPAGES: hugepages,
    }
    return {name: amount for name, amount in offered.items() if amount}


def capacity(machine: InstanceType, *, efa: bool) -> dict[str, int]:
    """What the machine has, before the kubelet keeps its part: in the units of `allocatable`."""
    seen = machine.memory_mib * (1000 - _UNSEEN_MEMORY_PER_MILLE) // 1000
    return {**allocatable(machine, efa=efa), "cpu": machine.vcpus * 1000, "memory": seen}


def hugepages_mib(machine: InstanceType) -> int:
    """Hugepages of 2 MiB on a machine with EFA, in MiB.

    They are reserved by CPUs and not by interfaces: 110 pages for each, as Bottlerocket's own generator has it
    (bottlerocket-core-kit PR 141), and one page more. That makes exactly what was seen on AL2023: 21122Mi on machines
    of 96 vCPUs with 4 EFA interfaces and with 1, 42242Mi on p5.48xlarge with 192. (AWS's documents still name about
    5128 pages, whatever the machine.)
    """
    return _HUGEPAGES_MIB_PER_VCPU * machine.vcpus + 2


def ephemeral_mib(machine: InstanceType, *, disk_gib: int) -> int:
    """What pods can write to a machine's own disks, in MiB: images, logs, `emptyDir`.

    Args:
        machine: Its type. Where it has NVMe disks, the kubelet's and containerd's folders are on them, see
            `infra.wiring.user_data`.
        disk_gib: Its root disk, which they are on elsewhere.
    """
    whole = machine.nvme_gb * 10**9 // 2**20 if machine.nvme_gb else disk_gib * 1024
    return whole * _DISK_PER_CENT // 100 - _RESERVED_DISK_MIB


def in_mib(resource: str) -> bool:
    """Whether amounts of a resource are in MiB here: all that Kubernetes counts in bytes."""
    return resource in ("memory", EPHEMERAL_STORAGE) or resource.startswith("hugepages-")


def as_quantities(amounts: Mapping[str, int]) -> dict[str, str]:
    """Amounts in the units of `allocatable` as Kubernetes writes them: `191450m`, `42242Mi`, `8`."""
    return {
        name: f"{amount}Mi" if in_mib(name) else f"{amount}m" if name == "cpu" else str(amount)
        for name, amount in amounts.items()
    }


def _reserved_millicores(vcpus: int) -> int:
    """kube-reserved: 6 % of the first CPU, 1 % of the second, 0.5 % of the next two, 0.25 % of the rest."""
    first = sum(_RESERVED_CPU[:vcpus])
    rest = _RESERVED_CPU_REST * max(vcpus - len(_RESERVED_CPU), 0)
    return -(-(first + rest) // 10)  # rounded up


def _pod_addresses(machine: InstanceType, efa_on_first_card: int) -> int:
    """Pods by addresses, as `InstanceType.max_pods`, less the room on card 0 that EFA interfaces take."""
    return (machine.cards[0].interfaces - efa_on_first_card) * (machine.ipv4_per_interface - 1) + 2
