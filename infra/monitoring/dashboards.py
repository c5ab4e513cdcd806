"""Dashboards of Grafana, as data: panels by rows, laid out and numbered here, nothing clicked together.

Schema: Grafana's dashboard JSON model, `schemaVersion` 39 (Grafana 11 and newer read it). The data source is
a variable, so that a dashboard works in any Grafana it is imported into.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from infra.monitoring.rules import SECONDS

_COLUMNS = 24  # of Grafana's grid
_HEIGHT = 8
_SOURCE = {"type": "prometheus", "uid": "${datasource}"}

Unit = Literal["none", "percent", "percentunit", "celsius", "watt", "decmbytes", "bytes", "Bps", "s", "currencyUSD"]


@dataclass(frozen=True)
class Query:
    """One expression, and how its lines are called."""

    expr: str
    legend: str


@dataclass(frozen=True)
class Panel:
    """A plot over time, or one figure.

    Attributes:
        title: what is seen.
        queries: one or more.
        unit: of the values.
        text: what it means, shown at the panel's corner.
        kind: `timeseries`, or `stat` for the latest value alone.
        stacked: parts of a whole, one above the other.
    """

    title: str
    queries: tuple[Query, ...]
    unit: Unit = "none"
    text: str = ""
    kind: Literal["timeseries", "stat"] = "timeseries"
    stacked: bool = False


@dataclass(frozen=True)
class Dashboard:
    """One page.

    Attributes:
        uid: stands in its address, and never changes.
        title: shown.
        rows: panels side by side, each row sharing the width.
        variables: labels to choose by, each with a metric that has them.
    """

    uid: str
    title: str
    rows: tuple[tuple[Panel, ...], ...]
    variables: tuple[tuple[str, str], ...] = ()

    def model(self) -> dict[str, Any]:
        """Grafana's JSON."""
        panels: list[dict[str, Any]] = []
        for number, row in enumerate(self.rows):
            width = _COLUMNS // len(row)
            for place, panel in enumerate(row):
                grid = {"x": place * width, "y": number * _HEIGHT, "w": width, "h": _HEIGHT}
                panels.append({"id": len(panels) + 1, "gridPos": grid, **_panel(panel)})
        return {
            "uid": self.uid,
            "title": self.title,
            "tags": ["trainyard"],
            "timezone": "browser",
            "schemaVersion": 39,
            "editable": False,
            "refresh": "30s",
            "time": {"from": "now-3h", "to": "now"},
            "templating": {"list": [_SOURCE_CHOICE, *(_choice(label, metric) for label, metric in self.variables)]},
            "panels": panels,
        }

    def json(self) -> str:
        """The file that Grafana reads."""
        return json.dumps(self.model(), indent=1)


_SOURCE_CHOICE = {"name": "datasource", "label": "Data source", "type": "datasource", "query": "prometheus"}


def _choice(label: str, metric: str) -> dict[str, Any]:
    return {
        "name": label,
        "label": label,
        "type": "query",
        "datasource": _SOURCE,
        "query": {"query": f"label_values({metric}, {label})", "refId": label},
        "refresh": 2,  # with the time range: jobs come and go
        "includeAll": True,
        "multi": True,
        "sort": 1,
    }


def _panel(panel: Panel) -> dict[str, Any]:
    custom: dict[str, Any] = {"fillOpacity": 10, "spanNulls": False}
    if panel.stacked:
        custom |= {"stacking": {"mode": "normal"}, "fillOpacity": 40}
    return {
        "type": panel.kind,
        "title": panel.title,
        "description": panel.text,
        "datasource": _SOURCE,
        "fieldConfig": {
            "defaults": {"unit": panel.unit, **({"custom": custom} if panel.kind == "timeseries" else {})},
            "overrides": [],
        },
        "targets": [
            {"refId": chr(ord("A") + number), "expr": query.expr, "legendFormat": query.legend, "datasource": _SOURCE}
            for number, query in enumerate(panel.queries)
        ],
    }


def _plot(title: str, expr: str, legend: str, unit: Unit = "none", text: str = "", *, stacked: bool = False) -> Panel:
    return Panel(title, (Query(expr, legend),), unit, text, stacked=stacked)


def _figure(title: str, expr: str, unit: Unit = "none", text: str = "") -> Panel:
    return Panel(title, (Query(expr, "{{training_job}}"),), unit, text, kind="stat")


