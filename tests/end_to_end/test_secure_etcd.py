"""etcd with three members, TLS and passwords, on the real engines: closed to strangers, and a job trains through it.

One stack for all tests here, in the order of the file. What this target cannot show: network policies, which need a
cluster network, and machines that fail, for its nodes are processes of one computer.
"""

from __future__ import annotations

import base64
import contextlib
import json
import random
import shutil
import socket
import ssl
import subprocess
import tempfile
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml
from test_whole_path import TRAINYARD, Stack, eventually

from infra.clusters import CHECKOUT
from training.launch.etcd_client import EtcdClient, EtcdError, EtcdUnreachableError, parse_endpoints
from training.launch.rendezvous import PREFIX

pytestmark = [pytest.mark.engines, pytest.mark.timeout(1200), pytest.mark.xdist_group("secure-etcd")]

NAME = "test-secure-etcd"
FILE = CHECKOUT / f"Pulumi.{NAME}.yaml"
SETTINGS = {
    "target": "local",
    "controller": {"pytorchJobs": True},
    "etcd": {"members": 3, "secure": True},
    "nodePools": [{"name": "system", "nodes": 3}, {"name": "gpu", "nodes": 1, "gpusPerNode": 3}],
}


class SecureStack(Stack):
    """The stack of the settings above; its file is in the checkout while the tests run, for that is where files are."""

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        return super().start(arguments[0], "-s", NAME, *arguments[1:])

    def shell(self, command: str) -> str:
        script = f'set -e; eval "$({TRAINYARD} env -s {NAME})"; cd {CHECKOUT}; {command}'
        return subprocess.run(
            ["bash", "-c", script], env=self.environment, capture_output=True, text=True, timeout=300, check=True
        ).stdout

    def objects(self, kind: str, namespace: str) -> list[dict[str, Any]]:
        listed = json.loads(self.kubectl("get", kind, "-n", namespace, "-o", "json"))
        return list(listed["items"])

    def secret(self, namespace: str, name: str) -> dict[str, str]:
        data = json.loads(self.kubectl("get", "secret", name, "-n", namespace, "-o", "json"))["data"]
        return {key: base64.b64decode(value).decode() for key, value in data.items()}

    def client(self, *, tls: bool = True, login: bool = False) -> EtcdClient:
        """A client of the first member, as a worker would make it, or without what it needs."""
        address = self.kubectl("get", "pod", "etcd-0", "-n", "trainyard-system", "-o", "jsonpath={.status.podIP}")
        secret = self.secret("training", "etcd-client")
        return EtcdClient(
            parse_endpoints(f"{address}:2379")[0],
            tls=ssl.create_default_context(cadata=secret["ca.crt"]) if tls else None,
            server_name="etcd.trainyard-system" if tls else None,
            user=secret["user"] if login else None,
            password=secret["password"] if login else None,
            # Who does not speak TLS is never answered and gives up soon; the others are, on a slow computer later.
            attempt_timeout=timedelta(seconds=30 if tls else 1),
            call_timeout=timedelta(seconds=120 if tls else 2),
        )


@pytest.fixture(scope="module")
def stack() -> Iterator[SecureStack]:
    folder = Path(tempfile.mkdtemp(prefix="ty-", dir="/tmp"))
    salt = yaml.safe_load((CHECKOUT / "Pulumi.local.yaml").read_text())["encryptionsalt"]
    config = {f"trainyard:{key}": value for key, value in SETTINGS.items()}
    FILE.write_text(yaml.safe_dump({"encryptionsalt": salt, "config": config}))
    made = SecureStack(folder)
    try:
        yield made
    finally:
        try:
            made.run("down", "--yes", "--state")
        finally:
            FILE.unlink()
            shutil.rmtree(folder)


def test_three_members_come_up_each_on_a_node_of_its_own(stack: SecureStack) -> None:
    created = stack.json("up")["changes"]["create"]
    pods = stack.objects("pods", "trainyard-system")
    homes = [pod["spec"]["nodeName"] for pod in pods if pod["metadata"]["labels"]["app.kubernetes.io/name"] == "etcd"]
    assert sorted(homes) == ["system-1", "system-2", "system-3"]
    assert stack.json("up")["changes"] == {"same": created}


def test_no_key_is_in_the_engine_s_record(stack: SecureStack) -> None:
    password = stack.secret("training", "etcd-client")["password"]
    records = [path.read_text() for path in stack.state.glob("pulumi/backend/.pulumi/stacks/**/*.json")]
    assert records
    assert not [record for record in records if "PRIVATE KEY" in record or password in record]


def test_strangers_are_refused(stack: SecureStack) -> None:
    with pytest.raises(EtcdUnreachableError):
        stack.client(tls=False).check()
    with pytest.raises(EtcdError, match="user name is empty"):
        stack.client().check()


