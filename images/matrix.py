"""What can be built: torch, CUDA, fabric and base image by row, and the row that fits a machine.

The data is in `matrix.toml`, each value with its source; `rows.py` says what a row is, `rules.py` which combinations
work, and why. A declared row that breaks a rule does not load; a wanted combination that breaks rules is refused with a
sentence for each.
"""

from __future__ import annotations

import difflib
import functools
import tomllib
from collections.abc import Iterable
from dataclasses import dataclass
from importlib import resources
from typing import Any, Literal

from pydantic import Field, ValidationError, model_validator

from images.errors import MatrixError
from images.rows import (
    LOCKS,
    MACHINES,
    Architecture,
    BaseImage,
    Data,
    EfaInstaller,
    Kind,
    NcclTests,
    Row,
    Sourced,
    TorchRelease,
    Variant,
    Version,
)
from images.rules import Subject, violations
from infra.catalog.ranges import numbers
from infra.catalog.versions import NotInLockError, versions

__all__ = ["LOCKS", "MACHINES", "Architecture", "BaseImage", "Kind", "Matrix", "Row", "Variant", "load", "matrix"]

_FILE = "images/matrix.toml"


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


class _Ngc(Sourced):
    """An image of NGC with what it brings."""

    base: str
    torch: TorchRelease
    fabric: dict[str, Version] = Field(default_factory=dict)


class _Group(Data):
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


class _Document(Data):
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
