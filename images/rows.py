"""What an image is: its parts (base, torch, EFA installer, …), each with its source, and the row that joins them."""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

Architecture = Literal["amd64", "arm64"]
"""Names of container platforms."""
Variant = Literal["cpu", "cuda", "efa", "infiniband", "ngc"]
Kind = Literal["training", "controller", "nccl-tests"]

MACHINES: Mapping[Architecture, str] = {"amd64": "x86_64", "arm64": "aarch64"}
"""What `uname -m` and folders of libraries call an architecture."""
LOCKS = Path(__file__).parent / "locks"

Version = Annotated[str, Field(pattern=r"^\d+(\.\d+)*([a-z0-9.+-]*)$")]
Digest = Annotated[str, Field(pattern=r"^sha256:[0-9a-f]{64}$")]
Sm = Annotated[str, Field(pattern=r"^(sm|compute)_\d{2,3}[af]?$")]
"""`sm_90`: machine code for a compute capability; `compute_90`: code that newer GPUs compile when they load it."""


class Data(BaseModel):
    """Nothing that was read is changed, and no key is read over."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Sourced(Data):
    """What a document says."""

    source: str
    checked: datetime.date
    unconfirmed: tuple[str, ...] = ()
    """Fields whose value no document that we read confirms, or what of it is doubtful."""


class BaseImage(Sourced):
    """An image that our images begin from."""

    name: str
    reference: str
    """`debian:bookworm-slim`, without digest."""
    digest: Digest | None = None
    """Of the index of all architectures."""
    unpinned: str | None = None
    """Why there is no digest."""
    distribution: str
    """`debian12`, `ubuntu24.04`."""
    python: Version
    """What its packages (or the image itself) have as python3."""
    cuda: Version | None = None
    """CUDA in it; None where the wheels bring it."""
    rdma_core: Version | None = None
    """What its packages have as libibverbs; None where nothing asks."""
    architectures: tuple[Architecture, ...] = ("amd64", "arm64")

    @property
    def pinned(self) -> str:
        """What FROM names: with the digest where it is known."""
        return f"{self.reference}@{self.digest}" if self.digest else self.reference


class TorchRelease(Sourced):
    """A release of torch with what its default wheels (or the NGC image) bring."""

    version: Version
    python_min: Version
    cuda: Version
    """Minor version: `13.2`."""
    cuda_patch: Version
    """`13.2.2`."""
    nccl: Version
    cudnn: Version
    triton: Version | None = None
    """None where the NGC image has a build of its own."""
    sm: dict[Architecture, tuple[Sm, ...]]
    """GPU code by architecture; architectures without CUDA are absent."""
    bundled: bool = False
    """In the base image already: nothing may install another one."""

    @property
    def minor(self) -> str:
        """`2.15`."""
        return ".".join(self.version.split(".")[:2])

    @property
    def cuda_architectures(self) -> tuple[Architecture, ...]:
        """Where its wheels have CUDA."""
        return tuple(self.sm)


class EfaInstaller(Sourced):
    """A release of AWS's EFA installer with the parts that it puts into an image."""

    version: Version
    libfabric: Version
    plugin: Version
    """aws-ofi-nccl."""
    libfabric_min: Version
    """The oldest libfabric with which the plugin works."""
    nccl_min: Version
    """The oldest NCCL with which the plugin works."""
    sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")] | None = None
    """Of the archive; None where nobody published one that we found."""
    unpinned: str | None = None
    """Why there is no sum."""
    distributions: tuple[str, ...]
    architectures: tuple[Architecture, ...]
    plugin_architectures: dict[str, tuple[Architecture, ...]]
    """By distribution: where it has the plugin; libfabric is on all."""
    plugin_files: dict[str, str]
    """By distribution: the plugin's path in the image; `{machine}` is x86_64 or aarch64."""

    @model_validator(mode="after")
    def _has_a_plugin_everywhere(self) -> EfaInstaller:
        if without := sorted(set(self.distributions) - set(self.plugin_files)):
            raise ValueError(f"plugin_files lacks {', '.join(without)}")
        return self

    @property
    def url(self) -> str:
        """Where the archive is."""
        return f"https://efa-installer.amazonaws.com/aws-efa-installer-{self.version}.tar.gz"

    def plugin_file(self, distribution: str, architecture: Architecture) -> str:
        """Path of the plugin in the image."""
        return self.plugin_files[distribution].format(machine=MACHINES[architecture])


