"""What the cluster autoscaler must be told so that it scales a pool up from zero machines.

Without a machine to look at it reckons CPU, memory and GPUs from the instance type, and asks EKS
(`eks:DescribeNodegroup`) for labels and taints. What nobody tells it, EFA interfaces, hugepages and the disk, it takes
for absent, and adds no machine for a pod that asks for it. So these stand in tags of the node group itself, which it
reads as well (`buildNodeFromTemplate` in its AWS provider; kubernetes/autoscaler #1869 for the disk). Labels and taints
get no tags: together with those from EKS they would be doubled in the machine that the autoscaler imagines.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from infra.catalog.instance_types import instance_type
from infra.wiring.allocatable import allocatable, as_quantities, ephemeral_mib
from infra.wiring.scheduling import EFA_RESOURCE, EPHEMERAL_STORAGE, HUGEPAGES

if TYPE_CHECKING:
    from infra.settings.aws import AwsNodePool

RESOURCE_TAG = "k8s.io/cluster-autoscaler/node-template/resources/"


def autoscaler_tags(pool: AwsNodePool) -> dict[str, str]:
    """Tags of the pool's node group: EFA interfaces, hugepages and disk that each of its types has.

    Raises:
        UnknownInstanceTypeError: the catalogue does not have the type.
    """
    types = [instance_type(name) for name in pool.types]
    offers = [allocatable(each, efa=pool.efa) for each in types]
    told = {EPHEMERAL_STORAGE: min(ephemeral_mib(each, disk_gib=pool.disk_gib) for each in types)}
    for name in (EFA_RESOURCE, HUGEPAGES):
        if least := min(offer.get(name, 0) for offer in offers):
            told[name] = least
    return {RESOURCE_TAG + name: quantity for name, quantity in as_quantities(told).items()}
