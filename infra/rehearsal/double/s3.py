"""S3: buckets, and what is said of a bucket by resources of its own."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any, ClassVar

from infra.rehearsal.double.aws import Aws
from infra.rehearsal.double.kind import Call, Failure, Kind, Made, each, only, whole_or_gone
from infra.rehearsal.double.policy_documents import (
    BUCKET,
    as_written,
    document_failures,
    document_of,
    statements_of,
    words_of,
)
from infra.rehearsal.double.tags import tag_list, tags_of
from infra.rehearsal.double.values import UNKNOWN, is_known

_GONE = ("NoSuchBucket", "404")
_NAME = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]")
_ADDRESS = re.compile(r"\d+\.\d+\.\d+\.\d+")
_RESERVED_PREFIXES = ("xn--", "sthree-", "amzn-s3-demo-")
_RESERVED_SUFFIXES = ("-s3alias", "--ol-s3", ".mrap", "--x-s3", "--table-s3")
# S3 takes younger objects into these classes neither from Standard nor out of them again.
_LEAST_DAYS = {"STANDARD_IA": 30, "ONEZONE_IA": 30}
# From one class an object only sinks (S3 User Guide, "Transitioning objects using Amazon S3 Lifecycle").
_DEPTH = {
    "STANDARD_IA": 1, "INTELLIGENT_TIERING": 2, "ONEZONE_IA": 3, "GLACIER_IR": 3, "GLACIER": 4, "DEEP_ARCHIVE": 5,
}  # fmt: skip
_SHOWN_LIFECYCLE = "bucket-lifecycle"
"""Kind in the book: what moto shows of the rules that were put. It forgets some members of them."""


class Bucket(Kind):
    """A bucket; its id is its name. What newer programs say by resources of their own is not taken here."""

    token = "aws:s3/bucket:Bucket"  # noqa: S105 - a type token
    replace_on = frozenset({"bucket", "objectLockEnabled"})
    for_provider = frozenset({"forceDestroy"})

    def requests(self, inputs: Mapping[str, Any]) -> list[Call]:
        """One CreateBucket, then the tags; the region is added where it is known."""
        name = inputs.get("bucket")
        create = Call(
            "s3",
            "CreateBucket",
            only(Bucket=name, ObjectLockEnabledForBucket=inputs.get("objectLockEnabled")),
            {"ObjectLockEnabledForBucket": "objectLockEnabled"},
        )
        tags = tag_list(inputs.get("tags"))
        tag = Call("s3", "PutBucketTagging", only(Bucket=name, Tagging={"TagSet": tags}), {"Tagging": "tags"})
        return [create, tag] if tags else [create]

    def rules(self, inputs: Mapping[str, Any], aws: Aws) -> Iterator[Failure]:  # noqa: ARG002
        """The rules of names, which are those of host names: S3 User Guide, "Bucket naming rules"."""
        name = inputs.get("bucket")
        if not isinstance(name, str):
            return
        if not _NAME.fullmatch(name):
            yield Failure(
                "bucket",
                f"{name!r} is no bucket name: 3 to 63 lower-case letters, digits, dots and hyphens,"
                " a letter or digit at both ends",
            )
        elif ".." in name or _ADDRESS.fullmatch(name):
            yield Failure("bucket", f"{name!r} is no bucket name: no two dots in a row, and no IP address")
        elif name.startswith(_RESERVED_PREFIXES) or name.endswith(_RESERVED_SUFFIXES):
            yield Failure("bucket", f"{name!r} is no bucket name: beginnings and endings like this are S3's own")

    def known(self, inputs: Mapping[str, Any], aws: Aws) -> Mapping[str, Any]:
        """ARN and host names."""
        name = inputs.get("bucket")
        if not isinstance(name, str):
            return {}
        return {
            "arn": f"arn:{aws.partition}:s3:::{name}",
            "bucketDomainName": f"{name}.s3.{aws.dns_suffix}",
            "bucketRegionalDomainName": f"{name}.s3.{aws.region}.{aws.dns_suffix}",
            "bucketRegion": aws.region,
        }

    def create(self, aws: Aws, name: str, inputs: Mapping[str, Any]) -> Made:  # noqa: ARG002, D102
        create, *others = self.requests(inputs)
        # In us-east-1 alone, S3's first region, naming the region is refused.
        where = None if aws.region == "us-east-1" else {"LocationConstraint": aws.region}
        aws.run(create.given(CreateBucketConfiguration=where))
        with whole_or_gone(self, aws, inputs["bucket"], inputs):
            for call in others:
                aws.run(call)
        return Made(inputs["bucket"], {})

    def read(self, aws: Aws, id: str, state: Mapping[str, Any]) -> Mapping[str, Any] | None:  # noqa: A002, ARG002, D102
        if aws.call("s3", "HeadBucket", absent=_GONE, Bucket=id) is None:
            return None
        tags = aws.call("s3", "GetBucketTagging", absent=("NoSuchTagSet",), Bucket=id)
        return {"bucket": id, "tags": tags_of(tags["TagSet"] if tags else None), **self.known({"bucket": id}, aws)}

    def update(  # noqa: D102
        self,
        aws: Aws,
        id: str,  # noqa: A002
        old: Mapping[str, Any],  # noqa: ARG002
        new: Mapping[str, Any],
    ) -> Mapping[str, Any]:
        if tags := tag_list(new.get("tags")):
            aws.call("s3", "PutBucketTagging", Bucket=id, Tagging={"TagSet": tags})
        else:
            aws.call("s3", "DeleteBucketTagging", Bucket=id)
        return {}

    def delete(self, aws: Aws, id: str, state: Mapping[str, Any]) -> None:  # noqa: A002
        """As AWS: a bucket with objects in it stays, unless `forceDestroy` lets the provider empty it."""
        if state.get("forceDestroy"):
            _empty(aws, id)
        aws.call("s3", "DeleteBucket", absent=_GONE, Bucket=id)


class _OfBucket(Kind):
    """One thing that is said of a bucket: put, shown and taken away by three calls; its id is the bucket's name."""

    replace_on = frozenset({"bucket", "expectedBucketOwner"})
    tagged = False
    show: ClassVar[str]
    """The call that shows it."""
    missing: ClassVar[str]
    """What that call answers where nothing is said."""
    remove: ClassVar[str]
    """The call that takes it away."""

    def create(self, aws: Aws, name: str, inputs: Mapping[str, Any]) -> Made:  # noqa: ARG002
        self._put(aws, inputs)
        return Made(inputs["bucket"], {})

    def read(self, aws: Aws, id: str, state: Mapping[str, Any]) -> Mapping[str, Any] | None:  # noqa: A002
        answer = aws.call("s3", self.show, absent=(*_GONE, self.missing), Bucket=id)
        return None if answer is None else {"bucket": id, **self.shown(answer, state)}

    def shown(self, answer: Mapping[str, Any], state: Mapping[str, Any]) -> Mapping[str, Any]:
        """What the call that shows it says, in Pulumi's form."""
        raise NotImplementedError

    def update(
        self,
        aws: Aws,
        id: str,  # noqa: A002, ARG002
        old: Mapping[str, Any],  # noqa: ARG002
        new: Mapping[str, Any],
    ) -> Mapping[str, Any]:
        self._put(aws, new)
        return {}

    def delete(self, aws: Aws, id: str, state: Mapping[str, Any]) -> None:  # noqa: A002, ARG002
        aws.call("s3", self.remove, absent=(*_GONE, self.missing), Bucket=id)

    def _put(self, aws: Aws, inputs: Mapping[str, Any]) -> None:
        for call in self.requests(inputs):
            aws.run(call)


