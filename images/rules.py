"""Which parts go together: rules over a row on one architecture and, where it is known, the machine that runs it.

Each rule has a sentence for what holds, the reason, and the source. `images.matrix.load` holds declared rows against
them, `images.selection` what somebody wants.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from images.rows import Architecture, Row
from infra.catalog.ranges import numbers

_CUDA_13 = (13,)
_TURING = (7, 5)
_CODE = re.compile(r"(sm|compute)_(\d+)(\d)([af]?)")


@dataclass(frozen=True)
class Subject:
    """What the rules are asked about."""

    row: Row
    architecture: Architecture
    driver: str | None = None
    """NVIDIA driver of the machine; None: not known."""
    compute_capability: str | None = None
    """Of the machine's GPUs: `9.0`; None: not known."""


@dataclass(frozen=True)
class Rule:
    """One rule."""

    id: str
    sentence: str
    """What holds of everything that works."""
    reason: str
    source: str
    check: Callable[[Subject], str | None]
    """What is wrong, without the reason; None: nothing."""


@dataclass(frozen=True)
class Violation:
    """A rule that does not hold."""

    rule: Rule
    found: str

    @property
    def sentence(self) -> str:
        """What is wrong, why that matters, and the rule's name."""
        return f"{self.found}: {self.rule.reason} ({self.rule.id})"


def violations(subject: Subject) -> list[Violation]:
    """Every rule that does not hold, in the order of `RULES`."""
    return [Violation(rule, found) for rule in RULES if (found := rule.check(subject)) is not None]


def runs_on(code: str, compute_capability: str) -> bool:
    """Whether GPU code runs on a GPU.

    Args:
        code: `sm_90`, `sm_100a`, `compute_120`.
        compute_capability: `9.0`.
    """
    found = _CODE.fullmatch(code)
    if found is None:
        raise ValueError(f"{code!r} is no GPU code: sm_90, compute_120")
    kind, made_for, special = found[1], (int(found[2]), int(found[3])), found[4]
    major, _, minor = compute_capability.partition(".")
    gpu = int(major), int(minor or 0)
    if special == "a":
        return gpu == made_for
    if kind == "compute" and not special:
        return gpu >= made_for
    return gpu[0] == made_for[0] and gpu >= made_for


def is_code(code: str) -> bool:
    """Whether a text names GPU code."""
    return _CODE.fullmatch(code) is not None


# --- the machine ------------------------------------------------------------------------------------------------------


def _driver(subject: Subject) -> str | None:
    row, driver = subject.row, subject.driver
    if driver is None or row.minimum_driver is None or numbers(driver) >= numbers(row.minimum_driver):
        return None
    return f"the machine's driver {driver} is older than {row.minimum_driver}, which CUDA {row.cuda} needs"


def _gpu_code(subject: Subject) -> str | None:
    codes = subject.row.torch.sm.get(subject.architecture, ()) if subject.row.torch and subject.row.cuda else ()
    gpu = subject.compute_capability
    if gpu is None or not codes or any(runs_on(code, gpu) for code in codes):
        return None
    return f"no code of this torch ({' '.join(codes)}) runs on GPUs of compute capability {gpu}"


def _cuda_13(subject: Subject) -> str | None:
    row, gpu = subject.row, subject.compute_capability
    if gpu is None or row.cuda is None or numbers(row.cuda) < _CUDA_13 or numbers(gpu) >= _TURING:
        return None
    return f"CUDA {row.cuda} does not know GPUs of compute capability {gpu}"


# --- torch ------------------------------------------------------------------------------------------------------------


def _python(subject: Subject) -> str | None:
    torch = subject.row.torch
    if torch is None or subject.row.kind != "training":
        return None
    for base in (subject.row.base, subject.row.compiled_base):
        if base is not None and numbers(base.python) < numbers(torch.python_min):
            return f"{base.reference} has Python {base.python}, torch {torch.version} wants {torch.python_min} or newer"
    return None


def _cuda_wheels(subject: Subject) -> str | None:
    row, architecture = subject.row, subject.architecture
    if row.torch is None or row.cuda is None or architecture in row.torch.sm:
        return None
    return f"torch {row.torch.version} has no CUDA on {architecture}"


