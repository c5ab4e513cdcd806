"""Names of AWS resources that more than one component has to know."""

from __future__ import annotations


def control_plane_log_group(cluster: str) -> str:
    """Where EKS writes the logs of a control plane; the name is EKS's own, so it can only be made beforehand."""
    return f"/aws/eks/{cluster}/cluster"


def flow_log_group(cluster: str) -> str:
    """Where the connections of the VPC are recorded."""
    return f"/aws/vpc/{cluster}"


RESEARCHERS = "trainyard:researchers"
"""The Kubernetes group of those who may run jobs."""
