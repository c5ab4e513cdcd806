"""What a worker tells Prometheus, on a port of its own (`Loop(metrics_port=...)`); the launcher has another one.

| metric                                   | type      | is                                               |
| ---------------------------------------- | --------- | ------------------------------------------------ |
| trainyard_worker_step                    | gauge     | the last complete step                           |
| trainyard_worker_loss                    | gauge     | its loss, over the global batch                  |
| trainyard_worker_rank                    | gauge     | this worker's rank in the present world          |
| trainyard_worker_world_size              | gauge     | workers in it                                    |
| trainyard_worker_generation              | gauge     | number of the world                              |
| trainyard_worker_samples_total           | counter   | samples of all steps that this worker has seen   |
| trainyard_worker_step_seconds_sum{part}  | histogram | seconds of each step: `training.metrics.timing`  |

The endpoint lives as long as the process: with hooks a worker goes through many worlds, and its rank changes.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from training.metrics.progress import emit
from training.metrics.timing import PARTS

if TYPE_CHECKING:
    from training.launch.elastic import World

logger = logging.getLogger(__name__)

# Seconds: from a small model on a CPU to a step of many accumulated micro-batches.
_BUCKETS: Final = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30, 100)


class WorkerMetrics:
    """Figures of one worker; without a port they are not kept."""

    def __init__(self) -> None:
        self._gauges: dict[str, Any] = {}
        self._samples: Any = None
        self._seconds: Any = None
        self.port: int | None = None

    @classmethod
    def at_port(cls, first: int | None) -> WorkerMetrics:
        """Answer at `first` plus the local rank; 0: any free port, told in a progress line; None: nowhere.

        A port that cannot be had is a warning: training is worth more than its metrics.

        Raises:
            ValueError: that is no port.
        """
        metrics = cls()
        if first is None:
            return metrics
        port = first + int(os.environ.get("LOCAL_RANK", "0")) if first else 0
        if not 0 <= port < 65536:
            raise ValueError(f"metrics_port: {port} is no port (0 to 65535)")
        try:
            from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, start_http_server  # noqa: PLC0415
        except ImportError:
            logger.warning("metrics_port is set and the package prometheus-client is not there: no metrics are served")
            return metrics
        registry = CollectorRegistry()
        try:
            server, _ = start_http_server(port, registry=registry)
        except OSError as error:
            logger.warning("no metrics are served: port %d cannot be had: %s", port, error.strerror or error)
            return metrics
        metrics.port = int(server.server_port)
        for name, text in (
            ("step", "The last complete step"),
            ("loss", "Its loss, over the global batch"),
            ("rank", "Rank of this worker in the present world"),
            ("world_size", "Workers in it"),
            ("generation", "Number of the world"),
        ):
            metrics._gauges[name] = Gauge(f"trainyard_worker_{name}", text, registry=registry)
        metrics._samples = Counter("trainyard_worker_samples", "Samples of all steps seen", registry=registry)
        metrics._seconds = Histogram(
            "trainyard_worker_step_seconds", "Seconds of each step", ["part"], buckets=_BUCKETS, registry=registry
        )
        emit("metrics", port=metrics.port, rank=int(os.environ.get("RANK", "0")))
        return metrics

    def step(self, world: World, *, step: int, loss: float, samples: int, seconds: Mapping[str, float]) -> None:
        """A step is complete.

        Args:
            world: in which.
            step: its number.
            loss: over the global batch.
            samples: in it.
            seconds: by part.
        """
        if self.port is None:
            return
        figures = {
            "step": step,
            "loss": loss,
            "rank": world.rank,
            "world_size": world.size,
            "generation": world.generation,
        }
        for name, value in figures.items():
            self._gauges[name].set(value)
        self._samples.inc(samples)
        for part in PARTS:
            self._seconds.labels(part).observe(seconds.get(part, 0.0))
