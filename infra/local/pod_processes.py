"""The processes in a pod of the local cluster, as this computer sees them, and faults that only they can have."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator
from pathlib import Path

import psutil

from infra.errors import TrainyardError
from infra.local.processes import MARK


def processes(pod: str, state: Path) -> list[psutil.Process]:
    """All processes of a pod, parents before their children.

    Args:
        pod: the pod's name; another cluster on this computer may have one of the same name.
        state: the state folder of the cluster.
    """
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get("HOSTNAME") != pod:
                continue
            parents = [parent for parent in process.parents() if parent.pid > 1]
            if any(_mark(parent).startswith(f"{state}:") for parent in parents):
                found.append((len(parents), process))
        except psutil.Error:  # it has just ended, or is somebody else's
            continue
    return [process for _, process in sorted(found, key=lambda item: item[0])]


def training_process(pod: str, state: Path) -> psutil.Process:
    """The training process in a worker pod; arguments as for `processes`.

    Raises:
        TrainyardError: there is none.
    """
    for process in processes(pod, state):
        with contextlib.suppress(psutil.Error):
            # The launcher names forked workers `rank-N`; those that it spawns have their rank in the environment.
            if process.name().startswith("rank-") or "LOCAL_RANK" in process.environ():
                return process
    raise TrainyardError(f"pod {pod} has no training process on this computer: it may just be starting. Try again.")


def kill(pod: str, state: Path) -> None:
    """End all processes of a pod at once (SIGKILL), as the kernel's OOM killer does; arguments as for `processes`.

    Raises:
        TrainyardError: there are none.
    """
    victims = processes(pod, state)
    if not victims:
        raise _nothing_of(pod)
    for process in victims:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.send_signal(signal.SIGKILL)


@contextlib.contextmanager
def frozen(pod: str, state: Path) -> Iterator[None]:
    """Stop all processes of a pod (SIGSTOP) and let them go on at the end; arguments as for `processes`.

    To the others the pod is what a machine is that hangs: its connections stay open, and nobody answers.

    Raises:
        TrainyardError: there are none.
    """
    stopped: list[psutil.Process] = []
    try:
        # A process may start another one before it is stopped itself.
        while new := [process for process in processes(pod, state) if process not in stopped]:
            for process in new:
                stopped.append(process)
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.send_signal(signal.SIGSTOP)
        if not stopped:
            raise _nothing_of(pod)
        yield
    finally:
        for process in reversed(stopped):
            with contextlib.suppress(psutil.NoSuchProcess):
                process.send_signal(signal.SIGCONT)


def _nothing_of(pod: str) -> TrainyardError:
    return TrainyardError(f"pod {pod} has no processes on this computer: it may just be starting. Try again.")


def _mark(process: psutil.Process) -> str:
    try:
        return process.environ().get(MARK, "")
    except psutil.Error:
        return ""