def test_the_jobs_user_reaches_the_rendezvous_and_nothing_else(stack: SecureStack) -> None:
    client = stack.client(login=True)
    assert client.put(f"{PREFIX}/by-hand".encode(), b"1")
    with pytest.raises(EtcdError, match="permission denied"):
        client.put(b"/elsewhere", b"1")


def test_a_job_trains_through_it_while_a_member_is_away(stack: SecureStack) -> None:
    job = stack.job_file("secure")
    stack.run("submit", str(job))
    eventually("three workers", lambda: stack.state_of("secure")["ready"] == 3)
    stack.kubectl("delete", "pod", "etcd-0", "-n", "trainyard-system", "--wait=false")
    assert stack.json("submit", str(job), "--wait")["jobs"][0]["state"] == "Succeeded"
    stack.assert_each_image_was_used_once_in_each_epoch("secure")


SUM_OF_RANKS = """
import torch, torch.distributed as dist
dist.init_process_group("gloo")
ranks = torch.tensor([float(dist.get_rank())])
dist.all_reduce(ranks)
print(f"rank {dist.get_rank()} of {dist.get_world_size()}, sum {ranks.item():g}", flush=True)
dist.destroy_process_group()
"""


def free_port() -> int:
    """A port below those of outgoing connections: pods of this target share the computer's network."""
    while True:
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("", random.randrange(10000, 20000)))  # noqa: S311 - no secret; closed at once
            return int(probe.getsockname()[1])


def pytorch_job(name: str, roles: dict[str, int], **spec: Any) -> dict[str, Any]:
    """A PyTorchJob of torchrun itself, with nothing on its command line about the other nodes."""
    digits = yaml.safe_load((CHECKOUT / "training/examples/digits.yaml").read_text())
    rights = digits["spec"]["replicaSpecs"]["Worker"]["template"]["spec"]
    (container,) = rights["containers"]
    pytorch = {
        "name": "pytorch",
        "image": container["image"],
        "command": ["python3", "-m", "torch.distributed.run", "--no-python", "python3", "-c", SUM_OF_RANKS],
        "env": [{"name": "OMP_NUM_THREADS", "value": "1"}],
        "ports": [{"name": "pytorchjob-port", "containerPort": free_port()}],
        "securityContext": container["securityContext"],
    }
    template = {"spec": {"securityContext": rights["securityContext"], "containers": [pytorch]}}
    return {
        "apiVersion": "kubeflow.org/v1",
        "kind": "PyTorchJob",
        "metadata": {"name": name, "namespace": "training"},
        "spec": {
            "nprocPerNode": "1",
            "pytorchReplicaSpecs": {role: {"replicas": number, "template": template} for role, number in roles.items()},
            **spec,
        },
    }


def test_pytorchjobs_run_with_torchrun_alone(stack: SecureStack) -> None:
    """One of a Master and a worker with fixed ranks, one of two workers that meet at the first by c10d."""
    fixed = pytorch_job("fixed", {"Master": 1, "Worker": 1})
    elastic = pytorch_job("elastic", {"Worker": 2}, elasticPolicy={"minReplicas": 2, "maxReplicas": 2})
    for job in (fixed, elastic):
        path = stack.folder / f"{job['metadata']['name']}.yaml"
        path.write_text(yaml.safe_dump(job))
        stack.kubectl("apply", "-f", str(path))
    for name, pods in (
        ("fixed", ("fixed-master-0", "fixed-worker-0")),
        ("elastic", ("elastic-worker-0", "elastic-worker-1")),
    ):
        stack.kubectl("wait", "-n", "training", "--for=condition=Succeeded", "--timeout=280s", f"pytorchjob/{name}")
        logs = [stack.kubectl("logs", "-n", "training", pod) for pod in pods]
        told = sorted(line for log in logs for line in log.splitlines() if line.startswith("rank "))
        assert told == ["rank 0 of 2, sum 1", "rank 1 of 2, sum 1"]
        if name == "fixed":
            assert ["rank 0" in log for log in logs] == [True, False], "the Master's rank is 0"


def test_upkeep_finds_nothing_to_do(stack: SecureStack) -> None:
    """A run that changed users each hour would cost running jobs a login."""
    system = ("-n", "trainyard-system")
    stack.kubectl("create", "job", *system, "--from=cronjob/etcd-upkeep", "by-hand")
    stack.kubectl("wait", *system, "--for=condition=complete", "--timeout=240s", "job/by-hand")
    done = json.loads(stack.kubectl("logs", *system, "job/by-hand").splitlines()[-1])
    assert (done["message"], done["made"], done["users_changed"]) == ("done", [], False)
