"""What the pages about queues and PyTorchJobs show is taken by a real API server, and does what they say."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from real_api_server import JOBS, Cluster

from training.controller.api import ElasticJob
from training.controller.pods import worker_pod
from training.controller.pytorchjob import pytorch_job

pytest_plugins = ["api_server_fixture"]

PAGES = Path(__file__).parents[2] / "docs/how-to"


def manifests(page: str, kind: str) -> list[dict[str, Any]]:
    blocks = re.findall(r"```yaml\n(.*?)```", (PAGES / page).read_text(encoding="utf-8"), re.DOTALL)
    every = [each for block in blocks for each in yaml.safe_load_all(block)]
    return [each for each in every if each.get("kind") == kind]


@pytest.mark.engines
@pytest.mark.parametrize("body", manifests("queues.md", "ElasticJob"), ids=lambda body: body["metadata"]["name"])
def test_the_jobs_are_taken(cluster: Cluster, body: dict[str, Any]) -> None:
    cluster.create(f"{JOBS}/namespaces/default/elasticjobs?dryRun=All&fieldValidation=Strict", body)


def test_a_pod_group_is_as_large_as_its_job() -> None:
    """Else Kueue would wait for pods that never come, or delete those beyond the number."""
    groups = 0
    for body in manifests("queues.md", "ElasticJob"):
        metadata = {**body["metadata"], "namespace": "training", "uid": "0123456789abcdef"}
        job = ElasticJob.model_validate({**body, "metadata": metadata})
        made = worker_pod(job, 0, 1, "1:1")["metadata"]
        total = made.get("annotations", {}).get("kueue.x-k8s.io/pod-group-total-count")
        if total is not None:
            groups += 1
            assert made["labels"]["kueue.x-k8s.io/pod-group-name"] == job.metadata.name
            assert int(total) == job.spec.worker.replicas
            assert job.spec.min_replicas is job.spec.max_replicas is None
    assert groups == 1


def test_the_pytorchjob_can_be_read() -> None:
    (body,) = manifests("pytorchjob.md", "PyTorchJob")
    metadata = {**body["metadata"], "namespace": "training", "uid": "0123456789abcdef"}
    job = pytorch_job({**body, "metadata": metadata})
    assert (job.spec.min_replicas, job.spec.max_replicas) == (1, 4)
