"""The Pulumi program as the engine runs it: every setting reaches a resource, every resource has its place."""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, get_args

import pulumi
import pytest
from recorded_program import PROGRAM, STACK, Config, Program, Recorded, as_the_engine_tells

from infra.clusters import CHECKOUT
from infra.settings import Settings, SettingsError, from_engine
from infra.settings.base import Section
from infra.wiring.local_nodes import node_specs

pytest_plugins = ["program_fixture"]

LOCAL: Config = {"target": "local", "nodePools": [{"name": "system", "nodes": 3}]}
PULLED = {"controller": "registry.example/controller:1", "etcd": "registry.example/etcd:1"}
# One pool of each kind, and everything that can be absent is there.
ON_AWS: Config = {
    "target": "aws",
    "images": PULLED,
    "aws": {
        "region": "us-east-2",
        "network": {"zones": ["us-east-2a", "us-east-2b"]},
        "nodePools": [
            {"name": "anywhere", "types": ["g6.xlarge"], "capacity": "spot"},
            {"name": "fabric", "types": ["p4d.24xlarge"], "zone": "us-east-2a", "efa": True},
            {
                "name": "block",
                "types": ["p5.48xlarge"],
                "capacity": "capacity-block",
                "zone": "us-east-2a",
                "efa": True,
                "reservation": {
                    "id": "cr-0123456789abcdef0",
                    "start": "2027-01-11T11:30:00Z",
                    "end": "2027-01-25T11:30:00Z",
                },
            },
            {"name": "plain", "types": ["g5.48xlarge"], "zone": "us-east-2a"},
        ],
        "storage": {"lustre": {"zone": "us-east-2a"}},
        "budget": {"monthlyUsd": 1000, "emails": ["team@example.com"]},
    },
}
IN_A_GIVEN_VPC: Config = {
    "target": "aws",
    "images": PULLED,
    "aws": {
        "region": "us-east-2",
        "network": {
            "vpcId": "vpc-0123456789abcdef0",
            "privateSubnets": {
                "us-east-2a": "subnet-0123456789abcdef0",
                "us-east-2b": "subnet-0123456789abcdef1",
            },
        },
    },
}


def on_kubeconfig(folder: Path) -> Config:
    return {"target": "kubeconfig", "kubeconfig": {"path": str(folder / "kubeconfig")}, "images": PULLED}


def changed(config: Config, key: str, value: Any) -> Config:
    """The configuration with one leaf changed: `etcd.storage`, `aws.nodePools.0.min`."""
    config = copy.deepcopy(config)
    *outer, leaf = [int(part) if part.isdigit() else part for part in key.split(".")]
    section: Any = config
    for part in outer:
        section = section[part] if isinstance(part, int) else section.setdefault(part, {})
    section[leaf] = value
    return config


def differences(one: Recorded, other: Recorded) -> set[str]:
    """Type and name of each resource that is not the same in both."""
    a, b = one.inputs(), other.inputs()
    return {name for name in a | b if a.get(name) != b.get(name)}


def leaves(section: type[Section] = Settings, prefix: str = "") -> Iterator[str]:
    """Every key that holds a value and not a section: `nodePools[].name`, `etcd.storage`, …"""
    for field in section.model_fields.values():
        annotation = field.annotation
        inner = next((part for part in (annotation, *get_args(annotation)) if is_section(part)), None)
        many = "[]" if str(annotation).startswith("tuple") else ""
        if inner is None:
            yield f"{prefix}{field.alias}"
        else:
            yield from leaves(inner, f"{prefix}{field.alias}{many}.")


def is_section(part: Any) -> bool:
    return isinstance(part, type) and issubclass(part, Section)


