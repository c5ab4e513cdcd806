"""What stacks cost: to the cent of a computation by hand, and never nothing where nothing is known."""

from __future__ import annotations

from dataclasses import replace
from datetime import date, timedelta
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from report_stacks import REGION, pool, provider, resource

from infra.catalog.prices import Price, PriceTable, ServicePrice, price_table
from infra.report.cost import Cost, Total, Usd, cost, delta, document
from infra.report.preview import UNKNOWN, Resource

pytest_plugins = ["report_stacks_fixture"]

CENT = Decimal("0.01")
TINY = Decimal("1e-18")


def cents(amount: Usd) -> tuple[Decimal, Decimal]:
    return amount.low.quantize(CENT), amount.high.quantize(CENT)


def machine(name: str, region: str = REGION) -> Price:
    found = price_table().machine(name, region)
    assert found is not None
    return found


def service(name: str, region: str = REGION) -> Decimal:
    found = price_table().service(name, region)
    assert found is not None
    return found.usd


def figure(value: Decimal | None) -> Decimal:
    assert value is not None
    return value


# --- the example stacks, by hand --------------------------------------------------------------------------------------


def test_the_table_has_the_figures_that_the_computations_below_are_written_with() -> None:
    assert figure(machine("m7i.large").usd_per_hour) == Decimal("0.1008")
    assert figure(machine("m7i.xlarge").usd_per_hour) == Decimal("0.2016")
    assert figure(machine("m6i.xlarge").usd_per_hour) == Decimal("0.192")
    assert (machine("g6.xlarge").spot_low, machine("g6.xlarge").spot_high) == (Decimal("0.2599"), Decimal("0.2756"))
    assert (machine("g5.xlarge").spot_low, machine("g5.xlarge").spot_high) == (Decimal("0.3770"), Decimal("0.3943"))
    assert (machine("p5.48xlarge").spot_low, machine("p5.48xlarge").spot_high) == (Decimal("11.25"), Decimal("11.99"))
    assert service("eks-control-plane") == Decimal("0.10")
    assert service("nat-gateway") == Decimal("0.045")
    assert service("public-ipv4") == Decimal("0.005")
    assert service("interface-endpoint") == Decimal("0.01")
    assert service("ebs-gp3") == Decimal("0.08")
    assert service("kms-key") == Decimal("1.00")
    assert service("fsx-lustre-persistent-2-500") == Decimal("0.340")


def test_dev_costs_what_a_computation_by_hand_says(dev_resources: tuple[Resource, ...]) -> None:
    found = cost(dev_resources)
    # USD per month that are paid for whatever runs
    fixed = (
        Decimal("0.10") * 730  # control plane
        + Decimal("0.045") * 730  # one NAT gateway
        + Decimal("0.005") * 730  # and its address
        + Decimal("0.08") * 1  # 1 GiB of etcd
        + Decimal("1.00")  # one key
    )
    assert fixed.quantize(CENT) == Decimal("110.58")
    # system: 2 to 3 m7i.large with 50 GiB each; gpu-spot: 0 to 4 of g6.xlarge or g5.xlarge with 200 GiB each
    least = Decimal("0.1008") * 730 * 2 + Decimal("0.08") * 50 * 2
    most_system = Decimal("0.1008") * 730 * 3 + Decimal("0.08") * 50 * 3
    most_low = most_system + Decimal("0.2599") * 730 * 4 + Decimal("0.08") * 200 * 4
    most_high = most_system + Decimal("0.3943") * 730 * 4 + Decimal("0.08") * 200 * 4
    half = Decimal("0.5")

    assert found.at_min.without == ()
    assert cents(found.at_min.usd * 730) == ((fixed + least).quantize(CENT),) * 2
    assert cents(found.at_max.usd * 730) == ((fixed + most_low).quantize(CENT), (fixed + most_high).quantize(CENT))
    assert cents(found.month.usd) == (
        (fixed + least + (most_low - least) * half).quantize(CENT),
        (fixed + least + (most_high - least) * half).quantize(CENT),
    )
    # the same in figures, so that a mistake in both ways of reckoning shows
    assert cents(found.month.usd) == (Decimal("715.99"), Decimal("912.22"))
    assert cents(found.at_min.usd) == (Decimal("0.36"), Decimal("0.36"))
    assert cents(found.at_max.usd) == (Decimal("1.60"), Decimal("2.14"))
    assert found.gpus_at_max == 4


