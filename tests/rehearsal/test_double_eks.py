"""EKS in a rehearsal: clusters, node groups with their machines, add-ons, access."""

import itertools
import json
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from little_engine import ACCOUNT, LittleEngine, RefusedError, Resource, little_engine
from pulumi.runtime.proto import provider_pb2 as messages

from infra.catalog.instance_types import instance_type
from infra.rehearsal.connection import Connection
from infra.rehearsal.double.aws import AwsRefusedError
from infra.rehearsal.double.values import UNKNOWN, encode
from infra.rehearsal.nodes import Group
from infra.wiring.interfaces import interfaces_of

CLUSTER = "aws:eks/cluster:Cluster"
NODES = "aws:eks/nodeGroup:NodeGroup"
ADDON = "aws:eks/addon:Addon"
ENTRY = "aws:eks/accessEntry:AccessEntry"
POLICY = "aws:eks/accessPolicyAssociation:AccessPolicyAssociation"
IDENTITY = "aws:eks/podIdentityAssociation:PodIdentityAssociation"
TEMPLATE = "aws:ec2/launchTemplate:LaunchTemplate"

ADMINISTRATOR = f"arn:aws:iam::{ACCOUNT}:role/administrator"
POLICIES = "arn:aws:eks::aws:cluster-access-policy"

numbers = itertools.count()


class Machines:
    """In the place of the nodes of a real cluster: what the double asked for."""

    def __init__(self) -> None:
        self.groups: dict[str, tuple[Group, int]] = {}

    def set_nodes(self, connection: Connection, group: Group, count: int) -> None:  # noqa: ARG002
        self.groups[group["name"]] = (group, count)

    def remove_nodes(self, connection: Connection, group_name: str) -> None:  # noqa: ARG002
        self.groups.pop(group_name, None)


@pytest.fixture(scope="module")
def machines() -> Machines:
    return Machines()


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory, machines: Machines) -> Iterator[LittleEngine]:
    with little_engine(tmp_path_factory.mktemp("eks")) as engine:
        vars(engine.aws)["nodes"] = machines
        yield engine


@pytest.fixture(scope="module")
def subnets(engine: LittleEngine) -> list[str]:
    """One in zone a, one in zone b, of one VPC."""
    first = engine.subnet("10.0.1.0/24", zone="a")
    return [first, engine.subnet("10.0.2.0/24", zone="b", vpc=engine.vpc_of(first))]


@pytest.fixture(scope="module")
def role(engine: LittleEngine) -> str:
    trust = json.dumps({"Statement": [{"Principal": {"Service": "pods.eks.amazonaws.com"}}]})
    role = engine.boto("iam").create_role(RoleName="for-pods", AssumeRolePolicyDocument=trust)["Role"]
    return str(role["Arn"])


def cluster_inputs(role: str, subnets: list[str], **more: Any) -> dict[str, Any]:
    return {
        "name": f"cluster-{next(numbers)}",
        "version": "1.35",
        "roleArn": role,
        "vpcConfig": {"subnetIds": subnets, "endpointPrivateAccess": True, "endpointPublicAccess": False},
        "accessConfig": {"authenticationMode": "API", "bootstrapClusterCreatorAdminPermissions": True},
        "enabledClusterLogTypes": ["api", "audit"],
        "bootstrapSelfManagedAddons": False,
        **more,
    }


@pytest.fixture
def cluster(engine: LittleEngine, role: str, subnets: list[str]) -> Iterator[Resource]:
    made = engine.made(CLUSTER, **cluster_inputs(role, subnets))
    yield made
    made.down()


def group_inputs(cluster: str, role: str, subnets: list[str], **more: Any) -> dict[str, Any]:
    return {
        "clusterName": cluster,
        "nodeGroupName": f"pool-{next(numbers)}",
        "nodeRoleArn": role,
        "subnetIds": subnets,
        "scalingConfig": {"minSize": 0, "maxSize": 4, "desiredSize": 1},
        **more,
    }


def template(engine: LittleEngine, **data: Any) -> Resource:
    return engine.made(TEMPLATE, name=f"template-{next(numbers)}", updateDefaultVersion=True, **data)


def reference(template: Resource) -> dict[str, str]:
    return {"id": template.id, "version": str(template["latestVersion"])}


def efa(type_name: str) -> list[dict[str, Any]]:
    return [
        {"networkCardIndex": each.card, "deviceIndex": each.device_index, "interfaceType": each.kind}
        for each in interfaces_of(instance_type(type_name), efa=True)
    ]


