"""The network and the control plane: nothing is open that should not be."""

from __future__ import annotations

import json

from given_vpc import IN_A_GIVEN_VPC
from recorded_program import Recorded, run

pytest_plugins = ["stacks_fixture"]


def test_the_api_is_reached_from_inside_and_from_named_addresses_only(prod: Recorded) -> None:
    access = prod.one("Cluster", "cluster").inputs["vpcConfig"]
    assert access["endpointPrivateAccess"] is True
    assert access["endpointPublicAccess"] is True
    assert access["publicAccessCidrs"] == ["203.0.113.0/24"]


def test_without_named_addresses_there_is_no_public_endpoint() -> None:
    access = run(IN_A_GIVEN_VPC).one("Cluster", "cluster").inputs["vpcConfig"]
    assert access["endpointPublicAccess"] is False
    assert "publicAccessCidrs" not in access


def test_no_rule_lets_the_whole_internet_in(prod: Recorded) -> None:
    rules = prod.of("SecurityGroupIngressRule")
    assert len(rules) >= 5
    assert not [each.name for each in rules if each.inputs.get("cidrIpv4") == "0.0.0.0/0"]
    assert not [each for each in prod.of("SecurityGroup") if {"ingress", "egress"} & set(each.inputs)]


def test_the_default_group_has_no_rules(prod: Recorded) -> None:
    inputs = prod.one("DefaultSecurityGroup", "nobody").inputs
    assert (inputs["ingress"], inputs["egress"]) == ([], [])


def test_machines_stand_in_private_subnets_and_leave_by_the_gateway_of_their_zone(prod: Recorded) -> None:
    for zone in ("us-east-2a", "us-east-2b", "us-east-2c"):
        route = prod.one("Route", f"private-{zone}-out").inputs
        assert route["natGatewayId"] == f"nat-{zone}-id"
        assert "gatewayId" not in route
        assert prod.one("NatGateway", f"nat-{zone}").inputs["subnetId"] == f"public-{zone}-id"
    assert not any(each.inputs["mapPublicIpOnLaunch"] for each in prod.of("Subnet"))


def test_one_gateway_serves_all_zones_where_that_is_enough(dev: Recorded) -> None:
    (gateway,) = dev.of("NatGateway")
    ways = {each.inputs["natGatewayId"] for each in dev.of("Route") if each.name.startswith("private-")}
    assert ways == {f"{gateway.name}-id"}


def test_load_balancers_find_their_subnets(prod: Recorded) -> None:
    for each in prod.of("Subnet"):
        role = "elb" if each.name.startswith("public") else "internal-elb"
        assert each.inputs["tags"][f"kubernetes.io/role/{role}"] == "1"


def test_images_logs_and_credentials_come_without_leaving_the_vpc(prod: Recorded) -> None:
    interfaces = {
        each.inputs["serviceName"]: each.inputs
        for each in prod.of("VpcEndpoint")
        if each.inputs["vpcEndpointType"] == "Interface"
    }
    for service in ("ecr.api", "ecr.dkr", "sts", "ec2", "eks-auth", "logs", "autoscaling"):
        endpoint = interfaces[f"com.amazonaws.us-east-2.{service}"]
        assert endpoint["privateDnsEnabled"] is True
        assert len(endpoint["subnetIds"]) == 3
        assert endpoint["securityGroupIds"] == ["endpoints-id"]


def test_s3_has_its_free_endpoint_in_every_private_route_table(dev: Recorded, prod: Recorded) -> None:
    for stack, zones in ((dev, 2), (prod, 3)):
        endpoint = stack.one("VpcEndpoint", "s3").inputs
        assert endpoint["vpcEndpointType"] == "Gateway"
        assert len(endpoint["routeTableIds"]) == zones


def test_connections_are_recorded_encrypted_by_a_role_that_can_do_nothing_else(prod: Recorded) -> None:
    log, (writer,) = (
        prod.one("LogGroup", "flow-logs").inputs,
        prod.one("RolePolicy", "flow-logs-writer-rights").statements(),
    )
    assert log["kmsKeyId"].endswith(":key")
    assert log["retentionInDays"] == 365
    group = "arn:aws:logs:us-east-2:123456789012:log-group:/aws/vpc/trainyard-prod"
    assert writer["Resource"] == [group, f"{group}:*"]
    (trust,) = prod.one("Role", "flow-logs-writer").statements("assumeRolePolicy")
    assert trust["Condition"]["StringEquals"] == {"aws:SourceAccount": "123456789012"}


def test_the_control_plane_s_log_group_is_there_before_eks_would_make_one_for_ever(prod: Recorded) -> None:
    cluster, log = prod.one("Cluster", "cluster"), prod.one("LogGroup", "control-plane-logs")
    assert log.inputs["name"] == "/aws/eks/trainyard-prod/cluster"
    assert log.urn in cluster.after
    assert cluster.inputs["enabledClusterLogTypes"] == [
        "api",
        "audit",
        "authenticator",
        "controllerManager",
        "scheduler",
    ]


def test_secrets_are_encrypted_with_the_stack_s_key_which_rotates(prod: Recorded) -> None:
    encryption = prod.one("Cluster", "cluster").inputs["encryptionConfig"]
    assert encryption["resources"] == ["secrets"]
    assert encryption["provider"]["keyArn"].endswith(":key")
    assert prod.one("Key", "key").inputs["enableKeyRotation"] is True


def test_a_given_key_is_used_everywhere_and_none_is_made() -> None:
    arn = "arn:aws:kms:us-east-2:123456789012:key/1234"
    stack = run({**IN_A_GIVEN_VPC, "aws": {**IN_A_GIVEN_VPC["aws"], "kmsKeyArn": arn}})
    assert not stack.of("Key")
    for kind in ("Cluster", "LogGroup", "LaunchTemplate", "FileSystem", "LustreFileSystem", "Repository"):
        made = [each for each in stack.of(kind) if each.type.startswith("aws:")]
        assert made, kind
        assert all(arn in json.dumps(each.inputs) for each in made), kind


def test_add_ons_have_versions_and_are_eks_s_own(prod: Recorded) -> None:
    assert prod.one("Cluster", "cluster").inputs["bootstrapSelfManagedAddons"] is False
    names = {each.inputs["addonName"] for each in prod.of("Addon")}
    assert names == {
        "vpc-cni", "kube-proxy", "coredns", "eks-pod-identity-agent", "metrics-server", "eks-node-monitoring-agent",
        "aws-ebs-csi-driver", "aws-efs-csi-driver", "aws-fsx-csi-driver",
    }  # fmt: skip
    assert all(each.inputs["addonVersion"].startswith("v") for each in prod.of("Addon"))


def test_the_driver_of_a_file_system_is_there_only_with_the_file_system(dev: Recorded) -> None:
    names = {each.inputs["addonName"] for each in dev.of("Addon")}
    assert "aws-efs-csi-driver" in names
    assert "aws-fsx-csi-driver" not in names


def test_network_policies_have_an_effect(prod: Recorded) -> None:
    """Without this setting of the CNI they are accepted and do nothing."""
    assert json.loads(prod.one("Addon", "vpc-cni").inputs["configurationValues"])["enableNetworkPolicy"] == "true"
    assert prod.of("NetworkPolicy")
