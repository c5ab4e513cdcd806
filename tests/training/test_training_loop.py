"""The loop in one process: what it computes, what it remembers, and what it says when something makes no sense."""

import dataclasses
import json
import logging
import math
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.request import ProxyHandler, build_opener

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils.data import Dataset, IterableDataset, TensorDataset
from torchmetrics import MeanMetric
from torchmetrics.classification import BinaryAccuracy, BinaryAUROC

from training.checkpoint.folder import CheckpointFolder
from training.checkpoint.retention import Retention
from training.data.shards import ShardedDataset
from training.launch import exit_codes
from training.loop import EarlyStop, Loop, LoopError, Schedule, cosine_after_warmup
from training.metrics.sinks import JsonLines, Sink, TensorBoard, Wandb

NUM_SAMPLES, WIDTH = 50, 4


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    """A run that has ended with an error leaves its process group, as a process that ends may."""
    handler = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, handler)
    if dist.is_initialized():
        dist.destroy_process_group()


class Stream(IterableDataset[tuple[Tensor, Tensor]]):
    """Samples one after the other, nobody knows how many."""

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        return iter([(torch.zeros(WIDTH).double(), torch.zeros(1).double())])


def line_data() -> TensorDataset:
    generator = torch.Generator().manual_seed(3)
    inputs = torch.randn(NUM_SAMPLES, WIDTH, dtype=torch.float64, generator=generator)
    return TensorDataset(inputs, inputs.sum(1, keepdim=True) + 0.1)


class Training:
    """A linear model on a straight line, in float64."""

    def __init__(self, loop: Loop, data: Dataset[Any] | None = None, **options: Any) -> None:
        torch.manual_seed(5)
        self.loop = loop
        self.model = nn.Linear(WIDTH, 1).double()
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=0.05)
        self.ids: list[int] = []
        defaults = {} if "steps" in options else {"epochs": 2}
        loop.setup(
            self.model,
            self.optimizer,
            line_data() if data is None else data,
            **{"global_batch": 12, **defaults, **options},
        )

    def train(self, network: nn.Module) -> None:
        for inputs, targets in self.loop.batches():
            self.loop.backward(((network(inputs) - targets) ** 2).mean())
            self.loop.step()

    def run(self, **options: Any) -> Tensor:
        self.loop.run(self.train, **options)
        return self.weights()

    def weights(self) -> Tensor:
        return torch.cat([value.detach().flatten() for value in self.model.parameters()])


