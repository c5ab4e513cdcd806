"""The lease: one number that the launcher moves and its workers read."""

import os
import subprocess
import sys
import time

import pytest
from local_agents import ROOT

from training.launch.environment import LEASE_FILE
from training.launch.lease import StepLease


def test_a_new_lease_has_run_out_and_is_extended_but_never_shortened() -> None:
    now = [1000.0]
    lease = StepLease.create(lambda: now[0])
    assert lease.remaining() <= 0

    lease.extend(1010.0)
    lease.extend(1005.0)
    assert (lease.until, lease.remaining()) == (1010.0, 10.0)
    now[0] = 1010.5
    assert lease.remaining() == -0.5
    lease.extend(float("inf"))
    assert lease.remaining() == float("inf")
    lease.close()


def test_a_reader_sees_at_once_what_the_launcher_has_written_and_cannot_write() -> None:
    launcher = StepLease.create()
    worker = StepLease.open(launcher.path)
    launcher.extend(time.monotonic() + 3600)

    assert worker.until == launcher.until
    assert 0 < worker.remaining() <= 3600
    with pytest.raises(TypeError):
        worker.extend(float("inf"))
    for each in (worker, launcher):
        each.close()


READER = """
from training.launch.lease import StepLease
lease = StepLease.from_environment()
print(lease.remaining() > 0, flush=True)
input()
print(lease.remaining() > 0, flush=True)
"""


def test_a_worker_process_reads_it_through_its_environment() -> None:
    launcher = StepLease.create()
    environment = {**os.environ, LEASE_FILE: launcher.path, "PYTHONPATH": str(ROOT)}
    worker = subprocess.Popen(
        [sys.executable, "-c", READER], env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with worker:
        assert worker.stdin is not None
        assert worker.stdout is not None
        assert worker.stdout.readline() == "False\n"
        launcher.extend(time.monotonic() + 3600)
        worker.stdin.write("\n")
        worker.stdin.close()
        assert worker.stdout.readline() == "True\n"
    launcher.close()


def test_without_a_launcher_there_is_no_lease_and_a_dead_launcher_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(LEASE_FILE, raising=False)
    assert StepLease.from_environment() is None

    gone = StepLease.create()
    monkeypatch.setenv(LEASE_FILE, gone.path)
    gone.close()
    with pytest.raises(OSError, match="No such file"):
        StepLease.from_environment()
