"""The worker's side of a notice: somebody wants this node, so save and go.

A signal handler may not save: it runs between two bytecodes of whatever the program does, and a rank that saves alone
deadlocks the rest. So it only sets a flag. The training loop reduces the flag over all ranks once a step, together with
a number that is reduced anyway; then all stop after the same step, one of them saves, and all exit with PREEMPTED (75).

    notices.listen()
    for step in ...:
        ...
        totals = torch.tensor([loss, float(notices.preemption_requested())])
        dist.all_reduce(totals)
        if totals[1] > 0: save; sys.exit(exit_codes.PREEMPTED)
"""

import contextlib
import os
import signal
from types import FrameType

from training.metrics.progress import line

_requested = False


def listen() -> None:
    """From now on SIGTERM is a request. Data loader workers must ignore it: the signal goes to the process group."""
    signal.signal(signal.SIGTERM, _on_signal)


def preemption_requested() -> bool:
    """Whether this process has been asked to stop."""
    return _requested


def _on_signal(number: int, _: FrameType | None) -> None:
    global _requested  # noqa: PLW0603  (a signal handler has no other place)
    if not _requested:
        _requested = True
        told = line("notice", message=f"{signal.Signals(number).name}: stopping after this step")
        with contextlib.suppress(OSError):  # not through sys.stdout: it may be what the signal has interrupted
            os.write(1, told)
