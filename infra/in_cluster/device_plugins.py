"""Device plugins: they tell the kubelet of GPUs and EFA interfaces, which pods then ask for by number.

Without them a machine offers neither, and says nothing: pods wait for ever, or train over TCP.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pulumi
from pulumi_kubernetes.apps.v1 import (
    DaemonSet,
    DaemonSetSpecArgs,
    DaemonSetUpdateStrategyArgs,
    RollingUpdateDaemonSetArgs,
)
from pulumi_kubernetes.core.v1 import (
    AffinityArgs,
    CapabilitiesArgs,
    ContainerArgs,
    EnvVarArgs,
    HostPathVolumeSourceArgs,
    NodeAffinityArgs,
    NodeSelectorArgs,
    NodeSelectorRequirementArgs,
    NodeSelectorTermArgs,
    PodSpecArgs,
    PodTemplateSpecArgs,
    ResourceRequirementsArgs,
    SecurityContextArgs,
    TolerationArgs,
    VolumeArgs,
    VolumeMountArgs,
)
from pulumi_kubernetes.meta.v1 import LabelSelectorArgs, ObjectMetaArgs

from infra.in_cluster.pods import MANAGED_BY
from infra.wiring.node_agents import OnNodes
from infra.wiring.scheduling import POOL_LABEL

_SOCKETS = "/var/lib/kubelet/device-plugins"
_NODE_CRITICAL = "system-node-critical"
"""The class of Kubernetes' own agents: a node without its plugin is of no use to anybody."""


class DevicePlugins(pulumi.ComponentResource):
    """NVIDIA's and EFA's device plugins, each where machines have the device and bring no plugin of their own."""

    def __init__(
        self,
        name: str,
        *,
        namespace: pulumi.Input[str],
        nvidia_image: str,
        nvidia: OnNodes | None,
        efa_image: str,
        efa: OnNodes | None,
        opts: pulumi.ResourceOptions,
    ) -> None:
        """Makes a DaemonSet for each plugin that has nodes.

        Args:
            name: of the component.
            namespace: one that admits privileged pods.
            nvidia_image: of NVIDIA's plugin.
            nvidia: where it runs.
            efa_image: of the EFA plugin.
            efa: where it runs.
            opts: of the component.
        """
        super().__init__("trainyard:in_cluster:DevicePlugins", name, None, opts)
        if nvidia is not None:
            agent_daemon_set(
                "nvidia-device-plugin", namespace, nvidia, _nvidia(nvidia_image), ["device-plugins"], parent=self
            )
        if efa is not None:
            agent_daemon_set(
                "efa-device-plugin",
                namespace,
                efa,
                _efa(efa_image),
                ["device-plugins", "infiniband"],
                parent=self,
                host_network=True,
            )
        self.register_outputs({})


_HOST_PATHS = {
    "device-plugins": HostPathVolumeSourceArgs(path=_SOCKETS, type="Directory"),
    "infiniband": HostPathVolumeSourceArgs(path="/dev/infiniband", type="Directory"),
    "sys": HostPathVolumeSourceArgs(path="/sys", type="Directory"),
    "pod-resources": HostPathVolumeSourceArgs(path="/var/lib/kubelet/pod-resources", type="Directory"),
}
"""Folders of the node that agents see."""


