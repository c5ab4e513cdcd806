"""FSx for Lustre and EFS in the rehearsal."""

import re
from collections.abc import Iterator
from typing import Any

import pytest
from botocore.exceptions import ClientError
from little_engine import LittleEngine, RefusedError, little_engine

LUSTRE = "aws:fsx/lustreFileSystem:LustreFileSystem"
EFS, TARGET = "aws:efs/fileSystem:FileSystem", "aws:efs/mountTarget:MountTarget"
KEY = "arn:aws:kms:us-east-2:123456789012:key/1234abcd-12ab-34cd-56ef-1234567890ab"


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LittleEngine]:
    with little_engine(tmp_path_factory.mktemp("fs")) as engine:
        yield engine


def group(engine: LittleEngine, vpc: str, name: str, *ports: int) -> str:
    ec2 = engine.boto("ec2")
    identifier = str(ec2.create_security_group(GroupName=name, Description=name, VpcId=vpc)["GroupId"])
    for port in ports:
        rule = {"IpProtocol": "tcp", "FromPort": port, "ToPort": port, "IpRanges": [{"CidrIp": "10.0.0.0/16"}]}
        ec2.authorize_security_group_ingress(GroupId=identifier, IpPermissions=[rule])
    return identifier


def test_a_lustre_file_system_is_made_grown_replaced_and_removed(engine: LittleEngine) -> None:
    fsx = engine.boto("fsx")
    subnet = engine.subnet()
    vpc = engine.vpc_of(subnet)
    inputs: dict[str, Any] = {
        "subnetIds": subnet, "securityGroupIds": [group(engine, vpc, "lustre", 988)], "storageCapacity": 1200,
        "deploymentType": "PERSISTENT_2", "perUnitStorageThroughput": 250, "kmsKeyId": KEY, "storageType": "SSD",
        "dataCompressionType": "LZ4", "fileSystemTypeVersion": "2.15", "automaticBackupRetentionDays": 0,
        "metadataConfiguration": {"mode": "AUTOMATIC"}, "tags": {"Name": "dev"},
    }  # fmt: skip
    system = engine.made(LUSTRE, **inputs)
    assert re.fullmatch(r"fs-[0-9a-f]{8,17}", system.id)
    assert system["arn"] == f"arn:aws:fsx:us-east-2:123456789012:file-system/{system.id}"
    assert system["dnsName"] == f"{system.id}.fsx.us-east-2.amazonaws.com"
    assert re.fullmatch(r"[a-z0-9]{8}", system["mountName"])
    assert re.fullmatch(r"eni-[0-9a-f]{17}", system["networkInterfaceIds"][0])
    assert (system["vpcId"], system["ownerId"]) == (vpc, "123456789012")
    (seen,) = fsx.describe_file_systems(FileSystemIds=[system.id])["FileSystems"]
    assert (seen["StorageCapacity"], seen["LustreConfiguration"]["PerUnitStorageThroughput"]) == (1200, 250)
    assert system.up(**inputs) == "same"
    assert system.refresh() == "same"

    mount_name = system["mountName"]
    inputs |= {"storageCapacity": 4800, "perUnitStorageThroughput": 500, "tags": {"Name": "dev", "team": "a"}}
    assert system.up(**inputs) == "update"
    assert (system["storageCapacity"], system["mountName"]) == (4800, mount_name)
    assert system.refresh() == "same"
    tags = fsx.list_tags_for_resource(ResourceARN=system["arn"])["Tags"]
    assert {tag["Key"]: tag["Value"] for tag in tags} == {"Name": "dev", "team": "a"}

    first = system.id
    assert system.up(**{**inputs, "storageCapacity": 2400}) == "replace"  # it doesn't shrink
    assert system.id != first
    assert system.up(**{**inputs, "fileSystemTypeVersion": "2.12", "storageCapacity": 2400}) == "replace"

    first = system.id
    other = engine.subnet("10.0.2.0/24", zone="b", vpc=vpc)
    assert system.up(**{**inputs, "subnetIds": other}) == "replace"
    assert system.id != first
    system.down()
    system.down()
    assert system.refresh() == "gone"
    assert fsx.describe_file_systems()["FileSystems"] == []
    assert engine.aws.book.all("fsx-changes") == {}


def test_a_scratch_file_system_needs_few_words(engine: LittleEngine) -> None:
    system = engine.made(LUSTRE, subnetIds=engine.subnet(), storageCapacity=2400, deploymentType="SCRATCH_2")
    engine.boto("fsx").delete_file_system(FileSystemId=system.id)
    assert system.refresh() == "gone"
    first = engine.made(LUSTRE, subnetIds=engine.subnet(), storageCapacity=3600, deploymentType="SCRATCH_1")
    assert first["mountName"] == "fsx"
    first.down()


