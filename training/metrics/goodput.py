"""Goodput: which share of a job's wall time was useful steps, and what the rest was spent on.

    python -m training.metrics.goodput node-0.log node-1.log [--json]

Reads the progress lines of launchers and workers (`training.metrics.progress`), of all nodes; other lines are passed
over. The time of a step is known from its parts (`training.metrics.timing`), which `training.loop` writes.

| share             | is                                                                                            |
| ----------------- | --------------------------------------------------------------------------------------------- |
| useful            | forward, backward, exchange of gradients and optimizer of steps that were made once           |
| data              | waiting for samples                                                                           |
| checkpoint        | waiting for checkpoints                                                                       |
| evaluation        | between steps                                                                                 |
| repeated          | all parts of steps that had been made before                                                  |
| recovery CAUSE    | from a fault, or a change of the world, to the next step; `recovery start` is the beginning   |
| other             | what nobody has told of                                                                       |

Where a progress line stands for several steps (`log_every`), repeated steps are known only that exactly. Recoveries are
seen by every node: of one world the longest counts, but not that of a newcomer, for whose start the others do not wait.
"""

import argparse
import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from training.metrics.recovery import RESUMED

_USEFUL: Final = ("forward", "backward", "sync", "optimizer")
_LOSSES: Final = ("data", "checkpoint", "evaluation")


@dataclass(frozen=True, kw_only=True)
class Goodput:
    """Where the wall time of a job went; all in seconds.

    Attributes:
        wall: from the first thing that is known to the last step.
        useful: of steps that count.
        losses: what else, by cause; largest first.
        steps: the last step.
    """

    wall: float
    useful: float
    losses: Mapping[str, float]
    steps: int

    @property
    def share(self) -> float:
        """Useful time over wall time."""
        return self.useful / self.wall if self.wall else 0.0


def account(events: Iterable[Mapping[str, Any]]) -> Goodput:
    """Add up the progress lines of one job.

    Args:
        events: of all nodes, in any order; `trainyard` is the name of each.

    Raises:
        ValueError: there is no step among them, or none tells its parts.
    """
    told = sorted(events, key=lambda event: event["time"])
    steps = [event for event in told if event["trainyard"] == "step" and "seconds" in event]
    if not steps:
        raise ValueError("no step tells where its time went: are these the logs of all nodes, of a training.loop?")
    losses = dict.fromkeys((*_LOSSES, "repeated"), 0.0)
    useful, newest = 0.0, 0
    for event in steps:
        if event["step"] <= newest:
            losses["repeated"] += sum(event["seconds"].values())
            continue
        newest = event["step"]
        useful += sum(event["seconds"].get(part, 0.0) for part in _USEFUL)
        for part in _LOSSES:
            losses[part] += event["seconds"].get(part, 0.0)
    recoveries: dict[int, Mapping[str, Any]] = {}
    for event in told:
        if event["trainyard"] == "recovery" and event["outcome"] == RESUMED:
            known = recoveries.get(event["generation"])
            if known is None or _weight(event) > _weight(known):
                recoveries[event["generation"]] = event
    for record in recoveries.values():
        cause = f"recovery {record['cause']}"
        losses[cause] = losses.get(cause, 0.0) + record["total"]
    begin = min([told[0]["time"], *(record["began"] for record in recoveries.values())])
    wall = steps[-1]["time"] - begin
    losses["other"] = max(0.0, wall - useful - sum(losses.values()))
    largest_first = sorted(losses.items(), key=lambda loss: -loss[1])
    return Goodput(
        wall=wall, useful=useful, losses={name: value for name, value in largest_first if value}, steps=newest
    )


def _weight(record: Mapping[str, Any]) -> tuple[bool, float]:
    """Which of the nodes' records of one world tells what the job has lost."""
    return record["cause"] != "start", record["total"]


def read(path: Path) -> list[dict[str, Any]]:
    """The progress lines of a log; a line that was cut off by the end of a process is passed over.

    Raises:
        OSError: it cannot be read.
    """
    events = []
    for line in path.read_text(errors="replace").splitlines():
        begin = line.find('{"trainyard"')
        if begin >= 0:
            try:
                events.append(json.loads(line[begin:]))
            except ValueError:
                continue
    return events


def main(argv: Sequence[str] | None = None) -> int:
    """The command; returns its exit code: 0, or 1 if the logs tell nothing."""
    parser = argparse.ArgumentParser(
        prog="python -m training.metrics.goodput", description="Which share of a job's wall time was useful steps."
    )
    parser.add_argument("logs", nargs="+", type=Path, help="logs of all nodes, launchers and workers")
    parser.add_argument("--json", action="store_true", help="one JSON document on standard output")
    args = parser.parse_args(argv)
    try:
        found = account(event for log in args.logs for event in read(log))
    except (OSError, ValueError) as error:
        sys.stderr.write(f"goodput: {error}\n")
        return 1
    if args.json:
        document = {
            "wall": round(found.wall, 3),
            "useful": round(found.useful, 3),
            "goodput": round(found.share, 4),
            "steps": found.steps,
            "losses": {name: round(value, 3) for name, value in found.losses.items()},
        }
        sys.stdout.write(json.dumps(document) + "\n")
        return 0
    rows = [("useful", found.useful), *found.losses.items()]
    sys.stdout.write(f"goodput {found.share:.1%}: {found.steps} steps in {found.wall:.1f} s\n")
    for name, seconds in rows:
        sys.stdout.write(f"  {name:24} {seconds:10.1f} s {seconds / found.wall:7.1%}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
