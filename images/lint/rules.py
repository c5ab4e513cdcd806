"""All rules, in the order in which the reference page has them."""

from __future__ import annotations

from types import ModuleType

from images.lint import (
    bases,
    claims,
    entrypoints,
    environment,
    fabric,
    labels,
    packages,
    python_packages,
    reproducibility,
    secrets,
    stages,
    users,
)
from images.lint.rule import Rule

TOPICS: dict[str, ModuleType] = {
    "Base images": bases,
    "Stages and copies": stages,
    "User": users,
    "Entrypoint": entrypoints,
    "Secrets": secrets,
    "Environment": environment,
    "Packages and downloads": packages,
    "Fabric and NCCL": fabric,
    "Python packages": python_packages,
    "Reproducibility": reproducibility,
    "Labels": labels,
    "What the row claims": claims,
}


def of(module: ModuleType) -> tuple[Rule, ...]:
    """The rules of a topic, as they stand in its file."""
    return tuple(value for value in vars(module).values() if isinstance(value, Rule))


RULES: tuple[Rule, ...] = tuple(rule for module in TOPICS.values() for rule in of(module))
