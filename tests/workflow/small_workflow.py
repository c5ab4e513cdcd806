"""A workflow of shell commands, whose figures a test chooses."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

JOB = {
    "apiVersion": "elastic.pytorch.org/v1alpha1",
    "kind": "ElasticJob",
    "metadata": {"name": "small"},
    "spec": {
        "replicaSpecs": {
            "Worker": {
                "template": {
                    "spec": {
                        "containers": [
                            {
                                "name": "elasticjob-worker",
                                "image": "registry.example/training:1",
                                "args": ["train.py", "--to=$(RUN_FOLDER)/checkpoints"],
                                "env": [{"name": "OMP_NUM_THREADS", "value": "1"}, {"name": "RUN", "value": "mine"}],
                            }
                        ]
                    }
                }
            }
        }
    },
}


def write(folder: Path, **changes: Any) -> Path:
    """Write a workflow and its job; path of the workflow's file."""
    (folder / "job.yaml").write_text(yaml.safe_dump(JOB))
    document = {
        "name": "small",
        "prepare": [["sh", "-c", "echo prepared >> $(RUN_FOLDER)/prepared"]],
        "train": "job.yaml",
        "evaluate": [["sh", "-c", 'echo weights > "$RUN_FOLDER/model/w"; echo \'{"accuracy": 0.9}\' > metrics.json']],
        "publish": {"to": "$(VOLUME)/models", "metric": "accuracy", "limit": 0.8},
    }
    path = folder / "small.yaml"
    path.write_text(yaml.safe_dump(document | changes))
    return path
