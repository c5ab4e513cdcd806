"""Known-bad combinations: each rule strikes what it is about, and nothing beside it."""

from __future__ import annotations

from collections.abc import Collection

import pytest

from infra.catalog.instance_types import instance_type
from infra.catalog.known_bad import KnownBad, bad_versions, conditions, conditions_of, known_bad
from infra.catalog.ranges import ANY, in_range
from infra.catalog.versions import versions


def ids(component: str, version: str, holds: Collection[str]) -> set[str]:
    return {bad.id for bad in bad_versions(component, version, holds)}


@pytest.mark.parametrize("bad", known_bad(), ids=lambda bad: bad.id)
def test_every_rule_is_whole(bad: KnownBad) -> None:
    assert bad.link.startswith("https://")
    assert bad.effect
    assert bad.reason
    assert not bad.condition or bad.condition in conditions()
    assert in_range("1.0", bad.range) in {True, False}


def test_ids_are_unique_and_no_condition_is_left_over() -> None:
    assert len({bad.id for bad in known_bad()}) == len(known_bad())
    assert {bad.condition for bad in known_bad()} - {""} == set(conditions())


def test_rules_about_parts_of_the_lock_use_its_names() -> None:
    lock = versions()
    elsewhere = {  # not installed by us, or not a part with a version
        *("kubernetes", "nvidia-driver", "al2023-release", "kernel", "gpu-operator-driver", "gpu-machine"),
        *("aws-dranet", "aws-ebs-csi-driver-chart", "karpenter", "placement-group"),
        *("ngc-pytorch", "aws-ofi-nccl", "pod"),
    }
    assert {bad.component for bad in known_bad()} - elsewhere <= {*lock.addons, *lock.charts, *lock.images}
    # A rule without a range on a part of the lock must depend on a condition, or the part could never be used.
    assert all(bad.condition for bad in known_bad() if bad.range == ANY)


@pytest.mark.parametrize(
    ("component", "version", "type_name", "expected"),
    [
        ("nvidia-device-plugin", "v0.19.1", "p5.48xlarge", {"nvidia-plugin-mofed"}),
        ("nvidia-device-plugin", "v0.19.3", "p5.48xlarge", set()),
        ("nvidia-device-plugin", "v0.18.2", "p5.48xlarge", set()),
        ("efa-device-plugin", "v0.5.9", "p6-b200.48xlarge", {"efa-plugin-b200-count"}),
        ("efa-device-plugin", "v0.5.9", "p5.48xlarge", set()),
        ("efa-device-plugin", "v0.5.10", "p6-b200.48xlarge", set()),
        ("vpc-cni", "v1.18.4-eksbuild.1", "g6.8xlarge", {"cni-efa-only"}),
        ("vpc-cni", "v1.7.9-eksbuild.1", "p4d.24xlarge", {"cni-efa-only", "cni-several-efa"}),
        ("vpc-cni", "v1.18.5-eksbuild.1", "p4d.24xlarge", set()),
        ("nvidia-driver", "595.91.07", "p6e-gb200.36xlarge", {"driver-595-grace-efa"}),
        ("nvidia-driver", "595.91.07", "p6-b300.48xlarge", set()),
        ("ngc-pytorch", "26.07", "p5.48xlarge", {"ngc-pytorch-without-ofi"}),
        ("ngc-pytorch", "26.03", "p5.48xlarge", set()),
    ],
)
def test_a_pool_with_efa_meets_the_rules_about_it(
    component: str, version: str, type_name: str, expected: set[str]
) -> None:
    assert ids(component, version, conditions_of(instance_type(type_name), efa=True)) == expected


def test_without_efa_the_rules_about_efa_are_silent() -> None:
    holds = conditions_of(instance_type("p5.48xlarge"), efa=False)
    assert ids("nvidia-device-plugin", "v0.19.1", holds) == set()
    assert ids("vpc-cni", "v1.16.0-eksbuild.1", holds) == set()
    assert ids("efa-device-plugin", "v0.5.20", holds) == {"efa-plugin-without-efa"}


def test_conditions_that_only_the_caller_knows_are_his_to_name() -> None:
    grace = conditions_of(instance_type("p6e-gb200.36xlarge"), efa=True)
    assert ids("nvidia-driver", "580.159.03", grace) == set()
    assert ids("nvidia-driver", "580.159.03", grace | {"grace-efa-no-override"}) == {"driver-grace-efa-override"}
    assert ids("kubernetes", "1.33", {"dra"}) == {"kubernetes-dra"}
    assert ids("al2023-release", "20261003", {"kernel-6-12"}) == {"al2023-20261003-kernel"}