def test_lustre_comes_after_the_rule_that_lets_it_in(engine: LittleEngine) -> None:
    subnet = engine.subnet()
    closed = group(engine, engine.vpc_of(subnet), "closed", 443)
    inputs = {"subnetIds": subnet, "storageCapacity": 1200, "deploymentType": "SCRATCH_2"}
    assert engine.refusal(LUSTRE, {**inputs, "securityGroupIds": [closed]}) == (
        "securityGroupIds: AWS would refuse this: none of the security groups lets Lustre in (TCP 988); where a rule of"
        " the program does, the file system must come after that rule: dependsOn"
    )
    opened = group(engine, engine.vpc_of(subnet), "opened", 988)
    assert engine.refusal(LUSTRE, {**inputs, "securityGroupIds": [closed, opened]}) == ""
    # A group that the account brought along is not in the rehearsal and may let it in.
    assert engine.refusal(LUSTRE, {**inputs, "securityGroupIds": [closed, "sg-0123456789abcdef0"]}) == ""
    elsewhere = group(engine, engine.vpc_of(engine.subnet()), "elsewhere", 988)
    assert f"security group {elsewhere} is in vpc-" in engine.refusal(
        LUSTRE, {**inputs, "securityGroupIds": [elsewhere]}
    )


def test_with_efa_the_throughput_of_lustre_is_for_ever(engine: LittleEngine) -> None:
    inputs: dict[str, Any] = {
        "subnetIds": engine.subnet(), "storageCapacity": 9600, "deploymentType": "PERSISTENT_2", "efaEnabled": True,
        "perUnitStorageThroughput": 500, "metadataConfiguration": {"mode": "AUTOMATIC"},
    }  # fmt: skip
    system = engine.made(LUSTRE, **inputs)
    with pytest.raises(RefusedError, match="with EFA the throughput stays what it was made with, 500 MB/s"):
        system.up(**{**inputs, "perUnitStorageThroughput": 1000})
    assert system.up(**{**inputs, "storageCapacity": 19200}) == "update"
    inputs["metadataConfiguration"] = {"mode": "USER_PROVISIONED", "iops": 12000}
    assert system.up(**inputs) == "replace"  # smaller again
    assert system.up(**{**inputs, "metadataConfiguration": {"mode": "USER_PROVISIONED", "iops": 6000}}) == "replace"
    system.down()


BASE = {"subnetIds": "subnet-0123456789abcdef0", "storageCapacity": 1200}
PERSISTENT = {**BASE, "deploymentType": "PERSISTENT_2", "perUnitStorageThroughput": 250}
SCRATCH = {**BASE, "deploymentType": "SCRATCH_2"}


