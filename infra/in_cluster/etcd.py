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
    EnvVarArgs,
    HTTPGetActionArgs,
    PersistentVolumeClaimArgs,
    PodSpecArgs,
    PodTemplateSpecArgs,
    ProbeArgs,
    ResourceRequirementsArgs,
    SecretVolumeSourceArgs,
    Service,
    ServicePortArgs,
    ServiceSpecArgs,
    VolumeArgs,
    VolumeMountArgs,
)
from pulumi_kubernetes.meta.v1 import LabelSelectorArgs, ObjectMetaArgs
from pulumi_kubernetes.policy.v1 import PodDisruptionBudget, PodDisruptionBudgetSpecArgs

from infra.in_cluster.etcd_security import KEEPER, EtcdSecurity, Login
from infra.in_cluster.network_policies import etcd_ports
from infra.in_cluster.pods import (
    MANAGED_BY,
    OwnPods,
    apart,
    over_zones,
    pod_field,
    restricted_container,
    restricted_pod,
)
from infra.in_cluster.storage_claims import StorageClasses, claim_spec
from infra.wiring.etcd_layout import CLIENT_PORT, METRICS_PORT, PEER_PORT, SERVICE, EtcdLayout
from infra.wiring.scheduling import PRIORITY_CONTROL
from infra.wiring.storage import Volume
from training.controller.certificates import PEER_SECRET, SERVER_SECRET

_LABELS = {"app.kubernetes.io/name": SERVICE, **MANAGED_BY}
_CERTIFICATES = "/var/run/secrets/trainyard.dev"


class Etcd(pulumi.ComponentResource):
    """etcd members on volumes of their own, behind a headless Service.

    One member is enough for a computer: the store of a rendezvous is small and is rebuilt by the next round, and the
    volume keeps the generation counters over a restart. Three keep running jobs through the loss of a machine.
    """

    endpoint: pulumi.Output[str]
    """`host:port` for `rdzvEndpoint` of ElasticJobs."""
    login: Login | None
    """What the controller needs to let jobs in; None: etcd asks for nothing."""

    def __init__(
        self,
        name: str,
        *,
        pods: OwnPods,
        image: str,
        volume: Volume,
        classes: StorageClasses,
        members: int = 1,
        keeper: str | None = None,
        opts: pulumi.ResourceOptions,
    ) -> None:
        """Makes etcd.

        Args:
            name: of the component.
            pods: where its pods run.
            image: of etcd.
            volume: of each member.
            classes: of volumes.
            members: 1 or 3.
            keeper: image of the controller, which makes keys and passwords; None: plain HTTP, without users.
            opts: of the component.
        """
        super().__init__("trainyard:in_cluster:Etcd", name, None, opts)
        layout = EtcdLayout(members, secure=keeper is not None)
        child = pulumi.ResourceOptions(parent=self)
        services = [_service(SERVICE, pods, CLIENT_PORT, child, unready=False)]
        if layout.peers_service != SERVICE:
            services.append(_service(layout.peers_service, pods, PEER_PORT, child, unready=True))
        security = None
        before: list[pulumi.Resource] = [*services, classes]
        if keeper is not None:
            security = EtcdSecurity(layout=layout, pods=pods, image=keeper, parent=self)
            before.append(security.certificates)
        etcd_ports(pods, members=_LABELS, keeper=KEEPER if layout.secure else None, opts=child)
        stateful = StatefulSet(
            SERVICE,
            metadata=ObjectMetaArgs(name=SERVICE, namespace=pods.namespace, labels=_LABELS),
            spec=StatefulSetSpecArgs(
                service_name=layout.peers_service,
                replicas=layout.members,
                # None of several becomes ready before most of them run: they have to be started together.
                pod_management_policy="Parallel" if layout.members > 1 else None,
                selector=LabelSelectorArgs(match_labels=_LABELS),
                template=PodTemplateSpecArgs(metadata=ObjectMetaArgs(labels=_LABELS), spec=_pod(pods, image, layout)),
                volume_claim_templates=[
                    PersistentVolumeClaimArgs(
                        metadata=ObjectMetaArgs(name=layout.volume),
                        spec=claim_spec(volume, classes),
                    )
                ],
                # The volume goes with the stack, as all that the stack made does.
                persistent_volume_claim_retention_policy=StatefulSetPersistentVolumeClaimRetentionPolicyArgs(
                    when_deleted="Delete", when_scaled="Retain"
                ),
            ),
            opts=pulumi.ResourceOptions(parent=self, depends_on=before),
        )
        if layout.members > 1:
            PodDisruptionBudget(
                SERVICE,
                metadata=ObjectMetaArgs(name=SERVICE, namespace=pods.namespace, labels=_LABELS),
                spec=PodDisruptionBudgetSpecArgs(
                    max_unavailable=1,
                    selector=LabelSelectorArgs(match_labels=_LABELS),
                    # A member that does not answer is lost to the others already: it shall not hold up its machine.
                    unhealthy_pod_eviction_policy="AlwaysAllow",
                ),
                opts=child,
            )
        if security is not None:
            security.authenticate(after=stateful)
        host = pulumi.Output.format("{0}.{1}", SERVICE, pods.namespace)
        self.login = Login(host=host) if security is not None else None
        self.endpoint = pulumi.Output.format("{0}:{1}", host, CLIENT_PORT)
        self.register_outputs({"endpoint": self.endpoint})


