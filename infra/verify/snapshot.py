"""What there is: nodes, workloads and add-ons of a cluster as plain data, read once and judged elsewhere."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import httpx2
from lightkube.core.exceptions import ApiError, ConfigError
from lightkube.resources.apiextensions_v1 import CustomResourceDefinition
from lightkube.resources.apps_v1 import DaemonSet, Deployment, StatefulSet
from lightkube.resources.core_v1 import Node, PersistentVolumeClaim
from lightkube.resources.scheduling_v1 import PriorityClass

from infra.errors import TrainyardError
from infra.wiring.scheduling import POOL_LABEL

if TYPE_CHECKING:
    import lightkube

    from infra.jobs import Jobs
    from infra.verify.expected import Expected

Object = Mapping[str, Any]
_TRANSIENT = ("node.kubernetes.io/", "node.cloudprovider.kubernetes.io/")
"""Taints by which Kubernetes' controllers say how a node is; the conditions say the same."""
_DRIVER_LABELS = ("nvidia.com/cuda.driver-version.full", "nvidia.com/cuda.driver-version")
"""Written by NVIDIA's GPU feature discovery, where it runs."""


class ClusterUnreadableError(TrainyardError):
    """The cluster does not answer, or refuses."""


@dataclass(frozen=True)
class Snapshot:
    """A cluster at one moment; objects are Kubernetes' JSON."""

    version: str
    """Of the API server: `v1.36.3`."""
    nodes: tuple[Object, ...]
    workloads: Mapping[str, Object] = field(default_factory=dict)
    """By `infra.verify.expected.Workload.key`."""
    definitions: Mapping[str, Object] = field(default_factory=dict)
    priorities: frozenset[str] = frozenset()
    claims: Mapping[str, Object] = field(default_factory=dict)
    addons: Mapping[str, Object] = field(default_factory=dict)
    """EKS's description of each add-on that was asked for and is there."""


def read(jobs: Jobs, wanted: Expected, aws: Any = None) -> Snapshot:
    """Look at a cluster.

    Args:
        jobs: of the stack.
        wanted: what is expected there: nothing else is asked for, so that few rights are enough.
        aws: a client of EKS (boto3), for stacks on AWS.

    Raises:
        ClusterUnreadableError: the cluster or AWS does not answer, or the rights are missing.
        JobError: the API server does not answer.
    """
    kinds: dict[str, Any] = {"Deployment": Deployment, "StatefulSet": StatefulSet, "DaemonSet": DaemonSet}
    with _client(jobs) as client:
        workloads = {
            workload.key: found
            for workload in wanted.workloads
            if (found := _get(client, kinds[workload.kind], workload.name, workload.namespace))
        }
        namespace, _, name = wanted.claim.partition("/")
        claim = _get(client, PersistentVolumeClaim, name, namespace)
        return Snapshot(
            version=jobs.server_version(),
            nodes=_nodes(client),
            workloads=workloads,
            definitions={
                each: found for each in wanted.definitions if (found := _get(client, CustomResourceDefinition, each))
            },
            priorities=frozenset(each for each in wanted.priorities if _get(client, PriorityClass, each)),
            claims={wanted.claim: claim} if claim else {},
            addons=_addons(aws, wanted) if aws is not None else {},
        )


def read_nodes(jobs: Jobs) -> Snapshot:
    """Only the nodes and the version; raises what `read` does."""
    with _client(jobs) as client:
        return Snapshot(version=jobs.server_version(), nodes=_nodes(client))


def _nodes(client: lightkube.Client) -> tuple[Object, ...]:
    found = [node.to_dict() for node in client.list(Node)]
    return tuple(sorted(found, key=lambda node: str(node["metadata"]["name"])))


def name_of(node: Object) -> str:
    """Its name."""
    return str(node["metadata"]["name"])


def pool_of(node: Object) -> str:
    """The pool that it says it belongs to; empty: to none."""
    return str((node["metadata"].get("labels") or {}).get(POOL_LABEL, ""))


def is_ready(node: Object) -> bool:
    """Whether its kubelet says so."""
    conditions = (node.get("status") or {}).get("conditions") or ()
    return any(one["type"] == "Ready" and one["status"] == "True" for one in conditions)


def lasting_taints(node: Object) -> set[tuple[str, str, str]]:
    """Its taints (key, value, effect) without those that say how it is at the moment."""
    taints = (node.get("spec") or {}).get("taints") or ()
    return {
        (taint["key"], taint.get("value") or "", taint["effect"])
        for taint in taints
        if not taint["key"].startswith(_TRANSIENT)
    }


def record_of(node: Object, driver: str | None = None) -> dict[str, Any]:
    """What a node is, as far as an engine's refresh cannot see it.

    Args:
        node: the node.
        driver: NVIDIA's driver, where a worker has seen it; else the node's labels may tell.
    """
    metadata, status = node["metadata"], node.get("status") or {}
    info, labels = status.get("nodeInfo") or {}, metadata.get("labels") or {}
    told = next((labels[each] for each in _DRIVER_LABELS if each in labels), None)
    return {
        "pool": pool_of(node),
        "kernel": info.get("kernelVersion"),
        "system": info.get("osImage"),
        "kubelet": info.get("kubeletVersion"),
        "runtime": info.get("containerRuntimeVersion"),
        "architecture": info.get("architecture"),
        "driver": driver or told,
        "labels": dict(sorted(labels.items())),
        "taints": sorted(f"{key}={value}:{effect}" for key, value, effect in lasting_taints(node)),
        "allocatable": dict(sorted((status.get("allocatable") or {}).items())),
    }


def _addons(aws: Any, wanted: Expected) -> dict[str, Object]:
    from botocore.exceptions import BotoCoreError, ClientError  # noqa: PLC0415

    found = {}
    for name in wanted.addons:
        try:
            found[name] = aws.describe_addon(clusterName=wanted.cluster, addonName=name)["addon"]
        except ClientError as error:
            if error.response["Error"]["Code"] != "ResourceNotFoundException":
                raise ClusterUnreadableError(f"AWS does not tell of add-on {name}: {error}") from None
        except BotoCoreError as error:
            raise ClusterUnreadableError(f"AWS does not tell of add-on {name}: {error}") from None
    return found


def _get(client: lightkube.Client, kind: Any, name: str, namespace: str | None = None) -> Object | None:
    try:
        found = client.get(kind, name, namespace=namespace) if namespace else client.get(kind, name)
    except ApiError as error:
        if error.status.code == 404:
            return None
        raise
    return dict(found.to_dict())


@contextlib.contextmanager
def _client(jobs: Jobs) -> Iterator[lightkube.Client]:
    try:
        with jobs.new_client() as client:
            yield client
    except ApiError as error:
        raise ClusterUnreadableError(f"the cluster does not let itself be looked at: {error.status.message}") from None
    except (httpx2.HTTPError, ConfigError, OSError, ValueError) as error:
        raise ClusterUnreadableError(f"the cluster cannot be looked at: {error or type(error).__name__}") from None


def by_pool(nodes: Iterable[Object]) -> dict[str, list[Object]]:
    """Nodes by the pool that they say they belong to."""
    found: dict[str, list[Object]] = {}
    for node in nodes:
        found.setdefault(pool_of(node), []).append(node)
    return found
