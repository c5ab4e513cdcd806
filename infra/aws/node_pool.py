"""Machines of one kind: launch template, placement group, EKS managed node group. GPU pools and the system pool alike.

The rules of a launch template for managed node groups (EKS user guide, "Customizing managed nodes with launch
templates"), each of which EKS or EC2 enforces by refusing, or by machines that never join:

- no subnet on the interfaces and no instance profile: both are the node group's;
- security groups stand on the interfaces, then none at the top; once a template names any, EKS adds none of its own, so
  the primary interface carries the cluster's group;
- the instance type stands either here or in the node group; for capacity blocks it stands here;
- the disk's size stands here, once there is a template.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence

import pulumi
from pulumi_aws.ec2 import (
    LaunchTemplate,
    LaunchTemplateBlockDeviceMappingArgs,
    LaunchTemplateBlockDeviceMappingEbsArgs,
    LaunchTemplateCapacityReservationSpecificationArgs,
    LaunchTemplateCapacityReservationSpecificationCapacityReservationTargetArgs,
    LaunchTemplateInstanceMarketOptionsArgs,
    LaunchTemplateMetadataOptionsArgs,
    LaunchTemplateNetworkInterfaceArgs,
    LaunchTemplatePlacementArgs,
    LaunchTemplateTagSpecificationArgs,
    PlacementGroup,
    SecurityGroup,
)
from pulumi_aws.eks import (
    NodeGroup,
    NodeGroupLaunchTemplateArgs,
    NodeGroupNodeRepairConfigArgs,
    NodeGroupScalingConfigArgs,
    NodeGroupTaintArgs,
    NodeGroupUpdateConfigArgs,
)
from pulumi_aws.vpc import SecurityGroupEgressRule, SecurityGroupIngressRule

from infra.aws.cluster import Cluster
from infra.aws.network import Network
from infra.wiring.interfaces import Interface
from infra.wiring.pools import PoolPlan

_TAGGED = ("instance", "volume", "network-interface")
"""What EC2 makes for a machine; tags of a node group do not reach it, and neither do the provider's."""
_SYSTEM_DISK = "/dev/xvda"
"""Where EKS's images have their system."""


class Fabric(pulumi.ComponentResource):
    """The security group of EFA interfaces: everything, from and to itself.

    EFA's own protocol needs the rule that names the group itself in *both* directions; `0.0.0.0/0` does not stand for
    it. One group for all pools: rules are not what keeps fabrics apart, they end with the zone.
    """

    group_id: pulumi.Output[str]

    def __init__(self, name: str, *, cluster: str, vpc_id: pulumi.Input[str], opts: pulumi.ResourceOptions) -> None:
        super().__init__("trainyard:aws:Fabric", name, None, opts)
        child = pulumi.ResourceOptions(parent=self, delete_before_replace=True)  # names are taken once
        group = SecurityGroup(
            "efa",
            name=f"{cluster}-efa",
            description=f"EFA interfaces of cluster {cluster}",
            vpc_id=vpc_id,
            tags={"Name": f"{cluster}-efa"},
            opts=child,
        )
        SecurityGroupIngressRule(
            "efa-in",
            description="EFA from the group itself",
            security_group_id=group.id,
            referenced_security_group_id=group.id,
            ip_protocol="-1",
            opts=pulumi.ResourceOptions(parent=self),
        )
        SecurityGroupEgressRule(
            "efa-out",
            description="EFA to the group itself",
            security_group_id=group.id,
            referenced_security_group_id=group.id,
            ip_protocol="-1",
            opts=pulumi.ResourceOptions(parent=self),
        )
        self.group_id = group.id
        self.register_outputs({"groupId": group.id})


