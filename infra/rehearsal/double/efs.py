"""EFS: file systems and their mount targets.

moto makes and shows them but cannot change a file system's throughput or protection: that is in the book.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping
from typing import Any

from infra.rehearsal.double.aws import Aws
from infra.rehearsal.double.kind import Call, Failure, Kind, Made, each, only, whole_or_gone
from infra.rehearsal.double.network import network_mistakes
from infra.rehearsal.double.tags import retag, tag_list, tags_of
from infra.rehearsal.double.values import UNKNOWN, is_known

_CHANGES = "efs-changes"
_TRANSITIONS = {
    "transitionToIa": "TransitionToIA",
    "transitionToArchive": "TransitionToArchive",
    "transitionToPrimaryStorageClass": "TransitionToPrimaryStorageClass",
}


class FileSystem(Kind):
    """A file system without a size; mount targets bring it into subnets."""

    token = "aws:efs/fileSystem:FileSystem"  # noqa: S105 - a type token
    replace_on = frozenset({"creationToken", "encrypted", "kmsKeyId", "performanceMode", "availabilityZoneName"})
    computed = frozenset({"arn", "dnsName", "ownerId", "numberOfMountTargets", "sizeInBytes", "availabilityZoneId"})

    def requests(self, inputs: Mapping[str, Any]) -> list[Call]:
        """CreateFileSystem, then what is said of one that exists."""
        create = Call(
            "efs",
            "CreateFileSystem",
            only(
                CreationToken=inputs.get("creationToken") or UNKNOWN,  # the provider draws one
                PerformanceMode=inputs.get("performanceMode"),
                Encrypted=inputs.get("encrypted"),
                KmsKeyId=inputs.get("kmsKeyId"),
                ThroughputMode=inputs.get("throughputMode"),
                ProvisionedThroughputInMibps=inputs.get("provisionedThroughputInMibps"),
                AvailabilityZoneName=inputs.get("availabilityZoneName"),
                Tags=tag_list(inputs.get("tags")),
            ),
        )
        calls = [create]
        if inputs.get("lifecyclePolicies"):
            policies = each(inputs.get("lifecyclePolicies"), _policy)
            given = {"FileSystemId": UNKNOWN, "LifecyclePolicies": policies}
            calls.append(
                Call("efs", "PutLifecycleConfiguration", given, {theirs: ours for ours, theirs in _TRANSITIONS.items()})
            )
        if (protection := inputs.get("protection")) is not None:
            overwrite = protection.get("replicationOverwrite")
            given = only(FileSystemId=UNKNOWN, ReplicationOverwriteProtection=overwrite)
            names = {"ReplicationOverwriteProtection": "protection"}
            calls.append(Call("efs", "UpdateFileSystemProtection", given, names))
        return calls

    def rules(self, inputs: Mapping[str, Any], aws: Aws) -> Iterator[Failure]:  # noqa: ARG002
        """What fits together: EFS API reference, CreateFileSystem and PutLifecycleConfiguration."""
        throughput, performance = inputs.get("throughputMode"), inputs.get("performanceMode")
        provisioned = inputs.get("provisionedThroughputInMibps")
        if is_known(inputs.get("kmsKeyId")) and not inputs.get("encrypted"):
            yield Failure("kmsKeyId", "a key only with encrypted: true")
        if throughput == "provisioned" and provisioned is None:
            yield Failure("provisionedThroughputInMibps", "throughputMode provisioned needs it")
        if is_known(provisioned) and throughput not in {"provisioned", UNKNOWN}:
            yield Failure("provisionedThroughputInMibps", "only with throughputMode: provisioned")
        if performance == "maxIO" and throughput == "elastic":
            yield Failure("performanceMode", "maxIO does not go with elastic throughput; leave it out")
        if performance == "maxIO" and is_known(inputs.get("availabilityZoneName")):
            yield Failure("performanceMode", "maxIO does not go with a file system of one zone; leave it out")
        seen: set[str] = set()
        for index, policy in enumerate(inputs.get("lifecyclePolicies") or ()):
            said = [name for name in _TRANSITIONS if is_known(policy.get(name))]
            if len(said) > 1:
                yield Failure(f"lifecyclePolicies[{index}]", f"one transition in each policy, not {', '.join(said)}")
            for name in set(said) & seen:
                yield Failure(f"lifecyclePolicies[{index}].{name}", f"{name} is said by another policy already")
            seen |= set(said)

    def create(self, aws: Aws, name: str, inputs: Mapping[str, Any]) -> Made:  # noqa: ARG002, D102
        create, *others = self.requests(inputs)
        token = inputs.get("creationToken") or f"pulumi-{uuid.uuid4()}"
        made = aws.run(create.given(CreationToken=token))
        identifier = made["FileSystemId"]
        with whole_or_gone(self, aws, identifier, inputs):
            for call in others:
                if call.operation == "UpdateFileSystemProtection":  # moto doesn't have it
                    aws.book.put(_CHANGES, identifier, {"protection": inputs["protection"]})
                else:
                    aws.run(call.given(FileSystemId=identifier))
        return Made(identifier, {"creationToken": token, **_computed(aws, made)})

    def read(self, aws: Aws, id: str, state: Mapping[str, Any]) -> Mapping[str, Any] | None:  # noqa: A002, ARG002, D102
        found = aws.call("efs", "DescribeFileSystems", absent=("FileSystemNotFound",), FileSystemId=id)
        if not (found and found["FileSystems"]):
            return None
        (system,) = found["FileSystems"]
        policies = aws.call("efs", "DescribeLifecycleConfiguration", FileSystemId=id)["LifecyclePolicies"]
        return {
            "creationToken": system["CreationToken"],
            "encrypted": system["Encrypted"],
            "kmsKeyId": system.get("KmsKeyId"),
            "performanceMode": system["PerformanceMode"],
            "throughputMode": system.get("ThroughputMode", "bursting"),
            "provisionedThroughputInMibps": system.get("ProvisionedThroughputInMibps"),
            "lifecyclePolicies": [
                {ours: policy[theirs] for ours, theirs in _TRANSITIONS.items() if theirs in policy}
                for policy in policies
            ],
            "tags": tags_of(system["Tags"]),
            **_computed(aws, system),
            **(aws.book.get(_CHANGES, id) or {}),
        }

    def update(  # noqa: D102
        self,
        aws: Aws,
        id: str,  # noqa: A002
        old: Mapping[str, Any],
        new: Mapping[str, Any],
    ) -> Mapping[str, Any]:
        changes = only(
            throughputMode=new.get("throughputMode") or "bursting",
            provisionedThroughputInMibps=new.get("provisionedThroughputInMibps"),
            protection=new.get("protection"),
        )
        aws.book.put(_CHANGES, id, changes)
        policies = each(new.get("lifecyclePolicies") or [], _policy)
        aws.call("efs", "PutLifecycleConfiguration", FileSystemId=id, LifecyclePolicies=policies)
        retag(
            old, new,
            put=lambda tags: aws.call("efs", "TagResource", ResourceId=id, Tags=tag_list(tags)),
            remove=lambda keys: aws.call("efs", "UntagResource", ResourceId=id, TagKeys=keys),
        )  # fmt: skip
        return {}

    def delete(self, aws: Aws, id: str, state: Mapping[str, Any]) -> None:  # noqa: A002, ARG002
        """As AWS: not while it has mount targets."""
        aws.call("efs", "DeleteFileSystem", absent=("FileSystemNotFound",), FileSystemId=id)
        aws.book.drop(_CHANGES, id)


class MountTarget(Kind):
    """Where clients of one zone reach a file system."""

    token = "aws:efs/mountTarget:MountTarget"  # noqa: S105 - a type token
    replace_on = frozenset({"fileSystemId", "subnetId", "ipAddress"})
    # A zone takes only one mount target of a file system.
    delete_first = True
    computed = frozenset({
        "availabilityZoneId", "availabilityZoneName", "dnsName", "fileSystemArn", "ipAddress", "mountTargetDnsName",
        "networkInterfaceId", "ownerId",
    })  # fmt: skip
    tagged = False

    def requests(self, inputs: Mapping[str, Any]) -> list[Call]:
        """One CreateMountTarget."""
        given = only(
            FileSystemId=inputs.get("fileSystemId"),
            SubnetId=inputs.get("subnetId"),
            IpAddress=inputs.get("ipAddress"),
            SecurityGroups=inputs.get("securityGroups"),
        )
        return [Call("efs", "CreateMountTarget", given)]

    def rules(self, inputs: Mapping[str, Any], aws: Aws) -> Iterator[Failure]:
        """Security groups are of the subnet's VPC."""
        subnet, groups = inputs.get("subnetId"), inputs.get("securityGroups")
        yield from network_mistakes(aws, [subnet], "subnetId", groups, "securityGroups")

    def create(self, aws: Aws, name: str, inputs: Mapping[str, Any]) -> Made:  # noqa: ARG002, D102
        made = aws.run(self.requests(inputs)[0])
        return Made(made["MountTargetId"], {**_target(aws, made), "securityGroups": _groups(aws, made)})

    def read(self, aws: Aws, id: str, state: Mapping[str, Any]) -> Mapping[str, Any] | None:  # noqa: A002, ARG002, D102
        found = aws.call("efs", "DescribeMountTargets", absent=("MountTargetNotFound",), MountTargetId=id)
        if not (found and found["MountTargets"]):
            return None
        (target,) = found["MountTargets"]
        return {
            "fileSystemId": target["FileSystemId"],
            "subnetId": target["SubnetId"],
            "securityGroups": _groups(aws, target),
            **_target(aws, target),
        }

    def update(  # noqa: D102
        self,
        aws: Aws,
        id: str,  # noqa: A002
        old: Mapping[str, Any],
        new: Mapping[str, Any],
    ) -> Mapping[str, Any]:
        groups = new.get("securityGroups") or old.get("securityGroups")
        aws.call("efs", "ModifyMountTargetSecurityGroups", MountTargetId=id, SecurityGroups=groups)
        return {"securityGroups": groups}

    def delete(self, aws: Aws, id: str, state: Mapping[str, Any]) -> None:  # noqa: A002, ARG002, D102
        aws.call("efs", "DeleteMountTarget", absent=("MountTargetNotFound",), MountTargetId=id)