_PER_HOUR = 3600 // SECONDS
"""Values that a rule records in an hour."""
_JOB = 'namespace=~"$namespace", training_job=~"$training_job"'
_BY_JOB = "namespace, training_job"
_NODE = 'node=~"$node"'

JOBS = Dashboard(
    "trainyard-jobs",
    "Trainyard: jobs",
    variables=(("namespace", "trainyard_step"), ("training_job", "trainyard_step")),
    rows=(
        (
            _figure("Step", f"trainyard:job_step{{{_JOB}}}"),
            _figure("Workers", f"max by ({_BY_JOB}) (trainyard_world_size{{{_JOB}}})", text="In the present world."),
            _figure(
                "Goodput",
                f"trainyard:job_goodput:ratio{{{_JOB}}}",
                "percentunit",
                "Which share of the last ten minutes was useful steps.",
            ),
            _figure(
                "Cost so far",
                f"sum_over_time(trainyard:job_usd_per_hour{{{_JOB}}}[30d]) / {_PER_HOUR}",
                "currencyUSD",
                "Machines of the last 30 days by the price table, each shared equally by the jobs on it.",
            ),
        ),
        (
            _plot(
                "Loss",
                f"max by ({_BY_JOB}) (trainyard_worker_loss{{{_JOB}}} and trainyard_worker_rank{{{_JOB}}} == 0)",
                "{{training_job}}",
                text="Of the last step, over the global batch.",
            ),
            _plot(
                "Evaluation",
                f"max by ({_BY_JOB}, figure) (trainyard_worker_evaluation{{{_JOB}}})",
                "{{training_job}} {{figure}}",
                text="What the script's evaluation returns: accuracy and the like.",
            ),
        ),
        (
            _plot(
                "Where the time of a step goes",
                f"avg by ({_BY_JOB}, part) (rate(trainyard_worker_step_seconds_sum{{{_JOB}}}[5m]))"
                f" / on ({_BY_JOB}) group_left ()"
                f' avg by ({_BY_JOB}) (rate(trainyard_worker_step_seconds_count{{{_JOB}, part="forward"}}[5m]))',
                "{{training_job}} {{part}}",
                "s",
                "Mean of five minutes. Much `data`: loaders or storage are slow. Much `sync`: network or a slow rank.",
                stacked=True,
            ),
            _plot(
                "Steps per second",
                f'max by ({_BY_JOB}) (rate(trainyard_worker_step_seconds_count{{{_JOB}, part="forward"}}[5m]))',
                "{{training_job}}",
            ),
        ),
        (
            Panel(
                "Workers: wanted and ready",
                (
                    Query(f"max by ({_BY_JOB}) (trainyard_job_workers_desired{{{_JOB}}})", "{{training_job}} wanted"),
                    Query(f"max by ({_BY_JOB}) (trainyard_job_workers_ready{{{_JOB}}})", "{{training_job}} ready"),
                ),
            ),
            Panel(
                "Recoveries",
                (
                    Query(
                        f"max by ({_BY_JOB}, cause) (increase(trainyard_recoveries_total{{{_JOB}}}[1h]))",
                        "{{training_job}} {{cause}}",
                    ),
                    Query(
                        f"max by ({_BY_JOB}) (increase(trainyard_steps_lost_total{{{_JOB}}}[1h]))",
                        "{{training_job}} steps lost",
                    ),
                ),
                text="Within an hour, by cause, and steps that were made again.",
            ),
            _plot(
                "Time to recover",
                f"histogram_quantile(0.9, sum by ({_BY_JOB}, le)"
                f' (rate(trainyard_recovery_seconds_bucket{{{_JOB}, phase="total"}}[1h])))',
                "{{training_job}}",
                "s",
                "Nine of ten were faster, within an hour.",
            ),
        ),
        (
            _plot(
                "Age of the newest checkpoint",
                f"time() - max by ({_BY_JOB}) (trainyard_worker_checkpoint_timestamp_seconds{{{_JOB}}})",
                "{{training_job}}",
                "s",
            ),
            _plot("Cost", f"trainyard:job_usd_per_hour{{{_JOB}}}", "{{training_job}}", "currencyUSD", "In an hour."),
        ),
    ),
)

