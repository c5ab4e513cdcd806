"""Progress lines: one JSON object per line on standard output, first key `"trainyard"` with the event's name.

They are for programs (`trainyard drill` reads them from the pods' logs) and can be read by people. All carry `time`:
seconds since the epoch by this node's clock.

| event      | written by       | fields                                                                    |
| ---------- | ---------------- | ------------------------------------------------------------------------- |
| step       | rank 0           | step, loss, world_size, generation, samples; after the optimizer's step   |
| resume     | rank 0           | step, generation, world_size, checkpoint ("" for none), loader_workers    |
| checkpoint | rank 0           | step, path, seconds; after it is safe on disk; `at_notice` if asked for   |
| evaluation | rank 0           | step and the evaluation's figures (`training.loop`)                       |
| metrics    | worker           | port, rank: where it answers Prometheus (`training.metrics.worker`)       |
| finished   | rank 0           | step, accuracy, loss, samples; what the last evaluation has found         |
| rendezvous | every launcher   | generation, world_size, seconds; when a world is complete                 |
| ranks      | every launcher   | generation, ranks of this node's workers in it: `trainyard logs` shows them |
| recovery   | every launcher   | cause, seconds per phase, the new world: see `training.metrics.recovery`  |
| resources  | every launcher   | processor time, memory, /dev/shm: see `training.metrics.resources`        |
| notice     | launcher, worker | message and what else is known; something happened that may end a process |
"""

import contextlib
import json
import os
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from training.launch.environment import GENERATION, PROGRESS_FILE


def emit(event: str, **fields: object) -> None:
    """Write one progress line. A single write, so that lines of several processes on one pipe do not mix."""
    text = line(event, **fields)
    sys.stdout.flush()
    try:
        os.write(sys.stdout.fileno(), text)
    except (OSError, ValueError):  # standard output replaced by an object without a descriptor, or closed
        sys.stdout.write(text.decode())


def line(event: str, **fields: object) -> bytes:
    """A progress line, ready to be written."""
    return json.dumps({"trainyard": event, "time": round(time.time(), 3), **fields}).encode() + b"\n"


@dataclass(frozen=True)
class Report:
    """How far a node's workers have come."""

    step: int
    """The last complete step."""
    first_step: int
    """The first one that they completed in their world."""
    first_at: float
    """When that was: seconds of CLOCK_MONOTONIC, which all processes of a node share."""


def report_step(step: int) -> None:
    """Tell the node's agent that a step is complete, so that it can tell bad luck from a script that cannot work.

    The first step after a recovery is its end: see `training.metrics.recovery`. One worker of a node speaks for all of
    them.
    """
    path = os.environ.get(PROGRESS_FILE)
    if path and os.environ.get("LOCAL_RANK", "0") == "0":
        first_step, first_at = _first_of_world(step)
        with contextlib.suppress(OSError):
            new = Path(f"{path}.new")
            new.write_text(f"{step} {first_step} {first_at}")
            new.replace(path)


def read_report(path: Path) -> Report | None:
    """What `report_step` has written last; None if it has not."""
    try:
        step, first_step, first_at = path.read_text().split()
        return Report(int(step), int(first_step), float(first_at))
    except (OSError, ValueError):
        return None


_firsts: dict[str, tuple[int, float]] = {}


def _first_of_world(step: int) -> tuple[int, float]:
    """The first step that this process has reported in its present world, and when."""
    generation = os.environ.get(GENERATION, "")
    if generation not in _firsts:
        _firsts.clear()  # a process may live through many worlds
        _firsts[generation] = step, time.monotonic()
    return _firsts[generation]
