"""Rules on the first process of the container: who gets SIGTERM, and who takes dead children away."""

from __future__ import annotations

from collections.abc import Iterator

from images.lint.document import Instruction
from images.lint.rule import Problem, Subject, rule

_BASE = f"FROM debian:bookworm-slim@sha256:{'0' * 64}"
_SHELLS = {"sh", "bash", "dash", "ash"}
_INITS = {"tini", "tini-static", "dumb-init", "catatonit"}


def _last(subject: Subject, keyword: str) -> Instruction | None:
    found = subject.document.last.inherited(keyword)
    return found[-1] if found else None


@rule(
    "entrypoint-exec",
    "ENTRYPOINT and CMD are lists",
    reason="Written as text they run below `sh -c`, which is process 1 and passes no signal on: the notice of a spot "
    "machine's end never reaches the training, and there is no last checkpoint.",
    source="https://docs.docker.com/reference/dockerfile/#shell-form-entrypoint-example",
    remedy='Write a list: `ENTRYPOINT ["tini", "--", "python", "-m", "training"]`.',
    wrong=f"{_BASE}\nUSER 65532\nENTRYPOINT python -m training\n",
    right=f'{_BASE}\nUSER 65532\nENTRYPOINT ["python", "-m", "training"]\n',
)
def entrypoint_exec(subject: Subject) -> Iterator[Problem]:
    """Look at the last ENTRYPOINT and CMD."""
    for keyword in ("ENTRYPOINT", "CMD"):
        last = _last(subject, keyword)
        if last and last.words and not last.json:
            yield Problem(last, f"{keyword} is text, which a shell runs")


@rule(
    "entrypoint-shell",
    "No shell as process 1",
    reason='`["sh", "-c", …]` is the text form in another dress: the shell gets SIGTERM and keeps it.',
    source="https://docs.docker.com/reference/dockerfile/#entrypoint",
    remedy="Name the program itself; what a script must prepare, it ends with `exec`.",
    wrong=f'{_BASE}\nUSER 65532\nENTRYPOINT ["/bin/sh", "-c", "python -m training"]\n',
    right=f'{_BASE}\nUSER 65532\nENTRYPOINT ["python", "-m", "training"]\n',
)
def entrypoint_shell(subject: Subject) -> Iterator[Problem]:
    """Look at the words of the last ENTRYPOINT, or of CMD where there is none."""
    last = _last(subject, "ENTRYPOINT") or _last(subject, "CMD")
    if last is None or not last.json:
        return
    programs = [word.rsplit("/", 1)[-1] for word in last.words]
    shells = [number for number, name in enumerate(programs[:-1]) if name in _SHELLS]
    if any(last.words[number + 1].startswith("-") and "c" in last.words[number + 1] for number in shells):
        yield Problem(last, f"{last.keyword} starts a shell with -c")


@rule(
    "entrypoint-init",
    "Training and its children have an init above them",
    reason="The launcher starts a process for every GPU, and data loaders start more. Process 1 must take the dead "
    "ones away and pass signals on; Python does neither.",
    source="https://github.com/krallin/tini",
    remedy='Install tini and begin with it: `ENTRYPOINT ["tini", "--", …]`. Without -g: the launcher passes a signal to'
    " the workers itself, and they would get it twice.",
    row="torch2.15-cpu",
    wrong=f'{_BASE}\nUSER 65532\nENTRYPOINT ["python", "-m", "training"]\n',
    right=f'{_BASE}\nUSER 65532\nENTRYPOINT ["tini", "--", "python", "-m", "training"]\n',
)
def entrypoint_init(subject: Subject) -> Iterator[Problem]:
    """Look at the first word of the last ENTRYPOINT."""
    last = _last(subject, "ENTRYPOINT")
    if subject.row is None or subject.row.kind != "training" or last is None or not last.json:
        return
    if not last.words or last.words[0].rsplit("/", 1)[-1] not in _INITS:
        yield Problem(last, "the first program is no init")


@rule(
    "entrypoint-module",
    "The image starts the program of its kind",
    reason="ElasticJobs give arguments only; the program is the image's. Another one, or none, ends each pod at once.",
    source="docs/reference/elasticjob.md",
    remedy="Training images end with `python -m training`, the controller's with `python -m training.controller`.",
    row="torch2.15-cpu",
    wrong=f'{_BASE}\nUSER 65532\nENTRYPOINT ["tini", "--", "python", "train.py"]\n',
    right=f'{_BASE}\nUSER 65532\nENTRYPOINT ["tini", "--", "python", "-m", "training"]\n',
)
def entrypoint_module(subject: Subject) -> Iterator[Problem]:
    """Compare with the kind of the row."""
    wanted = {"training": "training", "controller": "training.controller"}.get(subject.row.kind if subject.row else "")
    if wanted is None:
        return
    last = _last(subject, "ENTRYPOINT")
    if last is None:
        yield Problem(subject.document.last, "the last stage has no ENTRYPOINT")
    elif last.json and ("-m", wanted) not in set(zip(last.words, last.words[1:], strict=False)):
        yield Problem(last, f"ENTRYPOINT does not run `-m {wanted}`")
