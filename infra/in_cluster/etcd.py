"""etcd for the rendezvous of the training jobs (not the store behind the API server)."""

from __future__ import annotations

import pulumi
from pulumi_kubernetes.apps.v1 import (
    StatefulSet,
    StatefulSetPersistentVolumeClaimRetentionPolicyArgs,
    StatefulSetSpecArgs,
)
from pulumi_kubernetes.core.v1 import (
    ContainerArgs,
    ContainerPortArgs,
    HTTPGetActionArgs,
    PersistentVolumeClaimArgs,
    PodSpecArgs,
    PodTemplateSpecArgs,
    ProbeArgs,
    ResourceRequirementsArgs,
    Service,
    ServicePortArgs,
    ServiceSpecArgs,
    VolumeMountArgs,
)
from pulumi_kubernetes.meta.v1 import LabelSelectorArgs, ObjectMetaArgs

from infra.in_cluster.pods import OwnPods, pod_field, restricted_container, restricted_pod
from infra.in_cluster.storage_claims import LocalStorageClasses, claim_spec
from infra.wiring.scheduling import PRIORITY_CONTROL
from infra.wiring.storage import Volume

CLIENT_PORT = 2379
_METRICS_PORT = 2381  # plain HTTP /health and /metrics, apart from the client port
_LABELS = {"app.kubernetes.io/name": "etcd", "app.kubernetes.io/managed-by": "trainyard"}


class Etcd(pulumi.ComponentResource):
    """One etcd member on its own volume, behind a headless Service.

    One member, because the store of a rendezvous is small and is rebuilt by the next round; its volume keeps the
    generation counters over a restart.
    """

    endpoint: pulumi.Output[str]
    """`host:port` for `rdzvEndpoint` of ElasticJobs."""

    def __init__(
        self,
        name: str,
        *,
        pods: OwnPods,
        image: str,
        volume: Volume,
        classes: LocalStorageClasses,
        opts: pulumi.ResourceOptions,
    ) -> None:
        super().__init__("trainyard:in_cluster:Etcd", name, None, opts)
        child = pulumi.ResourceOptions(parent=self)
        service = Service(
            "etcd",
            metadata=ObjectMetaArgs(
                name="etcd",
                namespace=pods.namespace,
                labels=_LABELS,
                # A headless Service of a StatefulSet has no endpoints before its pods: nothing to wait for.
                annotations={"pulumi.com/skipAwait": "true"},
            ),
            spec=ServiceSpecArgs(
                cluster_ip="None",
                selector=_LABELS,
                ports=[ServicePortArgs(name="client", port=CLIENT_PORT)],
            ),
            opts=child,
        )
        StatefulSet(
            "etcd",
            metadata=ObjectMetaArgs(name="etcd", namespace=pods.namespace, labels=_LABELS),
            spec=StatefulSetSpecArgs(
                service_name="etcd",
                replicas=1,
                selector=LabelSelectorArgs(match_labels=_LABELS),
                template=PodTemplateSpecArgs(
                    metadata=ObjectMetaArgs(labels=_LABELS),
                    spec=PodSpecArgs(
                        priority_class_name=PRIORITY_CONTROL,
                        automount_service_account_token=False,
                        enable_service_links=False,
                        dns_policy=pods.dns_policy,
                        security_context=restricted_pod(),
                        containers=[_container(image)],
                    ),
                ),
                volume_claim_templates=[
                    PersistentVolumeClaimArgs(
                        metadata=ObjectMetaArgs(name="data"),
                        spec=claim_spec(volume, classes),
                    )
                ],
                # The volume goes with the stack, as all that the stack made does.
                persistent_volume_claim_retention_policy=StatefulSetPersistentVolumeClaimRetentionPolicyArgs(
                    when_deleted="Delete", when_scaled="Retain"
                ),
            ),
            opts=pulumi.ResourceOptions(parent=self, depends_on=[service]),
        )
        self.endpoint = pulumi.Output.format("etcd.{0}:{1}", pods.namespace, CLIENT_PORT)
        self.register_outputs({"endpoint": self.endpoint})


def _container(image: str) -> ContainerArgs:
    # $(POD_IP) is replaced by the kubelet. Binding to the pod's address and not to 0.0.0.0 lets several pods of the
    # local cluster, which share the computer's network, use one port.
    return ContainerArgs(
        name="etcd",
        image=image,
        args=[
            "--name=$(POD_NAME)",
            "--data-dir=/var/lib/etcd/data",
            f"--listen-client-urls=http://$(POD_IP):{CLIENT_PORT}",
            f"--advertise-client-urls=http://$(POD_NAME).etcd.$(POD_NAMESPACE):{CLIENT_PORT}",
            "--listen-peer-urls=http://$(POD_IP):2380",
            "--initial-advertise-peer-urls=http://$(POD_NAME).etcd.$(POD_NAMESPACE):2380",
            "--initial-cluster=$(POD_NAME)=http://$(POD_NAME).etcd.$(POD_NAMESPACE):2380",
            f"--listen-metrics-urls=http://$(POD_IP):{_METRICS_PORT}",
            "--auto-compaction-retention=1h",
            "--quota-backend-bytes=536870912",
        ],
        env=[
            pod_field("POD_NAME", "metadata.name"),
            pod_field("POD_NAMESPACE", "metadata.namespace"),
            pod_field("POD_IP", "status.podIP"),
        ],
        ports=[
            ContainerPortArgs(name="client", container_port=CLIENT_PORT),
            ContainerPortArgs(name="metrics", container_port=_METRICS_PORT),
        ],
        readiness_probe=ProbeArgs(
            http_get=HTTPGetActionArgs(path="/readyz", port=_METRICS_PORT), period_seconds=2, failure_threshold=3
        ),
        liveness_probe=ProbeArgs(
            http_get=HTTPGetActionArgs(path="/livez", port=_METRICS_PORT), period_seconds=10, failure_threshold=6
        ),
        resources=ResourceRequirementsArgs(requests={"cpu": "100m", "memory": "128Mi"}, limits={"memory": "1Gi"}),
        volume_mounts=[VolumeMountArgs(name="data", mount_path="/var/lib/etcd")],
        security_context=restricted_container(),
    )
