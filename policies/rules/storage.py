"""File systems, buckets and keys: where data sets and checkpoints are."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from policies.registry import Topic
from policies.rule import Finding, RawProps, Resource, Setting, Settings, Stack
from policies.values import UNKNOWN, UnknownMemberError, Value

BUCKETS = ("aws:s3/bucket:Bucket", "aws:s3/bucketV2:BucketV2")
LUSTRE = "aws:fsx/lustreFileSystem:LustreFileSystem"
EFS = "aws:efs/fileSystem:FileSystem"
KEY = "aws:kms/key:Key"
CLASS = "kubernetes:storage.k8s.io/v1:StorageClass"
_EBS = ("ebs.csi.aws.com", "ebs.csi.eks.amazonaws.com", "kubernetes.io/aws-ebs")
"""Provisioners of EBS volumes: the driver, that of EKS Auto Mode, the old name."""
topic = Topic("Storage")
_S3 = "https://docs.aws.amazon.com/AmazonS3/latest/userguide"
_SYMMETRIC = "SYMMETRIC_DEFAULT"
_BLOCKS = ("blockPublicAcls", "blockPublicPolicy", "ignorePublicAcls", "restrictPublicBuckets")
_CHECKOV_BLOCKS = ("CKV_AWS_53", "CKV_AWS_54", "CKV_AWS_55", "CKV_AWS_56")


@topic.rule(
    "file-system-encrypted",
    "File systems are encrypted with a KMS key of yours.",
    severity="high",
    types=(LUSTRE, EFS, "aws:fsx/openZfsFileSystem:OpenZfsFileSystem", "aws:fsx/ontapFileSystem:OntapFileSystem"),
    frameworks=("CKV_AWS_42", "CKV_AWS_184", "CKV_AWS_190", "CIS AWS Foundations 2.3.1"),
    presence=("kmsKeyId",),
    why="They hold data sets and weights. With a key of yours, who reads them is on record, and backups are worth "
    "nothing without it.",
    wrong="""
home: {type: "aws:efs/fileSystem:FileSystem", properties: {creationToken: home}}
""",
    right="""
key: {type: aws:kms/key:Key, properties: {enableKeyRotation: true}}
home: {type: "aws:efs/fileSystem:FileSystem", properties: {creationToken: home, encrypted: true,
    kmsKeyId: "${key.arn}"}}
""",
    steps="Set kmsKeyId, and for EFS encrypted: true. It cannot be changed later: a new file system is made.",
    references=("https://docs.aws.amazon.com/fsx/latest/LustreGuide/encryption-at-rest.html",),
)
def file_system_encrypted(resource: Resource, _: Settings) -> Iterator[str]:
    """EFS wants to be asked; FSx encrypts always, with AWS's own key unless told otherwise.

    A scratch file system takes no other key.
    """
    if resource.type == LUSTRE and resource.props.at("deploymentType").text().startswith("SCRATCH"):
        return
    if resource.type == EFS and resource.props.at("encrypted").flag() is not True:
        yield "encrypted is not true"
    if not resource.props.at("kmsKeyId").is_set:
        yield "kmsKeyId is not set"


@topic.rule(
    "storage-class-encrypted",
    "Volumes that Kubernetes asks of EBS are encrypted and gp3.",
    severity="medium",
    types=(CLASS,),
    frameworks=("CKV_AWS_3",),
    why="A StorageClass makes disks that no program lists: what it does not say, every claim goes without.",
    wrong="""
block: {type: "kubernetes:storage.k8s.io/v1:StorageClass", properties: {provisioner: ebs.csi.aws.com,
    parameters: {type: gp2}}}
""",
    right="""
block:
  type: kubernetes:storage.k8s.io/v1:StorageClass
  properties: {provisioner: ebs.csi.aws.com, parameters: {type: gp3, encrypted: "true"}}
