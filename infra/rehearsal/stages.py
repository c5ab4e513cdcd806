"""How the simulated nodes and their pods live: kwok's stages, as the file that kwok reads at its start.

Only what a rehearsal needs: nodes stay ready and keep the resources that they were made with; a pod that the scheduler
has placed runs and is ready at once, that of a Job succeeds; a deleted pod is gone at once. So what is *rehearsed* is
that every pod finds a node, never that its program works.
"""

from __future__ import annotations

import yaml

SIMULATED = ("kwok.x-k8s.io/node", "fake")
"""Annotation by which kwok knows its nodes."""

# A node stays ready through its lease, which kwok renews by itself. The conditions are written once, and nothing else
# of the node: what it offers is decided by whoever made it.
_NODE_READY = """\
{{ $now := Now }}
conditions:
{{ range NodeConditions }}
- type: {{ .type | Quote }}
  status: {{ .status | Quote }}
  reason: {{ .reason | Quote }}
  message: {{ .message | Quote }}
  lastHeartbeatTime: {{ $now | Quote }}
  lastTransitionTime: {{ $now | Quote }}
{{ end }}
"""

_POD_RUNS = """\
{{ $now := Now }}
phase: Running
startTime: {{ $now | Quote }}
conditions:
{{ range $type := list "PodReadyToStartContainers" "Initialized" "ContainersReady" "Ready" }}
- type: {{ $type | Quote }}
  status: "True"
  lastTransitionTime: {{ $now | Quote }}
{{ end }}
{{ with NodeIPsWith .spec.nodeName }}
hostIP: {{ index . 0 | Quote }}
hostIPs: [{ip: {{ index . 0 | Quote }}}]
{{ end }}
{{ $uid := or .metadata.uid "" }}
{{ with PodIPsWith .spec.nodeName (or .spec.hostNetwork false) $uid .metadata.name .metadata.namespace }}
podIP: {{ index . 0 | Quote }}
podIPs: [{ip: {{ index . 0 | Quote }}}]
{{ end }}
containerStatuses:
{{ range .spec.containers }}
- name: {{ .name | Quote }}
  image: {{ .image | Quote }}
  ready: true
  started: true
  restartCount: 0
  state: {running: {startedAt: {{ $now | Quote }}}}
{{ end }}
initContainerStatuses:
{{ range .spec.initContainers }}
- name: {{ .name | Quote }}
  image: {{ .image | Quote }}
  ready: true
  restartCount: 0
  {{ if eq (or .restartPolicy "") "Always" }}
  started: true
  state: {running: {startedAt: {{ $now | Quote }}}}
  {{ else }}
  state: {terminated: {exitCode: 0, reason: Completed, startedAt: {{ $now | Quote }}, finishedAt: {{ $now | Quote }}}}
  {{ end }}
{{ end }}
"""

_POD_SUCCEEDS = """\
{{ $now := Now }}
phase: Succeeded
conditions:
- type: Ready
  status: "False"
  reason: PodCompleted
  lastTransitionTime: {{ $now | Quote }}
containerStatuses:
{{ range .spec.containers }}
- name: {{ .name | Quote }}
  image: {{ .image | Quote }}
  ready: false
  started: false
  restartCount: 0
  state: {terminated: {exitCode: 0, reason: Completed, startedAt: {{ $now | Quote }}, finishedAt: {{ $now | Quote }}}}
{{ end }}
"""

_READY = '.status.conditions.[] | select( .type == "Ready" ) | .status'
_DELETED = ".metadata.deletionTimestamp"


def stages() -> str:
    """The stages as kwok's configuration file."""
    owner = ".metadata.ownerReferences.[].kind"
    documents = [
        _stage("node-ready", "Node", [(_READY, "NotIn", "True")], {"statusTemplate": _NODE_READY}),
        _stage(
            "pod-runs",
            "Pod",
            [(_DELETED, "DoesNotExist"), (".status.phase", "In", "Pending"), (_READY, "NotIn", "True")],
            {"statusTemplate": _POD_RUNS},
        ),
        _stage(
            "pod-succeeds",
            "Pod",
            [(_DELETED, "DoesNotExist"), (".status.phase", "In", "Running"), (owner, "In", "Job")],
            {"statusTemplate": _POD_SUCCEEDS},
        ),
        _stage("pod-goes", "Pod", [(_DELETED, "Exists")], {"delete": True}),
    ]
    return yaml.safe_dump_all(documents, sort_keys=False)


def _stage(name: str, kind: str, when: list[tuple[str, ...]], then: dict[str, object]) -> dict[str, object]:
    """A Stage: on objects of a kind for which all of `when` (key, operator, values) holds, do `then`."""
    matches = [
        {"key": key, "operator": operator, **({"values": list(values)} if values else {})}
        for key, operator, *values in when
    ]
    return {
        "apiVersion": "kwok.x-k8s.io/v1alpha1",
        "kind": "Stage",
        "metadata": {"name": name},
        "spec": {
            "resourceRef": {"apiGroup": "v1", "kind": kind},
            "selector": {"matchExpressions": matches},
            "next": then,
        },
    }
