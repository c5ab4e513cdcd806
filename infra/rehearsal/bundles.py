"""Custom resources of bundles that a rehearsal records and does not install: their kinds, known to the API server.

A Helm Release brings the definitions of its kinds along; its chart cannot be fetched here. So when a Release of a known
chart is recorded, its kinds are registered, permissive ones that take any fields; when it is deleted they go again.
A program that makes a queue before the Release that brings queues therefore fails here as it would on a real cluster.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from lightkube import ApiError, Client, KubeConfig
from lightkube.resources.apiextensions_v1 import CustomResourceDefinition

from infra.errors import TrainyardError

REHEARSAL_LABEL = "trainyard.dev/rehearsal"
"""Marks what a rehearsal made by itself in its cluster."""
_ESTABLISHED_SECONDS = 120.0


@dataclass(frozen=True)
class Kind:
    """A kind of custom resource that a chart brings."""

    group: str
    plural: str
    kind: str
    versions: tuple[str, ...]
    namespaced: bool


_KUEUE, _PROMETHEUS = "kueue.x-k8s.io", "monitoring.coreos.com"
# Kueue 0.14 and newer serve v1beta1 and v1beta2 (Topology v1alpha1, v1beta1 and v1beta2): kueue's apis/kueue. The
# operator's kinds: prometheus-operator's pkg/apis/monitoring/v1.
KINDS_OF_CHARTS: dict[str, tuple[Kind, ...]] = {
    "kueue": (
        Kind(_KUEUE, "resourceflavors", "ResourceFlavor", ("v1beta2", "v1beta1"), namespaced=False),
        Kind(_KUEUE, "clusterqueues", "ClusterQueue", ("v1beta2", "v1beta1"), namespaced=False),
        Kind(_KUEUE, "localqueues", "LocalQueue", ("v1beta2", "v1beta1"), namespaced=True),
        Kind(_KUEUE, "topologies", "Topology", ("v1beta2", "v1beta1", "v1alpha1"), namespaced=False),
        Kind(_KUEUE, "cohorts", "Cohort", ("v1beta2", "v1beta1"), namespaced=False),
        Kind(_KUEUE, "admissionchecks", "AdmissionCheck", ("v1beta2", "v1beta1"), namespaced=False),
        Kind(_KUEUE, "workloadpriorityclasses", "WorkloadPriorityClass", ("v1beta2", "v1beta1"), namespaced=False),
        Kind(_KUEUE, "workloads", "Workload", ("v1beta2", "v1beta1"), namespaced=True),
    ),
    "kube-prometheus-stack": (
        Kind(_PROMETHEUS, "servicemonitors", "ServiceMonitor", ("v1",), namespaced=True),
        Kind(_PROMETHEUS, "podmonitors", "PodMonitor", ("v1",), namespaced=True),
        Kind(_PROMETHEUS, "prometheusrules", "PrometheusRule", ("v1",), namespaced=True),
    ),
}


class NotEstablishedError(TrainyardError):
    """The API server does not serve a kind that was registered."""


def definition(kind: Kind) -> dict[str, Any]:
    """The definition of a kind that takes any fields, the first version stored."""
    anything = {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}}
    return {
        "metadata": {"name": f"{kind.plural}.{kind.group}", "labels": {REHEARSAL_LABEL: "true"}},
        "spec": {
            "group": kind.group,
            "scope": "Namespaced" if kind.namespaced else "Cluster",
            "names": {"kind": kind.kind, "plural": kind.plural, "singular": kind.kind.lower()},
            "versions": [
                {"name": version, "served": True, "storage": number == 0, "schema": anything}
                for number, version in enumerate(kind.versions)
            ],
        },
    }


def register(kubeconfig: Path, chart: str) -> tuple[str, ...]:
    """Make the kinds of a chart known, and wait until the API server serves them; an unknown chart brings none.

    Returns:
        The names of the definitions.

    Raises:
        NotEstablishedError: the API server does not come to serve them.
    """
    kinds = KINDS_OF_CHARTS.get(chart, ())
    if not kinds:
        return ()
    client = _client(kubeconfig)
    names = []
    for kind in kinds:
        made = CustomResourceDefinition.from_dict(definition(kind))
        client.apply(cast(CustomResourceDefinition, made), force=True)
        names.append(f"{kind.plural}.{kind.group}")
    deadline = time.monotonic() + _ESTABLISHED_SECONDS
    for name in names:
        while not _established(client.get(CustomResourceDefinition, name).to_dict()):
            if time.monotonic() > deadline:
                raise NotEstablishedError(
                    f"the API server of the rehearsal does not serve {name} after {_ESTABLISHED_SECONDS:.0f} s."
                    " See its log in the folder of the rehearsal, then run the command again."
                )
            time.sleep(0.05)
    return tuple(names)


def unregister(kubeconfig: Path, chart: str) -> None:
    """Take the kinds of a chart away, with all objects of them, as deleting a chart's definitions does."""
    kinds = KINDS_OF_CHARTS.get(chart, ())
    client = _client(kubeconfig) if kinds else None
    for kind in kinds:
        try:
            if client:
                client.delete(CustomResourceDefinition, f"{kind.plural}.{kind.group}")
        except ApiError as error:
            if error.status.code != 404:
                raise


def _established(found: dict[str, Any]) -> bool:
    conditions = (found.get("status") or {}).get("conditions") or []
    return any(one["type"] == "Established" and one["status"] == "True" for one in conditions)


def _client(kubeconfig: Path) -> Client:
    return Client(config=KubeConfig.from_file(kubeconfig), trust_env=False, field_manager="trainyard-rehearsal")
