"""Traces in the formats of published ones, made up: the same machines in each."""

from pathlib import Path

from infra.simulation.trace import Trace, read


def machines(folder: Path) -> Path:
    """Two machines; a third after a minute; two lost and one new after two; the last line an hour later."""
    lines = ["0,add,node1", "0,add,node2", "60000,add,node3", "120000,remove,node1", "120000,remove,node2"]
    return _written(folder / "machines.csv", [*lines, "120000,add,node4", "3720000,add,node5"], end="\r\n")


def clocked(folder: Path) -> Path:
    """80, then 70, then 75 machines, each written three times, a minute apart."""
    rows = []
    for minute, count in ((7, 80), (8, 70), (56, 75)):
        rows += [f"2021-12-10, 13:{minute + later:02}:45, {count}" for later in range(3)]
    return _written(folder / "clocked.txt", rows)


def numbered(folder: Path) -> Path:
    """None, then four machines, then two, in seconds; two lines for each change."""
    return _written(folder / "numbered.csv", ["0,0", "600,0", "600,4", "1200,4", "1200,2", "3600,2"])


def hours(folder: Path) -> Path:
    """The same in hours, with a machine that is replaced within a moment."""
    return _written(folder / "hours.csv", ["0.000,0", "0.500,0", "0.500,4", "0.750,4", "0.750,3", "0.750,4", "1.000,4"])


def samples(folder: Path) -> Path:
    """Two, two, no machine, each ten minutes."""
    file = folder / "samples.json"
    file.write_text('{"metadata": {"gap_seconds": 600}, "data": [2, 2, 0]}')
    return file


def all_formats(folder: Path) -> dict[str, Trace]:
    return {make.__name__: read(make(folder)) for make in (machines, clocked, numbered, hours, samples)}


def _written(file: Path, lines: list[str], end: str = "\n") -> Path:
    file.write_bytes((end.join(lines) + end).encode())
    return file
