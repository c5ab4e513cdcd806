"""The state folder: private, whole files, one change at a time, and a plain word for each way it can't be used."""

import errno
import multiprocessing
import os
import stat
import subprocess
import sys
from multiprocessing.process import BaseProcess
from multiprocessing.synchronize import Event
from pathlib import Path

import pytest

from infra.local.errors import LocalClusterError
from infra.local.state import SOCKET_PATH_MAX, State

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def state(short_tmp: Path) -> State:
    return State(short_tmp / "state")


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_folder_and_files_are_private(state: State) -> None:
    state.write(state.path("a", "b"), "secret")
    assert mode(state.directory) == 0o700
    assert mode(state.path("a")) == 0o700
    assert mode(state.path("a", "b")) == 0o600


def test_a_folder_that_others_could_read_is_closed(short_tmp: Path) -> None:
    (short_tmp / "open").mkdir(mode=0o755)
    assert mode(State(short_tmp / "open").directory) == 0o700


def test_an_equal_file_stays_untouched(state: State) -> None:
    path = state.path("file")
    assert state.write(path, "one")
    before = path.stat().st_ino
    assert not state.write(path, "one")
    assert path.stat().st_ino == before
    assert state.write(path, "two")
    assert path.read_text() == "two"


def test_a_failed_write_keeps_the_old_file_and_leaves_nothing(state: State, monkeypatch: pytest.MonkeyPatch) -> None:
    path = state.path("file")
    state.write(path, "old")

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(LocalClusterError, match="No space left on device") as caught:
        state.write(path, "new")
    assert "full" in caught.value.why
    assert path.read_text() == "old"
    assert [entry.name for entry in state.directory.iterdir()] == ["file"]


@pytest.mark.parametrize("content", ["", "{", "\0\0\0"])
def test_damaged_json_reads_as_missing(state: State, content: str) -> None:
    state.write(state.path("x.json"), content)
    assert state.read_json(state.path("x.json")) is None
    assert state.read_json(state.path("none.json")) is None


def test_a_full_disk_is_said_at_the_beginning(short_tmp: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(descriptor: int, data: bytes) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    state = State(short_tmp / "state")
    monkeypatch.setattr("os.write", full)
    with pytest.raises(LocalClusterError) as caught:
        state.require_room(1)
    assert "is full" in str(caught.value)
    assert "TRAINYARD_STATE_DIR" in str(caught.value)


def test_a_read_only_file_system_is_said(short_tmp: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(**options: object) -> None:
        raise OSError(errno.EROFS, "Read-only file system")

    state = State(short_tmp / "state")
    monkeypatch.setattr("tempfile.mkstemp", refused)
    with pytest.raises(LocalClusterError, match="mounted read-only"):
        state.require_room(1)


def test_a_nearly_full_disk_is_said_in_figures(state: State) -> None:
    with pytest.raises(LocalClusterError, match="nearly full") as caught:
        state.require_room(1 << 60)
    assert "MiB are free" in caught.value.why


def test_a_full_disk_does_not_keep_a_cluster_from_being_ended(state: State, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with State(state.directory).lock():
        pass


def test_a_folder_without_permission_is_said(short_tmp: Path) -> None:
    """Root may write anywhere, so the check runs as nobody where the tests run as root."""
    short_tmp.chmod(0o755)
    code = (
        "import os, sys\n"
        "from pathlib import Path\n"
        "from infra.local.state import State\n"
        "from infra.local.errors import LocalClusterError\n"
        "if os.geteuid() == 0: os.setgid(65534); os.setuid(65534)\n"
        "else: os.chmod(sys.argv[1], 0o500)\n"
        "try: State(Path(sys.argv[1]) / 'state')\n"
        "except LocalClusterError as error: print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", code, short_tmp], cwd=ROOT, capture_output=True, text=True, check=True)
    assert "you have no permission there" in done.stdout
    assert "export TRAINYARD_STATE_DIR" in done.stdout


def test_a_file_where_the_folder_should_be_is_said(short_tmp: Path) -> None:
    (short_tmp / "file").touch()
    with pytest.raises(LocalClusterError, match="can't open the state folder"):
        State(short_tmp / "file" / "state")
    with pytest.raises(LocalClusterError, match="can't open the state folder"):
        State(short_tmp / "file")


def test_a_foreign_folder_is_refused(short_tmp: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 12345)
    with pytest.raises(LocalClusterError, match="belongs to another user"):
        State(short_tmp / "state")


def test_home_folders_with_long_names_are_fine(short_tmp: Path) -> None:
    home = short_tmp / ("h" * (len("/home/firstname.lastname") - len(str(short_tmp))))
    assert State(home / ".local/state/trainyard/local-0123abcd").directory.is_dir()


def test_paths_too_long_for_sockets_are_said_before_anything_is_made(short_tmp: Path) -> None:
    long = short_tmp / ("x" * 120)
    with pytest.raises(LocalClusterError, match="too long") as caught:
        State(long)
    assert str(SOCKET_PATH_MAX) in caught.value.why
    assert not long.exists()


def hold(directory: Path, held: Event, let_go: Event) -> None:
    with State(directory).lock():
        held.set()
        let_go.wait(120)


def start_holder(directory: Path) -> tuple[BaseProcess, Event]:
    """A process that holds the lock until it is told to let go."""
    context = multiprocessing.get_context("fork")
    held, let_go = context.Event(), context.Event()
    process = context.Process(target=hold, args=(directory, held, let_go))
    process.start()
    assert held.wait(60)
    return process, let_go


def test_a_second_change_waits_and_says_for_whom(state: State) -> None:
    other, let_go = start_holder(state.directory)
    notes: list[str] = []

    def note(text: str) -> None:
        notes.append(text)
        let_go.set()

    with state.lock(note=note):
        other.join()  # it has let go before it ends
    assert len(notes) == 1
    assert f"process {other.pid}" in notes[0]


def test_without_waiting_a_second_change_is_refused(state: State) -> None:
    other, _ = start_holder(state.directory)
    try:
        with pytest.raises(LocalClusterError, match=f"process {other.pid}"), state.lock(wait=False):
            pass
    finally:
        other.kill()
        other.join()


def test_a_killed_holder_holds_nothing(state: State) -> None:
    other, _ = start_holder(state.directory)
    other.kill()
    other.join()
    with state.lock(wait=False):
        assert state.path("lock.holder").read_text().strip() == str(os.getpid())
