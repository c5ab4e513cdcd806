"""The Pulumi program that gives CI its two roles: once for an account, by a person. docs/how-to/pull-requests.md."""

import sys
from pathlib import Path

# The engine puts this folder first on sys.path; rooms are imported as `infra.…`, from the checkout.
sys.path[0] = str(Path(__file__).resolve().parents[2])

# ruff: noqa: E402 - imports can only work after the line above
import pulumi
from pulumi_aws import Provider, ProviderDefaultTagsArgs, get_caller_identity, get_partition

from ci.aws.settings import ROLES, Settings
from infra.aws.account import STACK_TAG
from infra.aws.ci_access import CiAccess
from infra.errors import TrainyardError
from infra.wiring.ci_rights import Scope


def main() -> None:
    """Declare everything that the stack consists of, and its outputs."""
    settings = Settings.read(pulumi.runtime.config.CONFIG.get(), pulumi.get_stack())
    aws = Provider(
        "aws", region=settings.region, default_tags=ProviderDefaultTagsArgs(tags={STACK_TAG: pulumi.get_stack()})
    )
    options = pulumi.InvokeOptions(provider=aws)
    scope = Scope(
        partition=get_partition(opts=options).partition,
        account=get_caller_identity(opts=options).account_id,
        clusters=tuple(settings.stacks.values()),
        stacks=tuple(settings.stacks),
        bucket=settings.state_bucket,
        key=settings.state_key,
        stack_tag=STACK_TAG,
    )
    access = CiAccess(
        ROLES,
        repository=settings.of_host,
        environments=() if settings.host == "gitlab" else tuple(settings.stacks),
        scope=scope,
        existing_provider=settings.existing_provider,
        provider=aws,
    )
    pulumi.export("previewRole", access.preview_role_arn)
    pulumi.export("deployRole", access.deploy_role_arn)


try:
    main()
except TrainyardError as error:
    raise pulumi.RunError(str(error)) from None