@pytest.mark.parametrize(
    ("inputs", "sentence"),
    [
        ({**PERSISTENT, "storageCapacity": 1300},
         "storageCapacity: AWS would refuse this: PERSISTENT_2 has 1200, 2400, then multiples of 2400 GiB, not 1300"),
        ({**PERSISTENT, "storageCapacity": 3600}, "1200, 2400, then multiples of 2400 GiB, not 3600"),
        ({**SCRATCH, "deploymentType": "SCRATCH_1", "storageCapacity": 4800}, "multiples of 3600 GiB, not 4800"),
        ({**PERSISTENT, "storageCapacity": None}, "storageCapacity: AWS would refuse this: the size is missing"),
        ({**PERSISTENT, "perUnitStorageThroughput": 200},
         "perUnitStorageThroughput: AWS would refuse this: PERSISTENT_2 on SSD has 125, 250, 500 or 1000"),
        ({**PERSISTENT, "perUnitStorageThroughput": None}, "PERSISTENT_2 needs it: 125, 250, 500 or 1000 MB/s"),
        ({**SCRATCH, "perUnitStorageThroughput": 250}, "SCRATCH_2 has a fixed throughput; leave it out"),
        ({**PERSISTENT, "storageType": "HDD"}, "storageType: AWS would refuse this: PERSISTENT_2 has no HDD storage"),
        ({**PERSISTENT, "efaEnabled": True, "metadataConfiguration": {"mode": "AUTOMATIC"}},
         "storageCapacity: AWS would refuse this: with EFA and 250 MB/s for each TiB: 19200, 38400, 57600, … GiB"),
        ({**PERSISTENT, "efaEnabled": True, "storageCapacity": 19200},
         'efaEnabled: AWS would refuse this: EFA needs a metadataConfiguration, e.g. {"mode": "AUTOMATIC"}'),
        ({**SCRATCH, "efaEnabled": True}, "efaEnabled: AWS would refuse this: only PERSISTENT_2 has EFA,"),
        ({**SCRATCH, "kmsKeyId": KEY}, "kmsKeyId: AWS would refuse this: SCRATCH_2 is encrypted with FSx's own key"),
        ({**SCRATCH, "automaticBackupRetentionDays": 7}, "SCRATCH_2 has no backups"),
        ({**SCRATCH, "metadataConfiguration": {"mode": "AUTOMATIC"}}, "only PERSISTENT_2 has it, not SCRATCH_2"),
        ({**PERSISTENT, "importPath": "s3://bucket"},
         "importPath: AWS would refuse this: PERSISTENT_2 is joined to a bucket by a data repository"),
        ({**PERSISTENT, "fileSystemTypeVersion": "2.10"}, "PERSISTENT_2 needs Lustre 2.12 or newer, not 2.10"),
        ({**PERSISTENT, "subnetIds": ["subnet-0123456789abcdef0"]},
         "subnetIds[0]: AWS would refuse this: must be text, is ['subnet-"),
        ({**PERSISTENT, "deploymentType": "PERSISTENT_3"},
         "deploymentType: AWS would refuse this: 'PERSISTENT_3' is not one of SCRATCH_1, SCRATCH_2"),
        ({**PERSISTENT, "dailyAutomaticBackupStartTime": "03:00"}, "only where backups are kept"),
        ({**PERSISTENT, "automaticBackupRetentionDays": 0, "dailyAutomaticBackupStartTime": "03:00"},
         "dailyAutomaticBackupStartTime: AWS would refuse this: only where backups are kept"),
        ({**PERSISTENT, "storageType": "HDD", "deploymentType": "PERSISTENT_1", "perUnitStorageThroughput": 12},
         "with 12 MB/s for each TiB: multiples of 6000 GiB, not 1200"),
    ],
)  # fmt: skip
def test_lustre_file_systems_that_aws_does_not_make(
    engine: LittleEngine, inputs: dict[str, Any], sentence: str
) -> None:
    assert sentence in engine.refusal(LUSTRE, inputs)


@pytest.mark.parametrize(
    "inputs",
    [
        PERSISTENT,
        {**PERSISTENT, "storageCapacity": 9600, "perUnitStorageThroughput": 500, "efaEnabled": True,
         "metadataConfiguration": {"mode": "USER_PROVISIONED", "iops": 6000}},
        {**BASE, "deploymentType": "PERSISTENT_1", "perUnitStorageThroughput": 12, "storageType": "HDD",
         "storageCapacity": 6000},
        {**SCRATCH, "storageCapacity": 7200},
    ],
)  # fmt: skip
def test_lustre_file_systems_that_aws_makes(engine: LittleEngine, inputs: dict[str, Any]) -> None:
    assert engine.refusal(LUSTRE, inputs) == ""


def test_an_efs_file_system_is_made_changed_replaced_and_removed(engine: LittleEngine) -> None:
    efs = engine.boto("efs")
    inputs: dict[str, Any] = {
        "encrypted": True, "kmsKeyId": KEY, "performanceMode": "generalPurpose", "throughputMode": "elastic",
        "lifecyclePolicies": [{"transitionToIa": "AFTER_30_DAYS"}, {"transitionToArchive": "AFTER_90_DAYS"}],
        "tags": {"Name": "home"},
    }  # fmt: skip
    system = engine.made(EFS, **inputs)
    assert system["arn"] == f"arn:aws:elasticfilesystem:us-east-2:123456789012:file-system/{system.id}"
    assert system["dnsName"] == f"{system.id}.efs.us-east-2.amazonaws.com"
    assert system["numberOfMountTargets"] == 0
    (seen,) = efs.describe_file_systems(FileSystemId=system.id)["FileSystems"]
    assert (seen["Encrypted"], seen["KmsKeyId"], seen["ThroughputMode"]) == (True, KEY, "elastic")
    assert system.up(**inputs) == "same"
    assert system.refresh() == "same"

    inputs |= {
        "throughputMode": "provisioned", "provisionedThroughputInMibps": 64,
        "lifecyclePolicies": [{"transitionToIa": "AFTER_7_DAYS"}], "protection": {"replicationOverwrite": "DISABLED"},
        "tags": {"Name": "home", "team": "a"},
    }  # fmt: skip
    assert system.up(**inputs) == "update"
    assert system.refresh() == "same"
    assert efs.describe_lifecycle_configuration(FileSystemId=system.id)["LifecyclePolicies"] == [
        {"TransitionToIA": "AFTER_7_DAYS"}
    ]
    efs.put_lifecycle_configuration(FileSystemId=system.id, LifecyclePolicies=[{"TransitionToIA": "AFTER_1_DAY"}])
    assert system.refresh() == "changed"
    assert system.up(**{**inputs, "performanceMode": "maxIO"}) == "replace"
    system.down()
    system.down()
    assert system.refresh() == "gone"
    assert efs.describe_file_systems()["FileSystems"] == []
    assert engine.aws.book.all("efs-changes") == {}


