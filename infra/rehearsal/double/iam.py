"""IAM: roles, their inline policies, the policies attached to them, and providers of tokens."""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterator, Mapping
from typing import Any

from infra.rehearsal.double.aws import Aws, AwsRefusedError
from infra.rehearsal.double.kind import Call, Failure, Kind, Made, only
from infra.rehearsal.double.policy_documents import IDENTITY, TRUST, as_written, document_failures
from infra.rehearsal.double.tags import retag, tag_list, tags_of

_GONE = ("NoSuchEntity",)


class Role(Kind):
    """A role: who may take it on, and for how long."""

    token = "aws:iam/role:Role"  # noqa: S105 - a type token
    replace_on = frozenset({"name", "path"})
    for_provider = frozenset({"forceDetachPolicies"})
    computed = frozenset({"arn", "uniqueId", "createDate"})

    def requests(self, inputs: Mapping[str, Any]) -> list[Call]:
        """One CreateRole."""
        create = Call(
            "iam",
            "CreateRole",
            only(
                RoleName=inputs.get("name"),
                AssumeRolePolicyDocument=inputs.get("assumeRolePolicy"),
                Path=inputs.get("path"),
                Description=inputs.get("description"),
                MaxSessionDuration=inputs.get("maxSessionDuration"),
                PermissionsBoundary=inputs.get("permissionsBoundary"),
                Tags=tag_list(inputs.get("tags")),
            ),
            {"RoleName": "name", "AssumeRolePolicyDocument": "assumeRolePolicy"},
        )
        return [create]

    def rules(self, inputs: Mapping[str, Any], aws: Aws) -> Iterator[Failure]:  # noqa: ARG002
        """The trust policy is one."""
        yield from document_failures("assumeRolePolicy", inputs.get("assumeRolePolicy"), TRUST)

    def known(self, inputs: Mapping[str, Any], aws: Aws) -> Mapping[str, Any]:  # noqa: ARG002
        """What AWS takes for granted. The ARN is not known ahead, as others look the role up by it."""
        return {"path": inputs.get("path") or "/", "maxSessionDuration": inputs.get("maxSessionDuration") or 3600}

    def create(self, aws: Aws, name: str, inputs: Mapping[str, Any]) -> Made:  # noqa: ARG002, D102
        role = aws.run(self.requests(inputs)[0])["Role"]
        return Made(role["RoleName"], _role(role))

    def read(self, aws: Aws, id: str, state: Mapping[str, Any]) -> Mapping[str, Any] | None:  # noqa: A002, D102
        answer = aws.call("iam", "GetRole", absent=_GONE, RoleName=id)
        if answer is None:
            return None
        role = answer["Role"]
        trusted = json.dumps(role["AssumeRolePolicyDocument"])
        return _role(role) | {
            "name": role["RoleName"],
            "path": role["Path"],
            "description": role.get("Description"),
            "maxSessionDuration": role["MaxSessionDuration"],
            "permissionsBoundary": role.get("PermissionsBoundary", {}).get("PermissionsBoundaryArn"),
            "assumeRolePolicy": as_written(trusted, state.get("assumeRolePolicy")),
            "tags": tags_of(role.get("Tags")),
        }

    def update(  # noqa: D102
        self,
        aws: Aws,
        id: str,  # noqa: A002
        old: Mapping[str, Any],
        new: Mapping[str, Any],
    ) -> Mapping[str, Any]:
        aws.call(
            "iam",
            "UpdateRole",
            RoleName=id,
            Description=new.get("description") or "",
            MaxSessionDuration=new.get("maxSessionDuration") or 3600,
        )
        aws.call("iam", "UpdateAssumeRolePolicy", RoleName=id, PolicyDocument=new["assumeRolePolicy"])
        boundary = new.get("permissionsBoundary")
        if boundary:
            aws.call("iam", "PutRolePermissionsBoundary", RoleName=id, PermissionsBoundary=boundary)
        elif old.get("permissionsBoundary"):
            aws.call("iam", "DeleteRolePermissionsBoundary", RoleName=id)
        retag(
            old, new,
            put=lambda tags: aws.call("iam", "TagRole", RoleName=id, Tags=tag_list(tags)),
            remove=lambda keys: aws.call("iam", "UntagRole", RoleName=id, TagKeys=keys),
        )  # fmt: skip
        return {}

    def delete(self, aws: Aws, id: str, state: Mapping[str, Any]) -> None:  # noqa: A002
        """As AWS: a role that still has policies stays, unless the program asks to detach them."""
        if state.get("forceDetachPolicies"):
            attached = aws.call("iam", "ListAttachedRolePolicies", absent=_GONE, RoleName=id) or {}
            for policy in attached.get("AttachedPolicies", ()):
                aws.call("iam", "DetachRolePolicy", RoleName=id, PolicyArn=policy["PolicyArn"])
            inline = aws.call("iam", "ListRolePolicies", absent=_GONE, RoleName=id) or {}
            for policy_name in inline.get("PolicyNames", ()):
                aws.call("iam", "DeleteRolePolicy", RoleName=id, PolicyName=policy_name)
        aws.call("iam", "DeleteRole", absent=_GONE, RoleName=id)


