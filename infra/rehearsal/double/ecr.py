"""ECR: repositories of images, and what goes from them by itself."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from infra.rehearsal.double.aws import Aws
from infra.rehearsal.double.kind import Call, Failure, Kind, Made, each, only
from infra.rehearsal.double.policy_documents import as_written
from infra.rehearsal.double.tags import retag, tag_list, tags_of
from infra.rehearsal.double.values import UNKNOWN, is_known

_GONE = ("RepositoryNotFoundException",)
_RULE_KEYS = frozenset({"rulePriority", "description", "selection", "action"})
_SELECTION_KEYS = frozenset(
    {"tagStatus", "tagPrefixList", "tagPatternList", "storageClass", "countType", "countUnit", "countNumber"}
)
_COUNT_TYPES = {"imageCountMoreThan": False, "sinceImagePushed": True, "sinceImagePulled": True,
                "sinceImageTransitioned": True}  # fmt: skip
"""How images are counted, and whether that is in days."""


class Repository(Kind):
    """A repository; its id is its name."""

    token = "aws:ecr/repository:Repository"  # noqa: S105 - a type token
    replace_on = frozenset({"name", "encryptionConfigurations"})
    for_provider = frozenset({"forceDelete"})

    def requests(self, inputs: Mapping[str, Any]) -> list[Call]:
        """One CreateRepository."""
        scanning = inputs.get("imageScanningConfiguration")
        encryption = each(
            inputs.get("encryptionConfigurations"),
            lambda one: only(encryptionType=one.get("encryptionType") or "AES256", kmsKey=one.get("kmsKey")),
        )
        exclusions = each(
            inputs.get("imageTagMutabilityExclusionFilters"),
            lambda one: only(filter=one.get("filter"), filterType=one.get("filterType")),
        )
        create = Call(
            "ecr",
            "CreateRepository",
            only(
                repositoryName=inputs.get("name"),
                imageTagMutability=inputs.get("imageTagMutability"),
                imageTagMutabilityExclusionFilters=exclusions,
                imageScanningConfiguration=None if scanning is None else only(scanOnPush=scanning.get("scanOnPush")),
                encryptionConfiguration=encryption[0] if encryption else None,
                tags=tag_list(inputs.get("tags")),
            ),
            {"repositoryName": "name", "encryptionConfiguration": "encryptionConfigurations"},
        )
        return [create]

    def rules(self, inputs: Mapping[str, Any], aws: Aws) -> Iterator[Failure]:  # noqa: ARG002
        """One encryption at most; a key only for encryption by KMS; exceptions only from a rule that has some."""
        encryption = inputs.get("encryptionConfigurations")
        for index, one in enumerate(encryption or ()):
            if index > 0:
                yield Failure(f"encryptionConfigurations[{index}]", "a repository has one encryption")
            if is_known(one.get("kmsKey")) and one.get("encryptionType") not in {"KMS", "KMS_DSSE", UNKNOWN}:
                yield Failure(f"encryptionConfigurations[{index}].kmsKey", "a key only with encryptionType: KMS")
        mutability = inputs.get("imageTagMutability") or "MUTABLE"
        if isinstance(mutability, str):
            has = inputs.get("imageTagMutabilityExclusionFilters") is not None
            if has != mutability.endswith("_WITH_EXCLUSION"):
                yield Failure(
                    "imageTagMutabilityExclusionFilters",
                    f"{mutability} {'takes none' if has else 'needs some'}: they go with …_WITH_EXCLUSION",
                )

    def known(self, inputs: Mapping[str, Any], aws: Aws) -> Mapping[str, Any]:
        """ARN and address."""
        name = inputs.get("name")
        given = {"registryId": aws.account, "imageTagMutability": inputs.get("imageTagMutability") or "MUTABLE"}
        if not isinstance(name, str):
            return given
        url = f"{aws.account}.dkr.ecr.{aws.region}.{aws.dns_suffix}/{name}"
        return {**given, "arn": aws.arn("ecr", f"repository/{name}"), "repositoryUrl": url}

    def create(self, aws: Aws, name: str, inputs: Mapping[str, Any]) -> Made:  # noqa: ARG002, D102
        made = aws.run(self.requests(inputs)[0])["repository"]
        return Made(made["repositoryName"], {})

    def read(self, aws: Aws, id: str, state: Mapping[str, Any]) -> Mapping[str, Any] | None:  # noqa: A002, ARG002, D102
        found = aws.call("ecr", "DescribeRepositories", absent=_GONE, repositoryNames=[id])
        if found is None:
            return None
        (repository,) = found["repositories"]
        encryption = repository["encryptionConfiguration"]
        tags = aws.call("ecr", "ListTagsForResource", resourceArn=repository["repositoryArn"])["tags"]
        return {
            "name": id,
            "imageTagMutability": repository["imageTagMutability"],
            "imageScanningConfiguration": {"scanOnPush": repository["imageScanningConfiguration"]["scanOnPush"]},
            "encryptionConfigurations": [
                only(encryptionType=encryption["encryptionType"], kmsKey=encryption.get("kmsKey"))
            ],
            "tags": tags_of(tags),
            **self.known({"name": id, "imageTagMutability": repository["imageTagMutability"]}, aws),
        }

    def update(  # noqa: D102
        self,
        aws: Aws,
        id: str,  # noqa: A002
        old: Mapping[str, Any],
        new: Mapping[str, Any],
    ) -> Mapping[str, Any]:
        said = self.requests(new)[0].params
        aws.call(
            "ecr",
            "PutImageTagMutability",
            repositoryName=id,
            imageTagMutability=new.get("imageTagMutability") or "MUTABLE",
            imageTagMutabilityExclusionFilters=said.get("imageTagMutabilityExclusionFilters"),
        )
        scanning = said.get("imageScanningConfiguration") or {"scanOnPush": False}
        aws.call("ecr", "PutImageScanningConfiguration", repositoryName=id, imageScanningConfiguration=scanning)
        arn = old["arn"]
        retag(
            old, new,
            put=lambda tags: aws.call("ecr", "TagResource", resourceArn=arn, tags=tag_list(tags)),
            remove=lambda keys: aws.call("ecr", "UntagResource", resourceArn=arn, tagKeys=keys),
        )  # fmt: skip
        return {}

    def delete(self, aws: Aws, id: str, state: Mapping[str, Any]) -> None:  # noqa: A002
        """As AWS: a repository with images stays, unless `forceDelete`."""
        force = bool(state.get("forceDelete"))
        aws.call("ecr", "DeleteRepository", absent=_GONE, repositoryName=id, force=force)


class LifecyclePolicy(Kind):
    """Which images of a repository go by themselves; its id is the repository's name."""

    token = "aws:ecr/lifecyclePolicy:LifecyclePolicy"  # noqa: S105 - a type token
    replace_on = frozenset({"repository"})
    tagged = False

    def requests(self, inputs: Mapping[str, Any]) -> list[Call]:
        """One PutLifecyclePolicy."""
        given = only(repositoryName=inputs.get("repository"), lifecyclePolicyText=inputs.get("policy"))
        names = {"repositoryName": "repository", "lifecyclePolicyText": "policy"}
        return [Call("ecr", "PutLifecyclePolicy", given, names)]

    def rules(self, inputs: Mapping[str, Any], aws: Aws) -> Iterator[Failure]:  # noqa: ARG002
        """The policy is one of ECR's: ECR User Guide, "Lifecycle policy parameters"."""
        policy = inputs.get("policy")
        if isinstance(policy, str):
            for mistake in lifecycle_mistakes(policy):
                yield Failure("policy", mistake)

    def known(self, inputs: Mapping[str, Any], aws: Aws) -> Mapping[str, Any]:  # noqa: ARG002
        """The registry is the account's."""
        return {"registryId": aws.account}

    def create(self, aws: Aws, name: str, inputs: Mapping[str, Any]) -> Made:  # noqa: ARG002, D102
        aws.run(self.requests(inputs)[0])
        return Made(inputs["repository"], {})

    def read(self, aws: Aws, id: str, state: Mapping[str, Any]) -> Mapping[str, Any] | None:  # noqa: A002, D102
        absent = (*_GONE, "LifecyclePolicyNotFoundException")
        found = aws.call("ecr", "GetLifecyclePolicy", absent=absent, repositoryName=id)
        if found is None:
            return None
        return {"repository": id, "policy": as_written(found["lifecyclePolicyText"], state.get("policy"))}

    def update(  # noqa: D102
        self,
        aws: Aws,
        id: str,  # noqa: A002, ARG002
        old: Mapping[str, Any],  # noqa: ARG002
        new: Mapping[str, Any],
    ) -> Mapping[str, Any]:
        aws.run(self.requests(new)[0])
        return {}

    def delete(self, aws: Aws, id: str, state: Mapping[str, Any]) -> None:  # noqa: A002, ARG002, D102
        absent = (*_GONE, "LifecyclePolicyNotFoundException")
        aws.call("ecr", "DeleteLifecyclePolicy", absent=absent, repositoryName=id)


