"""What share of a job's time was useful, from the progress lines of its nodes."""

import json
from pathlib import Path
from typing import Any

import pytest

from training.metrics.goodput import account, main


def step(time: float, number: int, **seconds: float) -> dict[str, Any]:
    parts = {"data": 0.1, "forward": 0.3, "backward": 0.4, "sync": 0.1, "optimizer": 0.1, **seconds}
    return {"trainyard": "step", "time": time, "step": number, "seconds": parts}


def recovery(began: float, total: float, cause: str, generation: int) -> dict[str, Any]:
    fields = {"began": began, "total": total, "cause": cause, "generation": generation, "outcome": "resumed"}
    return {"trainyard": "recovery", "time": began + total, **fields}


STORY = [
    recovery(100.0, 5.0, "start", 1),
    recovery(100.5, 4.0, "start", 1),  # the other node's word on the same world
    step(106.0, 1),
    step(107.0, 2, checkpoint=0.5),
    recovery(107.0, 3.0, "node_lost", 2),
    recovery(101.0, 9.0, "start", 2),  # a newcomer was long on its way: nobody has waited for it
    step(111.0, 2),  # once more
    step(112.0, 3),
    {"trainyard": "notice", "time": 113.0, "message": "this node goes"},
]


def test_time_is_useful_or_has_a_cause() -> None:
    found = account(STORY)
    assert found.steps == 3
    assert found.wall == pytest.approx(12.0)
    assert found.useful == pytest.approx(3 * 0.9)
    assert found.losses == {
        "recovery start": pytest.approx(5.0),
        "recovery node_lost": pytest.approx(3.0),
        "repeated": pytest.approx(1.0),
        "checkpoint": pytest.approx(0.5),
        "data": pytest.approx(0.3),
    }
    assert found.share == pytest.approx(2.7 / 12.0)


def test_logs_of_nodes_are_read_with_all_that_else_stands_in_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    logs = [tmp_path / "a.log", tmp_path / "b.log"]
    logs[0].write_text("Warning: something\n" + "".join(json.dumps(event) + "\n" for event in STORY[::2]))
    logs[1].write_text("".join(f"[rank0]: {json.dumps(event)}\n" for event in STORY[1::2]) + '{"trainyard": "st')
    assert main([*map(str, logs), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert (document["steps"], document["goodput"]) == (3, 0.225)
    assert main([*map(str, logs)]) == 0
    assert "goodput 22.5%: 3 steps in 12.0 s" in capsys.readouterr().out


def test_logs_that_tell_nothing_are_an_error_in_words(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "empty.log").write_text("nothing\n")
    assert main([str(tmp_path / "empty.log")]) == 1
    assert "no step tells where its time went" in capsys.readouterr().err
    assert main([str(tmp_path / "absent.log")]) == 1