def test_a_cluster_answers_where_the_rehearsal_does_and_goes_without_a_trace(
    engine: LittleEngine, role: str, subnets: list[str]
) -> None:
    ec2, eks = engine.boto("ec2"), engine.boto("eks")
    groups_before = {group["GroupId"] for group in ec2.describe_security_groups()["SecurityGroups"]}
    inputs = cluster_inputs(role, subnets, tags={"stack": "dev"})
    cluster = engine.made(CLUSTER, **inputs)
    assert cluster.id == inputs["name"]
    assert cluster["arn"] == f"arn:aws:eks:us-east-2:{engine.account}:cluster/{cluster.id}"
    assert cluster["endpoint"] == engine.aws.connection.server
    assert cluster["identities"][0]["oidcs"][0]["issuer"].startswith("https://oidc.eks.us-east-2.amazonaws.com/id/")
    group = cluster["vpcConfig"]["clusterSecurityGroupId"]
    assert cluster["vpcConfig"]["vpcId"] == engine.vpc_of(subnets[0])
    (shown,) = ec2.describe_security_groups(GroupIds=[group])["SecurityGroups"]
    assert shown["IpPermissions"][0]["UserIdGroupPairs"][0]["GroupId"] == group
    assert shown["IpPermissionsEgress"][0]["UserIdGroupPairs"][0]["GroupId"] == group  # since 1.33
    assert cluster.refresh() == "same"

    network = {**inputs["vpcConfig"], "endpointPublicAccess": True, "publicAccessCidrs": ["192.0.2.0/24"]}
    assert cluster.up(**{**inputs, "vpcConfig": network, "version": "1.36", "tags": {"stack": "new"}}) == "update"
    assert cluster["vpcConfig"]["clusterSecurityGroupId"] == group  # still known: machines depend on it
    assert eks.describe_cluster(name=cluster.id)["cluster"]["tags"] == {"stack": "new"}
    assert cluster.refresh() == "same"
    cluster.down()
    assert cluster.refresh() == "gone"
    assert eks.list_clusters()["clusters"] == []
    assert {found["GroupId"] for found in ec2.describe_security_groups()["SecurityGroups"]} == groups_before


def test_a_cluster_changes_only_as_eks_lets_it(engine: LittleEngine, role: str, subnets: list[str]) -> None:
    inputs = cluster_inputs(role, subnets, version="1.34", deletionProtection=True)
    cluster = engine.made(CLUSTER, **inputs)
    by_config_map = {**inputs["accessConfig"], "authenticationMode": "CONFIG_MAP"}

    def refused(**change: Any) -> str:
        """What is said of a change, before anything is done."""
        request = messages.CheckRequest(type=CLUSTER, olds=encode(inputs), news=encode({**inputs, **change}))
        return "\n".join(failure.reason for failure in engine.provider.Check(request, None).failures)

    assert "one minor version at a time and never back, not from 1.34 to 1.36" in refused(version="1.36")
    assert "one minor version at a time and never back, not from 1.34 to 1.33" in refused(version="1.33")
    assert "it cannot go back from API to CONFIG_MAP" in refused(accessConfig=by_config_map)
    assert refused(version="1.35") == refused() == ""
    assert refused(version="1.36", name="another") == ""  # made anew
    elsewhere = engine.subnet("10.0.1.0/24", zone="a")
    others = [elsewhere, engine.subnet("10.0.2.0/24", zone="b", vpc=engine.vpc_of(elsewhere))]
    with pytest.raises(RefusedError, match="a cluster stays in its VPC"):
        cluster.up(**{**inputs, "vpcConfig": {**inputs["vpcConfig"], "subnetIds": others}})
    with pytest.raises(RefusedError, match="deletionProtection is on"):
        cluster.down()
    assert cluster.up(**{**inputs, "deletionProtection": False}) == "update"
    cluster.down()


def test_a_cluster_keeps_the_key_of_its_secrets(engine: LittleEngine, role: str, subnets: list[str]) -> None:
    inputs = cluster_inputs(role, subnets)
    cluster = engine.made(CLUSTER, **inputs)
    keys = [f"arn:aws:kms:us-east-2:{engine.account}:key/{number}" for number in (1, 2)]
    first, second = ({"provider": {"keyArn": key}, "resources": ["secrets"]} for key in keys)
    assert cluster.up(**inputs, encryptionConfig=first) == "update"
    with pytest.raises(RefusedError, match="a cluster keeps the key that encrypts its secrets"):
        cluster.up(**inputs, encryptionConfig=second)
    assert cluster.up(**inputs) == "replace"  # what is encrypted stays so
    cluster.down()


