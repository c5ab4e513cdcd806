"""The commands that pages show: all of them, and those that are marked to be run."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent
PAGES = [*sorted((ROOT / "docs").rglob("*.md")), ROOT / "README.md"]
_BLOCK = re.compile(
    r"^(?:<!-- (?P<mark>run[^>]*?) -->\n)?(?P<indent> *)```(?P<language>\w*)\n(?P<text>.*?)^ *```$",
    re.MULTILINE | re.DOTALL,
)


@dataclass(frozen=True)
class Block:
    """A fenced block."""

    page: str
    language: str
    mark: str
    """`run`: by itself; `run on a stack`: on a local stack; empty: it is only shown."""
    lines: tuple[str, ...]
    """Commands: continued lines are one, comments are gone."""


def blocks() -> Iterator[Block]:
    """All fenced blocks of commands, of all pages."""
    for page in PAGES:
        for found in _BLOCK.finditer(page.read_text(encoding="utf-8")):
            if found["language"] in {"", "sh", "bash", "console"}:
                text = found["text"].replace("\\\n", " ")
                lines = [line.strip().removeprefix("$ ") for line in text.splitlines()]
                told = tuple(re.sub(r"\s+#\s.*$", "", line) for line in lines if line and line[0] != "#")
                yield Block(str(page.relative_to(ROOT)), found["language"], found["mark"] or "", told)


def marked(mark: str) -> list[Block]:
    """Blocks that are to be run, in the order of the pages."""
    return [block for block in blocks() if block.mark == mark]
