"""A small transformer that writes the next character, on prose that scikit-learn ships: the pages on its data sets.

    python -m training.examples.characters                                     # one process, a minute on a CPU
    python -m training --nproc-per-node 2 -m training.examples.characters --checkpoints /checkpoints
    python -m training --nproc-per-node gpu -m training.examples.characters --size large    # for GPUs; not run yet

The text is `sklearn/datasets/descr/*.rst`, some tens of thousands of characters; the last tenth is held out. A sample
is a window of it; all windows begin at other places, so an epoch is a pass over them, not over the text.
"""

import argparse
import importlib.resources
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils.data import Dataset

from training.checkpoint.retention import Retention
from training.loop import Loop, Schedule, cosine_after_warmup

# Between the beginnings of two windows, in characters.
STRIDE: Final = 7


@dataclass(frozen=True, kw_only=True)
class Size:
    """Of the model and of a step."""

    context: int  # characters that it sees
    width: int
    num_heads: int
    num_layers: int
    global_batch: int
    micro_batch: int  # what fits into the memory of one worker
    learning_rate: float
    precision: str


SIZES: Final = {
    "small": Size(
        context=48,
        width=64,
        num_heads=4,
        num_layers=2,
        global_batch=32,
        micro_batch=16,
        learning_rate=3e-3,
        precision="full",
    ),
    # 85 million parameters, as the smallest GPT-2.
    "large": Size(
        context=512,
        width=768,
        num_heads=12,
        num_layers=12,
        global_batch=256,
        micro_batch=32,
        learning_rate=6e-4,
        precision="bf16",
    ),
}


class Windows(Dataset[tuple[Tensor, Tensor]]):
    """Pieces of a text: the characters, and those that follow them."""

    def __init__(self, text: Tensor, context: int) -> None:
        self._text, self._context = text, context

    def __len__(self) -> int:
        return max(0, (len(self._text) - self._context - 1) // STRIDE)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        piece = self._text[index * STRIDE : index * STRIDE + self._context + 1]
        return piece[:-1], piece[1:]


class Transformer(nn.Module):
    """A decoder; no dropout, so that the model is the same for every number of workers."""

    def __init__(self, num_characters: int, size: Size) -> None:
        super().__init__()
        self.characters = nn.Embedding(num_characters, size.width)
        self.places = nn.Embedding(size.context, size.width)
        layer = nn.TransformerEncoderLayer(
            size.width, size.num_heads, 4 * size.width, dropout=0.0, batch_first=True, norm_first=True
        )
        self.layers = nn.TransformerEncoder(layer, size.num_layers, enable_nested_tensor=False)
        self.head = nn.Linear(size.width, num_characters)

    def forward(self, characters: Tensor) -> Tensor:
        """Scores of the next character: [batch, context] -> [batch, context, characters]."""
        length = characters.shape[1]
        mask = nn.Transformer.generate_square_subsequent_mask(length, device=characters.device)
        values = self.characters(characters) + self.places.weight[:length]
        return self.head(self.layers(values, mask=mask, is_causal=True))  # type: ignore[no-any-return]


def load_text() -> tuple[Tensor, str]:
    """The text as numbers, and the characters that they stand for."""
    folder = importlib.resources.files("sklearn.datasets.descr")
    pages = sorted((page for page in folder.iterdir() if page.name.endswith(".rst")), key=lambda page: page.name)
    text = "\n".join(page.read_text(encoding="utf-8") for page in pages)
    alphabet = "".join(sorted(set(text)))
    return torch.tensor([alphabet.index(character) for character in text]), alphabet


def main(argv: Sequence[str] | None = None) -> None:
    """Train; the result is in the progress line `finished`."""
    parser = argparse.ArgumentParser(prog="python -m training.examples.characters")
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--size", choices=SIZES, default="small")
    parser.add_argument("--checkpoints", type=Path, help="folder that all workers share")
    args = parser.parse_args(argv)
    size = SIZES[args.size]

    torch.manual_seed(7)
    text, alphabet = load_text()
    split = len(text) * 9 // 10
    data, held_out = Windows(text[:split], size.context), Windows(text[split:], size.context)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = Transformer(len(alphabet), size).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=size.learning_rate, weight_decay=0.01)
    total = args.steps * size.global_batch

    loop = Loop(
        args.checkpoints,
        evaluate_every=100,
        keep=Retention(last=2, best=1, metric="loss", mode="min"),
        precision=size.precision,  # type: ignore[arg-type]
        clip_norm=1.0,
    )
    loop.setup(
        model,
        optimizer,
        data,
        global_batch=size.global_batch,
        micro_batch=size.micro_batch,
        steps=args.steps,
        seed=7,
        schedule=Schedule(optimizer, cosine_after_warmup(warmup=total / 20, total=total, floor=0.1)),
    )

    def train(network: nn.Module) -> None:
        for characters, following in loop.batches():
            loop.backward(cross_entropy(network(characters).flatten(0, 1), following.flatten()))
            loop.step()

    def losses(characters: Tensor, following: Tensor) -> Mapping[str, Tensor]:
        scores = model(characters).flatten(0, 1)
        return {"loss": cross_entropy(scores, following.flatten(), reduction="none").view(len(characters), -1).mean(1)}

    loop.run(train, evaluate=lambda: loop.measure(held_out, losses))


if __name__ == "__main__":
    main()
