"""Node groups keep the rules of EKS and EC2: what stands in the launch template, what in the group, what nowhere."""

from __future__ import annotations

import pytest

from infra.catalog.versions import versions
from infra.settings.aws import Aws, AwsNetwork, AwsNodePool, AwsRepair, AwsReservation, AwsSystemPool
from infra.wiring.errors import WiringError
from infra.wiring.pools import PoolPlan, Repair, node_labels, pool_plans, system_plan

ZONE = "us-east-2a"
RESERVATION = AwsReservation(id="cr-0123456789abcdef0", start="2027-01-31T11:30:00Z", end="2027-02-07T11:30:00Z")


def aws(*pools: AwsNodePool, **fields: object) -> Aws:
    return Aws.model_validate(
        {"region": "us-east-2", "network": AwsNetwork(zones=(ZONE, "us-east-2b")), "node_pools": pools, **fields}
    )


def plan(**fields: object) -> PoolPlan:
    pool = AwsNodePool.model_validate({"name": "gpu", "types": ("p5.48xlarge",), "efa": True, "zone": ZONE, **fields})
    (planned,) = pool_plans(aws(pool), "trainyard-prod")
    return planned


def test_an_on_demand_pool_with_efa_has_all_its_parts_in_accord() -> None:
    made = plan(min=1, max=4)
    assert (made.capacity_type, made.market, made.reservation_id) == ("ON_DEMAND", None, None)
    assert (made.instance_types, made.type_in_template) == (("p5.48xlarge",), False)
    assert (made.min, made.max, made.desired, made.zone) == (1, 4, 1, ZONE)
    assert sum(each.kind == "efa-only" for each in made.interfaces) == 32
    assert made.placement.name == "trainyard-prod-gpu"
    assert made.tags["k8s.io/cluster-autoscaler/node-template/resources/vpc.amazonaws.com/efa"] == "32"
    assert made.labels == {
        "trainyard.dev/pool": "gpu",
        "trainyard.dev/capacity": "on-demand",
        "nvidia.com/gpu.present": "true",
        "k8s.amazonaws.com/accelerator": "nvidia-h100",
        "trainyard.dev/efa": "true",
    }
    assert [taint.as_eks() for taint in made.taints] == [
        {"key": "nvidia.com/gpu", "value": "present", "effect": "NO_SCHEDULE"}
    ]


def test_a_spot_pool_is_spot_in_the_group_and_nowhere_in_the_template() -> None:
    made = plan(capacity="spot", types=("g6.xlarge", "g5.xlarge"), efa=False, zone=None)
    assert (made.capacity_type, made.market, made.type_in_template) == ("SPOT", None, False)
    assert [taint.as_eks()["key"] for taint in made.taints] == ["nvidia.com/gpu", "trainyard.dev/spot"]
    assert made.placement.kind == "none"


def test_the_autoscaler_waits_for_gpus_also_in_a_pool_of_several_kinds() -> None:
    labels = plan(types=("g6.xlarge", "g5.xlarge"), efa=False, zone=None).labels
    assert labels["k8s.amazonaws.com/accelerator"] == "nvidia"


def test_a_capacity_block_has_type_market_and_reservation_in_the_template_and_no_machine_before_it_begins() -> None:
    made = plan(capacity="capacity-block", reservation=RESERVATION, max=8)
    assert (made.capacity_type, made.market, made.type_in_template) == ("CAPACITY_BLOCK", "capacity-block", True)
    assert (made.reservation_id, made.zone) == (RESERVATION.id, ZONE)
    assert (made.min, made.desired, made.max) == (0, 0, 8)
    assert made.placement.kind == "none"
    assert [taint.key for taint in made.taints] == ["nvidia.com/gpu"]


def test_an_odcr_is_a_target_of_on_demand_machines_without_a_group() -> None:
    made = plan(capacity="odcr", reservation=AwsReservation(id=RESERVATION.id), min=2)
    assert (made.capacity_type, made.market, made.reservation_id) == ("ON_DEMAND", None, RESERVATION.id)
    assert (made.placement.kind, made.type_in_template, made.desired) == ("none", False, 2)


