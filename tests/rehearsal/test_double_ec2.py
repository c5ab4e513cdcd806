"""The network of a rehearsal: what AWS would make, refuse, change and let go."""

import base64
import itertools
from collections.abc import Iterator
from typing import Any

import pytest
from little_engine import LittleEngine, RefusedError, Resource, little_engine

from infra.catalog.instance_types import instance_type
from infra.rehearsal.double.values import UNKNOWN
from infra.wiring.interfaces import interfaces_of

VPC = "aws:ec2/vpc:Vpc"
SUBNET = "aws:ec2/subnet:Subnet"
GATEWAY = "aws:ec2/internetGateway:InternetGateway"
EIP = "aws:ec2/eip:Eip"
NAT = "aws:ec2/natGateway:NatGateway"
TABLE = "aws:ec2/routeTable:RouteTable"
ROUTE = "aws:ec2/route:Route"
ASSOCIATION = "aws:ec2/routeTableAssociation:RouteTableAssociation"
ENDPOINT = "aws:ec2/vpcEndpoint:VpcEndpoint"
GROUP = "aws:ec2/securityGroup:SecurityGroup"
DEFAULT_GROUP = "aws:ec2/defaultSecurityGroup:DefaultSecurityGroup"
INGRESS = "aws:vpc/securityGroupIngressRule:SecurityGroupIngressRule"
EGRESS = "aws:vpc/securityGroupEgressRule:SecurityGroupEgressRule"
FLOW_LOG = "aws:ec2/flowLog:FlowLog"
TEMPLATE = "aws:ec2/launchTemplate:LaunchTemplate"
PLACEMENT = "aws:ec2/placementGroup:PlacementGroup"

numbers = itertools.count()


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LittleEngine]:
    with little_engine(tmp_path_factory.mktemp("ec2")) as engine:
        yield engine


def interfaces(type_name: str) -> list[dict[str, Any]]:
    """What the program asks for on a machine with EFA."""
    return [
        {
            "networkCardIndex": each.card,
            "deviceIndex": each.device_index,
            "interfaceType": each.kind,
            "securityGroups": ["sg-0123456789abcdef0"],
            "deleteOnTermination": "true",
        }
        for each in interfaces_of(instance_type(type_name), efa=True)
    ]


def template(**more: Any) -> dict[str, Any]:
    return {"name": f"template-{next(numbers)}", **more}


def test_a_vpc_with_its_ways_out_is_made_seen_by_boto_changed_and_removed_without_a_trace(engine: LittleEngine) -> None:
    ec2 = engine.boto("ec2")
    before = len(ec2.describe_vpcs()["Vpcs"]), len(ec2.describe_route_tables()["RouteTables"])
    vpc = engine.made(VPC, cidrBlock="10.0.0.0/16", enableDnsSupport=True, enableDnsHostnames=True, tags={"Name": "x"})
    assert vpc["arn"] == f"arn:aws:ec2:us-east-2:{engine.account}:vpc/{vpc.id}"
    assert vpc["tagsAll"] == {"Name": "x"}
    default = ec2.describe_security_groups(GroupIds=[vpc["defaultSecurityGroupId"]])["SecurityGroups"][0]
    assert (default["GroupName"], default["VpcId"]) == ("default", vpc.id)
    assert vpc["mainRouteTableId"].startswith("rtb-")
    subnet = engine.made(SUBNET, vpcId=vpc.id, cidrBlock="10.0.1.0/24", availabilityZone="us-east-2a")
    gateway = engine.made(GATEWAY, vpcId=vpc.id)
    address = engine.made(EIP, domain="vpc")
    nat = engine.made(NAT, subnetId=subnet.id, allocationId=address["allocationId"])
    table = engine.made(TABLE, vpcId=vpc.id)
    route = engine.made(ROUTE, routeTableId=table.id, destinationCidrBlock="0.0.0.0/0", gatewayId=gateway.id)
    association = engine.made(ASSOCIATION, routeTableId=table.id, subnetId=subnet.id)
    everything = [vpc, subnet, gateway, address, nat, table, route, association]
    assert [each.refresh() for each in everything] == ["same"] * len(everything)

    assert (
        vpc.up(cidrBlock="10.0.0.0/16", enableDnsSupport=True, enableDnsHostnames=True, tags={"Name": "y"}) == "update"
    )
    assert ec2.describe_vpcs(VpcIds=[vpc.id])["Vpcs"][0]["Tags"] == [{"Key": "Name", "Value": "y"}]
    assert vpc["defaultSecurityGroupId"] == default["GroupId"]  # what AWS added is still known after a change
    assert route.up(routeTableId=table.id, destinationCidrBlock="0.0.0.0/0", natGatewayId=nat.id) == "update"
    shown = ec2.describe_route_tables(RouteTableIds=[table.id])["RouteTables"][0]["Routes"]
    assert [each["NatGatewayId"] for each in shown if each["DestinationCidrBlock"] == "0.0.0.0/0"] == [nat.id]

    for each in (association, route, table, nat, address, gateway, subnet, vpc):
        each.down()
        each.down()  # gone already: no error
        assert each.refresh() == "gone"
    assert (len(ec2.describe_vpcs()["Vpcs"]), len(ec2.describe_route_tables()["RouteTables"])) == before
    assert not ec2.describe_addresses()["Addresses"]


