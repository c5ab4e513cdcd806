"""VPCs and what is in them: subnets, gateways, routes, endpoints, flow logs."""

from __future__ import annotations

import ipaddress
import zlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, ClassVar

from infra.rehearsal.double.aws import Aws, AwsRefusedError
from infra.rehearsal.double.ec2_resource import GONE, Ec2Kind, retag
from infra.rehearsal.double.kind import Call, Failure, Kind, Made, only, whole_or_gone
from infra.rehearsal.double.values import UNKNOWN, is_known


class Vpc(Ec2Kind):
    """A network of one region."""

    token = "aws:ec2/vpc:Vpc"  # noqa: S105
    resource_type = "vpc"
    describe = ("DescribeVpcs", "VpcIds", "Vpcs")
    replace_on = frozenset({"cidrBlock"})
    computed = frozenset({
        "arn", "defaultNetworkAclId", "defaultRouteTableId", "defaultSecurityGroupId", "dhcpOptionsId",
        "mainRouteTableId",
    })  # fmt: skip

    def requests(self, inputs: Mapping[str, Any]) -> list[Call]:
        """Attributes are set after the VPC is made: its creation takes none."""
        made = Call(
            "ec2",
            "CreateVpc",
            only(
                CidrBlock=inputs.get("cidrBlock", ""),
                TagSpecifications=self.tag_specifications(inputs),
            ),
        )
        return [made, *self._attributes(inputs)]

    def rules(self, inputs: Mapping[str, Any], aws: Aws) -> Iterable[Failure]:  # noqa: ARG002, D102
        yield from _cidr_rule("cidrBlock", inputs.get("cidrBlock"))

    def known(self, inputs: Mapping[str, Any], aws: Aws) -> Mapping[str, Any]:  # noqa: D102
        return {
            "enableDnsSupport": inputs.get("enableDnsSupport", True),
            "enableDnsHostnames": inputs.get("enableDnsHostnames", False),
            "instanceTenancy": "default",
            "ownerId": aws.account,
        }

    def create(self, aws: Aws, name: str, inputs: Mapping[str, Any]) -> Made:  # noqa: ARG002, D102
        first, *attributes = self.requests(inputs)
        made = aws.run(first)["Vpc"]
        with whole_or_gone(self, aws, made["VpcId"], inputs):
            for call in attributes:
                aws.run(call.given(VpcId=made["VpcId"]))
        return Made(made["VpcId"], self.seen(aws, made))

    def seen(self, aws: Aws, item: Mapping[str, Any]) -> dict[str, Any]:  # noqa: D102
        vpc = item["VpcId"]
        within = _in_vpc(vpc)
        tables = aws.call("ec2", "DescribeRouteTables", Filters=within)["RouteTables"]
        main = next((t["RouteTableId"] for t in tables if any(a.get("Main") for a in t["Associations"])), None)
        acls = aws.call("ec2", "DescribeNetworkAcls", Filters=within)["NetworkAcls"]
        return {
            "arn": self.arn(aws, vpc),
            "cidrBlock": item["CidrBlock"],
            "instanceTenancy": item.get("InstanceTenancy", "default"),
            "dhcpOptionsId": item["DhcpOptionsId"],
            "enableDnsSupport": self._attribute(aws, vpc, "enableDnsSupport"),
            "enableDnsHostnames": self._attribute(aws, vpc, "enableDnsHostnames"),
            "defaultNetworkAclId": next((acl["NetworkAclId"] for acl in acls if acl["IsDefault"]), None),
            "defaultRouteTableId": main,
            "mainRouteTableId": main,
            "defaultSecurityGroupId": default_security_group(aws, vpc)["GroupId"],
            "ownerId": aws.account,
        }

    def update(self, aws: Aws, id: str, old: Mapping[str, Any], new: Mapping[str, Any]) -> Mapping[str, Any]:  # noqa: A002, D102
        for call in self._attributes(new):
            aws.run(call.given(VpcId=id))
        retag(aws, id, old, new)
        return {}

    def delete(self, aws: Aws, id: str, state: Mapping[str, Any]) -> None:  # noqa: A002, ARG002
        """Refused while something is in it, as by AWS; moto itself only looks for subnets and route tables."""
        groups = aws.call("ec2", "DescribeSecurityGroups", Filters=_in_vpc(id))["SecurityGroups"]
        attached = [{"Name": "attachment.vpc-id", "Values": [id]}]
        gateways = aws.call("ec2", "DescribeInternetGateways", Filters=attached)["InternetGateways"]
        inside = [group["GroupId"] for group in groups if group["GroupName"] != "default"]
        inside += [gateway["InternetGatewayId"] for gateway in gateways]
        if inside:
            raise AwsRefusedError(
                f"AWS refused ec2:DeleteVpc with DependencyViolation: the vpc {id} has dependencies and cannot be"
                f" deleted: {', '.join(inside)}. Let their resources depend on it, so that they go first",
                "DependencyViolation",
            )
        aws.call("ec2", "DeleteVpc", absent=GONE, VpcId=id)

    @staticmethod
    def _attributes(inputs: Mapping[str, Any]) -> list[Call]:
        """One call for each attribute: AWS takes one at a time, and host names only where there is DNS.

        What is not given is said as well: an input that a program no longer has goes back to what it is without one.
        """
        support, names = inputs.get("enableDnsSupport", True), inputs.get("enableDnsHostnames", False)
        return [
            Call("ec2", "ModifyVpcAttribute", {"VpcId": UNKNOWN, member: {"Value": value}})
            for member, value in (("EnableDnsSupport", support), ("EnableDnsHostnames", names))
        ]

    @staticmethod
    def _attribute(aws: Aws, vpc: str, attribute: str) -> bool:
        answer = aws.call("ec2", "DescribeVpcAttribute", VpcId=vpc, Attribute=attribute)
        return bool(answer[attribute[0].upper() + attribute[1:]]["Value"])


