"""Writes the reference page of the ElasticJob API from the models: `python -m training.controller.reference`."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from training.controller.api import API_VERSION, ElasticJobSpec, ElasticJobStatus
from training.controller.crd import custom_resource_definition, structural_schema

PAGE = Path(__file__).parents[2] / "docs/reference/elasticjob.md"

_HEAD = f"""\
# ElasticJob

`{API_VERSION}`. Made by `python -m training.controller.reference` from `training/controller/api.py`.
An example is `training/examples/digits.yaml`. `kubectl explain elasticjob.spec` shows the same.

## What the API server refuses
"""

_DEVIATIONS = """\

## What differs from the archived upstream controller

- Workers find each other as `J-worker-<i>.J-workers` (one headless Service `J-workers` for the job `J`). Upstream made
  a Service for each worker; here `J-worker-0` alone has one, and the others with `workerServices: true`. Numbers are
  not kept: what is lost is replaced under any free number.
- The launcher's arguments (`--rdzv_backend`, `--rdzv_endpoint`, `--rdzv_id`, `--nnodes`) go to the main container only,
  with the same values in torchrun's `PET_*` variables. `injectArguments: false` leaves the arguments out; arguments
  and variables of the template win in any case.
- A launcher has five seconds less to end its processes than its pod has (`TORCH_ELASTIC_SHUTDOWN_TIMEOUT`), where the
  pod has less than 35.
- `--rdzv_id` is `<name>-<uid8>-<generation>` instead of the job's name, so a new job of an old name starts afresh.
- `restartPolicy: ExitCode` does not charge disruptions; `Always` does not restart a worker that has finished.
- A failed job gets the condition Failed; `ttlSecondsAfterFinished`, `activeDeadlineSeconds` and `backoffLimit` work;
  `cleanPodPolicy: None` keeps finished pods only.

## Where workers meet

| rdzvBackend | rdzvEndpoint | the store is |
| --- | --- | --- |
| unset, `etcd`, `etcd-v2` | `host:port` | that etcd; what this project's launcher needs for its short recoveries |
| unset, `c10d` | unset, `auto` | pod `J-store` with the worker's image, kept off spot nodes by their labels |
| `c10d` | `J-worker-0:29400` | in the first worker, which prefers other nodes than spot and is never scaled away |
| `c10d` | another `host:port` | there, and the user's |

With the second and third, the store is the job's own, and when its pod is lost all workers start anew as the next
generation, at once and uncharged; workers are made when the store is ready. `join_timeout=900,last_call_timeout=5` and
`is_host` are set besides what `rdzvConf` says. What c10d lacks against etcd, the launcher says when it starts.

## Evictions

Each job has a PodDisruptionBudget `J-workers`: a drain by evictions leaves `minReplicas` workers, and where there
are no more than these takes one at a time. Workers on nodes that announce their end may go all together. It is written
as `minAvailable`, for `maxUnavailable` counts from `replicas`, which says little in mode Capacity. What the controller
itself deletes asks no budget.

## Worker pods that do not go

They carry the finalizer `elastic.pytorch.org/outcome` until their end is in the job's status. If pods stay in
Terminating, no controller runs; `docs/decisions/0004-books-of-the-controller.md` says how to let them go by hand.

## Nodes that are about to go

A worker on a node that announces its end is replaced before it goes: a taint of a termination handler (AWS, Karpenter,
the cluster autoscaler, GKE, AKS), or the annotation `trainyard.dev/reclaim-at` with the time, if it is known. The
controller's options `--notice-taint`, `--notice-condition` and `--notice-annotation` add others.

## Images

Name a worker's image by digest (`registry.example/training:1@sha256:…`). A worker that is replaced after a reclaim
pulls again, and with a tag that has moved it would run another program than the others. `trainyard template` takes the
digest from the stack's image lock; `trainyard submit` warns where there is none.
"""


def page() -> str:
    """The page as Markdown."""
    schema = custom_resource_definition()["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    rules = "".join(f"- {rule['message']}\n" for rule in _rules(schema))
    tables = "".join(
        f"\n## {title}\n\n| field | type | default | meaning |\n| --- | --- | --- | --- |\n{_table(model, title)}"
        for title, model in (("spec", ElasticJobSpec), ("status", ElasticJobStatus))
    )
    return _HEAD + "\n" + rules + _DEVIATIONS + tables


def _rules(node: dict[str, Any]) -> Iterator[dict[str, str]]:
    yield from node.get("x-kubernetes-validations", ())
    for child in node.get("properties", {}).values():
        yield from _rules(child)


def _table(model: type[ElasticJobSpec] | type[ElasticJobStatus], prefix: str) -> str:
    return "".join(f"| {' | '.join(row)} |\n" for row in _rows(structural_schema(model), prefix))


def _rows(node: dict[str, Any], prefix: str) -> Iterator[tuple[str, str, str, str]]:
    for name, field in node.get("properties", {}).items():
        path = f"{prefix}.{name}"
        default = "required" if name in node.get("required", ()) else str(field.get("default", ""))
        yield f"`{path}`", _type(field), default, field.get("description", "").replace("|", "\\|")
        if name in {"runPolicy", "RunPolicy"}:
            continue  # the fields that stand directly under spec
        yield from _rows(field, path)
        if "items" in field:
            yield from _rows(field["items"], f"{path}[]")
        if "additionalProperties" in field:
            yield from _rows(field["additionalProperties"], f"{path}.Worker")


def _type(field: dict[str, Any]) -> str:
    if "enum" in field:
        return ", ".join(f"`{value}`" for value in field["enum"])
    if field.get("format") == "date-time":
        return "time"
    limit = f" >= {field['minimum']}" if "minimum" in field else ""
    kind: str = field["type"]
    return {"array": "list", "object": "mapping"}.get(kind, kind) + limit


if __name__ == "__main__":
    PAGE.parent.mkdir(parents=True, exist_ok=True)
    PAGE.write_text(page(), encoding="utf-8")
    sys.stdout.write(f"{PAGE} written\n")