def test_what_aws_cannot_change_is_replaced(engine: LittleEngine) -> None:
    vpc = engine.made(VPC, cidrBlock="10.1.0.0/16")
    inputs = {"vpcId": vpc.id, "cidrBlock": "10.1.1.0/24", "availabilityZone": "us-east-2a"}
    subnet = engine.made(SUBNET, **inputs)
    first = subnet.id
    assert subnet.up(**inputs) == "same"
    assert subnet.up(**inputs, mapPublicIpOnLaunch=True) == "update"
    assert subnet.up(**{**inputs, "cidrBlock": "10.1.2.0/24"}) == "replace"
    second = subnet.id
    assert subnet.up(**{**inputs, "cidrBlock": "10.1.2.0/24", "availabilityZone": "us-east-2b"}) == "replace"
    assert len({first, second, subnet.id}) == 3
    subnet.down()
    assert vpc.up(cidrBlock="10.2.0.0/16") == "replace"


def test_a_preview_knows_what_follows_from_the_inputs_and_nothing_else(engine: LittleEngine) -> None:
    known = engine.preview(VPC, cidrBlock="10.0.0.0/16")
    assert known["cidrBlock"] == "10.0.0.0/16"
    assert known["arn"] is known["defaultSecurityGroupId"] is UNKNOWN
    placement = engine.preview(PLACEMENT, name="p5", strategy="cluster")
    assert placement["arn"] == f"arn:aws:ec2:us-east-2:{engine.account}:placement-group/p5"
    assert placement["placementGroupId"] is UNKNOWN
    # With unknown ids anywhere a check finds only what is wrong whatever they become.
    assert (
        engine.refusal(SUBNET, {"vpcId": UNKNOWN, "cidrBlock": "10.0.0.0/24", "availabilityZone": "us-east-2a"}) == ""
    )


def test_a_subnet_takes_another_route_table_in_place(engine: LittleEngine) -> None:
    subnet = engine.subnet()
    first, second = (engine.made(TABLE, vpcId=engine.vpc_of(subnet)) for _ in range(2))
    association = engine.made(ASSOCIATION, routeTableId=first.id, subnetId=subnet)
    assert association.up(routeTableId=second.id, subnetId=subnet) == "update"
    (table,) = engine.boto("ec2").describe_route_tables(RouteTableIds=[second.id])["RouteTables"]
    assert [found["SubnetId"] for found in table["Associations"]] == [subnet]
    assert association.refresh() == "same"
    association.down()
    assert association.refresh() == "gone"
    first.down()
    second.down()


