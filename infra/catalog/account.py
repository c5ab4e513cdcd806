"""What an AWS account says of instance types and prices, and where the catalogue says otherwise. Changes nothing."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

from infra.catalog.instance_types import InstanceType, differences
from infra.catalog.prices import price
from infra.errors import TrainyardError

PRICING_REGION = "us-east-1"
"""The price list API has no endpoint in most regions; this one answers for all."""

PRICE_TOLERANCE = Decimal("0.001")
"""The table rounds to a tenth of a cent."""


class AccountError(TrainyardError):
    """AWS could not be asked."""


@dataclass(frozen=True)
class Difference:
    """One value of the catalogue that AWS does not confirm."""

    type: str
    field: str
    catalogue: object
    aws: object
    reason: str | None
    """Why the catalogue differs on purpose; None: it does not, so one of the two is wrong or the price has changed."""


@dataclass(frozen=True)
class Findings:
    """What a comparison found."""

    region: str
    compared: tuple[str, ...]
    """Types that AWS describes in this region."""
    not_offered: tuple[str, ...]
    """Types of which AWS knows nothing in this region."""
    differences: tuple[Difference, ...]


@dataclass(frozen=True)
class Clients:
    """The AWS APIs that are asked."""

    ec2: Any
    pricing: Any


def clients(region: str) -> Clients:
    """Clients with the credentials of the environment.

    Raises:
        AccountError: no such region or profile.
    """
    import boto3  # noqa: PLC0415 - boto3 costs a third of a second
    from botocore.config import Config  # noqa: PLC0415

    config = Config(retries={"mode": "standard", "max_attempts": 5}, connect_timeout=10, read_timeout=60)
    with _told():
        session = boto3.Session()
        return Clients(
            ec2=session.client("ec2", region_name=region, config=config),
            pricing=session.client("pricing", region_name=PRICING_REGION, config=config),
        )


def compare(machines: Sequence[InstanceType], region: str, clients: Clients) -> Findings:
    """Hold the catalogue against what AWS says of these types in a region.

    Raises:
        AccountError: AWS could not be asked: no credentials, no right, no network.
    """
    with _told():
        descriptions = _descriptions(clients.ec2, [machine.name for machine in machines])
        offered = [machine for machine in machines if machine.name in descriptions]
        on_demand = {machine.name: _on_demand(clients.pricing, machine.name, region) for machine in offered}
        spot = _spot(clients.ec2, [machine.name for machine in offered]) if offered else {}
    found = [
        difference
        for machine in offered
        for difference in (
            *differences_of(machine, descriptions[machine.name]),
            *_price_differences(machine.name, region, on_demand[machine.name], spot.get(machine.name)),
        )
    ]
    return Findings(
        region=region,
        compared=tuple(machine.name for machine in offered),
        not_offered=tuple(machine.name for machine in machines if machine.name not in descriptions),
        differences=tuple(found),
    )


def described(description: Mapping[str, Any]) -> dict[str, object]:
    """The catalogue's fields, read from one entry of EC2's DescribeInstanceTypes.

    Fields that EC2 does not describe (topology, drivers, device indexes) are left out.
    """
    network = description["NetworkInfo"]
    gpus = description.get("GpuInfo", {}).get("Gpus", [])
    usage = description["SupportedUsageClasses"]
    capacities = [
        capacity
        for capacity, usage_class in (
            ("on-demand", "on-demand"),
            ("spot", "spot"),
            ("odcr", "on-demand"),
            ("capacity-block", "capacity-block"),
        )
        if usage_class in usage
    ]
    return {
        "architecture": next(
            name for name in description["ProcessorInfo"]["SupportedArchitectures"] if name in {"x86_64", "arm64"}
        ),
        "vcpus": description["VCpuInfo"]["DefaultVCpus"],
        "memory_mib": description["MemoryInfo"]["SizeInMiB"],
        "gpu": gpus[0]["Name"] if gpus else None,
        "gpus": sum(gpu["Count"] for gpu in gpus),
        "gpu_memory_mib": gpus[0]["MemoryInfo"]["SizeInMiB"] if gpus else 0,
        "efa": network.get("EfaInfo", {}).get("MaximumEfaInterfaces", 0),
        "cards": _cards(network),
        "ipv4_per_interface": network["Ipv4AddressesPerInterface"],
        "nvme_gb": description.get("InstanceStorageInfo", {}).get("TotalSizeInGB", 0),
        "capacities": tuple(capacities),
    }


def differences_of(machine: InstanceType, description: Mapping[str, Any]) -> list[Difference]:
    """Where the catalogue's row and EC2's description of a type are not the same."""
    reasons = differences()
    theirs = described(description)
    ours = {field: getattr(machine, field) for field in theirs}
    ours["cards"] = tuple((card.interfaces, card.efa) for card in machine.cards)
    return [
        Difference(
            type=machine.name,
            field=field,
            catalogue=ours[field],
            aws=theirs[field],
            reason=reasons.get((machine.name, field)),
        )
        for field in theirs
        if ours[field] != theirs[field]
    ]


def _cards(network: Mapping[str, Any]) -> tuple[tuple[int, bool], ...]:
    cards = sorted(network["NetworkCards"], key=lambda card: card["NetworkCardIndex"])
    return tuple((card["MaximumNetworkInterfaces"], "efa-only" in card.get("InterfaceTypes", ())) for card in cards)


def _price_differences(
    name: str, region: str, on_demand: Decimal | None, spot: tuple[Decimal, Decimal] | None
) -> Iterator[Difference]:
    ours = price(name, region)
    listed = ours.usd_per_hour if ours else None
    if listed != on_demand and (listed is None or on_demand is None or abs(listed - on_demand) > PRICE_TOLERANCE):
        yield Difference(name, "usd_per_hour", listed, on_demand, None)
    range_of_ours = (ours.spot_low, ours.spot_high) if ours and ours.spot_low is not None else None
    if spot is not None and spot != range_of_ours:
        yield Difference(name, "spot", range_of_ours, spot, None)


def _descriptions(ec2: Any, names: Sequence[str]) -> dict[str, Mapping[str, Any]]:
    """Of the types that the region offers; asking by `InstanceTypes` would fail as a whole for one that it does not."""
    pages = ec2.get_paginator("describe_instance_types").paginate(
        Filters=[{"Name": "instance-type", "Values": list(names)}]
    )
    return {entry["InstanceType"]: entry for page in pages for entry in page["InstanceTypes"]}


def _on_demand(pricing: Any, name: str, region: str) -> Decimal | None:
    """USD for an hour of Linux on shared hardware; None where AWS lists no such price."""
    wanted = {
        "instanceType": name,
        "regionCode": region,
        "operatingSystem": "Linux",
        "tenancy": "Shared",
        "preInstalledSw": "NA",
        "capacitystatus": "Used",
    }
    pages = pricing.get_paginator("get_products").paginate(
        ServiceCode="AmazonEC2",
        Filters=[{"Type": "TERM_MATCH", "Field": field, "Value": value} for field, value in wanted.items()],
    )
    figures = {figure for page in pages for product in page["PriceList"] for figure in _hourly(json.loads(product))}
    return min(figures, default=None)


def _hourly(product: Mapping[str, Any]) -> Iterator[Decimal]:
    for term in product.get("terms", {}).get("OnDemand", {}).values():
        for dimension in term["priceDimensions"].values():
            figure = Decimal(dimension["pricePerUnit"].get("USD", "0"))
            if dimension["unit"] == "Hrs" and figure:  # zero: an hour that a reservation pays for
                yield figure.normalize()


def _spot(ec2: Any, names: Sequence[str]) -> dict[str, tuple[Decimal, Decimal]]:
    """Lowest and highest price of now over the region's zones, by type."""
    pages = ec2.get_paginator("describe_spot_price_history").paginate(
        InstanceTypes=list(names), ProductDescriptions=["Linux/UNIX"], StartTime=datetime.now(UTC)
    )
    figures: dict[str, list[Decimal]] = {}
    for page in pages:
        for entry in page["SpotPriceHistory"]:
            figures.setdefault(entry["InstanceType"], []).append(Decimal(entry["SpotPrice"]).normalize())
    return {name: (min(found), max(found)) for name, found in figures.items()}


@contextlib.contextmanager
def _told() -> Iterator[None]:
    """Failures of the SDK as sentences."""
    from botocore.exceptions import (  # noqa: PLC0415
        BotoCoreError,
        ClientError,
        NoCredentialsError,
        PartialCredentialsError,
    )

    try:
        yield
    except (NoCredentialsError, PartialCredentialsError) as error:
        raise AccountError(
            f"AWS was not asked: {error}. Give credentials as for the AWS command (AWS_PROFILE, `aws sso login`, a "
            "role of the machine); without `--refresh` none are needed."
        ) from error
    except ClientError as error:
        answer = error.response.get("Error", {})
        raise AccountError(
            f"AWS refused {error.operation_name}: {answer.get('Code')}: {answer.get('Message')}. The comparison needs "
            "ec2:DescribeInstanceTypes, ec2:DescribeSpotPriceHistory and pricing:GetProducts, and a region that is "
            "switched on for the account."
        ) from error
    except BotoCoreError as error:
        raise AccountError(
            f"AWS was not asked: {error}. Check the region, the profile and the network; without `--refresh` nothing "
            "is asked."
        ) from error
