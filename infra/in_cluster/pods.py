"""What every pod of Trainyard's own parts has in common."""

from __future__ import annotations

from dataclasses import dataclass

import pulumi
from pulumi_kubernetes.core.v1 import (
    CapabilitiesArgs,
    EnvVarArgs,
    EnvVarSourceArgs,
    ObjectFieldSelectorArgs,
    PodSecurityContextArgs,
    SeccompProfileArgs,
    SecurityContextArgs,
)

UNPRIVILEGED = 65532
"""User and group of the project's images (the number that distroless images use for `nonroot`)."""


@dataclass(frozen=True)
class OwnPods:
    """Where the pods of Trainyard's own parts run."""

    namespace: pulumi.Input[str]
    dns_policy: str
    """See `infra.wiring.naming.dns_policy`."""


def pod_field(name: str, path: str) -> EnvVarArgs:
    """An environment variable that holds a field of the pod (`status.podIP`)."""
    return EnvVarArgs(name=name, value_from=EnvVarSourceArgs(field_ref=ObjectFieldSelectorArgs(field_path=path)))


def restricted_pod() -> PodSecurityContextArgs:
    """Pod part of the `restricted` pod security standard."""
    return PodSecurityContextArgs(
        run_as_non_root=True,
        run_as_user=UNPRIVILEGED,
        run_as_group=UNPRIVILEGED,
        fs_group=UNPRIVILEGED,
        seccomp_profile=SeccompProfileArgs(type="RuntimeDefault"),
    )


def restricted_container() -> SecurityContextArgs:
    """Container part of the `restricted` pod security standard."""
    return SecurityContextArgs(
        allow_privilege_escalation=False,
        read_only_root_filesystem=True,
        capabilities=CapabilitiesArgs(drop=["ALL"]),
    )