# Another value for each leaf that shall reach a resource, on the target where it has a meaning.
ON_ANY_TARGET: Mapping[str, Any] = {
    "namespace": "experiments",
    "etcd.storage": "3Gi",
    "etcd.members": 3,
    "etcd.secure": True,
    "checkpoints.size": "77Gi",
    "checkpoints.accessMode": "ReadWriteOnce",
    "controller.replicas": 2,
    "controller.gangSchedulers": ["volcano"],
    "controller.pytorchJobs": True,
    "images.controller": "registry.example/controller:2",
    "images.etcd": "registry.example/etcd:2",
}
ON_KUBECONFIG: Mapping[str, Any] = {
    "kubeconfig.path": str(CHECKOUT / "Pulumi.yaml"),  # any file that is there
    "kubeconfig.context": "other",
    "etcd.storageClass": "fast",
    "checkpoints.storageClass": "nfs",
}
# On AWS also which resource it reaches, and how one sees that: by a text in its inputs that was not there before, or by
# its absence (None). Each table is one run of the program, with all its changes at once.
ROLES, KEY = "arn:aws:iam::123456789012:role", "arn:aws:kms:us-east-2:123456789012:key/0123"
Changes = Mapping[str, tuple[Any, str, str | None]]
OTHER_VALUES: Changes = {
    "aws.kubernetesVersion": ("1.35", "Cluster cluster", '"version": "1.35"'),
    "aws.network.cidr": ("10.9.0.0/16", "Vpc vpc", "10.9.0.0/16"),
    "aws.network.zones": (["us-east-2a", "us-east-2b", "us-east-2c"], "Subnet private-us-east-2c", "us-east-2c"),
    "aws.network.natGateways": ("one-per-zone", "NatGateway nat-us-east-2b", "public-us-east-2b-id"),
    "aws.endpoint.publicCidrs": (["203.0.113.0/24"], "Cluster cluster", "203.0.113.0/24"),
    "aws.access.administrators": ([f"{ROLES}/boss"], "AccessEntry access 123456789012:role/boss", f"{ROLES}/boss"),
    "aws.access.researchers": (
        [f"{ROLES}/student"],
        "AccessEntry access 123456789012:role/student",
        f"{ROLES}/student",
    ),
    "aws.logs.types": (["scheduler"], "Cluster cluster", '["scheduler"]'),
    "aws.logs.retentionDays": (365, "LogGroup control-plane-logs", "365"),
    "aws.kmsKeyArn": (KEY, "Cluster cluster", KEY),
    "aws.systemPool.types": (["m6i.large"], "NodeGroup system-nodes", "m6i.large"),
    "aws.systemPool.min": (4, "NodeGroup system-nodes", '"minSize": 4.0'),
    "aws.systemPool.max": (5, "NodeGroup system-nodes", '"maxSize": 5.0'),
    "aws.systemPool.diskGib": (99, "LaunchTemplate system", '"volumeSize": 99.0'),
    "aws.nodePools.0.types": (["g5.xlarge"], "NodeGroup anywhere-nodes", "g5.xlarge"),
    "aws.nodePools.0.capacity": ("on-demand", "NodeGroup anywhere-nodes", '"capacityType": "ON_DEMAND"'),
    "aws.nodePools.0.min": (1, "NodeGroup anywhere-nodes", '"minSize": 1.0'),
    "aws.nodePools.0.max": (9, "NodeGroup anywhere-nodes", '"maxSize": 9.0'),
    "aws.nodePools.0.zone": ("us-east-2b", "NodeGroup anywhere-nodes", '"subnetIds": ["private-us-east-2b-id"]'),
    "aws.nodePools.0.operatingSystem": ("bottlerocket", "NodeGroup anywhere-nodes", "BOTTLEROCKET_x86_64_NVIDIA"),
    "aws.nodePools.0.diskGib": (333, "LaunchTemplate anywhere", '"volumeSize": 333.0'),
    "aws.nodePools.0.repair.maxParallel": (2, "NodeGroup anywhere-nodes", '"maxParallelNodesRepairedCount": 2.0'),
    "aws.nodePools.1.repair.enabled": (False, "NodeGroup fabric-nodes", '"enabled": false'),
    "aws.nodePools.1.placement": ("existing", "PlacementGroup fabric-placement", None),
    "aws.nodePools.1.placementGroup": ("rack", "LaunchTemplate fabric", '"groupName": "rack"'),
    "aws.nodePools.2.reservation.id": ("cr-0fedcba9876543210", "LaunchTemplate block", "cr-0fedcba9876543210"),
    "aws.nodePools.3.efa": (True, "LaunchTemplate plain", "efa-only"),
    "aws.storage.lustre.capacityGib": (4800, "LustreFileSystem lustre", "4800"),
    "aws.storage.lustre.throughput": (1000, "LustreFileSystem lustre", '"perUnitStorageThroughput": 1000.0'),
    "aws.storage.lustre.zone": ("us-east-2b", "LustreFileSystem lustre", "private-us-east-2b-id"),
    "aws.storage.checkpoints": ("lustre", "PersistentVolumeClaim checkpoints", "trainyard-lustre"),
    "aws.storage.archiveAfterDays": (77, "BucketLifecycleConfiguration bucket-lifecycle", '"days": 77.0'),
    "aws.storage.expireAfterDays": (99, "BucketLifecycleConfiguration bucket-lifecycle", '"days": 99.0'),
    "aws.registry.repositories": (["training", "other"], "Repository other-images", "trainyard-dev/other"),
    "aws.registry.keepImages": (77, "LifecyclePolicy training-images-keep", "newest 77 images"),
    "aws.budget.monthlyUsd": (7777, "Budget budget", "7777"),
    "aws.budget.emails": (["boss@example.com"], "Budget budget", "boss@example.com"),
    "aws.queues.dedicated": ({"team": ["fabric"]}, "ClusterQueue team", '"name": "team"'),
    "aws.monitoring.enabled": (True, "Release kube-prometheus-stack", "grafana"),
    "aws.monitoring.storageGib": (777, "Release kube-prometheus-stack", "777Gi"),
    "aws.monitoring.retentionDays": (99, "Release kube-prometheus-stack", "99d"),
    "aws.monitoring.alertmanagerSecret": ("pager", "Release kube-prometheus-stack", "pager"),
    "aws.monitoring.noProgressMinutes": (77, "PrometheusRule prometheusrule-trainyard", "offset 77m"),
    "aws.monitoring.checkpointMinutes": (99, "PrometheusRule prometheusrule-trainyard", "> 5940"),
    "aws.tags": ({"cost-center": "7"}, "LaunchTemplate plain", "cost-center"),
    "aws.protect": (True, "Cluster cluster", '"deletionProtection": true'),
}
SWITCHED_OFF: Changes = {
    "aws.network.endpoints": (False, "VpcEndpoint endpoint-sts", None),
    "aws.network.flowLogs": (False, "FlowLog flow-log", None),
    "aws.storage.checkpoints": ("lustre", "PersistentVolumeClaim checkpoints", "trainyard-lustre"),
    "aws.storage.efs": (False, "FileSystem efs", None),
    "aws.storage.lustre.deployment": ("scratch-2", "LustreFileSystem lustre", "SCRATCH_2"),
    "aws.queues.enabled": (False, "Release kueue", None),
}
ELSEWHERE: Changes = {
    "aws.region": ("us-west-2", "aws aws", "us-west-2"),
    "aws.network.zones": (["us-west-2a", "us-west-2b"], "Subnet private-us-west-2b", "us-west-2b"),
    "aws.nodePools.1.zone": ("us-west-2a", "NodeGroup fabric-nodes", "private-us-west-2a-id"),
    "aws.nodePools.2.zone": ("us-west-2a", "NodeGroup block-nodes", "private-us-west-2a-id"),
    "aws.nodePools.3.zone": ("us-west-2a", "NodeGroup plain-nodes", "private-us-west-2a-id"),
    "aws.storage.lustre.zone": ("us-west-2a", "LustreFileSystem lustre", "private-us-west-2a-id"),
    "aws.clusterName": ("blue", "Cluster cluster", '"name": "blue"'),
    "aws.nodePools.0.name": ("red", "NodeGroup red-nodes", "blue-red"),
}
IN_ANOTHER_VPC: Changes = {
    "aws.network.vpcId": ("vpc-0fedcba9876543210", "SecurityGroup efs", "vpc-0fedcba9876543210"),
    "aws.network.privateSubnets": (
        {"us-east-2a": "subnet-0123456789abcdef0", "us-east-2c": "subnet-0fedcba9876543210"},
        "Cluster cluster",
        "subnet-0fedcba9876543210",
    ),
}
AWS_ROUNDS = ((ON_AWS, OTHER_VALUES), (ON_AWS, SWITCHED_OFF), (ON_AWS, ELSEWHERE), (IN_A_GIVEN_VPC, IN_ANOTHER_VPC))
# Leaves that reach no resource because others are held against them: a value that is refused, and who minds.
JUDGED_BY: Mapping[str, tuple[Any, str]] = {
    "images.torch": ("1.13", "drivers and GPUs of the pools must suit its CUDA; job templates take their image by it"),
    "aws.nodePools[].reservation.start": ("2027-02-01T11:30:00Z", "a capacity block begins before it ends"),
    "aws.nodePools[].reservation.end": ("2027-01-01T11:30:00Z", "a capacity block ends after it began"),
}
# Leaves that never reach a resource, and who reads them instead.
COMMAND_ONLY: Mapping[str, str] = {
    "local.apiServerPort": "`trainyard up` starts the control plane there, before there is a cluster to declare in",
    **{
        f"nodePools[].{key}": "`trainyard up` starts the local nodes, see infra/wiring/local_nodes.py"
        for key in ("name", "nodes", "gpusPerNode", "cpusPerNode", "memoryPerNode", "capacity")
    },
}


