"""What moto still holds: after `down` of a stack it must be nothing, for everything left would be paid for on AWS."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from infra.rehearsal import moto
from infra.rehearsal.connection import Connection

BOOK = "aws-book.json"
"""The double's record of what moto does not have, in the folder of the rehearsal."""

# Whether a thing that is listed counts. What AWS itself makes for an account (its default VPC with what is in it, keys
# and aliases of its own services) does not, nor what is deleted and still listed.
_Counts = Callable[[Mapping[str, Any]], bool]


def leftovers(connection: Connection) -> list[str]:
    """What is there besides an account's own defaults: `ec2 vpc-0123`, …, in a stable order."""
    import boto3  # noqa: PLC0415 - half a second
    import botocore.session  # noqa: PLC0415

    # Neither the user's profile nor their configuration has a say: it may name what is not there, or other endpoints.
    nobodys = {
        "profile": (None, None, None, None),
        "config_file": (None, None, "/dev/null", None),
        "credentials_file": (None, None, "/dev/null", None),
    }
    session = boto3.session.Session(
        aws_access_key_id=moto.CREDENTIALS["AWS_ACCESS_KEY_ID"],
        aws_secret_access_key=moto.CREDENTIALS["AWS_SECRET_ACCESS_KEY"],
        region_name=connection.region,
        botocore_session=botocore.session.Session(session_vars=nobodys),
    )

    def client(service: str) -> Any:
        return session.client(service, endpoint_url=connection.aws_endpoint_url)

    found = [*_ec2(client("ec2")), *_others(client, connection.account)]
    return sorted(found)


def book_entries(folder: Path) -> list[str]:
    """What the double's own book still holds: resources that moto has no operations for."""
    try:
        records = json.loads((folder / BOOK).read_bytes())
    except FileNotFoundError:
        return []
    return sorted(f"{kind} {one}" for kind, ids in records.items() for one in ids)


def _ec2(ec2: Any) -> Iterator[str]:
    default = {vpc["VpcId"] for vpc in ec2.describe_vpcs()["Vpcs"] if vpc["IsDefault"]}

    def in_own_vpc(item: Mapping[str, Any]) -> bool:
        return item.get("VpcId") not in default

    def not_deleted(item: Mapping[str, Any]) -> bool:
        return item.get("State") not in {"deleted", "deleting"}

    def attached_elsewhere(gateway: Mapping[str, Any]) -> bool:
        return not any(one["VpcId"] in default for one in gateway["Attachments"])

    queries: list[tuple[str, str, str, _Counts]] = [
        ("describe_vpcs", "Vpcs", "VpcId", in_own_vpc),
        ("describe_subnets", "Subnets", "SubnetId", in_own_vpc),
        ("describe_security_groups", "SecurityGroups", "GroupId", in_own_vpc),
        ("describe_route_tables", "RouteTables", "RouteTableId", in_own_vpc),
        ("describe_internet_gateways", "InternetGateways", "InternetGatewayId", attached_elsewhere),
        ("describe_nat_gateways", "NatGateways", "NatGatewayId", not_deleted),
        ("describe_vpc_endpoints", "VpcEndpoints", "VpcEndpointId", not_deleted),
        ("describe_addresses", "Addresses", "AllocationId", _any),
        ("describe_flow_logs", "FlowLogs", "FlowLogId", _any),
        ("describe_launch_templates", "LaunchTemplates", "LaunchTemplateId", _any),
        ("describe_instances", "Reservations", "ReservationId", _alive),
        ("describe_volumes", "Volumes", "VolumeId", _any),
    ]
    for operation, member, id, counts in queries:  # noqa: A001
        yield from _named("ec2", getattr(ec2, operation)()[member], id, counts)


def _others(client: Callable[[str], Any], account: str) -> Iterator[str]:
    kms = client("kms")
    for key in kms.list_keys()["Keys"]:
        about = kms.describe_key(KeyId=key["KeyId"])["KeyMetadata"]
        if about["KeyManager"] == "CUSTOMER" and about["KeyState"] != "PendingDeletion":
            yield f"kms {key['KeyId']}"
    aliases = kms.list_aliases()["Aliases"]
    yield from _named("kms", aliases, "AliasName", lambda alias: not alias["AliasName"].startswith("alias/aws/"))
    iam = client("iam")
    yield from _named("iam", iam.list_roles()["Roles"], "RoleName", _any)
    yield from _named("iam", iam.list_policies(Scope="Local")["Policies"], "PolicyName", _any)
    yield from _named("eks", [{"name": name} for name in client("eks").list_clusters()["clusters"]], "name", _any)
    yield from _named("logs", client("logs").describe_log_groups()["logGroups"], "logGroupName", _any)
    yield from _named("s3", client("s3").list_buckets()["Buckets"], "Name", _any)
    yield from _named("fsx", client("fsx").describe_file_systems()["FileSystems"], "FileSystemId", _any)
    yield from _named("efs", client("efs").describe_file_systems()["FileSystems"], "FileSystemId", _any)
    yield from _named("ecr", client("ecr").describe_repositories()["repositories"], "repositoryName", _any)
    budgets = client("budgets").describe_budgets(AccountId=account).get("Budgets", [])
    yield from _named("budgets", budgets, "BudgetName", _any)


def _named(service: str, items: Iterable[Mapping[str, Any]], member: str, counts: _Counts) -> Iterator[str]:
    yield from (f"{service} {item[member]}" for item in items if counts(item))


def _any(_: Mapping[str, Any]) -> bool:
    return True


def _alive(reservation: Mapping[str, Any]) -> bool:
    return any(one["State"]["Name"] != "terminated" for one in reservation["Instances"])
