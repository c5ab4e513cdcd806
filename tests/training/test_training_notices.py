"""What workers say about themselves: notices, lost peers, progress lines."""

import io
import json
import os
import signal
import sys
import time
from pathlib import Path

import pytest
import torch.distributed as dist

from training.launch import notices
from training.launch.environment import PROGRESS_FILE
from training.launch.peers import is_lost_peer
from training.metrics.progress import emit, read_report, report_step


class Busy(io.StringIO):
    def write(self, _: str) -> int:
        raise RuntimeError("reentrant call")

    def flush(self) -> None:
        raise RuntimeError("reentrant call")


def test_sigterm_is_a_request_and_not_the_end(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(notices, "_requested", False)
    before = signal.getsignal(signal.SIGTERM)
    try:
        notices.listen()
        assert not notices.preemption_requested()
        with monkeypatch.context() as patch:  # the signal may interrupt a write to sys.stdout, which is not reentrant
            patch.setattr(sys, "stdout", Busy())
            os.kill(os.getpid(), signal.SIGTERM)
            os.kill(os.getpid(), signal.SIGTERM)
        assert notices.preemption_requested()
    finally:
        signal.signal(signal.SIGTERM, before)
    (line,) = capfd.readouterr().out.splitlines()  # told once
    assert json.loads(line)["trainyard"] == "notice"


def test_progress_is_one_json_object_per_line(capfd: pytest.CaptureFixture[str]) -> None:
    emit("step", step=12, loss=0.5)
    (line,) = capfd.readouterr().out.splitlines()

    assert line.startswith('{"trainyard": "step", "time": ')
    assert {"step": 12, "loss": 0.5}.items() <= json.loads(line).items()


def test_the_agent_hears_how_far_the_worker_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(PROGRESS_FILE, raising=False)
    monkeypatch.delenv("LOCAL_RANK", raising=False)
    report_step(1)  # without a launcher: nothing happens
    monkeypatch.setenv(PROGRESS_FILE, str(tmp_path / "progress"))
    monkeypatch.setenv("TRAINYARD_GENERATION", "3")
    begin = time.monotonic()
    report_step(6)
    report_step(7)
    told = read_report(tmp_path / "progress")
    assert told is not None
    assert (told.step, told.first_step) == (7, 6)
    assert begin <= told.first_at <= time.monotonic()
    monkeypatch.setenv(PROGRESS_FILE, str(tmp_path / "gone" / "progress"))
    report_step(8)  # the launcher is going: no reason to fail
    monkeypatch.setenv(PROGRESS_FILE, str(tmp_path / "progress"))
    monkeypatch.setenv("LOCAL_RANK", "1")
    report_step(9)  # one of a node speaks for all
    assert read_report(tmp_path / "progress") == told
    monkeypatch.setenv("LOCAL_RANK", "0")
    monkeypatch.setenv("TRAINYARD_GENERATION", "4")
    report_step(5)  # a process that lives on in a new world, in which a step is made again
    told = read_report(tmp_path / "progress")
    assert told is not None
    assert (told.step, told.first_step) == (5, 5)
    assert [path.name for path in tmp_path.iterdir()] == ["progress"]


@pytest.mark.parametrize("written", [None, "", "7", "seven 7 0.5"])
def test_a_report_that_is_none_is_no_report(written: str | None, tmp_path: Path) -> None:
    if written is not None:
        (tmp_path / "progress").write_text(written)
    assert read_report(tmp_path / "progress") is None


@pytest.mark.parametrize(
    ("error", "lost"),
    [
        (RuntimeError("[/x/gloo/transport/tcp/pair.cc:545] Read error: Connection reset by peer"), True),
        (dist.DistBackendError("NCCL communicator was aborted"), True),
        (dist.DistNetworkError("The client socket has failed to connect"), True),
        (RuntimeError("mat1 and mat2 shapes cannot be multiplied"), False),
        (ValueError("gloo/transport"), False),
    ],
)
def test_the_loss_of_a_peer_is_told_from_our_own_faults(error: Exception, lost: bool) -> None:
    assert is_lost_peer(error) == lost
