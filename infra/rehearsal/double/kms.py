"""KMS: keys and their names."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from fnmatch import fnmatchcase
from typing import Any

from infra.rehearsal.double.aws import Aws
from infra.rehearsal.double.kind import Call, Failure, Kind, Made, only, whole_or_gone
from infra.rehearsal.double.policy_documents import (
    KEY,
    as_written,
    document_failures,
    document_of,
    statements_of,
    words_of,
)
from infra.rehearsal.double.tags import retag, tag_list, tags_of
from infra.rehearsal.double.values import UNKNOWN, is_known

_GONE = ("NotFoundException",)
_PENDING = "KMSInvalidStateException"
_TAG = {"key": "TagKey", "value": "TagValue"}
_ROTATION = "kms-rotation"
"""Kind in the book: moto forgets the rotation's period."""


class Key(Kind):
    """A key. A deleted one is not gone but waits for its end, 7 to 30 days: to the double as to AWS that is gone."""

    token = "aws:kms/key:Key"  # noqa: S105 - a type token
    replace_on = frozenset({"keyUsage", "customerMasterKeySpec", "multiRegion"})
    computed = frozenset({"arn", "keyId"})

    def requests(self, inputs: Mapping[str, Any]) -> list[Call]:
        """CreateKey, then what can only be said of a key that exists."""
        create = Call(
            "kms",
            "CreateKey",
            only(
                Policy=inputs.get("policy"),
                Description=inputs.get("description"),
                KeyUsage=inputs.get("keyUsage"),
                KeySpec=inputs.get("customerMasterKeySpec"),
                MultiRegion=inputs.get("multiRegion"),
                BypassPolicyLockoutSafetyCheck=inputs.get("bypassPolicyLockoutSafetyCheck"),
                Tags=tag_list(inputs.get("tags"), **_TAG),
            ),
            {"KeySpec": "customerMasterKeySpec"},
        )
        calls = [create]
        if inputs.get("enableKeyRotation"):
            days = inputs.get("rotationPeriodInDays")
            rotate = only(KeyId=UNKNOWN, RotationPeriodInDays=days)
            calls.append(Call("kms", "EnableKeyRotation", rotate))
        if inputs.get("isEnabled") is False:
            calls.append(Call("kms", "DisableKey", {"KeyId": UNKNOWN}))
        return calls

    def rules(self, inputs: Mapping[str, Any], aws: Aws) -> Iterator[Failure]:
        """The policy is one of a key and leaves the account in control; waiting time and rotation fit each other."""
        policy = inputs.get("policy")
        yield from document_failures("policy", policy, KEY)
        if document_of(policy) is not None and not inputs.get("bypassPolicyLockoutSafetyCheck"):
            yield from _locked_out(policy, aws)
        window = inputs.get("deletionWindowInDays")
        if isinstance(window, int) and not 7 <= window <= 30:
            yield Failure("deletionWindowInDays", f"a deleted key waits 7 to 30 days for its end, not {window}")
        if is_known(inputs.get("rotationPeriodInDays")) and not inputs.get("enableKeyRotation"):
            yield Failure("rotationPeriodInDays", "only with enableKeyRotation: true")
        spec = inputs.get("customerMasterKeySpec")
        if inputs.get("enableKeyRotation") and spec not in {None, UNKNOWN, "SYMMETRIC_DEFAULT"}:
            yield Failure("enableKeyRotation", f"only symmetric keys rotate by themselves, not {spec}")

    def create(self, aws: Aws, name: str, inputs: Mapping[str, Any]) -> Made:  # noqa: ARG002, D102
        create, *others = self.requests(inputs)
        key = aws.run(create)["KeyMetadata"]
        with whole_or_gone(self, aws, key["KeyId"], inputs):
            for call in others:
                aws.run(call.given(KeyId=key["KeyId"]))
        _remember_rotation(aws, key["KeyId"], inputs)
        policy = inputs.get("policy") or _policy(aws, key["KeyId"])
        return Made(key["KeyId"], {"arn": key["Arn"], "keyId": key["KeyId"], "policy": policy} | _taken(inputs))

    def read(self, aws: Aws, id: str, state: Mapping[str, Any]) -> Mapping[str, Any] | None:  # noqa: A002, D102
        answer = aws.call("kms", "DescribeKey", absent=_GONE, KeyId=id)
        if answer is None or answer["KeyMetadata"]["KeyState"] == "PendingDeletion":
            return None
        key = answer["KeyMetadata"]
        rotates = aws.call("kms", "GetKeyRotationStatus", KeyId=id)["KeyRotationEnabled"]
        period = (aws.book.get(_ROTATION, id) or {}).get("days")
        return {
            "arn": key["Arn"],
            "keyId": key["KeyId"],
            "description": key.get("Description") or None,
            "keyUsage": key.get("KeyUsage", "ENCRYPT_DECRYPT"),
            "customerMasterKeySpec": key["KeySpec"],
            "isEnabled": key["Enabled"],
            "enableKeyRotation": rotates,
            "rotationPeriodInDays": period if rotates else None,
            "policy": as_written(_policy(aws, id), state.get("policy")),
            "tags": tags_of(aws.call("kms", "ListResourceTags", KeyId=id)["Tags"], **_TAG),
        }

    def update(  # noqa: D102
        self,
        aws: Aws,
        id: str,  # noqa: A002
        old: Mapping[str, Any],
        new: Mapping[str, Any],
    ) -> Mapping[str, Any]:
        # A disabled key takes no other change, so it wakes first and sleeps last.
        if new.get("isEnabled") is not False:
            aws.call("kms", "EnableKey", KeyId=id)
        aws.call("kms", "UpdateKeyDescription", KeyId=id, Description=new.get("description") or "")
        if policy := new.get("policy"):
            bypass = new.get("bypassPolicyLockoutSafetyCheck")
            aws.call("kms", "PutKeyPolicy", KeyId=id, PolicyName="default", Policy=policy,
                     BypassPolicyLockoutSafetyCheck=bypass)  # fmt: skip
        if new.get("enableKeyRotation"):
            aws.call("kms", "EnableKeyRotation", KeyId=id, RotationPeriodInDays=new.get("rotationPeriodInDays"))
        elif old.get("enableKeyRotation"):
            aws.call("kms", "DisableKeyRotation", KeyId=id)
        _remember_rotation(aws, id, new)
        retag(
            old, new,
            put=lambda tags: aws.call("kms", "TagResource", KeyId=id, Tags=tag_list(tags, **_TAG)),
            remove=lambda keys: aws.call("kms", "UntagResource", KeyId=id, TagKeys=keys),
        )  # fmt: skip
        if new.get("isEnabled") is False:
            aws.call("kms", "DisableKey", KeyId=id)
        return {"policy": new.get("policy") or old.get("policy")} | _taken(new)

    def delete(self, aws: Aws, id: str, state: Mapping[str, Any]) -> None:  # noqa: A002
        """Schedules the key's end, the only way to be rid of one; the least trace that AWS leaves as well."""
        days = state.get("deletionWindowInDays")
        aws.call("kms", "ScheduleKeyDeletion", absent=(*_GONE, _PENDING), KeyId=id, PendingWindowInDays=days)
        aws.book.drop(_ROTATION, id)


