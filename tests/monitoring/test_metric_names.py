"""One catalogue: our programs export what it says, and nothing is drawn or warned of that nobody exports."""

from __future__ import annotations

import itertools
import re
import urllib.request
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from infra.monitoring import metric_names
from infra.monitoring.dashboards import DASHBOARDS, Dashboard
from infra.monitoring.metric_names import Exporter, series_names
from infra.monitoring.reference import PAGE, page
from infra.monitoring.rules import RECORDINGS, Limits, alerts
from training.controller.main import Controller
from training.launch.elastic import World
from training.metrics import fabric, scrape
from training.metrics.recovery import Recorder
from training.metrics.worker import WorkerMetrics

# What stands in PromQL beside names of series.
WORDS = {
    *("by", "on", "and", "or", "without", "group_left", "group", "count", "sum", "max", "avg", "rate", "increase"),
    *("histogram_quantile", "time", "absent", "vector", "offset", "sum_over_time", "label_replace", "m"),
}


def exported(text: str) -> dict[str, str]:
    """Names and types of an exposition, as the catalogue has them."""
    families = text_string_to_metric_families(text)
    return {
        f"{family.name}_total" if family.type == "counter" else family.name: family.type
        for family in families
        if not family.name.endswith("_created")
    }


def said(exporter: Exporter) -> dict[str, str]:
    return {metric.name: metric.kind for metric in exporter.metrics}


def names_in(expr: str) -> set[str]:
    """The names of series in an expression."""
    bare = re.sub(r'"[^"]*"|\{[^}]*\}|\[[^\]]*\]', " ", expr)
    bare = re.sub(r"\b(?:by|on|without|group_left)\s*\([^)]*\)", " ", bare)
    return set(re.findall(r"(?<![\w.])[a-zA-Z_][\w:]*", bare)) - WORDS


def test_the_launcher_exports_what_the_catalogue_says() -> None:
    ticks = itertools.count()
    recorder = Recorder("w-0", clock=lambda: next(ticks) / 4, emit=lambda *_, **__: None)
    registry = scrape.registry(recorder, step=lambda: 7, restarts_left=lambda: 3)
    recorder.begin("node_lost", at=0)
    recorder.world(generation=2, members=["a"], world_size=1, kept=1)
    recorder.mark("first_step", at=1)
    recorder.finish(step=5, steps_lost=1)
    assert exported(generate_latest(registry).decode()) == said(metric_names.LAUNCHER)


