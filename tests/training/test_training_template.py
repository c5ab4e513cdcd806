"""Forked workers are what fresh interpreters would be, and none outlives its launcher. No torch is needed here."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from local_agents import ROOT, wait_for

from training.launch.template import Job, Template

# A launcher in miniature: forks the template, runs workers as told on standard input, prints how they ended.
LAUNCHER = """
import json, os, sys
from datetime import timedelta
from training.launch.template import Job, Template, run_job
import logging
logging.basicConfig(format="launcher: %(message)s")
template = Template.fork(["json", "numpy", "no_such_module"])
if isinstance(template, Job):
    run_job(template)
assert template.wait_until_ready()
for line in sys.stdin:
    program, is_module, args = json.loads(line)
    environment = {**os.environ, "RANK": "0"}
    job = Job(program=program, is_module=is_module, args=tuple(args), environment=environment, directory=os.getcwd())
    with open("stdout", "wb") as out, open("stderr", "wb") as err:
        pid = template.start(job, out.fileno(), err.fileno())
    print("started", pid, flush=True)
    while (status := template.status(pid, timedelta(seconds=1))) is None:
        pass
    print("status", status, flush=True)
template.close()
"""


class Launcher:
    """The process above, and the files its workers write."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "launcher.py").write_text(LAUNCHER)
        self.process = subprocess.Popen(
            [sys.executable, "launcher.py"],
            cwd=folder,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def start(self, script: str, *args: str, module: bool = False) -> int:
        (self.folder / "script.py").write_text(textwrap.dedent(script))
        assert self.process.stdin
        self.process.stdin.write(json.dumps(["script" if module else "script.py", module, args]) + "\n")
        self.process.stdin.flush()
        return self.answer("started")

    def answer(self, kind: str) -> int:
        assert self.process.stdout
        word, number = self.process.stdout.readline().split()
        assert word == kind
        return int(number)

    def run(self, script: str, *args: str, module: bool = False) -> tuple[int, list[str], str]:
        """Exit code of the worker, lines that it printed, what went to standard error."""
        self.start(script, *args, module=module)
        status = self.answer("status")
        return status, (self.folder / "stdout").read_text().splitlines(), (self.folder / "stderr").read_text()

    def stop(self) -> None:
        self.process.kill()
        pids = self.folder / "pids"
        for pid in map(int, pids.read_text().split() if pids.exists() else ()):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.communicate()


@pytest.fixture
def launcher(tmp_path: Path) -> Iterator[Launcher]:
    launcher = Launcher(tmp_path)
    yield launcher
    launcher.stop()


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Launcher]:
    launcher = Launcher(tmp_path_factory.mktemp("launcher"))
    yield launcher
    launcher.stop()


def test_a_worker_looks_like_a_program_of_its_own(shared: Launcher) -> None:
    script = """
        import atexit, json, os, signal, sys, threading, time
        atexit.register(lambda: print("exit function"))
        threading.Thread(target=lambda: (time.sleep(0.2), print("thread"))).start()
        unclosed = open("unclosed.txt", "w")
        unclosed.write("kept")
        import logging
        logging.basicConfig(format="%(message)s", stream=sys.stdout, level=logging.INFO)
        print(json.dumps({
            "name": __name__, "file": os.path.basename(__file__), "argv": sys.argv,
            "path0": sys.path[0], "rank": os.environ["RANK"], "own_session": os.getsid(0) == os.getpid(),
            "sigterm": signal.getsignal(signal.SIGTERM) == signal.SIG_DFL, "stdin": sys.stdin.read(),
            "preloaded": "numpy" in sys.modules, "descriptors": sorted(map(int, os.listdir("/proc/self/fd"))),
        }))
        logging.info("logged")
    """
    status, output, errors = shared.run(script, "--lr", "1")

    assert (status, errors) == (0, "")
    assert json.loads(output[0]) == {
        "name": "__main__",
        "file": "script.py",
        "argv": ["script.py", "--lr", "1"],
        "path0": str(shared.folder),
        "rank": "0",
        "own_session": True,
        "sigterm": True,
        "stdin": "",
        "preloaded": True,
        "descriptors": [0, 1, 2, 3, 4],  # the third is the unclosed file, the fourth reads this list
    }
    assert output[1:] == ["logged", "thread", "exit function"]
    assert (shared.folder / "unclosed.txt").read_text() == "kept"


@pytest.mark.parametrize(
    ("script", "status", "error"),
    [
        ("import sys; sys.exit(75)", 75, ""),
        ("import sys; sys.exit('the data set is empty')", 1, "the data set is empty"),
        ("raise KeyError('lost')", 1, "KeyError: 'lost'"),
        ("import os; os._exit(3)", 3, ""),
        ("import os, signal; os.kill(os.getpid(), signal.SIGTERM)", -15, ""),
        ("import sys\nif __name__ == '__main__': sys.exit(4)", 4, ""),
        ("def broken(:", 1, "SyntaxError"),
    ],
)
def test_exit_codes_and_errors_are_those_of_python(shared: Launcher, script: str, status: int, error: str) -> None:
    actual, _, errors = shared.run(script)

    assert actual == status
    assert error in errors


def test_a_module_runs_as_with_python_m(shared: Launcher) -> None:
    status, output, _ = shared.run("import sys; print(__name__, sys.argv[1:], sys.path[0])", "x", module=True)

    assert (status, output) == (0, [f"__main__ ['x'] {shared.folder}"])