""",
    steps='Set parameters.encrypted: "true" and parameters.type: gp3.',
    references=("https://github.com/kubernetes-sigs/aws-ebs-csi-driver/blob/master/docs/parameters.md",),
)
def storage_class_encrypted(resource: Resource, _: Settings) -> Iterator[str]:
    """Only of the EBS driver."""
    if resource.props.at("provisioner").text() not in _EBS:
        return
    if resource.props.at("parameters", "encrypted").flag() is not True:
        yield "parameters.encrypted is not true"
    if (kind := resource.props.at("parameters", "type").text() or "gp3") not in ("gp3", "io2"):
        yield f"parameters.type is {kind}"


@topic.rule(
    "bucket-blocks-weak",
    "A block of public access blocks all four ways.",
    severity="critical",
    types=("aws:s3/bucketPublicAccessBlock:BucketPublicAccessBlock",),
    frameworks=_CHECKOV_BLOCKS,
    why="Each of the four closes one way in which a bucket becomes public. Three of them are a door that is open a "
    "little.",
    wrong="""
blocks:
  type: aws:s3/bucketPublicAccessBlock:BucketPublicAccessBlock
  properties: {bucket: checkpoints, blockPublicAcls: true, blockPublicPolicy: true}
""",
    right="""
blocks:
  type: aws:s3/bucketPublicAccessBlock:BucketPublicAccessBlock
  properties:
    {bucket: checkpoints, blockPublicAcls: true, blockPublicPolicy: true, ignorePublicAcls: true,
        restrictPublicBuckets: true}
""",
    steps="Set all four to true.",
    references=(f"{_S3}/access-control-block-public-access.html",),
    mend=lambda props: _all_true(props),  # noqa: PLW0108 - declared below
)
def bucket_blocks(resource: Resource, _: Settings) -> Iterator[str]:
    """All four."""
    if missing := [key for key in _BLOCKS if resource.props.at(key).flag() is not True]:
        yield f"not true: {', '.join(missing)}"


def _all_true(props: RawProps) -> bool:
    changed = {key: True for key in _BLOCKS if props.get(key) is not True}
    props.update(changed)
    return bool(changed)


Companion = tuple[Stack, Resource]


def _buckets(stack: Stack) -> list[Companion]:
    return [(stack, one) for one in stack.of(*BUCKETS)]


def _companions(subject: Companion, kind: str) -> list[Resource]:
    """Resources of a kind (`BucketVersioning`, also with V2) that are about a bucket."""
    stack, bucket = subject
    names = {kind, f"{kind}V2"}
    of_kind = [one for one in stack.resources if one.type.startswith("aws:s3/") and one.kind in names]
    return [one for one in of_kind if bucket in stack.behind(one, "bucket", *BUCKETS)]


@topic.rule(
    "bucket-not-public",
    "Every bucket has a block of public access.",
    severity="critical",
    each=_buckets,
    frameworks=(*_CHECKOV_BLOCKS, "CKV2_AWS_6", "CIS AWS Foundations 2.1.4"),
    presence=("bucket",),
    why="Weights that cost a million to train have been found in buckets that a policy of one line had made public.",
    wrong="""
checkpoints: {type: "aws:s3/bucket:Bucket", properties: {bucket: checkpoints}}
""",
    right="""
checkpoints: {type: "aws:s3/bucket:Bucket", properties: {bucket: checkpoints}}
blocks:
  type: aws:s3/bucketPublicAccessBlock:BucketPublicAccessBlock
  properties: {bucket: "${checkpoints.id}", blockPublicAcls: true}
""",
    steps="Add a BucketPublicAccessBlock for it.",
    references=(f"{_S3}/access-control-block-public-access.html",),
)
def bucket_not_public(subject: Companion, _: Settings) -> Iterator[Finding]:
    """There is one; whether it is whole, another rule says."""
    if not _companions(subject, "BucketPublicAccessBlock"):
        yield Finding("has no BucketPublicAccessBlock", subject[1])


@topic.rule(
    "bucket-versioned",
    "Buckets keep what is overwritten and deleted.",
    severity="medium",
    each=_buckets,
    frameworks=("CKV_AWS_21",),
    presence=("bucket",),
    why="A run that writes into the wrong prefix, or a clean-up with a typing mistake, takes the only checkpoint with "
    "it.",
    wrong="""
