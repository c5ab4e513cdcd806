"""Where each pod of the platform would run: every pod template of the program is placed by the pure scheduler.

The same pods meet the real scheduler in tests/end_to_end/test_rehearsal.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from recorded_program import Recorded

from infra.clusters import CHECKOUT
from infra.settings import read_stack_file
from infra.wiring.job_resources import standard_job
from infra.wiring.naming import cluster_name
from infra.wiring.placing import Fit, NodeKind, fits, node_kinds, pod_of, with_agents

pytest_plugins = ["stacks_fixture"]

SYSTEM = ("system",)
WORKLOADS = {"Deployment", "StatefulSet", "DaemonSet", "Job", "CronJob"}

# Every workload of the program, and the pools on which its pods can run: these and no others.
INTENDED: Mapping[str, Mapping[str, tuple[str, ...]]] = {
    "dev": {
        "elastic-controller": SYSTEM,
        "etcd": SYSTEM,
        "etcd-authentication": SYSTEM,
        "etcd-certificates": SYSTEM,
        "etcd-upkeep": SYSTEM,
        "cluster-autoscaler": SYSTEM,
        "nvidia-device-plugin": ("gpu-spot",),
        "dcgm-exporter": ("gpu-spot",),
    },
    "prod": {
        "elastic-controller": SYSTEM,
        "etcd": SYSTEM,
        "etcd-authentication": SYSTEM,
        "etcd-certificates": SYSTEM,
        "etcd-upkeep": SYSTEM,
        "cluster-autoscaler": SYSTEM,
        "nvidia-device-plugin": ("gpu-block", "gpu-spot"),
        "efa-device-plugin": ("gpu-block", "gpu-spot"),
        "dcgm-exporter": ("gpu-block", "gpu-spot"),
    },
}


def templates(recorded: Recorded, *kinds: str) -> dict[str, dict[str, Any]]:
    """Pod specs by the name of their workload."""
    found = {}
    for each in recorded.resources:
        kind = each.type.rsplit(":", 1)[-1]
        if each.type.startswith("kubernetes:") and kind in kinds:
            spec = each.inputs["spec"]
            spec = spec["jobTemplate"]["spec"] if kind == "CronJob" else spec
            found[each.name] = spec["template"]["spec"]
    return found


def nodes_of(stack: str) -> tuple[NodeKind, ...]:
    settings = read_stack_file(CHECKOUT / f"Pulumi.{stack}.yaml", stack)
    assert settings.aws is not None
    return node_kinds(settings.aws, cluster_name(settings, stack))


@pytest.mark.parametrize("stack", INTENDED)
def test_every_pod_of_the_platform_lands_on_exactly_the_intended_pools(
    stack: str, request: pytest.FixtureRequest
) -> None:
    recorded: Recorded = request.getfixturevalue(stack)
    agents = [pod_of(spec, name=name) for name, spec in templates(recorded, "DaemonSet").items()]
    machines = nodes_of(stack)
    landed: dict[str, Fit] = {}
    for name, spec in templates(recorded, *WORKLOADS).items():
        is_agent = name in {agent.name for agent in agents}
        landed[name] = fits(pod_of(spec, name=name), machines if is_agent else with_agents(machines, agents))
    assert {name: fit.pools for name, fit in landed.items()} == INTENDED[stack]


@pytest.mark.parametrize("stack", INTENDED)
def test_a_worker_finds_room_beside_the_agents_of_its_machine_and_nowhere_else(
    stack: str, request: pytest.FixtureRequest
) -> None:
    settings = read_stack_file(CHECKOUT / f"Pulumi.{stack}.yaml", stack)
    assert settings.aws is not None
    recorded: Recorded = request.getfixturevalue(stack)
    agents = [pod_of(spec, name=name) for name, spec in templates(recorded, "DaemonSet").items()]
    left = with_agents(nodes_of(stack), agents)
    for pool in settings.aws.node_pools:
        job = standard_job(
            pool,
            name="train",
            image="training",
            namespace=settings.namespace,
            rdzv_endpoint="etcd.trainyard-system:2379",
            workers_min=1,
            workers_max=pool.max,
        )
        fit = fits(pod_of(job["spec"]["replicaSpecs"]["Worker"]["template"]["spec"]), left)
        assert fit.pools == (pool.name,), fit.reasons
