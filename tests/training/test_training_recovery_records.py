"""One record for each recovery: phases from the fault to the next step, whatever order their ends are told in."""

from __future__ import annotations

import itertools
import json
import os
import random
import stat
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from training.metrics.recovery import CAUSES, FILE, PHASES, Fault, Recorder, Recovery, append


class Clock:
    """Stands still until it is told otherwise."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class Node:
    """A recorder whose time the test makes, and what it has written."""

    def __init__(self, folder: Path | None = None) -> None:
        self.clock = Clock()
        self.lines: list[dict[str, Any]] = []
        self.recorder = Recorder("w-0", folder, clock=self.clock, wall=lambda: self.clock.now + 5000, emit=self._emit)

    def _emit(self, event: str, **fields: object) -> None:
        assert event == "recovery"
        self.lines.append(dict(fields))

    def after(self, seconds: float) -> Recorder:
        self.clock.now += seconds
        return self.recorder

    def new_world(self, generation: int = 2) -> None:
        self.recorder.world(generation=generation, members=["w-0", "w-2"], world_size=2, kept=1)


def test_a_record_says_what_happened_and_where_the_time_went() -> None:
    node = Node()
    node.recorder.begin("node_lost", node="w-1", detail="its port is closed", at=999.5)
    node.after(0.1).mark("detect")
    node.after(0.2).mark("leave")
    node.after(4.0).mark("pause")
    node.after(0.05).mark("rendezvous")
    node.new_world()
    node.after(0.01).mark("process")
    node.after(0.1).mark("group")
    node.after(0.3).mark("model")
    node.clock.now += 0.04
    record = node.recorder.finish(step=42, steps_lost=0)
    assert record == Recovery(
        host="w-0",
        began=5999.5,
        cause="node_lost",
        node="w-1",
        detail="its port is closed",
        generation=2,
        members=("w-0", "w-2"),
        world_size=2,
        kept=1,
        forked=0,
        step=42,
        steps_lost=0,
        seconds={
            "detect": 0.6,
            "leave": 0.2,
            "pause": 4.0,
            "rendezvous": 0.05,
            "process": 0.01,
            "group": 0.1,
            "model": 0.3,
            "first_step": 0.04,
        },
        total=5.3,
    )
    assert node.lines == [record.as_json()]
    assert list(record.seconds) == list(PHASES)
    assert not node.recorder.is_open


def test_a_phase_of_which_nobody_told_is_part_of_the_next_one() -> None:
    node = Node()
    node.recorder.begin("worker_killed")
    node.after(0.5).mark("rendezvous")
    node.after(2.0)
    record = node.recorder.finish(step=7)
    assert record is not None
    assert record.seconds == {"rendezvous": 0.5, "first_step": 2.0}
    assert record.total == 2.5


def test_a_script_that_reports_no_steps_has_a_record_up_to_its_start() -> None:
    node = Node()
    node.recorder.begin("node_joined", node="w-2")
    node.after(0.5).mark("rendezvous")
    node.after(0.1).mark("process")
    node.after(9)
    record = node.recorder.finish()
    assert record is not None
    assert (record.seconds, record.total, record.step) == ({"rendezvous": 0.5, "process": 0.1}, 0.6, None)


def test_of_several_workers_the_last_one_ends_a_phase() -> None:
    node = Node()
    node.recorder.begin("regroup")
    node.after(1).mark("rendezvous")
    node.recorder.mark("group", at=1001.7)
    node.recorder.mark("group", at=1001.4)
    node.after(1).mark("first_step")
    node.after(5)
    record = node.recorder.finish(step=3)
    assert record is not None
    assert record.seconds == {"rendezvous": 1.0, "group": 0.7, "first_step": 0.3}


@pytest.mark.parametrize("seed", range(20))
def test_marks_in_any_order_make_phases_that_are_never_negative_and_add_up(seed: int) -> None:
    chance = random.Random(seed)  # noqa: S311 - no secret
    node = Node()
    node.recorder.begin("node_lost", at=1000.0)
    node.clock.now = 1010.0
    told = chance.sample(PHASES, chance.randint(1, len(PHASES)))
    moments = {phase: round(1000 + 10 * chance.random(), 3) for phase in told}
    node.new_world()
    for phase in told:
        node.recorder.mark(phase, at=moments[phase])
    record = node.recorder.finish(step=1 if "first_step" in told else None)
    assert record is not None
    assert list(record.seconds) == [phase for phase in PHASES if phase in told]
    assert min(record.seconds.values()) >= 0
    assert record.total == pytest.approx(max(moments.values()) - 1000, abs=0.002 * len(told))


def test_a_second_fault_before_the_new_world_is_one_recovery_with_both() -> None:
    node = Node()
    node.recorder.begin("node_lost", node="w-1")
    node.after(0.2).mark("detect")
    node.recorder.begin("node_left", node="w-2")
    node.after(0.3).mark("leave")
    node.after(0.5).mark("rendezvous")
    node.new_world()
    record = node.recorder.finish(step=9)
    assert record is not None
    assert (record.cause, record.node) == ("node_lost", "w-1")
    assert record.further == (Fault(cause="node_left", node="w-2"),)
    assert record.seconds == {"detect": 0.2, "leave": 0.3, "rendezvous": 0.5, "first_step": 0.0}


def test_a_second_fault_after_the_new_world_makes_the_time_so_far_vain() -> None:
    node = Node()
    node.recorder.begin("node_lost", node="w-1")
    node.after(1).mark("rendezvous")
    node.new_world(generation=2)
    node.after(0.5).mark("process")
    node.after(0.25).begin("node_lost", node="w-1", detail="it came back and was lost again")
    node.recorder.mark("group", at=1001.6)  # of the world that is gone
    assert node.recorder.finish(step=9) is None, "so would be a step of it"
    node.after(1).mark("rendezvous")
    node.new_world(generation=3)
    node.after(0.5)
    record = node.recorder.finish(step=9)
    assert record is not None
    assert record.seconds == {"interrupted": 1.75, "rendezvous": 1.0, "first_step": 0.5}
    assert (record.total, record.generation, len(record.further)) == (3.25, 3, 1)
    assert len(node.lines) == 1


def test_the_same_fault_told_twice_is_one() -> None:
    node = Node()
    node.recorder.begin("node_lost", node="w-1")
    node.after(0.1).mark("detect")
    node.after(0.1).begin("node_lost", node="w-1", detail="seen again")
    node.recorder.mark("detect")
    node.after(0.3).mark("rendezvous")
    record = node.recorder.finish()
    assert record is not None
    assert (record.further, record.seconds) == ((), {"detect": 0.1, "rendezvous": 0.4})


def test_a_fault_may_turn_out_to_be_the_echo_of_another() -> None:
    node = Node()
    node.recorder.correct("node_lost")  # of nothing
    node.recorder.begin("worker_failed", detail="exit code 1")
    node.after(0.4).correct("node_lost", node="w-1")
    node.after(0.1).mark("rendezvous")
    record = node.recorder.finish()
    assert record is not None
    assert (record.cause, record.node, record.detail, record.further) == ("node_lost", "w-1", "", ())
    assert record.total == 0.5


def test_a_fault_cannot_have_happened_later_than_it_is_told() -> None:
    node = Node()
    node.recorder.begin("worker_failed", at=2000.0)
    node.after(1).mark("rendezvous")
    record = node.recorder.finish()
    assert record is not None
    assert record.total == 1.0


def test_what_comes_when_no_recovery_is_under_way_changes_nothing() -> None:
    node = Node()
    node.recorder.mark("group")
    assert node.recorder.finish(step=1) is None
    assert node.recorder.abandon("finished") is None
    assert node.lines == []
    node.recorder.begin("node_left")
    node.after(1).mark("rendezvous")
    assert node.recorder.finish(step=2) is not None
    node.after(1).mark("first_step")
    assert node.recorder.finish(step=3) is None
    assert len(node.lines) == 1


def test_a_recovery_that_came_to_nothing_says_so() -> None:
    node = Node()
    node.recorder.begin("node_lost", node="w-1")
    node.after(600).mark("leave")
    record = node.recorder.abandon("failed")
    assert record is not None
    assert (record.outcome, record.is_resumed, record.generation, record.total) == ("failed", False, None, 600.0)


def test_names_that_do_not_exist_are_errors() -> None:
    node = Node()
    with pytest.raises(ValueError, match="cause 'bad luck': known are start, worker_failed"):
        node.recorder.begin("bad luck")
    with pytest.raises(ValueError, match="phase 'nap': known are detect, leave"):
        node.recorder.mark("nap")
    assert not node.recorder.is_open


def test_records_are_kept_in_a_file_for_the_owner_only(tmp_path: Path) -> None:
    folder = tmp_path / "records" / "of the job"
    for _ in range(2):  # a launcher, and the one after it
        node = Node(folder)
        for cause in CAUSES:
            node.recorder.begin(cause)
            node.after(1).mark("rendezvous")
            node.recorder.finish(step=1)
    path = folder / FILE
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    kept = [json.loads(line) for line in path.read_text().splitlines()]
    assert [line["cause"] for line in kept] == [*CAUSES, *CAUSES]
    assert {line["trainyard"] for line in kept} == {"recovery"}
    assert kept[-1]["seconds"] == {"rendezvous": 1.0, "first_step": 0.0}


def test_several_launchers_may_write_one_file(tmp_path: Path) -> None:
    path = tmp_path / FILE
    lines = [json.dumps({"writer": writer, "text": "x" * 2000}).encode() + b"\n" for writer in range(8)]

    def write(line: bytes) -> None:
        for _ in range(50):
            append(path, line)

    writers = [threading.Thread(target=write, args=[line]) for line in lines]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    written = path.read_bytes().splitlines(keepends=True)
    assert sorted(written) == sorted(lines * 50)


def test_a_full_disk_costs_the_record_and_leaves_no_half_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / FILE
    append(path, b'{"whole": 1}\n')
    really_write = os.write
    monkeypatch.setattr(os, "write", lambda descriptor, data: really_write(descriptor, data[:5]))
    append(path, b'{"whole": 2}\n')
    assert path.read_bytes() == b'{"whole": 1}\n'
    assert "No space left on device" in caplog.text


def test_a_folder_that_cannot_be_is_a_warning_and_the_line_is_written(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("")
    node = Node(tmp_path / "file" / "records")
    node.recorder.begin("evicted")
    node.new_world()
    node.recorder.finish(step=1)
    assert len(node.lines) == 1
    assert "Not a directory" in caplog.text


def test_the_environment_names_the_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRAINYARD_RECORDS", str(tmp_path))
    recorder = Recorder.from_environment()
    recorder.begin("start")
    recorder.world(generation=1, members=["a"], world_size=1, forked=1)
    recorder.finish(step=1)
    assert json.loads((tmp_path / FILE).read_text())["generation"] == 1


def test_a_record_is_one_progress_line(capfd: pytest.CaptureFixture[str]) -> None:
    recorder = Recorder("w-0")
    recorder.begin("node_left", node="w-1")
    recorder.world(generation=4, members=["w-0"], world_size=1, kept=1)
    recorder.finish(step=10, steps_lost=0)
    (line,) = capfd.readouterr().out.splitlines()
    assert line.startswith('{"trainyard": "recovery", "time": ')
    fields = json.loads(line)
    assert (fields["cause"], fields["members"], fields["outcome"]) == ("node_left", ["w-0"], "resumed")


def test_marks_may_come_from_another_thread() -> None:
    node = Node()
    node.recorder.begin("node_lost")
    node.new_world()
    counter = itertools.count(1)

    def tell() -> None:
        for _ in range(200):
            node.recorder.mark("group", at=1000 + next(counter))

    threads = [threading.Thread(target=tell) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    record = node.recorder.finish()
    assert record is not None
    assert record.seconds == {"group": 800.0}


def test_records_need_no_slow_imports() -> None:
    code = "import sys, training.metrics.recovery, training.metrics.scrape; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120)
    assert not {"torch", "numpy", "prometheus_client", "http.server"} & set(done.stdout.split())
