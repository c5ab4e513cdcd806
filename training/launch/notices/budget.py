"""What fits into the time that a node has left: the step that runs, a checkpoint, and some reserve."""

from dataclasses import dataclass
from typing import Final

# A checkpoint that is written while others are, too, takes longer than the last one did.
SAVE_FACTOR: Final = 1.5
RESERVE: Final = 1.0
"""Seconds: workers that have saved still have to end."""
# A step that takes so much longer than the last one waits for a peer that is gone.
HANGING_FACTOR: Final = 10
HANGING_LEAST: Final = 5.0
"""Seconds."""


@dataclass(frozen=True, kw_only=True)
class Budget:
    """The plan of a node that is told to go.

    Attributes:
        left: seconds until its workers must have ended.
        step: seconds that the last step took; None if nobody has told.
        save: seconds that the last checkpoint took; None if there has been none.
    """

    left: float
    step: float | None = None
    save: float | None = None

    @property
    def patience(self) -> float:
        """How long to wait for the step to end by itself, in seconds.

        After that its collective is interrupted: it waits for a peer that is gone, or no time is left but to save what
        the step before has made. Without figures that is half of the time.
        """
        latest = self.left / 2 if self.save is None else max(0.0, self.left - self._saving)
        return latest if self.step is None else min(latest, max(HANGING_LEAST, HANGING_FACTOR * self.step))

    def text(self) -> str:
        """One line for the log."""
        step = "not measured" if self.step is None else f"{self.step:.1f} s"
        save = "not measured" if self.save is None else f"{self.save:.1f} s"
        return f"reclaimed in {self.left:.0f} s; step {step}, save {save}: {self._plan()}"

    @property
    def _saving(self) -> float:
        return RESERVE + SAVE_FACTOR * (self.save or 0.0)

    def _plan(self) -> str:
        if self._saving > self.left:
            return "no time to save; only what was saved or others have stays"
        if (self.step or 0.0) + self._saving > self.left:
            return f"leaving after this step if it ends within {self.patience:.0f} s, else without"
        return "leaving after this step"
