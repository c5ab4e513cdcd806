"""CloudWatch Logs: log groups."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from infra.rehearsal.double.aws import Aws
from infra.rehearsal.double.kind import Call, Failure, Kind, Made, only, whole_or_gone
from infra.rehearsal.double.kms import lets_service_use
from infra.rehearsal.double.tags import retag

RETENTION_DAYS = (
    1, 3, 5, 7, 14, 30, 60, 90, 120, 150, 180, 365, 400, 545, 731, 1096, 1827, 2192, 2557, 2922, 3288, 3653,
)  # fmt: skip
"""What PutRetentionPolicy takes (API reference of CloudWatch Logs); the model only says that it is a number."""
_GONE = ("ResourceNotFoundException",)
_KEYS = "log-group-key"
"""Kind in the book: moto cannot change a group's key."""


class LogGroup(Kind):
    """A log group; its id is its name."""

    token = "aws:cloudwatch/logGroup:LogGroup"  # noqa: S105 - a type token
    replace_on = frozenset({"name", "logGroupClass"})
    for_provider = frozenset({"skipDestroy"})

    def requests(self, inputs: Mapping[str, Any]) -> list[Call]:
        """CreateLogGroup and, where logs don't stay for ever, PutRetentionPolicy."""
        name = inputs.get("name")
        create = Call(
            "logs",
            "CreateLogGroup",
            only(
                logGroupName=name,
                kmsKeyId=inputs.get("kmsKeyId"),
                logGroupClass=inputs.get("logGroupClass"),
                tags=inputs.get("tags") or None,
            ),
            {"logGroupName": "name"},
        )
        days = inputs.get("retentionInDays")
        keep = Call("logs", "PutRetentionPolicy", only(logGroupName=name, retentionInDays=days))
        return [create, keep] if days else [create]

    def rules(self, inputs: Mapping[str, Any], aws: Aws) -> Iterator[Failure]:
        """The retention is one of the list; the key is given by its ARN, and CloudWatch may use it."""
        days = inputs.get("retentionInDays")
        if isinstance(days, int) and days and days not in RETENTION_DAYS:
            nearest = min(RETENTION_DAYS, key=lambda allowed: (abs(allowed - days), allowed))
            listed = ", ".join(map(str, RETENTION_DAYS))
            yield Failure("retentionInDays", f"logs are kept for {listed} days, not {days}; nearest: {nearest}")
        key = inputs.get("kmsKeyId")
        if isinstance(key, str):
            service = f"logs.{aws.region}.{aws.dns_suffix}"
            if not key.startswith("arn:"):
                yield Failure("kmsKeyId", f"the key is given by its ARN, not as {key!r}")
            elif not lets_service_use(aws, key, service):
                yield Failure("kmsKeyId", f"the policy of key {key} does not let {service} use it (kms:Encrypt*, …)")

    def known(self, inputs: Mapping[str, Any], aws: Aws) -> Mapping[str, Any]:
        """The ARN, which Pulumi gives without AWS's `:*`, and what AWS takes for granted."""
        given = {
            "logGroupClass": inputs.get("logGroupClass") or "STANDARD",
            "retentionInDays": inputs.get("retentionInDays") or 0,
        }
        name = inputs.get("name")
        return given | ({"arn": _arn(aws, name)} if isinstance(name, str) else {})

    def create(self, aws: Aws, name: str, inputs: Mapping[str, Any]) -> Made:  # noqa: ARG002, D102
        create, *others = self.requests(inputs)
        aws.run(create)
        with whole_or_gone(self, aws, inputs["name"], {}):
            for call in others:
                aws.run(call)
        return Made(inputs["name"], {})

    def read(self, aws: Aws, id: str, state: Mapping[str, Any]) -> Mapping[str, Any] | None:  # noqa: A002, ARG002, D102
        answer = aws.call("logs", "DescribeLogGroups", logGroupNamePrefix=id)
        group = next((group for group in answer["logGroups"] if group["logGroupName"] == id), None)
        if group is None:
            return None
        changed_key = aws.book.get(_KEYS, id)
        return {
            "name": id,
            "arn": _arn(aws, id),
            "retentionInDays": group.get("retentionInDays", 0),
            "kmsKeyId": changed_key["key"] if changed_key else group.get("kmsKeyId"),
            "tags": aws.call("logs", "ListTagsForResource", resourceArn=_arn(aws, id))["tags"],
        }

    def update(  # noqa: D102
        self,
        aws: Aws,
        id: str,  # noqa: A002
        old: Mapping[str, Any],
        new: Mapping[str, Any],
    ) -> Mapping[str, Any]:
        if days := new.get("retentionInDays"):
            aws.call("logs", "PutRetentionPolicy", logGroupName=id, retentionInDays=days)
        elif old.get("retentionInDays"):
            aws.call("logs", "DeleteRetentionPolicy", logGroupName=id)
        if new.get("kmsKeyId") != old.get("kmsKeyId"):
            aws.book.put(_KEYS, id, {"key": new.get("kmsKeyId")})
        arn = _arn(aws, id)
        retag(
            old, new,
            put=lambda tags: aws.call("logs", "TagResource", resourceArn=arn, tags=tags),
            remove=lambda keys: aws.call("logs", "UntagResource", resourceArn=arn, tagKeys=keys),
        )  # fmt: skip
        return {}

    def delete(self, aws: Aws, id: str, state: Mapping[str, Any]) -> None:  # noqa: A002
        """With `skipDestroy` the group and its logs stay, as the program asks."""
        if not state.get("skipDestroy"):
            aws.call("logs", "DeleteLogGroup", absent=_GONE, logGroupName=id)
            aws.book.drop(_KEYS, id)


def _arn(aws: Aws, name: str) -> str:
    return aws.arn("logs", f"log-group:{name}")


KINDS = (LogGroup(),)
