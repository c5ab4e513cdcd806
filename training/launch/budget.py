"""How many failures a job may have: counted once for the whole job, whoever sees them.

torch counts on each node, and only the restarts of that node: a failure that all ranks share (one bad sample, say)
costs each node one, and a node that joins late starts anew. Here the count is part of the state that all nodes share
(`membership.State`), and each world can fail only once. The node whose worker has failed counts, and gives up when the
job has had more failures than `--max-restarts` (exit code 1), or three in a row without a new step (78: do not start
it again); the others then hear so, and end with the same code. What is no failure of the job is not counted: a lost,
leaving or joining node, a worker that ends with PREEMPTED (75), an error that is the echo of a loss elsewhere.

What a script needs may be away for a moment: storage, a name server. So before a world that brought no new step is
followed by another there is a pause, which grows. After a failure with a new step there is none.
"""

from dataclasses import dataclass
from typing import Final

# So many failures in a row without a new step, and the script is not being unlucky.
NUM_FAILURES_WITHOUT_PROGRESS: Final = 3
# Seconds before the last try, unless --restart-pause says otherwise; the pauses before it are shorter by this factor
# each. Together 24 s: storage and name servers that restart are away for less.
LONGEST_PAUSE: Final = 20.0
PAUSE_GROWTH: Final = 5.0


@dataclass
class Failures:
    """The failures of a job so far.

    Attributes:
        total: how many there were.
        without_progress: how many of them since the last new step.
        best_step: the last step that a failed world had completed; -1 when none has.
        generation: the world that failed last.
    """

    total: int = 0
    without_progress: int = 0
    best_step: int = -1
    generation: int = 0

    def count(self, generation: int, step: int | None, *, is_free: bool, lived_long: bool) -> bool:
        """Take note of a failure; returns whether it is a new one, not of a world that has failed or is long gone.

        Args:
            generation: the world that has failed.
            step: the last complete step; None where the script does not report its steps.
            is_free: whether it costs nothing as long as there are new steps.
            lived_long: whether the world has lived so long that it counts as progress when no steps are reported.
        """
        if generation <= self.generation:
            return False
        self.generation = generation
        self.total += 0 if is_free else 1
        has_progress = lived_long if step is None else step > self.best_step
        self.without_progress = 0 if has_progress else self.without_progress + 1
        self.best_step = max(self.best_step, -1 if step is None else step)
        return True

    def pause(self, longest: float) -> float:
        """Seconds from the start of the world that failed last to that of the next, at least: 0 after a new step.

        Args:
            longest: seconds before the last try.
        """
        tries_left = NUM_FAILURES_WITHOUT_PROGRESS - self.without_progress
        if self.without_progress == 0 or tries_left <= 0:
            return 0.0
        return longest / PAUSE_GROWTH ** (tries_left - 1)

    @property
    def is_stuck(self) -> bool:
        """Whether trying again is pointless."""
        return self.without_progress >= NUM_FAILURES_WITHOUT_PROGRESS
