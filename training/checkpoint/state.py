"""The whole state of a training: what to save, and how it is put back.

    parts = {"model": model, "optimizer": optimizer, "scheduler": scheduler, "scaler": scaler}
    state = gather(parts, step=step, cursor=cursor, generation=generation, world_size=world_size)
    ...
    restore(parts, checkpoint.load(device), cursor=cursor, world_size=world_size)

A part is anything with `state_dict` and `load_state_dict`: also a metric, an average of the weights, a data source.

`restore` looks before it changes anything: torch loads weights of another type silently, and an optimizer of another
model with an error that names nothing. Random numbers need no state where `training.data.seeding.seed_step` is called
before each step. For who does not call it, the generators of a training with one worker are saved; those of several
workers are not, because in another world there is nobody to whom they belong.
"""

import random
from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from training.data.cursor import SampleCursor
from training.data.stock import StockCursor

_OWN = ("step", "generation", "world_size", "cursor", "random")
_MAX_NAMED = 5


class Part(Protocol):
    """What has a state."""

    def state_dict(self) -> Any:
        """The state: tensors, numbers, texts and containers of them."""

    def load_state_dict(self, state: Any, /) -> Any:
        """Take a state over."""


class MismatchError(ValueError):
    """The checkpoint is not of this training; the message says in what they differ."""


def gather(
    parts: Mapping[str, Part],
    *,
    step: int,
    cursor: SampleCursor | StockCursor,
    generation: int = 0,
    world_size: int = 1,
) -> dict[str, Any]:
    """The state of a training, ready to be saved.

    Args:
        parts: by name.
        step: number of completed steps.
        cursor: the order of the data.
        generation: number of the world.
        world_size: number of workers.

    Raises:
        ValueError: a part's name is taken.
    """
    if taken := set(parts) & set(_OWN):
        raise ValueError(f"no part can be called {', '.join(sorted(taken))}")
    return {
        "step": step,
        "generation": generation,
        "world_size": world_size,
        "cursor": cursor.fingerprint(),
        "random": _generators() if world_size == 1 else {},
        **{name: part.state_dict() for name, part in parts.items()},
    }


def restore(
    parts: Mapping[str, Part],
    state: Mapping[str, Any],
    *,
    cursor: SampleCursor | StockCursor,
    world_size: int = 1,
) -> int:
    """Put a state back.

    Args:
        parts: by the names with which they were saved.
        state: from `Checkpoint.load`.
        cursor: the order of the data.
        world_size: number of workers now; may be another than then.

    Returns:
        The number of completed steps.

    Raises:
        MismatchError: it is of another model, of other data, or lacks a part. Nothing has been changed then.
    """
    missing = [name for name in (*_OWN, *parts) if name not in state]
    if missing:
        raise MismatchError(f"the checkpoint has no {', '.join(missing)}: it holds {', '.join(map(str, state))}")
    try:
        cursor.check(state["cursor"])
    except ValueError as error:
        raise MismatchError(str(error)) from error
    for name, part in parts.items():
        _compare(name, part.state_dict(), state[name])
    for name, part in parts.items():
        part.load_state_dict(state[name])
    if world_size == state["world_size"] == 1:
        _set_generators(state["random"])
    return int(state["step"])


def _compare(part: str, ours: Any, saved: Any) -> None:
    """Tensors must be the same ones; an optimizer's groups must be, for it may not have made its tensors yet."""
    if not isinstance(ours, Mapping) or not isinstance(saved, Mapping):
        return
    mine = {name: value for name, value in ours.items() if isinstance(value, Tensor)}
    theirs = {name: value for name, value in saved.items() if isinstance(value, Tensor)}
    differences = [f"{name} is missing in it" for name in mine if name not in theirs]
    differences += [f"{name} is only in it" for name in theirs if name not in mine and mine]
    for name in mine.keys() & theirs.keys():
        if mine[name].shape != theirs[name].shape:
            differences.append(f"{name} has shape {list(theirs[name].shape)} in it and {list(mine[name].shape)} here")
        elif mine[name].dtype != theirs[name].dtype:
            differences.append(f"{name} is {theirs[name].dtype} in it and {mine[name].dtype} here")
    groups = [[len(group["params"]) for group in side.get("param_groups", [])] for side in (ours, saved)]
    if groups[0] != groups[1]:
        differences.append(f"its groups have {groups[1]} parameters and {groups[0]} here")
    if differences:
        more = len(differences) - _MAX_NAMED
        text = "; ".join(sorted(differences)[:_MAX_NAMED]) + (f"; and {more} more" if more > 0 else "")
        raise MismatchError(f"the checkpoint is of another {part}: {text}")


def _generators() -> dict[str, Any]:
    name, keys, *rest = np.random.get_state()
    return {
        "python": random.getstate(),
        "numpy": (name, torch.from_numpy(np.asarray(keys).astype(np.int64)), *rest),
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state_all() if torch.cuda.is_available() else [],
    }


def _set_generators(saved: Mapping[str, Any]) -> None:
    random.setstate(saved["python"])
    name, keys, *rest = saved["numpy"]
    np.random.set_state((name, keys.cpu().numpy().astype(np.uint32), *rest))
    torch.set_rng_state(saved["torch"].cpu())
    if saved["cuda"] and torch.cuda.is_available():
        torch.cuda.set_rng_state_all([state.cpu() for state in saved["cuda"]])
