"""The section `images`: the torch of the training images, and what the stack's own pods run."""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import AfterValidator, Field

from infra.settings.base import Section, Words, WrongValueError

if TYPE_CHECKING:
    from infra.settings.image_lock import ImageLock

NOT_BUILT = f"not-built.invalid/controller@sha256:{'0' * 64}"
"""Stands for the controller's image where none was built: in a rehearsal, and for commands that run no pod. Nobody can
be asked for it: `.invalid` has no servers (RFC 2606)."""


def _torch(value: str) -> str:
    from images.matrix import matrix  # noqa: PLC0415 - only stacks that name a torch pay for the matrix

    releases = matrix().torch_releases
    if value not in {name for release in releases for name in (release.version, release.minor)}:
        minors = [release.minor for release in releases]
        close = difflib.get_close_matches(value, minors, n=1, cutoff=0.3)
        nearest = close[0] if close else minors[0]
        raise WrongValueError(
            f"is no torch of the matrix; nearest: {nearest}; there are {', '.join(minors)} (`trainyard images matrix`)",
            nearest,
        )
    return value


TorchVersion = Annotated[str, AfterValidator(_torch), Field(examples=["2.15"])]


class Images(Section):
    """The torch of the training images, and what the stack's own pods run."""

    torch: TorchVersion | None = None
    """Torch of the training images, in quotes: `"2.15"`; absent: the newest of the matrix. Their CUDA follows from it,
    so drivers and GPUs of the pools are held against it. Not with `target: local`."""
    controller: Words = "trainyard/controller:local"
    """Runs the ElasticJob controller. The default is in the image table of the local target. Absent with another
    target: the one in the image lock `images.<stack>.toml`, which `trainyard images build -s <stack> --push` writes."""
    etcd: Words = "trainyard/etcd:local"
    """Runs etcd. The default is in the image table of the local target. Absent with another target: etcd's own image,
    by digest, from the version lock."""

    @property
    def built(self) -> bool:
        """Whether there is an image for the controller."""
        return self.controller != NOT_BUILT


def pulled(images: Images, lock: ImageLock) -> Images:
    """The section as a cluster that pulls its images has it: what it does not name comes from the locks."""
    from infra.catalog.versions import versions  # noqa: PLC0415 - the local target does not read the catalogue

    absent: dict[str, Any] = {"controller": lock.controller or NOT_BUILT, "etcd": versions().image("etcd")}
    return images.model_copy(update={key: absent[key] for key in absent.keys() - images.model_fields_set})
