"""Previews that tests write by hand, in both of the engine's formats."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

UNKNOWN_TEXT = "04da6b54-80e4-46f7-96ec-b56ff0331ba9"
SIGNATURE = "4dabf18193072939515e22adb298388d"
SECRET_SIGNATURE = "1b47061264138c4ac30d75fd1eb44270"
STACK = "urn:pulumi:dev::trainyard::pulumi:pulumi:Stack::trainyard-dev"
NODE_GROUP = "aws:eks/nodeGroup:NodeGroup"
SUBNET = "aws:ec2/subnet:Subnet"


def urn(kind: str, name: str, stack: str = "dev") -> str:
    return f"urn:pulumi:{stack}::trainyard::{kind}::{name}"


def state(kind: str, name: str, inputs: Mapping[str, Any], **more: Any) -> dict[str, Any]:
    return {"type": kind, "urn": urn(kind, name), "custom": True, "parent": STACK, "inputs": dict(inputs), **more}


def step(
    op: str,
    kind: str = SUBNET,
    name: str = "one",
    old: Mapping[str, Any] | None = None,
    new: Mapping[str, Any] | None = None,
    **more: Any,
) -> dict[str, Any]:
    """One event `resourcePreEvent`; `more` are further members of its metadata, `of_old` such of the old state."""
    of_old = more.pop("of_old", {})
    metadata = {
        "op": op,
        "urn": urn(kind, name),
        "type": kind,
        "old": None if old is None else state(kind, name, old, **of_old),
        "new": None if new is None else state(kind, name, new),
        "detailedDiff": None,
        **more,
    }
    return {"sequence": 1, "timestamp": 1, "resourcePreEvent": {"metadata": metadata, "planning": True}}


def said(message: str, severity: str = "error", **more: Any) -> dict[str, Any]:
    return {"sequence": 1, "timestamp": 1, "diagnosticEvent": {"message": message, "severity": severity, **more}}


def broken_rule(
    rule: str, level: str = "mandatory", message: str = "Title.\nwhat is wrong", **more: Any
) -> dict[str, Any]:
    policy = {
        "policyName": rule,
        "policyPackName": "trainyard",
        "policyPackVersion": "0.1.0",
        "policyPackVersionTag": "0.1.0",
        "enforcementLevel": level,
        "severity": "high",
        "message": message,
        "color": "never",
        "resourceUrn": urn(SUBNET, "one"),
        **more,
    }
    return {"sequence": 1, "timestamp": 1, "policyEvent": policy}


def summary(result: str = "succeeded", **changes: int) -> dict[str, Any]:
    end = {"maybeCorrupt": False, "durationSeconds": 7, "resourceChanges": changes, "PolicyPacks": {}, "result": result}
    return {"sequence": 1, "timestamp": 1, "summaryEvent": end}


def lines(events: Iterable[Mapping[str, Any]]) -> str:
    return "".join(json.dumps(event) + "\n" for event in events)


def digest(events: Iterable[Mapping[str, Any]], **more: Any) -> str:
    """The same steps as `pulumi preview --json` writes them."""
    steps = []
    for event in events:
        if "resourcePreEvent" in event:
            one = event["resourcePreEvent"]["metadata"]
            steps.append(
                {
                    "op": one["op"],
                    "urn": one["urn"],
                    "oldState": one["old"],
                    "newState": one["new"],
                    "diffReasons": one.get("diffs"),
                    "replaceReasons": one.get("keys"),
                    "detailedDiff": {
                        path: {"kind": kind["diffKind"], "inputDiff": True}
                        for path, kind in (one.get("detailedDiff") or {}).items()
                    },
                }
            )
    return json.dumps({"config": {}, "steps": steps, "duration": 2_000_000_000, "changeSummary": {}, **more}, indent=4)
