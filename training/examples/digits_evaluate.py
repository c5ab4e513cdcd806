"""Measure a model of `training.examples.digits` on the images that were held out.

python -m training checkpoints export checkpoints model.pt
python -m training.examples.digits_evaluate --model model.pt --data digits.npz --output metrics.json
"""

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

import torch
from torch.nn.functional import cross_entropy

from training.data.cursor import epoch_order
from training.examples.digits import NUM_HELD_OUT, PIXEL_MAX, new_model, read_images


@torch.no_grad()
def main(argv: Sequence[str] | None = None) -> int:
    """Write accuracy and loss as JSON."""
    parser = argparse.ArgumentParser(
        prog="python -m training.examples.digits_evaluate", description=__doc__.partition("\n")[0]
    )
    parser.add_argument(
        "--model", type=Path, required=True, help="NAME.pt, as `python -m training checkpoints export` writes it"
    )
    parser.add_argument("--data", type=Path, help="as training.examples.digits_data writes it")
    parser.add_argument("--output", type=Path, required=True, help="JSON file for the figures")
    args = parser.parse_args(argv)
    images, labels = read_images(args.data)
    held_out = torch.from_numpy(epoch_order(len(images), seed=0, epoch=0)[:NUM_HELD_OUT])
    inputs, targets = torch.from_numpy(images / PIXEL_MAX).float()[held_out], torch.from_numpy(labels).long()[held_out]
    model = new_model(inputs.shape[1])
    model.load_state_dict(torch.load(args.model, weights_only=True))
    scores = model(inputs)
    figures = {
        "accuracy": float((scores.argmax(1) == targets).float().mean()),
        "loss": float(cross_entropy(scores, targets)),
    }
    args.output.write_text(json.dumps({name: round(value, 6) for name, value in figures.items()}))
    print(f"{args.output}: {figures} on {len(targets)} images")
    return 0


if __name__ == "__main__":
    sys.exit(main())
