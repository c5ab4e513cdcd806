"""Where the keys of a YAML document stand, and which of them are wrong as keys."""

from __future__ import annotations

from typing import Any

import yaml

from infra.settings.mistakes import Location, Mistake, dotted

YAML_MISTAKES = (
    yaml.YAMLError, ValueError, TypeError, KeyError, IndexError, AttributeError, RecursionError,
)  # fmt: skip
"""What reading a YAML text may raise; PyYAML lets through what its constructors of dates and numbers raise."""


class Places:
    """The keys of a composed stack file."""

    def __init__(self) -> None:
        self.lines: dict[Location, int] = {}
        """Line (from 1) of each place, `config` included; of what several aliases name, of the first place with it."""
        self.unreadable: list[str] = []
        """What is YAML by its form and yet no document: a sentence each."""
        self._not_text: list[tuple[Location, int]] = []
        self._twice: list[tuple[Location, int, int]] = []
        self._open: set[int] = set()
        self._seen: set[int] = set()

    def add(self, node: Any, path: Location = ()) -> None:
        """Take up a composed node and all that is in it."""
        if id(node) in self._open:
            self.unreadable.append(
                f"line {node.start_mark.line + 1}: an alias (*name) stands inside what it names; write it out"
            )
        if id(node) in self._seen:
            return
        self._seen.add(id(node))
        self._open.add(id(node))
        if isinstance(node, yaml.MappingNode):
            for key, value in node.value:
                where, line = (*path, str(key.value)), key.start_mark.line + 1
                if key.tag not in ("tag:yaml.org,2002:str", "tag:yaml.org,2002:merge"):
                    self._not_text.append((where, line))
                elif where in self.lines and key.tag.endswith(":str"):
                    self._twice.append((where, self.lines[where], line))
                self.lines[where] = line
                self.add(value, where)
        elif isinstance(node, yaml.SequenceNode):
            for index, value in enumerate(node.value):
                self.lines[*path, index] = value.start_mark.line + 1
                self.add(value, (*path, index))
        elif isinstance(node, yaml.ScalarNode):
            try:
                yaml.SafeLoader("").construct_object(node)
            except YAML_MISTAKES:
                kind = node.tag.rsplit(":", 1)[-1]
                self.unreadable.append(
                    f"line {node.start_mark.line + 1}: {node.value!r} is no {kind}; put it in quotes if it is text"
                )
        self._open.remove(id(node))

    @property
    def config_lines(self) -> dict[Location, int]:
        """Line of each place, those under `config` as if they stood outside."""
        return {_in_config(path): line for path, line in self.lines.items()}

    def mistakes(self, stack: str) -> list[Mistake]:
        """Keys that are no text, and keys that are given twice."""
        edit = f"edit line {{}} of Pulumi.{stack}.yaml"
        found = [
            Mistake(dotted(_in_config(path)), "is no text; keys are text", edit.format(line), line)
            for path, line in self._not_text
        ]
        found += [
            Mistake(dotted(_in_config(path)), f"is given twice, first in line {first}", edit.format(line), line)
            for path, first, line in self._twice
        ]
        return found


def _in_config(path: Location) -> Location:
    return path[1:] if path[0] == "config" and len(path) > 1 else path
