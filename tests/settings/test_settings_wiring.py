"""Settings that are accepted can be wired: no pool, network or volume of theirs is refused later."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

from infra.catalog.instance_types import instance_types
from infra.clusters import CHECKOUT
from infra.settings import SettingsError, from_engine, read_stack_file
from infra.wiring.network import subnets_of
from infra.wiring.pools import pool_plans, system_plan
from infra.wiring.storage import storage_of

ZONES = ["us-east-2a", "us-east-2b", "us-east-2c", "us-east-2g", "us-east-2h"]
GPU_TYPES = [name for name, each in instance_types().items() if each.has_gpu]


@st.composite
def pools(draw: st.DrawFn) -> dict[str, Any]:
    """Pools, most of which are right: what a capacity needs is there, and EFA where the first type has it."""
    types = draw(st.lists(st.sampled_from(GPU_TYPES), min_size=1, max_size=2, unique=True))
    first = instance_types()[types[0]]
    capacity = draw(st.sampled_from(first.capacities))
    pool: dict[str, Any] = {"types": types, "capacity": capacity, "efa": draw(st.booleans()) and first.efa > 0}
    if capacity in ("odcr", "capacity-block"):
        pool |= {"types": types[:1], "reservation": {"id": "cr-0123456789abcdef0"}}
    if capacity == "capacity-block":
        pool["reservation"] |= {"start": "2027-01-11T11:30:00Z", "end": "2027-01-25T11:30:00Z"}
    else:
        pool["min"] = draw(st.integers(0, 4))
    zones = st.sampled_from(ZONES[:2])
    if zone := draw(zones if pool["efa"] or "reservation" in pool else st.none() | zones):
        pool["zone"] = zone
    placement = draw(st.sampled_from(["auto", "none", "existing"]))
    pool |= {"placement": placement} | ({"placementGroup": "mine"} if placement == "existing" else {})
    return pool | {"operatingSystem": draw(st.sampled_from(["al2023", "bottlerocket"]))}


networks = st.fixed_dictionaries(
    {"zones": st.just(ZONES[:2]) | st.lists(st.sampled_from(ZONES), max_size=4)},
    optional={
        "cidr": st.sampled_from(["10.0.0.0/16", "172.16.0.0/20", "192.168.4.0/22", "10.0.0.0/23"]),
        "natGateways": st.sampled_from(["none", "single", "one-per-zone"]),
        "endpoints": st.booleans(),
    },
)
systems = st.sampled_from([["m7i.large"], ["m7g.xlarge"], ["m7i.large", "m6i.large"], ["m7i.large", "m7g.large"]])


@settings(max_examples=200, deadline=None)
@given(pool=pools(), network=networks, system=systems)
def test_what_is_accepted_can_be_wired(pool: dict[str, Any], network: dict[str, Any], system: list[str]) -> None:
    aws = {
        "region": "us-east-2",
        "network": network,
        "systemPool": {"types": system},
        "nodePools": [{"name": "gpu"} | pool],
    }
    images = {"controller": "registry.example/c:1", "etcd": "registry.example/e:1"}
    told = {"trainyard:target": "aws", "trainyard:aws": json.dumps(aws), "trainyard:images": json.dumps(images)}
    try:
        accepted = from_engine(told, "dev")
    except SettingsError:
        event("refused")
        return
    event("accepted")
    assert accepted.aws is not None
    (plan,) = pool_plans(accepted.aws, "trainyard-dev")
    assert plan.efa == pool["efa"]
    assert system_plan(accepted.aws).ami_type
    assert len(subnets_of(accepted.aws.network).private) == len(network["zones"])
    assert storage_of(accepted).checkpoints.size == "10Gi"


@pytest.mark.parametrize("stack", ["dev", "prod"])
def test_the_example_stacks_can_be_wired(stack: str) -> None:
    example = read_stack_file(CHECKOUT / f"Pulumi.{stack}.yaml", stack)
    assert example.aws is not None
    plans = pool_plans(example.aws, f"trainyard-{stack}")
    assert [plan.capacity_type for plan in plans] == (["SPOT"] if stack == "dev" else ["CAPACITY_BLOCK", "SPOT"])
    assert {plan.efa for plan in plans} == {stack == "prod"}
    assert {(plan.min, plan.desired) for plan in plans} == {(0, 0)}
