"""What the loop computes over its ranks, as one line of JSON of rank 0: for worlds of several sizes to be compared."""

import json
import sys

import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset
from torchmetrics import MeanMetric
from torchmetrics.classification import BinaryAccuracy, BinaryAUROC

from training.loop import DdpOptions, Loop

torch.manual_seed(5)
generator = torch.Generator().manual_seed(3)
inputs = torch.randn(31, 4, dtype=torch.float64, generator=generator)
data = TensorDataset(inputs, inputs.sum(1, keepdim=True) + 0.1)
few = TensorDataset(inputs[:2], data.tensors[1][:2])  # fewer than a world of 3 has ranks

model = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 1)).double()
optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
accuracy, error = BinaryAccuracy(), MeanMetric()
loop = Loop(log_every=1, ddp=DdpOptions(bucket_mb=0.0001), clip_norm=0.5)
loop.setup(
    model,
    optimizer,
    data,
    global_batch=8,
    epochs=2,
    micro_batch=2,
    metrics={"accuracy": accuracy, "error": error},
)


def train(network: nn.Module) -> None:
    """Weighted by tokens, of which samples have unlike numbers; the last step of an epoch has fewer samples."""
    for samples, targets in loop.batches():
        outputs = network(samples)
        is_token = samples > -0.3
        accuracy.update((outputs[:, 0] > 0).long(), (targets[:, 0] > 0).long())
        error.update((outputs - targets).abs().mean().detach(), weight=len(samples))
        loop.backward(((outputs - targets) ** 2 * is_token).sum(), count=is_token.sum())
        loop.step()


def evaluate() -> dict[str, float]:
    """Also of so few samples that a rank has none."""
    area = BinaryAUROC()

    def figures(samples: Tensor, targets: Tensor) -> dict[str, Tensor]:
        outputs = model(samples)
        area.update(outputs[:, 0].sigmoid(), (targets[:, 0] > 0).long())
        return {"error": (outputs - targets).abs()[:, 0]}

    whole = loop.measure(data, figures, batch_size=3, metrics={"area": area})
    part = loop.measure(few, lambda samples, targets: {"error_of_few": (model(samples) - targets).abs()[:, 0]})
    return {**whole, **part}


loop.run(train, evaluate=evaluate)
if loop.world.rank == 0:
    weights = torch.cat([value.detach().flatten() for value in model.parameters()]).tolist()
    result = {
        "weights": weights,
        "figures": loop.figures(),
        "evaluation": loop.state.result,
        "tokens": loop.state.tokens,
    }
    sys.stdout.write(f"RESULT {json.dumps(result)}\n")
