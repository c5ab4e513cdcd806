"""IAM in the rehearsal: roles, inline policies, attachments."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
from botocore.exceptions import ClientError
from little_engine import LittleEngine, RefusedError, little_engine

ROLE = "aws:iam/role:Role"
POLICY = "aws:iam/rolePolicy:RolePolicy"
ATTACHMENT = "aws:iam/rolePolicyAttachment:RolePolicyAttachment"
WORKER = "arn:aws:iam::aws:policy/AmazonEKSWorkerNodePolicy"


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LittleEngine]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MOTO_IAM_LOAD_MANAGED_POLICIES", "true")
        with little_engine(tmp_path_factory.mktemp("iam")) as engine:
            yield engine


def trust(service: str) -> str:
    statement = {"Effect": "Allow", "Principal": {"Service": service}, "Action": "sts:AssumeRole"}
    return json.dumps({"Version": "2012-10-17", "Statement": [statement]}, indent=2)


def rights(action: str) -> str:
    statement = {"Effect": "Allow", "Action": action, "Resource": "*"}
    return json.dumps({"Version": "2012-10-17", "Statement": [statement]})


def test_a_role_is_made_changed_replaced_and_removed(engine: LittleEngine) -> None:
    iam = engine.boto("iam")
    inputs: dict[str, Any] = {"name": "node", "assumeRolePolicy": trust("ec2.amazonaws.com"), "tags": {"stack": "dev"}}
    role = engine.made(ROLE, **inputs)
    assert role.id == "node"
    assert role["arn"] == "arn:aws:iam::123456789012:role/node" == iam.get_role(RoleName="node")["Role"]["Arn"]
    assert role["uniqueId"].startswith("AROA")
    assert role["tagsAll"] == {"stack": "dev"}
    assert role.up(**inputs) == "same"

    inputs |= {
        "assumeRolePolicy": trust("pods.eks.amazonaws.com"),
        "description": "pods",
        "maxSessionDuration": 7200,
        "permissionsBoundary": "arn:aws:iam::123456789012:policy/limit",
        "tags": {"team": "a"},
    }
    assert role.up(**inputs) == "update"
    seen = iam.get_role(RoleName="node")["Role"]
    assert seen["AssumeRolePolicyDocument"]["Statement"][0]["Principal"] == {"Service": "pods.eks.amazonaws.com"}
    assert (seen["Description"], seen["MaxSessionDuration"]) == ("pods", 7200)
    assert seen["PermissionsBoundary"]["PermissionsBoundaryArn"].endswith(":policy/limit")
    assert seen["Tags"] == [{"Key": "team", "Value": "a"}]
    del inputs["permissionsBoundary"]
    assert role.up(**inputs) == "update"
    assert "PermissionsBoundary" not in iam.get_role(RoleName="node")["Role"]

    assert role.up(**{**inputs, "path": "/trainyard/"}) == "replace"
    assert role["arn"] == "arn:aws:iam::123456789012:role/trainyard/node"
    role.down()
    assert iam.list_roles()["Roles"] == []


def test_a_refresh_sees_what_others_did_to_a_role(engine: LittleEngine) -> None:
    iam = engine.boto("iam")
    role = engine.made(ROLE, name="watched", assumeRolePolicy=trust("ec2.amazonaws.com"), description="ours")
    assert role.refresh() == "same"  # also the trust policy, whose white space IAM does not keep
    iam.update_role(RoleName="watched", Description="theirs")
    assert role.refresh() == "changed"
    assert role.inputs["description"] == "theirs"
    iam.delete_role(RoleName="watched")
    assert role.refresh() == "gone"


def test_an_inline_policy_is_made_changed_replaced_and_removed(engine: LittleEngine) -> None:
    iam = engine.boto("iam")
    role = engine.made(ROLE, name="trainer", assumeRolePolicy=trust("pods.eks.amazonaws.com"))
    policy = engine.made(POLICY, name="data", role="trainer", policy=rights("s3:GetObject"))
    assert policy.id == "trainer:data"
    assert policy.refresh() == "same"
    assert policy.up(name="data", role="trainer", policy=rights("s3:Get*")) == "update"
    seen = iam.get_role_policy(RoleName="trainer", PolicyName="data")["PolicyDocument"]
    assert seen["Statement"][0]["Action"] == "s3:Get*"
    assert policy.up(name="datasets", role="trainer", policy=rights("s3:Get*")) == "replace"
    assert iam.list_role_policies(RoleName="trainer")["PolicyNames"] == ["datasets"]
    iam.put_role_policy(RoleName="trainer", PolicyName="datasets", PolicyDocument=rights("s3:*"))
    assert policy.refresh() == "changed"
    assert json.loads(policy.inputs["policy"])["Statement"][0]["Action"] == "s3:*"

    with pytest.raises(RefusedError, match="DeleteConflict"):
        role.down()  # as AWS: policies first
    policy.down()
    role.down()
    policy.down()  # gone with the role: no error
    assert policy.refresh() == "gone"


def test_a_policy_that_aws_keeps_is_attached_and_detached(engine: LittleEngine) -> None:
    iam = engine.boto("iam")
    role = engine.made(ROLE, name="worker", assumeRolePolicy=trust("ec2.amazonaws.com"))
    attachment = engine.made(ATTACHMENT, role="worker", policyArn=WORKER)
    attached = iam.list_attached_role_policies(RoleName="worker")["AttachedPolicies"]
    assert [policy["PolicyArn"] for policy in attached] == [WORKER]
    assert attachment.refresh() == "same"
    pull = "arn:aws:iam::aws:policy/AmazonEC2ContainerRegistryPullOnly"
    assert attachment.up(role="worker", policyArn=pull) == "replace"
    iam.detach_role_policy(RoleName="worker", PolicyArn=pull)
    assert attachment.refresh() == "gone"
    attachment.down()
    role.down()
    with pytest.raises(ClientError, match="NoSuchEntity"):
        iam.get_role(RoleName="worker")


def test_a_role_can_take_its_policies_with_it(engine: LittleEngine) -> None:
    iam = engine.boto("iam")
    role = engine.made(ROLE, name="full", assumeRolePolicy=trust("ec2.amazonaws.com"), forceDetachPolicies=True)
    iam.put_role_policy(RoleName="full", PolicyName="a", PolicyDocument=rights("s3:*"))
    iam.attach_role_policy(RoleName="full", PolicyArn=WORKER)
    role.down()
    assert role.refresh() == "gone"


@pytest.mark.parametrize(
    ("token", "inputs", "sentence"),
    [
        (ROLE, {"name": "a" * 65, "assumeRolePolicy": trust("ec2.amazonaws.com")},
         "name: AWS would refuse this: 65 characters is too many; the most is 64 (iam:CreateRole)"),
        (ROLE, {"name": "a", "assumeRolePolicy": trust("ec2.amazonaws.com"), "maxSessionDuration": 60},
         "maxSessionDuration: AWS would refuse this: 60 is below 3600 (iam:CreateRole)"),
        (ROLE, {"name": "a", "assumeRolePolicy": "{}"},
         'assumeRolePolicy: AWS would refuse this: Version: a policy needs "Version": "2012-10-17", not nothing'),
        (ROLE, {"name": "a", "assumeRolePolicy": {"Version": "2012-10-17"}},
         "assumeRolePolicy: AWS would refuse this: a trust policy is given as a JSON text: json.dumps(…)"),
        (ROLE, {"assumeRolePolicy": trust("ec2.amazonaws.com")}, "RoleName is required and missing (iam:CreateRole)"),
        (ROLE, {"name": "a", "assumeRolePolicy": trust("ec2.amazonaws.com"), "inlinePolicies": []},
         ("inlinePolicies: the rehearsal does not know this property: add it to aws:iam/role:Role in"
         " infra/rehearsal/double/iam.py")),
        (POLICY, {"name": "a", "role": "arn:aws:iam::123456789012:role/a", "policy": rights("s3:*")},
         "role: AWS would refuse this: 'arn:aws:iam::123456789012:role/a' does not match the pattern"),
        (POLICY, {"name": "a", "role": "a", "policy": rights("ListBucket")},
         "policy: AWS would refuse this: Statement[0].Action: 'ListBucket' is no action"),
        (ATTACHMENT, {"role": "a", "policyArn": "arn:aws:iam::aws:policy/AmazonEBSCSIDriverPolicy"},
         ("policyArn: AWS would refuse this: AWS keeps no policy arn:aws:iam::aws:policy/AmazonEBSCSIDriverPolicy;"
         " did you mean arn:aws:iam::aws:policy/service-role/AmazonEBSCSIDriverPolicy?")),
        (ATTACHMENT, {"role": "a", "policyArn": "arn:aws-cn:iam::aws:policy/AmazonEKSWorkerNodePolicy"},
         ("policyArn: AWS would refuse this: in this partition policies that AWS keeps begin with"
         " arn:aws:iam::aws:policy/, not arn:aws-cn:iam::aws:policy/AmazonEKSWorkerNodePolicy")),
    ],
)  # fmt: skip
def test_what_aws_would_refuse(engine: LittleEngine, token: str, inputs: dict[str, Any], sentence: str) -> None:
    assert sentence in engine.refusal(token, inputs)


def test_a_preview_knows_neither_arn_nor_ids_since_others_look_the_role_up_by_them(engine: LittleEngine) -> None:
    seen = engine.preview(ROLE, name="later", assumeRolePolicy=trust("ec2.amazonaws.com"))
    assert [repr(seen[member]) for member in ("arn", "uniqueId")] == ["<known after apply>"] * 2
    assert seen["maxSessionDuration"] == 3600


def test_a_moto_without_the_policies_that_aws_keeps_is_no_mistake_of_the_program(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("MOTO_IAM_LOAD_MANAGED_POLICIES", raising=False)
    with little_engine(tmp_path_factory.mktemp("bare")) as bare:
        said = bare.refusal(ATTACHMENT, {"role": "a", "policyArn": WORKER})
    assert "start it with MOTO_IAM_LOAD_MANAGED_POLICIES=true" in said
