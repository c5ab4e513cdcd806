"""The report as Markdown, for a comment on a pull request: short enough for every forge, however large the stack is."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from infra.report.changes import Change, FieldChange, said
from infra.report.cost import UNCONFIRMED, Part, Total, Usd
from infra.report.cost import Pool as PricedPool
from infra.report.escape import code, fenced, plain, prose
from infra.report.fitting import Section, fit
from infra.report.model import FAILING, MAY_BE_MORE, PoolRow, Report
from infra.report.pools import Pool
from infra.report.preview import PolicyResult

MOST = 60_000
"""Characters of a report. GitHub takes 65,536 of a comment, and whoever posts it may add something."""
_MARKER = "<!-- trainyard preview {} -->"
"""By this, whoever posts the report finds the comment of before."""
_FIELDS_SHOWN = 40  # of one resource
_NAMES_OF_LINE = 20
_ADVICE = 10  # broken rules whose remedy is shown
_PLACES = 5  # resources that a rule names in one row
_VALUE = 160  # characters of a value
_FIRST_DELETED = {"Vpc", "Subnet", "NatGateway", "MountTarget"}
_OPS = ("replace", "delete", "update", "create", "import")
_SIGNS = {"update": "!", "create": "+", "delete": "-", "replace": "!", "import": "+"}


def markdown(
    reports: Sequence[Report], *, most: int | None = MOST, full_text: str = "", on: Iterable[str] = FAILING
) -> str:
    """Reports about stacks as one text.

    Args:
        reports: one a stack.
        most: the most characters; None: everything.
        full_text: where the text without cuts is, in words; for whoever reads a shortened one.
        on: what a change is refused for.
    """
    parts: list[str] = []
    failing = frozenset(on)
    for index, report in enumerate(reports):
        used = sum(map(len, parts)) + 1
        room = None if most is None else (most - used) // (len(reports) - index)
        parts.append(_report(report, room, full_text, failing))
    return "\n".join(parts)


def marker(project: str, stack: str) -> str:
    """The invisible first line of a stack's report."""
    name = "".join(sign for sign in f"{project}/{stack}" if sign.isalnum() or sign in "/._-")
    return _MARKER.format(name[:200].replace("--", "-"))


def _report(report: Report, room: int | None, full_text: str, on: frozenset[str]) -> str:
    head = "\n".join([marker(report.preview.project, report.stack), *_head(report, on)]) + "\n"
    foot = _foot(report)
    sections = [one for one in _sections(report) if one.items or one.head]
    if room is None:
        fit(sections, sum(section.frame + sum(len(item) + 1 for item in section.items) + 1 for section in sections))
        cut: list[str] = []
    else:
        cut = fit(sections, room - len(head) - len(foot) - 400 - len(full_text))
    body = "\n".join(section.render() for section in sections)
    if cut:
        where = (
            f" {prose(full_text)}"
            if full_text
            else " `trainyard preview --report FILE.md` writes a file with all of it."
        )
        foot = f"**Left out, so that this fits into a comment:** {'; '.join(cut[:6])}.{where}\n\n{foot}"
    return f"{head}{body}\n{foot}"


def _head(report: Report, on: frozenset[str]) -> list[str]:
    preview = report.preview
    failures = [one for one in report.failures if one.kind in on]
    lines = [f"## {'❌ ' if failures else ''}Preview of stack {code(report.stack)}", "", _summary(report), ""]
    if failures:
        lines += ["> [!CAUTION]", "> **This change cannot go in as it is.**"]
        lines += [f"> - {prose(one.sentence)}" for one in failures]
        lines.append("")
    warnings = [one for one in (*report.warnings, report.note) if one.strip()]
    if not preview.complete and not any(one.kind == "incomplete" for one in failures):
        warnings.insert(0, f"{preview.why_incomplete}. {MAY_BE_MORE}")
    if warnings:
        lines.append("> [!WARNING]" if not preview.complete else "> [!IMPORTANT]")
        lines += [f"> - {prose(one, 400)}" for one in warnings]
        lines.append("")
    return lines