@pytest.mark.parametrize(
    ("change", "place", "words"),
    [
        ({"name": "my cluster"}, "name", "does not match the pattern"),
        ({"version": "v1.35"}, "version", "no minor version"),
        ({"vpcConfig": {"subnetIds": ["subnet-0"]}}, "vpcConfig.subnetIds", "at least two availability zones"),
        ({"vpcConfig": {"subnetIds": UNKNOWN, "endpointPublicAccess": False}}, "vpcConfig", "public or private"),
        ({"enabledClusterLogTypes": ["everything"]}, "enabledClusterLogTypes", "not one of api"),
        ({"accessConfig": {"authenticationMode": "api"}}, "accessConfig.authenticationMode", "did you mean API"),
        ({"upgradePolicy": {"supportType": "LONG"}}, "upgradePolicy.supportType", "not one of STANDARD"),
        (
            {"encryptionConfig": {"provider": {"keyArn": "arn:x"}, "resources": ["everything"]}},
            "encryptionConfig.resources",
            "secrets and nothing else",
        ),
        ({"roleArn": f"arn:aws:iam::{ACCOUNT}:role/nobody"}, "roleArn", "there is no role nobody"),
        ({"outpostConfig": {}}, "outpostConfig", "does not know this property"),
    ],
)
def test_clusters_that_eks_refuses(
    engine: LittleEngine, role: str, subnets: list[str], change: dict[str, Any], place: str, words: str
) -> None:
    said = engine.refusal(CLUSTER, {**cluster_inputs(role, subnets), **change})
    assert any(line.startswith(f"{place}") and words in line for line in said.splitlines()), said


def test_a_node_group_brings_its_machines_and_takes_them_away(
    engine: LittleEngine, machines: Machines, cluster: Resource, role: str, subnets: list[str]
) -> None:
    made = template(
        engine,
        networkInterfaces=efa("p5.48xlarge"),
        blockDeviceMappings=[{"deviceName": "/dev/xvda", "ebs": {"volumeSize": 200, "volumeType": "gp3"}}],
    )
    inputs = group_inputs(
        cluster.id,
        role,
        subnets[:1],
        capacityType="SPOT",
        instanceTypes=["p5.48xlarge"],
        amiType="AL2023_x86_64_NVIDIA",
        releaseVersion="1.35.0-20260714",
        launchTemplate=reference(made),
        labels={"trainyard.dev/pool": "gpu"},
        taints=[{"key": "nvidia.com/gpu", "value": "true", "effect": "NO_SCHEDULE"}],
        updateConfig={"maxUnavailable": 1},
        nodeRepairConfig={"enabled": True, "maxParallelNodesRepairedCount": 1},
        tags={"stack": "dev"},
    )
    group = engine.made(NODES, **inputs)
    name = inputs["nodeGroupName"]
    assert group.id == f"{cluster.id}:{name}"
    assert group["resources"][0]["autoscalingGroups"][0]["name"].startswith(f"eks-{name}-")
    assert (group["status"], group["version"]) == ("ACTIVE", "1.35")
    assert machines.groups[name] == (
        {
            "name": name,
            "instanceType": "p5.48xlarge",
            "capacityType": "SPOT",
            "labels": {"trainyard.dev/pool": "gpu"},
            "taints": [{"key": "nvidia.com/gpu", "value": "true", "effect": "NO_SCHEDULE"}],
            "zones": ["us-east-2a"],
            "efa": True,
            "diskGib": 200,
        },
        1,
    )
    assert group.refresh() == "same"

    eks = engine.boto("eks")
    where = {"clusterName": cluster.id, "nodegroupName": name}
    more = {
        "scalingConfig": {"minSize": 0, "maxSize": 8, "desiredSize": 3},
        "labels": {"team": "a"},
        "taints": [{"key": "spot", "value": "true", "effect": "NO_EXECUTE"}],
    }
    assert group.up(**{**inputs, **more}) == "update"
    shown = eks.describe_nodegroup(**where)["nodegroup"]
    assert (shown["scalingConfig"], shown["labels"], shown["taints"]) == tuple(more.values())
    assert machines.groups[name][1] == 3

    # The autoscaler's work is seen by a refresh, and what runs in the cluster follows the next change.
    eks.update_nodegroup_config(**where, scalingConfig={"minSize": 0, "maxSize": 8, "desiredSize": 5})
    assert group.refresh() == "changed"
    assert group.inputs["scalingConfig"]["desiredSize"] == 5

    group.down()
    assert name not in machines.groups
    assert group.refresh() == "gone"
    made.down()


