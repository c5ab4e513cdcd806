"""What the ranks of a world tell each other through its store, where no collective can say it: at its begin and end.

**Begin.** All come, or the meeting is called off, and all hear the same of the two: the first entry counts.
So a rank that is told to go, or that the world is over before it has begun, waits for nobody, and nobody for it.

**End.** One rank saves, the others wait for that. A save may take long, so its rank gives signs of life meanwhile. Who
hears none saves itself: that rank stands still, or the node that serves the store does.

A call to a store on a node that stands still does not return, and nothing but the end of its connection ends it. So
calls that must not hang are made in a thread that can be left behind (`answer`).
"""

import contextlib
import queue
import threading
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Final, TypeVar

import torch.distributed as dist

from training.launch.torch_private import Store

T = TypeVar("T")

POLL: Final = timedelta(milliseconds=2)
# From one sign of life of the rank that saves to the next.
SIGN: Final = timedelta(seconds=1)
# So long without a sign, and it is not waited for; far longer than a busy processor holds up a thread.
SILENCE: Final = timedelta(seconds=10)
# The same when the launcher says that the world is broken.
SILENCE_IN_BROKEN_WORLD: Final = timedelta(seconds=3)

_HERE, _VERDICT, _MET, _OFF = "here", "verdict", "met", "off"
_DONE, _LEAVING, _SAVING, _SAVED = "done", "leaving", "saving", "saved"


class CalledOffError(Exception):
    """Not all ranks of this world will come."""


def meet(store: Store, size: int, *, is_wanted: Callable[[], bool], timeout: timedelta) -> list[str]:
    """Wait until each rank has come (`come`); returns what they have said, by rank.

    Args:
        store: of this world.
        size: ranks of this world.
        is_wanted: asked again and again; False calls the meeting off, unless all are there by then.
        timeout: after so long without all of them it is an error.

    Raises:
        CalledOffError: by us or by another rank.
        DistStoreError: not all have come in time.
    """
    keys = [f"{_HERE}/{rank}" for rank in range(size)]
    deadline = time.monotonic() + timeout.total_seconds()
    while not store.check(keys):
        is_off = store.check([_VERDICT]) and _text(store.get(_VERDICT)) == _OFF
        if is_off or (not is_wanted() and _decide(store, _OFF) == _OFF):
            raise CalledOffError
        if time.monotonic() >= deadline:
            raise dist.DistStoreError(f"not all ranks have come within {timeout.total_seconds():g} s")
        time.sleep(POLL.total_seconds())
    if _decide(store, _MET) == _OFF:
        raise CalledOffError
    return [_text(store.get(key)) for key in keys]


def come(store: Store, rank: int, said: str) -> None:
    """Say that we are there, and what the others must know of us."""
    store.set(f"{_HERE}/{rank}", said)


def finish(store: Store, rank: int, size: int, check: Callable[[], None], timeout: timedelta) -> None:
    """Say that we have finished, and wait until all have; `check` is called meanwhile, and may raise.

    Raises:
        DistStoreError: not all have finished in time.
    """
    store.set(f"{_DONE}/{rank}", "1")
    deadline = time.monotonic() + timeout.total_seconds()
    while not store.check([f"{_DONE}/{number}" for number in range(size)]):
        check()
        if time.monotonic() >= deadline:
            raise dist.DistStoreError(f"not all ranks have finished within {timeout.total_seconds():g} s")
        time.sleep(POLL.total_seconds())


def is_first_to_leave(store: Store) -> bool:
    """Whether no other rank has left in the middle of a step before us; also when nobody can say."""
    return answer(lambda: store.add(_LEAVING, 1) == 1) is not False


@contextlib.contextmanager
def saving(store: Store) -> Iterator[None]:
    """Around a save that others wait for: signs of life, and then the word that it is safe."""
    is_over = threading.Event()

    def give_signs() -> None:
        with contextlib.suppress(dist.DistError):  # served by a node that is gone: nobody hears us
            while not is_over.wait(SIGN.total_seconds()):
                store.add(_SAVING, 1)

    threading.Thread(target=give_signs, name="trainyard-saving", daemon=True).start()
    try:
        yield
    finally:
        is_over.set()
    answer(lambda: store.set(_SAVED, "1"))


def is_saved_by_another(store: Store, *, is_broken: Callable[[], bool]) -> bool:
    """Wait for the rank that saves; False: it gives no sign of life, or the store does not.

    Args:
        store: of this world.
        is_broken: whether the launcher has said that somebody is gone; then less silence is enough.
    """
    signs, heard_at = 0, time.monotonic()

    def is_silent() -> bool:
        limit = SILENCE_IN_BROKEN_WORLD if is_broken() else SILENCE
        return time.monotonic() - heard_at > limit.total_seconds()

    while not is_silent():
        heard = answer(lambda: (store.check([_SAVED]), store.add(_SAVING, 0)), is_silent)
        if heard is None:
            return False
        is_saved, count = heard
        if is_saved:
            return True
        if count != signs:
            signs, heard_at = count, time.monotonic()
        time.sleep(SIGN.total_seconds() / 10)
    return False


def answer(ask: Callable[[], T], is_enough: Callable[[], bool] | None = None) -> T | None:
    """What a call to the store returns; None: the node that serves it is gone or stands still.

    Args:
        ask: the call.
        is_enough: whether to wait no longer; without it that is after `SILENCE`.
    """
    answers: queue.SimpleQueue[T | None] = queue.SimpleQueue()

    def call() -> None:
        try:
            answers.put(ask())
        except dist.DistError:
            answers.put(None)

    threading.Thread(target=call, name="trainyard-store", daemon=True).start()
    deadline = time.monotonic() + SILENCE.total_seconds()
    while not (is_enough() if is_enough else time.monotonic() >= deadline):
        with contextlib.suppress(queue.Empty):
            return answers.get(timeout=0.05)
    return None


def _decide(store: Store, verdict: str) -> str:
    """Enter a verdict, unless there is one; returns the one that counts."""
    return _text(store.compare_set(_VERDICT, "", verdict))


def _text(value: bytes | str) -> str:
    return value.decode() if isinstance(value, bytes) else value