def lifecycle_mistakes(text: str) -> Iterator[str]:
    """What ECR would refuse in a lifecycle policy; every mistake begins with its place in the document."""
    try:
        document = json.loads(text)
    except ValueError as error:
        yield f"a lifecycle policy is a JSON document, and this is none: {error}"
        return
    rules = document.get("rules") if isinstance(document, dict) else None
    if not isinstance(rules, list) or not rules or not all(isinstance(rule, dict) for rule in rules):
        yield 'a lifecycle policy is an object with at least one rule: {"rules": [{…}]}'
        return
    priorities: dict[object, int] = {}
    catch_alls = []
    for index, rule in enumerate(rules):
        where = f"rules[{index}]"
        yield from _unknown(where, rule, _RULE_KEYS)
        priority = rule.get("rulePriority")
        if not isinstance(priority, int) or priority < 1:
            yield f"{where}.rulePriority: a whole number from 1, not {priority!r}"
        elif priority in priorities:
            yield f"{where}.rulePriority: {priority} is that of rules[{priorities[priority]}] already"
        else:
            priorities[priority] = index
        if rule.get("action") != {"type": "expire"}:
            yield f'{where}.action: {{"type": "expire"}}, not {json.dumps(rule.get("action"))}'
        selection = rule.get("selection")
        if not isinstance(selection, dict):
            yield f"{where}.selection: says which images; it is missing"
            continue
        yield from _of_selection(f"{where}.selection", selection)
        if selection.get("tagStatus") == "any":
            catch_alls.append((index, priority))
    if len(catch_alls) > 1:
        yield f'rules[{catch_alls[1][0]}].selection.tagStatus: only one rule for "any"'
    elif catch_alls and priorities and catch_alls[0][1] != max(p for p in priorities if isinstance(p, int)):
        yield f'rules[{catch_alls[0][0]}].rulePriority: the rule for "any" comes last: give it the greatest number'


