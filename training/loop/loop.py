"""The loop around a training script: everything that is the same in every script, and nothing that is its own.

The script owns the model, the loss and the order of lines; the loop owns what must be right when ranks come and go:

* which samples a micro-batch holds, how its loss is weighted, when gradients are exchanged (`training.data`);
* that a step is complete or undone on all ranks (`training.launch.elastic`);
* what is saved, when, and what a run begins with (`training.checkpoint`);
* numbers over all ranks: losses, metrics, evaluations (`training.metrics`).

**Before the optimizer's step** one small reduction carries the loss, the number of samples or tokens, and the metrics'
parts. So a step whose numbers are lost is a step that is made again; and a loss that is not finite is known on all
ranks before it is in the parameters. **After it** `commit` agrees on who comes and goes.

**Between steps** all ranks have the same state. Evaluation, early stopping and saving happen there; when the world
changes in an evaluation, it is made again.
"""

import contextlib
import logging
import math
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, Final, Literal

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.data import Dataset

from training.checkpoint.folder import CheckpointError, CheckpointFolder, StaleWriterError, Writer
from training.checkpoint.remote import Remote, Syncer
from training.checkpoint.replica import Replica
from training.checkpoint.retention import Retention
from training.checkpoint.saver import AsyncSaver
from training.checkpoint.state import MismatchError, gather, restore
from training.data.cursor import SampleCursor
from training.data.loader import MicroBatch, StepLoader
from training.data.seeding import seed_step
from training.data.shards import ShardedDataset
from training.data.stock import StockCursor
from training.launch import elastic, environment, exit_codes
from training.loop.ddp import DdpOptions, Exchange, distribute
from training.loop.measure import measure, on_device, size_of
from training.loop.schedule import Schedule
from training.metrics.progress import emit
from training.metrics.sinks import Sink, SinkError
from training.metrics.timing import StepClock
from training.metrics.totals import Totals
from training.metrics.worker import WorkerMetrics

logger = logging.getLogger(__name__)

# So long the end of a run waits for its last checkpoint to be in the second place.
SYNC_AT_END: Final = timedelta(minutes=5)
_DTYPES: Final = {"bf16": torch.bfloat16, "fp16": torch.float16}
# Plain values of the state that go into checkpoints, under this name.
_PROGRESS: Final = "progress"
_COUNTERS: Final = ("samples", "tokens", "saved", "evaluated", "best", "stale", "result")


class LoopError(Exception):
    """The script, its data or its numbers make no sense; the message says what to do."""


@dataclass(frozen=True, kw_only=True)
class EarlyStop:
    """When further training is pointless.

    Attributes:
        metric: name of a figure that the evaluation returns.
        mode: whether the greatest or the least is best.
        patience: evaluations without a better figure after which training ends.
    """

    metric: str
    mode: Literal["max", "min"] = "max"
    patience: int = 3

    def __post_init__(self) -> None:
        if self.mode not in {"max", "min"}:
            raise ValueError(f"the best is the 'max' or the 'min' of a metric, not the {self.mode!r}")
        if self.patience < 1:
            raise ValueError(f"patience must be at least 1 evaluation, not {self.patience}")

    def is_better(self, figure: float, best: float) -> bool:
        """Whether a figure beats the best so far; NaN never does."""
        return figure > best if self.mode == "max" else figure < best


class _State(elastic.State):
    """What the loop itself must remember: counted samples and tokens, last steps of saving and evaluating, figures."""

    samples: int
    tokens: int
    saved: int
    evaluated: int
    best: float | None
    stale: int
    result: dict[str, float]


