"""A training on handwritten digits as DDP scripts are commonly written: for torchrun, and for nothing that goes wrong.

    torchrun --nproc-per-node 2 -m training.examples.stock_ddp

`training.examples.loop_ddp` is the same with the loop; docs/how-to/loop.md shows the difference.
"""

import torch
import torch.distributed as dist
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


def main() -> None:
    """Train, and print the loss over all images."""
    torch.manual_seed(7)
    images, labels = load_digits(return_X_y=True)
    data = TensorDataset(torch.from_numpy(images / 16.0).float(), torch.from_numpy(labels).long())
    model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

    dist.init_process_group("gloo")
    network = DistributedDataParallel(model)
    sampler = DistributedSampler(data, seed=7, drop_last=True)
    loader = DataLoader(data, batch_size=64 // dist.get_world_size(), sampler=sampler, drop_last=True)
    for epoch in range(5):
        sampler.set_epoch(epoch)
        for inputs, targets in loader:
            loss = cross_entropy(network(inputs), targets)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

    if dist.get_rank() == 0:
        whole = cross_entropy(model(data.tensors[0]), data.tensors[1]).item()
        print(f"loss over all images: {whole:.6f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
