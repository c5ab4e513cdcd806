"""The files and arguments of one node's kubelet, as text and lists: no effects here."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import psutil
from lightkube.utils.quantity import parse_quantity

from infra.local.control_plane import NODE_LEASE_SECONDS
from infra.local.control_plane.pki import Pair
from infra.local.nodes.spec import Machine

PORT = 10250  # each node has its own address, so all use the port that real nodes use
HEALTH_PORT = 10248
# A kubelet may set labels of these prefixes on itself only in a few cases (NodeRestriction); the local cloud sets them.
_RESERVED_LABELS = ("kubernetes.io", "k8s.io")


def configuration(machine: Machine, folder: Path, short: Path, authority: Path, serving: Pair) -> dict[str, Any]:
    """The KubeletConfiguration of a node whose folder is `folder`, and `short` for the sockets in it."""
    return {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "address": machine.address,
        "port": PORT,
        "readOnlyPort": 0,
        "healthzBindAddress": machine.address,
        "healthzPort": HEALTH_PORT,
        "tlsCertFile": str(serving.certificate),
        "tlsPrivateKeyFile": str(serving.key),
        "authentication": {
            "anonymous": {"enabled": False},
            "webhook": {"enabled": True},
            "x509": {"clientCAFile": str(authority)},
        },
        "authorization": {"mode": "Webhook"},
        "containerRuntimeEndpoint": f"unix://{short}/cri.sock",
        "registerWithTaints": [taint.as_kubernetes() for taint in machine.spec.taints],
        "nodeLeaseDurationSeconds": NODE_LEASE_SECONDS,
        "nodeStatusUpdateFrequency": "2s",  # a restarted node shows its true state at the second report
        # No cluster DNS: Service names are in the pods' hosts files, everything else is asked where the computer asks.
        "clusterDNS": [],
        "clusterDomain": "cluster.local",
        "resolvConf": str(folder / "resolv.conf"),
        "podLogsDir": str(folder / "pod-logs"),
        "volumePluginDir": str(folder / "volume-plugins"),
        # Pods are processes of the user: no cgroups of their own, no kernel settings, no firewall rules.
        "featureGates": {"KubeletInUserNamespace": True},
        "failCgroupV1": False,
        "cgroupDriver": "cgroupfs",
        "cgroupsPerQOS": False,
        "enforceNodeAllocatable": [],
        "oomScoreAdj": 0,
        "failSwapOn": False,
        "makeIPTablesUtilChains": False,
        "localStorageCapacityIsolation": False,
        "systemReserved": reserved(machine.spec.resources, os.cpu_count() or 1, psutil.virtual_memory().total),
        # The computer's own disk and memory pressure are its user's business, not a reason to evict pods.
        "evictionHard": {"memory.available": "0%", "nodefs.available": "0%", "imagefs.available": "0%"},
        "imageGCHighThresholdPercent": 100,
        "shutdownGracePeriod": "0s",
    }


def reserved(wanted: Mapping[str, str], cpus: int, memory_bytes: int) -> dict[str, str]:
    """What to keep back so that no more than `wanted` is left for pods; nothing where the computer has less."""
    kept = {}
    if "cpu" in wanted:
        surplus = 1000 * cpus - int(1000 * _number(wanted["cpu"]))
        if surplus > 0:
            kept["cpu"] = f"{surplus}m"
    if "memory" in wanted:
        surplus = memory_bytes - int(_number(wanted["memory"]))
        if surplus > 0:
            kept["memory"] = str(surplus)
    return kept


def command(machine: Machine, folder: Path, short: Path, kubelet: Path, kubeconfig: Path) -> list[str]:
    """The kubelet with its arguments."""
    labels = {
        name: value
        for name, value in machine.spec.labels.items()
        if not name.partition("/")[0].endswith(_RESERVED_LABELS)
    }
    return [
        str(kubelet),
        f"--config={folder / 'kubelet.yaml'}",
        f"--kubeconfig={kubeconfig}",
        f"--root-dir={short / 'kubelet'}",
        f"--cert-dir={folder / 'kubelet-certificates'}",
        f"--hostname-override={machine.name}",
        "--cloud-provider=external",
        *([f"--node-labels={','.join(f'{name}={value}' for name, value in sorted(labels.items()))}"] if labels else []),
    ]


def node_process(
    machine: Machine,
    folder: Path,
    short: Path,
    *,
    images: Path,
    environment: Mapping[str, str],
    hide: Sequence[Path],
    kubelet_command: Sequence[str],
) -> dict[str, Any]:
    """The configuration of the node's process runtime (node.json)."""
    return {
        "name": machine.name,
        "dir": str(folder),
        "socket": str(short / "cri.sock"),
        "podNetwork": machine.pod_network,
        "images": str(images),
        "streamingAddress": machine.address,
        "environment": dict(environment),
        "hide": [str(path) for path in hide],
        "kubelet": list(kubelet_command),
    }


def resolver(host: str) -> str:
    """The computer's resolver file with short timeouts: a laptop without a network shall fail at once, not in 40 s."""
    lines = [line for line in host.splitlines() if line.split()[:1] in (["nameserver"], ["search"])]
    return "\n".join([*lines, "options timeout:1 attempts:1"]) + "\n"


def _number(quantity: str) -> float:
    return float(parse_quantity(quantity) or 0)
