"""Where the time of a step goes.

| part       | is                                                                                       |
| ---------- | ---------------------------------------------------------------------------------------- |
| data       | waiting for the next micro-batch                                                         |
| forward    | the script's own lines: forward pass and loss                                            |
| backward   | the backward pass, and the exchange of gradients as far as it happens beside it          |
| sync       | what is left to wait for of that exchange, and the reduction that ends the step          |
| optimizer  | unscaling, clipping, the optimizer's step                                                |
| checkpoint | what the step has waited for checkpoints                                                 |
| evaluation | between steps                                                                            |

A GPU works behind the program's back: there, a part is what the program waited in it, and the reduction that ends the
step waits for the rest. The sum is right.
"""

import time
from typing import Final

PARTS: Final = ("data", "forward", "backward", "sync", "optimizer", "checkpoint", "evaluation")


class StepClock:
    """Shares out the time since the last call among the parts; seconds of a monotonic clock."""

    def __init__(self) -> None:
        # When the last part ended.
        self.last = time.perf_counter()
        self._seconds = dict.fromkeys(PARTS, 0.0)

    def lap(self, part: str) -> None:
        """What has passed since the last lap belongs to this part."""
        now = time.perf_counter()
        self._seconds[part] += now - self.last
        self.last = now

    def move(self, seconds: float, source: str, target: str) -> None:
        """Of what one part has got, so much belongs to another; never more than it has."""
        seconds = min(seconds, self._seconds[source])
        self._seconds[source] -= seconds
        self._seconds[target] += seconds

    def take(self) -> dict[str, float]:
        """The seconds of each part since the last `take`."""
        taken, self._seconds = self._seconds, dict.fromkeys(PARTS, 0.0)
        return taken

    def restart(self) -> None:
        """Drop what has passed: it was no step."""
        self.last = time.perf_counter()
        self._seconds = dict.fromkeys(PARTS, 0.0)
