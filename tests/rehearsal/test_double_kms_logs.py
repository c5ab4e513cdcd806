"""Keys and log groups in the rehearsal."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
from botocore.exceptions import ClientError
from little_engine import LittleEngine, RefusedError, little_engine

KEY, ALIAS, GROUP = "aws:kms/key:Key", "aws:kms/alias:Alias", "aws:cloudwatch/logGroup:LogGroup"
ACCOUNT = {"Sid": "Account", "Effect": "Allow", "Principal": {"AWS": "arn:aws:iam::123456789012:root"},
           "Action": "kms:*", "Resource": "*"}  # fmt: skip
LOGS = {"Sid": "Logs", "Effect": "Allow", "Principal": {"Service": "logs.us-east-2.amazonaws.com"},
        "Action": ["kms:Encrypt*", "kms:Decrypt*"], "Resource": "*"}  # fmt: skip


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LittleEngine]:
    with little_engine(tmp_path_factory.mktemp("kms")) as engine:
        yield engine


def policy(*statements: dict[str, Any]) -> str:
    return json.dumps({"Version": "2012-10-17", "Statement": list(statements)})


def test_a_key_is_made_changed_replaced_and_removed(engine: LittleEngine) -> None:
    kms = engine.boto("kms")
    inputs: dict[str, Any] = {
        "description": "secrets", "policy": policy(ACCOUNT), "enableKeyRotation": True, "rotationPeriodInDays": 180,
        "deletionWindowInDays": 7, "tags": {"stack": "dev"},
    }  # fmt: skip
    key = engine.made(KEY, **inputs)
    assert key["arn"] == f"arn:aws:kms:us-east-2:123456789012:key/{key.id}"
    assert key["keyId"] == key.id
    assert kms.get_key_rotation_status(KeyId=key.id)["KeyRotationEnabled"]
    assert key.up(**inputs) == "same"
    assert key.refresh() == "same"

    inputs |= {"description": "all", "policy": policy(ACCOUNT, LOGS), "tags": {"team": "a"}, "isEnabled": False}
    del inputs["enableKeyRotation"], inputs["rotationPeriodInDays"]
    assert key.up(**inputs) == "update"
    seen = kms.describe_key(KeyId=key.id)["KeyMetadata"]
    assert (seen["Description"], seen["KeyState"]) == ("all", "Disabled")
    assert "logs.us-east-2" in kms.get_key_policy(KeyId=key.id, PolicyName="default")["Policy"]
    assert kms.list_resource_tags(KeyId=key.id)["Tags"] == [{"TagKey": "team", "TagValue": "a"}]

    first = key.id
    assert key.up(**{**inputs, "multiRegion": True}) == "replace"
    assert kms.describe_key(KeyId=first)["KeyMetadata"]["KeyState"] == "PendingDeletion"
    key.down()
    key.down()  # on its way already: no error
    assert key.refresh() == "gone"
    states = [kms.describe_key(KeyId=one["KeyId"])["KeyMetadata"]["KeyState"] for one in kms.list_keys()["Keys"]]
    assert set(states) == {"PendingDeletion"}  # AWS lets no key go at once
    assert engine.aws.book.all("kms-rotation") == {}


def test_a_refresh_sees_what_others_did_to_a_key(engine: LittleEngine) -> None:
    kms = engine.boto("kms")
    key = engine.made(KEY, description="ours", policy=policy(ACCOUNT), enableKeyRotation=True)
    kms.disable_key_rotation(KeyId=key.id)
    assert key.refresh() == "changed"
    assert key.inputs["enableKeyRotation"] is False
    kms.schedule_key_deletion(KeyId=key.id)
    assert key.refresh() == "gone"


def test_an_alias_follows_its_key(engine: LittleEngine) -> None:
    kms = engine.boto("kms")
    one, other = engine.made(KEY, policy=policy(ACCOUNT)), engine.made(KEY, policy=policy(ACCOUNT))
    alias = engine.made(ALIAS, name="alias/trainyard-dev", targetKeyId=one.id)
    assert alias["arn"] == "arn:aws:kms:us-east-2:123456789012:alias/trainyard-dev"
    assert alias["targetKeyArn"] == one["arn"]
    assert alias.refresh() == "same"
    assert alias.up(name="alias/trainyard-dev", targetKeyId=other["arn"]) == "update"
    assert kms.describe_key(KeyId="alias/trainyard-dev")["KeyMetadata"]["KeyId"] == other.id
    assert alias.refresh() == "same"
    kms.update_alias(AliasName="alias/trainyard-dev", TargetKeyId=one.id)
    assert alias.refresh() == "changed"
    assert alias.up(name="alias/trainyard", targetKeyId=one.id) == "replace"
    alias.down()
    assert alias.refresh() == "gone"
    assert [found for found in kms.list_aliases()["Aliases"] if not found["AliasName"].startswith("alias/aws/")] == []


def test_a_log_group_is_made_changed_replaced_and_removed(engine: LittleEngine) -> None:
    logs = engine.boto("logs")
    key = engine.made(KEY, policy=policy(ACCOUNT, LOGS))
    inputs: dict[str, Any] = {"name": "/aws/eks/dev/cluster", "retentionInDays": 30, "tags": {"stack": "dev"}}
    group = engine.made(GROUP, **inputs)
    assert group["arn"] == "arn:aws:logs:us-east-2:123456789012:log-group:/aws/eks/dev/cluster"
    (seen,) = logs.describe_log_groups(logGroupNamePrefix="/aws/eks/dev")["logGroups"]
    assert seen["retentionInDays"] == 30
    assert group.refresh() == "same"

    inputs |= {"retentionInDays": 90, "kmsKeyId": key["arn"], "tags": {"team": "a"}}
    assert group.up(**inputs) == "update"
    assert group.refresh() == "same"
    (seen,) = logs.describe_log_groups(logGroupNamePrefix="/aws/eks/dev")["logGroups"]
    assert seen["retentionInDays"] == 90
    assert logs.list_tags_for_resource(resourceArn=group["arn"])["tags"] == {"team": "a"}
    logs.put_retention_policy(logGroupName=group.id, retentionInDays=1)
    assert group.refresh() == "changed"
    assert group.inputs["retentionInDays"] == 1
    del inputs["retentionInDays"]
    assert group.up(**inputs) == "update"
    assert "retentionInDays" not in logs.describe_log_groups(logGroupNamePrefix="/aws/eks/dev")["logGroups"][0]

    assert group.up(**{**inputs, "name": "/aws/eks/prod/cluster"}) == "replace"
    group.down()
    group.down()
    assert group.refresh() == "gone"
    assert logs.describe_log_groups()["logGroups"] == []
    assert engine.aws.book.all("log-group-key") == {}


def test_a_log_group_can_be_left_behind(engine: LittleEngine) -> None:
    group = engine.made(GROUP, name="/kept", skipDestroy=True)
    group.down()
    assert group.refresh() == "same"
    engine.boto("logs").delete_log_group(logGroupName="/kept")


def test_cloudwatch_must_be_allowed_to_use_the_key(engine: LittleEngine) -> None:
    key = engine.made(KEY, policy=policy(ACCOUNT))
    assert engine.refusal(GROUP, {"name": "/a", "kmsKeyId": key["arn"]}) == (
        f"kmsKeyId: AWS would refuse this: the policy of key {key['arn']} does not let logs.us-east-2.amazonaws.com"
        " use it (kms:Encrypt*, …)"
    )
    key.up(policy=policy(ACCOUNT, LOGS))
    assert engine.refusal(GROUP, {"name": "/a", "kmsKeyId": key["arn"]}) == ""
    # A key that the account brought along is not in the rehearsal, and nothing is said about it.
    brought = "arn:aws:kms:us-east-2:123456789012:key/1234abcd-12ab-34cd-56ef-1234567890ab"
    assert engine.refusal(GROUP, {"name": "/a", "kmsKeyId": brought}) == ""


@pytest.mark.parametrize(
    ("token", "inputs", "sentence"),
    [
        (KEY, {"policy": policy(LOGS)},
         ("policy: AWS would refuse this: nobody could change this policy any more; let the account do it:"
         ' "Principal": {"AWS": "arn:aws:iam::123456789012:root"}, "Action": "kms:*"')),
        (KEY, {"policy": policy({**ACCOUNT, "Resource": []})},
         "policy: AWS would refuse this: Statement[0].Resource: a text or a list of texts, at least one, not []"),
        (KEY, {"deletionWindowInDays": 3},
         "deletionWindowInDays: AWS would refuse this: a deleted key waits 7 to 30 days for its end, not 3"),
        (KEY, {"rotationPeriodInDays": 180},
         "rotationPeriodInDays: AWS would refuse this: only with enableKeyRotation: true"),
        (KEY, {"enableKeyRotation": True, "rotationPeriodInDays": 7},
         "rotationPeriodInDays: AWS would refuse this: 7 is below 90 (kms:EnableKeyRotation)"),
        (KEY, {"enableKeyRotation": True, "customerMasterKeySpec": "RSA_2048"},
         "enableKeyRotation: AWS would refuse this: only symmetric keys rotate by themselves, not RSA_2048"),
        (KEY, {"keyUsage": "ENCRYPT"}, "keyUsage: AWS would refuse this: 'ENCRYPT' is not one of SIGN_VERIFY,"),
        (ALIAS, {"name": "trainyard", "targetKeyId": "x"},
         "name: AWS would refuse this: the name of a key begins with alias/: alias/trainyard"),
        (ALIAS, {"name": "alias/aws/eks", "targetKeyId": "x"},
         "name: AWS would refuse this: names that begin with alias/aws/ are AWS's own"),
        (GROUP, {"name": "/a", "retentionInDays": 31},
         "retentionInDays: AWS would refuse this: logs are kept for 1, 3, 5, 7, 14, 30,"),
        (GROUP, {"name": "/a", "retentionInDays": 31}, "3288, 3653 days, not 31; nearest: 30"),
        (GROUP, {"name": "/a b"}, "name: AWS would refuse this: '/a b' does not match the pattern"),
        (GROUP, {"name": "/a", "kmsKeyId": "alias/x"},
         "kmsKeyId: AWS would refuse this: the key is given by its ARN, not as 'alias/x'"),
    ],
)  # fmt: skip
def test_what_aws_would_refuse(engine: LittleEngine, token: str, inputs: dict[str, Any], sentence: str) -> None:
    assert sentence in engine.refusal(token, inputs)


def test_a_policy_without_the_account_is_taken_where_that_is_meant(engine: LittleEngine) -> None:
    assert engine.refusal(KEY, {"policy": policy(LOGS), "bypassPolicyLockoutSafetyCheck": True}) == ""


def test_errors_of_aws_reach_the_user(engine: LittleEngine) -> None:
    missing = "1234abcd-12ab-34cd-56ef-1234567890ab"
    with pytest.raises(RefusedError, match=r"AWS refused kms:CreateAlias with NotFoundException: .*does not exist"):
        engine.made(ALIAS, name="alias/nowhere", targetKeyId=missing)
    with pytest.raises(ClientError):
        engine.boto("kms").describe_key(KeyId="alias/nowhere")
