"""The launcher's watch for notices: asks the sources that were chosen, each in a thread, and tells the agent."""

import logging
import os
import queue
import signal
import threading
import time
from collections.abc import Sequence
from datetime import timedelta
from typing import Final

from training.launch.notices import Notice
from training.launch.notices.metadata import MetadataError
from training.launch.notices.sources import SOURCES, Source, here
from training.metrics.progress import emit

logger = logging.getLogger(__name__)

OPTION: Final = "--notices"
AUTO: Final = "auto"
NONE: Final = "none"
# A source that has never answered is given up after so many tries: there is none, or it cannot be reached.
TRIES: Final = 3
# Between two tries of a source that does not answer.
PAUSE: Final = timedelta(seconds=5)
# Left of the time until a node is taken: to write the last lines, and for clocks that differ.
MARGIN: Final = timedelta(seconds=2)
# So long after the launcher's start, at most, a node waits for the first answers before it joins. Its workers' modules
# are imported meanwhile, and clouds answer in milliseconds.
FIRST_LOOK: Final = timedelta(seconds=5)
# A node that is still here so long after it was to be taken is not taken: events are called off.
OVERDUE: Final = timedelta(minutes=5)


def mistake(chosen: str) -> str | None:
    """What is wrong with the value of `--notices`; None: nothing."""
    if chosen in {AUTO, NONE}:
        return None
    unknown = [name for name in chosen.split(",") if name not in SOURCES]
    if unknown:
        return f"{OPTION} {chosen}: write {AUTO}, {NONE}, or some of {','.join(SOURCES)} with commas between"
    return None


class Watch:
    """Who wants this node, as far as is known.

    Args:
        chosen: the value of `--notices`.
        wake: the signal that the launcher gets when the node is to be left. It is a signal, so that the launcher hears
            of it wherever it waits.
        is_member: False: the node has not joined yet, so there is nothing to leave, until `stay_away` has returned.
    """

    def __init__(self, chosen: str, wake: int, *, is_member: bool = True) -> None:
        self._wake = wake
        self._is_member = is_member
        self._changing = threading.Lock()
        self._saves: queue.SimpleQueue[Notice] = queue.SimpleQueue()
        self.leaving: Notice | None = None
        self._is_over = threading.Event()
        is_chosen = chosen not in {AUTO, NONE}
        names = [] if chosen == NONE else chosen.split(",") if is_chosen else here()
        self._has_looked = {name: threading.Event() for name in names}
        self._look_until = time.monotonic() + FIRST_LOOK.total_seconds()
        for name in self._has_looked:
            threading.Thread(
                target=self._follow, args=(SOURCES[name](), is_chosen), name=f"notices-{name}", daemon=True
            ).start()

    def close(self) -> None:
        """Ask no more."""
        self._is_over.set()

    def saves(self) -> Sequence[Notice]:
        """What has been said since the last call that asks for a checkpoint."""
        found = []
        while not self._saves.empty():
            found.append(self._saves.get())
        return found

    def seconds_left(self) -> float | None:
        """Until the node should be empty; None if nobody says, or nobody wants it."""
        if self.leaving is None or self.leaving.deadline is None:
            return None
        return max(0.0, self.leaving.deadline - time.time() - MARGIN.total_seconds())

    def stay_away(self) -> None:
        """Before joining: return when nobody wants this node; from then on a notice is a signal.

        A pod that is restarted on a node under notice would cost the others two worlds, one when it joins and one when
        it leaves. So it waits here for its end, which is a signal, or until the node is not taken after all.
        """
        for has_looked in self._has_looked.values():
            has_looked.wait(max(0.0, self._look_until - time.monotonic()))
        while True:
            with self._changing:
                if self.leaving is None:
                    self._is_member = True
                    return
                told, heard_at = self.leaving, time.time()
            emit("notice", message=f"this node is wanted back ({told.source}: {told.detail}): not joining the job")
            until = OVERDUE.total_seconds() + (heard_at if told.deadline is None else max(heard_at, told.deadline))
            while time.time() < until:
                time.sleep(min(1.0, max(0.0, until - time.time())))
            emit("notice", message="this node has not been taken: joining the job")
            with self._changing:
                self.leaving = None

    def _follow(self, source: Source, is_chosen: bool) -> None:
        told: set[tuple[str, str]] = set()
        has_answered, failures = False, 0
        while not self._is_over.is_set():
            start = time.monotonic()
            try:
                notices = source.look()
            except MetadataError as error:
                self._has_looked[source.name].set()
                failures += 1
                if not has_answered and failures >= TRIES:
                    level = logging.WARNING if is_chosen else logging.INFO
                    logger.log(level, "no notices from %s: %s; %s", source.name, error, _REMEDY)
                    return
                if failures == TRIES:
                    logger.warning("%s has stopped answering, and is asked again: %s", source.name, error)
                self._is_over.wait(max(PAUSE, source.interval).total_seconds())
                continue
            has_answered, failures = True, 0
            for notice in notices:
                if (notice.kind, notice.detail) not in told:
                    told.add((notice.kind, notice.detail))
                    self._tell(notice)
            self._has_looked[source.name].set()
            self._is_over.wait(max(0.0, source.interval.total_seconds() - (time.monotonic() - start)))

    def _tell(self, notice: Notice) -> None:
        left = None if notice.deadline is None else round(notice.deadline - time.time(), 1)
        emit(
            "notice",
            message=f"{notice.source}: {notice.detail}",
            kind=notice.kind,
            source=notice.source,
            seconds_left=left,
        )
        if notice.kind == "rebalance":
            self._saves.put(notice)
            return
        with self._changing:
            is_first, self.leaving = self.leaving is None, self.leaving or notice
        if is_first and self._is_member:
            os.kill(os.getpid(), self._wake)


_REMEDY: Final = (
    f"from a pod the metadata service needs a hop limit of 2 or the host's network; {OPTION} {NONE} asks nobody"
)


def wake_signal(handled: str) -> int:
    """Of the launcher's `--signals-to-handle`, the one that stands for a notice."""
    names = [name.strip() for name in handled.split(",")]
    return signal.Signals["SIGTERM" if "SIGTERM" in names else names[0]]
