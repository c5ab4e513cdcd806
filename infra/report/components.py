"""Everything in the resources that has a version: Kubernetes, machine images, add-ons, charts, images of pods."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from infra.report.inputs import mapping, mappings, pool_name, text
from infra.report.preview import Resource

KUBERNETES = "kubernetes"
_IMAGES = {
    "k8s-device-plugin": "nvidia-device-plugin",
    "aws-efa-k8s-device-plugin": "efa-device-plugin",
    "cluster-autoscaler": "cluster-autoscaler",
    "dcgm-exporter": "dcgm-exporter",
    "etcd": "etcd",
}
"""Names of images that the version lock calls something else, or that are known by it."""
_CHARTS = {"aws-ebs-csi-driver": "aws-ebs-csi-driver-chart"}
"""Charts of the name of an add-on."""
NO_VERSION = "0"
"""Stands for the version of what has none of its own: rules about such things are for every version."""
_NUMBERED = re.compile(r"v?\d")


@dataclass(frozen=True)
class Component:
    """One versioned thing at one place."""

    name: str
    """As in the version lock: `kubernetes`, `vpc-cni`, `kueue`, `etcd`, `al2023-release`."""
    where: str
    """What it belongs to: a pool, a workload, a release."""
    version: str
    digest: str = ""
    """Of an image: `sha256:…`."""
    labels: tuple[tuple[str, str], ...] = ()
    """Of a workload: the labels that a machine must have to run it."""
    empty_only: bool = False
    """A machine image whose group EKS updates only while it has no machine."""
    urn: str = ""
    """Of the resource that it was found in: places of one name are told apart by it."""


def components(resources: Iterable[Resource]) -> tuple[Component, ...]:
    """All of them, in the order of the resources. What is not known before `up` is left out."""
    return tuple(replace(found, urn=one.urn) for one in resources for found in _of(one))


def _of(one: Resource) -> Iterator[Component]:
    match one.kind:
        case "Cluster" if one.type.startswith("aws:eks/"):
            if version := text(one.inputs.get("version")):
                yield Component(KUBERNETES, text(one.inputs.get("name")) or one.name, version)
        case "NodeGroup" if one.type.startswith("aws:eks/"):
            yield from _machine_image(one)
        case "Addon" if one.type.startswith("aws:eks/"):
            name, version = text(one.inputs.get("addonName")), text(one.inputs.get("addonVersion"))
            if name and version:
                yield Component(name, "add-on", version)
        case "Release" | "Chart":
            yield from _chart(one)
        case _:
            if one.type.startswith("kubernetes:"):
                yield from _images(one)


def _machine_image(group: Resource) -> Iterator[Component]:
    release, kind = text(group.inputs.get("releaseVersion")), text(group.inputs.get("amiType"))
    if not release:
        return
    name = "bottlerocket-release" if kind.startswith("BOTTLEROCKET") else "al2023-release"
    empty_only = group.inputs.get("capacityType") == "CAPACITY_BLOCK"
    yield Component(name, pool_name(group), release, empty_only=empty_only)


def _chart(one: Resource) -> Iterator[Component]:
    chart, version = text(one.inputs.get("chart")), text(one.inputs.get("version"))
    if not chart or not version:
        return
    name, where = chart.rstrip("/").rsplit("/", 1)[-1], f"release {one.name}"
    yield Component(_CHARTS.get(name, name), where, version)
    driver = mapping(mapping(one.inputs.get("values")).get("driver"))
    if name == "gpu-operator" and driver.get("enabled") is not False:
        yield Component("gpu-operator-driver", where, NO_VERSION)


def _images(one: Resource) -> Iterator[Component]:
    spec = mapping(one.inputs.get("spec"))
    if one.kind == "CronJob":
        spec = mapping(mapping(spec.get("jobTemplate")).get("spec"))
    pod = spec if one.kind == "Pod" else mapping(mapping(spec.get("template")).get("spec"))
    labels = tuple((key, value) for key, value in mapping(pod.get("nodeSelector")).items() if isinstance(value, str))
    for container in [*mappings(pod.get("initContainers")), *mappings(pod.get("containers"))]:
        if found := image(text(container.get("image"))):
            name, version, digest = found
            yield Component(name, f"{one.kind} {one.name}", version, digest, labels)


def image(reference: str) -> tuple[str, str, str] | None:
    """Name, version and digest of an image; None where nothing tells a version."""
    whole, _, digest = reference.partition("@")
    path, colon, tag = whole.rpartition(":")
    if not colon or "/" in tag:  # a colon before a slash is a port's
        return None
    name = path.rsplit("/", 1)[-1]
    return (_IMAGES.get(name, name), tag, digest) if _NUMBERED.match(tag) else None


def by_place(found: Iterable[Component]) -> Mapping[tuple[str, str], list[Component]]:
    """Components by name and place; several of one place (two node groups of one label) are all kept."""
    places: dict[tuple[str, str], list[Component]] = {}
    for one in found:
        places.setdefault((one.name, one.where), []).append(one)
    return places


def pairs(before: Iterable[Component], after: Iterable[Component]) -> Iterator[tuple[Component, Component]]:
    """What is at a place before and after.

    Where several are at one place, those that stay as they are belong together, then those of one resource, then the
    others in their order: a group that is replaced under another name.
    """
    then = by_place(after)
    for place, old in by_place(before).items():
        new = list(then.get(place, ()))
        for alike in _ALIKE:
            for one in list(old):
                if other := next((each for each in new if alike(each) == alike(one)), None):
                    old.remove(one)
                    new.remove(other)
                    yield one, other


_ALIKE: tuple[Callable[[Component], object], ...] = (
    lambda one: (one.urn, one.version, one.digest),
    lambda one: one.urn,
    lambda one: one.where,
)
"""What two components of one place have in common that are the same thing; the surest first."""


def kubernetes_of(found: Iterable[Component]) -> str:
    """The cluster's version; empty where none is told."""
    return next((one.version for one in found if one.name == KUBERNETES), "")


def plain(one: Component) -> dict[str, Any]:
    """A component as plain data."""
    return {"component": one.name, "where": one.where, "version": one.version, "digest": one.digest}
