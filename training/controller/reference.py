"""Writes the reference page of the ElasticJob API from the models: `python -m training.controller.reference`."""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from training.controller.api import API_VERSION, ElasticJobSpec, ElasticJobStatus
from training.controller.crd import custom_resource_definition, structural_schema
from training.controller.pytorchjob import API_VERSION as PYTORCH_API_VERSION
from training.controller.pytorchjob import PyTorchJobSpec, PyTorchJobStatus
from training.controller.pytorchjob_crd import pytorchjob_definition

PAGE = Path(__file__).parents[2] / "docs/reference/elasticjob.md"
PYTORCH_PAGE = PAGE.with_name("pytorchjob.md")

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


_PYTORCH_HEAD = f"""\
# PyTorchJob

`{PYTORCH_API_VERSION}`, served where the setting `controller.pytorchJobs` asks for it and no training operator runs
([how](../how-to/pytorchjob.md)). Made by `python -m training.controller.reference` from
`training/controller/pytorchjob.py`. `kubectl explain pytorchjob.spec` shows the same.

## What the API server refuses
"""

_PYTORCH_DEVIATIONS = """\

## What replicas are told

Pods are named `J-master-0` and `J-worker-<i>`, and carry the labels `training.kubeflow.org/operator-name`, `job-name`,
`replica-type`, `replica-index` and, on the first one, `job-role: master`. All containers get these variables, unless
they set them themselves:

| variable | when | value |
| --- | --- | --- |
| `PYTHONUNBUFFERED` | always | `1` |
| `PET_NPROC_PER_NODE` | always | `nprocPerNode`, else `auto` |
| `PET_NNODES` | always | number of replicas; with elasticPolicy `min:max`, a Master counted |
| `PET_LOCAL_ADDR` | always | address of the pod |
| `MASTER_ADDR`, `MASTER_PORT`, `PET_MASTER_ADDR`, `PET_MASTER_PORT` | with a Master | `J-master-0` and its port |
| `WORLD_SIZE`, `RANK`, `PET_NODE_RANK` | with a Master | replicas x processes; the Master is 0, worker i is i + 1 |
| `PET_RDZV_BACKEND` | with elasticPolicy | `rdzvBackend`, else `c10d` |
| `PET_RDZV_ENDPOINT` | with elasticPolicy | `rdzvHost:rdzvPort`, else `J-worker-0:23456` (`J-master-0` with a Master) |
| `PET_RDZV_CONF` | with elasticPolicy | `is_host` where the first replica holds the store, and `rdzvConf` |
| `PET_STANDALONE` | with elasticPolicy | as it says |
| `PET_MAX_RESTARTS` | with elasticPolicy | `maxRestarts`, else 1000 |
| `PET_RDZV_ID` | with elasticPolicy | `rdzvId`, else `<name>-<uid8>-<generation>` |

## What differs from the training operator

- One headless Service for a job, that of its first replica (`J-master-0`, else `J-worker-0`); others are reached by
  their addresses. No init container waits for the Master: torch tries again until it is there.
- With elasticPolicy, c10d and no `rdzvHost` the rendezvous store is in the first replica. It prefers other nodes than
  spot and is never scaled away; when its pod is lost, all start anew together at once.
- A job has succeeded when its Master has; without one, when all workers have, or any of an elastic job: as there. What
  then still runs has 300 s to end and is stopped, whatever cleanPodPolicy says: it holds GPUs.
- Without elasticPolicy, another number of replicas starts all of them anew, for `WORLD_SIZE` changes.
- `backoffLimit`, `activeDeadlineSeconds` and `ttlSecondsAfterFinished` count what has happened, also to pods that are
  gone; disruptions (reclaim, drain, preemption) are not charged.
- `elasticPolicy.metrics` makes no HorizontalPodAutoscaler; an event says so. `kubectl autoscale` makes one.
- `runPolicy.schedulingPolicy` holds where `schedulerName` of the pod template is `volcano` or
  `scheduler-plugins-scheduler` (the training operator has an option for it); `minResources` and
  `scheduleTimeoutSeconds` are not taken, and priorities come from `priorityClassName` of the template.
- `runPolicy.managedBy` cannot change.
- `status.trainyard` is the status of an ElasticJob: phase, generation, budgets, more conditions.
"""


def page() -> str:
    """The page of ElasticJob as Markdown."""
    # of the run policy's other places: the fields that stand directly under spec
    tables = _tables(((ElasticJobSpec, "spec"), (ElasticJobStatus, "status")), folded={"runPolicy", "RunPolicy"})
    return _HEAD + "\n" + _refusals(custom_resource_definition()) + _DEVIATIONS + tables


def pytorchjob_page() -> str:
    """The page of PyTorchJob as Markdown."""
    tables = _tables(((PyTorchJobSpec, "spec"), (PyTorchJobStatus, "status")), folded={"trainyard"})
    return _PYTORCH_HEAD + "\n" + _refusals(pytorchjob_definition()) + _PYTORCH_DEVIATIONS + tables


def _refusals(definition: dict[str, Any]) -> str:
    schema = definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    return "".join(f"- {rule['message']}\n" for rule in _rules(schema))


def _tables(models: Iterable[tuple[type[BaseModel], str]], *, folded: Collection[str]) -> str:
    return "".join(
        f"\n## {title}\n\n| field | type | default | meaning |\n| --- | --- | --- | --- |\n"
        + "".join(f"| {' | '.join(row)} |\n" for row in _rows(structural_schema(model), title, folded))
        for model, title in models
    )


def _rules(node: dict[str, Any]) -> Iterator[dict[str, str]]:
    yield from node.get("x-kubernetes-validations", ())
    for child in node.get("properties", {}).values():
        yield from _rules(child)


def _rows(node: dict[str, Any], prefix: str, folded: Collection[str]) -> Iterator[tuple[str, str, str, str]]:
    for name, field in node.get("properties", {}).items():
        path = f"{prefix}.{name}"
        default = "required" if name in node.get("required", ()) else str(field.get("default", ""))
        yield f"`{path}`", _type(field), default, field.get("description", "").replace("|", "\\|")
        if name in folded:
            continue
        yield from _rows(field, path, folded)
        if "items" in field:
            yield from _rows(field["items"], f"{path}[]", folded)
        if "additionalProperties" in field:
            yield from _rows(field["additionalProperties"], f"{path}.Worker", folded)


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
    for path, text in ((PAGE, page()), (PYTORCH_PAGE, pytorchjob_page())):
        path.write_text(text, encoding="utf-8")
        sys.stdout.write(f"{path} written\n")