def test_an_idle_executor_does_not_keep_a_worker(shared: Launcher) -> None:
    script = """
        from concurrent.futures import ThreadPoolExecutor
        executor = ThreadPoolExecutor(1)
        executor.submit(print, "submitted")
        executor.submit(print, "queued")
    """
    assert shared.run(script) == (0, ["submitted", "queued"], "")


def test_a_program_may_have_a_package_of_our_name(launcher: Launcher) -> None:
    launcher.run("")  # the launcher has found ours
    (launcher.folder / "training").mkdir()
    (launcher.folder / "training" / "__init__.py").write_text("mine = 'mine'")

    assert launcher.run("import training; print(training.mine)") == (0, ["mine"], "")


def test_a_program_without_such_a_package_finds_ours(shared: Launcher) -> None:
    assert shared.run("from training.launch import exit_codes; print(exit_codes.PREEMPTED)") == (0, ["75"], "")


def test_workers_do_not_share_random_numbers(shared: Launcher) -> None:
    script = "import random, numpy; print(random.random(), numpy.random.rand())"
    numbers = [number for _ in range(2) for number in shared.run(script)[1][0].split()]

    assert len(set(numbers)) == 4


# Run as `python slow.py`; prints what became of a template and its job.
SLOW = """
import os, signal, sys, time
from datetime import timedelta
from pathlib import Path
from training.launch.template import Job, Template, run_job
Path("slow_module.py").write_text(
    "import os, time\\nwhile not os.path.exists('go on'):\\n    time.sleep(0.02)"
)
Path("threaded_module.py").write_text("import threading as t, time; t.Thread(target=time.sleep, args=(600,)).start()")
Path("job.py").write_text("open('ran', 'a').write('ran ')")
sys.path.insert(0, os.getcwd())
template = Template.fork([sys.argv[1]])
if isinstance(template, Job):
    run_job(template)
job = Job(program="job.py", is_module=False, args=(), environment=dict(os.environ), directory=os.getcwd())
if sys.argv[2] == "wait":
    print(template.wait_until_ready(timedelta(seconds=float(sys.argv[3]))), template.alive)
else:
    if sys.argv[2] == "freeze":
        assert template.wait_until_ready()
        os.kill(template.pid, signal.SIGSTOP)
    try:
        template.start(job, 1, 2, timedelta(seconds=float(sys.argv[3])))
    except ChildProcessError as error:
        print(error, template.alive, template.status(1))
Path("go on").touch()
deadline = time.monotonic() + 60
while Path(f"/proc/{template.pid}").exists() and not Path("ran").exists() and time.monotonic() < deadline:
    time.sleep(0.02)
print(Path("ran").exists(), Path(f"/proc/{template.pid}").exists())
template.close()
"""


@pytest.mark.parametrize(
    ("arguments", "output"),
    [
        ("slow_module wait 0.2", "False False"),
        ("slow_module start 0.2", "the process that starts workers has died or does not answer False -9"),
        ("json freeze 0.2", "the process that starts workers has died or does not answer False -9"),
        ("threaded_module wait 120", "False False"),
    ],
)
def test_a_template_that_is_late_is_ended_and_starts_nothing_later(tmp_path: Path, arguments: str, output: str) -> None:
    (tmp_path / "slow.py").write_text(SLOW)
    command = [sys.executable, "slow.py", *arguments.split()]
    done = subprocess.run(
        command,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=300,
        check=True,
    )
    assert done.stdout.splitlines() == [output, "False False"]
    assert ("has started threads" in done.stderr) == (arguments.split(maxsplit=1)[0] == "threaded_module")


def test_a_process_number_that_is_given_out_again_says_nothing_of_the_one_before() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.sendall(b'{"kind": "ended", "pid": 7, "status": 1}\n{"kind": "pid", "pid": 7}\n')
        template = Template(ours, 0)
        job = Job(program="job.py", is_module=False, args=(), environment={}, directory="/")
        assert template.status(template.start(job, 1, 2)) is None


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] not in "ZX"
    except FileNotFoundError:
        return False


SLEEPER = """
    import os, signal, time
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    child = os.fork()
    if child:
        open("pids", "w").write(f"{os.getpid()} {child} {os.getppid()}")
    time.sleep(600)
"""


def start_sleeper(launcher: Launcher) -> tuple[int, int, int]:
    """A worker with a child of its own; returns the ids of worker, child and template."""
    launcher.start(SLEEPER)

    def read() -> Any:
        file = launcher.folder / "pids"
        return file.exists() and len(file.read_text().split()) == 3 and file.read_text()

    worker, child, template = map(int, wait_for(read, "the worker to start").split())
    return worker, child, template


def test_when_the_launcher_is_killed_no_worker_is_left(launcher: Launcher) -> None:
    worker, _, template = start_sleeper(launcher)

    launcher.process.kill()

    wait_for(lambda: not is_running(worker) and not is_running(template), "worker and template to end")


def test_what_a_worker_leaves_behind_is_ended_with_it(launcher: Launcher) -> None:
    worker, child, _ = start_sleeper(launcher)

    os.kill(worker, signal.SIGKILL)

    assert launcher.answer("status") == -9
    wait_for(lambda: not is_running(child), "the worker's child to end")


def test_when_the_template_is_killed_its_workers_end_and_the_launcher_knows(launcher: Launcher) -> None:
    worker, _, template = start_sleeper(launcher)

    os.kill(template, signal.SIGKILL)

    assert launcher.answer("status") == -9
    wait_for(lambda: not is_running(worker), "the worker to end")
