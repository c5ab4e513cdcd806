"""The custom resource definition of ElasticJob, made from the models in `api.py`."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel

from training.controller.api import GROUP, KIND, MAX_NAME_LENGTH, PLURAL, VERSION, ElasticJobSpec, ElasticJobStatus

_WORKER = "self.replicaSpecs['Worker']"
_HAS_WORKER = "'Worker' in self.replicaSpecs"

_SCHEDULER = "(has({0}.schedulingPolicy) && has({0}.schedulingPolicy.scheduler) ? {0}.schedulingPolicy.scheduler : '')"

_SPEC_RULES: list[dict[str, str]] = [
    {
        "rule": "!has(self.minReplicas) || !has(self.maxReplicas) || self.minReplicas <= self.maxReplicas",
        "message": "minReplicas must not exceed maxReplicas",
    },
    {
        "rule": f"!has(self.minReplicas) || !({_HAS_WORKER}) || self.minReplicas <= {_WORKER}.replicas",
        "message": "minReplicas must not exceed replicaSpecs.Worker.replicas: ask for more, or lower minReplicas",
    },
    {
        "rule": f"!has(self.maxReplicas) || !({_HAS_WORKER}) || {_WORKER}.replicas <= self.maxReplicas",
        "message": "replicaSpecs.Worker.replicas must not exceed maxReplicas: ask for fewer, or raise maxReplicas",
    },
    {
        "rule": "(has(self.suspend) && self.suspend) || (has(oldSelf.suspend) && oldSelf.suspend) || "
        "((has(self.minReplicas) ? self.minReplicas : 0) == (has(oldSelf.minReplicas) ? oldSelf.minReplicas : 0) && "
        "(has(self.maxReplicas) ? self.maxReplicas : 0) == (has(oldSelf.maxReplicas) ? oldSelf.maxReplicas : 0))",
        "message": "minReplicas and maxReplicas can change only while the job is suspended: running launchers were "
        "started with them. Set suspend: true, change them, then set suspend: false",
    },
    {
        "rule": "(has(self.rdzvEndpoint) && self.rdzvEndpoint != 'auto') || !has(self.rdzvBackend) || "
        "self.rdzvBackend == 'c10d'",
        "message": "rdzvBackend etcd and etcd-v2 need rdzvEndpoint, the host:port of an etcd; the store that the "
        "controller runs for a job is c10d",
    },
    {
        "rule": "!has(self.scaling) || self.scaling.mode != 'Capacity' || "
        "(has(self.minReplicas) && has(self.maxReplicas))",
        "message": "scaling.mode Capacity needs minReplicas and maxReplicas: it chooses between them",
    },
    {
        "rule": "has(self.managedBy) == has(oldSelf.managedBy) && "
        "(!has(self.managedBy) || self.managedBy == oldSelf.managedBy)",
        "message": "managedBy cannot change: two controllers would take care of one job. Delete it and create it anew",
    },
    {
        "rule": f"{_SCHEDULER.format('self')} == {_SCHEDULER.format('oldSelf')}",
        "message": "schedulingPolicy.scheduler cannot change: pods keep the scheduler that they were made for. Delete "
        "the job and create it anew",
    },
]

_REPLICA_SPECS_RULES: list[dict[str, str]] = [
    {
        "rule": "self.all(key, key == 'Worker')",
        "message": "the only replica type of an ElasticJob is Worker: all workers are equal, there is no Master",
    },
    {"rule": "'Worker' in self", "message": "replicaSpecs needs the key Worker"},
]

_NAME_RULES: list[dict[str, str]] = [
    {
        "rule": f"self.metadata.name.size() <= {MAX_NAME_LENGTH}",
        "message": f"metadata.name must have at most {MAX_NAME_LENGTH} characters: worker host names are made from it "
        "(<name>-worker-9999) and may have 63",
    },
    {
        "rule": "self.metadata.name.matches('^[a-z]([-a-z0-9]*[a-z0-9])?$')",
        "message": "metadata.name must consist of lower-case letters, digits and '-', start with a letter and end with "
        "a letter or digit: host names of workers are made from it",
    },
]

_COLUMNS: list[dict[str, Any]] = [
    {"name": "Phase", "type": "string", "jsonPath": ".status.phase", "description": "State of the job in one word."},
    {"name": "Ready", "type": "integer", "jsonPath": ".status.readyReplicas", "description": "Workers that are ready."},
    {"name": "Desired", "type": "integer", "jsonPath": ".status.desiredReplicas", "description": "Workers aimed at."},
    {"name": "Min", "type": "integer", "jsonPath": ".spec.minReplicas", "description": "Fewest workers that train."},
    {"name": "Max", "type": "integer", "jsonPath": ".spec.maxReplicas", "description": "Most workers that train."},
    {"name": "Restarts", "type": "integer", "jsonPath": ".status.restarts", "description": "Failures charged so far."},
    {
        "name": "Disruptions",
        "type": "integer",
        "jsonPath": ".status.disruptions",
        "description": "Workers lost to reclaims, drains and the like.",
    },
    {"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp"},
    {"name": "Endpoint", "type": "string", "jsonPath": ".spec.rdzvEndpoint", "priority": 1},
    {
        "name": "Waiting for",
        "type": "string",
        "jsonPath": '.status.conditions[?(@.type=="WaitingForCapacity")].message',
        "priority": 1,
    },
]


def custom_resource_definition() -> dict[str, Any]:
    """The CustomResourceDefinition `elasticjobs.elastic.pytorch.org` as a plain object, ready to be applied."""
    spec = structural_schema(ElasticJobSpec)
    spec["x-kubernetes-validations"] = _SPEC_RULES
    spec["properties"]["replicaSpecs"]["x-kubernetes-validations"] = _REPLICA_SPECS_RULES
    return definition(
        GROUP,
        VERSION,
        {
            "kind": KIND,
            "listKind": f"{KIND}List",
            "plural": PLURAL,
            "singular": KIND.lower(),
            "shortNames": ["ej"],
            "categories": ["all"],
        },
        description="An elastic PyTorch training job: its workers may come and go while it trains.",
        spec=spec,
        status=structural_schema(ElasticJobStatus),
        scale={
            "specReplicasPath": ".spec.replicaSpecs.Worker.replicas",
            "statusReplicasPath": ".status.replicas",
            "labelSelectorPath": ".status.selector",
        },
        columns=_COLUMNS,
    )


def definition(
    group: str,
    version: str,
    names: dict[str, Any],
    *,
    description: str,
    spec: dict[str, Any],
    status: dict[str, Any],
    scale: dict[str, str],
    columns: list[dict[str, Any]],
) -> dict[str, Any]:
    """The definition of a kind of job: in a namespace, of one version, with status and scale.

    Args:
        group: its API group.
        version: the version that is served and stored.
        names: as in the definition's `names`.
        description: what such a job is.
        spec: structural schema of the specification.
        status: structural schema of the status.
        scale: paths of the scale subresource.
        columns: what `kubectl get` shows.
    """
    schema = {
        "type": "object",
        "description": description,
        "required": ["spec"],
        "properties": {
            "apiVersion": {"type": "string"},
            "kind": {"type": "string"},
            "metadata": {"type": "object", "properties": {"name": {"type": "string", "maxLength": 253}}},
            "spec": spec,
            "status": status,
        },
        "x-kubernetes-validations": _NAME_RULES,
    }
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {
            "name": f"{names['plural']}.{group}",
            "labels": {"app.kubernetes.io/name": "elastic-controller", "app.kubernetes.io/managed-by": "trainyard"},
        },
        "spec": {
            "group": group,
            "scope": "Namespaced",
            "names": names,
            "versions": [
                {
                    "name": version,
                    "served": True,
                    "storage": True,
                    "schema": {"openAPIV3Schema": schema},
                    "subresources": {"status": {}, "scale": scale},
                    "additionalPrinterColumns": columns,
                }
            ],
        },
    }


def structural_schema(model: type[BaseModel]) -> dict[str, Any]:
    """The structural schema (apiextensions v1) of a model: no references, no alternatives with null, no titles."""
    schema = model.model_json_schema(by_alias=True, mode="validation")
    return _structural(schema, schema.get("$defs", {}))


_KEPT = (
    "type",
    "description",
    "format",
    "enum",
    "default",
    "required",
    "minimum",
    "maximum",
    "minLength",
    "maxLength",
    "minItems",
    "maxItems",
    "maxProperties",
)


def _structural(node: dict[str, Any], definitions: dict[str, Any]) -> dict[str, Any]:
    if "$ref" in node:
        target = definitions[node["$ref"].rsplit("/", 1)[1]]
        node = {**target, **{key: value for key, value in node.items() if key != "$ref"}}
    if "anyOf" in node:  # `X | None`: an optional field is simply absent
        (only,) = [option for option in node["anyOf"] if option.get("type") != "null"]
        target = {key: value for key, value in node.items() if key not in {"anyOf", "default"}}
        return _structural({**only, **target}, definitions)
    kept = {key: node[key] for key in _KEPT if key in node and not (key == "default" and node[key] in (None, {}, []))}
    kept |= {key: value for key, value in node.items() if key.startswith("x-kubernetes-")}
    if kept.get("type") == "integer":
        kept["format"] = "int32"
    if "properties" in node:
        kept["properties"] = {name: _structural(child, definitions) for name, child in node["properties"].items()}
    if "items" in node:
        kept["items"] = _structural(node["items"], definitions)
    if isinstance(node.get("additionalProperties"), dict):
        kept["additionalProperties"] = _structural(node["additionalProperties"], definitions)
    return kept
