"""What the engine says of policies while it runs: the packs that it is given, and what their rules told."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

Outcome = Literal["violation", "undecided", "corrected"]
SEVERITIES = ("critical", "high", "medium", "low", "")
"""From the most to the least severe; the engine gives none to what could not be decided."""
UNDECIDED = "cannot be judged before up"
"""How a rule begins that needs values which are known only after `up`."""


@dataclass(frozen=True)
class PolicyPack:
    """A pack of policies for the engine."""

    folder: Path
    config: Path | None = None
    """Levels and settings; absent: those of the pack."""
    mandatory: frozenset[str] = frozenset()
    """Rules that stop a change, as far as they are known. In a preview the engine is told to go on after them, since it
    would end with the first one that is broken, and nothing would be known of the rest; who reads its results stops."""


@dataclass(frozen=True)
class PolicyResult:
    """One thing that a rule told."""

    rule: str
    outcome: Outcome
    level: str
    """`mandatory` stops the run, `advisory` does not."""
    severity: str
    urn: str
    """Of the resource; that of the stack where it is about the whole."""
    title: str
    """What the rule asks for."""
    message: str
    """What is wrong, or what is not known yet."""
    pack: str

    @property
    def name(self) -> str:
        """The resource's kind and name, `NodeGroup gpu-spot-nodes`; the stack's name alone."""
        *_, kind, name = self.urn.split("::")
        kind = kind.rsplit(":", 1)[-1].split("$")[-1]
        return f"stack {name}" if kind == "Stack" else f"{kind} {name}"

    @property
    def blocks(self) -> bool:
        """Whether the run fails because of it."""
        return self.outcome == "violation" and self.level == "mandatory"

    def as_document(self) -> dict[str, Any]:
        """As plain data for `--json`."""
        return asdict(self)


def arguments(packs: Sequence[PolicyPack], scratch: Path, *, to_the_end: bool) -> list[str]:
    """Arguments of the engine: it wants a file of settings for each pack, or none at all.

    Args:
        packs: the packs.
        scratch: a folder for files of settings.
        to_the_end: rules that are known to be mandatory shall not end the run.
    """
    made = []
    for number, pack in enumerate(packs):
        settings = json.loads(pack.config.read_text(encoding="utf-8")) if pack.config else {}
        for rule in pack.mandatory if to_the_end else ():
            own = settings.get(rule)
            settings[rule] = {**(own if isinstance(own, dict) else {}), "enforcementLevel": "advisory"}
        path = scratch / f"policies-{number}.json"
        path.write_text(json.dumps(settings), encoding="utf-8")
        made += ["--policy-pack", str(pack.folder), "--policy-pack-config", str(path)]
    return made


def at_their_level(results: Iterable[PolicyResult], packs: Sequence[PolicyPack]) -> list[PolicyResult]:
    """The results of a run to the end, with the level that each rule really has."""
    mandatory = {rule for pack in packs for rule in pack.mandatory}
    return [
        replace(one, level="mandatory") if one.outcome == "violation" and one.rule in mandatory else one
        for one in results
    ]


def from_event(event: Mapping[str, Any]) -> PolicyResult | None:
    """What a rule told in an event of the engine; None where the event is about something else."""
    if told := event.get("policyEvent"):
        title, _, message = str(told.get("message", "")).strip().partition("\n")
        undecided = UNDECIDED in f"{title}{message}"
        if undecided and not message:
            title, message = "", title[title.index(UNDECIDED) :]
        return PolicyResult(
            rule=told.get("policyName", ""),
            outcome="undecided" if undecided else "violation",
            level=told.get("enforcementLevel", ""),
            severity=told.get("severity") or "",
            urn=told.get("resourceUrn", ""),
            title=title,
            message=message.strip(),
            pack=told.get("policyPackName", ""),
        )
    if done := event.get("policyRemediationEvent"):
        changed = _changed(done.get("before"), done.get("after"))
        return PolicyResult(
            rule=done.get("policyName", ""),
            outcome="corrected",
            level="remediate",
            severity="",
            urn=done.get("resourceUrn", ""),
            title="",
            message=f"changed {', '.join(changed)}" if changed else "changed",
            pack=done.get("policyPackName", ""),
        )
    return None


_RAISED = re.compile(r"failed to run policy: Exception calling application: ")
_NOT_STARTED = re.compile(r'policy pack "(?P<pack>[^"]+)" failed to start')


def in_words(line: str) -> str:
    """What the engine says of a pack that itself is broken, so that nobody looks for the mistake in the program."""
    if found := _RAISED.search(line):
        cause = line[found.end() :] or "it does not say why"
        return f"a rule of a policy pack failed, which is a mistake of the rule and not of the program: {cause}"
    if found := _NOT_STARTED.search(line):
        return f"policy pack {found['pack']} does not start, so that nothing was judged. Why: python {found['pack']}"
    return line


def in_order(results: Iterable[PolicyResult]) -> list[PolicyResult]:
    """What blocks first, then by severity, then what could not be judged and what was corrected."""
    place = {severity: index for index, severity in enumerate(SEVERITIES)}
    outcomes: dict[str, int] = {"violation": 0, "undecided": 1, "corrected": 2}
    return sorted(
        dict.fromkeys(results),
        key=lambda one: (outcomes[one.outcome], not one.blocks, place.get(one.severity, len(place)), one.rule, one.urn),
    )


def counted(results: Iterable[PolicyResult]) -> str:
    """In a few words: how many rules are broken."""
    several = list(dict.fromkeys(results))
    blocking = sum(one.blocks for one in several)
    advisory = sum(one.outcome == "violation" and not one.blocks for one in several)
    undecided = sum(one.outcome == "undecided" for one in several)
    corrected = sum(one.outcome == "corrected" for one in several)
    parts = [
        f"{number} {word}"
        for number, word in (
            (blocking, "mandatory"),
            (advisory, "advisory"),
            (undecided, "not to be judged before up"),
            (corrected, "corrected"),
        )
        if number
    ]
    return f"policies: {', '.join(parts)}" if parts else "policies: all rules are kept"


def _changed(before: object, after: object) -> list[str]:
    if not isinstance(before, Mapping) or not isinstance(after, Mapping):
        return []
    return sorted(
        str(key)
        for key in {*before, *after}
        if json.dumps(before.get(key), sort_keys=True) != json.dumps(after.get(key), sort_keys=True)
    )