@pytest.mark.parametrize(
    ("fields", "limit"),
    [
        ({"min": 2, "max": 8}, 6),
        ({"min": 4, "max": 4}, 1),  # no job can do without a machine: still one, else nothing is ever repaired
        ({"min": 0, "max": 8}, 1),  # a pool that shrinks to nothing does not say how few machines a job can do with
        ({"min": 0, "max": 1}, 1),
        ({"min": 2, "max": 8, "repair": AwsRepair(max_parallel=2)}, 2),
    ],
)
def test_no_more_machines_are_repaired_at_a_time_than_jobs_can_do_without(
    fields: dict[str, object], limit: int
) -> None:
    assert plan(**fields).repair == Repair(enabled=True, max_parallel=limit)


def test_repair_can_be_switched_off() -> None:
    assert not plan(repair=AwsRepair(enabled=False)).repair.enabled


def test_the_disk_is_the_one_on_which_the_operating_system_keeps_images() -> None:
    amazon, bottlerocket = plan(disk_gib=300), plan(operating_system="bottlerocket")
    assert (amazon.root_device, amazon.disk_gib, amazon.ami_type) == ("/dev/xvda", 300, "AL2023_x86_64_NVIDIA")
    assert (bottlerocket.root_device, bottlerocket.ami_type) == ("/dev/xvdb", "BOTTLEROCKET_x86_64_NVIDIA")
    assert (bottlerocket.user_data or "").startswith("[settings.")


def test_the_image_is_pinned_to_the_release_of_the_cluster_s_kubernetes() -> None:
    lock = versions()
    pool = AwsNodePool(name="gpu", types=("g6.xlarge",))
    for minor in lock.kubernetes:
        (made,) = pool_plans(aws(pool, kubernetes_version=minor), "c")
        assert made.release_version.startswith(f"{minor}.")
    (newest,) = pool_plans(aws(pool), "c")
    assert newest.release_version.startswith(f"{lock.default_kubernetes}.")


def test_the_template_of_a_pool_does_not_depend_on_its_size_or_neighbours() -> None:
    small, large = plan(max=2), plan(max=9)
    assert (small.user_data, small.interfaces, small.disk_gib) == (large.user_data, large.interfaces, large.disk_gib)


def test_the_system_pool_is_plain_on_demand_and_open_to_all() -> None:
    made = system_plan(aws(system_pool=AwsSystemPool(min=3, max=5, disk_gib=80)))
    assert made.labels == {"trainyard.dev/pool": "system", "trainyard.dev/capacity": "on-demand"}
    assert (made.name, made.taints, made.tags, made.capacity_type) == ("system", (), {}, "ON_DEMAND")
    assert (made.min, made.desired, made.max, made.disk_gib) == (3, 3, 5, 80)
    assert (made.ami_type, made.user_data) == ("AL2023_x86_64_STANDARD", None)
    assert len(made.interfaces) == made.repair.max_parallel == made.max_unavailable == 1


def test_an_arm_system_pool_gets_an_arm_image() -> None:
    assert system_plan(aws(system_pool=AwsSystemPool(types=("m7g.large",)))).ami_type == "AL2023_ARM_64_STANDARD"


def test_nodes_carry_what_eks_and_the_kubelet_add() -> None:
    labels = node_labels(plan(capacity="spot"), ZONE, cluster="trainyard-prod")
    assert (
        labels.items()
        >= {
            "trainyard.dev/pool": "gpu",
            "eks.amazonaws.com/nodegroup": "trainyard-prod-gpu",
            "eks.amazonaws.com/capacityType": "SPOT",
            "node.kubernetes.io/instance-type": "p5.48xlarge",
            "topology.kubernetes.io/region": "us-east-2",
            "topology.kubernetes.io/zone": ZONE,
            "kubernetes.io/arch": "amd64",
            "kubernetes.io/os": "linux",
        }.items()
    )


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (
            {"types": ("p5en.48xlarge", "p6-b300.48xlarge")},
            r"'gpu': the EFA interfaces of p5en\.48xlarge are laid out differently from those of p6-b300\.48xlarge",
        ),
        (
            {"types": ("p5.48xlarge", "p6e-gb200.36xlarge"), "efa": False},
            r"mixes architectures: p5\.48xlarge \(x86_64\), p6e-gb200\.36xlarge \(arm64\)",
        ),
        (
            {"types": ("p5.48xlarge", "p5e.48xlarge"), "capacity": "capacity-block", "reservation": RESERVATION},
            "pool 'gpu' is a capacity block of 2 types",
        ),
        ({"types": ("g5.xlarge",)}, r"g5\.xlarge has no EFA"),
    ],
)
def test_types_that_one_launch_template_cannot_serve_are_refused(fields: dict[str, object], message: str) -> None:
    with pytest.raises(WiringError, match=message):
        plan(**fields)
