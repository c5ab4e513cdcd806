"""What the engine says of a change, as plain data without secrets: from its events, or from `pulumi preview --json`.

Other people's files come in as well: cut in the middle, of other tools, with names that nobody would give. Whatever
whole steps there are make a preview, which then says that it is not complete.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal

from infra.errors import UsageError
from infra.report.secrets import SECRET, UNKNOWN, scrub, scrub_text

__all__ = [
    "SECRET",
    "UNKNOWN",
    "Diagnostic",
    "PolicyResult",
    "Preview",
    "ReportError",
    "Resource",
    "Step",
    "from_digest",
    "from_events",
    "from_text",
    "with_advice",
]

Op = Literal["create", "update", "replace", "delete", "same", "read", "import", "refresh"]
_PARTS_OF_REPLACE = {"create-replacement", "replace", "delete-replaced", "import-replacement", "read-replacement"}
_OPS: Mapping[str, Op] = {
    "create": "create",
    "update": "update",
    "delete": "delete",
    "same": "same",
    "read": "read",
    "import": "import",
    "refresh": "refresh",
    "discard": "delete",
    "discard-replaced": "delete",
    "remove-pending-replace": "delete",
    **dict.fromkeys(_PARTS_OF_REPLACE, "replace"),
}
_EVENTS = {
    "cancelEvent",
    "diagnosticEvent",
    "policyAnalyzeStackSummaryEvent",
    "policyAnalyzeSummaryEvent",
    "policyEvent",
    "policyLoadEvent",
    "policyRemediateSummaryEvent",
    "policyRemediationEvent",
    "preludeEvent",
    "progressEvent",
    "resOpFailedEvent",
    "resOutputsEvent",
    "resourcePreEvent",
    "startDebuggingEvent",
    "stdoutEvent",
    "summaryEvent",
}
_SECRETS = {f"kubernetes:core/v1:{name}" for name in ("Secret", "SecretPatch", "SecretList")}
_MOST = 10**18  # what is larger counts nothing
_CLOSING = {"preview failed", "update failed"}
"""The engine's last words about any failure; they name no cause."""
_CANNOT_RUN = re.compile(r"^can't run policy '[^']*' from policy pack '[^']*' during preview: ")
_UNDECIDED = re.compile(r"cannot be judged before up|run.*during preview.*unknown|is unknown", re.IGNORECASE)
_URL = re.compile(r"https?://\S+|docs/reference/\S+")


class ReportError(UsageError):
    """What should be a preview is none."""


@dataclass(frozen=True, eq=False)
class Resource:
    """One resource, as it is on record or as the program asks for it."""

    urn: str
    type: str
    """`aws:eks/nodeGroup:NodeGroup`."""
    name: str
    """Its name in the program."""
    inputs: Mapping[str, Any]
    """Without secrets; `UNKNOWN` stands for what is known only after `up`."""
    outputs: Mapping[str, Any] = field(default_factory=dict)
    """What the provider says of it; nothing of what does not exist yet."""
    id: str = ""
    parent: str | None = None
    """URN of the component that it belongs to."""
    provider: str = ""
    """URN and id of its provider."""
    protect: bool = False
    custom: bool = True
    """Components are not."""

    @property
    def kind(self) -> str:
        """The last part of the type: `NodeGroup`."""
        return self.type.rsplit(":", 1)[-1]

    @property
    def is_provider(self) -> bool:
        """Whether it is a provider: configuration, nothing that exists anywhere."""
        return self.type.startswith("pulumi:providers:")


@dataclass(frozen=True, eq=False)
class Step:
    """What happens to one resource; the parts of a replacement are one step."""

    op: Op
    urn: str
    old: Resource | None = None
    new: Resource | None = None
    diffs: tuple[str, ...] = ()
    """Properties that differ."""
    replace_reasons: tuple[str, ...] = ()
    """Properties because of which it is replaced."""
    detailed: Mapping[str, str] = field(default_factory=dict)
    """By path of a property: add, add-replace, delete, delete-replace, update, update-replace."""
    after_delete: bool = False
    """Of a replacement: the old one is deleted first."""

    @property
    def resource(self) -> Resource:
        """The resource as it will be; of a deletion, as it was."""
        found = self.new or self.old
        return found or Resource(urn=self.urn, type=type_of(self.urn), name=name_of(self.urn), inputs={})

    @property
    def changes(self) -> bool:
        """Whether anything is touched."""
        return self.op not in {"same", "read", "refresh"}


