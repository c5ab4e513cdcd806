"""What a job has told of itself, from its first line to its last: read once, shown in many ways."""

from infra.history.model import (
    Checkpoint,
    Evaluation,
    JobHistory,
    Notice,
    Recovery,
    Resources,
    Resume,
    Step,
    World,
)
from infra.history.reader import Reader, events_of, history, progress_in, told_in

__all__ = [
    "Checkpoint",
    "Evaluation",
    "JobHistory",
    "Notice",
    "Reader",
    "Recovery",
    "Resources",
    "Resume",
    "Step",
    "World",
    "events_of",
    "history",
    "progress_in",
    "told_in",
]
