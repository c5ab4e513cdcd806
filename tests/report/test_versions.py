"""Moves of versions: what may go on, what needs a hand, what does not work, and what nobody knows."""

from __future__ import annotations

import itertools
from dataclasses import replace
from datetime import date
from typing import Any

import pytest
from report_stacks import resource

from infra.catalog.ranges import in_range, numbers
from infra.catalog.version_moves import MoveRecord, move_record, move_records, numberings
from infra.catalog.versions import versions
from infra.report.components import Component, image
from infra.report.inputs import NODE_GROUP, POOL_LABEL
from infra.report.preview import UNKNOWN, Resource
from infra.report.versions import Move, document, judge, moves

pytest_plugins = ["report_stacks_fixture"]


def verdict(name: str, old: str, new: str, kubernetes: str = "1.36") -> str:
    return judge(Component(name, "here", old), Component(name, "here", new), kubernetes).verdict


@pytest.mark.parametrize(
    ("name", "old", "new", "wanted"),
    [
        # Kubernetes: one minor at a time, recorded, and never back
        ("kubernetes", "1.34", "1.35", "manual"),
        ("kubernetes", "1.35", "1.36", "manual"),
        ("kubernetes", "1.36", "1.37", "unknown"),
        ("kubernetes", "1.34", "1.36", "blocked"),
        ("kubernetes", "1.36", "1.35", "blocked"),
        ("kubernetes", "1.36", "2.0", "unknown"),
        # charts: 0.x minors and majors need a record
        ("kueue", "0.19.3", "0.19.4", "safe"),
        ("kueue", "0.18.2", "0.19.3", "manual"),
        ("kueue", "0.19.3", "0.20.0", "manual"),
        ("kueue", "0.20.0", "0.21.0", "unknown"),
        ("kueue", "0.18.2", "0.20.0", "unknown"),
        ("kueue", "0.19.3", "0.19.2", "unknown"),
        ("kueue", "0.19.3", "0.18.2", "unknown"),
        ("kube-prometheus-stack", "84.4.0", "85.1.0", "manual"),
        ("kube-prometheus-stack", "84.4.0", "87.0.0", "unknown"),
        ("kube-prometheus-stack", "84.4.0", "83.0.0", "unknown"),
        ("a-chart-of-yours", "1.2.3", "1.2.4", "safe"),
        ("a-chart-of-yours", "1.2.3", "1.4.0", "safe"),
        ("a-chart-of-yours", "1.2.3", "1.9.0", "unknown"),
        ("a-chart-of-yours", "1.2.3", "2.0.0", "unknown"),
        ("a-chart-of-yours", "0.2.3", "0.3.0", "unknown"),
        ("a-chart-of-yours", "latest", "1.0", "unknown"),
        # device plugins
        ("nvidia-device-plugin", "v0.18.0", "v0.19.3", "manual"),
        ("nvidia-device-plugin", "v0.18.0", "v0.19.1", "blocked"),
        ("nvidia-device-plugin", "v0.19.3", "v0.20.1", "manual"),
        ("nvidia-device-plugin", "v0.19.3", "v0.19.1", "unknown"),
        ("efa-device-plugin", "v0.5.20", "v0.5.21", "safe"),
        ("efa-device-plugin", "v0.5.20", "v0.6.0", "unknown"),
        # what follows Kubernetes, whose minor is 1.36 here
        ("cluster-autoscaler", "v1.35.2", "v1.36.1", "safe"),
        ("cluster-autoscaler", "v1.36.1", "v1.37.0", "unknown"),
        ("kube-proxy", "v1.35.3-eksbuild.29", "v1.36.0-eksbuild.25", "safe"),
        ("kube-proxy", "v1.34.3-eksbuild.29", "v1.35.0-eksbuild.25", "unknown"),
        # add-ons
        ("vpc-cni", "v1.22.4-eksbuild.3", "v1.22.4-eksbuild.4", "safe"),
        ("vpc-cni", "v1.22.4-eksbuild.4", "v1.22.4-eksbuild.3", "unknown"),
        ("vpc-cni", "v1.22.4-eksbuild.3", "v1.23.0-eksbuild.1", "safe"),
        ("vpc-cni", "v1.20.4-eksbuild.3", "v1.22.0-eksbuild.1", "manual"),
        ("coredns", "v1.13.2-eksbuild.31", "v1.14.3-eksbuild.23", "safe"),
        # etcd: one minor at a time
        ("etcd", "v3.6.14", "v3.6.15", "safe"),
        ("etcd", "v3.6.14", "v3.7.0", "manual"),
        ("etcd", "v3.5.30", "v3.6.14", "safe"),
        ("etcd", "v3.5.9", "v3.6.14", "blocked"),
        ("etcd", "v3.5.30", "v3.7.0", "blocked"),
        ("etcd", "v3.7.0", "v3.6.14", "manual"),
        ("etcd", "v3.6.14", "v3.5.30", "unknown"),
        # machine images
        ("al2023-release", "1.36.2-20260714", "1.36.3-20260901", "safe"),
        ("al2023-release", "1.35.6-20260714", "1.36.2-20260714", "safe"),
        ("al2023-release", "1.36.2-20260714", "1.36.2-20260601", "unknown"),
        ("al2023-release", "1.36.2-20260714", "1.37.0-20260901", "blocked"),
        ("al2023-release", "1.36.2-20260714", "1.36-new", "unknown"),
        ("bottlerocket-release", "1.66.0-1ad6b4a4", "1.67.0-0ad6b4a4", "safe"),
        ("bottlerocket-release", "1.66.0-1ad6b4a4", "2.0.0-0ad6b4a4", "unknown"),
    ],
)
def test_a_move_has_its_verdict(name: str, old: str, new: str, wanted: str) -> None:
    assert verdict(name, old, new) == wanted