def _service(name: str, pods: OwnPods, port: int, opts: pulumi.ResourceOptions, *, unready: bool) -> Service:
    ports = [ServicePortArgs(name="client" if port == CLIENT_PORT else "peer", port=port)]
    return Service(
        name,
        metadata=ObjectMetaArgs(
            name=name,
            namespace=pods.namespace,
            labels=_LABELS,
            # A headless Service of a StatefulSet has no endpoints before its pods: nothing to wait for.
            annotations={"pulumi.com/skipAwait": "true"},
        ),
        spec=ServiceSpecArgs(
            cluster_ip="None",
            selector=_LABELS,
            ports=ports,
            publish_not_ready_addresses=True if unready else None,
        ),
        opts=opts,
    )


def _pod(pods: OwnPods, image: str, layout: EtcdLayout) -> PodSpecArgs:
    several = layout.members > 1
    return PodSpecArgs(
        priority_class_name=PRIORITY_CONTROL,
        automount_service_account_token=False,
        enable_service_links=False,
        dns_policy=pods.dns_policy,
        node_selector=pods.selector,
        # On SIGTERM a leader hands over before it goes, which takes a moment: there is nothing for a preStop hook.
        affinity=apart(_LABELS, required=True) if several else None,
        topology_spread_constraints=[over_zones(_LABELS)] if several else None,
        security_context=restricted_pod(),
        containers=[_container(image, layout)],
        volumes=[_certificate(SERVER_SECRET), _certificate(PEER_SECRET)] if layout.secure else None,
    )


def _certificate(secret: str) -> VolumeArgs:
    return VolumeArgs(name=secret, secret=SecretVolumeSourceArgs(secret_name=secret, default_mode=0o440))


def _container(image: str, layout: EtcdLayout) -> ContainerArgs:
    # $(POD_IP) is replaced by the kubelet. Binding to the pod's address and not to 0.0.0.0 lets several pods of the
    # local cluster, which share the computer's network, use one port.
    ports = [ContainerPortArgs(name="client", container_port=CLIENT_PORT)]
    if layout.peers_service != SERVICE:
        ports.append(ContainerPortArgs(name="peer", container_port=PEER_PORT))
    mounts = [VolumeMountArgs(name=layout.volume, mount_path="/var/lib/etcd")]
    if layout.secure:
        mounts += [
            VolumeMountArgs(name=secret, mount_path=f"{_CERTIFICATES}/{secret}", read_only=True)
            for secret in (SERVER_SECRET, PEER_SECRET)
        ]
    return ContainerArgs(
        name="etcd",
        image=image,
        env=[
            pod_field("POD_NAME", "metadata.name"),
            pod_field("POD_NAMESPACE", "metadata.namespace"),
            pod_field("POD_IP", "status.podIP"),
            *(EnvVarArgs(name=name, value=value) for name, value in _flags(layout).items()),
        ],
        ports=[*ports, ContainerPortArgs(name="metrics", container_port=METRICS_PORT)],
        readiness_probe=ProbeArgs(
            http_get=HTTPGetActionArgs(path="/readyz", port=METRICS_PORT), period_seconds=2, failure_threshold=3
        ),
        liveness_probe=ProbeArgs(
            http_get=HTTPGetActionArgs(path="/livez", port=METRICS_PORT), period_seconds=10, failure_threshold=6
        ),
        resources=ResourceRequirementsArgs(requests={"cpu": "100m", "memory": "128Mi"}, limits={"memory": "1Gi"}),
        volume_mounts=mounts,
        security_context=restricted_container(),
    )


def _flags(layout: EtcdLayout) -> dict[str, str]:
    """The flags of etcd, each as the variable that stands for it.

    Not as arguments: etcd's own image starts etcd by its command, which arguments would replace.
    """
    me, here = "$(POD_NAME)", "$(POD_NAMESPACE)"
    flags = {
        "name": me,
        "data-dir": "/var/lib/etcd/data",
        "listen-client-urls": f"{layout.scheme}://$(POD_IP):{CLIENT_PORT}",
        "advertise-client-urls": layout.client_url(me, here),
        "listen-peer-urls": f"{layout.scheme}://$(POD_IP):{PEER_PORT}",
        "initial-advertise-peer-urls": layout.peer_url(me, here),
        "initial-cluster": layout.initial_cluster(here),
        "listen-metrics-urls": f"http://$(POD_IP):{METRICS_PORT}",
        "auto-compaction-retention": "1h",
        "quota-backend-bytes": "536870912",
        **(_security_flags() if layout.secure else {}),
    }
    return {f"ETCD_{flag.upper().replace('-', '_')}": value for flag, value in flags.items()}


def _security_flags() -> dict[str, str]:
    server, peer = f"{_CERTIFICATES}/{SERVER_SECRET}", f"{_CERTIFICATES}/{PEER_SECRET}"
    return {
        "cert-file": f"{server}/tls.crt",
        "key-file": f"{server}/tls.key",
        "peer-cert-file": f"{peer}/tls.crt",
        "peer-key-file": f"{peer}/tls.key",
        "peer-trusted-ca-file": f"{peer}/ca.crt",
        "peer-client-cert-auth": "true",
        # Whoever holds a certificate of the members' own authority is a member. That its address leads back to a name
        # in the certificate adds nothing, and does not hold before DNS knows a new pod.
        "peer-skip-client-san-verification": "true",
        "tls-min-version": "TLS1.2",
    }
