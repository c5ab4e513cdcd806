"""Progress lines: one JSON object per line on standard output, first key `"trainyard"` with the event's name.

They are for programs (`trainyard drill` reads them from the pods' logs) and can be read by people. All carry `time`:
seconds since the epoch by this node's clock.

| event      | written by       | fields                                                                    |
| ---------- | ---------------- | ------------------------------------------------------------------------- |
| step       | rank 0           | step, loss, world_size, generation, samples; after the optimizer's step   |
| resume     | rank 0           | step, generation, world_size, checkpoint ("" when starting from nothing)  |
| checkpoint | rank 0           | step, path, seconds; after it is safe on disk                             |
| finished   | rank 0           | step, accuracy, loss, samples                                             |
| rendezvous | every launcher   | generation, world_size, seconds; when a world is complete                 |
| recovery   | every launcher   | cause, seconds per phase, the new world: see `training.metrics.recovery`  |
| notice     | launcher, worker | message and what else is known; something happened that may end a process |
"""

import contextlib
import json
import os
import sys
import time
from pathlib import Path
from typing import Final

# Where a worker tells its agent how far it has come; set by the launcher.
PROGRESS_FILE: Final = "TRAINYARD_PROGRESS_FILE"


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


def report_step(step: int) -> None:
    """Tell the node's agent that a step is complete, so that it can tell bad luck from a script that cannot work.

    One worker of a node speaks for all of them.
    """
    path = os.environ.get(PROGRESS_FILE)
    if path and os.environ.get("LOCAL_RANK", "0") == "0":
        with contextlib.suppress(OSError):
            new = Path(f"{path}.new")
            new.write_text(str(step))
            new.replace(path)