def _summary(report: Report) -> str:
    counts = report.preview.counts()
    stays = sum(counts.get(op, 0) for op in ("same", "read", "refresh"))
    told = []
    for op in _OPS:
        if number := counts.get(op, 0):
            text = f"{number:,} to {op}"
            told.append(f"**{text}**" if op in {"replace", "delete"} else text)
    if not told:
        if not report.preview.complete:
            return "No change is known, and the preview is not complete."
        what = "resource stays as it is" if stays == 1 else "resources stay as they are"
        return f"**Nothing changes.** {stays:,} {what}."
    rest = (
        f"; {stays:,} {'stays' if stays == 1 else 'stay'} as {'it is' if stays == 1 else 'they are'}" if stays else ""
    )
    return ", ".join(told) + rest + "." + _cost_in_short(report)


def _cost_in_short(report: Report) -> str:
    if report.cost is None or not report.preview.complete:
        return ""  # a part of the resources costs less than all of them, which would look like a saving
    old, new = report.cost.before.at_max, report.cost.after.at_max
    if old == new or report.cost.at_max.all_unknown:
        return ""
    return f" Cost with the most machines: {_total(old)} → **{_total(new)}** USD per hour."


def _sections(report: Report) -> list[Section]:
    return [
        _errors(report),
        _removals(report),
        _policies(report),
        _known_bad(report),
        _moves(report),
        _pools(report),
        *_cost(report),
        _updates(report),
        _creations(report),
        _undecided(report),
        _topology(report),
        _said(report),
    ]


def _reached(report: Report) -> str:
    """What a title says of a part that may lack something."""
    return "" if report.preview.complete else " (as far as the preview goes)"


def _errors(report: Report) -> Section:
    errors = [one for one in report.preview.diagnostics if one.severity == "error"]
    items = [
        fenced([plain(line, 400) for line in (*([f"at {_place(one.urn)}:"] if one.urn else ()), *_lines(one.message))])
        for one in errors
    ]
    return Section("What went wrong", 0, items, "errors", share=0.2)


def _removals(report: Report) -> Section:
    items: list[str] = []
    plain_ones: dict[str, list[str]] = {}
    for one in report.removals:
        if one.op == "replace" or one.loses or one.interrupts or one.protected:
            items.append(_removal(one))
        else:
            plain_ones.setdefault(one.kind, []).append(f"**{code(one.name)}**")
    for kind, names in sorted(plain_ones.items(), key=lambda pair: pair[0] not in _FIRST_DELETED):
        items += [
            f"- **delete** {code(kind)} {', '.join(names[begin : begin + _NAMES_OF_LINE])}"
            for begin in range(0, len(names), _NAMES_OF_LINE)
        ]
    return Section("Replaced and deleted", 1, items, "lines of replacements and deletions", share=0.4)


def _removal(change: Change) -> str:
    line = f"- **{change.op}** {_named(change)}"
    if change.protected:
        line += " 🔒 **protected: the engine will refuse it**"
    if change.loses:
        line += f" ⚠️ **{change.loses}**"
    elif change.interrupts:
        line += f" ⚠️ {change.interrupts}"
    if change.op == "replace" and change.reasons:
        forced = [f"**{code(one.path)}** {_moved(one)}" for one in change.reasons[:4]]
        more = f" and {len(change.reasons) - 4} more" if len(change.reasons) > 4 else ""
        line += "  \n  because of " + "; ".join(forced) + more
    elif change.op == "replace":
        line += "  \n  the engine does not say why"
    return line


def _moved(field: FieldChange) -> str:
    behind = f" ({prose(field.behind)})" if field.behind else ""
    return f"{_value(field.old)}{behind} → {_value(field.new)}"


def _value(value: object) -> str:
    text = said(value, _VALUE)
    return f"*{text[1:-1]}*" if text in {"(none)", "(known after up)"} else code(text, _VALUE + 40)


def _named(change: Change) -> str:
    within = f" of {code(change.component)}" if change.component else ""
    return f"{code(change.kind)} **{code(change.name)}**{within}"


