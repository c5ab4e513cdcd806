"""Who may step when: a node has stopped before others may train without it, whatever freezes, is cut off or is slow."""

from datetime import UTC, datetime, timedelta
from typing import cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from memory_etcd import Clock, MemoryEtcd
from torch.distributed.elastic.rendezvous import RendezvousConnectionError
from torch.distributed.elastic.rendezvous.dynamic_rendezvous import RendezvousSettings, RendezvousTimeout

from training.launch.agent import GRACE_WITHOUT_PEER
from training.launch.etcd_client import EtcdClient
from training.launch.fencing import DRIFT, MODES, STOP, TAKEOVER, Fence, Times
from training.launch.lease import StepLease
from training.launch.membership import LOCK_PATIENCE, READ_PATIENCE, StateHolder
from training.launch.torch_private import NodeDesc

NODE, MEMBER, NEWCOMER = NodeDesc("10.0.0.1", 11, 0), NodeDesc("10.0.0.2", 22, 0), NodeDesc("10.0.0.3", 33, 0)

all_times = st.builds(
    Times.of,
    st.floats(0.2, 600).map(lambda seconds: timedelta(seconds=seconds)),
    st.integers(2, 20),
    st.sampled_from(MODES),
)


@given(times=all_times)
def test_every_setting_leaves_time_to_stop(times: Times) -> None:
    """The inequalities of `fencing`, in the words of its docstring."""
    window, takeover = times.window.total_seconds(), times.takeover.total_seconds()

    assert window <= takeover
    assert times.step_time <= window * (1 - DRIFT)
    if times.is_bounded:
        assert times.time_without_etcd > 0
        assert times.time_without_etcd + STOP.total_seconds() <= takeover * (1 - DRIFT) + 1e-9


def test_the_time_to_stop_holds_what_stopping_takes() -> None:
    assert READ_PATIENCE + LOCK_PATIENCE + timedelta(seconds=GRACE_WITHOUT_PEER) <= STOP
    assert min(TAKEOVER.values()) > 2 * STOP


def test_a_confirmed_heartbeat_gives_a_window_from_when_it_was_sent() -> None:
    clock = Clock()
    fence = Fence(Times.of(timedelta(seconds=5), 3), StepLease.create(clock), clock)
    assert fence.has_run_out

    sent = clock.now
    clock.now += 4  # the answer was slow
    fence.confirmed(sent)
    assert fence.lease.remaining() == pytest.approx(15 * (1 - DRIFT) - 4)
    fence.confirmed(sent - 3)  # an answer that was overtaken changes nothing
    assert fence.lease.remaining() == pytest.approx(15 * (1 - DRIFT) - 4)


@pytest.mark.parametrize(("mode", "seconds"), [("auto", 53.9), ("hold", 9.35), ("train", float("inf"))])
def test_without_etcd_a_world_trains_on_for_as_long_as_newcomers_wait(mode: str, seconds: float) -> None:
    clock = Clock()
    fence = Fence(Times.of(timedelta(seconds=5), 3, mode), StepLease.create(clock), clock)  # type: ignore[arg-type]
    start = clock.now
    fence.confirmed(start)
    while clock.now - start < min(seconds, 3600):
        assert not fence.without_etcd()
        assert not fence.has_run_out
        clock.now += 0.5
    assert fence.without_etcd() == (seconds < 3600)


def test_a_lease_that_has_run_out_is_revived_by_etcd_only() -> None:
    """The node was frozen while it was without etcd: it cannot know what the others have done meanwhile."""
    clock = Clock()
    fence = Fence(Times.of(timedelta(seconds=5), 3, "train"), StepLease.create(clock), clock)
    fence.confirmed(clock.now)
    clock.now += 3600

    assert fence.without_etcd()
    assert fence.has_run_out
    fence.confirmed(clock.now)
    assert not fence.without_etcd()


