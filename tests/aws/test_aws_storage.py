"""What outlives machines: file systems, bucket, registry, budget; protected in production, removable elsewhere."""

from __future__ import annotations

import json

import yaml
from recorded_program import Recorded, run_stack_file

from infra.clusters import CHECKOUT

pytest_plugins = ["stacks_fixture"]

STATEFUL = ("Cluster", "Key", "LustreFileSystem", "FileSystem", "Bucket", "Repository")


def test_in_production_nothing_that_holds_data_can_be_deleted_by_mistake(prod: Recorded) -> None:
    for kind in STATEFUL:
        made = [each for each in prod.of(kind) if each.type.startswith("aws:")]
        assert made, kind
        for each in made:
            assert each.protect, f"{each.name} is not protected"
            assert each.retain, f"{each.name} would go with the stack"
    assert prod.one("Cluster", "cluster").inputs["deletionProtection"] is True
    assert not prod.one("Bucket", "bucket").inputs["forceDestroy"]
    assert not [each for each in prod.of("Repository") if each.inputs["forceDelete"]]


def test_elsewhere_all_of_it_goes_with_the_stack(dev: Recorded) -> None:
    assert not [each.name for each in dev.resources if each.protect or each.retain]
    assert dev.one("Bucket", "bucket").inputs["forceDestroy"] is True
    assert all(each.inputs["forceDelete"] for each in dev.of("Repository"))


def test_protection_is_switched_off_without_making_anything_anew(prod: Recorded) -> None:
    """It is how a stack is removed: what AWS changes only by replacement must be the same before and after."""
    values = yaml.safe_load((CHECKOUT / "Pulumi.prod.yaml").read_text())["config"]
    unprotected = run_stack_file("prod", aws={**values["trainyard:aws"], "protect": False})
    before = {(each.type, each.name): each.inputs for each in prod.resources}
    after = {(each.type, each.name): each.inputs for each in unprotected.resources}
    assert before.keys() == after.keys()
    changed = {
        (name, key)
        for (_, name), inputs in before.items()
        for key in inputs.keys() | after[_, name].keys()
        if inputs.get(key) != after[_, name].get(key)
    }
    assert changed == {
        ("cluster", "deletionProtection"),
        ("key", "deletionWindowInDays"),
        ("lustre", "automaticBackupRetentionDays"),
        ("bucket", "forceDestroy"),
        ("training-images", "forceDelete"),
        ("controller-images", "forceDelete"),
        ("nccl-tests-images", "forceDelete"),
    }


def test_lustre_and_the_machines_reach_each_other_by_all_its_ports(prod: Recorded) -> None:
    def rules(kind: str, of: str, other: str) -> set[tuple[int, int]]:
        return {
            (each.inputs["fromPort"], each.inputs["toPort"])
            for each in prod.of(kind)
            if each.inputs["securityGroupId"] == of and each.inputs.get("referencedSecurityGroupId") == other
        }

    ports, machines = {(988, 988), (1018, 1023)}, "sg-of-the-cluster"
    assert rules("SecurityGroupIngressRule", "lustre-id", machines) == ports
    assert rules("SecurityGroupIngressRule", "lustre-id", "lustre-id") == ports
    assert rules("SecurityGroupEgressRule", "lustre-id", machines) == ports
    assert rules("SecurityGroupEgressRule", "lustre-id", "lustre-id") == ports
    assert rules("SecurityGroupIngressRule", machines, "lustre-id") == ports
    assert rules("SecurityGroupIngressRule", "efs-id", machines) == {(2049, 2049)}


def test_lustre_comes_after_the_rules_by_which_its_servers_meet(prod: Recorded) -> None:
    lustre = next(each for each in prod.resources if each.type.endswith(":LustreFileSystem"))
    names = {urn.rpartition("::")[2] for urn in lustre.after}
    assert {f"lustre-{way}-itself-{port}" for way in ("from", "to") for port in (988, 1018)} <= names


