"""A job and its workers as the planner sees them, for tests of the planner."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from training.controller.api import ElasticJob
from training.controller.planner import CreatePod, Plan, ReleasePod
from training.controller.records import PodRecord

NOW = datetime(2026, 11, 30, 12, 0, tzinfo=UTC)
UID = "0123456789abcdef"
GOING: dict[str, Any] = {"deletion_requested": NOW, "deletion_deadline": NOW}
"""Fields of a pod that was deleted."""


def job(replicas: int = 2, restart_policy: str = "ExitCode", status: Any = None, **spec: Any) -> ElasticJob:
    template = {"spec": {"containers": [{"name": "elasticjob-worker", "image": "i", "args": ["train.py"]}]}}
    worker = {"replicas": replicas, "restartPolicy": restart_policy, "template": template}
    made = ElasticJob.model_validate(
        {
            "metadata": {"name": "j", "namespace": "n", "uid": UID, "generation": 1},
            "spec": {"rdzvEndpoint": "etcd:2379", "replicaSpecs": {"Worker": worker}, **spec},
        }
    )
    return made if status is None else made.model_copy(update={"status": status})


def pod(index: int, **fields: Any) -> PodRecord:
    known: dict[str, Any] = {
        "name": f"j-worker-{index}",
        "uid": f"uid-{index}",
        "namespace": "n",
        "job": "j",
        "owner_uid": UID,
        "index": index,
        "generation": 1,
        "phase": "Running",
        "node": "node-a",
        "ready": True,
        "created": NOW - timedelta(hours=1),
    }
    return PodRecord(**(known | fields))


def releases(made: Plan) -> list[str]:
    return [action.name for action in made.actions if isinstance(action, ReleasePod)]


def creates(made: Plan) -> list[str]:
    return [action.name for action in made.actions if isinstance(action, CreatePod)]
