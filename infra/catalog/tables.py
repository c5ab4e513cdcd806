"""Reads the TOML files of this folder."""

from __future__ import annotations

import functools
import tomllib
from importlib import resources
from typing import Any


@functools.cache
def table(name: str) -> dict[str, Any]:
    """The data of `infra/catalog/<name>.toml`; read once, not to be changed by callers."""
    return tomllib.loads(resources.files("infra.catalog").joinpath(f"{name}.toml").read_text(encoding="utf-8"))