def test_lustre_stands_beside_the_machines_that_use_it(prod: Recorded) -> None:
    system = prod.one("LustreFileSystem", "lustre").inputs
    assert system["subnetIds"] == prod.one("NodeGroup", "gpu-block-nodes").inputs["subnetIds"][0]
    assert (system["deploymentType"], system["storageCapacity"]) == ("PERSISTENT_2", 9600)
    assert system["perUnitStorageThroughput"] == 500
    assert system["kmsKeyId"].endswith(":key")


def test_efs_is_reached_from_every_zone(prod: Recorded) -> None:
    targets = {each.inputs["subnetId"] for each in prod.of("MountTarget")}
    assert targets == {f"private-us-east-2{letter}-id" for letter in "abc"}
    assert prod.one("FileSystem", "efs").inputs["encrypted"] is True


def test_the_bucket_is_private_versioned_encrypted_and_speaks_tls_only(prod: Recorded) -> None:
    closed = prod.one("BucketPublicAccessBlock", "bucket-not-public").inputs
    assert all(
        closed[key] for key in ("blockPublicAcls", "blockPublicPolicy", "ignorePublicAcls", "restrictPublicBuckets")
    )
    assert prod.one("BucketVersioning", "bucket-versioning").inputs["versioningConfiguration"] == {"status": "Enabled"}
    (rule,) = prod.one("BucketServerSideEncryptionConfiguration", "bucket-encryption").inputs["rules"]
    assert rule["applyServerSideEncryptionByDefault"]["sseAlgorithm"] == "aws:kms"
    (refusal,) = prod.one("BucketPolicy", "bucket-policy").statements()
    assert (refusal["Effect"], refusal["Principal"], refusal["Action"]) == ("Deny", "*", ["s3:*"])
    assert refusal["Condition"] == {"Bool": {"aws:SecureTransport": "false"}}
    ownership = prod.one("BucketOwnershipControls", "bucket-ownership").inputs["rule"]
    assert ownership == {"objectOwnership": "BucketOwnerEnforced"}


def test_the_bucket_archives_all_and_expires_checkpoints_alone(prod: Recorded) -> None:
    rules = {each["id"]: each for each in prod.one("BucketLifecycleConfiguration", "bucket-lifecycle").inputs["rules"]}
    assert rules["archive"]["transitions"] == [{"days": 30, "storageClass": "INTELLIGENT_TIERING"}]
    assert rules["expire-checkpoints"]["expiration"] == {"days": 365}
    assert rules["expire-checkpoints"]["filter"] == {"prefix": "checkpoints/"}
    assert rules["unfinished-uploads"]["abortIncompleteMultipartUpload"] == {"daysAfterInitiation": 7}


def test_an_image_s_tag_stays_what_it_is_and_old_images_go(prod: Recorded) -> None:
    names = {each.inputs["name"] for each in prod.of("Repository")}
    assert names == {f"trainyard-prod/{image}" for image in ("training", "controller", "nccl-tests")}
    for each in prod.of("Repository"):
        assert each.inputs["imageTagMutability"] == "IMMUTABLE"
        assert each.inputs["imageScanningConfiguration"] == {"scanOnPush": True}
        assert each.inputs["encryptionConfigurations"][0]["encryptionType"] == "KMS"
    (rule,) = json.loads(prod.one("LifecyclePolicy", "training-images-keep").inputs["policy"])["rules"]
    assert rule["selection"]["countNumber"] == 100


def test_the_budget_counts_the_stack_and_warns_before_and_at_its_end(prod: Recorded) -> None:
    budget = next(each for each in prod.of("Budget") if each.type.startswith("aws:")).inputs
    assert budget["costFilters"] == [{"name": "TagKeyValue", "values": ["user:trainyard.dev/stack$prod"]}]
    notices = {(each["notificationType"], each["threshold"]) for each in budget["notifications"]}
    assert notices == {("ACTUAL", 80), ("ACTUAL", 100), ("FORECASTED", 100)}
    provider = next(each for each in prod.resources if each.type == "pulumi:providers:aws").inputs
    assert json.loads(provider["defaultTags"])["tags"]["trainyard.dev/stack"] == "prod"
