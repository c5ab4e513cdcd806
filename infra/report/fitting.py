"""Fits sections into a limit of characters: what matters most is kept, and what was left out is said."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field


@dataclass
class Section:
    """A part of a report made of items, each of which can be left out by itself."""

    title: str
    """A heading, or of a folded section what is to be seen of it; no name of the user's is in it."""
    importance: int
    """0 matters most."""
    items: list[str]
    noun: str
    """What an item is: `changes`."""
    head: str = ""
    """Before the items: a table's head, the opening of a block."""
    tail: str = ""
    folded: bool = False
    whole: bool = False
    """Its items make sense only together."""
    share: float = 1.0
    """The part of the room that it may take before everything else had its turn."""
    kept: int = field(default=0, init=False)

    def render(self) -> str:
        """The section with the items that are kept; empty where nothing is."""
        left_out = len(self.items) - self.kept
        if self.items and not self.kept:
            return self._framed(f"{_left_out(left_out, self.noun, some=False)}\n")
        body = [self.head, *self.items[: self.kept], self.tail]
        text = "\n".join(part for part in body if part)
        if left_out:
            text += f"\n\n{_left_out(left_out, self.noun, some=True)}"
        return self._framed(text + "\n")

    def _framed(self, text: str) -> str:
        if not self.title:
            return text
        if not self.folded:
            return f"### {self.title}\n\n{text}"
        return f"<details>\n<summary>{self.title}</summary>\n\n{text}\n</details>\n"

    @property
    def frame(self) -> int:
        """Characters that it takes whatever is kept, its remark on what was left out included."""
        return len(self._framed("")) + len(self.head) + len(self.tail) + len(self.noun) + 60


def fit(sections: Sequence[Section], room: int) -> list[str]:
    """Sections as text, in their order, within a limit.

    Args:
        sections: in the order in which they are shown.
        room: the most characters of all of them and the line ends between.

    Returns:
        The nouns and numbers of what was left out: `1,200 changes`.
    """
    by_importance = sorted(sections, key=lambda one: one.importance)
    free = room - sum(section.frame + 1 for section in sections)
    for last in (False, True):  # first everybody's share, then what is left over
        for section in by_importance:
            most = free if last else min(free, int(room * section.share))
            taken = 0
            if section.whole and sum(len(item) + 1 for item in section.items) > most:
                continue
            while section.kept < len(section.items):
                size = len(section.items[section.kept]) + 1
                if taken + size > most:
                    break
                taken += size
                section.kept += 1
            free -= taken
    return [
        f"{len(section.items) - section.kept:,} {section.noun}"
        for section in by_importance
        if section.kept < len(section.items)
    ]


def _left_out(number: int, noun: str, *, some: bool) -> str:
    return f"_… and {number:,} more {noun}_" if some else f"_{number:,} {noun} left out for want of room_"