def _policies(report: Report) -> Section:
    found = [one for one in report.policies if one.kind != "unknown"]
    packs = ", ".join(map(code, report.preview.policy_packs))
    head = ""
    if found:
        head = "| | rule | what is wrong | where |\n| --- | --- | --- | --- |"
    elif report.preview.policy_packs:
        held = f"All {report.preview.rules_run} rules" if report.preview.rules_run else "All rules"
        so_far = "" if report.preview.complete else " so far"
        head = f"✅ {held} of {packs} that could be judged{so_far} are kept."
    alike: dict[tuple[str, str, str], list[PolicyResult]] = {}
    for one in found:
        alike.setdefault((one.rule, one.level, one.finding), []).append(one)
    items = [_broken_rule(same) for same in alike.values()]
    section = Section("Policies", 2, items, "policy results", head, share=0.3)
    if found:
        advice = {one.rule: one.remediation for one in found if one.blocks and one.remediation}
        told = "".join(f"\n- {code(rule)}: {prose(what, 400)}" for rule, what in list(advice.items())[:_ADVICE])
        section.tail = (f"\nWhat to do:\n{told}\n" if told else "") + (
            f"\nWhy, with examples: `trainyard explain RULE`. Packs: {packs or 'unknown'}."
        )
    return section


def _broken_rule(alike: Sequence[PolicyResult]) -> str:
    """One row for what a rule says of several resources in the same words."""
    one = alike[0]
    mark = "❌ **mandatory**" if one.blocks else "🔧 mended" if one.kind == "remediated" else f"⚠️ {prose(one.level)}"
    wrong = prose(one.finding, 300) if one.finding else "mended by the rule itself"
    places = [code(_place(each.urn)) for each in alike[:_PLACES]]
    more = f" and {len(alike) - _PLACES} more" if len(alike) > _PLACES else ""
    return f"| {mark} | {code(one.rule)} | {wrong} | {', '.join(places)}{more} |"


def _undecided(report: Report) -> Section:
    found = [one for one in report.policies if one.kind == "unknown"]
    rules: dict[str, list[PolicyResult]] = {}
    for one in found:  # what is not known yet is often the same of many resources
        rules.setdefault(one.rule, []).append(one)
    items = [
        f"- {code(rule)}: {prose(those[0].finding, 300)} ("
        + (code(_place(those[0].urn)) if len(those) == 1 else f"{len(those)} resources")
        + ")"
        for rule, those in rules.items()
    ]
    return Section(f"Rules that could not be judged yet ({len(rules)})", 6, items, "rules", folded=True, share=0.1)


def _known_bad(report: Report) -> Section:
    items = [
        f"- ❌ {code(one.component)} {code(one.version)} at {', '.join(map(code, one.where[:_PLACES]))}:"
        f" {prose(one.effect, 300)}. {prose(one.reason, 400)} {prose(one.link, 200)}"
        for one in report.known_bad
    ]
    return Section("Known to fail", 2, items, "combinations", share=0.15)


_VERDICTS = {"safe": "✅ safe", "manual": "✋ **manual**", "blocked": "❌ **blocked**", "unknown": "❌ **unknown**"}


def _moves(report: Report) -> Section:
    items = []
    for one in report.moves:
        steps = "".join(f"<br>{number}. {prose(step, 300)}" for number, step in enumerate(one.steps, 1))
        source = f" {prose(one.source, 200)}" if one.source else ""
        checked = f" ({one.checked}{', unconfirmed' if one.unconfirmed else ''})" if one.checked else ""
        places = ", ".join(map(code, one.where[:_PLACES]))
        items.append(
            f"| {code(one.component)} | {code(one.old)} → {code(one.new)} | {_VERDICTS[one.verdict]} |"
            f" {prose(one.reason, 300)}{source}{checked}{steps} | {places} |"
        )
    head = "| what | from → to | verdict | why, and what to do | where |\n| --- | --- | --- | --- | --- |"
    return Section("Versions", 2, items, "moves of versions", head if items else "", share=0.2)


def _topology(report: Report) -> Section:
    text = report.topology
    items = [fenced([line.replace("```", "") for line in text.splitlines()], "mermaid")] if text else []
    return Section(
        f"Topology, as it will be{_reached(report)}", 5, items, "diagram", folded=True, whole=True, share=0.3
    )


def _pools(report: Report) -> Section:
    head = (
        "| pool | type | capacity | min-max | GPUs of one | GPUs at max | EFA | USD/h each | USD/GPU-h |\n"
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- |"
    )
    known = (*report.cost.before.pools, *report.cost.after.pools) if report.cost else ()  # the last one wins
    prices = {one.name: one for one in known}
    items = [_pool(row, prices.get(row.pool.name)) for row in report.pools]
    return Section(f"Node pools{_reached(report)}", 3, items, "node pools", head if items else "", share=0.3)


