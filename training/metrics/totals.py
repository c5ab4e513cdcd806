"""Metrics of torchmetrics (or with their surface) over all ranks, through every change of the world.

What a metric has gathered on one rank means nothing once ranks come and go. So while training the gathered state is
nobody's own: each step's part is summed over the ranks with the reduction that ends the step, and added to totals that
all ranks hold, that travel to newcomers and go into checkpoints. A step that is interrupted leaves nothing behind; a
step that is made again is counted once. That works for states that are sums (accuracy, mean error, confusion matrices);
a metric that collects all predictions (AUROC) is for evaluation, where `merged` puts the ranks' states together.
"""

import copy
from collections.abc import Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor


class Totals:
    """What some metrics have gathered over all ranks since the last reset; part of the training's state.

    Args:
        metrics: by name; the script calls their `update` with each micro-batch.

    Raises:
        ValueError: a metric whose state is not a sum.
    """

    def __init__(self, metrics: Mapping[str, Any]) -> None:
        self.metrics = dict(metrics)
        for name, metric in self.metrics.items():
            for state, reduction in metric._reductions.items():  # noqa: SLF001  (torchmetrics has no public name for it)
                if getattr(reduction, "__name__", "") != "dim_zero_sum":
                    raise ValueError(
                        f"metric '{name}' cannot be kept while training: its state '{state}' is not a sum over "
                        "samples; use it in the evaluation (loop.measure)"
                    )
            metric.reset()
        self._totals = {name: _zeros(metric) for name, metric in self.metrics.items()}

    def part(self) -> Tensor:
        """What this rank adds to the totals, flat, in float64; counts stay exact up to 2**53."""
        parts = [
            value.detach().to("cpu", torch.float64).flatten()
            for metric in self.metrics.values()
            for value in metric.metric_state.values()
        ]
        return torch.cat(parts) if parts else torch.zeros(0, dtype=torch.float64)

    def forget(self) -> None:
        """Drop what this rank has gathered since the last step: it has been added, or must not be."""
        for metric in self.metrics.values():
            metric.reset()

    def add(self, sums: Tensor) -> None:
        """Add the parts of all ranks, summed."""
        position = 0
        for states in self._totals.values():
            for state in states.values():
                state.add_(sums[position : position + state.numel()].cpu().reshape(state.shape))
                position += state.numel()

    def compute(self) -> dict[str, Any]:
        """The metrics' values over everything since the last reset."""
        values = {}
        for name, metric in self.metrics.items():
            whole = copy.deepcopy(metric)
            whole.reset()
            for state, total in self._totals[name].items():
                old = getattr(whole, state)
                setattr(whole, state, total.to(old.device, old.dtype))
            values[name] = _computed(whole)
        return values

    def reset(self) -> None:
        """Begin anew; all ranks call it."""
        self.forget()
        for states in self._totals.values():
            for state in states.values():
                state.zero_()

    def state_dict(self) -> dict[str, Any]:
        """For the checkpoint and for newcomers."""
        return {f"{name}.{state}": total for name, states in self._totals.items() for state, total in states.items()}

    def load_state_dict(self, saved: Mapping[str, Any]) -> None:
        """The reverse."""
        for name, states in self._totals.items():
            for state, total in states.items():
                total.copy_(saved[f"{name}.{state}"])


def merged(metric: Any) -> Any:
    """The value of a metric over what all ranks have gathered, the same on all ranks.

    Ranks may have gathered unlike amounts, also nothing. All ranks call it.
    """
    states: list[Any] = [_on_cpu(metric.metric_state)]
    if dist.is_initialized() and dist.get_world_size() > 1:
        states = [None] * dist.get_world_size()
        dist.all_gather_object(states, _on_cpu(metric.metric_state))
    whole = copy.deepcopy(metric).cpu()
    whole.reset()
    for name in whole.metric_state:
        parts = [state[name] for state in states]
        if isinstance(parts[0], list):
            setattr(whole, name, [item for part in parts for item in part])
        else:
            reduction = whole._reductions[name]  # noqa: SLF001
            setattr(whole, name, reduction(torch.stack(parts)))
    return _computed(whole)


def _computed(metric: Any) -> Any:
    """Its value, of its own state alone: that is the whole already."""
    metric.distributed_available_fn = lambda: False
    metric._update_count = 1  # noqa: SLF001  (else it warns that nothing was gathered)
    return metric.compute()


def _zeros(metric: Any) -> dict[str, Tensor]:
    return {name: torch.zeros(value.shape, dtype=torch.float64) for name, value in metric.metric_state.items()}


def _on_cpu(state: Mapping[str, Any]) -> dict[str, Any]:
    return {
        name: [item.cpu() for item in value] if isinstance(value, list) else value.cpu()
        for name, value in state.items()
    }
