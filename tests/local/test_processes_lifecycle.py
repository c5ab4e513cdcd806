"""Processes: found through the process table alone, ended whole, never somebody else's."""

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from infra.local.errors import LocalClusterError
from infra.local.processes import MARK, Processes
from infra.local.state import State

SLEEP = ["sleep", "60"]


@pytest.fixture
def state(short_tmp: Path) -> State:
    return State(short_tmp / "state")


@pytest.fixture
def processes(state: State) -> Iterator[Processes]:
    found = Processes(state)
    yield found
    found.stop(*found.running(), grace=0.1)


def eventually(condition: Callable[[], bool], seconds: float = 60) -> bool:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if condition():
            return True
        time.sleep(0.02)
    return False


def test_a_started_process_is_found_by_everyone(processes: Processes, state: State) -> None:
    assert processes.start("one", SLEEP)
    found = Processes(state).running()
    assert list(found) == ["one"]
    assert found["one"].process.name() == "sleep"
    assert found["one"].resident_bytes() > 0


def test_starting_again_does_nothing(processes: Processes) -> None:
    processes.start("one", SLEEP)
    pid = processes.running()["one"].pid
    assert not processes.start("one", SLEEP)
    assert processes.running()["one"].pid == pid


@pytest.mark.parametrize("change", ["argument", "environment", "input"])
def test_what_would_be_started_differently_is_restarted(processes: Processes, state: State, change: str) -> None:
    file = state.path("input")
    state.write(file, "one")
    processes.start("one", SLEEP, environment={"A": "1"}, inputs=[file])
    pid = processes.running()["one"].pid
    if change == "input":
        state.write(file, "two")
    command = ["sleep", "61"] if change == "argument" else SLEEP
    environment = {"A": "2" if change == "environment" else "1"}
    assert processes.start("one", command, environment=environment, inputs=[file])
    assert processes.running()["one"].pid != pid
    assert not psutil.pid_exists(pid)