@dataclass(frozen=True)
class PolicyResult:
    """What a rule of a policy pack said of a resource, or of the stack."""

    pack: str
    version: str
    rule: str
    level: str
    """`mandatory`, `advisory`, `remediate`, `disabled`, as the engine says it."""
    severity: str
    message: str
    urn: str | None = None
    remediation: str = ""
    """What to do about it; events do not tell, whoever knows the pack does (`with_advice`)."""
    url: str = ""
    kind: Literal["violation", "unknown", "remediated"] = "violation"

    @property
    def finding(self) -> str:
        """What is wrong with the resource: the message without the rule's own title before it."""
        title, _, rest = self.message.partition("\n")
        return rest.strip() or title

    @property
    def blocks(self) -> bool:
        """Whether the engine would refuse `up` because of it."""
        return self.kind == "violation" and self.level == "mandatory"


@dataclass(frozen=True)
class Diagnostic:
    """What the engine, a provider or the program said."""

    severity: str
    message: str
    urn: str | None = None


@dataclass(frozen=True, eq=False)
class Preview:
    """What `up` would do to one stack."""

    stack: str
    project: str
    steps: tuple[Step, ...]
    policies: tuple[PolicyResult, ...] = ()
    diagnostics: tuple[Diagnostic, ...] = ()
    complete: bool = True
    """False: the engine failed half way, or what it said is cut. There may be more changes than these."""
    why_incomplete: str = ""
    rehearsal: bool = False
    duration_seconds: float = 0.0
    counted: Mapping[str, int] = field(default_factory=dict)
    """The engine's own numbers by operation."""
    hidden_sames: int = 0
    """Resources that stay as they are and are not among the steps: `pulumi preview --json` leaves them out."""
    policies_known: bool = True
    """False where the format has no place for policy results: `pulumi preview --json` drops them."""
    policy_packs: tuple[str, ...] = ()
    """The packs that judged: `trainyard 0.1.0`."""
    rules_run: int = 0
    """How many of their rules applied to anything."""

    @cached_property
    def before(self) -> tuple[Resource, ...]:
        """Every resource on record; without `hidden_sames`."""
        return tuple(step.old for step in self.steps if step.old and step.op not in {"read", "import"})

    @cached_property
    def after(self) -> tuple[Resource, ...]:
        """Every resource that there would be; without `hidden_sames`. Nothing is left of what is deleted."""
        return tuple(
            found for step in self.steps if step.op not in {"delete", "read"} and (found := step.new or step.old)
        )

    def counts(self) -> dict[str, int]:
        """Number of resources by operation, those in the program that change and those that stay."""
        if not self.steps:
            return dict(self.counted)
        found: dict[str, int] = {}
        for step in self.steps:
            found[step.op] = found.get(step.op, 0) + 1
        if self.hidden_sames:
            found["same"] = found.get("same", 0) + self.hidden_sames
        return found


def name_of(urn: str) -> str:
    """The name in a URN; anything may be in it, colons too."""
    return urn.split("::", 3)[-1]


def type_of(urn: str) -> str:
    """The type in a URN, without those of its parents."""
    parts = urn.split("::", 3)
    return parts[2].rsplit("$", 1)[-1] if len(parts) == 4 else ""


def with_advice(preview: Preview, pack: str, advice: Mapping[str, str]) -> Preview:
    """The preview with what to do about broken rules.

    Args:
        preview: it.
        pack: the pack that is known.
        advice: by rule.
    """
    policies = tuple(
        replace(one, remediation=advice.get(one.rule, "")) if one.pack == pack else one for one in preview.policies
    )
    return replace(preview, policies=policies)