def _bundled(subject: Subject) -> str | None:
    row = subject.row
    if row.variant == "ngc" and not (row.torch and row.torch.bundled):
        return "an image of NGC would get another torch"
    if row.variant == "ngc" and row.efa is not None:
        return "an image of NGC would get the EFA installer"
    if row.variant != "ngc" and row.torch is not None and row.torch.bundled:
        return f"torch {row.torch.version} exists only in an image of NGC"
    return None


# --- base images ------------------------------------------------------------------------------------------------------


def _base_architecture(subject: Subject) -> str | None:
    for base in filter(None, (subject.row.base, subject.row.builder, subject.row.compiled_base)):
        if subject.architecture not in base.architectures:
            return f"{base.reference} is not there for {subject.architecture}"
    return None


def _one_cuda(subject: Subject) -> str | None:
    row = subject.row
    if row.torch is None or row.cuda is None:
        return None
    if row.cuda != row.torch.cuda:
        return f"the row is for CUDA {row.cuda}, its torch for CUDA {row.torch.cuda}"
    for base in filter(None, (row.base, row.builder, row.compiled_base)):
        if base.cuda not in (None, row.cuda):
            return f"{base.reference} has CUDA {base.cuda}, torch {row.torch.version} has CUDA {row.cuda}"
    return None


def _builder(subject: Subject) -> str | None:
    row = subject.row
    if row.builder is None:
        return None
    runtime = row.compiled_base or row.base
    if (runtime.distribution, runtime.python) == (row.builder.distribution, row.builder.python):
        return None
    return (
        f"what {row.builder.reference} compiles ({row.builder.distribution}, Python {row.builder.python}) would run on "
        f"{runtime.reference} ({runtime.distribution}, Python {runtime.python})"
    )


# --- fabric -----------------------------------------------------------------------------------------------------------


def _variant(subject: Subject) -> str | None:
    row = subject.row
    if row.variant == "efa" and row.efa is None:
        return "an EFA image without an EFA installer"
    if row.variant != "efa" and row.efa is not None:
        return f"the EFA installer in an image of the variant {row.variant}"
    if row.variant == "infiniband" and "libibverbs1" not in row.apt:
        return "an InfiniBand image without libibverbs1"
    if row.variant == "cpu" and row.cuda is not None:
        return "a CPU image with a CUDA of its own"
    return None


def _efa_distribution(subject: Subject) -> str | None:
    efa = subject.row.efa
    if efa is None:
        return None
    for name in _distributions(subject.row):
        if name not in efa.distributions:
            return f"the EFA installer {efa.version} does not know {name}, only {', '.join(efa.distributions)}"
    return None


def _distributions(row: Row) -> list[str]:
    """What the image can have at the bottom: also the base that replaces its own where something is compiled."""
    return [base.distribution for base in (row.base, row.compiled_base) if base is not None]


def _efa_architecture(subject: Subject) -> str | None:
    efa, architecture = subject.row.efa, subject.architecture
    if efa is None:
        return None
    if architecture not in efa.architectures:
        return f"the EFA installer {efa.version} is not there for {architecture}"
    for name in _distributions(subject.row):
        plugin = efa.plugin_architectures.get(name, efa.architectures)
        if architecture not in plugin:
            return f"on {name} the EFA installer {efa.version} has the NCCL plugin for {', '.join(plugin)} only"
    return None


def _efa_nccl(subject: Subject) -> str | None:
    efa, nccl = subject.row.efa, subject.row.nccl
    if efa is None or nccl is None or numbers(nccl) >= numbers(efa.nccl_min):
        return None
    return f"NCCL {nccl} is older than {efa.nccl_min}, the oldest of the plugin {efa.plugin}"


def _efa_libfabric(subject: Subject) -> str | None:
    efa = subject.row.efa
    if efa is None or numbers(efa.libfabric) >= numbers(efa.libfabric_min):
        return None
    return f"libfabric {efa.libfabric} is older than {efa.libfabric_min}, the oldest of the plugin {efa.plugin}"


