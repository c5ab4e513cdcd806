"""Which transport has NCCL chosen? Its debug output (NCCL_DEBUG=INFO) says so, in other words from release to release.

The network of a communicator: `Using network AWS Libfabric` (later `Libfabric`), `IB`, or `Socket`. The plugin for EFA,
aws-ofi-nccl: `NET/OFI Selected Provider is efa (found 4 nics)`, and in newer releases
`NET/OFI Selected provider is efa, fabric is efa-direct (found 32 nics)`. Connections, in all of them:
`via NET/IB/0/GDRDMA`, `via NET/Socket/0`, `via P2P/CUMEM`, `via SHM/direct/direct`.
"""

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any, Final

_VERSION: Final = re.compile(r"NCCL version (\d+\.\d+\.\d+)(?:\+cuda(\d+\.\d+))?")
_NETWORK: Final = re.compile(r"NCCL INFO Using network (.+?)\s*$")
_PROVIDER: Final = re.compile(
    r"NET/OFI Selected [Pp]rovider is ([\w;-]+)(?:, fabric is [\w-]+)?(?: \(found (\d+) nics\))?"
)
_DEVICES: Final = re.compile(r"NCCL INFO NET/(IB|Socket) : Using (.+?)\s*$")
_CONNECTION: Final = re.compile(r"\bvia ((?:NET|P2P|SHM|COLL)/?[\w/]*)")
_NO_DEVICE: Final = re.compile(r"NCCL INFO NET/IB : No device found")
_NO_PLUGIN: Final = re.compile(r"NET/Plugin.*(?:Could not find|No plugin found|Failed to load)")
# From NCCL's word for a network to ours.
_KINDS: Final = (("libfabric", "efa"), ("ofi", "efa"), ("ib", "infiniband"), ("socket", "sockets"))


@dataclass(frozen=True)
class Transport:
    """What NCCL uses between nodes.

    Attributes:
        kind: `efa`, `infiniband`, `sockets`, another network's name, or None where the output does not say.
        version: of NCCL.
        detail: what it says of its devices.
        connections: how many connections go by which way.
        direct: whether the network reads GPU memory itself (GPUDirect RDMA); None: there are no such connections.
        warnings: what makes it slower than it could be, as sentences.
    """

    kind: str | None
    version: str | None
    detail: str | None
    connections: dict[str, int]
    direct: bool | None
    warnings: tuple[str, ...]

    def document(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)

    def text(self) -> str:
        """For people."""
        if self.kind is None:
            return "transport: the output does not say; set NCCL_DEBUG=INFO"
        ways = ", ".join(f"{count} by {way}" for way, count in sorted(self.connections.items()))
        first = f"transport: {self.kind}" + (f" ({self.detail})" if self.detail else "")
        first += f", NCCL {self.version}" if self.version else ""
        return "\n".join([first, *([f"connections: {ways}"] if ways else []), *self.warnings])


def transport(lines: Iterable[str]) -> Transport:
    """Read the debug output of one or more ranks."""
    version = network = provider = devices = None
    connections: Counter[str] = Counter()
    is_direct: list[bool] = []
    has_no_device = has_no_plugin = False
    for line in lines:
        if found := _VERSION.search(line):
            version = found[1]
        if found := _NETWORK.search(line):
            network = found[1]
        if found := _PROVIDER.search(line):
            provider = f"{found[1]}, {found[2]} devices" if found[2] else found[1]
        if found := _DEVICES.search(line):
            devices = found[2]
        if found := _CONNECTION.search(line):
            parts = found[1].split("/")
            connections["/".join(parts[:2])] += 1
            if parts[0] == "NET":
                is_direct.append("GDRDMA" in parts)
        has_no_device = has_no_device or bool(_NO_DEVICE.search(line))
        has_no_plugin = has_no_plugin or bool(_NO_PLUGIN.search(line))
    kind = None if network is None else _kind(network, provider)
    warnings = []
    if kind == "sockets":
        why = " (it found no InfiniBand device" + (" and no plugin)" if has_no_plugin else ")") if has_no_device else ""
        warnings.append(
            f"NCCL goes over TCP{why}: on machines with EFA or InfiniBand that is many times slower. Ask for the "
            "devices in the pod (vpc.amazonaws.com/efa), take an image with the plugin, and run `python -m training "
            "diagnose image`."
        )
    if kind in {"efa", "infiniband"} and is_direct and not all(is_direct):
        warnings.append("the network copies through host memory (no GPUDirect RDMA): look at NCCL_NET_GDR_LEVEL")
    detail = provider if kind == "efa" else devices
    return Transport(kind, version, detail, dict(connections), all(is_direct) if is_direct else None, tuple(warnings))


def _kind(network: str, provider: str | None) -> str:
    if provider and not provider.startswith("efa"):
        return provider.partition(",")[0]  # Libfabric over another fabric
    lowered = network.lower()
    return next((kind for mark, kind in _KINDS if mark in lowered), network)