def _of_selection(where: str, selection: Mapping[str, Any]) -> Iterator[str]:
    yield from _unknown(where, selection, _SELECTION_KEYS)
    status = selection.get("tagStatus")
    lists = [key for key in ("tagPrefixList", "tagPatternList") if selection.get(key)]
    if status not in {"tagged", "untagged", "any"}:
        yield f'{where}.tagStatus: "tagged", "untagged" or "any", not {status!r}'
    elif status == "tagged" and len(lists) != 1:
        yield f'{where}: "tagged" needs either tagPrefixList or tagPatternList'
    elif status != "tagged" and lists:
        yield f'{where}.{lists[0]}: only with "tagged", not with {status!r}'
    kind, number, unit = selection.get("countType"), selection.get("countNumber"), selection.get("countUnit")
    if kind not in _COUNT_TYPES:
        yield f"{where}.countType: one of {', '.join(_COUNT_TYPES)}, not {kind!r}"
    elif _COUNT_TYPES[kind] and unit != "days":
        yield f'{where}.countUnit: {kind} counts "days", not {unit!r}'
    elif not _COUNT_TYPES[kind] and unit is not None:
        yield f"{where}.countUnit: {kind} has no unit; leave it out"
    if not isinstance(number, int) or number < 1:
        yield f"{where}.countNumber: a whole number from 1, not {number!r}"


def _unknown(where: str, members: Mapping[str, Any], known: frozenset[str]) -> Iterator[str]:
    for key in members:
        if key not in known:
            yield f"{where}.{key}: no such key; known are {', '.join(sorted(known))}"


KINDS = (Repository(), LifecyclePolicy())
