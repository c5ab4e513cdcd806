"""What the programs of `programs/` write for every complete step, and what must be true of it."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, kw_only=True)
class Step:
    """One complete step, as one worker saw it. Times are seconds since the epoch by the one clock of this computer."""

    step: int
    rank: int
    world: float  # names the world; a later one has a greater name
    world_size: int
    pid: int
    begun: float
    done: float


class StepRecords:
    """The file that all workers of a job append to, read as it grows."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._position = 0
        self.all: list[Step] = []

    def read(self) -> list[Step]:
        """All steps so far, in the order in which they were written."""
        if self.path.exists():
            with self.path.open("rb") as stream:
                stream.seek(self._position)
                lines = stream.read()
            whole = lines[: lines.rfind(b"\n") + 1]
            self._position += len(whole)
            self.all += [Step(**json.loads(line)) for line in whole.splitlines()]
        return self.all


def check(steps: Sequence[Step]) -> list[str]:
    """What is wrong with a job's steps, in sentences; none if every step was made, and by one world at a time."""
    found: list[str] = []
    worlds = sorted({step.world for step in steps})
    first_done = {world: min(step.done for step in steps if step.world == world) for world in worlds}
    last = 0
    for world in worlds:
        made = sorted({step.step for step in steps if step.world == world})
        if made != list(range(made[0], made[-1] + 1)):
            found.append(f"world {world} left steps out: {made[0]} to {made[-1]} in {len(made)} steps")
        # A process that is killed may have saved a step and not recorded it, or recorded and not saved it.
        if abs(made[0] - last - 1) > 1:
            found.append(f"world {world} begins with step {made[0]}, and there had been {last}")
        last = max(last, made[-1])
        # A step that was begun before counts as made before: a process may be frozen for a while at its end.
        newer = min((first_done[other] for other in worlds if other > world), default=float("inf"))
        if late := [step for step in steps if step.world == world and step.begun > newer]:
            found.append(
                f"world {world} began step {late[0].step} {late[0].begun - newer:.3f} s after a newer world's first"
            )
    return found
