"""Kueue: jobs wait in queues until their pool has room for them, and give way to those whose pool it is."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pulumi
import yaml
from pulumi_kubernetes.apiextensions import CustomResource
from pulumi_kubernetes.helm.v3 import Release, ReleaseArgs, RepositoryOptsArgs
from pulumi_kubernetes.meta.v1 import ObjectMetaArgs

from infra.catalog.versions import Chart
from infra.in_cluster.namespaces import namespace_of_level
from infra.in_cluster.pods import MANAGED_BY, OwnPods
from infra.in_cluster.scheduling import PRIORITY_VALUES
from infra.wiring.naming import KUEUE_NAMESPACE
from infra.wiring.queue_plan import COHORT, RESOURCES, Flavor, Queue, QueuePlan
from infra.wiring.scheduling import PRIORITY_CONTROL, PRIORITY_TRAINING, PRIORITY_TRAINING_LOW

_API = "kueue.x-k8s.io/v1beta2"
_REPLICAS = 2


class Queues(pulumi.ComponentResource):
    """Kueue itself, as its chart makes it, and the queues of the stack."""

    def __init__(
        self,
        name: str,
        *,
        plan: QueuePlan,
        chart: Chart,
        pods: OwnPods,
        opts: pulumi.ResourceOptions,
    ) -> None:
        """Makes them.

        Args:
            name: of the component.
            plan: flavours and queues.
            chart: of Kueue.
            pods: where Kueue's own pods run, and the namespace of the jobs, the only one that it looks at.
            opts: of the component.
        """
        super().__init__("trainyard:in_cluster:Queues", name, None, opts)
        # Of its own: the chart's webhooks, and their certificates, are bound to where they are. Not made by Helm, which
        # would give it no level, and leave it behind.
        child = pulumi.ResourceOptions(parent=self)
        namespace = namespace_of_level(KUEUE_NAMESPACE, {"enforce": "restricted"}, child)
        kueue = Release(
            "kueue",
            ReleaseArgs(
                name="kueue",
                chart=chart.reference,
                version=chart.version,
                repository_opts=None if chart.is_oci else RepositoryOptsArgs(repo=chart.repository),
                namespace=KUEUE_NAMESPACE,
                atomic=True,
                values=_values(pods),
            ),
            opts=pulumi.ResourceOptions(parent=self, depends_on=[namespace]),
        )
        # The chart brings the definitions; an object is there before those that name it.
        before: dict[str, list[pulumi.Resource]] = {"": [kueue]}
        for manifest in manifests(plan, pods.jobs):
            kind = manifest["kind"]
            earlier = [made for other, all_made in before.items() if other != kind for made in all_made]
            after = pulumi.ResourceOptions(parent=self, depends_on=earlier)
            before.setdefault(kind, []).append(_resource(manifest, after))
        self.register_outputs({"queues": [queue.name for queue in plan.queues]})


def manifests(plan: QueuePlan, jobs: pulumi.Input[str]) -> Iterator[dict[str, Any]]:
    """The objects of Kueue, those first that others name.

    Args:
        plan: flavours and queues.
        jobs: the namespace of the jobs.
    """
    for topology in plan.topologies:
        levels = [{"nodeLabel": level} for level in topology.levels]
        yield _manifest("Topology", topology.name, spec={"levels": levels})
    for flavor in plan.flavors:
        yield _manifest("ResourceFlavor", flavor.name, spec=_flavor(flavor))
    flavors = {flavor.name: flavor for flavor in plan.flavors}
    for queue in plan.queues:
        yield _manifest("ClusterQueue", queue.name, spec=_cluster_queue(queue, flavors, jobs))
    for queue in plan.queues:
        yield _manifest("LocalQueue", queue.name, jobs, spec={"clusterQueue": queue.name})
    for priority in (PRIORITY_TRAINING, PRIORITY_TRAINING_LOW):
        description = f"As the PriorityClass {priority}."
        yield _manifest("WorkloadPriorityClass", priority, value=PRIORITY_VALUES[priority], description=description)


def _manifest(kind: str, name: str, namespace: pulumi.Input[str] | None = None, **fields: Any) -> dict[str, Any]:
    metadata: dict[str, Any] = {"name": name, "labels": MANAGED_BY}
    if namespace is not None:
        metadata["namespace"] = namespace
    return {"apiVersion": _API, "kind": kind, "metadata": metadata, **fields}


def _resource(manifest: dict[str, Any], opts: pulumi.ResourceOptions) -> pulumi.Resource:
    name, kind = manifest["metadata"]["name"], manifest["kind"]
    if kind == "WorkloadPriorityClass":
        return WorkloadPriorityClass(name, manifest, opts)
    return CustomResource(
        name,
        api_version=manifest["apiVersion"],
        kind=kind,
        metadata=ObjectMetaArgs(**manifest["metadata"]),
        spec=manifest["spec"],
        opts=opts,
    )


class WorkloadPriorityClass(pulumi.CustomResource):
    """A priority in the queues alone, for workloads whose pods have none.

    Its fields stand beside `metadata`, not in a `spec`, which the SDK's own `CustomResource` has no place for.
    """

    def __init__(self, name: str, manifest: dict[str, Any], opts: pulumi.ResourceOptions) -> None:
        super().__init__(f"kubernetes:{_API}:WorkloadPriorityClass", name, manifest, opts)


def _flavor(flavor: Flavor) -> dict[str, Any]:
    spec: dict[str, Any] = {"nodeLabels": dict(flavor.node_labels)}
    if flavor.taints:
        spec["nodeTaints"] = [taint.as_kubernetes() for taint in flavor.taints]
    if flavor.topology is not None:
        spec["topologyName"] = flavor.topology
    return spec


def _cluster_queue(queue: Queue, flavors: dict[str, Flavor], training: pulumi.Input[str]) -> dict[str, Any]:
    def quotas(name: str) -> list[dict[str, str]]:
        mine = name in queue.own
        return [
            {"name": resource, "nominalQuota": flavors[name].quota[resource] if mine else "0"} for resource in RESOURCES
        ]

    return {
        "cohortName": COHORT,
        "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": training}},
        # A big job that waits does not hold up small ones that fit.
        "queueingStrategy": "BestEffortFIFO",
        "resourceGroups": [
            {
                "coveredResources": list(RESOURCES),
                "flavors": [{"name": name, "resources": quotas(name)} for name in queue.flavors],
            }
        ],
        "preemption": {
            # What was lent is taken back from anybody; in a queue the more important job goes first.
            "reclaimWithinCohort": "Any",
            "withinClusterQueue": "LowerPriority",
        },
    }


def _values(pods: OwnPods) -> dict[str, Any]:
    return {
        "enableKueueViz": False,
        "controllerManager": {
            "replicas": _REPLICAS,
            "nodeSelector": dict(pods.node_selector),
            "podDisruptionBudget": {"enabled": True, "minAvailable": 1},
            "manager": {
                "priorityClassName": PRIORITY_CONTROL,
                "resources": {
                    "requests": {"cpu": "200m", "memory": "512Mi"},
                    "limits": {"memory": "1Gi"},
                },
            },
        },
        "managerConfig": {
            "controllerManagerConfigYaml": pulumi.Output.from_input(pods.jobs).apply(
                lambda namespace: yaml.safe_dump(configuration(namespace), sort_keys=False)
            )
        },
    }


def configuration(namespace: str) -> dict[str, Any]:
    """Kueue's own configuration; what is the chart's default is here as well, since a value replaces all of it."""
    return {
        "apiVersion": "config.kueue.x-k8s.io/v1beta2",
        "kind": "Configuration",
        "health": {"healthProbeBindAddress": ":8081"},
        "metrics": {"bindAddress": ":8443"},
        "webhook": {"port": 9443},
        "leaderElection": {"leaderElect": True, "resourceName": "c1f6bfd2.kueue.x-k8s.io"},
        "controller": {
            "groupKindConcurrency": {
                "Job.batch": 5,
                "Pod": 5,
                "Workload.kueue.x-k8s.io": 10,
                "LocalQueue.kueue.x-k8s.io": 5,
                "ClusterQueue.kueue.x-k8s.io": 5,
                "ResourceFlavor.kueue.x-k8s.io": 1,
            }
        },
        "clientConnection": {"qps": 50, "burst": 100},
        # Never a pod of Trainyard's own or of Kubernetes: a webhook that is down would keep them from starting.
        "managedJobsNamespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": namespace}},
        # Workers of ElasticJobs are plain pods to Kueue: each waits for its own quota, and `min` of them are a job.
        "integrations": {"frameworks": ["pod", "batch/job"]},
    }