GPUS = Dashboard(
    "trainyard-gpus",
    "Trainyard: GPUs",
    variables=(("node", "DCGM_FI_DEV_GPU_UTIL"),),
    rows=(
        (
            _plot("Utilisation", f"DCGM_FI_DEV_GPU_UTIL{{{_NODE}}}", "{{node}} {{gpu}}", "percent"),
            _plot(
                "Memory used",
                f"100 * DCGM_FI_DEV_FB_USED{{{_NODE}}}"
                f" / (DCGM_FI_DEV_FB_USED{{{_NODE}}} + DCGM_FI_DEV_FB_FREE{{{_NODE}}})",
                "{{node}} {{gpu}}",
                "percent",
            ),
        ),
        (
            _plot("Temperature", f"DCGM_FI_DEV_GPU_TEMP{{{_NODE}}}", "{{node}} {{gpu}}", "celsius"),
            _plot("Temperature of the memory", f"DCGM_FI_DEV_MEMORY_TEMP{{{_NODE}}}", "{{node}} {{gpu}}", "celsius"),
            _plot("Power", f"DCGM_FI_DEV_POWER_USAGE{{{_NODE}}}", "{{node}} {{gpu}}", "watt"),
        ),
        (
            _plot(
                "XID errors",
                f"DCGM_FI_DEV_XID_ERRORS{{{_NODE}}} > 0",
                "{{node}} {{gpu}}",
                text="Number of the last one; what it means: `python -m training diagnose gpus`.",
            ),
            _plot(
                "PCIe packets sent again",
                f"rate(DCGM_FI_DEV_PCIE_REPLAY_COUNTER{{{_NODE}}}[5m])",
                "{{node}} {{gpu}}",
                text="Per second. A slot or riser that is not well.",
            ),
            _plot("Rows that could not be replaced", f"DCGM_FI_DEV_ROW_REMAP_FAILURE{{{_NODE}}}", "{{node}} {{gpu}}"),
        ),
        (
            _plot("Clock, MHz", f"DCGM_FI_DEV_SM_CLOCK{{{_NODE}}}", "{{node}} {{gpu}}", text="Falls with heat."),
            _plot("Memory utilisation", f"DCGM_FI_DEV_MEM_COPY_UTIL{{{_NODE}}}", "{{node}} {{gpu}}", "percent"),
            _plot(
                "NVLink",
                f"rate(DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL{{{_NODE}}}[1m])",
                "{{node}} {{gpu}}",
                text="All lanes; the counter's unit depends on the GPU.",
            ),
        ),
    ),
)


def _efa(title: str, counter: str, unit: Unit = "none", text: str = "") -> Panel:
    return _plot(title, f"sum by (node) (rate(trainyard_efa_{counter}_total{{{_NODE}}}[1m]))", "{{node}}", unit, text)


FABRIC = Dashboard(
    "trainyard-fabric",
    "Trainyard: fabric",
    variables=(("node", "trainyard_fabric_devices"),),
    rows=(
        (_efa("Sent by EFA", "tx_bytes", "Bps"), _efa("Received by EFA", "rx_bytes", "Bps")),
        (
            _efa("Read from others' memory", "rdma_read_bytes", "Bps"),
            _efa("Written to others' memory", "rdma_write_bytes", "Bps"),
            _efa("Sent again", "retrans_bytes", "Bps", "Congestion, or a cable that is not well."),
        ),
        (
            _efa("Packets dropped", "rx_drops"),
            _efa("Time-outs", "retrans_timeout_events", text="Traffic took another path."),
            _efa("Silent peers", "unresponsive_remote_events"),
            _efa("Impaired connections", "impaired_remote_conn_events"),
        ),
        (
            _plot(
                "What NCCL uses between nodes",
                "count by (training_job, network) (trainyard_worker_nccl_network == 1)",
                "{{training_job}} {{network}}",
                text="`sockets` on machines with EFA is many times slower: see the alert NcclOnSockets.",
            ),
            _plot("EFA interfaces", f"trainyard_fabric_devices{{{_NODE}}}", "{{node}}"),
            Panel(
                "Failed reads and writes",
                (
                    Query(f"rate(trainyard_efa_rdma_read_wr_err_total{{{_NODE}}}[5m])", "{{node}} {{device}} reads"),
                    Query(f"rate(trainyard_efa_rdma_write_wr_err_total{{{_NODE}}}[5m])", "{{node}} {{device}} writes"),
                ),
            ),
        ),
    ),
)

