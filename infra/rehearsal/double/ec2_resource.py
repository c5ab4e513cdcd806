"""What EC2's resources have in common: found by id through a Describe call, tagged by id."""

from __future__ import annotations

import abc
from collections.abc import Mapping
from typing import Any, ClassVar

from infra.rehearsal.double import tags
from infra.rehearsal.double.aws import Aws
from infra.rehearsal.double.kind import Kind

GONE = frozenset({
    "InvalidAllocationID.NotFound", "InvalidAssociationID.NotFound", "InvalidFlowLogId.NotFound",
    "InvalidGroup.NotFound", "InvalidInternetGatewayID.NotFound", "InvalidLaunchTemplateId.NotFound",
    "InvalidLaunchTemplateName.NotFoundException", "InvalidRoute.NotFound", "InvalidRouteTableID.NotFound",
    "InvalidSecurityGroupRuleId.NotFound", "InvalidSubnetID.NotFound", "InvalidVpcEndpointId.NotFound",
    "InvalidVpcID.NotFound", "NatGatewayNotFound",
})  # fmt: skip
"""Error codes of EC2 that mean that a thing is not there."""


class Ec2Kind(Kind):
    """An EC2 resource with an id of its own."""

    resource_type: ClassVar[str]
    """As tags and ARNs name it: `vpc`, `route-table`."""
    describe: ClassVar[tuple[str, str, str]]
    """Operation that shows it, its parameter for the ids, and the answer's list: `DescribeVpcs`, `VpcIds`, `Vpcs`."""
    gone_states: ClassVar[frozenset[str]] = frozenset()
    """Values of `State` that mean that AWS only remembers it."""

    def read(self, aws: Aws, id: str, state: Mapping[str, Any]) -> Mapping[str, Any] | None:  # noqa: A002, ARG002, D102
        item = self.find(aws, id)
        if item is None:
            return None
        seen = self.seen(aws, item)
        return {**seen, "tags": tags.tags_of(item.get("Tags"))} if self.tagged else seen

    def find(self, aws: Aws, id: str) -> Mapping[str, Any] | None:  # noqa: A002
        """The resource as EC2 describes it, or None."""
        operation, ids, items = self.describe
        answer = aws.call("ec2", operation, absent=GONE, **{ids: [id]})
        found: list[Mapping[str, Any]] = answer[items] if answer else []
        return found[0] if found and found[0].get("State") not in self.gone_states else None

    @abc.abstractmethod
    def seen(self, aws: Aws, item: Mapping[str, Any]) -> dict[str, Any]:
        """Inputs and outputs from EC2's description."""

    def tag_specifications(self, inputs: Mapping[str, Any]) -> Any:
        """The `TagSpecifications` of the call that makes it."""
        listed = tags.tag_list(inputs.get("tags"))
        return None if listed is None else [{"ResourceType": self.resource_type, "Tags": listed}]

    def arn(self, aws: Aws, id: str) -> str:  # noqa: A002
        """Its ARN."""
        return aws.arn("ec2", f"{self.resource_type}/{id}")


def retag(aws: Aws, id: str, old: Mapping[str, Any], new: Mapping[str, Any]) -> None:  # noqa: A002
    """Bring the tags of an EC2 resource from those of the state to those of the inputs."""
    tags.retag(
        old, new,
        put=lambda changed: aws.call("ec2", "CreateTags", Resources=[id], Tags=tags.tag_list(changed)),
        remove=lambda gone: aws.call("ec2", "DeleteTags", Resources=[id], Tags=[{"Key": key} for key in gone]),
    )  # fmt: skip