def test_every_setting_is_in_one_of_the_tables_here() -> None:
    tables = (ON_ANY_TARGET, ON_KUBECONFIG, *(changes for _, changes in AWS_ROUNDS), JUDGED_BY, COMMAND_ONLY)
    known = {"target", *(re.sub(r"\.\d+\.", "[].", key) for table in tables for key in table)}
    assert set(leaves()) == known, "a new setting goes into the table of those who read it"


def test_the_same_settings_declare_the_same(program: Program) -> None:
    for config in (LOCAL, ON_AWS):
        assert program(config).inputs() == program(config).inputs()


@pytest.mark.parametrize("key", ON_ANY_TARGET)
def test_a_setting_of_any_target_reaches_a_resource(program: Program, key: str) -> None:
    assert differences(program(changed(LOCAL, key, ON_ANY_TARGET[key])), program(LOCAL))


@pytest.mark.parametrize("key", ON_KUBECONFIG)
def test_a_setting_of_an_existing_cluster_reaches_a_resource(program: Program, key: str, tmp_path: Path) -> None:
    base = on_kubeconfig(tmp_path)
    assert differences(program(changed(base, key, ON_KUBECONFIG[key])), program(base))


def found(made: Mapping[str, str], resource: str) -> str:
    """The inputs of a resource by the end of its type and its name; empty if it is not there."""
    specs = [spec for name, spec in made.items() if name.endswith(f":{resource}") and not name.startswith("trainyard:")]
    assert len(specs) <= 1, f"{resource} is said of {len(specs)} resources"
    return "".join(specs)