@pytest.mark.parametrize(
    ("token", "inputs", "place", "words"),
    [
        (VPC, {"cidrBlock": "10.0.0.0/8"}, "cidrBlock", "AWS takes /16 to /28"),
        (VPC, {"cidrBlock": "10.0.0.1/16"}, "cidrBlock", "no IPv4 block"),
        (VPC, {"cidrBlock": "10.0.0.0/16", "enableDnsSupport": "yes"}, "enableDnsSupport", "must be true or false"),
        (VPC, {"cidrBlock": "10.0.0.0/16", "ipv4IpamPoolId": "x"}, "ipv4IpamPoolId", "does not know this property"),
        (SUBNET, {"cidrBlock": "10.0.0.0/24"}, "", "VpcId is required"),
        (
            SUBNET,
            {"vpcId": "vpc-0", "cidrBlock": "10.0.0.0/24", "availabilityZone": "us-west-2a"},
            "availabilityZone",
            "no availability zone of us-east-2",
        ),
        (NAT, {"subnetId": "subnet-0"}, "allocationId", "needs the allocation id"),
        (ROUTE, {"routeTableId": "rtb-0", "destinationCidrBlock": "0.0.0.0/0"}, "", "exactly one of gatewayId"),
        (
            ENDPOINT,
            {"vpcId": "vpc-0", "serviceName": "com.amazonaws.us-west-2.s3"},
            "serviceName",
            "no service of us-e",
        ),
        (
            ENDPOINT,
            {"vpcId": "vpc-0", "serviceName": "com.amazonaws.us-east-2.s3", "subnetIds": ["subnet-0"]},
            "subnetIds",
            "belongs to endpoints of type Interface",
        ),
        (ENDPOINT, {"vpcId": "vpc-0", "serviceName": "com.amazonaws.us-east-2.eks"}, "vpcEndpointType", "only S3"),
        (GROUP, {"name": "sg-mine", "vpcId": "vpc-0"}, "name", "must not begin with sg-"),
        (GROUP, {"name": "mine", "description": "it's", "vpcId": "vpc-0"}, "description", "are allowed"),
        (INGRESS, {"securityGroupId": "sg-0", "ipProtocol": "-1"}, "", "given: none"),
        (
            INGRESS,
            {"securityGroupId": "sg-0", "ipProtocol": "tcp", "cidrIpv4": "10.0.0.0/8"},
            "fromPort",
            "fromPort and",
        ),
        (
            EGRESS,
            {"securityGroupId": "sg-0", "ipProtocol": "-1", "cidrIpv4": "0.0.0.0/0", "fromPort": 443},
            "fromPort",
            "has no ports",
        ),
        (FLOW_LOG, {"vpcId": "vpc-0", "trafficType": "ALL", "logDestination": "arn:x"}, "iamRoleArn", "needs a role"),
        (FLOW_LOG, {"vpcId": "vpc-0", "trafficType": "EVERY"}, "trafficType", "not one of ACCEPT, REJECT, ALL"),
        (PLACEMENT, {"name": "p5", "strategy": "together"}, "strategy", "not one of cluster"),
    ],
)
def test_what_aws_refuses_is_said_before_anything_is_made(
    engine: LittleEngine, token: str, inputs: dict[str, Any], place: str, words: str
) -> None:
    said = engine.refusal(token, inputs)
    assert any(line.startswith(f"{place}: ") and words in line for line in said.splitlines()), said


def test_an_endpoint_takes_on_and_drops_subnets_in_place(engine: LittleEngine) -> None:
    first = engine.subnet("10.0.1.0/24", zone="a")
    vpc = engine.vpc_of(first)
    second = engine.subnet("10.0.2.0/24", zone="b", vpc=vpc)
    inputs = {"vpcId": vpc, "vpcEndpointType": "Interface", "serviceName": "com.amazonaws.us-east-2.eks"}
    endpoint = engine.made(ENDPOINT, **inputs, subnetIds=[second, first], privateDnsEnabled=True)
    assert endpoint.refresh() == "same"  # whatever order EC2 shows them in
    assert endpoint.up(**inputs, subnetIds=[first], privateDnsEnabled=True) == "update"
    shown = engine.boto("ec2").describe_vpc_endpoints(VpcEndpointIds=[endpoint.id])["VpcEndpoints"][0]
    assert shown["SubnetIds"] == [first]
    endpoint.down()
    assert endpoint.refresh() == "gone"


