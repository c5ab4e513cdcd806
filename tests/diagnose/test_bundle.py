"""A bundle has all that was looked at, and nothing that nobody else may read."""

from __future__ import annotations

import io
import json
import tarfile
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from infra.cli import files
from infra.diagnose.bundle import archive, contents
from infra.diagnose.finding import Finding
from infra.diagnose.snapshot import JobView, Snapshot
from infra.jobs import LogLine
from infra.waiting import Commands

PLANTED = "sw0rdf1sh-and-more"
KEY = "-----BEGIN RSA PRIVATE KEY-----\nMIIEpAIBAAKCAQEA7\n-----END RSA PRIVATE KEY-----"
TOKEN = "hf_" + "abcdefghijklmnopqrstuvwx"


def pod(name: str) -> dict[str, Any]:
    return {
        "metadata": {
            "name": name,
            "creationTimestamp": datetime(2026, 11, 30, 12, tzinfo=UTC),
            "managedFields": [{"manager": "elastic-controller"}],
            "annotations": {"kubectl.kubernetes.io/last-applied-configuration": f'{{"x": "{PLANTED}"}}'},
        },
        "spec": {
            "containers": [
                {
                    "name": "elasticjob-worker",
                    "args": ["--password", PLANTED, "--epochs=3"],
                    "env": [
                        {"name": "HARMLESS", "value": PLANTED},
                        {"name": "FROM", "valueFrom": {"secretKeyRef": {"name": "wandb", "key": "api"}}},
                    ],
                }
            ]
        },
    }


def lines(*texts: str) -> list[LogLine]:
    moment = "2026-11-30T12:00:00"
    return [LogLine("train-worker-0", f"{moment}Z", f"{moment}.000000000", text) for text in texts]


def snapshot() -> Snapshot:
    template = {"Worker": {"template": {"spec": pod("t")["spec"]}}}
    job = JobView(
        manifest={"metadata": {"name": "train"}, "spec": {"replicaSpecs": template}},
        pods=[pod("train-worker-0")],
        events=[{"reason": "Failed", "message": f"pull with https://me:{PLANTED}@registry.example/x failed"}],
        logs=[
            lines(
                '{"trainyard": "step", "time": 1.0, "step": 7}',
                f"logging in with WANDB_API_KEY={PLANTED}",
                f'{{"config": {{"db_password": "{PLANTED}"}}}}',
                f"token is {TOKEN}",
                *KEY.splitlines(),
                "Authorization: Bearer " + PLANTED,
            ),
            [],
        ],
        commands=Commands(job="train", stack="lab", namespace="training", local=True),
    )
    node = {"metadata": {"name": "gpu-0"}, "status": {"nodeInfo": {"kubeletVersion": "v1.33.1"}}}
    return Snapshot(
        stack="lab",
        namespace="training",
        now=1_764_500_000.0,
        nodes=[node],
        system_pods=[pod("etcd-0")],
        lease=None,
        jobs=[job],
    )


FOUND = Finding("crash", "ends", (f"password={PLANTED}",), "Read its log.", None, "error", "job/train")
SETTINGS = {"namespace": "training", "alerts": {"webhookUrl": PLANTED}}


def made() -> dict[str, str]:
    return contents(snapshot(), [FOUND], SETTINGS)


def test_it_has_objects_events_logs_versions_and_settings() -> None:
    told = made()
    assert sorted(told) == [
        "findings.json",
        "jobs/train/events.json",
        "jobs/train/job.json",
        "jobs/train/logs/train-worker-0.log",
        "jobs/train/pods.json",
        "nodes.json",
        "settings.json",
        "system/lease.json",
        "system/pods.json",
        "versions.json",
    ]
    assert json.loads(told["findings.json"])[0]["code"] == "crash"
    assert json.loads(told["settings.json"])["namespace"] == "training"
    assert json.loads(told["versions.json"])["machines"]["kubeletVersion"] == ["v1.33.1"]
    (worker,) = json.loads(told["jobs/train/pods.json"])
    assert worker["metadata"]["creationTimestamp"] == "2026-11-30T12:00:00+00:00"
    assert "managedFields" not in worker["metadata"]
    assert (
        '2026-11-30T12:00:00Z {"trainyard": "step", "time": 1.0, "step": 7}'
        in told["jobs/train/logs/train-worker-0.log"].splitlines()
    )


@pytest.mark.parametrize("secret", [PLANTED, TOKEN, "MIIEpAIBAAKCAQEA7"])
def test_no_planted_secret_is_in_it(secret: str) -> None:
    assert [name for name, text in made().items() if secret in text] == []


def test_of_the_environment_only_the_names_are_in_it() -> None:
    (worker,) = json.loads(made()["jobs/train/pods.json"])
    assert worker["spec"]["containers"][0]["env"] == [
        {"name": "HARMLESS", "value": "[secret]"},
        {"name": "FROM", "valueFrom": {"secretKeyRef": {"name": "wandb", "key": "api"}}},
    ]
    assert "--epochs=3" in worker["spec"]["containers"][0]["args"]


def test_the_archive_unpacks_into_one_folder_for_its_owner_alone(tmp_path: Path) -> None:
    file = tmp_path / "bundle.tar.gz"
    told = made()
    files.write(file, archive(told, snapshot()), private=True)
    assert file.stat().st_mode & 0o777 == 0o600
    with tarfile.open(fileobj=io.BytesIO(file.read_bytes())) as packed:
        members = {member.name: member for member in packed.getmembers()}
        assert sorted(members) == sorted(f"trainyard-lab/{name}" for name in told)
        assert {member.mode for member in members.values()} == {0o600}
        unpacked = packed.extractfile("trainyard-lab/nodes.json")
        assert unpacked is not None
        assert unpacked.read().decode() == told["nodes.json"]
