"""What a launcher tells Prometheus, on the port that `TRAINYARD_METRICS_PORT` names; without it, nothing listens.

| metric                                | type      | is                                                               |
| ------------------------------------- | --------- | ---------------------------------------------------------------- |
| trainyard_recoveries_total{cause}     | counter   | recoveries that ended with a step, by what began them            |
| trainyard_recovery_seconds{phase}     | histogram | seconds of each phase of these; phase "total" is the whole       |
| trainyard_steps_lost_total            | counter   | optimizer steps that were done again                             |
| trainyard_generation                  | gauge     | number of the world that this node is in                         |
| trainyard_world_size                  | gauge     | workers in it                                                    |
| trainyard_step                        | gauge     | the last step that this node's workers have reported             |
| trainyard_restarts_left               | gauge     | failures of the job that the budget still allows                 |

Every launcher counts what it saw: a lost node is a recovery on each of the others. A gauge of which nothing is known
yet is absent.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final

from training.launch.environment import METRICS_PORT

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry
    from prometheus_client.core import GaugeMetricFamily

    from training.metrics.recovery import Recorder, Recovery

logger = logging.getLogger(__name__)

TOTAL: Final = "total"
# Seconds: from a recovery in memory to one that waits for a heartbeat window and a large model.
BUCKETS: Final = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300)


def serve_if_asked(
    recorder: Recorder, *, step: Callable[[], int | None], restarts_left: Callable[[], int | None]
) -> bool:
    """Serve the metrics if the environment asks for it; whether they are served.

    This starts a thread, so the process from which workers are forked must have been forked before. A port that cannot
    be had is a warning: training is worth more than its metrics.

    Args:
        recorder: whose records are counted.
        step: the last step that is known, None if there is none.
        restarts_left: what is left of the restart budget, None if nobody counts.
    """
    if not (asked := os.environ.get(METRICS_PORT)):
        return False
    if not asked.isdecimal() or not 0 < int(asked) < 65536:
        logger.warning("%s=%s is no port (1 to 65535): no metrics are served", METRICS_PORT, asked)
        return False
    try:
        from prometheus_client import start_http_server  # noqa: PLC0415  (only who asks for metrics pays for it)
    except ImportError:
        logger.warning("%s is set and the package prometheus-client is not there: no metrics are served", METRICS_PORT)
        return False
    try:
        start_http_server(
            int(asked), own_address(), registry=registry(recorder, step=step, restarts_left=restarts_left)
        )
    except OSError as error:
        logger.warning("no metrics are served: port %s cannot be had: %s", asked, error.strerror or error)
        return False
    return True


def own_address() -> str:
    """Where to listen: where other nodes reach this one, as the controller tells its pods; else everywhere.

    Pods of a local cluster share the computer's network, and each has an address of its own there.
    """
    return os.environ.get("PET_LOCAL_ADDR") or "0.0.0.0"  # noqa: S104


def registry(
    recorder: Recorder, *, step: Callable[[], int | None], restarts_left: Callable[[], int | None]
) -> CollectorRegistry:
    """The metrics of one launcher; see `serve_if_asked` for the arguments."""
    from prometheus_client import CollectorRegistry, Counter, Histogram  # noqa: PLC0415
    from prometheus_client.core import GaugeMetricFamily  # noqa: PLC0415

    metrics = CollectorRegistry()
    recoveries = Counter(
        "trainyard_recoveries", "Recoveries that ended with a step, by what began them", ["cause"], registry=metrics
    )
    seconds = Histogram(
        "trainyard_recovery_seconds", "Seconds of each phase", ["phase"], buckets=BUCKETS, registry=metrics
    )
    lost = Counter("trainyard_steps_lost", "Optimizer steps that were done again", registry=metrics)

    def count(record: Recovery) -> None:
        if not record.is_resumed:
            return
        recoveries.labels(record.cause).inc()
        for phase, duration in {**record.seconds, TOTAL: record.total}.items():
            seconds.labels(phase).observe(duration)
        lost.inc(record.steps_lost or 0)

    class Now:
        """What is so at the moment of the scrape."""

        def collect(self) -> Iterator[GaugeMetricFamily]:
            generation, world_size = recorder.last_world or (None, None)
            for name, help_text, value in (
                ("trainyard_generation", "Number of the world that this node is in", generation),
                ("trainyard_world_size", "Workers in the world that this node is in", world_size),
                ("trainyard_step", "The last step that this node's workers have reported", step()),
                ("trainyard_restarts_left", "Failures that the restart budget still allows", restarts_left()),
            ):
                if value is not None:
                    yield GaugeMetricFamily(name, help_text, value=value)

    recorder.observers.append(count)
    metrics.register(Now())
    return metrics
