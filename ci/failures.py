"""How a step of a workflow ends that cannot do its work: a sentence, no traceback."""

from __future__ import annotations

import sys
from collections.abc import Callable


class StepError(Exception):
    """What happened, why, and what to do next."""


def end(step: Callable[[], int]) -> None:
    """Run a step and end the process with its code; with 1 and a sentence when it raises `StepError`."""
    try:
        sys.exit(step())
    except StepError as error:
        print(f"ci: {error}", file=sys.stderr)
        sys.exit(1)
