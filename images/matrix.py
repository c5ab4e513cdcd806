"""What can be built: torch, CUDA, fabric and base image by row, and the row that fits a machine.

The data is in `matrix.toml`, each value with its source; `rules.py` says which combinations work, and why. A declared
row that breaks a rule does not load; a wanted combination that breaks rules is refused with a sentence for each.
"""

from __future__ import annotations

import datetime
import difflib
import functools
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from images.errors import MatrixError
from infra.catalog.ranges import numbers
from infra.catalog.versions import NotInLockError, versions

Architecture = Literal["amd64", "arm64"]
"""Names of container platforms."""
Variant = Literal["cpu", "cuda", "efa", "infiniband", "ngc"]
Kind = Literal["training", "controller", "nccl-tests"]

MACHINES: Mapping[Architecture, str] = {"amd64": "x86_64", "arm64": "aarch64"}
"""What `uname -m` and folders of libraries call an architecture."""
LOCKS = Path(__file__).parent / "locks"
_FILE = "images/matrix.toml"

Version = Annotated[str, Field(pattern=r"^\d+(\.\d+)*([a-z0-9.+-]*)$")]
Digest = Annotated[str, Field(pattern=r"^sha256:[0-9a-f]{64}$")]
Sm = Annotated[str, Field(pattern=r"^(sm|compute)_\d{2,3}[af]?$")]
"""`sm_90`: machine code for a compute capability; `compute_90`: code that newer GPUs compile when they load it."""