def test_unknown_and_blocked_fail_and_the_others_do_not() -> None:
    assert {
        wanted: judge(Component(name, "here", old), Component(name, "here", new), "1.36").fails
        for name, old, new, wanted in (
            ("etcd", "v3.6.1", "v3.6.2", "safe"),
            ("etcd", "v3.6.1", "v3.7.0", "manual"),
            ("etcd", "v3.5.30", "v3.7.0", "blocked"),
            ("x", "1.0", "2.0", "unknown"),
        )
    } == {"safe": False, "manual": False, "blocked": True, "unknown": True}


def test_what_needs_a_hand_says_what_to_do_and_where_that_comes_from() -> None:
    move = judge(Component("kueue", "release kueue", "0.18.2"), Component("kueue", "release kueue", "0.19.3"))
    assert move.steps
    assert move.source.startswith("https://")
    assert move.checked is not None


def test_the_group_of_a_capacity_block_is_updated_only_while_it_is_empty() -> None:
    old = Component("al2023-release", "gpu-block", "1.36.2-20260714", empty_only=True)
    move = judge(old, replace(old, version="1.36.3-20260901"), "1.36")
    assert move.verdict == "manual"
    assert "no machine" in move.reason


def test_without_a_cluster_it_is_unknown_whether_something_fits_it() -> None:
    assert verdict("cluster-autoscaler", "v1.35.2", "v1.36.1", kubernetes="") == "unknown"


# --- from resources ---------------------------------------------------------------------------------------------------


def addon(name: str, version: object) -> Resource:
    return resource("aws:eks/addon:Addon", name, {"addonName": name, "addonVersion": version})


def daemon_set(name: str, reference: object) -> Resource:
    pod = {"template": {"spec": {"containers": [{"name": name, "image": reference}]}}}
    return resource("kubernetes:apps/v1:DaemonSet", name, {"spec": pod})


def test_nothing_moves_in_a_new_stack_in_the_same_stack_and_in_one_that_goes(
    prod_resources: tuple[Resource, ...],
) -> None:
    assert moves((), prod_resources) == ()
    assert moves(prod_resources, prod_resources) == ()
    assert moves(prod_resources, ()) == ()


def test_the_same_move_of_several_pools_is_one(prod_resources: tuple[Resource, ...]) -> None:
    older = tuple(
        replace(one, inputs={**one.inputs, "releaseVersion": "1.36.1-20260601"}) if one.kind == "NodeGroup" else one
        for one in prod_resources
    )
    found = {(move.verdict, move.where) for move in moves(older, prod_resources)}
    assert found == {("manual", ("gpu-block",)), ("safe", ("gpu-spot", "system"))}


def group(name: str, release: str) -> Resource:
    inputs = {"labels": {POOL_LABEL: "gpu"}, "amiType": "AL2023_x86_64_NVIDIA", "releaseVersion": release}
    return resource(NODE_GROUP, name, inputs)


OLDER, NEWER, BROKEN = "1.36.1-20260601", "1.36.2-20260714", "newest"


def test_none_of_two_groups_of_one_label_hides_the_move_of_the_other() -> None:
    before = (group("first", OLDER), group("second", OLDER))
    for after in itertools.permutations((group("first", BROKEN), group("second", NEWER))):
        found = {(move.verdict, move.new): move.where for move in moves(before, after)}
        assert found == {("unknown", BROKEN): ("gpu",), ("safe", NEWER): ("gpu",)}
    (only,) = moves(before, (group("first", NEWER), group("second", OLDER)))
    assert (only.old, only.new, only.where) == (OLDER, NEWER, ("gpu",))


def test_a_group_that_takes_the_place_of_another_is_a_move_and_one_more_is_none() -> None:
    (move,) = moves((group("first", OLDER),), (group("second", NEWER),))
    assert move.where == ("gpu",)
    assert moves((group("first", OLDER),), (group("second", NEWER), group("first", OLDER))) == ()
    assert moves((group("second", NEWER), group("first", OLDER)), (group("first", OLDER),)) == ()