class RolePolicy(Kind):
    """A policy that only one role has; its id is `role:name`."""

    token = "aws:iam/rolePolicy:RolePolicy"  # noqa: S105 - a type token
    replace_on = frozenset({"name", "role"})
    tagged = False

    def requests(self, inputs: Mapping[str, Any]) -> list[Call]:
        """One PutRolePolicy."""
        put = Call(
            "iam",
            "PutRolePolicy",
            only(RoleName=inputs.get("role"), PolicyName=inputs.get("name"), PolicyDocument=inputs.get("policy")),
            {"RoleName": "role", "PolicyName": "name", "PolicyDocument": "policy"},
        )
        return [put]

    def rules(self, inputs: Mapping[str, Any], aws: Aws) -> Iterator[Failure]:  # noqa: ARG002
        """The policy is one of an identity."""
        yield from document_failures("policy", inputs.get("policy"), IDENTITY)

    def create(self, aws: Aws, name: str, inputs: Mapping[str, Any]) -> Made:  # noqa: ARG002, D102
        aws.run(self.requests(inputs)[0])
        return Made(f"{inputs['role']}:{inputs['name']}", {})

    def read(self, aws: Aws, id: str, state: Mapping[str, Any]) -> Mapping[str, Any] | None:  # noqa: A002, D102
        role, _, name = id.partition(":")
        answer = aws.call("iam", "GetRolePolicy", absent=_GONE, RoleName=role, PolicyName=name)
        if answer is None:
            return None
        policy = as_written(json.dumps(answer["PolicyDocument"]), state.get("policy"))
        return {"role": role, "name": name, "policy": policy}

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
        role, _, name = id.partition(":")
        aws.call("iam", "DeleteRolePolicy", absent=_GONE, RoleName=role, PolicyName=name)


class RolePolicyAttachment(Kind):
    """A policy of its own, mostly one that AWS keeps, attached to a role; its id is `role/ARN`."""

    token = "aws:iam/rolePolicyAttachment:RolePolicyAttachment"  # noqa: S105 - a type token
    replace_on = frozenset({"policyArn", "role"})
    tagged = False

    def requests(self, inputs: Mapping[str, Any]) -> list[Call]:
        """One AttachRolePolicy."""
        attach = Call(
            "iam",
            "AttachRolePolicy",
            only(RoleName=inputs.get("role"), PolicyArn=inputs.get("policyArn")),
            {"RoleName": "role"},
        )
        return [attach]

    def rules(self, inputs: Mapping[str, Any], aws: Aws) -> Iterator[Failure]:
        """A policy that AWS keeps is one of those it keeps: their paths (`service-role/`) are easy to get wrong."""
        arn = inputs.get("policyArn")
        prefix = f"arn:{aws.partition}:iam::aws:policy/"
        if isinstance(arn, str) and ":iam::aws:policy/" in arn:
            if not arn.startswith(prefix):
                yield Failure("policyArn", f"in this partition policies that AWS keeps begin with {prefix}, not {arn}")
            elif aws.call("iam", "GetPolicy", absent=_GONE, PolicyArn=arn) is None:
                near = _nearest(aws, arn.removeprefix(prefix))
                yield Failure(
                    "policyArn", f"AWS keeps no policy {arn}" + (f"; did you mean {prefix}{near}?" if near else "")
                )

    def create(self, aws: Aws, name: str, inputs: Mapping[str, Any]) -> Made:  # noqa: ARG002, D102
        aws.run(self.requests(inputs)[0])
        return Made(f"{inputs['role']}/{inputs['policyArn']}", {})

    def read(self, aws: Aws, id: str, state: Mapping[str, Any]) -> Mapping[str, Any] | None:  # noqa: A002, ARG002, D102
        role, _, arn = id.partition("/")
        answer = aws.call("iam", "ListAttachedRolePolicies", absent=_GONE, RoleName=role)
        attached = {policy["PolicyArn"] for policy in answer["AttachedPolicies"]} if answer else set()
        return {"role": role, "policyArn": arn} if arn in attached else None

    def delete(self, aws: Aws, id: str, state: Mapping[str, Any]) -> None:  # noqa: A002, ARG002, D102
        role, _, arn = id.partition("/")
        aws.call("iam", "DetachRolePolicy", absent=_GONE, RoleName=role, PolicyArn=arn)