def test_a_node_group_whose_machines_fail_is_not_left_behind(
    engine: LittleEngine, cluster: Resource, role: str, subnets: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(_self: Machines, _connection: Connection, *_: Any) -> None:
        raise AwsRefusedError("the cluster does not answer")

    inputs = group_inputs(cluster.id, role, subnets[:1], instanceTypes=["m7i.large"])
    with monkeypatch.context() as patch:
        patch.setattr(Machines, "set_nodes", broken)
        patch.setattr(Machines, "remove_nodes", broken)
        with pytest.raises(RefusedError, match="the cluster does not answer"):
            engine.made(NODES, **inputs)
    assert engine.boto("eks").list_nodegroups(clusterName=cluster.id)["nodegroups"] == []
    engine.made(NODES, **inputs).down()  # the next attempt


def test_what_eks_cannot_change_in_a_node_group_is_replaced(
    engine: LittleEngine, cluster: Resource, role: str, subnets: list[str]
) -> None:
    first, second = template(engine, instanceType="p5.48xlarge"), template(engine, instanceType="p5.48xlarge")
    inputs = group_inputs(cluster.id, role, subnets[:1], launchTemplate=reference(first))
    group = engine.made(NODES, **inputs)
    assert group.up(**inputs) == "same"
    assert first.up(**{**first.inputs, "instanceType": "p5e.48xlarge"}) == "update"
    newer = {"launchTemplate": reference(first), "forceUpdateVersion": True}
    assert group.up(**{**inputs, **newer}) == "update"  # another version of the same
    assert group.refresh() == "same"
    assert group.up(**{**inputs, "launchTemplate": reference(second)}) == "replace"
    assert group.up(**{**inputs, "launchTemplate": reference(second), "subnetIds": subnets[1:]}) == "replace"
    group.down()


@pytest.mark.parametrize(
    ("change", "place", "words"),
    [
        (
            {"taints": [{"key": "gpu", "value": "true", "effect": "NoSchedule"}]},
            "taints[0].effect",
            "'NoSchedule' is not one of NO_SCHEDULE, NO_EXECUTE, PREFER_NO_SCHEDULE; did you mean NO_SCHEDULE?",
        ),
        ({"taints": [{"key": f"t{n}", "effect": "NO_EXECUTE"} for n in range(51)]}, "taints", "EKS takes 50"),
        ({"taints": [{"key": "a", "effect": "NO_EXECUTE"}] * 2}, "taints[1]", "has the effect NO_EXECUTE already"),
        ({"taints": [{"key": "k" * 64, "effect": "NO_EXECUTE"}]}, "taints[0].key", "the most is 63"),
        ({"capacityType": "spot"}, "capacityType", "did you mean SPOT"),
        ({"amiType": "AL2023_NVIDIA"}, "amiType", "not one of"),
        ({"instanceTypes": ["p5.49xlarge"]}, "instanceTypes[0]", "no instance type p5.49xlarge"),
        (
            {"capacityType": "CAPACITY_BLOCK", "instanceTypes": ["p5.48xlarge"]},
            "instanceTypes",
            "in the launch template",
        ),
        ({"capacityType": "CAPACITY_BLOCK"}, "launchTemplate", "needs a launch template"),
        ({"launchTemplate": {"id": "lt-0", "version": UNKNOWN}, "diskSize": 20}, "diskSize", "stands in the template"),
        ({"launchTemplate": {"version": "1"}}, "launchTemplate", "exactly one of id and name"),
        ({"scalingConfig": {"minSize": 2, "maxSize": 1, "desiredSize": 2}}, "scalingConfig.minSize", "above maxSize 1"),
        ({"scalingConfig": {"minSize": 0, "maxSize": 1, "desiredSize": 2}}, "scalingConfig.desiredSize", "not between"),
        ({"scalingConfig": {"minSize": 0, "maxSize": 0, "desiredSize": 0}}, "scalingConfig.maxSize", "0 is below 1"),
        ({"updateConfig": {"maxUnavailable": 0}}, "updateConfig.maxUnavailable", "0 is below 1"),
        (
            {"nodeRepairConfig": {"enabled": True, "maxParallelRepairs": 1}},
            "nodeRepairConfig.maxParallelRepairs",
            "there is no member maxParallelRepairs",
        ),
        ({"nodeRoleArn": f"arn:aws:iam::{ACCOUNT}:role/nobody"}, "nodeRoleArn", "there is no role nobody"),
        ({"warmPoolConfig": {}}, "warmPoolConfig", "does not know this property"),
    ],
)
def test_node_groups_that_eks_refuses(
    engine: LittleEngine, role: str, subnets: list[str], change: dict[str, Any], place: str, words: str
) -> None:
    inputs = {**group_inputs("c", role, subnets[:1], labels={"a": "b"}, instanceTypes=["m7i.large"]), **change}
    if "CAPACITY_BLOCK" in change.values() and "instanceTypes" not in change:
        inputs.pop("instanceTypes")
    said = engine.refusal(NODES, inputs)
    assert any(line.startswith(f"{place}: ") and words in line for line in said.splitlines()), said


@pytest.mark.parametrize(
    ("data", "change", "place", "words"),
    [
        ({}, {}, "instanceTypes", "EKS takes t3.medium"),
        (
            {"instanceType": "p5.48xlarge"},
            {"instanceTypes": ["p5.48xlarge"]},
            "instanceTypes",
            "has an instance type already",
        ),
        ({"networkInterfaces": efa("p5.48xlarge")}, {"instanceTypes": ["g5.xlarge"]}, "instanceTypes", "interface 1"),
        (
            {"networkInterfaces": efa("p5.48xlarge"), "instanceType": "p5.48xlarge"},
            {"subnetIds": "both"},
            "subnetIds",
            "stand in one zone, and these are 2 subnets (us-east-2a, us-east-2b)",
        ),
        (
            {"instanceType": "p5.48xlarge"},
            {"capacityType": "CAPACITY_BLOCK"},
            "capacityType",
            "market type capacity-block",
        ),
        ({"imageId": "ami-0"}, {"amiType": "AL2023_x86_64_NVIDIA"}, "amiType", "an image of its own"),
    ],
)
def test_node_groups_are_held_against_their_launch_template(
    engine: LittleEngine,
    role: str,
    subnets: list[str],
    data: dict[str, Any],
    change: Mapping[str, Any],
    place: str,
    words: str,
) -> None:
    made = template(engine, **data)
    inputs = {**group_inputs("c", role, subnets[:1], launchTemplate=reference(made)), **change}
    if inputs["subnetIds"] == "both":
        inputs["subnetIds"] = subnets
    said = engine.refusal(NODES, inputs)
    assert any(line.startswith(f"{place}: ") and words in line for line in said.splitlines()), said


def test_add_ons_access_and_identities_are_kept_beside_moto_and_go_with_the_cluster(
    engine: LittleEngine, role: str, subnets: list[str]
) -> None:
    cluster = engine.made(CLUSTER, **cluster_inputs(role, subnets))
    addon_inputs = {
        "clusterName": cluster.id,
        "addonName": "vpc-cni",
        "addonVersion": "v1.20.4-eksbuild.1",
        "configurationValues": json.dumps({"env": {"ENABLE_PREFIX_DELEGATION": "true"}}),
        "podIdentityAssociations": [{"serviceAccount": "aws-node", "roleArn": role}],
        "resolveConflictsOnCreate": "OVERWRITE",
        "resolveConflictsOnUpdate": "PRESERVE",
    }
    addon = engine.made(ADDON, **addon_inputs, tags={"stack": "dev"})
    assert addon.id == f"{cluster.id}:vpc-cni"
    assert addon["arn"].startswith(f"arn:aws:eks:us-east-2:{engine.account}:addon/{cluster.id}/vpc-cni/")
    assert addon.up(**{**addon_inputs, "addonVersion": "v1.21.0-eksbuild.2"}) == "update"
    assert addon.refresh() == "same"

    entry = engine.made(ENTRY, clusterName=cluster.id, principalArn=ADMINISTRATOR, kubernetesGroups=["researchers"])
    assert entry["type"] == "STANDARD"
    policy = {
        "clusterName": cluster.id,
        "principalArn": ADMINISTRATOR,
        "policyArn": f"{POLICIES}/AmazonEKSClusterAdminPolicy",
        "accessScope": {"type": "cluster"},
    }
    association = engine.made(POLICY, **policy)
    assert association.refresh() == "same"
    narrower = {**policy, "accessScope": {"type": "namespace", "namespaces": ["jobs"]}}
    assert association.up(**narrower) == "replace"

    pods = {"clusterName": cluster.id, "namespace": "kube-system", "serviceAccount": "autoscaler", "roleArn": role}
    identity = engine.made(IDENTITY, **pods)
    assert identity["associationArn"].endswith(identity.id)
    with pytest.raises(RefusedError, match="kube-system/autoscaler has the association a-"):
        engine.made(IDENTITY, **pods)

    entry.down()
    assert association.refresh() == "gone"  # policies go with their entry
    with pytest.raises(RefusedError, match="has no access entry"):
        engine.made(POLICY, **policy)
    cluster.down()
    assert [each.refresh() for each in (addon, identity)] == ["gone", "gone"]
    with pytest.raises(RefusedError, match="there is no cluster"):
        engine.made(ADDON, **addon_inputs)


@pytest.mark.parametrize(
    ("token", "inputs", "place", "words"),
    [
        (ADDON, {"addonName": "vpc-cni", "addonVersion": "1.20.4"}, "addonVersion", "no version of an add-on"),
        (ADDON, {"addonName": "vpc-cni", "configurationValues": "{"}, "configurationValues", "neither JSON nor YAML"),
        (ADDON, {"addonName": "vpc-cni", "configurationValues": "[]"}, "configurationValues", "must be an object"),
        (
            ADDON,
            {"addonName": "vpc-cni", "resolveConflictsOnCreate": "PRESERVE"},
            "resolveConflictsOnCreate",
            "nothing to",
        ),
        (
            ADDON,
            {"addonName": "vpc-cni", "resolveConflictsOnCreate": "overwrite"},
            "resolveConflictsOnCreate",
            "not one",
        ),
        (ENTRY, {"principalArn": "administrator"}, "principalArn", "no ARN of an IAM role or user"),
        (
            ENTRY,
            {"principalArn": ADMINISTRATOR, "kubernetesGroups": ["system:masters"]},
            "kubernetesGroups[0]",
            "kept for EKS",
        ),
        (
            POLICY,
            {
                "principalArn": ADMINISTRATOR,
                "policyArn": "arn:aws:iam::aws:policy/X",
                "accessScope": {"type": "cluster"},
            },
            "policyArn",
            "no access policy of EKS",
        ),
        (
            POLICY,
            {
                "principalArn": ADMINISTRATOR,
                "policyArn": f"{POLICIES}/AmazonEKSEditPolicy",
                "accessScope": {"type": "namespace"},
            },
            "accessScope.namespaces",
            "needs the namespaces",
        ),
        (IDENTITY, {"namespace": "jobs", "serviceAccount": "s"}, "", "roleArn is required"),
    ],
)
def test_parts_of_a_cluster_that_eks_refuses(
    engine: LittleEngine, token: str, inputs: dict[str, Any], place: str, words: str
) -> None:
    said = engine.refusal(token, {"clusterName": "c", **inputs})
    assert any(line.startswith(f"{place}: ") and words in line for line in said.splitlines()), said


def test_a_role_that_pods_may_not_take_is_refused(engine: LittleEngine) -> None:
    trust = json.dumps({"Statement": [{"Principal": {"Service": "ec2.amazonaws.com"}}]})
    other = engine.boto("iam").create_role(RoleName="machines", AssumeRolePolicyDocument=trust)["Role"]["Arn"]
    inputs = {"clusterName": "c", "namespace": "n", "serviceAccount": "s", "roleArn": other}
    assert "the role machines does not trust pods.eks.amazonaws.com" in engine.refusal(IDENTITY, inputs)


def test_a_cluster_that_knows_people_by_a_config_map_takes_no_entries(
    engine: LittleEngine, role: str, subnets: list[str]
) -> None:
    cluster = engine.made(CLUSTER, **cluster_inputs(role, subnets, accessConfig={"authenticationMode": "CONFIG_MAP"}))
    with pytest.raises(RefusedError, match="takes no access entries"):
        engine.made(ENTRY, clusterName=cluster.id, principalArn=ADMINISTRATOR)
    cluster.down()


def test_a_preview_of_a_cluster_knows_its_name_and_arn_but_not_its_security_group(
    engine: LittleEngine, role: str, subnets: list[str]
) -> None:
    known = engine.preview(CLUSTER, **cluster_inputs(UNKNOWN, UNKNOWN, name="new"))  # type: ignore[arg-type]
    assert known["arn"] == f"arn:aws:eks:us-east-2:{engine.account}:cluster/new"
    assert known["vpcConfig"]["clusterSecurityGroupId"] is known["endpoint"] is UNKNOWN
    assert known["vpcConfig"]["endpointPrivateAccess"] is True