checkpoints: {type: "aws:s3/bucket:Bucket", properties: {bucket: checkpoints}}
""",
    right="""
checkpoints: {type: "aws:s3/bucket:Bucket", properties: {bucket: checkpoints}}
versions:
  type: aws:s3/bucketVersioning:BucketVersioning
  properties: {bucket: "${checkpoints.id}", versioningConfiguration: {status: Enabled}}
""",
    steps="Add a BucketVersioning with status Enabled, and a lifecycle rule that ends old versions.",
    references=(f"{_S3}/Versioning.html",),
)
def bucket_versioned(subject: Companion, _: Settings) -> Iterator[Finding]:
    """By a resource of its own, or inline as the older kinds of buckets have it."""
    of_bucket = _companions(subject, "BucketVersioning")
    states = [one.props.at("versioningConfiguration", "status").text() for one in of_bucket]
    inline = [subject[1].props.at(key, "enabled") for key in ("versioning", "versionings")]
    if "Enabled" not in states and not any(one.flag() for one in inline):
        yield Finding("is not versioned", subject[1])


@topic.rule(
    "bucket-tls-only",
    "Buckets refuse requests without TLS.",
    severity="high",
    each=_buckets,
    frameworks=("CKV_AWS_379", "CIS AWS Foundations 2.1.1"),
    presence=("bucket",),
    why="Without the refusal one tool with an old setting sends weights and credentials in the clear, and nobody sees "
    "it.",
    wrong="""
checkpoints: {type: "aws:s3/bucket:Bucket", properties: {bucket: checkpoints}}
""",
    right="""
checkpoints: {type: "aws:s3/bucket:Bucket", properties: {bucket: checkpoints}}
tls:
  type: aws:s3/bucketPolicy:BucketPolicy
  properties:
    bucket: "${checkpoints.id}"
    policy: '{"Statement": [{"Effect": "Deny", "Principal": "*", "Action": "s3:*",
        "Resource": ["arn:aws:s3:::checkpoints",
      "arn:aws:s3:::checkpoints/*"], "Condition": {"Bool": {"aws:SecureTransport": "false"}}}]}'
""",
    steps='Add a bucket policy that denies s3:* where aws:SecureTransport is "false".',
    references=(f"{_S3}/security-best-practices.html",),
)
def bucket_tls_only(subject: Companion, _: Settings) -> Iterator[Finding]:
    """A policy whose text is not known yet is not judged."""
    documents = [one.props.at("policy") for one in (*_companions(subject, "BucketPolicy"), subject[1])]
    if not any(_denies_plain(one) for one in documents):
        yield Finding("has no policy that denies requests without TLS", subject[1])


def _denies_plain(document: Value) -> bool:
    """Everybody, every action, every object, and no condition besides that there is no TLS."""
    for one in statements(document):
        principal = one.get("Principal")
        everybody = "*" in listed(principal.get("AWS") if isinstance(principal, dict) else principal)
        every_action = {"*", "s3:*"} & {each.lower() for each in listed(one.get("Action"))}
        every_object = any(each.endswith("*") for each in listed(one.get("Resource")))
        if one.get("Effect") == "Deny" and everybody and every_action and every_object and _only_plain(one):
            return True
    return False


def _only_plain(statement: dict[str, Any]) -> bool:
    condition = statement.get("Condition")
    tests = [
        (operator.lower(), key.lower(), [str(each).lower() for each in (value if isinstance(value, list) else [value])])
        for operator, test in (condition.items() if isinstance(condition, dict) else ())
        if isinstance(test, dict)
        for key, value in test.items()
    ]
    return len(tests) == 1 and tests[0] in [
        (operator, "aws:securetransport", ["false"]) for operator in ("bool", "boolifexists")
    ]


def listed(value: object) -> list[str]:
    """The texts of a member of a statement, which may be one or a list."""
    if isinstance(value, str):
        return [value]
    return [one for one in value if isinstance(one, str)] if isinstance(value, list | tuple) else []


def statements(document: Value) -> list[dict[str, Any]]:
    """The statements of a policy document, given as JSON text or as a mapping; none where it is neither.

    Raises:
        UnknownMemberError: it, or something in it, is known only after `up`.
    """
    raw: Any = document.raw
    if _has_unknown(raw):
        raise UnknownMemberError(document.path)
    if isinstance(raw, str):
        try:
            raw = json.loads(raw)
        except (ValueError, RecursionError):
            return []
    found = raw.get("Statement") if isinstance(raw, dict) else None
    return [one for one in (found if isinstance(found, list) else [found]) if isinstance(one, dict)]


def _has_unknown(raw: object) -> bool:
    if isinstance(raw, dict | list):
        return any(_has_unknown(one) for one in (raw.values() if isinstance(raw, dict) else raw))
    return raw is UNKNOWN


@topic.rule(
    "bucket-encrypted",
    "Buckets are encrypted with a KMS key of yours.",
    severity="medium",
    each=_buckets,
    frameworks=("CKV_AWS_145",),
    presence=("bucket", "kmsMasterKeyId"),
    why="S3 encrypts always, but with AWS's key whoever may read the bucket reads it. With yours a second right is "
    "needed.",
    wrong="""
