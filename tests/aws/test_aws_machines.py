"""Launch templates and node groups, held against what EKS and EC2 refuse or, worse, take in silence."""

from __future__ import annotations

import base64
from typing import Any

import pytest
from recorded_program import CLUSTER_GROUP, Recorded, Resource

pytest_plugins = ["stacks_fixture"]

P5_EFA = 32
POOLS = ["system", "gpu-block", "gpu-spot"]


def template(stack: Recorded, pool: str) -> dict[str, Any]:
    return dict(stack.one("LaunchTemplate", pool).inputs)


def group(stack: Recorded, pool: str) -> Resource:
    return stack.one("NodeGroup", f"{pool}-nodes")


@pytest.mark.parametrize("pool", POOLS)
def test_the_primary_interface_carries_the_cluster_s_group_and_addresses(prod: Recorded, pool: str) -> None:
    """As soon as a template names any security group EKS adds none of its own, and machines never join."""
    primary = template(prod, pool)["networkInterfaces"][0]
    assert (primary["networkCardIndex"], primary["deviceIndex"]) == (0, 0)
    assert primary["interfaceType"] == "interface"
    assert primary["securityGroups"] == [CLUSTER_GROUP]


@pytest.mark.parametrize("pool", ["gpu-block", "gpu-spot"])
def test_a_p5_has_all_its_efa_interfaces_in_the_fabric_s_group(prod: Recorded, pool: str) -> None:
    _, *others = template(prod, pool)["networkInterfaces"]
    assert [each["interfaceType"] for each in others] == ["efa-only"] * P5_EFA
    assert sorted(each["networkCardIndex"] for each in others) == list(range(P5_EFA))
    assert max(each["deviceIndex"] for each in others) == 1, "p5 refuses more at launch"
    assert {tuple(each["securityGroups"]) for each in others} == {("efa-id",)}


def test_the_fabric_s_group_lets_everything_in_and_out_but_only_to_itself(prod: Recorded) -> None:
    """Without the rule *out* that names the group itself, SRD does not work, whatever else is open."""
    for kind in ("SecurityGroupIngressRule", "SecurityGroupEgressRule"):
        (rule,) = [each for each in prod.of(kind) if each.inputs["securityGroupId"] == "efa-id"]
        assert rule.inputs["referencedSecurityGroupId"] == "efa-id"
        assert rule.inputs["ipProtocol"] == "-1"
        assert not {"cidrIpv4", "cidrIpv6"} & set(rule.inputs)


def test_a_stack_without_efa_has_no_fabric(dev: Recorded) -> None:
    assert not [each for each in dev.of("SecurityGroup") if each.name == "efa"]
    assert [len(each.inputs["networkInterfaces"]) for each in dev.of("LaunchTemplate")] == [1, 1]


@pytest.mark.parametrize("pool", POOLS)
def test_a_template_has_nothing_that_eks_refuses(prod: Recorded, pool: str) -> None:
    made = template(prod, pool)
    refused = {
        "vpcSecurityGroupIds": "groups stand on the interfaces",
        "securityGroupNames": "groups stand on the interfaces",
        "iamInstanceProfile": "it is the node group's",
        "imageId": "with an image of one's own EKS merges no user data",
        "instanceInitiatedShutdownBehavior": "EKS refuses it",
        "hibernationOptions": "EKS refuses it",
    }
    assert not set(refused) & set(made)
    assert not [each for each in made["networkInterfaces"] if "subnetId" in each], "subnets are the node group's"
    # With several interfaces EC2 refuses this one.
    assert not [each for each in made["networkInterfaces"] if "associatePublicIpAddress" in each]


@pytest.mark.parametrize("pool", POOLS)
def test_the_instance_type_stands_in_one_place_only(prod: Recorded, pool: str) -> None:
    assert ("instanceType" in template(prod, pool)) != ("instanceTypes" in group(prod, pool).inputs)


def test_a_capacity_block_is_named_with_its_market_and_type_in_the_template(prod: Recorded) -> None:
    made, nodes = template(prod, "gpu-block"), group(prod, "gpu-block").inputs
    target = made["capacityReservationSpecification"]["capacityReservationTarget"]
    assert target == {"capacityReservationId": "cr-0123456789abcdef0"}
    assert made["instanceMarketOptions"] == {"marketType": "capacity-block"}
    assert made["instanceType"] == "p5.48xlarge"
    assert nodes["capacityType"] == "CAPACITY_BLOCK"
    assert nodes["scalingConfig"]["desiredSize"] == 0, "before the block begins there is no machine"
    assert "placement" not in made, "a forced placement group breaks a reservation"


def test_spot_is_the_node_group_s_word_and_never_the_template_s(prod: Recorded) -> None:
    assert group(prod, "gpu-spot").inputs["capacityType"] == "SPOT"
    assert "instanceMarketOptions" not in template(prod, "gpu-spot")


