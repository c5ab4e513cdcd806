"""Ranks that begin and end a world together, while one of them goes or stands still.

Processes of these tests without a launcher: the test holds the other end of the line, and says what a launcher would.
"""

import multiprocessing
import os
import signal
import socket
import threading
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn

from training.launch import elastic, exit_codes, meeting, notices
from training.launch.control import ControlLine
from training.launch.elastic import State, World
from training.launch.environment import CONTROL, GENERATION
from training.launch.torch_private import HashStore, TCPStore

PATIENCE = 120.0
SPAWN = multiprocessing.get_context("spawn")


@pytest.fixture
def store() -> TCPStore:
    """Served by the launcher of a node; clients of other processes connect to its port."""
    return TCPStore("127.0.0.1", 0, is_master=True)


class Worker:
    """A process that trains, and the launcher's end of its line."""

    def __init__(
        self, folder: Path, port: int, *, rank: int = 0, told_before: bool = False, script: Any = None
    ) -> None:
        ours, theirs = socket.socketpair()
        self.line = ControlLine(ours)
        self.process = SPAWN.Process(
            target=work, args=(theirs, folder, port, rank, told_before, script or train), daemon=True
        )
        self.process.start()
        theirs.close()

    def wait_for(self, kind: str) -> dict[str, Any]:
        """Wait for a message of the worker."""
        for _ in range(int(PATIENCE / 0.05)):
            for message in self.line.read():
                if message["kind"] == kind:
                    return message
            self.process.join(0.05)
        raise AssertionError(f"the worker does not say '{kind}'")

    def end(self) -> int | None:
        """Its exit code."""
        self.process.join(PATIENCE)
        return self.process.exitcode


def work(line: socket.socket, folder: Path, port: int, rank: int, told_before: bool, script: Any) -> None:
    """What a worker's process does."""
    torch.set_num_threads(1)
    meeting.SILENCE = timedelta(seconds=2)  # type: ignore[misc]  # who stands still here never comes back
    os.environ.update(
        {
            "RANK": str(rank),
            "WORLD_SIZE": "2",
            "LOCAL_RANK": "0",
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
            GENERATION: "3",
            CONTROL: str(os.dup(line.fileno())),
        }
    )
    if told_before:  # after it listens, and before it has said that it does
        notices.listen()
        os.kill(os.getpid(), signal.SIGTERM)
    state = State(model=nn.Linear(2, 1))
    os.chdir(folder)
    try:
        elastic.run(script, state, save=lambda state: save(state, rank))
    except SystemExit as end:
        os._exit(int(end.code or 0))  # as the launcher's template ends: no thread that waits in torch is in the way


def train(_: World, state: State) -> None:
    while True:
        state.commit()


def train_until_told(_: World, state: State) -> None:
    """Only a step that begins when all are told is one that all leave after."""
    state.commit()
    while not notices.preemption_requested():
        time.sleep(0.01)
    state.commit()


def save(state: State, rank: int) -> None:
    if rank == 0:
        Path("frozen").touch()
        os.kill(os.getpid(), signal.SIGSTOP)  # in the middle of its save
    Path(f"saved-by-{rank}").write_text(str(state.step))


def test_a_fresh_worker_that_is_told_to_go_waits_for_nobody(tmp_path: Path, store: TCPStore) -> None:
    """Its signal came before its first word to the launcher; the other rank of its world will never come."""
    worker = Worker(tmp_path, store.port, told_before=True)
    assert worker.end() == exit_codes.PREEMPTED
    assert store.get("trainyard/3/verdict") == b"off", "and the other one hears of it"


def test_a_world_that_is_over_before_it_has_begun_is_given_up(tmp_path: Path, store: TCPStore) -> None:
    """A node joins or leaves while ranks wait for one that will not come: they do not wait for it."""
    worker = Worker(tmp_path, store.port)
    worker.wait_for("hello")
    worker.line.halt(hard=False)
    assert worker.wait_for("waiting")["generation"] == 3
    worker.line.leave()
    assert worker.end() == exit_codes.PREEMPTED


def serve(port: Any) -> None:
    store = TCPStore("127.0.0.1", 0, is_master=True)
    port.put(store.port)
    threading.Event().wait()


@pytest.fixture
def frozen_node() -> Iterator[tuple[int, Any]]:
    """Port and process of a store that the test may freeze."""
    told = SPAWN.Queue()
    node = SPAWN.Process(target=serve, args=(told,), daemon=True)
    node.start()
    yield told.get(timeout=PATIENCE), node
    node.kill()
    node.join()


