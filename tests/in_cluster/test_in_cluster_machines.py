"""What looks after machines: agents land on all that need them, the autoscaler may do its work and no more."""

from __future__ import annotations

from typing import Any

import pulumi
import pytest
from component_recorder import Object, Recorded, record

from infra.in_cluster.autoscaler import AUTOSCALER_ACCOUNT, ClusterAutoscaler
from infra.in_cluster.dcgm_exporter import DcgmExporter
from infra.in_cluster.device_plugins import DevicePlugins
from infra.in_cluster.namespaces import NodeAgentsNamespace
from infra.in_cluster.network_policies import ClosedByDefault
from infra.in_cluster.pods import OwnPods
from infra.settings.aws import Aws
from infra.wiring.node_agents import node_agents_of
from infra.wiring.placing import NodeKind, fits, node_kinds, pod_of

BLOCK = {"id": "cr-0123456789abcdef0", "start": "2027-01-11T11:30:00Z", "end": "2027-01-25T11:30:00Z"}
POOLS: list[dict[str, Any]] = [
    {"name": "block", "types": ["p5.48xlarge"], "capacity": "capacity-block", "zone": "us-east-2b", "efa": True}
    | {"reservation": BLOCK},
    {"name": "spot", "types": ["p4d.24xlarge"], "capacity": "spot", "zone": "us-east-2b", "efa": True},
    {"name": "small", "types": ["g5.xlarge"], "capacity": "spot"},
    {"name": "rocket", "types": ["g6.8xlarge"], "operatingSystem": "bottlerocket", "efa": True, "zone": "us-east-2b"},
]


def aws(pools: list[dict[str, Any]] = POOLS) -> Aws:
    zones = ["us-east-2a", "us-east-2b"]
    return Aws.model_validate(
        {"region": "us-east-2", "network": {"zones": zones}, "nodePools": pools}, by_alias=True, by_name=False
    )


def agents(settings: Aws) -> Recorded:
    def make(opts: pulumi.ResourceOptions) -> None:
        where = node_agents_of(settings)
        namespace = NodeAgentsNamespace("node-agents", opts=opts).node_agents
        DevicePlugins(
            "device-plugins",
            namespace=namespace,
            nvidia_image="registry.example/nvidia:1",
            nvidia=where.nvidia,
            efa_image="registry.example/efa:1",
            efa=where.efa,
            opts=opts,
        )
        if where.dcgm is not None:
            DcgmExporter("dcgm", namespace=namespace, image="registry.example/dcgm:1", on=where.dcgm, opts=opts)

    return record(make)


@pytest.fixture(scope="module")
def made() -> Recorded:
    return agents(aws())


@pytest.fixture(scope="module")
def kinds() -> tuple[NodeKind, ...]:
    return node_kinds(aws(), "trainyard-dev")


def spec_of(made: Recorded, name: str) -> Object:
    spec: Object = made.one("DaemonSet", name)["spec"]["template"]["spec"]
    return spec


@pytest.mark.parametrize(
    ("agent", "pools"),
    [
        # Bottlerocket brings NVIDIA's plugin along; nobody brings EFA's.
        ("nvidia-device-plugin", {"block", "spot", "small"}),
        ("efa-device-plugin", {"block", "spot", "rocket"}),
        ("dcgm-exporter", {"block", "spot", "small", "rocket"}),
    ],
)
def test_an_agent_lands_on_exactly_the_pools_that_need_it(
    made: Recorded, kinds: tuple[NodeKind, ...], agent: str, pools: set[str]
) -> None:
    assert set(fits(pod_of(spec_of(made, agent), name=agent), kinds).pools) == pools


@pytest.mark.parametrize("agent", ["nvidia-device-plugin", "efa-device-plugin", "dcgm-exporter"])
def test_a_type_that_no_vendor_s_list_knows_gets_its_agents(made: Recorded, agent: str) -> None:
    spec = spec_of(made, agent)
    assert "instance-type" not in str(spec.get("affinity")) + str(spec["nodeSelector"])
    assert spec["priorityClassName"] == "system-node-critical"


def test_only_the_namespace_of_the_agents_admits_privileged_pods(made: Recorded) -> None:
    namespace = made.one("Namespace")["metadata"]
    assert namespace["labels"]["pod-security.kubernetes.io/enforce"] == "privileged"
    assert {daemon["metadata"]["namespace"] for daemon in made.all("DaemonSet")} == {namespace["name"]}
    privileged = [daemon["metadata"]["name"] for daemon in made.all("DaemonSet") if "'privileged': True" in str(daemon)]
    assert privileged == ["efa-device-plugin"]


def test_the_plugins_do_not_get_into_each_other_s_way(made: Recorded) -> None:
    """NVIDIA's plugin 0.19 switches on mounts that collide with those of the EFA plugin (k8s-device-plugin #1692)."""
    (container,) = spec_of(made, "nvidia-device-plugin")["containers"]
    switches = {variable["name"]: variable["value"] for variable in container["env"]}
    assert (switches["MOFED_ENABLED"], switches["GDRCOPY_ENABLED"]) == ("false", "false")