def test_prod_costs_what_a_computation_by_hand_says_less_what_nobody_knows(
    prod_resources: tuple[Resource, ...],
) -> None:
    found = cost(prod_resources)
    fixed = (
        Decimal("0.10") * 730  # control plane
        + Decimal("0.045") * 730 * 3  # a NAT gateway in each zone
        + Decimal("0.005") * 730 * 3  # and their addresses
        + Decimal("0.01") * 730 * 8 * 3  # 8 endpoints in 3 zones
        + Decimal("0.340") * 9600  # Lustre at 500 MB/s per TiB
        + Decimal("0.08") * 3  # 1 GiB for each of three members of etcd
        + Decimal("1.00")  # one key
    )
    assert fixed.quantize(CENT) == Decimal("3622.94")
    # system: 3 to 6 of m7i.xlarge or m6i.xlarge with 50 GiB; gpu-spot: 0 to 8 p5 with 500 GiB; gpu-block: disks only
    disk = Decimal("0.08")
    least = (Decimal("0.192") * 730 * 3 + disk * 50 * 3, Decimal("0.2016") * 730 * 3 + disk * 50 * 3)
    most = (
        Decimal("0.192") * 730 * 6 + disk * 50 * 6 + Decimal("11.25") * 730 * 8 + disk * 500 * 8 * 2,
        Decimal("0.2016") * 730 * 6 + disk * 50 * 6 + Decimal("11.99") * 730 * 8 + disk * 500 * 8 * 2,
    )
    assert cents(found.at_min.usd * 730) == tuple((fixed + one).quantize(CENT) for one in least)
    assert cents(found.at_max.usd * 730) == tuple((fixed + one).quantize(CENT) for one in most)
    assert cents(found.month.usd) == tuple(
        (fixed + low + (high - low) / 2).quantize(CENT) for low, high in zip(least, most, strict=True)
    )
    assert cents(found.month.usd) == (Decimal("37441.66"), Decimal("39634.00"))
    assert found.unknown == ("gpu-block",)
    assert found.month.shown() == ">= 37,441.66, without gpu-block"


def test_pools_tell_type_capacity_numbers_gpus_and_what_a_gpu_costs(prod_resources: tuple[Resource, ...]) -> None:
    by_name = {one.name: one for one in cost(prod_resources).pools}
    assert list(by_name) == ["gpu-block", "gpu-spot", "system"]
    spot = by_name["gpu-spot"]
    assert (spot.types, spot.capacity, spot.minimum, spot.maximum, spot.gpus) == (("p5.48xlarge",), "spot", 0, 8, 8)
    assert spot.each == Usd(Decimal("11.25"), Decimal("11.99"))
    assert spot.per_gpu_hour == Usd(Decimal("11.25") / 8, Decimal("11.99") / 8)
    assert spot.spot == spot.each
    assert spot.on_demand == Usd.exactly(Decimal("55.04"))
    assert spot.as_of == machine("p5.48xlarge").spot_as_of
    block = by_name["gpu-block"]
    assert (block.types, block.capacity, block.each) == (("p5.48xlarge",), "capacity-block", None)
    assert "on demand 55.04 USD/h each" in block.note
    assert "paid in advance" in block.note
    system = by_name["system"]
    assert system.gpus == 0
    assert system.per_gpu_hour is None


def test_what_has_no_figure_is_listed_with_its_reason(prod_resources: tuple[Resource, ...]) -> None:
    said = {one.what: one.reason for one in cost(prod_resources).not_counted}
    assert set(said) == {
        "S3 bucket",
        "EFS file system",
        "ECR repository (3)",
        "CloudWatch log group (2)",
        "VPC flow log",
        "data transfer",
        "support, tax and discounts",
    }
    assert all(said.values())


