"""CI's way to AWS, rehearsed: the provider of tokens and the two roles, and whether these may do what a stack needs."""

from __future__ import annotations

import asyncio
import json
import runpy
import sys
from collections.abc import Iterator, Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import pulumi
import pytest
import yaml
from little_engine import LittleEngine, RefusedError, Resource, little_engine
from pulumi.runtime import MockResourceArgs, mocks
from pulumi.runtime.config import set_all_config
from recorded_program import ACCOUNT, CONTROLLER, Answers, Recorded, Recorder, run

from ci.aws.settings import Settings, SettingsError
from infra.clusters import CHECKOUT
from infra.rehearsal import moto
from infra.rehearsal.double.aws import Aws
from infra.wiring.ci_rights import MOST_IN_A_ROLE, Scope, changing, looking, records

PROVIDER = "aws:iam/openIdConnectProvider:OpenIdConnectProvider"
URL = "https://token.actions.githubusercontent.com"
SCOPE = Scope("aws", ACCOUNT, ("trainyard-dev", "trainyard-prod"), ("dev", "prod"), "state", "arn:aws:kms:x", "tag")

# How actions are named whose name is not that of the call, or whose service is named otherwise (Service Authorization
# Reference).
SERVICES = {"efs": "elasticfilesystem"}
ACTIONS = {
    "s3:HeadBucket": "s3:ListBucket",
    "s3:PutBucketEncryption": "s3:PutEncryptionConfiguration",
    "s3:GetBucketEncryption": "s3:GetEncryptionConfiguration",
    "s3:PutBucketLifecycleConfiguration": "s3:PutLifecycleConfiguration",
    "s3:GetBucketLifecycleConfiguration": "s3:GetLifecycleConfiguration",
    "s3:DeleteBucketLifecycle": "s3:PutLifecycleConfiguration",
    "s3:DeleteBucketEncryption": "s3:PutEncryptionConfiguration",
    "s3:PutPublicAccessBlock": "s3:PutBucketPublicAccessBlock",
    "s3:GetPublicAccessBlock": "s3:GetBucketPublicAccessBlock",
    "s3:DeletePublicAccessBlock": "s3:PutBucketPublicAccessBlock",
    "s3:DeleteBucketOwnershipControls": "s3:PutBucketOwnershipControls",
    "s3:DeleteBucketTagging": "s3:PutBucketTagging",
    "s3:DeleteObjects": "s3:DeleteObject",
    "s3:ListObjectVersions": "s3:ListBucketVersions",
    "budgets:CreateBudget": "budgets:ModifyBudget",
    "budgets:UpdateBudget": "budgets:ModifyBudget",
    "budgets:DeleteBudget": "budgets:ModifyBudget",
    "budgets:CreateNotification": "budgets:ModifyBudget",
    "budgets:DescribeBudget": "budgets:ViewBudget",
    "budgets:DescribeNotificationsForBudget": "budgets:ViewBudget",
    "budgets:DescribeSubscribersForNotification": "budgets:ViewBudget",
}
NEEDS_NO_RIGHT = {"sts:GetCallerIdentity"}


def configuration(**changes: Any) -> dict[str, str]:
    found = yaml.safe_load((CHECKOUT / "ci/aws/Pulumi.example.yaml").read_text())["config"] | {
        f"trainyard-ci:{key}": value for key, value in changes.items()
    }
    return {key: value if isinstance(value, str) else json.dumps(value) for key, value in found.items()}


def program(**changes: Any) -> Recorded:
    """Run the little program once."""
    asyncio.set_event_loop(asyncio.new_event_loop())
    recorder, path = Recorder("aws"), list(sys.path)
    mocks.set_mocks(recorder.mocks, project="trainyard-ci", stack="example", preview=False, monitor=recorder)
    set_all_config(configuration(**changes))
    try:
        pulumi.runtime.test(lambda: runpy.run_path(str(CHECKOUT / "ci/aws/__main__.py")))()  # type: ignore[no-untyped-call]
    finally:
        sys.path[:] = path
        set_all_config({})
    return Recorded(recorder.recorded, {})