def from_text(text: str, *, rehearsal: bool = False, stack: str = "") -> Preview:
    """A preview from a file: `pulumi preview --json`, or the engine's events, one a line.

    Args:
        text: what is in it.
        rehearsal: whether it was a rehearsal.
        stack: the stack's name, where the file has no resource that tells it.

    Raises:
        ReportError: it is something else.
    """
    text = text.lstrip("\ufeff \t\r\n")
    if not text:
        raise ReportError(f"the preview is empty: the command that should write it has failed. {_HOW}")
    first = text.splitlines()[0]
    if _is_event(_loaded(first)) or re.match(r'\{"(?:sequence|timestamp)":', first):
        return from_events(text.splitlines(), rehearsal=rehearsal, stack=stack)
    return from_digest(text, rehearsal=rehearsal, stack=stack)


def from_events(
    events: Iterable[str | Mapping[str, Any]], *, rehearsal: bool = False, stack: str = "", project: str = ""
) -> Preview:
    """A preview from the engine's events: `PULUMI_ENABLE_STREAMING_JSON_PREVIEW=true pulumi preview --json`.

    Args:
        events: lines of JSON, or events that are read already.
        rehearsal: whether it was a rehearsal.
        stack: the stack's name, where no resource tells it.
        project: likewise.

    Raises:
        ReportError: there is no event among them.
    """
    steps, policies, diagnostics = _Steps(), list[PolicyResult](), list[Diagnostic]()
    rules = set[str]()
    seen, broken, summary = 0, 0, None
    for one in events:
        event = _loaded(one) if isinstance(one, str) else one
        if not _is_event(event):
            broken += isinstance(one, str) and bool(one.strip())
            continue
        seen += 1
        if started := event.get("resourcePreEvent"):
            steps.add(_mapping(started).get("metadata"), reasons="keys")
        elif ended := event.get("resOutputsEvent"):
            steps.refreshed(_mapping(ended).get("metadata"))
        elif failed := event.get("resOpFailedEvent"):
            urn = _text(_mapping(_mapping(failed).get("metadata")).get("urn"))
            diagnostics.append(Diagnostic("error", "the engine failed at this resource", urn or None))
        elif told := event.get("diagnosticEvent"):
            _diagnostic(told, diagnostics)
        elif said := event.get("policyEvent"):
            policies.append(_policy(said))
        elif mended := event.get("policyRemediationEvent"):
            policies.append(
                _policy({**_mapping(mended), "message": "", "enforcementLevel": "remediate"}, remediated=True)
            )
        elif judged := event.get("policyAnalyzeSummaryEvent") or event.get("policyAnalyzeStackSummaryEvent"):
            rules.update(name for key in ("passed", "failed") for name in _texts(_mapping(judged).get(key)))
        elif end := event.get("summaryEvent"):
            summary = _mapping(end)
    if not seen:
        raise ReportError(f"there are no events of the engine in it. {_HOW}")
    why = ""
    if summary is None:
        why = "the events end before the engine's summary" + (" (the last one is cut)" if broken else "")
    elif summary.get("result") == "failed" or any(one.severity == "error" for one in diagnostics):
        why = _why(diagnostics, policies)
    if not why and any(one.blocks for one in policies):
        diagnostics = [one for one in diagnostics if one.message.strip() not in _CLOSING]
    return replace(
        _preview(
            steps,
            policies=tuple(dict.fromkeys(policies)),
            diagnostics=tuple(dict.fromkeys(diagnostics)),
            why=why,
            rehearsal=rehearsal,
            seconds=_number((summary or {}).get("durationSeconds")),
            counted=_mapping((summary or {}).get("resourceChanges")),
            named=(stack, project),
        ),
        policy_packs=_packs((summary or {}).get("PolicyPacks")) or _packs_of(policies),
        rules_run=len(rules),
    )