class BucketVersioning(_OfBucket):
    """Whether a bucket keeps what is overwritten; once on, it can only be suspended."""

    token = "aws:s3/bucketVersioning:BucketVersioning"  # noqa: S105 - a type token
    show, missing = "GetBucketVersioning", "NoSuchBucket"

    def requests(self, inputs: Mapping[str, Any]) -> list[Call]:
        """One PutBucketVersioning; `Disabled` is what a bucket begins with, and nothing to say."""
        configuration = inputs.get("versioningConfiguration") or {}
        status = configuration.get("status")
        said = only(Status=status, MFADelete=configuration.get("mfaDelete"))
        put = Call(
            "s3",
            "PutBucketVersioning",
            only(
                Bucket=inputs.get("bucket"),
                ExpectedBucketOwner=inputs.get("expectedBucketOwner"),
                VersioningConfiguration=said,
            ),
        )
        return [] if status == "Disabled" else [put]

    def rules(self, inputs: Mapping[str, Any], aws: Aws) -> Iterator[Failure]:  # noqa: ARG002
        """A status is given."""
        if inputs.get("versioningConfiguration") is UNKNOWN:
            return
        if (inputs.get("versioningConfiguration") or {}).get("status") is None:
            yield Failure("versioningConfiguration.status", "status is missing: Enabled, Suspended or Disabled")

    def changes(self, old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[Failure]:
        """Versions that are kept can be kept no longer, but not unmade."""
        before, after = ((side.get("versioningConfiguration") or {}).get("status") for side in (old, new))
        if before in {"Enabled", "Suspended"} and after == "Disabled":
            yield Failure("versioningConfiguration.status", f"it goes from {before} to Suspended, not to Disabled")

    def shown(self, answer: Mapping[str, Any], state: Mapping[str, Any]) -> Mapping[str, Any]:
        """A bucket of which nothing was ever said shows no status."""
        before = state.get("versioningConfiguration") or {}
        return {"versioningConfiguration": {**before, "status": answer.get("Status", "Disabled")}}

    def delete(self, aws: Aws, id: str, state: Mapping[str, Any]) -> None:  # noqa: A002
        """Suspends it: there is no way back to a bucket without versions."""
        if (state.get("versioningConfiguration") or {}).get("status") == "Enabled":
            suspended = {"Status": "Suspended"}
            aws.call("s3", "PutBucketVersioning", absent=_GONE, Bucket=id, VersioningConfiguration=suspended)


class BucketPublicAccessBlock(_OfBucket):
    """What keeps a bucket from being opened to everybody by mistake."""

    token = "aws:s3/bucketPublicAccessBlock:BucketPublicAccessBlock"  # noqa: S105 - a type token
    show, missing = "GetPublicAccessBlock", "NoSuchPublicAccessBlockConfiguration"
    remove = "DeletePublicAccessBlock"
    _MEMBERS: ClassVar = {
        "blockPublicAcls": "BlockPublicAcls",
        "blockPublicPolicy": "BlockPublicPolicy",
        "ignorePublicAcls": "IgnorePublicAcls",
        "restrictPublicBuckets": "RestrictPublicBuckets",
    }

    def requests(self, inputs: Mapping[str, Any]) -> list[Call]:
        """One PutPublicAccessBlock; what isn't given is off."""
        said = {theirs: inputs.get(ours) or False for ours, theirs in self._MEMBERS.items()}
        given = only(Bucket=inputs.get("bucket"), PublicAccessBlockConfiguration=said)
        return [Call("s3", "PutPublicAccessBlock", given)]

    def shown(self, answer: Mapping[str, Any], state: Mapping[str, Any]) -> Mapping[str, Any]:  # noqa: ARG002, D102
        said = answer["PublicAccessBlockConfiguration"]
        return {ours: said.get(theirs, False) for ours, theirs in self._MEMBERS.items()}


class BucketOwnershipControls(_OfBucket):
    """Who owns the objects of a bucket; `BucketOwnerEnforced` switches access lists off."""

    token = "aws:s3/bucketOwnershipControls:BucketOwnershipControls"  # noqa: S105 - a type token
    show, missing = "GetBucketOwnershipControls", "OwnershipControlsNotFoundError"
    remove = "DeleteBucketOwnershipControls"

    def requests(self, inputs: Mapping[str, Any]) -> list[Call]:
        """One PutBucketOwnershipControls."""
        rule = inputs.get("rule") or {}
        said = {"Rules": [only(ObjectOwnership=rule.get("objectOwnership"))]}
        given = only(Bucket=inputs.get("bucket"), OwnershipControls=said)
        return [Call("s3", "PutBucketOwnershipControls", given, {"OwnershipControls": "rule"})]

    def shown(self, answer: Mapping[str, Any], state: Mapping[str, Any]) -> Mapping[str, Any]:  # noqa: ARG002, D102
        (rule,) = answer["OwnershipControls"]["Rules"]
        return {"rule": {"objectOwnership": rule["ObjectOwnership"]}}


class BucketServerSideEncryptionConfiguration(_OfBucket):
    """With which key a bucket encrypts."""

    token = (
        "aws:s3/bucketServerSideEncryptionConfiguration:"  # noqa: S105 - a type token
        "BucketServerSideEncryptionConfiguration"
    )
    show, missing = "GetBucketEncryption", "ServerSideEncryptionConfigurationNotFoundError"
    remove = "DeleteBucketEncryption"

    def requests(self, inputs: Mapping[str, Any]) -> list[Call]:
        """One PutBucketEncryption."""
        put = Call(
            "s3",
            "PutBucketEncryption",
            only(
                Bucket=inputs.get("bucket"),
                ExpectedBucketOwner=inputs.get("expectedBucketOwner"),
                ServerSideEncryptionConfiguration={"Rules": each(inputs.get("rules"), _encryption_rule)},
            ),
            {"ServerSideEncryptionConfiguration": "", "ApplyServerSideEncryptionByDefault":
             "applyServerSideEncryptionByDefault", "SSEAlgorithm": "sseAlgorithm",
             "KMSMasterKeyID": "kmsMasterKeyId"},
        )  # fmt: skip
        return [put]

    def rules(self, inputs: Mapping[str, Any], aws: Aws) -> Iterator[Failure]:  # noqa: ARG002
        """One rule; a key only for encryption by KMS."""
        given = inputs.get("rules")
        if given is UNKNOWN:
            return
        if len(given or ()) != 1:
            yield Failure("rules", f"a bucket has one rule of encryption, not {len(given or ())}")
        for index, rule in enumerate(given or ()):
            default = rule.get("applyServerSideEncryptionByDefault") or {}
            if is_known(default.get("kmsMasterKeyId")) and default.get("sseAlgorithm") == "AES256":
                yield Failure(
                    f"rules[{index}].applyServerSideEncryptionByDefault.kmsMasterKeyId",
                    "AES256 is encryption with S3's own keys; with a key of KMS it is aws:kms",
                )

    def shown(self, answer: Mapping[str, Any], state: Mapping[str, Any]) -> Mapping[str, Any]:  # noqa: ARG002, D102
        rules = []
        for rule in answer["ServerSideEncryptionConfiguration"]["Rules"]:
            default = rule["ApplyServerSideEncryptionByDefault"]
            said = only(sseAlgorithm=default["SSEAlgorithm"], kmsMasterKeyId=default.get("KMSMasterKeyID"))
            rules.append({
                "applyServerSideEncryptionByDefault": said,
                "bucketKeyEnabled": rule.get("BucketKeyEnabled", False),
            })  # fmt: skip
        return {"rules": rules}


class BucketPolicy(_OfBucket):
    """Who else may use a bucket, and who in no case."""

    token = "aws:s3/bucketPolicy:BucketPolicy"  # noqa: S105 - a type token
    show, missing, remove = "GetBucketPolicy", "NoSuchBucketPolicy", "DeleteBucketPolicy"

    def requests(self, inputs: Mapping[str, Any]) -> list[Call]:
        """One PutBucketPolicy."""
        return [Call("s3", "PutBucketPolicy", only(Bucket=inputs.get("bucket"), Policy=inputs.get("policy")))]

    def rules(self, inputs: Mapping[str, Any], aws: Aws) -> Iterator[Failure]:
        """The policy is about this bucket, and not for everybody where the bucket's block forbids that."""
        policy, bucket = inputs.get("policy"), inputs.get("bucket")
        yield from document_failures("policy", policy, BUCKET)
        if not isinstance(bucket, str):
            return
        statements = statements_of(document_of(policy))
        arn = f"arn:{aws.partition}:s3:::{bucket}"
        for index, statement in enumerate(statements):
            for resource in words_of(statement.get("Resource")):
                if resource != arn and not resource.startswith(f"{arn}/"):
                    yield Failure(
                        "policy", f"Statement[{index}].Resource: {resource!r} is not in this bucket; begin with {arn}"
                    )
        if any(map(_is_public, statements)) and _blocks_public_policies(aws, bucket):
            yield Failure(
                "policy", "it lets everybody in, and the public access block of the bucket forbids such policies"
            )

    def shown(self, answer: Mapping[str, Any], state: Mapping[str, Any]) -> Mapping[str, Any]:  # noqa: D102
        return {"policy": as_written(answer["Policy"], state.get("policy"))}


class BucketLifecycleConfiguration(_OfBucket):
    """When objects move to cheaper classes, and when they go."""

    token = "aws:s3/bucketLifecycleConfiguration:BucketLifecycleConfiguration"  # noqa: S105 - a type token
    show, missing = "GetBucketLifecycleConfiguration", "NoSuchLifecycleConfiguration"
    remove = "DeleteBucketLifecycle"

    def requests(self, inputs: Mapping[str, Any]) -> list[Call]:
        """One PutBucketLifecycleConfiguration."""
        put = Call(
            "s3",
            "PutBucketLifecycleConfiguration",
            only(
                Bucket=inputs.get("bucket"),
                ExpectedBucketOwner=inputs.get("expectedBucketOwner"),
                TransitionDefaultMinimumObjectSize=inputs.get("transitionDefaultMinimumObjectSize"),
                LifecycleConfiguration={"Rules": each(inputs.get("rules"), _lifecycle_rule)},
            ),
            {"LifecycleConfiguration": "", "ID": "id"},
        )
        return [put]

    def rules(self, inputs: Mapping[str, Any], aws: Aws) -> Iterator[Failure]:  # noqa: ARG002
        """Rules that S3 can follow: each does something, in an order of days that is possible."""
        given = inputs.get("rules")
        if given is UNKNOWN:
            return
        if not given:
            yield Failure("rules", "at least one rule is needed")
        ids: set[str] = set()
        for index, rule in enumerate(given or ()):
            where = f"rules[{index}]"
            name = rule.get("id")
            if isinstance(name, str):
                if name in ids:
                    yield Failure(f"{where}.id", f"{name!r} is the id of another rule already")
                ids.add(name)
            yield from _lifecycle_mistakes(where, rule)

    def read(self, aws: Aws, id: str, state: Mapping[str, Any]) -> Mapping[str, Any] | None:  # noqa: A002
        """The rules as the program has them, unless somebody put others since."""
        rules = _shown_rules(aws, id)
        if rules is None:
            return None
        noted = aws.book.get(_SHOWN_LIFECYCLE, id)
        unchanged = noted is not None and noted["rules"] == rules
        return {"bucket": id, "rules": state.get("rules") if unchanged else [_lower(rule) for rule in rules]}

    def delete(self, aws: Aws, id: str, state: Mapping[str, Any]) -> None:  # noqa: A002, D102
        super().delete(aws, id, state)
        aws.book.drop(_SHOWN_LIFECYCLE, id)

    def _put(self, aws: Aws, inputs: Mapping[str, Any]) -> None:
        super()._put(aws, inputs)
        aws.book.put(_SHOWN_LIFECYCLE, inputs["bucket"], {"rules": _shown_rules(aws, inputs["bucket"])})


def _encryption_rule(rule: Any) -> dict[str, Any]:
    default = rule.get("applyServerSideEncryptionByDefault")
    said = None
    if default is not None:
        algorithm, key = default.get("sseAlgorithm"), default.get("kmsMasterKeyId")
        said = only(SSEAlgorithm=algorithm, KMSMasterKeyID=key)
    return only(ApplyServerSideEncryptionByDefault=said, BucketKeyEnabled=rule.get("bucketKeyEnabled"))


def _lifecycle_rule(rule: Any) -> dict[str, Any]:
    expiration = rule.get("expiration")
    old_versions = rule.get("noncurrentVersionExpiration")
    parts = rule.get("abortIncompleteMultipartUpload")
    said = only(
        ID=rule.get("id"),
        Status=rule.get("status"),
        Filter=_filter(rule.get("filter")),
        Transitions=each(
            rule.get("transitions"),
            lambda to: only(Days=to.get("days"), Date=to.get("date"), StorageClass=to.get("storageClass")),
        ),
        NoncurrentVersionTransitions=each(
            rule.get("noncurrentVersionTransitions"),
            lambda to: only(
                NoncurrentDays=to.get("noncurrentDays"),
                NewerNoncurrentVersions=to.get("newerNoncurrentVersions"),
                StorageClass=to.get("storageClass"),
            ),
        ),
    )
    if expiration is not None:
        said["Expiration"] = only(
            Days=expiration.get("days"),
            Date=expiration.get("date"),
            ExpiredObjectDeleteMarker=expiration.get("expiredObjectDeleteMarker"),
        )
    if old_versions is not None:
        said["NoncurrentVersionExpiration"] = only(
            NoncurrentDays=old_versions.get("noncurrentDays"),
            NewerNoncurrentVersions=old_versions.get("newerNoncurrentVersions"),
        )
    if parts is not None:
        said["AbortIncompleteMultipartUpload"] = only(DaysAfterInitiation=parts.get("daysAfterInitiation"))
    return said


def _filter(given: Any) -> Any:
    """To which objects a rule applies; none at all means all of them, which S3 wants said."""
    if given is UNKNOWN:
        return UNKNOWN
    given = given or {}
    both, tag = given.get("and"), given.get("tag")
    said = only(
        Prefix=given.get("prefix"),
        ObjectSizeGreaterThan=given.get("objectSizeGreaterThan"),
        ObjectSizeLessThan=given.get("objectSizeLessThan"),
        Tag=None if tag is None else only(Key=tag.get("key"), Value=tag.get("value")),
    )
    if both is not None:
        said["And"] = only(
            Prefix=both.get("prefix"),
            ObjectSizeGreaterThan=both.get("objectSizeGreaterThan"),
            ObjectSizeLessThan=both.get("objectSizeLessThan"),
            Tags=tag_list(both.get("tags")),
        )
    return said or {"Prefix": ""}


def _lifecycle_mistakes(where: str, rule: Any) -> Iterator[Failure]:
    does = ("transitions", "expiration", "noncurrentVersionTransitions", "noncurrentVersionExpiration",
            "abortIncompleteMultipartUpload")  # fmt: skip
    if not any(rule.get(action) for action in does):
        yield Failure(where, f"a rule needs at least one of {', '.join(does)}")
    given = rule.get("filter") or {}
    if isinstance(given, Mapping) and len(given) > 1:
        yield Failure(f"{where}.filter", f"one of {', '.join(sorted(given))}; for more than one put them into `and`")
    yield from _falling(f"{where}.transitions", rule.get("transitions"), "days")
    yield from _falling(
        f"{where}.noncurrentVersionTransitions", rule.get("noncurrentVersionTransitions"), "noncurrentDays"
    )
    last = max(_days(rule.get("transitions"), "days"), default=None)
    expires = (rule.get("expiration") or {}).get("days")
    if isinstance(expires, int) and last is not None and expires <= last:
        yield Failure(
            f"{where}.expiration.days", f"{expires} days is not after the last transition, which is after {last} days"
        )
    last = max(_days(rule.get("noncurrentVersionTransitions"), "noncurrentDays"), default=None)
    expires = (rule.get("noncurrentVersionExpiration") or {}).get("noncurrentDays")
    if isinstance(expires, int) and last is not None and expires <= last:
        yield Failure(
            f"{where}.noncurrentVersionExpiration.noncurrentDays",
            f"{expires} days is not after the last transition, which is after {last} days",
        )


def _falling(where: str, transitions: Any, days_key: str) -> Iterator[Failure]:
    """Each class is left for a deeper one, later; the infrequent classes take no object that is too young."""
    known = [
        (index, to.get(days_key), to.get("storageClass"))
        for index, to in enumerate(() if transitions is UNKNOWN else transitions or ())
        if isinstance(to.get(days_key), int) and to.get("storageClass") in _DEPTH
    ]
    for index, days, into in known:
        if days < _LEAST_DAYS.get(into, 0):
            least = _LEAST_DAYS[into]
            yield Failure(f"{where}[{index}].{days_key}", f"{into} takes objects after {least} days, not after {days}")
    in_order = sorted(known, key=lambda step: step[1])
    for (_, earlier, above), (index, later, below) in pairwise(in_order):
        if _DEPTH[below] <= _DEPTH[above]:
            yield Failure(f"{where}[{index}].storageClass", f"from {above} objects cannot move to {below}")
        elif later - earlier < _LEAST_DAYS.get(above, 1):
            yield Failure(
                f"{where}[{index}].{days_key}",
                f"objects stay in {above} for {_LEAST_DAYS.get(above, 1)} days at least: not before"
                f" {earlier + _LEAST_DAYS.get(above, 1)}, and this is {later}",
            )


def _days(transitions: Any, key: str) -> list[int]:
    listed: Sequence[Any] = () if transitions is UNKNOWN else transitions or ()
    return [to.get(key) for to in listed if isinstance(to.get(key), int)]


def _shown_rules(aws: Aws, bucket: str) -> list[dict[str, Any]] | None:
    absent = (*_GONE, BucketLifecycleConfiguration.missing)
    answer = aws.call("s3", "GetBucketLifecycleConfiguration", absent=absent, Bucket=bucket)
    return None if answer is None else [_plain(rule) for rule in answer["Rules"]]


def _plain(value: Any) -> Any:
    """Without dates, which the book's JSON does not have."""
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_plain(item) for item in value]
    return value.isoformat() if hasattr(value, "isoformat") else value


