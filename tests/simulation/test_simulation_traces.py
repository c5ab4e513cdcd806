"""Published formats of spot traces are read, and what is none is told with file and line."""

from __future__ import annotations

from pathlib import Path

import made_traces
import pytest

from infra.simulation.trace import Change, TraceError, read, read_starts


def test_every_format_tells_the_same_things(tmp_path: Path) -> None:
    found = made_traces.all_formats(tmp_path)
    assert found["machines"].changes == (
        Change(0, 0, 2),
        Change(60, 0, 1),
        Change(120, 2, 1),
        Change(3720, 0, 1),
    )
    assert found["clocked"].counts() == [(0, 80), (60, 70), (2940, 75)]
    assert found["numbered"].counts() == [(600, 4), (1200, 2)]
    assert found["hours"].changes == (Change(1800, 0, 4), Change(2700, 1, 1))
    assert found["samples"].counts() == [(0, 2), (1200, 0)]
    assert {name: trace.seconds for name, trace in found.items()} == {
        "machines": 3720,
        "clocked": 3060,
        "numbered": 3600,
        "hours": 3600,
        "samples": 1800,
    }
    assert [(trace.most, trace.lost) for trace in found.values()] == [(3, 2), (80, 10), (4, 2), (4, 1), (2, 2)]
    assert found["numbered"].mean == pytest.approx((4 * 600 + 2 * 2400) / 3600)


@pytest.mark.parametrize(
    ("content", "told"),
    [
        ("", "is empty: a trace has lines"),
        ("one\n", ":1: a trace has lines"),
        ("0,add,node1\n5,add,node1\n", ":2: node1 is there already"),
        ("0,add,node1\n5,remove,node2\n", ":2: node2 was not there"),
        ("5,add,node1\n0,add,node2\n", ":2: goes back in time"),
        ("0,1\nx,2\n5,-1\n6,2.5\nnan,1\n", "lines 2, 3, 4, 5 are not `seconds,number`"),
        ("2021-12-10, 13:07:45, 80\n2021-12-10, 25:07:45, 70\n", "line 2 is not `2021-12-10, 13:07:45, 80`"),
        ("0,1\n" + "x\n" * 7, "lines 2, 3, 4, 5, 6 and 2 more are not"),
        ("0,1\n0,2\n", "all of it is of one moment"),
        ('{"metadata": {}, "data": [1]}', "a trace has lines"),
    ],
)
def test_what_is_no_trace_is_told_with_its_lines(tmp_path: Path, content: str, told: str) -> None:
    file = tmp_path / "trace.csv"
    file.write_text(content)
    with pytest.raises(TraceError) as raised:
        read(file)
    assert str(raised.value).startswith(str(file))
    assert told in str(raised.value)
    assert raised.value.exit_code == 2


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match=r"none\.csv cannot be read: No such file"):
        read(tmp_path / "none.csv")


def test_measured_starts_are_the_sums_of_their_parts(tmp_path: Path) -> None:
    file = tmp_path / "starts.csv"
    file.write_text("Provisioning,Staging,Booting\r\n1.5,38.5,40\r\n2,40,41\r\n")
    assert read_starts(file) == (80.0, 83.0)
    file.write_text("Provisioning,Staging,Booting\n")
    with pytest.raises(TraceError, match="a line of seconds for each machine"):
        read_starts(file)
