"""Add-ons, access entries and pod identities of an EKS cluster. moto has none of these: they are in the book."""

from __future__ import annotations

import abc
import re
import secrets
import uuid
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, ClassVar

from infra.rehearsal.double.aws import Aws, AwsRefusedError
from infra.rehearsal.double.eks_common import (
    ACCESS_ENTRIES,
    ACCESS_POLICIES,
    ADDONS,
    CLUSTERS,
    POD_IDENTITIES,
    authentication_mode,
    now,
    require_cluster,
    role_rules,
)
from infra.rehearsal.double.kind import Call, Failure, Kind, Made, only
from infra.rehearsal.double.values import UNKNOWN


class _Booked(Kind):
    """A part of a cluster that moto does not have: it is in the book, with everything that it shows."""

    book: ClassVar[str]
    creates: ClassVar[str]
    """The API's operation."""

    @abc.abstractmethod
    def id_of(self, inputs: Mapping[str, Any]) -> str:
        """The id that Pulumi's provider gives it."""

    @abc.abstractmethod
    def outputs(self, aws: Aws, inputs: Mapping[str, Any], id: str) -> dict[str, Any]:  # noqa: A002
        """What EKS adds."""

    def require(self, aws: Aws, inputs: Mapping[str, Any]) -> None:
        """What must be there before it."""

    def create(self, aws: Aws, name: str, inputs: Mapping[str, Any]) -> Made:  # noqa: ARG002
        require_cluster(aws, inputs["clusterName"])
        self.require(aws, inputs)
        made = self.id_of(inputs)
        if aws.book.get(self.book, made):
            raise AwsRefusedError(
                f"AWS refused eks:{self.creates} with ResourceInUseException: {made} exists already."
                " Where its replacement is to have the same name, let that wait: delete_before_replace",
                "ResourceInUseException",
            )
        outputs = self.outputs(aws, inputs, made)
        aws.book.put(self.book, made, {**inputs, **outputs})
        return Made(made, outputs)

    def read(self, aws: Aws, id: str, state: Mapping[str, Any]) -> Mapping[str, Any] | None:  # noqa: A002, ARG002
        return aws.book.get(self.book, id)

    def update(self, aws: Aws, id: str, old: Mapping[str, Any], new: Mapping[str, Any]) -> Mapping[str, Any]:  # noqa: A002, ARG002
        record = aws.book.get(self.book, id)
        if record is None:
            raise AwsRefusedError(
                f"AWS refused the change of {id} with ResourceNotFoundException: it is gone."
                " Take that over into the state: pulumi refresh, then up again",
                "ResourceNotFoundException",
            )
        stamp = {"modifiedAt": now()} if "modifiedAt" in record else {}
        aws.book.put(self.book, id, {**record, **new, **stamp})
        return stamp

    def delete(self, aws: Aws, id: str, state: Mapping[str, Any]) -> None:  # noqa: A002, ARG002
        aws.book.drop(self.book, id)


class Addon(_Booked):
    """A part of the cluster that EKS installs and keeps up to date."""

    token = "aws:eks/addon:Addon"  # noqa: S105
    book = ADDONS
    creates = "CreateAddon"
    replace_on = frozenset({"addonName", "clusterName"})
    computed = frozenset({"addonVersion", "arn", "createdAt", "modifiedAt"})
    for_provider = frozenset({"preserve"})
    recomputed = frozenset({"modifiedAt"})

    def requests(self, inputs: Mapping[str, Any]) -> list[Call]:  # noqa: D102
        request = only(
            clusterName=inputs.get("clusterName"),
            addonName=inputs.get("addonName"),
            addonVersion=inputs.get("addonVersion"),
            configurationValues=inputs.get("configurationValues"),
            podIdentityAssociations=inputs.get("podIdentityAssociations"),
            resolveConflicts=inputs.get("resolveConflictsOnCreate"),
            serviceAccountRoleArn=inputs.get("serviceAccountRoleArn"),
            tags=inputs.get("tags") or None,  # AWS takes no empty ones
        )
        return [Call("eks", self.creates, request, {"resolveConflicts": "resolveConflictsOnCreate"})]

    def rules(self, inputs: Mapping[str, Any], aws: Aws) -> Iterable[Failure]:  # noqa: D102
        version = inputs.get("addonVersion")
        if isinstance(version, str) and not re.fullmatch(r"v\d+\.\d+\.\d+-eksbuild\.\d+", version):
            yield Failure("addonVersion", f"{version} is no version of an add-on, e.g. v1.19.0-eksbuild.1")
        if inputs.get("resolveConflictsOnCreate") == "PRESERVE":
            yield Failure("resolveConflictsOnCreate", "a new add-on has nothing to preserve: NONE or OVERWRITE")
        if inputs.get("resolveConflictsOnUpdate", "NONE") not in {"NONE", "OVERWRITE", "PRESERVE", UNKNOWN}:
            yield Failure("resolveConflictsOnUpdate", "NONE, OVERWRITE or PRESERVE")
        yield from _configuration_rules(inputs.get("configurationValues"))
        for index, identity in enumerate(inputs.get("podIdentityAssociations") or []):
            where = f"podIdentityAssociations[{index}].roleArn"
            yield from role_rules(aws, where, identity.get("roleArn"), for_pods=True)

    def id_of(self, inputs: Mapping[str, Any]) -> str:  # noqa: D102
        return f"{inputs['clusterName']}:{inputs['addonName']}"

    def outputs(self, aws: Aws, inputs: Mapping[str, Any], id: str) -> dict[str, Any]:  # noqa: A002, ARG002, D102
        path = f"addon/{inputs['clusterName']}/{inputs['addonName']}/{uuid.uuid4()}"
        stamp = now()
        return {"arn": aws.arn("eks", path), "createdAt": stamp, "modifiedAt": stamp}