def test_the_order_of_the_resources_makes_no_difference(prod_resources: tuple[Resource, ...]) -> None:
    assert cost(prod_resources) == cost(tuple(reversed(prod_resources)))


# --- what is not known ------------------------------------------------------------------------------------------------


def test_a_missing_price_is_unknown_and_never_nothing() -> None:
    found = cost([provider("mars-north-1"), *pool("gpu", "p5.48xlarge")])
    (gpu,) = found.pools
    assert gpu.each is None
    assert gpu.at_min is None
    assert gpu.at_max is None
    assert gpu.month is None
    assert "no price of p5.48xlarge in mars-north-1" in gpu.note
    assert found.month.shown() == "unknown"
    assert found.at_min.shown() == "unknown"
    assert found.unknown == ("gpu", "disks of gpu")


def test_a_sum_with_an_unknown_part_says_at_least_and_without_what() -> None:
    found = cost([provider(), *pool("known", "g6.xlarge", high=1.0, gib=None), *pool("exotic", "x9.large", gib=None)])
    assert found.at_max.shown(4) == ">= 0.8048, without exotic"
    assert found.at_max.without == ("exotic",)


def test_gpus_without_a_price_do_not_make_the_others_look_cheap() -> None:
    found = cost([provider(), *pool("known", "g6.xlarge"), *pool("block", "p5.48xlarge", capacity="CAPACITY_BLOCK")])
    assert found.per_gpu_hour is not None
    assert found.per_gpu_hour.shown() == "unknown"


def test_one_type_without_a_price_makes_a_pool_of_several_unknown() -> None:
    (gpu,) = cost([provider(), *pool("gpu", "g6.xlarge", "x9.large")]).pools
    assert gpu.each is None
    assert gpu.gpus is None


def test_spot_without_a_spot_price_is_unknown_although_the_price_on_demand_is_known() -> None:
    (gpu,) = cost([provider(), *pool("gpu", "p5.4xlarge", capacity="SPOT")]).pools
    assert gpu.at_max is None
    assert gpu.on_demand == Usd.exactly(Decimal("6.88"))
    assert "no spot price of p5.4xlarge in us-east-2 in the table; on demand 6.88 USD/h each" in gpu.note


@pytest.mark.parametrize(
    "inputs",
    [
        {"scalingConfig": UNKNOWN},
        {"scalingConfig": {"minSize": UNKNOWN, "maxSize": UNKNOWN}},
        {"scalingConfig": "2"},
        {"scalingConfig": {"minSize": float("nan"), "maxSize": float("inf")}},
        {"scalingConfig": {"minSize": True, "maxSize": [1]}},
        {},
    ],
)
def test_numbers_that_are_not_known_are_not_taken_for_zero(inputs: dict[str, Any]) -> None:
    group = resource("aws:eks/nodeGroup:NodeGroup", "gpu", {"instanceTypes": ["g6.xlarge"], **inputs})
    found = cost([provider(), group])
    assert found.pools[0].at_max is None
    assert "not known before `up`" in found.pools[0].note
    assert found.gpus_at_max is None
    assert found.per_gpu_hour is None


def test_types_that_are_not_known_are_said_to_be_so() -> None:
    group = resource("aws:eks/nodeGroup:NodeGroup", "gpu", {"instanceTypes": UNKNOWN, "scalingConfig": {"maxSize": 1}})
    (gpu,) = cost([provider(), group]).pools
    assert gpu.each is None
    assert "type of the machines is not known" in gpu.note


def test_the_number_of_zones_of_an_endpoint_is_known_although_its_subnets_are_not() -> None:
    endpoint = resource(
        "aws:ec2/vpcEndpoint:VpcEndpoint", "sts", {"vpcEndpointType": "Interface", "subnetIds": [UNKNOWN, UNKNOWN]}
    )
    (part,) = cost([provider(), endpoint]).fixed
    assert part.at_max == Usd.exactly(Decimal("0.02"))
    hidden = replace(endpoint, inputs={"vpcEndpointType": "Interface", "subnetIds": UNKNOWN})
    assert cost([provider(), hidden]).fixed[0].at_max is None


