"""Write scikit-learn's handwritten digits as one file for `training.examples.digits --data FILE`.

    python -m training.examples.digits_data --output digits.npz

The first step of the workflow in `digits_workflow.yaml`.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from sklearn.datasets import load_digits

from training.checkpoint import disk


def main(argv: Sequence[str] | None = None) -> int:
    """Write the file, complete or not at all."""
    parser = argparse.ArgumentParser(
        prog="python -m training.examples.digits_data", description=__doc__.partition("\n")[0]
    )
    parser.add_argument("--output", type=Path, required=True, help="NAME.npz: images [n, 64] from 0 to 16, labels [n]")
    args = parser.parse_args(argv)
    images, labels = load_digits(return_X_y=True)
    temporary = args.output.with_name(f".{args.output.name}")
    with temporary.open("wb") as stream:
        np.savez(stream, images=images, labels=labels)
    disk.rename(temporary, args.output)
    print(f"{args.output}: {len(images)} images")
    return 0


if __name__ == "__main__":
    sys.exit(main())
