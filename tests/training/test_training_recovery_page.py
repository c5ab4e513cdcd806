"""docs/explanation/recovery.md names what there is: phases, causes, fields of the record, metrics."""

import dataclasses
import re
from pathlib import Path

import pytest

from training.metrics import recovery, scrape

PAGE = Path(__file__).parents[2] / "docs/explanation/recovery.md"


def first_column(header: str) -> list[str]:
    """Names in the first column of the table that begins with this cell."""
    (table,) = re.findall(
        rf"^\| {header} \|.*\n\| ---.*\n((?:\|.*\n)+)", PAGE.read_text(encoding="utf-8"), re.MULTILINE
    )
    return re.findall(r"^\| `([a-z_]+)(?:\{[a-z]+\})?` \|", table, re.MULTILINE)


@pytest.mark.parametrize(
    ("header", "names"),
    [
        ("phase", recovery.PHASES),
        ("field", [field.name for field in dataclasses.fields(recovery.Recovery)]),
        ("cause", recovery.CAUSES),
    ],
)
def test_the_tables_name_all_in_the_order_of_the_code(header: str, names: list[str]) -> None:
    assert first_column(header) == list(names)


def test_the_metrics_are_those_that_are_served() -> None:
    recorder = recovery.Recorder("w-0", emit=lambda *_, **__: None)
    metrics = scrape.registry(recorder, step=lambda: 1, restarts_left=lambda: 1)
    recorder.begin("node_lost")
    recorder.world(generation=1, members=["w-0"], world_size=1)
    recorder.finish(step=1)
    served = {f"{family.name}_total" if family.type == "counter" else family.name for family in metrics.collect()}
    assert set(first_column("metric")) == served
    assert all(name in (scrape.__doc__ or "") for name in served)
