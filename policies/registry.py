"""Collects the rules: each module of `policies.rules` is a topic and declares its rules with `Topic`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from policies.rule import Check, Rule

_declared: dict[str, Rule] = {}


class Topic:
    """The rules of one module.

    Args:
        title: heading of the topic on the reference page.
    """

    def __init__(self, title: str) -> None:
        self.title = title

    def rule(self, name: str, title: str, **rest: Any) -> Callable[[Check], Check]:
        """Declare the decorated function as the check of a rule; the arguments are the members of `Rule`.

        Raises:
            ValueError: another rule has this name.
        """

        def declare(check: Check) -> Check:
            if name in _declared:
                raise ValueError(f"two rules are called {name}")
            _declared[name] = Rule(name=name, title=title, topic=self.title, check=check, **rest)
            return check

        return declare


def declared() -> dict[str, Rule]:
    """All rules of the modules that were imported, in their order."""
    return _declared
