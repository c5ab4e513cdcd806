"""What the cluster autoscaler must be told so that it scales a pool up from zero machines.

Without a machine to look at it reckons CPU, memory and GPUs from the instance type, and asks EKS
(`eks:DescribeNodegroup`) for labels and taints. Only extended resources are told by nobody: they stand in tags of the
node group itself (read in the autoscaler's AWS provider). Labels and taints get no tags: together with those from EKS
they would be doubled in the machine that the autoscaler imagines.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from infra.catalog.instance_types import instance_type
from infra.wiring.allocatable import allocatable, as_quantities
from infra.wiring.scheduling import EFA_RESOURCE, HUGEPAGES

if TYPE_CHECKING:
    from infra.settings.aws import AwsNodePool

RESOURCE_TAG = "k8s.io/cluster-autoscaler/node-template/resources/"


def autoscaler_tags(pool: AwsNodePool) -> dict[str, str]:
    """Tags of the pool's node group: EFA interfaces and hugepages of its first type, the one the autoscaler imagines.

    Raises:
        UnknownInstanceTypeError: the catalogue does not have the type.
    """
    offered = as_quantities(allocatable(instance_type(pool.types[0]), efa=pool.efa))
    return {RESOURCE_TAG + name: offered[name] for name in (EFA_RESOURCE, HUGEPAGES) if name in offered}
