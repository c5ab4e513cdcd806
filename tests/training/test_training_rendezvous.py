"""Options, the encoding of the shared state, and how nodes come, go and are found dead; etcd is a dictionary here."""

import json
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, cast

import pytest
from memory_etcd import Clock, MemoryEtcd
from torch.distributed import DistStoreError
from torch.distributed.elastic.rendezvous import (
    RendezvousClosedError,
    RendezvousConnectionError,
    RendezvousInfo,
    RendezvousStateError,
    RendezvousTimeoutError,
    dynamic_rendezvous,
)
from torch.distributed.elastic.rendezvous.dynamic_rendezvous import RendezvousSettings, RendezvousTimeout

from training.launch import membership
from training.launch.environment import GENERATION, LEASE_FILE, RUN
from training.launch.etcd_client import Endpoint, EtcdClient
from training.launch.etcd_store import EtcdStore
from training.launch.fencing import Fence, Times, WithoutEtcd
from training.launch.lease import StepLease
from training.launch.membership import EtcdRendezvousHandler, State, StateHolder, decode, encode
from training.launch.presence import Presence, place
from training.launch.rendezvous import Options, backend, create_handler, outcome_already
from training.launch.torch_private import NodeDesc, RendezvousContext

A, B, C = NodeDesc("10.0.0.1", 11, 0), NodeDesc("10.0.0.2", 22, 0), NodeDesc("node-c", 33, 0)


def options(config: dict[str, object] | None = None, environment: dict[str, str] | None = None) -> Options:
    return Options.parse("etcd:2379", config or {}, environment or {})


def test_defaults_are_quick_and_safe() -> None:
    given = options({"timeout": 900})

    assert given.endpoints == (Endpoint(host="etcd"),)
    assert given.last_call_timeout == timedelta(seconds=2)
    assert given.keep_alive_interval * given.keep_alive_max_attempt == timedelta(seconds=15)
    assert not given.tls


def test_options_come_as_text_and_the_command_line_wins_over_the_environment(tmp_path: Path) -> None:
    secret = tmp_path / "password"
    secret.write_text("from file\n")
    given = options(
        {"last_call_timeout": "0.5", "endpoints": "b:1;c:2", "password_file": str(secret)},
        {"TRAINYARD_ETCD_USER": "job", "TRAINYARD_ETCD_ENDPOINTS": "other:1"},
    )

    assert [str(endpoint) for endpoint in given.endpoints] == ["etcd:2379", "b:1", "c:2"]
    assert given.last_call_timeout == timedelta(seconds=0.5)
    assert (given.user, given.password) == ("job", "from file")


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"last_call": "3", "colour": "red"}, "unknown keys .*: colour, last_call; known keys: .*last_call_timeout"),
        ({"last_call_timeout": "soon"}, "last_call_timeout=soon .* not a positive number"),
        ({"keep_alive_max_attempt": "1"}, "keep_alive_max_attempt=1 .* at least 2"),
        ({"without_etcd": "pray"}, "without_etcd=pray in --rdzv-conf is none of auto, hold, train"),
        ({"join_timeout": "nan"}, "join_timeout=nan"),
        ({"cert": "/x"}, "`cert` and `key` together"),
        ({"cacert": "/nowhere/ca.crt"}, "cacert=/nowhere/ca.crt: there is no such file"),
        ({"user": "job"}, "`user` and `password`"),
        ({"protocol": "ftp"}, "neither http nor https"),
        ({"protocol": "http", "server_name": "x"}, "write https"),
        ({"lease": "inf"}, "lease=inf in --rdzv-conf is not a positive number, or is too large"),
        ({"join_timeout": "1e300"}, "join_timeout=1e300"),
        ({"keep_alive_max_attempt": "inf"}, "keep_alive_max_attempt=inf"),
        ({"user": "job", "password_file": "/"}, "password_file=/: there is no such file"),
        ({"lease": "60"}, "lease=60 must be longer than join_timeout=600"),
    ],
)
def test_mistakes_in_options_are_told(config: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        options(config)


def test_a_password_is_not_shown() -> None:
    assert "secret" not in repr(options({"user": "job", "password": "secret"}))


def test_the_entry_point_returns_the_function_that_makes_handlers() -> None:
    assert backend() is create_handler


def full_state() -> State:
    state = State()
    state.round, state.complete, state.closed, state.outcome, state.lease = 5, True, True, "finished", 2**62
    state.deadline, state.job = membership._LAST_CALL, "train.py, 1:4 nodes"
    state.participants = {A: 0, B: 1}
    state.wait_list, state.redundancy_list, state.returning, state.lost = {C}, {A}, {B}, {C}
    state.world = {A, C}
    state.ports, state.places = {A: 1234}, {A: "boot/1"}
    state.last_heartbeats = {A: datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=UTC)}
    return state


