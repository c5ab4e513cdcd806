"""How a step of a workflow ends that cannot do its work: a sentence, no traceback."""

from __future__ import annotations

import sys
from collections.abc import Callable


class StepError(Exception):
    """What happened, why, and what to do next."""


def end(step: Callable[[], int]) -> None:
    """Run a step and end the process with its code; with 1 and a sentence when it cannot do its work.

    That is when it raises `StepError`, or a file cannot be read or written.
    """
    try:
        sys.exit(step())
    except (StepError, OSError) as error:
        print(f"ci: {error}", file=sys.stderr)
        sys.exit(1)
