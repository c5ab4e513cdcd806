"""Known-bad combinations, found among the resources that would really be created."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from report_stacks import pool, resource

from infra.report.known_bad import document, findings
from infra.report.preview import UNKNOWN, Resource

pytest_plugins = ["report_stacks_fixture"]

EFA = [{"interfaceType": "interface"}, {"interfaceType": "efa-only"}, {"interfaceType": "efa-only"}]


def efa_pool(*types: str, **more: Any) -> tuple[Resource, ...]:
    labels = {"trainyard.dev/pool": "gpu", "trainyard.dev/efa": "true", "nvidia.com/gpu.present": "true"}
    template, group = pool("gpu", *types, labels=labels, amiType="AL2023_x86_64_NVIDIA", **more)
    return replace(template, inputs={**template.inputs, "networkInterfaces": EFA}), group


def plugin(name: str, reference: str, **selector: str) -> Resource:
    spec = {"nodeSelector": selector, "containers": [{"name": name, "image": reference}]}
    return resource("kubernetes:apps/v1:DaemonSet", name, {"spec": {"template": {"spec": spec}}})


def ids(*resources: Resource) -> dict[str, tuple[str, ...]]:
    return {one.id: one.where for one in findings(resources)}


def test_the_example_stacks_have_none(
    dev_resources: tuple[Resource, ...], prod_resources: tuple[Resource, ...]
) -> None:
    assert findings(dev_resources) == ()
    assert findings(prod_resources) == ()


def test_an_nvidia_plugin_that_collides_with_efa_is_found_where_there_is_efa() -> None:
    bad = plugin("nvidia-device-plugin", "nvcr.io/nvidia/k8s-device-plugin:v0.19.1")
    assert ids(bad, *efa_pool("p5.48xlarge")) == {"nvidia-plugin-mofed": ("DaemonSet nvidia-device-plugin",)}
    assert ids(bad, *pool("gpu", "g6.xlarge")) == {}
    good = plugin("nvidia-device-plugin", "nvcr.io/nvidia/k8s-device-plugin:v0.19.3")
    assert ids(good, *efa_pool("p5.48xlarge")) == {}


def test_an_efa_plugin_on_machines_without_efa_is_found_and_one_on_efa_machines_alone_is_right() -> None:
    everywhere = plugin("efa", "x/eks/aws-efa-k8s-device-plugin:v0.5.20")
    selecting = plugin("efa", "x/eks/aws-efa-k8s-device-plugin:v0.5.20", **{"trainyard.dev/efa": "true"})
    machines = (*efa_pool("p5.48xlarge"), *pool("system", "m7i.large", labels={"trainyard.dev/pool": "system"}))
    assert ids(everywhere, *machines) == {"efa-plugin-without-efa": ("DaemonSet efa",)}
    assert ids(selecting, *machines) == {}


def test_an_old_efa_plugin_on_b200_is_found() -> None:
    old = plugin("efa", "x/eks/aws-efa-k8s-device-plugin:v0.5.9")
    assert "efa-plugin-b200-count" in ids(old, *efa_pool("p6-b200.48xlarge"))
    assert "efa-plugin-b200-count" not in ids(old, *efa_pool("p5.48xlarge"))


def test_an_old_network_add_on_is_found_where_there_are_efa_only_interfaces() -> None:
    old = resource("aws:eks/addon:Addon", "cni", {"addonName": "vpc-cni", "addonVersion": "v1.18.3-eksbuild.1"})
    assert ids(old, *efa_pool("p5.48xlarge")) == {"cni-efa-only": ("add-on",)}
    assert ids(old, *pool("gpu", "g6.xlarge")) == {}


def test_the_release_that_panics_is_found_on_the_minors_that_have_its_kernel() -> None:
    release: dict[str, Any] = {
        "amiType": "AL2023_x86_64_STANDARD",
        "releaseVersion": "1.35.6-20261003",
        "version": "1.35",
    }
    assert ids(*pool("gpu", "g6.xlarge", **release)) == {"al2023-20261003-kernel": ("gpu",)}
    newer: dict[str, Any] = {**release, "releaseVersion": "1.36.2-20261003", "version": "1.36"}
    assert ids(*pool("gpu", "g6.xlarge", **newer)) == {}


def test_a_placement_group_breaks_a_reservation() -> None:
    template, group = pool("block", "p5.48xlarge", capacity="CAPACITY_BLOCK")
    placed = replace(template, inputs={**template.inputs, "placement": {"groupName": "x"}})
    assert ids(placed, group) == {"placement-group-reservation": ("block",)}
    unknown = replace(template, inputs={**template.inputs, "placement": {"groupName": UNKNOWN}})
    assert ids(unknown, group) == {"placement-group-reservation": ("block",)}
    assert ids(template, group) == {}


def test_a_chart_over_an_add_on_and_drivers_by_the_gpu_operator_are_found() -> None:
    addon = resource("aws:eks/addon:Addon", "ebs", {"addonName": "aws-ebs-csi-driver", "addonVersion": "v1.66.0"})
    chart = resource("kubernetes:helm.sh/v3:Release", "ebs", {"chart": "aws-ebs-csi-driver", "version": "2.59.0"})
    assert ids(addon, chart) == {"ebs-chart-over-addon": ("release ebs",)}
    assert ids(chart) == {}
    operator = resource("kubernetes:helm.sh/v3:Release", "gpu", {"chart": "gpu-operator", "version": "v26.7.0"})
    off = replace(operator, inputs={**operator.inputs, "values": {"driver": {"enabled": False}}})
    machines = pool("gpu", "g6.xlarge", amiType="AL2023_x86_64_NVIDIA")
    assert ids(operator, *machines) == {"gpu-operator-driver-amazon-linux": ("release gpu",)}
    assert ids(off, *machines) == {}


def test_a_finding_says_what_a_user_sees_why_and_who_says_so() -> None:
    bad = plugin("nvidia-device-plugin", "nvcr.io/nvidia/k8s-device-plugin:v0.19.1")
    (found,) = findings([bad, *efa_pool("p5.48xlarge")])
    assert found.version == "v0.19.1"
    assert found.effect
    assert found.link.startswith("https://")
    assert document(found)["where"] == ["DaemonSet nvidia-device-plugin"]


def test_what_is_unknown_or_of_another_shape_is_no_finding() -> None:
    group = resource("aws:eks/nodeGroup:NodeGroup", "x", {"instanceTypes": UNKNOWN, "labels": 3, "amiType": None})
    odd = resource("kubernetes:apps/v1:DaemonSet", "x", {"spec": {"template": {"spec": {"containers": "none"}}}})
    assert findings([group, odd, plugin("x", "a/etcd:main")]) == ()
