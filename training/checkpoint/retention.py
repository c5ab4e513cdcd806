"""Which checkpoints are kept: the newest ones, every n-th step, and the best by a metric."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal


@dataclass(frozen=True, kw_only=True)
class Kept:
    """What must be known of a checkpoint to decide on it.

    Attributes:
        step: number of completed steps.
        metrics: figures saved with it, such as an accuracy.
    """

    step: int
    metrics: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Retention:
    """Rules; a checkpoint is kept when one of them wants it.

    Attributes:
        last: how many of the newest ones; at least 1, so the newest good one is never deleted.
        every: those of every so many steps, for good; 0: none.
        best: how many of the best by `metric`; 0: none.
        metric: name of the figure; checkpoints without it, or with NaN, are not among the best.
        mode: whether the greatest or the least is best.
    """

    last: int = 3
    every: int = 0
    best: int = 0
    metric: str = ""
    mode: Literal["max", "min"] = "max"

    def __post_init__(self) -> None:
        if self.last < 1:
            raise ValueError(f"at least one checkpoint must be kept, not {self.last}")
        if self.every < 0 or self.best < 0:
            raise ValueError("the numbers of steps and of checkpoints to keep cannot be negative")
        if self.mode not in {"max", "min"}:
            raise ValueError(f"the best is the 'max' or the 'min' of a metric, not the {self.mode!r}")
        if bool(self.best) != bool(self.metric):
            raise ValueError("to keep the best checkpoints, give both how many and by which metric")

    def keep(self, checkpoints: Iterable[Kept]) -> set[int]:
        """Steps of the checkpoints to keep, of some that are all known to be good."""
        newest_first = sorted(checkpoints, key=lambda checkpoint: checkpoint.step, reverse=True)
        kept = {checkpoint.step for checkpoint in newest_first[: self.last]}
        if self.every:
            kept |= {checkpoint.step for checkpoint in newest_first if checkpoint.step % self.every == 0}
        if self.best:
            measured = [
                checkpoint
                for checkpoint in newest_first
                if not math.isnan(checkpoint.metrics.get(self.metric, math.nan))
            ]
            # Of equals the newer one: the sort is stable.
            measured.sort(key=lambda checkpoint: checkpoint.metrics[self.metric], reverse=self.mode == "max")
            kept |= {checkpoint.step for checkpoint in measured[: self.best]}
        return kept