class NodePool(pulumi.ComponentResource):
    """One managed node group, as its plan has it."""

    group: NodeGroup

    def __init__(
        self,
        name: str,
        *,
        plan: PoolPlan,
        cluster: Cluster,
        network: Network,
        node_role_arn: pulumi.Input[str],
        efa_group_id: pulumi.Input[str] | None,
        key_arn: pulumi.Input[str],
        tags: Mapping[str, str],
        after: Sequence[pulumi.Resource],
        opts: pulumi.ResourceOptions,
    ) -> None:
        """Make the pool.

        Args:
            name: logical name: the pool's.
            plan: what was decided about it.
            cluster: whose machines these are.
            network: its subnets.
            node_role_arn: the role of the machines.
            efa_group_id: the group of `Fabric`; None where no pool has EFA.
            key_arn: key of the disks.
            tags: tags of machines and disks.
            after: without these the machines do not join: add-ons, rights, ways to AWS.
            opts: the component's options.
        """
        super().__init__("trainyard:aws:NodePool", name, None, opts)
        child = pulumi.ResourceOptions(parent=self, delete_before_replace=True)  # names are taken once
        full = f"{cluster.cluster}-{plan.name}"
        groups: dict[str, list[pulumi.Input[str]]] = {
            "interface": [cluster.security_group_id],
            "efa-only": [efa_group_id] if efa_group_id is not None else [],
        }
        template = LaunchTemplate(
            plan.name,
            name=full,
            description=f"Machines of pool {plan.name} of cluster {cluster.cluster}",
            update_default_version=True,
            instance_type=plan.instance_types[0] if plan.type_in_template else None,
            user_data=base64.b64encode(plan.user_data.encode()).decode() if plan.user_data else None,
            metadata_options=LaunchTemplateMetadataOptionsArgs(
                http_endpoint="enabled",
                http_tokens="required",
                http_put_response_hop_limit=2,  # one for the machine, one for its pods
            ),
            block_device_mappings=_disks(plan, key_arn),
            network_interfaces=[_interface(each, groups[each.kind]) for each in plan.interfaces],
            placement=_placement(plan, full, child),
            capacity_reservation_specification=_reservation(plan),
            instance_market_options=(
                LaunchTemplateInstanceMarketOptionsArgs(market_type=plan.market) if plan.market else None
            ),
            tag_specifications=[
                LaunchTemplateTagSpecificationArgs(resource_type=kind, tags={**tags, "Name": full}) for kind in _TAGGED
            ],
            opts=child,
        )
        self.group = NodeGroup(
            f"{plan.name}-nodes",
            node_group_name=full,
            cluster_name=cluster.name,
            node_role_arn=node_role_arn,
            subnet_ids=network.private_in(plan.zone),
            capacity_type=plan.capacity_type,
            instance_types=None if plan.type_in_template else list(plan.instance_types),
            ami_type=plan.ami_type,
            version=cluster.version,
            release_version=plan.release_version,
            launch_template=NodeGroupLaunchTemplateArgs(
                id=template.id, version=template.latest_version.apply(lambda version: str(int(version)))
            ),
            labels=plan.labels,
            taints=[NodeGroupTaintArgs(**taint.as_eks()) for taint in plan.taints],
            tags=plan.tags,
            scaling_config=NodeGroupScalingConfigArgs(min_size=plan.min, max_size=plan.max, desired_size=plan.desired),
            update_config=NodeGroupUpdateConfigArgs(max_unavailable=plan.max_unavailable),
            node_repair_config=NodeGroupNodeRepairConfigArgs(
                enabled=plan.repair.enabled, max_parallel_nodes_repaired_count=plan.repair.max_parallel
            ),
            opts=pulumi.ResourceOptions(
                parent=self,
                delete_before_replace=True,
                depends_on=list(after),
                # The autoscaler's from the first minute on; on the component this option would have no effect.
                ignore_changes=["scalingConfig.desiredSize"],
            ),
        )
        self.register_outputs({"nodeGroup": self.group.node_group_name})


def _disks(plan: PoolPlan, key_arn: pulumi.Input[str]) -> list[LaunchTemplateBlockDeviceMappingArgs]:
    """Every disk with the stack's key, also the small one that Bottlerocket has for itself."""
    sizes = {_SYSTEM_DISK: None, plan.root_device: plan.disk_gib}
    return [
        LaunchTemplateBlockDeviceMappingArgs(
            device_name=device,
            ebs=LaunchTemplateBlockDeviceMappingEbsArgs(
                volume_type="gp3",
                volume_size=size,  # None: the image's own
                encrypted="true",
                kms_key_id=key_arn,
                delete_on_termination="true",
            ),
        )
        for device, size in sizes.items()
    ]


def _interface(interface: Interface, groups: Sequence[pulumi.Input[str]]) -> LaunchTemplateNetworkInterfaceArgs:
    return LaunchTemplateNetworkInterfaceArgs(
        network_card_index=interface.card,
        device_index=interface.device_index,
        interface_type=interface.kind,
        security_groups=groups,
        delete_on_termination="true",
    )


def _placement(plan: PoolPlan, full: str, child: pulumi.ResourceOptions) -> LaunchTemplatePlacementArgs | None:
    match plan.placement.kind:
        case "make":
            group = PlacementGroup(f"{plan.name}-placement", name=full, strategy="cluster", opts=child)
            return LaunchTemplatePlacementArgs(group_name=group.name)
        case "existing":
            return LaunchTemplatePlacementArgs(group_name=plan.placement.name)
        case "none":
            return None


def _reservation(plan: PoolPlan) -> LaunchTemplateCapacityReservationSpecificationArgs | None:
    if plan.reservation_id is None:
        return None
    target = LaunchTemplateCapacityReservationSpecificationCapacityReservationTargetArgs(
        capacity_reservation_id=plan.reservation_id
    )
    return LaunchTemplateCapacityReservationSpecificationArgs(capacity_reservation_target=target)
