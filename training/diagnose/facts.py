"""What was built: the facts that an image carries, and where they lie."""

import json
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

FILE: Final = "/etc/trainyard/image.json"
VARIABLE: Final = "TRAINYARD_IMAGE_FACTS"
"""Names another file."""


class FactsError(Exception):
    """There are no facts, or they cannot be read; the message is for the user."""


@dataclass(frozen=True)
class Facts:
    """What of `image.json` the check compares. None: the image has no such part."""

    row: str
    variant: str | None = None
    torch: str | None = None
    cuda: str | None = None
    nccl: str | None = None
    minimum_driver: str | None = None
    sm: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """GPU code by container architecture (`amd64`)."""
    plugin: str | None = None
    """Version of aws-ofi-nccl."""
    plugin_files: dict[str, str] = field(default_factory=dict)
    """Its path by container architecture; empty where it is the base image's own."""


def path() -> Path | None:
    """The file of this image; None outside of images."""
    found = Path(os.environ.get(VARIABLE) or FILE)
    return found if found.is_file() else None


def read(file: Path) -> Facts:
    """Read the facts.

    Raises:
        FactsError: the file is damaged.
    """
    try:
        document: dict[str, Any] = json.loads(file.read_bytes())
        plugin = document.get("plugin") or {}
        return Facts(
            row=str(document["row"]),
            variant=document.get("variant"),
            torch=document.get("torch"),
            cuda=document.get("cuda"),
            nccl=document.get("nccl"),
            minimum_driver=document.get("minimum_driver"),
            sm={name: tuple(codes) for name, codes in (document.get("sm") or {}).items()},
            plugin=plugin.get("version"),
            plugin_files=dict(plugin.get("files") or {}),
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise FactsError(f"{file} cannot be read, so nothing is compared with it: {error}") from error