def ends(action: Callable[[], Any], capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    """Exit code and sentence of a run that cannot go on."""
    with pytest.raises(SystemExit) as caught:
        action()
    if dist.is_initialized():
        dist.destroy_process_group()
    return int(str(caught.value.code)), capsys.readouterr().err


def test_accumulated_micro_batches_give_the_gradient_of_the_whole_batch() -> None:
    whole = Training(Loop()).run()
    in_parts = Training(Loop(), micro_batch=5).run()  # of 12 samples: 5, 5 and 2
    assert torch.allclose(whole, in_parts, rtol=0, atol=1e-12)


def test_a_loss_over_tokens_is_weighted_by_the_tokens_of_the_whole_batch() -> None:
    """A micro-batch with many tokens counts for more than one with few."""

    def train(training: Training, network: nn.Module) -> None:
        for inputs, targets in training.loop.batches():
            is_token = inputs[:, :1] > -0.5
            squares = (network(inputs) - targets) ** 2
            training.loop.backward(squares[is_token].sum(), count=is_token.sum())
            training.loop.step()

    results = []
    for micro_batch in (None, 3):
        training = Training(Loop(), micro_batch=micro_batch)
        training.loop.run(lambda network, training=training: train(training, network))  # type: ignore[misc]
        results.append(training.weights())
        tokens = int((line_data().tensors[0][:, 0] > -0.5).sum())
        assert training.loop.state.tokens == 2 * tokens
        assert training.loop.state.samples == 2 * NUM_SAMPLES
    assert torch.allclose(results[0], results[1], rtol=0, atol=1e-12)


def test_a_run_that_is_continued_ends_as_one_that_was_not(tmp_path: Path) -> None:
    def training(folder: Path, steps: int) -> Training:
        metrics = {"error": MeanMetric()}
        made = Training(Loop(folder, save_every=4), steps=steps, metrics=metrics)
        made.loop.setup(
            made.model,
            made.optimizer,
            line_data(),
            global_batch=12,
            steps=steps,
            schedule=Schedule(made.optimizer, cosine_after_warmup(warmup=24, total=120)),
            metrics=metrics,
        )
        old = made.loop.backward

        def backward(loss: Tensor, **options: Any) -> None:
            metrics["error"].update(loss.detach())
            old(loss, **options)

        made.loop.backward = backward  # type: ignore[method-assign]
        return made

    straight = training(tmp_path / "straight", 11)
    straight.run()
    training(tmp_path / "parts", 6).run()
    continued = training(tmp_path / "parts", 11)
    assert torch.equal(continued.run(), straight.weights())
    assert continued.optimizer.param_groups[0]["lr"] == straight.optimizer.param_groups[0]["lr"]
    ours, theirs = (made.loop.figures() for made in (continued, straight))
    assert ours["error"] == pytest.approx(theirs["error"])
    assert continued.loop.state.samples == straight.loop.state.samples


def test_shards_are_read_from_front_to_back_and_each_sample_once(tmp_path: Path) -> None:
    inputs, targets = line_data().tensors
    sizes = (20, 7, 23)
    starts = (0, 20, 27)
    read: list[int] = []

    def open_shard(shard: int, first: int) -> Iterator[Any]:
        for number in range(starts[shard] + first, starts[shard] + sizes[shard]):
            read.append(number)
            yield inputs[number], targets[number]

    Training(Loop(), ShardedDataset(sizes, open_shard), epochs=1).run()
    assert sorted(read) == list(range(NUM_SAMPLES))


def test_evaluation_stops_early_and_keeps_the_best(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    figures = iter([0.5, 0.8, math.nan, 0.7, 0.9])
    loop = Loop(
        tmp_path,
        evaluate_every=2,
        early_stop=EarlyStop(metric="score", patience=2),
        keep=Retention(last=1, best=1, metric="score"),
    )
    Training(loop, epochs=9).run(evaluate=lambda: {"score": next(figures)})
    assert loop.state.step == 8
    assert loop.should_stop
    assert loop.state.best == 0.8
    assert "score is NaN at step 6" in caplog.text
    assert [path.name for path in CheckpointFolder(tmp_path).published()] == ["step-000000008", "step-000000004"]


def test_measuring_takes_every_sample_once() -> None:
    loop = Loop()
    training = Training(loop, epochs=1)
    data = line_data()

    def evaluate() -> dict[str, float]:
        auroc = BinaryAUROC()

        def figures(inputs: Tensor, targets: Tensor) -> dict[str, Tensor]:
            assert not training.model.training
            auroc.update(inputs[:, 0].sigmoid(), (targets[:, 0] > 0).long())
            return {"mean": inputs[:, 0], "error": (training.model(inputs) - targets).flatten() ** 2}

        return loop.measure(data, figures, batch_size=7, metrics={"auroc": auroc})

    training.run(evaluate=evaluate)
    inputs, targets = data.tensors
    expected = BinaryAUROC()(inputs[:, 0].sigmoid(), (targets[:, 0] > 0).long())
    assert training.model.training
    assert loop.state.result["mean"] == pytest.approx(inputs[:, 0].mean().item(), abs=1e-12)
    assert loop.state.result["auroc"] == pytest.approx(float(expected))


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_a_model_of_32_bits_trains_under_autocast(precision: Any) -> None:
    data = TensorDataset(*(tensor.float() for tensor in line_data().tensors))
    seen: set[torch.dtype] = set()
    loop = Loop(precision=precision, clip_norm=1.0)
    training = Training(loop, data)
    training.model.float()

    def train(network: nn.Module) -> None:
        for inputs, targets in loop.batches():
            outputs = network(inputs)
            seen.add(outputs.dtype)
            loop.backward(((outputs - targets) ** 2).mean())
            loop.step()

    before = training.weights().clone()
    loop.run(train)
    assert seen == {torch.bfloat16 if precision == "bf16" else torch.float16}
    assert torch.isfinite(training.weights()).all()
    assert not torch.equal(training.weights(), before)


def test_the_gradient_is_clipped_as_a_whole() -> None:
    loop = Loop(clip_norm=1e-3)
    training = Training(loop, steps=1)
    norms: list[float] = []
    training.optimizer.register_step_pre_hook(
        lambda *_: norms.append(nn.utils.get_total_norm([p.grad for p in training.model.parameters()]).item())  # type: ignore[misc]
    )
    training.run()
    assert norms == [pytest.approx(1e-3, rel=1e-2)]


def broken_data() -> TensorDataset:
    inputs, targets = line_data().tensors
    inputs[30] = math.nan
    return TensorDataset(inputs, targets)


def test_a_loss_that_is_no_number_stops_the_run_before_it_is_in_the_model(capsys: pytest.CaptureFixture[str]) -> None:
    training = Training(Loop(), broken_data(), epochs=1, shuffle=False)
    code, said = ends(training.run, capsys)
    assert code == exit_codes.DO_NOT_RESTART
    assert "step 3: the loss is nan" in said
    assert "the parameters are those of step 2" in said
    assert "nonfinite='skip'" in said
    assert torch.equal(training.weights(), Training(Loop(), steps=2, shuffle=False).run())


def test_or_leaves_that_step_out(caplog: pytest.LogCaptureFixture) -> None:
    training = Training(Loop(nonfinite="skip"), broken_data(), epochs=1, shuffle=False)
    assert torch.isfinite(training.run()).all()
    assert training.loop.state.step == 5
    assert "the step changes nothing" in caplog.text


def forgetful(loop: Loop, *, zero: bool = False, back: bool = True, step: bool = True, end: bool = True) -> Any:
    optimizers: list[torch.optim.Optimizer] = []

    def train(network: nn.Module) -> None:
        optimizers.append(loop._optimizer)
        for inputs, targets in loop.batches():
            loss = ((network(inputs) - targets) ** 2).mean()
            if zero:
                optimizers[0].zero_grad()
            if back:
                loop.backward(loss)
            if step:
                loop.step()
            if not end:
                return

    return train


@pytest.mark.parametrize(
    ("mistake", "sentence"),
    [
        ({"zero": True}, "take optimizer.zero_grad() out of the script"),
        ({"back": False, "step": False}, "call loop.backward(loss) for each"),
        ({"back": False}, "loop.step was called before loop.backward(loss)"),
        ({"step": False}, "call loop.step() after loop.backward(loss)"),
        ({"end": False}, "let it go through loop.batches() to the end"),
    ],
)
def test_lines_that_are_missing_are_named(
    mistake: dict[str, bool], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    loop = Loop()
    training = Training(loop, micro_batch=6)
    training.train = forgetful(loop, **mistake)  # type: ignore[method-assign]
    code, said = ends(training.run, capsys)
    assert code == exit_codes.DO_NOT_RESTART
    assert sentence in said


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"data": TensorDataset(torch.zeros(0, WIDTH), torch.zeros(0, 1))}, "the data set is empty"),
        ({"data": Stream()}, "Stream has no length, so nobody can say which samples a step has"),
        ({"global_batch": 0}, "the global batch must be at least 1"),
        ({"epochs": 0}, "either epochs or steps"),
        ({"epochs": 1, "steps": 3}, "either epochs or steps"),
        ({"micro_batch": 0}, "a micro-batch needs at least 1 sample"),
        ({"metrics": {"area": BinaryAUROC()}}, "use it in the evaluation"),
        ({"parts": {"best": nn.Linear(1, 1)}}, "no part can be called best"),
    ],
)
def test_a_set_up_that_makes_no_sense_is_told_in_a_sentence(
    options: dict[str, Any], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, said = ends(Training(Loop(), **options).run, capsys)
    assert code == exit_codes.DO_NOT_RESTART
    assert sentence in said
    assert "Traceback" not in said


def test_a_checkpoint_of_another_model_or_of_other_data_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Training(Loop(tmp_path)).run()
    code, said = ends(Training(Loop(tmp_path), global_batch=13).run, capsys)
    assert (code, "global_batch was 12 and is now 13" in said) == (exit_codes.DO_NOT_RESTART, True)
    other = Training(Loop(tmp_path))
    other.loop.setup(nn.Linear(WIDTH, 2).double(), other.optimizer, line_data(), global_batch=12, epochs=2)
    code, said = ends(other.run, capsys)
    assert (code, "the checkpoint is of another model" in said) == (exit_codes.DO_NOT_RESTART, True)


@pytest.mark.parametrize(
    "options",
    [
        {"precision": "double"},
        {"nonfinite": "never"},
        {"clip_norm": 0.0},
        {"save_every": -1},
        {"log_every": 0},
        {"remote": "file:///elsewhere"},
        {"metrics_port": 70000},
    ],
)
def test_options_that_make_no_sense_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(options))):
        Loop(**options)