def test_a_group_that_refers_to_itself_both_ways_and_has_no_other_rule(engine: LittleEngine) -> None:
    ec2 = engine.boto("ec2")
    vpc = engine.made(VPC, cidrBlock="10.3.0.0/16")
    group = engine.made(GROUP, name="efa", description="EFA", vpcId=vpc.id, tags={"Name": "efa"})
    everything = {"securityGroupId": group.id, "referencedSecurityGroupId": group.id, "ipProtocol": "-1"}
    rules = [engine.made(token, **everything, description="itself") for token in (INGRESS, EGRESS)]
    shown = ec2.describe_security_groups(GroupIds=[group.id])["SecurityGroups"][0]
    for permissions in (shown["IpPermissions"], shown["IpPermissionsEgress"]):
        assert [(each["IpProtocol"], each["UserIdGroupPairs"][0]["GroupId"]) for each in permissions] == [
            ("-1", group.id)
        ]
        assert permissions[0]["IpRanges"] == []  # AWS's own rule, everything out to everywhere, is gone
    assert [rule.refresh() for rule in (group, *rules)] == ["same"] * 3

    https = {"securityGroupId": group.id, "cidrIpv4": "10.0.0.0/8", "ipProtocol": "tcp", "fromPort": 443, "toPort": 443}
    rule = engine.made(INGRESS, **https)
    made = rule.id
    assert rule.up(**{**https, "cidrIpv4": "10.3.0.0/16"}) == "update"
    assert (rule.id, rule.refresh()) == (made, "same")
    for each in (rule, *rules, group):
        each.down()
        assert each.refresh() == "gone"


def test_the_group_that_a_vpc_has_from_the_beginning_is_emptied(engine: LittleEngine) -> None:
    vpc = engine.made(VPC, cidrBlock="10.4.0.0/16")
    group = engine.made(DEFAULT_GROUP, vpcId=vpc.id, ingress=[], egress=[], tags={"Name": "nobody"})
    shown = engine.boto("ec2").describe_security_groups(GroupIds=[group.id])["SecurityGroups"][0]
    assert (shown["IpPermissions"], shown["IpPermissionsEgress"]) == ([], [])
    assert group.id == vpc["defaultSecurityGroupId"]
    assert group.refresh() == "same"
    group.down()
    vpc.down()


def test_flow_logs_go_where_a_role_may_write(engine: LittleEngine) -> None:
    vpc = engine.made(VPC, cidrBlock="10.5.0.0/16")
    engine.boto("logs").create_log_group(logGroupName="flow")
    log = engine.made(
        FLOW_LOG,
        vpcId=vpc.id,
        trafficType="ALL",
        logDestinationType="cloud-watch-logs",
        logDestination=f"arn:aws:logs:us-east-2:{engine.account}:log-group:flow",
        iamRoleArn=f"arn:aws:iam::{engine.account}:role/flow",
        maxAggregationInterval=600,
    )
    assert engine.boto("ec2").describe_flow_logs(FlowLogIds=[log.id])["FlowLogs"][0]["ResourceId"] == vpc.id
    assert log.refresh() == "same"
    log.down()
    assert log.refresh() == "gone"


def test_33_interfaces_of_a_p5_reach_ec2_as_they_were_asked_for(engine: LittleEngine) -> None:
    asked = interfaces("p5.48xlarge")
    made = engine.made(
        TEMPLATE,
        **template(
            instanceType="p5.48xlarge",
            updateDefaultVersion=True,
            networkInterfaces=asked,
            metadataOptions={"httpTokens": "required", "httpPutResponseHopLimit": 2},
            blockDeviceMappings=[
                {"deviceName": "/dev/xvda", "ebs": {"volumeSize": 200, "volumeType": "gp3", "encrypted": "true"}}
            ],
            userData=base64.b64encode(b"MIME-Version: 1.0").decode(),
            tagSpecifications=[{"resourceType": "instance", "tags": {"Name": "p5"}}],
            capacityReservationSpecification={"capacityReservationTarget": {"capacityReservationId": "cr-0123456789"}},
        ),
    )
    (version,) = engine.boto("ec2").describe_launch_template_versions(LaunchTemplateId=made.id)[
        "LaunchTemplateVersions"
    ]
    data = version["LaunchTemplateData"]
    assert len(data["NetworkInterfaces"]) == 33
    assert [(i["NetworkCardIndex"], i["DeviceIndex"], i["InterfaceType"]) for i in data["NetworkInterfaces"]] == [
        (i["networkCardIndex"], i["deviceIndex"], i["interfaceType"]) for i in asked
    ]
    assert {i["DeleteOnTermination"] for i in data["NetworkInterfaces"]} == {True}
    assert data["NetworkInterfaces"][0]["Groups"] == ["sg-0123456789abcdef0"]
    assert data["MetadataOptions"]["HttpPutResponseHopLimit"] == 2
    assert data["BlockDeviceMappings"][0]["Ebs"]["Encrypted"] is True
    assert (made["latestVersion"], made["defaultVersion"]) == (1, 1)


