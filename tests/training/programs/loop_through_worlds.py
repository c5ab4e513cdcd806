"""A training in float64 that notes which samples each step consumes, for as long as the test wants.

loop_through_worlds.py map|shards FOLDER [STEPS]       (STEPS: that many, at once and alone)
"""

import json
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils.data import Dataset, TensorDataset

from training.data.shards import ShardedDataset
from training.loop import EarlyStop, Loop, Schedule, cosine_after_warmup

NUM_SAMPLES = 96
SHARDS = (40, 25, 31)

kind, folder, num_steps = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]) if len(sys.argv) > 3 else 0
torch.manual_seed(1)
inputs = torch.randn(NUM_SAMPLES, 6, dtype=torch.float64)
targets = torch.sin(inputs.sum(1, keepdim=True))
ids = torch.arange(NUM_SAMPLES)


def open_shard(shard: int, first: int) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    start = sum(SHARDS[:shard])
    for number in range(start + first, start + SHARDS[shard]):
        yield inputs[number], targets[number], ids[number]


data: Dataset[tuple[Tensor, ...]] = (
    TensorDataset(inputs, targets, ids) if kind == "map" else ShardedDataset(SHARDS, open_shard)
)
model = nn.Sequential(nn.Linear(6, 12), nn.Tanh(), nn.BatchNorm1d(12, momentum=None), nn.Linear(12, 1)).double()
model[2].eval()  # its statistics would be those of a rank's own samples
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
loop = Loop(
    None if num_steps else folder / "checkpoints",
    save_every=7,
    clip_norm=1.0,
    evaluate_every=5,
    early_stop=EarlyStop(metric="wanted", patience=1),
    log_every=1,
)
loop.setup(
    model,
    optimizer,
    data,
    global_batch=18,  # no multiple of 96, nor of a world of 4
    micro_batch=4,
    steps=num_steps or 100_000,
    schedule=Schedule(optimizer, cosine_after_warmup(warmup=100, total=200_000)),
)


def train(network: nn.Module) -> None:
    consumed: list[int] = []
    with (folder / f"ledger-{os.getpid()}").open("a", buffering=1) as ledger:
        for samples, wanted, numbers in loop.batches():
            consumed += numbers.tolist()
            loop.backward(((network(samples) - wanted) ** 2).mean())
            if loop.is_last:  # before the step: it may be complete and the world over
                entry = {"step": loop.state.step + 1, "generation": loop.world.generation, "ids": consumed}
                ledger.write(json.dumps(entry) + "\n")
                consumed = []
            if loop.step() and not num_steps and not (folder / "hurry").exists():
                time.sleep(0.05)
    if loop.world.rank == 0:
        (folder / "result.json").write_text(json.dumps([value.tolist() for value in model.state_dict().values()]))


def evaluate() -> dict[str, float]:
    """How far we are, until somebody has seen the end of what the test does."""
    is_over = torch.tensor(float(not num_steps and (folder / "over").exists()))
    dist.all_reduce(is_over)
    error = loop.measure(data, lambda samples, wanted, _: {"error": (model(samples) - wanted)[:, 0] ** 2})
    return {"wanted": 0.0 if is_over else float(loop.state.step), **error}


loop.run(train, evaluate=evaluate)
