"""DistributedDataParallel and its options: what goes over the wire, when, and how long the step waits for it.

Measured effects are in docs/benchmarks.md (`benchmarks/ddp_options.py`).
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, Literal

import torch
from torch import nn
from torch.distributed import GradBucket  # type: ignore[attr-defined]
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

_Hook = Callable[[Any, GradBucket], torch.futures.Future[torch.Tensor]]

# PowerSGD's error feedback needs some steps of plain gradients first; torch asks for at least 2.
LEAST_POWERSGD_START: Final = 2


@dataclass(frozen=True, kw_only=True)
class DdpOptions:
    """How gradients are exchanged.

    Attributes:
        bucket_mb: gradients travel in portions of about so many MiB; larger ones cost fewer messages, smaller ones
            begin to travel earlier in the backward pass.
        compress: `bf16` and `fp16` halve the bytes and round each gradient; `powersgd` sends a low-rank approximation,
            whose error is kept by each rank for its next step. What is rounded depends on the number of workers, so the
            model is then no longer the same for every world; and a new world begins with an error of nothing.
        powersgd_rank: rank of the approximation.
        powersgd_start: steps with plain gradients at the beginning of each world.
        static_graph: promise that every step uses the same parameters; saves the search for unused ones.
        find_unused_parameters: search after each forward pass for parameters that get no gradient.
        broadcast_buffers: rank 0's buffers (batch-norm statistics) are everybody's in each forward pass.

    Raises:
        ValueError: values that make no sense, by name.
    """

    bucket_mb: float = 25.0
    compress: Literal["none", "bf16", "fp16", "powersgd"] = "none"
    powersgd_rank: int = 1
    powersgd_start: int = 10
    static_graph: bool = False
    find_unused_parameters: bool = False
    broadcast_buffers: bool = True

    def __post_init__(self) -> None:
        if self.bucket_mb <= 0:
            raise ValueError(f"bucket_mb must be more than 0, not {self.bucket_mb}")
        if self.compress not in {"none", "bf16", "fp16", "powersgd"}:
            raise ValueError(f"compress must be none, bf16, fp16 or powersgd, not {self.compress!r}")
        if self.powersgd_rank < 1:
            raise ValueError(f"powersgd_rank must be at least 1, not {self.powersgd_rank}")
        if self.powersgd_start < LEAST_POWERSGD_START:
            raise ValueError(f"powersgd_start must be at least {LEAST_POWERSGD_START}, not {self.powersgd_start}")


class Exchange:
    """When the last portion of gradients of a backward pass was handed over: from then on the step only waits."""

    def __init__(self) -> None:
        self._handed_over: float | None = None

    def waited_until(self, end: float) -> float:
        """Seconds between the last portion and `end`; 0 if nothing was exchanged. Forgets it."""
        begin, self._handed_over = self._handed_over, None
        return 0.0 if begin is None else max(0.0, end - begin)

    def timed(self, hook: _Hook) -> _Hook:
        """The hook, noting when it is called."""

        def timed(state: Any, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
            self._handed_over = time.perf_counter()
            return hook(state, bucket)

        # DDP looks at the types of a hook's arguments.
        timed.__annotations__ = {"bucket": GradBucket, "return": torch.futures.Future[torch.Tensor]}
        return timed


def distribute(model: nn.Module, options: DdpOptions, exchange: Exchange, device: torch.device) -> nn.Module:
    """The model, with gradients that are exchanged in the backward pass. All ranks call it."""
    # Said only where it is not the default: newer releases of torch are about to rename it.
    buffers: dict[str, Any] = {} if options.broadcast_buffers else {"broadcast_buffers": False}
    network = DistributedDataParallel(
        model,
        device_ids=[device] if device.type == "cuda" else None,
        bucket_cap_mb=options.bucket_mb,
        static_graph=options.static_graph,
        find_unused_parameters=options.find_unused_parameters,
        gradient_as_bucket_view=True,
        **buffers,
    )
    if options.compress == "powersgd":
        state = powerSGD_hook.PowerSGDState(
            process_group=None,
            matrix_approximation_rank=options.powersgd_rank,
            start_powerSGD_iter=options.powersgd_start,
        )
        network.register_comm_hook(state, exchange.timed(powerSGD_hook.powerSGD_hook))
        return network
    hooks: dict[str, _Hook] = {
        "none": default_hooks.allreduce_hook,
        "bf16": default_hooks.bf16_compress_hook,
        "fp16": default_hooks.fp16_compress_hook,
    }
    network.register_comm_hook(None, exchange.timed(hooks[options.compress]))
    return network