def from_digest(text: str, *, rehearsal: bool = False, stack: str = "") -> Preview:
    """A preview from what `pulumi preview --json` writes.

    Args:
        text: the document; where it is cut, the steps before the cut are taken.
        rehearsal: whether it was a rehearsal.
        stack: the stack's name, where no resource tells it.

    Raises:
        ReportError: it is no such document.
    """
    text = text.lstrip("\ufeff \t\r\n")
    # Some tools print a line of their own before the document.
    begin = text if text.startswith("{") else text[text.find("\n{") + 1 :] if "\n{" in text else text
    document, why = _loaded(begin), ""
    if document is None:
        try:
            document, _ = json.JSONDecoder().raw_decode(begin)  # what follows it is no part of it
        except (ValueError, RecursionError):
            saved = list(_saved_steps(begin))
            if not saved:
                raise ReportError(
                    f"the preview cannot be read: it is {'cut, and' if begin.startswith('{') else 'no JSON, or'} there"
                    f" is not one whole step in it. {_HOW}"
                ) from None
            document, why = {"steps": saved}, "the file is cut: only the steps before the cut are here"
    if not isinstance(document, dict):
        raise ReportError(f"the preview is JSON, but no object. {_HOW}")
    _require_own(document)
    steps, diagnostics = _Steps(), list[Diagnostic]()
    listed = document.get("steps")
    for one in listed if isinstance(listed, list) else ():
        steps.add(_from_digest_step(one), reasons="replaceReasons")
    told = document.get("diagnostics")
    for one in told if isinstance(told, list) else ():
        _diagnostic(one, diagnostics)
    if not why and any(one.severity == "error" for one in diagnostics):
        why = _why(diagnostics, ())
    return replace(
        _preview(
            steps,
            policies=(),
            diagnostics=tuple(dict.fromkeys(diagnostics)),
            why=why,
            rehearsal=rehearsal,
            seconds=_number(document.get("duration")) / 1e9,
            counted=_mapping(document.get("changeSummary")),
            named=(stack, ""),
        ),
        policies_known=False,
    )


_HOW = (
    "Write one: `pulumi preview --json > preview.json`, or with policy results as well:"
    " `PULUMI_ENABLE_STREAMING_JSON_PREVIEW=true pulumi preview --json > preview.json`"
)
_FOREIGN: tuple[tuple[frozenset[str], str], ...] = (
    (frozenset({"resource_changes"}), "a plan of Terraform or OpenTofu"),
    (frozenset({"planned_values"}), "a plan of Terraform or OpenTofu"),
    (frozenset({"terraform_version"}), "a state of Terraform or OpenTofu"),
    (frozenset({"AWSTemplateFormatVersion"}), "a template of CloudFormation"),
    (
        frozenset({"deployment", "version"}),
        "the record of a stack (`pulumi stack export`), which says nothing of a change",
    ),
    (
        frozenset({"manifest", "resourcePlans"}),
        "a saved plan (`--save-plan`): it holds secrets, so that no report is made",
    ),
    (frozenset({"apiVersion", "kind"}), "an object of Kubernetes"),
    (frozenset({"$schema", "runs"}), "a SARIF document"),
    (frozenset({"reports", "schema"}), "a report already (`trainyard preview --json`)"),
    (frozenset({"changes", "steps", "stack"}), "a report already (`trainyard preview --json`)"),
    (frozenset({"error"}), "an error message"),
)


def _require_own(document: Mapping[str, Any]) -> None:
    for keys, what in _FOREIGN:
        if keys <= document.keys():
            raise ReportError(f"this is {what}, not a preview of Pulumi. {_HOW}")
    if not document.keys() & {"steps", "changeSummary", "diagnostics", "config"}:
        there = ", ".join(sorted(map(str, document))[:5]) or "none"
        raise ReportError(
            f"this is JSON, but not a preview of Pulumi: it has no steps (its keys: {there:.120}). {_HOW}"
        )


def _saved_steps(text: str) -> Iterator[Any]:
    """The whole steps of a document that is cut."""
    opened = re.search(r'"steps"\s*:\s*\[', text)
    decoder, at = json.JSONDecoder(), opened.end() if opened else len(text)
    while at < len(text):
        at = next((i for i in range(at, len(text)) if text[i] not in " \t\r\n,"), len(text))
        try:
            step, at = decoder.raw_decode(text, at)
        except (ValueError, RecursionError):
            return
        yield step