@pytest.fixture(scope="module")
def access() -> Recorded:
    return program()


def trust(access: Recorded, role: str) -> Any:
    (statement,) = access.one("Role", role).statements("assumeRolePolicy")
    assert statement["Action"] == ["sts:AssumeRoleWithWebIdentity"]
    return statement


def test_jobs_of_the_repository_are_trusted_each_as_far_as_its_token_goes(access: Recorded) -> None:
    preview, deploy = trust(access, "preview"), trust(access, "deploy")
    key = "token.actions.githubusercontent.com"
    assert preview["Condition"]["StringEquals"][f"{key}:sub"] == [
        "repo:octo-org/octo-repo:pull_request",
        "repo:octo-org/octo-repo:ref:refs/heads/main",
    ]
    assert deploy["Condition"]["StringEquals"][f"{key}:sub"] == ["repo:octo-org/octo-repo:environment:dev"]
    (tokens,) = access.of("OpenIdConnectProvider")
    assert tokens.inputs["url"] == URL
    assert tokens.inputs["clientIdLists"] == ["sts.amazonaws.com"]
    assert preview["Principal"]["Federated"].endswith("tokens")


def test_a_provider_that_is_there_already_is_taken() -> None:
    arn = f"arn:aws:iam::{ACCOUNT}:oidc-provider/token.actions.githubusercontent.com"
    found = program(existingProvider=arn)
    assert found.of("OpenIdConnectProvider") == []
    assert trust(found, "deploy")["Principal"] == {"Federated": arn}


def test_a_gitlab_of_ones_own_is_trusted_by_its_address() -> None:
    found = program(host="gitlab", repository="group/project", url="https://gitlab.example.com")
    (tokens,) = found.of("OpenIdConnectProvider")
    assert tokens.inputs["url"] == "https://gitlab.example.com"
    assert tokens.inputs["clientIdLists"] == ["https://gitlab.example.com"]
    assert trust(found, "deploy")["Condition"]["StringEquals"]["gitlab.example.com:sub"] == [
        "project_path:group/project:ref_type:branch:ref:main"
    ]


@pytest.mark.parametrize("role", ["preview", "deploy"])
def test_the_policies_of_a_role_fit_into_what_iam_keeps(access: Recorded, role: str) -> None:
    found = [each for each in access.of("RolePolicy") if each.name.startswith(role)]
    assert sum(len("".join(each.inputs["policy"].split())) for each in found) < MOST_IN_A_ROLE


def test_one_account_holds_both_example_stacks_and_says_when_there_are_too_many() -> None:
    both = {"dev": "trainyard-dev", "prod": "trainyard-prod"}
    assert len(program(stacks=both).of("Role")) == 2
    with pytest.raises(pulumi.RunError, match="Give an account to each environment"):
        program(stacks=both | {"stage": "trainyard-stage"})


def test_no_right_is_a_wildcard_of_actions(access: Recorded) -> None:
    for policy in access.of("RolePolicy"):
        for statement in policy.statements():
            assert statement["Effect"] == "Allow"
            assert not [action for action in statement["Action"] if "*" in action]


def test_who_looks_changes_nothing_but_locks(access: Recorded) -> None:
    words = ("Describe", "Get", "List", "View", "Decrypt")
    for policy in (each for each in access.of("RolePolicy") if each.name.startswith("preview")):
        for statement in policy.statements():
            if statement["Sid"] == "Locks":
                assert statement["Resource"] == ["arn:aws:s3:::amzn-s3-demo-bucket/.pulumi/locks/*"]
                continue
            assert [one for one in statement["Action"] if not one.split(":")[1].startswith(words)] == []


def test_nobody_reads_what_jobs_have_stored(access: Recorded) -> None:
    for policy in access.of("RolePolicy"):
        for statement in policy.statements():
            if "s3:GetObject" in statement["Action"]:
                assert statement["Resource"] == ["arn:aws:s3:::amzn-s3-demo-bucket/.pulumi/*"]