checkpoints: {type: "aws:s3/bucket:Bucket", properties: {bucket: checkpoints}}
""",
    right="""
checkpoints: {type: "aws:s3/bucket:Bucket", properties: {bucket: checkpoints}}
encryption:
  type: aws:s3/bucketServerSideEncryptionConfiguration:BucketServerSideEncryptionConfiguration
  properties:
    bucket: "${checkpoints.id}"
    rules: [{applyServerSideEncryptionByDefault: {sseAlgorithm: aws:kms, kmsMasterKeyId: alias/checkpoints},
        bucketKeyEnabled: true}]
""",
    steps="Add a BucketServerSideEncryptionConfiguration with aws:kms, your key, and a bucket key.",
    references=(f"{_S3}/UsingKMSEncryption.html",),
)
def bucket_encrypted(subject: Companion, _: Settings) -> Iterator[Finding]:
    """aws:kms with a key named; by a resource of its own, or inline as the older kinds of buckets have it."""
    companions = _companions(subject, "BucketServerSideEncryptionConfiguration")
    keys = ("serverSideEncryptionConfiguration", "serverSideEncryptionConfigurations")
    inline = [subject[1].props.at(key, member) for key in keys for member in ("rule", "rules")]
    for rule in [each for rules in (*(one.props.at("rules") for one in companions), *inline) for each in rules.items()]:
        default = rule.at("applyServerSideEncryptionByDefault")
        if default.at("sseAlgorithm").text().startswith("aws:kms") and default.at("kmsMasterKeyId").is_set:
            return
    yield Finding("has no default encryption with a KMS key", subject[1])


@topic.rule(
    "bucket-ends-uploads",
    "Uploads that were never finished are removed.",
    severity="low",
    level="advisory",
    each=_buckets,
    frameworks=("CKV_AWS_300",),
    settings={"days": Setting(14, "Days after which, at the latest.")},
    presence=("bucket",),
    why="A reclaimed machine leaves parts of a checkpoint that no listing shows and every bill has: hundreds of GB "
    "for each.",
    wrong="""
checkpoints: {type: "aws:s3/bucket:Bucket", properties: {bucket: checkpoints}}
""",
    right="""
checkpoints: {type: "aws:s3/bucket:Bucket", properties: {bucket: checkpoints}}
lifecycle:
  type: aws:s3/bucketLifecycleConfiguration:BucketLifecycleConfiguration
  properties:
    bucket: "${checkpoints.id}"
    rules: [{id: unfinished, status: Enabled, abortIncompleteMultipartUpload: {daysAfterInitiation: 7}}]