def test_a_node_that_stands_still_holds_nobody_up(tmp_path: Path, frozen_node: tuple[int, Any]) -> None:
    """It serves the store, whose calls then do not return: the launcher's word ends them."""
    port, node = frozen_node
    worker = Worker(tmp_path, port)
    store = TCPStore("127.0.0.1", port, is_master=False)
    store.wait(["trainyard/3/here/0"], timedelta(seconds=PATIENCE))
    os.kill(node.pid, signal.SIGSTOP)
    worker.line.halt(hard=True)
    assert worker.wait_for("waiting")["generation"] == 3
    worker.line.leave()
    assert worker.end() == exit_codes.PREEMPTED


def test_the_rank_that_saves_stands_still_and_another_saves(tmp_path: Path, store: TCPStore) -> None:
    """Both are told to go; it was the launcher's deadline that ended the one that waited, and nothing was saved."""
    workers = [Worker(tmp_path, store.port, rank=rank, script=train_until_told) for rank in range(2)]
    for worker in workers:
        worker.wait_for("mark")
    for worker in workers:
        assert worker.process.pid
        os.kill(worker.process.pid, signal.SIGTERM)
    try:
        assert workers[1].end() == exit_codes.PREEMPTED
        assert (tmp_path / "frozen").exists()
        assert int((tmp_path / "saved-by-1").read_text()) > 0
    finally:
        workers[0].process.kill()
        workers[0].process.join()


def test_who_comes_too_late_hears_that_the_meeting_is_off() -> None:
    store = HashStore()
    meeting.come(store, 0, "first")
    with pytest.raises(meeting.CalledOffError):
        meeting.meet(store, 2, is_wanted=lambda: False, timeout=timedelta(seconds=PATIENCE))
    meeting.come(store, 1, "second")
    with pytest.raises(meeting.CalledOffError):
        meeting.meet(store, 2, is_wanted=lambda: True, timeout=timedelta(seconds=PATIENCE))


def test_a_meeting_that_all_have_come_to_takes_place() -> None:
    """Then one who would rather go makes the first step with the others."""
    store = HashStore()
    for rank, said in enumerate(("first", "second")):
        meeting.come(store, rank, said)
    for is_wanted in (True, False):
        said_by_all = meeting.meet(store, 2, is_wanted=lambda: is_wanted, timeout=timedelta(seconds=PATIENCE))  # noqa: B023
        assert said_by_all == ["first", "second"]


def test_who_never_comes_is_an_error() -> None:
    store = HashStore()
    meeting.come(store, 0, "")
    with pytest.raises(dist.DistStoreError, match=r"not all ranks have come within 0\.1 s"):
        meeting.meet(store, 2, is_wanted=lambda: True, timeout=timedelta(seconds=0.1))


def test_a_save_is_waited_for_as_long_as_it_gives_signs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(meeting, "SIGN", timedelta(milliseconds=20))
    store = HashStore()
    is_asked, may_end = threading.Event(), threading.Event()

    def save_slowly() -> None:
        with meeting.saving(store):
            is_asked.set()
            may_end.wait(PATIENCE)

    saver = threading.Thread(target=save_slowly)
    saver.start()
    is_asked.wait(PATIENCE)
    threading.Timer(0.3, may_end.set).start()
    assert meeting.is_saved_by_another(store, is_broken=lambda: False)
    saver.join(PATIENCE)


def test_a_save_without_signs_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(meeting, "SILENCE", timedelta(milliseconds=50))
    assert not meeting.is_saved_by_another(HashStore(), is_broken=lambda: False)
    monkeypatch.setattr(meeting, "SILENCE_IN_BROKEN_WORLD", timedelta(milliseconds=50))
    monkeypatch.setattr(meeting, "SILENCE", timedelta(days=1))
    assert not meeting.is_saved_by_another(HashStore(), is_broken=lambda: True)


def test_the_first_that_leaves_saves_and_so_does_one_that_hears_nothing() -> None:
    store = HashStore()
    assert [meeting.is_first_to_leave(store) for _ in range(2)] == [True, False]

    class Gone:
        def add(self, *_: object) -> int:
            raise dist.DistNetworkError("gone")

    gone: Any = Gone()
    assert meeting.is_first_to_leave(gone)
