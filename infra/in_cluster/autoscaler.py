"""The cluster autoscaler: adds machines for pods that find no room, and takes empty ones away."""

from __future__ import annotations

from typing import Any

import pulumi
from pulumi_kubernetes.apps.v1 import Deployment, DeploymentSpecArgs
from pulumi_kubernetes.core.v1 import (
    ContainerArgs,
    ContainerPortArgs,
    EnvVarArgs,
    HTTPGetActionArgs,
    PodSpecArgs,
    PodTemplateSpecArgs,
    ProbeArgs,
    ResourceRequirementsArgs,
    ServiceAccount,
)
from pulumi_kubernetes.meta.v1 import LabelSelectorArgs, ObjectMetaArgs
from pulumi_kubernetes.policy.v1 import PodDisruptionBudget, PodDisruptionBudgetSpecArgs
from pulumi_kubernetes.rbac.v1 import ClusterRole, ClusterRoleBinding, Role, RoleBinding, RoleRefArgs, SubjectArgs

from infra.in_cluster.pods import (
    MANAGED_BY,
    OwnPods,
    apart,
    over_zones,
    pod_field,
    restricted_container,
    restricted_pod,
)
from infra.wiring.scheduling import PRIORITY_CONTROL

AUTOSCALER_ACCOUNT = "cluster-autoscaler"
"""Its ServiceAccount, in Trainyard's own namespace: what a Pod Identity association names."""
_LABELS = {"app.kubernetes.io/name": AUTOSCALER_ACCOUNT, **MANAGED_BY}
_PORT = 8085
_REPLICAS = 2  # one stands by, elected by a Lease


class ClusterAutoscaler(pulumi.ComponentResource):
    """The autoscaler with the rights of its version, on machines that it never takes from under itself."""

    def __init__(
        self,
        name: str,
        *,
        pods: OwnPods,
        image: str,
        cluster_name: pulumi.Input[str],
        region: pulumi.Input[str],
        opts: pulumi.ResourceOptions,
    ) -> None:
        """Makes it.

        Args:
            name: of the component.
            pods: where it runs: never on what it scales to zero.
            image: of the cluster's minor version: it simulates that version's scheduler.
            cluster_name: EKS's name, by whose tag it finds the groups.
            region: of the cluster.
            opts: of the component.
        """
        super().__init__("trainyard:in_cluster:ClusterAutoscaler", name, None, opts)
        child = pulumi.ResourceOptions(parent=self)
        metadata = ObjectMetaArgs(name=AUTOSCALER_ACCOUNT, namespace=pods.namespace, labels=_LABELS)
        account = ServiceAccount(AUTOSCALER_ACCOUNT, metadata=metadata, opts=child)
        bindings = _rights(account, pods.namespace, self)
        Deployment(
            AUTOSCALER_ACCOUNT,
            metadata=metadata,
            spec=DeploymentSpecArgs(
                replicas=_REPLICAS,
                selector=LabelSelectorArgs(match_labels=_LABELS),
                template=PodTemplateSpecArgs(
                    metadata=ObjectMetaArgs(labels=_LABELS),
                    spec=PodSpecArgs(
                        service_account_name=AUTOSCALER_ACCOUNT,
                        priority_class_name=PRIORITY_CONTROL,
                        enable_service_links=False,
                        dns_policy=pods.dns_policy,
                        node_selector=pods.selector,
                        affinity=apart(_LABELS, required=False),
                        topology_spread_constraints=[over_zones(_LABELS)],
                        security_context=restricted_pod(),
                        containers=[_container(image, cluster_name, region)],
                    ),
                ),
            ),
            opts=pulumi.ResourceOptions(parent=self, depends_on=bindings),
        )
        PodDisruptionBudget(
            AUTOSCALER_ACCOUNT,
            metadata=metadata,
            spec=PodDisruptionBudgetSpecArgs(max_unavailable=1, selector=LabelSelectorArgs(match_labels=_LABELS)),
            opts=child,
        )
        self.register_outputs({})