def test_nothing_of_the_users_shell_is_handed_on(processes: Processes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    monkeypatch.setenv("HTTPS_PROXY", "http://proxy")
    processes.start("one", SLEEP, environment={"OWN": "yes"})
    environment = processes.running()["one"].process.environ()
    assert "AWS_SECRET_ACCESS_KEY" not in environment
    assert "HTTPS_PROXY" not in environment
    assert environment["OWN"] == "yes"


def test_another_shell_with_another_path_restarts_nothing(
    processes: Processes, monkeypatch: pytest.MonkeyPatch
) -> None:
    processes.start("one", SLEEP)
    monkeypatch.setenv("PATH", os.environ["PATH"] + ":/elsewhere")
    assert not processes.start("one", SLEEP)


def test_it_survives_the_command_that_started_it(processes: Processes, state: State) -> None:
    code = (
        "import os, signal, sys; from pathlib import Path\n"
        "from infra.local.state import State; from infra.local.processes import Processes\n"
        "Processes(State(Path(sys.argv[1]))).start('one', ['sleep', '60'])\n"
        "os.killpg(0, signal.SIGKILL)\n"
    )
    root = Path(__file__).resolve().parents[2]
    subprocess.run([sys.executable, "-c", code, state.directory], cwd=root, start_new_session=True, check=False)
    assert list(processes.running()) == ["one"]


def test_stop_ends_children_as_well(processes: Processes) -> None:
    processes.start("tree", ["sh", "-c", "sleep 60 & sleep 60 & wait"])
    leader = processes.running()["tree"].process
    assert eventually(lambda: len(leader.children()) == 2)
    children = leader.children()
    assert processes.stop("tree", grace=0.5) == ["tree"]
    assert not processes.running()
    assert eventually(lambda: not any(child.is_running() for child in children))


def test_what_ignores_the_polite_signal_is_killed(processes: Processes) -> None:
    processes.start(
        "stubborn",
        [
            sys.executable,
            "-c",
            "import signal,time; signal.signal(15, signal.SIG_IGN); print('x', flush=True); time.sleep(600)",
        ],
    )
    assert eventually(lambda: "x" in processes.log_path("stubborn").read_text())
    started = time.monotonic()
    processes.stop("stubborn", grace=0.2)
    assert not processes.running()
    assert time.monotonic() - started < 60  # by itself it would end after 600


def test_leftovers_of_a_killed_process_are_ended_before_it_starts_again(processes: Processes) -> None:
    processes.start("tree", ["sh", "-c", "sleep 60 & wait"])
    leader = processes.running()["tree"].process
    assert eventually(lambda: bool(leader.children()))
    [child] = leader.children()
    assert processes.kill("tree")
    assert child.is_running()
    processes.start("tree", SLEEP)
    assert not child.is_running() or child.status() == psutil.STATUS_ZOMBIE


def test_other_clusters_and_other_programs_are_left_alone(processes: Processes, short_tmp: Path) -> None:
    other = Processes(State(short_tmp / "state2"))
    other.start("one", SLEEP)
    processes.start("one", SLEEP)
    try:
        processes.stop("one")
        assert list(other.running()) == ["one"]
        assert not processes.running()
    finally:
        other.stop("one")


def test_a_child_is_not_taken_for_the_process(processes: Processes, state: State) -> None:
    """Children inherit the mark; only the leader of the session is the process."""
    with subprocess.Popen(SLEEP, env={**os.environ, MARK: f"{state.directory}:one"}) as stray:
        try:
            assert not processes.running()
        finally:
            stray.kill()


if os.geteuid() == 0:  # nobody else sees the environments of other users

    def test_what_another_user_marked_is_not_the_process(processes: Processes, state: State) -> None:
        environment = {**os.environ, MARK: f"{state.directory}:one"}
        with subprocess.Popen(SLEEP, env=environment, user=65534, start_new_session=True) as stray:
            try:
                assert not processes.running()
            finally:
                stray.kill()


def test_waiting_ends_when_ready(processes: Processes) -> None:
    processes.start("one", ["sh", "-c", "sleep 0.2; echo ready; sleep 60"])
    log = processes.log_path("one")
    processes.wait_ready("one", lambda: "ready" in log.read_text(), timeout=60)


def test_the_log_is_in_the_error_of_a_process_that_ends(processes: Processes) -> None:
    processes.start("one", ["sh", "-c", "echo the reason >&2; exit 3"])
    with pytest.raises(LocalClusterError, match="ended instead of becoming ready") as caught:
        processes.wait_ready("one", lambda: False, timeout=60)
    assert "the reason" in caught.value.why
    assert str(processes.log_path("one")) in caught.value.why


def test_waiting_has_an_end(processes: Processes) -> None:
    processes.start("one", SLEEP)
    with pytest.raises(LocalClusterError, match="isn't ready after"):
        processes.wait_ready("one", lambda: False, timeout=0.2)


def test_a_missing_program_is_a_plain_error(processes: Processes, short_tmp: Path) -> None:
    with pytest.raises(LocalClusterError, match="can't start one") as caught:
        processes.start("one", [short_tmp / "nothing"])
    assert "nothing" in caught.value.why


def test_a_large_log_is_put_aside(processes: Processes, state: State, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("infra.local.processes.LOG_LIMIT", 10)
    state.write(processes.log_path("one"), "much more than ten bytes")
    processes.start("one", ["sh", "-c", "echo new; sleep 60"])
    assert eventually(lambda: processes.log_path("one").read_text() == "new\n")
    assert "ten bytes" in processes.log_path("one").with_suffix(".log.1").read_text()


def test_kill_is_a_crash(processes: Processes) -> None:
    processes.start("one", ["sh", "-c", "trap 'echo polite' TERM; sleep 60"])
    assert processes.kill("one")
    assert not processes.kill("one")
    assert "polite" not in processes.log_path("one").read_text()
