"""Labels, taints and tolerations agree, because one place decides them."""

from __future__ import annotations

import botocore.session
import yaml
from hypothesis import given
from hypothesis import strategies as st

from infra.clusters import CHECKOUT
from infra.settings import NodePool, read_stack_file
from infra.settings.aws import AwsNodePool
from infra.wiring.scheduling import (
    GPU_TAINT,
    SPOT_TAINT,
    Taint,
    labels_of,
    node_agent_tolerations,
    taints_of,
    tolerations_for,
)

pools = st.builds(
    NodePool,
    name=st.sampled_from(["a", "b", "c"]),
    nodes=st.integers(0, 3),
    gpus_per_node=st.sampled_from([0, 1, 8]),
    capacity=st.sampled_from(["spot", "on-demand"]),
)


def tolerates(tolerations: list[dict[str, str]], taint: dict[str, str]) -> bool:
    """Kubernetes' own rule for operator Equal."""
    return any(
        t["key"] == taint["key"] and t["value"] == taint["value"] and t["effect"] == taint["effect"]
        for t in tolerations
    )


@given(st.lists(pools, max_size=4))
def test_what_may_run_on_pools_tolerates_every_taint_of_them(some: list[NodePool]) -> None:
    tolerations = tolerations_for(some)
    assert all(tolerates(tolerations, taint.as_kubernetes()) for pool in some for taint in taints_of(pool))


@given(pools, pools)
def test_a_workload_of_one_pool_is_kept_out_of_pools_with_other_taints(own: NodePool, other: NodePool) -> None:
    extra = set(taints_of(other)) - set(taints_of(own))
    tolerations = tolerations_for([own])
    assert not any(tolerates(tolerations, taint.as_kubernetes()) for taint in extra)


def test_a_spot_gpu_pool_is_labelled_and_tainted_as_such() -> None:
    pool = NodePool(name="cheap", gpus_per_node=8, capacity="spot")
    assert labels_of(pool) == {
        "trainyard.dev/pool": "cheap",
        "trainyard.dev/capacity": "spot",
        "nvidia.com/gpu.present": "true",
    }
    assert [taint.key for taint in taints_of(pool)] == ["nvidia.com/gpu", "trainyard.dev/spot"]


def test_a_plain_pool_takes_everything() -> None:
    assert taints_of(NodePool(name="system")) == ()


def test_the_example_job_tolerates_every_gpu_pool_of_the_local_stack() -> None:
    settings = read_stack_file(CHECKOUT / "Pulumi.local.yaml", "local")
    job = yaml.safe_load((CHECKOUT / "training/examples/digits.yaml").read_text())
    tolerations = job["spec"]["replicaSpecs"]["Worker"]["template"]["spec"]["tolerations"]
    assert tolerations == tolerations_for(pool for pool in settings.node_pools if pool.gpus_per_node)


# --- AWS ---


def aws_pool(capacity: str) -> AwsNodePool:
    return AwsNodePool.model_validate({"name": "p5", "types": ["p5.48xlarge"], "capacity": capacity})


def test_taints_are_spelled_as_each_reader_wants_them() -> None:
    assert GPU_TAINT.as_kubernetes()["effect"] == "NoSchedule"
    assert GPU_TAINT.as_eks() == {"key": "nvidia.com/gpu", "value": "present", "effect": "NO_SCHEDULE"}
    assert SPOT_TAINT.as_eks() == {"key": "trainyard.dev/spot", "value": "true", "effect": "NO_SCHEDULE"}


def test_eks_knows_the_spelling_of_every_effect() -> None:
    allowed = botocore.session.get_session().get_service_model("eks").shape_for("TaintEffect").enum
    effects = ("NoSchedule", "PreferNoSchedule", "NoExecute")
    assert {Taint("k", "v", effect).as_eks()["effect"] for effect in effects} == set(allowed)


def test_reserved_capacity_is_not_reclaimed_and_bears_no_spot_taint() -> None:
    assert taints_of(aws_pool("spot")) == (GPU_TAINT, SPOT_TAINT)
    assert [taints_of(aws_pool(each)) for each in ("on-demand", "odcr", "capacity-block")] == [(GPU_TAINT,)] * 3


def test_the_gpus_of_an_aws_pool_are_those_of_its_type() -> None:
    assert labels_of(aws_pool("odcr")) == {
        "trainyard.dev/pool": "p5",
        "trainyard.dev/capacity": "odcr",
        "nvidia.com/gpu.present": "true",
    }


def test_node_agents_stay_whatever_value_or_effect_a_taint_has() -> None:
    assert node_agent_tolerations([aws_pool("on-demand"), aws_pool("spot")]) == [
        {"key": "nvidia.com/gpu", "operator": "Exists"},
        {"key": "trainyard.dev/spot", "operator": "Exists"},
    ]
    assert node_agent_tolerations([]) == []
