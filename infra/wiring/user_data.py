"""What machines are told at boot: nodeadm's NodeConfig (AL2023) or Bottlerocket's settings.

EKS adds the cluster's name, endpoint and certificate itself where the image is one of its own, so they are not in here.
The text depends on nothing but the type of machine: each change of a launch template replaces every machine of a pool.
"""

from __future__ import annotations

from email.message import Message
from email.mime.multipart import MIMEMultipart
from typing import TYPE_CHECKING, Any

import yaml

from infra.catalog.instance_types import InstanceType
from infra.wiring.allocatable import hugepages_mib

if TYPE_CHECKING:
    from infra.settings.aws import OperatingSystem

_BOUNDARY = "trainyard-node-config"  # fixed: a random one would be a new launch template at each run
_HUGEPAGE_MIB = 2

# Limits of every container on a machine with EFA. EFA pins its buffers, beyond the usual 8 MiB of locked memory. The
# capability IPC_LOCK lifts that limit only for root: our jobs run as an ordinary user, whom only this helps (nodeadm's
# example "Modifying container RLIMITS"). The list replaces nodeadm's own, whose limit of open files is repeated here.
# 8 TiB is more than any machine has, and safe from JSON readers that take large numbers for floating point.
_EFA_LIMITS = [
    {"type": "RLIMIT_NOFILE", "soft": 65536, "hard": 1048576},
    {"type": "RLIMIT_MEMLOCK", "soft": 1 << 43, "hard": 1 << 43},
]

# Bottlerocket's own way to make one array of the instance store and to put kubelet, containerd and logs on it.
_BOTTLEROCKET_LOCAL_STORAGE = """\
[settings.bootstrap-commands.local-storage]
commands = [
  ["apiclient", "ephemeral-storage", "init"],
  ["apiclient", "ephemeral-storage", "bind", "--dirs", "/var/lib/containerd", "/var/lib/kubelet", "/var/log/pods"],
]
essential = true
mode = "always"
"""


def user_data(machine: InstanceType, *, operating_system: OperatingSystem, efa: bool) -> str | None:
    """The user data of machines of a type, as plain text (launch templates take it in base64).

    Returns:
        None where there is nothing to say.
    """
    if operating_system == "bottlerocket":
        return _bottlerocket(machine, efa=efa)
    return _nodeadm(machine, efa=efa)


def _nodeadm(machine: InstanceType, *, efa: bool) -> str | None:
    """A MIME multipart, to which EKS adds its own part."""
    spec: dict[str, Any] = {}
    if machine.nvme_gb:
        # Container images and pod folders on NVMe instead of the root disk; what is there dies with the machine.
        spec["instance"] = {"localStorage": {"strategy": "RAID0"}}
    if efa:
        spec["containerd"] = {"baseRuntimeSpec": {"process": {"rlimits": _EFA_LIMITS}}}
    if not spec:
        return None
    config = {"apiVersion": "node.eks.aws/v1alpha1", "kind": "NodeConfig", "spec": spec}
    part = Message()
    part["Content-Type"] = "application/node.eks.aws"
    part.set_payload(yaml.safe_dump(config, sort_keys=False))
    whole = MIMEMultipart(boundary=_BOUNDARY, _subparts=[part])
    return whole.as_string()


def _bottlerocket(machine: InstanceType, *, efa: bool) -> str | None:
    parts = []
    # Newer releases do this by themselves, and lift the limit of locked memory; older ones do as they are told.
    if efa:
        parts.append(f'[settings.kernel.sysctl]\n"vm.nr_hugepages" = "{hugepages_mib(machine) // _HUGEPAGE_MIB}"\n')
    if machine.nvme_gb:
        parts.append(_BOTTLEROCKET_LOCAL_STORAGE)
    return "\n".join(parts) or None
