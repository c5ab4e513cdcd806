"""Learning rates that follow samples or tokens instead of steps.

Torch's schedulers count steps. With a constant global batch that is the same; a run whose global batch is changed on
purpose, or whose batches hold unlike numbers of tokens, keeps its course only if it counts what the model has seen.
"""

import math
from collections.abc import Callable
from typing import Any, Literal

from torch.optim import Optimizer


class Schedule:
    """Sets the learning rates of an optimizer by how much has been seen.

    Args:
        optimizer: whose groups' `lr` of now are the basis.
        factor: from samples (or tokens) seen to the factor for the learning rates.
        unit: what is counted.
    """

    def __init__(
        self, optimizer: Optimizer, factor: Callable[[float], float], *, unit: Literal["samples", "tokens"] = "samples"
    ) -> None:
        if unit not in {"samples", "tokens"}:
            raise ValueError(f"a schedule counts samples or tokens, not {unit!r}")
        self.unit = unit
        self._optimizer = optimizer
        self._factor = factor
        self._base = [float(group["lr"]) for group in optimizer.param_groups]
        self._seen = 0
        self._set()

    def advance(self, *, samples: int, tokens: int) -> None:
        """So much has been seen since the last call."""
        self._seen += samples if self.unit == "samples" else tokens
        self._set()

    def state_dict(self) -> dict[str, Any]:
        """For the checkpoint."""
        return {"unit": self.unit, "seen": self._seen, "base": list(self._base)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """The reverse.

        Raises:
            ValueError: it counted something else.
        """
        if state["unit"] != self.unit:
            raise ValueError(f"the checkpoint's schedule counts {state['unit']}, this one {self.unit}")
        self._seen = int(state["seen"])
        self._base = [float(rate) for rate in state["base"]]
        self._set()

    def _set(self) -> None:
        factor = self._factor(self._seen)
        for group, base in zip(self._optimizer.param_groups, self._base, strict=True):
            group["lr"] = base * factor


def cosine_after_warmup(*, warmup: float, total: float, floor: float = 0.0) -> Callable[[float], float]:
    """Factor that grows from 0 to 1 over `warmup`, then falls to `floor` at `total` along half a cosine.

    Args:
        warmup: samples or tokens, as the schedule counts.
        total: the same; beyond it the factor stays at `floor`.
        floor: the last factor.

    Raises:
        ValueError: the warm-up is longer than the whole.
    """
    if not 0 <= warmup < total:
        raise ValueError(f"a warm-up of {warmup:g} does not fit into {total:g}")

    def factor(seen: float) -> float:
        if seen < warmup:
            return seen / warmup
        progress = min(1.0, (seen - warmup) / (total - warmup))
        return floor + (1 - floor) * 0.5 * (1 + math.cos(math.pi * progress))

    return factor
