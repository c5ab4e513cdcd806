"""The engines as data: what each is for, which build of it fits, and how to build it from a pinned Go module.

Times and sizes were measured on 2 cores with empty caches (docs/benchmarks.md); they feed progress lines and warnings.
"""

import re
from dataclasses import dataclass
from pathlib import Path

ROOM = Path(__file__).parent
MODULES = ROOM / "modules"  # one small Go module each: one for all would mix their version selections
LANGUAGE_HOST_SOURCE = ROOM / "language_host.py"

KUBERNETES_VERSION = "1.36.3"
ETCD_VERSION = "3.7.3"
PULUMI_VERSION = "3.274.1"
KWOK_VERSION = "0.8.0"
PROMETHEUS_VERSION = "3.15.1"  # its module is v0.315.1, and the newest for which Go 1.26.0 is enough
PROVIDER_VERSION = "4.25.0"  # the newest release whose plugin builds from a module; PyPI's pulumi-kubernetes agrees


@dataclass(frozen=True)
class VersionRange:
    """Half-open: `at_least` fits, `below` does not."""

    at_least: tuple[int, ...]
    below: tuple[int, ...]

    def fits(self, version: str) -> bool:
        """Whether a version as people write it (`v1.36.3`, `3.6`) lies in the range."""
        numbers = version_numbers(version)
        return numbers is not None and self.at_least <= numbers < self.below

    def __str__(self) -> str:
        return f">= {'.'.join(map(str, self.at_least))} and < {'.'.join(map(str, self.below))}"


@dataclass(frozen=True)
class EngineSpec:
    """One engine.

    Attributes:
        purpose: what it does here, in a few words.
        version: the version that a build gives.
        module: folder of the Go module to build in.
        package: import path of its main package.
        ldflags: passed to the linker: stripped, with the version baked in.
        accepts: the versions that fit when one is found on PATH; None where PATH is not looked at.
        version_arguments: arguments with which a binary tells its version.
        version_pattern: finds the version in what it prints.
        seconds: build time on two cores, everything cold.
        megabytes: size of the binary.
        remedy: what to do to skip the build; empty where nothing helps.
    """

    name: str
    purpose: str
    version: str
    module: Path
    package: str
    ldflags: str
    seconds: int
    megabytes: int
    tags: str = ""
    accepts: VersionRange | None = None
    version_arguments: tuple[str, ...] = ("--version",)
    version_pattern: str = r"v?(\d+\.\d+(?:\.\d+)?)"
    remedy: str = ""

    @property
    def is_own(self) -> bool:
        """Whether its source is in this repository (and so changes with it)."""
        return MODULES not in self.module.parents


def version_numbers(version: str) -> tuple[int, ...] | None:
    """`v1.36.3-rc.1` -> (1, 36, 3); None where there is no version in it."""
    found = re.match(r"v?(\d+)\.(\d+)(?:\.(\d+))?", version)
    return tuple(int(part or 0) for part in found.groups()) if found else None


def _kubernetes(name: str, purpose: str, seconds: int, megabytes: int, **fields: object) -> EngineSpec:
    major, minor, _ = KUBERNETES_VERSION.split(".")
    version = "k8s.io/component-base/version"
    settings: dict[str, object] = {
        "accepts": VersionRange((1, 36), (1, 37)),
        "version_pattern": r"Kubernetes v(\d+\.\d+\.\d+)",
        "remedy": f"put {name} 1.36 on PATH (a Kubernetes release archive has it)",
    } | fields
    return EngineSpec(
        name=name,
        purpose=purpose,
        version=KUBERNETES_VERSION,
        module=MODULES / "kubernetes",
        package=f"k8s.io/kubernetes/cmd/{name}",
        tags="grpcnotrace",
        ldflags=f"-s -w -X {version}.gitVersion=v{KUBERNETES_VERSION} -X {version}.gitMajor={major}"
        f" -X {version}.gitMinor={minor} -X {version}.gitTreeState=clean",
        seconds=seconds,
        megabytes=megabytes,
        **settings,  # type: ignore[arg-type]
    )


def _prometheus(name: str, purpose: str, seconds: int, megabytes: int) -> EngineSpec:
    return EngineSpec(
        name=name,
        purpose=purpose,
        version=PROMETHEUS_VERSION,
        module=MODULES / "prometheus",
        package=f"github.com/prometheus/prometheus/cmd/{name}",
        tags="remove_all_sd,grpcnotrace",  # targets are found in files here, not through a dozen clouds' clients
        ldflags=f"-s -w -X github.com/prometheus/common/version.Version={PROMETHEUS_VERSION}",
        seconds=seconds,
        megabytes=megabytes,
        accepts=VersionRange((3,), (4,)),
        version_pattern=rf"{name}, version (\d+\.\d+\.\d+)",
        remedy=f"put {name} 3 on PATH (a Prometheus release has it, with pages to look at)",
    )