class AccessEntry(_Booked):
    """Somebody whom the cluster knows."""

    token = "aws:eks/accessEntry:AccessEntry"  # noqa: S105
    book = ACCESS_ENTRIES
    creates = "CreateAccessEntry"
    replace_on = frozenset({"clusterName", "principalArn", "type"})
    computed = frozenset({"accessEntryArn", "createdAt", "modifiedAt", "userName"})
    recomputed = frozenset({"modifiedAt"})

    def requests(self, inputs: Mapping[str, Any]) -> list[Call]:  # noqa: D102
        request = only(
            clusterName=inputs.get("clusterName"),
            principalArn=inputs.get("principalArn"),
            kubernetesGroups=inputs.get("kubernetesGroups"),
            type=inputs.get("type"),
            username=inputs.get("userName"),
            tags=inputs.get("tags") or None,  # AWS takes no empty ones
        )
        return [Call("eks", self.creates, request, {"username": "userName"})]

    def rules(self, inputs: Mapping[str, Any], aws: Aws) -> Iterable[Failure]:  # noqa: ARG002
        """https://docs.aws.amazon.com/eks/latest/userguide/creating-access-entries.html."""
        arn = inputs.get("principalArn")
        if isinstance(arn, str) and not re.fullmatch(r"arn:[\w-]+:iam::\d{12}:(role|user)/.+", arn):
            yield Failure("principalArn", f"{arn} is no ARN of an IAM role or user")
        for index, group in enumerate(inputs.get("kubernetesGroups") or []):
            if isinstance(group, str) and group.startswith(("system:", "eks:", "aws:", "amazon:", "iam:")):
                yield Failure(f"kubernetesGroups[{index}]", f"{group}: names that begin like this are kept for EKS")

    def known(self, inputs: Mapping[str, Any], aws: Aws) -> Mapping[str, Any]:  # noqa: ARG002, D102
        return {"type": inputs.get("type", "STANDARD")}

    def require(self, aws: Aws, inputs: Mapping[str, Any]) -> None:  # noqa: D102
        cluster = aws.book.get(CLUSTERS, inputs["clusterName"]) or {}
        if authentication_mode(cluster) == "CONFIG_MAP":
            raise AwsRefusedError(
                f"AWS would refuse this: cluster {inputs['clusterName']} takes no access entries while its"
                " authenticationMode is CONFIG_MAP. Set accessConfig.authenticationMode of the cluster to API"
            )

    def id_of(self, inputs: Mapping[str, Any]) -> str:  # noqa: D102
        return f"{inputs['clusterName']}:{inputs['principalArn']}"

    def outputs(self, aws: Aws, inputs: Mapping[str, Any], id: str) -> dict[str, Any]:  # noqa: A002, ARG002, D102
        account, who = inputs["principalArn"].split(":")[4:6]
        kind, _, name = who.partition("/")
        path = f"access-entry/{inputs['clusterName']}/{kind}/{account}/{name.rpartition('/')[2]}/{uuid.uuid4()}"
        stamp = now()
        return {
            "accessEntryArn": aws.arn("eks", path),
            "createdAt": stamp,
            "modifiedAt": stamp,
            "type": inputs.get("type", "STANDARD"),
            "userName": inputs.get("userName", inputs["principalArn"]),
        }

    def delete(self, aws: Aws, id: str, state: Mapping[str, Any]) -> None:  # noqa: A002
        """With an entry go its policies."""
        for key, policy in aws.book.all(ACCESS_POLICIES).items():
            if f"{policy['clusterName']}:{policy['principalArn']}" == id:
                aws.book.drop(ACCESS_POLICIES, key)
        super().delete(aws, id, state)


