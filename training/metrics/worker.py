"""What a worker tells Prometheus, on a port of its own; the launcher has another one.

The port is `Loop(metrics_port=...)`, else what `TRAINYARD_WORKER_METRICS_PORT` says, each plus the local rank.

| metric                                         | type      | is                                              |
| ---------------------------------------------- | --------- | ----------------------------------------------- |
| trainyard_worker_step                          | gauge     | the last complete step                          |
| trainyard_worker_loss                          | gauge     | its loss, over the global batch                 |
| trainyard_worker_rank                          | gauge     | this worker's rank in the present world         |
| trainyard_worker_world_size                    | gauge     | workers in it                                   |
| trainyard_worker_generation                    | gauge     | number of the world                             |
| trainyard_worker_samples_total                 | counter   | samples of all steps that this worker has seen  |
| trainyard_worker_step_seconds{part}            | histogram | seconds of each step: `training.metrics.timing` |
| trainyard_worker_evaluation{figure}            | gauge     | what the last evaluation has found, on rank 0   |
| trainyard_worker_checkpoint_timestamp_seconds  | gauge     | when its last checkpoint was safe (Unix time)   |
| trainyard_worker_checkpoint_step               | gauge     | step of that checkpoint                         |
| trainyard_worker_nccl_network{network}         | gauge     | 1 for what NCCL uses between nodes              |

The endpoint lives as long as the process: with hooks a worker goes through many worlds, and its rank changes. What is
not known yet is absent.

NCCL tells of its network in debug output only. Where the script's environment asks for none, the worker has it written
to a file of its own, a few lines for each communicator, and reads it after steps until it says.
"""

from __future__ import annotations

import logging
import os
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from training.diagnose.nccl import transport
from training.launch.environment import WORKER_METRICS_PORT
from training.metrics.progress import emit
from training.metrics.scrape import own_address
from training.metrics.timing import PARTS

if TYPE_CHECKING:
    from training.launch.elastic import World

logger = logging.getLogger(__name__)

# Where it is not, there is no NCCL.
_NVIDIA: Final = Path("/dev/nvidiactl")
# Seconds: from a small model on a CPU to a step of many accumulated micro-batches.
_BUCKETS: Final = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30, 100)


class WorkerMetrics:
    """Figures of one worker; without a port they are not kept."""

    def __init__(self) -> None:
        self._gauges: dict[str, Any] = {}
        self._samples: Any = None
        self._seconds: Any = None
        self._evaluation: Any = None
        self._network: Any = None
        self._nccl_output: Path | None = None
        self._registry: Any = None
        self.port: int | None = None

    @classmethod
    def at_port(cls, first: int | None) -> WorkerMetrics:
        """Answer at `first` plus the local rank; 0: any free port, told in a progress line.

        None: where the environment says, else nowhere.

        A port that cannot be had is a warning: training is worth more than its metrics.

        Raises:
            ValueError: that is no port.
        """
        metrics = cls()
        if first is None and (first := _asked()) is None:
            return metrics
        port = first + int(os.environ.get("LOCAL_RANK", "0")) if first else 0
        if not 0 <= port < 65536:
            raise ValueError(f"metrics_port: {port} is no port (0 to 65535)")
        try:
            from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, start_http_server  # noqa: PLC0415
        except ImportError:
            logger.warning(
                "a metrics port is set and the package prometheus-client is not there: no metrics are served"
            )
            return metrics
        registry = CollectorRegistry()
        try:
            server, _ = start_http_server(port, own_address(), registry=registry)
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
        metrics._evaluation = Gauge(
            "trainyard_worker_evaluation", "What the last evaluation has found", ["figure"], registry=registry
        )
        metrics._network = Gauge(
            "trainyard_worker_nccl_network", "1 for what NCCL uses between nodes", ["network"], registry=registry
        )
        metrics._registry = registry
        metrics._nccl_output = _let_nccl_write()
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
        self._look_at_nccl()

    def evaluation(self, figures: Mapping[str, float]) -> None:
        """An evaluation has found this."""
        if self.port is not None:
            for name, value in figures.items():
                self._evaluation.labels(name).set(value)

    def checkpoint(self, step: int) -> None:
        """The checkpoint of this step is safe, now. From whatever thread has written it."""
        if self.port is None:
            return
        for name, text, value in (
            ("checkpoint_timestamp_seconds", "When the last checkpoint was safe (Unix time)", time.time()),
            ("checkpoint_step", "Step of that checkpoint", step),
        ):
            if name not in self._gauges:
                from prometheus_client import Gauge  # noqa: PLC0415

                self._gauges[name] = Gauge(f"trainyard_worker_{name}", text, registry=self._registry)
            self._gauges[name].set(value)

    def _look_at_nccl(self) -> None:
        """What NCCL has written by now; once it has told of its network it is not read again."""
        if self._nccl_output is None:
            return
        try:
            lines = self._nccl_output.read_text(errors="replace").splitlines()
        except OSError:  # no communicator yet, or none of NCCL
            return
        if (kind := transport(lines).kind) is not None:
            self._network.labels(kind).set(1)
            self._nccl_output = None


def _asked() -> int | None:
    """The port that the environment names."""
    asked = os.environ.get(WORKER_METRICS_PORT)
    if not asked:
        return None
    if not asked.isdecimal() or not 0 < int(asked) < 65536:
        logger.warning("%s=%s is no port (1 to 65535): no metrics are served", WORKER_METRICS_PORT, asked)
        return None
    return int(asked)


def _let_nccl_write() -> Path | None:
    """Has NCCL write its debug output to a file, unless the environment says what to do with it.

    NCCL reads these when the first communicator is made, after the loop.
    """
    if "NCCL_DEBUG" in os.environ:
        written = os.environ.get("NCCL_DEBUG_FILE", "")
        return Path(written) if written and "%" not in written else None
    if not _NVIDIA.exists():
        return None
    path = Path(tempfile.gettempdir(), f"trainyard-nccl-{os.getpid()}.log")
    os.environ |= {"NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": "INIT,NET", "NCCL_DEBUG_FILE": str(path)}
    return path
