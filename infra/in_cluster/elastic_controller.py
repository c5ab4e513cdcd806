"""The ElasticJob API and the controller that serves it."""

from __future__ import annotations

import pulumi
from pulumi_kubernetes.apiextensions.v1 import CustomResourceDefinition
from pulumi_kubernetes.apps.v1 import Deployment, DeploymentSpecArgs
from pulumi_kubernetes.core.v1 import (
    ContainerArgs,
    ContainerPortArgs,
    HTTPGetActionArgs,
    PodSpecArgs,
    PodTemplateSpecArgs,
    ProbeArgs,
    ResourceRequirementsArgs,
    ServiceAccount,
)
from pulumi_kubernetes.meta.v1 import LabelSelectorArgs, ObjectMetaArgs
from pulumi_kubernetes.rbac.v1 import ClusterRole, ClusterRoleBinding, RoleRefArgs, SubjectArgs

from infra.in_cluster.pods import OwnPods, pod_field, restricted_container, restricted_pod
from infra.wiring.scheduling import PRIORITY_CONTROL
from training.controller.crd import custom_resource_definition
from training.controller.rbac import rules

_NAME = "elastic-controller"
_LABELS = {"app.kubernetes.io/name": _NAME, "app.kubernetes.io/managed-by": "trainyard"}
_PORT = 8080


class ElasticController(pulumi.ComponentResource):
    """Custom resource definition, account with the least rights, and the controller as a Deployment."""

    def __init__(self, name: str, *, pods: OwnPods, image: str, replicas: int, opts: pulumi.ResourceOptions) -> None:
        super().__init__("trainyard:in_cluster:ElasticController", name, None, opts)
        child = pulumi.ResourceOptions(parent=self)
        metadata = ObjectMetaArgs(name=_NAME, namespace=pods.namespace, labels=_LABELS)
        definition = custom_resource_definition()
        crd = CustomResourceDefinition(
            definition["metadata"]["name"], metadata=definition["metadata"], spec=definition["spec"], opts=child
        )
        account = ServiceAccount(_NAME, metadata=metadata, opts=child)
        role = ClusterRole(_NAME, metadata=ObjectMetaArgs(name=_NAME, labels=_LABELS), rules=rules(), opts=child)
        binding = ClusterRoleBinding(
            _NAME,
            metadata=ObjectMetaArgs(name=_NAME, labels=_LABELS),
            role_ref=RoleRefArgs(api_group="rbac.authorization.k8s.io", kind="ClusterRole", name=_NAME),
            subjects=[SubjectArgs(kind="ServiceAccount", name=_NAME, namespace=pods.namespace)],
            opts=pulumi.ResourceOptions(parent=self, depends_on=[role, account]),
        )
        Deployment(
            _NAME,
            metadata=metadata,
            spec=DeploymentSpecArgs(
                replicas=replicas,
                selector=LabelSelectorArgs(match_labels=_LABELS),
                template=PodTemplateSpecArgs(
                    metadata=ObjectMetaArgs(labels=_LABELS),
                    spec=PodSpecArgs(
                        service_account_name=_NAME,
                        priority_class_name=PRIORITY_CONTROL,
                        enable_service_links=False,
                        dns_policy=pods.dns_policy,
                        security_context=restricted_pod(),
                        containers=[_container(image)],
                    ),
                ),
            ),
            opts=pulumi.ResourceOptions(parent=self, depends_on=[crd, binding]),
        )
        self.register_outputs({})


def _container(image: str) -> ContainerArgs:
    return ContainerArgs(
        name="controller",
        image=image,
        # It listens there and nowhere else: pods of the local cluster share the computer's network.
        env=[pod_field("POD_IP", "status.podIP")],
        ports=[ContainerPortArgs(name="metrics", container_port=_PORT)],
        readiness_probe=ProbeArgs(http_get=HTTPGetActionArgs(path="/readyz", port=_PORT), period_seconds=2),
        liveness_probe=ProbeArgs(
            http_get=HTTPGetActionArgs(path="/healthz", port=_PORT), period_seconds=10, failure_threshold=6
        ),
        resources=ResourceRequirementsArgs(requests={"cpu": "100m", "memory": "128Mi"}, limits={"memory": "1Gi"}),
        security_context=restricted_container(),
    )