class Alias(Kind):
    """A name of a key."""

    token = "aws:kms/alias:Alias"  # noqa: S105 - a type token
    replace_on = frozenset({"name"})
    computed = recomputed = frozenset({"targetKeyArn"})
    tagged = False

    def requests(self, inputs: Mapping[str, Any]) -> list[Call]:
        """One CreateAlias."""
        given = only(AliasName=inputs.get("name"), TargetKeyId=inputs.get("targetKeyId"))
        return [Call("kms", "CreateAlias", given, {"AliasName": "name"})]

    def rules(self, inputs: Mapping[str, Any], aws: Aws) -> Iterator[Failure]:  # noqa: ARG002
        """Names of one's own are in `alias/`, AWS's in `alias/aws/`."""
        name = inputs.get("name")
        if isinstance(name, str) and not name.startswith("alias/"):
            yield Failure("name", f"the name of a key begins with alias/: alias/{name}")
        elif isinstance(name, str) and name.startswith("alias/aws/"):
            yield Failure("name", f"names that begin with alias/aws/ are AWS's own, so {name!r} cannot be taken")

    def known(self, inputs: Mapping[str, Any], aws: Aws) -> Mapping[str, Any]:
        """The ARN."""
        name = inputs.get("name")
        return {"arn": aws.arn("kms", name)} if isinstance(name, str) else {}

    def create(self, aws: Aws, name: str, inputs: Mapping[str, Any]) -> Made:  # noqa: ARG002, D102
        aws.run(self.requests(inputs)[0])
        return Made(inputs["name"], {"targetKeyArn": _arn(aws, inputs["targetKeyId"])})

    def read(self, aws: Aws, id: str, state: Mapping[str, Any]) -> Mapping[str, Any] | None:  # noqa: A002, D102
        answer = aws.call("kms", "DescribeKey", absent=_GONE, KeyId=id)
        if answer is None:
            return None
        key = answer["KeyMetadata"]
        # The program names the key by its id or by its ARN: a key that is still the same is not a change.
        same = state.get("targetKeyId") in {key["KeyId"], key["Arn"]}
        target = state["targetKeyId"] if same else key["KeyId"]
        return {"name": id, "targetKeyId": target, "targetKeyArn": key["Arn"]}

    def update(  # noqa: D102
        self,
        aws: Aws,
        id: str,  # noqa: A002
        old: Mapping[str, Any],  # noqa: ARG002
        new: Mapping[str, Any],
    ) -> Mapping[str, Any]:
        aws.call("kms", "UpdateAlias", AliasName=id, TargetKeyId=new["targetKeyId"])
        return {"targetKeyArn": _arn(aws, new["targetKeyId"])}

    def delete(self, aws: Aws, id: str, state: Mapping[str, Any]) -> None:  # noqa: A002, ARG002, D102
        aws.call("kms", "DeleteAlias", absent=_GONE, AliasName=id)