def _from_digest_step(step: Any) -> dict[str, Any]:
    """A step of the digest with the names that events have."""
    step = _mapping(step)
    detailed = {
        path: {"diffKind": _mapping(one).get("kind")} for path, one in _mapping(step.get("detailedDiff")).items()
    }
    return {
        **step,
        "old": step.get("oldState"),
        "new": step.get("newState"),
        "diffs": step.get("diffReasons"),
        "detailedDiff": detailed,
    }


class _Steps:
    """Collects steps by URN, in the engine's order."""

    def __init__(self) -> None:
        self.by_urn: dict[str, Step] = {}

    def add(self, raw: Any, *, reasons: str) -> None:
        raw = _mapping(raw)
        urn = _text(raw.get("urn"))
        op = _OPS.get(_text(raw.get("op")))
        if not urn or op is None:
            return
        old, new = _resource(raw.get("old"), urn, raw), _resource(raw.get("new"), urn, raw)
        if op == "delete":
            new = None
        elif op in {"same", "update", "refresh"}:
            new = new or old
        step = Step(
            op=op,
            urn=urn,
            old=old,
            new=new,
            diffs=_texts(raw.get("diffs")),
            replace_reasons=_texts(raw.get(reasons)),
            detailed={
                scrub_text(_text(path)): _text(_mapping(kind).get("diffKind")) or "update"
                for path, kind in _mapping(raw.get("detailedDiff")).items()
            },
            after_delete=raw.get("op") == "delete-replaced" and urn not in self.by_urn,
        )
        self.by_urn[urn] = _merged(self.by_urn[urn], step) if urn in self.by_urn else step

    def refreshed(self, raw: Any) -> None:
        """What a refresh found: known when it ends."""
        raw = _mapping(raw)
        known = self.by_urn.get(_text(raw.get("urn")))
        if known is None or known.op != "refresh" or raw.get("op") not in {"update", "delete"}:
            return
        del self.by_urn[known.urn]
        self.add(raw, reasons="keys")


def _merged(one: Step, other: Step) -> Step:
    """The parts of a replacement as one step; a deletion beside something else is a leftover of an earlier one."""
    op: Op = one.op if one.op == other.op else "replace" if "replace" in {one.op, other.op} else other.op
    if {one.op, other.op} == {"create", "delete"}:
        op = "replace"
    return Step(
        op=op,
        urn=one.urn,
        old=one.old or other.old,
        new=one.new or other.new,
        diffs=tuple(dict.fromkeys((*one.diffs, *other.diffs))),
        replace_reasons=tuple(dict.fromkeys((*one.replace_reasons, *other.replace_reasons))),
        detailed={**other.detailed, **one.detailed},
        after_delete=one.after_delete,
    )


def _resource(raw: Any, urn: str, step: Mapping[str, Any]) -> Resource | None:
    if not isinstance(raw, dict):
        return None
    kind = _text(raw.get("type")) or _text(step.get("type")) or type_of(urn)
    secret = kind in _SECRETS
    inputs, outputs = (_properties(raw.get(name), secret=secret) for name in ("inputs", "outputs"))
    identity = _text(raw.get("id"))
    return Resource(
        urn=urn,
        type=kind,
        name=name_of(urn),
        inputs=inputs,
        outputs=outputs,
        id="" if scrub(identity) is UNKNOWN else scrub_text(identity),
        parent=_text(raw.get("parent")) or None,
        provider=_text(raw.get("provider")),
        protect=raw.get("protect") is True,
        custom=raw.get("custom") is True,  # of components the events have no such member
    )


def _properties(raw: Any, *, secret: bool) -> dict[str, Any]:
    """Inputs or outputs; of a Kubernetes Secret its kind may be absent, which the type tells."""
    raw = _mapping(raw)
    if secret and isinstance(raw.get("items"), list):
        raw = {**raw, "items": [{**_mapping(one), "kind": "Secret"} for one in raw["items"]]}
    hide = secret and "kind" not in raw
    clean = scrub({**raw, "kind": "Secret"} if hide else raw)
    if not isinstance(clean, dict):
        return {}
    if hide:
        del clean["kind"]
    return {name: value for name, value in clean.items() if name not in {"__defaults", "__internal"}}