class NcclTests(Sourced):
    """NVIDIA's nccl-tests, of which the image of that kind is compiled."""

    version: Version
    sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")] | None = None
    """Of the archive; None where nobody published one that we found."""
    unpinned: str | None = None
    """Why there is no sum."""

    @property
    def url(self) -> str:
        """Where the archive is."""
        return f"https://github.com/NVIDIA/nccl-tests/archive/refs/tags/v{self.version}.tar.gz"


class Row(Data):
    """One image that can be built."""

    name: str
    aliases: tuple[str, ...] = ()
    kind: Kind
    variant: Variant | None = None
    """None: the controller."""
    torch: TorchRelease | None = None
    """nccl-tests: the release whose CUDA and NCCL are measured; torch itself is not in that image."""
    cuda: Version | None = None
    """CUDA that the driver must be able to run; None where nothing runs on GPUs."""
    architectures: tuple[Architecture, ...]
    base: BaseImage
    builder: BaseImage | None = None
    """Has nvcc; only for the stage in which something is compiled. None: nothing here can be compiled for GPUs."""
    compiled_base: BaseImage | None = None
    """Replaces `base` where the builder compiles something, which then needs the builder's Python and C library."""
    efa: EfaInstaller | None = None
    apt: tuple[str, ...] = ()
    """Packages of the distribution that the runtime stage needs besides python3 and tini."""
    leave_out: tuple[str, ...] = ()
    """Packages of the lock that this image does not need."""
    lock: str | None = None
    """File name under images/locks."""
    nccl_tests: NcclTests | None = None
    fabric: dict[str, Version] = {}
    """Versions of fabric parts that the base or its distribution brings, by name."""
    minimum_driver: Version | None = None
    """Oldest NVIDIA driver of the machine, from infra.catalog.versions."""
    note: str | None = None

    def __hash__(self) -> int:
        return hash(self.name)

    @property
    def python(self) -> str:
        """Python of the base: `3.11`."""
        return self.base.python

    @property
    def nccl(self) -> str | None:
        """NCCL in the image; None where there is none to use."""
        return self.torch.nccl if self.torch is not None and self.cuda is not None else None

    @property
    def plugin(self) -> str | None:
        """aws-ofi-nccl in the image, its own or the bundled one."""
        return self.efa.plugin if self.efa else self.fabric.get("aws-ofi-nccl")

    @property
    def sm(self) -> dict[Architecture, tuple[str, ...]]:
        """GPU code by architecture; empty where nothing runs on GPUs."""
        if self.torch is None or self.cuda is None:
            return {}
        return {name: codes for name, codes in self.torch.sm.items() if name in self.architectures}

    @property
    def lock_path(self) -> Path | None:
        """The lock file on this computer."""
        return LOCKS / self.lock if self.lock else None

    def plugin_file(self, architecture: Architecture) -> str | None:
        """Path of the EFA plugin in the image; None where there is none of ours."""
        return self.efa.plugin_file(self.base.distribution, architecture) if self.efa else None

    @property
    def unpinned(self) -> tuple[str, ...]:
        """What can change under an unchanged row, and why."""
        found = [
            f"{image.reference}: {image.unpinned or 'no digest'}"
            for image in dict.fromkeys(filter(None, (self.base, self.builder, self.compiled_base)))
            if image.digest is None
        ]
        if self.efa and self.efa.sha256 is None:
            found.append(f"EFA installer {self.efa.version}: {self.efa.unpinned or 'no sum'}")
        if self.nccl_tests and self.nccl_tests.sha256 is None:
            found.append(f"nccl-tests {self.nccl_tests.version}: {self.nccl_tests.unpinned or 'no sum'}")
        return tuple(found)