def test_a_new_minor_of_kubernetes_with_all_that_belongs_to_it_is_judged_together(
    prod_resources: tuple[Resource, ...],
) -> None:
    lock = versions()

    def older(one: Resource) -> Resource:
        match one.kind:
            case "Cluster" if one.type.startswith("aws:"):
                return replace(one, inputs={**one.inputs, "version": "1.35"})
            case "Addon":
                version = lock.addon(one.inputs["addonName"], "1.35")
                return replace(one, inputs={**one.inputs, "addonVersion": version})
            case "NodeGroup":
                return replace(one, inputs={**one.inputs, "version": "1.35", "releaseVersion": "1.35.6-20260714"})
            case "Deployment" if one.name == "cluster-autoscaler":
                container = {"name": "a", "image": lock.image("cluster-autoscaler", kubernetes="1.35")}
                return replace(one, inputs={"spec": {"template": {"spec": {"containers": [container]}}}})
        return one

    found = moves(tuple(older(one) for one in prod_resources), prod_resources)
    verdicts = {(move.component, move.verdict) for move in found}
    assert verdicts == {
        ("kubernetes", "manual"),
        ("kube-proxy", "safe"),
        ("coredns", "safe"),
        ("cluster-autoscaler", "safe"),
        ("al2023-release", "safe"),
        ("al2023-release", "manual"),
    }
    assert not any(move.fails for move in found)
    assert found[0].verdict == "manual"  # the worst first


def test_the_worst_comes_first() -> None:
    before = (addon("vpc-cni", "v1.21.0"), addon("x", "1.0"), daemon_set("etcd", "quay.io/coreos/etcd:v3.5.1"))
    after = (addon("vpc-cni", "v1.22.0"), addon("x", "2.0"), daemon_set("etcd", "quay.io/coreos/etcd:v3.6.1"))
    assert [move.verdict for move in moves(before, after)] == ["blocked", "unknown", "safe"]


@pytest.mark.parametrize("hostile", [UNKNOWN, None, 7, ["v1"], {"a": 1}, ""])
def test_versions_that_are_not_known_are_no_move(hostile: Any) -> None:
    before, after = (addon("vpc-cni", "v1.21.0"),), (addon("vpc-cni", hostile), daemon_set("x", hostile))
    assert moves(before, after) == ()


def test_another_digest_of_the_same_version_is_not_taken_for_the_same() -> None:
    before = daemon_set("etcd", f"quay.io/coreos/etcd:v3.6.14@sha256:{'1' * 64}")
    after = daemon_set("etcd", f"quay.io/coreos/etcd:v3.6.14@sha256:{'2' * 64}")
    (move,) = moves((before,), (after,))
    assert move.verdict == "unknown"
    assert move.old != move.new
    # to name the digest of what is there is no move
    assert moves((daemon_set("etcd", "quay.io/coreos/etcd:v3.6.14"),), (after,)) == ()


@pytest.mark.parametrize(
    ("reference", "wanted"),
    [
        ("quay.io/coreos/etcd:v3.6.14", ("etcd", "v3.6.14", "")),
        ("nvcr.io/nvidia/k8s-device-plugin:v0.19.3@sha256:25", ("nvidia-device-plugin", "v0.19.3", "sha256:25")),
        ("localhost:5000/trainyard/controller", None),
        ("trainyard/controller:local", None),
        ("registry.example/controller@sha256:11", None),
        ("", None),
    ],
)
def test_an_image_tells_name_version_and_digest(reference: str, wanted: tuple[str, str, str] | None) -> None:
    assert image(reference) == wanted


def test_a_move_is_plain_data(prod_resources: tuple[Resource, ...]) -> None:
    move = judge(Component("kueue", "release kueue", "0.18.2"), Component("kueue", "release kueue", "0.19.3"))
    told = document(move)
    assert told["where"] == ["release kueue"]
    assert told["fails"] is False
    assert date.fromisoformat(told["checked"])
    assert isinstance(move, Move)


# --- the records ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("record", move_records(), ids=lambda one: f"{one.component} {one.from_range} {one.to_range}")
def test_every_record_has_its_reason_source_and_date(record: MoveRecord) -> None:
    assert record.reason
    assert record.source.startswith("https://")
    assert date(2026, 1, 1) <= record.checked <= date.today()  # noqa: DTZ011 - a day of slack does no harm
    assert (record.verdict == "manual") == bool(record.steps)
    in_range("1.0", record.from_range)
    in_range("1.0", record.to_range)


def test_every_component_of_the_records_is_in_the_version_lock() -> None:
    lock = versions()
    known = {"kubernetes", *lock.addons, *lock.charts, *lock.images}
    assert {record.component for record in move_records()} | set(numberings()) <= known


def test_every_supported_minor_of_kubernetes_can_be_reached_from_the_one_before() -> None:
    minors = versions().kubernetes
    for old, new in itertools.pairwise(minors):
        assert move_record("kubernetes", old, new) is not None


def test_whoever_moves_to_what_the_lock_has_finds_a_record() -> None:
    """The chart and the plugins of 0.x: from the minor before the locked one there is a way that somebody has read."""
    lock = versions()
    for name, version in (
        ("kueue", lock.chart("kueue").version),
        ("nvidia-device-plugin", str(image(lock.image("nvidia-device-plugin")) and "0.19.3")),
    ):
        major, minor, *_ = numbers(version)
        assert move_record(name, f"{major}.{minor - 1}.0", version) is not None