class Subnet(Ec2Kind):
    """A part of a VPC in one zone."""

    token = "aws:ec2/subnet:Subnet"  # noqa: S105
    resource_type = "subnet"
    describe = ("DescribeSubnets", "SubnetIds", "Subnets")
    replace_on = frozenset({"vpcId", "cidrBlock", "availabilityZone"})
    computed = frozenset({"arn", "availabilityZoneId"})

    def requests(self, inputs: Mapping[str, Any]) -> list[Call]:  # noqa: D102
        made = Call(
            "ec2",
            "CreateSubnet",
            only(
                VpcId=inputs.get("vpcId"),
                CidrBlock=inputs.get("cidrBlock"),
                AvailabilityZone=inputs.get("availabilityZone"),
                TagSpecifications=self.tag_specifications(inputs),
            ),
        )
        return [made, *self._attributes(inputs)]

    def rules(self, inputs: Mapping[str, Any], aws: Aws) -> Iterable[Failure]:  # noqa: D102
        yield from _cidr_rule("cidrBlock", inputs.get("cidrBlock"))
        zone = inputs.get("availabilityZone")
        if isinstance(zone, str) and not (zone[:-1] == aws.region and zone[-1:].isalpha()):
            yield Failure("availabilityZone", f"{zone} is no availability zone of {aws.region}")

    def known(self, inputs: Mapping[str, Any], aws: Aws) -> Mapping[str, Any]:  # noqa: D102
        return {"mapPublicIpOnLaunch": inputs.get("mapPublicIpOnLaunch", False), "ownerId": aws.account}

    def create(self, aws: Aws, name: str, inputs: Mapping[str, Any]) -> Made:  # noqa: ARG002, D102
        first, *attributes = self.requests(inputs)
        made = aws.run(first)["Subnet"]
        with whole_or_gone(self, aws, made["SubnetId"], inputs):
            for call in attributes:
                aws.run(call.given(SubnetId=made["SubnetId"]))
        return Made(made["SubnetId"], self.seen(aws, self.find(aws, made["SubnetId"]) or made))

    def seen(self, aws: Aws, item: Mapping[str, Any]) -> dict[str, Any]:  # noqa: D102
        return {
            "arn": self.arn(aws, item["SubnetId"]),
            "vpcId": item["VpcId"],
            "cidrBlock": item["CidrBlock"],
            "availabilityZone": item["AvailabilityZone"],
            "availabilityZoneId": item["AvailabilityZoneId"],
            "mapPublicIpOnLaunch": item["MapPublicIpOnLaunch"],
            "ownerId": aws.account,
        }

    def update(self, aws: Aws, id: str, old: Mapping[str, Any], new: Mapping[str, Any]) -> Mapping[str, Any]:  # noqa: A002, D102
        for call in self._attributes(new):
            aws.run(call.given(SubnetId=id))
        retag(aws, id, old, new)
        return {}

    def delete(self, aws: Aws, id: str, state: Mapping[str, Any]) -> None:  # noqa: A002, ARG002, D102
        aws.call("ec2", "DeleteSubnet", absent=GONE, SubnetId=id)

    @staticmethod
    def _attributes(inputs: Mapping[str, Any]) -> list[Call]:
        public = inputs.get("mapPublicIpOnLaunch", False)
        return [Call("ec2", "ModifySubnetAttribute", {"SubnetId": UNKNOWN, "MapPublicIpOnLaunch": {"Value": public}})]


