"""Queue of job keys: one worker per key at a time, later news merged, failures retried with growing waits."""

from __future__ import annotations

import asyncio
import contextlib
import time

from training.controller.metrics import Histogram

FIRST_RETRY = 0.2  # seconds
LONGEST_RETRY = 60.0
SHARE = 4
"""A job rests this many times as long as planning it took: none can take the loop for itself."""
LONGEST_REST = 0.5  # seconds


class KeyQueue:
    """Keys that are due now or later; a key that is being worked on is handed out again only when it is done."""

    def __init__(self) -> None:
        self._due: dict[str, float] = {}
        self._working: set[str] = set()
        self._not_before: dict[str, float] = {}
        self._failures: dict[str, int] = {}
        self._changed = asyncio.Event()
        self.waits = Histogram("trainyard_queue_seconds", "Time from when a job could be looked at until it was.")

    def __len__(self) -> int:
        return len(self._due)

    def add(self, key: str, delay: float = 0.0) -> None:
        """Makes a key due in `delay` seconds, or sooner if it was due sooner already."""
        due = time.monotonic() + delay
        if due < self._due.get(key, float("inf")):
            self._due[key] = due
            self._changed.set()

    async def get(self) -> str:
        """The next key that is due; it belongs to the caller until `done` or `failed`.

        What is measured as its wait is not the time in which it was worked on, or rested, though it was due.
        """
        while True:
            now = time.monotonic()
            key, due = self._next()
            if key is not None and due <= now:
                del self._due[key]
                self.waits.observe(now - due)
                self._working.add(key)
                return key
            self._changed.clear()
            with contextlib.suppress(TimeoutError):
                # not wait_for: in Python 3.11 it may swallow a cancellation that comes together with the event
                async with asyncio.timeout(None if key is None else due - now):
                    await self._changed.wait()

    def done(self, key: str, busy_seconds: float = 0.0) -> None:
        """The key was worked on, which kept the loop busy for so long (waiting for answers not counted)."""
        self._failures.pop(key, None)
        self._not_before[key] = time.monotonic() + min(busy_seconds * SHARE, LONGEST_REST)
        self._release(key)

    def failed(self, key: str) -> float:
        """Working on the key failed: it becomes due again after a wait, which is returned (seconds)."""
        failures = self._failures[key] = self._failures.get(key, 0) + 1
        wait = min(FIRST_RETRY * 2.0 ** (failures - 1), LONGEST_RETRY)
        self._not_before[key] = time.monotonic() + wait
        self.add(key, wait)
        self._release(key)
        return wait

    def forgive(self, key: str) -> None:
        """What made the key fail may have been corrected: it is due now, its failures are forgotten."""
        self.forget(key)
        self.add(key)

    def forget(self, key: str) -> None:
        """The key's object is gone."""
        for memory in (self._due, self._not_before, self._failures):
            memory.pop(key, None)

    def _release(self, key: str) -> None:
        self._working.discard(key)
        self._changed.set()

    def _next(self) -> tuple[str | None, float]:
        waiting = (
            (max(due, self._not_before.get(key, 0.0)), key)
            for key, due in self._due.items()
            if key not in self._working
        )
        due, key = min(waiting, default=(float("inf"), None))
        return key, due
