"""The network: a VPC of the stack's own, or private subnets of one that exists."""

from __future__ import annotations

import pulumi
from pulumi_aws.cloudwatch import LogGroup
from pulumi_aws.ec2 import (
    DefaultSecurityGroup,
    Eip,
    FlowLog,
    InternetGateway,
    NatGateway,
    Route,
    RouteTable,
    RouteTableAssociation,
    SecurityGroup,
    Subnet,
    Vpc,
    VpcEndpoint,
)
from pulumi_aws.iam import Role, RolePolicy
from pulumi_aws.vpc import SecurityGroupIngressRule

from infra.aws.account import Account, document, trust
from infra.aws.names import flow_log_group
from infra.settings.aws import AwsNetwork
from infra.wiring.network import NetworkPlan, subnets_of
from infra.wiring.network import Subnet as SubnetPlan

_EVERYWHERE = "0.0.0.0/0"
_HTTPS = 443


class Network(pulumi.ComponentResource):
    """A VPC whose machines stand in private subnets, with endpoints for what they need of AWS.

    In a VPC that exists nothing is changed and nothing is made, but the security groups of the stack's own parts.
    """

    vpc_id: pulumi.Output[str]
    private: dict[str, pulumi.Output[str]]
    """Id of the private subnet of each zone."""
    ways_out: list[pulumi.Resource]
    """What pods and machines reach AWS through: machines come after it, and go before it."""

    def __init__(
        self,
        name: str,
        *,
        cluster: str,
        network: AwsNetwork,
        retention_days: int,
        key_arn: pulumi.Input[str],
        account: Account,
        opts: pulumi.ResourceOptions,
    ) -> None:
        """Make the network, or take the one that the settings name.

        Args:
            name: logical name.
            cluster: name of the cluster; names of parts are made of it.
            network: the settings.
            retention_days: how long flow logs are kept.
            key_arn: key of the flow logs.
            account: where it is made.
            opts: the component's options.
        """
        super().__init__("trainyard:aws:Network", name, None, opts)
        self._cluster, self._account = cluster, account
        self._child = pulumi.ResourceOptions(parent=self)
        self.ways_out = []
        if network.vpc_id is not None:
            self.vpc_id = pulumi.Output.from_input(network.vpc_id)
            self.private = {zone: pulumi.Output.from_input(each) for zone, each in network.private_subnets.items()}
        else:
            self._make(network, subnets_of(network))
            if network.flow_logs:
                self._record(retention_days, key_arn)
        self.register_outputs({"vpcId": self.vpc_id, "privateSubnets": self.private})

    def private_in(self, zone: str | None) -> list[pulumi.Output[str]]:
        """The private subnet of a zone; of all zones for None."""
        return list(self.private.values()) if zone is None else [self.private[zone]]

    def _make(self, network: AwsNetwork, plan: NetworkPlan) -> None:
        vpc = Vpc(
            "vpc",
            cidr_block=network.cidr,
            enable_dns_support=True,
            enable_dns_hostnames=True,  # EKS and private endpoints need both
            tags={"Name": self._cluster},
            opts=self._child,
        )
        self.vpc_id = vpc.id
        # The group that whatever names no group of its own would get: without rules it lets nothing in or out.
        DefaultSecurityGroup("nobody", vpc_id=vpc.id, ingress=[], egress=[], opts=self._child)
        gateways = self._gateways(vpc, plan)
        tables, self.private = {}, {}
        for each in plan.private:
            subnet = self._subnet(vpc, each, {"kubernetes.io/role/internal-elb": "1"})
            tables[each.zone] = table = self._table(vpc, f"private-{each.zone}", subnet)
            if (nat_zone := plan.nat_zone_for(each.zone)) is not None:
                self.ways_out.append(
                    Route(
                        f"private-{each.zone}-out",
                        route_table_id=table.id,
                        destination_cidr_block=_EVERYWHERE,
                        nat_gateway_id=gateways[nat_zone].id,
                        opts=self._child,
                    )
                )
            self.private[each.zone] = subnet.id
        self._endpoints(vpc, network, plan, [table.id for table in tables.values()])

    def _gateways(self, vpc: Vpc, plan: NetworkPlan) -> dict[str, NatGateway]:
        """Public subnets with their way to the internet, and the NAT gateways in them, by zone."""
        if not plan.public:
            return {}
        internet = InternetGateway("internet", vpc_id=vpc.id, tags={"Name": self._cluster}, opts=self._child)
        made = {}
        for each in plan.public:
            subnet = self._subnet(vpc, each, {"kubernetes.io/role/elb": "1"})
            table = self._table(vpc, f"public-{each.zone}", subnet)
            out = Route(
                f"public-{each.zone}-out",
                route_table_id=table.id,
                destination_cidr_block=_EVERYWHERE,
                gateway_id=internet.id,
                opts=self._child,
            )
            if each.zone in plan.nat_zones:
                name = f"{self._cluster}-nat-{each.zone}"
                address = Eip(f"nat-{each.zone}-address", domain="vpc", tags={"Name": name}, opts=self._child)
                made[each.zone] = NatGateway(
                    f"nat-{each.zone}",
                    subnet_id=subnet.id,
                    allocation_id=address.allocation_id,
                    tags={"Name": name},
                    opts=pulumi.ResourceOptions(parent=self, depends_on=[out]),
                )
        return made

    def _subnet(self, vpc: Vpc, plan: SubnetPlan, tags: dict[str, str]) -> Subnet:
        name = f"{'public' if plan.public else 'private'}-{plan.zone}"
        return Subnet(
            name,
            vpc_id=vpc.id,
            availability_zone=plan.zone,
            cidr_block=plan.cidr,
            map_public_ip_on_launch=False,  # also in public subnets: NAT gateways bring their own addresses
            tags={**tags, "Name": f"{self._cluster}-{name}"},
            opts=pulumi.ResourceOptions(parent=self, delete_before_replace=True),  # its addresses are taken once
        )

    def _table(self, vpc: Vpc, name: str, subnet: Subnet) -> RouteTable:
        table = RouteTable(name, vpc_id=vpc.id, tags={"Name": f"{self._cluster}-{name}"}, opts=self._child)
        self.ways_out.append(
            RouteTableAssociation(name, route_table_id=table.id, subnet_id=subnet.id, opts=self._child)
        )
        return table

    def _endpoints(self, vpc: Vpc, network: AwsNetwork, plan: NetworkPlan, tables: list[pulumi.Output[str]]) -> None:
        region = self._account.region
        self.ways_out.append(
            VpcEndpoint(
                "s3",
                vpc_id=vpc.id,
                vpc_endpoint_type="Gateway",
                service_name=f"com.amazonaws.{region}.s3",  # gateways are named alike in all partitions
                route_table_ids=tables,
                tags={"Name": f"{self._cluster}-s3"},
                opts=self._child,
            )
        )
        if not plan.endpoints:
            return
        group = SecurityGroup(
            "endpoints",
            name=f"{self._cluster}-endpoints",
            description=f"Endpoints of AWS services for cluster {self._cluster}",
            vpc_id=vpc.id,
            tags={"Name": f"{self._cluster}-endpoints"},
            opts=pulumi.ResourceOptions(parent=self, delete_before_replace=True),
        )
        rule = SecurityGroupIngressRule(
            "endpoints-https",
            description="HTTPS from the VPC",
            security_group_id=group.id,
            cidr_ipv4=network.cidr,
            ip_protocol="tcp",
            from_port=_HTTPS,
            to_port=_HTTPS,
            opts=self._child,
        )
        self.ways_out.append(rule)
        for service in plan.endpoints:
            self.ways_out.append(
                VpcEndpoint(
                    f"endpoint-{service}",
                    vpc_id=vpc.id,
                    vpc_endpoint_type="Interface",
                    service_name=pulumi.Output.concat(self._account.reverse_dns_prefix, f".{region}.{service}"),
                    subnet_ids=list(self.private.values()),
                    security_group_ids=[group.id],
                    private_dns_enabled=True,
                    tags={"Name": f"{self._cluster}-{service}"},
                    opts=self._child,
                )
            )

    def _record(self, retention_days: int, key_arn: pulumi.Input[str]) -> None:
        group_name = flow_log_group(self._cluster)
        named = pulumi.ResourceOptions(parent=self, delete_before_replace=True)
        group = LogGroup("flow-logs", name=group_name, retention_in_days=retention_days, kms_key_id=key_arn, opts=named)
        from_here = {
            "StringEquals": {"aws:SourceAccount": self._account.id},
            "ArnLike": {"aws:SourceArn": self._account.arn("ec2", "vpc-flow-log/*")},
        }
        role = Role(
            "flow-logs-writer",
            name=f"{self._cluster}-flow-logs",
            description=f"Writes the flow logs of cluster {self._cluster}",
            assume_role_policy=trust("vpc-flow-logs.amazonaws.com", condition=from_here),
            opts=named,
        )
        arn = self._account.arn("logs", f"log-group:{group_name}")
        rights = RolePolicy(
            "flow-logs-writer-rights",
            name="write",
            role=role.name,
            policy=document(
                [
                    {
                        "Effect": "Allow",
                        "Action": [
                            "logs:CreateLogStream",
                            "logs:PutLogEvents",
                            "logs:DescribeLogGroups",
                            "logs:DescribeLogStreams",
                        ],
                        "Resource": [arn, pulumi.Output.concat(arn, ":*")],
                    }
                ]
            ),
            opts=named,
        )
        FlowLog(
            "flow-log",
            vpc_id=self.vpc_id,
            traffic_type="ALL",
            log_destination_type="cloud-watch-logs",
            log_destination=group.arn,
            iam_role_arn=role.arn,
            max_aggregation_interval=600,
            tags={"Name": self._cluster},
            opts=pulumi.ResourceOptions(parent=self, depends_on=[rights]),
        )