@pytest.mark.parametrize(("config", "changes"), AWS_ROUNDS)
def test_each_setting_of_an_aws_cluster_reaches_its_resource(
    program: Program, config: Config, changes: Changes
) -> None:
    other = config
    for key, (value, _, _) in changes.items():
        other = changed(other, key, value)
    before, after = program(config).inputs(), program(other).inputs()
    for key, (value, resource, text) in changes.items():
        was, now = found(before, resource), found(after, resource)
        if text is None:
            assert was, f"{resource} is to go with {key}, and was not there"
            assert not now, f"{key}: {value} leaves {resource}"
        else:
            assert text not in was, f"{text} says nothing about {key}: it was in {resource} before"
            assert text in now, f"{key}: {value} does not reach {resource}: {now}"


@pytest.mark.parametrize("key", JUDGED_BY)
def test_a_setting_that_reaches_no_resource_is_judged(key: str) -> None:
    path = key.replace("[]", ".2")
    with pytest.raises(SettingsError, match=key.rsplit(".", 1)[-1]):
        from_engine(as_the_engine_tells(changed(ON_AWS, path, JUDGED_BY[key][0])), STACK)


@pytest.mark.parametrize(
    ("key", "value"),
    {
        "name": "other",
        "nodes": 3,
        "gpusPerNode": 2,
        "cpusPerNode": 4,
        "memoryPerNode": "8Gi",
        "capacity": "spot",
    }.items(),
)
def test_a_setting_of_a_pool_changes_the_local_nodes(key: str, value: Any) -> None:
    def nodes(**pool: Any) -> Any:
        pools = [{"name": "home"}, {"name": "gpu", "gpusPerNode": 1} | pool]
        return node_specs(from_engine(as_the_engine_tells({**LOCAL, "nodePools": pools}), STACK).node_pools)

    assert f"nodePools[].{key}" in COMMAND_ONLY
    assert nodes(**{key: value}) != nodes()


