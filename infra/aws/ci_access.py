"""How CI gets to AWS without a stored key: the provider of its tokens, a role that looks, and a role that deploys.

Made once for an account, by a person with rights in IAM, by the little program in `ci/aws`.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

import pulumi
from pulumi_aws import Provider
from pulumi_aws.iam import OpenIdConnectProvider, Role, RolePolicy

from infra.aws.account import Statement, document
from infra.wiring.ci_rights import Scope, changing, looking, must_fit, records
from infra.wiring.ci_trust import Repository, condition, deploy_subjects, preview_subjects

LOOKING_LASTS = timedelta(hours=1)
DEPLOYING_LASTS = timedelta(hours=3)  # a cluster, Lustre, and the replacement of machines one by one


class CiAccess(pulumi.ComponentResource):
    """Two roles that jobs of one repository take on, each by what its token says."""

    preview_role_arn: pulumi.Output[str]
    deploy_role_arn: pulumi.Output[str]

    def __init__(
        self,
        name: str,
        *,
        repository: Repository,
        environments: Sequence[str],
        scope: Scope,
        existing_provider: str | None,
        provider: Provider,
    ) -> None:
        """Make provider and roles.

        Args:
            name: beginning of the roles' names.
            repository: whose jobs.
            environments: of GitHub, whose jobs may deploy.
            scope: what may be looked at and changed.
            existing_provider: ARN of the account's provider of these tokens; there can be only one.
            provider: of AWS.

        Raises:
            WiringError: others than this repository's jobs would be let in, or IAM cannot keep so many rights.
        """
        super().__init__("trainyard:aws:CiAccess", name, None, pulumi.ResourceOptions(provider=provider))
        child = pulumi.ResourceOptions(parent=self)
        tokens: pulumi.Input[str] = (
            existing_provider
            or OpenIdConnectProvider(
                "tokens", url=repository.issuer, client_id_lists=[repository.audience], opts=child
            ).arn
        )
        self.preview_role_arn = self._role(
            name,
            "preview",
            f"Jobs of {repository.path} that look at stacks and change nothing",
            _trust(tokens, repository, preview_subjects(repository)),
            {"look": looking(scope), "records": records(scope, write=False)},
            LOOKING_LASTS,
        )
        self.deploy_role_arn = self._role(
            name,
            "deploy",
            f"Jobs of {repository.path} that bring stacks up, once somebody has approved",
            _trust(tokens, repository, deploy_subjects(repository, environments)),
            {"records": records(scope, write=True), "change": changing(scope)},
            DEPLOYING_LASTS,
        )
        self.register_outputs({"previewRole": self.preview_role_arn, "deployRole": self.deploy_role_arn})

    def _role(
        self,
        prefix: str,
        use: str,
        description: str,
        trust: pulumi.Output[str],
        policies: dict[str, list[Statement]],
        lasts: timedelta,
    ) -> pulumi.Output[str]:
        must_fit(use, policies)
        child = pulumi.ResourceOptions(parent=self, delete_before_replace=True)  # names are taken once
        role = Role(
            use,
            name=f"{prefix}-{use}",
            description=description,
            assume_role_policy=trust,
            max_session_duration=int(lasts.total_seconds()),
            opts=child,
        )
        for policy, statements in policies.items():
            RolePolicy(f"{use}-{policy}", name=policy, role=role.name, policy=document(statements), opts=child)
        return role.arn


def _trust(tokens: pulumi.Input[str], repository: Repository, subjects: Sequence[str]) -> pulumi.Output[str]:
    return document(
        [
            {
                "Effect": "Allow",
                "Principal": {"Federated": tokens},
                "Action": ["sts:AssumeRoleWithWebIdentity"],
                "Condition": condition(repository, subjects),
            }
        ]
    )