def test_the_state_survives_its_encoding() -> None:
    before = full_state()
    after = decode(encode(before, "writer:1"))

    assert vars(after) == vars(before)
    assert encode(before, "writer:1") != encode(before, "writer:2")


class Evil:
    def __reduce__(self) -> Any:
        return (os.abort, ())


def forged() -> list[bytes]:
    import pickle  # noqa: PLC0415

    def changed(**fields: object) -> bytes:
        return json.dumps({**json.loads(encode(full_state(), "w")), **fields}).encode()

    return [
        pickle.dumps(Evil()),
        b"",
        b"[]",
        b"{}",
        b"\xff",
        changed(format=1),
        changed(round="5"),
        changed(round=-1),
        changed(complete=1),
        changed(participants=[["a", 1]]),
        changed(participants=[[["a"], 1, 0, 0]]),
        changed(heartbeats=[["a", 1, 0, 1e300]]),
        changed(heartbeats=[["a", 1, 0, 1e18]]),
        b"[" * 200_000,
        changed(wait_list=None),
        changed(lease=7),
        changed(last_call="soon"),
        changed(ports=[["a", 1, 0, 80]]),
        changed(ports=[["a", 1, 0, 2**16, "place"]]),
        changed(world="a"),
    ]


@pytest.mark.parametrize("data", forged())
def test_a_forged_state_is_an_error_and_never_code(data: bytes) -> None:
    with pytest.raises(RendezvousStateError, match="another program or version"):
        decode(data)


SETTINGS = RendezvousSettings("job", 1, 4, RendezvousTimeout(), timedelta(seconds=5), 3)


NAMES = {"a": A, "b": B, "c": C}


def holder(
    etcd: MemoryEtcd,
    clock: Clock,
    name: str,
    answers: Callable[[NodeDesc, int], bool] = lambda *_: False,
    without_etcd: WithoutEtcd = "auto",
) -> StateHolder:
    client = cast(EtcdClient, etcd)
    times = Times.of(SETTINGS.keep_alive_interval, SETTINGS.keep_alive_max_attempt, without_etcd)
    fence = Fence(times, StepLease.create(clock), clock)
    return StateHolder(
        client,
        b"state",
        SETTINGS,
        node=NAMES[name],
        fence=fence,
        lease=timedelta(hours=2),
        answers=answers,
        clock=clock,
    )


def beat(holder: StateHolder, node: NodeDesc, number: int) -> None:
    holder.sync()
    holder.state.participants[node] = 0
    holder.state.last_heartbeats[node] = datetime.fromtimestamp(number, UTC)
    holder.mark_dirty()
    assert holder.sync()


def test_of_two_writers_with_the_same_view_one_wins_and_the_other_sees_its_state() -> None:
    etcd, clock = MemoryEtcd(), Clock()
    first, second = holder(etcd, clock, "a"), holder(etcd, clock, "b")
    first.sync()
    second.sync()
    first.state.round, second.state.round = 7, 8
    first.mark_dirty()
    second.mark_dirty()

    assert first.sync() is True
    assert second.sync() is False
    assert second.state.round == 7
    assert second.sync() is None


def test_a_node_whose_heartbeat_stands_still_is_dropped() -> None:
    etcd, clock = MemoryEtcd(), Clock()
    watcher, dead = holder(etcd, clock, "a"), holder(etcd, clock, "b")
    beat(dead, B, 1)
    for second in range(16):
        clock.now = 1000.0 + second
        beat(watcher, A, second)
        assert B in watcher.state.participants

    clock.now += 1
    beat(watcher, A, 99)
    assert set(watcher.state.participants) == {A}
    assert watcher.state.lost == {B}
    assert watcher.silent_since([B]) == 1000.0, "what came before it was noticed is part of the loss"
    assert watcher.silent_since([A]) is None
    dead.sync()
    assert set(dead.state.participants) == {A}


def test_clock_skew_does_not_make_a_healthy_node_look_dead() -> None:
    """B's clock is a day behind; its heartbeats move, and that is all that counts."""
    etcd, clock = MemoryEtcd(), Clock()
    watcher, behind = holder(etcd, clock, "a"), holder(etcd, clock, "b")
    for second in range(0, 60, 3):
        clock.now = 1000.0 + second
        beat(behind, B, second - 86400)
        beat(watcher, A, second)
        assert set(watcher.state.participants) == {A, B}


