"""The training of `training.examples.stock_ddp`, with the loop: workers come and go, and the model stays the same.

python -m training --nproc-per-node 2 -m training.examples.loop_ddp
"""

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import TensorDataset

from training.loop import Loop


def main() -> None:
    """Train, and print the loss over all images."""
    torch.manual_seed(7)
    images, labels = load_digits(return_X_y=True)
    data = TensorDataset(torch.from_numpy(images / 16.0).float(), torch.from_numpy(labels).long())
    model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

    loop = Loop("checkpoints")
    loop.setup(model, optimizer, data, global_batch=64, epochs=5, seed=7, shuffle="torch", drop_last=True)

    def train(network: nn.Module) -> None:
        for inputs, targets in loop.batches():
            loss = cross_entropy(network(inputs), targets)
            loop.backward(loss)
            loop.step()

    loop.run(train)
    if loop.world.rank == 0:
        whole = cross_entropy(model(data.tensors[0]), data.tensors[1]).item()
        print(f"loss over all images: {whole:.6f}", flush=True)


if __name__ == "__main__":
    main()