class _Data(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class _Sourced(_Data):
    source: str
    checked: datetime.date
    unconfirmed: tuple[str, ...] = ()
    """Fields whose value no document that we read confirms, or what of it is doubtful."""


class BaseImage(_Sourced):
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


class TorchRelease(_Sourced):
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


class EfaInstaller(_Sourced):
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


class NcclTests(_Sourced):
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


class Row(_Data):
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


@dataclass(frozen=True)
class Matrix:
    """All rows, the newest torch first."""

    rows: tuple[Row, ...]

    def row(self, name: str) -> Row:
        """A row by its name or alias.

        Raises:
            MatrixError: there is none; the message gives the nearest names.
        """
        names = {known: row for row in self.rows for known in (row.name, *row.aliases)}
        if name in names:
            return names[name]
        near = difflib.get_close_matches(name, names, n=3, cutoff=0.5)
        nearest = f"Nearest: {', '.join(near)}. " if near else ""
        raise MatrixError(f"there is no image {name!r}. {nearest}`trainyard images matrix` shows all.")

    @property
    def torch_releases(self) -> tuple[TorchRelease, ...]:
        """Releases that images install, newest first."""
        found = {row.torch.version: row.torch for row in self.rows if row.torch and not row.torch.bundled}
        return tuple(sorted(found.values(), key=lambda one: numbers(one.version), reverse=True))

    def select(
        self,
        *,
        torch: str | None = None,
        variant: Variant | None = None,
        architecture: Architecture | None = None,
        kind: Kind = "training",
        driver: str | None = None,
        compute_capability: str | None = None,
    ) -> Row:
        """The row that fits a wish and a machine; of several the one with the newest torch.

        Args:
            torch: `2.15` or `2.15.0`; absent: the newest that works.
            variant: absent: `cuda` where a driver or a GPU is given, otherwise `cpu`.
            architecture: absent: one of the row's own is enough.
            kind: what the image is for.
            driver: NVIDIA driver of the machine.
            compute_capability: of its GPUs: `9.0`.

        Raises:
            MatrixError: nothing fits; one sentence for every rule that the wish breaks, and the nearest row that works.
        """
        from images.selection import Wish, select  # noqa: PLC0415 - selection knows the matrix

        wish = Wish(
            torch=torch,
            variant=variant,
            architecture=architecture,
            kind=kind,
            driver=driver,
            compute_capability=compute_capability,
        )
        return select(self, wish)


@functools.cache
def matrix() -> Matrix:
    """The matrix of this version of Trainyard."""
    return load(resources.files("images").joinpath("matrix.toml").read_text(encoding="utf-8"))


def load(text: str) -> Matrix:
    """Read a matrix.

    Args:
        text: TOML, as `matrix.toml` is written.

    Raises:
        MatrixError: it cannot be read, or a row breaks a rule; all mistakes in one message.
    """
    try:
        document = _Document.model_validate(tomllib.loads(text))
    except tomllib.TOMLDecodeError as error:
        raise MatrixError(f"{_FILE} is no TOML: {error}") from None
    except ValidationError as error:
        raise MatrixError(_mistakes(_said(error))) from None
    rows, mistakes = _rows(document)
    mistakes += _broken(rows)
    if mistakes:
        raise MatrixError(_mistakes(mistakes))
    return Matrix(rows=tuple(rows))


class _Ngc(_Sourced):
    """An image of NGC with what it brings."""

    base: str
    torch: TorchRelease
    fabric: dict[str, Version] = {}


class _Group(_Data):
    """Rows that differ only in torch and variant."""

    kind: Kind
    torch: tuple[str, ...] = ()
    ngc: tuple[str, ...] = ()
    variants: tuple[Variant, ...] = ()
    base: str | None = None
    """None: the image of NGC, or for nccl-tests the `-base` of the CUDA."""
    efa: str | None = None
    apt: tuple[str, ...] = ()
    leave_out: tuple[str, ...] = ()
    lock: str | None = None
    """`{torch}`, `{nccl}`, `{cuda}` are versions, `{ngc}` is the release of NGC."""
    architectures: tuple[Architecture, ...] | None = None
    """Absent: those on which the parts of the row exist."""
    note: str | None = None


class _Document(_Data):
    """The file as it is written: rows name their parts by the parts' keys."""

    schema_: Literal[1] = Field(alias="schema")
    base: dict[str, BaseImage]
    torch: dict[str, TorchRelease]
    efa: dict[str, EfaInstaller]
    ngc: dict[str, _Ngc]
    nccl_tests: NcclTests
    rows: tuple[_Group, ...]

    @model_validator(mode="before")
    @classmethod
    def _keys_are_names(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        named = {"base": "name", "torch": "version", "efa": "version"}
        for part, key in named.items():
            for name, row in (data.get(part) or {}).items():
                row.setdefault(key, name)
        for row in (data.get("ngc") or {}).values():
            row.get("torch", {}).update(bundled=True, source=row.get("source"), checked=row.get("checked"))
        return data

    def cuda_base(self, cuda: str, flavor: Literal["devel", "base"]) -> BaseImage | None:
        """The image of a CUDA with its compiler, or with no more than its runtime library."""
        return next((one for one in self.base.values() if one.cuda == cuda and f"-{flavor}-" in one.reference), None)

    def plain(self, distribution: str) -> BaseImage | None:
        """The image of a distribution without CUDA."""
        return next((one for one in self.base.values() if one.cuda is None and one.distribution == distribution), None)


def _rows(document: _Document) -> tuple[list[Row], list[str]]:
    """All rows, and what the groups name that is not there."""
    rows: list[Row] = []
    mistakes: list[str] = []
    for number, group in enumerate(document.rows, start=1):
        missing = [
            f"rows, group {number}: there is no [{part}.{name!r}]"
            for part, names, known in (
                ("base", [group.base] if group.base else [], document.base),
                ("torch", group.torch, document.torch),
                ("efa", [group.efa] if group.efa else [], document.efa),
                ("ngc", group.ngc, document.ngc),
                ("base", [document.ngc[name].base for name in group.ngc if name in document.ngc], document.base),
            )
            for name in names
            if name not in known
        ]
        mistakes += missing
        if not missing:
            rows += _group(document, group)
    names = [name for row in rows for name in (row.name, *row.aliases)]
    mistakes += [f"two rows have the name {name}" for name in dict.fromkeys(names) if names.count(name) > 1]
    return rows, mistakes


def _group(document: _Document, group: _Group) -> list[Row]:
    if group.kind == "controller":
        return [_row(document, group, None, None, None)]
    newest = next(iter(document.torch))
    rows = [
        _row(document, group, variant, document.torch[version], None, newest=version == newest)
        for version in group.torch
        for variant in group.variants
    ]
    return rows + [
        _row(document, group, "ngc", document.ngc[name].torch, name, newest=name == next(iter(document.ngc)))
        for name in group.ngc
    ]


def _row(
    document: _Document,
    group: _Group,
    variant: Variant | None,
    torch: TorchRelease | None,
    ngc: str | None,
    *,
    newest: bool = False,
) -> Row:
    cuda = torch.cuda if torch is not None and variant not in (None, "cpu") else None
    builder = document.cuda_base(cuda, "devel") if cuda is not None and ngc is None else None  # NGC's has nvcc itself
    if ngc is not None:
        base = document.base[document.ngc[ngc].base]
    elif group.base is not None:
        base = document.base[group.base]
    elif cuda is not None and (runtime := document.cuda_base(cuda, "base")) is not None:
        base = runtime
    else:
        raise MatrixError(f"{_FILE}: there is no base image for {group.kind} with CUDA {cuda}")
    efa = document.efa[group.efa] if group.efa and variant == "efa" else None
    name, aliases = _names(group.kind, variant, torch, ngc, newest=newest)
    return Row(
        name=name,
        aliases=aliases,
        kind=group.kind,
        variant=variant,
        torch=torch,
        cuda=cuda,
        architectures=group.architectures or _architectures(base, torch if cuda else None, efa),
        base=base,
        builder=builder,
        compiled_base=document.plain(builder.distribution) if group.kind == "training" and builder else None,
        efa=efa,
        apt=group.apt,
        leave_out=group.leave_out,
        lock=_lock(group.lock, torch, ngc),
        nccl_tests=document.nccl_tests if group.kind == "nccl-tests" else None,
        fabric=document.ngc[ngc].fabric if ngc is not None else _verbs(base, variant),
        minimum_driver=_driver(cuda),
        note=group.note,
    )


def _verbs(base: BaseImage, variant: Variant | None) -> dict[str, str]:
    return {"rdma-core": base.rdma_core} if variant == "infiniband" and base.rdma_core else {}


def _lock(pattern: str | None, torch: TorchRelease | None, ngc: str | None) -> str | None:
    if pattern is None or torch is None:
        return pattern
    return pattern.format(torch=torch.version, nccl=torch.nccl, cuda=torch.cuda, ngc=ngc)


def _names(
    kind: Kind, variant: Variant | None, torch: TorchRelease | None, ngc: str | None, *, newest: bool
) -> tuple[str, tuple[str, ...]]:
    """Name and aliases: rows of the newest release have short ones."""
    if torch is None or variant is None:
        return kind, ()
    if ngc is not None:
        return f"ngc{ngc}", ("ngc",) if newest else ()
    fabric = "" if variant in ("cpu", "cuda") else f"-{variant}"
    if kind == "nccl-tests":
        return f"nccl-tests-cuda{torch.cuda}{fabric}", (f"nccl-tests{fabric}",) if newest else ()
    name = f"torch{torch.minor}-" + ("cpu" if variant == "cpu" else f"cuda{torch.cuda}{fabric}")
    return name, (variant,) if newest else ()


def _architectures(base: BaseImage, torch: TorchRelease | None, efa: EfaInstaller | None) -> tuple[Architecture, ...]:
    """Where all parts exist."""
    return tuple(
        name
        for name in base.architectures
        if (torch is None or name in torch.sm) and (efa is None or name in efa.architectures)
    )


def _driver(cuda: str | None) -> str | None:
    if cuda is None:
        return None
    try:
        return versions().driver_floor(cuda)
    except NotInLockError as error:
        raise MatrixError(str(error)) from None


def _broken(rows: Iterable[Row]) -> list[str]:
    from images.rules import Subject, violations  # noqa: PLC0415 - rules are about rows

    return [
        f"{row.name}, {architecture}: {one.sentence}"
        for row in rows
        for architecture in row.architectures
        for one in violations(Subject(row, architecture))
    ]


def _said(error: ValidationError) -> list[str]:
    return [f"{'.'.join(map(str, one['loc']))}: {one['msg']}" for one in error.errors()]


def _mistakes(found: list[str]) -> str:
    return "\n".join([f"{_FILE} cannot be used:", *(f"  {one}" for one in found)])
