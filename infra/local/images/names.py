"""Names of images: the one spelling that the image table knows them by."""

import re

from infra.local.errors import LocalClusterError

CHECKOUT_IMAGES = frozenset({"trainyard/training:local", "trainyard/controller:local", "trainyard/etcd:local"})
"""Names that the local cluster has without any loaded image: they are commands of the checkout."""

_PART = r"[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*"
_HOST = r"[a-zA-Z0-9](?:[a-zA-Z0-9.-]*[a-zA-Z0-9])?(?::[0-9]+)?"
_REFERENCE = re.compile(rf"(?:{_HOST}/)?{_PART}(?:/{_PART})*:[\w][\w.-]{{0,127}}", re.ASCII)
_LONGEST = 255


def normalised(name: str) -> str:
    """Without Docker Hub's implied registry and project, with a tag (as the process runtime spells it).

    Raises:
        LocalClusterError: it is no name that an image can have.
    """
    short = name
    for implied in ("docker.io/", "index.docker.io/", "library/"):
        short = short.removeprefix(implied)
    if ":" not in short.rpartition("/")[2]:
        short += ":latest"
    if len(short) > _LONGEST or not _REFERENCE.fullmatch(short):
        raise LocalClusterError(
            f"{name!r} can't be the name of an image",
            why="a name is like trainyard/training:cpu, in small letters; a digest follows from the content",
            remedy="trainyard images load ARCHIVE --name trainyard/training:cpu",
        )
    return short
