"""Pods of the local cluster are processes: found by pod and cluster, stopped, and let go on."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from infra.errors import TrainyardError
from infra.local import pod_processes
from infra.local.processes import MARK

# A node is a process with the cluster's mark; below it a pod with a launcher, which starts a worker.
NODE = """
import os, subprocess, sys
pod, launcher = sys.argv[1], sys.argv[2]
environment = {name: value for name, value in os.environ.items() if name != %r} | {"HOSTNAME": pod}
subprocess.run([sys.executable, "-c", launcher], env=environment)
"""
LAUNCHER = """
import os, subprocess, sys
subprocess.run([sys.executable, "-c", "import sys; sys.stdin.read()"], env=os.environ | {"LOCAL_RANK": "0"})
"""
PATIENCE = 120.0


@pytest.fixture
def pod(tmp_path: Path) -> Iterator[Callable[[str, Path], None]]:
    """Starts a pod of a name in the cluster of a state folder; all are gone at the end."""
    with contextlib.ExitStack() as started:

        def start(name: str, state: Path) -> None:
            node = subprocess.Popen(
                [sys.executable, "-c", NODE % MARK, name, LAUNCHER],
                env=os.environ | {MARK: f"{state}:node-gpu-1"},
                stdin=subprocess.PIPE,
            )
            started.callback(end, node)
            wait_for(lambda: len(pod_processes.processes(name, state)) == 2 and is_training(name, state))

        yield start


def end(node: subprocess.Popen[bytes]) -> None:
    whole = [*psutil.Process(node.pid).children(recursive=True), psutil.Process(node.pid)]
    for process in whole:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    node.communicate()


def is_training(name: str, state: Path) -> bool:
    try:
        return "LOCAL_RANK" in pod_processes.training_process(name, state).environ()
    except (TrainyardError, psutil.Error):
        return False


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def states(name: str, state: Path) -> set[str]:
    return {process.status() for process in pod_processes.processes(name, state)}


def test_a_pod_of_another_cluster_is_left_alone(pod: Callable[[str, Path], None], tmp_path: Path) -> None:
    mine, theirs = tmp_path / "mine", tmp_path / "theirs"
    pod("digits-0", mine)
    pod("digits-0", theirs)
    ours = pod_processes.processes("digits-0", mine)
    assert len(ours) == 2
    assert ours[1].ppid() == ours[0].pid, "parents come first"
    assert not set(ours) & set(pod_processes.processes("digits-0", theirs))
    assert pod_processes.processes("digits-1", mine) == []
    assert pod_processes.training_process("digits-0", mine) == ours[1]


def test_a_frozen_pod_stands_still_and_goes_on(pod: Callable[[str, Path], None], tmp_path: Path) -> None:
    pod("digits-0", tmp_path)
    with pod_processes.frozen("digits-0", tmp_path):
        wait_for(lambda: states("digits-0", tmp_path) == {psutil.STATUS_STOPPED})
    wait_for(lambda: psutil.STATUS_STOPPED not in states("digits-0", tmp_path))


def test_a_pod_thaws_also_when_the_drill_fails(pod: Callable[[str, Path], None], tmp_path: Path) -> None:
    pod("digits-0", tmp_path)
    with pytest.raises(TrainyardError, match="no step"), pod_processes.frozen("digits-0", tmp_path):
        raise TrainyardError("no step")
    wait_for(lambda: psutil.STATUS_STOPPED not in states("digits-0", tmp_path))


def test_a_killed_pod_has_no_processes(pod: Callable[[str, Path], None], tmp_path: Path) -> None:
    pod("etcd-0", tmp_path)
    pod_processes.kill("etcd-0", tmp_path)
    wait_for(lambda: pod_processes.processes("etcd-0", tmp_path) == [])


def test_a_pod_that_is_not_there_is_told(tmp_path: Path) -> None:
    with pytest.raises(TrainyardError, match="pod digits-0 has no training process on this computer"):
        pod_processes.training_process("digits-0", tmp_path)
    with pytest.raises(TrainyardError, match="pod digits-0 has no processes on this computer"):
        pod_processes.kill("digits-0", tmp_path)
    with (
        pytest.raises(TrainyardError, match="pod digits-0 has no processes on this computer"),
        pod_processes.frozen("digits-0", tmp_path),
    ):
        pytest.fail("there was nothing to freeze")
