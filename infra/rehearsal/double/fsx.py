"""FSx for Lustre.

moto keeps such a file system but has no mount name for it, and cannot change it: what UpdateFileSystem would change is
in the book, laid over what moto shows.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from typing import Any

from infra.rehearsal.double.aws import Aws
from infra.rehearsal.double.kind import Call, Failure, Kind, Made, only
from infra.rehearsal.double.network import network_mistakes, vpc_of_subnet
from infra.rehearsal.double.tags import retag, tag_list, tags_of
from infra.rehearsal.double.values import UNKNOWN, is_known, map_known

LUSTRE_PORT = 988
_CHANGES = "fsx-changes"
_PERSISTENT_THROUGHPUTS = {
    ("PERSISTENT_2", "SSD"): (125, 250, 500, 1000),
    ("PERSISTENT_1", "SSD"): (50, 100, 200),
    ("PERSISTENT_1", "HDD"): (12, 40),
}
"""MB/s for each TiB, by deployment and storage type."""
# With EFA the servers come in larger units, the larger the slower they are: GiB by throughput.
_EFA_STEPS = {125: 38400, 250: 19200, 500: 9600, 1000: 4800}
# Pulumi's name -> AWS's, of the members of LustreConfiguration that are single values.
_CONFIGURATION = {
    "deploymentType": "DeploymentType",
    "perUnitStorageThroughput": "PerUnitStorageThroughput",
    "importPath": "ImportPath",
    "exportPath": "ExportPath",
    "importedFileChunkSize": "ImportedFileChunkSize",
    "autoImportPolicy": "AutoImportPolicy",
    "automaticBackupRetentionDays": "AutomaticBackupRetentionDays",
    "dailyAutomaticBackupStartTime": "DailyAutomaticBackupStartTime",
    "copyTagsToBackups": "CopyTagsToBackups",
    "dataCompressionType": "DataCompressionType",
    "driveCacheType": "DriveCacheType",
    "efaEnabled": "EfaEnabled",
    "weeklyMaintenanceStartTime": "WeeklyMaintenanceStartTime",
}
_CHANGEABLE = (
    "storageCapacity",
    "perUnitStorageThroughput",
    "autoImportPolicy",
    "automaticBackupRetentionDays",
    "dailyAutomaticBackupStartTime",
    "dataCompressionType",
    "weeklyMaintenanceStartTime",
    "fileSystemTypeVersion",
    "metadataConfiguration",
    "logConfiguration",
    "rootSquashConfiguration",
)


class LustreFileSystem(Kind):
    """A Lustre file system in one subnet."""

    token = "aws:fsx/lustreFileSystem:LustreFileSystem"  # noqa: S105 - a type token
    replace_on = frozenset({
        "subnetIds", "securityGroupIds", "kmsKeyId", "storageType", "deploymentType", "importPath", "exportPath",
        "importedFileChunkSize", "copyTagsToBackups", "driveCacheType", "efaEnabled",
    })  # fmt: skip
    computed = frozenset({"arn", "dnsName", "mountName", "networkInterfaceIds", "ownerId", "vpcId"})
    for_provider = frozenset({"skipFinalBackup"})

    def requests(self, inputs: Mapping[str, Any]) -> list[Call]:
        """One CreateFileSystem."""
        given = only(**{theirs: inputs.get(ours) for ours, theirs in _CONFIGURATION.items()})
        metadata, log = inputs.get("metadataConfiguration"), inputs.get("logConfiguration")
        squash = inputs.get("rootSquashConfiguration")
        subnet = inputs.get("subnetIds")  # Pulumi's is one, as AWS takes only one for Lustre
        if metadata is not None:
            given["MetadataConfiguration"] = only(Iops=metadata.get("iops"), Mode=metadata.get("mode"))
        if log is not None:
            given["LogConfiguration"] = only(Level=log.get("level"), Destination=log.get("destination"))
        if squash is not None:
            given["RootSquashConfiguration"] = only(
                RootSquash=squash.get("rootSquash"), NoSquashNids=squash.get("noSquashNids")
            )
        create = Call(
            "fsx",
            "CreateFileSystem",
            only(
                FileSystemType="LUSTRE",
                FileSystemTypeVersion=inputs.get("fileSystemTypeVersion"),
                StorageCapacity=inputs.get("storageCapacity"),
                StorageType=inputs.get("storageType"),
                SubnetIds=None if subnet is None else [subnet],
                SecurityGroupIds=inputs.get("securityGroupIds"),
                KmsKeyId=inputs.get("kmsKeyId"),
                Tags=tag_list(inputs.get("tags")),
                LustreConfiguration=given,
            ),
            {"LustreConfiguration": ""},
        )
        return [create]

    def rules(self, inputs: Mapping[str, Any], aws: Aws) -> Iterator[Failure]:
        """Sizes, throughputs and what only some deployments have; the network lets Lustre through.

        FSx for Lustre User Guide and API reference; sizes with EFA: "Creating an EFA-enabled file system".
        """
        deployment = inputs.get("deploymentType") or "SCRATCH_1"
        storage = inputs.get("storageType") or "SSD"
        if isinstance(deployment, str) and isinstance(storage, str):
            yield from _throughput(deployment, storage, inputs)
            yield from _size(deployment, storage, inputs)
            yield from _of_deployment(deployment, inputs)
        backups, begins = inputs.get("automaticBackupRetentionDays"), inputs.get("dailyAutomaticBackupStartTime")
        if is_known(begins) and not backups:
            yield Failure("dailyAutomaticBackupStartTime", "only where backups are kept: automaticBackupRetentionDays")
        subnets = [inputs.get("subnetIds")]
        yield from network_mistakes(aws, subnets, "subnetIds", inputs.get("securityGroupIds"), "securityGroupIds",
                                    port=LUSTRE_PORT, what="Lustre")  # fmt: skip

    def replaces(self, old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[str]:
        """Whatever becomes less: AWS's provider makes an empty file system instead, and the data is lost."""
        before, after = old.get("storageCapacity"), new.get("storageCapacity")
        if _less(after, before) or (before != after and new.get("deploymentType", "SCRATCH_1") == "SCRATCH_1"):
            yield "storageCapacity"
        if _less(_version(new), _version(old)):
            yield "fileSystemTypeVersion"
        before, after = (side.get("metadataConfiguration") or {} for side in (old, new))
        if _less(after.get("iops"), before.get("iops")):
            yield "metadataConfiguration.iops"

    def changes(self, old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[Failure]:
        """With EFA the throughput stays what the file system was made with."""
        before, after = old.get("perUnitStorageThroughput"), new.get("perUnitStorageThroughput")
        if new.get("efaEnabled") is True and is_known(after) and before != after:
            yield Failure(
                "perUnitStorageThroughput",
                f"with EFA the throughput stays what it was made with, {before} MB/s for each TiB",
            )

    def create(self, aws: Aws, name: str, inputs: Mapping[str, Any]) -> Made:  # noqa: ARG002, D102
        made = aws.run(self.requests(inputs)[0])["FileSystem"]
        return Made(made["FileSystemId"], _computed(aws, made))

    def read(self, aws: Aws, id: str, state: Mapping[str, Any]) -> Mapping[str, Any] | None:  # noqa: A002, ARG002, D102
        found = aws.call("fsx", "DescribeFileSystems", absent=("FileSystemNotFound",), FileSystemIds=[id])
        if not (found and found["FileSystems"]):
            return None
        (system,) = found["FileSystems"]
        configuration = system.get("LustreConfiguration", {})
        seen = {ours: configuration[theirs] for ours, theirs in _CONFIGURATION.items() if theirs in configuration}
        return {
            **seen,
            "storageCapacity": system["StorageCapacity"],
            "storageType": system["StorageType"],
            "subnetIds": system["SubnetIds"][0],
            "tags": tags_of(system.get("Tags")),
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
        changes = {name: new[name] for name in _CHANGEABLE if new.get(name) is not None}
        aws.book.put(_CHANGES, id, {**(aws.book.get(_CHANGES, id) or {}), **changes})
        arn = old["arn"]
        retag(
            old, new,
            put=lambda tags: aws.call("fsx", "TagResource", ResourceARN=arn, Tags=tag_list(tags)),
            remove=lambda keys: aws.call("fsx", "UntagResource", ResourceARN=arn, TagKeys=keys),
        )  # fmt: skip
        return {}

    def delete(self, aws: Aws, id: str, state: Mapping[str, Any]) -> None:  # noqa: A002
        """Without a last backup, as the provider does it unless `skipFinalBackup` is false."""
        if aws.call("fsx", "DescribeFileSystems", FileSystemIds=[id])["FileSystems"]:
            skip = {"SkipFinalBackup": state.get("skipFinalBackup") is not False}
            configuration = skip if str(state.get("deploymentType")).startswith("PERSISTENT") else None
            aws.call("fsx", "DeleteFileSystem", FileSystemId=id, LustreConfiguration=configuration)
        aws.book.drop(_CHANGES, id)


def mount_name(file_system_id: str, deployment: str) -> str:
    """The name under which clients mount it: of SCRATCH_1 `fsx`, of all others eight characters that AWS draws.

    Here they follow from the id, so that nothing has to remember them.
    """
    if deployment == "SCRATCH_1":
        return "fsx"
    number = int.from_bytes(hashlib.sha256(file_system_id.encode()).digest()[:8], "big")
    alphabet = "abcdefghijklmnopqrstuvwxyz234567"
    return "".join(alphabet[(number >> shift) & 31] for shift in range(0, 40, 5))


def _less(after: Any, before: Any) -> bool:
    """Whether both are there and known, and the later one is less."""
    return is_known(after) and is_known(before) and after < before


def _version(inputs: Mapping[str, Any]) -> Any:
    return map_known(inputs.get("fileSystemTypeVersion"), lambda text: [int(part) for part in text.split(".")])


def _computed(aws: Aws, system: Mapping[str, Any]) -> dict[str, Any]:
    identifier = system["FileSystemId"]
    deployment = system.get("LustreConfiguration", {}).get("DeploymentType", "SCRATCH_1")
    interface = hashlib.sha256(identifier.encode()).hexdigest()[:17]
    return {
        "arn": system["ResourceARN"],
        "dnsName": system["DNSName"],
        "mountName": mount_name(identifier, deployment),
        "networkInterfaceIds": [f"eni-{interface}"],
        "ownerId": aws.account,
        "vpcId": vpc_of_subnet(aws, system["SubnetIds"][0]),
    }


def _throughput(deployment: str, storage: str, inputs: Mapping[str, Any]) -> Iterator[Failure]:
    throughput = inputs.get("perUnitStorageThroughput")
    if not deployment.startswith("PERSISTENT"):
        if is_known(throughput):
            yield Failure("perUnitStorageThroughput", f"{deployment} has a fixed throughput; leave it out")
    elif (allowed := _PERSISTENT_THROUGHPUTS.get((deployment, storage))) is None:
        yield Failure("storageType", f"{deployment} has no {storage} storage")
    elif throughput is None:
        yield Failure("perUnitStorageThroughput", f"{deployment} needs it: {_listed(allowed)} MB/s for each TiB")
    elif isinstance(throughput, int) and throughput not in allowed:
        yield Failure(
            "perUnitStorageThroughput",
            f"{deployment} on {storage} has {_listed(allowed)} MB/s for each TiB, not {throughput}",
        )


def _size(deployment: str, storage: str, inputs: Mapping[str, Any]) -> Iterator[Failure]:
    size, throughput = inputs.get("storageCapacity"), inputs.get("perUnitStorageThroughput")
    if size is None:
        yield Failure("storageCapacity", "the size is missing, in GiB")
    if not isinstance(size, int):
        return
    if inputs.get("efaEnabled") is True and deployment == "PERSISTENT_2":
        step = _EFA_STEPS.get(throughput) if isinstance(throughput, int) else None
        if step is not None and size % step:
            sizes = f"{step}, {2 * step}, {3 * step}, … GiB"
            yield Failure("storageCapacity", f"with EFA and {throughput} MB/s for each TiB: {sizes}, not {size}")
        return
    if storage == "HDD":
        step = {12: 6000, 40: 1800}.get(throughput) if isinstance(throughput, int) else None
        if step is not None and size % step:
            yield Failure(
                "storageCapacity", f"with {throughput} MB/s for each TiB: multiples of {step} GiB, not {size}"
            )
        return
    step = 3600 if deployment == "SCRATCH_1" else 2400
    if size not in {1200, 2400} and (size < step or size % step):
        yield Failure("storageCapacity", f"{deployment} has 1200, 2400, then multiples of {step} GiB, not {size}")


def _of_deployment(deployment: str, inputs: Mapping[str, Any]) -> Iterator[Failure]:
    if not deployment.startswith("PERSISTENT"):
        if is_known(inputs.get("kmsKeyId")):
            yield Failure("kmsKeyId", f"{deployment} is encrypted with FSx's own key; leave it out")
        if inputs.get("automaticBackupRetentionDays") not in {None, 0, UNKNOWN}:
            yield Failure("automaticBackupRetentionDays", f"{deployment} has no backups")
    if deployment == "PERSISTENT_2":
        for path in ("importPath", "exportPath", "autoImportPolicy"):
            if is_known(inputs.get(path)):
                yield Failure(path, "PERSISTENT_2 is joined to a bucket by a data repository association instead")
        if inputs.get("fileSystemTypeVersion") == "2.10":
            yield Failure("fileSystemTypeVersion", "PERSISTENT_2 needs Lustre 2.12 or newer, not 2.10")
    elif is_known(inputs.get("metadataConfiguration")):
        yield Failure("metadataConfiguration", f"only PERSISTENT_2 has it, not {deployment}")
    if inputs.get("efaEnabled") is True:
        if deployment != "PERSISTENT_2":
            yield Failure("efaEnabled", f"only PERSISTENT_2 has EFA, not {deployment}")
        elif inputs.get("metadataConfiguration") is None:
            yield Failure("efaEnabled", 'EFA needs a metadataConfiguration, e.g. {"mode": "AUTOMATIC"}')


def _listed(numbers: tuple[int, ...]) -> str:
    return f"{', '.join(map(str, numbers[:-1]))} or {numbers[-1]}"


KINDS = (LustreFileSystem(),)