def test_nobody_is_dead_because_etcd_was() -> None:
    etcd, clock = MemoryEtcd(), Clock()
    watcher, other = holder(etcd, clock, "a"), holder(etcd, clock, "b")
    beat(other, B, 1)
    beat(watcher, A, 1)
    etcd.down = True
    for _ in range(60):
        clock.now += 1
        with pytest.raises(RendezvousConnectionError, match="etcd is down"):
            watcher.sync()
    etcd.down = False

    watcher.sync()
    assert set(watcher.state.participants) == {A, B}
    for _ in range(14):
        clock.now += 1
        watcher.sync()
    assert set(watcher.state.participants) == {A, B}


def complete(holder: StateHolder, *world: NodeDesc) -> None:
    """A round that is complete, with a heartbeat of each member."""
    holder.sync()
    state = holder.state
    state.complete, state.world = True, set(world)
    state.participants = {node: rank for rank, node in enumerate(world)}
    state.ports = dict.fromkeys(world, 80)
    state.places = dict.fromkeys(world, "elsewhere")
    state.last_heartbeats = dict.fromkeys(world, datetime.fromtimestamp(1, UTC))
    holder.mark_dirty()
    assert holder.sync()


def seconds_until_dropped(watcher: StateHolder, clock: Clock, node: NodeDesc) -> int:
    start = clock.now
    watcher.sync()
    while node in watcher.state.last_heartbeats:
        clock.now += 1
        watcher.sync()
        assert clock.now - start < 600
    return round(clock.now - start)


def test_newcomers_wait_longer_for_a_silent_world_than_its_own_members() -> None:
    """Members take themselves along, so what is left of the old world cannot go on; newcomers must be sure."""
    for name, seconds in (("b", 16), ("c", 61)):
        etcd, clock = MemoryEtcd(), Clock()
        complete(holder(etcd, clock, "a"), A, B)
        assert seconds_until_dropped(holder(etcd, clock, name), clock, A) == seconds


def test_a_member_that_cannot_reach_etcd_but_answers_is_not_given_up_before_it_gives_itself_up() -> None:
    etcd, clock = MemoryEtcd(), Clock()
    asked: list[NodeDesc] = []

    def answers(node: NodeDesc, _: int) -> bool:
        asked.append(node)
        return True

    complete(holder(etcd, clock, "a"), A, B)
    assert seconds_until_dropped(holder(etcd, clock, "b", answers), clock, A) == 61
    assert set(asked) == {A}


def test_a_silent_member_is_not_asked_when_its_world_is_broken_anyway() -> None:
    etcd, clock = MemoryEtcd(), Clock()
    watcher = holder(etcd, clock, "b", lambda *_: pytest.fail("asked"))
    complete(watcher, A, B, C)
    watcher.drop(C)
    watcher.mark_dirty()
    watcher.sync()

    assert seconds_until_dropped(watcher, clock, A) == 16


def test_a_joiner_does_not_bury_those_whom_it_has_just_met() -> None:
    """Their heartbeats may be old because etcd has been away; the joiner watches for a whole window first."""
    etcd, clock = MemoryEtcd(), Clock()
    beat(holder(etcd, clock, "b"), B, 1)
    clock.now += 3600

    joiner = holder(etcd, clock, "c")
    joiner.sync()

    assert set(joiner.state.participants) == {B}


def test_an_expired_lease_is_replaced_at_the_next_write() -> None:
    etcd, clock = MemoryEtcd(), Clock()
    state = holder(etcd, clock, "a")
    beat(state, A, 1)
    assert state.state.lease == 1
    etcd.leases.clear()
    clock.now += 3600
    state.keep_lease()
    etcd.leases.add(1)  # numbers are not used again
    assert state.sync() is True
    assert state.state.lease == 2


def here(name: int) -> NodeDesc:
    return NodeDesc("127.0.0.1", name, 0)