def _policy(policy: Any) -> dict[str, Any]:
    return only(**{theirs: policy.get(ours) for ours, theirs in _TRANSITIONS.items()})


def _dns_name(aws: Aws, file_system: str) -> str:
    return f"{file_system}.efs.{aws.region}.{aws.dns_suffix}"


def _computed(aws: Aws, system: Mapping[str, Any]) -> dict[str, Any]:
    size = system["SizeInBytes"]
    return {
        "arn": system["FileSystemArn"],
        "dnsName": _dns_name(aws, system["FileSystemId"]),
        "ownerId": system["OwnerId"],
        "numberOfMountTargets": system["NumberOfMountTargets"],
        "sizeInBytes": [
            {"value": size["Value"], "valueInIa": size["ValueInIA"], "valueInStandard": size["ValueInStandard"]}
        ],
        "availabilityZoneName": system.get("AvailabilityZoneName"),
        "availabilityZoneId": system.get("AvailabilityZoneId"),
    }


def _target(aws: Aws, target: Mapping[str, Any]) -> dict[str, Any]:
    file_system, zone = target["FileSystemId"], target["AvailabilityZoneName"]
    return {
        "availabilityZoneId": target["AvailabilityZoneId"],
        "availabilityZoneName": zone,
        "dnsName": _dns_name(aws, file_system),
        "fileSystemArn": aws.arn("elasticfilesystem", f"file-system/{file_system}"),
        "ipAddress": target["IpAddress"],
        "mountTargetDnsName": f"{zone}.{_dns_name(aws, file_system)}",
        "networkInterfaceId": target["NetworkInterfaceId"],
        "ownerId": target["OwnerId"],
    }


def _groups(aws: Aws, target: Mapping[str, Any]) -> list[str]:
    answer = aws.call("efs", "DescribeMountTargetSecurityGroups", MountTargetId=target["MountTargetId"])
    return list(answer["SecurityGroups"])


KINDS = (FileSystem(), MountTarget())
