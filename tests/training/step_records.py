"""What the programs of `programs/` write for every complete step, and what must be true of it.

The check is exact: a single step that was lost, or made twice without need, is found. Step numbers alone do not show
that, since a process that is killed may have completed a step and not recorded it. So the model counts itself what its
optimizer has done to it (`programs/counted.py`), and each record says whether the step was in a checkpoint by then.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, kw_only=True)
class Step:
    """One complete step, as one worker saw it. Times are seconds since the epoch by the one clock of this computer."""

    step: int
    applied: int  # how many steps of the optimizer the model has seen, by its own count
    saved: bool  # whether this worker has put it into a checkpoint, which an older world cannot replace
    rank: int
    world: float  # names the world; a later one has a greater name
    world_size: int
    pid: int
    started: float  # when the process began: its number may be given out again
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
    if wrong := [step for step in steps if step.applied != step.step]:
        one = wrong[0]
        found.append(f"world {one.world} calls step {one.step} what is the model's step {one.applied}")
    before: list[Step] = []
    by_world: dict[float, list[Step]] = {}
    for step in steps:
        by_world.setdefault(step.world, []).append(step)
    for world in sorted(by_world):
        mine = by_world[world]
        found += _check_world(world, mine, before)
        # A step that was begun before counts as made before: a process may be frozen for a while at its end.
        first_done = min(step.done for step in mine)
        if late := [step for step in before if step.begun > first_done]:
            found.append(
                f"world {late[0].world} began step {late[0].step} {late[0].begun - first_done:.3f} s after a newer "
                f"world's first, {world}"
            )
        before += mine
    return found


def _check_world(world: float, mine: Sequence[Step], before: Sequence[Step]) -> list[str]:
    """What is wrong with one world's steps, by those of all earlier worlds."""
    found = []
    made = sorted({step.step for step in mine})
    if made != list(range(made[0], made[-1] + 1)):
        found.append(f"world {world} left steps out: {made[0]} to {made[-1]} in {len(made)} steps")
    begun = min(step.begun for step in mine)
    safe = max((step.step for step in before if step.saved and step.done < begun), default=0)
    if made[0] <= safe:
        found.append(f"world {world} begins with step {made[0]}, and step {safe} was in a checkpoint")
    living = {(step.pid, step.started) for step in mine}
    kept = max((step.step for step in before if (step.pid, step.started) in living), default=0)
    if made[0] <= kept:
        found.append(f"world {world} begins with step {made[0]}, and a process in it had step {kept} in memory")
    return found