@pytest.fixture
def refusing() -> Iterator[int]:
    """A port that is bound and not listening: closed, and nobody else can open it."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        yield held.getsockname()[1]


def test_a_closed_port_proves_that_a_launcher_has_died_if_it_was_ever_open(refusing: int) -> None:
    watcher, alive, dying, stranger = here(0), here(1), here(2), here(9)
    presence = {node: Presence(node) for node in (watcher, alive, dying)}
    ports = {alive: presence[alive].port, dying: presence[dying].port, stranger: refusing}

    def ask(places: dict[NodeDesc, str]) -> set[NodeDesc | None]:
        found = set()
        for _ in ports:
            time.sleep(0.11)
            found.add(presence[watcher].ask_next(ports, places))
        return found

    elsewhere = dict.fromkeys(ports, "another host")
    assert ask(elsewhere) == {None}
    presence[dying].close()
    assert ask(elsewhere) == {None, dying}
    assert ask({**elsewhere, stranger: place()}) == {None, dying, stranger}  # nobody but our kernel refuses there
    presence[watcher].close()
    presence[alive].close()


def test_a_launcher_that_runs_says_so_and_no_other_program_does(refusing: int) -> None:
    watcher, alive = Presence(here(0)), Presence(here(1))
    wait_until(lambda: watcher.answers(here(1), alive.port), "the other's thread is fast enough")
    assert not watcher.answers(here(11), alive.port)  # its port was given to another launcher
    assert not watcher.answers(here(1), refusing)
    with socket.socket() as silent:  # as of a frozen process: the kernel takes the connection
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        assert not watcher.answers(here(1), silent.getsockname()[1])
    watcher.close()
    alive.close()


# No heartbeat is missed within any test, however slow the machine. Who waits in vain for one, or for more nodes in a
# last call of `LONG_CALL`, is still waiting when `together` loses its patience.
SLOW_HEART, LONG_CALL, PATIENCE = "200", "300", 120.0


def handler(
    etcd: MemoryEtcd, *, nnodes: tuple[int, int] = (1, 3), run_id: str = "job", job: str = "", **config: object
) -> Any:
    given = options({"last_call_timeout": "0.4", "join_timeout": "200", "keep_alive_interval": SLOW_HEART, **config})
    return EtcdRendezvousHandler.create(
        cast(EtcdClient, etcd),
        given,
        run_id=run_id,
        min_nodes=nnodes[0],
        max_nodes=nnodes[1],
        local_addr="127.0.0.1",
        job=job,
    )


def wait_until(condition: Callable[[], Any], what: str) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, f"never: {what}"
        time.sleep(0.02)


def together(*calls: Callable[[], Any]) -> list[Any]:
    """Run at the same time; results in order, exceptions as results."""
    results: list[Any] = [None] * len(calls)

    def run(index: int) -> None:
        try:
            results[index] = calls[index]()
        except Exception as error:  # noqa: BLE001
            results[index] = error

    threads = [threading.Thread(target=run, args=(index,), daemon=True) for index in range(len(calls))]
    for thread in threads:
        thread.start()
    deadline = time.monotonic() + PATIENCE
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))
        assert not thread.is_alive(), "a rendezvous hangs"
    return results


@pytest.fixture
def etcd(monkeypatch: pytest.MonkeyPatch) -> MemoryEtcd:
    for variable in (GENERATION, RUN):
        monkeypatch.setenv(variable, "")
    monkeypatch.setattr(membership, "LEAVE_TIMEOUT", timedelta(seconds=PATIENCE))
    return MemoryEtcd()


def test_nodes_meet_and_export_their_generation(etcd: MemoryEtcd) -> None:
    first, second = handler(etcd, nnodes=(2, 2)), handler(etcd, nnodes=(2, 2))

    infos = together(first.next_rendezvous, second.next_rendezvous)

    assert sorted(info.rank for info in infos) == [0, 1]
    assert {info.world_size for info in infos} == {2}
    assert len({(i.bootstrap_store_info.master_addr, i.bootstrap_store_info.master_port) for i in infos}) == 1
    assert os.environ[GENERATION] == "1"
    assert os.environ[RUN].startswith("job.")
    assert first.run == second.run
    assert first.num_nodes_waiting() == second.num_nodes_waiting() == 0
    infos[0].store.set("key", b"value")
    assert infos[1].store.get("key") == b"value"
    for node in (first, second):
        node.leave()


def test_a_joiner_is_admitted_and_a_later_round_waits_for_nobody_else(etcd: MemoryEtcd) -> None:
    first, joiner = handler(etcd), handler(etcd, last_call_timeout=LONG_CALL)
    together(first.next_rendezvous)
    # The last call is for the first round: who made one now would hang.
    first._settings.timeout._set_timeouts(last_call=timedelta(seconds=float(LONG_CALL)))

    def carry_on() -> RendezvousInfo:
        wait_until(first.num_nodes_waiting, "the joiner waits")
        assert first.last_change == "joined"
        return cast(RendezvousInfo, first.next_rendezvous())

    infos = together(carry_on, joiner.next_rendezvous)

    assert [info.world_size for info in infos] == [2, 2]
    assert first.generation == joiner.generation == 2
    for node in (first, joiner):
        node.leave()


def test_a_node_that_leaves_is_missed_at_once_and_not_waited_for(etcd: MemoryEtcd) -> None:
    nodes = [handler(etcd, last_call_timeout=LONG_CALL) for _ in range(3)]
    together(*[node.next_rendezvous for node in nodes])

    nodes[0].leave()
    for node in nodes[1:]:
        wait_until(node.num_nodes_waiting, "the others miss it")
        assert node.last_change == "left"
    infos = together(*[node.next_rendezvous for node in nodes[1:]])  # without a last call

    assert [info.world_size for info in infos] == [2, 2]
    for node in nodes[1:]:
        node.leave()


def test_the_last_of_a_world_stays_a_member_until_its_workers_have_ended(etcd: MemoryEtcd) -> None:
    """Newcomers would begin from a checkpoint that is older than the one that is being written."""
    nodes = [handler(etcd, nnodes=(1, 2)) for _ in range(2)]
    together(*[node.next_rendezvous for node in nodes])
    newcomer = handler(etcd, nnodes=(1, 2))

    assert sorted(together(*[node.leave_unless_last for node in nodes])) == [False, True]
    (last,) = [node for node in nodes if not node._is_out]
    assert last._keep_alive_timer is not None  # its heart goes on beating

    def end() -> None:
        wait_until(lambda: newcomer._holder.state.wait_list, "the newcomer waits")
        last.leave()

    info, _ = together(newcomer.next_rendezvous, end)
    assert (info.world_size, newcomer.generation) == (1, 2)
    newcomer.leave()


def test_a_node_whose_workers_failed_is_told_apart_from_one_that_left(etcd: MemoryEtcd) -> None:
    nodes = [handler(etcd, last_call_timeout=LONG_CALL) for _ in range(3)]
    together(*[node.next_rendezvous for node in nodes])

    def survivor(node: Any) -> Any:
        wait_until(node.num_nodes_waiting, "the failure is known")
        assert node.last_change == "regroup"
        return node.next_rendezvous()

    infos = together(nodes[0].next_rendezvous, lambda: survivor(nodes[1]), lambda: survivor(nodes[2]))

    assert [info.world_size for info in infos] == [3, 3, 3]
    for node in nodes:
        node.leave()


@pytest.mark.parametrize(
    ("world", "changes", "expected"),
    [
        ({A: 0, B: 1}, {}, ""),
        ({A: 0, B: 1}, {"wait_list": {C}}, ""),  # the world is full: who waits is a spare
        ({A: 0}, {"wait_list": {C}}, "joined"),
        ({A: 0, B: 1}, {"participants": {A: 0}}, "left"),
        ({A: 0, B: 1}, {"participants": {A: 0}, "wait_list": {C}}, "left"),
        ({A: 0, B: 1}, {"participants": {A: 0}, "returning": {B}}, "regroup"),
        ({A: 0, B: 1}, {"participants": {A: 0}, "lost": {B}}, "lost"),
        ({A: 0, B: 1}, {"participants": {B: 1}}, "evicted"),
        ({A: 1}, {}, "left"),  # rank 0 left before we saw the complete round
        ({A: 1}, {"returning": {B}}, "regroup"),
        ({A: 0, B: 1}, {"closed": True, "outcome": "failed"}, "closed"),
        ({A: 0, B: 1}, {"closed": True, "outcome": "given up"}, "closed"),
        ({A: 0, B: 1}, {"closed": True, "outcome": "finished"}, ""),
    ],
)
def test_what_has_become_of_the_world(
    etcd: MemoryEtcd, world: dict[NodeDesc, int], changes: dict[str, Any], expected: str
) -> None:
    node = handler(etcd, nnodes=(1, 2))
    node._this_node, node._world = A, set(world)
    state = State()
    state.round, state.complete, state.participants = 3, True, dict(world)
    for name, value in changes.items():
        setattr(state, name, value)
    etcd.put(node._holder._key, encode(state, "w"))
    node._holder.sync()

    assert node.change() == expected
    node.expects_joiners = False
    assert node.change() == ("" if expected == "joined" else expected)


def test_of_three_nodes_for_two_places_one_is_spare_through_failures_and_losses(etcd: MemoryEtcd) -> None:
    nodes = [handler(etcd, nnodes=(1, 2), last_call_timeout=LONG_CALL) for _ in range(3)]
    stop = threading.Event()
    settled: set[int] = set()  # those in a world that will not fail any more

    def live(node: Any, num_failures: int) -> list[int]:
        """Stay in the job as an agent does; workers fail so many times."""
        generations: list[int] = []
        while not stop.is_set():
            settled.discard(id(node))
            node.next_rendezvous()
            generations.append(node.generation)
            if num_failures <= 0:
                settled.add(id(node))
            failing_at = time.monotonic() + 1 if num_failures > 0 else float("inf")
            num_failures -= 1
            while not stop.is_set() and not node.num_nodes_waiting() and time.monotonic() < failing_at:
                time.sleep(0.02)
        return generations

    def end() -> None:
        time.sleep(6)  # in which rounds without end would be many
        wait_until(lambda: len(settled) == 2, "two train and one is spare")
        stop.set()
        for node in nodes:
            node.close("finished")

    results = together(*[lambda node=node: live(node, 1) for node in nodes], end)

    worlds = {generation for result in results[:3] if isinstance(result, list) for generation in result}
    assert len(worlds) <= 4, "rounds without end"  # the first, and one for each failure
    assert sum(isinstance(result, Exception) for result in results) <= 1  # the spare, when the job is closed


def test_a_node_lost_after_the_round_is_not_waited_for(etcd: MemoryEtcd) -> None:
    """Rank 0 vanishes before it has told its address; the other must not wait for it until the store's time is up."""
    first, second = (handler(etcd, nnodes=(1, 2), last_call_timeout=LONG_CALL) for _ in range(2))
    lost, survivor = sorted((first, second), key=lambda node: cast(NodeDesc, node._this_node))

    def vanish(*_: Any) -> Any:
        lost.leave()
        raise InterruptedError

    lost._open_worker_store = vanish
    error, info = together(lost.next_rendezvous, survivor.next_rendezvous)

    assert isinstance(error, InterruptedError)
    assert info.world_size == 1
    assert survivor.generation == 2
    survivor.leave()


