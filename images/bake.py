"""The file by which `docker buildx bake` builds rendered contexts, all or some of them, for all their architectures."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from images.context import Context
from images.source import project_version


def bake(contexts: Mapping[str, Context]) -> dict[str, Any]:
    """The file for `docker buildx bake`, to be run from the folder in which the contexts lie.

    Args:
        contexts: by the names of their folders.
    """
    targets = {_target(name): _bake_target(name, context) for name, context in contexts.items()}
    return {
        "group": {"default": {"targets": list(targets)}},
        "variable": {
            "REPOSITORY": {"default": "trainyard"},
            "VERSION": {"default": project_version()},
            "REVISION": {"default": ""},
            "SOURCE_DATE_EPOCH": {"default": "0"},
            "CREATED": {"default": "1970-01-01T00:00:00Z"},
        },
        "target": targets,
    }


def _target(name: str) -> str:
    """Names of targets cannot have dots."""
    return re.sub(r"[^A-Za-z0-9_-]", "-", name)


def _bake_target(name: str, context: Context) -> dict[str, Any]:
    row = context.row
    tag = row.name.removeprefix("nccl-tests-") if row.kind != "controller" else "${VERSION}"
    return {
        "context": name,
        "dockerfile": "Dockerfile",
        "target": "image",
        "platforms": [f"linux/{one}" for one in row.architectures],
        "tags": [f"${{REPOSITORY}}/{row.kind}:{tag}"],
        "args": {one: f"${{{one}}}" for one in ("VERSION", "REVISION", "SOURCE_DATE_EPOCH", "CREATED")},
        "attest": ["type=provenance,mode=max", "type=sbom"],
        "output": ["type=image,rewrite-timestamp=true"],
    }
