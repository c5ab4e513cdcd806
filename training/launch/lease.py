"""Until when this node is sure to count as a member of the job, told by the launcher to its workers without delay.

A node that others have taken for dead must not go on: they train without it. So the launcher keeps a *lease*: the
moment until which nobody may have formed a world of which this node does not know (`membership` extends it at each
heartbeat that etcd has confirmed, and says how the moment is found). A worker completes a step only before that moment.

The lease is one number in shared memory: a worker that asks reads 8 bytes, without a call into the kernel, so it can
ask at every step. It is a moment of CLOCK_MONOTONIC, which all processes of a host share and nobody can set. A process
that was frozen reads, when it goes on, what the clock says then: the thawed process itself finds its lease run out,
whoever of the node's processes wakes first.

    lease = StepLease.from_environment()     # in a worker; None if the launcher keeps none
    if lease is None or lease.remaining() > 0: ...the step counts...
"""

import mmap
import os
import time
from collections.abc import Callable
from typing import Final

from training.launch.environment import LEASE_FILE

_SIZE: Final = 8


class StepLease:
    """One moment, shared between the launcher, which moves it, and its workers, which read it.

    Make it with `create` in the launcher, with `from_environment` or `open` in a worker.
    """

    def __init__(self, descriptor: int, *, writable: bool, clock: Callable[[], float] = time.monotonic) -> None:
        self._descriptor = descriptor
        self._map = mmap.mmap(descriptor, _SIZE, access=mmap.ACCESS_WRITE if writable else mmap.ACCESS_READ)
        # One aligned machine word: it is written and read as a whole (little-endian wherever torch runs).
        self._until = memoryview(self._map).cast("d")
        self._clock = clock

    @classmethod
    def create(cls, clock: Callable[[], float] = time.monotonic) -> "StepLease":
        """A lease that has run out. Pass `path` on as TRAINYARD_LEASE_FILE."""
        descriptor = os.memfd_create("trainyard-lease")
        os.ftruncate(descriptor, _SIZE)
        return cls(descriptor, writable=True, clock=clock)

    @classmethod
    def open(cls, path: str) -> "StepLease":
        """The lease of the launcher that gave this path, for reading.

        Raises:
            OSError: there is none, or the launcher has ended.
        """
        return cls(os.open(path, os.O_RDONLY | os.O_CLOEXEC), writable=False)

    @classmethod
    def from_environment(cls) -> "StepLease | None":
        """The lease of the launcher that started this worker, or None where no launcher keeps one (plain Python).

        Raises:
            OSError: the launcher has ended.
        """
        path = os.environ.get(LEASE_FILE)
        return cls.open(path) if path else None

    @property
    def path(self) -> str:
        """Where workers find it."""
        return f"/proc/{os.getpid()}/fd/{self._descriptor}"

    @property
    def until(self) -> float:
        """The moment (seconds of CLOCK_MONOTONIC) at which the lease runs out; infinity if it never does."""
        return self._until[0]

    def extend(self, until: float) -> None:
        """Move the moment (seconds of CLOCK_MONOTONIC); never back, because a worker may have relied on it."""
        self._until[0] = max(until, self._until[0])

    def remaining(self) -> float:
        """Seconds left: positive while a step may be completed."""
        return self._until[0] - self._clock()

    def close(self) -> None:
        """Give the memory back."""
        self._until.release()
        self._map.close()
        os.close(self._descriptor)