def test_a_deployment_cannot_change_the_roles_of_ci_itself(access: Recorded) -> None:
    names = [each.inputs["name"] for each in access.of("Role")]
    for policy in (each for each in access.of("RolePolicy") if each.name == "deploy-change"):
        for statement in policy.statements():
            changes = [one for one in statement["Action"] if not one.startswith(("iam:Get", "iam:List"))]
            if any(action.startswith("iam:") and "ServiceLinked" not in action for action in changes):
                for name in names:
                    arn = f"arn:aws:iam::{ACCOUNT}:role/{name}"
                    assert not [one for one in statement["Resource"] if fnmatchcase(arn, one)]


def test_what_a_deployment_changes_in_ec2_carries_the_stacks_tag(access: Recorded) -> None:
    found = {one["Sid"]: one for one in access.one("RolePolicy", "deploy-change").statements()}
    tagged = {"StringEquals": {"aws:ResourceTag/trainyard.dev/stack": ["dev"]}}
    assert found["ChangeOwnInEc2"]["Condition"] == tagged
    assert found["ChangeTagged"]["Condition"] == tagged
    assert "ec2:DeleteVpc" in found["ChangeOwnInEc2"]["Action"]


def test_a_deployment_cannot_make_its_own_what_others_have_made(access: Recorded) -> None:
    for one in access.one("RolePolicy", "deploy-change").statements():
        tags = {action for action in one["Action"] if action.endswith((":CreateTags", ":TagResource"))}
        if one["Resource"] != "*" or "aws:ResourceTag/trainyard.dev/stack" in one["Condition"]["StringEquals"]:
            continue
        for service in {action.split(":")[0] for action in tags} - {"fsx", "kms"}:  # these two have no such condition
            assert one["Condition"]["Null"] == {f"{service}:CreateAction": "false"}, one["Sid"]


def calls_of_the_stack(stack: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, set[str]]:
    """Every call of the rehearsal for a stack: made, looked at again, and removed."""
    made: list[Resource] = []
    asked: dict[str, set[str]] = {"change": set(), "look": set()}
    now = "change"
    others, call = Answers.new_resource, Aws.call

    def recorded(self: Aws, service: str, operation: str, **params: Any) -> Any:
        asked[now].add(f"{service}:{operation}")
        return call(self, service, operation, **params)

    found = yaml.safe_load((CHECKOUT / f"Pulumi.{stack}.yaml").read_text())["config"]
    config = {key.removeprefix("trainyard:"): value for key, value in found.items()}
    config["images"] = {**config["images"], "controller": CONTROLLER}
    config["aws"]["protect"] = False
    for name, value in moto.environment().items():
        monkeypatch.setenv(name, value)
    with little_engine(folder) as engine:

        def new_resource(answers: Answers, args: MockResourceArgs) -> tuple[str | None, dict[str, Any]]:
            if args.typ == "pulumi:providers:aws":
                engine.configure(args.inputs)
            if not args.typ.startswith("aws:"):
                return others(answers, args)
            resource = Resource(engine, args.typ, args.name)
            resource.up(**args.inputs)
            made.append(resource)
            return resource.id, dict(resource.outputs)

        monkeypatch.setattr(Answers, "new_resource", new_resource)
        monkeypatch.setattr(Aws, "call", recorded)
        run(config, stack=stack)
        now = "look"
        assert [each.name for each in made if each.refresh() != "same"] == []
        now = "change"
        for resource in reversed(made):
            resource.down()
    return asked


def actions(calls: set[str]) -> set[str]:
    named = {f"{SERVICES.get(one.split(':')[0], one.split(':')[0])}:{one.split(':')[1]}" for one in calls}
    return {ACTIONS.get(one, one) for one in named} - NEEDS_NO_RIGHT