@pytest.mark.parametrize("pool", POOLS)
def test_pods_reach_the_metadata_service_by_its_second_version(prod: Recorded, pool: str) -> None:
    options = {"httpEndpoint": "enabled", "httpTokens": "required", "httpPutResponseHopLimit": 2}
    assert template(prod, pool)["metadataOptions"] == options


@pytest.mark.parametrize("pool", POOLS)
def test_disks_are_large_enough_and_encrypted_with_the_stack_s_key(prod: Recorded, pool: str) -> None:
    (disk,) = template(prod, pool)["blockDeviceMappings"]
    assert disk["deviceName"] == "/dev/xvda"
    assert disk["ebs"]["encrypted"] == "true"
    assert disk["ebs"]["volumeType"] == "gp3"
    assert disk["ebs"]["kmsKeyId"].endswith(":key")
    assert disk["ebs"]["volumeSize"] >= 50


@pytest.mark.parametrize("pool", POOLS)
def test_tags_reach_machines_and_disks_and_not_only_the_template(prod: Recorded, pool: str) -> None:
    tagged = {each["resourceType"]: each["tags"] for each in template(prod, pool)["tagSpecifications"]}
    assert set(tagged) == {"instance", "volume", "network-interface"}
    for tags in tagged.values():
        assert tags == {
            "trainyard.dev/stack": "prod",
            "environment": "prod",
            "cost-center": "research",
            "Name": f"trainyard-prod-{pool}",
        }


def test_user_data_is_base64_of_the_nodeadm_multipart(prod: Recorded) -> None:
    text = base64.b64decode(template(prod, "gpu-spot")["userData"]).decode()
    assert "application/node.eks.aws" in text
    assert "RAID0" in text


@pytest.mark.parametrize("pool", POOLS)
def test_the_autoscaler_s_desired_size_is_left_alone(prod: Recorded, pool: str) -> None:
    assert group(prod, pool).ignore_changes == ("scalingConfig.desiredSize",)


def test_taints_are_written_as_eks_spells_them(prod: Recorded) -> None:
    taints = [(each["key"], each["value"], each["effect"]) for each in group(prod, "gpu-spot").inputs["taints"]]
    assert sorted(taints) == [
        ("nvidia.com/gpu", "present", "NO_SCHEDULE"),
        ("trainyard.dev/spot", "true", "NO_SCHEDULE"),
    ]
    assert not group(prod, "system").inputs["taints"]


def test_the_autoscaler_learns_of_efa_and_hugepages_by_tags_of_the_node_group(prod: Recorded) -> None:
    hint = "k8s.io/cluster-autoscaler/node-template/resources/"
    tags = group(prod, "gpu-block").inputs["tags"]
    assert tags[f"{hint}vpc.amazonaws.com/efa"] == "32"
    assert f"{hint}hugepages-2Mi" in tags
    assert not [tag for tag in tags if "node-template/taint" in tag or "node-template/label" in tag]


def test_a_pool_with_efa_stands_in_one_subnet_and_the_system_pool_in_all(prod: Recorded) -> None:
    assert group(prod, "gpu-block").inputs["subnetIds"] == ["private-us-east-2b-id"]
    assert len(group(prod, "system").inputs["subnetIds"]) == 3


@pytest.mark.parametrize("pool", POOLS)
def test_machines_come_after_what_they_need_to_join(prod: Recorded, pool: str) -> None:
    after = {urn.rsplit("::", 1)[-1] for urn in group(prod, pool).after}
    assert {"vpc-cni", "kube-proxy", "eks-pod-identity-agent"} <= after
    assert {"node-AmazonEKSWorkerNodePolicy", "node-AmazonEC2ContainerRegistryPullOnly"} <= after
    assert f"private-{'us-east-2b'}-out" in after, "a way out, before the first image is pulled"


@pytest.mark.parametrize("pool", POOLS)
def test_broken_machines_are_replaced_a_few_at_a_time(prod: Recorded, pool: str) -> None:
    repair = group(prod, pool).inputs["nodeRepairConfig"]
    assert repair["enabled"]
    assert repair["maxParallelNodesRepairedCount"] >= 1
    if pool in ("system", "gpu-block"):
        assert repair["maxParallelNodesRepairedCount"] == 1


@pytest.mark.parametrize("pool", POOLS)
def test_images_of_machines_are_pinned(prod: Recorded, pool: str) -> None:
    inputs = group(prod, pool).inputs
    assert inputs["amiType"].startswith("AL2023_x86_64_")
    assert inputs["releaseVersion"].startswith("1.36.")
    assert inputs["launchTemplate"] == {"id": f"{pool}-id", "version": "1"}