def test_a_store_waits_for_an_etcd_that_is_away(etcd: MemoryEtcd) -> None:
    store = EtcdStore(cast(EtcdClient, etcd), "store/")

    def later() -> None:
        time.sleep(0.3)
        etcd.down = False
        store.set("key", b"value")

    etcd.down = True
    assert together(lambda: store.get("key"), later)[0] == b"value"

    store.set_timeout(timedelta(seconds=0.3))
    etcd.down = True
    for call in (lambda: store.get("key"), lambda: store.set("key", b"")):
        with pytest.raises(DistStoreError, match="etcd is down"):
            call()


def test_a_killed_launcher_is_found_out_by_its_closed_port(etcd: MemoryEtcd) -> None:
    survivor, killed = (handler(etcd, nnodes=(1, 2), last_call_timeout=LONG_CALL) for _ in range(2))
    together(survivor.next_rendezvous, killed.next_rendezvous)

    def has_met_the_other() -> bool:
        assert survivor.num_nodes_waiting() == 0
        return bool(survivor._executor._presence._reached)

    wait_until(has_met_the_other, "the survivor reaches the other's port")
    killed._stop_heartbeats()
    killed._executor._presence.close()
    wait_until(survivor.num_nodes_waiting, "the survivor finds out, long before a heartbeat is missed")

    assert survivor.last_change == "lost"
    assert together(survivor.next_rendezvous)[0].world_size == 1
    survivor.leave()