class InternetGateway(Ec2Kind):
    """The way of public subnets to the internet."""

    token = "aws:ec2/internetGateway:InternetGateway"  # noqa: S105
    resource_type = "internet-gateway"
    describe = ("DescribeInternetGateways", "InternetGatewayIds", "InternetGateways")
    computed = frozenset({"arn"})

    def requests(self, inputs: Mapping[str, Any]) -> list[Call]:  # noqa: D102
        made = Call("ec2", "CreateInternetGateway", only(TagSpecifications=self.tag_specifications(inputs)))
        vpc = inputs.get("vpcId")
        return [made] if vpc is None else [made, self._attach(vpc)]

    def create(self, aws: Aws, name: str, inputs: Mapping[str, Any]) -> Made:  # noqa: ARG002, D102
        first, *attach = self.requests(inputs)
        made = aws.run(first)["InternetGateway"]["InternetGatewayId"]
        with whole_or_gone(self, aws, made, {}):  # not attached yet
            for call in attach:
                aws.run(call.given(InternetGatewayId=made))
        return Made(made, {"arn": self.arn(aws, made), "ownerId": aws.account})

    def seen(self, aws: Aws, item: Mapping[str, Any]) -> dict[str, Any]:  # noqa: D102
        attached = [attachment["VpcId"] for attachment in item["Attachments"]]
        return {
            "arn": self.arn(aws, item["InternetGatewayId"]),
            "vpcId": attached[0] if attached else None,
            "ownerId": aws.account,
        }

    def update(self, aws: Aws, id: str, old: Mapping[str, Any], new: Mapping[str, Any]) -> Mapping[str, Any]:  # noqa: A002, D102
        if old.get("vpcId") != new.get("vpcId"):
            self._detach(aws, id, old)
            if new.get("vpcId"):
                aws.run(self._attach(new["vpcId"]).given(InternetGatewayId=id))
        retag(aws, id, old, new)
        return {}

    def delete(self, aws: Aws, id: str, state: Mapping[str, Any]) -> None:  # noqa: A002, D102
        self._detach(aws, id, state)
        aws.call("ec2", "DeleteInternetGateway", absent=GONE, InternetGatewayId=id)

    @staticmethod
    def _attach(vpc: Any) -> Call:
        return Call("ec2", "AttachInternetGateway", {"InternetGatewayId": UNKNOWN, "VpcId": vpc})

    @staticmethod
    def _detach(aws: Aws, id: str, state: Mapping[str, Any]) -> None:  # noqa: A002
        """Refused while addresses of the VPC are reached through it, as by AWS; moto does not look."""
        if not (vpc := state.get("vpcId")):
            return
        gateways = aws.call("ec2", "DescribeNatGateways", Filter=_in_vpc(vpc))["NatGateways"]
        if using := [each["NatGatewayId"] for each in gateways if each["State"] not in NatGateway.gone_states]:
            raise AwsRefusedError(
                f"AWS refused ec2:DetachInternetGateway with DependencyViolation: {vpc} has some mapped public"
                f" addresses, those of {', '.join(using)}. Let these depend on the gateway, so that they go first",
                "DependencyViolation",
            )
        absent = {*GONE, "Gateway.NotAttached"}
        aws.call("ec2", "DetachInternetGateway", absent=absent, InternetGatewayId=id, VpcId=vpc)


