"""In a VPC that exists the stack changes nothing: it takes the subnets, and adds groups for its own parts."""

from __future__ import annotations

from given_vpc import IN_A_GIVEN_VPC, SUBNETS
from recorded_program import CLUSTER_GROUP, run


def test_nothing_of_the_network_is_made_but_security_groups() -> None:
    stack = run(IN_A_GIVEN_VPC)
    made = {each.type.split(":")[-1] for each in stack.resources if each.type.startswith("aws:ec2/")}
    assert made == {"SecurityGroup", "LaunchTemplate", "PlacementGroup"}
    assert {each.inputs["vpcId"] for each in stack.of("SecurityGroup")} == {"vpc-0123456789abcdef0"}


def test_machines_and_file_systems_stand_in_the_subnets_of_their_zones() -> None:
    stack = run(IN_A_GIVEN_VPC)
    assert stack.one("NodeGroup", "fabric-nodes").inputs["subnetIds"] == [SUBNETS["us-east-2b"]]
    assert stack.one("LustreFileSystem", "lustre").inputs["subnetIds"] == SUBNETS["us-east-2b"]
    assert stack.one("Cluster", "cluster").inputs["vpcConfig"]["subnetIds"] == list(SUBNETS.values())
    assert {each.inputs["subnetId"] for each in stack.of("MountTarget")} == set(SUBNETS.values())


def test_an_on_demand_pool_with_efa_gets_a_placement_group() -> None:
    stack = run(IN_A_GIVEN_VPC)
    assert stack.one("PlacementGroup", "fabric-placement").inputs["strategy"] == "cluster"
    assert stack.one("LaunchTemplate", "fabric").inputs["placement"] == {"groupName": "trainyard-dev-fabric"}


def test_both_disks_of_bottlerocket_are_encrypted_and_only_that_of_the_images_is_large() -> None:
    disks = run(IN_A_GIVEN_VPC).one("LaunchTemplate", "bottle").inputs["blockDeviceMappings"]
    assert [(each["deviceName"], each["ebs"].get("volumeSize")) for each in disks] == [
        ("/dev/xvda", None),
        ("/dev/xvdb", 200),
    ]
    assert {each["ebs"]["encrypted"] for each in disks} == {"true"}
    primary = run(IN_A_GIVEN_VPC).one("LaunchTemplate", "bottle").inputs["networkInterfaces"][0]
    assert primary["securityGroups"] == [CLUSTER_GROUP]
