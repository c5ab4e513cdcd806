"""Metrics of the GPUs: utilisation, memory, temperature, errors (XID), each with the pod that uses the GPU."""

from __future__ import annotations

import pulumi
from pulumi_kubernetes.core.v1 import (
    CapabilitiesArgs,
    ContainerArgs,
    ContainerPortArgs,
    EnvVarArgs,
    HTTPGetActionArgs,
    ProbeArgs,
    ResourceRequirementsArgs,
    SecurityContextArgs,
    Service,
    ServicePortArgs,
    ServiceSpecArgs,
    VolumeMountArgs,
)
from pulumi_kubernetes.meta.v1 import ObjectMetaArgs

from infra.in_cluster.device_plugins import agent_daemon_set, sees_all_gpus
from infra.in_cluster.pods import MANAGED_BY, pod_field
from infra.wiring.node_agents import OnNodes

_NAME = "dcgm-exporter"
_PORT = 9400
_LABELS = {"app.kubernetes.io/name": _NAME, **MANAGED_BY}


class DcgmExporter(pulumi.ComponentResource):
    """NVIDIA's DCGM exporter on every GPU machine, and a Service by which Prometheus finds it."""

    def __init__(
        self, name: str, *, namespace: pulumi.Input[str], image: str, on: OnNodes, opts: pulumi.ResourceOptions
    ) -> None:
        super().__init__("trainyard:in_cluster:DcgmExporter", name, None, opts)
        agent_daemon_set(_NAME, namespace, on, _container(image), ["pod-resources"], parent=self)
        Service(
            _NAME,
            metadata=ObjectMetaArgs(
                name=_NAME,
                namespace=namespace,
                labels=_LABELS,
                annotations={"pulumi.com/skipAwait": "true"},  # no machine, no endpoint
            ),
            spec=ServiceSpecArgs(
                cluster_ip="None", selector=_LABELS, ports=[ServicePortArgs(name="metrics", port=_PORT)]
            ),
            opts=pulumi.ResourceOptions(parent=self),
        )
        self.register_outputs({})


def _container(image: str) -> ContainerArgs:
    return ContainerArgs(
        name=_NAME,
        image=image,
        env=[
            *sees_all_gpus(),
            EnvVarArgs(name="DCGM_EXPORTER_LISTEN", value=f":{_PORT}"),
            EnvVarArgs(name="DCGM_EXPORTER_KUBERNETES", value="true"),  # names the pod that has the GPU
            # The image's entrypoint would give the program SYS_ADMIN as a file's capability. It has it as root, and
            # setcap would need a capability more, and warn of missing counters without it.
            EnvVarArgs(name="NO_SETCAP", value="true"),
            pod_field("NODE_NAME", "spec.nodeName"),
        ],
        ports=[ContainerPortArgs(name="metrics", container_port=_PORT)],
        readiness_probe=ProbeArgs(
            http_get=HTTPGetActionArgs(path="/health", port=_PORT), initial_delay_seconds=30, period_seconds=10
        ),
        liveness_probe=ProbeArgs(
            http_get=HTTPGetActionArgs(path="/health", port=_PORT), initial_delay_seconds=60, period_seconds=20
        ),
        resources=ResourceRequirementsArgs(requests={"cpu": "50m", "memory": "256Mi"}, limits={"memory": "1Gi"}),
        # SYS_ADMIN: profiling counters (tensor cores, NVLink). It also is what Bottlerocket asks of a container that
        # wants to see all GPUs without having been given one.
        security_context=SecurityContextArgs(
            run_as_user=0, capabilities=CapabilitiesArgs(drop=["ALL"], add=["SYS_ADMIN"])
        ),
        volume_mounts=[
            VolumeMountArgs(name="pod-resources", mount_path="/var/lib/kubelet/pod-resources", read_only=True)
        ],
    )
