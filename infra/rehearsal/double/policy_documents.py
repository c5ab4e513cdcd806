"""IAM's policy language: what AWS refuses in a document, which no API model describes.

To the API models a policy is a text. AWS parses it when it arrives and answers `MalformedPolicyDocument`, mostly with
no word about where; here every mistake is named with its place. Rules: IAM User Guide, "Grammar of the IAM JSON policy
language" and "IAM and AWS STS quotas"; for buckets and keys the guides of S3 and KMS.
"""

from __future__ import annotations

import json
import re
from collections.abc import Generator, Iterator, Mapping
from dataclasses import dataclass

from infra.rehearsal.double.kind import Failure
from infra.rehearsal.double.values import UNKNOWN

_VERSIONS = ("2012-10-17", "2008-10-17")
_DOCUMENT_KEYS = frozenset({"Version", "Id", "Statement"})
_STATEMENT_KEYS = frozenset(
    {
        "Sid",
        "Effect",
        "Principal",
        "NotPrincipal",
        "Action",
        "NotAction",
        "Resource",
        "NotResource",
        "Condition",
    }
)
_PRINCIPAL_KEYS = frozenset({"AWS", "Service", "Federated", "CanonicalUser"})
_ACTION = re.compile(r"\*|[a-z0-9-]+:[A-Za-z0-9*?]+", re.IGNORECASE)
_RESOURCE = re.compile(r"\*|arn:[^:]+:[^:]+:[^:]*:[^:]*:.+")
_AWS_PRINCIPAL = re.compile(r"\*|\d{12}|arn:[^:]+:(iam|sts)::\d{12}:.+|A[A-Z0-9]{15,127}")
_SERVICE_PRINCIPAL = re.compile(r"[a-z0-9.-]+\.(amazonaws\.com|amazonaws\.com\.cn|amazon\.com|aws\.internal)")
_IDENTITY_SID = re.compile(r"[A-Za-z0-9]*")
_OPERATORS = frozenset(
    operator + suffix
    for suffix in ("", "IfExists")
    for operator in (
        "StringEquals",
        "StringNotEquals",
        "StringEqualsIgnoreCase",
        "StringNotEqualsIgnoreCase",
        "StringLike",
        "StringNotLike",
        "NumericEquals",
        "NumericNotEquals",
        "NumericLessThan",
        "NumericLessThanEquals",
        "NumericGreaterThan",
        "NumericGreaterThanEquals",
        "DateEquals",
        "DateNotEquals",
        "DateLessThan",
        "DateLessThanEquals",
        "DateGreaterThan",
        "DateGreaterThanEquals",
        "Bool",
        "BinaryEquals",
        "IpAddress",
        "NotIpAddress",
        "ArnEquals",
        "ArnLike",
        "ArnNotEquals",
        "ArnNotLike",
    )
) | {"Null"}


@dataclass(frozen=True)
class Use:
    """What a document is attached to, and what that asks of it."""

    what: str
    """In a sentence: "a bucket policy"."""
    principal: bool
    """Whether statements say whom they are about; policies of an identity are about that identity."""
    resource: bool
    """Whether statements say what they are about; a trust policy is about its role."""
    max_characters: int
    """Longest document; IAM does not count white space, the others do."""
    services: frozenset[str] | None = None
    """Services whose actions it may name; None: all."""


IDENTITY = Use("an inline policy of a role", principal=False, resource=True, max_characters=10_240)
# 2048 is the quota that every account has; more has to be asked for.
TRUST = Use("a trust policy", principal=True, resource=False, max_characters=2_048, services=frozenset({"sts"}))
BUCKET = Use("a bucket policy", principal=True, resource=True, max_characters=20_480, services=frozenset({"s3"}))
KEY = Use("a key policy", principal=True, resource=True, max_characters=32_768, services=frozenset({"kms"}))


def statements_of(document: object) -> list[Mapping[str, object]]:
    """The statements of a parsed document, also where there is one without a list."""
    found = document.get("Statement") if isinstance(document, Mapping) else None
    listed = found if isinstance(found, list) else [found]
    return [statement for statement in listed if isinstance(statement, Mapping)]