@pytest.mark.parametrize(
    ("inputs", "month"),
    [
        ({"deploymentType": "PERSISTENT_2", "perUnitStorageThroughput": 125.0, "storageCapacity": 1200.0}, "174.00"),
        ({"deploymentType": "SCRATCH_2", "storageCapacity": 2400.0}, "336.00"),
        ({"deploymentType": "PERSISTENT_1", "perUnitStorageThroughput": 50.0, "storageCapacity": 1200.0}, None),
        ({"deploymentType": "PERSISTENT_2", "perUnitStorageThroughput": UNKNOWN, "storageCapacity": 1200.0}, None),
        ({"deploymentType": "PERSISTENT_2", "perUnitStorageThroughput": 125.0, "storageCapacity": UNKNOWN}, None),
        (
            {
                "deploymentType": "PERSISTENT_2",
                "perUnitStorageThroughput": 125.0,
                "storageCapacity": 1200.0,
                "storageType": "HDD",
            },
            None,
        ),
    ],
)
def test_lustre_costs_by_size_kind_and_throughput(inputs: dict[str, Any], month: str | None) -> None:
    (part,) = cost([provider(), resource("aws:fsx/lustreFileSystem:LustreFileSystem", "data", inputs)]).fixed
    assert part.month == (None if month is None else Usd.exactly(Decimal(month)))


BLOCK = resource(
    "kubernetes:storage.k8s.io/v1:StorageClass",
    "block",
    {
        "metadata": {"name": "block", "annotations": {"storageclass.kubernetes.io/is-default-class": "true"}},
        "provisioner": "ebs.csi.aws.com",
    },
)


@pytest.mark.parametrize(
    ("spec", "month"),
    [
        ({"storageClassName": "block"}, "8.00"),
        ({}, "8.00"),  # the default class
        ({"storageClassName": "files"}, None),
        ({"storageClassName": "", "volumeName": "lustre"}, None),
        ({"storageClassName": "", "volumeName": UNKNOWN}, None),  # a volume that is made in the same run
        ({"volumeName": UNKNOWN}, None),
        ({"storageClassName": UNKNOWN}, None),
    ],
)
def test_a_claim_costs_only_where_a_volume_is_made_for_it(spec: dict[str, Any], month: str | None) -> None:
    claim = {"spec": {"resources": {"requests": {"storage": "100Gi"}}, **spec}}
    found = cost([provider(), BLOCK, resource("kubernetes:core/v1:PersistentVolumeClaim", "data", claim)])
    assert [part.month for part in found.fixed] == ([Usd.exactly(Decimal(month))] if month else [])
    unknown = spec.get("storageClassName") is UNKNOWN
    assert ("volumes of data" in {one.what for one in found.not_counted}) is unknown


@pytest.mark.parametrize(
    ("wanted", "gib"), [("1Ti", 1024), ("512Mi", "0.5"), ("1073741824", 1), ("x", None), (None, None)]
)
def test_sizes_of_volumes_are_read_as_kubernetes_writes_them(wanted: object, gib: object) -> None:
    claims = [{"spec": {"resources": {"requests": {"storage": wanted}}}}]
    etcd = resource(
        "kubernetes:apps/v1:StatefulSet", "etcd", {"spec": {"replicas": 2.0, "volumeClaimTemplates": claims}}
    )
    (part,) = cost([provider(), BLOCK, etcd]).fixed
    assert part.month == (None if gib is None else Usd.exactly(Decimal("0.08") * Decimal(str(gib)) * 2))


def test_an_old_kubernetes_costs_more() -> None:
    old = resource("aws:eks/cluster:Cluster", "cluster", {"version": "1.30", "name": "c"})
    new = resource("aws:eks/cluster:Cluster", "cluster", {"version": "1.36", "name": "c"})
    assert cost([provider(), old]).at_max.usd == Usd.exactly(Decimal("0.60"))
    assert "extended support" in cost([provider(), old]).fixed[0].note
    assert cost([provider(), new]).at_max.usd == Usd.exactly(Decimal("0.10"))