def _pool(row: PoolRow, price: PricedPool | None) -> str:
    cells = [
        _both(
            row, lambda pool: ", ".join(pool.types[:4]) + (f" +{len(pool.types) - 4}" if len(pool.types) > 4 else "")
        ),
        _both(row, lambda pool: pool.capacity),
        _both(row, lambda pool: f"{_number(pool.minimum)}-{_number(pool.maximum)}"),
        _both(row, _gpus, code_span=False),
        _both(row, lambda pool: _number(pool.gpus_at_max)),
        _both(row, lambda pool: _number(pool.efa)),
        _usd(price.each, price.mark) if price else "unknown",
        (_usd(price.per_gpu_hour, price.mark) if price else "unknown") if row.pool.gpus != 0 else "",
    ]
    name = code(row.pool.name)
    if row.before is None:
        name = f"**new** {name}"
    elif row.after is None:
        name = f"**removed** {name}"
    return f"| {name} | {' | '.join(cells)} |"


def _gpus(pool: Pool) -> str:
    if pool.machine is None:
        return "unknown"
    return f"{pool.machine.gpus} {pool.machine.gpu}" if pool.machine.gpus else "0"


def _both(row: PoolRow, what: Callable[[Pool], str], *, code_span: bool = True) -> str:
    """A cell; in bold with both values where they differ."""
    cell = _cell if code_span else prose
    old = what(row.before) if row.before else None
    new = what(row.after) if row.after else None
    if old is None or new is None or old == new:
        return cell(new if new is not None else old or "")
    return f"**{cell(old)} → {cell(new)}**"


def _cell(text: str) -> str:
    """Digits and our own words need no code span; what users choose does."""
    return text if text.replace("-", "").replace("?", "").isdigit() or text in _OWN_WORDS else code(text)


_OWN_WORDS = {"unknown", "on-demand", "spot", "capacity-block", ""}


def _number(value: int | None) -> str:
    return "unknown" if value is None else str(value)


def _usd(amount: Usd | None, mark: str) -> str:
    if amount is None:
        return "unknown"
    return ("< 0.01" if amount.high > 0 and amount.shown() == "0.00" else amount.shown()) + mark


def _cost(report: Report) -> list[Section]:
    """The sums before and after, and folded what they are made of."""
    money = report.cost
    if money is None:
        return []
    before, after, preview = money.before, money.after, report.preview
    share = f"{after.utilisation * 100:f}".rstrip("0").rstrip(".") if after.utilisation else "0"
    rows = [
        ("per hour, with the fewest machines", before.at_min, after.at_min, money.at_min),
        ("per hour, with the most machines", before.at_max, after.at_max, money.at_max),
        (f"per month, {share} % of the time with the most", before.month, after.month, money.month),
        ("per GPU and hour, everything included", before.per_gpu_hour, after.per_gpu_hour, None),
    ]
    items = [
        f"| {what} | {_total(old)} | **{_total(new)}** | {_difference(more) if preview.complete else 'unknown'} |"
        for what, old, new, more in rows
        if old is not None or new is not None
    ]
    head = "| USD | before | after | difference |\n| --- | ---: | ---: | ---: |"
    told = []
    if after.unknown:
        told.append(f"**Unknown prices, not in the sums:** {', '.join(map(code, after.unknown[:20]))}.")
    spot = [pool for pool in after.pools if pool.spot and pool.capacity == "spot"]
    if spot:
        ranges = ", ".join(f"{code(pool.name)} {_usd(pool.spot, pool.mark)}" for pool in spot[:10])
        told.append(f"Spot prices move: USD for an hour of one machine, over zones and types: {ranges}.")
    if after.dates:
        first, last = after.dates[0], after.dates[-1]
        told.append(f"Prices of {first}{f' to {last}' if last != first else ''}.")
    if any(part.unconfirmed for part in (*before.parts, *after.parts)):
        told.append(f"`{UNCONFIRMED}` behind a figure: no price list of AWS was seen for it.")
    if report.old_prices:
        told.append(f"⚠️ {prose(report.old_prices)}")
    sums = Section(f"Cost{_reached(report)}", 3, items, "sums", head, "\n" + " ".join(told) if told else "", share=0.2)
    parts = [_part(one) for one in after.parts]
    made_of = Section(
        f"What the cost is made of, and what is not counted ({len(after.not_counted)})",
        7,
        parts + [f"| *not counted:* {code(one.what)} | {prose(one.reason, 200)} | | | |" for one in after.not_counted],
        "parts",
        "| part | reckoned | USD/h at min | USD/h at max | USD/month |\n| --- | --- | ---: | ---: | ---: |",
        folded=True,
        share=0.15,
    )
    return [sums, *([made_of] if made_of.items else [])]