def _policy(raw: Any, *, remediated: bool = False) -> PolicyResult:
    raw = _mapping(raw)
    text = re.sub(r"<\{%[^%]*%\}>", "", _text(raw.get("message")))  # the engine's marks of colours
    message = scrub_text(_CANNOT_RUN.sub("", text.strip()))
    link = _URL.search(message)
    undecided = _UNDECIDED.search(message) is not None
    return PolicyResult(
        pack=_text(raw.get("policyPackName")),
        version=_text(raw.get("policyPackVersionTag")) or _text(raw.get("policyPackVersion")),
        rule=_text(raw.get("policyName")),
        level=_text(raw.get("enforcementLevel")) or "advisory",
        severity=_text(raw.get("severity")),
        message=message,
        urn=_text(raw.get("resourceUrn")) or None,
        url=link[0].rstrip(").,") if link else "",
        kind="remediated" if remediated else "unknown" if undecided else "violation",
    )


def _packs(raw: Any) -> tuple[str, ...]:
    """Names and versions; the engine adds the folder of a pack, which is nobody's business."""
    return tuple(
        sorted(f"{_text(name).split('|')[0]} {_text(version)}".strip() for name, version in _mapping(raw).items())
    )


def _packs_of(policies: Iterable[PolicyResult]) -> tuple[str, ...]:
    return tuple(sorted({f"{one.pack} {one.version}".strip() for one in policies}))


def _diagnostic(raw: Any, diagnostics: list[Diagnostic]) -> None:
    raw = _mapping(raw)
    severity = _text(raw.get("severity"))
    message = re.sub(r"<\{%[^%]*%\}>|\x1b\[[0-9;]*m", "", _text(raw.get("message"))).strip()
    if severity in {"debug", "info#err", ""} or raw.get("ephemeral") or not message:
        return
    diagnostics.append(Diagnostic(severity, scrub_text(message), _text(raw.get("urn")) or None))


def _why(diagnostics: Sequence[Diagnostic], policies: Sequence[PolicyResult]) -> str:
    """Why the preview may lack something; empty where only policies made the engine refuse it, at its end."""
    errors = [one for one in diagnostics if one.severity == "error" and one.message.strip() not in _CLOSING]
    if not errors and any(one.blocks for one in policies):
        return ""
    at = next((name_of(one.urn) for one in errors if one.urn), "")
    return "the engine failed" + (f" at {at}" if at else "") + (": what it said is below" if errors else "")


def _preview(
    steps: _Steps,
    *,
    policies: tuple[PolicyResult, ...],
    diagnostics: tuple[Diagnostic, ...],
    why: str,
    rehearsal: bool,
    seconds: float,
    counted: Mapping[str, Any],
    named: tuple[str, str],
) -> Preview:
    found = tuple(steps.by_urn.values())
    urn = next((step.urn for step in found if step.urn.count("::") >= 3), "")
    stack, project = urn.removeprefix("urn:pulumi:").split("::", 3)[:2] if urn else named
    sames = int(_number(counted.get("same"))) - sum(step.op == "same" for step in found)
    return Preview(
        stack=stack or "unknown",
        project=project,
        steps=found,
        policies=policies,
        diagnostics=diagnostics,
        complete=not why,
        why_incomplete=why,
        rehearsal=rehearsal,
        duration_seconds=seconds,
        counted={name: int(_number(number)) for name, number in counted.items()},
        hidden_sames=max(0, sames),
    )


def _loaded(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _is_event(document: Any) -> bool:
    return isinstance(document, Mapping) and bool(_EVENTS & document.keys())


def _mapping(raw: Any) -> dict[str, Any]:
    return raw if isinstance(raw, dict) else {}


def _text(raw: Any) -> str:
    return raw if isinstance(raw, str) else ""


def _texts(raw: Any) -> tuple[str, ...]:
    return tuple(scrub_text(one) for one in raw if isinstance(one, str)) if isinstance(raw, list) else ()


def _number(raw: Any) -> float:
    """A number that people count or measure time with; 0 where it is none, or infinite."""
    known = isinstance(raw, int | float) and not isinstance(raw, bool) and abs(raw) < _MOST
    return float(raw) if known else 0.0