class OpenIdConnectProvider(Kind):
    """Whose tokens roles may trust: CI's. Its id is its ARN; an account has one for each address."""

    token = "aws:iam/openIdConnectProvider:OpenIdConnectProvider"  # noqa: S105 - a type token
    replace_on = frozenset({"url"})
    computed = frozenset({"arn"})

    def requests(self, inputs: Mapping[str, Any]) -> list[Call]:
        """One CreateOpenIDConnectProvider."""
        create = Call(
            "iam",
            "CreateOpenIDConnectProvider",
            only(
                Url=inputs.get("url"),
                ClientIDList=inputs.get("clientIdLists"),
                ThumbprintList=inputs.get("thumbprintLists"),
                Tags=tag_list(inputs.get("tags")),
            ),
            {"ClientIDList": "clientIdLists", "ThumbprintList": "thumbprintLists"},
        )
        return [create]

    def rules(self, inputs: Mapping[str, Any], aws: Aws) -> Iterator[Failure]:  # noqa: ARG002
        """Tokens are for somebody, and their provider is reached safely."""
        url = inputs.get("url")
        if isinstance(url, str) and (not url.startswith("https://") or url.endswith("/")):
            yield Failure("url", f"{url!r} is not of the form https://token.example.com: https, and no / at the end")
        if inputs.get("clientIdLists") == []:
            yield Failure("clientIdLists", "names nobody for whom tokens may be: for GitHub sts.amazonaws.com")

    def create(self, aws: Aws, name: str, inputs: Mapping[str, Any]) -> Made:  # noqa: ARG002, D102
        arn = aws.run(self.requests(inputs)[0])["OpenIDConnectProviderArn"]
        return Made(arn, {"arn": arn})

    def read(self, aws: Aws, id: str, state: Mapping[str, Any]) -> Mapping[str, Any] | None:  # noqa: A002, D102
        found = aws.call("iam", "GetOpenIDConnectProvider", absent=_GONE, OpenIDConnectProviderArn=id)
        if found is None:
            return None
        return {
            "arn": id,
            "url": f"https://{found['Url'].removeprefix('https://')}",
            "clientIdLists": found["ClientIDList"],
            "thumbprintLists": found["ThumbprintList"] if state.get("thumbprintLists") else None,
            "tags": tags_of(found.get("Tags")),
        }

    def update(  # noqa: D102
        self,
        aws: Aws,
        id: str,  # noqa: A002
        old: Mapping[str, Any],
        new: Mapping[str, Any],
    ) -> Mapping[str, Any]:
        before, after = set(old.get("clientIdLists") or ()), set(new.get("clientIdLists") or ())
        for operation, ids in (("Add", after - before), ("Remove", before - after)):
            name = f"{operation}ClientID{'To' if operation == 'Add' else 'From'}OpenIDConnectProvider"
            for one in sorted(ids):
                aws.checked("iam", name, OpenIDConnectProviderArn=id, ClientID=one)
        if before != after:  # moto has neither call; one that is made anew has the same ARN
            self.delete(aws, id, old)
            self.create(aws, "", new)
            return {}
        if new.get("thumbprintLists") and new["thumbprintLists"] != old.get("thumbprintLists"):
            aws.call(
                "iam",
                "UpdateOpenIDConnectProviderThumbprint",
                OpenIDConnectProviderArn=id,
                ThumbprintList=new["thumbprintLists"],
            )
        retag(
            old, new,
            put=lambda tags: aws.call(
                "iam", "TagOpenIDConnectProvider", OpenIDConnectProviderArn=id, Tags=tag_list(tags)
            ),
            remove=lambda keys: aws.call(
                "iam", "UntagOpenIDConnectProvider", OpenIDConnectProviderArn=id, TagKeys=keys
            ),
        )  # fmt: skip
        return {}

    def delete(self, aws: Aws, id: str, state: Mapping[str, Any]) -> None:  # noqa: A002, ARG002, D102
        aws.call("iam", "DeleteOpenIDConnectProvider", absent=_GONE, OpenIDConnectProviderArn=id)


def _role(role: Mapping[str, Any]) -> dict[str, Any]:
    return {"arn": role["Arn"], "uniqueId": role["RoleId"], "createDate": role["CreateDate"].isoformat()}


def _nearest(aws: Aws, wanted: str) -> str | None:
    """The policy that AWS keeps whose path and name are most like these.

    Raises:
        AwsRefusedError: moto has none of AWS's policies, so that nothing can be said.
    """
    kept: dict[str, str] = {}
    marker = None
    while True:
        page = aws.call("iam", "ListPolicies", Scope="AWS", MaxItems=1000, Marker=marker)
        kept |= {policy["PolicyName"]: f"{policy['Path']}{policy['PolicyName']}"[1:] for policy in page["Policies"]}
        if not (marker := page.get("Marker")):
            break
    if not kept:
        raise AwsRefusedError(
            "the rehearsal's moto runs without the policies that AWS keeps:"
            " start it with MOTO_IAM_LOAD_MANAGED_POLICIES=true"
        )
    name = wanted.rsplit("/", 1)[-1]
    nearest = difflib.get_close_matches(name, kept, n=1)
    return kept[nearest[0]] if nearest else None


KINDS = (Role(), RolePolicy(), RolePolicyAttachment(), OpenIdConnectProvider())