class Eip(Ec2Kind):
    """A public address."""

    token = "aws:ec2/eip:Eip"  # noqa: S105
    resource_type = "elastic-ip"
    describe = ("DescribeAddresses", "AllocationIds", "Addresses")
    replace_on = frozenset({"domain"})
    computed = frozenset({"allocationId", "arn", "publicDns", "publicIp"})

    def requests(self, inputs: Mapping[str, Any]) -> list[Call]:  # noqa: D102
        request = only(Domain=inputs.get("domain"), TagSpecifications=self.tag_specifications(inputs))
        return [Call("ec2", "AllocateAddress", request)]

    def create(self, aws: Aws, name: str, inputs: Mapping[str, Any]) -> Made:  # noqa: ARG002, D102
        made = aws.run(self.requests(inputs)[0])
        return Made(made["AllocationId"], self.seen(aws, made))

    def seen(self, aws: Aws, item: Mapping[str, Any]) -> dict[str, Any]:  # noqa: D102
        dashed = item["PublicIp"].replace(".", "-")
        return {
            "arn": self.arn(aws, item["AllocationId"]),
            "allocationId": item["AllocationId"],
            "domain": item.get("Domain", "vpc"),
            "publicIp": item["PublicIp"],
            "publicDns": f"ec2-{dashed}.{aws.region}.compute.{aws.dns_suffix}",
        }

    def update(self, aws: Aws, id: str, old: Mapping[str, Any], new: Mapping[str, Any]) -> Mapping[str, Any]:  # noqa: A002, D102
        retag(aws, id, old, new)
        return {}

    def delete(self, aws: Aws, id: str, state: Mapping[str, Any]) -> None:  # noqa: A002, ARG002, D102
        aws.call("ec2", "ReleaseAddress", absent=GONE, AllocationId=id)


class NatGateway(Ec2Kind):
    """The way of private subnets to the internet."""

    token = "aws:ec2/natGateway:NatGateway"  # noqa: S105
    resource_type = "natgateway"
    describe = ("DescribeNatGateways", "NatGatewayIds", "NatGateways")
    gone_states = frozenset({"deleted", "deleting"})
    replace_on = frozenset({"allocationId", "subnetId", "connectivityType"})
    computed = frozenset({"associationId", "networkInterfaceId", "privateIp", "publicIp"})

    def requests(self, inputs: Mapping[str, Any]) -> list[Call]:  # noqa: D102
        request = only(
            SubnetId=inputs.get("subnetId"),
            AllocationId=inputs.get("allocationId"),
            ConnectivityType=inputs.get("connectivityType"),
            TagSpecifications=self.tag_specifications(inputs),
        )
        return [Call("ec2", "CreateNatGateway", request)]

    def rules(self, inputs: Mapping[str, Any], aws: Aws) -> Iterable[Failure]:  # noqa: ARG002, D102
        if inputs.get("subnetId") is None:
            yield Failure("subnetId", "a NAT gateway needs the public subnet that it stands in")
        if inputs.get("connectivityType", "public") == "public" and inputs.get("allocationId") is None:
            yield Failure("allocationId", "a public NAT gateway needs the allocation id of an elastic IP address")

    def known(self, inputs: Mapping[str, Any], aws: Aws) -> Mapping[str, Any]:  # noqa: ARG002, D102
        return {"connectivityType": inputs.get("connectivityType", "public")}

    def create(self, aws: Aws, name: str, inputs: Mapping[str, Any]) -> Made:  # noqa: ARG002, D102
        made = aws.run(self.requests(inputs)[0])["NatGateway"]
        return Made(made["NatGatewayId"], self.seen(aws, made))

    def seen(self, aws: Aws, item: Mapping[str, Any]) -> dict[str, Any]:  # noqa: ARG002, D102
        address: Mapping[str, Any] = next(iter(item.get("NatGatewayAddresses", [])), {})
        return {
            "subnetId": item["SubnetId"],
            "connectivityType": item.get("ConnectivityType", "public"),
            "allocationId": address.get("AllocationId"),
            "associationId": address.get("AssociationId"),
            "networkInterfaceId": address.get("NetworkInterfaceId"),
            "privateIp": address.get("PrivateIp"),
            "publicIp": address.get("PublicIp"),
        }

    def update(self, aws: Aws, id: str, old: Mapping[str, Any], new: Mapping[str, Any]) -> Mapping[str, Any]:  # noqa: A002, D102
        retag(aws, id, old, new)
        return {}

    def delete(self, aws: Aws, id: str, state: Mapping[str, Any]) -> None:  # noqa: A002, ARG002, D102
        aws.call("ec2", "DeleteNatGateway", absent=GONE, NatGatewayId=id)