""",
    steps="Add a lifecycle rule with abortIncompleteMultipartUpload.",
    references=(f"{_S3}/mpu-abort-incomplete-mpu-lifecycle-config.html",),
)
def bucket_ends_uploads(subject: Companion, settings: Settings) -> Iterator[Finding]:
    """A rule that is on; of a resource of its own, or inline as the older kinds of buckets have it."""
    for one in _companions(subject, "BucketLifecycleConfiguration"):
        for rule in one.props.at("rules").items():
            days = rule.at("abortIncompleteMultipartUpload", "daysAfterInitiation").number()
            if rule.at("status").text() == "Enabled" and days is not None and days <= settings["days"]:
                return
    for rule in subject[1].props.at("lifecycleRules").items():
        days = rule.at("abortIncompleteMultipartUploadDays").number()
        if rule.at("enabled").flag() and days is not None and days <= settings["days"]:
            return
    yield Finding(f"has no lifecycle rule that ends unfinished uploads within {settings['days']} days", subject[1])


@topic.rule(
    "key-rotated",
    "KMS keys are rotated, and wait before they are deleted.",
    severity="medium",
    types=(KEY,),
    frameworks=("CKV_AWS_7", "CIS AWS Foundations 3.6"),
    settings={"days": Setting(7, "Fewest days between asking for a deletion and the deletion.")},
    why="Rotation costs nothing and bounds what one leaked key opens. A deleted key takes everything with it that it "
    "encrypts.",
    wrong="""
key: {type: "aws:kms/key:Key", properties: {deletionWindowInDays: 7}}
""",
    right="""
key: {type: "aws:kms/key:Key", properties: {deletionWindowInDays: 30, enableKeyRotation: true}}
""",
    steps="Set enableKeyRotation: true and deletionWindowInDays: 30.",
    references=("https://docs.aws.amazon.com/kms/latest/developerguide/rotate-keys.html",),
    mend=lambda props: _rotate(props),  # noqa: PLW0108 - declared below
)
def key_rotated(key: Resource, settings: Settings) -> Iterator[str]:
    """Asymmetric keys cannot be rotated."""
    if (
        key.props.at("customerMasterKeySpec").text() in ("", _SYMMETRIC)
        and key.props.at("enableKeyRotation").flag() is not True
    ):
        yield "enableKeyRotation is not true"
    days = key.props.at("deletionWindowInDays").number()
    if days is not None and days < settings["days"]:
        yield f"deletionWindowInDays is {days:.0f}; at least {settings['days']}"


def _rotate(props: RawProps) -> bool:
    if props.get("enableKeyRotation") is True or props.get("customerMasterKeySpec") not in (None, "", _SYMMETRIC):
        return False
    props["enableKeyRotation"] = True
    return True


@topic.rule(
    "stateful-protected",
    "What holds data cannot be deleted by mistake: it is protected.",
    severity="high",
    level="advisory",
    types=(*BUCKETS, LUSTRE, EFS, KEY, "aws:ecr/repository:Repository", "aws:eks/cluster:Cluster"),
    why="A renamed resource is a deletion and a creation. With protect the engine refuses, and checkpoints of a month "
    "are still there.",
    wrong="""
checkpoints: {type: "aws:s3/bucket:Bucket", properties: {bucket: checkpoints}}
""",
    right="""
checkpoints:
  type: aws:s3/bucket:Bucket
  properties: {bucket: checkpoints}
  options: {protect: true}
""",
    steps="Set the resource option protect (trainyard:aws.protect: true). To remove the stack, switch it off first.",
    references=("https://www.pulumi.com/docs/iac/concepts/options/protect/",),
)
def stateful_protected(resource: Resource, _: Settings) -> Iterator[str]:
    """The option, and no way round it."""
    if not resource.protect:
        yield "protect is not set"
    for key in ("forceDestroy", "forceDelete"):
        if resource.props.at(key).flag():
            yield f"{key} is true: it goes with all that is in it"