class Node:
    """One node in a world of its own time: its clock has another zero than the others' and another speed."""

    def __init__(self, etcd: MemoryEtcd, node: NodeDesc, times: Times, zero: float, speed: float) -> None:
        self.clock, self.node, self._zero, self._speed = Clock(), node, zero, speed
        self.set_time(0)
        settings = RendezvousSettings("job", 1, 4, RendezvousTimeout(), times.interval, 3)
        self.fence = Fence(times, StepLease.create(self.clock), self.clock)
        self.holder = StateHolder(
            cast(EtcdClient, etcd),
            b"state",
            settings,
            node=node,
            fence=self.fence,
            lease=timedelta(hours=2),
            answers=lambda *_: False,
            clock=self.clock,
        )
        self._etcd, self._beats, self._last_beat = etcd, 0, float("-inf")

    def set_time(self, now: float) -> None:
        self.clock.now = self._zero + now * self._speed

    def live(self, condition: str, interval: float) -> None:
        """What a launcher does in a moment: a heartbeat when it is time, a look at etcd."""
        if condition == "frozen":
            return
        self._etcd.down = condition == "cut"
        try:
            self.holder.sync()
            is_member = self.node in self.holder.state.participants
            if is_member and self.clock.now - self._last_beat >= interval:
                self._beats += 1
                self.holder.state.last_heartbeats[self.node] = datetime.fromtimestamp(self._beats, UTC)
                self.holder.mark_dirty()
                self._last_beat = self.clock.now if self.holder.sync() else self._last_beat
        except RendezvousConnectionError:
            self.fence.without_etcd()
        finally:
            self._etcd.down = False

    def is_stepping(self) -> bool:
        return not self.fence.has_run_out


def begin(etcd: MemoryEtcd, *members: Node) -> None:
    """A complete world of these nodes."""
    first = members[0].holder
    first.sync()
    state = first.state
    state.complete = True
    state.participants = {member.node: rank for rank, member in enumerate(members)}
    state.world = set(state.participants)
    state.last_heartbeats = dict.fromkeys(state.participants, datetime.fromtimestamp(0, UTC))
    first.mark_dirty()
    assert first.sync()


STEP = 0.5
# What becomes of a node, and for how many seconds.
fates = st.lists(st.tuples(st.sampled_from(["well", "cut", "frozen"]), st.floats(0.5, 90)), min_size=1, max_size=6)
zeros, speeds = st.floats(0, 1e6), st.floats(1 - DRIFT / 3, 1 + DRIFT / 3)


@settings(max_examples=40)
@given(fate=fates, interval=st.sampled_from([1, 5]), mode=st.sampled_from(["auto", "hold"]), zero=zeros, speed=speeds)
def test_a_newcomer_takes_over_only_when_the_silent_world_has_stopped(
    fate: list[tuple[str, float]], interval: int, mode: str, zero: float, speed: float
) -> None:
    etcd, times = MemoryEtcd(), Times.of(timedelta(seconds=interval), 3, mode)  # type: ignore[arg-type]
    node, newcomer = Node(etcd, NODE, times, 0.0, 1.0), Node(etcd, NEWCOMER, times, zero, speed)
    begin(etcd, node)
    now = 0.0
    for condition, seconds in [("well", 2.0), *fate]:
        until = now + seconds
        while now < until:
            now += STEP
            for each in (node, newcomer):
                each.set_time(now)
            node.live(condition, interval)
            newcomer.holder.sync()
            if node.node not in newcomer.holder.state.participants:
                assert not node.is_stepping()
                return


@settings(max_examples=40)
@given(frozen=st.floats(0, 60), zero=zeros, speed=speeds)
def test_a_member_goes_on_without_a_frozen_node_only_when_that_cannot_step_any_more(
    frozen: float, zero: float, speed: float
) -> None:
    etcd, times = MemoryEtcd(), Times.of(timedelta(seconds=1), 5)
    node, member = Node(etcd, NODE, times, 0.0, 1.0), Node(etcd, MEMBER, times, zero, speed)
    begin(etcd, node, member)
    now, freezes_at = 0.0, 3.0
    while now < freezes_at + frozen:
        now += STEP
        for each in (node, member):
            each.set_time(now)
        node.live("well" if now < freezes_at else "frozen", 1)
        member.live("well", 1)
        if node.node not in member.holder.state.participants:
            assert not node.is_stepping()
            assert now - freezes_at <= 5 * (1 + DRIFT) + STEP
            return
    assert frozen <= 5 * (1 + DRIFT) + STEP
