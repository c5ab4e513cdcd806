"""The custom resource definition of PyTorchJob, for clusters on which no training operator has brought its own."""

from __future__ import annotations

from typing import Any

from training.controller.api import WORKER
from training.controller.crd import definition, structural_schema
from training.controller.pytorchjob import (
    GROUP,
    MASTER,
    PLURAL,
    PYTORCH_KIND,
    VERSION,
    PyTorchJobSpec,
    PyTorchJobStatus,
)

_MANAGER = "(has({0}.runPolicy) && has({0}.runPolicy.managedBy) ? {0}.runPolicy.managedBy : '')"

_SPEC_RULES: list[dict[str, str]] = [
    {
        "rule": f"{_MANAGER.format('self')} == {_MANAGER.format('oldSelf')}",
        "message": "runPolicy.managedBy cannot change: two controllers would take care of one job. Delete it and "
        "create it anew",
    },
    {
        "rule": "!has(self.elasticPolicy) || !has(self.elasticPolicy.minReplicas) || "
        "!has(self.elasticPolicy.maxReplicas) || self.elasticPolicy.minReplicas <= self.elasticPolicy.maxReplicas",
        "message": "elasticPolicy.minReplicas must not exceed elasticPolicy.maxReplicas",
    },
    {
        "rule": f"!has(self.elasticPolicy) || '{WORKER}' in self.pytorchReplicaSpecs",
        "message": f"elasticPolicy is about workers: pytorchReplicaSpecs needs the key {WORKER} with it",
    },
]
_REPLICA_SPECS_RULES: list[dict[str, str]] = [
    {
        "rule": f"self.all(key, key == '{MASTER}' || key == '{WORKER}')",
        "message": f"the replica types of a PyTorchJob are {MASTER} and {WORKER}",
    },
    {"rule": "self.size() > 0", "message": f"pytorchReplicaSpecs needs {MASTER}, {WORKER} or both"},
    {
        "rule": f"!('{MASTER}' in self) || self['{MASTER}'].replicas == 1",
        "message": f"pytorchReplicaSpecs.{MASTER}.replicas must be 1: there is one Master",
    },
]
_COLUMNS: list[dict[str, Any]] = [
    {"name": "State", "type": "string", "jsonPath": ".status.trainyard.phase", "description": "State in one word."},
    {
        "name": "Ready",
        "type": "integer",
        "jsonPath": ".status.trainyard.readyReplicas",
        "description": "Replicas that are ready.",
    },
    {
        "name": "Desired",
        "type": "integer",
        "jsonPath": ".status.trainyard.desiredReplicas",
        "description": "Replicas aimed at.",
    },
    {
        "name": "Restarts",
        "type": "integer",
        "jsonPath": ".status.trainyard.restarts",
        "description": "Failures charged so far.",
    },
    {"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp"},
]


def pytorchjob_definition() -> dict[str, Any]:
    """The CustomResourceDefinition `pytorchjobs.kubeflow.org` as a plain object, ready to be applied."""
    spec = structural_schema(PyTorchJobSpec)
    spec["x-kubernetes-validations"] = _SPEC_RULES
    spec["properties"]["pytorchReplicaSpecs"]["x-kubernetes-validations"] = _REPLICA_SPECS_RULES
    metrics = spec["properties"]["elasticPolicy"]["properties"]["metrics"]["items"]
    metrics["x-kubernetes-preserve-unknown-fields"] = True
    return definition(
        GROUP,
        VERSION,
        {
            "kind": PYTORCH_KIND,
            "listKind": f"{PYTORCH_KIND}List",
            "plural": PLURAL,
            "singular": PYTORCH_KIND.lower(),
            "categories": ["all"],
        },
        description="A PyTorch training job of the training operator's API, served by Trainyard's controller.",
        spec=spec,
        status=structural_schema(PyTorchJobStatus),
        scale={
            "specReplicasPath": f".spec.pytorchReplicaSpecs.{WORKER}.replicas",
            "statusReplicasPath": f".status.replicaStatuses.{WORKER}.active",
            "labelSelectorPath": f".status.replicaStatuses.{WORKER}.selector",
        },
        columns=_COLUMNS,
    )