def test_disks_that_have_no_price_in_the_table_are_listed_instead_of_guessed() -> None:
    template, group = pool("gpu", "g6.xlarge")
    fast = {"volumeType": "gp3", "volumeSize": 100.0, "iops": 16000.0}
    for ebs in (fast, {"volumeType": "io2", "volumeSize": 100.0}, {"volumeType": "gp3"}):
        changed = replace(template, inputs={"blockDeviceMappings": [{"ebs": ebs}]})
        found = cost([provider(), changed, group])
        assert not found.fixed
        assert "disks of gpu" in {one.what for one in found.not_counted}


def test_a_reserved_block_is_paid_for_whatever_runs_in_it() -> None:
    (gpu,) = cost([provider("us-east-1"), *pool("gpu", "p5en.48xlarge", capacity="CAPACITY_BLOCK", high=2.0)]).pools
    assert gpu.at_min == gpu.at_max == Usd.exactly(Decimal("45.768") * 2)
    assert gpu.month == Usd.exactly(Decimal("45.768") * 2 * 730)


def test_the_type_may_stand_in_the_launch_template_whose_id_is_not_known_yet() -> None:
    template, group = pool("gpu", "g6.xlarge", launchTemplate={"id": UNKNOWN, "version": UNKNOWN})
    template = replace(template, inputs={**template.inputs, "instanceType": "p5.48xlarge"}, id="")
    group = replace(group, inputs={key: value for key, value in group.inputs.items() if key != "instanceTypes"})
    (gpu,) = cost([provider(), template, group]).pools
    assert gpu.types == ("p5.48xlarge",)
    assert gpu.at_max == Usd.exactly(Decimal("55.04") * 4)


def test_a_type_that_the_table_does_not_know_is_listed() -> None:
    found = cost([provider(), resource("aws:rds/instance:Instance", "books")])
    assert ("aws:rds/instance:Instance", "the price table does not know this type") in {
        (one.what, one.reason) for one in found.not_counted
    }


def test_nothing_costs_nothing() -> None:
    found = cost([])
    assert found.month.shown() == "0.00"
    assert found.not_counted == ()
    assert found.per_gpu_hour is None
    assert found.stale(date(2030, 1, 1)) is None


@pytest.mark.parametrize("wrong", [Decimal("-0.1"), Decimal("1.1"), Decimal("nan")])
def test_a_utilisation_is_a_share(wrong: Decimal) -> None:
    with pytest.raises(ValueError, match="share of the time"):
        cost([], utilisation=wrong)


# --- dates ------------------------------------------------------------------------------------------------------------


def test_old_prices_are_said_to_be_old(dev_resources: tuple[Resource, ...]) -> None:
    found = cost(dev_resources)
    oldest = found.dates[0]
    assert found.stale(oldest + timedelta(days=90)) is None
    warning = found.stale(oldest + timedelta(days=91))
    assert warning is not None
    assert str(oldest) in warning
    assert "--region us-east-2" in warning


def test_the_document_has_money_as_text_and_null_for_what_is_unknown(prod_resources: tuple[Resource, ...]) -> None:
    told = document(cost(prod_resources))
    assert told["usd_per_month"]["without"] == ["gpu-block"]
    block = next(one for one in told["pools"] if one["name"] == "gpu-block")
    assert block["usd_per_hour_each"] is None
    assert block["usd_per_month"] is None
    spot = next(one for one in told["pools"] if one["name"] == "gpu-spot")
    assert spot["usd_per_hour_each"] == {"low": "11.25", "high": "11.99"}
    assert told["utilisation"] == "0.5"
    assert told["usd_per_month"]["usd"] == {"low": "37441.66", "high": "39633.996"}
    assert all(one["source"].startswith("AWS") for one in told["fixed"])


# --- properties -------------------------------------------------------------------------------------------------------

TYPES = ["g6.xlarge", "g5.xlarge", "p5.48xlarge", "m7i.large"]
UNPRICED = ["x9.large", "p5e.48xlarge"]