class Loop:
    """One training run.

    Args:
        checkpoints: folder for checkpoints; None: nothing is saved.
        save_every: steps between checkpoints; 0: only at the end, after evaluations and on a notice.
        keep: which checkpoints stay; a number: so many of the newest.
        remote: second place for checkpoints (`training.checkpoint.remote`), filled beside the training.
        replica: keep the state after each step in the memory of every node (`training.checkpoint.replica`), so that the
            death of all workers costs no more than a step.
        precision: `full` computes as the model is; `bf16` and `fp16` under autocast, `fp16` with scaled losses.
        clip_norm: largest norm of the whole gradient, after the last exchange; None: no clipping.
        nonfinite: what follows from a loss or gradient that is not finite. `stop`: the run ends, the parameters are
            those of the step before; `skip`: that step changes nothing, and counts; `ignore`: nobody looks.
        ddp: how gradients are exchanged.
        evaluate_every: steps between evaluations; 0: only at the end.
        early_stop: when further training is pointless.
        log_every: steps between progress lines and entries in the sinks.
        sinks: where figures go beside the progress lines, written by rank 0 (`training.metrics.sinks`).
        metrics_port: on which this worker answers Prometheus: this number plus its local rank; 0: any that is free;
            None: what `TRAINYARD_WORKER_METRICS_PORT` says, else none.

    Attributes:
        world: who works together now.
        state: what survives.

    Raises:
        ValueError: options that make no sense, by name.
    """

    world: elastic.World
    state: _State

    def __init__(
        self,
        checkpoints: str | Path | None = None,
        *,
        save_every: int = 100,
        keep: Retention | int = 3,
        remote: str | None = None,
        replica: bool = False,
        precision: Literal["full", "bf16", "fp16"] = "full",
        clip_norm: float | None = None,
        nonfinite: Literal["stop", "skip", "ignore"] = "stop",
        ddp: DdpOptions | None = None,
        evaluate_every: int = 0,
        early_stop: EarlyStop | None = None,
        log_every: int = 10,
        sinks: Sequence[Sink] = (),
        metrics_port: int | None = None,
    ) -> None:
        if precision not in {"full", *_DTYPES}:
            raise ValueError(f"precision must be full, bf16 or fp16, not {precision!r}")
        if nonfinite not in {"stop", "skip", "ignore"}:
            raise ValueError(f"nonfinite must be stop, skip or ignore, not {nonfinite!r}")
        if min(save_every, evaluate_every) < 0 or log_every < 1:
            raise ValueError("save_every and evaluate_every cannot be negative, and log_every must be at least 1")
        if clip_norm is not None and not clip_norm > 0:
            raise ValueError(f"clip_norm must be more than 0, not {clip_norm}")
        if remote and checkpoints is None:
            raise ValueError("remote is filled from the folder of checkpoints: name that as well")
        self._root = None if checkpoints is None else Path(checkpoints)
        self._save_every = save_every
        self._keep = Retention(last=keep) if isinstance(keep, int) else keep
        self._remote = remote
        self._has_replica = replica
        self._precision = precision
        self._clip_norm = clip_norm
        self._nonfinite = nonfinite
        self._ddp = ddp or DdpOptions()
        self._evaluate_every = evaluate_every
        self._early_stop = early_stop
        self._log_every = log_every
        self._sinks = sinks
        self._metrics = WorkerMetrics.at_port(metrics_port)
        self._clock, self._exchange = StepClock(), Exchange()
        self._totals = Totals({})
        self._evaluation: Callable[[], Mapping[str, float]] | None = None
        self._saver: AsyncSaver | None = None
        self._syncer: Syncer | None = None
        self._micro: _Micro | None = None
        self._sums = torch.zeros(0)
        self._is_counted = False
        self._scaler: torch.amp.GradScaler | None = None
        self._restored_from = ""
        self._num_items = 0.0
        self._num_tokens = 0
        self._metric_sums = torch.zeros(0)
        self._since_log: dict[str, float] = {}
        self._samples_since_log = 0

    def setup(
        self,
        model: nn.Module,
        optimizer: Optimizer,
        data: Dataset[Any],
        *,
        global_batch: int = 0,
        epochs: float = 0,
        steps: int = 0,
        seed: int = 0,
        shuffle: bool | Literal["torch"] = True,
        drop_last: bool = False,
        cursor: SampleCursor | StockCursor | None = None,
        micro_batch: int | None = None,
        schedule: Any = None,
        metrics: Mapping[str, Any] | None = None,
        parts: Mapping[str, Any] | None = None,
        **loading: Any,
    ) -> None:
        """Say what is trained, on what. What is wrong with it `run` tells.

        Args:
            model: on its device already; not yet in DistributedDataParallel.
            optimizer: of its parameters.
            data: gives samples by id, and has a length; a stream does as a `training.data.shards.ShardedDataset`,
                which is read from front to back.
            global_batch: samples per step, over all ranks; the same for every world.
            epochs: passes over the data; or `steps`.
            steps: optimizer steps of the whole run; or `epochs`.
            seed: of the order, and of what happens at random.
            shuffle: another order in each epoch; `torch`: that of DistributedSampler with this seed.
            drop_last: leave out the last step of an epoch where it would be smaller.
            cursor: the order itself, in place of global_batch, seed, shuffle and drop_last.
            micro_batch: most samples of one forward pass; gradients of more are accumulated, and exchanged once.
            schedule: a `Schedule`, or a scheduler of torch, which then counts steps.
            metrics: torchmetrics over the training's samples, by name; the script calls `update`, the loop the rest.
            parts: more that has `state_dict` and `load_state_dict` and must survive, such as an average of the weights.
            loading: options of `training.data.loader.StepLoader`: `num_workers`, `collate_fn`, `pin_memory`, ...
        """
        self._model, self._optimizer, self._data = model, optimizer, data
        self._cursor_options: dict[str, Any] = {
            "global_batch": global_batch,
            "seed": seed,
            "shuffle": shuffle,
            "drop_last": drop_last,
        }
        self._length = (epochs, steps)
        self._given_cursor = cursor
        self._loading = {"micro_batch": micro_batch, **loading}
        self._schedule = schedule
        self._metric_options = dict(metrics or {})
        self._parts = dict(parts or {})

    def run(
        self, train: Callable[[nn.Module], None], *, evaluate: Callable[[], Mapping[str, float]] | None = None
    ) -> None:
        """Train; returns when it is done. Whoever comes or goes meanwhile, `train` is called anew.

        Args:
            train: called with the network of each world: the model in DistributedDataParallel, or itself in a world
                of 1. Goes through `batches` and ends after them; write results there, behind them.
            evaluate: figures of the model as it is, over data that was held out; see `measure`. All ranks call it,
                every `evaluate_every` steps and at the end.

        Raises:
            SystemExit: a mistake or a bad number, told in a sentence on standard error (78: the same again would do the
                same; 1: the disk or another world); or this node was told to go (75).
        """
        try:
            self._prepare(evaluate)
            replica = Replica(writer=self._writer(), optimizer=self._optimizer) if self._has_replica else None
            elastic.run(
                lambda world, _: self._train(world, train),
                self.state,
                restore=self._restore if self._root else None,
                save=self._save_at_once if self._root else None,
                replica=replica,
            )
        except (LoopError, MismatchError, SinkError) as error:
            _end(str(error), exit_codes.DO_NOT_RESTART)
        except CheckpointError as error:
            _end(str(error), exit_codes.FAILED)

    def batches(self) -> Iterator[Any]:
        """The micro-batches of this rank, until the run is done or `should_stop`."""
        state, world = self.state, self.world
        try:
            loader = StepLoader(
                self._data,
                self._cursor,
                rank=world.rank,
                world_size=world.size,
                first_step=state.step,
                num_steps=self._num_steps,
                **self._loading,
            )
        except ValueError as error:
            raise LoopError(str(error)) from error
        self._clock.restart()
        for step in loader:
            self._between_steps()
            if self.should_stop:
                return
            seed_step(self._cursor.seed, step.number, world.rank)
            self._sums = torch.zeros(3, dtype=torch.float64, device=world.device)
            self._totals.forget()
            is_first = True
            for micro in step:
                self._clock.lap("data")
                with ExitStack() as stack:
                    self._micro = _Micro(micro, batch_size=step.batch_size, is_first=is_first)
                    stack.enter_context(micro.sync(self._network))
                    stack.enter_context(self._autocast())
                    yield on_device(micro.data, world.device)
                self._clock.lap("forward")
                if not self._micro.is_used:
                    raise LoopError("a micro-batch had no backward pass: call loop.backward(loss) for each")
                is_first = False
            if state.step != step.number:
                raise LoopError("a batch was not followed by a step: call loop.step() after loop.backward(loss)")
        self._between_steps()

    def backward(self, loss: Tensor, *, count: float | Tensor | None = None) -> None:
        """Compute gradients of a micro-batch, weighted so that their sum is that of the whole global batch.

        Args:
            loss: the mean over the samples of the micro-batch, as torch's losses give it; or, with `count`, a sum.
            count: over how many items (tokens, pixels) `loss` is a sum. The gradient is then that of the mean over all
                items of the global batch, however unlike the ranks' shares are. The same way in all calls.
        """
        self._clock.lap("forward")
        micro = self._micro
        if micro is None:
            raise LoopError("loop.backward was called outside of loop.batches()")
        if micro.is_used:
            raise LoopError("loop.backward was called twice for a micro-batch: add the losses up before")
        if not micro.is_first and all(parameter.grad is None for parameter in self._parameters()):
            raise LoopError(
                "gradients of earlier micro-batches are gone: take optimizer.zero_grad() out of the script; "
                "loop.step() does it after each step"
            )
        micro.is_used = True
        self._is_counted = count is not None
        size = 0.0 if micro.is_idle else float(len(micro.batch.ids) if count is None else count)
        weight = size * micro.batch.weight if count is None else float(self.world.size if size else 0)
        with torch.autocast(self.world.device.type, enabled=False):
            weighted = loss * weight
            (self._scaler.scale(weighted) if self._scaler else weighted).backward()  # type: ignore[no-untyped-call]
            summed = loss.detach().to(self._sums) * (size if count is None else float(bool(size)))
            self._sums += torch.stack([summed, summed.new_tensor(size), summed.new_tensor(len(micro.batch.ids))])
        self._clock.lap("backward")
        self._clock.move(self._exchange.waited_until(self._clock.last), "backward", "sync")

    def step(self) -> bool:
        """Complete the step, after its last micro-batch; after earlier ones do nothing. Whether it is complete.

        Gradients are set to zero as well. When this returns True all ranks have the step.
        """
        micro, state = self._micro, self.state
        if micro is None or not micro.is_used:
            raise LoopError("loop.step was called before loop.backward(loss)")
        if not micro.batch.is_last:
            return False
        self._clock.lap("forward")
        loss = self._reduce(micro)
        self._clock.lap("sync")
        waited = self._saver.stalled if self._saver else 0.0
        self._update(loss)
        state.samples += micro.batch_size
        state.tokens += self._num_tokens
        self._advance(micro.batch_size)
        self._clock.lap("optimizer")
        if self._saver:
            self._clock.move(self._saver.stalled - waited, "optimizer", "checkpoint")
        self._log(state.step + 1, loss, micro.batch_size)
        state.commit()
        self._clock.lap("sync")
        if self._is_due(self._save_every, state.saved) or (state.step == self._num_steps and not self._evaluation):
            self.save()
        return True

    def save(self, metrics: Mapping[str, float] | None = None) -> None:
        """Begin to save the state after the last complete step; to be called between steps, on all ranks.

        Args:
            metrics: figures by which the best checkpoints are known (`Retention`).
        """
        self.state.saved = self.state.step
        if self._saver:
            self._saver.save(self.state.step, self._gathered(), metrics=metrics)
            self._clock.lap("checkpoint")

    def figures(self) -> dict[str, float]:
        """The metrics over the training's samples, all ranks and worlds together, where they are single numbers."""
        return {name: float(value) for name, value in self._totals.compute().items() if value.numel() == 1}

    @property
    def is_last(self) -> bool:
        """Whether this is the last micro-batch of the step on this rank: `step` will complete it."""
        return self._micro is not None and self._micro.batch.is_last

    @property
    def metrics_port(self) -> int | None:
        """Where this worker answers Prometheus; None: nowhere."""
        return self._metrics.port

    @property
    def should_stop(self) -> bool:
        """Whether no further step is made: all are done, or evaluations have become no better (`EarlyStop`)."""
        is_stale = self._early_stop is not None and self.state.stale >= self._early_stop.patience
        return is_stale or self.state.step >= self._num_steps

    def measure(
        self,
        data: Dataset[Any],
        function: Callable[..., Mapping[str, Tensor] | None],
        *,
        batch_size: int = 256,
        metrics: Mapping[str, Any] | None = None,
        **loading: Any,
    ) -> dict[str, float]:
        """Means over all samples of some data, each computed once by one of the ranks, exact for every world size.

        All ranks call it. Use the model in `function`, not the network of `train`: that waits for the other ranks in
        each forward pass, and they may have fewer batches.

        Args:
            data: gives samples by id.
            function: gets a batch; returns one number per sample for each figure, shape [batch]; or nothing, if it
                updates `metrics`.
            batch_size: samples of one call.
            metrics: torchmetrics by name, of any kind; their values, where they are single numbers, are returned too.
            loading: options of torch's DataLoader.

        Raises:
            LoopError: the data set is empty, or has no length.
        """
        try:
            num_samples = size_of(data)
        except ValueError as error:
            raise LoopError(str(error)) from error
        if not num_samples:
            raise LoopError("there is nothing to measure: the data set is empty")
        return measure(
            self._model,
            data,
            function,
            num_samples=num_samples,
            world=self.world,
            check=self.state.check,
            autocast=self._autocast(),
            batch_size=batch_size,
            metrics=metrics or {},
            loading=loading,
        )

    def _prepare(self, evaluate: Callable[[], Mapping[str, float]] | None) -> None:
        """Everything that does not depend on the world."""
        if not hasattr(self, "_data"):
            raise LoopError("loop.setup must be called before loop.run")
        epochs, steps = self._length
        try:
            self._cursor = self._given_cursor or SampleCursor(
                num_samples=size_of(self._data),
                **self._cursor_options,
                shards=self._data.sizes if isinstance(self._data, ShardedDataset) else (),
            )
            self._totals = Totals(self._metric_options)
        except ValueError as error:
            raise LoopError(str(error)) from error
        if bool(epochs) == bool(steps):
            raise LoopError("say how long to train: either epochs or steps")
        self._num_steps = steps or round(epochs * self._cursor.steps_per_epoch)
        self._evaluation = evaluate
        if self._early_stop and not evaluate:
            raise LoopError("early_stop looks at what the evaluation returns: give run(..., evaluate=...)")
        self._scaler = torch.amp.GradScaler(_device_type(self._model)) if self._precision == "fp16" else None
        survivors = {
            "model": self._model,
            "optimizer": self._optimizer,
            "schedule": self._schedule,
            "scaler": self._scaler,
            "metrics": self._totals if self._metric_options else None,
            **self._parts,
        }
        self._survivors = {name: part for name, part in survivors.items() if part is not None}
        if taken := set(self._survivors) & {_PROGRESS, *_COUNTERS}:
            raise LoopError(f"no part can be called {', '.join(sorted(taken))}")
        self.state = _State(**self._survivors, samples=0, tokens=0, saved=0, evaluated=0, best=None, stale=0, result={})

    def _train(self, world: elastic.World, train: Callable[[nn.Module], None]) -> None:
        """One world."""
        self.world = world
        is_alone = world.size == 1
        with ExitStack() as stack:
            stack.callback(self._forget_world)
            self._network = (
                self._model if is_alone else distribute(self._model, self._ddp, self._exchange, world.device)
            )
            if world.rank == 0:
                self._open_places(stack)
                emit(
                    "resume",
                    step=self.state.step,
                    generation=world.generation,
                    world_size=world.size,
                    checkpoint=self._restored_from,
                    loader_workers=int(self._loading.get("num_workers", 0)),
                )
            train(self._network)
            if self.state.step < self._num_steps and not self.should_stop:
                raise LoopError(
                    f"the training function has ended after step {self.state.step} of {self._num_steps}: let it go "
                    "through loop.batches() to the end"
                )
            if self._saver:
                self._saver.wait()
        if world.rank == 0:
            emit("finished", step=self.state.step, samples=self.state.samples, **self.state.result)

    def _forget_world(self) -> None:
        """What keeps DDP alive would keep its hooks on our parameters."""
        self._micro = None
        del self._network

    def _open_places(self, stack: ExitStack) -> None:
        """Rank 0's: checkpoints and sinks."""
        for sink in self._sinks:
            sink.open(self.state.step)
            stack.callback(sink.close)
        if self._root is None:
            return
        folder = self._folder()
        folder.claim()  # worlds before this one can no longer write
        if self._remote:
            self._syncer = Syncer(Remote(self._remote, writer=self._writer()), keep=self._keep)
            stack.push(self._close_syncer)
        self._saver = AsyncSaver(folder, optimizer=self._optimizer, on_saved=self._on_saved)
        stack.push(self._close_saver)

    def _close_saver(self, kind: type[BaseException] | None, *_: object) -> None:
        saver, self._saver = self._saver, None
        assert saver is not None  # noqa: S101
        try:
            saver.close()
        except CheckpointError as error:
            if kind is None or isinstance(error, StaleWriterError):
                raise
            logger.warning("the last checkpoint of this world was not written: %s", error)

    def _close_syncer(self, kind: type[BaseException] | None, *_: object) -> None:
        """At the end all is sent; a world that changes does not wait for it, and the thread goes on."""
        syncer, self._syncer = self._syncer, None
        assert syncer is not None  # noqa: S101
        syncer.close(SYNC_AT_END.total_seconds() if kind in {None, SystemExit} else 0.0)

    def _on_saved(self, step: int, path: Path, seconds: float) -> None:
        emit("checkpoint", step=step, path=str(path), seconds=round(seconds, 3))
        self._metrics.checkpoint(step)
        if self._syncer:
            self._syncer.submit(path)

    def _writer(self) -> Writer:
        return Writer(
            run=os.environ.get(environment.RUN, ""), generation=int(os.environ.get(environment.GENERATION, "0"))
        )

    def _folder(self) -> CheckpointFolder:
        assert self._root is not None  # noqa: S101
        return CheckpointFolder(self._root, writer=self._writer(), keep=self._keep)

    def _gathered(self) -> dict[str, Any]:
        parts = {**self._survivors, _PROGRESS: _Counters(self.state)}
        world = self.world
        return gather(
            parts, step=self.state.step, cursor=self._cursor, generation=world.generation, world_size=world.size
        )

    def _restore(self, _: elastic.State) -> None:
        """On rank 0, when no rank has a step in memory."""
        folder = self._folder()
        checkpoint = folder.newest()
        if checkpoint is None and self._remote:
            checkpoint = Remote(self._remote, writer=self._writer()).fetch(folder)
        if checkpoint is None:
            return
        parts = {**self._survivors, _PROGRESS: _Counters(self.state)}
        self.state.step = restore(parts, checkpoint.load(), cursor=self._cursor)
        self._restored_from = str(checkpoint.path)

    def _save_at_once(self, _: elastic.State) -> None:
        """At a notice: on one rank, and no other waits in a collective."""
        begin = time.monotonic()
        if self._saver:
            self._saver.wait()
        path = self._folder().save(self.state.step, self._gathered())
        seconds = round(time.monotonic() - begin, 3)
        emit("checkpoint", step=self.state.step, path=str(path), seconds=seconds, at_notice=True)
        if self._syncer:
            self._syncer.submit(path)

    def _between_steps(self) -> None:
        """Evaluate, where it is due."""
        state = self.state
        is_last = state.step == self._num_steps and state.evaluated != state.step
        if self._evaluation is None or not (is_last or self._is_due(self._evaluate_every, state.evaluated)):
            return
        self.state.result = {name: float(value) for name, value in self._evaluation().items()}
        state.evaluated = state.step
        self._judge()
        if self.world.rank == 0:
            emit("evaluation", step=state.step, **self.state.result)
            self._metrics.evaluation(self.state.result)
            self._write(self.state.result)
        self.save({name: value for name, value in self.state.result.items() if not math.isnan(value)})
        self._clock.lap("evaluation")

    def _judge(self) -> None:
        """Whether the figures have become better; what is not a number is no progress."""
        state = self.state
        for name, value in self.state.result.items():
            if math.isnan(value) and self.world.rank == 0:
                logger.warning("%s is NaN at step %d: it counts as no better, and never as the best", name, state.step)
        if self._early_stop is None:
            return
        if self._early_stop.metric not in self.state.result:
            raise LoopError(
                f"early_stop looks at '{self._early_stop.metric}' and the evaluation returns "
                f"{', '.join(self.state.result) or 'nothing'}"
            )
        figure = self.state.result[self._early_stop.metric]
        if not math.isnan(figure) and (state.best is None or self._early_stop.is_better(figure, state.best)):
            state.best, state.stale = figure, 0
        else:
            state.stale += 1

    def _is_due(self, every: int, done: int) -> bool:
        """Whether a multiple of so many steps lies between the last time and now."""
        return bool(every) and self.state.step // every > done // every

    def _reduce(self, micro: "_Micro") -> float:
        """The loss of the whole global batch; metrics and counts are added up over the ranks."""
        part = self._totals.part().to(self._sums)
        sums = torch.cat([self._sums, torch.zeros_like(part) if micro.is_idle else part])
        if self.world.size > 1:
            dist.all_reduce(sums)
        self._totals.forget()
        self._metric_sums = sums[3:]
        loss_sum, count, _ = sums[:3].tolist()
        self._num_items = count
        self._num_tokens = round(count) if self._is_counted else 0
        return float(loss_sum / count) if count else math.nan

    def _update(self, loss: float) -> None:
        """The optimizer's step, unless the numbers are bad."""
        gradients = [parameter.grad for parameter in self._parameters() if parameter.grad is not None]
        if self._scaler:
            self._scaler.unscale_(self._optimizer)
        if self._is_counted and self._num_items:
            for gradient in gradients:
                gradient.div_(self._num_items)
        if self._clip_norm or self._nonfinite != "ignore":
            norm = nn.utils.get_total_norm(gradients)
            if self._is_bad(loss, norm):
                self._optimizer.zero_grad()
                return
            if self._clip_norm:
                nn.utils.clip_grads_with_norm_(self._parameters(), self._clip_norm, norm)
        if self._scaler:
            self._scaler.step(self._optimizer)
            self._scaler.update()
        else:
            self._optimizer.step()
        self._optimizer.zero_grad()

    def _is_bad(self, loss: float, norm: Tensor) -> bool:
        """Whether this step must not be made. All ranks have the same loss and the same gradients."""
        if self._nonfinite == "ignore" or (self._scaler and math.isfinite(loss)):
            return False  # a scale that was too large is the scaler's own affair
        size = norm.item()
        if math.isfinite(loss) and math.isfinite(size):
            return False
        number = self.state.step + 1
        problem = f"step {number}: the loss is {loss:g} and the norm of the gradient {size:g}"
        if self._nonfinite == "stop":
            raise LoopError(
                f"{problem}; the step was not made, the parameters are those of step {number - 1}. Look at the samples "
                "of this step, lower the learning rate or clip (clip_norm); nonfinite='skip' leaves such steps out"
            )
        if self.world.rank == 0:
            logger.warning("%s; the step changes nothing", problem)
        return True

    def _advance(self, samples: int) -> None:
        self._totals.add(self._metric_sums)
        if isinstance(self._schedule, Schedule):
            self._schedule.advance(samples=samples, tokens=self._num_tokens)
        elif self._schedule is not None:
            self._schedule.step()

    def _log(self, step: int, loss: float, samples: int) -> None:
        """After the optimizer's step: it is in the parameters, whatever happens to this world now."""
        seconds = self._clock.take()
        self._metrics.step(self.world, step=step, loss=loss, samples=samples, seconds=seconds)
        self._since_log = {part: value + self._since_log.get(part, 0.0) for part, value in seconds.items()}
        self._samples_since_log += samples
        if step % self._log_every and step != self._num_steps:
            return
        since, self._since_log = self._since_log, {}
        num_samples, self._samples_since_log = self._samples_since_log, 0
        if self.world.rank != 0:  # whoever is rank 0 later tells of the steps since then only
            return
        total = sum(since.values())
        rate = num_samples / total if total else 0.0
        emit(
            "step",
            step=step,
            loss=loss,
            world_size=self.world.size,
            generation=self.world.generation,
            samples=self.state.samples,
            samples_per_second=round(rate, 1),
            seconds={part: round(value, 6) for part, value in since.items() if value},
        )
        learning_rate = float(self._optimizer.param_groups[0]["lr"])
        self._write({"loss": loss, "learning_rate": learning_rate, "samples_per_second": rate, **self.figures()}, step)

    def _write(self, figures: Mapping[str, float], step: int | None = None) -> None:
        for sink in self._sinks:
            sink.write(self.state.step if step is None else step, figures)

    def _parameters(self) -> list[Tensor]:
        return [parameter for group in self._optimizer.param_groups for parameter in group["params"]]

    def _autocast(self) -> AbstractContextManager[None]:
        dtype = _DTYPES.get(self._precision)
        if dtype is None:
            return contextlib.nullcontext()
        return torch.autocast(self.world.device.type, dtype=dtype)


class _Micro:
    """The micro-batch that the script is at."""

    def __init__(self, batch: MicroBatch, *, batch_size: int, is_first: bool) -> None:
        self.batch, self.batch_size, self.is_first = batch, batch_size, is_first
        self.is_idle = not len(batch.ids)  # a rank that takes part without a sample of its own
        self.is_used = False


class _Counters:
    """The plain values of the state, as a part of the checkpoint."""

    def __init__(self, state: _State) -> None:
        self._state = state

    def state_dict(self) -> dict[str, Any]:
        return {name: getattr(self._state, name) for name in _COUNTERS}

    def load_state_dict(self, saved: Mapping[str, Any]) -> None:
        for name in _COUNTERS:
            setattr(self._state, name, saved[name])


def _end(message: str, code: int) -> None:
    sys.stderr.write(f"training: {message}\n")
    sys.stderr.flush()
    raise SystemExit(code)


def _device_type(model: nn.Module) -> str:
    return next((parameter.device.type for parameter in model.parameters()), "cpu")
