"""Rules on the images that a Dockerfile begins from."""

from __future__ import annotations

import re
from collections.abc import Iterator

from images.lint.document import Stage
from images.lint.rule import Problem, Subject, rule

_DIGEST = re.compile(r"@sha256:[0-9a-f]{64}$")
_CUDA = re.compile(r"(^|/)nvidia/cuda:(?P<tag>[^@]+)")
_CUDA_TAG = re.compile(r"^\d+\.\d+\.\d+-")


def tag_of(reference: str) -> str | None:
    """The tag of a reference; None where it has none."""
    name = reference.split("@", 1)[0].rsplit("/", 1)[-1]
    return name.split(":", 1)[1] if ":" in name else None


def images(subject: Subject) -> list[Stage]:
    """Stages that begin from an image, `scratch` left out."""
    return [stage for stage in subject.document.stages if stage.parent is None and stage.base != "scratch"]


@rule(
    "base-digest",
    "Every base image is named by its digest",
    reason="A tag is moved by its owner: the same Dockerfile then makes another image, without a word. Vendors also "
    "delete old tags; a digest shows at once what is meant. Where the matrix says why it has no digest, this warns.",
    source="https://docs.docker.com/build/building/best-practices/#pin-base-image-versions",
    remedy="Write `name:tag@sha256:…`; `trainyard images pin` looks the digests of the matrix up.",
    wrong="FROM debian:bookworm-slim\nUSER 65532\n",
    right=f"FROM debian:bookworm-slim@sha256:{'0' * 64}\nUSER 65532\n",
)
def base_digest(subject: Subject) -> Iterator[Problem]:
    """Look at every FROM that names an image."""
    row = subject.row
    known = {image.reference: image for image in (row.base, row.builder, row.compiled_base) if image} if row else {}
    for stage in images(subject):
        if _DIGEST.search(stage.base) or tag_of(stage.base) in {None, "latest"}:
            continue
        image = known.get(stage.base)
        if image and image.digest is None and image.unpinned:
            yield Problem(stage, f"{stage.base} has no digest: {image.unpinned}", "warning")
        else:
            yield Problem(stage, f"{stage.base} has no digest")


@rule(
    "base-latest",
    "No base image without a tag, or with the tag `latest`",
    reason="`latest` is another image every few weeks, and an image without a tag is `latest`.",
    source="https://docs.docker.com/build/building/best-practices/#pin-base-image-versions",
    remedy="Name the version that you mean, and its digest.",
    wrong="FROM ubuntu\nUSER 65532\n",
    right=f"FROM ubuntu:24.04@sha256:{'0' * 64}\nUSER 65532\n",
)
def base_latest(subject: Subject) -> Iterator[Problem]:
    """Look at every FROM that names an image."""
    for stage in images(subject):
        if tag_of(stage.base) == "latest" or (tag_of(stage.base) is None and not _DIGEST.search(stage.base)):
            yield Problem(stage, f"{stage.base} is whatever the registry has on the day of the build")


@rule(
    "base-cuda-tag",
    "Tags of nvidia/cuda have all three numbers",
    reason="There is no `nvidia/cuda:13.2-…`: the pull fails. Only `13.2.0-base-ubuntu24.04` and its like exist.",
    source="https://github.com/NVIDIA/nvidia-docker/issues/1735",
    remedy="Take a whole version, as the matrix has it: `trainyard images matrix`.",
    wrong=f"FROM nvidia/cuda:13.2-base-ubuntu24.04@sha256:{'0' * 64}\nUSER 65532\n",
    right=f"FROM nvidia/cuda:13.2.1-base-ubuntu24.04@sha256:{'0' * 64}\nUSER 65532\n",
)
def base_cuda_tag(subject: Subject) -> Iterator[Problem]:
    """Look at every FROM that names nvidia/cuda."""
    for stage in images(subject):
        found = _CUDA.search(stage.base)
        if found and found["tag"] != "latest" and not _CUDA_TAG.match(found["tag"]):
            yield Problem(stage, f"nvidia/cuda has no tag {found['tag']}")


@rule(
    "base-devel",
    "The image that runs has no compiler: no `-devel` base in the last stage",
    reason="`-devel` adds nvcc, headers and static libraries: gigabytes that every machine pulls before it trains, and "
    "that no training needs. torch's wheels bring their own CUDA.",
    source="https://github.com/moby/moby/issues/46425",
    remedy="Compile in a stage of its own from `-devel`, and COPY --from it into a stage from `-base` or plain Debian.",
    wrong=f"FROM nvidia/cuda:13.2.1-devel-ubuntu24.04@sha256:{'0' * 64}\nUSER 65532\n",
    right=f"FROM nvidia/cuda:13.2.1-base-ubuntu24.04@sha256:{'0' * 64}\nUSER 65532\n",
)
def base_devel(subject: Subject) -> Iterator[Problem]:
    """Look at what the last stage begins from."""
    last = subject.document.last
    if "devel" in (tag_of(last.image) or "").split("-"):
        yield Problem(last, f"the last stage begins from {last.image.split('@')[0]}")


@rule(
    "base-argument",
    "The base can be replaced: BASE_IMAGE has the row's base as its default",
    reason="Builds without a registry, and companies with a mirror, put another base in by one build argument. A "
    "default that differs from the matrix makes an image that the matrix does not describe.",
    source="The matrix, `images/matrix.toml`.",
    remedy="Begin with `ARG BASE_IMAGE=…` as `trainyard images render` writes it.",
    row="torch2.15-cpu",
    wrong=f"ARG BASE_IMAGE=debian:trixie-slim@sha256:{'0' * 64}\nFROM ${{BASE_IMAGE}}\nUSER 65532\n",
    right="ARG BASE_IMAGE={base}\nFROM ${{BASE_IMAGE}}\nUSER 65532\n",
)
def base_argument(subject: Subject) -> Iterator[Problem]:
    """Compare the default of the argument with the matrix."""
    row = subject.row
    if row is None:
        return
    wanted = {image.pinned for image in (row.base, row.builder, row.compiled_base) if image}
    given = [(value, one) for one in subject.document.arguments for name, value in one.pairs() if name == "BASE_IMAGE"]
    if not given:
        yield Problem(subject.document.stages[0], "there is no ARG BASE_IMAGE before the first FROM")
    for value, one in given:
        if value not in wanted:
            yield Problem(one, f"BASE_IMAGE is {value!r}, the matrix has {row.base.pinned!r}")
