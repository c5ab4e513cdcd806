"""Buckets in the rehearsal."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
from botocore.exceptions import ClientError
from little_engine import LittleEngine, RefusedError, Resource, little_engine

BUCKET = "aws:s3/bucket:Bucket"
VERSIONING = "aws:s3/bucketVersioning:BucketVersioning"
BLOCK = "aws:s3/bucketPublicAccessBlock:BucketPublicAccessBlock"
OWNERSHIP = "aws:s3/bucketOwnershipControls:BucketOwnershipControls"
ENCRYPTION = "aws:s3/bucketServerSideEncryptionConfiguration:BucketServerSideEncryptionConfiguration"
POLICY = "aws:s3/bucketPolicy:BucketPolicy"
LIFECYCLE = "aws:s3/bucketLifecycleConfiguration:BucketLifecycleConfiguration"
KEY = "arn:aws:kms:us-east-2:123456789012:key/1234abcd-12ab-34cd-56ef-1234567890ab"


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LittleEngine]:
    with little_engine(tmp_path_factory.mktemp("s3")) as engine:
        yield engine


@pytest.fixture
def bucket(engine: LittleEngine) -> Iterator[Resource]:
    made = engine.made(BUCKET, bucket="trainyard-dev", forceDestroy=True)
    yield made
    made.down()


def policy(bucket: str, **members: Any) -> str:
    statement = {
        "Effect": "Deny", "Principal": "*", "Action": "s3:*",
        "Resource": [f"arn:aws:s3:::{bucket}", f"arn:aws:s3:::{bucket}/*"],
        "Condition": {"Bool": {"aws:SecureTransport": "false"}}, **members,
    }  # fmt: skip
    present = {key: value for key, value in statement.items() if value is not None}
    return json.dumps({"Version": "2012-10-17", "Statement": [present]})


def test_a_bucket_is_made_changed_replaced_and_removed(engine: LittleEngine) -> None:
    s3 = engine.boto("s3")
    bucket = engine.made(BUCKET, bucket="data-dev", tags={"stack": "dev"})
    assert bucket.id == "data-dev"
    assert bucket["arn"] == "arn:aws:s3:::data-dev"
    assert bucket["bucketDomainName"] == "data-dev.s3.amazonaws.com"
    assert bucket["bucketRegionalDomainName"] == "data-dev.s3.us-east-2.amazonaws.com"
    assert s3.get_bucket_location(Bucket="data-dev")["LocationConstraint"] == "us-east-2"
    assert bucket.up(bucket="data-dev", tags={"stack": "dev"}) == "same"
    assert bucket.up(bucket="data-dev", tags={"team": "a"}) == "update"
    assert s3.get_bucket_tagging(Bucket="data-dev")["TagSet"] == [{"Key": "team", "Value": "a"}]
    assert bucket.refresh() == "same"
    assert bucket.up(bucket="data-dev") == "update"
    s3.put_bucket_tagging(Bucket="data-dev", Tagging={"TagSet": [{"Key": "x", "Value": "y"}]})
    assert bucket.up(bucket="data-prod") == "replace"
    assert [found["Name"] for found in s3.list_buckets()["Buckets"]] == ["data-prod"]
    s3.delete_bucket(Bucket="data-prod")
    assert bucket.refresh() == "gone"
    bucket.down()


def test_a_bucket_with_objects_stays_unless_it_may_be_emptied(engine: LittleEngine) -> None:
    s3 = engine.boto("s3")
    bucket = engine.made(BUCKET, bucket="full")
    engine.made(VERSIONING, bucket="full", versioningConfiguration={"status": "Enabled"})
    for body in (b"1", b"2"):
        s3.put_object(Bucket="full", Key="checkpoint", Body=body)
    s3.delete_object(Bucket="full", Key="checkpoint")
    with pytest.raises(RefusedError, match="AWS refused s3:DeleteBucket with BucketNotEmpty"):
        bucket.down()
    assert bucket.up(bucket="full", forceDestroy=True) == "update"
    bucket.down()
    assert s3.list_buckets()["Buckets"] == []


def test_versioning_can_be_suspended_but_not_undone(engine: LittleEngine, bucket: Resource) -> None:
    s3 = engine.boto("s3")
    versioning = engine.made(VERSIONING, bucket=bucket.id, versioningConfiguration={"status": "Enabled"})
    assert s3.get_bucket_versioning(Bucket=bucket.id)["Status"] == "Enabled"
    assert versioning.refresh() == "same"
    s3.put_bucket_versioning(Bucket=bucket.id, VersioningConfiguration={"Status": "Suspended"})
    assert versioning.refresh() == "changed"
    assert versioning.up(bucket=bucket.id, versioningConfiguration={"status": "Enabled"}) == "update"
    with pytest.raises(RefusedError, match="it goes from Enabled to Suspended, not to Disabled"):
        versioning.up(bucket=bucket.id, versioningConfiguration={"status": "Disabled"})
    versioning.down()
    assert s3.get_bucket_versioning(Bucket=bucket.id)["Status"] == "Suspended"


def test_a_bucket_can_be_kept_from_the_public(engine: LittleEngine, bucket: Resource) -> None:
    s3 = engine.boto("s3")
    closed = dict.fromkeys(("blockPublicAcls", "blockPublicPolicy", "ignorePublicAcls", "restrictPublicBuckets"), True)
    block = engine.made(BLOCK, bucket=bucket.id, **closed)
    assert all(s3.get_public_access_block(Bucket=bucket.id)["PublicAccessBlockConfiguration"].values())
    assert block.refresh() == "same"
    everybody = policy(bucket.id, Effect="Allow", Action="s3:GetObject", Condition=None)
    assert engine.refusal(POLICY, {"bucket": bucket.id, "policy": everybody}) == (
        "policy: AWS would refuse this: it lets everybody in, and the public access block of the bucket forbids"
        " such policies"
    )
    assert block.up(bucket=bucket.id, **{**closed, "blockPublicPolicy": False}) == "update"
    assert engine.refusal(POLICY, {"bucket": bucket.id, "policy": everybody}) == ""
    block.down()
    block.down()
    assert block.refresh() == "gone"
    with pytest.raises(ClientError, match="NoSuchPublicAccessBlockConfiguration"):
        s3.get_public_access_block(Bucket=bucket.id)


def test_owner_and_key_of_the_objects(engine: LittleEngine, bucket: Resource) -> None:
    s3 = engine.boto("s3")
    owner = engine.made(OWNERSHIP, bucket=bucket.id, rule={"objectOwnership": "BucketOwnerPreferred"})
    assert owner.up(bucket=bucket.id, rule={"objectOwnership": "BucketOwnerEnforced"}) == "update"
    (rule,) = s3.get_bucket_ownership_controls(Bucket=bucket.id)["OwnershipControls"]["Rules"]
    assert rule == {"ObjectOwnership": "BucketOwnerEnforced"}
    assert owner.refresh() == "same"

    by_key = {"applyServerSideEncryptionByDefault": {"sseAlgorithm": "aws:kms", "kmsMasterKeyId": KEY}}
    encryption = engine.made(ENCRYPTION, bucket=bucket.id, rules=[{**by_key, "bucketKeyEnabled": True}])
    (rule,) = s3.get_bucket_encryption(Bucket=bucket.id)["ServerSideEncryptionConfiguration"]["Rules"]
    assert rule["ApplyServerSideEncryptionByDefault"]["KMSMasterKeyID"] == KEY
    assert encryption.refresh() == "same"
    plain = {"applyServerSideEncryptionByDefault": {"sseAlgorithm": "AES256"}}
    assert encryption.up(bucket=bucket.id, rules=[plain]) == "update"
    s3.delete_bucket_encryption(Bucket=bucket.id)
    assert encryption.refresh() == "gone"
    for resource in (owner, encryption):
        resource.down()
    with pytest.raises(ClientError, match="OwnershipControlsNotFoundError"):
        s3.get_bucket_ownership_controls(Bucket=bucket.id)


def test_a_bucket_policy_is_made_changed_and_removed(engine: LittleEngine, bucket: Resource) -> None:
    s3 = engine.boto("s3")
    only_tls = engine.made(POLICY, bucket=bucket.id, policy=policy(bucket.id))
    assert only_tls.refresh() == "same"
    assert only_tls.up(bucket=bucket.id, policy=policy(bucket.id, Sid="only TLS")) == "update"
    assert "only TLS" in s3.get_bucket_policy(Bucket=bucket.id)["Policy"]
    s3.put_bucket_policy(Bucket=bucket.id, Policy=policy(bucket.id, Sid="theirs"))
    assert only_tls.refresh() == "changed"
    only_tls.down()
    assert only_tls.refresh() == "gone"


CHECKPOINTS: dict[str, Any] = {
    "id": "checkpoints",
    "status": "Enabled",
    "filter": {"prefix": "checkpoints/"},
    "transitions": [{"days": 30, "storageClass": "STANDARD_IA"}, {"days": 90, "storageClass": "GLACIER"}],
    "expiration": {"days": 365},
    "noncurrentVersionExpiration": {"noncurrentDays": 7, "newerNoncurrentVersions": 3},
    "abortIncompleteMultipartUpload": {"daysAfterInitiation": 7},
}


def test_what_is_old_moves_and_goes(engine: LittleEngine, bucket: Resource) -> None:
    s3 = engine.boto("s3")
    lifecycle = engine.made(LIFECYCLE, bucket=bucket.id, rules=[CHECKPOINTS])
    (seen,) = s3.get_bucket_lifecycle_configuration(Bucket=bucket.id)["Rules"]
    assert [step["StorageClass"] for step in seen["Transitions"]] == ["STANDARD_IA", "GLACIER"]
    assert (seen["Filter"], seen["Expiration"]) == ({"Prefix": "checkpoints/"}, {"Days": 365})
    assert lifecycle.refresh() == "same"  # although moto forgets newerNoncurrentVersions
    later = CHECKPOINTS | {"expiration": {"days": 730}}
    assert lifecycle.up(bucket=bucket.id, rules=[later]) == "update"
    assert lifecycle.refresh() == "same"

    theirs = {"ID": "x", "Status": "Disabled", "Filter": {"Prefix": ""}, "Expiration": {"Days": 1}}
    s3.put_bucket_lifecycle_configuration(Bucket=bucket.id, LifecycleConfiguration={"Rules": [theirs]})
    assert lifecycle.refresh() == "changed"
    assert lifecycle.inputs["rules"][0]["expiration"] == {"days": 1}
    lifecycle.down()
    assert lifecycle.refresh() == "gone"
    assert engine.aws.book.all("bucket-lifecycle") == {}


def rule(**members: Any) -> list[dict[str, Any]]:
    return [{key: value for key, value in {**CHECKPOINTS, **members}.items() if value is not None}]


@pytest.mark.parametrize(
    ("rules", "sentence"),
    [
        ([], "rules: AWS would refuse this: at least one rule is needed"),
        ([{"id": "a", "status": "Enabled"}], "rules[0]: AWS would refuse this: a rule needs at least one of"),
        (rule(status="On"), "rules[0].status: AWS would refuse this: 'On' is not one of Enabled, Disabled"),
        (rule(prefix="a"), "rules[0].prefix: the rehearsal does not know this property"),
        (rule() * 2, "rules[1].id: AWS would refuse this: 'checkpoints' is the id of another rule already"),
        (rule(filter={"prefix": "a", "objectSizeGreaterThan": 1}),
         "rules[0].filter: AWS would refuse this: one of objectSizeGreaterThan, prefix; for more than one"),
        (rule(transitions=[{"days": 7, "storageClass": "STANDARD_IA"}]),
         "rules[0].transitions[0].days: AWS would refuse this: STANDARD_IA takes objects after 30 days, not after 7"),
        (rule(transitions=[{"days": 30, "storageClass": "COLD"}]),
         "rules[0].transitions[0].storageClass: AWS would refuse this: 'COLD' is not one of GLACIER, STANDARD_IA,"),
        (rule(transitions=[{"days": 30, "storageClass": "GLACIER"}, {"days": 60, "storageClass": "STANDARD_IA"}]),
         "rules[0].transitions[1].storageClass: AWS would refuse this: from GLACIER objects cannot move to"),
        (rule(transitions=[{"days": 30, "storageClass": "STANDARD_IA"}, {"days": 45, "storageClass": "GLACIER"}]),
         ("rules[0].transitions[1].days: AWS would refuse this: objects stay in STANDARD_IA for 30 days at least:"
         " not before 60, and this is 45")),
        (rule(expiration={"days": 90}),
         "rules[0].expiration.days: AWS would refuse this: 90 days is not after the last transition"),
        (rule(noncurrentVersionTransitions=[{"noncurrentDays": 7, "storageClass": "GLACIER_IR"}]),
         "rules[0].noncurrentVersionExpiration.noncurrentDays: AWS would refuse this: 7 days is not after the last"),
    ],
)  # fmt: skip
def test_rules_that_s3_cannot_follow(engine: LittleEngine, rules: list[dict[str, Any]], sentence: str) -> None:
    assert sentence in engine.refusal(LIFECYCLE, {"bucket": "trainyard-dev", "rules": rules})


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("Trainyard", "'Trainyard' is no bucket name: 3 to 63 lower-case letters, digits, dots and hyphens"),
        ("ab", "'ab' is no bucket name: 3 to 63"),
        ("a" * 64, "is no bucket name: 3 to 63"),
        ("train-", "'train-' is no bucket name: 3 to 63 lower-case letters, digits, dots and hyphens, a letter or"),
        ("train..yard", "no two dots in a row"),
        ("10.0.0.1", "no IP address"),
        ("xn--yard", "beginnings and endings like this are S3's own"),
        ("yard-s3alias", "beginnings and endings like this are S3's own"),
    ],
)
def test_names_that_no_bucket_has(engine: LittleEngine, name: str, sentence: str) -> None:
    said = engine.refusal(BUCKET, {"bucket": name})
    assert said.startswith("bucket: AWS would refuse this: ")
    assert sentence in said


@pytest.mark.parametrize(
    ("token", "inputs", "sentence"),
    [
        (BUCKET, {}, "Bucket is required and missing (s3:CreateBucket)"),
        (BUCKET, {"bucket": "abc", "acl": "private"}, "acl: the rehearsal does not know this property: add it to"),
        (VERSIONING, {"bucket": "abc", "versioningConfiguration": {"status": "On"}},
         "versioningConfiguration.status: AWS would refuse this: 'On' is not one of Enabled, Suspended"),
        (VERSIONING, {"bucket": "abc", "versioningConfiguration": {}},
         "versioningConfiguration.status: AWS would refuse this: status is missing: Enabled, Suspended or Disabled"),
        (OWNERSHIP, {"bucket": "abc", "rule": {"objectOwnership": "me"}},
         "rule.objectOwnership: AWS would refuse this: 'me' is not one of BucketOwnerPreferred, ObjectWriter,"),
        (ENCRYPTION, {"bucket": "abc", "rules": []}, "rules: AWS would refuse this: a bucket has one rule"),
        (ENCRYPTION, {"bucket": "abc", "rules": [{"applyServerSideEncryptionByDefault": {"sseAlgorithm": "kms"}}]},
         "rules[0].applyServerSideEncryptionByDefault.sseAlgorithm: AWS would refuse this: 'kms' is not one of AES256"),
        (ENCRYPTION, {"bucket": "abc", "rules": [{"applyServerSideEncryptionByDefault":
                                                  {"sseAlgorithm": "AES256", "kmsMasterKeyId": KEY}}]},
         "kmsMasterKeyId: AWS would refuse this: AES256 is encryption with S3's own keys; with a key of KMS"),
        (POLICY, {"bucket": "abc", "policy": policy("abd")},
         ("policy: AWS would refuse this: Statement[0].Resource: 'arn:aws:s3:::abd' is not in this bucket; begin with"
         " arn:aws:s3:::abc")),
    ],
)  # fmt: skip
def test_what_aws_would_refuse(engine: LittleEngine, token: str, inputs: dict[str, Any], sentence: str) -> None:
    assert sentence in engine.refusal(token, inputs)


def test_in_the_first_region_a_bucket_names_no_region(tmp_path_factory: pytest.TempPathFactory) -> None:
    with little_engine(tmp_path_factory.mktemp("first"), region="us-east-1") as first:
        bucket = first.made(BUCKET, bucket="oldest")
        assert bucket["bucketRegionalDomainName"] == "oldest.s3.us-east-1.amazonaws.com"
        bucket.down()
