"""What Prometheus hears from a launcher, asked over HTTP as it does."""

from __future__ import annotations

import contextlib
import itertools
import socket
import urllib.request
from collections.abc import Iterator

import pytest
from prometheus_client.parser import text_string_to_metric_families

from training.metrics import scrape
from training.metrics.recovery import Recorder


def recorder() -> Recorder:
    """Each look at its clock takes a quarter of a second."""
    ticks = itertools.count()
    return Recorder("w-0", clock=lambda: next(ticks) / 4, emit=lambda *_, **__: None)


def recover(made: Recorder, cause: str, generation: int, steps_lost: int = 0) -> None:
    made.begin(cause, at=0)
    made.mark("rendezvous", at=0.2)
    made.world(generation=generation, members=["a", "b"], world_size=2, kept=1)
    made.mark("first_step", at=0.7)
    made.finish(step=5, steps_lost=steps_lost)


@contextlib.contextmanager
def _taken_port() -> Iterator[int]:
    with socket.socket() as held:
        held.bind(("", 0))
        held.listen()
        yield held.getsockname()[1]


def serve(made: Recorder, monkeypatch: pytest.MonkeyPatch, step: int | None, restarts_left: int | None) -> int:
    """The port at which they are served."""
    while True:  # another program may take a port between our look and our use
        with _taken_port() as port:
            pass
        monkeypatch.setenv("TRAINYARD_METRICS_PORT", str(port))
        if scrape.serve_if_asked(made, step=lambda: step, restarts_left=lambda: restarts_left):
            return port


def scraped(port: int) -> dict[tuple[str, str], float]:
    """All samples, by name and the values of their labels."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=60) as answer:
        text = answer.read().decode()
    return {
        (sample.name, ",".join(value for _, value in sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_a_scrape_counts_recoveries_and_their_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    made = recorder()
    port = serve(made, monkeypatch, step=42, restarts_left=3)
    recover(made, "node_lost", 2, steps_lost=4)
    recover(made, "node_lost", 3)
    recover(made, "worker_killed", 4, steps_lost=1)
    made.begin("node_left")
    made.abandon("finished")
    found = scraped(port)
    assert found["trainyard_recoveries_total", "node_lost"] == 2
    assert found["trainyard_recoveries_total", "worker_killed"] == 1
    assert ("trainyard_recoveries_total", "node_left") not in found, "no step came of it"
    assert found["trainyard_recovery_seconds_count", "rendezvous"] == 3
    assert found["trainyard_recovery_seconds_sum", "first_step"] == pytest.approx(1.5)
    assert found["trainyard_recovery_seconds_sum", "total"] == pytest.approx(2.1)
    assert found["trainyard_recovery_seconds_bucket", "0.5,total"] == 0
    assert found["trainyard_recovery_seconds_bucket", "1.0,total"] == 3
    assert found["trainyard_steps_lost_total", ""] == 5
    assert found["trainyard_generation", ""] == 4
    assert found["trainyard_world_size", ""] == 2
    assert found["trainyard_step", ""] == 42
    assert found["trainyard_restarts_left", ""] == 3


def test_what_is_not_known_yet_is_absent(monkeypatch: pytest.MonkeyPatch) -> None:
    port = serve(recorder(), monkeypatch, step=None, restarts_left=None)
    names = {name for name, _ in scraped(port)}
    assert not names & {"trainyard_generation", "trainyard_world_size", "trainyard_step", "trainyard_restarts_left"}


def test_a_taken_port_is_a_warning(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    with _taken_port() as port:
        monkeypatch.setenv("TRAINYARD_METRICS_PORT", str(port))
        assert not scrape.serve_if_asked(recorder(), step=lambda: None, restarts_left=lambda: None)
    assert f"no metrics are served: port {port} cannot be had: Address already in use" in caplog.text


@pytest.mark.parametrize("asked", ["metrics", "0", "65536", "-1", "9.4"])
def test_a_port_that_is_none_is_a_warning(
    asked: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("TRAINYARD_METRICS_PORT", asked)
    assert not scrape.serve_if_asked(recorder(), step=lambda: None, restarts_left=lambda: None)
    assert f"TRAINYARD_METRICS_PORT={asked} is no port (1 to 65535): no metrics are served" in caplog.text


def test_without_a_port_nothing_is_watched(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TRAINYARD_METRICS_PORT", raising=False)
    made = recorder()
    assert not scrape.serve_if_asked(made, step=lambda: None, restarts_left=lambda: None)
    assert made.observers == []
