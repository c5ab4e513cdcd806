"""Definitions of the two PodGroups, with the fields that the controller writes and their types.

Written for these tests after the projects' own definitions: group, version, names, scope, types, defaults and pruning
are theirs; descriptions and the fields that only schedulers write are left out.
"""

from __future__ import annotations

from typing import Any

_QUANTITY = {
    "anyOf": [{"type": "integer"}, {"type": "string"}],
    "x-kubernetes-int-or-string": True,
}
_MEMBERS: dict[str, Any] = {
    "minMember": {"type": "integer", "format": "int32"},
    "minResources": {"type": "object", "additionalProperties": _QUANTITY},
}
_STATUS = {"type": "object", "properties": {"phase": {"type": "string"}}}


def _definition(group: str, version: str, spec: dict[str, Any], subresources: dict[str, Any]) -> dict[str, Any]:
    schema = {
        "type": "object",
        "properties": {
            "apiVersion": {"type": "string"},
            "kind": {"type": "string"},
            "metadata": {"type": "object"},
            "spec": {"type": "object", "properties": _MEMBERS | spec},
            "status": _STATUS,
        },
    }
    metadata: dict[str, Any] = {"name": f"podgroups.{group}"}
    if group.endswith(".x-k8s.io"):  # the API server asks for it where a group is Kubernetes' own
        metadata["annotations"] = {"api-approved.kubernetes.io": "unapproved, test-only"}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": metadata,
        "spec": {
            "group": group,
            "scope": "Namespaced",
            "names": {"kind": "PodGroup", "listKind": "PodGroupList", "plural": "podgroups", "singular": "podgroup"},
            "versions": [
                {
                    "name": version,
                    "served": True,
                    "storage": True,
                    "schema": {"openAPIV3Schema": schema},
                    "subresources": subresources,
                }
            ],
        },
    }


VOLCANO = _definition(
    "scheduling.volcano.sh",
    "v1beta1",
    {
        "queue": {"type": "string", "default": "default"},
        "priorityClassName": {"type": "string"},
        "minTaskMember": {"type": "object", "additionalProperties": {"type": "integer", "format": "int32"}},
    },
    {},
)
SCHEDULER_PLUGINS = _definition(
    "scheduling.x-k8s.io",
    "v1alpha1",
    {"scheduleTimeoutSeconds": {"type": "integer", "format": "int32"}},
    {"status": {}},
)
