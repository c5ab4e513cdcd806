"""Who is in the job: the shared state of a rendezvous in etcd, and the handler that torch's agent asks about it.

The rules of the game (join, wait, complete, exit, close) are those of torch's dynamic rendezvous. Four things differ,
because there they cost tens of seconds, or correctness:

* **A node that leaves says so** (`leave`), so nobody waits for its heartbeat to expire.
* **Changes are noticed.** `num_nodes_waiting()` is the one question that torch's agent asks while workers run. Here it
  is also positive when a participant has left or died, or when we were evicted ourselves; so the agent forms a new
  world instead of waiting for a collective to time out. This also ends a split brain: evicted nodes come back.
* **A round completes as soon as everybody known is in it**; the last call is only waited for when a job starts.
* **Nobody's wall clock decides.** A node is dead when its heartbeat has not changed for the whole window *as seen by
  the observer*, while the observer could read etcd; heartbeats are sent, and the last call is ended, by clocks that
  nobody sets. So clock skew is harmless, and after a pause of etcd nobody is dead.
* **No two worlds.** A node stops before others may train without it: `fencing` says when and why that is enough.
* **A job is known by what it runs.** Another job that was given the same run id by mistake is refused, with a word.

**Encoding.** torch pickles the state and unpickles what it finds, so whoever can write one key in etcd runs code on
every node of the job. Here the state is JSON, checked field by field (`decode`): a forged state can disturb the
rendezvous, like any member could, but it is data and never code. (The attack: one line put into the key, by anybody who
reaches an etcd without users or has one job's password, is `pickle.dumps` of an object whose `__reduce__` names a shell
command, and every node of the job runs it with the job's rights within a second.)

**No RendezvousBackend.** torch's own backends give a holder of the state two calls, `get_state` and `set_state(bytes,
token)`, and the holder pickles. Ours is the holder itself, so there is no such object: `EtcdClient.get` and
`compare_and_swap` are the two calls, the revision is the token, an integer and never of a foreign type. What torch asks
of a backend is asked of these two in tests/training/test_training_backend_contract.py.

**Generation.** Each complete round has a number, exported to the workers as `TRAINYARD_GENERATION`. Together with
`TRAINYARD_RUN` (run id and a random part, fixed when the job's state is first created) it lets a checkpoint refuse
writers of an older world.
"""

import dataclasses
import json
import logging
import os
import secrets
import socket
import time
from collections.abc import Callable, Iterable
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from torch.distributed import DistStoreError
from torch.distributed.elastic.rendezvous import (
    RendezvousClosedError,
    RendezvousConnectionError,
    RendezvousInfo,
    RendezvousStateError,
    RendezvousStoreInfo,
    RendezvousTimeoutError,
)
from torch.distributed.elastic.rendezvous.dynamic_rendezvous import RendezvousSettings, RendezvousTimeout

from training.launch import torch_private as torch_
from training.launch.budget import Failures
from training.launch.environment import GENERATION, LEASE_FILE, RUN
from training.launch.etcd_client import EtcdClient, EtcdError, KeyValue
from training.launch.etcd_store import EtcdStore
from training.launch.fencing import Fence
from training.launch.lease import StepLease
from training.launch.presence import Presence, place
from training.launch.rendezvous import BACKEND, FAILED, FORMAT, GIVEN_UP, Options, in_words, state_key
from training.metrics.progress import emit

logger = logging.getLogger(__name__)

_FAILURES: Final = tuple(field.name for field in dataclasses.fields(Failures))
_WORKER_STORE: Final = "trainyard/worker_store"
# Not 0: there torch waits up to 0.3 s before it joins, at the first recovery too.
FIRST_ROUND: Final = 1
# How old a copy of the state may be when the agent asks whether anything has changed (it asks ten times a second).
CACHE: Final = timedelta(milliseconds=200)
# How often a node that waits for others looks. An etcd member serves thousands of such reads a second.
POLL: Final = timedelta(milliseconds=25)
# While nodes meet, etcd may be away as long as their patience lasts.
PAUSE_WITHOUT_ETCD: Final = timedelta(milliseconds=500)
# The agent, which asks for changes, waits no longer than this for etcd: it has workers to look after (`fencing.STOP`).
READ_PATIENCE: Final = timedelta(seconds=2)
# How long it waits for the thread that sends heartbeats and may be waiting for etcd.
LOCK_PATIENCE: Final = timedelta(milliseconds=200)
# A silent node that may yet live is asked so often whether it does.
ASK_AGAIN: Final = timedelta(seconds=1)
# A node that is told to go does not wait longer than this for etcd to hear of it.
LEAVE_TIMEOUT: Final = timedelta(seconds=2)
# Changes after which the world of a round cannot work together, or not even come up.
BROKEN: Final = frozenset({"left", "regroup", "lost", "evicted", "isolated", "closed"})
# Stands for torch's deadline of the last call, a wall clock time: see `OpExecutor._last_call_is_over`.
_LAST_CALL: Final = datetime.max.replace(tzinfo=UTC)


