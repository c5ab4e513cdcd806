"""Moves from one version to another: may it be done, what has to be done by hand, and what says so.

A record of the catalogue decides; without one the numbers do. What neither decides is unknown, and unknown is no yes.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import date
from typing import Any, Literal

from infra.catalog.ranges import numbers
from infra.catalog.version_moves import Numbering, move_record, numberings
from infra.report.components import KUBERNETES, Component, components, kubernetes_of, pairs
from infra.report.preview import Resource

Verdict = Literal["safe", "manual", "blocked", "unknown"]
VERDICTS: tuple[Verdict, ...] = ("blocked", "unknown", "manual", "safe")
"""Worst first."""
_MANY_MINORS = 2
"""More minors than this at once are no small step, whatever the numbering promises."""
_AL2023 = re.compile(r"(\d+\.\d+)(?:\.\d+)?-(\d{8})")
_BUILD = re.compile(r"eksbuild\.(\d+)")


@dataclass(frozen=True)
class Move:
    """One component that goes to another version."""

    component: str
    where: tuple[str, ...]
    """Pools, workloads or releases that it is moved in."""
    old: str
    new: str
    verdict: Verdict
    reason: str
    steps: tuple[str, ...] = ()
    source: str = ""
    checked: date | None = None
    """When the source was read."""
    unconfirmed: bool = False

    @property
    def fails(self) -> bool:
        """Whether it must not go on like this."""
        return self.verdict in {"blocked", "unknown"}


def moves(before: Iterable[Resource], after: Iterable[Resource]) -> tuple[Move, ...]:
    """What goes to another version between two sets of resources; worst first. What comes or goes is no move."""
    old, new = components(before), components(after)
    kubernetes = kubernetes_of(new)
    found: dict[tuple[str, str, str, bool], list[str]] = {}
    judged: dict[tuple[str, str, str, bool], Move] = {}
    for one, now in pairs(old, new):
        if (one.version, one.digest) == (now.version, now.digest):
            continue
        if one.version == now.version and not (one.digest and now.digest):
            continue  # the same image, named by its digest or no longer so
        key = one.name, _shown(one, now), _shown(now, one), now.empty_only
        found.setdefault(key, []).append(one.where)
        judged[key] = judge(one, now, kubernetes)
    made = [replace(move, where=tuple(sorted(set(found[key]))), old=key[1], new=key[2]) for key, move in judged.items()]
    return tuple(sorted(made, key=lambda move: (VERDICTS.index(move.verdict), move.component, move.where)))


def document(move: Move) -> dict[str, Any]:
    """A move as plain data."""
    return {
        **vars(move),
        "where": list(move.where),
        "steps": list(move.steps),
        "checked": str(move.checked) if move.checked else None,
        "fails": move.fails,
    }


def judge(old: Component, new: Component, kubernetes: str = "") -> Move:
    """The verdict of one move.

    Args:
        old: as it is.
        new: as it will be.
        kubernetes: version of the cluster after the change, for what follows it.
    """
    move = _Judge(old, new, kubernetes)
    if old.version == new.version:
        return move.says("unknown", "the same version with another digest: the tag was pushed anew, or is not the same")
    try:
        numbers(old.version), numbers(new.version)
    except ValueError:
        return move.says("unknown", "one of the versions is no number, so that nothing can be compared")
    if record := move_record(old.name, old.version, new.version):
        return Move(
            component=old.name,
            where=(old.where,),
            old=old.version,
            new=new.version,
            verdict=record.verdict,
            reason=record.reason,
            steps=record.steps,
            source=record.source,
            checked=record.checked,
            unconfirmed=record.unconfirmed,
        )
    if old.name == "al2023-release":
        return move.al2023()
    return move.by_numbers()


@dataclass(frozen=True)
class _Judge:
    old: Component
    new: Component
    kubernetes: str

    def says(self, verdict: Verdict, reason: str, *steps: str, rule: Numbering | None = None) -> Move:
        return Move(
            component=self.old.name,
            where=(self.old.where,),
            old=self.old.version,
            new=self.new.version,
            verdict=verdict,
            reason=reason,
            steps=steps,
            source=rule.source if rule else "",
            checked=rule.checked if rule else None,
        )

    def by_numbers(self) -> Move:
        rule = numberings().get(self.old.name)
        (major, minor, *patch), (to_major, to_minor, *to_patch) = map(_padded, (self.old.version, self.new.version))
        backwards = (to_major, to_minor, *to_patch) < (major, minor, *patch)
        if backwards or self._older_build():
            if rule and rule.backwards:
                return self.says(rule.backwards, rule.backwards_reason, rule=rule)
            return self.says("unknown", "it goes back, and no record says that this works")
        if rule and rule.follows:
            return self._following(rule)
        if to_major != major:
            return self.says("unknown", "another major version, and no record of the move")
        if (skipped := to_minor - minor) and rule and rule.minor_steps and skipped > rule.minor_steps:
            steps = ("go through each minor in between",) if rule.skip_verdict == "manual" else ()
            return self.says(rule.skip_verdict, rule.skip_reason, *steps, rule=rule)
        if skipped and (major == 0 or self.old.name == KUBERNETES):
            return self.says("unknown", f"{'a minor of 0.x' if major == 0 else 'another minor'} without a record")
        if skipped > _MANY_MINORS:
            return self.says("unknown", f"{skipped} minors at once, and no record of such a move")
        if self.old.name.endswith("-release"):
            return self._machines()
        if skipped:
            return self.says("safe", "a newer minor of the same major version, and no record against it")
        return self.says("safe", "the same minor version, newer")

    def al2023(self) -> Move:
        """Releases of EKS's image: a Kubernetes version and a day."""
        known = [_AL2023.match(one) for one in (self.old.version, self.new.version)]
        if not (known[0] and known[1]):
            return self.says("unknown", "this is no release of EKS's image: its form is 1.36.2-20260714")
        if self.kubernetes and numbers(known[1][1]) != numbers(self.kubernetes):
            return self.says(
                "blocked", f"an image for Kubernetes {known[1][1]} in a cluster that will be {self.kubernetes}"
            )
        if known[1][2] < known[0][2]:
            return self.says("unknown", "an older release, and no record that going back works")
        return self._machines()

    def _machines(self) -> Move:
        if self.new.empty_only:
            return self.says(
                "manual",
                "EKS updates the group of a capacity block only while it has no machine",
                "let the pool be empty before `up`, or wait for the end of the block",
            )
        return self.says(
            "safe", "machines are replaced one after another; elastic jobs go on with the others, others start again"
        )

    def _following(self, rule: Numbering) -> Move:
        if not self.kubernetes:
            return self.says("unknown", f"{rule.follows_reason}; the cluster's version is not told", rule=rule)
        wanted = _padded(self.kubernetes)[:2]
        if _padded(self.new.version)[:2] == wanted:
            return self.says("safe", f"it is of the cluster's minor; {rule.follows_reason}", rule=rule)
        return self.says(
            "unknown", f"it is not of the cluster's minor {self.kubernetes}: {rule.follows_reason}", rule=rule
        )

    def _older_build(self) -> bool:
        """EKS builds one version of an add-on several times: `v1.22.4-eksbuild.3`."""
        builds = [_BUILD.search(one) for one in (self.old.version, self.new.version)]
        same = _padded(self.old.version) == _padded(self.new.version)
        return bool(same and builds[0] and builds[1] and int(builds[1][1]) < int(builds[0][1]))


def _padded(version: str) -> tuple[int, ...]:
    found = numbers(version)
    return (*found, *[0] * (3 - len(found)))


def _shown(one: Component, other: Component) -> str:
    """The version, with the beginning of the digest where only that tells the two apart."""
    return f"{one.version}@{one.digest[:15]}" if one.version == other.version and one.digest else one.version
