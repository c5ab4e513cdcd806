"""Reads properties of resources without ever failing: absent and wrongly typed members are nothing, unknown is said.

During a preview many values are not known yet. A rule that needs one cannot judge; a rule that only wants to know
whether a member is set can. So reading an unknown value raises `UnknownMemberError`, which `policies.rule.judge` turns
into "cannot be judged before up", and asking whether it is there does not.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Mapping, Sequence
from typing import Any, Final

UNKNOWN: Final = type("Unknown", (), {"__repr__": lambda _: "UNKNOWN"})()
"""Stands in raw properties for what is known only after `up`."""
_WORDS = {"true": True, "false": False}


class UnknownMemberError(Exception):
    """A value was asked for that is known only after `up`."""

    def __init__(self, path: str) -> None:
        super().__init__(f"{path or 'a value'} is unknown")
        self.path = path


class Value:
    """A value somewhere in the properties of a resource, or its absence.

    Args:
        raw: plain data: mappings, lists, text, numbers, booleans, `UNKNOWN`; None where there is nothing.
        path: where it is: `vpcConfig.publicAccessCidrs[0]`.
    """

    __slots__ = ("_inherited", "path", "raw")

    def __init__(self, raw: Any, path: str = "", *, inherited: bool = False) -> None:
        self.raw = raw
        self.path = path
        self._inherited = inherited  # unknown because of what it is in: it may as well be absent

    def __repr__(self) -> str:
        return f"Value({self.raw!r}, {self.path!r})"

    def at(self, *keys: str) -> Value:
        """The member under a path of keys. A list of one mapping may stand for the mapping, as bridged providers do."""
        value = self
        for key in keys:
            path = f"{value.path}.{key}" if value.path else key
            raw = value.raw
            if raw is UNKNOWN:
                value = Value(UNKNOWN, path, inherited=True)
                continue
            if isinstance(raw, Sequence) and not isinstance(raw, str) and len(raw) == 1:
                raw = raw[0]
            value = Value(raw.get(key) if isinstance(raw, Mapping) else None, path)
        return value

    @property
    def is_set(self) -> bool:
        """Whether there is something; a value that is unknown counts, as long as what it is in is known.

        Raises:
            UnknownMemberError: what it is in is unknown.
        """
        if self.raw is UNKNOWN and self._inherited:
            raise UnknownMemberError(self.path)
        return self.raw is not None

    @property
    def is_unknown(self) -> bool:
        """Whether it is known only after `up`."""
        return self.raw is UNKNOWN

    def _known(self) -> Any:
        if self.raw is UNKNOWN:
            raise UnknownMemberError(self.path)
        return self.raw

    def text(self) -> str:
        """The text; empty where there is none."""
        raw = self._known()
        return raw if isinstance(raw, str) else ""

    def number(self) -> float | None:
        """The number, also of a text that is one; None where there is none, or one that nobody can reckon with."""
        raw = self._known()
        if isinstance(raw, int | float | str) and not isinstance(raw, bool):
            with contextlib.suppress(ValueError, OverflowError):
                return number if math.isfinite(number := float(raw)) else None
        return None

    def flag(self) -> bool | None:
        """The truth value, also of the texts `true` and `false`; None where there is none."""
        raw = self._known()
        if isinstance(raw, bool):
            return raw
        return _WORDS.get(raw) if isinstance(raw, str) else None

    def items(self) -> list[Value]:
        """The elements of a list; a mapping is a list of one, everything else an empty list."""
        raw = self._known()
        if isinstance(raw, Mapping):
            return [self]
        if isinstance(raw, Sequence) and not isinstance(raw, str):
            return [Value(one, f"{self.path}[{index}]") for index, one in enumerate(raw)]
        return []

    def members(self) -> dict[str, Value]:
        """The members of a mapping; everything else has none."""
        raw = self._known()
        if not isinstance(raw, Mapping):
            return {}
        return {str(key): Value(one, f"{self.path}.{key}" if self.path else str(key)) for key, one in raw.items()}

    def texts(self) -> list[str]:
        """The texts in a list; a single text is a list of one."""
        if isinstance(self.raw, str):
            return [self.raw]
        return [one.text() for one in self.items() if one.is_unknown or isinstance(one.raw, str)]