def _part(part: Part) -> str:
    note = f" ({prose(part.note, 200)})" if part.note else ""
    cells = " | ".join(_usd(amount, part.mark) for amount in (part.at_min, part.at_max, part.month))
    return f"| {code(part.name)} | {prose(part.reckoned, 200)}{note} | {cells} |"


def _total(total: Total | None) -> str:
    return prose(total.shown(), 200) if total else "-"


def _difference(total: Total | None) -> str:
    if total is None:
        return ""
    if total.all_unknown:
        return "unknown"
    if total.without:
        return f"**{total.usd.signed()}**, without {prose(', '.join(total.without), 200)}"
    told = total.usd.signed()
    return told if told == "0.00" else f"**{told}**"


def _updates(report: Report) -> Section:
    items = [_diff(one) for one in report.changes if one.op in {"update", "replace"} and one.fields]
    return Section(f"Properties that change ({len(items)} resources)", 5, items, "resources", folded=True, share=0.4)


def _diff(change: Change) -> str:
    lines = [f"{_SIGNS[change.op]} {change.op} {plain(change.kind)} {plain(change.name)}"]
    for one in change.fields[:_FIELDS_SHOWN]:
        path = plain(one.path)
        forces = "  (forces the replacement)" if one.forces else ""
        old, new = said(one.old, _VALUE), said(one.new, _VALUE)
        if old != "(none)":
            lines.append(f"-   {path}: {plain(old, None)}")
        lines.append(f"+   {path}: {plain(new, None) if new != '(none)' else '(removed)'}{forces}")
    if len(change.fields) > _FIELDS_SHOWN:
        lines.append(f"    … and {len(change.fields) - _FIELDS_SHOWN} more properties")
    return fenced(lines, "diff")


def _creations(report: Report) -> Section:
    made: dict[str, list[Change]] = {}
    for one in report.changes:
        if one.op in {"create", "import"}:
            made.setdefault(one.type, []).append(one)
    items = []
    for kind in sorted(made):
        names = [code(one.name) for one in made[kind]]
        items += [
            f"- {code(kind)} ({len(names)}): {', '.join(names[begin : begin + _NAMES_OF_LINE])}"
            for begin in range(0, len(names), _NAMES_OF_LINE)
        ]
    number = sum(map(len, made.values()))
    return Section(f"Created ({number:,} resources)", 7, items, "lines of resources", folded=True, share=0.3)


def _said(report: Report) -> Section:
    told = [one for one in report.preview.diagnostics if one.severity != "error"]
    items = [
        fenced([plain(line, 300) for line in (f"{one.severity} at {_place(one.urn)}:", *_lines(one.message))])
        for one in told
    ]
    return Section(f"What the engine said ({len(items)})", 8, items, "messages", folded=True, share=0.1)


def _foot(report: Report) -> str:
    took = f" in {report.preview.duration_seconds:.0f} s" if report.preview.duration_seconds >= 1 else ""
    kind = "rehearsed" if report.preview.rehearsal else "previewed"
    return f"<sub>{kind}{took}; drawn from resources by <code>trainyard preview</code></sub>\n"


def _place(urn: str | None) -> str:
    """The resource that a URN names, in short."""
    if not urn:
        return "the stack"
    parts = urn.split("::", 3)
    if len(parts) < 4:
        return urn
    return f"{parts[2].rsplit(':', 1)[-1]} {parts[3]}"


def _lines(text: str) -> list[str]:
    lines = text.splitlines()
    return lines if len(lines) <= 40 else [*lines[:40], f"… ({len(lines) - 40} more lines)"]
