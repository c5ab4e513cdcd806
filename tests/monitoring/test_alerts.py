"""Each alert on recorded series, by the real promtool: it fires when it should, and else it does not."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
import yaml

from infra.local import engines
from infra.monitoring.rules import RECORDINGS, Limits, MachinePrice, alerts, groups

pytestmark = pytest.mark.engines
JOB = 'namespace="training",training_job="digits"'


@dataclass(frozen=True)
class Story:
    """Series of a minute's step (`1+2x3`: 1, then three times two more), and which alerts fire at a minute."""

    what: str
    alert: str
    series: Mapping[str, str]
    minute: int
    fires: list[Mapping[str, str]] = field(default_factory=list)


STORIES = [
    Story(
        "one worker of four is missing",
        "TrainingJobBelowDesired",
        {f"trainyard_job_workers_ready{{{JOB}}}": "3x30", f"trainyard_job_workers_desired{{{JOB}}}": "4x30"},
        20,
        [{"namespace": "training", "training_job": "digits"}],
    ),
    Story(
        "it was missing for ten minutes",
        "TrainingJobBelowDesired",
        {f"trainyard_job_workers_ready{{{JOB}}}": "4 3x10 4x30", f"trainyard_job_workers_desired{{{JOB}}}": "4x40"},
        20,
    ),
    Story(
        "a PyTorchJob misses a worker",
        "TrainingJobBelowDesired",
        {
            f"trainyard_pytorchjob_job_workers_ready{{{JOB}}}": "1x30",
            f"trainyard_pytorchjob_job_workers_desired{{{JOB}}}": "2x30",
        },
        20,
        [{"namespace": "training", "training_job": "digits"}],
    ),
    Story(
        "a step hangs at 50",
        "TrainingNoProgress",
        {
            f'trainyard_step{{{JOB},pod="digits-worker-0"}}': "0+10x5 50x40",
            f'trainyard_step{{{JOB},pod="digits-worker-1"}}': "0+10x5 49x40",
            f"trainyard_job_workers_ready{{{JOB}}}": "2x50",
        },
        30,
        [{"namespace": "training", "training_job": "digits"}],
    ),
    Story(
        "it goes on after a recovery of ten minutes",
        "TrainingNoProgress",
        {
            f'trainyard_step{{{JOB},pod="digits-worker-0"}}': "0+10x5 40x10 40+10x30",
            f"trainyard_job_workers_ready{{{JOB}}}": "2x50",
        },
        25,
    ),
    Story(
        "it waits for machines, without a worker",
        "TrainingNoProgress",
        {f'trainyard_step{{{JOB},pod="w"}}': "50x50", f"trainyard_job_workers_ready{{{JOB}}}": "0x50"},
        30,
    ),
    Story(
        "none was saved since the beginning",
        "CheckpointOld",
        {f"trainyard_worker_checkpoint_timestamp_seconds{{{JOB}}}": "0x90"},
        70,
        [{"namespace": "training", "training_job": "digits"}],
    ),
    Story(
        "another rank has saved since",
        "CheckpointOld",
        {
            f'trainyard_worker_checkpoint_timestamp_seconds{{{JOB},pod="a"}}': "0x90",
            f'trainyard_worker_checkpoint_timestamp_seconds{{{JOB},pod="b"}}': "3000x90",
        },
        70,
    ),
    Story(
        "two workers, one on sockets on a machine with EFA",
        "NcclOnSockets",
        {
            f'trainyard_worker_nccl_network{{{JOB},node="a",network="sockets"}}': "1x10",
            f'trainyard_worker_nccl_network{{{JOB},node="b",network="efa"}}': "1x10",
            f'trainyard_worker_step{{{JOB},node="a"}}': "1x10",
            f'trainyard_worker_step{{{JOB},node="b"}}': "1x10",
            'trainyard_fabric_devices{node="a",pod="f1"}': "32x10",
            'trainyard_fabric_devices{node="b",pod="f2"}': "32x10",
        },
        5,
        [{"namespace": "training", "training_job": "digits", "node": "a"}],
    ),
    Story(
        "machines without EFA have nothing better",
        "NcclOnSockets",
        {f'trainyard_worker_nccl_network{{{JOB},node="{node}",network="sockets"}}': "1x10" for node in ("a", "b")}
        | {f'trainyard_worker_step{{{JOB},node="{node}"}}': "1x10" for node in ("a", "b")},
        5,
    ),
    Story(
        "a single machine needs no network",
        "NcclOnSockets",
        {
            f'trainyard_worker_nccl_network{{{JOB},node="a",network="sockets"}}': "1x10",
            f'trainyard_worker_step{{{JOB},node="a"}}': "1x10",
            'trainyard_fabric_devices{node="a"}': "32x10",
        },
        5,
    ),
    Story(
        "peers fall silent",
        "EfaConnectionsImpaired",
        {
            'trainyard_efa_impaired_remote_conn_events_total{node="a",device="d"}': "0x30",
            'trainyard_efa_unresponsive_remote_events_total{node="a",device="d"}': "0+2x30",
        },
        20,
        [{"node": "a"}],
    ),
    Story(
        "they did once, long ago",
        "EfaConnectionsImpaired",
        {
            'trainyard_efa_impaired_remote_conn_events_total{node="a",device="d"}': "7x30",
            'trainyard_efa_unresponsive_remote_events_total{node="a",device="d"}': "0 4x30",
        },
        25,
    ),
    Story(
        "one of two GPUs is at 91 degrees",
        "GpuHot",
        {'DCGM_FI_DEV_GPU_TEMP{gpu="0",node="a"}': "60x20", 'DCGM_FI_DEV_GPU_TEMP{gpu="1",node="a"}': "91x20"},
        10,
        [{"gpu": "1", "node": "a"}],
    ),
    Story("a peak of two minutes", "GpuHot", {'DCGM_FI_DEV_GPU_TEMP{gpu="0",node="a"}': "60x5 91 90 70x20"}, 7),
    Story(
        "it has fallen off the bus",
        "GpuXid",
        {'DCGM_FI_DEV_XID_ERRORS{gpu="3",node="a"}': "0x5 79x5"},
        8,
        [{"gpu": "3", "node": "a"}],
    ),
    Story("a program's own fault", "GpuXid", {'DCGM_FI_DEV_XID_ERRORS{gpu="3",node="a"}': "0x5 43x5"}, 8),
    Story(
        "twelve in an hour",
        "SpotReclaimsFrequent",
        {'trainyard_job_events_total{reason="NodeReclaimNotice"}': "0+1x12 12x80"},
        40,
        [{}],
    ),
    Story(
        "three in an hour, and many other events",
        "SpotReclaimsFrequent",
        {
            'trainyard_job_events_total{reason="NodeReclaimNotice"}': "0 1 2 3x90",
            'trainyard_job_events_total{reason="SuccessfulCreatePod"}': "0+5x90",
        },
        40,
    ),
    Story(
        "both stand by",
        "ControllerWithoutLeader",
        {'trainyard_controller_leader{pod="a"}': "0x20", 'trainyard_controller_leader{pod="b"}': "0x20"},
        10,
        [{}],
    ),
    Story("none is there", "ControllerWithoutLeader", {'up{job="etcd"}': "1x20"}, 10, [{}]),
    Story(
        "one leads, one stands by",
        "ControllerWithoutLeader",
        {'trainyard_controller_leader{pod="a"}': "1x20", 'trainyard_controller_leader{pod="b"}': "0x20"},
        10,
    ),
    Story(
        "one of three does not answer",
        "EtcdMemberDown",
        {f'up{{job="etcd",pod="etcd-{number}"}}': "0x20" if number == 2 else "1x20" for number in range(3)},
        10,
        [{"job": "etcd", "pod": "etcd-2"}],
    ),
    Story("workers come and go", "EtcdMemberDown", {'up{job="training",pod="w"}': "0x20", 'up{job="etcd"}': "1x20"}, 9),
    Story(
        "a member is cut off",
        "EtcdNoLeader",
        {'etcd_server_has_leader{pod="etcd-0"}': "1x5 0x20", 'etcd_server_has_leader{pod="etcd-1"}': "1x25"},
        10,
        [{"pod": "etcd-0"}],
    ),
    Story("an election", "EtcdNoLeader", {'etcd_server_has_leader{pod="etcd-0"}': "1x5 0 1x20"}, 7),
    Story(
        "a disk of half a second",
        "EtcdSlowDisk",
        {
            f'etcd_disk_wal_fsync_duration_seconds_bucket{{pod="etcd-0",le="{bound}"}}': f"0+{rate}x40"
            for bound, rate in (("0.064", 0), ("0.512", 60), ("+Inf", 60))
        },
        30,
        [{"pod": "etcd-0"}],
    ),
    Story(
        "a disk of some milliseconds",
        "EtcdSlowDisk",
        {
            f'etcd_disk_wal_fsync_duration_seconds_bucket{{pod="etcd-0",le="{bound}"}}': "0+60x40"
            for bound in ("0.064", "0.512", "+Inf")
        },
        30,
    ),
    Story(
        "nine tenths are used",
        "EtcdAlmostFull",
        {
            'etcd_mvcc_db_total_size_in_bytes{pod="etcd-0"}': "483183820x20",
            'etcd_server_quota_backend_bytes{pod="etcd-0"}': "536870912x20",
        },
        10,
        [{"pod": "etcd-0"}],
    ),
    Story(
        "a hundredth is used",
        "EtcdAlmostFull",
        {
            'etcd_mvcc_db_total_size_in_bytes{pod="etcd-0"}': "5368709x20",
            'etcd_server_quota_backend_bytes{pod="etcd-0"}': "536870912x20",
        },
        10,
    ),
]
PRICES = [MachinePrice("gpu-spot", "p5.48xlarge", Decimal("20.5")), MachinePrice("gpu", "p5.48xlarge", Decimal(55))]


