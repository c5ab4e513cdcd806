"""Where this computer has the shared volume of a stack."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from lightkube.core.exceptions import ApiError
from lightkube.resources.core_v1 import PersistentVolume, PersistentVolumeClaim

from infra.errors import UsageError

if TYPE_CHECKING:
    from infra.jobs import Jobs


def folder_of(jobs: Jobs, claim: str) -> Path:
    """The folder of a claim's volume, on a cluster whose nodes are this computer.

    Raises:
        UsageError: the claim has no volume, or one that is not a folder of this computer.
    """
    client = jobs.new_client()
    try:
        bound = client.get(PersistentVolumeClaim, claim, namespace=jobs.namespace)
        name = bound.spec.volumeName if bound.spec else None
        volume = client.get(PersistentVolume, name) if name else None
    except ApiError as error:
        raise UsageError(
            f"the volume of claim {claim} in {jobs.namespace} cannot be found: {error.status.message}"
        ) from None
    spec = volume.spec if volume else None
    source = (spec.hostPath or spec.local) if spec else None
    if source is None or not Path(source.path).is_dir():
        raise UsageError(
            f"the shared volume of claim {claim} is not a folder of this computer. Where it is mounted, name that"
            " folder with --volume; otherwise let the cluster run the workflow: trainyard workflow compile"
        )
    return Path(source.path)
