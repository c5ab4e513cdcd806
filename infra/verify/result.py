"""What a check says, and what all of them say together: only what was asked for and passed is a pass."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal, get_args

from infra.diagnose.finding import Finding

Phase = Literal["readiness", "deployment", "fabric", "performance"]
PHASES: tuple[Phase, ...] = get_args(Phase)
"""In the order in which they run: cheap ones first, and no figure is read before the transport is known."""
Verdict = Literal["passed", "failed", "unknown", "skipped", "not run"]
"""`unknown`: nothing to hold it to. `skipped`: nothing there to look at. `not run`: not asked for, or by the settings
there is nothing that could be checked. Only the last says nothing against the stack."""


@dataclass(frozen=True)
class Result:
    """One check."""

    phase: Phase
    check: str
    verdict: Verdict
    message: str
    covered: int | None = None
    """How many of `of` were looked at and were right; None: it is not about several."""
    of: int | None = None
    findings: tuple[Finding, ...] = ()

    @classmethod
    def judged(cls, phase: Phase, check: str, good: str, covered: int, of: int, findings: Sequence[Finding]) -> Result:
        """A check of several things, which passes if every one was looked at and nothing was found.

        Args:
            phase: of the check.
            check: its name.
            good: what it says where nothing was found.
            covered: how many are right.
            of: how many there should be.
            findings: what is wrong.
        """
        if findings or covered < of:
            bad = f"{len(findings)} wrong" if findings else f"{of - covered} not seen"
            return cls(phase, check, "failed", bad, covered, of, tuple(findings))
        if not of:
            return cls(phase, check, "skipped", "there is none to look at", 0, 0)
        return cls(phase, check, "passed", good, covered, of)

    @property
    def coverage(self) -> str:
        """`3/4`; empty where it is not about several."""
        return "" if self.of is None else f"{self.covered}/{self.of}"

    def as_json(self) -> dict[str, Any]:
        """Plain data."""
        return asdict(self)


def passed(results: Iterable[Result]) -> bool:
    """Whether all that was asked for passed; nothing at all is no pass."""
    asked = [result for result in results if result.verdict != "not run"]
    return bool(asked) and all(result.verdict == "passed" for result in asked)