def test_a_newcomer_on_the_same_host_finds_its_predecessor_dead_at_once(etcd: MemoryEtcd) -> None:
    """As a container that is started again; a heartbeat would be missed after ten minutes."""
    killed, newcomer = handler(etcd), handler(etcd)
    together(killed.next_rendezvous)
    killed._stop_heartbeats()
    killed._executor._presence.close()

    info = together(newcomer.next_rendezvous)[0]

    assert info.world_size == 1
    newcomer.leave()


def test_while_etcd_is_away_training_goes_on(etcd: MemoryEtcd) -> None:
    node = handler(etcd)
    together(node.next_rendezvous)
    etcd.down = True
    time.sleep(0.3)

    assert node.num_nodes_waiting() == 0
    etcd.down = False
    node.leave()


def test_after_long_without_etcd_a_node_is_isolated_until_etcd_confirms_its_heartbeat(
    etcd: MemoryEtcd, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = handler(etcd)
    together(node.next_rendezvous)
    assert os.environ[LEASE_FILE] == node._fence.lease.path
    assert node._fence.lease.remaining() > 0
    etcd.down = True
    time.sleep(0.3)
    assert not node.change()

    monkeypatch.setattr(node._fence, "_confirmed", float("-inf"))  # as if the last heartbeat were long ago
    assert node.num_nodes_waiting() == 1
    assert node.last_change == "isolated"
    assert node.broken() == "the world has changed meanwhile (isolated)"
    etcd.down = False
    assert together(node.next_rendezvous)[0].world_size == 1
    node.leave()


def test_a_node_that_was_frozen_unnoticed_renews_its_lease_at_once(
    etcd: MemoryEtcd, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = handler(etcd)
    together(node.next_rendezvous)
    lease = StepLease.create()
    for keeper in (node, node._holder):
        monkeypatch.setattr(keeper, "_fence", Fence(node._fence.times, lease))
    assert lease.remaining() <= 0

    assert not node.change()
    assert lease.remaining() > 0
    node.leave()


def test_the_agent_does_not_wait_for_the_thread_that_waits_for_etcd(etcd: MemoryEtcd) -> None:
    node = handler(etcd)
    together(node.next_rendezvous)
    with node._heartbeat_lock:
        assert node.change() == ""
    node.leave()


def test_another_job_with_the_same_run_id_is_refused(etcd: MemoryEtcd) -> None:
    first, other, silent = handler(etcd, job="train.py"), handler(etcd, job="other.py"), handler(etcd)
    together(first.next_rendezvous)

    error = together(other.next_rendezvous)[0]

    assert isinstance(error, RendezvousStateError)
    assert str(error) == (
        "the run id 'job' belongs to another job, 'train.py' (nodes in it: 1); this one is 'other.py': give it "
        "another --rdzv-id, or the same script and sizes"
    )
    assert first.num_nodes_waiting() == 0

    def carry_on() -> Any:
        wait_until(first.num_nodes_waiting, "who does not say what it runs is let in")
        return first.next_rendezvous()

    assert [info.world_size for info in together(silent.next_rendezvous, carry_on)] == [2, 2]
    for node in (first, silent):
        node.leave()
    late = handler(etcd, job="train.py, larger")  # when nobody is in it, the run can be continued with other sizes
    assert together(late.next_rendezvous)[0].world_size == 1
    late.leave()


def test_a_newcomer_gives_way_to_members_of_the_last_world_that_are_on_their_way(etcd: MemoryEtcd) -> None:
    """They may have the state in memory, and it has none."""
    newcomer = handler(etcd, nnodes=(1, 3), last_call_timeout="200")
    executor, state = newcomer._executor, newcomer._holder.state

    def gives_way(node: NodeDesc = newcomer._this_node) -> bool:
        return bool(executor._gives_way(RendezvousContext(node, state, newcomer._settings)))

    state.world, state.participants, state.returning = {A, B}, {A: 0}, {B}
    assert not gives_way()  # there is a third place
    state.participants[C] = 0
    assert gives_way()
    assert not gives_way(B)
    state.returning, state.wait_list = set(), {B}
    assert gives_way()
    executor._gave_way = (state.round, time.monotonic() - 201)
    assert not gives_way()  # it may be gone
    state.round += 1
    assert gives_way()
    state.wait_list = set()
    assert not gives_way()
    newcomer.leave()


def test_neither_the_last_call_nor_heartbeats_go_by_a_wall_clock(
    etcd: MemoryEtcd, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of two nodes one lives half a minute in the past, and both clocks are set back meanwhile."""

    behind = timedelta(0)

    class SetBack:
        def now(self, zone: Any) -> datetime:
            return datetime.now(zone) - behind

    monkeypatch.setattr(dynamic_rendezvous, "datetime", SetBack())
    options = {"keep_alive_interval": "0.5", "keep_alive_max_attempt": "100", "last_call_timeout": "3"}
    first = handler(etcd, nnodes=(1, 3), **options)
    start = time.monotonic()
    together(first.next_rendezvous)
    assert time.monotonic() - start >= 2.9  # the last call

    behind = timedelta(seconds=30)
    seen = etcd.revision
    wait_until(lambda: etcd.revision > seen + 1, "more heartbeats")
    second = handler(etcd, nnodes=(1, 3), **options)

    def carry_on() -> Any:
        wait_until(first.num_nodes_waiting, "the second waits")
        return first.next_rendezvous()

    assert [info.world_size for info in together(second.next_rendezvous, carry_on)] == [2, 2]
    for node in (first, second):
        node.leave()


def test_an_evicted_node_comes_back(etcd: MemoryEtcd) -> None:
    """As after a split brain: another node took it for dead and formed a world of its own."""
    node, other = handler(etcd), handler(etcd)
    together(node.next_rendezvous)
    dropped: bool | None = None
    while not dropped:  # a heartbeat may come between
        other._holder.sync()
        other._holder.drop(node._this_node)
        other._holder.mark_dirty()
        dropped = other._holder.sync()
    together(other.next_rendezvous)

    wait_until(node.num_nodes_waiting, "it sees that it is out")
    assert node.last_change == "evicted"

    def carry_on() -> Any:
        wait_until(other.num_nodes_waiting, "the evicted node waits")
        return other.next_rendezvous()

    infos = together(node.next_rendezvous, carry_on)
    assert [info.world_size for info in infos] == [2, 2]
    for each in (node, other):
        each.leave()


@pytest.mark.parametrize(
    ("outcome", "words"),
    [("finished", "finished"), ("failed", "failed"), ("given up", "been given up"), ("", "been closed")],
)
def test_who_comes_too_late_hears_how_the_job_ended(etcd: MemoryEtcd, outcome: str, words: str) -> None:
    node = handler(etcd)
    together(node.next_rendezvous)
    node.close(outcome)
    node.close("failed")  # the first word stands

    late = handler(etcd)
    error = together(late.next_rendezvous)[0]

    assert isinstance(error, RendezvousClosedError)
    assert str(error) == f"the job 'job' has {words} already; to run it again, give it another --rdzv-id"
    assert late.outcome() == outcome


def test_how_a_job_has_ended_is_learnt_before_torch_is_there(etcd: MemoryEtcd, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Options, "client", lambda _: etcd)

    def already(job: str = "train.py on 1:3 nodes", run_id: str = "job", **config: str) -> str | None:
        return outcome_already("etcd:2379", run_id, config, job)

    node = handler(etcd, job="train.py on 1:3 nodes")
    assert already() is None  # nobody has come
    together(node.next_rendezvous)
    assert already() is None  # it runs
    node.close("finished")

    assert already() == "finished"
    assert already(prefix="/elsewhere") is None
    assert already(run_id="another") is None
    # What is to be said about these is said when the node joins.
    assert already("other.py on 1:3 nodes") is None
    assert already(no_such_option="1") is None
    (key,) = (key for key in etcd.keys if key.endswith(b"/state"))
    for forged in (b"[" * 100_000, b"[]", b"\xff", b'{"format": 99, "closed": true}'):
        etcd.put(key, forged)
        assert already() is None
    etcd.down = True
    assert already() is None


def test_the_failures_of_a_job_are_counted_once_whichever_nodes_see_them(etcd: MemoryEtcd) -> None:
    nodes = [handler(etcd, nnodes=(2, 2)) for _ in range(2)]

    def fail(node: Any, step: int) -> int:
        return int(node.count_failure(step, is_free=False, lived_long=False).total)

    together(*(node.next_rendezvous for node in nodes))
    assert [fail(node, step) for node, step in zip(nodes, (5, 6), strict=True)] == [1, 1]
    together(*(node.next_rendezvous for node in nodes))
    assert together(*(lambda node=node: fail(node, 7) for node in nodes)) == [2, 2]
    assert [node.failures.best_step for node in nodes] == [7, 7]

    together(*(node.next_rendezvous for node in nodes))
    etcd.down = True
    fail(nodes[0], 8)  # may go uncounted, and is no reason to end
    etcd.down = False
    together(*(node.next_rendezvous for node in nodes))
    assert fail(nodes[1], 9) in {3, 4}, "what came before is not forgotten"
    nodes[0].generation = 1
    assert fail(nodes[0], 10) == nodes[1].failures.total, "it was out, and its world has failed long ago"
    for node in nodes:
        node.leave()


def test_a_job_whose_etcd_was_wiped_is_not_taken_for_its_former_self(etcd: MemoryEtcd) -> None:
    node = handler(etcd)
    together(node.next_rendezvous)
    before = node.run
    etcd.keys.clear()
    wait_until(node.num_nodes_waiting, "it sees that the job is another")

    together(node.next_rendezvous)

    assert node.run != before
    node.leave()


def test_an_empty_run_id_is_refused(etcd: MemoryEtcd) -> None:
    with pytest.raises(ValueError, match="--rdzv-id"):
        handler(etcd, run_id="")


def test_too_few_nodes_are_counted_and_told(etcd: MemoryEtcd) -> None:
    alone = handler(etcd, nnodes=(2, 3), join_timeout="1")
    error = together(alone.next_rendezvous)[0]

    assert isinstance(error, RendezvousTimeoutError)
    assert "fewer than 2 nodes have come to the job 'job' within 1 s; start more" in str(error)


def test_nodes_that_meet_wait_for_an_etcd_that_restarts(etcd: MemoryEtcd) -> None:
    first, second = handler(etcd, nnodes=(2, 2)), handler(etcd, nnodes=(2, 2))
    etcd.down = True

    def restart() -> None:
        time.sleep(1)
        etcd.down = False

    infos = together(first.next_rendezvous, second.next_rendezvous, restart)

    assert [info.world_size for info in infos[:2]] == [2, 2]
    for node in (first, second):
        node.leave()
