"""Which cluster a stack means, and how to reach it."""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from infra.errors import TrainyardError
from infra.wiring.naming import cluster_name

if TYPE_CHECKING:
    from infra.settings import Settings

CHECKOUT = Path(__file__).resolve().parent.parent
"""The folder of Pulumi.yaml."""
LOCAL_KUBECONFIG = "kubeconfig"
STATE_VARIABLE = "TRAINYARD_STATE_DIR"


class ClusterUnreachableError(TrainyardError):
    """The stack's cluster is not there."""


class StateFolderError(TrainyardError):
    """The state folder that the user named cannot be this stack's."""


@dataclass(frozen=True)
class Access:
    """How to reach a cluster."""

    path: Path
    """The kubeconfig file."""
    context: str | None
    """Context in that file; None for its current one."""
    remedy: str
    """What to do when the cluster does not answer: the end of an error message."""


def local_state_directory(stack: str) -> Path:
    """The state folder of a stack: `$TRAINYARD_STATE_DIR`, else one for each checkout and stack.

    Not in the checkout, whose path may be too long for unix sockets and whose file system may not take them. A folder
    that the user names is this very folder, so it can hold one stack. A relative one begins at the folder of
    Pulumi.yaml: command and engine, which work in different folders, then mean the same.

    Raises:
        StateFolderError: the folder that the user named cannot be looked at, or holds what another stack has made.
    """
    if chosen := os.environ.get(STATE_VARIABLE):
        directory = Path(os.path.abspath(CHECKOUT / _expanded(chosen)))  # noqa: PTH100 - resolve() follows links
        try:
            holders = _holders(directory)
        except OSError as error:
            raise StateFolderError(
                f"{directory} cannot be a state folder: {error.strerror}. Name another one:"
                f" export {STATE_VARIABLE}=<folder>"
            ) from error
        if holders and stack not in holders:
            raise StateFolderError(
                f"{directory} is the state folder of stack {holders[0]}: {stack} would take over its cluster."
                f" Give {stack} another one (export {STATE_VARIABLE}=<folder>), unset {STATE_VARIABLE} so that each"
                f" stack has its own, or remove the other: trainyard down -s {holders[0]}"
            )
        return directory
    import platformdirs  # noqa: PLC0415

    checkout = hashlib.sha256(str(CHECKOUT).encode()).hexdigest()[:8]
    return platformdirs.user_state_path("trainyard") / f"{stack}-{checkout}"


def kubeconfig_of(settings: Settings, stack: str) -> Access:
    """The kubeconfig of a stack's cluster.

    That of an EKS cluster is a file in the state folder which the user has AWS's command write: the Pulumi program
    needs none, it goes into the cluster with what AWS has just told it.

    Raises:
        ClusterUnreachableError: the file is not there, or the local control plane is not running.
    """
    if settings.kubeconfig is not None:
        path = CHECKOUT / _expanded(settings.kubeconfig.path)
        if reason := _unreadable(path):
            raise ClusterUnreachableError(
                f"kubeconfig of stack {stack} cannot be read: {path}: {reason}. Correct trainyard:kubeconfig.path in"
                f" Pulumi.{stack}.yaml, or create the cluster first (kind, k3d, minikube, …)."
            )
        context = f" --context {settings.kubeconfig.context}" if settings.kubeconfig.context else ""
        return Access(
            path,
            settings.kubeconfig.context,
            f"Is the cluster of stack {stack} running? Look: kubectl --kubeconfig {path}{context} cluster-info",
        )
    path = local_state_directory(stack) / LOCAL_KUBECONFIG
    if settings.aws is not None:
        name = cluster_name(settings, stack)
        write = f"aws eks update-kubeconfig --name {name} --region {settings.aws.region} --kubeconfig {path}"
        if _unreadable(path):
            raise ClusterUnreachableError(
                f"there is no kubeconfig for the EKS cluster {name} of stack {stack} here. Once `trainyard up -s"
                f" {stack}` has made the cluster, write it: {write}"
            )
        return Access(path, None, f"Are you logged in to AWS? If the cluster was made anew: {write}")
    if _unreadable(path):
        raise ClusterUnreachableError(
            f"the local cluster of stack {stack} is not running. Start it: trainyard up -s {stack}"
        )
    return Access(path, None, f"Look: trainyard status -s {stack}. Start it: trainyard up -s {stack}")


def _expanded(path: str) -> Path:
    try:
        return Path(path).expanduser()
    except RuntimeError:  # `~somebody` who is not known here: no such file then
        return Path(path)


def _unreadable(path: Path) -> str:
    """Why a file cannot be read; empty if it can."""
    try:
        with path.open("rb"):
            return ""
    except OSError as error:
        return error.strerror or str(error)
    except ValueError as error:  # a zero byte in the path
        return str(error)


def _holders(directory: Path) -> list[str]:
    """The stacks of which the engine has resources on record in a state folder."""
    found = []
    for record in sorted(directory.glob("pulumi/backend/.pulumi/stacks/*/*.json")):
        try:
            latest = json.loads(record.read_bytes())["checkpoint"]["latest"]
        except (OSError, ValueError, LookupError, TypeError):
            continue  # half-written: the engine will say so
        if latest and latest.get("resources"):
            found.append(record.stem)
    return found
