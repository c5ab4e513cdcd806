"""A report about one stack: all that is known of a change, before anything is drawn."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import date
from decimal import Decimal
from typing import Literal

from infra.report.changes import Change, changes, unknown_properties
from infra.report.cost import DEFAULT_UTILISATION, Delta, cost, delta
from infra.report.known_bad import Finding, findings
from infra.report.pools import Pool, pools
from infra.report.preview import PolicyResult, Preview
from infra.report.topology import mermaid
from infra.report.versions import Move, moves

Failing = Literal["policy", "version", "known-bad", "incomplete"]
FAILING: tuple[Failing, ...] = ("incomplete", "policy", "version", "known-bad")
"""What a change can be refused for, by name for `--fail-on`."""
MAY_BE_MORE = "There may be more changes than are listed here."
_LEVELS = {"mandatory": 0, "remediate": 1, "advisory": 2}
_SEVERITIES = {"critical": 0, "high": 1, "medium": 2, "low": 3}
_KINDS = {"violation": 0, "unknown": 1, "remediated": 2}


@dataclass(frozen=True)
class PoolRow:
    """A node pool before and after; None where there is none."""

    before: Pool | None
    after: Pool | None

    @property
    def pool(self) -> Pool:
        """As it will be; of one that goes, as it was."""
        found = self.after or self.before
        assert found is not None  # noqa: S101 - a row is made of one at least
        return found


@dataclass(frozen=True)
class Failure:
    """Why a change should not be merged as it is."""

    kind: Failing
    sentence: str


@dataclass(frozen=True, eq=False)
class Report:
    """What there is to say of one stack's change."""

    preview: Preview
    changes: tuple[Change, ...]
    pools: tuple[PoolRow, ...]
    policies: tuple[PolicyResult, ...]
    """What matters most first."""
    cost: Delta | None
    """Before and after; None where nothing costs money that the price table knows of."""
    moves: tuple[Move, ...]
    """Versions that change, the worst verdict first."""
    known_bad: tuple[Finding, ...]
    """Combinations that are known to fail."""
    topology: str
    """A Mermaid diagram of what there will be; empty where there is nothing to draw."""
    warnings: tuple[str, ...]
    old_prices: str
    """A warning beside the cost; empty where no price is old."""
    failures: tuple[Failure, ...]
    note: str = ""
    """What the command that made the preview says of it."""

    @property
    def stack(self) -> str:
        """Name of the stack."""
        return self.preview.stack

    @property
    def removals(self) -> tuple[Change, ...]:
        """What is replaced or deleted, what loses most first."""
        return tuple(one for one in self.changes if one.removes)

    def of(self, *ops: str) -> tuple[Change, ...]:
        """The changes of these operations."""
        return tuple(one for one in self.changes if one.op in ops)

    def fails(self, on: Iterable[str] = FAILING) -> bool:
        """Whether it is refused, going by the failures that one wants to fail on."""
        return bool({one.kind for one in self.failures} & set(on))


def build(
    preview: Preview, *, note: str = "", utilisation: Decimal = DEFAULT_UTILISATION, today: date | None = None
) -> Report:
    """The report about a preview.

    Args:
        preview: what the engine said.
        note: a sentence of whoever ran it.
        utilisation: share of the time in which pools run the most machines.
        today: old prices are said to be old; absent: nobody asks.
    """
    money = delta(
        cost(preview.before, utilisation=utilisation),
        cost(preview.after, utilisation=utilisation),
    )
    moved, bad = moves(preview.before, preview.after), findings(preview.after)
    results = tuple(
        sorted(
            preview.policies,
            key=lambda one: (
                _KINDS[one.kind],
                _LEVELS.get(one.level, 3),
                _SEVERITIES.get(one.severity, 4),
                one.rule,
                one.urn or "",
            ),
        )
    )
    return Report(
        preview=preview,
        changes=changes(preview),
        pools=_pools(preview),
        policies=results,
        cost=money if money.before.parts or money.after.parts or money.after.not_counted else None,
        moves=moved,
        known_bad=bad,
        topology=mermaid(preview.after) if any(one.custom and not one.is_provider for one in preview.after) else "",
        warnings=tuple(_warnings(preview, noted=bool(note))),
        old_prices=(money.after.stale(today) or "") if today else "",
        failures=tuple(_failures(preview, results, moved, bad)),
        note=note,
    )


def _pools(preview: Preview) -> tuple[PoolRow, ...]:
    before = {pool.name: pool for pool in pools(preview.before)}
    after = {pool.name: pool for pool in pools(preview.after)}
    return tuple(PoolRow(before.get(name), after.get(name)) for name in dict.fromkeys([*after, *before]))


def _warnings(preview: Preview, *, noted: bool) -> Iterator[str]:
    if preview.rehearsal and not noted:
        yield (
            "This is a rehearsal: stand-ins answered for AWS and no account was touched. What is on record there, and"
            " what has been changed by hand, is not known."
        )
    if preview.hidden_sames:
        one = preview.hidden_sames == 1
        yield (
            f"{preview.hidden_sames} {'resource stays as it is, and is' if one else 'resources stay as they are, and'}"
            f"{'' if one else ' are'}"
            " not in the file, so that node pools, cost, versions and topology are those of what changes alone."
            " `pulumi preview --json --show-sames` writes all of them."
        )
    if not preview.policies_known:
        yield "The file has no policy results: `pulumi preview --json` leaves them out."
    changed = [step.new for step in preview.steps if step.new and step.changes]
    unknown = sum(len(unknown_properties(one)) for one in changed)
    if unknown:
        resources = sum(bool(unknown_properties(one)) for one in changed)
        yield (
            f"{unknown} {'property' if unknown == 1 else 'properties'} of {resources}"
            f" {'resource' if resources == 1 else 'resources'} {'is' if unknown == 1 else 'are'} known only after up."
        )
    protected = [one for one in preview.steps if one.op in {"replace", "delete"} and one.old and one.old.protect]
    if protected:
        yield (
            f"{len(protected)} protected {'resource' if len(protected) == 1 else 'resources'} would be replaced or"
            " deleted: the engine will refuse it."
        )


def _failures(
    preview: Preview, results: Iterable[PolicyResult], moved: Iterable[Move], bad: Sequence[Finding]
) -> Iterator[Failure]:
    if not preview.complete:
        yield Failure("incomplete", f"the preview is not complete: {preview.why_incomplete}. {MAY_BE_MORE}")
    broken = [one for one in results if one.blocks]
    if broken:
        rules = sorted({one.rule for one in broken})
        yield Failure(
            "policy",
            f"{len(broken)} {'violation' if len(broken) == 1 else 'violations'} of mandatory policies:"
            f" {', '.join(rules)}",
        )
    for move in moved:
        if move.fails:
            yield Failure(
                "version",
                f"the move of {move.component} from {move.old} to {move.new} is {move.verdict}: {move.reason}",
            )
    for finding in bad:
        yield Failure("known-bad", f"{finding.component} {finding.version} is known to fail here: {finding.effect}")