class RouteTable(Ec2Kind):
    """Where traffic of a subnet goes; the routes are resources of their own."""

    token = "aws:ec2/routeTable:RouteTable"  # noqa: S105
    resource_type = "route-table"
    describe = ("DescribeRouteTables", "RouteTableIds", "RouteTables")
    replace_on = frozenset({"vpcId"})
    computed = frozenset({"arn"})

    def requests(self, inputs: Mapping[str, Any]) -> list[Call]:  # noqa: D102
        request = only(VpcId=inputs.get("vpcId"), TagSpecifications=self.tag_specifications(inputs))
        return [Call("ec2", "CreateRouteTable", request)]

    def create(self, aws: Aws, name: str, inputs: Mapping[str, Any]) -> Made:  # noqa: ARG002, D102
        made = aws.run(self.requests(inputs)[0])["RouteTable"]
        return Made(made["RouteTableId"], self.seen(aws, made))

    def seen(self, aws: Aws, item: Mapping[str, Any]) -> dict[str, Any]:  # noqa: D102
        return {"arn": self.arn(aws, item["RouteTableId"]), "vpcId": item["VpcId"], "ownerId": aws.account}

    def update(self, aws: Aws, id: str, old: Mapping[str, Any], new: Mapping[str, Any]) -> Mapping[str, Any]:  # noqa: A002, D102
        retag(aws, id, old, new)
        return {}

    def delete(self, aws: Aws, id: str, state: Mapping[str, Any]) -> None:  # noqa: A002, ARG002, D102
        aws.call("ec2", "DeleteRouteTable", absent=GONE, RouteTableId=id)


class Route(Kind):
    """One destination of a route table."""

    token = "aws:ec2/route:Route"  # noqa: S105
    tagged = False
    replace_on = frozenset({"routeTableId", "destinationCidrBlock", "destinationIpv6CidrBlock"})
    computed = frozenset({"origin", "state"})
    _TARGETS: ClassVar = {
        "gatewayId": "GatewayId",
        "natGatewayId": "NatGatewayId",
        "networkInterfaceId": "NetworkInterfaceId",
    }

    def requests(self, inputs: Mapping[str, Any]) -> list[Call]:  # noqa: D102
        return [self._call("CreateRoute", inputs)]

    def rules(self, inputs: Mapping[str, Any], aws: Aws) -> Iterable[Failure]:  # noqa: ARG002, D102
        targets = [key for key in self._TARGETS if inputs.get(key) is not None]
        if len(targets) != 1:
            given = " and ".join(targets) if targets else "none"
            yield Failure(
                targets[-1] if targets else "", f"a route has exactly one of {', '.join(self._TARGETS)}; given: {given}"
            )
        if (inputs.get("destinationCidrBlock") is None) == (inputs.get("destinationIpv6CidrBlock") is None):
            yield Failure("destinationCidrBlock", "a route has exactly one destination")

    def create(self, aws: Aws, name: str, inputs: Mapping[str, Any]) -> Made:  # noqa: ARG002, D102
        aws.run(self.requests(inputs)[0])
        destination = inputs.get("destinationCidrBlock") or inputs["destinationIpv6CidrBlock"]
        # The provider's own form of the id: r-<table><checksum of the destination>.
        made = f"r-{inputs['routeTableId']}{zlib.crc32(destination.encode())}"
        return Made(made, {"origin": "CreateRoute", "state": "active"})

    def read(self, aws: Aws, id: str, state: Mapping[str, Any]) -> Mapping[str, Any] | None:  # noqa: A002, ARG002, D102
        answer = aws.call("ec2", "DescribeRouteTables", absent=GONE, RouteTableIds=[state["routeTableId"]])
        for route in answer["RouteTables"][0]["Routes"] if answer and answer["RouteTables"] else []:
            if state.get("destinationCidrBlock") and route.get("DestinationCidrBlock") == state["destinationCidrBlock"]:
                break
            six = state.get("destinationIpv6CidrBlock")
            if six and route.get("DestinationIpv6CidrBlock") == six:
                break
        else:
            return None
        return {
            **{key: route.get(member) for key, member in self._TARGETS.items()},
            "origin": route.get("Origin", "CreateRoute"),
            "state": route.get("State", "active"),
        }

    def update(self, aws: Aws, id: str, old: Mapping[str, Any], new: Mapping[str, Any]) -> Mapping[str, Any]:  # noqa: A002, ARG002, D102
        aws.run(self._call("ReplaceRoute", new))
        return {}

    def delete(self, aws: Aws, id: str, state: Mapping[str, Any]) -> None:  # noqa: A002, ARG002, D102
        aws.call("ec2", "DeleteRoute", absent=GONE, **self._place(state))

    def _call(self, operation: str, inputs: Mapping[str, Any]) -> Call:
        targets = {member: inputs.get(key) for key, member in self._TARGETS.items()}
        return Call("ec2", operation, only(**self._place(inputs), **targets))

    @staticmethod
    def _place(inputs: Mapping[str, Any]) -> dict[str, Any]:
        return only(
            RouteTableId=inputs.get("routeTableId"),
            DestinationCidrBlock=inputs.get("destinationCidrBlock"),
            DestinationIpv6CidrBlock=inputs.get("destinationIpv6CidrBlock"),
        )


