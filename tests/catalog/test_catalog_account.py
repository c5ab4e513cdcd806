"""The comparison with an account: its questions as AWS takes them, its findings, and failures as sentences."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import boto3
import pytest
from botocore.stub import ANY, Stubber
from ec2_descriptions import described_by_ec2

from infra.catalog import account
from infra.catalog.account import AccountError, Clients, compare
from infra.catalog.instance_types import instance_type

REGION = "us-east-1"


def described(name: str) -> dict[str, Any]:
    """One entry of EC2's DescribeInstanceTypes, to be changed at will."""
    entry: dict[str, Any] = copy.deepcopy(described_by_ec2()[name])
    return entry


def price_list(*hourly: str) -> dict[str, Any]:
    """An answer of GetProducts, shortened to what is read."""
    dimensions = {str(number): {"unit": "Hrs", "pricePerUnit": {"USD": figure}} for number, figure in enumerate(hourly)}
    product = {"product": {"sku": "A1"}, "terms": {"OnDemand": {"A1.B2": {"priceDimensions": dimensions}}}}
    return {"FormatVersion": "aws_v1", "PriceList": [json.dumps(product)]}


class Stubbed:
    """Both APIs with answers laid out; what is asked is validated by botocore."""

    def __init__(self) -> None:
        keys = {"aws_access_key_id": "test", "aws_secret_access_key": "test", "aws_session_token": "test"}
        self.clients = Clients(
            ec2=boto3.client("ec2", region_name=REGION, **keys),
            pricing=boto3.client("pricing", region_name=account.PRICING_REGION, **keys),
        )
        self.ec2, self.pricing = Stubber(self.clients.ec2), Stubber(self.clients.pricing)
        self.ec2.activate()
        self.pricing.activate()

    def describe(self, asked: list[str], *entries: dict[str, Any]) -> None:
        self.ec2.add_response(
            "describe_instance_types",
            {"InstanceTypes": list(entries)},
            {"Filters": [{"Name": "instance-type", "Values": asked}]},
        )

    def spot(self, asked: list[str], *zones: tuple[str, str]) -> None:
        history = [
            {"InstanceType": name, "SpotPrice": figure, "AvailabilityZone": f"{REGION}{letter}"}
            for letter, (name, figure) in zip("abcdef", zones, strict=False)
        ]
        self.ec2.add_response(
            "describe_spot_price_history",
            {"SpotPriceHistory": history},
            {"InstanceTypes": asked, "ProductDescriptions": ["Linux/UNIX"], "StartTime": ANY},
        )

    def on_demand(self, name: str, answer: dict[str, Any]) -> None:
        wanted = [
            ("instanceType", name),
            ("regionCode", REGION),
            ("operatingSystem", "Linux"),
            ("tenancy", "Shared"),
            ("preInstalledSw", "NA"),
            ("capacitystatus", "Used"),
        ]
        filters = [{"Type": "TERM_MATCH", "Field": field, "Value": value} for field, value in wanted]
        self.pricing.add_response("get_products", answer, {"ServiceCode": "AmazonEC2", "Filters": filters})


@pytest.fixture
def stubbed() -> Iterator[Stubbed]:
    aws = Stubbed()
    yield aws
    aws.ec2.assert_no_pending_responses()
    aws.pricing.assert_no_pending_responses()


def test_an_account_that_agrees_gives_no_difference(stubbed: Stubbed) -> None:
    stubbed.describe(["p5.48xlarge"], described("p5.48xlarge"))
    stubbed.on_demand("p5.48xlarge", price_list("55.0400000000", "0.0000000000"))
    stubbed.spot(["p5.48xlarge"], ("p5.48xlarge", "25.750000"), ("p5.48xlarge", "10.240000"))
    found = compare([instance_type("p5.48xlarge")], REGION, stubbed.clients)
    assert found.differences == ()
    assert (found.compared, found.not_offered) == (("p5.48xlarge",), ())


def test_new_prices_and_changed_hardware_are_told_with_both_values(stubbed: Stubbed) -> None:
    changed = described("p5.48xlarge")
    changed["NetworkInfo"]["EfaInfo"]["MaximumEfaInterfaces"] = 31
    stubbed.describe(["p5.48xlarge"], changed)
    stubbed.on_demand("p5.48xlarge", price_list("49.5"))
    stubbed.spot(["p5.48xlarge"], ("p5.48xlarge", "9"), ("p5.48xlarge", "30.5"))
    found = compare([instance_type("p5.48xlarge")], REGION, stubbed.clients)
    assert {one.field: (one.catalogue, one.aws) for one in found.differences} == {
        "efa": (32, 31),
        "usd_per_hour": (Decimal("55.040"), Decimal("49.5")),
        "spot": ((Decimal("10.24"), Decimal("25.75")), (Decimal(9), Decimal("30.5"))),
    }
    assert all(one.reason is None for one in found.differences)


def test_rounding_of_the_table_is_no_difference(stubbed: Stubbed) -> None:
    stubbed.describe(["p4d.24xlarge"], described("p4d.24xlarge"))
    stubbed.on_demand("p4d.24xlarge", price_list("21.9576420000"))
    stubbed.spot(["p4d.24xlarge"], ("p4d.24xlarge", "2.47"), ("p4d.24xlarge", "8.19"))
    assert compare([instance_type("p4d.24xlarge")], REGION, stubbed.clients).differences == ()


def test_types_that_the_region_does_not_offer_are_listed_and_not_priced(stubbed: Stubbed) -> None:
    names = ["p6e-gb200.36xlarge", "g6.8xlarge"]
    stubbed.describe(names, described("g6.8xlarge"))
    stubbed.on_demand("g6.8xlarge", {"FormatVersion": "aws_v1", "PriceList": []})
    stubbed.spot(["g6.8xlarge"])
    found = compare([instance_type(name) for name in names], REGION, stubbed.clients)
    assert found.not_offered == ("p6e-gb200.36xlarge",)
    assert [(one.field, one.catalogue, one.aws) for one in found.differences] == [
        ("usd_per_hour", Decimal("2.0144"), None)
    ]


def test_a_region_that_offers_nothing_is_not_asked_for_prices(stubbed: Stubbed) -> None:
    stubbed.describe(["p6e-gb200.36xlarge"])
    found = compare([instance_type("p6e-gb200.36xlarge")], REGION, stubbed.clients)
    assert (found.compared, found.differences) == ((), ())


def test_a_refusal_names_the_call_and_the_rights_that_are_needed(stubbed: Stubbed) -> None:
    stubbed.ec2.add_client_error("describe_instance_types", "UnauthorizedOperation", "You are not authorized.", 403)
    with pytest.raises(AccountError, match=r"DescribeInstanceTypes: UnauthorizedOperation.*pricing:GetProducts"):
        compare([instance_type("p5.48xlarge")], REGION, stubbed.clients)


def test_without_credentials_there_is_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    for name in ("AWS_SHARED_CREDENTIALS_FILE", "AWS_CONFIG_FILE"):
        monkeypatch.setenv(name, "/dev/null")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    with pytest.raises(AccountError, match=r"Unable to locate credentials.*`--refresh` none are needed"):
        compare([instance_type("p5.48xlarge")], REGION, account.clients(REGION))


def test_a_wrong_profile_or_region_is_a_sentence_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_CONFIG_FILE", "/dev/null")
    with pytest.raises(AccountError, match="Check the region"):
        account.clients("no region")
    monkeypatch.setenv("AWS_PROFILE", "somebody-elses")
    with pytest.raises(AccountError, match="somebody-elses"):
        account.clients(REGION)
