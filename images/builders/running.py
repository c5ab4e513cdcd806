"""One run of a tool: its output shown, kept in a log and, where it fails, explained; ended in order when we are."""

from __future__ import annotations

import collections
import contextlib
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from images.builders import failures
from images.builders.built import Told, untold
from images.builders.steps import Reader
from images.errors import BuildError

_TAIL_LINES = 100  # in which the reason of a failure is looked for
_GRACE = 15.0  # seconds in which an interrupted tool gives back what it holds
_QUESTION_SECONDS = 60.0  # a docker client waits for its engine for ever


Process = subprocess.Popen[str]


@dataclass(frozen=True)
class Answer:
    """What a short run said."""

    code: int
    out: str
    err: str


def ask(command: Sequence[str], *, stdin: str | None = None, seconds: float = _QUESTION_SECONDS) -> Answer:
    """Run something short and silent.

    Args:
        command: program and arguments.
        stdin: what it reads.
        seconds: how long it may take.
    """
    try:
        ran = subprocess.run(
            command,
            input=stdin,
            stdin=subprocess.DEVNULL if stdin is None else None,
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
            timeout=seconds,
        )
    except subprocess.TimeoutExpired:
        return Answer(124, "", f"no answer in {seconds:.0f} s")
    except OSError as error:
        return Answer(127, "", error.strerror or str(error))
    return Answer(ran.returncode, ran.stdout, ran.stderr)


def run(
    command: Sequence[str],
    what: failures.Work,
    *,
    log: Path | None = None,
    told: Told = untold,
    each: Callable[[str], object] = untold,
    environment: Mapping[str, str | None] | None = None,
) -> None:
    """Run something long.

    Args:
        command: program and arguments.
        what: the work, for the sentence if it fails.
        log: gets the whole output; None: nothing is kept.
        told: hears each step.
        each: hears each line.
        environment: variables on top of ours; None takes one away.

    Raises:
        BuildError: it failed, or the log cannot be written.
    """
    reader = Reader(told)
    tail: collections.deque[str] = collections.deque(maxlen=_TAIL_LINES)
    with contextlib.ExitStack() as stack:
        write = _log(log, stack) if log else untold
        variables = {**os.environ, **(environment or {})}
        process = _start(command, {name: value for name, value in variables.items() if value is not None}, stack)
        try:
            for line in process.stdout or ():
                tail.append(line.rstrip())
                write(line)
                each(line)
                reader.read(line.rstrip())
            code = process.wait()
        except OSError as error:
            raise BuildError(failures.of_file(error, log or Path())) from None
    if code != 0:
        raise BuildError(failures.sentence(what, code, list(tail), reader.now, log))


def _log(path: Path, stack: contextlib.ExitStack) -> Callable[[str], object]:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        return stack.enter_context(path.open("w", encoding="utf-8", buffering=1)).write
    except OSError as error:
        raise BuildError(failures.of_file(error, path)) from None


def _start(command: Sequence[str], environment: Mapping[str, str], stack: contextlib.ExitStack) -> Process:
    """Start a program which the stack ends, whenever we are interrupted.

    Signals arrive in the main thread only. So it is another one that starts the program: nothing can come between the
    start and our knowing of it.
    """
    started: list[Process | OSError] = []
    known = threading.Event()  # an interrupted join() of Python 3.11 takes the thread for ended

    def start() -> None:
        try:
            started.append(
                subprocess.Popen(
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT,
                    text=True,
                    errors="replace",
                    env=environment,
                    start_new_session=True,  # Ctrl-C is ours to pass on
                )
            )
        except OSError as error:
            started.append(error)
        finally:
            known.set()

    thread = threading.Thread(target=start)

    def end() -> None:
        if thread.ident is not None:
            known.wait()
        for one in started:
            if not isinstance(one, OSError):
                _end(one)

    stack.callback(end)
    thread.start()
    known.wait()
    (process,) = started
    if isinstance(process, OSError):
        raise BuildError(f"{command[0]} cannot be started: {process.strerror}") from None
    return process


def _end(process: Process) -> None:
    """End what still runs, with all that it has started."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        if process.poll() is not None:
            break
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        deadline = time.monotonic() + _GRACE
        while process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.05)
    if process.stdout is not None:
        process.stdout.close()
    process.wait()
