"""Repositories, budgets and look-ups in the rehearsal."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
from botocore.exceptions import ClientError
from little_engine import LittleEngine, RefusedError, little_engine

from infra.rehearsal.double.aws import AwsRefusedError
from infra.rehearsal.double.ecr import lifecycle_mistakes
from infra.rehearsal.double.invokes import INVOKES

REPOSITORY, LIFECYCLE = "aws:ecr/repository:Repository", "aws:ecr/lifecyclePolicy:LifecyclePolicy"
BUDGET = "aws:budgets/budget:Budget"
MANIFEST = json.dumps({"schemaVersion": 2, "mediaType": "application/vnd.oci.image.manifest.v1+json"})
KEY = "arn:aws:kms:us-east-2:123456789012:key/1234abcd-12ab-34cd-56ef-1234567890ab"


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LittleEngine]:
    with little_engine(tmp_path_factory.mktemp("ecr")) as engine:
        yield engine


def test_a_repository_is_made_changed_replaced_and_removed(engine: LittleEngine) -> None:
    ecr = engine.boto("ecr")
    inputs: dict[str, Any] = {
        "name": "dev/training", "imageTagMutability": "IMMUTABLE", "forceDelete": True, "tags": {"stack": "dev"},
        "imageScanningConfiguration": {"scanOnPush": True},
        "encryptionConfigurations": [{"encryptionType": "KMS", "kmsKey": KEY}],
    }  # fmt: skip
    repository = engine.made(REPOSITORY, **inputs)
    assert repository.id == "dev/training"
    assert repository["arn"] == "arn:aws:ecr:us-east-2:123456789012:repository/dev/training"
    assert repository["repositoryUrl"] == "123456789012.dkr.ecr.us-east-2.amazonaws.com/dev/training"
    assert repository["registryId"] == "123456789012"
    (seen,) = ecr.describe_repositories(repositoryNames=["dev/training"])["repositories"]
    assert (seen["imageTagMutability"], seen["repositoryUri"]) == ("IMMUTABLE", repository["repositoryUrl"])
    assert seen["encryptionConfiguration"] == {"encryptionType": "KMS", "kmsKey": KEY}
    assert repository.up(**inputs) == "same"
    assert repository.refresh() == "same"

    inputs |= {"imageScanningConfiguration": {"scanOnPush": False}, "imageTagMutability": "MUTABLE", "tags": {"a": "b"}}
    assert repository.up(**inputs) == "update"
    assert repository.refresh() == "same"
    (seen,) = ecr.describe_repositories(repositoryNames=["dev/training"])["repositories"]
    assert (seen["imageTagMutability"], seen["imageScanningConfiguration"]) == ("MUTABLE", {"scanOnPush": False})
    assert ecr.list_tags_for_resource(resourceArn=repository["arn"])["tags"] == [{"Key": "a", "Value": "b"}]
    ecr.put_image_tag_mutability(repositoryName="dev/training", imageTagMutability="IMMUTABLE")
    assert repository.refresh() == "changed"

    assert repository.up(**{**inputs, "encryptionConfigurations": [{"encryptionType": "AES256"}]}) == "replace"
    repository.down()
    repository.down()
    assert repository.refresh() == "gone"
    assert ecr.describe_repositories()["repositories"] == []


def test_a_repository_with_images_stays_unless_it_may_go_with_them(engine: LittleEngine) -> None:
    ecr = engine.boto("ecr")
    repository = engine.made(REPOSITORY, name="full")
    ecr.put_image(repositoryName="full", imageManifest=MANIFEST, imageTag="1")
    with pytest.raises(RefusedError, match="AWS refused ecr:DeleteRepository with RepositoryNotEmptyException"):
        repository.down()
    assert repository.up(name="full", forceDelete=True) == "update"
    repository.down()
    assert repository.refresh() == "gone"


def images(**members: Any) -> dict[str, Any]:
    rule = {
        "rulePriority": 1,
        "description": "the newest 30 images",
        "selection": {"tagStatus": "any", "countType": "imageCountMoreThan", "countNumber": 30},
        "action": {"type": "expire"},
    }
    return {**rule, **members}


def selected(**members: Any) -> dict[str, Any]:
    selection = {"tagStatus": "any", "countType": "imageCountMoreThan", "countNumber": 30, **members}
    return images(selection={key: value for key, value in selection.items() if value is not None})


def keep(*rules: dict[str, Any]) -> str:
    return json.dumps({"rules": list(rules)})


def test_old_images_go_by_themselves(engine: LittleEngine) -> None:
    ecr = engine.boto("ecr")
    engine.made(REPOSITORY, name="dev/controller", forceDelete=True)
    policy = engine.made(LIFECYCLE, repository="dev/controller", policy=keep(images()))
    assert (policy.id, policy["registryId"]) == ("dev/controller", "123456789012")
    assert policy.refresh() == "same"
    assert policy.up(repository="dev/controller", policy=keep(selected(countNumber=10))) == "update"
    text = ecr.get_lifecycle_policy(repositoryName="dev/controller")["lifecyclePolicyText"]
    assert json.loads(text)["rules"][0]["selection"]["countNumber"] == 10
    ecr.put_lifecycle_policy(repositoryName="dev/controller", lifecyclePolicyText=keep(images()))
    assert policy.refresh() == "changed"
    policy.down()
    policy.down()
    assert policy.refresh() == "gone"
    with pytest.raises(ClientError, match="LifecyclePolicyNotFound"):
        ecr.get_lifecycle_policy(repositoryName="dev/controller")


def test_a_good_lifecycle_policy_has_no_mistakes() -> None:
    tagged = selected(tagStatus="tagged", tagPrefixList=["v"], countType="sinceImagePushed", countUnit="days")
    assert list(lifecycle_mistakes(keep({**tagged, "rulePriority": 1}, images(rulePriority=2)))) == []


@pytest.mark.parametrize(
    ("policy", "mistake"),
    [
        ("{rules}", "a lifecycle policy is a JSON document, and this is none: Expecting property name"),
        ("{}", 'a lifecycle policy is an object with at least one rule: {"rules": [{…}]}'),
        (keep(images(rulePriority="1")), "rules[0].rulePriority: a whole number from 1, not '1'"),
        (keep(selected(tagStatus="untagged"), images()), "rules[1].rulePriority: 1 is that of rules[0] already"),
        (keep(images(action={"type": "delete"})), 'rules[0].action: {"type": "expire"}, not {"type": "delete"}'),
        (keep(images(selection=None)), "rules[0].selection: says which images; it is missing"),
        (keep(images(priority=1)), "rules[0].priority: no such key; known are action, description, rulePriority,"),
        (keep(selected(tagStatus="all")), "rules[0].selection.tagStatus: \"tagged\", \"untagged\" or \"any\""),
        (keep(selected(tagStatus="tagged")), 'rules[0].selection: "tagged" needs either tagPrefixList'),
        (keep(selected(tagPrefixList=["v"])), 'rules[0].selection.tagPrefixList: only with "tagged", not with \'any\''),
        (keep(selected(countType="newest")), "rules[0].selection.countType: one of imageCountMoreThan,"),
        (keep(selected(countType="sinceImagePushed")),
         "rules[0].selection.countUnit: sinceImagePushed counts \"days\", not None"),
        (keep(selected(countUnit="days")), "rules[0].selection.countUnit: imageCountMoreThan has no unit"),
        (keep(selected(countNumber=0)), "rules[0].selection.countNumber: a whole number from 1, not 0"),
        (keep(images(), images(rulePriority=2)), 'rules[1].selection.tagStatus: only one rule for "any"'),
        (keep(images(), {**selected(tagStatus="untagged"), "rulePriority": 2}),
         'rules[0].rulePriority: the rule for "any" comes last: give it the greatest number'),
    ],
)  # fmt: skip
def test_lifecycle_policies_that_ecr_would_refuse(engine: LittleEngine, policy: str, mistake: str) -> None:
    (found,) = lifecycle_mistakes(policy)
    assert found.startswith(mistake)
    assert f"policy: AWS would refuse this: {mistake}" in engine.refusal(
        LIFECYCLE, {"repository": "a", "policy": policy}
    )


def notice(kind: str, percent: int, *addresses: str) -> dict[str, Any]:
    return {
        "notificationType": kind, "comparisonOperator": "GREATER_THAN", "threshold": percent,
        "thresholdType": "PERCENTAGE", "subscriberEmailAddresses": list(addresses),
    }  # fmt: skip


def test_a_budget_is_made_changed_replaced_and_removed(engine: LittleEngine) -> None:
    budgets = engine.boto("budgets")
    inputs: dict[str, Any] = {
        "name": "trainyard-dev", "budgetType": "COST", "timeUnit": "MONTHLY", "limitAmount": "500", "limitUnit": "USD",
        "timePeriodStart": "2027-01-01_00:00", "costFilters": [{"name": "TagKeyValue", "values": ["user:stack$dev"]}],
        "notifications": [notice("ACTUAL", 80, "a@example.com", "b@example.com"), notice("FORECASTED", 100, "a@b.org")],
        "tags": {"stack": "dev"},
    }  # fmt: skip
    budget = engine.made(BUDGET, **inputs)
    assert budget.id == "123456789012:trainyard-dev"
    assert budget["arn"] == "arn:aws:budgets::123456789012:budget/trainyard-dev"
    assert budget["timePeriodEnd"] == "2087-06-15_00:00"
    seen = budgets.describe_budget(AccountId=engine.account, BudgetName="trainyard-dev")["Budget"]
    assert (seen["BudgetLimit"], seen["CostFilters"]) == (
        {"Amount": "500", "Unit": "USD"}, {"TagKeyValue": ["user:stack$dev"]},
    )  # fmt: skip
    told = budgets.describe_notifications_for_budget(AccountId=engine.account, BudgetName="trainyard-dev")
    assert [one["Threshold"] for one in told["Notifications"]] == [80, 100]
    assert budget.up(**inputs) == "same"
    assert budget.refresh() == "same"

    assert budget.up(**{**inputs, "limitAmount": "900", "notifications": inputs["notifications"][:1]}) == "update"
    assert budget.refresh() == "same"
    seen = budgets.describe_budget(AccountId=engine.account, BudgetName="trainyard-dev")["Budget"]
    assert seen["BudgetLimit"]["Amount"] == "900"
    theirs = {
        "NotificationType": "ACTUAL", "ComparisonOperator": "GREATER_THAN", "Threshold": 5.0,
        "ThresholdType": "PERCENTAGE",
    }  # fmt: skip
    budgets.create_notification(
        AccountId=engine.account, BudgetName="trainyard-dev", Notification=theirs,
        Subscribers=[{"SubscriptionType": "EMAIL", "Address": "x@y.org"}],
    )  # fmt: skip
    assert budget.refresh() == "changed"

    assert budget.up(**{**inputs, "name": "trainyard-prod"}) == "replace"
    budget.down()
    budget.down()
    assert budget.refresh() == "gone"
    assert budgets.describe_budgets(AccountId=engine.account)["Budgets"] == []
    assert engine.aws.book.all("budget") == {}


COST: dict[str, Any] = {
    "name": "a", "budgetType": "COST", "timeUnit": "MONTHLY", "limitAmount": "500", "limitUnit": "USD",
}  # fmt: skip


@pytest.mark.parametrize(
    ("token", "inputs", "sentence"),
    [
        (BUDGET, {**COST, "limitAmount": "-1"}, "limitAmount: AWS would refuse this: a positive number as text"),
        (BUDGET, {**COST, "limitAmount": "much"}, "a positive number as text, not 'much'"),
        (BUDGET, {**COST, "limitUnit": None}, "limitUnit: AWS would refuse this: a budget needs an amount and"),
        (BUDGET, {**COST, "limitUnit": "GB"}, "limitUnit: AWS would refuse this: a budget of cost is in a currency"),
        (BUDGET, {**COST, "timeUnit": "WEEKLY"}, "timeUnit: AWS would refuse this: 'WEEKLY' is not one of DAILY,"),
        (BUDGET, {**COST, "name": "a:b"}, "name: AWS would refuse this: 'a:b' does not match the pattern"),
        (BUDGET, {**COST, "timePeriodStart": "2027-01-01"},
         "timePeriodStart: AWS would refuse this: a time such as 2027-01-01_00:00, not '2027-01-01'"),
        (BUDGET, {**COST, "timePeriodStart": "2027-02-01_00:00", "timePeriodEnd": "2027-01-01_00:00"},
         "timePeriodEnd: AWS would refuse this: the end is not after the start"),
        (BUDGET, {**COST, "notifications": [notice("ACTUAL", 80)]},
         "notifications[0]: AWS would refuse this: nobody is told: subscriberEmailAddresses or subscriberSnsTopicArns"),
        (BUDGET, {**COST, "notifications": [notice("ACTUAL", 80, "me")]},
         "notifications[0].subscriberEmailAddresses[0]: AWS would refuse this: 'me' is no mail address"),
        (BUDGET, {**COST, "notifications": [{**notice("ACTUAL", 80), "subscriberSnsTopicArns": ["topic"]}]},
         "subscriberSnsTopicArns[0]: AWS would refuse this: 'topic' is no ARN of an SNS topic"),
        (BUDGET, {**COST, "notifications": [notice("ACTUAL", 80, "a@b.org"), notice("ACTUAL", 80, "c@d.org")]},
         "notifications[1]: AWS would refuse this: the same notification stands there already"),
        (BUDGET, {**COST, "notifications": [notice("ACTUAL", 0, "a@b.org")]},
         "notifications[0].threshold: AWS would refuse this: more than 0, not 0"),
        (BUDGET, {**COST, "notifications": [notice("SOON", 80, "a@b.org")]}, "'SOON' is not one of ACTUAL, FORECASTED"),
        (BUDGET, {**COST, "notifications": [notice("ACTUAL", n, "a@b.org") for n in range(1, 12)]},
         "a budget has at most 10 notifications"),
        (BUDGET, {**COST, "notifications": [notice("ACTUAL", 80, *(f"a{n}@b.org" for n in range(11)))]},
         "at most 10 addresses"),
        (BUDGET, {**COST, "plannedLimits": []}, "plannedLimits: the rehearsal does not know this property: add it to"),
        (REPOSITORY, {"name": "Dev/Training"}, "name: AWS would refuse this: 'Dev/Training' does not match"),
        (REPOSITORY, {"name": "ab", "imageTagMutability": "NEVER"},
         "imageTagMutability: AWS would refuse this: 'NEVER' is not one of MUTABLE, IMMUTABLE"),
        (REPOSITORY, {"name": "ab", "imageTagMutability": "IMMUTABLE_WITH_EXCLUSION"},
         "imageTagMutabilityExclusionFilters: AWS would refuse this: IMMUTABLE_WITH_EXCLUSION needs some"),
        (REPOSITORY, {"name": "ab", "encryptionConfigurations": [{"kmsKey": KEY}]},
         "encryptionConfigurations[0].kmsKey: AWS would refuse this: a key only with encryptionType: KMS"),
        (REPOSITORY, {"name": "ab", "encryptionConfigurations": [{}, {}]},
         "encryptionConfigurations[1]: AWS would refuse this: a repository has one encryption"),
    ],
)  # fmt: skip
def test_what_aws_would_refuse(engine: LittleEngine, token: str, inputs: dict[str, Any], sentence: str) -> None:
    assert sentence in engine.refusal(token, inputs)


def look_up(engine: LittleEngine, name: str, **arguments: Any) -> dict[str, Any]:
    return dict(INVOKES[f"aws:index/{name}:{name}"](engine.aws, arguments))


def test_look_ups_say_who_and_where_the_program_is(engine: LittleEngine) -> None:
    caller = look_up(engine, "getCallerIdentity")
    assert (caller["accountId"], caller["id"]) == ("123456789012", "123456789012")
    assert caller["arn"].startswith("arn:aws:sts::123456789012:")
    assert look_up(engine, "getPartition") == {
        "partition": "aws", "dnsSuffix": "amazonaws.com", "reverseDnsPrefix": "com.amazonaws", "id": "aws",
    }  # fmt: skip
    assert look_up(engine, "getRegion")["region"] == "us-east-2"
    assert look_up(engine, "getRegion", region="eu-west-1")["endpoint"] == "ec2.eu-west-1.amazonaws.com"
    with pytest.raises(AwsRefusedError, match="AWS has no region 'us-middle-1'"):
        look_up(engine, "getRegion", region="us-middle-1")


def test_look_ups_know_the_zones(engine: LittleEngine) -> None:
    zones = look_up(engine, "getAvailabilityZones", state="available")
    assert zones["names"] == ["us-east-2a", "us-east-2b", "us-east-2c"]
    assert zones["zoneIds"] == ["use2-az1", "use2-az2", "use2-az3"]
    assert look_up(engine, "getAvailabilityZones", excludeNames=["us-east-2b"])["zoneIds"] == ["use2-az1", "use2-az3"]
    assert look_up(engine, "getAvailabilityZones", state="impaired")["names"] == []
