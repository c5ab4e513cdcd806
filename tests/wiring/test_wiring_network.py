"""Subnets lie in the VPC, apart from each other, and where they were when zones come and go."""

from __future__ import annotations

import ipaddress
from itertools import combinations, permutations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from infra.settings.aws import AwsNetwork
from infra.wiring.errors import WiringError
from infra.wiring.network import Subnet, addresses_per_zone, subnets_of

ZONES = ("us-east-2a", "us-east-2b", "us-east-2c")


def test_private_subnets_are_large_and_public_ones_small() -> None:
    plan = subnets_of(AwsNetwork(zones=ZONES[:2]))
    assert plan.private == (
        Subnet("us-east-2a", public=False, cidr="10.0.0.0/19"),
        Subnet("us-east-2b", public=False, cidr="10.0.32.0/19"),
    )
    assert plan.public == (
        Subnet("us-east-2a", public=True, cidr="10.0.224.0/24"),
        Subnet("us-east-2b", public=True, cidr="10.0.225.0/24"),
    )


@given(
    st.integers(16, 22),
    st.lists(st.sampled_from("abcdefg"), min_size=2, max_size=3, unique=True),
    st.sampled_from(["10.0.0.0", "172.16.0.0", "100.64.0.0"]),
)
def test_subnets_lie_in_the_vpc_and_never_overlap(prefix: int, letters: list[str], base: str) -> None:
    vpc = ipaddress.IPv4Network(f"{base}/{prefix}")
    plan = subnets_of(AwsNetwork(cidr=str(vpc), zones=tuple(f"us-east-1{letter}" for letter in letters)))
    subnets = [ipaddress.IPv4Network(each.cidr) for each in plan.private + plan.public]
    assert all(each.subnet_of(vpc) and each.prefixlen <= 28 for each in subnets)
    assert not any(one.overlaps(other) for one, other in combinations(subnets, 2))
    # AWS keeps five addresses of each for itself.
    sizes = {ipaddress.IPv4Network(each.cidr).num_addresses - 5 for each in plan.private}
    assert sizes == {addresses_per_zone(str(vpc))}


@pytest.mark.parametrize("zones", list(permutations(ZONES)))
def test_a_third_zone_moves_nobody_wherever_it_is_written(zones: tuple[str, ...]) -> None:
    before, after = subnets_of(AwsNetwork(zones=ZONES[::2])), subnets_of(AwsNetwork(zones=zones))
    assert set(before.private) < set(after.private)
    assert set(before.public) < set(after.public)


def test_nat_gateways_stand_in_one_zone_in_each_or_in_none() -> None:
    single, each, none = (
        subnets_of(AwsNetwork.model_validate({"zones": ZONES, "nat_gateways": mode}))
        for mode in ("single", "one-per-zone", "none")
    )
    assert [single.nat_zone_for(zone) for zone in ZONES] == ["us-east-2a"] * 3
    assert [each.nat_zone_for(zone) for zone in ZONES] == list(ZONES)
    assert [none.nat_zone_for(zone) for zone in ZONES] == [None] * 3
    assert (len(single.public), len(none.public), len(none.private)) == (3, 0, 3)


def test_endpoints_keep_traffic_to_aws_inside_and_more_of_it_where_there_is_no_other_way() -> None:
    usual = subnets_of(AwsNetwork(zones=ZONES)).endpoints
    alone = subnets_of(AwsNetwork(zones=ZONES, nat_gateways="none")).endpoints
    assert {"ecr.api", "ecr.dkr", "sts", "ec2", "eks", "eks-auth", "logs", "autoscaling"} == set(usual)
    assert set(alone) - set(usual) == {"elasticfilesystem", "fsx", "kms"}
    assert subnets_of(AwsNetwork(zones=ZONES, endpoints=False)).endpoints == ()


def test_an_existing_vpc_is_left_as_it_is() -> None:
    network = AwsNetwork(vpc_id="vpc-0123456789abcdef0", private_subnets={"us-east-2a": "subnet-0123456789abcdef0"})
    plan = subnets_of(network)
    assert (plan.private, plan.public, plan.nat_zones, plan.endpoints) == ((), (), (), ())


@pytest.mark.parametrize(
    ("network", "message"),
    [
        ({"cidr": "10.0.0.0/24"}, r"aws\.network\.cidr is 10\.0\.0\.0/24: .*too small for EKS"),
        ({"cidr": "10.0.0.0/8"}, r"aws\.network\.cidr is 10\.0\.0\.0/8: a VPC has at most a /16"),
        ({"cidr": "10.0.0.1/16"}, r"aws\.network\.cidr is no IPv4 network: .*host bits"),
        ({"zones": ("us-east-2a", "us-east-2-bos-1a")}, "us-east-2a and us-east-2-bos-1a end with the same letter"),
        ({"zones": ("us-east-2a", "us-east-2")}, "'us-east-2' does not end with a letter from a to g"),
    ],
)
def test_what_cannot_be_a_network_is_refused_with_the_key(network: dict[str, object], message: str) -> None:
    # As a program could build it: stack files are held to the same by their own checks.
    fields = {**AwsNetwork(zones=ZONES[:2]).model_dump(), **network}
    with pytest.raises(WiringError, match=message):
        subnets_of(AwsNetwork.model_construct(**fields))
