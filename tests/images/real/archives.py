"""Builds the CPU row and the controller into archives, for the tests of whole images.

python tests/images/real/archives.py FOLDER
"""

from __future__ import annotations

import sys
from pathlib import Path

from real_builds import authorities, base_image, built, environment_of_root, store

from images.builders.containers import Buildah
from images.matrix import matrix


def main(target: Path) -> None:
    """Write `training.tar` and `controller.tar` into a folder."""
    environment_of_root()
    with store() as folder:
        base, (extra_ca, _) = base_image(folder), authorities(folder)
        for row, name in (("controller", "controller"), ("cpu", "training")):
            made = built(matrix().row(row), folder, tag=f"localhost/{name}:1", extra_ca=extra_ca, base=base)
            sys.stderr.write(f"{row}: {made.size / 1e6:.0f} MB in {made.seconds:.0f} s; its archive is written\n")
            Buildah().save(made.tag, target / f"{name}.tar")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
