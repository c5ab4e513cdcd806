"""What makes the jobs' etcd secure: certificates and passwords made in the cluster, and users.

No key is in this program, nor in the engine's record of the stack: a Job of the controller's image makes them
(docs/decisions/0005-etcd-keys-made-in-the-cluster.md).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import pulumi
from pulumi_kubernetes.batch.v1 import CronJob, CronJobSpecArgs, Job, JobSpecArgs, JobTemplateSpecArgs
from pulumi_kubernetes.core.v1 import (
    ContainerArgs,
    PodSpecArgs,
    PodTemplateSpecArgs,
    ResourceRequirementsArgs,
    ServiceAccount,
)
from pulumi_kubernetes.meta.v1 import ObjectMetaArgs
from pulumi_kubernetes.rbac.v1 import Role, RoleBinding, RoleRefArgs, SubjectArgs

from infra.in_cluster.pods import MANAGED_BY, OwnPods, pod_field, restricted_container, restricted_pod
from infra.wiring.etcd_layout import CLIENT_PORT, SERVICE, EtcdLayout
from infra.wiring.scheduling import PRIORITY_CONTROL
from training.controller.certificates import CLIENT_SECRET, client_rules, system_rules

_NAME = "etcd-certificates"
KEEPER = {"app.kubernetes.io/name": _NAME, **MANAGED_BY}
"""Labels of who makes the keys and sets the passwords."""
_HOURLY = "23 * * * *"
"""Certificates are renewed months before they end. By the hour, because an etcd that lost all its volumes starts again
without users, and is open until this has run."""
_REPLACED_IF_FAILED = {"pulumi.com/replaceUnready": "true"}
"""A Job that has failed stays failed: without this each later `up` would wait for the same one, and fail with it."""


@dataclass(frozen=True)
class Login:
    """How jobs log in."""

    host: pulumi.Input[str]
    """Of etcd: jobs that meet anywhere else get no password."""
    secret: str = CLIENT_SECRET
    """In the namespace of the jobs."""


class EtcdSecurity:
    """The parts that a secure etcd needs before it starts, and the one that it needs after."""

    certificates: Job
    """Done when the certificates are there."""

    def __init__(
        self,
        *,
        layout: EtcdLayout,
        pods: OwnPods,
        image: str,
        parent: pulumi.ComponentResource,
    ) -> None:
        """Makes certificates.

        Args:
            layout: how the members are arranged.
            pods: where the Jobs run, and whose jobs may log in.
            image: the controller's, which makes keys.
            parent: of the resources.
        """
        self._layout, self._pods, self._image, self._parent = layout, pods, image, parent
        child = pulumi.ResourceOptions(parent=parent)
        account = ServiceAccount(_NAME, metadata=self._metadata(_NAME), opts=child)
        bindings = [
            self._rights(_NAME, pods.namespace, system_rules(), account),
            self._rights(f"{_NAME}-of-jobs", pods.jobs, client_rules(), account),
        ]
        self._ready = pulumi.ResourceOptions(parent=parent, depends_on=bindings)
        self.certificates = Job(
            _NAME,
            metadata=self._metadata(_NAME, _REPLACED_IF_FAILED),
            spec=self._job(authenticate=False),
            opts=self._ready,
        )

    def authenticate(self, *, after: pulumi.Resource) -> None:
        """Makes etcd ask for passwords once it runs, and looks after that and the certificates from then on."""
        once_up = pulumi.ResourceOptions(parent=self._parent, depends_on=[after])
        name = "etcd-authentication"
        Job(
            name,
            metadata=self._metadata(name, _REPLACED_IF_FAILED),
            spec=self._job(authenticate=True),
            opts=once_up,
        )
        name = "etcd-upkeep"
        CronJob(
            name,
            metadata=self._metadata(name),
            spec=CronJobSpecArgs(
                schedule=_HOURLY,
                concurrency_policy="Forbid",
                successful_jobs_history_limit=1,
                failed_jobs_history_limit=3,
                job_template=JobTemplateSpecArgs(spec=self._job(authenticate=True)),
            ),
            opts=once_up,
        )

    def _metadata(self, name: str, annotations: Mapping[str, str] | None = None) -> ObjectMetaArgs:
        return ObjectMetaArgs(name=name, namespace=self._pods.namespace, labels=KEEPER, annotations=annotations)

    def _rights(
        self, name: str, namespace: pulumi.Input[str], rules: list[dict[str, list[str]]], account: ServiceAccount
    ) -> RoleBinding:
        metadata = ObjectMetaArgs(name=name, namespace=namespace, labels=KEEPER)
        role = Role(name, metadata=metadata, rules=rules, opts=pulumi.ResourceOptions(parent=self._parent))
        return RoleBinding(
            name,
            metadata=metadata,
            role_ref=RoleRefArgs(api_group="rbac.authorization.k8s.io", kind="Role", name=name),
            subjects=[SubjectArgs(kind="ServiceAccount", name=_NAME, namespace=self._pods.namespace)],
            opts=pulumi.ResourceOptions(parent=self._parent, depends_on=[account, role]),
        )

    def _job(self, *, authenticate: bool) -> JobSpecArgs:
        here = "$(POD_NAMESPACE)"
        arguments: list[pulumi.Input[str]] = [
            *(f"--server-name={name}" for name in self._layout.server_names(here)),
            *(f"--peer-name={name}" for name in self._layout.peer_names(here)),
            pulumi.Output.format("--jobs-namespace={0}", self._pods.jobs),
        ]
        if authenticate:
            arguments.append(f"--endpoint=https://{SERVICE}.{here}:{CLIENT_PORT}")
        container = ContainerArgs(
            name="certificates",
            image=self._image,
            command=["python", "-m", "training.controller.certificates"],
            args=arguments,
            env=[pod_field("POD_NAMESPACE", "metadata.namespace")],
            resources=ResourceRequirementsArgs(requests={"cpu": "50m", "memory": "64Mi"}, limits={"memory": "256Mi"}),
            security_context=restricted_container(),
        )
        return JobSpecArgs(
            backoff_limit=6,
            active_deadline_seconds=600,
            template=PodTemplateSpecArgs(
                metadata=ObjectMetaArgs(labels=KEEPER),
                spec=PodSpecArgs(
                    restart_policy="Never",
                    service_account_name=_NAME,
                    priority_class_name=PRIORITY_CONTROL,
                    enable_service_links=False,
                    dns_policy=self._pods.dns_policy,
                    node_selector=self._pods.selector,
                    security_context=restricted_pod(),
                    containers=[container],
                ),
            ),
        )
