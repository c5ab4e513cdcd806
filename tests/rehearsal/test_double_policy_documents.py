"""Policy documents: what AWS answers with `MalformedPolicyDocument` is said before, with its place."""

import json
from typing import Any

import pytest

from infra.rehearsal.double.policy_documents import BUCKET, IDENTITY, KEY, TRUST, Use, mistakes_in

POD_IDENTITY_TRUST = {
    "Version": "2012-10-17",
    "Statement": {
        "Effect": "Allow",
        "Principal": {"Service": "pods.eks.amazonaws.com"},
        "Action": ["sts:AssumeRole", "sts:TagSession"],
    },
}
READ_PREFIX = {
    "Version": "2012-10-17",
    "Statement": [
        {"Sid": "List", "Effect": "Allow", "Action": "s3:ListBucket", "Resource": "arn:aws:s3:::trainyard-dev",
         "Condition": {"StringLike": {"s3:prefix": ["checkpoints/*"]}}},
        {"Sid": "Read", "Effect": "Allow", "Action": ["s3:Get*"], "Resource": "arn:aws:s3:::trainyard-dev/models/*"},
    ],
}  # fmt: skip
TLS_ONLY = {
    "Version": "2012-10-17",
    "Statement": [
        {"Sid": "No plain HTTP", "Effect": "Deny", "Principal": "*", "Action": "s3:*", "Resource": "arn:aws:s3:::b/*",
         "Condition": {"Bool": {"aws:SecureTransport": False}}}
    ],
}  # fmt: skip
ACCOUNT_KEY = {
    "Version": "2012-10-17",
    "Statement": [
        {"Sid": "Enable IAM policies", "Effect": "Allow", "Principal": {"AWS": "arn:aws:iam::123456789012:root"},
         "Action": "kms:*", "Resource": "*"}
    ],
}  # fmt: skip


@pytest.mark.parametrize(
    ("document", "use"),
    [(POD_IDENTITY_TRUST, TRUST), (READ_PREFIX, IDENTITY), (TLS_ONLY, BUCKET), (ACCOUNT_KEY, KEY)],
)
def test_a_good_document_has_no_mistakes(document: dict[str, Any], use: Use) -> None:
    assert mistakes_in(json.dumps(document), use) == []


def changed(document: dict[str, Any], **members: object) -> dict[str, Any]:
    """The document whose first statement has other members; None takes one away."""
    listed = document["Statement"]
    first = dict(listed[0] if isinstance(listed, list) else listed)
    first.update(members)
    return document | {"Statement": [{key: value for key, value in first.items() if value is not None}]}


