"""What was found wrong: one shape for `diagnose`, `verify`, `check` and `drift`."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

Severity = Literal["error", "warning", "note"]


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is wrong, why it is believed, and what to do."""

    code: str
    """Which kind of thing it is: a word with hyphens that stays the same, `node-lost`."""
    title: str
    """What is wrong, in one sentence."""
    evidence: tuple[str, ...]
    """Lines of logs, events or states that show it, as they were found."""
    remedy: str
    """What to do."""
    command: str | None
    """The next command, if one helps."""
    severity: Severity
    object: str
    """What it is about: `job/digits`, `node/gpu-spot-1`, `pod/digits-worker-0`, `stack/local`."""

    def document(self) -> dict[str, Any]:
        """The finding as it stands in JSON."""
        return {**asdict(self), "evidence": list(self.evidence)}
