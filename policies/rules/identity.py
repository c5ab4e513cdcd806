"""IAM: what roles may do, and who may take them."""

from __future__ import annotations

import fnmatch
from collections.abc import Iterator
from typing import Any

from policies.registry import Topic
from policies.rule import Resource, Setting, Settings
from policies.rules.storage import statements

POLICIES = (
    "aws:iam/policy:Policy",
    "aws:iam/rolePolicy:RolePolicy",
    "aws:iam/userPolicy:UserPolicy",
    "aws:iam/groupPolicy:GroupPolicy",
)
ROLE = "aws:iam/role:Role"
topic = Topic("Identity")
_READING = ("*:Describe*", "*:List*", "*:Get*", "*:BatchGet*", "sts:GetCallerIdentity", "ecr:GetAuthorizationToken")
_IAM = "https://docs.aws.amazon.com/IAM/latest/UserGuide"


def _documents(resource: Resource) -> list[dict[str, Any]]:
    """Statements that allow, of a policy or of the inline policies of a role."""
    if resource.type == ROLE:
        found = [one for each in resource.props.at("inlinePolicies").items() for one in statements(each.at("policy"))]
    else:
        found = statements(resource.props.at("policy"))
    return [one for one in found if one.get("Effect") == "Allow"]


def _texts(value: object) -> list[str]:
    if isinstance(value, str):
        return [value]
    return [one for one in value if isinstance(one, str)] if isinstance(value, list) else []


@topic.rule(
    "iam-no-star-action",
    "Policies name the actions that they allow.",
    severity="critical",
    types=(*POLICIES, ROLE),
    frameworks=("CKV_AWS_62", "CKV_AWS_63", "CIS AWS Foundations 1.16"),
    why="`*` and `service:*` allow what nobody thought of: with iam:* or ec2:* a training pod is the account's "
    "administrator.",
    wrong="""
rights:
  type: aws:iam/rolePolicy:RolePolicy
  properties: {policy: '{"Statement": [{"Effect": "Allow", "Action": "s3:*",
      "Resource": "arn:aws:s3:::checkpoints/*"}]}'}
""",
    right="""
rights:
  type: aws:iam/rolePolicy:RolePolicy
  properties: {policy: '{"Statement": [{"Effect": "Allow", "Action": ["s3:GetObject"],
      "Resource": "arn:aws:s3:::checkpoints/*"}]}'}
""",
    steps="List the actions. CloudTrail and IAM's last-accessed data show which are used.",
    references=(f"{_IAM}/best-practices.html",),
)
def no_star_action(resource: Resource, _: Settings) -> Iterator[str]:
    """Whole services; a star within an action's name is fine."""
    for one in _documents(resource):
        for action in _texts(one.get("Action")):
            if action == "*" or action.endswith(":*"):
                yield f"allows {action}{_named(one)}"
        if "NotAction" in one:
            yield f"allows everything except some actions (NotAction){_named(one)}"


@topic.rule(
    "iam-no-star-resource",
    "Actions that change something are allowed on named resources.",
    severity="high",
    types=(*POLICIES, ROLE),
    frameworks=("CKV_AWS_355", "CKV_AWS_290"),
    settings={"except": Setting([], "Actions that may have Resource *, with `*` as wildcard.", "array")},
    why="An autoscaler that may end every instance of the account ends those of production as well. Many actions take "
    "no resource; "
    "those only look.",
    wrong="""
rights:
  type: aws:iam/rolePolicy:RolePolicy
  properties: {policy: '{"Statement": [{"Effect": "Allow", "Action": ["ec2:TerminateInstances"], "Resource": "*"}]}'}
""",
    right="""
rights:
  type: aws:iam/rolePolicy:RolePolicy
  properties:
    policy: '{"Statement": [{"Effect": "Allow", "Action": ["ec2:DescribeInstances"], "Resource": "*"},
        {"Effect": "Allow", "Action":
      ["ec2:TerminateInstances"], "Resource": "*",
          "Condition": {"StringEquals": {"aws:ResourceTag/cluster": "training"}}}]}'
""",
    steps="Name ARNs, or add a condition on a tag of the resources.",
    references=(f"{_IAM}/reference_policies_elements_resource.html",),
)
def no_star_resource(resource: Resource, settings: Settings) -> Iterator[str]:
    """Looking, and statements with a condition, are left alone."""
    fine = [*_READING, *settings["except"]]
    for one in _documents(resource):
        if "*" not in _texts(one.get("Resource")) or one.get("Condition"):
            continue
        changing = [
            each for each in _texts(one.get("Action")) if not any(fnmatch.fnmatchcase(each, like) for like in fine)
        ]
        if changing:
            yield f"allows {', '.join(changing)} on every resource{_named(one)}"


@topic.rule(
    "role-trust-narrow",
    "Roles name who may take them.",
    severity="critical",
    types=(ROLE,),
    frameworks=("CKV_AWS_60", "CKV_AWS_61"),
    why="A trust policy with Principal * and no condition lets every account of AWS take the role. For GitHub's "
    "tokens the condition "
    "on the repository is what keeps other people's workflows out.",
    wrong="""
role:
  type: aws:iam/role:Role
  properties: {assumeRolePolicy: '{"Statement": [{"Effect": "Allow", "Principal": "*", "Action": "sts:AssumeRole"}]}'}
""",
    right="""
role:
  type: aws:iam/role:Role
  properties:
    assumeRolePolicy: '{"Statement": [{"Effect": "Allow", "Principal": {"Service": "ec2.amazonaws.com"},
        "Action": "sts:AssumeRole"}]}'
""",
    steps="Name the service or the role; for OIDC providers add conditions on the audience and the subject.",
    references=(f"{_IAM}/id_roles_create_for-idp_oidc.html",),
)
def role_trust(role: Resource, _: Settings) -> Iterator[str]:
    """Everybody, or federated identities of anybody."""
    for one in statements(role.props.at("assumeRolePolicy")):
        if one.get("Effect") != "Allow":
            continue
        principal = one.get("Principal")
        named = principal if isinstance(principal, dict) else {"AWS": principal}
        if "*" in _texts(named.get("AWS")) and not one.get("Condition"):
            yield "assumeRolePolicy lets everybody take the role"
        federated = _texts(named.get("Federated"))
        if any("oidc" in each or "token.actions" in each for each in federated) and not _names_subject(
            one.get("Condition")
        ):
            yield "assumeRolePolicy trusts an OIDC provider without a condition on the subject (`…:sub`)"


def _names_subject(condition: object) -> bool:
    tests = condition.values() if isinstance(condition, dict) else ()
    return any(
        key.endswith(":sub") and not any(value in ("*", "repo:*") for value in _texts(values))
        for test in tests
        if isinstance(test, dict)
        for key, values in test.items()
    )


def _named(statement: dict[str, Any]) -> str:
    sid = statement.get("Sid")
    return f" (statement {sid})" if isinstance(sid, str) else ""