class RouteTableAssociation(Kind):
    """Which route table a subnet uses. EC2 gives a new id with each table, so it is found by its one subnet."""

    token = "aws:ec2/routeTableAssociation:RouteTableAssociation"  # noqa: S105
    tagged = False
    replace_on = frozenset({"subnetId"})

    def requests(self, inputs: Mapping[str, Any]) -> list[Call]:  # noqa: D102
        request = only(RouteTableId=inputs.get("routeTableId"), SubnetId=inputs.get("subnetId"))
        return [Call("ec2", "AssociateRouteTable", request)]

    def rules(self, inputs: Mapping[str, Any], aws: Aws) -> Iterable[Failure]:  # noqa: ARG002, D102
        if inputs.get("subnetId") is None:
            yield Failure("subnetId", "a route table is associated with a subnet, and none is given")

    def create(self, aws: Aws, name: str, inputs: Mapping[str, Any]) -> Made:  # noqa: ARG002, D102
        return Made(aws.run(self.requests(inputs)[0])["AssociationId"], {})

    def read(self, aws: Aws, id: str, state: Mapping[str, Any]) -> Mapping[str, Any] | None:  # noqa: A002, ARG002, D102
        found = self._of_subnet(aws, state["subnetId"])
        return found and {"routeTableId": found["RouteTableId"], "subnetId": found["SubnetId"]}

    def update(self, aws: Aws, id: str, old: Mapping[str, Any], new: Mapping[str, Any]) -> Mapping[str, Any]:  # noqa: A002, ARG002, D102
        table = new["routeTableId"]
        if found := self._of_subnet(aws, new["subnetId"]):
            present = found["RouteTableAssociationId"]
            aws.call("ec2", "ReplaceRouteTableAssociation", AssociationId=present, RouteTableId=table)
        else:  # taken away by somebody: the provider makes it again
            aws.run(self.requests(new)[0])
        return {}

    def delete(self, aws: Aws, id: str, state: Mapping[str, Any]) -> None:  # noqa: A002, ARG002, D102
        if found := self._of_subnet(aws, state["subnetId"]):
            present = found["RouteTableAssociationId"]
            aws.call("ec2", "DisassociateRouteTable", absent=GONE, AssociationId=present)

    @staticmethod
    def _of_subnet(aws: Aws, subnet: str) -> dict[str, Any] | None:
        filters = [{"Name": "association.subnet-id", "Values": [subnet]}]
        for table in aws.call("ec2", "DescribeRouteTables", Filters=filters)["RouteTables"]:
            for association in table["Associations"]:
                if association.get("SubnetId") == subnet:
                    return dict(association)
        return None