def agent_daemon_set(
    name: str,
    namespace: pulumi.Input[str],
    on: OnNodes,
    container: ContainerArgs,
    host_paths: Sequence[str],
    *,
    parent: pulumi.ComponentResource,
    host_network: bool = False,
) -> DaemonSet:
    """An agent of one container on each of these nodes."""
    labels = {"app.kubernetes.io/name": name, **MANAGED_BY}
    return DaemonSet(
        name,
        metadata=ObjectMetaArgs(
            name=name,
            namespace=namespace,
            labels=labels,
            # A pool of no machines is normal here, and so is one that is still growing: nothing to wait for.
            annotations={"pulumi.com/skipAwait": "true"},
        ),
        spec=DaemonSetSpecArgs(
            selector=LabelSelectorArgs(match_labels=labels),
            update_strategy=DaemonSetUpdateStrategyArgs(
                type="RollingUpdate", rolling_update=RollingUpdateDaemonSetArgs(max_unavailable="10%")
            ),
            template=PodTemplateSpecArgs(
                metadata=ObjectMetaArgs(labels=labels),
                spec=PodSpecArgs(
                    priority_class_name=_NODE_CRITICAL,
                    automount_service_account_token=False,
                    enable_service_links=False,
                    host_network=host_network or None,
                    node_selector=dict(on.labels),
                    affinity=_away_from(on.except_pools),
                    tolerations=[_toleration(each) for each in on.tolerations],
                    containers=[container],
                    volumes=[VolumeArgs(name=path, host_path=_HOST_PATHS[path]) for path in host_paths],
                ),
            ),
        ),
        opts=pulumi.ResourceOptions(parent=parent),
    )


def _away_from(pools: Sequence[str]) -> AffinityArgs | None:
    if not pools:
        return None
    other = NodeSelectorRequirementArgs(key=POOL_LABEL, operator="NotIn", values=list(pools))
    required = NodeSelectorArgs(node_selector_terms=[NodeSelectorTermArgs(match_expressions=[other])])
    return AffinityArgs(node_affinity=NodeAffinityArgs(required_during_scheduling_ignored_during_execution=required))


def _toleration(each: Mapping[str, str]) -> TolerationArgs:
    return TolerationArgs(
        key=each["key"], operator=each["operator"], value=each.get("value"), effect=each.get("effect")
    )


def sees_all_gpus() -> list[EnvVarArgs]:
    """How a container asks NVIDIA's runtime for all GPUs of the node, of which none is taken from others by that."""
    return [
        EnvVarArgs(name="NVIDIA_VISIBLE_DEVICES", value="all"),
        # utility: NVML; compute: CUDA's library, without which DCGM has no profiling counters
        EnvVarArgs(name="NVIDIA_DRIVER_CAPABILITIES", value="compute,utility"),
    ]


def _nvidia(image: str) -> ContainerArgs:
    return ContainerArgs(
        name="nvidia-device-plugin",
        image=image,
        env=[
            *sees_all_gpus(),
            # On these machines the driver is there from the start: without it the plugin shall fail and be seen.
            EnvVarArgs(name="FAIL_ON_INIT_ERROR", value="true"),
            # On by default in 0.19.0 to 0.19.2, and then in the way of the EFA plugin.
            EnvVarArgs(name="MOFED_ENABLED", value="false"),
            EnvVarArgs(name="GDRCOPY_ENABLED", value="false"),
        ],
        resources=ResourceRequirementsArgs(requests={"cpu": "20m", "memory": "64Mi"}, limits={"memory": "256Mi"}),
        security_context=SecurityContextArgs(
            allow_privilege_escalation=False, capabilities=CapabilitiesArgs(drop=["ALL"])
        ),
        volume_mounts=[VolumeMountArgs(name="device-plugins", mount_path=_SOCKETS)],
    )


def _efa(image: str) -> ContainerArgs:
    return ContainerArgs(
        name="efa-device-plugin",
        image=image,
        resources=ResourceRequirementsArgs(requests={"cpu": "10m", "memory": "20Mi"}, limits={"memory": "128Mi"}),
        # As in AWS's chart, since it looks at Neuron devices as well (eks-charts #1245). Others run it without, on p5
        # with Ubuntu (NVIDIA/aicr #872); on the images of these machines we know of nobody who has tried.
        security_context=SecurityContextArgs(privileged=True, run_as_user=0),
        volume_mounts=[
            VolumeMountArgs(name="device-plugins", mount_path=_SOCKETS),
            VolumeMountArgs(name="infiniband", mount_path="/dev/infiniband"),
        ],
    )
