"""A small residual network on images: scikit-learn's handwritten digits, moved about at random.

    python -m training.examples.images                                      # one process, half a minute on a CPU
    python -m training --nproc-per-node 2 -m training.examples.images --checkpoints /checkpoints
    python -m training --nproc-per-node gpu -m training.examples.images --size large    # for GPUs; not run yet

`large` is a network of ResNet-50's cost on generated images of 224 x 224: for times, and not for anything that it could
learn. How an image is moved comes from seed, epoch and image (`training.data.seeding`), so it does not depend on who
loads it. GroupNorm looks at one image alone, so the model is the same for every number of workers.
"""

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, pad, relu
from torch.utils.data import Dataset, TensorDataset

from training.checkpoint.retention import Retention
from training.loop import EarlyStop, Loop

NUM_HELD_OUT: Final = 297
NUM_CLASSES: Final = 10
PIXEL_MAX: Final = 16.0


@dataclass(frozen=True, kw_only=True)
class Size:
    """Of the network and of a step."""

    channels: tuple[int, ...]  # of each stage; every stage but the first halves the image
    blocks: int  # in a stage
    global_batch: int
    micro_batch: int  # what fits into the memory of one worker
    precision: str


SIZES: Final = {
    "small": Size(channels=(16, 32), blocks=1, global_batch=64, micro_batch=64, precision="full"),
    "large": Size(channels=(64, 128, 256, 512), blocks=3, global_batch=1024, micro_batch=128, precision="bf16"),
}


class MovedDigits(Dataset[tuple[Tensor, Tensor]]):
    """Digits, each moved by up to one pixel."""

    def __init__(self, images: Tensor, labels: Tensor) -> None:
        self._images, self._labels = images, labels

    def __len__(self) -> int:
        return len(self._images)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        image = self._images[index]
        down, right = torch.randint(0, 3, (2,)).tolist()
        moved = pad(image, (1, 1, 1, 1))[:, down : down + image.shape[1], right : right + image.shape[2]]
        return moved, self._labels[index]


class GeneratedImages(Dataset[tuple[Tensor, Tensor]]):
    """Noise with labels: as much work as real images, and nothing to learn."""

    def __len__(self) -> int:
        return 100_000

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return torch.randn(3, 224, 224), torch.tensor(index % NUM_CLASSES)


class Block(nn.Module):
    """Two convolutions and a way around them."""

    def __init__(self, before: int, after: int, stride: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(before, after, 3, stride, 1, bias=False)
        self.second = nn.Conv2d(after, after, 3, 1, 1, bias=False)
        self.norms = nn.ModuleList(nn.GroupNorm(4, after) for _ in range(2))
        self.around = nn.Conv2d(before, after, 1, stride, bias=False)

    def forward(self, images: Tensor) -> Tensor:
        """[batch, before, height, width] -> [batch, after, height / stride, width / stride]."""
        values = relu(self.norms[0](self.first(images)))
        return relu(self.norms[1](self.second(values)) + self.around(images))


class ResidualNetwork(nn.Sequential):
    """Stages of blocks, a mean over the image, scores of the classes."""

    def __init__(self, in_channels: int, size: Size) -> None:
        layers: list[nn.Module] = []
        before = in_channels
        for number, channels in enumerate(size.channels):
            for block in range(size.blocks):
                layers.append(Block(before, channels, stride=2 if number and not block else 1))
                before = channels
        super().__init__(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(before, NUM_CLASSES))


def main(argv: Sequence[str] | None = None) -> None:
    """Train; the result is in the progress line `finished`."""
    parser = argparse.ArgumentParser(prog="python -m training.examples.images")
    parser.add_argument("--epochs", type=int, default=12, help="at most; training ends when it gets no better")
    parser.add_argument("--size", choices=SIZES, default="small")
    parser.add_argument("--checkpoints", type=Path, help="folder that all workers share")
    args = parser.parse_args(argv)
    size = SIZES[args.size]

    torch.manual_seed(7)
    bunch = load_digits()
    images = torch.from_numpy(bunch.images / PIXEL_MAX).float().unsqueeze(1)
    labels = torch.from_numpy(bunch.target).long()
    held_out = TensorDataset(images[-NUM_HELD_OUT:], labels[-NUM_HELD_OUT:])
    is_small = args.size == "small"
    data: Dataset[tuple[Tensor, Tensor]] = (
        MovedDigits(images[:-NUM_HELD_OUT], labels[:-NUM_HELD_OUT]) if is_small else GeneratedImages()
    )
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = ResidualNetwork(1 if is_small else 3, size).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)

    loop = Loop(
        args.checkpoints,
        evaluate_every=50 if is_small else 0,
        early_stop=EarlyStop(metric="accuracy", patience=3) if is_small else None,
        keep=Retention(last=2, best=1, metric="accuracy") if is_small else 2,
        precision=size.precision,  # type: ignore[arg-type]
    )
    loop.setup(
        model, optimizer, data, global_batch=size.global_batch, micro_batch=size.micro_batch, epochs=args.epochs, seed=7
    )

    def train(network: nn.Module) -> None:
        for batch, wanted in loop.batches():
            loop.backward(cross_entropy(network(batch), wanted))
            loop.step()

    def is_right(batch: Tensor, wanted: Tensor) -> Mapping[str, Tensor]:
        return {"accuracy": model(batch).argmax(1) == wanted}

    loop.run(train, evaluate=(lambda: loop.measure(held_out, is_right)) if is_small else None)


if __name__ == "__main__":
    main()