def test_nothing_to_measure_is_an_error_in_words() -> None:
    with pytest.raises(LoopError, match="the data set is empty"):
        Loop().measure(TensorDataset(torch.zeros(0)), lambda _: None)
    with pytest.raises(LoopError, match="ShardedDataset, whose `count_shards` counts the samples once"):
        Loop().measure(Stream(), lambda _: None)


def test_metrics_over_samples_count_every_sample_once() -> None:
    accuracy = BinaryAccuracy()
    loop = Loop()
    training = Training(loop, epochs=1, micro_batch=5, metrics={"accuracy": accuracy})

    def train(network: nn.Module) -> None:
        for inputs, targets in loop.batches():
            accuracy.update((inputs[:, 0] > 0).long(), (targets[:, 0] > 0).long())
            loop.backward(((network(inputs) - targets) ** 2).mean())
            loop.step()

    loop.run(train)
    inputs, targets = line_data().tensors
    expected = ((inputs[:, 0] > 0) == (targets[:, 0] > 0)).double().mean().item()
    assert training.loop.figures()["accuracy"] == pytest.approx(expected, abs=1e-6)


def test_who_becomes_the_first_rank_tells_of_its_time_from_then_on(capsys: pytest.CaptureFixture[str]) -> None:
    """Not of the steps before, of which another rank has told."""
    training = Training(Loop(log_every=1), steps=4)

    def train(network: nn.Module) -> None:
        loop = training.loop
        first = loop.world
        for inputs, targets in loop.batches():
            loop.world = first if loop.state.step == 3 else dataclasses.replace(first, rank=1)
            loop.backward(((network(inputs) - targets) ** 2).mean())
            loop.step()

    training.loop.run(train)
    told = [json.loads(line) for line in capsys.readouterr().out.splitlines() if line.startswith('{"trainyard"')]
    (step,) = [event for event in told if event["trainyard"] == "step"]
    assert step["step"] == 4
    assert step["samples_per_second"] * sum(step["seconds"].values()) == pytest.approx(12, rel=0.1)