@pytest.mark.parametrize(
    ("document", "use", "mistake"),
    [
        (READ_PREFIX | {"Version": "2012-10-18"}, IDENTITY,
         'Version: a policy needs "Version": "2012-10-17", not "2012-10-18"'),
        ({"Version": "2012-10-17"}, IDENTITY, "Statement: a policy needs at least one statement"),
        (READ_PREFIX | {"Statements": []}, IDENTITY, "Statements: no such key; known are Id, Statement, Version"),
        (READ_PREFIX | {"Statement": ["all"]}, IDENTITY, 'Statement[0]: a statement is an object, not "all"'),
        (READ_PREFIX | {"Statement": [READ_PREFIX["Statement"][0]] * 2}, IDENTITY,
         "Statement[1].Sid: 'List' stands at another statement already"),
        (changed(READ_PREFIX, Effect="allow"), IDENTITY, 'Statement[0].Effect: "Allow" or "Deny", not "allow"'),
        (changed(READ_PREFIX, Effect=None), IDENTITY, 'Statement[0].Effect: "Allow" or "Deny", not nothing'),
        (changed(READ_PREFIX, Sid="read-it"), IDENTITY,
         "Statement[0].Sid: 'read-it' may have letters and digits only"),
        (changed(READ_PREFIX, Action=None), IDENTITY,
         "Statement[0]: an inline policy of a role needs Action in every statement"),
        (changed(READ_PREFIX, NotAction="s3:*"), IDENTITY, "Statement[0]: Action or NotAction, not both"),
        (changed(READ_PREFIX, Action=[]), IDENTITY,
         "Statement[0].Action: a text or a list of texts, at least one, not []"),
        (changed(READ_PREFIX, Action="ListBucket"), IDENTITY,
         "Statement[0].Action: 'ListBucket' is no action; actions look like \"s3:GetObject\" or \"s3:Get*\""),
        (changed(READ_PREFIX, Actions="s3:*"), IDENTITY,
         ("Statement[0].Actions: no such key; known are Action, Condition, Effect, NotAction, NotPrincipal, "
         "NotResource, Principal, Resource, Sid")),
        (changed(READ_PREFIX, Resource=None), IDENTITY,
         "Statement[0]: an inline policy of a role needs Resource in every statement"),
        (changed(READ_PREFIX, Resource="trainyard-dev/*"), IDENTITY,
         ("Statement[0].Resource: 'trainyard-dev/*' is no resource; it must be an ARN "
         '("arn:aws:s3:::name/*") or "*"')),
        (changed(READ_PREFIX, Principal="*"), IDENTITY,
         "Statement[0].Principal: not allowed in an inline policy of a role"),
        (changed(READ_PREFIX, Condition={"StringLikes": {"s3:prefix": "a"}}), IDENTITY,
         "Statement[0].Condition: 'StringLikes' is no operator; operators look like \"StringEquals\""),
        (changed(READ_PREFIX, Condition={"StringLike": "s3:prefix"}), IDENTITY,
         'Statement[0].Condition.StringLike: an object of condition keys, not "s3:prefix"'),
        (changed(READ_PREFIX, Condition={"StringLike": {"s3:prefix": []}}), IDENTITY,
         "Statement[0].Condition.StringLike.s3:prefix: a text or a list of texts, not []"),
        (changed(READ_PREFIX, Action=[f"s3:Get{'x' * 100}{n}" for n in range(100)]), IDENTITY,
         "an inline policy of a role has at most 10240 characters, this one has 11270"),
        (changed(POD_IDENTITY_TRUST, Resource="*"), TRUST, "Statement[0].Resource: not allowed in a trust policy"),
        (changed(POD_IDENTITY_TRUST, Principal=None), TRUST,
         "Statement[0]: a trust policy needs Principal in every statement"),
        (changed(POD_IDENTITY_TRUST, Action="s3:GetObject"), TRUST,
         "Statement[0].Action: a trust policy is about actions of sts, not 's3:GetObject'"),
        (changed(POD_IDENTITY_TRUST, Principal={"Services": "ec2.amazonaws.com"}), TRUST,
         "Statement[0].Principal.Services: no such key; known are AWS, CanonicalUser, Federated, Service"),
        (changed(POD_IDENTITY_TRUST, Principal={"Service": "pods.eks"}), TRUST,
         "Statement[0].Principal.Service: 'pods.eks' is no service; services look like \"ec2.amazonaws.com\""),
        (changed(POD_IDENTITY_TRUST, Principal={"AWS": "role/trainer"}), TRUST,
         "Statement[0].Principal.AWS: 'role/trainer' is no account, role or user (ARN or 12 digits)"),
        (changed(POD_IDENTITY_TRUST, Principal="pods.eks.amazonaws.com"), TRUST,
         ('Statement[0].Principal: "*" or an object such as {"Service": "ec2.amazonaws.com"}, '
         'not "pods.eks.amazonaws.com"')),
        (changed(TLS_ONLY, Action="ec2:RunInstances"), BUCKET,
         "Statement[0].Action: a bucket policy is about actions of s3, not 'ec2:RunInstances'"),
        (changed(ACCOUNT_KEY, Principal=None), KEY, "Statement[0]: a key policy needs Principal in every statement"),
    ],
)  # fmt: skip
def test_each_mistake_is_named_with_its_place(document: dict[str, Any], use: Use, mistake: str) -> None:
    assert mistakes_in(json.dumps(document), use) == [mistake]


@pytest.mark.parametrize(
    ("text", "beginning"),
    [
        ("{Version: 2012-10-17}", "a key policy is a JSON document, and this is none: Expecting property name"),
        ("[]", "a key policy is a JSON object with Version and Statement, not []"),
    ],
)
def test_what_is_no_json_object_is_no_policy(text: str, beginning: str) -> None:
    (mistake,) = mistakes_in(text, KEY)
    assert mistake.startswith(beginning)


def test_all_mistakes_are_told_at_once() -> None:
    document = changed(READ_PREFIX, Effect=None, Resource="*", Principal="*") | {"Version": "1"}
    assert len(mistakes_in(json.dumps(document), IDENTITY)) == 3
