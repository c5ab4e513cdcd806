"""Where benchmarks write what they have measured: sections of docs/benchmarks.md between two comments."""

import os
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import torch

DOCS: Final = Path(__file__).parents[1] / "docs/benchmarks.md"


def measured() -> str:
    """On what the figures were measured, and beside how much other work."""
    version, load = torch.__version__.partition("+")[0], os.getloadavg()[1]
    return f"Measured on {datetime.now(UTC):%Y-%m-%d}, {os.cpu_count()} cores, torch {version}, load {load:.0f}"


def write_section(name: str, text: str) -> None:
    """Replace a section, which begins with `<!-- NAME: ... -->` and ends with `<!-- end of NAME -->`."""
    head, begin, rest = DOCS.read_text(encoding="utf-8").partition(f"<!-- {name}: ")
    rest, end, tail = rest.partition(f"<!-- end of {name} -->")
    assert end, f"{DOCS} has no section {name}"
    first = rest.partition("\n")[0]
    DOCS.write_text(f"{head}{begin}{first}\n{text}\n{end}{tail}", encoding="utf-8")
