"""The logs of several workers as one."""

from __future__ import annotations

import json

import pytest

from infra.jobs import LogLine
from infra.logs import Line, merged


def line(pod: str, second: str, text: str) -> LogLine:
    return LogLine.read(pod, f"2026-11-30T00:00:{second} {text}")


def ranks(*numbers: int) -> str:
    return json.dumps({"trainyard": "ranks", "time": 1.0, "generation": 1, "ranks": numbers})


@pytest.mark.parametrize(
    ("stamp", "moment"),
    [
        ("2026-11-30T00:00:01Z", "2026-11-30T00:00:01.000000000"),
        ("2026-11-30T00:00:01.5Z", "2026-11-30T00:00:01.500000000"),
        ("2026-11-30T02:00:01.123456789+02:00", "2026-11-30T00:00:01.123456789"),
    ],
)
def test_times_of_all_zones_sort_as_text(stamp: str, moment: str) -> None:
    read = LogLine.read("a", f"{stamp}  two blanks")
    assert (read.time, read.moment, read.text) == (stamp, moment, " two blanks")


def test_an_empty_line_and_one_of_the_node_are_lines() -> None:
    assert LogLine.read("a", "2026-11-30T00:00:01Z ").text == ""
    said = "unable to retrieve container logs"
    assert LogLine.read("a", said) == LogLine("a", "", "", said)


def test_lines_come_in_the_order_of_their_times() -> None:
    logs = [
        [line("a", "01Z", "one"), line("a", "03Z", "three")],
        [],
        [line("b", "02Z", "two"), line("b", "04Z", "four")],
    ]
    assert [each.log.text for each in merged(logs)] == ["one", "two", "three", "four"]


def test_a_clock_that_is_set_back_does_not_mix_up_a_worker_s_own_lines() -> None:
    logs = [[line("a", "05Z", "one"), line("a", "01Z", "two")], [line("b", "03Z", "other")]]
    assert [each.log.text for each in merged(logs)] == ["other", "one", "two"]


def test_each_line_has_the_ranks_of_its_worker_at_that_time() -> None:
    logs = [
        [line("train-worker-0", "01Z", "before"), line("train-worker-0", "02Z", ranks(0))],
        [
            line("train-worker-1", "03Z", ranks(8, 9, 10)),
            line("train-worker-1", "04Z", "x"),
            line("train-worker-1", "05Z", ranks(2)),
        ],
    ]
    prefixes = [each.prefix("train") for each in merged(logs)]
    assert prefixes == ["worker-0", "worker-0 rank 0", "worker-1 ranks 8-10", "worker-1 ranks 8-10", "worker-1 rank 2"]


@pytest.mark.parametrize("text", ['{"trainyard": "ranks"', '{"trainyard": "ranks", "ranks": "x"}'])
def test_a_script_s_own_line_that_looks_like_one_of_the_launcher_changes_nothing(text: str) -> None:
    (shown,) = merged([[line("a", "01Z", text)]])
    assert shown == Line(line("a", "01Z", text), ())
