"""The version lock: which Kubernetes, machine images, add-ons, charts and images go together on AWS."""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from infra.catalog.tables import table
from infra.errors import TrainyardError

_FILE = "infra/catalog/versions.toml"


class NotInLockError(TrainyardError):
    """Something was asked for that the version lock does not have."""


@dataclass(frozen=True)
class Ami:
    """A machine image as a managed node group names it."""

    ami_type: str
    """EKS's name of the image family: `AL2023_x86_64_NVIDIA`."""
    release_version: str
    """`1.36.2-20260714`, Bottlerocket `1.66.0-1ad6b4a4`: a node group that names it is not replaced by itself."""
    driver: str | None
    """NVIDIA driver in the image; None in images without one."""


@dataclass(frozen=True)
class Chart:
    """A Helm chart."""

    name: str
    repository: str
    """`oci://…` or `https://…`, without the chart's name."""
    version: str

    @property
    def is_oci(self) -> bool:
        """Whether it comes from a registry of images."""
        return self.repository.startswith("oci://")

    @property
    def reference(self) -> str:
        """What Helm takes as the chart: from OCI the whole address, otherwise the name within the repository."""
        return f"{self.repository}/{self.name}" if self.is_oci else self.name


@dataclass(frozen=True)
class Versions:
    """The whole lock. Every method raises `NotInLockError` for what it does not have."""

    kubernetes: tuple[str, ...]
    """Supported minors, oldest first."""
    default_kubernetes: str

    def ami(self, kubernetes: str, operating_system: str, architecture: str, *, gpu: bool) -> Ami:
        """The image of a machine.

        Args:
            kubernetes: minor version: `1.36`.
            operating_system: `al2023` or `bottlerocket`.
            architecture: `x86_64` or `arm64`.
            gpu: with NVIDIA's driver.
        """
        for row in table("versions")["ami"]:
            if row["os"] == operating_system:
                return Ami(
                    ami_type=_of(row["gpu_types" if gpu else "types"], architecture, f"{operating_system} image for"),
                    release_version=_of(
                        row["release_versions"], kubernetes, f"{operating_system} image for Kubernetes"
                    ),
                    driver=row["driver"] if gpu else None,
                )
        raise NotInLockError(
            f"{_FILE} has no image of the operating system {operating_system!r}: al2023 or bottlerocket"
        )

    @property
    def addons(self) -> tuple[str, ...]:
        """Names of all add-ons."""
        return tuple(table("versions")["addon"])

    def addon(self, name: str, kubernetes: str) -> str:
        """Version of an add-on of EKS: `v1.22.4-eksbuild.3`."""
        row = _of(table("versions")["addon"], name, "add-on")
        return str(_of(row["versions"], kubernetes, f"add-on {name} for Kubernetes"))

    @property
    def charts(self) -> tuple[str, ...]:
        """Names of all charts."""
        return tuple(table("versions")["chart"])

    def chart(self, name: str) -> Chart:
        """A Helm chart."""
        row = _of(table("versions")["chart"], name, "chart")
        return Chart(name=name, repository=row["repository"], version=row["version"])

    @property
    def images(self) -> tuple[str, ...]:
        """Names of all images."""
        return tuple(table("versions")["image"])

    def image(self, name: str, *, kubernetes: str | None = None, region: str | None = None) -> str:
        """Full reference of an image, with its digest where that is known.

        Args:
            name: `etcd`, `cluster-autoscaler`, …
            kubernetes: minor version, for images that follow it; absent: the default minor.
            region: for images that EKS keeps in every region: take them from this one, so that private clusters pull
                them through their endpoint; absent: from the reference's own region, which serves all.
        """
        row = _of(table("versions")["image"], name, "image")
        if "references" in row:
            return str(_of(row["references"], kubernetes or self.default_kubernetes, f"image {name} for Kubernetes"))
        reference = str(row["reference"])
        return _in_region(reference, region) if region is not None and row.get("regional") else reference

    def driver_floor(self, cuda: str) -> str:
        """Oldest NVIDIA driver for images with this CUDA.

        Args:
            cuda: `13.0`, or `13` for its first minor.
        """
        floors = table("versions")["driver_floor"]["cuda"]
        return str(_of(floors, cuda if "." in cuda else f"{cuda}.0", "driver for CUDA"))


@functools.cache
def versions() -> Versions:
    """The lock."""
    row = table("versions")["kubernetes"]
    return Versions(kubernetes=tuple(row["supported"]), default_kubernetes=row["default"])


def _of(rows: Mapping[str, Any], key: str, what: str) -> Any:
    if key not in rows:
        raise NotInLockError(
            f"{_FILE} has no {what} {key}; it has {', '.join(rows)}. Take one of these, or add it there with a source."
        )
    return rows[key]


def _in_region(reference: str, region: str) -> str:
    """The copy of one of EKS's own images that is kept in a region; China has a domain of its own."""
    account = table("versions")["eks_registry"]["accounts"].get(region, reference.partition(".")[0])
    domain = "amazonaws.com.cn" if region.startswith("cn-") else "amazonaws.com"
    return re.sub(r"^\d+\.dkr\.ecr\.[^.]+\.amazonaws\.com", f"{account}.dkr.ecr.{region}.{domain}", reference)
