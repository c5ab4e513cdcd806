"""How big the stages of an image are, beside the one stage that is usually written.

    PYTHONPATH=. python benchmarks/image_sizes.py --row cpu --base-image localhost/trainyard-base:bookworm

Builds with buildah, in the store that it is configured for (CONTAINERS_STORAGE_CONF): each stage of the row as
rendered, then the same packages in one stage with compilers, as most Dockerfiles have it: everything of the lock, files
of apt kept, byte code as pip writes it. Both begin with the same base, so a vendor's `-devel` image, which is gigabytes
bigger than Debian with build-essential, is not part of the comparison. Prints a table of Markdown.
"""

from __future__ import annotations

import argparse
import re
import sys
import tempfile
from pathlib import Path

from images.builders import debootstrap
from images.builders.built import Built, Order, this_architecture
from images.builders.containers import Buildah
from images.matrix import Row, matrix
from images.render import render

NAIVE = """\
ARG BASE_IMAGE
FROM ${BASE_IMAGE}
RUN apt-get update && apt-get install --yes build-essential ca-certificates python3 python3-dev python3-venv tini
COPY . /build
WORKDIR /build
RUN --mount=type=secret,id=ca,target=/etc/ssl/certs/ca-certificates.crt \\
    python3 -m venv /opt/venv \\
    && PIP_CERT=/etc/ssl/certs/ca-certificates.crt \\
    /opt/venv/bin/pip install --no-cache-dir --require-hashes --requirement whole-lock.txt
ENV PYTHONPATH=/build/trainyard
ENTRYPOINT ["/opt/venv/bin/python", "-m", "training"]
"""
"""Root, everything in one stage, no pinned time; pip's own cache is not even kept."""


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    arguments.add_argument("--row", default="cpu")
    arguments.add_argument("--base-image", default=debootstrap.REFERENCE)
    arguments.add_argument("--extra-ca", type=Path)
    given = arguments.parse_args()
    if given.base_image == debootstrap.REFERENCE:
        debootstrap.make(told=say)
    row = matrix().row(given.row)
    with tempfile.TemporaryDirectory(prefix="trainyard-sizes-") as folder:
        stages = ours(row, Path(folder), given.base_image, given.extra_ca)
        one = naive(row, Path(folder), given.base_image, given.extra_ca)
    base = Buildah().inspect(given.base_image)[3]
    print("| stage | MB | what it adds, MB |\n| --- | --- | --- |")
    print(f"| (the base image) | {base / 1e6:.0f} | |")
    for name, (size, below) in stages.items():
        print(f"| {name} | {size / 1e6:.0f} | {(size - below) / 1e6:.0f} |")
    final = list(stages.values())[-1][0]
    print(f"| one stage | {one.size / 1e6:.0f} | {(one.size - base) / 1e6:.0f} |")
    whole, above = final / one.size, (final - base) / (one.size - base)
    print(f"\nThe image is {whole:.0%} of the one stage; what is above the base {above:.0%}.")


def ours(row: Row, folder: Path, base: str, extra_ca: Path | None) -> dict[str, tuple[int, int]]:
    """Size of each stage as rendered, and of that from which it begins."""
    context = folder / row.name
    rendered = render(row)
    rendered.write(context)
    found: dict[str, tuple[int, int]] = {}
    start = Buildah().inspect(base)[3]
    for below, stage in re.findall(r"^FROM (\S+) AS (\S+)$", rendered.dockerfile, re.MULTILINE):
        built = build(row.name, context, base, extra_ca, stage)
        found[stage] = (built.size, found[below][0] if below in found else start)
        say(f"{stage}: {built.size / 1e6:.0f} MB in {built.seconds:.0f} s")
    return found


def naive(row: Row, folder: Path, base: str, extra_ca: Path | None) -> Built:
    """The one stage."""
    context = folder / "one-stage"
    render(row).write(context)
    assert row.lock_path is not None
    (context / "whole-lock.txt").write_text(row.lock_path.read_text())
    (context / "Dockerfile").write_text(NAIVE)
    return build("one-stage", context, base, extra_ca, None)


def build(name: str, context: Path, base: str, extra_ca: Path | None, stage: str | None) -> Built:
    tag = f"localhost/trainyard-sizes:{stage or name}"
    order = Order(
        row=name, context=context, tag=tag, architecture=this_architecture(), log=context.with_suffix(".log"),
        base=base, extra_ca=extra_ca, target=stage,
    )  # fmt: skip
    return Buildah().build(order, say)


def say(text: str) -> None:
    sys.stderr.write(f"{text}\n")


if __name__ == "__main__":
    main()