class VpcEndpoint(Ec2Kind):
    """A way to a service of AWS that stays in the VPC."""

    token = "aws:ec2/vpcEndpoint:VpcEndpoint"  # noqa: S105
    resource_type = "vpc-endpoint"
    describe = ("DescribeVpcEndpoints", "VpcEndpointIds", "VpcEndpoints")
    gone_states = frozenset({"deleted", "deleting"})
    replace_on = frozenset({"vpcId", "serviceName", "vpcEndpointType"})
    computed = frozenset({"arn", "dnsEntries", "networkInterfaceIds", "prefixListId", "state"})
    _LISTS: ClassVar = {
        "routeTableIds": ("RouteTableIds", "Gateway"),
        "subnetIds": ("SubnetIds", "Interface"),
        "securityGroupIds": ("SecurityGroupIds", "Interface"),
    }

    def requests(self, inputs: Mapping[str, Any]) -> list[Call]:  # noqa: D102
        request = only(
            VpcId=inputs.get("vpcId"),
            ServiceName=inputs.get("serviceName"),
            VpcEndpointType=inputs.get("vpcEndpointType"),
            PrivateDnsEnabled=inputs.get("privateDnsEnabled"),
            PolicyDocument=inputs.get("policy"),
            TagSpecifications=self.tag_specifications(inputs),
            **{member: inputs.get(key) for key, (member, _) in self._LISTS.items()},
        )
        return [Call("ec2", "CreateVpcEndpoint", request)]

    def rules(self, inputs: Mapping[str, Any], aws: Aws) -> Iterable[Failure]:
        """A gateway endpoint lives in route tables, an interface endpoint in subnets; the names carry the region."""
        kind = inputs.get("vpcEndpointType", "Gateway")
        for key, (_, owner) in self._LISTS.items():
            if is_known(inputs.get(key)) and kind not in {owner, UNKNOWN}:
                yield Failure(key, f"{key} belongs to endpoints of type {owner}, this one is of type {kind}")
        if kind == "Gateway" and inputs.get("privateDnsEnabled") is True:
            yield Failure("privateDnsEnabled", "gateway endpoints have no private DNS names")
        service = inputs.get("serviceName")
        if service is None:
            yield Failure("serviceName", f"the service is missing, e.g. com.amazonaws.{aws.region}.s3")
        elif isinstance(service, str) and not service.startswith((
            f"com.amazonaws.{aws.region}.", f"cn.com.amazonaws.{aws.region}.", "com.amazonaws.vpce.", "aws.",
        )):  # fmt: skip
            yield Failure("serviceName", f"{service} is no service of {aws.region}: com.amazonaws.{aws.region}.…")
        if kind == "Gateway" and isinstance(service, str) and service.rsplit(".", 1)[-1] not in {"s3", "dynamodb"}:
            yield Failure("vpcEndpointType", f"only S3 and DynamoDB have gateway endpoints; {service} takes Interface")

    def known(self, inputs: Mapping[str, Any], aws: Aws) -> Mapping[str, Any]:  # noqa: D102
        return {"vpcEndpointType": inputs.get("vpcEndpointType", "Gateway"), "ownerId": aws.account}

    def create(self, aws: Aws, name: str, inputs: Mapping[str, Any]) -> Made:  # noqa: ARG002, D102
        made = aws.run(self.requests(inputs)[0])["VpcEndpoint"]
        return Made(made["VpcEndpointId"], self.seen(aws, made))

    def seen(self, aws: Aws, item: Mapping[str, Any]) -> dict[str, Any]:  # noqa: D102
        seen = {
            "arn": self.arn(aws, item["VpcEndpointId"]),
            "vpcId": item["VpcId"],
            "serviceName": item["ServiceName"],
            "vpcEndpointType": item["VpcEndpointType"],
            "state": item["State"],
            "networkInterfaceIds": item.get("NetworkInterfaceIds", []),
            "dnsEntries": [
                {"dnsName": entry["DnsName"], "hostedZoneId": entry["HostedZoneId"]}
                for entry in item.get("DnsEntries", [])
            ],
        }
        if item["VpcEndpointType"] == "Gateway":
            seen["routeTableIds"] = item.get("RouteTableIds", [])
            seen["prefixListId"] = f"pl-{zlib.crc32(item['ServiceName'].encode()):08x}"
        else:
            seen["subnetIds"] = item.get("SubnetIds", [])
            seen["securityGroupIds"] = [group["GroupId"] for group in item.get("Groups", [])]
        return seen

    def read(self, aws: Aws, id: str, state: Mapping[str, Any]) -> Mapping[str, Any] | None:  # noqa: A002
        """Lists keep the program's order where they hold the same ids: to EC2 they are sets."""
        seen = super().read(aws, id, state)
        same = {key for key in self._LISTS if seen and set(seen.get(key) or []) == set(state.get(key) or [])}
        return seen and {key: state.get(key) if key in same else value for key, value in seen.items()}

    def update(self, aws: Aws, id: str, old: Mapping[str, Any], new: Mapping[str, Any]) -> Mapping[str, Any]:  # noqa: A002, D102
        changes: dict[str, Any] = {}
        for key, (member, _) in self._LISTS.items():
            before, after = old.get(key) or [], new.get(key) or []
            changes[f"Add{member}"] = [item for item in after if item not in before] or None
            changes[f"Remove{member}"] = [item for item in before if item not in after] or None
        for key, member in (("policy", "PolicyDocument"), ("privateDnsEnabled", "PrivateDnsEnabled")):
            if old.get(key) != new.get(key):
                changes[member] = new.get(key)
        if any(value is not None for value in changes.values()):
            aws.call("ec2", "ModifyVpcEndpoint", VpcEndpointId=id, **changes)
        retag(aws, id, old, new)
        return {}

    def delete(self, aws: Aws, id: str, state: Mapping[str, Any]) -> None:  # noqa: A002, ARG002, D102
        aws.call("ec2", "DeleteVpcEndpoints", absent=GONE, VpcEndpointIds=[id])


