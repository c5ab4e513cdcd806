"""Which module of the double holds a resource type."""

from __future__ import annotations

import importlib
from functools import cache

from infra.rehearsal.double.kind import Kind
from infra.rehearsal.double.validation import model

_NETWORK = ("ec2", "security_groups", "launch_templates")
MODULES: dict[str, tuple[str, ...]] = {
    "ec2": _NETWORK,
    "vpc": _NETWORK,
    "eks": ("eks", "node_groups", "eks_parts"),
    "iam": ("iam",),
    "kms": ("kms",),
    "cloudwatch": ("logs",),
    "s3": ("s3",),
    "fsx": ("fsx",),
    "efs": ("efs",),
    "ecr": ("ecr",),
    "budgets": ("budgets",),
}
"""Pulumi's module of a type -> the files here. Each file lists its types in `KINDS`."""
_MODELS = ("ec2", "eks", "iam", "kms", "logs", "s3", "fsx", "efs", "ecr", "budgets")


class UnknownTypeError(Exception):
    """The double has no such type; the message names the file to extend."""


def kind_of(token: str) -> Kind:
    """The kind of a type token, e.g. `aws:ec2/vpc:Vpc`.

    Raises:
        UnknownTypeError: there is none.
    """
    service = token.removeprefix("aws:").split("/")[0]
    if (files := MODULES.get(service)) is None:
        raise UnknownTypeError(
            f"the rehearsal's AWS does not know {token}: write a Kind for it in infra/rehearsal/double/{service}.py"
            " and name that file in infra/rehearsal/double/registry.py"
        )
    for file in files:
        if kind := _kinds(file).get(token):
            return kind
    raise UnknownTypeError(
        f"the rehearsal's AWS does not know {token}: write a Kind for it in infra/rehearsal/double/{files[0]}.py"
    )


def prepare() -> None:
    """Load all types and the models of their services ahead of the first request.

    At the start the engine waits for the program anyway; later it would wait for this.
    """
    for files in MODULES.values():
        for file in files:
            _kinds(file)
    for service in _MODELS:
        model(service)


@cache
def _kinds(file: str) -> dict[str, Kind]:
    kinds: tuple[Kind, ...] = importlib.import_module(f"infra.rehearsal.double.{file}").KINDS
    return {kind.token: kind for kind in kinds}
