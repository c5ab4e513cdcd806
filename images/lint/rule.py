"""What a rule is, what it looks at, and what it finds."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from images.lint.document import Document, Instruction, Stage, parse

if TYPE_CHECKING:
    from images.matrix import Row

Severity = Literal["error", "warning"]


@dataclass(frozen=True)
class Finding:
    """One mistake in one file."""

    rule: str
    """`base-digest`; of hadolint `DL3006`, of shellcheck `SC2086`."""
    severity: Severity
    line: int
    """From 1; 0 where it is about the whole."""
    message: str
    remedy: str
    file: str = "Dockerfile"
    """Path in the build context."""


@dataclass(frozen=True)
class Subject:
    """What is looked at: a Dockerfile, and where it is one of ours its row and the other files of its context."""

    document: Document
    row: Row | None = None
    files: Mapping[str, bytes] | None = None

    @classmethod
    def of(cls, text: str, *, row: Row | None = None, files: Mapping[str, bytes] | None = None) -> Subject:
        """Parse and put together."""
        return cls(document=parse(text), row=row, files=files)

    @functools.cached_property
    def facts(self) -> dict[str, Any]:
        """`image.json`; empty where there is none or it is none."""
        try:
            found = json.loads((self.files or {}).get("image.json", b"{}"))
        except ValueError:
            return {}
        return found if isinstance(found, dict) else {}

    def lines_of(self, name: str) -> list[str]:
        """Lines of a text file of the context; none where it is absent."""
        return (self.files or {}).get(name, b"").decode("utf-8", "replace").splitlines()


@dataclass(frozen=True)
class Problem:
    """What a rule's function yields; the rest of a finding is the rule's."""

    at: Instruction | Stage | int
    message: str
    severity: Severity | None = None
    """Where this case is graver or lighter than the rule."""
    file: str = "Dockerfile"

    @property
    def line(self) -> int:
        """Where."""
        return self.at if isinstance(self.at, int) else self.at.line

    @property
    def ignored(self) -> frozenset[str]:
        """Rules that a comment takes away here."""
        return frozenset() if isinstance(self.at, int) else self.at.ignored


Check = Callable[[Subject], Iterator[Problem]]


@dataclass(frozen=True)
class Rule:
    """One rule with what a reader wants to know of it."""

    id: str
    title: str
    severity: Severity
    reason: str
    source: str
    remedy: str
    wrong: str
    right: str
    check: Check
    row: str | None = None
    """Rules about a row's facts: the row of the examples. They are silent for a Dockerfile without a row."""
    file: str = "Dockerfile"
    """Which file of the context the examples are."""

    def findings(self, subject: Subject) -> Iterator[Finding]:
        """What it finds."""
        for problem in self.check(subject):
            if self.id not in problem.ignored:
                yield Finding(
                    self.id, problem.severity or self.severity, problem.line, problem.message, self.remedy, problem.file
                )


def rule(
    id: str,  # noqa: A002 - what rules have everywhere
    title: str,
    *,
    reason: str,
    source: str,
    remedy: str,
    wrong: str,
    right: str,
    severity: Severity = "error",
    row: str | None = None,
    file: str = "Dockerfile",
) -> Callable[[Check], Rule]:
    """Make a rule of a function."""

    def made(check: Check) -> Rule:
        return Rule(id, title, severity, reason, source, remedy, wrong, right, check, row, file)

    return made
