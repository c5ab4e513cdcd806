"""How long the report about a large stack takes, and how long it is: `.venv/bin/python benchmarks/report.py`.

A stack of 2,000 resources is made up, in the engine's own events: pools with their launch templates, subnets, buckets,
objects in the cluster. A fifth of it changes, some of it breaks policies. Measured is what comes after the engine.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

from infra.report.document import document
from infra.report.markdown import markdown
from infra.report.model import build
from infra.report.preview import from_text
from infra.report.sarif import sarif

_Made = TypeVar("_Made")


def events(number: int) -> Iterator[dict[str, Any]]:
    """The engine's events of a preview of so many resources."""
    provider = _urn("pulumi:providers:aws", "aws")
    yield _step("same", "pulumi:providers:aws", "aws", {"region": "us-east-2"}, {"region": "us-east-2"})
    for index in range(number - 1):
        kind, inputs = _resource(index)
        changed = {**inputs, "tags": {"run": "2"}, "description": "x" * 200}
        if index % 20 == 0:
            op, old, new = "replace", inputs, changed
        elif index % 10 == 0:
            op, old, new = "update", inputs, changed
        elif index % 20 == 5:
            op, old, new = "create", None, inputs
        else:
            op, old, new = "same", inputs, inputs
        yield _step(op, kind, f"resource-{index}", old, new, provider)
        if index % 40 == 0:
            yield _result(kind, f"resource-{index}", index)
    yield {"summaryEvent": {"resourceChanges": {}, "result": "succeeded", "durationSeconds": 30}}


def _resource(index: int) -> tuple[str, dict[str, Any]]:
    match index % 5:
        case 0:
            scaling = {"minSize": 1, "maxSize": 4, "desiredSize": 1}
            types = ["g6.xlarge", "g5.xlarge"]
            return "aws:eks/nodeGroup:NodeGroup", {
                "nodeGroupName": f"pool-{index}",
                "instanceTypes": types,
                "capacityType": "SPOT",
                "scalingConfig": scaling,
                "labels": {"trainyard.dev/pool": f"pool-{index}"},
            }
        case 1:
            interfaces = [{"interfaceType": "efa", "networkCardIndex": card} for card in range(4)]
            return "aws:ec2/launchTemplate:LaunchTemplate", {"networkInterfaces": interfaces, "userData": "x" * 2000}
        case 2:
            return "aws:ec2/subnet:Subnet", {"cidrBlock": f"10.0.{index % 250}.0/24", "availabilityZone": "us-east-2a"}
        case 3:
            return "aws:s3/bucket:Bucket", {"bucket": f"bucket-{index}", "forceDestroy": False}
        case _:
            container = {"name": "main", "image": f"example.com/x:{index}", "env": [{"name": "A", "value": "b"}] * 20}
            template = {"spec": {"containers": [container]}}
            metadata = {"name": f"app-{index}", "namespace": "training"}
            return "kubernetes:apps/v1:Deployment", {
                "apiVersion": "apps/v1",
                "kind": "Deployment",
                "metadata": metadata,
                "spec": {"replicas": 1, "template": template},
            }


def _urn(kind: str, name: str) -> str:
    return f"urn:pulumi:large::trainyard::{kind}::{name}"


def _step(op: str, kind: str, name: str, old: Any, new: Any, provider: str = "") -> dict[str, Any]:
    def state(inputs: Any) -> dict[str, Any] | None:
        if inputs is None:
            return None
        return {"type": kind, "urn": _urn(kind, name), "custom": True, "inputs": inputs, "provider": provider}

    reasons = ["tags"] if op == "replace" else None
    metadata = {"op": op, "urn": _urn(kind, name), "type": kind, "old": state(old), "new": state(new), "keys": reasons}
    return {"resourcePreEvent": {"metadata": metadata}}


def _result(kind: str, name: str, index: int) -> dict[str, Any]:
    return {
        "policyEvent": {
            "policyName": f"rule-{index % 30}",
            "policyPackName": "trainyard",
            "policyPackVersion": "0.1.0",
            "enforcementLevel": "mandatory" if index % 80 else "advisory",
            "severity": "high",
            "message": f"What the rule asks for.\nwhat is wrong with it, number {index}",
            "resourceUrn": _urn(kind, name),
        }
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--resources", type=int, default=2000)
    parser.add_argument("--output", type=Path, help="write the figures as JSON")
    chosen = parser.parse_args()
    text = "".join(json.dumps(event) + "\n" for event in events(chosen.resources))
    taken: dict[str, dict[str, float]] = {}

    def timed(name: str, work: Callable[[], _Made]) -> _Made:
        wall, cpu = time.perf_counter(), time.process_time()
        made = work()
        taken[name] = {"seconds": time.perf_counter() - wall, "cpu_seconds": time.process_time() - cpu}
        return made

    preview = timed("read the events", lambda: from_text(text))
    report = timed("cost, versions, topology, changes", lambda: build(preview))
    written = timed("Markdown", lambda: markdown([report]))
    whole = timed("Markdown, everything", lambda: markdown([report], most=None))
    timed("JSON", lambda: json.dumps(document(report)))
    timed("SARIF", lambda: json.dumps(sarif([report])))
    total = {kind: sum(one[kind] for one in taken.values()) for kind in ("seconds", "cpu_seconds")}
    for name, one in {**taken, "total": total}.items():
        print(f"{name:36} {one['seconds']:7.2f} s {one['cpu_seconds']:7.2f} s of a core")
    print(
        f"{chosen.resources} resources, {len(text) / 1e6:.1f} MB of events:"
        f" {len(written):,} of {len(whole):,} characters"
    )
    figures = {
        "resources": chosen.resources,
        "characters": len(written),
        "characters_without_limit": len(whole),
        "parts": taken,
        **total,
        "cores": os.cpu_count(),
        "python": platform.python_version(),
    }
    if chosen.output:
        chosen.output.write_text(json.dumps(figures, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
