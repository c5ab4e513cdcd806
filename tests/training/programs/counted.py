"""A model that counts the steps of its optimizer, so that one that was lost or made twice shows in every later step."""

from typing import Any

import torch
from torch import Tensor, nn


class Counted(nn.Module):
    """A layer, and a parameter whose gradient is always -1 and whose learning rate is 1."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(64, 64)
        self.steps = nn.Parameter(torch.zeros(1))

    def forward(self, inputs: Tensor) -> Tensor:
        """The loss; also over several ranks the mean of the gradient of `steps` is -1."""
        loss: Tensor = self.layer(inputs).square().mean() - self.steps.sum()
        return loss

    def optimizer(self) -> torch.optim.Optimizer:
        """Plain gradient descent; without momentum, which would count too."""
        groups: list[dict[str, Any]] = [{"params": self.layer.parameters()}, {"params": [self.steps], "lr": 1.0}]
        return torch.optim.SGD(groups, lr=0.01)

    @property
    def num_steps(self) -> int:
        """How often the optimizer has really changed this model."""
        return int(self.steps.item())