class State(torch_.RendezvousState):
    """torch's rendezvous state and what we keep beside it.

    Attributes:
        incarnation: random name of this state, made when it is first written: a job whose etcd was lost starts again
            at round 0, and must not be taken for its former self.
        job: what this run runs, in words; empty when nobody has said so.
        outcome: how the job ended (FINISHED, FAILED or GIVEN_UP); empty while it is open.
        world: members of the last complete round, whatever has become of them: who has stepped together.
        returning: nodes that have left a round in order to join the next one.
        lost: participants of this round that have died.
        ports: where each node's launcher listens (see `presence`).
        places: each node's network namespace.
        lease: etcd lease that keeps the job's keys.
        failures: how often worlds of this job have failed.
    """

    def __init__(self) -> None:
        super().__init__()
        self.round = FIRST_ROUND
        self.incarnation = secrets.token_hex(4)
        self.job = ""
        self.outcome = ""
        self.world: set[torch_.NodeDesc] = set()
        self.returning: set[torch_.NodeDesc] = set()
        self.lost: set[torch_.NodeDesc] = set()
        self.ports: dict[torch_.NodeDesc, int] = {}
        self.places: dict[torch_.NodeDesc, str] = {}
        self.lease = 0
        self.failures = Failures()


def encode(state: State, writer: str) -> bytes:
    """The state as JSON. `writer` must differ from write to write (see `EtcdClient.compare_and_swap`)."""
    return json.dumps(
        {
            "format": FORMAT,
            "writer": writer,
            "incarnation": state.incarnation,
            "round": state.round,
            "complete": state.complete,
            "last_call": state.deadline is not None,
            "closed": state.closed,
            "job": state.job,
            "outcome": state.outcome,
            "lease": str(state.lease),
            "failures": dataclasses.asdict(state.failures),
            "participants": [[*_fields(node), rank] for node, rank in sorted(state.participants.items())],
            "wait_list": [_fields(node) for node in sorted(state.wait_list)],
            "redundancy_list": [_fields(node) for node in sorted(state.redundancy_list)],
            "world": [_fields(node) for node in sorted(state.world)],
            "returning": [_fields(node) for node in sorted(state.returning)],
            "lost": [_fields(node) for node in sorted(state.lost)],
            "ports": [
                [*_fields(node), port, state.places[node]]
                for node, port in sorted(state.ports.items())
                if node in _members(state)
            ],
            "heartbeats": [[*_fields(node), at.timestamp()] for node, at in sorted(state.last_heartbeats.items())],
        },
        separators=(",", ":"),
    ).encode()


def decode(data: bytes) -> State:
    """Read what `encode` wrote, and nothing else.

    Raises:
        RendezvousStateError: the bytes are something else; the message says what was wrong.
    """
    state = State()
    try:
        fields = json.loads(data)
        if fields["format"] != FORMAT:
            raise ValueError(f"format {fields['format']!r}, known is {FORMAT}")  # noqa: TRY301
        state.incarnation = _text(fields["incarnation"])
        state.round = _count(fields["round"])
        state.complete = _flag(fields["complete"])
        state.deadline = _LAST_CALL if _flag(fields["last_call"]) else None
        state.closed = _flag(fields["closed"])
        state.job = _text(fields["job"])
        state.outcome = _text(fields["outcome"])
        state.lease = int(_text(fields["lease"]))
        state.failures = Failures(**{name: _whole(fields["failures"][name]) for name in _FAILURES})
        state.participants = {_node(item[:3]): _count(item[3]) for item in fields["participants"]}
        state.wait_list = {_node(item) for item in fields["wait_list"]}
        state.redundancy_list = {_node(item) for item in fields["redundancy_list"]}
        state.world = {_node(item) for item in fields["world"]}
        state.returning = {_node(item) for item in fields["returning"]}
        state.lost = {_node(item) for item in fields["lost"]}
        state.ports = {_node(item[:3]): _port(item[3]) for item in fields["ports"]}
        state.places = {_node(item[:3]): _text(item[4]) for item in fields["ports"]}
        state.last_heartbeats = {_node(item[:3]): _time(item[3]) for item in fields["heartbeats"]}
    except (ValueError, KeyError, TypeError, IndexError, OverflowError, OSError, RecursionError) as error:
        raise RendezvousStateError(
            f"the rendezvous state in etcd is not ours ({type(error).__name__}: {error}): another program or version "
            "writes under this prefix; use another --rdzv-id, or delete the key"
        ) from error
    return state


