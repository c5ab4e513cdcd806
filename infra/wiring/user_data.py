"""What machines are told at boot: nodeadm's NodeConfig (AL2023) or Bottlerocket's settings.

EKS adds the cluster's name, endpoint and certificate itself where the image is one of its own, so they are not in here.
The text depends on nothing but the type of machine: each change of a launch template replaces every machine of a pool.
"""

from __future__ import annotations

from email.message import Message
from email.mime.multipart import MIMEMultipart
from typing import TYPE_CHECKING

import yaml

from infra.catalog.instance_types import InstanceType
from infra.wiring.allocatable import hugepages_mib

if TYPE_CHECKING:
    from infra.settings.aws import OperatingSystem

_BOUNDARY = "trainyard-node-config"  # fixed: a random one would be a new launch template at each run
_HUGEPAGE_MIB = 2

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
    return _nodeadm(machine)


def _nodeadm(machine: InstanceType) -> str | None:
    """A MIME multipart, to which EKS adds its own part; RAID 0 over the NVMe disks where there are any."""
    if not machine.nvme_gb:
        return None
    config = {
        "apiVersion": "node.eks.aws/v1alpha1",
        "kind": "NodeConfig",
        # Container images and pod folders on NVMe instead of the root disk; what is there dies with the machine.
        "spec": {"instance": {"localStorage": {"strategy": "RAID0"}}},
    }
    part = Message()
    part["Content-Type"] = "application/node.eks.aws"
    part.set_payload(yaml.safe_dump(config, sort_keys=False))
    whole = MIMEMultipart(boundary=_BOUNDARY, _subparts=[part])
    return whole.as_string()


def _bottlerocket(machine: InstanceType, *, efa: bool) -> str | None:
    parts = []
    if efa:  # nothing on Bottlerocket reserves them by itself
        parts.append(f'[settings.kernel.sysctl]\n"vm.nr_hugepages" = "{hugepages_mib(machine) // _HUGEPAGE_MIB}"\n')
    if machine.nvme_gb:
        parts.append(_BOTTLEROCKET_LOCAL_STORAGE)
    return "\n".join(parts) or None
