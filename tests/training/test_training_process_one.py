"""What process 1 of a container does, with the same functions in an ordinary process that inherits its orphans."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from local_agents import ROOT, wait_for

# A process inherits orphans as process 1 does when it says so: prctl(2), PR_SET_CHILD_SUBREAPER.
BEGIN = """
import ctypes, os, signal, subprocess, sys, time
from training.launch import process_one
ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)
process_one.stand_in_front()
"""


@contextmanager
def container(tmp_path: Path, program: str) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, "-c", BEGIN + program],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        yield process
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


@pytest.mark.parametrize(
    ("end", "code"), [("sys.exit(75)", 75), ("os._exit(0)", 0), ("os.kill(os.getpid(), signal.SIGKILL)", 137)]
)
def test_it_ends_with_the_launchers_code(tmp_path: Path, end: str, code: int) -> None:
    with container(tmp_path, end) as process:
        assert process.wait(120) == code


def test_signals_reach_the_launcher_and_their_default_is_to_end_it(tmp_path: Path) -> None:
    with container(tmp_path, "print('there', flush=True); time.sleep(600)") as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "there\n"
        process.send_signal(signal.SIGTERM)
        assert process.wait(120) == 143


def test_a_launcher_that_answers_a_signal_decides(tmp_path: Path) -> None:
    program = """
signal.signal(signal.SIGUSR1, lambda *_: os._exit(5))
print('there', flush=True)
while True: time.sleep(600)
"""
    with container(tmp_path, program) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "there\n"
        process.send_signal(signal.SIGUSR1)
        assert process.wait(120) == 5


def test_orphans_are_collected(tmp_path: Path) -> None:
    """A daemon leaves its parent, ends, and is no zombie below process 1."""
    program = """
orphan = subprocess.run([sys.executable, '-c', "import os; print(os.fork() or os.getpid() or 0)"],
    capture_output=True, text=True).stdout.split()
print(*orphan, flush=True)
time.sleep(600)
"""
    with container(tmp_path, program) as process:
        assert process.stdout is not None
        pids = process.stdout.readline().split()
        assert pids
        wait_for(lambda: not any(Path(f"/proc/{pid}").exists() for pid in pids), f"{pids} to be collected")
        assert process.poll() is None


def test_the_launcher_answers_signals_before_its_imports(tmp_path: Path) -> None:
    """All modules but the first are replaced by one that never ends to be imported."""
    (tmp_path / "sitecustomize.py").write_text(
        "import sys, time\n"
        "class Slow:\n"
        "    def find_spec(self, name, *_):\n"
        "        if name == 'training.launch.main':\n"
        "            print('importing', flush=True)\n"
        "            time.sleep(600)\n"
        "sys.meta_path.insert(0, Slow())\n"
    )
    codes = {signal.SIGTERM: 143, signal.SIGINT: 130, signal.SIGHUP: 129, signal.SIGQUIT: 131}

    def answer() -> None:
        """What is ignored stays so, and these tests may run below `nohup`."""
        for number in codes:
            signal.signal(number, signal.SIG_DFL)

    for number, code in codes.items():
        process = subprocess.Popen(
            [sys.executable, "-m", "training", "x.py"],
            preexec_fn=answer,  # noqa: PLW1509  (no threads here)
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": f"{tmp_path}:{ROOT}"},
            stdout=subprocess.PIPE,
            text=True,
        )
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "importing\n"
            process.send_signal(number)
            assert process.wait(120) == code
        finally:
            process.kill()
            process.communicate()


def test_mistakes_end_the_launcher_before_torch_is_imported(tmp_path: Path) -> None:
    """A torch that cannot be imported proves it: the sentences come all the same, all of them."""
    (tmp_path / "torch.py").write_text("raise ImportError('torch was imported')")
    done = subprocess.run(
        [sys.executable, "-m", "training", "--nnodes=4:2", "--no-restart-on=x", "no_such.py"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": f"{tmp_path}:{ROOT}"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 64
    told = done.stderr.splitlines()
    assert told[0] == "python -m training: --nnodes 4:2: the least must be at least 1 and not more than the most"
    assert told[1].startswith("python -m training: there is no script 'no_such.py' (working directory: ")
    assert told[2].startswith("python -m training: --no-restart-on needs --rdzv-backend etcd")
    assert told[3].startswith("python -m training: --no-restart-on: 'x' is no exit code")
    assert len(told) == 4