@st.composite
def pools(draw: st.DrawFn, types: list[str]) -> tuple[tuple[Resource, ...], ...]:
    """Up to four pools."""
    made = []
    for index in range(draw(st.integers(0, 4))):
        low = draw(st.integers(0, 5))
        made.append(
            pool(
                f"pool-{index}",
                *draw(st.lists(st.sampled_from(types), min_size=1, max_size=2, unique=True)),
                low=float(low),
                high=float(low + draw(st.integers(0, 20))),
                capacity=draw(st.sampled_from(["ON_DEMAND", "SPOT", "CAPACITY_BLOCK"])),
                gib=draw(st.sampled_from([None, 20.0, 500.0])),
            )
        )
    return tuple(made)


SHARES = st.decimals(0, 1, places=3)


def reckon(made: tuple[tuple[Resource, ...], ...], share: Decimal = Decimal("0.5")) -> Cost:
    return cost([provider(), *(one for group in made for one in group)], utilisation=share)


def totals(found: Cost) -> tuple[Total, Total, Total]:
    return found.at_min, found.at_max, found.month


@given(pools([*TYPES, *UNPRICED]), SHARES)
def test_another_pool_never_makes_a_stack_cheaper(made: tuple[tuple[Resource, ...], ...], share: Decimal) -> None:
    for count in range(len(made)):
        for less, more in zip(
            totals(reckon(made[:count], share)), totals(reckon(made[: count + 1], share)), strict=True
        ):
            assert more.usd.low >= less.usd.low - TINY
            assert more.usd.high >= less.usd.high - TINY
            assert set(less.without) <= set(more.without)


@given(pools(TYPES), SHARES)
def test_a_month_lies_between_the_fewest_and_the_most_machines(
    made: tuple[tuple[Resource, ...], ...], share: Decimal
) -> None:
    found = reckon(made, share)
    assert found.at_min.usd.low * 730 - TINY <= found.month.usd.low <= found.at_max.usd.low * 730 + TINY
    assert found.at_min.usd.high * 730 - TINY <= found.month.usd.high <= found.at_max.usd.high * 730 + TINY


@given(pools([*TYPES, *UNPRICED]), pools([*TYPES, *UNPRICED]))
def test_the_difference_is_after_less_before(
    first: tuple[tuple[Resource, ...], ...], second: tuple[tuple[Resource, ...], ...]
) -> None:
    before, after = reckon(first), reckon(second)
    found = delta(before, after)
    assert found.month.usd == after.month.usd - before.month.usd
    assert found.at_max.usd == after.at_max.usd - before.at_max.usd
    assert set(found.month.without) == {*before.month.without, *after.month.without}
    # what the changed parts differ by is the whole difference, where everything is known
    parts = [change.month for change in found.changes]
    if not found.month.without:
        assert sum((part.low for part in parts if part), Decimal(0)).quantize(CENT) == found.month.usd.low.quantize(
            CENT
        )


@given(pools([*TYPES, *UNPRICED]))
def test_the_same_stack_twice_differs_in_nothing(made: tuple[tuple[Resource, ...], ...]) -> None:
    found = delta(reckon(made), reckon(made))
    assert found.changes == ()
    assert found.month.usd == Usd(Decimal(0), Decimal(0))


@given(pools([*TYPES, *UNPRICED]))
def test_what_the_table_does_not_have_is_never_a_figure(made: tuple[tuple[Resource, ...], ...]) -> None:
    nothing = PriceTable({}, {})
    found = cost([provider(), *(one for group in made for one in group)], prices=nothing)
    assert all(part.at_min is part.at_max is part.month is None for part in found.parts)
    assert found.month.shown() == ("unknown" if found.parts else "0.00")


def test_prices_of_somebody_else_can_be_given() -> None:
    free = ServicePrice("eks-control-plane", Decimal("0.42"), "hour", date(2026, 1, 1), "a contract", unconfirmed=False)
    table = PriceTable({}, {("eks-control-plane", "*"): free})
    found = cost([resource("aws:eks/cluster:Cluster", "c", {"version": "1.36"})], prices=table)
    assert found.at_max.usd == Usd.exactly(Decimal("0.42"))
    assert found.fixed[0].source == "a contract"