def test_figures_go_to_files_tensorboard_and_wandb(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("WANDB_API_KEY", "WANDB_MODE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("WANDB_DIR", str(tmp_path))
    places: list[Sink] = [
        JsonLines(tmp_path / "figures" / "lines.jsonl"),
        TensorBoard(tmp_path / "board"),
        Wandb("digits", mode="offline"),
    ]
    Training(Loop(log_every=1, sinks=places), steps=3).run()
    lines = [json.loads(line) for line in (tmp_path / "figures" / "lines.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == [1, 2, 3]
    assert all(line["loss"] > 0 and line["samples_per_second"] > 0 for line in lines)

    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator  # noqa: PLC0415

    events = EventAccumulator(str(tmp_path / "board"))
    events.Reload()
    assert [event.step for event in events.Scalars("loss")] == [1, 2, 3]
    assert list((tmp_path / "wandb").glob("offline-run-*/run-*.wandb"))


def test_wandb_without_a_key_is_a_sentence_and_no_question(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("WANDB_API_KEY", "WANDB_MODE", "WANDB_IDENTITY_TOKEN_FILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("NETRC", str(tmp_path / "none"))
    code, said = ends(Training(Loop(sinks=[Wandb("digits")])).run, capsys)
    assert code == exit_codes.DO_NOT_RESTART
    assert "wandb is asked for and has no key: set WANDB_API_KEY" in said


def test_a_package_that_is_not_there_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def absent(name: str) -> None:
        raise ImportError(name)

    monkeypatch.setattr("training.metrics.sinks.importlib.import_module", absent)
    for sink in (TensorBoard(tmp_path), Wandb("digits", mode="offline")):
        code, said = ends(Training(Loop(sinks=[sink])).run, capsys)
        assert (code, "its package is not there: pip install" in said) == (exit_codes.DO_NOT_RESTART, True)


def test_a_worker_answers_prometheus(capsys: pytest.CaptureFixture[str]) -> None:
    loop = Loop(metrics_port=0)
    Training(loop, steps=3).run()
    address = f"http://127.0.0.1:{loop.metrics_port}/metrics"
    with build_opener(ProxyHandler({})).open(address, timeout=60) as answer:
        page = answer.read().decode()
    assert "trainyard_worker_step 3.0" in page
    assert "trainyard_worker_samples_total 36.0" in page
    assert 'trainyard_worker_step_seconds_count{part="backward"} 3.0' in page


def test_a_second_place_is_filled_and_a_new_disk_begins_with_it(tmp_path: Path) -> None:
    elsewhere = (tmp_path / "elsewhere").as_uri()
    Training(Loop(tmp_path / "first", remote=elsewhere), steps=6).run()
    continued = Training(Loop(tmp_path / "second", remote=elsewhere), steps=9)
    assert torch.equal(continued.run(), Training(Loop(), steps=9).run())


def test_the_schedule_follows_samples_or_tokens() -> None:
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=2.0)
    schedule = Schedule(optimizer, cosine_after_warmup(warmup=100, total=300, floor=0.1), unit="tokens")
    rates = []
    for _ in range(4):
        rates.append(optimizer.param_groups[0]["lr"])
        schedule.advance(samples=1, tokens=100)
    assert rates == pytest.approx([0.0, 2.0, 1.1, 0.2])
    with pytest.raises(ValueError, match="counts tokens, this one samples"):
        Schedule(optimizer, lambda _: 1.0).load_state_dict(schedule.state_dict())
    with pytest.raises(ValueError, match="does not fit"):
        cosine_after_warmup(warmup=3, total=2)


def test_warnings_are_about_the_training_and_not_about_its_tools(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        Training(Loop(), steps=2).run()
    assert caplog.text == ""
