"""Rules for two builds of the same inputs that give the same image."""

from __future__ import annotations

import re
from collections.abc import Iterator

from images.lint.rule import Problem, Subject, rule
from images.lint.shell import calls

_BASE = f"FROM debian:bookworm-slim@sha256:{'0' * 64}"
_ARGUMENTS = ("VERSION", "REVISION")
_TAKES_TIME = {"useradd", "adduser", "usermod", "make", "cmake", "ninja", "gcc", "g++", "cc", "nvcc"}
_TIME = re.compile(r"\$\(\s*date\b|`\s*date\b|\$RANDOM\b|/proc/sys/kernel/random")


@rule(
    "epoch-unused",
    "SOURCE_DATE_EPOCH reaches what writes times",
    reason="Compilers, archives and the list of users (/etc/shadow) carry the day of the build. A builder gives the "
    "variable only to stages that declare it.",
    source="https://reproducible-builds.org/docs/source-date-epoch/",
    remedy="Write `ARG SOURCE_DATE_EPOCH` in that stage, above the RUN.",
    severity="warning",
    wrong=f"{_BASE}\nRUN useradd --no-log-init -u 65532 trainyard\nUSER 65532\n",
    right=f"{_BASE}\nARG SOURCE_DATE_EPOCH\nRUN useradd --no-log-init -u 65532 trainyard\nUSER 65532\n",
)
def epoch_unused(subject: Subject) -> Iterator[Problem]:
    """Look for programs that take the time from the variable, in stages that do not declare it."""
    for stage in subject.document.stages:
        declared = [
            one.line
            for one in [*stage.all("ARG"), *stage.inherited("ENV")]
            if any(name == "SOURCE_DATE_EPOCH" for name, _ in one.pairs())
        ]
        for one in stage.all("RUN"):
            found = next((call.name for call in calls(one) if call.name in _TAKES_TIME), None)
            if found and "SOURCE_DATE_EPOCH" not in one.text and not any(line < one.line for line in declared):
                yield Problem(one, f"{found} writes the time; stage {stage.label} does not declare SOURCE_DATE_EPOCH")


@rule(
    "time-in-layer",
    "No RUN writes the time or a random value",
    reason="The layer is another one in every build: nothing above it comes from a cache, and nobody can show that the "
    "image is what the sources give.",
    source="https://reproducible-builds.org/docs/",
    remedy="Use SOURCE_DATE_EPOCH: `date -u -d @$SOURCE_DATE_EPOCH`.",
    severity="warning",
    wrong=f"{_BASE}\nRUN echo $(date) > /built\nUSER 65532\n",
    right=f'{_BASE}\nARG SOURCE_DATE_EPOCH\nRUN echo "$SOURCE_DATE_EPOCH" > /built\nUSER 65532\n',
)
def time_in_layer(subject: Subject) -> Iterator[Problem]:
    """Look for programs that give the time or something random."""
    for one in subject.document.all("RUN"):
        if _TIME.search(one.text) and "SOURCE_DATE_EPOCH" not in one.text:
            yield Problem(one, "it writes the time, or something random")
        elif any(call.name in {"uuidgen", "mcookie"} for call in calls(one)):
            yield Problem(one, "it makes a random number")


@rule(
    "build-arguments",
    "VERSION and REVISION are arguments of the build",
    reason="Builds give them, and labels show which sources an image is of.",
    source="https://specs.opencontainers.org/image-spec/annotations/",
    remedy="Write `ARG VERSION` and `ARG REVISION` in the last stage, below what takes long.",
    row="torch2.15-cpu",
    wrong=f"{_BASE}\nARG VERSION\nUSER 65532\n",
    right=f"{_BASE}\nARG VERSION\nARG REVISION\nUSER 65532\n",
)
def build_arguments(subject: Subject) -> Iterator[Problem]:
    """Look at the arguments of the last stage."""
    if subject.row is None:
        return
    declared = {name for one in subject.document.last.inherited("ARG") for name, _ in one.pairs()}
    for name in _ARGUMENTS:
        if name not in declared:
            yield Problem(subject.document.last, f"the last stage has no ARG {name}")