def test_mount_targets_bring_a_file_system_into_zones(engine: LittleEngine) -> None:
    efs = engine.boto("efs")
    subnet = engine.subnet()
    vpc = engine.vpc_of(subnet)
    nfs, other = group(engine, vpc, "nfs", 2049), group(engine, vpc, "other", 2049)
    system = engine.made(EFS, encrypted=True)
    target = engine.made(TARGET, fileSystemId=system.id, subnetId=subnet, securityGroups=[nfs])
    assert re.fullmatch(r"fsmt-[0-9a-f]{8,40}", target.id)
    assert target["availabilityZoneName"] == "us-east-2a"
    assert target["dnsName"] == system["dnsName"]
    assert target["mountTargetDnsName"] == f"us-east-2a.{system['dnsName']}"
    assert target["ipAddress"].startswith("10.0.1.")
    assert target["fileSystemArn"] == system["arn"]
    assert target.refresh() == "same"
    assert target.up(fileSystemId=system.id, subnetId=subnet, securityGroups=[other]) == "update"
    seen = efs.describe_mount_target_security_groups(MountTargetId=target.id)["SecurityGroups"]
    assert seen == [other]
    efs.modify_mount_target_security_groups(MountTargetId=target.id, SecurityGroups=[nfs])
    assert target.refresh() == "changed"

    with pytest.raises(RefusedError, match="AWS refused efs:CreateMountTarget with MountTargetConflict"):
        engine.made(TARGET, fileSystemId=system.id, subnetId=subnet)
    with pytest.raises(RefusedError, match="AWS refused efs:DeleteFileSystem with FileSystemInUse"):
        system.down()
    second = engine.subnet("10.0.2.0/24", zone="b", vpc=vpc)
    assert target.up(fileSystemId=system.id, subnetId=second, securityGroups=[nfs]) == "replace"
    assert target["availabilityZoneName"] == "us-east-2b"
    target.down()
    target.down()
    assert target.refresh() == "gone"
    system.down()
    with pytest.raises(ClientError, match="FileSystemNotFound"):
        efs.describe_file_systems(FileSystemId=system.id)


@pytest.mark.parametrize(
    ("token", "inputs", "sentence"),
    [
        (EFS, {"kmsKeyId": KEY}, "kmsKeyId: AWS would refuse this: a key only with encrypted: true"),
        (EFS, {"throughputMode": "provisioned"},
         "provisionedThroughputInMibps: AWS would refuse this: throughputMode provisioned needs it"),
        (EFS, {"provisionedThroughputInMibps": 64}, "only with throughputMode: provisioned"),
        (EFS, {"performanceMode": "maxIO", "throughputMode": "elastic"}, "maxIO does not go with elastic throughput"),
        (EFS, {"performanceMode": "maxIO", "availabilityZoneName": "us-east-2a"},
         "maxIO does not go with a file system of one zone"),
        (EFS, {"throughputMode": "fast"},
         "throughputMode: AWS would refuse this: 'fast' is not one of bursting, provisioned, elastic"),
        (EFS, {"lifecyclePolicies": [{"transitionToIa": "AFTER_30_DAYS", "transitionToArchive": "AFTER_90_DAYS"}]},
         "lifecyclePolicies[0]: AWS would refuse this: one transition in each policy, not transitionToIa,"),
        (EFS, {"lifecyclePolicies": [{"transitionToIa": "AFTER_7_DAYS"}, {"transitionToIa": "AFTER_30_DAYS"}]},
         "lifecyclePolicies[1].transitionToIa: AWS would refuse this: transitionToIa is said by another policy"),
        (EFS, {"lifecyclePolicies": [{"transitionToIa": "AFTER_8_DAYS"}]},
         "lifecyclePolicies[0].transitionToIa: AWS would refuse this: 'AFTER_8_DAYS' is not one of"),
        (EFS, {"protection": {"replicationOverwrite": "OFF"}}, "'OFF' is not one of ENABLED, DISABLED"),
        (TARGET, {"fileSystemId": "fs-1", "subnetId": "subnet-0123456789abcdef0"},
         "fileSystemId: AWS would refuse this: 'fs-1' does not match the pattern"),
    ],
)  # fmt: skip
def test_what_efs_would_refuse(engine: LittleEngine, token: str, inputs: dict[str, Any], sentence: str) -> None:
    assert sentence in engine.refusal(token, inputs)
