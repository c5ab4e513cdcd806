"""Recording and alerting rules, as data: written for Prometheus as YAML, told to the operator as a PrometheusRule.

What each alert means and what to do is in docs/how-to/monitoring.md, under the alert's name.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any, Literal

from training.diagnose.gpus import HOT, XIDS

SECONDS = 30
"""How often rules are evaluated."""

_JOB = "namespace, training_job"
_READY = f"max by ({_JOB}) (trainyard_job_workers_ready or trainyard_pytorchjob_job_workers_ready)"
_DESIRED = f"max by ({_JOB}) (trainyard_job_workers_desired or trainyard_pytorchjob_job_workers_desired)"
_USEFUL = "forward|backward|sync|optimizer"
_PROGRAMS_XIDS = (31, 43, 45)
"""Faults of a program: the GPU is well."""


@dataclass(frozen=True)
class Limits:
    """From when on something is worth an alert."""

    no_progress_minutes: int = 15
    checkpoint_minutes: int = 60
    gpu_celsius: int = HOT
    reclaims_per_hour: int = 4


@dataclass(frozen=True)
class Recording:
    """A series that is made of others."""

    name: str
    expr: str
    text: str
    labels: Mapping[str, str] = field(default_factory=dict)

    def as_rule(self) -> dict[str, Any]:
        """As Prometheus takes it."""
        return {"record": self.name, "expr": self.expr, **({"labels": dict(self.labels)} if self.labels else {})}


@dataclass(frozen=True)
class Alert:
    """What somebody should know.

    Attributes:
        name: `WordsLikeThese`; the heading of its section in the how-to.
        expr: what is so while it holds.
        minutes: for how long it must be so.
        severity: `critical`: training stands or will; `warning`: it is slower, or in danger.
        summary: one sentence, with the labels that name the object.
    """

    name: str
    expr: str
    minutes: int
    severity: Literal["critical", "warning"]
    summary: str

    def as_rule(self) -> dict[str, Any]:
        """As Prometheus takes it."""
        return {
            "alert": self.name,
            "expr": self.expr,
            "for": f"{self.minutes}m",
            "labels": {"severity": self.severity},
            "annotations": {
                "summary": self.summary,
                "runbook": f"docs/how-to/monitoring.md#{self.name.lower()}",
            },
        }


@dataclass(frozen=True)
class MachinePrice:
    """What an hour of a pool's machines costs, for one of their types."""

    pool: str
    instance_type: str
    usd_per_hour: Decimal


RECORDINGS: tuple[Recording, ...] = (
    Recording("trainyard:job_step", f"max by ({_JOB}) (trainyard_step)", "The last complete step of a job."),
    Recording(
        "trainyard:job_goodput:ratio",
        f'avg by ({_JOB}) (sum by ({_JOB}, pod) (rate(trainyard_worker_step_seconds_sum{{part=~"{_USEFUL}"}}[10m])))',
        "Which share of the last ten minutes was useful steps: forward, backward, exchange and optimizer. Steps that "
        "are made again count once more; `trainyard_steps_lost_total` tells how many.",
    ),
    Recording(
        "trainyard:node_usd_per_hour",
        "max by (node, pool, instance_type) (label_replace(label_replace(kube_node_labels,"
        ' "pool", "$1", "label_trainyard_dev_pool", "(.+)"),'
        ' "instance_type", "$1", "label_node_kubernetes_io_instance_type", "(.+)"))'
        " * on (pool, instance_type) group_left () trainyard:machine_usd_per_hour",
        "What a machine costs in an hour, in USD.",
    ),
    Recording(
        "trainyard:job_usd_per_hour",
        f'sum by ({_JOB}) (group by ({_JOB}, node) (up{{job="training"}})'
        " * on (node) group_left () (max by (node) (trainyard:node_usd_per_hour)"
        f' / on (node) count by (node) (group by ({_JOB}, node) (up{{job="training"}}))))',
        "What a job costs in an hour, in USD: its machines, each shared equally by the jobs on it.",
    ),
)


def price_recordings(prices: Sequence[MachinePrice]) -> list[Recording]:
    """Prices as series, which `trainyard:node_usd_per_hour` puts together with the machines that are there."""
    return [
        Recording(
            "trainyard:machine_usd_per_hour",
            f"vector({each.usd_per_hour})",
            "Price of a type of machine in a pool, from the price table.",
            {"pool": each.pool, "instance_type": each.instance_type},
        )
        for each in prices
    ]


