"""Which events are worth a call: a job that tells the same again and again must not flood the API server."""

from __future__ import annotations

from dataclasses import dataclass, replace

from training.controller.planner import Event

WINDOW = 600.0  # seconds; as Kubernetes' own event recorders count
EACH = 10
"""Events of one reason that are told each for itself within a window; of more, the 20th, 40th, 80th ... are."""


@dataclass(slots=True)
class _Told:
    since: float
    number: int = 0


class EventFilter:
    """Remembers how often each job has told each reason."""

    def __init__(self) -> None:
        self._told: dict[tuple[str, str], _Told] = {}

    def pass_on(self, job_uid: str, event: Event, now: float) -> Event | None:
        """The event, with a number where it stands for others; None if it is not worth a call.

        Args:
            job_uid: the job that it is about.
            event: what happened.
            now: seconds of a clock that only goes forward.
        """
        key = (job_uid, str(event.reason))
        told = self._told.get(key)
        if told is None or now - told.since >= WINDOW:
            self._forget_old(now)
            told = self._told[key] = _Told(now)
        told.number += 1
        if told.number <= EACH:
            return event
        times, rest = divmod(told.number, EACH)
        if rest or times & (times - 1):  # not EACH times a power of two
            return None
        minutes = f"{told.number} times within {WINDOW / 60:g} minutes"
        return replace(event, message=f"{minutes}, the last: {event.message}")

    def _forget_old(self, now: float) -> None:
        self._told = {key: told for key, told in self._told.items() if now - told.since < WINDOW}