def words_of(value: object) -> list[str]:
    """A member that may be one text or a list of texts."""
    listed = value if isinstance(value, list) else [value]
    return [word for word in listed if isinstance(word, str)]


def document_of(text: object) -> object:
    """What a JSON text says; None where it is unknown, or no JSON."""
    try:
        return json.loads(text) if isinstance(text, str) else None
    except ValueError:
        return None


def as_written(found: str, kept: object) -> str:
    """A document that AWS shows, in the program's own writing where it says the same: AWS moves white space."""
    return kept if isinstance(kept, str) and document_of(kept) == document_of(found) else found


def document_failures(path: str, text: object, use: Use) -> Iterator[Failure]:
    """The mistakes of a document as failures of the property that holds it; a text that isn't known yet has none."""
    if isinstance(text, str):
        for mistake in mistakes_in(text, use):
            yield Failure(path, mistake)
    elif text is not None and text is not UNKNOWN:
        yield Failure(path, f"{use.what} is given as a JSON text: json.dumps(…)")


def mistakes_in(text: str, use: Use) -> list[str]:
    """What AWS would refuse in a policy document; every mistake begins with its place in the document."""
    try:
        document = json.loads(text)
    except ValueError as error:
        return [f"{use.what} is a JSON document, and this is none: {error}"]
    if not isinstance(document, dict):
        return [f"{use.what} is a JSON object with Version and Statement, not {_kind(document)}"]
    found = list(_of_document(document, use))
    length = len("".join(text.split())) if use in {IDENTITY, TRUST} else len(text)
    if length > use.max_characters:
        found.append(f"{use.what} has at most {use.max_characters} characters, this one has {length}")
    return found


def _of_document(document: Mapping[str, object], use: Use) -> Iterator[str]:
    yield from _unknown("", document, _DOCUMENT_KEYS)
    version = document.get("Version")
    if version not in _VERSIONS:
        yield f'Version: a policy needs "Version": "{_VERSIONS[0]}", not {_kind(version)}'
    statements = document.get("Statement")
    listed = statements if isinstance(statements, list) else [statements]
    if statements is None or not listed:
        yield "Statement: a policy needs at least one statement"
        return
    sids: set[str] = set()
    for index, statement in enumerate(listed):
        where = f"Statement[{index}]"
        if not isinstance(statement, dict):
            yield f"{where}: a statement is an object, not {_kind(statement)}"
            continue
        yield from _of_statement(where, statement, use)
        sid = statement.get("Sid")
        if isinstance(sid, str) and sid:
            if sid in sids:
                yield f"{where}.Sid: {sid!r} stands at another statement already"
            sids.add(sid)


def _of_statement(where: str, statement: Mapping[str, object], use: Use) -> Iterator[str]:
    yield from _unknown(f"{where}.", statement, _STATEMENT_KEYS)
    sid = statement.get("Sid")
    if sid is not None and not isinstance(sid, str):
        yield f"{where}.Sid: a text, not {_kind(sid)}"
    elif isinstance(sid, str) and use in {IDENTITY, TRUST} and not _IDENTITY_SID.fullmatch(sid):
        yield f"{where}.Sid: {sid!r} may have letters and digits only"
    effect = statement.get("Effect")
    if effect not in {"Allow", "Deny"}:
        yield f'{where}.Effect: "Allow" or "Deny", not {_kind(effect)}'
    yield from _of_actions(where, statement, use)
    yield from _of_resources(where, statement, use)
    yield from _of_principals(where, statement, use)
    yield from _of_conditions(where, statement.get("Condition"))


def _of_actions(where: str, statement: Mapping[str, object], use: Use) -> Iterator[str]:
    key = yield from _one_of(where, statement, "Action", "NotAction", needed=True, use=use)
    if key is None:
        return
    words = yield from _words(f"{where}.{key}", statement[key])
    for word in words:
        service = word.partition(":")[0].lower()
        if not _ACTION.fullmatch(word):
            yield f'{where}.{key}: {word!r} is no action; actions look like "s3:GetObject" or "s3:Get*"'
        elif use.services is not None and service not in use.services | {"*"}:
            yield f"{where}.{key}: {use.what} is about actions of {', '.join(sorted(use.services))}, not {word!r}"