def alerts(limits: Limits) -> list[Alert]:
    """All alerts."""
    xids = " or ".join(f"(DCGM_FI_DEV_XID_ERRORS == {xid})" for xid in XIDS if xid not in _PROGRAMS_XIDS)
    stuck = limits.no_progress_minutes
    return [
        Alert(
            "TrainingJobBelowDesired",
            f"{_READY} < {_DESIRED}",
            15,
            "warning",
            "Job {{ $labels.namespace }}/{{ $labels.training_job }} has {{ $value }} workers, fewer than it wants.",
        ),
        Alert(
            "TrainingNoProgress",
            f"(trainyard:job_step <= trainyard:job_step offset {stuck}m) and on ({_JOB}) ({_READY} > 0)",
            1,
            "critical",
            "Job {{ $labels.namespace }}/{{ $labels.training_job }} is at step {{ $value }}, no further than"
            f" {stuck} minutes ago.",
        ),
        Alert(
            "CheckpointOld",
            f"time() - max by ({_JOB}) (trainyard_worker_checkpoint_timestamp_seconds)"
            f" > {limits.checkpoint_minutes * 60}",
            5,
            "warning",
            "The newest checkpoint of job {{ $labels.namespace }}/{{ $labels.training_job }} is"
            " {{ $value | humanizeDuration }} old.",
        ),
        Alert(
            "NcclOnSockets",
            f'(max by ({_JOB}, node) (trainyard_worker_nccl_network{{network="sockets"}}) == 1)'
            " and on (node) (max by (node) (trainyard_fabric_devices) > 0)"
            f" and on ({_JOB}) (count by ({_JOB}) (trainyard_worker_step) > 1)",
            1,
            "critical",
            "Job {{ $labels.namespace }}/{{ $labels.training_job }} goes over TCP on {{ $labels.node }}, with EFA.",
        ),
        Alert(
            "EfaConnectionsImpaired",
            "sum by (node) (increase(trainyard_efa_impaired_remote_conn_events_total[10m])"
            " + increase(trainyard_efa_unresponsive_remote_events_total[10m])) > 0",
            5,
            "warning",
            "EFA of {{ $labels.node }} had {{ $value | humanize }} impaired or silent connections in ten minutes.",
        ),
        Alert(
            "GpuHot",
            f"DCGM_FI_DEV_GPU_TEMP >= {limits.gpu_celsius}",
            5,
            "warning",
            "GPU {{ $labels.gpu }} of {{ $labels.node }} has {{ $value }} degrees Celsius.",
        ),
        Alert(
            "GpuXid",
            xids,
            0,
            "critical",
            "GPU {{ $labels.gpu }} of {{ $labels.node }} has reported XID {{ $value }}.",
        ),
        Alert(
            "SpotReclaimsFrequent",
            'sum (increase(trainyard_job_events_total{reason="NodeReclaimNotice"}[1h]))'
            f" > {limits.reclaims_per_hour}",
            0,
            "warning",
            "{{ $value | humanize }} machines of running jobs were reclaimed within an hour.",
        ),
        Alert(
            "ControllerWithoutLeader",
            "(max(trainyard_controller_leader) == 0) or absent(trainyard_controller_leader)",
            5,
            "critical",
            "No controller leads: jobs are neither started nor mended.",
        ),
        Alert(
            "EtcdMemberDown",
            'up{job="etcd"} == 0',
            2,
            "critical",
            "etcd member {{ $labels.pod }} does not answer.",
        ),
        Alert(
            "EtcdNoLeader",
            "etcd_server_has_leader == 0",
            1,
            "critical",
            "etcd member {{ $labels.pod }} knows no leader: no job can form a world.",
        ),
        Alert(
            "EtcdSlowDisk",
            "histogram_quantile(0.99, sum by (pod, le) (rate(etcd_disk_wal_fsync_duration_seconds_bucket[5m]))) > 0.1",
            10,
            "warning",
            "Writes of etcd member {{ $labels.pod }} take {{ $value | humanizeDuration }} to be safe.",
        ),
        Alert(
            "EtcdAlmostFull",
            "etcd_mvcc_db_total_size_in_bytes / etcd_server_quota_backend_bytes > 0.8",
            5,
            "warning",
            "The database of etcd member {{ $labels.pod }} has {{ $value | humanizePercentage }} of its quota.",
        ),
    ]


def groups(limits: Limits, prices: Sequence[MachinePrice] = ()) -> dict[str, Any]:
    """The rules as a file of Prometheus holds them, and the `spec` of a PrometheusRule."""
    recordings = [*price_recordings(prices), *RECORDINGS]
    return {
        "groups": [
            {
                "name": "trainyard-recordings",
                "interval": f"{SECONDS}s",
                "rules": [each.as_rule() for each in recordings],
            },
            {
                "name": "trainyard-alerts",
                "interval": f"{SECONDS}s",
                "rules": [each.as_rule() for each in alerts(limits)],
            },
        ]
    }
