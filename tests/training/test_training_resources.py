"""What a node's processes use: counted on real processes, and on a container's group as the kernel shows it."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

from training.metrics.resources import SAMPLE, TELL, Sampler

BUSY = """
import sys, time
block = bytearray(80_000_000)
end = time.process_time() + 0.4
while time.process_time() < end:
    pass
print("done", flush=True)
sys.stdin.read()
"""


class Told:
    def __init__(self) -> None:
        self.lines: list[dict[str, Any]] = []
        self.now = 100.0

    def emit(self, event: str, **fields: Any) -> None:
        assert event == "resources"
        self.lines.append(fields)


@pytest.fixture
def told() -> Told:
    return Told()


def no_group(tmp_path: Path) -> Path:
    return tmp_path / "no-group"


def test_memory_and_processor_time_of_a_child_are_counted_while_it_lives_and_after(tmp_path: Path, told: Told) -> None:
    launcher = subprocess.Popen(
        [sys.executable, "-c", f"import subprocess, sys; subprocess.run([sys.executable, '-c', {BUSY!r}])"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert launcher.stdout is not None
    assert launcher.stdin is not None
    try:
        nowhere = tmp_path / "nowhere"  # the computer's own shared memory is not this test's alone
        sampler = Sampler(launcher.pid, emit=told.emit, clock=lambda: told.now, cgroup=nowhere, shm=nowhere)
        assert launcher.stdout.readline() == "done\n"
        sampler.look(1)
        sampler.end(1)
        living = told.lines[-1]
        assert living["cpu_seconds"] >= 0.3
        assert 80_000_000 <= living["memory_bytes"] == living["memory_peak_bytes"] < 2_000_000_000
        assert living["memory_source"] == "processes"
        assert "throttled_seconds" not in living
    finally:
        launcher.stdin.close()
        launcher.stdout.close()
        launcher.wait(60)
    sampler.end(1)
    ended = told.lines[-1]
    assert ended["memory_bytes"] < 80_000_000 <= ended["memory_peak_bytes"]
    assert ended["cpu_seconds"] >= living["cpu_seconds"]


def test_a_line_is_written_at_an_interval_and_at_the_end_and_none_of_nothing(tmp_path: Path, told: Told) -> None:
    sampler = Sampler(emit=told.emit, clock=lambda: told.now, cgroup=no_group(tmp_path))
    sampler.end(2)
    assert told.lines == []
    begin = told.now
    while told.now - begin <= 2.5 * TELL.total_seconds():
        sampler.look(2)
        told.now += SAMPLE.total_seconds() / 2
    assert len(told.lines) == 2
    sampler.end(2)
    assert [line["workers"] for line in told.lines] == [2, 2, 2]


def test_files_in_memory_are_counted_also_when_they_have_no_name_any_more(tmp_path: Path, told: Told) -> None:
    sampler = Sampler(emit=told.emit, clock=lambda: told.now, cgroup=no_group(tmp_path))
    with tempfile.TemporaryFile(dir="/dev/shm") as file:
        file.write(bytes(8_000_000))
        file.flush()
        sampler.look(1)
        sampler.end(1)
    (line,) = told.lines
    assert line["shm_peak_bytes"] >= 8_000_000
    assert line["memory_peak_bytes"] >= line["shm_peak_bytes"]
    assert line["shm_size_bytes"] >= line["shm_peak_bytes"]


def group(folder: Path, *members: int) -> Path:
    (folder / "cgroup.procs").write_text("".join(f"{pid}\n" for pid in members))
    (folder / "memory.current").write_text("9000000000\n")
    (folder / "memory.stat").write_text("anon 5000000\nfile 8000000000\nshmem 2000000\n")
    (folder / "memory.events").write_text("low 0\nmax 4\noom 1\noom_kill 1\n")
    (folder / "cpu.stat").write_text("usage_usec 9000000\nnr_throttled 3\nthrottled_usec 1500000\n")
    return folder


def test_in_a_group_of_its_own_what_the_limit_counts_is_told_without_the_page_cache(tmp_path: Path, told: Told) -> None:
    sampler = Sampler(emit=told.emit, clock=lambda: told.now, cgroup=group(tmp_path, os.getpid(), 1))
    sampler.look(1)
    sampler.end(1)
    (line,) = told.lines
    assert (line["memory_bytes"], line["memory_source"]) == (7_000_000, "cgroup")
    assert (line["throttled_seconds"], line["oom_kills"]) == (1.5, 1)


def test_a_group_with_strangers_in_it_is_not_taken_for_the_node_s(tmp_path: Path, told: Told) -> None:
    sampler = Sampler(emit=told.emit, clock=lambda: told.now, cgroup=group(tmp_path, os.getpid(), os.getppid()))
    sampler.look(1)
    sampler.end(1)
    assert told.lines[0]["memory_source"] == "processes"
