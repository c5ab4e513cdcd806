"""Checks of Dockerfiles: our own rules, hadolint, and shellcheck of every RUN in the dialect that it will have.

`lint` looks at what `images.render` makes, `lint_all` at many at once (the programs are then started once), `lint_text`
at a file of a user, which has no row: rules about a row's facts are silent there unless a row is named.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING

from images.lint import tools
from images.lint.document import decoded, parse
from images.lint.rule import Finding, Severity, Subject
from images.lint.rules import RULES

if TYPE_CHECKING:
    from images.matrix import Row
    from images.render import Context

__all__ = ["RULES", "Finding", "Severity", "Subject", "lint", "lint_all", "lint_text"]


def lint(context: Context) -> list[Finding]:
    """What is wrong with a rendered context, the gravest first.

    Raises:
        DockerfileError: its Dockerfile is none.
        CheckerError: hadolint or shellcheck is absent or failed.
    """
    return lint_all({context.row.name: context})[context.row.name]


def lint_all(contexts: Mapping[str, Context]) -> dict[str, list[Finding]]:
    """The same for many contexts, by their keys.

    Raises:
        DockerfileError, CheckerError: as `lint`.
    """
    return _checked({name: subject_of(context) for name, context in contexts.items()})


def lint_text(text: str, *, name: str = "Dockerfile", row: Row | None = None) -> list[Finding]:
    """What is wrong with a Dockerfile of a user.

    Args:
        text: its content.
        name: how findings name it.
        row: hold it against the facts of this row too.

    Raises:
        DockerfileError, CheckerError: as `lint`.
    """
    subject = Subject(document=parse(text, name), row=row)
    return [
        dataclasses.replace(one, file=name) if one.file == "Dockerfile" else one
        for one in _checked({name: subject})[name]
    ]


def subject_of(context: Context) -> Subject:
    """What rules look at in a rendered context."""
    text = decoded(context.files["Dockerfile"], f"Dockerfile of {context.row.name}")
    return Subject(document=parse(text, f"Dockerfile of {context.row.name}"), row=context.row, files=context.files)


def _checked(subjects: Mapping[str, Subject]) -> dict[str, list[Finding]]:
    documents = [subject.document for subject in subjects.values()]
    others = zip(tools.hadolint(documents), tools.shellcheck(documents), strict=True)
    return {
        name: sorted({*own(subject), *hadolint, *shellcheck}, key=_order)
        for (name, subject), (hadolint, shellcheck) in zip(subjects.items(), others, strict=True)
    }


def own(subject: Subject) -> list[Finding]:
    """What our own rules find."""
    return [finding for rule in RULES for finding in rule.findings(subject)]


def _order(finding: Finding) -> tuple[bool, str, int, str, str]:
    return finding.severity != "error", finding.file, finding.line, finding.rule, finding.message
