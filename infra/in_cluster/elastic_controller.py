"""The ElasticJob API and the controller that serves it."""

from __future__ import annotations

from typing import Any

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
from pulumi_kubernetes.flowcontrol.v1 import FlowSchema, PriorityLevelConfiguration
from pulumi_kubernetes.meta.v1 import LabelSelectorArgs, ObjectMetaArgs
from pulumi_kubernetes.policy.v1 import PodDisruptionBudget, PodDisruptionBudgetSpecArgs
from pulumi_kubernetes.rbac.v1 import ClusterRole, ClusterRoleBinding, Role, RoleBinding, RoleRefArgs, SubjectArgs

from infra.in_cluster.etcd_security import Login
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
from training.controller.api import GangScheduler
from training.controller.crd import custom_resource_definition
from training.controller.flow import flow_objects
from training.controller.pytorchjob_crd import pytorchjob_definition
from training.controller.rbac import DEPLOYMENT_NAME, cluster_rules, lease_rules

_NAME = DEPLOYMENT_NAME
_LABELS = {"app.kubernetes.io/name": _NAME, **MANAGED_BY}
_PORT = 8080
_SECONDS_TO_LET_GO = 60
"""When it is removed, it takes its finalizer off every worker pod first: 400 a second."""


class ElasticController(pulumi.ComponentResource):
    """Custom resource definition, account with the least rights, and the controller as a Deployment."""

    def __init__(
        self,
        name: str,
        *,
        pods: OwnPods,
        image: str,
        replicas: int,
        login: Login | None = None,
        gang_schedulers: tuple[str, ...] = (),
        pytorch_jobs: bool = False,
        opts: pulumi.ResourceOptions,
    ) -> None:
        """Makes them.

        Args:
            name: of the component.
            pods: where the controller runs.
            image: its image.
            replicas: how many; all but one stand by.
            login: how workers log in to etcd; None: it asks for nothing.
            gang_schedulers: schedulers of gangs that jobs may ask for.
            pytorch_jobs: whether PyTorchJobs are served, and their definition brought.
            opts: of the component.
        """
        super().__init__("trainyard:in_cluster:ElasticController", name, None, opts)
        child = pulumi.ResourceOptions(parent=self)
        metadata = ObjectMetaArgs(name=_NAME, namespace=pods.namespace, labels=_LABELS)
        crds = [
            CustomResourceDefinition(made["metadata"]["name"], metadata=made["metadata"], spec=made["spec"], opts=child)
            for made in (custom_resource_definition(), *([pytorchjob_definition()] if pytorch_jobs else []))
        ]
        account = ServiceAccount(_NAME, metadata=metadata, opts=child)
        rights = _Rights(
            cluster_rules([GangScheduler(each) for each in gang_schedulers], pytorch_jobs=pytorch_jobs),
            lease_rules(pytorch_jobs=pytorch_jobs),
            account=account,
            namespace=pods.namespace,
            parent=self,
        )
        flows = _flows(pods.namespace, child)
        several = replicas > 1
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
                        termination_grace_period_seconds=_SECONDS_TO_LET_GO,
                        priority_class_name=PRIORITY_CONTROL,
                        enable_service_links=False,
                        dns_policy=pods.dns_policy,
                        node_selector=pods.selector,
                        affinity=apart(_LABELS, required=False) if several else None,
                        topology_spread_constraints=[over_zones(_LABELS)] if several else None,
                        security_context=restricted_pod(),
                        containers=[_container(image, login, pytorch_jobs=pytorch_jobs)],
                    ),
                ),
            ),
            opts=pulumi.ResourceOptions(parent=self, depends_on=[*crds, *rights.bindings, *flows]),
        )
        if several:
            PodDisruptionBudget(
                _NAME,
                metadata=metadata,
                spec=PodDisruptionBudgetSpecArgs(max_unavailable=1, selector=LabelSelectorArgs(match_labels=_LABELS)),
                opts=child,
            )
        self.register_outputs({})


class _Rights:
    """What the controller may do: on jobs and pods everywhere, on its Lease in its own namespace only."""

    def __init__(
        self,
        everywhere: list[dict[str, Any]],
        in_own_namespace: list[dict[str, Any]],
        *,
        account: ServiceAccount,
        namespace: pulumi.Input[str],
        parent: pulumi.ComponentResource,
    ) -> None:
        anywhere = ObjectMetaArgs(name=_NAME, labels=_LABELS)
        at_home = ObjectMetaArgs(name=_NAME, namespace=namespace, labels=_LABELS)
        subjects = [SubjectArgs(kind="ServiceAccount", name=_NAME, namespace=namespace)]
        child = pulumi.ResourceOptions(parent=parent)
        roles = [
            ClusterRole(_NAME, metadata=anywhere, rules=everywhere, opts=child),
            Role(_NAME, metadata=at_home, rules=in_own_namespace, opts=child),
        ]
        bound = pulumi.ResourceOptions(parent=parent, depends_on=[account, *roles])
        self.bindings = [
            ClusterRoleBinding(
                _NAME, metadata=anywhere, role_ref=_reference("ClusterRole"), subjects=subjects, opts=bound
            ),
            RoleBinding(_NAME, metadata=at_home, role_ref=_reference("Role"), subjects=subjects, opts=bound),
        ]


def _reference(kind: str) -> RoleRefArgs:
    return RoleRefArgs(api_group="rbac.authorization.k8s.io", kind=kind, name=_NAME)


def _flows(namespace: pulumi.Input[str], opts: pulumi.ResourceOptions) -> list[pulumi.Resource]:
    """The controller's place at the API server."""
    level, *schemas = flow_objects(namespace, _NAME)
    made = PriorityLevelConfiguration(
        level["metadata"]["name"], metadata={**level["metadata"], "labels": _LABELS}, spec=level["spec"], opts=opts
    )
    after = pulumi.ResourceOptions.merge(opts, pulumi.ResourceOptions(depends_on=[made]))
    return [
        FlowSchema(
            each["metadata"]["name"], metadata={**each["metadata"], "labels": _LABELS}, spec=each["spec"], opts=after
        )
        for each in schemas
    ]


def _container(image: str, login: Login | None, *, pytorch_jobs: bool) -> ContainerArgs:
    arguments: list[pulumi.Input[str]] = [f"--deployment={_NAME}"]
    if pytorch_jobs:
        arguments.append("--pytorch-jobs")
    if login is not None:
        arguments += [
            f"--rendezvous-secret={login.secret}",
            pulumi.Output.format("--rendezvous-host={0}", login.host),
        ]
    return ContainerArgs(
        name="controller",
        image=image,
        args=arguments,
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