def _lower(value: Any) -> Any:
    """AWS's names of members as Pulumi's: `NoncurrentDays` -> `noncurrentDays`, `ID` -> `id`."""
    if isinstance(value, Mapping):
        return {("id" if key == "ID" else key[:1].lower() + key[1:]): _lower(item) for key, item in value.items()}
    return [_lower(item) for item in value] if isinstance(value, list) else value


def _is_public(statement: Mapping[str, object]) -> bool:
    principal = statement.get("Principal")
    named = principal.get("AWS") if isinstance(principal, Mapping) else principal
    everybody = "*" in words_of(named)
    return statement.get("Effect") == "Allow" and everybody and not statement.get("Condition")


def _blocks_public_policies(aws: Aws, bucket: str) -> bool:
    absent = (*_GONE, BucketPublicAccessBlock.missing)
    answer = aws.call("s3", "GetPublicAccessBlock", absent=absent, Bucket=bucket)
    return bool(answer and answer["PublicAccessBlockConfiguration"].get("BlockPublicPolicy"))


def _empty(aws: Aws, bucket: str) -> None:
    while True:
        page = aws.call("s3", "ListObjectVersions", absent=_GONE, Bucket=bucket) or {}
        found = [*page.get("Versions", ()), *page.get("DeleteMarkers", ())]
        if not found:
            return
        objects = [{"Key": entry["Key"], "VersionId": entry["VersionId"]} for entry in found]
        aws.call("s3", "DeleteObjects", Bucket=bucket, Delete={"Objects": objects})


KINDS = (
    Bucket(),
    BucketVersioning(),
    BucketPublicAccessBlock(),
    BucketOwnershipControls(),
    BucketServerSideEncryptionConfiguration(),
    BucketPolicy(),
    BucketLifecycleConfiguration(),
)