class AccessPolicyAssociation(_Booked):
    """What somebody may do in the cluster."""

    token = "aws:eks/accessPolicyAssociation:AccessPolicyAssociation"  # noqa: S105
    tagged = False
    book = ACCESS_POLICIES
    creates = "AssociateAccessPolicy"
    replace_on = frozenset({"accessScope", "clusterName", "policyArn", "principalArn"})
    computed = frozenset({"associatedAt", "modifiedAt"})

    def requests(self, inputs: Mapping[str, Any]) -> list[Call]:  # noqa: D102
        keys = ("clusterName", "principalArn", "policyArn", "accessScope")
        return [Call("eks", self.creates, only(**{key: inputs.get(key) for key in keys}))]

    def rules(self, inputs: Mapping[str, Any], aws: Aws) -> Iterable[Failure]:  # noqa: D102
        policy = inputs.get("policyArn")
        pattern = rf"arn:{aws.partition}:eks::aws:cluster-access-policy/AmazonEKS\w+Policy"
        if isinstance(policy, str) and not re.fullmatch(pattern, policy):
            yield Failure(
                "policyArn",
                f"{policy} is no access policy of EKS, e.g."
                f" arn:{aws.partition}:eks::aws:cluster-access-policy/AmazonEKSViewPolicy",
            )
        scope = inputs.get("accessScope") or {}
        if scope.get("type") == "namespace" and not scope.get("namespaces"):
            yield Failure("accessScope.namespaces", "a scope of type namespace needs the namespaces")
        if scope.get("type") == "cluster" and scope.get("namespaces"):
            yield Failure("accessScope.namespaces", "a scope of type cluster has no namespaces")

    def require(self, aws: Aws, inputs: Mapping[str, Any]) -> None:  # noqa: D102
        if aws.book.get(ACCESS_ENTRIES, f"{inputs['clusterName']}:{inputs['principalArn']}") is None:
            raise AwsRefusedError(
                f"AWS refused eks:AssociateAccessPolicy with ResourceNotFoundException: {inputs['principalArn']} has no"
                f" access entry in cluster {inputs['clusterName']}. Make the entry first",
                "ResourceNotFoundException",
            )

    def id_of(self, inputs: Mapping[str, Any]) -> str:  # noqa: D102
        return f"{inputs['clusterName']}#{inputs['principalArn']}#{inputs['policyArn']}"

    def outputs(self, aws: Aws, inputs: Mapping[str, Any], id: str) -> dict[str, Any]:  # noqa: A002, ARG002, D102
        stamp = now()
        return {"associatedAt": stamp, "modifiedAt": stamp}


class PodIdentityAssociation(_Booked):
    """The IAM role of a Kubernetes service account."""

    token = "aws:eks/podIdentityAssociation:PodIdentityAssociation"  # noqa: S105
    book = POD_IDENTITIES
    creates = "CreatePodIdentityAssociation"
    replace_on = frozenset({"clusterName", "namespace", "serviceAccount"})
    computed = frozenset({"associationArn", "associationId"})

    def requests(self, inputs: Mapping[str, Any]) -> list[Call]:  # noqa: D102
        keys = ("clusterName", "namespace", "serviceAccount", "roleArn", "targetRoleArn", "disableSessionTags")
        tags = inputs.get("tags") or None
        return [Call("eks", self.creates, only(**{key: inputs.get(key) for key in keys}, tags=tags))]

    def rules(self, inputs: Mapping[str, Any], aws: Aws) -> Iterable[Failure]:  # noqa: D102
        yield from role_rules(aws, "roleArn", inputs.get("roleArn"), for_pods=True)

    def require(self, aws: Aws, inputs: Mapping[str, Any]) -> None:  # noqa: D102
        mine = [inputs[key] for key in ("clusterName", "namespace", "serviceAccount")]
        for key, other in aws.book.all(self.book).items():
            if [other["clusterName"], other["namespace"], other["serviceAccount"]] == mine:
                raise AwsRefusedError(
                    f"AWS refused eks:{self.creates} with ResourceInUseException: service account {mine[1]}/{mine[2]}"
                    f" has the association {key} already, and takes one",
                    "ResourceInUseException",
                )

    def id_of(self, inputs: Mapping[str, Any]) -> str:  # noqa: ARG002, D102
        return f"a-{secrets.token_hex(9)[:17]}"

    def outputs(self, aws: Aws, inputs: Mapping[str, Any], id: str) -> dict[str, Any]:  # noqa: A002, D102
        arn = aws.arn("eks", f"podidentityassociation/{inputs['clusterName']}/{id}")
        return {"associationArn": arn, "associationId": id}


def _configuration_rules(text: Any) -> Iterator[Failure]:
    if not isinstance(text, str):
        return
    import yaml  # noqa: PLC0415 - few resources have any

    try:
        values = yaml.safe_load(text)  # JSON as well
    except yaml.YAMLError as error:
        yield Failure("configurationValues", f"neither JSON nor YAML: {error}")
        return
    if not isinstance(values, dict):
        yield Failure("configurationValues", "must be an object")


KINDS: tuple[Kind, ...] = (Addon(), AccessEntry(), AccessPolicyAssociation(), PodIdentityAssociation())
