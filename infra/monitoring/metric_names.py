"""The one catalogue of metrics: every name that a rule or a dashboard may use, and who exports it.

Those of this project are held against what the programs really export (tests/monitoring); those of others are from
their sources, named here. docs/reference/metrics.md is made from it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

Kind = Literal["counter", "gauge", "histogram"]


@dataclass(frozen=True)
class Metric:
    """One metric.

    Attributes:
        name: as it stands in queries; of a histogram without `_bucket`, `_sum` and `_count`.
        kind: Prometheus' type.
        text: what it is, with its unit.
        labels: its own, beside those of its target.
    """

    name: str
    kind: Kind
    text: str
    labels: tuple[str, ...] = ()

    def series(self) -> tuple[str, ...]:
        """The names under which its series are stored."""
        if self.kind == "histogram":
            return tuple(f"{self.name}{suffix}" for suffix in ("_bucket", "_sum", "_count"))
        return (self.name,)


@dataclass(frozen=True)
class Exporter:
    """Who exports metrics.

    Attributes:
        title: for people.
        where: where it answers.
        source: where the names are from.
        metrics: its metrics; of foreign exporters those that are used here.
        is_own: whether these are all that it exports, which a test can see.
    """

    title: str
    where: str
    source: str
    metrics: tuple[Metric, ...]
    is_own: bool = False


CONTROLLER = Exporter(
    title="Controller",
    where="port 8080 (`metrics`) of the pods `elastic-controller`",
    source="training/controller/main.py",
    is_own=True,
    metrics=(
        Metric("trainyard_controller_leader", "gauge", "1 while this process leads."),
        Metric("trainyard_elasticjobs", "gauge", "Jobs by phase.", ("phase",)),
        Metric(
            "trainyard_job_workers_desired",
            "gauge",
            "Workers that a job wants; absent when it has ended or is suspended.",
            ("namespace", "training_job"),
        ),
        Metric(
            "trainyard_job_workers_ready",
            "gauge",
            "Workers of such a job that are ready.",
            ("namespace", "training_job"),
        ),
        Metric("trainyard_worker_pods", "gauge", "Worker pods known."),
        Metric("trainyard_workers_missing", "gauge", "Workers wanted that are not ready, of all jobs."),
        Metric("trainyard_queue_length", "gauge", "Jobs waiting to be looked at."),
        Metric("trainyard_plans_total", "counter", "Plans made."),
        Metric("trainyard_plan_seconds_total", "counter", "Seconds spent planning."),
        Metric("trainyard_errors_total", "counter", "Passes that failed."),
        Metric(
            "trainyard_lists_total", "counter", "Full lists read; each after the first of a kind is a watch that broke."
        ),
        Metric("trainyard_api_calls_total", "counter", "Calls to the API server.", ("verb", "resource")),
        Metric("trainyard_job_events_total", "counter", "What happened to jobs, by reason.", ("reason",)),
        Metric(
            "trainyard_worker_restarts_total", "counter", "Workers that failed, charged to backoffLimit.", ("cause",)
        ),
        Metric("trainyard_worker_disruptions_total", "counter", "Workers lost without being charged.", ("cause",)),
        Metric(
            "trainyard_scalings_total",
            "counter",
            "Changes of the number of workers that a job aims at.",
            ("direction",),
        ),
        Metric("trainyard_jobs_below_desired", "gauge", "Jobs with fewer ready workers than they aim at."),
        Metric(
            "trainyard_below_desired_seconds_total",
            "counter",
            "Seconds for which jobs had fewer ready workers than they aim at, of all jobs together.",
        ),
        Metric("trainyard_queue_seconds", "histogram", "From when a job could be looked at until it was."),
        Metric("trainyard_pass_seconds", "histogram", "A pass over a job, with its calls."),
        Metric(
            "trainyard_notice_to_replacement_seconds",
            "histogram",
            "From the notice of a node's end until another worker was created.",
        ),
    ),
)

LAUNCHER = Exporter(
    title="Launcher",
    where="port 9471 (`metrics`) of the jobs' pods; `TRAINYARD_METRICS_PORT`",
    source="training/metrics/scrape.py",
    is_own=True,
    metrics=(
        Metric("trainyard_recoveries_total", "counter", "Recoveries that ended with a step, by cause.", ("cause",)),
        Metric("trainyard_recovery_seconds", "histogram", "Seconds of each phase of a recovery.", ("phase",)),
        Metric("trainyard_steps_lost_total", "counter", "Optimizer steps that were done again."),
        Metric("trainyard_generation", "gauge", "Number of the world that this node is in."),
        Metric("trainyard_world_size", "gauge", "Workers in it."),
        Metric("trainyard_step", "gauge", "The last step that this node's workers have reported."),
        Metric("trainyard_restarts_left", "gauge", "Failures that the restart budget still allows."),
    ),
)

WORKER = Exporter(
    title="Worker",
    where="port 9481 (`worker-metrics`) of the jobs' pods: the first worker of each; `Loop(metrics_port=...)`",
    source="training/metrics/worker.py",
    is_own=True,
    metrics=(
        Metric("trainyard_worker_step", "gauge", "The last complete step."),
        Metric("trainyard_worker_loss", "gauge", "Its loss, over the global batch."),
        Metric("trainyard_worker_rank", "gauge", "Rank of this worker in the present world."),
        Metric("trainyard_worker_world_size", "gauge", "Workers in it."),
        Metric("trainyard_worker_generation", "gauge", "Number of the world."),
        Metric("trainyard_worker_samples_total", "counter", "Samples of all steps that this worker has seen."),
        Metric("trainyard_worker_step_seconds", "histogram", "Seconds of each step, by part.", ("part",)),
        Metric(
            "trainyard_worker_evaluation", "gauge", "What the last evaluation has found: `accuracy`, …", ("figure",)
        ),
        Metric(
            "trainyard_worker_checkpoint_timestamp_seconds",
            "gauge",
            "When the last checkpoint was safe (Unix time); on the rank that wrote it.",
        ),
        Metric("trainyard_worker_checkpoint_step", "gauge", "Step of that checkpoint."),
        Metric(
            "trainyard_worker_nccl_network",
            "gauge",
            "1 for the network that NCCL has chosen: `efa`, `infiniband`, `sockets`.",
            ("network",),
        ),
    ),
)

FABRIC = Exporter(
    title="Fabric exporter",
    where="port 9410 (`metrics`) of the pods `fabric-exporter`, on machines with EFA",
    source="training/metrics/fabric.py; the counters are those of the kernel's EFA driver"
    " (drivers/infiniband/hw/efa/efa_verbs.c)",
    is_own=True,
    metrics=(
        Metric("trainyard_fabric_devices", "gauge", "EFA interfaces of the machine."),
        *(
            Metric(f"trainyard_efa_{name}_total", "counter", text, ("device", "port"))
            for name, text in {
                "tx_bytes": "Bytes sent.",
                "rx_bytes": "Bytes received.",
                "tx_pkts": "Packets sent.",
                "rx_pkts": "Packets received.",
                "rx_drops": "Packets received and dropped.",
                "rdma_read_bytes": "Bytes read from others' memory.",
                "rdma_write_bytes": "Bytes written to others' memory.",
                "rdma_read_wr_err": "Reads of others' memory that failed.",
                "rdma_write_wr_err": "Writes to others' memory that failed.",
                "retrans_bytes": "Bytes sent again.",
                "retrans_pkts": "Packets sent again.",
                "retrans_timeout_events": "Time-outs after which traffic took another path.",
                "unresponsive_remote_events": "Times that another machine did not answer.",
                "impaired_remote_conn_events": "Times that a connection was slowed down, being impaired.",
            }.items()
        ),
    ),
)

DCGM = Exporter(
    title="DCGM exporter",
    where="port 9400 (`metrics`) of the pods `dcgm-exporter`, on machines with GPUs",
    source="NVIDIA/dcgm-exporter, etc/default-counters.csv; labels `gpu`, `UUID`, `Hostname`, and `pod` of the user",
    metrics=(
        Metric("DCGM_FI_DEV_SM_CLOCK", "gauge", "Clock of the multiprocessors, MHz."),
        Metric("DCGM_FI_DEV_GPU_TEMP", "gauge", "Temperature, degrees Celsius."),
        Metric("DCGM_FI_DEV_MEMORY_TEMP", "gauge", "Temperature of the memory, degrees Celsius."),
        Metric("DCGM_FI_DEV_POWER_USAGE", "gauge", "Power, W."),
        Metric("DCGM_FI_DEV_GPU_UTIL", "gauge", "Utilisation, per cent of time with a kernel running."),
        Metric("DCGM_FI_DEV_MEM_COPY_UTIL", "gauge", "Utilisation of the memory, per cent."),
        Metric("DCGM_FI_DEV_FB_USED", "gauge", "Memory used, MiB."),
        Metric("DCGM_FI_DEV_FB_FREE", "gauge", "Memory free, MiB."),
        Metric("DCGM_FI_DEV_XID_ERRORS", "gauge", "Number of the last XID error; 0: none since the exporter began."),
        Metric("DCGM_FI_DEV_PCIE_REPLAY_COUNTER", "counter", "PCIe packets sent again."),
        Metric("DCGM_FI_DEV_ROW_REMAP_FAILURE", "gauge", "1 when a broken row of memory could not be replaced."),
        Metric("DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL", "counter", "Traffic of all NVLink lanes."),
    ),
)

NODE = Exporter(
    title="Node exporter",
    where="comes with the chart, on every machine",
    source="prometheus/node_exporter, collectors diskstats, filesystem, loadavg, meminfo, mountstats (for EFS)",
    metrics=(
        Metric("node_load1", "gauge", "Load, one minute's mean."),
        Metric("node_memory_MemAvailable_bytes", "gauge", "Memory that is free or can be freed."),
        Metric("node_memory_MemTotal_bytes", "gauge", "Memory."),
        Metric("node_disk_read_bytes_total", "counter", "Bytes read.", ("device",)),
        Metric("node_disk_written_bytes_total", "counter", "Bytes written.", ("device",)),
        Metric("node_disk_io_time_seconds_total", "counter", "Seconds with something under way.", ("device",)),
        Metric("node_filesystem_avail_bytes", "gauge", "Bytes free.", ("mountpoint",)),
        Metric("node_filesystem_size_bytes", "gauge", "Size.", ("mountpoint",)),
        Metric("node_mountstats_nfs_total_read_bytes_total", "counter", "Bytes read over NFS (EFS).", ("export",)),
        Metric("node_mountstats_nfs_total_write_bytes_total", "counter", "Bytes written over NFS (EFS).", ("export",)),
    ),
)

CLUSTER = Exporter(
    title="Kubernetes",
    where="kubelets and kube-state-metrics, which come with the chart",
    source="kubernetes/kube-state-metrics, docs; kubelet's volume statistics",
    metrics=(
        Metric("kube_node_labels", "gauge", "1, with labels of the node (those that the chart is told)."),
        Metric("kubelet_volume_stats_used_bytes", "gauge", "Bytes used of a volume.", ("persistentvolumeclaim",)),
        Metric("kubelet_volume_stats_capacity_bytes", "gauge", "Size of a volume.", ("persistentvolumeclaim",)),
    ),
)

ETCD = Exporter(
    title="etcd",
    where="port 2381 (`metrics`) of the pods `etcd`",
    source="etcd-io/etcd 3.6, server/etcdserver/metrics.go, server/storage",
    metrics=(
        Metric("etcd_server_has_leader", "gauge", "1 while the member knows a leader."),
        Metric("etcd_server_leader_changes_seen_total", "counter", "Changes of the leader."),
        Metric("etcd_server_proposals_pending", "gauge", "Writes that wait for the others' consent."),
        Metric("etcd_server_quota_backend_bytes", "gauge", "Size from which writes are refused."),
        Metric("etcd_mvcc_db_total_size_in_bytes", "gauge", "Size of the database."),
        Metric("etcd_disk_wal_fsync_duration_seconds", "histogram", "Time until a write is safe on disk."),
    ),
)

PROMETHEUS = Exporter(
    title="Prometheus itself",
    where="made for each target",
    source="Prometheus' documentation, jobs and instances",
    metrics=(
        Metric("up", "gauge", "1 where the last scrape went well."),
        Metric("ALERTS", "gauge", "1 for each alert.", ("alertname", "alertstate", "severity")),
    ),
)

EXPORTERS = (CONTROLLER, LAUNCHER, WORKER, FABRIC, DCGM, NODE, CLUSTER, ETCD, PROMETHEUS)

TARGET_LABELS: Mapping[str, str] = {
    "job": "who: `elastic-controller`, `etcd`, `training`, `dcgm-exporter`, `fabric-exporter`",
    "namespace": "of the pod; of metrics about a job, the job's",
    "pod": "its name",
    "node": "its machine",
    "training_job": "name of the ElasticJob or PyTorchJob that the pod belongs to",
}
"""Labels that scraping adds."""


PYTORCHJOBS = "trainyard_pytorchjob_"
"""Before the names of a controller that serves PyTorchJobs, in place of `trainyard_`."""


def series_names(exporters: Iterable[Exporter] = EXPORTERS) -> frozenset[str]:
    """The names of all series that somebody exports."""
    names = [name for each in exporters for metric in each.metrics for name in metric.series()]
    twins = [name.replace("trainyard_", PYTORCHJOBS) for each in CONTROLLER.metrics for name in each.series()]
    return frozenset([*names, *twins])