def test_a_changed_template_gets_a_new_version_in_place(engine: LittleEngine) -> None:
    inputs = template(instanceType="p5.48xlarge", updateDefaultVersion=True)
    made = engine.made(TEMPLATE, **inputs)
    made_id = made.id
    assert made.up(**inputs, tags={"stack": "dev"}) == "update"
    assert made["latestVersion"] == 1  # tags of the template are not part of its versions
    assert made.up(**{**inputs, "instanceType": "p5e.48xlarge"}) == "update"
    assert (made.id, made["latestVersion"], made["defaultVersion"]) == (made_id, 2, 2)
    assert made.refresh() == "same"
    pinned = {"name": inputs["name"], "instanceType": "p5.48xlarge", "defaultVersion": 2}
    assert made.up(**pinned) == "update"
    assert (made["latestVersion"], made["defaultVersion"]) == (3, 2)
    made.down()
    assert made.refresh() == "gone"


@pytest.mark.parametrize(
    ("change", "place", "words"),
    [
        (
            {"networkInterfaces": [{"subnetId": "subnet-0"}]},
            "networkInterfaces[0].subnetId",
            "no template with subnets",
        ),
        ({"networkInterfaces": [{"deviceIndex": 1}]}, "networkInterfaces", "no primary interface"),
        (
            {"networkInterfaces": [{"interfaceType": "efa-only"}]},
            "networkInterfaces[0].interfaceType",
            "can't be efa-only",
        ),
        (
            {"networkInterfaces": [{"interfaceType": "ena"}]},
            "networkInterfaces[0].interfaceType",
            "not one of interface",
        ),
        ({"networkInterfaces": [{}, {}]}, "networkInterfaces[1]", "another interface with device index 0"),
        ({"networkInterfaces": [{"device_index": 0}]}, "networkInterfaces[0].device_index", "did you mean DeviceIndex"),
        ({"networkInterfaces": [{"deviceIndex": "0"}]}, "networkInterfaces[0].deviceIndex", "must be a whole number"),
        (
            {"networkInterfaces": [{"securityGroups": ["sg-0"]}], "vpcSecurityGroupIds": ["sg-0"]},
            "vpcSecurityGroupIds",
            "none at the top",
        ),
        ({"iamInstanceProfile": {"name": "x"}}, "iamInstanceProfile", "belongs to the node group"),
        (
            {"instanceMarketOptions": {"marketType": "spot"}},
            "instanceMarketOptions.marketType",
            "spot is the node group's",
        ),
        ({"instanceMarketOptions": {"marketType": "spots"}}, "instanceMarketOptions.marketType", "did you mean spot"),
        ({"hibernationOptions": {"configured": True}}, "hibernationOptions.configured", "with hibernation"),
        ({"instanceType": "p5.49xlarge"}, "instanceType", "did you mean p5"),
        (
            {"instanceMarketOptions": {"marketType": "capacity-block"}},
            "capacityReservationSpecification",
            "needs the id",
        ),
        ({"instanceMarketOptions": {"marketType": "capacity-block"}}, "instanceType", "names the instance type"),
        (
            {
                "placement": {"groupName": "p5"},
                "capacityReservationSpecification": {"capacityReservationTarget": {"capacityReservationId": "cr-0"}},
            },
            "placement.groupName",
            "no capacity",
        ),
        ({"metadataOptions": {"httpTokens": "always"}}, "metadataOptions.httpTokens", "not one of optional, required"),
        ({"userData": "not base64!"}, "userData", "base64"),
        ({"userData": base64.b64encode(bytes(16385)).decode()}, "userData", "EC2 takes 16384"),
        (
            {"blockDeviceMappings": [{"ebs": {"encrypted": "perhaps"}}]},
            "blockDeviceMappings[0].ebs.encrypted",
            "true or",
        ),
        ({"secondaryInterfaces": [{}]}, "secondaryInterfaces", "does not know this property"),
    ],
)
def test_templates_that_ec2_or_eks_refuses(
    engine: LittleEngine, change: dict[str, Any], place: str, words: str
) -> None:
    said = engine.refusal(TEMPLATE, template(**change))
    assert any(line.startswith(f"{place}: ") and words in line for line in said.splitlines()), said