def _container(image: str, cluster_name: pulumi.Input[str], region: pulumi.Input[str]) -> ContainerArgs:
    groups = "--node-group-auto-discovery=asg:tag=k8s.io/cluster-autoscaler/enabled,k8s.io/cluster-autoscaler/{0}"
    return ContainerArgs(
        name=AUTOSCALER_ACCOUNT,
        image=image,
        command=["/cluster-autoscaler"],
        args=[
            "--cloud-provider=aws",
            pulumi.Output.format(groups, cluster_name),
            "--namespace=$(POD_NAMESPACE)",  # of its Lease and of the ConfigMap with its status
            # Of several pools that fit, the one that wastes least: a pod for one GPU starts no machine with eight.
            "--expander=least-waste",
            # Pools differ on purpose (capacity, GPUs, zone); similar ones are not to be kept equal.
            "--balance-similar-node-groups=false",
            # A machine is empty between two jobs: long enough to keep its images, short enough to be cheap.
            "--scale-down-unneeded-time=10m",
            "--scale-down-delay-after-add=10m",
            # A machine with a worker stays, however little of it is used: that a job meets anew costs more than it
            # saves. (Workers belong to ElasticJobs, which the autoscaler does not know.)
            "--skip-nodes-with-custom-controller-pods=true",
            # What else runs on machines may be moved, also add-ons and pods with an emptyDir; budgets are kept.
            "--skip-nodes-with-local-storage=false",
            "--skip-nodes-with-system-pods=false",
            # Big GPU machines take their time, and a pool that has run out of stock is left for another after that.
            "--max-node-provision-time=20m",
            # GPUs in use are what counts, not the CPUs beside them.
            "--ignore-daemonsets-utilization=true",
            f"--address=:{_PORT}",
            "--stderrthreshold=info",
            "--v=2",
        ],
        env=[
            pod_field("POD_NAMESPACE", "metadata.namespace"),
            EnvVarArgs(name="AWS_REGION", value=region),  # else it asks the metadata service of the machine
        ],
        ports=[ContainerPortArgs(name="metrics", container_port=_PORT)],
        liveness_probe=ProbeArgs(
            http_get=HTTPGetActionArgs(path="/health-check", port=_PORT), initial_delay_seconds=60, period_seconds=20
        ),
        resources=ResourceRequirementsArgs(requests={"cpu": "100m", "memory": "512Mi"}, limits={"memory": "1Gi"}),
        security_context=restricted_container(),
    )


def _rights(
    account: ServiceAccount, namespace: pulumi.Input[str], parent: pulumi.ComponentResource
) -> list[pulumi.Resource]:
    anywhere = ObjectMetaArgs(name=AUTOSCALER_ACCOUNT, labels=_LABELS)
    at_home = ObjectMetaArgs(name=AUTOSCALER_ACCOUNT, namespace=namespace, labels=_LABELS)
    subjects = [SubjectArgs(kind="ServiceAccount", name=AUTOSCALER_ACCOUNT, namespace=namespace)]
    child = pulumi.ResourceOptions(parent=parent)
    roles = [
        ClusterRole(AUTOSCALER_ACCOUNT, metadata=anywhere, rules=cluster_rules(), opts=child),
        Role(AUTOSCALER_ACCOUNT, metadata=at_home, rules=home_rules(), opts=child),
    ]
    bound = pulumi.ResourceOptions(parent=parent, depends_on=[account, *roles])
    return [
        ClusterRoleBinding(
            AUTOSCALER_ACCOUNT, metadata=anywhere, role_ref=_reference("ClusterRole"), subjects=subjects, opts=bound
        ),
        RoleBinding(AUTOSCALER_ACCOUNT, metadata=at_home, role_ref=_reference("Role"), subjects=subjects, opts=bound),
    ]


def _reference(kind: str) -> RoleRefArgs:
    return RoleRefArgs(api_group="rbac.authorization.k8s.io", kind=kind, name=AUTOSCALER_ACCOUNT)


def cluster_rules() -> list[dict[str, Any]]:
    """What the autoscaler of Kubernetes 1.34 to 1.36 reads to simulate the scheduler, and does to nodes and pods.

    Source: the example manifests of kubernetes/autoscaler and its chart, without the API groups of clouds and
    projects that are not used here.
    """
    look = ["get", "list", "watch"]
    return [
        _rule("", ["events"], ["create", "patch"]),
        # update: the taints with which it empties a node
        _rule("", ["nodes"], [*look, "update"]),
        _rule("", ["pods/eviction"], ["create"]),
        _rule("", ["pods/status"], ["update"]),
        _rule(
            "",
            [
                "namespaces",
                "pods",
                "services",
                "replicationcontrollers",
                "persistentvolumeclaims",
                "persistentvolumes",
            ],
            look,
        ),
        _rule("apps", ["daemonsets", "replicasets", "statefulsets"], look),
        _rule("batch", ["jobs"], look),
        _rule("policy", ["poddisruptionbudgets"], look),
        _rule(
            "storage.k8s.io",
            ["storageclasses", "csinodes", "csidrivers", "csistoragecapacities", "volumeattachments"],
            look,
        ),
        # dynamic resource allocation is generally available since 1.34, and its informers start in any case
        _rule("resource.k8s.io", ["deviceclasses", "resourceclaims", "resourceslices"], look),
    ]


def home_rules() -> list[dict[str, Any]]:
    """Its Lease and the ConfigMap with its status; a right to create cannot be tied to a name."""
    return [
        _rule("", ["configmaps"], ["create", "list", "watch"]),
        _rule("", ["configmaps"], ["get", "update", "delete"], names=["cluster-autoscaler-status"]),
        _rule("coordination.k8s.io", ["leases"], ["create"]),
        _rule("coordination.k8s.io", ["leases"], ["get", "update"], names=[AUTOSCALER_ACCOUNT]),
    ]


def _rule(group: str, resources: list[str], verbs: list[str], names: list[str] | None = None) -> dict[str, Any]:
    rule: dict[str, Any] = {"api_groups": [group], "resources": resources, "verbs": verbs}
    return rule | {"resource_names": names} if names else rule