STORAGE = Dashboard(
    "trainyard-storage",
    "Trainyard: storage",
    rows=(
        (
            _plot(
                "Time that jobs wait for data",
                f'avg by ({_BY_JOB}) (rate(trainyard_worker_step_seconds_sum{{part="data"}}[5m]))',
                "{{training_job}}",
                "percentunit",
                "Share of all time.",
            ),
            _plot(
                "Time that jobs wait for checkpoints",
                f'avg by ({_BY_JOB}) (rate(trainyard_worker_step_seconds_sum{{part="checkpoint"}}[5m]))',
                "{{training_job}}",
                "percentunit",
                "Share of all time.",
            ),
        ),
        (
            _plot("Read from disks", "sum by (instance) (rate(node_disk_read_bytes_total[1m]))", "{{instance}}", "Bps"),
            _plot(
                "Written to disks", "sum by (instance) (rate(node_disk_written_bytes_total[1m]))", "{{instance}}", "Bps"
            ),
            _plot(
                "Disks busy",
                "max by (instance) (rate(node_disk_io_time_seconds_total[1m]))",
                "{{instance}}",
                "percentunit",
                "The busiest of each machine.",
            ),
        ),
        (
            _plot(
                "Read from EFS",
                "sum by (instance) (rate(node_mountstats_nfs_total_read_bytes_total[1m]))",
                "{{instance}}",
                "Bps",
            ),
            _plot(
                "Written to EFS",
                "sum by (instance) (rate(node_mountstats_nfs_total_write_bytes_total[1m]))",
                "{{instance}}",
                "Bps",
            ),
        ),
        (
            _plot(
                "Volumes in use",
                "max by (namespace, persistentvolumeclaim)"
                " (kubelet_volume_stats_used_bytes / kubelet_volume_stats_capacity_bytes)",
                "{{namespace}}/{{persistentvolumeclaim}}",
                "percentunit",
            ),
            _plot(
                "Root disks in use",
                '1 - node_filesystem_avail_bytes{mountpoint="/"} / node_filesystem_size_bytes{mountpoint="/"}',
                "{{instance}}",
                "percentunit",
            ),
            _plot(
                "Memory in use",
                "1 - node_memory_MemAvailable_bytes / node_memory_MemTotal_bytes",
                "{{instance}}",
                "percentunit",
            ),
        ),
    ),
)

CONTROL = Dashboard(
    "trainyard-control",
    "Trainyard: controller and etcd",
    rows=(
        (
            _plot("Jobs", "max by (phase) (trainyard_elasticjobs)", "{{phase}}", stacked=True),
            _plot("Jobs waiting to be looked at", "max(trainyard_queue_length)", "jobs"),
            _plot(
                "Time of a pass",
                "histogram_quantile(0.99, sum by (le) (rate(trainyard_pass_seconds_bucket[5m])))",
                "99 %",
                "s",
            ),
            _plot("Calls to the API server", "sum by (verb) (rate(trainyard_api_calls_total[5m]))", "{{verb}}"),
        ),
        (
            _plot(
                "Notices of the end of machines",
                'sum (increase(trainyard_job_events_total{reason="NodeReclaimNotice"}[1h]))',
                "within an hour",
            ),
            _plot(
                "From notice to replacement",
                "histogram_quantile(0.9, sum by (le) (rate(trainyard_notice_to_replacement_seconds_bucket[1h])))",
                "90 %",
                "s",
            ),
            Panel(
                "Workers lost",
                (
                    Query("sum by (cause) (increase(trainyard_worker_disruptions_total[1h]))", "{{cause}}"),
                    Query("sum by (cause) (increase(trainyard_worker_restarts_total[1h]))", "{{cause}}, charged"),
                ),
                text="Within an hour, by cause.",
            ),
            _plot("What happens to jobs", "sum by (reason) (rate(trainyard_job_events_total[5m]))", "{{reason}}"),
        ),
        (
            _plot("etcd: knows a leader", "etcd_server_has_leader", "{{pod}}"),
            _plot(
                "etcd: time until a write is safe",
                "histogram_quantile(0.99, sum by (pod, le) (rate(etcd_disk_wal_fsync_duration_seconds_bucket[5m])))",
                "{{pod}}",
                "s",
            ),
            _plot("etcd: size of the database", "etcd_mvcc_db_total_size_in_bytes", "{{pod}}", "bytes"),
            _plot("etcd: writes waiting", "etcd_server_proposals_pending", "{{pod}}"),
        ),
    ),
)

DASHBOARDS: Sequence[Dashboard] = (JOBS, GPUS, FABRIC, STORAGE, CONTROL)