def _of_resources(where: str, statement: Mapping[str, object], use: Use) -> Iterator[str]:
    key = yield from _one_of(where, statement, "Resource", "NotResource", needed=use.resource, use=use)
    if key is None:
        return
    words = yield from _words(f"{where}.{key}", statement[key])
    for word in words:
        if not _RESOURCE.fullmatch(word):
            yield f'{where}.{key}: {word!r} is no resource; it must be an ARN ("arn:aws:s3:::name/*") or "*"'


def _of_principals(where: str, statement: Mapping[str, object], use: Use) -> Iterator[str]:
    key = yield from _one_of(where, statement, "Principal", "NotPrincipal", needed=use.principal, use=use)
    if key is None:
        return
    principal = statement[key]
    if principal == "*":
        return
    if not isinstance(principal, dict) or not principal:
        yield f'{where}.{key}: "*" or an object such as {{"Service": "ec2.amazonaws.com"}}, not {_kind(principal)}'
        return
    yield from _unknown(f"{where}.{key}.", principal, _PRINCIPAL_KEYS)
    for kind, value in principal.items():
        words = yield from _words(f"{where}.{key}.{kind}", value)
        for word in words:
            if kind == "AWS" and not _AWS_PRINCIPAL.fullmatch(word):
                yield f"{where}.{key}.AWS: {word!r} is no account, role or user (ARN or 12 digits)"
            elif kind == "Service" and not _SERVICE_PRINCIPAL.fullmatch(word):
                yield f'{where}.{key}.Service: {word!r} is no service; services look like "ec2.amazonaws.com"'


def _of_conditions(where: str, condition: object) -> Iterator[str]:
    if condition is None:
        return
    if not isinstance(condition, dict):
        yield f"{where}.Condition: an object of operators, not {_kind(condition)}"
        return
    for operator, tests in condition.items():
        plain = operator.removeprefix("ForAnyValue:").removeprefix("ForAllValues:")
        if plain not in _OPERATORS:
            yield f'{where}.Condition: {operator!r} is no operator; operators look like "StringEquals"'
        elif not isinstance(tests, dict) or not tests:
            yield f"{where}.Condition.{operator}: an object of condition keys, not {_kind(tests)}"
        else:
            for key, value in tests.items():
                listed = value if isinstance(value, list) else [value]
                if not listed or not all(isinstance(one, str | bool | int | float) for one in listed):
                    yield f"{where}.Condition.{operator}.{key}: a text or a list of texts, not {_kind(value)}"


def _one_of(
    where: str, statement: Mapping[str, object], key: str, negative: str, *, needed: bool, use: Use
) -> Generator[str, None, str | None]:
    """The one of two keys that is there; yields what is wrong and returns the key, or None."""
    present = [name for name in (key, negative) if name in statement]
    if len(present) == 2:
        yield f"{where}: {key} or {negative}, not both"
    elif needed and not present:
        yield f"{where}: {use.what} needs {key} in every statement"
    elif present and not needed:
        yield f"{where}.{present[0]}: not allowed in {use.what}"
    elif present:
        return present[0]
    return None


def _words(where: str, value: object) -> Generator[str, None, list[str]]:
    listed = value if isinstance(value, list) else [value]
    words = [word for word in listed if isinstance(word, str) and word]
    if not words or len(words) < len(listed):
        yield f"{where}: a text or a list of texts, at least one, not {_kind(value)}"
        return []
    return words


def _unknown(prefix: str, members: Mapping[str, object], known: frozenset[str]) -> Iterator[str]:
    for key in members:
        if key not in known:
            yield f"{prefix}{key}: no such key; known are {', '.join(sorted(known))}"


def _kind(value: object) -> str:
    """A value as a reader of a message wants it: short."""
    if value is None:
        return "nothing"
    text = json.dumps(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