class StateHolder(torch_.RendezvousStateHolder):
    """The local copy of the shared state: read from and written to one etcd key, dead nodes dropped.

    Args:
        client: connection to etcd.
        key: where the state is.
        settings: torch's settings.
        node: this node.
        fence: told when etcd holds a heartbeat of this node; its times say how long the silence of others is borne.
        lease: lifetime of the job's keys after its last heartbeat.
        answers: asks a silent node, at a port, whether it lives (see `presence`).
        clock: seconds; replaced by tests.
    """

    def __init__(
        self,
        client: EtcdClient,
        key: bytes,
        settings: RendezvousSettings,
        *,
        node: torch_.NodeDesc,
        fence: Fence,
        lease: timedelta,
        answers: Callable[[torch_.NodeDesc, int], bool],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._client = client
        self._key = key
        self._settings = settings
        self._node = node
        self._fence = fence
        self._lease_time = lease
        self._answers = answers
        self._clock = clock
        self._state = State()
        self._revision = 0
        self._dirty = False
        self._num_writes = 0
        self._last_sync = float("-inf")
        self._lease_renewed = clock()
        # For each node: its heartbeat as last seen, and since when we have seen it unchanged.
        self._seen: dict[torch_.NodeDesc, tuple[datetime, float]] = {}
        # The latter also of nodes that are gone.
        self._last_beats: dict[torch_.NodeDesc, float] = {}
        # When a silent node has last said that it lives.
        self._alive: dict[torch_.NodeDesc, float] = {}
        self._confirmed_beat: datetime | None = None
        # Which last call we have seen (its round), and since when.
        self._last_call: tuple[int, float] = (-1, 0.0)

    @property
    def state(self) -> State:
        """The copy as of the last `sync`, with local changes."""
        return self._state

    def mark_dirty(self) -> None:
        """The copy was changed: write it at the next `sync`."""
        self._dirty = True

    def sync(self, max_age: timedelta = timedelta(0), within: timedelta | None = None) -> bool | None:
        """Write local changes, or read the newest state unless the copy is younger than `max_age`.

        Args:
            max_age: how old the copy may be.
            within: longest wait for a read, if not the client's.

        Returns:
            Whether our changes went through (False: another node was faster, and the copy is now its state); None when
            nothing was to be written.

        Raises:
            RendezvousConnectionError: etcd does not answer or refuses.
            RendezvousStateError: what is stored is not a state.
        """
        has_set: bool | None = None
        try:
            if self._dirty:
                has_set, current = self._write()
            elif self._clock() - self._last_sync < max_age.total_seconds():
                return None
            else:
                current = self._client.get(self._key, within=within)
        except EtcdError as error:
            raise RendezvousConnectionError(str(error)) from error
        self._state = decode(current.value) if current else State()
        self._revision = current.mod_revision if current else 0
        self._dirty = False
        self._drop_dead_nodes()
        return has_set

    def last_call(self) -> timedelta | None:
        """For how long we have known that the least number of nodes is there; None if it is not."""
        if self._state.deadline is None:
            self._last_call = (-1, 0.0)
            return None
        if self._last_call[0] != self._state.round:
            self._last_call = (self._state.round, self._clock())
        return timedelta(seconds=self._clock() - self._last_call[1])

    def keep_lease(self) -> None:
        """Renew the lease of the job's keys now and then; a lease that has expired is replaced at the next write."""
        if self._clock() - self._lease_renewed < self._lease_time.total_seconds() / 8 or not self._state.lease:
            return
        self._lease_renewed = self._clock()
        if not self._client.keep_lease(self._state.lease):
            self._state.lease = 0
            self.mark_dirty()

    def _write(self) -> tuple[bool, KeyValue | None]:
        if not self._state.lease:
            self._state.lease = self._client.grant_lease(self._lease_time)
        self._num_writes += 1
        data = encode(self._state, f"{self._node!r}:{self._num_writes}")
        beat = self._state.last_heartbeats.get(self._node)
        sent = self._clock()
        written = self._client.compare_and_swap(self._key, data, self._revision, lease=self._state.lease)
        if written[0] and beat is not None and beat != self._confirmed_beat:
            self._confirmed_beat = beat
            self._fence.confirmed(sent)
        return written

    def silent_since(self, nodes: Iterable[torch_.NodeDesc]) -> float | None:
        """When the first of some nodes fell silent, by our clock; None if none has missed a heartbeat so far."""
        first = min((self._last_beats[node] for node in nodes if node in self._last_beats), default=None)
        late = 2 * self._settings.keep_alive_interval.total_seconds()
        return first if first is not None and self._clock() - first > late else None

    def _drop_dead_nodes(self) -> None:
        """Forget nodes whose heartbeat stands still. The local copy changes; the next write tells the others."""
        now = self._clock()
        blind = now - self._last_sync
        self._last_sync = now
        # While we could not read, hearts may have been beating, and writers may have been unable to write.
        allowance = blind if blind > self._settings.keep_alive_interval.total_seconds() else 0.0
        seen_before, self._seen = self._seen, {}
        for node, beat in self._state.last_heartbeats.items():
            seen, since = seen_before.get(node, (None, now))
            self._seen[node] = (beat, since + allowance if beat == seen else now)
            self._last_beats[node] = self._seen[node][1]
        for node, (_, since) in tuple(self._seen.items()):
            silence = timedelta(seconds=now - since)
            if silence > self._fence.times.window and not self._must_wait_for(node, silence):
                logger.warning(
                    "node %s has sent no heartbeat for %.0f s: dropped from the rendezvous",
                    node,
                    silence.total_seconds(),
                )
                self.drop(node)

    def _must_wait_for(self, node: torch_.NodeDesc, silence: timedelta) -> bool:
        """Whether a node that has been silent for the window may still be training, in a world without us.

        The members of its world need not fear that: they take themselves along (see `fencing`). But they would lose
        time if the node is only cut off from etcd, which it survives for a while (`Fence.without_etcd`). So as long as
        nothing else breaks the world they ask it, and a frozen node does not answer.
        """
        state = self._state
        if node not in state.world or silence > self._fence.times.takeover or node == self._node:
            return False
        if self._node not in state.world:
            return True
        is_whole = state.complete and state.participants.keys() == state.world
        return is_whole and self._is_alive(node)

    def _is_alive(self, node: torch_.NodeDesc) -> bool:
        now = self._clock()
        if now - self._alive.get(node, float("-inf")) >= ASK_AGAIN.total_seconds():
            if node not in self._state.ports or not self._answers(node, self._state.ports[node]):
                return False
            self._alive[node] = now
        return True

    def drop(self, node: torch_.NodeDesc) -> None:
        """Remove a node that has died from the local copy, wherever it stands."""
        state = self._state
        state.last_heartbeats.pop(node, None)
        for nodes in (state.wait_list, state.redundancy_list, state.returning):
            nodes.discard(node)
        if state.participants.pop(node, None) is not None:
            state.lost.add(node)
            torch_.remove_participant_epilogue(state, self._settings)


class OpExecutor(torch_.OpExecutor):
    """Carries out torch's operations on our state; waits for changes by the millisecond instead of by the second."""

    def __init__(
        self,
        node: torch_.NodeDesc,
        holder: StateHolder,
        settings: RendezvousSettings,
        presence: Presence,
        job: str = "",
    ) -> None:
        super().__init__(node, holder, settings)
        self._holder = holder
        self._presence = presence
        self._job = job
        self._last_beat = float("-inf")
        self._gave_way = (-1, 0.0)  # in which round we have, and since when
        self.is_returning = False  # whether who exits now will join the next round

    def run(
        self,
        state_handler: Callable[[torch_.RendezvousContext, float], torch_.Action],
        deadline: float,
        update_deadline: Callable[[timedelta], float] | None = None,
    ) -> None:
        """See torch's executor."""

        def decide(context: torch_.RendezvousContext, deadline: float) -> torch_.Action:
            while (action := state_handler(context, deadline)) == torch_.Action.SYNC or (
                action == torch_.Action.ADD_TO_PARTICIPANTS and self._gives_way(context)
            ):
                if self._everybody_is_here(context) or self._last_call_is_over(context):
                    action = torch_.Action.MARK_RENDEZVOUS_COMPLETE
                    break
                if self._must_beat(context):
                    action = torch_.Action.KEEP_ALIVE
                    break
                if self._is_spare_after_all(context):
                    action = torch_.Action.REMOVE_FROM_WAIT_LIST  # torch then makes us one
                    break
                self.drop_a_dead_node()
                time.sleep(POLL.total_seconds())
                self._holder.sync()
                self._state = context.state = self._holder.state
            state = self._holder.state
            if action == torch_.Action.REMOVE_FROM_PARTICIPANTS and self.is_returning:
                state.returning.add(self._node)
            elif action == torch_.Action.ADD_TO_PARTICIPANTS:
                state.returning.discard(self._node)
                if not state.participants:
                    state.lost.clear()
            elif action == torch_.Action.MARK_RENDEZVOUS_COMPLETE:
                state.returning.clear()  # of those that have not come by now nothing is known
            if action in _ADDING:
                self._check_job()
                state.ports[self._node] = self._presence.port
                state.places[self._node] = place()
            return action

        while True:
            try:
                super().run(decide, deadline, update_deadline)
            except RendezvousConnectionError as error:
                if time.monotonic() >= deadline:
                    raise
                logger.warning("%s; trying again", error)
                time.sleep(PAUSE_WITHOUT_ETCD.total_seconds())
            else:
                return

    def _record(self, *_: Any, **__: Any) -> None:
        """No events: torch names each by inspecting the call stack, which takes longer than the operation."""

    def _keep_alive(self) -> None:
        super()._keep_alive()
        self._last_beat = time.monotonic()

    def _mark_rendezvous_complete(self) -> None:
        super()._mark_rendezvous_complete()
        state = self._holder.state
        state.world = set(state.participants)

    def _must_beat(self, context: torch_.RendezvousContext) -> bool:
        """Whether it is time for a heartbeat; torch goes by the wall clock, which may have been set back."""
        is_due = time.monotonic() - self._last_beat >= self._settings.keep_alive_interval.total_seconds()
        return is_due and context.node in context.state.last_heartbeats

    def _gives_way(self, context: torch_.RendezvousContext) -> bool:
        """Whether the places that are left belong to members of the last world that are on their way.

        They may have the state in memory. A newcomer that took the place of one would have the others go on from an
        older state. It waits as long as a last call: who has not come by then may be gone.
        """
        state = self._holder.state
        on_their_way = state.world & (state.returning | state.wait_list) - state.participants.keys()
        is_full = len(state.participants) + len(on_their_way) >= self._settings.max_nodes
        if context.node in state.world or not is_full:
            return False
        if self._gave_way[0] != state.round:
            self._gave_way = (state.round, time.monotonic())
        return time.monotonic() - self._gave_way[1] < self._settings.timeout.last_call.total_seconds()

    def _last_call_is_over(self, context: torch_.RendezvousContext) -> bool:
        """Whether the least number of nodes has been there for long enough, by our own clock."""
        state = self._holder.state
        waited = self._holder.last_call()
        is_participant = not state.complete and context.node in state.participants
        return is_participant and waited is not None and waited >= self._settings.timeout.last_call

    def _check_job(self) -> None:
        """Refuse to join a run of something else, which would get our workers into its world.

        A run that nobody is in may be continued with other sizes.
        """
        state = self._holder.state
        others = state.last_heartbeats.keys() - {self._node}
        if self._job and state.job and self._job != state.job and others:
            raise RendezvousStateError(
                f"the run id '{self._settings.run_id}' belongs to another job, '{state.job}' (nodes in it: "
                f"{len(others)}); this one is '{self._job}': give it another --rdzv-id, or the same script and sizes"
            )
        state.job = self._job or state.job

    def drop_a_dead_node(self) -> None:
        """Ask one participant's host whether its launcher still runs; if not, the next write says so."""
        state = self._holder.state
        ports = {node: port for node, port in state.ports.items() if node in state.participants}
        if (node := self._presence.ask_next(ports, state.places)) is not None:
            logger.warning("node %s has died: its launcher's port is closed", node)
            self._holder.drop(node)
            self._holder.mark_dirty()

    def _is_spare_after_all(self, context: torch_.RendezvousContext) -> bool:
        """Whether we wait for the next world, but this one has become full without us.

        In the wait list torch would let us wait until the time to join is over; spares may wait for ever.
        """
        state = self._holder.state
        return (
            state.complete
            and context.node in state.wait_list
            and context.node not in state.participants
            and len(state.participants) >= self._settings.max_nodes
        )

    def _everybody_is_here(self, context: torch_.RendezvousContext) -> bool:
        """Whether a round after the first has all nodes of which is known that they come; then there is no last call.

        A round opens when the last participant of the one before has left it, so by then each survivor is in the wait
        list or on its way (`returning`).
        """
        state = self._holder.state
        return (
            state.round > FIRST_ROUND
            and not state.complete
            and context.node in state.participants
            and len(state.participants) >= self._settings.min_nodes
            and not state.wait_list - state.participants.keys()
            and not state.returning - state.participants.keys()
        )


_ADDING = frozenset(
    {
        torch_.Action.ADD_TO_PARTICIPANTS,
        torch_.Action.ADD_TO_WAIT_LIST,
        torch_.Action.ADD_TO_REDUNDANCY_LIST,
    }
)


class EtcdRendezvousHandler(torch_.Handler):
    """What torch's agent talks to. One per node; made by `training.launch.rendezvous.create_handler`."""

    _client: EtcdClient
    _holder: StateHolder
    _executor: OpExecutor
    _fence: Fence
    _is_without_etcd: bool  # whether the last question got no answer
    _world: set[torch_.NodeDesc]  # participants of the round that we are in
    generation: int  # number of this round; if we are out of the job that has gone on, of the last one that we were in
    last_change: str  # what `num_nodes_waiting` last found
    concerned: str  # addresses of the nodes of which `change` spoke last, as far as they are known
    silent_since: float | None  # when they fell silent (CLOCK_MONOTONIC), if they did before they were gone
    _is_out: bool  # whether we have left the job or closed it
    _worker_store: torch_.TCPStore | None  # served by us while we are the first node
    expects_joiners: bool  # whether a node that comes is a reason to form a new world

    @classmethod
    def create(
        cls,
        client: EtcdClient,
        options: Options,
        *,
        run_id: str,
        min_nodes: int,
        max_nodes: int,
        local_addr: str | None = None,
        name: str = BACKEND,
        job: str = "",
    ) -> "EtcdRendezvousHandler":
        """Make a handler with its state, store and identity.

        Args:
            client: connection to etcd.
            options: time limits and key prefix.
            run_id: name of the job; nodes that give the same one meet.
            min_nodes: least number of nodes of a world.
            max_nodes: greatest number; more wait as spares.
            local_addr: address at which other nodes reach this one; None: the one from which we reach etcd.
            name: backend name under which the handler was asked for.
            job: what this run runs, in words; nodes that say something else are refused.
        """
        if not run_id:
            raise ValueError("the run id is empty; give --rdzv-id, the same on all nodes of the job")
        # Not the process id: a container that restarts has the same address and pid as the one before it, and would
        # take itself for a participant of a world that it has never been in.
        node = torch_.NodeDesc(local_addr or client.local_address() or socket.getfqdn(), secrets.randbits(31), 0)
        settings = RendezvousSettings(
            run_id,
            min_nodes,
            max_nodes,
            RendezvousTimeout(
                options.join_timeout, options.last_call_timeout, options.close_timeout, options.keep_alive_interval
            ),
            keep_alive_interval=options.keep_alive_interval,
            keep_alive_max_attempt=options.keep_alive_max_attempt,
        )
        # torch's own sharing of a store must be off: with it a newcomer waits for an address that nobody writes again.
        # Ours is new each round (`_open_worker_store`).
        os.environ[torch_.DISABLE_SHARED_STORE] = "1"
        key = state_key(options, run_id)
        presence = Presence(node)
        fence = Fence(options.times(), StepLease.create())
        os.environ[LEASE_FILE] = fence.lease.path
        holder = StateHolder(
            client, key, settings, node=node, fence=fence, lease=options.lease, answers=presence.answers
        )
        store = EtcdStore(
            client,
            f"{options.prefix}/{run_id}/store/",
            lease=lambda: holder.state.lease,
            interruption=lambda: handler.broken(),  # noqa: PLW0108  (there is no handler yet)
        )
        handler = cls(node, settings, name, store, holder)
        handler._client = client
        handler._holder = holder
        handler._executor = handler._op_executor = OpExecutor(node, holder, settings, presence, job)
        handler._fence = fence
        handler._is_without_etcd = False
        handler._world = set()
        handler.generation = 0
        handler._worker_store = None
        handler._is_out = False
        handler.last_change = ""
        handler.concerned = ""
        handler.silent_since = None
        handler.expects_joiners = True
        return handler

    @property
    def run(self) -> str:
        """Name of the job and of this life of its state; the same on all nodes."""
        return f"{self._settings.run_id}.{self._holder.state.incarnation}"

    @property
    def members(self) -> list[str]:
        """Addresses of the nodes of our world."""
        return sorted(node.addr for node in self._world)

    def next_rendezvous(self) -> RendezvousInfo:
        """Join the next world; blocks until it is complete.

        Raises:
            RendezvousClosedError: the job is over; the message says how it ended.
            RendezvousTimeoutError: too few nodes came in time.
        """
        start = time.monotonic()
        while True:  # a node may leave between the completion of a round and its first exchange
            try:
                info = self._join()
                bootstrap = self._open_worker_store(info.store, info.rank)
            except DistStoreError as error:
                self.check_that_others_left(error)
            else:
                break
        os.environ[GENERATION] = str(self.generation)
        os.environ[RUN] = self.run
        emit(
            "rendezvous",
            generation=self.generation,
            world_size=info.world_size,
            seconds=round(time.monotonic() - start, 3),
        )
        return RendezvousInfo(info.store, info.rank, info.world_size, bootstrap)

    def check_that_others_left(self, error: DistStoreError) -> None:
        """After a wait that was in vain: return if a new world can be formed, else pass the error on."""
        if not self.broken():
            raise error
        logger.warning("%s: forming a new world", error)

    def _join(self) -> RendezvousInfo:
        """Torch's part of it, with errors in words."""
        emit("notice", message="joining", run=self._settings.run_id, node=repr(self._this_node))
        self._executor.is_returning = True
        try:
            return super().next_rendezvous()
        except RendezvousClosedError:
            raise RendezvousClosedError(in_words(self._settings.run_id, self.outcome())) from None
        except RendezvousTimeoutError:
            patience = self._settings.timeout.join.total_seconds()
            raise RendezvousTimeoutError(
                f"fewer than {self._settings.min_nodes} nodes have come to the job '{self._settings.run_id}' within "
                f"{patience:g} s; start more, lower the least number in --nnodes, or raise join_timeout in --rdzv-conf"
            ) from None
        finally:
            self._executor.is_returning = False

    @property
    def use_agent_store(self) -> bool:
        """Tells workers that the store at MASTER_ADDR is there already: they only connect."""
        return True

    def _open_worker_store(self, store: torch_.Store, rank: int) -> RendezvousStoreInfo:
        """The store over which workers find each other: a new one each round, served by the first node's launcher.

        Shared between rounds, as in torch, it hands addresses of dead workers to new ones. Served by the first worker,
        as in torch without sharing, the others come before it listens and then wait a second before they try again.
        """
        if rank == 0:
            address = self._this_node.addr
            self._worker_store = torch_.TCPStore(address, 0, is_master=True, wait_for_workers=False)
            store.set(_WORKER_STORE, json.dumps([address, self._worker_store.port]))
        else:
            self._worker_store = None
        address, port = json.loads(store.get(_WORKER_STORE))
        return RendezvousStoreInfo(_text(address), _count(port))

    def num_nodes_waiting(self) -> int:
        """More than zero when the world should be formed anew: see `change`.

        While etcd does not answer the workers carry on: losing the meeting place is no reason to stop working. But not
        for ever, see `fencing`.
        """
        self.last_change = self.change()
        return 1 if self.last_change else 0

    def change(self, max_age: timedelta = CACHE) -> str:
        """What has become of our world since it was complete, as of `max_age` ago at most.

        Returns:
            "" (nothing), "joined", "left" (for good, with notice), "regroup" (its workers failed, the node comes back),
            "lost" (died silently), "evicted" (we were taken for dead), "isolated" (we have not reached etcd for so long
            that others may go on without us) or "closed" (the job has failed elsewhere).
        """
        if not self._heartbeat_lock.acquire(timeout=LOCK_PATIENCE.total_seconds()):
            # The thread that sends heartbeats has it: it waits for etcd.
            return "isolated" if self._is_without_etcd and self._fence.without_etcd() else ""
        try:
            self._holder.sync(max_age, READ_PATIENCE)
            if not self._holder.state.closed:
                self._executor.drop_a_dead_node()
            if self._fence.has_run_out and self._this_node in self._holder.state.last_heartbeats:
                self._beat()  # we were frozen, and nobody has noticed
        except RendezvousConnectionError as error:
            return self._go_on_without_etcd(error)
        finally:
            self._heartbeat_lock.release()
        if self._is_without_etcd:
            self._is_without_etcd = False
            logger.warning("etcd answers again")
        state = self._holder.state
        if state.closed:
            return "closed" if state.outcome in {FAILED, GIVEN_UP} else ""
        if self._this_node not in state.participants:
            return "evicted"
        missing = self._world - state.participants.keys()
        self.concerned = ", ".join(sorted(node.addr for node in missing or state.wait_list))
        self.silent_since = self._holder.silent_since(missing)
        # Who left before we saw the complete round is not in our world, but has taken a rank with it.
        if missing or max(state.participants.values()) >= len(state.participants):
            if (missing or state.lost) & state.lost:
                return "lost"
            return "regroup" if (missing or state.returning) & (state.returning | state.wait_list) else "left"
        is_full = len(state.participants) >= self._settings.max_nodes
        return "joined" if state.wait_list and not is_full and self.expects_joiners else ""

    def _go_on_without_etcd(self, error: RendezvousConnectionError) -> str:
        is_isolated = self._fence.without_etcd()
        if not self._is_without_etcd:
            self._is_without_etcd = True
            logger.warning("%s; training goes on", error)
        if is_isolated:
            logger.warning("%s: for so long that others may train without this node, so its workers stop", error)
        return "isolated" if is_isolated else ""

    def _beat(self) -> None:
        """Send a heartbeat, and wait until etcd holds it."""
        self._executor.run(_HeartbeatOp(), self._get_deadline(READ_PATIENCE))

    def count_failure(self, step: int | None, *, is_free: bool, lived_long: bool) -> Failures:
        """Count that our world has failed, unless another node was faster; returns all failures (see `budget`).

        While etcd does not answer it may go uncounted: there is no next world either.
        """
        while True:
            with self._heartbeat_lock:
                try:
                    self._holder.sync()
                    if not self.failures.count(self.generation, step, is_free=is_free, lived_long=lived_long):
                        return self.failures
                    self._holder.mark_dirty()
                    if self._holder.sync():
                        return self.failures
                except RendezvousConnectionError as error:
                    logger.warning("%s; this failure may go uncounted", error)
                    return self.failures

    @property
    def has_failed(self) -> bool:
        """Whether a node has counted that our world has failed, as far as this node has heard."""
        return 0 < self.generation <= self.failures.generation

    def broken(self) -> str:
        """Why the world of this round cannot go on, in words; empty if it can."""
        change = self.change()
        return f"the world has changed meanwhile ({change})" if change in BROKEN else ""

    def leave(self) -> None:
        """Take this node out of the job, so that the others need not wait for its heartbeat to expire.

        Also runs at the interpreter's exit (plain torchrun does not call it); after `close` it does nothing.
        """
        if self._is_out:
            return
        self._is_out = True
        self._client.hurry(LEAVE_TIMEOUT)
        self._stop_heartbeats()
        try:
            self._executor.run(_LeaveOp(), self._get_deadline(LEAVE_TIMEOUT))
        except (RendezvousConnectionError, RendezvousStateError) as error:
            logger.warning("could not tell the other nodes that this one leaves: %s", error)

    def leave_unless_last(self) -> bool:
        """Leave as long as others of our world are there; whether we have.

        Workers that were told to go may make a last step and save. While another member is there the next world shares
        a node with this one, and cannot begin before the last step is made (see `fencing`). The last member has to stay
        until its workers have ended: newcomers that wait for its place would begin from an older checkpoint.
        """
        operation = _LeaveOp(unless_last=True)
        if not self._heartbeat_lock.acquire(timeout=LEAVE_TIMEOUT.total_seconds()):
            return False  # etcd does not answer; `leave` will say so
        try:
            self._executor.run(operation, self._get_deadline(LEAVE_TIMEOUT))
        except (RendezvousConnectionError, RendezvousStateError) as error:
            logger.warning("could not tell the other nodes that this one leaves: %s", error)
            return False
        finally:
            self._heartbeat_lock.release()
        if operation.is_last:
            return False
        self._is_out = True
        self._stop_heartbeats()
        return True

    @property
    def failures(self) -> Failures:
        """All failures of the job, as far as this node has heard."""
        return self._holder.state.failures

    def outcome(self) -> str:
        """How the job ended: FINISHED, FAILED, GIVEN_UP, or "" when it has not or that is not known."""
        try:
            self._holder.sync()
        except (RendezvousConnectionError, RendezvousStateError):
            return ""
        return self._holder.state.outcome if self._holder.state.closed else ""

    def close(self, outcome: str) -> bool:
        """End the job for all nodes, and for those that come later, with an outcome."""
        self._is_out = True
        self._stop_heartbeats()
        deadline = self._get_deadline(self._settings.timeout.close)
        try:
            self._executor.run(_CloseOp(self._holder, outcome), deadline)
        except (RendezvousConnectionError, RendezvousStateError) as error:
            logger.warning("could not close the rendezvous: %s", error)
            return False
        return True

    def shutdown(self) -> bool:
        """What plain torchrun calls at the end, whatever it was."""
        return self.close("")

    def _record(self, *_: Any, **__: Any) -> None:
        """No events, see `OpExecutor`; what people want to know is in the progress lines."""

    def _get_store(self) -> torch_.Store:
        state = self._holder.state
        self._world, self.generation = set(state.participants), state.round  # torch asks as soon as a round is complete
        return torch_.PrefixStore(f"{state.incarnation}/{self.generation}", self._store)

    def _keep_alive(self) -> None:
        """What the thread that sends heartbeats does each interval."""
        with self._heartbeat_lock:
            try:
                self._executor.run(_HeartbeatOp(), self._get_deadline(self._settings.timeout.heartbeat))
                self._holder.keep_lease()
            except (EtcdError, RendezvousConnectionError, RendezvousStateError) as error:
                logger.warning("no heartbeat could be sent: %s", error)


class _HeartbeatOp:
    """Send one heartbeat. torch's own does so when the wall clock says that it is time, and clocks are set."""

    def __init__(self) -> None:
        self._before: datetime | None = None

    def __call__(self, context: torch_.RendezvousContext, deadline: float) -> torch_.Action:
        beat = context.state.last_heartbeats.get(context.node)
        if self._before is None:
            self._before = beat
        if beat is None or beat != self._before or time.monotonic() > deadline:
            return torch_.Action.FINISH
        return torch_.Action.KEEP_ALIVE


class _LeaveOp:
    """Remove this node from wherever it stands, or find that it is the last member of its world."""

    def __init__(self, *, unless_last: bool = False) -> None:
        self._unless_last = unless_last
        self.is_last = False

    def __call__(self, context: torch_.RendezvousContext, deadline: float) -> torch_.Action:
        state = context.state
        if time.monotonic() > deadline:
            return torch_.Action.FINISH  # the heartbeat will expire
        self.is_last = self._unless_last and state.complete and state.participants.keys() == {context.node}
        if self.is_last:
            return torch_.Action.FINISH
        if context.node in state.participants:
            return torch_.Action.REMOVE_FROM_PARTICIPANTS
        if context.node in state.wait_list:
            return torch_.Action.REMOVE_FROM_WAIT_LIST
        if context.node in state.redundancy_list:
            return torch_.Action.REMOVE_FROM_REDUNDANCY_LIST
        return torch_.Action.FINISH


class _CloseOp:
    """Mark the rendezvous closed and say why; the first word stands."""

    def __init__(self, holder: StateHolder, outcome: str) -> None:
        self._holder = holder
        self._outcome = outcome

    def __call__(self, context: torch_.RendezvousContext, deadline: float) -> torch_.Action:
        if context.state.closed or time.monotonic() > deadline:
            return torch_.Action.FINISH
        self._holder.state.outcome = self._outcome
        return torch_.Action.MARK_RENDEZVOUS_CLOSED


def _members(state: State) -> set[torch_.NodeDesc]:
    return state.participants.keys() | state.wait_list | state.redundancy_list | state.returning


def _fields(node: torch_.NodeDesc) -> list[Any]:
    return list(dataclasses.astuple(node))


def _node(item: Any) -> torch_.NodeDesc:
    addr, pid, local_id = item
    return torch_.NodeDesc(_text(addr), _count(pid), _count(local_id))


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is no text")
    return value


def _count(value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise TypeError(f"{value!r} is no count")
    return value


def _port(value: Any) -> int:
    if _count(value) >= 2**16:
        raise ValueError(f"{value} is no port")
    return int(value)


def _whole(value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise TypeError(f"{value!r} is no whole number")
    return value


def _flag(value: Any) -> bool:
    if not isinstance(value, bool):
        raise TypeError(f"{value!r} is neither true nor false")
    return value


def _time(value: Any) -> datetime:
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise TypeError(f"{value!r} is no time")
    return datetime.fromtimestamp(value, UTC)