def test_gpu_metrics_name_the_pod_that_uses_the_gpu(made: Recorded) -> None:
    spec = spec_of(made, "dcgm-exporter")
    (container,) = spec["containers"]
    assert {"name": "DCGM_EXPORTER_KUBERNETES", "value": "true"} in container["env"]
    assert spec["volumes"][0]["hostPath"]["path"] == container["volumeMounts"][0]["mountPath"]
    assert made.one("Service")["spec"]["ports"][0]["port"] == container["ports"][0]["containerPort"] == 9400


def test_gpu_metrics_include_the_profiling_counters(made: Recorded) -> None:
    """They need CUDA's library and SYS_ADMIN; without either the exporter runs, and leaves them out."""
    (container,) = spec_of(made, "dcgm-exporter")["containers"]
    values = {variable["name"]: variable.get("value", "") for variable in container["env"]}
    assert set(values["NVIDIA_DRIVER_CAPABILITIES"].split(",")) == {"compute", "utility"}
    assert container["securityContext"]["capabilities"] == {"drop": ["ALL"], "add": ["SYS_ADMIN"]}


def test_without_efa_there_is_no_efa_plugin() -> None:
    made = agents(aws([{"name": "small", "types": ["g5.xlarge"]}]))
    assert {daemon["metadata"]["name"] for daemon in made.all("DaemonSet")} == {"nvidia-device-plugin", "dcgm-exporter"}


def test_without_gpu_pools_there_is_no_agent() -> None:
    assert agents(aws([])).all("DaemonSet") == []


@pytest.fixture(scope="module")
def autoscaler() -> Recorded:
    pods = OwnPods("trainyard-system", "training", "ClusterFirst", {"trainyard.dev/pool": "system"})
    return record(
        lambda opts: ClusterAutoscaler(
            "autoscaler",
            pods=pods,
            image="registry.example/autoscaler:1",
            cluster_name="trainyard-dev",
            region="us-east-2",
            opts=opts,
        )
    )


class TestAutoscaler:
    def test_it_finds_the_groups_of_its_own_cluster_only(self, autoscaler: Recorded) -> None:
        (container,) = autoscaler.one("Deployment")["spec"]["template"]["spec"]["containers"]
        (found,) = [arg for arg in container["args"] if "auto-discovery" in arg]
        assert found.split("tag=")[1].split(",") == [
            "k8s.io/cluster-autoscaler/enabled",
            "k8s.io/cluster-autoscaler/trainyard-dev",
        ]

    def test_it_takes_no_machine_from_under_a_worker(self, autoscaler: Recorded) -> None:
        (container,) = autoscaler.one("Deployment")["spec"]["template"]["spec"]["containers"]
        assert "--skip-nodes-with-custom-controller-pods=true" in container["args"]

    def test_it_runs_where_nothing_is_scaled_to_zero_or_reclaimed(
        self, autoscaler: Recorded, kinds: tuple[NodeKind, ...]
    ) -> None:
        spec = autoscaler.one("Deployment")["spec"]["template"]["spec"]
        assert set(fits(pod_of(spec, name="autoscaler"), kinds).pools) == {"system"}
        assert autoscaler.one("Deployment")["spec"]["replicas"] == 2
        assert autoscaler.one("PodDisruptionBudget")["spec"]["maxUnavailable"] == 1

    def test_its_role_in_aws_finds_its_account(self, autoscaler: Recorded) -> None:
        account = autoscaler.one("ServiceAccount")["metadata"]
        assert (account["namespace"], account["name"]) == ("trainyard-system", AUTOSCALER_ACCOUNT)

    def test_it_reads_what_its_version_simulates_and_writes_no_workload(self, autoscaler: Recorded) -> None:
        rules = autoscaler.one("ClusterRole")["rules"]
        may = {
            (group, resource, verb)
            for rule in rules
            for group in rule["apiGroups"]
            for resource in rule["resources"]
            for verb in rule["verbs"]
        }
        # Without these the autoscaler of 1.34 and later never gets as far as adding a node (autoscaler #8678, #9244).
        for group, resource in (("storage.k8s.io", "volumeattachments"), ("resource.k8s.io", "resourceslices")):
            assert {(group, resource, verb) for verb in ("get", "list", "watch")} <= may
        assert "*" not in str(rules)
        written = {(resource, verb) for _, resource, verb in may if verb not in {"get", "list", "watch"}}
        assert written == {
            ("events", "create"),
            ("events", "patch"),
            ("nodes", "update"),
            ("pods/eviction", "create"),
            ("pods/status", "update"),
        }


def test_nothing_reaches_a_pod_of_the_system_unless_a_policy_says_so() -> None:
    made = record(lambda opts: ClosedByDefault("closed", namespace="trainyard-system", opts=opts))
    spec = made.one("NetworkPolicy")["spec"]
    assert spec == {"podSelector": {}, "policyTypes": ["Ingress"]}
