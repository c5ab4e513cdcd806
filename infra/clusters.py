"""Which cluster a stack means, and how to reach it."""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from infra.errors import TrainyardError

if TYPE_CHECKING:
    from infra.settings import Settings

CHECKOUT = Path(__file__).resolve().parent.parent
"""The folder of Pulumi.yaml."""
LOCAL_KUBECONFIG = "kubeconfig"


class ClusterUnreachableError(TrainyardError):
    """The stack's cluster is not there."""


@dataclass(frozen=True)
class Access:
    """How to reach a cluster."""

    path: Path
    """The kubeconfig file."""
    context: str | None
    """Context in that file; None for its current one."""


def local_state_directory(stack: str) -> Path:
    """The state folder of a local cluster: `$TRAINYARD_STATE_DIR`, else one for each checkout and stack.

    Not in the checkout, whose path may be too long for unix sockets and whose file system may not take them.
    """
    if chosen := os.environ.get("TRAINYARD_STATE_DIR"):
        return Path(chosen).expanduser()
    import platformdirs  # noqa: PLC0415

    checkout = hashlib.sha256(str(CHECKOUT).encode()).hexdigest()[:8]
    return platformdirs.user_state_path("trainyard") / f"{stack}-{checkout}"


def kubeconfig_of(settings: Settings, stack: str) -> Access:
    """The kubeconfig of a stack's cluster.

    Raises:
        ClusterUnreachableError: the file is not there, or the local control plane is not running.
    """
    if settings.kubeconfig is not None:
        path = Path(settings.kubeconfig.path).expanduser()
        if not path.is_file():
            raise ClusterUnreachableError(
                f"kubeconfig of stack {stack} not found: {path}. Correct trainyard:kubeconfig.path in"
                f" Pulumi.{stack}.yaml, or create the cluster first (kind, k3d, minikube, …)."
            )
        return Access(path, settings.kubeconfig.context)
    path = local_state_directory(stack) / LOCAL_KUBECONFIG
    if not path.is_file():
        raise ClusterUnreachableError(
            f"the local cluster of stack {stack} is not running. Start it: trainyard up -s {stack}"
        )
    return Access(path, None)
