"""A stack knows which quotas of the account it needs, before a machine does not come."""

from __future__ import annotations

import pytest

from infra.catalog.instance_types import instance_types
from infra.clusters import CHECKOUT
from infra.settings import Aws, AwsNetwork, AwsNodePool, AwsReservation, AwsSystemPool, Settings, read_stack_file
from infra.settings.quotas import Quota, quotas_needed

ZONES = ("us-east-2a", "us-east-2b")


def aws(*pools: AwsNodePool, network: AwsNetwork | None = None, **system: int) -> Settings:
    network = network or AwsNetwork(zones=ZONES)
    system_pool = AwsSystemPool.model_validate(system)
    return Settings(
        target="aws", aws=Aws(region="us-east-2", network=network, node_pools=pools, system_pool=system_pool)
    )


def needed(settings: Settings) -> dict[str, int]:
    return {quota.name: quota.needed for quota in quotas_needed(settings)}


def test_a_local_stack_needs_none() -> None:
    assert quotas_needed(Settings(target="local")) == ()


def test_pools_of_one_family_and_way_of_buying_share_a_quota() -> None:
    settings = aws(
        AwsNodePool(name="a", types=("g6.xlarge", "g5.xlarge"), capacity="spot", max=3),
        AwsNodePool(name="b", types=("g6.12xlarge",), capacity="spot", max=2),
        AwsNodePool(name="c", types=("p4d.24xlarge",), max=1),
        AwsNodePool(name="d", types=("p5.48xlarge",), capacity="odcr", max=2, zone="us-east-2a"),
        max=4,
    )
    assert needed(settings) == {
        "Running On-Demand Standard (A, C, D, H, I, M, R, T, Z) instances": 4 * 2,
        "All G and VT Spot Instance Requests": 3 * 4 + 2 * 48,
        "Running On-Demand P instances": 96 + 2 * 192,
        "EC2-VPC Elastic IPs": 1,
    }


def test_spot_p_machines_have_a_quota_for_each_generation() -> None:
    pools = (
        AwsNodePool(name=name, types=(type_,), capacity="spot", max=1)
        for name, type_ in {"a": "p4d.24xlarge", "b": "p5en.48xlarge", "c": "p6-b200.48xlarge"}.items()
    )
    quotas = [quota for quota in quotas_needed(aws(*pools)) if "Spot" in quota.name]
    assert [(quota.code, quota.needed, quota.unconfirmed) for quota in quotas] == [
        ("L-7212CCBC", 96, False),
        ("L-C4BD4855", 192, False),
        ("L-C4BD4855", 192, True),  # no list of AWS's says where P6 belongs
    ]


@pytest.mark.parametrize("name", [name for name, each in instance_types().items() if each.has_gpu])
def test_every_gpu_type_has_a_quota_in_every_way_it_is_sold(name: str) -> None:
    for capacity in instance_types()[name].capacities:
        reservation = AwsReservation(id="cr-0123456789abcdef0")
        pool = AwsNodePool.model_validate(
            {"name": "a", "types": (name,), "capacity": capacity, "reservation": reservation, "max": 2}
        )
        (quota,) = [q for q in quotas_needed(aws(pool)) if "Standard" not in q.name and "Elastic" not in q.name]
        assert quota.needed == (2 if capacity == "capacity-block" else 2 * instance_types()[name].vcpus)
        assert quota.region == "us-east-2"


def test_the_production_stack_needs_a_block_spot_and_machines_for_its_own_parts() -> None:
    quotas = quotas_needed(read_stack_file(CHECKOUT / "Pulumi.prod.yaml", "prod"))
    assert quotas[1] == Quota("Capacity Blocks, p5 instances", "L-DA6814F2", 8, "machines", "us-east-2", True)
    assert [(quota.code, quota.needed) for quota in quotas] == [
        ("L-1216C47A", 24),
        ("L-DA6814F2", 8),
        ("L-C4BD4855", 1536),
        ("L-0263D0A3", 3),
    ]


@pytest.mark.parametrize(
    ("network", "addresses"),
    [
        (AwsNetwork(zones=ZONES, nat_gateways="one-per-zone"), 2),
        (AwsNetwork(zones=ZONES, nat_gateways="none"), 0),
        # Those of an existing VPC are its owner's.
        (AwsNetwork(vpc_id="vpc-0123456789abcdef0", private_subnets=dict.fromkeys(ZONES, "subnet-01234567")), 0),
    ],
)
def test_each_nat_gateway_of_the_stack_takes_an_address(network: AwsNetwork, addresses: int) -> None:
    assert needed(aws(network=network)).get("EC2-VPC Elastic IPs", 0) == addresses