def test_a_worker_exports_what_the_catalogue_says(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """With a port from the environment, at the pod's own address, and NCCL's own word for its network."""
    nccl = tmp_path / "nccl.log"
    nccl.write_text("host:1:1 [0] NCCL INFO Using network Socket\n")
    monkeypatch.setenv("NCCL_DEBUG", "INFO")
    monkeypatch.setenv("NCCL_DEBUG_FILE", str(nccl))
    monkeypatch.setenv("PET_LOCAL_ADDR", "127.0.0.1")
    metrics = WorkerMetrics.at_port(0)
    world = cast(World, SimpleNamespace(rank=0, size=2, generation=1))
    metrics.step(world, step=7, loss=0.5, samples=8, seconds={"forward": 0.25})
    before = scraped(metrics)
    assert "worker_checkpoint" not in before, "what is not known yet is absent"
    metrics.evaluation({"accuracy": 0.75})
    metrics.checkpoint(7)
    text = scraped(metrics)
    assert exported(text) == said(metric_names.WORKER)
    assert 'trainyard_worker_nccl_network{network="sockets"} 1.0' in text
    assert 'trainyard_worker_evaluation{figure="accuracy"} 0.75' in text


def scraped(metrics: WorkerMetrics) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{metrics.port}/metrics", timeout=60) as answer:
        return str(answer.read().decode())


@pytest.mark.parametrize("asked", ["0", "65536", "here"])
def test_a_port_that_is_none_costs_the_metrics_and_not_the_training(
    asked: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("TRAINYARD_WORKER_METRICS_PORT", asked)
    assert WorkerMetrics.at_port(None).port is None
    assert f"TRAINYARD_WORKER_METRICS_PORT={asked} is no port (1 to 65535)" in caplog.text


def test_the_controller_exports_what_the_catalogue_says() -> None:
    api = cast(Any, SimpleNamespace(calls={("get", "pods"): 1}))
    controller = Controller(api, namespace=None, lease_namespace="here", identity="c-0")
    assert exported(controller.metrics()) == said(metric_names.CONTROLLER)


def test_the_fabric_exporter_exports_what_the_catalogue_says(tmp_path: Path) -> None:
    machine(tmp_path, "rdmap0s31", "efa", dict.fromkeys(fabric.COUNTERS, 41))
    machine(tmp_path, "mlx5_0", "mlx5_core", {"tx_bytes": 5})
    text = fabric.exposition(tmp_path)
    assert exported(text) == said(metric_names.FABRIC)
    assert "trainyard_fabric_devices 1\n" in text
    assert 'trainyard_efa_rx_drops_total{device="rdmap0s31",port="1"} 41\n' in text
    assert "mlx5_0" not in text, "its counters of these names mean something else"


def test_a_counter_that_the_card_does_not_have_is_absent(tmp_path: Path) -> None:
    machine(tmp_path, "rdmap0s31", "efa", {"tx_bytes": 7})
    assert set(exported(fabric.exposition(tmp_path))) == {"trainyard_fabric_devices", "trainyard_efa_tx_bytes_total"}
    assert exported(fabric.exposition(tmp_path / "nothing")) == {"trainyard_fabric_devices": "gauge"}


def machine(root: Path, device: str, driver: str, counters: dict[str, int]) -> None:
    """An interface as /sys shows it."""
    folder = root / "class/infiniband" / device
    values = folder / "ports/1/hw_counters"
    values.mkdir(parents=True)
    for name, value in counters.items():
        (values / name).write_text(f"{value}\n")
    drivers = root / "bus/pci/drivers" / driver
    drivers.mkdir(parents=True, exist_ok=True)
    (folder / "device").mkdir()
    (folder / "device/driver").symlink_to(drivers)


EXPRESSIONS = [
    *((f"rule {each.name}", each.expr) for each in RECORDINGS),
    *((f"alert {each.name}", each.expr) for each in alerts(Limits())),
    *(
        (f"{dashboard.uid}: {panel.title}", query.expr)
        for dashboard in DASHBOARDS
        for row in dashboard.rows
        for panel in row
        for query in panel.queries
    ),
    *((f"{dashboard.uid}: {label}", metric) for dashboard in DASHBOARDS for label, metric in dashboard.variables),
]


@pytest.mark.parametrize(("where", "expr"), EXPRESSIONS, ids=[where for where, _ in EXPRESSIONS])
def test_every_name_is_one_that_somebody_exports(where: str, expr: str) -> None:
    known = series_names() | {each.name for each in RECORDINGS} | {"trainyard:machine_usd_per_hour"}
    named = names_in(expr)
    assert named, f"{where} names no series: {expr}"
    assert named <= known, f"{where}: nobody exports {sorted(named - known)}"


@pytest.mark.parametrize("dashboard", DASHBOARDS, ids=lambda dashboard: dashboard.uid)
def test_panels_fill_their_rows_and_have_numbers_of_their_own(dashboard: Dashboard) -> None:
    panels = dashboard.model()["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    for row in {panel["gridPos"]["y"] for panel in panels}:
        assert sum(panel["gridPos"]["w"] for panel in panels if panel["gridPos"]["y"] == row) == 24
    for panel in panels:
        assert all(target["legendFormat"] for target in panel["targets"])
    assert f'"{dashboard.uid}"' in dashboard.json()


def test_the_page_of_the_metrics_is_up_to_date() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), "run: python -m infra.monitoring.reference"


def test_each_alert_has_its_section_in_the_how_to() -> None:
    text = (PAGE.parent.parent / "how-to/monitoring.md").read_text(encoding="utf-8")
    headings = re.findall(r"^### (\w+)$", text, re.MULTILINE)
    assert headings == [alert.name for alert in alerts(Limits())]