def promtool(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    program = engines.ensure(["promtool"])["promtool"].path
    return subprocess.run([program, *arguments], capture_output=True, text=True, timeout=300, check=False)


@pytest.fixture(scope="module")
def rules(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("rules") / "rules.yaml"
    file.write_text(yaml.safe_dump(groups(Limits(), PRICES)))
    return file


def test_the_rules_are_what_prometheus_takes(rules: Path) -> None:
    done = promtool("check", "rules", "--lint-fatal", rules)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{len(PRICES) + len(RECORDINGS) + len(alerts(Limits()))} rules found" in done.stdout


def case(story: Story, severity: str) -> dict[str, Any]:
    labels = {"alertname": story.alert, "alertstate": "firing", "severity": severity}
    return {
        "name": f"{story.alert}: {story.what}",
        "interval": "1m",
        "input_series": [{"series": name, "values": values} for name, values in story.series.items()],
        "promql_expr_test": [
            {
                "expr": f'ALERTS{{alertname="{story.alert}",alertstate="firing"}}',
                "eval_time": f"{story.minute}m",
                "exp_samples": [{"labels": series("ALERTS", labels | dict(each)), "value": 1} for each in story.fires],
            }
        ],
    }


def series(name: str, labels: Mapping[str, str]) -> str:
    return f"{name}{{{','.join(f'{key}={json.dumps(value)}' for key, value in labels.items())}}}"


def run(rules: Path, tests: list[dict[str, Any]]) -> None:
    file = rules.with_name("tests.yaml")
    document = {"rule_files": [rules.name], "evaluation_interval": "30s", "fuzzy_compare": True, "tests": tests}
    file.write_text(yaml.safe_dump(document))
    done = promtool("test", "rules", file)
    assert done.returncode == 0, done.stdout + done.stderr


def test_alerts_fire_when_they_should_and_else_do_not(rules: Path) -> None:
    severities = {alert.name: alert.severity for alert in alerts(Limits())}
    run(rules, [case(story, severities[story.alert]) for story in STORIES])


def test_no_alert_is_without_both_kinds_of_story() -> None:
    told = {(story.alert, bool(story.fires)) for story in STORIES}
    assert told == {(alert.name, fires) for alert in alerts(Limits()) for fires in (True, False)}


def test_a_job_costs_its_share_of_its_machines(rules: Path) -> None:
    """Two spot machines, of which the second has another job besides: 20.5 + 20.5 / 2 USD in an hour."""
    node = 'label_trainyard_dev_pool="gpu-spot",label_node_kubernetes_io_instance_type="p5.48xlarge"'
    shares = {("digits", "a"), ("digits", "b"), ("other", "b")}
    inputs = {f'kube_node_labels{{node="{name}",{node}}}': "1x10" for name in "ab"}
    for job, name in shares:
        for port in ("9471", "9481"):
            labels = f'job="training",namespace="training",training_job="{job}",node="{name}",instance=":{port}"'
            inputs[f"up{{{labels}}}"] = "1x10"
    expected = [("digits", 30.75), ("other", 10.25)]
    name = "trainyard:job_usd_per_hour"
    check = {
        "expr": name,
        "eval_time": "5m",
        "exp_samples": [
            {"labels": series(name, {"namespace": "training", "training_job": job}), "value": usd}
            for job, usd in expected
        ],
    }
    given = [{"series": each, "values": values} for each, values in inputs.items()]
    run(rules, [{"interval": "1m", "input_series": given, "promql_expr_test": [check]}])


def test_goodput_is_the_useful_share_of_the_time(rules: Path) -> None:
    """Of each minute 30 s are forward and backward, and 15 s waiting for data; the rest nobody has told of."""
    inputs = [
        {"series": f'trainyard_worker_step_seconds_sum{{{JOB},pod="w",part="{part}"}}', "values": f"0+{seconds}x30"}
        for part, seconds in (("forward", 10), ("backward", 20), ("data", 15))
    ]
    labels = {"namespace": "training", "training_job": "digits"}
    samples = [{"labels": series("trainyard:job_goodput:ratio", labels), "value": 0.5}]
    check = {"expr": "trainyard:job_goodput:ratio", "eval_time": "20m", "exp_samples": samples}
    run(rules, [{"interval": "1m", "input_series": inputs, "promql_expr_test": [check]}])