_SPECS = (
    EngineSpec(
        name="pulumi",
        purpose="the engine that creates and changes what the program describes",
        version=PULUMI_VERSION,
        module=MODULES / "pulumi",
        package="github.com/pulumi/pulumi/pkg/v3/cmd/pulumi",
        tags="osusergo,grpcnotrace",
        ldflags=f"-s -w -X github.com/pulumi/pulumi/sdk/v3/go/common/version.Version=v{PULUMI_VERSION}",
        seconds=356,
        megabytes=122,
        accepts=VersionRange((3, 200), (4,)),
        version_arguments=("version",),
        remedy="put a Pulumi release, 3.200 or newer, on PATH (with its pulumi-language-python)",
    ),
    EngineSpec(
        name="pulumi-resource-kubernetes",
        purpose="Pulumi's Kubernetes provider",
        version=PROVIDER_VERSION,
        module=MODULES / "kubernetes-provider",
        package=".",
        ldflags="-s -w -X github.com/pulumi/pulumi-kubernetes/provider/v4/pkg/version.Version=" + PROVIDER_VERSION,
        seconds=660,
        megabytes=161,
        remedy=f"run `pulumi plugin install resource kubernetes {PROVIDER_VERSION}` with a Pulumi release",
    ),
    EngineSpec(
        name="etcd",
        purpose="the cluster's store, and the training jobs' rendezvous",
        version=ETCD_VERSION,
        module=MODULES / "etcd",
        package="go.etcd.io/etcd/server/v3",
        ldflags="-s -w",
        seconds=105,
        megabytes=25,
        accepts=VersionRange((3, 6), (4,)),
        version_pattern=r"etcd Version: (\d+\.\d+\.\d+)",
        remedy="put etcd 3.6 or newer on PATH (an etcd release archive has it)",
    ),
    _kubernetes("kube-apiserver", "the Kubernetes API", 345, 89),
    _kubernetes("kube-controller-manager", "Kubernetes' own controllers", 89, 74),
    _kubernetes("kube-scheduler", "places pods on nodes", 6, 49),
    _kubernetes("kubelet", "runs the pods of one node", 9, 60),
    _kubernetes(
        "kubectl",
        "the command line for looking at the cluster",
        66,
        60,
        accepts=VersionRange((1, 35), (1, 38)),  # one minor either way, as its version skew policy allows
        version_arguments=("version", "--client"),
        version_pattern=r"Client Version: v(\d+\.\d+\.\d+)",
        remedy="put kubectl 1.35, 1.36 or 1.37 on PATH",
    ),
    EngineSpec(
        name="kwok",
        purpose="plays the nodes of a rehearsed cluster",
        version=KWOK_VERSION,
        module=MODULES / "kwok",
        package="sigs.k8s.io/kwok/cmd/kwok",
        ldflags=f"-s -w -X sigs.k8s.io/kwok/pkg/consts.Version=v{KWOK_VERSION}",
        seconds=191,
        megabytes=63,
        accepts=VersionRange((0, 7), (0, 9)),
        version_pattern=r"kwok version v(\d+\.\d+\.\d+)",
        remedy="put kwok 0.8 on PATH (a kwok release has it)",
    ),
    _prometheus("prometheus", "gathers metrics of the local stack: `trainyard monitor`", 200, 51),
    _prometheus("promtool", "checks rules", 40, 54),
    EngineSpec(
        name="process-runtime",
        purpose="runs containers as processes of this computer (this project's own)",
        version="source",
        module=ROOM.parent / "process_runtime",
        package=".",
        ldflags="-s -w",
        seconds=20,
        megabytes=16,
    ),
)

CATALOGUE: dict[str, EngineSpec] = {spec.name: spec for spec in _SPECS}

LANGUAGE_HOST = "pulumi-language-python"  # comes with pulumi: a release's own, else this project's beside a built one
EVERY_ENGINE: tuple[str, ...] = (*CATALOGUE, LANGUAGE_HOST)

REHEARSAL_ENGINES: tuple[str, ...] = ("kwok",)
"""Needed to rehearse a cloud stack, and for nothing else."""
MONITORING_ENGINES: tuple[str, ...] = ("prometheus", "promtool")
"""Needed to watch a local stack and to test rules, and for nothing else."""
LOCAL_ENGINES: tuple[str, ...] = tuple(
    name for name in EVERY_ENGINE if name not in (*REHEARSAL_ENGINES, *MONITORING_ENGINES)
)
"""What a local stack needs."""