class FlowLog(Ec2Kind):
    """A record of the connections of a VPC."""

    token = "aws:ec2/flowLog:FlowLog"  # noqa: S105
    resource_type = "vpc-flow-log"
    describe = ("DescribeFlowLogs", "FlowLogIds", "FlowLogs")
    replace_on = frozenset({
        "iamRoleArn", "logDestination", "logDestinationType", "logFormat", "maxAggregationInterval", "subnetId",
        "trafficType", "vpcId",
    })  # fmt: skip
    computed = frozenset({"arn"})

    def requests(self, inputs: Mapping[str, Any]) -> list[Call]:  # noqa: D102
        vpc, subnet = inputs.get("vpcId"), inputs.get("subnetId")
        request = only(
            ResourceIds=[item for item in (vpc, subnet) if item is not None],
            ResourceType="VPC" if subnet is None else "Subnet",
            TrafficType=inputs.get("trafficType"),
            LogDestinationType=inputs.get("logDestinationType"),
            LogDestination=inputs.get("logDestination"),
            LogFormat=inputs.get("logFormat"),
            DeliverLogsPermissionArn=inputs.get("iamRoleArn"),
            MaxAggregationInterval=inputs.get("maxAggregationInterval"),
            TagSpecifications=self.tag_specifications(inputs),
        )
        return [Call("ec2", "CreateFlowLogs", request, {"DeliverLogsPermissionArn": "iamRoleArn"})]

    def rules(self, inputs: Mapping[str, Any], aws: Aws) -> Iterable[Failure]:  # noqa: ARG002, D102
        if (inputs.get("vpcId") is None) == (inputs.get("subnetId") is None):
            yield Failure("vpcId", "a flow log records exactly one of a VPC and a subnet")
        if inputs.get("trafficType") is None:
            yield Failure("trafficType", "ACCEPT, REJECT or ALL is needed")
        if inputs.get("logDestinationType", "cloud-watch-logs") == "cloud-watch-logs":
            if inputs.get("iamRoleArn") is None:
                yield Failure("iamRoleArn", "delivery to CloudWatch Logs needs a role that may write there")
            if inputs.get("logDestination") is None:
                yield Failure("logDestination", "the ARN of the log group is missing")
        if inputs.get("maxAggregationInterval", 600) not in {60, 600, UNKNOWN}:
            yield Failure("maxAggregationInterval", "it is 60 or 600 seconds")

    def create(self, aws: Aws, name: str, inputs: Mapping[str, Any]) -> Made:  # noqa: ARG002, D102
        made = aws.run(self.requests(inputs)[0])["FlowLogIds"][0]
        return Made(made, {"arn": self.arn(aws, made)})

    def seen(self, aws: Aws, item: Mapping[str, Any]) -> dict[str, Any]:  # noqa: D102
        return {"arn": self.arn(aws, item["FlowLogId"]), "trafficType": item["TrafficType"]}

    def update(self, aws: Aws, id: str, old: Mapping[str, Any], new: Mapping[str, Any]) -> Mapping[str, Any]:  # noqa: A002, D102
        retag(aws, id, old, new)
        return {}

    def delete(self, aws: Aws, id: str, state: Mapping[str, Any]) -> None:  # noqa: A002, ARG002, D102
        aws.call("ec2", "DeleteFlowLogs", absent=GONE, FlowLogIds=[id])


def default_security_group(aws: Aws, vpc: str) -> Mapping[str, Any]:
    """The security group that every VPC has, as EC2 describes it."""
    filters = [*_in_vpc(vpc), {"Name": "group-name", "Values": ["default"]}]
    found: Mapping[str, Any] = aws.call("ec2", "DescribeSecurityGroups", Filters=filters)["SecurityGroups"][0]
    return found


def _in_vpc(vpc: str) -> list[dict[str, Any]]:
    return [{"Name": "vpc-id", "Values": [vpc]}]


def _cidr_rule(key: str, value: Any) -> Iterator[Failure]:
    """VPCs and subnets have /16 to /28, https://docs.aws.amazon.com/vpc/latest/userguide/vpc-cidr-blocks.html."""
    if value is None:
        yield Failure(key, "an IPv4 block is needed, e.g. 10.0.0.0/16")
    if not isinstance(value, str):
        return
    try:
        network = ipaddress.IPv4Network(value)
    except ValueError as error:
        yield Failure(key, f"{value} is no IPv4 block: {error}")
        return
    if not 16 <= network.prefixlen <= 28:
        yield Failure(key, f"{value} is a /{network.prefixlen}; AWS takes /16 to /28")


KINDS: tuple[Kind, ...] = (
    Vpc(), Subnet(), InternetGateway(), Eip(), NatGateway(), RouteTable(), Route(), RouteTableAssociation(),
    VpcEndpoint(), FlowLog(),
)  # fmt: skip