def test_interfaces_are_held_against_the_machine(engine: LittleEngine) -> None:
    for type_name in ("p4d.24xlarge", "p5.48xlarge", "p5en.48xlarge", "p6-b200.48xlarge", "p6-b300.48xlarge"):
        assert not engine.refusal(TEMPLATE, template(instanceType=type_name, networkInterfaces=interfaces(type_name)))
    # The layout of one type on another: p5's 32 cards, a p5en has 16.
    said = engine.refusal(TEMPLATE, template(instanceType="p5en.48xlarge", networkInterfaces=interfaces("p5.48xlarge")))
    assert "networkInterfaces[17]: AWS would refuse this: p5en.48xlarge has 16 network cards (0 to 15), no 16" in said
    # Card 0 of a p6-b300 is plain, and a p5 takes no third device.
    first = {"networkCardIndex": 0, "deviceIndex": 0}
    efa = {"networkCardIndex": 0, "deviceIndex": 1, "interfaceType": "efa-only"}
    said = engine.refusal(TEMPLATE, template(instanceType="p6-b300.48xlarge", networkInterfaces=[first, efa]))
    assert "network card 0 of p6-b300.48xlarge has no EFA" in said
    third = {"networkCardIndex": 0, "deviceIndex": 2}
    said = engine.refusal(TEMPLATE, template(instanceType="p5.48xlarge", networkInterfaces=[first, efa, third]))
    assert "takes device indices up to 1, not 2" in said
    assert "takes 2 interfaces on network card 0" in said
    # Unknown security groups don't matter to any of this.
    unknown = [{**each, "securityGroups": UNKNOWN} for each in interfaces("p5.48xlarge")]
    assert not engine.refusal(TEMPLATE, template(instanceType="p5.48xlarge", networkInterfaces=unknown))


def test_placement_groups_are_kept_beside_moto(engine: LittleEngine) -> None:
    inputs = {"name": "p5", "strategy": "cluster"}
    group = engine.made(PLACEMENT, **inputs, tags={"stack": "dev"})
    assert (group.id, group["placementGroupId"][:3]) == ("p5", "pg-")
    with pytest.raises(RefusedError, match=r"InvalidPlacementGroup\.Duplicate"):
        engine.made(PLACEMENT, **inputs)
    assert group.up(**inputs, tags={"stack": "prod"}) == "update"
    assert group.refresh() == "same"
    assert group.up(name="p5", strategy="spread") == "replace"
    group.down()
    assert group.refresh() == "gone"


def test_what_others_need_is_removed_after_them(engine: LittleEngine) -> None:
    vpc = engine.made(VPC, cidrBlock="10.6.0.0/16")
    subnet = engine.made(SUBNET, vpcId=vpc.id, cidrBlock="10.6.1.0/24")
    gateway = engine.made(GATEWAY, vpcId=vpc.id)
    address = engine.made(EIP, domain="vpc")
    nat = engine.made(NAT, subnetId=subnet.id, allocationId=address["allocationId"])
    group = engine.made(GROUP, name="last", vpcId=vpc.id)

    def refused(resource: Resource) -> str:
        with pytest.raises(RefusedError, match="DependencyViolation") as said:
            resource.down()
        return str(said.value)

    assert nat.id in refused(gateway)
    nat.down()
    gateway.down()
    subnet.down()
    assert group.id in refused(vpc)
    for each in (group, address, vpc):
        each.down()
        assert each.refresh() == "gone"