RULES: tuple[Rule, ...] = (
    Rule(
        id="driver-floor",
        sentence="The machine's NVIDIA driver is at least as new as the CUDA of the image asks for.",
        reason="an older driver cannot load the libraries, and training ends with CUDA error 35",
        source="https://docs.nvidia.com/cuda/cuda-toolkit-release-notes/, table of toolkit drivers",
        check=_driver,
    ),
    Rule(
        id="gpu-code",
        sentence="torch has code for the GPU: of the same major compute capability and no newer minor, or PTX.",
        reason="training would end at its first kernel with `no kernel image is available`",
        source="https://docs.nvidia.com/cuda/cuda-c-programming-guide/, binary and PTX compatibility",
        check=_gpu_code,
    ),
    Rule(
        id="cuda-13-generations",
        sentence="GPUs older than Turing (compute capability 7.5: T4) get an image with CUDA 12.",
        reason="CUDA 13 took Maxwell, Pascal and Volta out",
        source="https://docs.nvidia.com/cuda/archive/13.0.0/cuda-toolkit-release-notes/",
        check=_cuda_13,
    ),
    Rule(
        id="torch-python",
        sentence="The Python of the base is one that torch has wheels for.",
        reason="no wheel installs on an older Python",
        source="Requires-Python of the wheels",
        check=_python,
    ),
    Rule(
        id="torch-cuda-architecture",
        sentence="GPU images for arm64 have torch 2.11 or newer.",
        reason="up to 2.10 the default wheels for arm64 are for CPUs only, and training would see no GPU",
        source="metadata of the wheels: the CUDA requirements of 2.10 are marked as x86_64's, those of 2.11 are not",
        check=_cuda_wheels,
    ),
    Rule(
        id="bundled-torch",
        sentence="Images of NGC keep the torch, the NCCL and the fabric parts that they bring.",
        reason="of two on one path it is chance which one loads, and NGC's are tested together; the EFA installer "
        "takes such an image for a case of its own and puts another plugin package and an NCCL beside",
        source="https://docs.nvidia.com/deeplearning/frameworks/pytorch-release-notes/, pip constraint file; "
        "EFA installer 1.48 and newer",
        check=_bundled,
    ),
    Rule(
        id="base-architecture",
        sentence="Every base image exists for the architecture.",
        reason="the build would end with `no match for platform in manifest`",
        source="indexes of the images",
        check=_base_architecture,
    ),
    Rule(
        id="one-cuda",
        sentence="Builder, base and torch have the same minor of CUDA.",
        reason="torch's extension builder refuses another major and warns of another minor, and of two runtimes in one "
        "image it is chance which one loads",
        source="torch.utils.cpp_extension",
        check=_one_cuda,
    ),
    Rule(
        id="builder-distribution",
        sentence="What is compiled runs on the distribution and the Python with which it was compiled.",
        reason="extensions are tied to one Python, and to a C library that is not older",
        source="https://packaging.python.org/en/latest/specifications/platform-compatibility-tags/",
        check=_builder,
    ),
    Rule(
        id="variant-parts",
        sentence="An image has the parts of its own fabric, and of no other.",
        reason="NCCL takes the first network plugin that loads",
        source="https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html, NCCL_NET_PLUGIN",
        check=_variant,
    ),
    Rule(
        id="efa-distribution",
        sentence="The EFA installer supports the distribution of the base.",
        reason="it ends with `Unsupported operating system`",
        source="https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/efa-changelog.html",
        check=_efa_distribution,
    ),
    Rule(
        id="efa-architecture",
        sentence="The EFA installer has the NCCL plugin for the architecture on this distribution.",
        reason="without the plugin NCCL goes over TCP without a word, at a thirtieth of the speed",
        source="https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/efa-changelog.html, 1.40.0: the plugin for arm64 "
        "came for Ubuntu and Amazon Linux 2023",
        check=_efa_architecture,
    ),
    Rule(
        id="efa-nccl",
        sentence="NCCL is at least as new as the EFA plugin asks for.",
        reason="an older NCCL has none of the plugin interfaces that the plugin offers, and goes over TCP",
        source="https://github.com/aws/aws-ofi-nccl/releases/tag/v1.21.1",
        check=_efa_nccl,
    ),
    Rule(
        id="efa-libfabric",
        sentence="libfabric is at least as new as the EFA plugin asks for.",
        reason="the plugin does not load with an older one",
        source="https://github.com/aws/aws-ofi-nccl/releases/tag/v1.21.1",
        check=_efa_libfabric,
    ),
)
