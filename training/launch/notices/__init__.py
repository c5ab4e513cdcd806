"""Notices: somebody will want this node, or wants it now.

Watchers in the launcher, one launcher per node, ask the cloud or the cluster (`training.launch.notices.watch`). What
they hear is a `Notice`, which the agent passes to its workers over the control line.

Below is the worker's side of a notice: save and go. A signal handler may not save: it runs between two bytecodes of
whatever the program does, and a rank that saves alone deadlocks the rest. So it only sets a flag. The training loop
reduces the flag over all ranks once a step, together with a number that is reduced anyway; then all stop after the same
step, one of them saves, and all exit with PREEMPTED (75).

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
from dataclasses import dataclass
from types import FrameType
from typing import Literal

from training.metrics.progress import line

_requested = False
_save_seconds: float | None = None


@dataclass(frozen=True, kw_only=True)
class Notice:
    """What is known of the end of this node.

    Attributes:
        kind: "rebalance": it may be taken soon, so save now and go on; "leave": it will be taken, so save and go.
        deadline: when it is taken, in seconds since the epoch; None if nobody says.
        source: who says so: `aws`, `gcp`, `azure`, `kubernetes`.
        detail: what exactly was said.
    """

    kind: Literal["rebalance", "leave"]
    deadline: float | None
    source: str
    detail: str


def listen() -> None:
    """From now on SIGTERM is a request. Data loader workers must ignore it: the signal goes to the process group."""
    signal.signal(signal.SIGTERM, _on_signal)


def preemption_requested() -> bool:
    """Whether this process has been asked to stop."""
    return _requested


def note_save(seconds: float) -> None:
    """Take note of how long a checkpoint took until it was safe: it has to fit into the time that a notice leaves."""
    global _save_seconds  # noqa: PLW0603  (of this process)
    _save_seconds = seconds


def save_seconds() -> float | None:
    """How long the last checkpoint of this process took; None if there was none."""
    return _save_seconds


def _on_signal(number: int, _: FrameType | None) -> None:
    global _requested  # noqa: PLW0603  (a signal handler has no other place)
    if not _requested:
        _requested = True
        told = line("notice", message=f"{signal.Signals(number).name}: stopping after this step")
        with contextlib.suppress(OSError):  # not through sys.stdout: it may be what the signal has interrupted
            os.write(1, told)
