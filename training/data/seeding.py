"""Random numbers that do not depend on how many workers there are, nor on which of them handles a sample.

What happens to a sample at random (a crop, a flip) comes from seed, epoch and sample id: `sample_seed`. What happens in
a step at random (dropout) comes from seed, step and rank: `seed_step`, called before each step, makes a continued run
of the same world size equal to an undisturbed one, without any generator's state in the checkpoint. Dropout cannot be
independent of the world size: its mask is drawn for the samples of a rank together.
"""

import contextlib
import random
from collections.abc import Iterator
from typing import Final

import numpy as np
import torch

from training.data.cursor import hash64

# Keeps the numbers of a step apart from those of a sample with the same number.
_STEP: Final = 0x73746570


def sample_seed(seed: int, epoch: int, sample: int) -> int:
    """Seed, 0 to 2**63 - 1, of what happens to a sample in an epoch."""
    return hash64(seed, epoch, sample) >> 1


@contextlib.contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Within, the generators of `random`, `numpy.random` and torch (CPU) begin with a seed; afterwards they go on."""
    python, numpy, torch_state = random.getstate(), np.random.get_state(), torch.default_generator.get_state()
    _seed_host(seed)
    try:
        yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)
        torch.default_generator.set_state(torch_state)


def seed_step(seed: int, step: int, rank: int) -> None:
    """Seed the generators of `random`, `numpy.random` and torch (CPU and GPUs) for a step of a rank."""
    number = hash64(seed, _STEP, step, rank) >> 1
    _seed_host(number)
    torch.manual_seed(number)


def _seed_host(seed: int) -> None:
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.default_generator.manual_seed(seed)