def lets_service_use(aws: Aws, key: str, service: str) -> bool:
    """Whether a key's policy lets a service encrypt with it; a key that the rehearsal doesn't have passes.

    Args:
        aws: where the key is.
        key: its id or ARN; keys that the account brought along are not in the rehearsal.
        service: the principal, e.g. `logs.us-east-2.amazonaws.com`.
    """
    answer = aws.call("kms", "GetKeyPolicy", absent=_GONE, KeyId=key, PolicyName="default")
    if answer is None:
        return True
    return any(
        _allows(statement, "kms:Encrypt") and service in _principals(statement, "Service")
        for statement in statements_of(document_of(answer["Policy"]))
    )


def _locked_out(policy: object, aws: Aws) -> Iterator[Failure]:
    """KMS refuses a policy under which nobody could change the policy any more.

    Whose credentials the program will have is not known here, so it must be the account.
    """
    root = {aws.account, f"arn:{aws.partition}:iam::{aws.account}:root"}
    if not any(
        _allows(statement, "kms:PutKeyPolicy") and root & _principals(statement, "AWS")
        for statement in statements_of(document_of(policy))
    ):
        yield Failure(
            "policy",
            "nobody could change this policy any more; let the account do it:"
            f' "Principal": {{"AWS": "arn:{aws.partition}:iam::{aws.account}:root"}}, "Action": "kms:*"',
        )


def _allows(statement: Mapping[str, object], action: str) -> bool:
    patterns = [pattern.lower() for pattern in words_of(statement.get("Action"))]  # IAM doesn't mind the case
    return statement.get("Effect") == "Allow" and any(fnmatchcase(action.lower(), pattern) for pattern in patterns)


def _principals(statement: Mapping[str, object], kind: str) -> set[str]:
    principal = statement.get("Principal")
    return set(words_of(principal.get(kind))) if isinstance(principal, Mapping) else set()


def _remember_rotation(aws: Aws, key: str, inputs: Mapping[str, Any]) -> None:
    if inputs.get("enableKeyRotation"):
        aws.book.put(_ROTATION, key, {"days": inputs.get("rotationPeriodInDays") or 365})
    else:
        aws.book.drop(_ROTATION, key)


def _taken(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """What AWS takes for granted of a key."""
    return {
        "isEnabled": inputs.get("isEnabled") is not False,
        "keyUsage": inputs.get("keyUsage") or "ENCRYPT_DECRYPT",
        "customerMasterKeySpec": inputs.get("customerMasterKeySpec") or "SYMMETRIC_DEFAULT",
        "multiRegion": bool(inputs.get("multiRegion")),
    }


def _policy(aws: Aws, key: str) -> str:
    return str(aws.call("kms", "GetKeyPolicy", KeyId=key, PolicyName="default")["Policy"])


def _arn(aws: Aws, key: str) -> str:
    return str(aws.call("kms", "DescribeKey", KeyId=key)["KeyMetadata"]["Arn"])


KINDS = (Key(), Alias())