def granted(statements: list[Mapping[str, Any]]) -> set[str]:
    return {action for one in statements for action in one["Action"]}


@pytest.mark.parametrize("stack", ["dev", "prod"])
def test_the_roles_may_do_what_the_rehearsal_of_a_stack_did(
    stack: str, short_tmp: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = calls_of_the_stack(stack, short_tmp, monkeypatch)
    assert len(asked["change"]) > 60
    look = granted(looking(SCOPE)) | granted(records(SCOPE, write=False))
    assert sorted(actions(asked["look"]) - look) == []
    deploy = granted(changing(SCOPE)) | granted(records(SCOPE, write=True))
    assert sorted(actions(asked["change"]) - deploy) == []


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LittleEngine]:
    with little_engine(tmp_path_factory.mktemp("ci")) as engine:
        yield engine


def test_aws_takes_the_whole_program_and_is_left_with_nothing(engine: LittleEngine, access: Recorded) -> None:
    made = []
    for each in access.resources:
        if each.type.startswith("aws:"):
            resource = Resource(engine, each.type, each.name)
            resource.up(**each.inputs)
            made.append(resource)
    assert len(made) == 7
    assert [each.name for each in made if each.refresh() != "same"] == []
    assert [each.name for each in made if each.up(**each.inputs) != "same"] == []
    for resource in reversed(made):
        resource.down()
    assert [each.name for each in made if each.refresh() != "gone"] == []


def test_a_provider_of_tokens_is_made_changed_and_removed(engine: LittleEngine) -> None:
    iam = engine.boto("iam")
    inputs: dict[str, Any] = {"url": URL, "clientIdLists": ["sts.amazonaws.com"], "tags": {"a": "b"}}
    tokens = engine.made(PROVIDER, **inputs)
    assert tokens.id == f"arn:aws:iam::{ACCOUNT}:oidc-provider/token.actions.githubusercontent.com"
    assert tokens.refresh() == "same"
    assert tokens.up(**{**inputs, "clientIdLists": ["other"], "tags": {"a": "c"}}) == "update"
    seen = iam.get_open_id_connect_provider(OpenIDConnectProviderArn=tokens.id)
    assert seen["ClientIDList"] == ["other"]
    assert seen["Tags"] == [{"Key": "a", "Value": "c"}]
    with pytest.raises(RefusedError, match="EntityAlreadyExists"):
        engine.made(PROVIDER, **inputs)
    tokens.down()
    tokens.down()
    assert tokens.refresh() == "gone"


def test_a_provider_that_aws_would_refuse_is_refused(engine: LittleEngine) -> None:
    assert "https" in engine.refusal(PROVIDER, {"url": "http://x.example", "clientIdLists": ["a"]})
    assert "nobody" in engine.refusal(PROVIDER, {"url": URL, "clientIdLists": []})


def test_all_mistakes_of_the_settings_are_told_at_once() -> None:
    config = configuration(repository="octo-org/*", stateKey="x", stacks={"dev": "Not A Cluster"}, other="1")
    with pytest.raises(SettingsError) as caught:
        Settings.read(config, "example")
    said = str(caught.value)
    for word in ("stateKey", "stacks.dev", "other", "Pulumi.example.yaml"):
        assert word in said


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"repository": "octo-org/*"}, "without wildcards"),
        ({"ownerId": "1"}, "go together"),
        ({"stacks": {"ci": "trainyard-ci"}}, "could change CI's own roles"),
        ({"stacks": {"dev": "trainyard"}}, "could change CI's own roles"),
        ({"stateBucket": "trainyard-dev-state"}, "could remove the records"),
        ({"existingProvider": f"arn:aws:iam::{ACCOUNT}:oidc-provider/gitlab.com"}, "is not that of"),
    ],
)
def test_what_lets_in_others_is_a_mistake_of_the_settings(changes: dict[str, str], said: str) -> None:
    with pytest.raises(SettingsError, match=said):
        Settings.read(configuration(**changes), "example")