def test_the_local_stack_brings_storage_classes_and_needs_no_cluster_dns(program: Program) -> None:
    made = program(LOCAL).inputs()
    assert {name.split()[-1] for name in made if "StorageClass " in name} == {"trainyard-block", "trainyard-shared"}
    pods = [spec for name, spec in made.items() if "StatefulSet" in name or "Deployment" in name]
    assert ['"dnsPolicy": "Default"' in spec for spec in pods] == [True, True]
    assert "trainyard-shared" in made["kubernetes:core/v1:PersistentVolumeClaim checkpoints"]
    assert "trainyard-block" in made["kubernetes:apps/v1:StatefulSet etcd"]


def test_an_existing_cluster_keeps_its_classes_and_its_dns(program: Program, tmp_path: Path) -> None:
    made = program(on_kubeconfig(tmp_path)).inputs()
    assert not [name for name in made if "StorageClass " in name]
    assert "storageClassName" not in made["kubernetes:core/v1:PersistentVolumeClaim checkpoints"]
    assert '"dnsPolicy": "ClusterFirst"' in made["kubernetes:apps/v1:StatefulSet etcd"]


@pytest.mark.parametrize("target", ["local", "kubeconfig", "aws"])
def test_every_resource_has_a_parent_the_stack_s_provider_and_a_name_of_its_own(
    program: Program, target: str, tmp_path: Path
) -> None:
    made = program({"local": LOCAL, "kubeconfig": on_kubeconfig(tmp_path), "aws": ON_AWS}[target])
    providers = {each.type.split(":")[-1]: each for each in made.resources if each.type.startswith("pulumi:providers:")}
    components = {each.urn for each in made.resources if each.type.startswith("trainyard:")}
    objects = [each for each in made.resources if each.type.split(":")[0] in providers]
    assert len(made.resources) == len(providers) + len(components) + len(objects)
    assert len(objects) >= 10
    for each in objects:
        package = each.type.split(":")[0]
        assert each.parent in components, f"{each.name} has no component for a parent"
        room = each.parent.split("::")[2].split("$")[-1]
        assert room.startswith("trainyard:aws:" if package == "aws" else ("trainyard:in_cluster:", "trainyard:aws:"))
        assert each.provider.startswith(providers[package].urn), f"{each.name} has another provider"
        if "metadata" in each.inputs:
            name = each.inputs["metadata"]["name"]
            assert each.name == name, f"{each.type} {each.name} is named {name} in the cluster"


def test_a_mistake_in_the_settings_is_told_without_a_traceback(program: Program) -> None:
    with pytest.raises(pulumi.RunError, match="1 mistake"):
        program(LOCAL | {"namespace": "trainyard-system"})


def test_a_cluster_that_is_not_there_is_told_without_a_traceback(program: Program, tmp_path: Path) -> None:
    (tmp_path / "kubeconfig").unlink()
    with pytest.raises(pulumi.RunError, match=r"Start it: trainyard up -s dev"):
        program(LOCAL)


def test_the_program_reads_like_a_table_of_contents() -> None:
    assert len(PROGRAM.read_text().splitlines()) <= 60
