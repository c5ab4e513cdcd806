"""IAM: what roles may do, and who may take them."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Iterable, Iterator
from typing import Any

from policies.registry import Topic
from policies.rule import Resource, Setting, Settings
from policies.rules.storage import listed, statements

POLICIES = (
    "aws:iam/policy:Policy",
    "aws:iam/rolePolicy:RolePolicy",
    "aws:iam/userPolicy:UserPolicy",
    "aws:iam/groupPolicy:GroupPolicy",
)
ROLE = "aws:iam/role:Role"
_MUST_MATCH = tuple(
    f"{several}{operator}" for several in ("", "foranyvalue:") for operator in ("stringequals", "stringlike")
)
_ANYBODY = re.compile(r"(?:repo|project_path|organization)?:?[*?]")
topic = Topic("Identity")
ATTACHMENTS = (
    "aws:iam/policyAttachment:PolicyAttachment",
    "aws:iam/rolePolicyAttachment:RolePolicyAttachment",
    "aws:iam/userPolicyAttachment:UserPolicyAttachment",
    "aws:iam/groupPolicyAttachment:GroupPolicyAttachment",
)
_READING = ("*:Describe*", "*:List*", "*:Get*", "*:BatchGet*")
_CONTENT = (
    "dynamodb:BatchGetItem", "dynamodb:GetItem", "s3:GetObject", "s3:GetObjectVersion",
    "secretsmanager:BatchGetSecretValue", "secretsmanager:GetSecretValue",
    "ssm:GetParameter", "ssm:GetParameters", "ssm:GetParametersByPath",
)  # fmt: skip
"""Actions that are called like looking and read the data itself."""
_EVERY_ACTION = re.compile(r"(?:[^:]*:)?[*?]*\*[*?]*")
_EVERYTHING = re.compile(r"(?:arn:)?(?:aws[a-z-]*:)?[*:?/]*\*[*:?/]*")
_MANAGED = re.compile(r"arn:aws[a-z-]*:iam::aws:policy/(?:.*/)?(AdministratorAccess|PowerUserAccess|\w*FullAccess)")
_IAM = "https://docs.aws.amazon.com/IAM/latest/UserGuide"


def _attached(resource: Resource) -> Iterator[tuple[str, str]]:
    """Names of AWS's own broad policies that are attached, and where.

    An ARN that is not known yet is that of a policy which the program makes, whose text is looked at.
    """
    for key in ("policyArn", "managedPolicyArns"):
        arns = resource.props.at(key)
        for one in arns.items() if isinstance(arns.raw, list) else [arns]:
            if isinstance(one.raw, str) and (found := _MANAGED.fullmatch(one.raw)):
                yield found[1], one.path


def _documents(resource: Resource) -> list[dict[str, Any]]:
    """Statements that allow, of a policy or of the inline policies of a role."""
    if resource.type == ROLE:
        found = [one for each in resource.props.at("inlinePolicies").items() for one in statements(each.at("policy"))]
    else:
        found = statements(resource.props.at("policy"))
    return [one for one in found if one.get("Effect") == "Allow"]


@topic.rule(
    "iam-no-star-action",
    "Policies name the actions that they allow.",
    severity="critical",
    types=(*POLICIES, *ATTACHMENTS, ROLE),
    frameworks=("CKV_AWS_62", "CKV_AWS_63", "CKV_AWS_274", "CIS AWS Foundations 1.16"),
    settings={"managed": Setting([], "AWS's own policies that may be attached all the same, by name.", "array")},
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
def no_star_action(resource: Resource, settings: Settings) -> Iterator[str]:
    """Whole services, also by policies that AWS has made; a star within an action's name is fine."""
    for name, path in _attached(resource):
        if name not in settings["managed"]:
            yield f"{path} attaches {name}, which allows whole services"
    if resource.type in ATTACHMENTS:
        return
    for one in _documents(resource):
        for action in listed(one.get("Action")):
            if _EVERY_ACTION.fullmatch(action):
                yield f"allows {action}{_named(one)}"
        if "NotAction" in one:
            yield f"allows everything except some actions (NotAction){_named(one)}"


@topic.rule(
    "iam-no-star-resource",
    "Actions that change something or read data are allowed on named resources.",
    severity="high",
    types=(*POLICIES, ROLE),
    frameworks=("CKV_AWS_355", "CKV_AWS_290"),
    settings={"except": Setting([], "Actions that may have Resource *, with `*` as wildcard.", "array")},
    why="An autoscaler that may end every instance of the account ends those of production as well. Many actions take "
    "no resource; those only look.",
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
    """Looking at what there is, and statements with a condition, are left alone."""
    for one in _documents(resource):
        every = any(_EVERYTHING.fullmatch(each) for each in listed(one.get("Resource"))) or "NotResource" in one
        if not every or one.get("Condition"):
            continue
        changing = [
            each
            for each in listed(one.get("Action"))
            if not _is_like(each, settings["except"]) and (_reads_content(each) or not _is_like(each, _READING))
        ]
        if changing:
            yield f"allows {', '.join(changing)} on every resource{_named(one)}"


def _reads_content(action: str) -> bool:
    """Whether an action, or what its wildcards stand for, reads data."""
    return any(_is_like(one, [action]) for one in _CONTENT)


def _is_like(action: str, patterns: Iterable[str]) -> bool:
    """As IAM compares: without regard to case."""
    return any(fnmatch.fnmatchcase(action.lower(), one.lower()) for one in patterns)


@topic.rule(
    "role-trust-narrow",
    "Roles name who may take them.",
    severity="critical",
    types=(ROLE,),
    frameworks=("CKV_AWS_60", "CKV_AWS_61"),
    why="A trust policy with Principal * and no condition lets every account of AWS take the role. For GitHub's "
    "tokens the condition on the repository is what keeps other people's workflows out.",
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
        if "*" in listed(named.get("AWS")) and not one.get("Condition"):
            yield "assumeRolePolicy lets everybody take the role"
        federated = listed(named.get("Federated"))
        if any("oidc" in each or "token.actions" in each for each in federated) and not _names_subject(
            one.get("Condition")
        ):
            yield "assumeRolePolicy trusts an OIDC provider without a condition on the subject (`…:sub`)"


def _names_subject(condition: object) -> bool:
    """Whether a condition that must be met names the token's subject, not only its kind (`repo:*`)."""
    return any(
        key.lower().endswith(":sub") and bool(listed(values)) and not any(map(_ANYBODY.match, listed(values)))
        for operator, test in (condition.items() if isinstance(condition, dict) else ())
        if operator.lower() in _MUST_MATCH and isinstance(test, dict)
        for key, values in test.items()
    )


def _named(statement: dict[str, Any]) -> str:
    sid = statement.get("Sid")
    return f" (statement {sid})" if isinstance(sid, str) else ""
