"""Who may step when: the times that keep two worlds from training at once (long form: docs/explanation/fencing.md).

**What makes two worlds possible.** A synchronous world completes a step only with all its nodes. So two worlds that
share a node never step at the same time: once one member has gone on to the next world, the old one is over, whatever
its other members believe. The danger is a world *without any member of the last one*: formed by newcomers because they
hear nothing from the members, who go on somewhere out of reach. Hence two times of patience with a silent node:

* a **member** of the same world waits for the *window* (interval x attempts, 15 s): it takes itself along;
* an **outsider** waits for the *takeover* (a minute or more), and by then the members have stopped, as follows.

**The lease.** A heartbeat that a node began to send at `t` is seen by nobody before `t`, and who buries the node has
seen the same heartbeat for a whole window, or for the takeover. Both are measured with clocks that nobody sets
(CLOCK_MONOTONIC) and start after `t`. So nothing is assumed about the network, or about what clocks say, only that two
clocks run equally fast, to 1 % (`DRIFT`). The launcher keeps these promises:

    with etcd:     steps are completed before  t + window - DRIFT * window               (a frozen node wakes too late)
    without etcd:  steps are completed before  now + half a window, as long as the launcher runs and can say so,
                   workers are told to stop at  t + takeover - DRIFT * takeover - STOP   (change "isolated")
                   workers have stopped at      t + takeover - DRIFT * takeover          (STOP covers notice and grace)

A lease that has once run out is only revived by a heartbeat that etcd confirms: who was frozen does not know how long.

**Without etcd** (`--rdzv-conf without_etcd=`):

| value | takeover | a world that cannot reach etcd |
| ----- | -------- | --- |
| auto  | 60 s (or the window, if longer) | trains on for 53 s after its last heartbeat, then waits for etcd |
| hold  | 15 s (or the window, if longer) | trains on for 9 s, then waits; a lost world is replaced soonest |
| train | 60 s (or the window, if longer) | trains on for ever; newcomers who reach etcd may then train too |
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Final, Literal

from training.launch.lease import StepLease

WithoutEtcd = Literal["auto", "hold", "train"]
MODES: Final[tuple[WithoutEtcd, ...]] = ("auto", "hold", "train")
# How long newcomers wait for a world that is silent.
TAKEOVER: Final[dict[WithoutEtcd, timedelta]] = {
    "auto": timedelta(seconds=60),
    "hold": timedelta(seconds=15),
    "train": timedelta(seconds=60),
}
# From the end of the time without etcd until no worker runs any more: the launcher may be waiting for etcd (2 s, see
# `membership.READ_PATIENCE`), gives workers without a peer 3 s (`agent.GRACE_WITHOUT_PEER`), and needs a moment itself.
STOP: Final = timedelta(seconds=5.5)
# By how much the clocks of two hosts may differ in speed. Quartz is good for 0.01 %, a clock that is being corrected
# for 0.05 %; the rest is for the moments between reading a clock and acting on it.
DRIFT: Final = 0.01


@dataclass(frozen=True, kw_only=True)
class Times:
    """The times of one job; all nodes must be given the same.

    Attributes:
        interval: time between a node's heartbeats.
        window: members wait so long for a silent node.
        takeover: outsiders wait so long for a silent member.
        is_bounded: whether a world stops when it has been without etcd for long.
    """

    interval: timedelta
    window: timedelta
    takeover: timedelta
    is_bounded: bool = True

    @classmethod
    def of(cls, interval: timedelta, attempts: int, without_etcd: WithoutEtcd = "auto") -> "Times":
        """The times that follow from the options."""
        window = interval * attempts
        takeover = max(window, TAKEOVER[without_etcd])
        return cls(interval=interval, window=window, takeover=takeover, is_bounded=without_etcd != "train")

    @property
    def step_time(self) -> float:
        """Seconds after a confirmed heartbeat in which steps may be completed."""
        return self.window.total_seconds() * (1 - DRIFT)

    @property
    def time_without_etcd(self) -> float:
        """Seconds after the last confirmed heartbeat at which a node without etcd tells its workers to stop."""
        stopped = self.takeover.total_seconds() * (1 - DRIFT)
        return stopped - STOP.total_seconds() if self.is_bounded else float("inf")


class Fence:
    """Keeps the promises of a node (see the module): moves its lease, and knows when it is isolated.

    Args:
        times: the job's times.
        lease: what the workers read.
        clock: seconds; replaced by tests.
    """

    def __init__(self, times: Times, lease: StepLease, clock: Callable[[], float] = time.monotonic) -> None:
        self.times = times
        self.lease = lease
        self._clock = clock
        self._confirmed = float("-inf")

    def confirmed(self, sent: float) -> None:
        """Etcd holds a heartbeat of ours that we began to send at this moment."""
        self._confirmed = max(sent, self._confirmed)
        self.lease.extend(sent + self.times.step_time)

    def without_etcd(self) -> bool:
        """Etcd does not answer: go on for a while if we may; returns whether we may not (then we are isolated)."""
        now = self._clock()
        if self.lease.until <= now:
            return True
        end = self._confirmed + self.times.time_without_etcd
        self.lease.extend(min(now + self.times.window.total_seconds() / 2, end))
        return end <= now

    @property
    def has_run_out(self) -> bool:
        """Whether no step may be completed until etcd confirms the next heartbeat."""
        return self.lease.until <= self._clock()
