"""Prometheus' text format: the little of it that the controller needs."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
"""Upper bounds of the buckets of durations."""
LONGEST_LABEL = 64
"""Characters of a label's value; some come from what others write into the status of pods."""


class Histogram:
    """How long something took, counted by upper bounds."""

    def __init__(self, name: str, text: str) -> None:
        self._name = name
        self._text = text
        self._counts = [0] * len(SECONDS)
        self.number = 0
        self.sum = 0.0

    def observe(self, seconds: float) -> None:
        """Counts one."""
        self.number += 1
        self.sum += seconds
        for index, bound in enumerate(SECONDS):
            if seconds <= bound:
                self._counts[index] += 1

    def __str__(self) -> str:
        buckets = [f'{self._name}_bucket{{le="{bound}"}} {n}' for bound, n in zip(SECONDS, self._counts, strict=True)]
        lines = [
            f"# HELP {self._name} {self._text}",
            f"# TYPE {self._name} histogram",
            *buckets,
            f'{self._name}_bucket{{le="+Inf"}} {self.number}',
            f"{self._name}_sum {self.sum}",
            f"{self._name}_count {self.number}",
        ]
        return "\n".join(lines) + "\n"


class TimeBelow:
    """For how long something was too little, for each of many keys; the sum of all is what counts.

    Args:
        clock: seconds that only go forward.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._since: dict[str, float] = {}
        self._over = 0.0

    def __len__(self) -> int:
        """Keys for which it is too little now."""
        return len(self._since)

    def note(self, key: str, *, below: bool) -> None:
        """Says how it stands for a key."""
        if below:
            self._since.setdefault(key, self._clock())
        elif (since := self._since.pop(key, None)) is not None:
            self._over += self._clock() - since

    def forget_all(self) -> None:
        """Whoever looks after the keys from here on counts on."""
        for key in list(self._since):
            self.note(key, below=False)

    @property
    def seconds(self) -> float:
        """The sum so far, with what goes on."""
        now = self._clock()
        return self._over + sum(now - since for since in self._since.values())


def label(name: str, value: str) -> str:
    """A label, whatever its value holds."""
    escaped = value[:LONGEST_LABEL].replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
    return f'{name}="{escaped}"'


def metric(name: str, kind: str, text: str, values: Mapping[str, float]) -> str:
    """A gauge or counter; `values` by labels, as `phase="Running"`, or by the empty string."""
    head = f"# HELP {name} {text}\n# TYPE {name} {kind}\n"
    return head + "".join(f"{name}{{{labels}}} {n}\n" if labels else f"{name} {n}\n" for labels, n in values.items())
