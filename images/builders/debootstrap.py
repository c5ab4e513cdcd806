"""A base image where no registry can be reached: Debian from its packages, as `debian:bookworm-slim` and python3.

Only for builds on such a computer: images for others begin from the base that the matrix names, by its digest.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
from pathlib import Path

from images.builders.built import EPOCH, Told, untold
from images.builders.containers import Buildah
from images.builders.failures import Work
from images.builders.running import ask, run
from images.builders.tools import find_tool
from images.errors import BuildError

REFERENCE = "localhost/trainyard-base:bookworm"
SUITE = "bookworm"
_PACKAGES = ("python3", "python3-venv", "ca-certificates")
# Of the making: times, and what a package manager gets anew.
_LEFT_BEHIND = ("var/cache/apt/archives/*.deb", "var/lib/apt/lists/*", "var/log/*", "var/cache/ldconfig/aux-cache")


def make(told: Told = untold) -> str:
    """Put a base image into buildah's store, where it is not there yet. Wants root, and a Debian mirror.

    Args:
        told: hears what is done.

    Returns:
        Its name.

    Raises:
        BuildError: buildah or debootstrap is missing or fails, or the disk is full.
    """
    find_tool(Buildah.name)  # before minutes of unpacking
    if ask(["buildah", "inspect", "--type", "image", REFERENCE]).code == 0:
        return REFERENCE
    with tempfile.TemporaryDirectory(prefix="trainyard-base-") as folder:
        root = Path(folder) / "root"
        told(f"debootstrap {SUITE}")
        _unpack(root)
        told("import into buildah's store")
        container = _buildah("from", "scratch")
        try:
            _buildah("add", container, str(root), "/")
            _buildah("config", "--cmd", "bash", container)
            _buildah("commit", f"--timestamp={EPOCH}", container, REFERENCE)
        finally:
            _buildah("rm", container)
    return REFERENCE


def _unpack(root: Path) -> None:
    """Write the root file system of a small Debian into a folder that is not there yet.

    Raises:
        BuildError: debootstrap is missing or fails.
    """
    if shutil.which("debootstrap") is None:
        raise BuildError("there is no debootstrap here, which makes a base image from packages: apt-get install it")
    command = ["debootstrap", "--variant=minbase", f"--include={','.join(_PACKAGES)}", SUITE, str(root)]
    run(command, Work("debootstrap", "the base image"))
    for pattern in _LEFT_BEHIND:
        for path in root.glob(pattern):
            shutil.rmtree(path) if path.is_dir() else path.unlink()


def _buildah(*arguments: str) -> str:
    answer = ask([Buildah.name, *arguments], seconds=1800)
    if answer.code != 0:
        raise BuildError(f"buildah {arguments[0]} failed: {answer.err.strip()}")
    return answer.out.strip().splitlines()[-1] if answer.out.strip() else ""


def _arguments() -> argparse.ArgumentParser:
    return argparse.ArgumentParser(
        prog="python -m images.builders.debootstrap",
        formatter_class=argparse.RawDescriptionHelpFormatter,  # names to be copied are not broken at their hyphens
        description=f"""\
Make the base image {REFERENCE} from Debian's packages, and print its
name: for computers that reach no registry. Takes about two minutes.

Wants root, buildah, debootstrap, and the mirror that debootstrap takes by
itself (deb.debian.org). The image lies in buildah's store, and one of that
name is taken as it is: `buildah rmi {REFERENCE}` removes it.""",
        epilog=f"next: trainyard images build cpu --base-image {REFERENCE}",
    )


if __name__ == "__main__":  # python -m images.builders.debootstrap
    _arguments().parse_args()
    try:
        sys.stdout.write(f"{make(told=lambda said: print(said, file=sys.stderr))}\n")
    except BuildError as failure:
        sys.exit(str(failure))
    except KeyboardInterrupt:
        sys.exit(130)
