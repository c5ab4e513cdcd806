"""Rules on stages, and on what is copied between them and from the context."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Iterator, Mapping

from images.lint.document import Document, Instruction, Stage
from images.lint.rule import Problem, Subject, rule

_BASE = f"FROM debian:bookworm-slim@sha256:{'0' * 64}"
_DIGEST = re.compile(r"@sha256:[0-9a-f]{64}$")


def _sources(document: Document) -> Iterator[tuple[Instruction, str]]:
    """Every stage or image that COPY or a mount takes files from."""
    for one in document.instructions:
        if one.keyword == "COPY" and (source := one.flag("from")) is not None:
            yield one, source
        if one.keyword == "RUN":
            for mount in one.mounts():
                if mount.get("from"):
                    yield one, mount["from"]


@rule(
    "copy-from",
    "COPY --from and mounts name an earlier stage, or an image by digest",
    reason="A name that is no stage is taken for an image and pulled from Docker Hub: a misspelt stage becomes "
    "somebody else's image. A number is another stage as soon as one is added.",
    source="https://docs.docker.com/reference/dockerfile/#copy---from",
    remedy="Name the stage (`FROM … AS name`), or the image with its digest.",
    wrong=f"{_BASE} AS builder\n{_BASE}\nCOPY --from=bulider /a /a\nUSER 65532\n",
    right=f"{_BASE} AS builder\n{_BASE}\nCOPY --from=builder /a /a\nUSER 65532\n",
)
def copy_from(subject: Subject) -> Iterator[Problem]:
    """Look up every source."""
    document = subject.document
    for one, source in _sources(document):
        here = document.stage_of(one)
        found = document.stage(source)
        if found is not None:
            if here is not None and found.index >= here.index:
                yield Problem(one, f"stage {source!r} is not above this one: a stage takes only from earlier stages")
        elif source.isdigit():
            yield Problem(one, f"`from={source}` counts stages")
        elif not _DIGEST.search(source):
            yield Problem(one, f"{source!r} is no stage of this file, and as an image it has no digest")


@rule(
    "stage-unused",
    "Every stage is part of the result",
    reason="BuildKit leaves an unused stage out, other builders build it: time for nothing, and a reader who takes it "
    "for a part of the image.",
    source="https://docs.docker.com/build/building/multi-stage/",
    remedy="Take the stage away, or what it makes into the image.",
    severity="warning",
    wrong=f"{_BASE} AS builder\n{_BASE}\nUSER 65532\n",
    right=f"{_BASE} AS builder\n{_BASE}\nCOPY --from=builder /a /a\nUSER 65532\n",
)
def stage_unused(subject: Subject) -> Iterator[Problem]:
    """Go backwards from the last stage."""
    document = subject.document
    needed: set[int] = set()
    waiting = [document.last]
    while waiting:
        stage = waiting.pop()
        if stage.index in needed:
            continue
        needed.add(stage.index)
        waiting += stage.chain[:-1]
        waiting += _feeding(document, stage)
    for stage in document.stages:
        if stage.index not in needed:
            yield Problem(stage, f"nothing of stage {stage.label} comes into the last stage")


def _feeding(document: Document, stage: Stage) -> list[Stage]:
    names = [source for one, source in _sources(document) if one in stage.instructions]
    numbers = [document.stages[int(name)] for name in names if name.isdigit() and int(name) < len(document.stages)]
    return [found for name in names if (found := document.stage(name))] + numbers


@rule(
    "copy-absent",
    "What COPY takes is in the context",
    reason="A folder that `trainyard images render` writes builds alone, on any machine. A missing file ends the build "
    "only after the stages before it, which can take minutes.",
    source="https://docs.docker.com/build/concepts/context/",
    remedy="Put the file into the context, or take the COPY away.",
    row="torch2.15-cpu",
    wrong=f"{_BASE}\nCOPY no-such-file /a\nUSER 65532\n",
    right=f"{_BASE}\nCOPY requirements.txt /a\nUSER 65532\n",
)
def copy_absent(subject: Subject) -> Iterator[Problem]:
    """Look every source up among the files of the context."""
    if subject.files is None:
        return
    for one in subject.document.all("COPY", "ADD"):
        if one.flag("from") is not None:
            continue
        for source in one.expanded[:-1]:
            if "://" not in source and not source.startswith("<<") and not _in_context(source, subject.files):
                yield Problem(one, f"the context has no {source!r}")
    for one in subject.document.all("RUN"):
        for mount in one.mounts():
            source = mount.get("source") or mount.get("src") or ""
            of_context = mount.get("type") == "bind" and "from" not in mount and source not in {"", "."}
            if of_context and not _in_context(source, subject.files):
                yield Problem(one, f"the context has no {source!r} for the mount")


def _in_context(source: str, files: Mapping[str, bytes]) -> bool:
    wanted = source.strip("/").removeprefix("./").rstrip("/")
    return wanted in {"", "."} or any(
        name == wanted or name.startswith(f"{wanted}/") or fnmatch.fnmatch(name, wanted) for name in files
    )
