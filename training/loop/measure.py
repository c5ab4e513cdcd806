"""Figures over held-out data: each sample once, by one of the ranks, the same numbers for every world size."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, cast

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, Subset

from training.data.cursor import rank_slice
from training.launch.elastic import World
from training.metrics.totals import merged


def measure(
    model: nn.Module,
    data: Dataset[Any],
    function: Callable[..., Mapping[str, Tensor] | None],
    *,
    num_samples: int,
    world: World,
    check: Callable[[], None],
    autocast: AbstractContextManager[None],
    batch_size: int,
    metrics: Mapping[str, Any],
    loading: Mapping[str, Any],
) -> dict[str, float]:
    """See `Loop.measure`.

    Args:
        model: in evaluation mode meanwhile, each of its modules; then as it was.
        data: gives samples by id.
        function: gets a batch; returns one number per sample for each figure, shape [batch]; or nothing.
        num_samples: how many `data` has.
        world: who computes a share each.
        check: called before each batch; ends the evaluation when this node or this world is to end.
        autocast: around the computation.
        batch_size: samples of one call.
        metrics: torchmetrics that `function` updates, by name.
        loading: options of torch's DataLoader.

    """
    for metric in metrics.values():
        metric.reset()
    mine = rank_slice(np.arange(num_samples), world.rank, world.size)
    batches = DataLoader(Subset(data, mine.tolist()), batch_size=batch_size, **loading)
    sums: dict[str, tuple[float, int]] = {}
    modes = {module: module.training for module in model.modules()}
    model.eval()
    try:
        with torch.no_grad(), autocast:
            for batch in batches if len(mine) else ():
                check()
                figures = function(*_arguments(on_device(batch, world.device)))
                for name, values in (figures or {}).items():
                    total, count = sums.get(name, (0.0, 0))
                    sums[name] = (total + values.double().sum().item(), count + values.numel())
    finally:  # a new world may come in between
        for module, was_training in modes.items():
            module.training = was_training
    means = _means(sums)
    for name, metric in metrics.items():
        value = merged(metric)
        if value.numel() == 1:
            means[name] = float(value)
    return means


def size_of(data: Dataset[Any]) -> int:
    """How many samples there are.

    Raises:
        ValueError: nobody knows, as of a stream.
    """
    try:
        return len(cast("Sequence[Any]", data))
    except TypeError:
        raise ValueError(
            f"{type(data).__name__} has no length, so nobody can say which samples a step has, nor go on behind them "
            "after a change. Read it shard by shard: training.data.shards.ShardedDataset, whose `count_shards` counts "
            "the samples once; or give a data set that has `__len__` and `__getitem__`"
        ) from None


def on_device(batch: Any, device: torch.device) -> Any:
    """Move what is a tensor; from pinned memory without waiting."""
    if isinstance(batch, Tensor):
        return batch.to(device, non_blocking=True)
    if isinstance(batch, Mapping):
        return {key: on_device(value, device) for key, value in batch.items()}
    if isinstance(batch, list | tuple):
        moved = [on_device(value, device) for value in batch]
        return type(batch)(*moved) if hasattr(batch, "_fields") else type(batch)(moved)
    return batch


def _arguments(batch: Any) -> tuple[Any, ...]:
    return tuple(batch) if isinstance(batch, list | tuple) else (batch,)


def _means(sums: Mapping[str, tuple[float, int]]) -> dict[str, float]:
    """Means over the ranks; one that had no samples does not know the names."""
    parts: list[Any] = [sums]
    if dist.get_world_size() > 1:
        parts = [None] * dist.get_world_size()
        dist.all_gather_object(parts, sums)
    totals: dict[str, tuple[float, int]] = {}
    for part in parts:
        for name, (total, count) in part.items():
            before = totals.get(name, (0.0, 0))
            totals[name] = (before[0] + total, before[1] + count)
    return {name: total / count for name, (total, count) in totals.items()}
